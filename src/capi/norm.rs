//! LayerNorm and RMSNorm.

use std::{ffi::c_void, mem};

use super::{
    context::context,
    guard::guard,
    types::{flag, nvte_context_t, nvte_status_t, nvte_stream_t, nvte_tensor_t, optional, out, read_struct, reserved, stream, tensor},
};
use crate::{
    error::Result,
    ops::norm::{self, NormBwdArgs, NormFwdArgs},
    tensor::Ptr,
};

/// Arguments of nvte_layernorm_fwd and nvte_rmsnorm_fwd.
///
/// Parameters (gamma, beta) are tensors of one row, [1, hidden], whose stride means nothing, each f32, f16 or bf16 whatever the other types are.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct nvte_norm_fwd_args_t {
    /// sizeof(nvte_norm_fwd_args_t).
    pub struct_size: u32,
    /// 1: the weight is 1 + gamma, formed in f32. 0: it is gamma.
    pub zero_centered_gamma: i32,
    /// f32, f16 or bf16 [rows, hidden].
    pub x: *const nvte_tensor_t,
    /// The weight; NULL: 1.
    pub gamma: *const nvte_tensor_t,
    /// The shift; NULL: 0. RMSNorm: NULL.
    pub beta: *const nvte_tensor_t,
    /// [rows, hidden]: f32, f16 or bf16, its data; or E4M3 or E5M2, its data, its data_t or both. The layouts of one call hold the same codes; a
    /// call for another choice of layouts may round a few to the neighbouring code. (Layers do not: a pass that is run again gives the same codes.)
    pub y: *const nvte_tensor_t,
    /// Device, f32 [rows]: receives the mean of each row; NULL: not written. RMSNorm: NULL.
    pub mu: *mut f32,
    /// Device, f32 [rows]: receives 1/sqrt(var + eps); NULL: not written.
    pub rsigma: *mut f32,
    /// Added to the variance (RMSNorm: to the mean square). Finite, not negative.
    pub eps: f32,
    /// 0.
    pub reserved: u32,
    /// [rows, hidden], of x's type: added to x before the norm; NULL: nothing is.
    pub residual: *const nvte_tensor_t,
    /// [rows, hidden], of x's type: receives x + residual, rounded once; of what it receives the norm is taken. NULL with residual, and
    /// only with it.
    pub sum: *const nvte_tensor_t,
}

/// Arguments of nvte_layernorm_bwd and nvte_rmsnorm_bwd.
///
/// dy, x, gamma, dx, dgamma and dbeta are f32, f16 or bf16 each, in any combination.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct nvte_norm_bwd_args_t {
    /// sizeof(nvte_norm_bwd_args_t).
    pub struct_size: u32,
    /// As in the forward pass.
    pub zero_centered_gamma: i32,
    /// [rows, hidden]: gradient of the output.
    pub dy: *const nvte_tensor_t,
    /// [rows, hidden]: the forward pass' input; its sum where it had a residual.
    pub x: *const nvte_tensor_t,
    /// [1, hidden]: the forward pass' weight; NULL: 1.
    pub gamma: *const nvte_tensor_t,
    /// Device, f32 [rows], written by the forward pass. RMSNorm: NULL.
    pub mu: *const f32,
    /// Device, f32 [rows], written by the forward pass.
    pub rsigma: *const f32,
    /// [rows, hidden]: receives the gradient of x.
    pub dx: *const nvte_tensor_t,
    /// [1, hidden]: receives the gradient of gamma (0 if there are no rows); NULL: not wanted.
    pub dgamma: *const nvte_tensor_t,
    /// [1, hidden]: receives the gradient of beta (0 if there are no rows); NULL: not wanted. RMSNorm: NULL.
    pub dbeta: *const nvte_tensor_t,
    /// Device memory, aligned to 16 bytes; its contents before and after mean nothing. NULL if dgamma and dbeta are NULL.
    pub workspace: *mut c_void,
    /// Its size, at least what nvte_norm_bwd_workspace says.
    pub workspace_bytes: u64,
    /// [rows, hidden]: the gradient that reached x by another way than the norm, as that of a residual stream does; added to dx before it
    /// is rounded. NULL: there is none.
    pub dsum: *const nvte_tensor_t,
}

