//! Plain structs and constants of the C ABI.

#![allow(non_camel_case_types)]

use std::{
    ffi::{c_char, c_void},
    mem,
};

use crate::{
    context::Stream,
    error::{Error, Result, Status},
    tensor::{DType, Ptr, TensorView},
};

/// Result of every function: 0, or an `NVTE_ERROR_*` number. Numbers are append-only.
pub type nvte_status_t = i32;

/// No error.
pub const NVTE_OK: i32 = 0;
/// A required pointer is NULL.
pub const NVTE_ERROR_NULL_POINTER: i32 = 100;
/// A data type is not accepted here.
pub const NVTE_ERROR_INVALID_DTYPE: i32 = 101;
/// A size is negative, or sizes do not fit each other.
pub const NVTE_ERROR_INVALID_SHAPE: i32 = 102;
/// A row stride is smaller than the row.
pub const NVTE_ERROR_INVALID_STRIDE: i32 = 103;
/// An enum argument holds an unknown number.
pub const NVTE_ERROR_INVALID_ENUM: i32 = 104;
/// The workspace is smaller than the query says.
pub const NVTE_ERROR_WORKSPACE_TOO_SMALL: i32 = 105;
/// Two arguments share memory where they must not.
pub const NVTE_ERROR_OVERLAP: i32 = 106;
/// A handle is NULL, destroyed or never was one.
pub const NVTE_ERROR_INVALID_HANDLE: i32 = 107;
/// A pointer does not belong to the context's device.
pub const NVTE_ERROR_WRONG_DEVICE: i32 = 108;
/// A number is outside its range.
pub const NVTE_ERROR_INVALID_VALUE: i32 = 109;
/// A struct's struct_size is not one this library knows.
pub const NVTE_ERROR_INVALID_STRUCT_SIZE: i32 = 110;
/// A pointer is not aligned to its element type.
pub const NVTE_ERROR_MISALIGNED: i32 = 111;
/// A size in bytes does not fit 63 bits.
pub const NVTE_ERROR_SIZE_OVERFLOW: i32 = 112;
/// The combination of options has no path here.
pub const NVTE_ERROR_UNSUPPORTED: i32 = 200;
/// The call would have to compile or load while its stream is capturing. Nothing was enqueued, and the capture stays valid.
pub const NVTE_ERROR_NOT_CAPTURABLE: i32 = 201;
/// No CUDA driver was found.
pub const NVTE_ERROR_NO_DRIVER: i32 = 300;
/// The CUDA driver lacks a function this library needs.
pub const NVTE_ERROR_DRIVER_TOO_OLD: i32 = 301;
/// The driver reports no such device.
pub const NVTE_ERROR_NO_DEVICE: i32 = 302;
/// The CUDA driver returned an error; see nvte_last_error_code.
pub const NVTE_ERROR_CUDA: i32 = 303;
/// NVRTC was not found.
pub const NVTE_ERROR_NVRTC_NOT_FOUND: i32 = 400;
/// NVRTC refused a kernel; see nvte_last_error_code.
pub const NVTE_ERROR_NVRTC: i32 = 401;
/// cuBLASLt was not found.
pub const NVTE_ERROR_CUBLASLT_NOT_FOUND: i32 = 500;
/// cuBLASLt returned an error; see nvte_last_error_code.
pub const NVTE_ERROR_CUBLASLT: i32 = 501;
/// A defect of this library: a panic was caught at its border.
pub const NVTE_ERROR_INTERNAL: i32 = 900;
/// Memory could not be allocated.
pub const NVTE_ERROR_OUT_OF_MEMORY: i32 = 901;

/// IEEE binary32.
pub const NVTE_F32: i32 = 0;
/// IEEE binary16.
pub const NVTE_F16: i32 = 1;
/// bfloat16.
pub const NVTE_BF16: i32 = 2;
/// FP8 E4M3 ("fn": no infinity, largest finite 448).
pub const NVTE_E4M3: i32 = 3;
/// FP8 E5M2 (largest finite 57344).
pub const NVTE_E5M2: i32 = 4;

/// High precision: no scale.
pub const NVTE_SCALING_NONE: i32 = 0;
/// One scale for the whole tensor. Every FP8 tensor has it; other numbers are reserved.
pub const NVTE_SCALING_PER_TENSOR: i32 = 1;

/// Opaque: one device and its caches.
pub struct nvte_context {
    _private: [u8; 0],
}

/// A context. Made by nvte_context_create, ended by nvte_context_destroy; shared by threads and streams.
pub type nvte_context_t = *mut nvte_context;

/// A CUstream / cudaStream_t (NULL: the legacy default stream). CPU contexts ignore it. NVTE_STREAM_PREPARE is no stream: a call
/// with it checks its arguments, compiles and loads what it will need, and enqueues nothing on a stream of yours. (cuBLASLt loads a kernel
/// when it first runs: a product is run once, on memory of its size and a stream that the library makes and frees, and waited for.)
pub type nvte_stream_t = *mut c_void;

