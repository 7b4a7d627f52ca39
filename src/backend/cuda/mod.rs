//! The CUDA back end: the driver through a table of functions, kernels compiled by NVRTC, cuBLASLt where it serves.

mod activation;
mod adamw;
mod amax;
mod cache;
mod cast;
mod cross_entropy;
mod dequantize;
mod driver;
mod dropout;
mod gemm;
mod grad_norm;
pub(crate) mod info;
mod jit;
mod launch;
mod library;
mod linear;
mod list;
mod multi_cast;
mod norm;
mod nvrtc;
mod rope;
mod scaling;
mod softmax;
mod sources;
pub mod testing;
mod tile;

use std::{
    collections::HashMap,
    fmt::Display,
    ptr,
    sync::{
        atomic::{AtomicU64, Ordering},
        Mutex,
    },
};

use crate::{
    backend::Backend,
    context::{wrong_device, Capability, ContextOptions, Device, Stream},
    error::{Error, Result, Status},
    info::Json,
    ops,
    tensor::Ptr,
};
use cache::DiskCache;
use driver::{attribute, Driver, Handle};
use jit::Jit;

/// Places for addresses known to be the device's, a power of two.
const VERIFIED: usize = 1024;

/// The CUDA back end of one device, on its primary context (shared with PyTorch, JAX and the CUDA runtime).
pub(crate) struct CudaBackend {
    driver: &'static Driver,
    jit: Jit,
    gemm: gemm::GemmState,
    ordinal: i32,
    device: i32,
    context: Handle,
    capability: Capability,
    /// Pageable host memory is readable from kernels (coherent systems): such pointers are then not refused.
    pageable: bool,
    /// Addresses found to be memory of this device, each in the place that its bits choose.
    verified: Box<[AtomicU64; VERIFIED]>,
    /// Shared memory of one block at most, in bytes.
    max_shared_memory: u32,
    /// Kernels may take their places before the one ahead of them has ended (`after_previous` in the kernels).
    dependent_launch: bool,
    /// How many clusters of a kernel run at a time.
    clusters: Mutex<HashMap<launch::ClusterKey, u32>>,
}

// SAFETY: driver handles are usable from any thread; everything else is Sync by itself.
unsafe impl Send for CudaBackend {}
// SAFETY: as above.
unsafe impl Sync for CudaBackend {}

/// Makes the device's context current and restores what was there on drop.
pub(crate) struct Entered {
    driver: &'static Driver,
    pushed: bool,
}

impl Drop for Entered {
    fn drop(&mut self) {
        if self.pushed {
            let mut old = ptr::null_mut();
            // SAFETY: pops what `enter` pushed on this thread.
            unsafe { (self.driver.ctx_pop)(&mut old) };
        }
    }
}

impl CudaBackend {
    pub(crate) fn new(ordinal: i32, options: &ContextOptions) -> Result<Self> {
        let driver = Driver::get()?;
        let count = info::device_count(driver)?;
        if ordinal < 0 || ordinal >= count {
            return Err(Error::argument(Status::NoDevice, "device ordinal", ordinal, format!("the driver reports {count} devices")));
        }
        let (device, capability) = info::device(driver, ordinal)?;
        let arch = capability.arch;
        if arch < 80 {
            return Err(Error::argument(
                Status::NoDevice,
                "device",
                format!("cuda:{ordinal} (sm_{arch})"),
                "compute capability 8.0 or newer is needed",
            ));
        }
        let (mut pageable, mut max_shared_memory, mut version) = (0, 0, 0);
        let mut context = ptr::null_mut();
        // SAFETY: out-pointers; the context is released in `drop`.
        unsafe {
            let code = (driver.device_get_attribute)(&mut pageable, attribute::PAGEABLE_MEMORY_ACCESS, device);
            driver.check("cuDeviceGetAttribute", code)?;
            let code = (driver.device_get_attribute)(&mut max_shared_memory, attribute::MAX_SHARED_MEMORY_OPTIN, device);
            driver.check("cuDeviceGetAttribute", code)?;
            // A driver that does not tell its version is taken for an old one.
            (driver.driver_get_version)(&mut version);
            driver.check("cuDevicePrimaryCtxRetain", (driver.primary_ctx_retain)(&mut context, device))?;
        }
        let pageable = pageable != 0;
        let jit = Jit::new(arch_name(arch), DiskCache::new(options.cache_dir.clone()), options.library_dirs.clone());
        Ok(Self {
            driver,
            jit,
            gemm: gemm::GemmState::default(),
            ordinal,
            device,
            context,
            capability,
            pageable,
            verified: Box::new([const { AtomicU64::new(0) }; VERIFIED]),
            max_shared_memory: max_shared_memory as u32,
            // Drivers before 12.3 cannot capture such a launch.
            dependent_launch: arch >= 90 && version >= 12_030,
            clusters: Mutex::default(),
        })
    }