/// # Safety
/// As [`read_struct`], and likewise for the tensors it points to.
unsafe fn forward_args(p: *const nvte_norm_fwd_args_t) -> Result<NormFwdArgs> {
    // SAFETY: forwarded contract.
    unsafe {
        let a = read_struct("args", p, mem::offset_of!(nvte_norm_fwd_args_t, residual))?;
        reserved("reserved", a.reserved)?;
        Ok(NormFwdArgs {
            x: tensor("x", a.x)?,
            residual: optional("residual", a.residual)?,
            sum: optional("sum", a.sum)?,
            gamma: optional("gamma", a.gamma)?,
            beta: optional("beta", a.beta)?,
            zero_centered_gamma: flag("zero_centered_gamma", a.zero_centered_gamma)?,
            eps: a.eps,
            y: tensor("y", a.y)?,
            mu: Ptr::from(a.mu),
            rsigma: Ptr::from(a.rsigma),
        })
    }
}

/// # Safety
/// As [`read_struct`], and likewise for the tensors it points to.
unsafe fn backward_args(p: *const nvte_norm_bwd_args_t) -> Result<NormBwdArgs> {
    // SAFETY: forwarded contract.
    unsafe {
        let a = read_struct("args", p, mem::offset_of!(nvte_norm_bwd_args_t, dsum))?;
        Ok(NormBwdArgs {
            dy: tensor("dy", a.dy)?,
            x: tensor("x", a.x)?,
            dsum: optional("dsum", a.dsum)?,
            gamma: optional("gamma", a.gamma)?,
            zero_centered_gamma: flag("zero_centered_gamma", a.zero_centered_gamma)?,
            mu: Ptr::from(a.mu),
            rsigma: Ptr::from(a.rsigma),
            dx: tensor("dx", a.dx)?,
            dgamma: optional("dgamma", a.dgamma)?,
            dbeta: optional("dbeta", a.dbeta)?,
            workspace: Ptr::from(a.workspace),
            workspace_bytes: a.workspace_bytes,
        })
    }
}

/// LayerNorm, row by row: y = (x - mean) * rsigma * weight + beta, with rsigma = 1/sqrt(var + eps). With args->residual, x stands for
/// x + residual, rounded to x's type and written to args->sum.
///
/// Shapes: x, residual, sum and y [rows, hidden], any rows and hidden; gamma and beta [1, hidden]; mu and rsigma [rows]. Units: sizes and strides in
/// elements. Pointers: structs are on the host, data, slots, mu and rsigma on the device. Alignment: that of the element type (multiples
/// of 16 bytes for base and row stride are faster). Aliasing: outputs must not overlap inputs or each other. Stream order: enqueued on
/// `stream`, nothing waits. Determinism: two calls on one device give the same bits; back ends agree within 2 units of the last place of y.
/// Statistics are f32 with a two-pass variance. Nothing is rounded before y: with an FP8 y the codes are encode(y * scale) of the f32 y,
/// its amax is recorded as a maximum in y.amax, and 1/scale written to y.scale_inv, where those are not NULL.
/// A row that holds NaN or infinity spoils that row of y only.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE,
/// NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_OVERLAP, NVTE_ERROR_MISALIGNED,
/// NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_UNSUPPORTED (slots or data_t with a y that is not FP8), NVTE_ERROR_NOT_CAPTURABLE.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed.
#[no_mangle]
pub unsafe extern "C" fn nvte_layernorm_fwd(
    ctx: nvte_context_t,
    args: *const nvte_norm_fwd_args_t,
    stream_: nvte_stream_t,
) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        unsafe { norm::layernorm_fwd(&ctx, &forward_args(args)?, stream(stream_)) }
    })
}

