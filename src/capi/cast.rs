//! Casts to FP8: given scale, current scaling, with the bias gradient.

use std::ffi::c_void;

use super::{
    context::context,
    guard::guard,
    types::{flag, nvte_context_t, nvte_status_t, nvte_stream_t, nvte_tensor_t, optional, out, read_struct, reserved, stream, tensor},
};
use crate::{
    ops::cast::{self, CastArgs, CastDbiasArgs, CurrentCastArgs, CurrentScaling},
    tensor::{DType, Ptr},
};

/// Casts to FP8 with a given scale: q = encode(f32(x) * scale), one rounding to nearest even, saturating; NaN becomes 0x7F.
///
/// Shapes: input f32, f16 or bf16 [rows, cols]; output E4M3 or E5M2 [rows, cols], its data, its data_t or both. Units: sizes and
/// strides in elements. Pointers: tensors are host structs; data and slots are on the device. Alignment: that of the element type;
/// fastest where bases and row strides are multiples of 16 bytes.
/// Aliasing: outputs must not overlap the input or each other. Stream order: enqueued on `stream`, nothing waits.
/// Determinism: bit-exact on every back end.
/// Writes 1/scale to output.scale_inv, and records the amax of the input as a maximum in output.amax, where those are not NULL.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE, NVTE_ERROR_INVALID_SHAPE,
/// NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_OVERLAP, NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_NOT_CAPTURABLE.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed.
#[no_mangle]
pub unsafe extern "C" fn nvte_cast_to_fp8(
    ctx: nvte_context_t,
    input: *const nvte_tensor_t,
    output: *const nvte_tensor_t,
    stream_: nvte_stream_t,
) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        unsafe { cast::cast_to_fp8(&ctx, &CastArgs { input: tensor("input", input)?, output: tensor("output", output)? }, stream(stream_)) }
    })
}

/// Arguments of nvte_cast_to_fp8_current. Zero-initialise it and set struct_size; margin, epsilon and power_of_two may stay 0.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct nvte_cast_current_args_t {
    /// sizeof(nvte_cast_current_args_t).
    pub struct_size: u32,
    /// The scale is divided by 2^margin; -64 to 64.
    pub margin: i32,
    /// Floor of the amax; finite, not negative.
    pub epsilon: f32,
    /// 1: the scale is rounded down to a power of two. Else 0.
    pub power_of_two: i32,
    /// f32, f16 or bf16 [rows, cols].
    pub input: *const nvte_tensor_t,
    /// FP8 [rows, cols]: data, data_t or both; amax, scale and scale_inv are written where they are not NULL.
    pub output: *const nvte_tensor_t,
    /// Device memory, 16-byte aligned.
    pub workspace: *mut c_void,
    /// Its size, at least what nvte_cast_to_fp8_current_workspace says.
    pub workspace_bytes: u64,
}

/// Bytes of workspace that nvte_cast_to_fp8_current needs, whatever the shape.
///
/// Shapes: none. Units: bytes. Pointers: `bytes` is on the host. Alignment: natural. Aliasing: none. Stream order: none.
/// Determinism: depends on the device alone.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER.
///
/// # Safety
/// `bytes` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn nvte_cast_to_fp8_current_workspace(ctx: nvte_context_t, bytes: *mut u64) -> nvte_status_t {
    guard(|| {
        let need = cast::cast_to_fp8_current_workspace(&context(ctx)?);
        // SAFETY: by contract.
        unsafe { out("bytes", bytes, need) }
    })
}

/// Casts to FP8 with current scaling in one call: the amax of this input, the scale from it (section 4 above, previous = 1), the cast.
///
/// Shapes: input f32, f16 or bf16 [rows, cols]; output E4M3 or E5M2 [rows, cols], its data, its data_t or both. Units: sizes and
/// strides in elements. Pointers: structs are on the host; data, slots and workspace on the device. Alignment: that of the element type,
/// workspace 16 bytes. Aliasing: outputs and workspace must not overlap the input or each other. Stream order: enqueued on `stream`,
/// nothing waits; the scale is made on the device. Determinism: bit-exact on every back end.
/// Writes (does not record) output.amax, output.scale and output.scale_inv where those are not NULL; for an empty tensor 0, 1 and 1.
///
/// Errors: those of nvte_cast_to_fp8, and NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_WORKSPACE_TOO_SMALL.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed.
#[no_mangle]
pub unsafe extern "C" fn nvte_cast_to_fp8_current(
    ctx: nvte_context_t,
    args: *const nvte_cast_current_args_t,
    stream_: nvte_stream_t,
) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract, here and below.
        let a = unsafe { read_struct("args", args, std::mem::size_of::<nvte_cast_current_args_t>())? };
        let scaling = CurrentScaling { margin: a.margin, epsilon: a.epsilon, power_of_two: flag("power_of_two", a.power_of_two)? };
        // SAFETY: as above.
        unsafe {
            let args = CurrentCastArgs {
                input: tensor("input", a.input)?,
                output: tensor("output", a.output)?,
                scaling,
                workspace: Ptr::from(a.workspace),
                workspace_bytes: a.workspace_bytes,
            };
            cast::cast_to_fp8_current(&ctx, &args, stream(stream_))
        }
    })
}

