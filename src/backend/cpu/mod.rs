//! The CPU back end: the reference and the embedded default. Simple, exact, multi-threaded.

mod activation;
mod adamw;
mod amax;
mod cast;
mod cross_entropy;
mod dequantize;
mod dropout;
mod element;
mod functions;
mod gemm;
mod grad_norm;
mod ieee;
mod multi_cast;
mod norm;
mod parallel;
mod rope;
mod scaling;
mod simd;
mod softmax;
mod transpose;
mod view;

use std::{alloc::Layout, fmt::Display};

use crate::{
    backend::Backend,
    context::{Capability, ContextOptions, Device, Stream},
    error::{Error, Result, Status},
    ops,
    tensor::Ptr,
};
pub(crate) use ieee::Ieee;
use parallel::Threads;

/// The CPU back end.
pub(crate) struct CpuBackend {
    threads: Threads,
}

impl CpuBackend {
    pub(crate) fn new(options: &ContextOptions) -> Result<Self> {
        Ok(Self { threads: Threads::new(options.num_threads)? })
    }
}

const ALIGNMENT: usize = 256;

fn layout(bytes: usize) -> Result<Layout> {
    Layout::from_size_align(bytes, ALIGNMENT)
        .map_err(|_| Error::argument(Status::SizeOverflow, "bytes", bytes, "must fit the address space"))
}

/// Does the work of a call before it returns, unless it is only prepared.
fn now(stream: Stream, work: impl FnOnce()) -> Result<()> {
    if !stream.is_prepare() {
        let _ieee = Ieee::enter();
        work();
    }
    Ok(())
}

impl Backend for CpuBackend {
    fn device(&self) -> Device {
        Device::Cpu
    }

    fn capability(&self) -> Capability {
        Capability {
            arch: 0,
            multiprocessors: self.threads.count() as i32,
            fp8_cast_hardware: false,
            fp8_gemm_hardware: false,
            fp8_gemm_k_major_only: false,
            total_memory: 0,
            name: format!("CPU ({} threads)", self.threads.count()),
        }
    }

    fn trim(&self) {}

    fn synchronize(&self, _stream: Stream) -> Result<()> {
        Ok(())
    }

    fn check_pointer(&self, _argument: &dyn Display, _ptr: Ptr) -> Result<()> {
        Ok(())
    }

    fn allocate(&self, bytes: usize) -> Result<Ptr> {
        // SAFETY: the size is not zero (`Buffer` asks for at least one byte).
        let p = unsafe { std::alloc::alloc(layout(bytes)?) };
        if p.is_null() {
            return Err(Error::argument(Status::OutOfMemory, "bytes", bytes, "the system has no such memory left"));
        }
        Ok(Ptr::from(p))
    }

    unsafe fn free(&self, ptr: Ptr, bytes: usize) {
        if let Ok(layout) = layout(bytes) {
            // SAFETY: `ptr` came from `allocate` with the same size.
            unsafe { std::alloc::dealloc(ptr.as_ptr(), layout) }
        }
    }

    unsafe fn upload(&self, to: Ptr, bytes: &[u8]) -> Result<()> {
        // SAFETY: the caller vouches for the destination.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) }
        Ok(())
    }

    unsafe fn download(&self, bytes: &mut [u8], from: Ptr) -> Result<()> {
        // SAFETY: the caller vouches for the source.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr::<u8>(), bytes.as_mut_ptr(), bytes.len()) }
        Ok(())
    }

    unsafe fn fill(&self, to: Ptr, byte: u8, bytes: usize, _stream: Stream) -> Result<()> {
        // SAFETY: the caller vouches for the destination.
        unsafe { std::ptr::write_bytes(to.as_ptr::<u8>(), byte, bytes) }
        Ok(())
    }

    unsafe fn zero_2d(&self, to: Ptr, pitch: u64, width: u64, height: u64, stream: Stream) -> Result<()> {
        // Rows of nothing may be without number.
        if width > 0 && !stream.is_prepare() {
            for row in 0..height {
                // SAFETY: the caller vouches for the rows.
                unsafe { std::ptr::write_bytes(to.offset(row * pitch).as_ptr::<u8>(), 0, width as usize) }
            }
        }
        Ok(())
    }

    unsafe fn norm_fwd(&self, norm: ops::norm::Norm, args: &ops::norm::NormFwdArgs, _alike: bool, stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        now(stream, || unsafe { norm::norm_fwd(&self.threads, norm, args) })
    }

    unsafe fn norm_bwd(&self, norm: ops::norm::Norm, args: &ops::norm::NormBwdArgs, stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        now(stream, || unsafe { norm::norm_bwd(&self.threads, norm, args) })
    }

    fn norm_bwd_partials(&self) -> u32 {
        0
    }