/// A matrix in the caller's memory, row-major, and what travels beside FP8 codes.
///
/// Sizes and strides are in elements; pointers are device pointers of the context's device (for a CPU context: host pointers), aligned
/// to their element type. A struct made by zero-initialisation plus struct_size is valid and empty.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvte_tensor_t {
    /// sizeof(nvte_tensor_t).
    pub struct_size: u32,
    /// NVTE_F32, ...
    pub dtype: i32,
    /// NVTE_SCALING_NONE, or for FP8 NVTE_SCALING_PER_TENSOR.
    pub scaling: i32,
    /// Reserved: 0.
    pub flags: u32,
    /// [rows, cols] with row stride ld; NULL: this layout is absent.
    pub data: *mut c_void,
    /// Rows (tokens, for activations).
    pub rows: i64,
    /// Columns (features).
    pub cols: i64,
    /// Row stride of data, in elements, at least cols.
    pub ld: i64,
    /// The transposed copy [cols, rows] with row stride ld_t; NULL: absent.
    pub data_t: *mut c_void,
    /// Row stride of data_t, in elements, at least rows.
    pub ld_t: i64,
    /// Casts: the multiplier, one f32 (NULL: 1). Written only by current scaling.
    pub scale: *const f32,
    /// One f32, written by casts beside the codes (1/scale), read by GEMM and dequantize.
    pub scale_inv: *mut c_void,
    /// Reserved for block formats: 0.
    pub scale_inv_ld: i64,
    /// Reserved for block formats: NULL.
    pub scale_inv_t: *mut c_void,
    /// Reserved for block formats: 0.
    pub scale_inv_t_ld: i64,
    /// One f32, recorded as a maximum by casts (NULL: not recorded).
    pub amax: *mut f32,
}

/// Reads a sized C struct; `name` names it in errors. A smaller struct of an older header reads as if the rest were zero.
///
/// # Safety
/// `p` is null or points to a struct whose first field is its size, live for that size. `T` is a plain C struct valid when zeroed.
pub(crate) unsafe fn read_struct<T: Copy>(name: &str, p: *const T, oldest_size: usize) -> Result<T> {
    if p.is_null() {
        return Err(Error::argument(Status::NullPointer, name, "NULL", "is required"));
    }
    if p as usize % mem::align_of::<T>() != 0 {
        return Err(Error::argument(
            Status::Misaligned,
            name,
            format!("{p:?}"),
            format!("must be a multiple of {} bytes", mem::align_of::<T>()),
        ));
    }
    // SAFETY: the first field is the u32 size.
    let size = unsafe { p.cast::<u32>().read() } as usize;
    let (newest_size, step) = (mem::size_of::<T>(), mem::align_of::<T>());
    // Between the two there is no size that cuts a pointer: sizes of structs are multiples of their alignment.
    if size < oldest_size || size > newest_size || size % step != 0 {
        let rule = if oldest_size == newest_size {
            format!("must be {newest_size}")
        } else {
            format!("must be a multiple of {step} between {oldest_size} and {newest_size}")
        };
        return Err(Error::argument(Status::InvalidStructSize, format_args!("{name}.struct_size"), size, rule));
    }
    // SAFETY: `T` is valid when zeroed; `size` bytes are live and fit.
    unsafe {
        let mut out: T = mem::zeroed();
        std::ptr::copy_nonoverlapping(p.cast::<u8>(), std::ptr::from_mut(&mut out).cast(), size);
        Ok(out)
    }
}

/// Hands text to a caller: as much as fits, ended by a zero, and how much there is.
///
/// # Safety
/// `buffer` has room for `size` bytes; `needed` is null or writable.
pub(crate) unsafe fn copy_text(text: &str, buffer: *mut c_char, size: usize, needed: *mut usize) -> Result<()> {
    if buffer.is_null() && size > 0 {
        return Err(Error::argument(Status::NullPointer, "buffer", "NULL", "is required where size is not 0"));
    }
    let text = text.replace('\0', " ");
    if size > 0 {
        let n = text.len().min(size - 1);
        // SAFETY: room for `size` bytes by contract, of which n + 1 are written.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), n);
            buffer.add(n).write(0);
        }
    }
    if !needed.is_null() {
        // SAFETY: writable by contract.
        unsafe { needed.write(text.len() + 1) };
    }
    Ok(())
}

