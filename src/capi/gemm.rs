//! Matrix products.

use std::{
    ffi::{c_char, c_void, CStr},
    mem,
};

use super::{
    context::context,
    guard::guard,
    types::{copy_text, flag, nvte_context_t, nvte_status_t, nvte_stream_t, nvte_tensor_t, optional, out, read_struct, stream, tensor},
};
use crate::{
    error::{Error, Result, Status},
    ops::gemm::{self, Accumulate, Epilogue, GemmArgs},
    tensor::{DType, Ptr},
};

/// FP8 products keep the tensor core's own accumulator for the whole K (about 14 bits on sm_89 and sm_90).
pub const NVTE_ACCUMULATE_FAST: i32 = 1;
/// FP8 products are promoted to f32 as K goes on.
pub const NVTE_ACCUMULATE_PRECISE: i32 = 2;

/// Nothing is applied to the result. Numbers 1 to 6 are kept for activations and refused for now.
pub const NVTE_EPILOGUE_NONE: i32 = 0;

/// A product: D[M,N] = alpha * scale_inv_A * scale_inv_B * (A[M,K] B[N,K]^T) + bias[N] + beta * C[M,N].
///
/// Zero-initialise it and set struct_size, accumulate, alpha, a, b and d; the rest may stay 0.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct nvte_gemm_args_t {
    /// sizeof(nvte_gemm_args_t).
    pub struct_size: u32,
    /// NVTE_ACCUMULATE_FAST or NVTE_ACCUMULATE_PRECISE; 0 is an error. Operands of 16 and 32 bits are accumulated in f32 either way.
    pub accumulate: i32,
    /// 0: a is [M, K]; 1: a is [K, M].
    pub transpose_a: i32,
    /// 0: b is [N, K]; 1: b is [K, N].
    pub transpose_b: i32,
    /// NVTE_EPILOGUE_NONE.
    pub epilogue: i32,
    /// NVTE_F32, NVTE_F16 or NVTE_BF16; looked at only where there is a bias.
    pub bias_dtype: i32,
    /// Factor of the product, on the host: usually 1. With 0, A and B are not read.
    pub alpha: f32,
    /// Factor of C, on the host. With 0, C is not read.
    pub beta: f32,
    /// The first operand. FP8: scale_inv is read (NULL: 1). Where data and data_t are both present they hold the same values, and the
    /// one whose rows run along K is read.
    pub a: *const nvte_tensor_t,
    /// The second operand; likewise.
    pub b: *const nvte_tensor_t,
    /// Device: N elements; NULL: none.
    pub bias: *const c_void,
    /// f32, f16 or bf16 [M, N]; NULL where beta is 0. It may be d itself: same data, ld and dtype.
    pub c: *const nvte_tensor_t,
    /// The output [M, N]: f32, f16 or bf16; or FP8, with scale read (NULL: 1), scale_inv written, and the amax of the values before scaling recorded.
    pub d: *const nvte_tensor_t,
    /// Device memory that the call may use until the stream has passed; its contents do not matter.
    pub workspace: *mut c_void,
    /// Its size, at least what nvte_gemm_workspace says.
    pub workspace_bytes: u64,
}

/// # Safety
/// Structs are sized and live.
unsafe fn arguments(p: *const nvte_gemm_args_t) -> Result<GemmArgs> {
    // SAFETY: by contract.
    let g = unsafe { read_struct("args", p, mem::size_of::<nvte_gemm_args_t>())? };
    // SAFETY: by contract.
    let (a, b, c, d) = unsafe { (tensor("a", g.a)?, tensor("b", g.b)?, optional("c", g.c)?, tensor("d", g.d)?) };
    Ok(GemmArgs {
        a,
        b,
        transpose_a: flag("transpose_a", g.transpose_a)?,
        transpose_b: flag("transpose_b", g.transpose_b)?,
        alpha: g.alpha,
        beta: g.beta,
        bias: Ptr::from(g.bias),
        bias_dtype: if g.bias.is_null() { DType::F32 } else { DType::from_i32("bias_dtype", g.bias_dtype)? },
        c,
        d,
        accumulate: Accumulate::from_i32(g.accumulate)?,
        epilogue: Epilogue::from_i32(g.epilogue)?,
        workspace: Ptr::from(g.workspace),
        workspace_bytes: g.workspace_bytes,
    })
}

/// The product of FP8 operands, E4M3 and E5M2 in any pair, accumulated in f32 or as the tensor core does (args.accumulate), the bias
/// added in f32 after scaling, rounded once.
///
/// Shapes: see nvte_gemm_args_t; any M, N, K >= 0; with K = 0 the result is bias + beta * C. Units: sizes and strides in elements.
/// Pointers: args and the tensors it names are host structs; data, slots, bias and workspace are on the device; alpha and beta are host
/// values. Alignment: that of the element type, the workspace 16 bytes; operands whose rows run along K, with bases and row strides that
/// are multiples of 16 bytes and M, N, K multiples of 16, take the fastest path.
/// Aliasing: c may be d; otherwise outputs and workspace must not overlap anything. Stream order: enqueued on `stream`, nothing waits.
/// Determinism: the same bits at each call with the same arguments on the same device and library versions; see the tolerances in
/// docs for other devices.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE, NVTE_ERROR_INVALID_SHAPE,
/// NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_WORKSPACE_TOO_SMALL, NVTE_ERROR_OVERLAP, NVTE_ERROR_MISALIGNED,
/// NVTE_ERROR_WRONG_DEVICE, NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_UNSUPPORTED, NVTE_ERROR_NOT_CAPTURABLE, NVTE_ERROR_CUBLASLT.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed.
#[no_mangle]
pub unsafe extern "C" fn nvte_fp8_gemm(ctx: nvte_context_t, args: *const nvte_gemm_args_t, stream_: nvte_stream_t) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        unsafe { gemm::fp8_gemm(&ctx, &arguments(args)?, stream(stream_)) }
    })
}

