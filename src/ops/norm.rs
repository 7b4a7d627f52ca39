//! LayerNorm and RMSNorm, forward and backward (NUMERICS section 7).

use super::{
    cast::{fp8_output, scale_slot},
    check,
};
use crate::{
    backend::Backend,
    context::{Context, Stream},
    error::{Error, Result, Status},
    tensor::{DType, Ptr, TensorView},
};

/// Which norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Norm {
    /// `(x - mean) * rsigma`
    Layer,
    /// `x * rsigma`
    Rms,
}

/// Arguments of [`layernorm_fwd`] and [`rmsnorm_fwd`].
///
/// Parameters are `[1, hidden]`, each f32, f16 or bf16 whatever the others are; the stride of a single row means nothing.
#[derive(Clone, Copy, Debug)]
pub struct NormFwdArgs {
    /// f32, f16 or bf16 `[rows, hidden]`.
    pub x: TensorView,
    /// What is added to x before the norm, of x's type and shape; `None`: nothing.
    pub residual: Option<TensorView>,
    /// Receives `x + residual`, rounded to x's type: of this, what is written, the norm is taken. Where there is a residual, and only there.
    pub sum: Option<TensorView>,
    /// The weight; `None`: 1.
    pub gamma: Option<TensorView>,
    /// The shift; `None`: 0. RMSNorm has none.
    pub beta: Option<TensorView>,
    /// The weight is `1 + gamma`, formed in f32.
    pub zero_centered_gamma: bool,
    /// Added to the variance (RMSNorm: to the mean square). Finite, not negative.
    pub eps: f32,
    /// `[rows, hidden]`: f32, f16 or bf16 row-wise; or FP8 row-wise, transposed or both, with `scale` read (null: 1), `scale_inv` written and
    /// `amax` recorded. The layouts of one call hold the same codes; a call for another choice of layouts may round a few to the neighbouring code.
    pub y: TensorView,
    /// f32 `[rows]`: the mean of each row. Null: not written. RMSNorm has none.
    pub mu: Ptr,
    /// f32 `[rows]`: `1 / sqrt(var + eps)`. Null: not written.
    pub rsigma: Ptr,
}

/// Arguments of [`layernorm_bwd`] and [`rmsnorm_bwd`]. Every tensor may have its own type.
#[derive(Clone, Copy, Debug)]
pub struct NormBwdArgs {
    /// f32, f16 or bf16 `[rows, hidden]`: gradient of the output.
    pub dy: TensorView,
    /// f32, f16 or bf16 `[rows, hidden]`: the forward pass' input; its sum where it had a residual.
    pub x: TensorView,
    /// f32, f16 or bf16 `[rows, hidden]`: the gradient that reached x by another way than the norm, as that of a residual stream does:
    /// dx is the sum of both, rounded once. `None`: there is none.
    pub dsum: Option<TensorView>,
    /// The forward pass' weight; `None`: 1.
    pub gamma: Option<TensorView>,
    /// The weight is `1 + gamma`, formed in f32.
    pub zero_centered_gamma: bool,
    /// f32 `[rows]`, written by the forward pass. RMSNorm has none.
    pub mu: Ptr,
    /// f32 `[rows]`, written by the forward pass.
    pub rsigma: Ptr,
    /// f32, f16 or bf16 `[rows, hidden]`: gradient of the input.
    pub dx: TensorView,
    /// f32, f16 or bf16 `[1, hidden]`: gradient of gamma; `None`: not wanted. With no rows it is 0.
    pub dgamma: Option<TensorView>,
    /// Likewise of beta. RMSNorm has none.
    pub dbeta: Option<TensorView>,
    /// Device memory, aligned to 16 bytes, of at least [`norm_bwd_workspace`]'s size; null if dgamma and dbeta are `None`.
    pub workspace: Ptr,
    /// Its size.
    pub workspace_bytes: u64,
}

/// LayerNorm: `y = (x - mean) * rsigma * weight + beta` with `rsigma = 1 / sqrt(var + eps)`, row by row.
///
/// Statistics in f32 with a two-pass variance; nothing is rounded between the norm and the output, FP8 too: `encode(y * scale)`, with the
/// amax of the unrounded f32 `y`. With a residual, x stands for the sum that is written.
///
/// # Safety
/// See [the module](super).
pub unsafe fn layernorm_fwd(ctx: &Context, args: &NormFwdArgs, stream: Stream) -> Result<()> {
    // SAFETY: forwarded contract.
    unsafe { forward(ctx, Norm::Layer, args, false, stream) }
}