/// Arguments of nvte_cast_dbias. Zero-initialise it and set struct_size.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct nvte_cast_dbias_args_t {
    /// sizeof(nvte_cast_dbias_args_t).
    pub struct_size: u32,
    /// NVTE_F32, NVTE_F16 or NVTE_BF16: type of dbias.
    pub dbias_dtype: i32,
    /// The gradient: f32, f16 or bf16 [rows, cols].
    pub input: *const nvte_tensor_t,
    /// FP8 [rows, cols]: data, data_t or both; NULL: only the bias gradient is wanted.
    pub output: *const nvte_tensor_t,
    /// Receives the column sums, [cols].
    pub dbias: *mut c_void,
    /// 1: the sums are added to what dbias holds. Else 0.
    pub accumulate: i32,
    /// 1: current scaling (output.amax, scale, scale_inv are written). 0: output.scale is read and output.amax recorded.
    pub current: i32,
    /// Current scaling: the scale is divided by 2^margin.
    pub margin: i32,
    /// Current scaling: floor of the amax.
    pub epsilon: f32,
    /// Current scaling: 1: the scale is rounded down to a power of two.
    pub power_of_two: i32,
    /// Reserved: 0.
    pub reserved: u32,
    /// Device memory, 16-byte aligned.
    pub workspace: *mut c_void,
    /// Its size, at least what nvte_cast_dbias_workspace says.
    pub workspace_bytes: u64,
}

/// Bytes of workspace that nvte_cast_dbias needs for an input of this shape: it grows with rows / 128 * cols.
///
/// Shapes: input [rows, cols]. Units: bytes. Pointers: `bytes` is on the host. Alignment: natural. Aliasing: none. Stream order: none.
/// Determinism: depends on shape and device alone.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_SIZE_OVERFLOW.
///
/// # Safety
/// `bytes` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn nvte_cast_dbias_workspace(ctx: nvte_context_t, rows: i64, cols: i64, bytes: *mut u64) -> nvte_status_t {
    guard(|| {
        let need = cast::cast_dbias_workspace(&context(ctx)?, rows, cols)?;
        // SAFETY: by contract.
        unsafe { out("bytes", bytes, need) }
    })
}

/// Casts a gradient to FP8 and, in the same pass, gives the bias gradient: dbias[c] = sum over rows of input[r, c], in f32.
///
/// Shapes: input f32, f16 or bf16 [rows, cols]; output as in nvte_cast_to_fp8, or NULL; dbias [cols]. Units: sizes and strides in
/// elements. Pointers: structs are on the host; data, slots, dbias and workspace on the device. Alignment: that of the element type,
/// workspace 16 bytes. Aliasing: outputs and workspace must not overlap the input or each other. Stream order: enqueued on `stream`,
/// nothing waits. Determinism: codes, scales and amax are bit-exact on every back end; the sums have one fixed order per device, shape and
/// alignment (no atomics). With no rows the sums are 0.
///
/// Errors: those of nvte_cast_to_fp8, and NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_WORKSPACE_TOO_SMALL,
/// NVTE_ERROR_UNSUPPORTED (current scaling without an output).
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed.
#[no_mangle]
pub unsafe extern "C" fn nvte_cast_dbias(
    ctx: nvte_context_t,
    args: *const nvte_cast_dbias_args_t,
    stream_: nvte_stream_t,
) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract, here and below.
        let a = unsafe { read_struct("args", args, std::mem::size_of::<nvte_cast_dbias_args_t>())? };
        reserved("reserved", a.reserved)?;
        let power_of_two = flag("power_of_two", a.power_of_two)?;
        let current = flag("current", a.current)?.then_some(CurrentScaling { margin: a.margin, epsilon: a.epsilon, power_of_two });
        // SAFETY: as above.
        unsafe {
            let args = CastDbiasArgs {
                input: tensor("input", a.input)?,
                output: optional("output", a.output)?,
                current,
                dbias: Ptr::from(a.dbias),
                dbias_dtype: DType::from_i32("dbias_dtype", a.dbias_dtype)?,
                accumulate: flag("accumulate", a.accumulate)?,
                workspace: Ptr::from(a.workspace),
                workspace_bytes: a.workspace_bytes,
            };
            cast::cast_dbias(&ctx, &args, stream(stream_))
        }
    })
}
