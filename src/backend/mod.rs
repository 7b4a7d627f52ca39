//! Back ends: one method per operation, arguments already validated by `ops`.

pub(crate) mod cpu;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;

use std::fmt::Display;

use crate::{
    context::{Capability, Device, Stream},
    error::Result,
    info::Json,
    ops,
    tensor::Ptr,
};

/// A device that runs operations.
///
/// The `unsafe` methods trust their arguments: `ops` has checked shapes, types, strides and nulls; the caller of `ops` vouches
/// that pointers are live for the extents described. Work is enqueued on `stream`; [`Stream::PREPARE`] loads and enqueues nothing.
pub(crate) trait Backend: Send + Sync {
    fn device(&self) -> Device;
    fn capability(&self) -> Capability;
    /// What the report says of this context beyond its capability.
    fn info(&self) -> Vec<(String, Json)> {
        Vec::new()
    }
    fn trim(&self);
    fn synchronize(&self, stream: Stream) -> Result<()>;

    /// Fails where `ptr` (not null) is known not to be memory of this device.
    fn check_pointer(&self, argument: &dyn Display, ptr: Ptr) -> Result<()>;

    fn allocate(&self, bytes: usize) -> Result<Ptr>;
    unsafe fn free(&self, ptr: Ptr, bytes: usize);
    unsafe fn upload(&self, to: Ptr, bytes: &[u8]) -> Result<()>;
    unsafe fn download(&self, bytes: &mut [u8], from: Ptr) -> Result<()>;
    unsafe fn fill(&self, to: Ptr, byte: u8, bytes: usize, stream: Stream) -> Result<()>;
    /// Zeroes `width` bytes of each of `height` rows that lie `pitch` bytes apart.
    unsafe fn zero_2d(&self, to: Ptr, pitch: u64, width: u64, height: u64, stream: Stream) -> Result<()>;

    /// Writes `bytes` (a multiple of four, as many in `to`) in stream order; they are free again on return.
    unsafe fn list_write(&self, to: Ptr, bytes: &[u8], stream: Stream) -> Result<()>;
    /// Makes the map of a list's blocks from its entries, which lie `stride` bytes apart.
    unsafe fn list_map(&self, entries: Ptr, stride: u64, count: u32, map: Ptr, stream: Stream) -> Result<()>;
    unsafe fn adamw(&self, args: &ops::adamw::AdamwArgs, stream: Stream) -> Result<()>;
    unsafe fn multi_cast(&self, job: &ops::multi_cast::MultiCastJob, stream: Stream) -> Result<()>;
    unsafe fn grad_norm(&self, args: &ops::grad_norm::GradNormArgs, stream: Stream) -> Result<()>;
    unsafe fn grad_scale(&self, args: &ops::grad_norm::GradScaleArgs, stream: Stream) -> Result<()>;

    unsafe fn activation_fwd(&self, args: &ops::activation::ActivationArgs, stream: Stream) -> Result<()>;
    unsafe fn activation_bwd(&self, args: &ops::activation::ActivationBwdArgs, stream: Stream) -> Result<()>;

    /// A function of types, sizes, strides and layouts, and of which pointers are null and which multiples of 16.
    fn gemm_workspace(&self, problem: &ops::gemm::Problem) -> Result<u64>;
    unsafe fn gemm(&self, problem: &ops::gemm::Problem, stream: Stream) -> Result<()>;
    unsafe fn gemm_prepare(&self, problem: &ops::gemm::Problem, candidates: u32, stream: Stream) -> Result<()>;
    /// For sizes not known yet: the most scratch memory a product asks for, and whether it may also pack both operands (FP8: as f16).
    fn gemm_scratch(&self, fp8: bool) -> (u64, bool);
    fn gemm_plans_export(&self) -> String;
    fn gemm_plans_import(&self, text: &str) -> Result<()>;
    /// `alike`: FP8 codes in one layout are those that a call for both makes, bit for bit, even where another kernel would be faster.
    unsafe fn norm_fwd(&self, norm: ops::norm::Norm, args: &ops::norm::NormFwdArgs, alike: bool, stream: Stream) -> Result<()>;
    unsafe fn norm_bwd(&self, norm: ops::norm::Norm, args: &ops::norm::NormBwdArgs, stream: Stream) -> Result<()>;
    /// Rows of partial weight gradients, of `hidden` f32 each, that the backward pass keeps in its workspace per gradient.
    fn norm_bwd_partials(&self) -> u32;
    /// Bytes at the start of a workspace in which an amax is reduced.
    fn amax_workspace(&self) -> u64;
    /// Bytes in which column sums of `[rows, cols]` are reduced.
    fn dbias_workspace(&self, rows: i64, cols: i64) -> u64;
    unsafe fn cast(&self, job: &ops::cast::CastJob, stream: Stream) -> Result<()>;
    /// Two casts with given scales and no column sums, in one launch where that can be.
    unsafe fn cast_pair(&self, first: &ops::cast::CastJob, second: &ops::cast::CastJob, stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        unsafe { self.cast(first, stream).and_then(|()| self.cast(second, stream)) }
    }
    /// The cast `x` with a given scale and the product `p` of its codes with a weight's as one launch, where that serves; the row-wise codes
    /// of x are then not written. `w` makes the weight's codes: in the same launch, unless they are to be kept. Where it does not serve,
    /// whatever `w` and `keep` are, nothing is done and the answer is false.
    unsafe fn linear_small(
        &self,
        _x: &ops::cast::CastJob,
        _w: Option<&ops::cast::CastJob>,
        _keep: bool,
        _p: &ops::gemm::Problem,
        _stream: Stream,
    ) -> Result<bool> {
        Ok(false)
    }
    unsafe fn amax(&self, args: &ops::amax::AmaxArgs, stream: Stream) -> Result<()>;
    unsafe fn dropout(&self, job: &ops::dropout::DropoutJob, stream: Stream) -> Result<()>;
    /// Bytes in which column sums of a dropout's gradient `[rows, cols]` are reduced.
    fn dropout_workspace(&self, rows: i64, cols: i64) -> u64;
    unsafe fn rope(&self, job: &ops::rope::RopeJob, stream: Stream) -> Result<()>;
    unsafe fn dequantize(&self, args: &ops::dequantize::DequantizeArgs, stream: Stream) -> Result<()>;
    unsafe fn fp8_transpose(&self, args: &ops::dequantize::TransposeArgs, stream: Stream) -> Result<()>;
    fn cross_entropy_workspace(&self, tokens: i64) -> u64;
    unsafe fn cross_entropy(&self, job: &ops::cross_entropy::Job, stream: Stream) -> Result<()>;
    unsafe fn cross_entropy_combine(&self, args: &ops::cross_entropy::CrossEntropyCombineArgs, stream: Stream) -> Result<()>;
    unsafe fn scale_rows(&self, args: &ops::cross_entropy::ScaleRowsArgs, stream: Stream) -> Result<()>;
    unsafe fn softmax_fwd(&self, args: &ops::softmax::SoftmaxFwdArgs, stream: Stream) -> Result<()>;
    unsafe fn softmax_bwd(&self, args: &ops::softmax::SoftmaxBwdArgs, stream: Stream) -> Result<()>;
    unsafe fn scaling_update(&self, args: &ops::scaling::ScalingUpdateArgs, stream: Stream) -> Result<()>;
}
