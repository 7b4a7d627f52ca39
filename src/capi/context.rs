//! Contexts, errors, versions, logging.

use std::{
    ffi::{c_char, c_void, CStr, CString, OsStr},
    os::unix::ffi::OsStrExt,
    path::PathBuf,
};

use super::{
    guard::{guard, last_code, last_message},
    handle::Table,
    types::{self, nvte_context_t, nvte_status_t, nvte_stream_t, read_struct},
};
use crate::{
    context::{Context, ContextOptions, Device},
    debug,
    error::{Error, Result, Status},
};

static CONTEXTS: Table<Context> = Table::new("context", 1);

/// The context behind a handle.
#[inline]
pub(crate) fn context(handle: nvte_context_t) -> Result<Context> {
    CONTEXTS.get(handle as usize)
}

/// The CPU: results have the same bits as on CUDA wherever NUMERICS says so.
pub const NVTE_DEVICE_CPU: i32 = 0;
/// A CUDA device.
pub const NVTE_DEVICE_CUDA: i32 = 1;

/// How a context is made. Zero-initialise it and set struct_size; every field may stay 0.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct nvte_context_options_t {
    /// sizeof(nvte_context_options_t).
    pub struct_size: u32,
    /// Threads of a CPU context, 1024 at most: more are taken as that; 0: NVTE_NUM_THREADS, else all cores.
    pub num_threads: u32,
    /// Folder of compiled kernels (host string); NULL: NVTE_CACHE_DIR, else XDG_CACHE_HOME/nvte, else HOME/.cache/nvte; "": off.
    pub cache_dir: *const c_char,
    /// Folders, separated by ':', searched for NVRTC and cuBLASLt after those already loaded in the process (host string); NULL: none.
    pub library_dirs: *const c_char,
}

/// # Safety
/// Null or a C string.
unsafe fn path(p: *const c_char) -> Option<PathBuf> {
    // SAFETY: by contract.
    (!p.is_null()).then(|| PathBuf::from(OsStr::from_bytes(unsafe { CStr::from_ptr(p) }.to_bytes())))
}

/// Makes a context on one device.
///
/// Shapes: none. Units: `ordinal` counts the devices the driver reports; 0 for the CPU. Pointers: host. Alignment: natural. Aliasing: none.
/// Stream order: none; the call may take milliseconds (it initialises the driver). Determinism: not applicable.
/// The device's primary context is retained (the one PyTorch, JAX and the CUDA runtime use) and not made current.
///
/// Errors: NVTE_ERROR_NO_DRIVER, NVTE_ERROR_DRIVER_TOO_OLD, NVTE_ERROR_NO_DEVICE, NVTE_ERROR_CUDA, NVTE_ERROR_INVALID_ENUM,
/// NVTE_ERROR_NULL_POINTER. On an error *context is not written.
///
/// # Safety
/// `options` is NULL or a sized struct; `context` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn nvte_context_create(
    device_type: i32,
    ordinal: i32,
    options: *const nvte_context_options_t,
    context: *mut nvte_context_t,
) -> nvte_status_t {
    guard(|| {
        if context.is_null() {
            return Err(Error::argument(Status::NullPointer, "context", "NULL", "is required"));
        }
        let device = match device_type {
            NVTE_DEVICE_CPU if ordinal == 0 => Device::Cpu,
            NVTE_DEVICE_CPU => return Err(Error::argument(Status::NoDevice, "ordinal", ordinal, "must be 0: there is one CPU")),
            NVTE_DEVICE_CUDA => Device::Cuda(ordinal),
            other => return Err(Error::argument(Status::InvalidEnum, "device_type", other, "must be 0 (CPU) or 1 (CUDA)")),
        };
        let mut made = ContextOptions::default();
        if !options.is_null() {
            // SAFETY: by contract.
            let o = unsafe { read_struct("options", options, 8)? };
            // SAFETY: by contract.
            let (cache, dirs) = unsafe { (path(o.cache_dir), path(o.library_dirs)) };
            made.num_threads = (o.num_threads > 0).then_some(o.num_threads as usize);
            made.cache_dir = cache;
            made.library_dirs = dirs.map(|d| std::env::split_paths(&d).collect()).unwrap_or_default();
        }
        let handle = CONTEXTS.insert(Context::new(device, &made)?);
        // SAFETY: checked above, writable by contract.
        unsafe { context.write(handle as nvte_context_t) };
        Ok(())
    })
}

