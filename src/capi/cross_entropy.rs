//! Cross-entropy.

use std::{ffi::c_void, mem};

use super::{
    context::context,
    guard::guard,
    types::{nvte_context_t, nvte_status_t, nvte_stream_t, nvte_tensor_t, optional, out, read_struct, stream, tensor},
};
use crate::{
    error::Result,
    ops::cross_entropy::{
        self, CrossEntropyArgs, CrossEntropyCombineArgs, CrossEntropySliceArgs, LogitsGradient, Losses, Reduction, ScaleRowsArgs,
        TargetType, Targets,
    },
    tensor::Ptr,
};

/// Losses stay what they are, one per token.
pub const NVTE_REDUCTION_NONE: i32 = 0;
/// Their sum.
pub const NVTE_REDUCTION_SUM: i32 = 1;
/// Their sum over the number of targets that are not ignored; gradients are divided by it too.
pub const NVTE_REDUCTION_MEAN: i32 = 2;

/// Targets are int64_t.
pub const NVTE_TARGET_I64: i32 = 0;
/// Targets are int32_t.
pub const NVTE_TARGET_I32: i32 = 1;

/// Arguments of nvte_cross_entropy.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct nvte_cross_entropy_args_t {
    /// sizeof(nvte_cross_entropy_args_t).
    pub struct_size: u32,
    /// NVTE_TARGET_I64 or NVTE_TARGET_I32.
    pub target_type: i32,
    /// f32, f16 or bf16 [tokens, vocabulary].
    pub logits: *const nvte_tensor_t,
    /// [tokens, vocabulary] of the same type: receives the gradient; may be the logits themselves. NULL: none is computed.
    pub dlogits: *const nvte_tensor_t,
    /// Device, [tokens].
    pub target: *const c_void,
    /// Tokens with this target do not count (PyTorch's default is -100).
    pub ignore_index: i64,
    /// Device, f32: gradient of total (one value), or of each token's loss, multiplied into dlogits. NULL: 1.
    pub dloss: *const f32,
    /// 0: dloss is one value. 1: one per token.
    pub dloss_stride: i64,
    /// Device, f32 [tokens]: receives each token's loss; NULL: not written.
    pub loss: *mut f32,
    /// Device, f32 [tokens]: receives each token's logsumexp; NULL: not written.
    pub logsumexp: *mut f32,
    /// Device, one f32: receives the reduced loss; NULL: not written. NVTE_REDUCTION_NONE: NULL.
    pub total: *mut f32,
    /// Device memory, aligned to 16 bytes; its contents before and after mean nothing. NULL with NVTE_REDUCTION_NONE.
    pub workspace: *mut c_void,
    /// Its size, at least what nvte_cross_entropy_workspace says.
    pub workspace_bytes: u64,
    /// From 0 to 1.
    pub label_smoothing: f32,
    /// NVTE_REDUCTION_NONE, ...
    pub reduction: i32,
}

/// Arguments of nvte_cross_entropy_partial and nvte_cross_entropy_gradient: a slice of the vocabulary.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct nvte_cross_entropy_slice_args_t {
    /// sizeof(nvte_cross_entropy_slice_args_t).
    pub struct_size: u32,
    /// NVTE_TARGET_I64 or NVTE_TARGET_I32.
    pub target_type: i32,
    /// f32, f16 or bf16 [tokens, n]: classes start .. start + n of the vocabulary.
    pub logits: *const nvte_tensor_t,
    /// _gradient: [tokens, n] of the same type, receives the gradient; may be the logits themselves. _partial: NULL.
    pub dlogits: *const nvte_tensor_t,
    /// Device, [tokens]: classes of the whole vocabulary.
    pub target: *const c_void,
    /// Tokens with this target do not count.
    pub ignore_index: i64,
    /// First class of the slice.
    pub start: i64,
    /// Classes of all slices.
    pub vocabulary: i64,
    /// _partial: device, f32 [tokens, 4] on 16 bytes, receives the slice's numbers. _gradient: NULL.
    pub partial: *mut f32,
    /// _gradient: device, f32 [tokens, 4] on 16 bytes, as nvte_cross_entropy_combine wrote it. _partial: NULL.
    pub combined: *const f32,
    /// _gradient: as in nvte_cross_entropy_args_t.
    pub dloss: *const f32,
    /// _gradient: 0: dloss is one value. 1: one per token.
    pub dloss_stride: i64,
    /// _gradient: as in nvte_cross_entropy_args_t.
    pub workspace: *mut c_void,
    /// Its size.
    pub workspace_bytes: u64,
    /// From 0 to 1; the same in all calls that belong together.
    pub label_smoothing: f32,
    /// NVTE_REDUCTION_NONE, ...; the same in all calls that belong together.
    pub reduction: i32,
}

