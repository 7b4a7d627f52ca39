//! Casts to FP8 and what goes with them.

use super::check;
use crate::{
    context::{Context, Stream},
    error::{Error, Result, Status},
    tensor::TensorView,
};

/// Arguments of [`cast_to_fp8`].
#[derive(Clone, Copy, Debug)]
pub struct CastArgs {
    /// f32, f16 or bf16 `[rows, cols]`, row-wise.
    pub input: TensorView,
    /// FP8 `[rows, cols]`: row-wise, transposed or both; `scale` read (null: 1), `scale_inv` written, `amax` recorded.
    pub output: TensorView,
}

/// `q = encode(f32(x) * scale)`, one rounding, saturating (NUMERICS section 2), into the layouts that are present.
///
/// Writes `1/scale` to `output.scale_inv` and records the amax of the input in `output.amax` where those are not null.
///
/// # Safety
/// See [the module](super).
pub unsafe fn cast_to_fp8(ctx: &Context, args: &CastArgs, stream: Stream) -> Result<()> {
    let (x, q, b) = (&args.input, &args.output, ctx.backend());
    check::dtype("input", x, check::HIGH)?;
    check::dtype("output", q, check::FP8)?;
    let read = check::rowwise(b, "input", x)?;
    check::same_shape("output", q, "input", x)?;
    let written = fp8_output(ctx, "output", q)?;
    check::disjoint(&[read], &written)?;
    // SAFETY: validated; the caller vouches for the pointers.
    unsafe { b.cast_to_fp8(args, stream) }
}

/// Checks an FP8 output: at least one layout, and its slots. Returns the ranges written.
pub(crate) fn fp8_output(ctx: &Context, name: &'static str, q: &TensorView) -> Result<[check::Range; 2]> {
    let b = ctx.backend();
    if q.data.is_null() && q.data_t.is_null() && !q.is_empty() {
        return Err(Error::argument(
            Status::NullPointer,
            format_args!("{name}.data and {name}.data_t"),
            "NULL",
            "at least one layout must be present",
        ));
    }
    let absent = check::Range { name, start: 0, end: 0 };
    let row = if q.data.is_null() { absent } else { check::rowwise(b, name, q)? };
    let col = if q.data_t.is_null() { absent } else { check::transposed(b, name, q)? };
    check::pointer(b, "scale", q.scale, 4)?;
    check::pointer(b, "scale_inv", q.scale_inv, 4)?;
    check::pointer(b, "amax", q.amax, 4)?;
    Ok([row, col])
}
