//! FP8 back to high precision, and transposes of codes.

use super::{
    context::context,
    guard::guard,
    types::{nvte_context_t, nvte_status_t, nvte_stream_t, nvte_tensor_t, stream, tensor},
};
use crate::ops::dequantize::{self, DequantizeArgs, TransposeArgs};

/// Dequantizes: y = f32(q) * input.scale_inv in f32, rounded once to the output type; NaN becomes 0x7FFFFFFF (16-bit types: 0x7FFF).
///
/// Shapes: input E4M3 or E5M2 [rows, cols]: data is read, data_t where data is NULL; output f32, f16 or bf16 [rows, cols]. Units: sizes
/// and strides in elements. Pointers: tensors are host structs; data and scale_inv (NULL: 1) are on the device. Alignment: that of the
/// element type. Aliasing: the output must not overlap the codes. Stream order: enqueued on `stream`, nothing waits.
/// Determinism: bit-exact on every back end.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE, NVTE_ERROR_INVALID_SHAPE,
/// NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_OVERLAP, NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_NOT_CAPTURABLE.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed.
#[no_mangle]
pub unsafe extern "C" fn nvte_dequantize(
    ctx: nvte_context_t,
    input: *const nvte_tensor_t,
    output: *const nvte_tensor_t,
    stream_: nvte_stream_t,
) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        unsafe {
            let args = DequantizeArgs { input: tensor("input", input)?, output: tensor("output", output)? };
            dequantize::dequantize(&ctx, &args, stream(stream_))
        }
    })
}

/// Makes the missing layout of a quantized tensor: output.data_t from input.data, or, where input.data is NULL, output.data from input.data_t.
///
/// Shapes: input and output E4M3 or E5M2, the same, [rows, cols]. Units: sizes and strides in elements. Pointers: tensors are host
/// structs (one struct may serve as both); codes and slots are on the device. Alignment: bytes. Aliasing: the two layouts must not overlap.
/// Stream order: enqueued on `stream`, nothing waits. Determinism: bit-exact on every back end.
/// The layout of the output that is not written must be NULL or the input's. output.scale_inv receives input.scale_inv where it is not
/// NULL; output.scale and output.amax are not touched.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE, NVTE_ERROR_INVALID_SHAPE,
/// NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_OVERLAP, NVTE_ERROR_UNSUPPORTED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_NOT_CAPTURABLE.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed.
#[no_mangle]
pub unsafe extern "C" fn nvte_fp8_transpose(
    ctx: nvte_context_t,
    input: *const nvte_tensor_t,
    output: *const nvte_tensor_t,
    stream_: nvte_stream_t,
) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        unsafe {
            let args = TransposeArgs { input: tensor("input", input)?, output: tensor("output", output)? };
            dequantize::fp8_transpose(&ctx, &args, stream(stream_))
        }
    })
}
