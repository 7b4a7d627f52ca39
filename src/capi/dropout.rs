//! Dropout with bias and residual.

use std::{ffi::c_void, mem};

use super::{
    context::context,
    guard::guard,
    types::{flag, nvte_context_t, nvte_status_t, nvte_stream_t, nvte_tensor_t, optional, out, read_struct, stream, tensor},
};
use crate::{
    error::Result,
    ops::dropout::{self, DropoutBwdArgs, DropoutFwdArgs, Random},
    tensor::{DType, Ptr},
};

/// Arguments of nvte_dropout_fwd. Zero-initialise it and set struct_size, x, y, p and rng; the rest may stay 0.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct nvte_dropout_fwd_args_t {
    /// sizeof(nvte_dropout_fwd_args_t).
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// Probability of dropping an element, from 0 to 1.
    pub p: f64,
    /// f32, f16 or bf16 [rows, cols].
    pub x: *const nvte_tensor_t,
    /// f32, f16 or bf16 [1, cols], added to each row of x; NULL: none.
    pub bias: *const nvte_tensor_t,
    /// [rows, cols] of the type of x, added at the end; NULL: none.
    pub residual: *const nvte_tensor_t,
    /// [rows, cols] of the type of x. It may be x or residual: same data, same ld.
    pub y: *const nvte_tensor_t,
    /// Device, [rows, ceil(cols / 8)] bytes: bit (c mod 8) of byte (c div 8) of a row is 1 if element c of the row was kept; bits past the last
    /// column are 0. NULL: not written; the backward pass then draws again.
    pub mask: *mut u8,
    /// Bytes from row to row of the mask.
    pub mask_ld: i64,
    /// Device, two uint64_t: seed and offset. Not read where p is 0 or 1, and may then be NULL.
    pub rng: *const u64,
    /// Tells draws with the same seed and offset apart.
    pub rng_stream: u64,
}

/// Arguments of nvte_dropout_bwd. Zero-initialise it and set struct_size, dy, dx, p and mask or rng; the rest may stay 0.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct nvte_dropout_bwd_args_t {
    /// sizeof(nvte_dropout_bwd_args_t).
    pub struct_size: u32,
    /// NVTE_F32, NVTE_F16 or NVTE_BF16; looked at only where there is a dbias.
    pub dbias_dtype: i32,
    /// The forward pass'.
    pub p: f64,
    /// Gradient of y: f32, f16 or bf16 [rows, cols]. It is also the gradient of the residual.
    pub dy: *const nvte_tensor_t,
    /// Gradient of x, of the type and shape of dy. It may be dy: same data, same ld.
    pub dx: *const nvte_tensor_t,
    /// Device: what the forward pass wrote; NULL: drawn again from rng.
    pub mask: *const u8,
    /// Bytes from row to row of the mask.
    pub mask_ld: i64,
    /// The forward pass' seed and offset. Not read with a mask, nor where p is 0 or 1, and may then be NULL.
    pub rng: *const u64,
    /// The forward pass'.
    pub rng_stream: u64,
    /// Device: column sums of dx before it is rounded, one per column: the gradient of the bias; NULL: not wanted.
    pub dbias: *mut c_void,
    /// 1: add to what dbias holds; 0: replace it.
    pub accumulate: i32,
    /// 0.
    pub reserved: u32,
    /// Scratch memory (device), aligned to 16 bytes; used for dbias only.
    pub workspace: *mut c_void,
    /// Its size in bytes: at least what nvte_dropout_bwd_workspace says.
    pub workspace_bytes: u64,
}

/// # Safety
/// As [`read_struct`], and likewise for the tensors it points to.
unsafe fn forward(p: *const nvte_dropout_fwd_args_t) -> Result<DropoutFwdArgs> {
    // SAFETY: forwarded contract.
    unsafe {
        let a = read_struct("args", p, mem::size_of::<nvte_dropout_fwd_args_t>())?;
        super::types::reserved("reserved", a.reserved)?;
        Ok(DropoutFwdArgs {
            x: tensor("x", a.x)?,
            bias: optional("bias", a.bias)?,
            residual: optional("residual", a.residual)?,
            y: tensor("y", a.y)?,
            mask: Ptr::from(a.mask),
            mask_ld: a.mask_ld,
            p: a.p,
            random: Random { rng: Ptr::from(a.rng), stream: a.rng_stream },
        })
    }
}

