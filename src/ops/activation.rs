//! Activations and gated activations, forward and backward (NUMERICS section 8).
//!
//! Arithmetic is f32, nothing is rounded before the output's one cast. Values at the ends are the limits of the formulas, never the NaN
//! of a product 0 * inf inside them: gelu, silu and qgelu of -inf are -0, of +inf +inf; their derivatives there are 0 and 1. relu and
//! srelu of anything not above zero are +0. A NaN in gives a NaN out, forward and backward.

use super::{
    cast::{fp8_output, scale_slot, slot},
    check,
};
use crate::{
    context::{Context, Stream},
    error::{Error, Result, Status},
    tensor::{DType, Ptr, TensorView},
};

/// Which function, and whether it gates. The numbers are the C ABI's `NVTE_ACTIVATION_*`; a gated form is 16 above its function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Activation {
    /// Tanh form, `x * sigmoid(2u)`, `u = 0.79788456 * (x + 0.044715 x^3)`.
    Gelu = 0,
    /// `x * Phi(x)`, with the normal distribution function.
    GeluErf = 1,
    /// `x * sigmoid(x)`.
    Silu = 2,
    /// `max(x, 0)`.
    Relu = 3,
    /// `x * sigmoid(1.702 x)`.
    Qgelu = 4,
    /// `max(x, 0)^2`.
    Srelu = 5,
    /// `gelu(a) * b` for the halves `a`, `b` of a row.
    Geglu = 16,
    /// `gelu_erf(a) * b`.
    GegluErf = 17,
    /// `silu(a) * b`.
    Swiglu = 18,
    /// `relu(a) * b`.
    Reglu = 19,
    /// `qgelu(a) * b`.
    Qgeglu = 20,
    /// `srelu(a) * b`.
    Sreglu = 21,
}

impl Activation {
    /// All of them.
    pub const ALL: [Activation; 12] = [
        Activation::Gelu,
        Activation::GeluErf,
        Activation::Silu,
        Activation::Relu,
        Activation::Qgelu,
        Activation::Srelu,
        Activation::Geglu,
        Activation::GegluErf,
        Activation::Swiglu,
        Activation::Reglu,
        Activation::Qgeglu,
        Activation::Sreglu,
    ];

    /// Whether the input holds two halves, the second of which multiplies the activated first.
    pub const fn is_gated(self) -> bool {
        self as i32 >= 16
    }

    /// The function that is applied: itself, or for a gated form that of its first half.
    pub const fn function(self) -> Activation {
        Self::ALL[self as usize % 16]
    }

    /// Name as users write it.
    pub const fn name(self) -> &'static str {
        match self {
            Activation::Gelu => "gelu",
            Activation::GeluErf => "gelu_erf",
            Activation::Silu => "silu",
            Activation::Relu => "relu",
            Activation::Qgelu => "qgelu",
            Activation::Srelu => "srelu",
            Activation::Geglu => "geglu",
            Activation::GegluErf => "geglu_erf",
            Activation::Swiglu => "swiglu",
            Activation::Reglu => "reglu",
            Activation::Qgeglu => "qgeglu",
            Activation::Sreglu => "sreglu",
        }
    }

    /// The activation with this number; `argument` names it in the error.
    pub fn from_i32(argument: &str, v: i32) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|a| *a as i32 == v);
        found.ok_or_else(|| Error::argument(Status::InvalidEnum, argument, v, "an activation is 0 to 5, its gated form 16 to 21"))
    }

    /// Columns of the input for `hidden` columns of the output.
    fn input_cols(self, hidden: i64) -> Option<i64> {
        if self.is_gated() {
            hidden.checked_mul(2)
        } else {
            Some(hidden)
        }
    }
}

/// Arguments of [`activation_fwd`].
#[derive(Clone, Copy, Debug)]
pub struct ActivationArgs {
    /// The function.
    pub kind: Activation,
    /// f32, f16 or bf16 `[rows, H]`, or `[rows, 2H]` for a gated form.
    pub input: TensorView,
    /// `[rows, H]`: f32, f16 or bf16 row-wise, or FP8 row-wise, transposed or both (`scale` read, `scale_inv` written). `amax` recorded.
    pub output: TensorView,
}

/// Arguments of [`activation_bwd`].
#[derive(Clone, Copy, Debug)]
pub struct ActivationBwdArgs {
    /// The function.
    pub kind: Activation,
    /// The gradient of the output: f32, f16 or bf16 `[rows, H]`.
    pub dy: TensorView,
    /// The input of the forward pass: f32, f16 or bf16 `[rows, H]`, or `[rows, 2H]` for a gated form.
    pub input: TensorView,
    /// The gradient of the input, of its shape: as `output` of [`ActivationArgs`].
    pub output: TensorView,
    /// Column sums of the f32 gradient before any cast, `[H]` or `[2H]`; null: not wanted.
    pub dbias: Ptr,
    /// f32, f16 or bf16.
    pub dbias_dtype: DType,
    /// Add to what `dbias` holds instead of replacing it.
    pub accumulate: bool,
    /// Scratch memory, aligned to 16 bytes; needed for `dbias` only.
    pub workspace: Ptr,
    /// Its size: at least [`activation_bwd_workspace`].
    pub workspace_bytes: u64,
}

