//! From FP8 codes back to high precision, and from one layout of codes to the other.

use super::check;
use crate::{
    context::{Context, Stream},
    error::{Error, Result, Status},
    tensor::{Ptr, TensorView},
};

/// Arguments of [`dequantize`].
#[derive(Clone, Copy, Debug)]
pub struct DequantizeArgs {
    /// FP8 `[rows, cols]` with `scale_inv` (null: 1). `data` is read; `data_t` where `data` is null.
    pub input: TensorView,
    /// f32, f16 or bf16 `[rows, cols]`, row-wise.
    pub output: TensorView,
}

/// `y = f32(q) * scale_inv` in f32, then rounded once to the output type. NaN is written as the hardware writes it.
///
/// # Safety
/// See [the module](super).
pub unsafe fn dequantize(ctx: &Context, args: &DequantizeArgs, stream: Stream) -> Result<()> {
    let (q, y, b) = (&args.input, &args.output, ctx.backend());
    check::dtype("input", q, check::FP8)?;
    check::dtype("output", y, check::HIGH)?;
    let read = codes(ctx, q)?;
    check::same_shape("output", y, "input", q)?;
    check::pointer(b, "input.scale_inv", q.scale_inv, 4)?;
    let written = check::rowwise(b, "output", y)?;
    check::disjoint(&[read], &[written])?;
    // SAFETY: validated; the caller vouches for the pointers.
    unsafe { b.dequantize(args, stream) }
}

/// Arguments of [`fp8_transpose`].
#[derive(Clone, Copy, Debug)]
pub struct TransposeArgs {
    /// FP8 `[rows, cols]`: `data` is read; `data_t` where `data` is null.
    pub input: TensorView,
    /// Same type and shape; the layout that the input is not read from is written: `data_t`, or `data` where `input.data` is null.
    /// The other one must be null or the input's own, so that one description can serve as both arguments.
    pub output: TensorView,
}

/// The missing layout of a quantized tensor: the same codes, transposed.
///
/// `output.scale_inv` receives the input's where it is not null; `scale` and `amax` are not touched.
///
/// # Safety
/// See [the module](super).
pub unsafe fn fp8_transpose(ctx: &Context, args: &TransposeArgs, stream: Stream) -> Result<()> {
    let (x, y, b) = (&args.input, &args.output, ctx.backend());
    check::dtype("input", x, check::FP8)?;
    check::dtype("output", y, &[x.dtype])?;
    let read = codes(ctx, x)?;
    check::same_shape("output", y, "input", x)?;
    let (written, field, other, own) = match x.data.is_null() {
        false => (check::transposed(b, "output", y)?, "output.data", y.data, x.data),
        true => (check::rowwise(b, "output", y)?, "output.data_t", y.data_t, x.data_t),
    };
    if !other.is_null() && other != own {
        return Err(Error::argument(Status::Unsupported, field, format!("{:#x}", other.0), "must be NULL or the layout that is read"));
    }
    check::pointer(b, "input.scale_inv", x.scale_inv, 4)?;
    check::pointer(b, "output.scale_inv", y.scale_inv, 4)?;
    check::pointer(b, "output.scale", y.scale, 4)?;
    check::pointer(b, "output.amax", y.amax, 4)?;
    if x.scale_inv.is_null() && !y.scale_inv.is_null() {
        return Err(Error::argument(Status::NullPointer, "input.scale_inv", "NULL", "is required to write output.scale_inv"));
    }
    check::disjoint(&[read], &[written])?;
    // SAFETY: validated; the caller vouches for the pointers.
    unsafe { b.fp8_transpose(args, stream) }
}

/// The layout of codes that is read: row-wise where present.
fn codes(ctx: &Context, q: &TensorView) -> Result<check::Range> {
    match q.data == Ptr::NULL && !q.data_t.is_null() {
        true => check::transposed(ctx.backend(), "input", q),
        false => check::rowwise(ctx.backend(), "input", q),
    }
}