/// Arguments of nvte_cross_entropy_combine.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct nvte_cross_entropy_combine_args_t {
    /// sizeof(nvte_cross_entropy_combine_args_t).
    pub struct_size: u32,
    /// NVTE_TARGET_I64 or NVTE_TARGET_I32.
    pub target_type: i32,
    /// Device, f32 [ranks, tokens, 4] on 16 bytes: what nvte_cross_entropy_partial wrote for each slice, in any order that is the same
    /// everywhere.
    pub partials: *const f32,
    /// Slices, at least 1.
    pub ranks: i64,
    /// Elements from one slice's numbers to the next, a multiple of 4; 0: dense.
    pub rank_stride: i64,
    /// Tokens.
    pub tokens: i64,
    /// Classes of all slices.
    pub vocabulary: i64,
    /// Device, [tokens].
    pub target: *const c_void,
    /// Tokens with this target do not count.
    pub ignore_index: i64,
    /// Device, f32 [tokens, 4] on 16 bytes: for nvte_cross_entropy_gradient. May be partials where ranks is 1.
    pub combined: *mut f32,
    /// As in nvte_cross_entropy_args_t.
    pub loss: *mut f32,
    /// As in nvte_cross_entropy_args_t.
    pub logsumexp: *mut f32,
    /// As in nvte_cross_entropy_args_t.
    pub total: *mut f32,
    /// As in nvte_cross_entropy_args_t.
    pub workspace: *mut c_void,
    /// Its size.
    pub workspace_bytes: u64,
    /// From 0 to 1.
    pub label_smoothing: f32,
    /// NVTE_REDUCTION_NONE, ...
    pub reduction: i32,
}

fn targets(data: *const c_void, target_type: i32, ignore_index: i64, label_smoothing: f32, reduction: i32) -> Result<Targets> {
    Ok(Targets {
        data: Ptr::from(data),
        dtype: TargetType::from_i32("target_type", target_type)?,
        ignore_index,
        label_smoothing,
        reduction: Reduction::from_i32("reduction", reduction)?,
    })
}

/// # Safety
/// As [`read_struct`].
unsafe fn gradient(dlogits: *const nvte_tensor_t, dloss: *const f32, dloss_stride: i64) -> Result<Option<LogitsGradient>> {
    // SAFETY: forwarded contract.
    let dlogits = unsafe { optional("dlogits", dlogits)? };
    Ok(dlogits.map(|dlogits| LogitsGradient { dlogits, dloss: Ptr::from(dloss), dloss_stride }))
}

/// # Safety
/// As [`read_struct`], and likewise for the tensors it points to.
unsafe fn slice_args(p: *const nvte_cross_entropy_slice_args_t) -> Result<CrossEntropySliceArgs> {
    // SAFETY: forwarded contract.
    unsafe {
        let a = read_struct("args", p, mem::size_of::<nvte_cross_entropy_slice_args_t>())?;
        Ok(CrossEntropySliceArgs {
            logits: tensor("logits", a.logits)?,
            targets: targets(a.target, a.target_type, a.ignore_index, a.label_smoothing, a.reduction)?,
            start: a.start,
            vocabulary: a.vocabulary,
            partial: Ptr::from(a.partial),
            combined: Ptr::from(a.combined),
            gradient: gradient(a.dlogits, a.dloss, a.dloss_stride)?,
            workspace: Ptr::from(a.workspace),
            workspace_bytes: a.workspace_bytes,
        })
    }
}

