//! amax alone.

use super::{
    context::context,
    guard::guard,
    types::{nvte_context_t, nvte_status_t, nvte_stream_t, nvte_tensor_t, stream, tensor},
};
use crate::{
    ops::amax::{self, AmaxArgs},
    tensor::Ptr,
};

/// Records the largest |x| of a tensor: the maximum, by bit pattern, with what the slot holds, so that NaN > infinity > finite.
///
/// Shapes: input f32, f16 or bf16 [rows, cols]; amax one f32. Units: sizes and strides in elements. Pointers: the tensor is a host
/// struct; data and amax are on the device. Alignment: that of the element type. Aliasing: amax must not lie in the input. Stream order:
/// enqueued on `stream`, nothing waits. Determinism: bit-exact on every back end.
/// A tensor with no elements records nothing.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE, NVTE_ERROR_INVALID_SHAPE,
/// NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_OVERLAP, NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_NOT_CAPTURABLE.
///
/// # Safety
/// The struct is sized and live; device memory is live until the stream has passed.
#[no_mangle]
pub unsafe extern "C" fn nvte_amax(
    ctx: nvte_context_t,
    input: *const nvte_tensor_t,
    amax: *mut f32,
    stream_: nvte_stream_t,
) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        unsafe { amax::amax(&ctx, &AmaxArgs { input: tensor("input", input)?, amax: Ptr::from(amax) }, stream(stream_)) }
    })
}