    /// Makes the device's context current for as long as the result lives.
    #[inline]
    pub(crate) fn enter(&self) -> Result<Entered> {
        let mut current = ptr::null_mut();
        // SAFETY: an out-pointer; then a context we hold retained.
        unsafe {
            if (self.driver.ctx_get_current)(&mut current) == 0 && current == self.context {
                return Ok(Entered { driver: self.driver, pushed: false });
            }
            self.driver.check("cuCtxPushCurrent", (self.driver.ctx_push)(self.context))?;
        }
        Ok(Entered { driver: self.driver, pushed: true })
    }
}

/// The target for a device of this compute capability: its own number, with the architecture-specific features where it has them.
fn arch_name(arch: i32) -> String {
    format!("sm_{arch}{}", if arch >= 90 { "a" } else { "" })
}

impl Drop for CudaBackend {
    fn drop(&mut self) {
        if let Ok(_current) = self.enter() {
            self.gemm.close();
        }
        // SAFETY: retained once in `new`. Modules belong to the primary context and stay with it: captured graphs may still use them.
        unsafe { (self.driver.primary_ctx_release)(self.device) };
    }
}

impl Backend for CudaBackend {
    fn device(&self) -> Device {
        Device::Cuda(self.ordinal)
    }

    fn capability(&self) -> Capability {
        self.capability.clone()
    }

    fn info(&self) -> Vec<(String, Json)> {
        let folder = self.jit.cache_folder().map_or(Json::Null, |f| Json::text(f.to_string_lossy()));
        let mut fields = vec![("kernel_target".to_owned(), Json::text(self.jit.arch())), ("cache_dir".to_owned(), folder)];
        fields.extend(info::libraries(self.jit.library_dirs()));
        fields
    }

    fn trim(&self) {
        self.gemm.trim();
    }

