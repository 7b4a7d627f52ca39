//! Casts to FP8 on CUDA: launches of `kernels/cast.cu`.

use super::{
    jit::KernelSpec,
    launch::{arguments, blocks, Launch, Queue},
    sources::SourceFile,
    testing::Variant,
    CudaBackend,
};
use crate::{context::Stream, error::Result, ops::cast::CastArgs, tensor::DType};

#[derive(Clone, Copy)]
struct Cast {
    input: DType,
    output: DType,
}

impl KernelSpec for Cast {
    const SOURCE: SourceFile = SourceFile::Cast;

    fn id(&self) -> u64 {
        self.input as u64 | (self.output as u64) << 4
    }

    fn defines(&self) -> Vec<String> {
        vec![format!("IN={}", self.input as i32), format!("OUT={}", self.output as i32)]
    }

    fn entry(&self) -> &'static str {
        "cast_to_fp8"
    }
}

/// Every module of this family.
pub(super) fn variants() -> Vec<Variant> {
    let mut all = Vec::new();
    for input in [DType::F32, DType::F16, DType::Bf16] {
        for output in [DType::E4m3, DType::E5m2] {
            all.push(Variant::of(&Cast { input, output }));
        }
    }
    all
}

/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn cast_to_fp8(backend: &CudaBackend, a: &CastArgs, stream: Stream) -> Result<()> {
    let queue = Queue::new(backend, stream)?;
    let (x, q) = (&a.input, &a.output);
    let tiles = |n: i64, limit: u64| blocks((n as u64).div_ceil(64).max(1), limit, "tiles of the tensor");
    let launch = Launch::new([tiles(x.rows, 0x7FFF_FFFF)?, tiles(x.cols, 65_535)?, 1], 256);
    let args = arguments![x.data, x.ld, q.data, q.ld, q.data_t, q.ld_t, x.rows, x.cols, q.scale, q.scale_inv, q.amax];
    // SAFETY: the parameters of `cast_to_fp8` in their order; pointers live by contract.
    unsafe { queue.launch(&Cast { input: x.dtype, output: q.dtype }, &launch, args) }
}
