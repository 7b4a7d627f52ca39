//! LayerNorm and RMSNorm on CUDA: which of the kernels `kernels/norm_*.cu` runs, and how.

use super::{launch::Queue, testing::Variant};
use crate::tensor::{DType, Ptr, TensorView};

mod any;
mod backward;
mod forward;
mod tile;

pub(super) use backward::norm_bwd;
pub(super) use forward::norm_fwd;

const HIGH: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

const MAX_GRID_X: u64 = 0x7FFF_FFFF;

/// Elements of a 16-byte vector.
fn vector(dtype: DType) -> u64 {
    16 / dtype.size() as u64
}

/// Rows begin at multiples of `bytes`.
fn aligned(t: &TensorView, bytes: u64) -> bool {
    t.data.0 % bytes == 0 && (t.rows <= 1 || (t.ld as u64 * t.dtype.size() as u64) % bytes == 0)
}

/// A parameter that may be null: its address and the number of its type.
fn parameter(p: &Option<TensorView>) -> (Ptr, i32) {
    p.map_or((Ptr::NULL, 0), |t| (t.data, t.dtype as i32))
}

/// Every module of this family.
pub(super) fn variants() -> Vec<Variant> {
    [any::variants(), forward::variants(), tile::variants(), backward::variants()].concat()
}

/// What the driver and static arrays take of a block's shared memory is less than 1 KiB.
fn max_smem(queue: &Queue<'_>) -> u32 {
    queue.backend.max_shared_memory.saturating_sub(1024)
}