/// Bytes of workspace of nvte_cross_entropy, _combine and _gradient with a reduction; with NVTE_REDUCTION_NONE they need none.
///
/// Shapes: tokens >= 0. Units: bytes. Pointers: `bytes` is on the host. Alignment: natural. Aliasing: none. Stream order: none.
/// Determinism: the same for one kind of device and version of the library.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_SIZE_OVERFLOW.
///
/// # Safety
/// `bytes` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn nvte_cross_entropy_workspace(ctx: nvte_context_t, tokens: i64, bytes: *mut u64) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        let needed = cross_entropy::cross_entropy_workspace(&ctx, tokens)?;
        // SAFETY: by contract.
        unsafe { out("bytes", bytes, needed) }
    })
}

/// Cross-entropy and, where dlogits is given, the gradient of the logits, in one pass: logits are read once, dlogits written once.
///
/// With m the largest logit of a token, s the sum of exp(x - m) and e the label smoothing: logsumexp = m + ln s,
/// loss = (1 - e) (logsumexp - x[target]) + e mean(logsumexp - x), and
/// dlogits = dloss / count * (exp(x - m) / s - e / vocabulary - (1 - e) [target]), where count is 1 unless the reduction is the mean.
/// An ignored target gives loss 0 and gradient 0; one outside the vocabulary gives NaN for both. The mean of no target is NaN.
///
/// Shapes: logits and dlogits [tokens, vocabulary], any tokens and vocabulary; target, loss and logsumexp [tokens]; total one value. Units: sizes
/// and strides in elements. Pointers: structs are on the host, everything else on the device. Alignment: that of the element type (logits and
/// dlogits whose rows begin at the same offset from 16 bytes are faster); workspace 16 bytes. Aliasing: dlogits may be the logits, exactly;
/// otherwise outputs and workspace must not overlap inputs or each other. Stream order: enqueued on `stream`, nothing waits. Determinism: the
/// same bits every time on one back end: sums have one order, no float atomics.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE,
/// NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_INVALID_VALUE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_WORKSPACE_TOO_SMALL,
/// NVTE_ERROR_OVERLAP, NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_UNSUPPORTED (a total without a reduction),
/// NVTE_ERROR_NOT_CAPTURABLE.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed.
#[no_mangle]
pub unsafe extern "C" fn nvte_cross_entropy(
    ctx: nvte_context_t,
    args: *const nvte_cross_entropy_args_t,
    stream_: nvte_stream_t,
) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        unsafe {
            let a = read_struct("args", args, mem::size_of::<nvte_cross_entropy_args_t>())?;
            let unpacked = CrossEntropyArgs {
                logits: tensor("logits", a.logits)?,
                targets: targets(a.target, a.target_type, a.ignore_index, a.label_smoothing, a.reduction)?,
                gradient: gradient(a.dlogits, a.dloss, a.dloss_stride)?,
                losses: Losses { loss: Ptr::from(a.loss), logsumexp: Ptr::from(a.logsumexp), total: Ptr::from(a.total) },
                workspace: Ptr::from(a.workspace),
                workspace_bytes: a.workspace_bytes,
            };
            cross_entropy::cross_entropy(&ctx, &unpacked, stream(stream_))
        }
    })
}

/// Of a slice of the vocabulary, per token, four f32: the largest logit, the sum of exp(x - largest), the target's logit (0 where it is in
/// another slice, ignored, or outside the vocabulary) and, with label smoothing, the sum of the logits. Exchange them between ranks, and call
/// nvte_cross_entropy_combine.
///
/// Shapes: logits [tokens, n]; target [tokens]; partial [tokens, 4]. Units: sizes and strides in elements. Pointers: structs are on the host,
/// everything else on the device. Alignment: that of the element type; partial 16 bytes. Aliasing: partial must not overlap inputs.
/// Stream order: enqueued on `stream`, nothing waits. Determinism: the same bits every time on one back end.
///
/// Errors: those of nvte_cross_entropy; NVTE_ERROR_UNSUPPORTED for combined or dlogits.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed.
#[no_mangle]
pub unsafe extern "C" fn nvte_cross_entropy_partial(
    ctx: nvte_context_t,
    args: *const nvte_cross_entropy_slice_args_t,
    stream_: nvte_stream_t,
) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        unsafe { cross_entropy::cross_entropy_partial(&ctx, &slice_args(args)?, stream(stream_)) }
    })
}

