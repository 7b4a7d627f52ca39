//! Casts of a list of tensors to FP8.

use std::mem;

use super::{
    context::context,
    guard::guard,
    list::{length, list_memory, nvte_list_t, read_list, tensors, write_list},
    types::{flag, nvte_context_t, nvte_status_t, nvte_stream_t, nvte_tensor_t, out, read_struct, reserved, stream},
};
use crate::{
    error::Result,
    ops::{
        cast::{CastArgs, CurrentScaling},
        multi_cast::{self, MultiCastArgs},
    },
    tensor::Ptr,
};

/// Arguments of nvte_multi_cast_to_fp8. Zero-initialise it and set struct_size and list.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct nvte_multi_cast_args_t {
    /// sizeof(nvte_multi_cast_args_t).
    pub struct_size: u32,
    /// 1: current scaling (amax, scale, scale_inv of every output are written). 0: scales are read and amaxes recorded.
    pub current: i32,
    /// Made by nvte_cast_list.
    pub list: *const nvte_list_t,
    /// Device, one u32: where it is not 0 nothing is written; NULL: never.
    pub skip: *const u32,
    /// Current scaling: scales are divided by 2^margin; -64 to 64.
    pub margin: i32,
    /// Current scaling: floor of the amaxes; finite, not negative.
    pub epsilon: f32,
    /// Current scaling: 1: scales are rounded down to powers of two. Else 0.
    pub power_of_two: i32,
    /// 0.
    pub reserved: u32,
}

/// # Safety
/// As [`tensors`].
unsafe fn unpack(inputs: *const *const nvte_tensor_t, outputs: *const *const nvte_tensor_t, count: i64) -> Result<Vec<CastArgs>> {
    let n = length(count)?;
    // SAFETY: forwarded contract.
    let (inputs, outputs) = unsafe { (tensors("inputs", inputs, n)?, tensors("outputs", outputs, n)?) };
    Ok(inputs.into_iter().zip(outputs).map(|(input, output)| CastArgs { input, output }).collect())
}

/// Bytes of device memory that the table of a list of casts takes: 140 per tensor, and four per 128 x 128 elements.
///
/// Shapes: those of `count` inputs. Units: bytes. Pointers: host; device addresses are not looked at. Alignment: natural. Aliasing: none.
/// Stream order: none. Determinism: depends on shapes.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_INVALID_SHAPE,
/// NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_UNSUPPORTED, NVTE_ERROR_SIZE_OVERFLOW.
///
/// # Safety
/// The arrays hold `count` pointers to sized structs; `bytes` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn nvte_cast_list_workspace(
    ctx: nvte_context_t,
    inputs: *const *const nvte_tensor_t,
    outputs: *const *const nvte_tensor_t,
    count: i64,
    bytes: *mut u64,
) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        unsafe { out("bytes", bytes, multi_cast::cast_list_workspace(&ctx, &unpack(inputs, outputs, count)?)?) }
    })
}

/// Makes a list of casts for nvte_multi_cast_to_fp8: checks them, and writes the table in stream order. Do it once, and again when a tensor
/// has moved.
///
/// Shapes: `count` inputs f32, f16 or bf16 [rows, cols], each of its own shape; outputs E4M3 or E5M2 of the same, data, data_t or both.
/// Units: sizes and strides in elements. Pointers: structs and arrays are on the host and may go once the call has returned; data, slots
/// and list.data are on the device. Alignment: that of the element type, list.data 16 bytes; fastest where bases and row strides are
/// multiples of 16 bytes. Aliasing: no output may overlap anything else in the list. Stream order: enqueued on `stream`, nothing waits;
/// the contents travel as kernel arguments, so that it is safe to capture. With NVTE_STREAM_PREPARE the struct is written and the table is
/// not. Determinism: not applicable.
///
/// Errors: those of nvte_cast_to_fp8, and NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_WORKSPACE_TOO_SMALL, NVTE_ERROR_SIZE_OVERFLOW.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed, and for as long as the list is used.
#[no_mangle]
pub unsafe extern "C" fn nvte_cast_list(
    ctx: nvte_context_t,
    inputs: *const *const nvte_tensor_t,
    outputs: *const *const nvte_tensor_t,
    count: i64,
    list: *mut nvte_list_t,
    stream_: nvte_stream_t,
) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        unsafe {
            let (data, bytes) = list_memory(list)?;
            let made = multi_cast::cast_list(&ctx, &unpack(inputs, outputs, count)?, data, bytes, stream(stream_))?;
            write_list(list, &made);
        }
        Ok(())
    })
}

/// All casts of a list, with the bits of nvte_cast_to_fp8, in one launch; or, with current scaling, of nvte_cast_to_fp8_current, in two or three.
///
/// Shapes: those of the list. Units: none. Pointers: structs are on the host, skip on the device. Alignment: 4 bytes. Aliasing: skip must not
/// lie in an output. Stream order: enqueued on `stream`, nothing waits; scales are read, or made, on the device. Determinism: bit-exact on
/// every back end.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_INVALID_ENUM,
/// NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_UNSUPPORTED, NVTE_ERROR_WORKSPACE_TOO_SMALL, NVTE_ERROR_SIZE_OVERFLOW,
/// NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_NOT_CAPTURABLE.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed.
#[no_mangle]
pub unsafe extern "C" fn nvte_multi_cast_to_fp8(
    ctx: nvte_context_t,
    args: *const nvte_multi_cast_args_t,
    stream_: nvte_stream_t,
) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract, here and below.
        let a = unsafe { read_struct("args", args, mem::size_of::<nvte_multi_cast_args_t>())? };
        reserved("reserved", a.reserved)?;
        let power_of_two = flag("power_of_two", a.power_of_two)?;
        let current = flag("current", a.current)?.then_some(CurrentScaling { margin: a.margin, epsilon: a.epsilon, power_of_two });
        // SAFETY: as above.
        unsafe {
            multi_cast::multi_cast_to_fp8(
                &ctx,
                &MultiCastArgs { list: read_list(a.list)?, current, skip: Ptr::from(a.skip) },
                stream(stream_),
            )
        }
    })
}
