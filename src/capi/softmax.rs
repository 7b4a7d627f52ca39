//! Softmax.

use std::mem;

use super::{
    context::context,
    guard::guard,
    types::{flag, nvte_context_t, nvte_status_t, nvte_stream_t, nvte_tensor_t, read_struct, reserved, stream, tensor},
};
use crate::{
    ops::softmax::{self, Mask, Rows, SoftmaxBwdArgs, SoftmaxFwdArgs},
    tensor::Ptr,
};

/// Arguments of nvte_softmax_fwd.
///
/// Row r of x is query r % queries of matrix r / queries, and matrix m is head m % heads of batch m / heads.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct nvte_softmax_fwd_args_t {
    /// sizeof(nvte_softmax_fwd_args_t).
    pub struct_size: u32,
    /// 1: query i sees keys j <= i + offset only. 0: all.
    pub causal: i32,
    /// f32, f16 or bf16 [rows, cols].
    pub x: *const nvte_tensor_t,
    /// [rows, cols] of the type of x; may be x itself.
    pub y: *const nvte_tensor_t,
    /// Device, u8: an element whose byte is not 0 is hidden. NULL: none is.
    pub mask: *const u8,
    /// Bytes from a batch's mask to the next; 0: the same for all.
    pub mask_batch_stride: i64,
    /// Bytes from a head's mask to the next; 0: the same for all.
    pub mask_head_stride: i64,
    /// Bytes from a query's mask to the next; 0: the same for all. The cols bytes of a row lie side by side.
    pub mask_query_stride: i64,
    /// Rows of a matrix, a divisor of rows; 0: all.
    pub queries: i64,
    /// Matrices of a batch; 0: 1.
    pub heads: i64,
    /// See causal. Anything.
    pub offset: i64,
    /// Multiplies x. Finite.
    pub scale: f32,
    /// 0.
    pub reserved: u32,
}

/// Arguments of nvte_softmax_bwd.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct nvte_softmax_bwd_args_t {
    /// sizeof(nvte_softmax_bwd_args_t).
    pub struct_size: u32,
    /// As in the forward pass.
    pub causal: i32,
    /// f32, f16 or bf16 [rows, cols]: gradient of the output.
    pub dy: *const nvte_tensor_t,
    /// [rows, cols] of the same type: the forward pass' output.
    pub y: *const nvte_tensor_t,
    /// [rows, cols] of the same type: receives the gradient of x; may be dy itself.
    pub dx: *const nvte_tensor_t,
    /// As in the forward pass.
    pub queries: i64,
    /// As in the forward pass.
    pub offset: i64,
    /// As in the forward pass.
    pub scale: f32,
    /// 0.
    pub reserved: u32,
}

/// y = softmax(scale * x), row by row. A hidden element counts as -infinity.
///
/// Shapes: x and y [rows, cols], any rows and cols; mask [batches, heads, queries, cols] by its strides. Units: sizes and strides in elements,
/// those of the mask in bytes. Pointers: structs are on the host, data and mask on the device. Alignment: that of the element type
/// (x and y whose rows begin at the same offset from 16 bytes are faster). Aliasing: y may be x, exactly; it must not overlap x otherwise,
/// nor the mask. Stream order: enqueued on `stream`, nothing waits. Determinism: the same bits every time on one back end. A row whose
/// visible elements are all -infinity, or that has none, is 0. NaN or +infinity that is visible makes its row NaN; hidden ones do nothing. With
/// causal, what is hidden by it is not read.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE,
/// NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_OVERLAP, NVTE_ERROR_MISALIGNED,
/// NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_NOT_CAPTURABLE.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed.
#[no_mangle]
pub unsafe extern "C" fn nvte_softmax_fwd(
    ctx: nvte_context_t,
    args: *const nvte_softmax_fwd_args_t,
    stream_: nvte_stream_t,
) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        unsafe {
            let a = read_struct("args", args, mem::size_of::<nvte_softmax_fwd_args_t>())?;
            reserved("reserved", a.reserved)?;
            let unpacked = SoftmaxFwdArgs {
                x: tensor("x", a.x)?,
                y: tensor("y", a.y)?,
                scale: a.scale,
                rows: Rows { queries: a.queries, heads: a.heads, causal: flag("causal", a.causal)?, offset: a.offset },
                mask: Mask {
                    data: Ptr::from(a.mask),
                    batch_stride: a.mask_batch_stride,
                    head_stride: a.mask_head_stride,
                    query_stride: a.mask_query_stride,
                },
            };
            softmax::softmax_fwd(&ctx, &unpacked, stream(stream_))
        }
    })
}

/// The gradient of nvte_softmax_fwd: dx = scale * y * (dy - sum(y * dy)), row by row. It needs no mask: what was hidden is 0 in y.
///
/// Shapes: dy, y and dx [rows, cols], any rows and cols. Units: sizes and strides in elements. Pointers: structs are on the host, data on
/// the device. Alignment: that of the element type (rows that begin at the same offset from 16 bytes are faster). Aliasing: dx may be dy,
/// exactly; it must not overlap dy otherwise, nor y. Stream order: enqueued on `stream`, nothing waits. Determinism: the same bits every time
/// on one back end. With causal, what is hidden by it is written as 0 and not read.
///
/// Errors: those of nvte_softmax_fwd.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed.
#[no_mangle]
pub unsafe extern "C" fn nvte_softmax_bwd(
    ctx: nvte_context_t,
    args: *const nvte_softmax_bwd_args_t,
    stream_: nvte_stream_t,
) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        unsafe {
            let a = read_struct("args", args, mem::size_of::<nvte_softmax_bwd_args_t>())?;
            reserved("reserved", a.reserved)?;
            let unpacked = SoftmaxBwdArgs {
                dy: tensor("dy", a.dy)?,
                y: tensor("y", a.y)?,
                dx: tensor("dx", a.dx)?,
                scale: a.scale,
                rows: Rows { queries: a.queries, heads: 0, causal: flag("causal", a.causal)?, offset: a.offset },
            };
            softmax::softmax_bwd(&ctx, &unpacked, stream(stream_))
        }
    })
}
