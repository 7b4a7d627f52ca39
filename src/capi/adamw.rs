//! AdamW over a list of tensors.

use std::mem;

use super::{
    context::context,
    guard::guard,
    list::{length, list_memory, nvte_list_t, optional_tensors, read_list, tensors, write_list},
    types::{flag, nvte_context_t, nvte_status_t, nvte_stream_t, nvte_tensor_t, out, read_struct, reserved, stream},
};
use crate::{
    error::Result,
    ops::adamw::{self, AdamwArgs, AdamwTensor},
    tensor::Ptr,
};

/// The tensors of an nvte_adamw_list: arrays of `count` pointers to tensors. Zero-initialise it and set struct_size.
///
/// The tensors of one index have one shape [rows, cols] with rows side by side (ld = cols).
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct nvte_adamw_list_args_t {
    /// sizeof(nvte_adamw_list_args_t).
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// Number of tensors.
    pub count: i64,
    /// f32, f16 or bf16: written, and read where there is no master.
    pub weights: *const *const nvte_tensor_t,
    /// f32, f16 or bf16: read.
    pub gradients: *const *const nvte_tensor_t,
    /// f32: the weights in full, of which `weights` are the rounded copies; the array or single entries may be NULL.
    pub masters: *const *const nvte_tensor_t,
    /// First moments, f32 or bf16.
    pub exp_avgs: *const *const nvte_tensor_t,
    /// Second moments, of the same type as the first.
    pub exp_avg_sqs: *const *const nvte_tensor_t,
    /// FP8: copies of the new weights, data, data_t or both, with scale read, scale_inv written and amax recorded as nvte_cast_to_fp8 would;
    /// the array or single entries may be NULL. A row stride is allowed here.
    pub fp8s: *const *const nvte_tensor_t,
}

/// Arguments of nvte_adamw. Zero-initialise it and set struct_size.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct nvte_adamw_args_t {
    /// sizeof(nvte_adamw_args_t).
    pub struct_size: u32,
    /// 1: weight_decay acts on the weights (AdamW). 0: on the gradients (L2).
    pub decoupled: i32,
    /// 1: the moments are corrected for their start at 0. Else 0.
    pub bias_correction: i32,
    /// 0.
    pub reserved: u32,
    /// Made by nvte_adamw_list.
    pub list: *const nvte_list_t,
    /// Device, one f32: the steps taken so far. The call uses step + 1, and writes it.
    pub step: *mut f32,
    /// Device, one f32: the learning rate; NULL: lr.
    pub lr_ptr: *const f32,
    /// Device, one f32: where it is not 0 the step is skipped, and nothing is written (step neither); NULL: never.
    pub found_inf: *const f32,
    /// Device, one f32: gradients are divided by it (the factor of a scaled loss); NULL: 1.
    pub grad_scale: *const f32,
    /// Device, one f32: gradients are multiplied by it (nvte_grad_norm's clip); NULL: 1.
    pub clip: *const f32,
    /// The learning rate where lr_ptr is NULL. Finite, not negative.
    pub lr: f64,
    /// Decay of the first moment: at least 0, below 1.
    pub beta1: f64,
    /// Decay of the second moment: at least 0, below 1.
    pub beta2: f64,
    /// Added to the root of the corrected second moment. Finite, not negative.
    pub eps: f64,
    /// Finite, not negative.
    pub weight_decay: f64,
}

/// # Safety
/// As [`read_struct`], arrays and tensors likewise.
unsafe fn unpack(p: *const nvte_adamw_list_args_t) -> Result<Vec<AdamwTensor>> {
    // SAFETY: forwarded contract.
    unsafe {
        let a = read_struct("args", p, mem::size_of::<nvte_adamw_list_args_t>())?;
        reserved("reserved", a.reserved)?;
        let n = length(a.count)?;
        let (weights, gradients) = (tensors("weights", a.weights, n)?, tensors("gradients", a.gradients, n)?);
        let (exp_avgs, exp_avg_sqs) = (tensors("exp_avgs", a.exp_avgs, n)?, tensors("exp_avg_sqs", a.exp_avg_sqs, n)?);
        let (masters, fp8s) = (optional_tensors("masters", a.masters, n)?, optional_tensors("fp8s", a.fp8s, n)?);
        let one = |i: usize| AdamwTensor {
            weight: weights[i],
            gradient: gradients[i],
            master: masters[i],
            exp_avg: exp_avgs[i],
            exp_avg_sq: exp_avg_sqs[i],
            fp8: fp8s[i],
        };
        Ok((0..n).map(one).collect())
    }
}

