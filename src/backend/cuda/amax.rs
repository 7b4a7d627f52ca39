//! amax on CUDA: launches of `kernels/amax.cu`.

use super::{
    jit::kernel_spec,
    launch::{arguments, Launch, Queue},
    sources::SourceFile,
    testing::Variant,
    tile::{vector, Layout, Walk, THREADS, TILE},
    CudaBackend,
};
use crate::{
    context::Stream,
    error::Result,
    ops::amax::AmaxArgs,
    tensor::{DType, Ptr, TensorView},
};

/// Most blocks of the first half of current scaling: each leaves one word.
const MAX_PARTIALS: u32 = 1024;
/// Bytes they take at the start of a workspace.
pub(super) const WORKSPACE: u64 = MAX_PARTIALS as u64 * 4;

#[derive(Clone, Copy)]
struct Amax {
    input: DType,
    aligned: bool,
}

kernel_spec!(Amax: Amax, s => if s.aligned { "amax_tile" } else { "amax_any" }, "IN" = s.input; also s.aligned);

/// `AmaxParams` of the kernel.
#[repr(C)]
struct Params {
    x: Ptr,
    amax: Ptr,
    partials: Ptr,
    ldx: i64,
    rows: i64,
    cols: i64,
    last: i64,
    col_tiles: u32,
    tiles: u32,
    tail: u32,
    keep_from: u32,
}

/// Every module of this family.
pub(super) fn variants() -> Vec<Variant> {
    [DType::F32, DType::F16, DType::Bf16].into_iter().map(|input| Variant::of(&Amax { input, aligned: true })).collect()
}

/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn record(backend: &CudaBackend, a: &AmaxArgs, stream: Stream) -> Result<()> {
    if a.input.is_empty() {
        return Ok(());
    }
    let queue = Queue::new(backend, stream)?;
    // SAFETY: forwarded contract.
    unsafe { launch(&queue, &a.input, a.amax, Ptr::NULL, false) }.map(drop)
}

/// Bytes of a tensor that L2 is asked to keep for its cast.
const KEPT: u64 = 40 << 20;

/// Leaves partial amaxes at `partials` ([`WORKSPACE`] bytes); returns how many. `keep`: the tensor is read again at once by a kernel that
/// lets go what the cache was asked to keep.
///
/// # Safety
/// A live matrix and live memory for the partials.
pub(super) unsafe fn partials(queue: &Queue<'_>, x: &TensorView, partials: Ptr, keep: bool) -> Result<u32> {
    // SAFETY: forwarded contract.
    unsafe { launch(queue, x, Ptr::NULL, partials, keep) }
}

/// # Safety
/// A live matrix, and live memory behind whichever of the two is not null.
unsafe fn launch(queue: &Queue<'_>, x: &TensorView, amax: Ptr, partials: Ptr, keep: bool) -> Result<u32> {
    const ANY_COLS: i64 = 64;
    let walk = Walk::new(x.rows, x.cols, vector(x.dtype), &[Layout::new(x.data, x.ld, x.dtype, 16)], true, ANY_COLS);
    let (col_tiles, tiles) = walk.tiles(TILE, if walk.aligned { TILE } else { ANY_COLS })?;
    // As many blocks as the device holds at a time.
    let per_processor = match (walk.aligned, x.dtype) {
        (true, DType::F32) => 2,
        (true, _) => 4,
        (false, _) => 6,
    };
    let count = tiles.min(queue.multiprocessors() * per_processor).min(MAX_PARTIALS);
    let params = Params {
        x: x.data,
        amax,
        partials,
        ldx: walk.stride(x.ld),
        rows: walk.rows,
        cols: walk.cols,
        last: walk.last,
        col_tiles,
        tiles,
        tail: walk.tail,
        keep_from: if keep && (x.rows as u64).saturating_mul(x.cols as u64).saturating_mul(x.dtype.size() as u64) <= KEPT {
            0
        } else {
            u32::MAX
        },
    };
    let spec = Amax { input: x.dtype, aligned: walk.aligned };
    // SAFETY: the kernel's one parameter; pointers live by contract.
    unsafe { queue.launch(&spec, &Launch::new([count, 1, 1], THREADS), arguments![params]) }?;
    Ok(count)
}
