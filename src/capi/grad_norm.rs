//! The norm of a list of gradients, and their multiplication by a factor.

use std::mem;

use super::{
    context::context,
    guard::guard,
    list::{length, list_memory, nvte_list_t, read_list, tensors, write_list},
    types::{nvte_context_t, nvte_status_t, nvte_stream_t, nvte_tensor_t, out, read_struct, reserved, stream},
};
use crate::{
    ops::grad_norm::{self, GradNormArgs, GradScaleArgs},
    tensor::Ptr,
};

/// Arguments of nvte_grad_norm. Zero-initialise it and set struct_size.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct nvte_grad_norm_args_t {
    /// sizeof(nvte_grad_norm_args_t).
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// Made by nvte_grad_list.
    pub list: *const nvte_list_t,
    /// Device, one f32: the norm is divided by it (the factor of a scaled loss); NULL: 1.
    pub grad_scale: *const f32,
    /// For clip: what the norm is to be at most. Not negative, not NaN.
    pub max_norm: f64,
    /// Device, one f32: receives the norm.
    pub norm: *mut f32,
    /// Device, one f32: receives min(1, max_norm / (norm + 1e-6)), NaN where the norm is; NULL: not wanted.
    pub clip: *mut f32,
    /// Device, one f32: receives 1 where a gradient is infinite or NaN, else 0; NULL: not wanted.
    pub found_inf: *mut f32,
}

/// Bytes of device memory that the table of a list of gradients takes: 40 per tensor, four per 16 KiB of gradients, and 33 KiB.
///
/// Shapes: `count` gradients. Units: bytes. Pointers: host; device addresses are not looked at. Alignment: natural. Aliasing: none.
/// Stream order: none. Determinism: depends on shapes and types.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_INVALID_SHAPE,
/// NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_UNSUPPORTED, NVTE_ERROR_SIZE_OVERFLOW.
///
/// # Safety
/// `gradients` holds `count` pointers to sized structs; `bytes` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn nvte_grad_list_workspace(
    ctx: nvte_context_t,
    gradients: *const *const nvte_tensor_t,
    count: i64,
    bytes: *mut u64,
) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        unsafe { out("bytes", bytes, grad_norm::grad_list_workspace(&ctx, &tensors("gradients", gradients, length(count)?)?)?) }
    })
}

/// Makes a list of gradients for nvte_grad_norm and nvte_grad_scale: checks them, and writes the table in stream order. Do it once, and
/// again when one has moved (or nvte_list_gradients).
///
/// Shapes: `count` gradients, f32, f16 or bf16 [rows, cols], rows side by side (ld = cols). Units: sizes and strides in elements. Pointers:
/// structs and arrays are on the host and may go once the call has returned; gradients and list.data are on the device. Alignment: that of
/// the element type, list.data 16 bytes. Aliasing: gradients must not overlap. Stream order: enqueued on `stream`, nothing waits; the
/// contents travel as kernel arguments, so that it is safe to capture. With NVTE_STREAM_PREPARE the struct is written and the table is not.
/// Determinism: not applicable.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_INVALID_DTYPE,
/// NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_UNSUPPORTED, NVTE_ERROR_OVERLAP,
/// NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_WORKSPACE_TOO_SMALL, NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_NOT_CAPTURABLE.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed, and for as long as the list is used.
#[no_mangle]
pub unsafe extern "C" fn nvte_grad_list(
    ctx: nvte_context_t,
    gradients: *const *const nvte_tensor_t,
    count: i64,
    list: *mut nvte_list_t,
    stream_: nvte_stream_t,
) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        unsafe {
            let (data, bytes) = list_memory(list)?;
            let gradients = tensors("gradients", gradients, length(count)?)?;
            let made = grad_norm::grad_list(&ctx, &gradients, data, bytes, stream(stream_))?;
            write_list(list, &made);
        }
        Ok(())
    })
}

/// The L2 norm of all gradients of a list, as one vector, in one launch; and what follows from it for the step: a factor, a flag.
///
/// Shapes: those of the list. Units: none. Pointers: structs are on the host, all else on the device. Alignment: 4 bytes. Aliasing: results
/// must not overlap each other or the list's memory. Stream order: enqueued on `stream`, nothing waits. Determinism: sums are f32 over some
/// thousand elements and f64 beyond, in an order that depends on the list, the gradients' alignment and the device alone; no square
/// overflows or vanishes, whatever the magnitudes. A NaN gives NaN, an infinity without a NaN infinity; a list of nothing gives 0.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_INVALID_ENUM,
/// NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_UNSUPPORTED, NVTE_ERROR_WORKSPACE_TOO_SMALL, NVTE_ERROR_SIZE_OVERFLOW,
/// NVTE_ERROR_OVERLAP, NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_NOT_CAPTURABLE.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed.
#[no_mangle]
pub unsafe extern "C" fn nvte_grad_norm(ctx: nvte_context_t, args: *const nvte_grad_norm_args_t, stream_: nvte_stream_t) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract, here and below.
        let a = unsafe { read_struct("args", args, mem::size_of::<nvte_grad_norm_args_t>())? };
        reserved("reserved", a.reserved)?;
        let args = GradNormArgs {
            // SAFETY: as above.
            list: unsafe { read_list(a.list)? },
            grad_scale: Ptr::from(a.grad_scale),
            max_norm: a.max_norm,
            norm: Ptr::from(a.norm),
            clip: Ptr::from(a.clip),
            found_inf: Ptr::from(a.found_inf),
        };
        // SAFETY: as above.
        unsafe { grad_norm::grad_norm(&ctx, &args, stream(stream_)) }
    })
}

/// Multiplies all gradients of a list, in place and in one launch, by a factor that lies on the device: in f32, rounded once. Where the
/// factor is 1 nothing is read or written.
///
/// Shapes: those of the list; factor: one f32. Units: none. Pointers: list is on the host, factor on the device. Alignment: 4 bytes.
/// Aliasing: factor must not lie in the gradients. Stream order: enqueued on `stream`, nothing waits. Determinism: bit-exact on every
/// back end.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_INVALID_ENUM,
/// NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_WORKSPACE_TOO_SMALL, NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE,
/// NVTE_ERROR_NOT_CAPTURABLE.
///
/// # Safety
/// The struct is sized and live; device memory is live until the stream has passed.
#[no_mangle]
pub unsafe extern "C" fn nvte_grad_scale(
    ctx: nvte_context_t,
    list: *const nvte_list_t,
    factor: *const f32,
    stream_: nvte_stream_t,
) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        unsafe { grad_norm::grad_scale(&ctx, &GradScaleArgs { list: read_list(list)?, factor: Ptr::from(factor) }, stream(stream_)) }
    })
}