/// Ends a context. NULL is accepted. Work already enqueued runs on; calls of other threads that hold it finish.
///
/// Shapes: none. Units: none. Pointers: host handle. Alignment: none. Aliasing: none. Stream order: none. Determinism: not applicable.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE for one already destroyed.
#[no_mangle]
pub extern "C" fn nvte_context_destroy(context: nvte_context_t) -> nvte_status_t {
    guard(|| if context.is_null() { Ok(()) } else { CONTEXTS.remove(context as usize).map(drop) })
}

/// Frees what the context can make again (GEMM plans). Loaded kernels stay, since captured graphs may use them.
///
/// Shapes: none. Units: none. Pointers: host handle. Alignment: none. Aliasing: none. Stream order: none. Determinism: results do not change.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE.
#[no_mangle]
pub extern "C" fn nvte_context_trim(context: nvte_context_t) -> nvte_status_t {
    guard(|| {
        self::context(context)?.trim();
        Ok(())
    })
}

/// Waits until everything enqueued on `stream` has run: for programs with no CUDA runtime of their own. No other function waits.
///
/// Shapes: none. Units: none. Pointers: host handles. Alignment: none. Aliasing: none. Stream order: returns when `stream` is idle;
/// at once on a CPU context, whose calls have finished when they return. Determinism: not applicable.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_CUDA (also for an error of earlier work that comes to light here).
///
/// # Safety
/// `stream` is a live stream of the context's device, or NULL.
#[no_mangle]
pub unsafe extern "C" fn nvte_context_synchronize(context: nvte_context_t, stream: nvte_stream_t) -> nvte_status_t {
    guard(|| self::context(context)?.synchronize(types::stream(stream)))
}

/// The message of the calling thread's last error: the argument, its value and the rule. Empty where there was none.
///
/// Shapes: none. Units: none. Pointers: a host string that lives until the thread's next error. Alignment: none. Aliasing: none.
/// Stream order: none. Determinism: not applicable. Errors: none.
#[no_mangle]
pub extern "C" fn nvte_last_error() -> *const c_char {
    last_message()
}

/// The number that the library below (CUDA driver, NVRTC or cuBLASLt, as the status says) returned for the thread's last error; 0 if none was involved.
///
/// Shapes: none. Units: none. Pointers: none. Alignment: none. Aliasing: none. Stream order: none. Determinism: not applicable. Errors: none.
#[no_mangle]
pub extern "C" fn nvte_last_error_code() -> i32 {
    last_code()
}

/// Receives one line of what NVTE_DEBUG asks for; `user` is what was given with it. May be called from any thread.
#[allow(non_camel_case_types)]
pub type nvte_log_fn = Option<unsafe extern "C" fn(line: *const c_char, user: *mut c_void)>;

/// Sends the lines of NVTE_DEBUG to `log` instead of standard error; NULL restores that.
///
/// Shapes: none. Units: none. Pointers: host; `user` is passed through. Alignment: none. Aliasing: none. Stream order: none.
/// Determinism: not applicable. Errors: none.
///
/// # Safety
/// `log` stays callable, with `user`, until it is replaced.
#[no_mangle]
pub unsafe extern "C" fn nvte_set_log(log: nvte_log_fn, user: *mut c_void) -> nvte_status_t {
    guard(|| {
        let user = user as usize;
        debug::set_sink(log.map(|f| -> debug::Sink {
            Box::new(move |line| {
                let text = CString::new(line.replace('\0', " ")).unwrap_or_default();
                // SAFETY: by contract.
                unsafe { f(text.as_ptr(), user as *mut c_void) }
            })
        }));
        Ok(())
    })
}