/// Puts the numbers of all slices together and finishes the losses, as nvte_cross_entropy defines them.
///
/// Shapes: partials [ranks, tokens, 4]; target, loss and logsumexp [tokens]; combined [tokens, 4]; total one value. Units: elements.
/// Pointers: args is on the host, everything else on the device. Alignment: partials, combined and workspace 16 bytes, others that of their
/// type. Aliasing: combined may be partials where ranks is 1; otherwise outputs and workspace must not overlap inputs or each other.
/// Stream order: enqueued on `stream`, nothing waits. Determinism: the same bits on every rank that holds the same partials.
///
/// Errors: those of nvte_cross_entropy.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed.
#[no_mangle]
pub unsafe extern "C" fn nvte_cross_entropy_combine(
    ctx: nvte_context_t,
    args: *const nvte_cross_entropy_combine_args_t,
    stream_: nvte_stream_t,
) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        unsafe {
            let a = read_struct("args", args, mem::size_of::<nvte_cross_entropy_combine_args_t>())?;
            let unpacked = CrossEntropyCombineArgs {
                partials: Ptr::from(a.partials),
                ranks: a.ranks,
                rank_stride: a.rank_stride,
                tokens: a.tokens,
                vocabulary: a.vocabulary,
                targets: targets(a.target, a.target_type, a.ignore_index, a.label_smoothing, a.reduction)?,
                combined: Ptr::from(a.combined),
                losses: Losses { loss: Ptr::from(a.loss), logsumexp: Ptr::from(a.logsumexp), total: Ptr::from(a.total) },
                workspace: Ptr::from(a.workspace),
                workspace_bytes: a.workspace_bytes,
            };
            cross_entropy::cross_entropy_combine(&ctx, &unpacked, stream(stream_))
        }
    })
}

/// The gradient of a slice's logits, from what all slices have together; logits are read once, dlogits written once.
///
/// Shapes: logits and dlogits [tokens, n]; target [tokens]; combined [tokens, 4]. Units: sizes and strides in elements. Pointers: structs are
/// on the host, everything else on the device. Alignment: that of the element type; combined and workspace 16 bytes. Aliasing: dlogits may be
/// the logits, exactly; otherwise outputs and workspace must not overlap inputs or each other. Stream order: enqueued on `stream`, nothing waits.
/// Determinism: the same bits every time on one back end.
///
/// Errors: those of nvte_cross_entropy; NVTE_ERROR_UNSUPPORTED for partial.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed.
#[no_mangle]
pub unsafe extern "C" fn nvte_cross_entropy_gradient(
    ctx: nvte_context_t,
    args: *const nvte_cross_entropy_slice_args_t,
    stream_: nvte_stream_t,
) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        unsafe { cross_entropy::cross_entropy_gradient(&ctx, &slice_args(args)?, stream(stream_)) }
    })
}

/// x[row] *= scale[row * stride], in place. Rows whose scale is 1 are neither read nor written: what the backward pass of a loss costs whose
/// gradient was computed ahead.
///
/// Shapes: x f32, f16 or bf16 [rows, cols]; scale f32, one value (stride 0) or [rows] (stride 1). Units: elements. Pointers: x is a host
/// struct; its data and scale are on the device. Alignment: that of the element type. Aliasing: scale must not overlap x. Stream order: enqueued
/// on `stream`, nothing waits. Determinism: bit-exact: one f32 product, rounded once.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE,
/// NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_OVERLAP, NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE,
/// NVTE_ERROR_NOT_CAPTURABLE.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed.
#[no_mangle]
pub unsafe extern "C" fn nvte_scale_rows(
    ctx: nvte_context_t,
    scale: *const f32,
    stride: i64,
    x: *const nvte_tensor_t,
    stream_: nvte_stream_t,
) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        unsafe {
            let args = ScaleRowsArgs { x: tensor("x", x)?, scale: Ptr::from(scale), stride };
            cross_entropy::scale_rows(&ctx, &args, stream(stream_))
        }
    })
}