/// Bytes of device memory that the table of an AdamW list takes: 136 per tensor, and four per 4096 elements (per 128 x 128 with FP8 copies).
///
/// Shapes: those of the weights. Units: bytes. Pointers: host; device addresses are not looked at. Alignment: natural. Aliasing: none.
/// Stream order: none. Determinism: depends on shapes and on which FP8 copies there are.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_INVALID_SHAPE,
/// NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_UNSUPPORTED, NVTE_ERROR_SIZE_OVERFLOW.
///
/// # Safety
/// Structs are sized and live; `bytes` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn nvte_adamw_list_workspace(
    ctx: nvte_context_t,
    args: *const nvte_adamw_list_args_t,
    bytes: *mut u64,
) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        unsafe { out("bytes", bytes, adamw::adamw_list_workspace(&ctx, &unpack(args)?)?) }
    })
}

/// Makes the list of tensors for nvte_adamw: checks them, and writes the table in stream order. Do it once, and again when one has moved.
///
/// Shapes: the tensors of one index share theirs; rows side by side, except FP8 copies. Units: sizes and strides in elements. Pointers:
/// structs and arrays are on the host and may go once the call has returned; data, slots and list.data are on the device. Alignment:
/// that of the element type, list.data 16 bytes; fastest where all but 16-bit tensors (8 bytes) begin at multiples of 16 bytes. Aliasing:
/// nothing that is written may overlap anything else in the list. Stream order: enqueued on `stream`, nothing waits; the contents travel as
/// kernel arguments, so that it is safe to capture. With NVTE_STREAM_PREPARE the struct is written and the table is not.
/// Determinism: not applicable.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_INVALID_DTYPE,
/// NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_UNSUPPORTED, NVTE_ERROR_OVERLAP,
/// NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_WORKSPACE_TOO_SMALL, NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_NOT_CAPTURABLE.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed, and for as long as the list is used.
#[no_mangle]
pub unsafe extern "C" fn nvte_adamw_list(
    ctx: nvte_context_t,
    args: *const nvte_adamw_list_args_t,
    list: *mut nvte_list_t,
    stream_: nvte_stream_t,
) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        unsafe {
            let (data, bytes) = list_memory(list)?;
            let made = adamw::adamw_list(&ctx, &unpack(args)?, data, bytes, stream(stream_))?;
            write_list(list, &made);
        }
        Ok(())
    })
}

/// One step of AdamW for all tensors of a list, in one launch. With t = step + 1, in f32, each operation rounded by itself in this order,
/// where what is the same for all elements is formed in f64 (clip / grad_scale in f32) and rounded once:
///
/// - g = gradient * (clip / grad_scale); with decoupled = 0: g += weight_decay * w
/// - m = beta1 * m + (1 - beta1) * g, v = beta2 * v + ((1 - beta2) * g) * g
/// - w -= (lr / (1 - beta1^t)) * (m / (sqrt(v) * (1 / sqrt(1 - beta2^t)) + eps)) + (lr * weight_decay) * w
///
/// w is the master where there is one, and the weight its rounded copy; m and v enter w before they are rounded to a narrower type. Without
/// bias_correction both corrections are 1. FP8 copies are those of the weight as written. The step, an f32, counts to 2^24 and stays there.
///
/// Shapes: those of the list. Units: none. Pointers: structs are on the host, all else on the device. Alignment: 4 bytes. Aliasing: step and
/// the scalars must not lie in the list's tensors. Stream order: enqueued on `stream`, nothing waits; step, learning rate, found_inf and the
/// factors are read on the device, so that a captured graph can be replayed. Determinism: bit-exact on every back end.
/// A skipped step leaves everything as it was: weights, moments, step, codes, scale_inv and amax.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_INVALID_ENUM,
/// NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_UNSUPPORTED, NVTE_ERROR_WORKSPACE_TOO_SMALL, NVTE_ERROR_SIZE_OVERFLOW,
/// NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_NOT_CAPTURABLE.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed.
#[no_mangle]
pub unsafe extern "C" fn nvte_adamw(ctx: nvte_context_t, args: *const nvte_adamw_args_t, stream_: nvte_stream_t) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract, here and below.
        let a = unsafe { read_struct("args", args, mem::size_of::<nvte_adamw_args_t>())? };
        reserved("reserved", a.reserved)?;
        let args = AdamwArgs {
            // SAFETY: as above.
            list: unsafe { read_list(a.list)? },
            step: Ptr::from(a.step),
            lr_ptr: Ptr::from(a.lr_ptr),
            lr: a.lr,
            beta1: a.beta1,
            beta2: a.beta2,
            eps: a.eps,
            weight_decay: a.weight_decay,
            decoupled: flag("decoupled", a.decoupled)?,
            bias_correction: flag("bias_correction", a.bias_correction)?,
            found_inf: Ptr::from(a.found_inf),
            grad_scale: Ptr::from(a.grad_scale),
            clip: Ptr::from(a.clip),
        };
        // SAFETY: as above.
        unsafe { adamw::adamw(&ctx, &args, stream(stream_)) }
    })
}
