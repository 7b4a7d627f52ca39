//! For this project's own tests: the own kernels alone.

use super::own;
use crate::{
    backend::cuda::{launch::Queue, CudaBackend},
    context::{ContextOptions, Stream},
    error::Result,
};

pub use super::own::{Operand, OwnArgs, OwnKernel};

/// The project's own GEMM kernels alone, without the library's choice between them and cuBLASLt.
pub struct OwnGemm(CudaBackend);

impl OwnGemm {
    /// On a device, sharing its primary context with everything else in the process.
    pub fn new(ordinal: i32) -> Result<Self> {
        Ok(Self(CudaBackend::new(ordinal, &ContextOptions::default())?))
    }

    /// Compute capability times ten.
    pub fn arch(&self) -> i32 {
        self.0.capability.arch
    }

    /// Bytes of workspace.
    pub fn workspace(&self, args: &OwnArgs) -> Result<u64> {
        own::workspace(self.arch(), args)
    }

    /// Kernel and tile that would run.
    pub fn describe(&self, args: &OwnArgs) -> Result<String> {
        own::describe(self.arch(), self.0.capability.multiprocessors as u32, args)
    }

    /// Enqueues the product.
    ///
    /// # Safety
    /// Shapes, strides and alignments fit, pointers are live, the workspace is large enough.
    pub unsafe fn run(&self, args: &OwnArgs, stream: Stream) -> Result<()> {
        // SAFETY: by contract.
        unsafe { own::run(&Queue::new(&self.0, stream)?, args) }
    }

    /// Seconds per call of `enqueue` on the default stream: the mean of `calls`, between two events.
    pub fn seconds(&self, calls: u32, mut enqueue: impl FnMut() -> Result<()>) -> Result<f64> {
        let _current = self.0.enter()?;
        let d = self.0.driver;
        let mut events = [std::ptr::null_mut(); 2];
        let mut milliseconds = 0.0f32;
        // SAFETY: out-pointers; events made here are destroyed here.
        unsafe {
            for e in &mut events {
                d.check("cuEventCreate", (d.event_create)(e, 0))?;
            }
            d.check("cuEventRecord", (d.event_record)(events[0], Stream::NULL.0))?;
            for _ in 0..calls {
                enqueue()?;
            }
            d.check("cuEventRecord", (d.event_record)(events[1], Stream::NULL.0))?;
            d.check("cuEventSynchronize", (d.event_synchronize)(events[1]))?;
            d.check("cuEventElapsedTime", (d.event_elapsed)(&mut milliseconds, events[0], events[1]))?;
            for e in events {
                d.check("cuEventDestroy", (d.event_destroy)(e))?;
            }
        }
        Ok(f64::from(milliseconds) / 1e3 / f64::from(calls))
    }
}