/// Unpacks a tensor.
///
/// # Safety
/// As [`read_struct`].
pub(crate) unsafe fn tensor(name: &str, p: *const nvte_tensor_t) -> Result<TensorView> {
    // SAFETY: forwarded contract.
    let t = unsafe { read_struct(name, p, mem::size_of::<nvte_tensor_t>())? };
    let dtype = DType::from_i32(format_args!("{name}.dtype"), t.dtype)?;
    let wanted = if dtype.is_fp8() { NVTE_SCALING_PER_TENSOR } else { NVTE_SCALING_NONE };
    if t.scaling != wanted {
        let status = if (0..=1).contains(&t.scaling) { Status::Unsupported } else { Status::InvalidEnum };
        return Err(Error::argument(status, format_args!("{name}.scaling"), t.scaling, format!("must be {wanted} for {}", dtype.name())));
    }
    for (field, set) in [
        ("flags", t.flags != 0),
        ("scale_inv_ld", t.scale_inv_ld != 0),
        ("scale_inv_t", !t.scale_inv_t.is_null()),
        ("scale_inv_t_ld", t.scale_inv_t_ld != 0),
    ] {
        if set {
            return Err(Error::argument(Status::Unsupported, format_args!("{name}.{field}"), "not 0", "is reserved"));
        }
    }
    Ok(TensorView {
        dtype,
        rows: t.rows,
        cols: t.cols,
        data: Ptr::from(t.data),
        ld: t.ld,
        data_t: Ptr::from(t.data_t),
        ld_t: t.ld_t,
        scale: Ptr::from(t.scale),
        scale_inv: Ptr::from(t.scale_inv),
        amax: Ptr::from(t.amax),
    })
}

/// Unpacks a tensor that may be NULL.
///
/// # Safety
/// As [`read_struct`].
pub(crate) unsafe fn optional(name: &str, p: *const nvte_tensor_t) -> Result<Option<TensorView>> {
    // SAFETY: forwarded contract.
    (!p.is_null()).then(|| unsafe { tensor(name, p) }).transpose()
}

/// An `int32_t` that is 0 or 1.
pub(crate) fn flag(name: &str, v: i32) -> Result<bool> {
    match v {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Error::argument(Status::InvalidEnum, name, other, "must be 0 or 1")),
    }
}

/// A field that must be 0.
pub(crate) fn reserved(name: &str, v: u32) -> Result<()> {
    match v {
        0 => Ok(()),
        other => Err(Error::argument(Status::Unsupported, name, other, "is reserved and must be 0")),
    }
}

/// Writes a result of a query.
///
/// # Safety
/// `p` is null or writable.
pub(crate) unsafe fn out<T>(name: &str, p: *mut T, v: T) -> Result<()> {
    if p.is_null() {
        return Err(Error::argument(Status::NullPointer, name, "NULL", "is required"));
    }
    // SAFETY: by contract.
    unsafe { p.write(v) };
    Ok(())
}

/// A stream as passed.
pub(crate) fn stream(s: nvte_stream_t) -> Stream {
    Stream(s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_the_abi_are_those_of_the_crate() {
        let pairs = [
            (NVTE_OK, Status::Ok),
            (NVTE_ERROR_NULL_POINTER, Status::NullPointer),
            (NVTE_ERROR_INVALID_DTYPE, Status::InvalidDType),
            (NVTE_ERROR_INVALID_SHAPE, Status::InvalidShape),
            (NVTE_ERROR_INVALID_STRIDE, Status::InvalidStride),
            (NVTE_ERROR_INVALID_ENUM, Status::InvalidEnum),
            (NVTE_ERROR_WORKSPACE_TOO_SMALL, Status::WorkspaceTooSmall),
            (NVTE_ERROR_OVERLAP, Status::Overlap),
            (NVTE_ERROR_INVALID_HANDLE, Status::InvalidHandle),
            (NVTE_ERROR_WRONG_DEVICE, Status::WrongDevice),
            (NVTE_ERROR_INVALID_VALUE, Status::InvalidValue),
            (NVTE_ERROR_INVALID_STRUCT_SIZE, Status::InvalidStructSize),
            (NVTE_ERROR_MISALIGNED, Status::Misaligned),
            (NVTE_ERROR_SIZE_OVERFLOW, Status::SizeOverflow),
            (NVTE_ERROR_UNSUPPORTED, Status::Unsupported),
            (NVTE_ERROR_NOT_CAPTURABLE, Status::NotCapturable),
            (NVTE_ERROR_NO_DRIVER, Status::NoDriver),
            (NVTE_ERROR_DRIVER_TOO_OLD, Status::DriverTooOld),
            (NVTE_ERROR_NO_DEVICE, Status::NoDevice),
            (NVTE_ERROR_CUDA, Status::Cuda),
            (NVTE_ERROR_NVRTC_NOT_FOUND, Status::NvrtcNotFound),
            (NVTE_ERROR_NVRTC, Status::Nvrtc),
            (NVTE_ERROR_CUBLASLT_NOT_FOUND, Status::CublasLtNotFound),
            (NVTE_ERROR_CUBLASLT, Status::CublasLt),
            (NVTE_ERROR_INTERNAL, Status::Internal),
            (NVTE_ERROR_OUT_OF_MEMORY, Status::OutOfMemory),
        ];
        for (number, status) in pairs {
            assert_eq!(number, status as i32, "{status:?}");
        }
        for (number, dtype) in [NVTE_F32, NVTE_F16, NVTE_BF16, NVTE_E4M3, NVTE_E5M2].into_iter().zip(DType::ALL) {
            assert_eq!(number, dtype as i32);
        }
    }
}