/// RMSNorm: `y = x * rsigma * weight` with `rsigma = 1 / sqrt(mean(x^2) + eps)`, row by row. Otherwise as [`layernorm_fwd`].
///
/// # Safety
/// See [the module](super).
pub unsafe fn rmsnorm_fwd(ctx: &Context, args: &NormFwdArgs, stream: Stream) -> Result<()> {
    // SAFETY: forwarded contract.
    unsafe { forward(ctx, Norm::Rms, args, false, stream) }
}

/// Gradients of [`layernorm_fwd`]: with `xhat = (x - mu) * rsigma` and `g = dy * weight`,
/// `dx = (g - xhat * mean(g * xhat) - mean(g)) * rsigma`, and over all rows `dgamma = sum(dy * xhat)`, `dbeta = sum(dy)`.
///
/// Sums in f32, in an order that depends on shapes and device alone: two calls give the same bits.
///
/// # Safety
/// See [the module](super).
pub unsafe fn layernorm_bwd(ctx: &Context, args: &NormBwdArgs, stream: Stream) -> Result<()> {
    // SAFETY: forwarded contract.
    unsafe { backward(ctx, Norm::Layer, args, stream) }
}

/// Gradients of [`rmsnorm_fwd`]: as [`layernorm_bwd`] with `xhat = x * rsigma`, without the terms of mean and beta.
///
/// # Safety
/// See [the module](super).
pub unsafe fn rmsnorm_bwd(ctx: &Context, args: &NormBwdArgs, stream: Stream) -> Result<()> {
    // SAFETY: forwarded contract.
    unsafe { backward(ctx, Norm::Rms, args, stream) }
}

/// Bytes of workspace that both backward passes ask for where a weight gradient is wanted; does not depend on the number of rows.
pub fn norm_bwd_workspace(ctx: &Context, hidden: i64) -> Result<u64> {
    if hidden < 0 {
        return Err(Error::argument(Status::InvalidShape, "hidden", hidden, "must not be negative"));
    }
    let bytes = ctx.backend().norm_bwd_partials() as i64;
    bytes
        .checked_mul(2 * 4)
        .and_then(|b| b.checked_mul(hidden))
        .map(|b| b as u64)
        .ok_or_else(|| Error::argument(Status::SizeOverflow, "hidden", hidden, "the size of the workspace must fit 63 bits"))
}

/// Checks a `[1, hidden]` parameter or its gradient.
fn parameter(b: &dyn Backend, name: &'static str, p: &Option<TensorView>, hidden: i64) -> Result<check::Range> {
    let Some(t) = p else { return Ok(check::Range { name, start: 0, end: 0 }) };
    check::dtype(name, t, check::HIGH)?;
    if (t.rows, t.cols) != (1, hidden) {
        return Err(Error::argument(Status::InvalidShape, name, format!("[{}, {}]", t.rows, t.cols), format!("must be [1, {hidden}]")));
    }
    check::vector(b, name, t.data, t.dtype, hidden, false)
}

/// Checks a matrix of x's shape that may be absent.
fn matrix(b: &dyn Backend, name: &'static str, t: &Option<TensorView>, dtypes: &[DType], x: &TensorView) -> Result<check::Range> {
    let Some(t) = t else { return Ok(check::Range { name, start: 0, end: 0 }) };
    check::dtype(name, t, dtypes)?;
    check::same_shape(name, t, "x", x)?;
    check::rowwise(b, name, t)
}

/// What RMSNorm does not have must be absent.
fn absent(norm: Norm, name: &str, is_absent: bool) -> Result<()> {
    if norm == Norm::Layer || is_absent {
        return Ok(());
    }
    Err(Error::argument(Status::Unsupported, name, "not NULL", "RMSNorm has none"))
}