    fn synchronize(&self, stream: Stream) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: a stream of the caller's.
        self.driver.check("cuStreamSynchronize", unsafe { (self.driver.stream_synchronize)(stream.0) })
    }

    fn check_pointer(&self, argument: &dyn Display, p: Ptr) -> Result<()> {
        const MEMORY_TYPE: i32 = 2;
        const DEVICE_ORDINAL: i32 = 9;
        const HOST: u32 = 1;
        // The driver takes a third of a microsecond, and programs pass the same addresses again and again. One that was freed since and
        // then mapped on another device would pass; everything else is found out.
        let place = &self.verified[(p.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54) as usize];
        if place.load(Ordering::Relaxed) == p.0 {
            return Ok(());
        }
        let (mut kind, mut ordinal) = (0u32, -1i32);
        let attributes = [MEMORY_TYPE, DEVICE_ORDINAL];
        let mut values = [ptr::from_mut(&mut kind).cast(), ptr::from_mut(&mut ordinal).cast()];
        // SAFETY: two attributes with an out-pointer each. Unknown addresses give zeros, not an error.
        let code = unsafe { (self.driver.pointer_get_attributes)(2, attributes.as_ptr(), values.as_mut_ptr(), p.0) };
        if code != 0 || kind == HOST || (kind == 0 && self.pageable) {
            return Ok(());
        }
        if kind == 0 {
            return Err(wrong_device(argument, self.device(), format_args!("{:#x}, memory that no CUDA device knows", p.0)));
        }
        if ordinal != self.ordinal {
            return Err(wrong_device(argument, self.device(), format_args!("{:#x}, memory of cuda:{ordinal}", p.0)));
        }
        place.store(p.0, Ordering::Relaxed);
        Ok(())
    }

    fn allocate(&self, bytes: usize) -> Result<Ptr> {
        let _current = self.enter()?;
        let mut p = 0;
        // SAFETY: an out-pointer.
        let code = unsafe { (self.driver.mem_alloc)(&mut p, bytes) };
        if code == 2 {
            return Err(Error::with_code(Status::OutOfMemory, code, format!("bytes = {bytes}: {} has no such memory left", self.device())));
        }
        self.driver.check("cuMemAlloc", code)?;
        Ok(Ptr(p))
    }

    unsafe fn free(&self, p: Ptr, _bytes: usize) {
        if let Ok(_current) = self.enter() {
            // SAFETY: allocated by `allocate`.
            unsafe { (self.driver.mem_free)(p.0) };
        }
    }

    unsafe fn upload(&self, to: Ptr, bytes: &[u8]) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: the caller vouches for the destination.
        unsafe {
            self.driver.check("cuMemcpyHtoD", (self.driver.memcpy_htod)(to.0, bytes.as_ptr().cast(), bytes.len()))?;
            // A copy from pageable memory may return before the last bytes have landed for other streams.
            self.driver.check("cuCtxSynchronize", (self.driver.ctx_synchronize)())
        }
    }

    unsafe fn download(&self, bytes: &mut [u8], from: Ptr) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: the caller vouches for the source.
        unsafe {
            self.driver.check("cuCtxSynchronize", (self.driver.ctx_synchronize)())?;
            self.driver.check("cuMemcpyDtoH", (self.driver.memcpy_dtoh)(bytes.as_mut_ptr().cast(), from.0, bytes.len()))
        }
    }

    unsafe fn fill(&self, to: Ptr, byte: u8, bytes: usize, stream: Stream) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: the caller vouches for the destination.
        self.driver.check("cuMemsetD8Async", unsafe { (self.driver.memset_d8_async)(to.0, byte, bytes, stream.0) })
    }

    unsafe fn zero_2d(&self, to: Ptr, pitch: u64, width: u64, height: u64, stream: Stream) -> Result<()> {
        if stream.is_prepare() || width == 0 || height == 0 {
            return Ok(());
        }
        let _current = self.enter()?;
        let (pitch, width, height) = (pitch as usize, width as usize, height as usize);
        // SAFETY: the caller vouches for the rows.
        let code = unsafe { (self.driver.memset_2d_d8_async)(to.0, pitch, 0, width, height, stream.0) };
        self.driver.check("cuMemsetD2D8Async", code)
    }

    unsafe fn norm_fwd(&self, norm: ops::norm::Norm, args: &ops::norm::NormFwdArgs, alike: bool, stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        unsafe { norm::norm_fwd(self, norm, args, alike, stream) }
    }

    unsafe fn norm_bwd(&self, norm: ops::norm::Norm, args: &ops::norm::NormBwdArgs, stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        unsafe { norm::norm_bwd(self, norm, args, stream) }
    }

    fn norm_bwd_partials(&self) -> u32 {
        self.capability.multiprocessors as u32
    }

    unsafe fn list_write(&self, to: Ptr, bytes: &[u8], stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        unsafe { list::write(self, to, bytes, stream) }
    }

    unsafe fn list_map(&self, entries: Ptr, stride: u64, count: u32, map: Ptr, stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        unsafe { list::map(self, entries, stride, count, map, stream) }
    }

    unsafe fn adamw(&self, args: &ops::adamw::AdamwArgs, stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        unsafe { adamw::adamw(self, args, stream) }
    }

    unsafe fn multi_cast(&self, job: &ops::multi_cast::MultiCastJob, stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        unsafe { multi_cast::multi_cast(self, job, stream) }
    }

    unsafe fn grad_norm(&self, args: &ops::grad_norm::GradNormArgs, stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        unsafe { grad_norm::grad_norm(self, args, stream) }
    }

    unsafe fn grad_scale(&self, args: &ops::grad_norm::GradScaleArgs, stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        unsafe { grad_norm::grad_scale(self, args, stream) }
    }

    unsafe fn activation_fwd(&self, args: &ops::activation::ActivationArgs, stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        unsafe { activation::activation_fwd(self, args, stream) }
    }

    unsafe fn activation_bwd(&self, args: &ops::activation::ActivationBwdArgs, stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        unsafe { activation::activation_bwd(self, args, stream) }
    }

    fn amax_workspace(&self) -> u64 {
        amax::WORKSPACE
    }

    fn dbias_workspace(&self, rows: i64, cols: i64) -> u64 {
        cast::dbias_workspace(rows, cols)
    }

    unsafe fn cast(&self, job: &ops::cast::CastJob, stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract, here and below.
        unsafe { cast::cast(self, job, stream) }
    }

    unsafe fn cast_pair(&self, first: &ops::cast::CastJob, second: &ops::cast::CastJob, stream: Stream) -> Result<()> {
        // SAFETY: as above.
        unsafe { cast::cast_pair(self, first, second, stream) }
    }

    unsafe fn linear_small(
        &self,
        x: &ops::cast::CastJob,
        w: Option<&ops::cast::CastJob>,
        keep: bool,
        product: &ops::gemm::Problem,
        stream: Stream,
    ) -> Result<bool> {
        // SAFETY: as above.
        unsafe { linear::linear_small(self, x, w, keep, product, stream) }
    }

    unsafe fn amax(&self, args: &ops::amax::AmaxArgs, stream: Stream) -> Result<()> {
        // SAFETY: as above.
        unsafe { amax::record(self, args, stream) }
    }

    unsafe fn dropout(&self, job: &ops::dropout::DropoutJob, stream: Stream) -> Result<()> {
        // SAFETY: as above.
        unsafe { dropout::dropout(self, job, stream) }
    }

    fn dropout_workspace(&self, rows: i64, cols: i64) -> u64 {
        dropout::workspace(rows, cols)
    }

    unsafe fn rope(&self, job: &ops::rope::RopeJob, stream: Stream) -> Result<()> {
        // SAFETY: as above.
        unsafe { rope::rope(self, job, stream) }
    }

    unsafe fn dequantize(&self, args: &ops::dequantize::DequantizeArgs, stream: Stream) -> Result<()> {
        // SAFETY: as above.
        unsafe { dequantize::dequantize(self, args, stream) }
    }

    unsafe fn fp8_transpose(&self, args: &ops::dequantize::TransposeArgs, stream: Stream) -> Result<()> {
        // SAFETY: as above.
        unsafe { dequantize::fp8_transpose(self, args, stream) }
    }

    unsafe fn scaling_update(&self, args: &ops::scaling::ScalingUpdateArgs, stream: Stream) -> Result<()> {
        // SAFETY: as above.
        unsafe { scaling::scaling_update(self, args, stream) }
    }

    fn cross_entropy_workspace(&self, tokens: i64) -> u64 {
        cross_entropy::workspace(tokens)
    }

    unsafe fn cross_entropy(&self, job: &ops::cross_entropy::Job, stream: Stream) -> Result<()> {
        // SAFETY: as above.
        unsafe { cross_entropy::cross_entropy(self, job, stream) }
    }

    unsafe fn cross_entropy_combine(&self, args: &ops::cross_entropy::CrossEntropyCombineArgs, stream: Stream) -> Result<()> {
        // SAFETY: as above.
        unsafe { cross_entropy::combine(self, args, stream) }
    }

    unsafe fn scale_rows(&self, args: &ops::cross_entropy::ScaleRowsArgs, stream: Stream) -> Result<()> {
        // SAFETY: as above.
        unsafe { cross_entropy::scale_rows(self, args, stream) }
    }

    unsafe fn softmax_fwd(&self, args: &ops::softmax::SoftmaxFwdArgs, stream: Stream) -> Result<()> {
        // SAFETY: as above.
        unsafe { softmax::softmax_fwd(self, args, stream) }
    }

    unsafe fn softmax_bwd(&self, args: &ops::softmax::SoftmaxBwdArgs, stream: Stream) -> Result<()> {
        // SAFETY: as above.
        unsafe { softmax::softmax_bwd(self, args, stream) }
    }

    fn gemm_workspace(&self, problem: &ops::gemm::Problem) -> Result<u64> {
        gemm::workspace(self, problem)
    }

    fn gemm_scratch(&self, fp8: bool) -> (u64, bool) {
        gemm::scratch_bound(self, fp8)
    }

    unsafe fn gemm(&self, problem: &ops::gemm::Problem, stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        unsafe { gemm::gemm(self, problem, stream) }
    }

    unsafe fn gemm_prepare(&self, problem: &ops::gemm::Problem, candidates: u32, stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        unsafe { gemm::prepare(self, problem, candidates, stream) }
    }

    fn gemm_plans_export(&self) -> String {
        gemm::export(self)
    }

    fn gemm_plans_import(&self, text: &str) -> Result<()> {
        gemm::import(self, text)
    }
}