/// The product of f32, f16 or bf16 operands, both of one type, accumulated in f32 (f32 is never computed as TF32).
///
/// Shapes: as nvte_fp8_gemm. Units: sizes and strides in elements. Pointers: as nvte_fp8_gemm. Alignment: that of the element type, the
/// workspace 16 bytes. Aliasing: c may be d; otherwise outputs and workspace must not overlap anything. Stream order: enqueued on
/// `stream`, nothing waits. Determinism: the same bits at each call with the same arguments on the same device and library versions.
///
/// Errors: as nvte_fp8_gemm.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed.
#[no_mangle]
pub unsafe extern "C" fn nvte_gemm(ctx: nvte_context_t, args: *const nvte_gemm_args_t, stream_: nvte_stream_t) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        unsafe { gemm::gemm(&ctx, &arguments(args)?, stream(stream_)) }
    })
}

/// Bytes of workspace that nvte_fp8_gemm or nvte_gemm needs with these arguments.
///
/// The answer depends on types, sizes, strides, layouts, flags and the device, and of the pointers only on which are NULL and which are
/// multiples of 16 bytes. NULL counts as a multiple: ask with NULL data before there is memory, if it will be aligned so.
///
/// Shapes: as nvte_fp8_gemm. Units: bytes. Pointers: host; nothing on the device is touched. Alignment: natural. Aliasing: none.
/// Stream order: none. Determinism: the same answer for the life of the context.
///
/// Errors: as nvte_fp8_gemm, but pointers are not checked. On an error *bytes is not written.
///
/// # Safety
/// Structs are sized and live; `bytes` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn nvte_gemm_workspace(ctx: nvte_context_t, args: *const nvte_gemm_args_t, bytes: *mut u64) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        unsafe { out("bytes", bytes, gemm::gemm_workspace(&ctx, &arguments(args)?)?) }
    })
}

/// Times up to `candidates` (1 to 64) ways to compute this product on the caller's buffers, OVERWRITING d, and keeps the fastest for
/// later calls of this context with the same types, sizes, strides and alignments. Never needed; off unless called.
///
/// Shapes: as nvte_fp8_gemm. Units: sizes and strides in elements. Pointers: as nvte_fp8_gemm. Alignment: as nvte_fp8_gemm.
/// Aliasing: as nvte_fp8_gemm. Stream order: runs on `stream` and waits for it; not during a capture; with NVTE_STREAM_PREPARE nothing is timed.
/// Determinism: the choice depends on timing; carry it to other processes with nvte_gemm_plans_export.
///
/// Errors: as nvte_fp8_gemm, and NVTE_ERROR_INVALID_VALUE for `candidates` out of range.
///
/// # Safety
/// Structs are sized and live; device memory is live.
#[no_mangle]
pub unsafe extern "C" fn nvte_gemm_prepare(
    ctx: nvte_context_t,
    args: *const nvte_gemm_args_t,
    candidates: u32,
    stream_: nvte_stream_t,
) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        unsafe { gemm::gemm_prepare(&ctx, &arguments(args)?, candidates, stream(stream_)) }
    })
}

/// The choices that nvte_gemm_prepare made in this context, or that were imported, as lines of text.
///
/// `needed`, if not NULL, receives the size in bytes with the ending zero; where `size` is smaller than that, the text is cut to fit
/// (still ended by a zero if `size` is not 0). `buffer` may be NULL where `size` is 0.
///
/// Shapes: none. Units: bytes. Pointers: host. Alignment: none. Aliasing: none. Stream order: none. Determinism: lines are sorted.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER.
///
/// # Safety
/// `buffer` has room for `size` bytes; `needed` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn nvte_gemm_plans_export(
    ctx: nvte_context_t,
    buffer: *mut c_char,
    size: usize,
    needed: *mut usize,
) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        unsafe { copy_text(&gemm::gemm_plans_export(&ctx), buffer, size, needed) }
    })
}

/// Takes over choices that nvte_gemm_plans_export wrote on the same kind of device with the same versions of cuBLASLt and this library;
/// all of the text, or nothing of it.
///
/// Shapes: none. Units: none. Pointers: a host string. Alignment: none. Aliasing: none. Stream order: none; later calls use the choices.
/// Determinism: calls then take the same kernels as where the choices were made.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_UNSUPPORTED for another device or version,
/// NVTE_ERROR_INVALID_VALUE for a line that is none.
///
/// # Safety
/// `text` is NULL or a C string.
#[no_mangle]
pub unsafe extern "C" fn nvte_gemm_plans_import(ctx: nvte_context_t, text: *const c_char) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        if text.is_null() {
            return Err(Error::argument(Status::NullPointer, "text", "NULL", "is required"));
        }
        // SAFETY: by contract.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        gemm::gemm_plans_import(&ctx, &text)
    })
}