/// Either. `alike`: FP8 codes do not depend on which layouts are asked for, as a layer's that is run a second time for its backward pass.
///
/// # Safety
/// See [the module](super).
pub(crate) unsafe fn forward(ctx: &Context, norm: Norm, a: &NormFwdArgs, alike: bool, stream: Stream) -> Result<()> {
    let (x, y, b) = (&a.x, &a.y, ctx.backend());
    check::dtype("x", x, check::HIGH)?;
    let read = check::rowwise(b, "x", x)?;
    absent(norm, "beta", a.beta.is_none())?;
    absent(norm, "mu", a.mu.is_null())?;
    let gamma = parameter(b, "gamma", &a.gamma, x.cols)?;
    let beta = parameter(b, "beta", &a.beta, x.cols)?;
    check_eps(a.eps)?;
    check::same_shape("y", y, "x", x)?;
    let [row, col, scale_inv, amax] = if y.dtype.is_fp8() { fp8_output(ctx, "y", y)? } else { high_output(b, y)? };
    let mu = check::vector(b, "mu", a.mu, DType::F32, x.rows, true)?;
    let rsigma = check::vector(b, "rsigma", a.rsigma, DType::F32, x.rows, true)?;
    if a.residual.is_some() != a.sum.is_some() {
        let (there, missing) = if a.sum.is_some() { ("sum", "residual") } else { ("residual", "sum") };
        return Err(Error::argument(Status::NullPointer, missing, "NULL", format!("goes with {there}, which is given")));
    }
    let residual = matrix(b, "residual", &a.residual, &[x.dtype], x)?;
    let sum = matrix(b, "sum", &a.sum, &[x.dtype], x)?;
    let scale = scale_slot(b, y)?;
    check::disjoint(&[read, residual, gamma, beta, scale], &[row, col, scale_inv, amax, mu, rsigma, sum])?;
    // SAFETY: validated; the caller vouches for the pointers.
    unsafe { b.norm_fwd(norm, a, alike, stream) }
}

/// Finite and not negative.
pub(crate) fn check_eps(eps: f32) -> Result<()> {
    if eps >= 0.0 && eps.is_finite() {
        return Ok(());
    }
    Err(Error::argument(Status::InvalidValue, "eps", eps, "must be finite and not negative"))
}

/// A high-precision output has one layout and no slots.
fn high_output(b: &dyn Backend, y: &TensorView) -> Result<[check::Range; 4]> {
    for (field, p) in [("data_t", y.data_t), ("scale", y.scale), ("scale_inv", y.scale_inv), ("amax", y.amax)] {
        if !p.is_null() {
            let rule = format!("goes with an FP8 output, not with {}", y.dtype.name());
            return Err(Error::argument(Status::Unsupported, format_args!("y.{field}"), format!("{:#x}", p.0), rule));
        }
    }
    let absent = check::Range { name: "y", start: 0, end: 0 };
    Ok([check::rowwise(b, "y", y)?, absent, absent, absent])
}

unsafe fn backward(ctx: &Context, norm: Norm, a: &NormBwdArgs, stream: Stream) -> Result<()> {
    let (dy, x, dx, b) = (&a.dy, &a.x, &a.dx, ctx.backend());
    for (name, t) in [("dy", dy), ("x", x), ("dx", dx)] {
        check::dtype(name, t, check::HIGH)?;
    }
    let inputs = [check::rowwise(b, "dy", dy)?, check::rowwise(b, "x", x)?];
    check::same_shape("dy", dy, "x", x)?;
    check::same_shape("dx", dx, "x", x)?;
    absent(norm, "mu", a.mu.is_null())?;
    absent(norm, "dbeta", a.dbeta.is_none())?;
    let gamma = parameter(b, "gamma", &a.gamma, x.cols)?;
    let mu = check::vector(b, "mu", a.mu, DType::F32, x.rows, norm == Norm::Rms)?;
    let rsigma = check::vector(b, "rsigma", a.rsigma, DType::F32, x.rows, false)?;
    let dsum = matrix(b, "dsum", &a.dsum, check::HIGH, x)?;
    let out = check::rowwise(b, "dx", dx)?;
    let dgamma = parameter(b, "dgamma", &a.dgamma, x.cols)?;
    let dbeta = parameter(b, "dbeta", &a.dbeta, x.cols)?;
    let needed = if a.dgamma.is_some() || a.dbeta.is_some() { norm_bwd_workspace(ctx, x.cols)? } else { 0 };
    let workspace = check::workspace_range(b, a.workspace, a.workspace_bytes, needed)?;
    check::disjoint(&[inputs[0], inputs[1], dsum, gamma, mu, rsigma], &[out, dgamma, dbeta, workspace])?;
    // SAFETY: validated; the caller vouches for the pointers.
    unsafe { b.norm_bwd(norm, a, stream) }
}