    unsafe fn list_write(&self, to: Ptr, bytes: &[u8], stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        now(stream, || unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) })
    }

    unsafe fn list_map(&self, _entries: Ptr, _stride: u64, _count: u32, _map: Ptr, _stream: Stream) -> Result<()> {
        // Blocks are found by searching the entries.
        Ok(())
    }

    unsafe fn adamw(&self, args: &ops::adamw::AdamwArgs, stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        now(stream, || unsafe { adamw::adamw(&self.threads, args) })
    }

    unsafe fn multi_cast(&self, job: &ops::multi_cast::MultiCastJob, stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        now(stream, || unsafe { multi_cast::multi_cast(&self.threads, job) })
    }

    unsafe fn grad_norm(&self, args: &ops::grad_norm::GradNormArgs, stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        now(stream, || unsafe { grad_norm::grad_norm(&self.threads, args) })
    }

    unsafe fn grad_scale(&self, args: &ops::grad_norm::GradScaleArgs, stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        now(stream, || unsafe { grad_norm::grad_scale(&self.threads, args) })
    }

    unsafe fn activation_fwd(&self, args: &ops::activation::ActivationArgs, stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        now(stream, || unsafe { activation::activation_fwd(&self.threads, args) })
    }

    unsafe fn activation_bwd(&self, args: &ops::activation::ActivationBwdArgs, stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        now(stream, || unsafe { activation::activation_bwd(&self.threads, args) })
    }

    fn amax_workspace(&self) -> u64 {
        0
    }

    fn dbias_workspace(&self, _rows: i64, _cols: i64) -> u64 {
        0
    }

    unsafe fn cast(&self, job: &ops::cast::CastJob, stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        now(stream, || unsafe { cast::cast(&self.threads, job) })
    }

    unsafe fn amax(&self, args: &ops::amax::AmaxArgs, stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        now(stream, || unsafe { amax::record(&self.threads, args) })
    }

    unsafe fn dropout(&self, job: &ops::dropout::DropoutJob, stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        now(stream, || unsafe { dropout::dropout(&self.threads, job) })
    }

    fn dropout_workspace(&self, _rows: i64, _cols: i64) -> u64 {
        0
    }

    unsafe fn rope(&self, job: &ops::rope::RopeJob, stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        now(stream, || unsafe { rope::rope(&self.threads, job) })
    }

    unsafe fn dequantize(&self, args: &ops::dequantize::DequantizeArgs, stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        now(stream, || unsafe { dequantize::dequantize(&self.threads, args) })
    }

    unsafe fn fp8_transpose(&self, args: &ops::dequantize::TransposeArgs, stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        now(stream, || unsafe { transpose::fp8_transpose(&self.threads, args) })
    }

    unsafe fn scaling_update(&self, args: &ops::scaling::ScalingUpdateArgs, stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        now(stream, || unsafe { scaling::scaling_update(&self.threads, args) })
    }

    fn cross_entropy_workspace(&self, _tokens: i64) -> u64 {
        0
    }

    unsafe fn cross_entropy(&self, job: &ops::cross_entropy::Job, stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        now(stream, || unsafe { cross_entropy::cross_entropy(&self.threads, job) })
    }

    unsafe fn cross_entropy_combine(&self, args: &ops::cross_entropy::CrossEntropyCombineArgs, stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        now(stream, || unsafe { cross_entropy::combine(args) })
    }

    unsafe fn scale_rows(&self, args: &ops::cross_entropy::ScaleRowsArgs, stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        now(stream, || unsafe { cross_entropy::scale_rows(&self.threads, args) })
    }

    unsafe fn softmax_fwd(&self, args: &ops::softmax::SoftmaxFwdArgs, stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        now(stream, || unsafe { softmax::softmax_fwd(&self.threads, args) })
    }

    unsafe fn softmax_bwd(&self, args: &ops::softmax::SoftmaxBwdArgs, stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        now(stream, || unsafe { softmax::softmax_bwd(&self.threads, args) })
    }

    fn gemm_workspace(&self, _problem: &ops::gemm::Problem) -> Result<u64> {
        Ok(0)
    }

    fn gemm_scratch(&self, _fp8: bool) -> (u64, bool) {
        (0, false)
    }

    unsafe fn gemm(&self, problem: &ops::gemm::Problem, stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        now(stream, || unsafe { gemm::gemm(&self.threads, problem) })
    }

    unsafe fn gemm_prepare(&self, _problem: &ops::gemm::Problem, _candidates: u32, _stream: Stream) -> Result<()> {
        // There is one way, so nothing is timed.
        Ok(())
    }

    fn gemm_plans_export(&self) -> String {
        String::new()
    }

    fn gemm_plans_import(&self, text: &str) -> Result<()> {
        match text.trim().is_empty() {
            true => Ok(()),
            false => Err(Error::argument(Status::Unsupported, "text", "plans of a CUDA device", "the CPU back end has no plans")),
        }
    }
}
