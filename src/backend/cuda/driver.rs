//! The CUDA driver's functions, resolved once from `libcuda`, as a table of plain function pointers.
//!
//! Softly: with no library, or one that lacks a function, there is an error and nothing else. Results are plain integers, because a
//! driver may return a number that no enum of ours knows.

use std::{
    ffi::{c_char, c_int, c_uint, c_void, CStr},
    sync::OnceLock,
};

use super::library::Library;
use crate::error::{Error, Result, Status};

pub(crate) type CuResult = c_int;
pub(crate) type CuDevice = c_int;
pub(crate) type Handle = *mut c_void;
pub(crate) use cudarc::driver::sys::{CUlaunchAttribute, CUlaunchConfig, CUtensorMap};

macro_rules! table {
    ($($field:ident = $symbol:literal : fn($($arg:ty),*);)*) => {
        /// Every driver function in use.
        pub(crate) struct Driver {
            $(pub(crate) $field: unsafe extern "C" fn($($arg),*) -> CuResult,)*
        }

        /// Their names.
        pub(crate) const SYMBOLS: &[&CStr] = &[$($symbol),*];

        impl Driver {
            fn resolve(library: &Library) -> Result<Self> {
                Ok(Self {
                    $($field: {
                        let p = library.symbol($symbol).ok_or_else(|| Error::new(
                            Status::DriverTooOld,
                            format!("the CUDA driver library {} lacks {}: a driver for CUDA 12.0 or newer is needed", library.name(), $symbol.to_string_lossy()),
                        ))?;
                        // SAFETY: the driver's ABI fixes this function's signature.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> CuResult>(p) }
                    },)*
                })
            }
        }
    };
}

table! {
    init = c"cuInit": fn(c_uint);
    driver_get_version = c"cuDriverGetVersion": fn(*mut c_int);
    device_get_count = c"cuDeviceGetCount": fn(*mut c_int);
    device_get = c"cuDeviceGet": fn(*mut CuDevice, c_int);
    device_get_name = c"cuDeviceGetName": fn(*mut c_char, c_int, CuDevice);
    device_get_attribute = c"cuDeviceGetAttribute": fn(*mut c_int, c_int, CuDevice);
    device_total_mem = c"cuDeviceTotalMem_v2": fn(*mut usize, CuDevice);
    primary_ctx_retain = c"cuDevicePrimaryCtxRetain": fn(*mut Handle, CuDevice);
    primary_ctx_release = c"cuDevicePrimaryCtxRelease_v2": fn(CuDevice);
    ctx_get_current = c"cuCtxGetCurrent": fn(*mut Handle);
    ctx_push = c"cuCtxPushCurrent_v2": fn(Handle);
    ctx_pop = c"cuCtxPopCurrent_v2": fn(*mut Handle);
    ctx_synchronize = c"cuCtxSynchronize": fn();
    module_load_data = c"cuModuleLoadData": fn(*mut Handle, *const c_void);
    module_get_function = c"cuModuleGetFunction": fn(*mut Handle, Handle, *const c_char);
    func_set_attribute = c"cuFuncSetAttribute": fn(Handle, c_int, c_int);
    launch_kernel_ex = c"cuLaunchKernelEx": fn(*const CUlaunchConfig, Handle, *mut *mut c_void, *mut *mut c_void);
    occupancy_clusters = c"cuOccupancyMaxActiveClusters": fn(*mut c_int, Handle, *const CUlaunchConfig);
    stream_is_capturing = c"cuStreamIsCapturing": fn(Handle, *mut c_int);
    stream_get_priority = c"cuStreamGetPriority": fn(Handle, *mut c_int);
    thread_exchange_capture_mode = c"cuThreadExchangeStreamCaptureMode": fn(*mut c_int);
    stream_create = c"cuStreamCreate": fn(*mut Handle, c_uint);
    stream_destroy = c"cuStreamDestroy_v2": fn(Handle);
    stream_synchronize = c"cuStreamSynchronize": fn(Handle);
    pointer_get_attributes = c"cuPointerGetAttributes": fn(c_uint, *const c_int, *mut *mut c_void, u64);
    tensor_map_encode_tiled = c"cuTensorMapEncodeTiled": fn(*mut CUtensorMap, c_int, u32, *mut c_void, *const u64, *const u64, *const u32, *const u32, c_int, c_int, c_int, c_int);
    mem_alloc = c"cuMemAlloc_v2": fn(*mut u64, usize);
    mem_free = c"cuMemFree_v2": fn(u64);
    memcpy_htod = c"cuMemcpyHtoD_v2": fn(u64, *const c_void, usize);
    memcpy_dtoh = c"cuMemcpyDtoH_v2": fn(*mut c_void, u64, usize);
    memset_d8_async = c"cuMemsetD8Async": fn(u64, u8, usize, Handle);
    memset_2d_d8_async = c"cuMemsetD2D8Async": fn(u64, usize, u8, usize, usize, Handle);
    event_create = c"cuEventCreate": fn(*mut Handle, c_uint);
    event_record = c"cuEventRecord": fn(Handle, Handle);
    event_synchronize = c"cuEventSynchronize": fn(Handle);
    event_elapsed = c"cuEventElapsedTime": fn(*mut f32, Handle, Handle);
    event_destroy = c"cuEventDestroy_v2": fn(Handle);
    get_error_name = c"cuGetErrorName": fn(CuResult, *mut *const c_char);
    get_error_string = c"cuGetErrorString": fn(CuResult, *mut *const c_char);
}