/// RMSNorm, row by row: y = x * rsigma * weight, with rsigma = 1/sqrt(mean(x^2) + eps). beta and mu must be NULL. args->residual: as for
/// nvte_layernorm_fwd.
///
/// Shapes: as nvte_layernorm_fwd. Units: the same. Pointers: the same. Alignment: the same. Aliasing: the same. Stream order: the same.
/// Determinism: the same.
///
/// Errors: as nvte_layernorm_fwd; NVTE_ERROR_UNSUPPORTED also for beta or mu.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed.
#[no_mangle]
pub unsafe extern "C" fn nvte_rmsnorm_fwd(ctx: nvte_context_t, args: *const nvte_norm_fwd_args_t, stream_: nvte_stream_t) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        unsafe { norm::rmsnorm_fwd(&ctx, &forward_args(args)?, stream(stream_)) }
    })
}

/// Bytes of workspace for nvte_layernorm_bwd and nvte_rmsnorm_bwd where dgamma or dbeta is wanted. Does not depend on the number of rows.
///
/// Shapes: hidden >= 0. Units: bytes. Pointers: `bytes` is on the host. Alignment: natural. Aliasing: none. Stream order: none.
/// Determinism: the same for one device and version of the library.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_SIZE_OVERFLOW.
///
/// # Safety
/// `bytes` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn nvte_norm_bwd_workspace(ctx: nvte_context_t, hidden: i64, bytes: *mut u64) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        let needed = norm::norm_bwd_workspace(&ctx, hidden)?;
        // SAFETY: by contract.
        unsafe { out("bytes", bytes, needed) }
    })
}

/// Gradients of nvte_layernorm_fwd. With xhat = (x - mu) * rsigma and g = dy * weight:
/// dx = (g - xhat * mean(g * xhat) - mean(g)) * rsigma, plus args->dsum where that is given, rounded once; over all rows
/// dgamma = sum(dy * xhat) and dbeta = sum(dy).
///
/// Shapes: dy, x, dsum and dx [rows, hidden], any rows and hidden; gamma, dgamma and dbeta [1, hidden]; mu and rsigma [rows]. Units: sizes and
/// strides in elements. Pointers: structs are on the host, all data on the device. Alignment: that of the element type (one type for dy, x,
/// dsum and dx, and multiples of 16 bytes for base and row stride are faster); workspace 16 bytes. Aliasing: outputs and workspace must not
/// overlap inputs or each other. Stream order: enqueued on `stream`, nothing waits. Determinism: two calls on one device give the same
/// bits: sums in f32 in a fixed order, no atomics.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE,
/// NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_WORKSPACE_TOO_SMALL, NVTE_ERROR_OVERLAP,
/// NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_NOT_CAPTURABLE.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed.
#[no_mangle]
pub unsafe extern "C" fn nvte_layernorm_bwd(
    ctx: nvte_context_t,
    args: *const nvte_norm_bwd_args_t,
    stream_: nvte_stream_t,
) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        unsafe { norm::layernorm_bwd(&ctx, &backward_args(args)?, stream(stream_)) }
    })
}

/// Gradients of nvte_rmsnorm_fwd. With xhat = x * rsigma and g = dy * weight: dx = (g - xhat * mean(g * xhat)) * rsigma; over all rows
/// dgamma = sum(dy * xhat). mu and dbeta must be NULL. args->dsum: as for nvte_layernorm_bwd.
///
/// Shapes: as nvte_layernorm_bwd. Units: the same. Pointers: the same. Alignment: the same. Aliasing: the same. Stream order: the same.
/// Determinism: the same.
///
/// Errors: as nvte_layernorm_bwd; NVTE_ERROR_UNSUPPORTED for mu or dbeta.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed.
#[no_mangle]
pub unsafe extern "C" fn nvte_rmsnorm_bwd(ctx: nvte_context_t, args: *const nvte_norm_bwd_args_t, stream_: nvte_stream_t) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        unsafe { norm::rmsnorm_bwd(&ctx, &backward_args(args)?, stream(stream_)) }
    })
}
