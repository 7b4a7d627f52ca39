//! Versions, names, capabilities, the report.

use std::{ffi::c_char, mem};

use super::{
    context::{context, NVTE_DEVICE_CPU, NVTE_DEVICE_CUDA},
    guard::guard,
    types::*,
};
use crate::context::Device;

/// Version of the library, "major.minor.patch".
///
/// Shapes: none. Units: none. Pointers: a static host string. Alignment: none. Aliasing: none. Stream order: none.
/// Determinism: not applicable. Errors: none.
#[no_mangle]
pub extern "C" fn nvte_version() -> *const c_char {
    const TEXT: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    TEXT.as_ptr().cast()
}

/// The NVTE_ABI_VERSION of the library; that of the header may be another.
///
/// Shapes: none. Units: none. Pointers: none. Alignment: none. Aliasing: none. Stream order: none. Determinism: not applicable.
/// Errors: none.
#[no_mangle]
pub extern "C" fn nvte_abi_version() -> u32 {
    super::api::NVTE_ABI_VERSION
}

/// Name of a status ("NVTE_ERROR_OVERLAP"), "unknown status" for a number that is none.
///
/// Shapes: none. Units: none. Pointers: a static host string. Alignment: none. Aliasing: none. Stream order: none.
/// Determinism: not applicable. Errors: none.
#[no_mangle]
pub extern "C" fn nvte_status_name(status: nvte_status_t) -> *const c_char {
    macro_rules! names {
        ($($name:ident)*) => {
            match status {
                $($name => concat!(stringify!($name), "\0"),)*
                _ => "unknown status\0",
            }
        };
    }
    let name = names! {
        NVTE_OK
        NVTE_ERROR_NULL_POINTER NVTE_ERROR_INVALID_DTYPE NVTE_ERROR_INVALID_SHAPE NVTE_ERROR_INVALID_STRIDE NVTE_ERROR_INVALID_ENUM
        NVTE_ERROR_WORKSPACE_TOO_SMALL NVTE_ERROR_OVERLAP NVTE_ERROR_INVALID_HANDLE NVTE_ERROR_WRONG_DEVICE NVTE_ERROR_INVALID_VALUE
        NVTE_ERROR_INVALID_STRUCT_SIZE NVTE_ERROR_MISALIGNED NVTE_ERROR_SIZE_OVERFLOW NVTE_ERROR_UNSUPPORTED NVTE_ERROR_NOT_CAPTURABLE
        NVTE_ERROR_NO_DRIVER NVTE_ERROR_DRIVER_TOO_OLD NVTE_ERROR_NO_DEVICE NVTE_ERROR_CUDA NVTE_ERROR_NVRTC_NOT_FOUND NVTE_ERROR_NVRTC
        NVTE_ERROR_CUBLASLT_NOT_FOUND NVTE_ERROR_CUBLASLT NVTE_ERROR_INTERNAL NVTE_ERROR_OUT_OF_MEMORY
    };
    name.as_ptr().cast()
}

/// What a context's device can do. Set struct_size before the call; fields beyond it are not written.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct nvte_capability_t {
    /// sizeof(nvte_capability_t).
    pub struct_size: u32,
    /// NVTE_DEVICE_CPU or NVTE_DEVICE_CUDA.
    pub device_type: i32,
    /// Number of the device, as the driver counts.
    pub ordinal: i32,
    /// Compute capability times ten (90 for an H200); 0 on the CPU.
    pub arch: i32,
    /// Multiprocessors; threads on the CPU.
    pub multiprocessors: i32,
    /// 1: FP8 conversion in hardware; 0: in software, same bits.
    pub fp8_cast_hardware: i32,
    /// 1: FP8 products on tensor cores; 0: codes are decoded and multiplied in f16 (CUDA) or f32 (CPU).
    pub fp8_gemm_hardware: i32,
    /// 1: the hardware multiplies FP8 only with both operands K-major; other layouts go another way.
    pub fp8_gemm_k_major_only: i32,
    /// Device memory in bytes; 0 on the CPU.
    pub total_memory: u64,
    /// Name of the device, cut to fit, ended by a zero.
    pub name: [c_char; 128],
}

/// What a context's device can do.
///
/// Shapes: none. Units: bytes for memory. Pointers: host. Alignment: natural. Aliasing: none. Stream order: none.
/// Determinism: the same answer for the life of the context.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_MISALIGNED.
///
/// # Safety
/// `capability` is NULL or a sized, writable struct.
#[no_mangle]
pub unsafe extern "C" fn nvte_capability(ctx: nvte_context_t, capability: *mut nvte_capability_t) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        let asked = unsafe { read_struct("capability", capability.cast_const(), mem::offset_of!(nvte_capability_t, name))? };
        let c = ctx.capability();
        let (device_type, ordinal) = match ctx.device() {
            Device::Cpu => (NVTE_DEVICE_CPU, 0),
            Device::Cuda(i) => (NVTE_DEVICE_CUDA, i),
        };
        let mut name = [0; 128];
        for (to, from) in name[..127].iter_mut().zip(c.name.bytes()) {
            *to = from as c_char;
        }
        let filled = nvte_capability_t {
            struct_size: asked.struct_size,
            device_type,
            ordinal,
            arch: c.arch,
            multiprocessors: c.multiprocessors,
            fp8_cast_hardware: c.fp8_cast_hardware.into(),
            fp8_gemm_hardware: c.fp8_gemm_hardware.into(),
            fp8_gemm_k_major_only: c.fp8_gemm_k_major_only.into(),
            total_memory: c.total_memory,
            name,
        };
        // SAFETY: the caller's struct has at least `struct_size` bytes, which `read_struct` has checked against ours.
        unsafe { std::ptr::copy_nonoverlapping(std::ptr::from_ref(&filled).cast::<u8>(), capability.cast(), asked.struct_size as usize) };
        Ok(())
    })
}

/// A report for people and bug trackers, as JSON text: versions, driver, devices, NVRTC and cuBLASLt with their paths, every path tried,
/// kernel cache, capabilities, environment variables. It probes for the driver and the libraries, so it may take a second.
///
/// `ctx`: adds that context's part; NULL: the process alone. `needed`, if not NULL, receives the size in bytes with the ending zero; where
/// `size` is smaller than that, the text is cut to fit (still ended by a zero if `size` is not 0). `buffer` may be NULL where `size` is 0.
///
/// Shapes: none. Units: bytes. Pointers: host. Alignment: natural. Aliasing: none. Stream order: none. Determinism: not applicable.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_NULL_POINTER.
///
/// # Safety
/// `buffer` has room for `size` bytes; `needed` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn nvte_info(ctx: nvte_context_t, buffer: *mut c_char, size: usize, needed: *mut usize) -> nvte_status_t {
    guard(|| {
        let ctx = if ctx.is_null() { None } else { Some(context(ctx)?) };
        // SAFETY: by contract.
        unsafe { copy_text(&crate::info(ctx.as_ref()), buffer, size, needed) }
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    #[test]
    fn statuses_have_names() {
        // SAFETY: static strings.
        let name = |n| unsafe { CStr::from_ptr(nvte_status_name(n)) }.to_str().unwrap();
        assert_eq!(name(NVTE_OK), "NVTE_OK");
        assert_eq!(name(NVTE_ERROR_OUT_OF_MEMORY), "NVTE_ERROR_OUT_OF_MEMORY");
        assert_eq!(name(7), "unknown status");
    }
}