/// Attribute numbers of `cuDeviceGetAttribute`.
pub(crate) mod attribute {
    pub(crate) const MULTIPROCESSORS: i32 = 16;
    pub(crate) const MAJOR: i32 = 75;
    pub(crate) const MINOR: i32 = 76;
    pub(crate) const PAGEABLE_MEMORY_ACCESS: i32 = 88;
    pub(crate) const MAX_SHARED_MEMORY_OPTIN: i32 = 97;
}

impl Driver {
    /// The table, loaded and initialised at first use. The outcome, good or bad, is the same for the life of the process.
    pub(crate) fn get() -> Result<&'static Driver> {
        static DRIVER: OnceLock<Result<Driver>> = OnceLock::new();
        DRIVER.get_or_init(Self::open).as_ref().map_err(Clone::clone)
    }

    fn open() -> Result<Driver> {
        let library = Library::open_first(&[c"libcuda.so.1", c"libcuda.so"]).ok_or_else(|| {
            Error::new(
                Status::NoDriver,
                "no CUDA driver: libcuda.so.1 could not be opened; install NVIDIA's driver, or use the CPU back end",
            )
        })?;
        let driver = Self::resolve(&library)?;
        // SAFETY: resolved with its signature.
        let code = unsafe { (driver.init)(0) };
        match code {
            0 => Ok(driver),
            100 => Err(Error::with_code(Status::NoDevice, code, "the CUDA driver reports no device (CUDA_ERROR_NO_DEVICE)")),
            _ => Err(driver.error("cuInit", code)),
        }
    }

    /// An error for a driver code, by name where the driver knows it.
    pub(crate) fn error(&self, what: &str, code: CuResult) -> Error {
        let text = |f: unsafe extern "C" fn(CuResult, *mut *const c_char) -> CuResult| {
            let mut p: *const c_char = std::ptr::null();
            // SAFETY: resolved with its signature; on success `p` is a static string, else it stays null.
            unsafe {
                if f(code, &mut p) != 0 || p.is_null() {
                    return None;
                }
                Some(CStr::from_ptr(p).to_string_lossy().into_owned())
            }
        };
        let name = text(self.get_error_name).unwrap_or_else(|| "unknown to this driver".into());
        let detail = text(self.get_error_string).map(|s| format!(": {s}")).unwrap_or_default();
        Error::with_code(Status::Cuda, code, format!("{what} returned {code} ({name}){detail}"))
    }

    /// Turns a code into a result.
    #[inline]
    pub(crate) fn check(&self, what: &str, code: CuResult) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        Err(self.error(what, code))
    }
}

/// Lets this thread load what a stream that captures forbids to load, as long as it lives. For calls that load something of their own
/// accord and enqueue nothing elsewhere.
pub(crate) struct Relaxed {
    driver: &'static Driver,
    before: c_int,
}

impl Relaxed {
    pub(crate) fn new(driver: &'static Driver) -> Self {
        const RELAXED: c_int = 2;
        let mut before = RELAXED;
        // SAFETY: reads and writes the variable; a failure leaves the mode as it was.
        unsafe { (driver.thread_exchange_capture_mode)(&mut before) };
        Self { driver, before }
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { (self.driver.thread_exchange_capture_mode)(&mut self.before) };
    }
}
