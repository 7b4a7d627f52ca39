//! Casts to FP8.

use super::{
    context::context,
    guard::guard,
    types::{nvte_context_t, nvte_status_t, nvte_stream_t, nvte_tensor_t, stream, tensor},
};
use crate::ops::cast::{self, CastArgs};

/// Casts to FP8 with a given scale: q = encode(f32(x) * scale), one rounding to nearest even, saturating; NaN becomes 0x7F.
///
/// Shapes: input f32, f16 or bf16 [rows, cols]; output E4M3 or E5M2 [rows, cols], its data, its data_t or both. Units: sizes and
/// strides in elements. Pointers: tensors are host structs; data and slots are on the device. Alignment: that of the element type.
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