/// `y = f(x)`, or `f(a) * b` for a gated form, computed in f32 and rounded once.
///
/// Records the amax of the f32 values in `output.amax` and writes `1/scale` to `output.scale_inv` where those are not null.
///
/// # Safety
/// See [the module](super).
pub unsafe fn activation_fwd(ctx: &Context, args: &ActivationArgs, stream: Stream) -> Result<()> {
    let (x, y, b) = (&args.input, &args.output, ctx.backend());
    check::dtype("input", x, check::HIGH)?;
    let read = check::rowwise(b, "input", x)?;
    check::sizes("output", y)?;
    halves(args.kind, "input", x, "output", y)?;
    let written = any_output(ctx, "output", y)?;
    check::disjoint(&[read], &written)?;
    // SAFETY: validated; the caller vouches for the pointers.
    unsafe { b.activation_fwd(args, stream) }
}

/// Bytes of workspace that [`activation_bwd`] needs with a `dbias` for an input of this shape; without one it needs none.
pub fn activation_bwd_workspace(ctx: &Context, kind: Activation, rows: i64, hidden: i64) -> Result<u64> {
    for (what, v) in [("rows", rows), ("hidden", hidden)] {
        if v < 0 {
            return Err(Error::argument(Status::InvalidShape, what, v, "must not be negative"));
        }
    }
    let too_large =
        || Error::argument(Status::SizeOverflow, "input", format_args!("[{rows}, {hidden}]"), "its size in bytes must fit 60 bits");
    let cols = kind.input_cols(hidden).ok_or_else(too_large)?;
    // Far above any memory, and far from overflow.
    if i128::from(rows.max(1)) * i128::from(cols) > 1 << 58 {
        return Err(too_large());
    }
    Ok(ctx.backend().dbias_workspace(rows, cols))
}

/// `dx = dy * f'(x)`; gated: `da = dy * b * f'(a)`, `db = dy * f(a)`, side by side. Computed in f32 and rounded once.
///
/// Records the amax of the f32 values in `output.amax` and writes `1/scale` to `output.scale_inv` where those are not null. The sums of
/// `dbias` are taken of the f32 values too, in an order that depends on nothing but shape and layout; with no rows they are 0.
///
/// # Safety
/// See [the module](super).
pub unsafe fn activation_bwd(ctx: &Context, args: &ActivationBwdArgs, stream: Stream) -> Result<()> {
    let (dy, x, dx, b) = (&args.dy, &args.input, &args.output, ctx.backend());
    check::dtype("dy", dy, check::HIGH)?;
    check::dtype("input", x, check::HIGH)?;
    let read = [check::rowwise(b, "dy", dy)?, check::rowwise(b, "input", x)?];
    halves(args.kind, "input", x, "dy", dy)?;
    check::same_shape("output", dx, "input", x)?;
    let ([row, col, scale_inv, amax], scale) = (any_output(ctx, "output", dx)?, scale_slot(b, dx)?);
    let absent = check::Range { name: "dbias", start: 0, end: 0 };
    let (sums, scratch) = if args.dbias.is_null() {
        (absent, absent)
    } else {
        let vector = TensorView::new(args.dbias_dtype, args.dbias, 1, x.cols);
        check::dtype("dbias", &vector, check::HIGH)?;
        let sums = check::vector(b, "dbias", args.dbias, args.dbias_dtype, x.cols, false)?;
        let needed = activation_bwd_workspace(ctx, args.kind, dy.rows, dy.cols)?;
        (sums, check::workspace_range(b, args.workspace, args.workspace_bytes, needed)?)
    };
    check::disjoint(&[read[0], read[1], scale], &[row, col, scale_inv, amax, sums, scratch])?;
    // SAFETY: validated; the caller vouches for the pointers.
    unsafe { b.activation_bwd(args, stream) }
}

/// `wide` is the activation's input (twice as wide as `narrow` for a gated form).
fn halves(kind: Activation, wide_name: &str, wide: &TensorView, narrow_name: &str, narrow: &TensorView) -> Result<()> {
    if wide.rows == narrow.rows && kind.input_cols(narrow.cols) == Some(wide.cols) {
        return Ok(());
    }
    let rule = if kind.is_gated() { "must have the rows and twice the columns of" } else { "must have the shape of" };
    Err(Error::argument(
        Status::InvalidShape,
        wide_name,
        format!("[{}, {}]", wide.rows, wide.cols),
        format!("{rule} {narrow_name}, [{}, {}], for {}", narrow.rows, narrow.cols, kind.name()),
    ))
}

/// Checks an output that may be FP8 (both layouts) or high precision (row-wise). Returns the ranges written.
fn any_output(ctx: &Context, name: &'static str, y: &TensorView) -> Result<[check::Range; 4]> {
    if y.dtype.is_fp8() {
        return fp8_output(ctx, name, y);
    }
    for (field, p) in [("data_t", y.data_t), ("scale", y.scale), ("scale_inv", y.scale_inv)] {
        if !p.is_null() {
            return Err(Error::argument(
                Status::Unsupported,
                format_args!("{name}.{field}"),
                format!("{:#x}", p.0),
                format!("must be NULL for {}", y.dtype.name()),
            ));
        }
    }
    let absent = check::Range { name, start: 0, end: 0 };
    let written = [check::rowwise(ctx.backend(), name, y)?, absent, absent, slot(ctx.backend(), "amax", y.amax)?];
    check::disjoint(&[], &written)?;
    Ok(written)
}
