//! A context: one device and its caches. A stream: a borrowed queue of that device.

use std::{ffi::c_void, fmt, path::PathBuf, sync::Arc};

use crate::{
    backend::{cpu::CpuBackend, Backend},
    error::{Error, Result, Status},
};

/// Where a context computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Device {
    /// This process, on its threads.
    Cpu,
    /// The CUDA device with this ordinal.
    Cuda(i32),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(i) => write!(f, "cuda:{i}"),
        }
    }
}

/// A borrowed stream: a `CUstream` (also what PyTorch and JAX hand out). Null is the legacy default stream. The CPU back end ignores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Stream(pub *mut c_void);

impl Stream {
    /// The legacy default stream.
    pub const NULL: Stream = Stream(std::ptr::null_mut());

    /// Not a stream: an operation called with it checks its arguments, compiles and loads whatever the call will need, and enqueues nothing
    /// of the caller's. (cuBLASLt loads a kernel when it first runs: a product is run once, on memory and a stream of the library's own.)
    pub const PREPARE: Stream = Stream(usize::MAX as *mut c_void);

    /// Whether it is [`Stream::PREPARE`].
    pub fn is_prepare(self) -> bool {
        self == Self::PREPARE
    }
}

// SAFETY: a stream is a handle; the driver's functions on it are thread-safe.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

/// How a context is made.
#[derive(Clone, Debug, Default)]
pub struct ContextOptions {
    /// Threads of the CPU back end; `None`: `NVTE_NUM_THREADS`, else all cores.
    pub num_threads: Option<usize>,
    /// Folder of compiled kernels; `None`: `NVTE_CACHE_DIR`, else `$XDG_CACHE_HOME/nvte`, else `$HOME/.cache/nvte`. An empty path switches it off.
    pub cache_dir: Option<PathBuf>,
    /// Folders searched for NVRTC and cuBLASLt after those already loaded in the process.
    pub library_dirs: Vec<PathBuf>,
}

/// What a context's device can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Compute capability times ten (90 for an H200); 0 on the CPU.
    pub arch: i32,
    /// Multiprocessors; threads on the CPU.
    pub multiprocessors: i32,
    /// FP8 conversion in hardware (sm_89 and newer).
    pub fp8_cast_hardware: bool,
    /// FP8 matrix product on tensor cores (sm_89 and newer); otherwise FP8 is decoded and multiplied in f16 (CUDA) or f32 (CPU).
    pub fp8_gemm_hardware: bool,
    /// Both FP8 operands must be K-major in hardware (the library's layers then keep transposed copies).
    pub fp8_gemm_k_major_only: bool,
    /// Device memory in bytes; 0 on the CPU.
    pub total_memory: u64,
    /// Name of the device.
    pub name: String,
}

/// One device and its caches: compiled kernels, GEMM plans, threads. Cheap to clone, shared by threads and streams.
#[derive(Clone)]
pub struct Context {
    backend: Arc<dyn Backend>,
}

impl Context {
    /// A context on a device.
    ///
    /// # Errors
    /// CUDA: no driver, a driver that lacks a function, no such device. Never panics for want of one.
    pub fn new(device: Device, options: &ContextOptions) -> Result<Self> {
        let backend: Arc<dyn Backend> = match device {
            Device::Cpu => Arc::new(CpuBackend::new(options)?),
            #[cfg(feature = "cuda")]
            Device::Cuda(ordinal) => Arc::new(crate::backend::cuda::CudaBackend::new(ordinal, options)?),
            #[cfg(not(feature = "cuda"))]
            Device::Cuda(_) => {
                return Err(Error::new(Status::NoDriver, "device = cuda: this library was built without its `cuda` feature"))
            }
        };
        Ok(Self { backend })
    }

    /// A CPU context with default options.
    pub fn cpu() -> Result<Self> {
        Self::new(Device::Cpu, &ContextOptions::default())
    }

    /// A CUDA context with default options.
    pub fn cuda(ordinal: i32) -> Result<Self> {
        Self::new(Device::Cuda(ordinal), &ContextOptions::default())
    }

    /// Its device.
    pub fn device(&self) -> Device {
        self.backend.device()
    }

    /// What the device can do.
    pub fn capability(&self) -> Capability {
        self.backend.capability()
    }

    /// Frees what can be made again: GEMM plans and unused memory. Loaded kernels stay (captured graphs may use them).
    pub fn trim(&self) {
        self.backend.trim();
    }

    /// Waits until everything enqueued on `stream` has run. For programs with no CUDA runtime of their own; no operation calls it.
    pub fn synchronize(&self, stream: Stream) -> Result<()> {
        if stream.is_prepare() {
            return Ok(());
        }
        self.backend.synchronize(stream)
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.backend
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({})", self.device())
    }
}

/// CUDA is the only other device for now, so this names what a caller can do about it.
#[allow(dead_code)]
pub(crate) fn wrong_device(argument: impl fmt::Display, device: Device, found: impl fmt::Display) -> Error {
    Error::argument(Status::WrongDevice, argument, found, format!("must be memory of the context's device, {device}"))
}