/// # Safety
/// As [`read_struct`], and likewise for the tensors it points to.
unsafe fn backward(p: *const nvte_dropout_bwd_args_t) -> Result<DropoutBwdArgs> {
    // SAFETY: forwarded contract.
    unsafe {
        let a = read_struct("args", p, mem::size_of::<nvte_dropout_bwd_args_t>())?;
        super::types::reserved("reserved", a.reserved)?;
        Ok(DropoutBwdArgs {
            dy: tensor("dy", a.dy)?,
            dx: tensor("dx", a.dx)?,
            mask: Ptr::from(a.mask),
            mask_ld: a.mask_ld,
            p: a.p,
            random: Random { rng: Ptr::from(a.rng), stream: a.rng_stream },
            dbias: Ptr::from(a.dbias),
            dbias_dtype: DType::from_i32("dbias_dtype", a.dbias_dtype)?,
            accumulate: flag("accumulate", a.accumulate)?,
            workspace: Ptr::from(a.workspace),
            workspace_bytes: a.workspace_bytes,
        })
    }
}

/// Dropout with bias and residual: y = (x + bias) / (1 - p) + residual where an element is kept, 0 + residual where not.
///
/// Which elements are kept: words of Philox4x32-10 with key = seed and counter = (offset + i div 4, rng_stream), of which element i takes word
/// i mod 4, i = row * cols + column whatever the strides; kept if the word is at least round(p * 2^32). Seed and offset are read on the device
/// when the call runs: a replayed graph draws what they then hold. With p = 0 everything is kept, with p = 1 nothing, and nothing is drawn.
///
/// Shapes: x, residual and y [rows, cols] of one type; bias [1, cols] of any; mask [rows, ceil(cols / 8)] bytes. Units: strides in elements,
/// of the mask in bytes. Pointers: structs are on the host, data, mask and rng on the device. Alignment: that of the element type, rng 8
/// bytes (rows that start on 16 bytes and cols of a multiple of 8 are faster). Aliasing: y may be x or residual, exactly; otherwise outputs
/// must not overlap inputs or each other. Stream order: enqueued on `stream`, nothing waits. Determinism: the same bits on every back
/// end: f32, each operation rounded, then one rounding to the type of y. What x holds where an element is dropped does not matter.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE,
/// NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_OVERLAP,
/// NVTE_ERROR_MISALIGNED, NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_UNSUPPORTED (reserved fields),
/// NVTE_ERROR_NOT_CAPTURABLE.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed.
#[no_mangle]
pub unsafe extern "C" fn nvte_dropout_fwd(
    ctx: nvte_context_t,
    args: *const nvte_dropout_fwd_args_t,
    stream_: nvte_stream_t,
) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        unsafe { dropout::dropout_fwd(&ctx, &forward(args)?, stream(stream_)) }
    })
}

/// Bytes of workspace for nvte_dropout_bwd with a dbias.
///
/// Shapes: rows and cols of dy, >= 0. Units: bytes. Pointers: `bytes` is on the host. Alignment: natural. Aliasing: none. Stream order: none.
/// Determinism: the same for one device and version of the library.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_SIZE_OVERFLOW.
///
/// # Safety
/// `bytes` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn nvte_dropout_bwd_workspace(ctx: nvte_context_t, rows: i64, cols: i64, bytes: *mut u64) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        let needed = dropout::dropout_bwd_workspace(&ctx, rows, cols)?;
        // SAFETY: by contract.
        unsafe { out("bytes", bytes, needed) }
    })
}

/// The gradient of nvte_dropout_fwd: dx = dy / (1 - p) where an element was kept, 0 where not; dbias the column sums of that, in f32. The
/// gradient of the residual is dy itself.
///
/// With a mask nothing is drawn: the mask takes memory, drawing again takes arithmetic (about 11 instructions per element).
///
/// Shapes: dy and dx [rows, cols] of one type; dbias [cols]; mask as the forward pass wrote it. Units: strides in elements, of the mask in
/// bytes. Pointers: structs are on the host, all data on the device. Alignment: as nvte_dropout_fwd; workspace 16 bytes. Aliasing: dx may be dy,
/// exactly; otherwise outputs and workspace must not overlap inputs or each other. Stream order: enqueued on `stream`, nothing waits.
/// Determinism: dx has the same bits on every back end; dbias is added up in an order that depends on shape, layout and device alone.
///
/// Errors: as nvte_dropout_fwd; NVTE_ERROR_WORKSPACE_TOO_SMALL.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed.
#[no_mangle]
pub unsafe extern "C" fn nvte_dropout_bwd(
    ctx: nvte_context_t,
    args: *const nvte_dropout_bwd_args_t,
    stream_: nvte_stream_t,
) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        unsafe { dropout::dropout_bwd(&ctx, &backward(args)?, stream(stream_)) }
    })
}
