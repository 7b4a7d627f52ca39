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
    unsafe { launch(&queue, &a.input, a.amax, Ptr::NULL) }.map(drop)
}

/// Whether L2 holds the whole tensor once it was read.
pub(super) fn cached(x: &TensorView) -> bool {
    const CACHED: u64 = 40 << 20;
    (x.rows as u64).saturating_mul(x.cols as u64).saturating_mul(x.dtype.size() as u64) <= CACHED
}

/// Bytes at the end of a larger one that it still holds when they are read again from the end on.
const KEPT: u64 = 24 << 20;

/// Leaves partial amaxes at `partials` ([`WORKSPACE`] bytes); returns how many. The tensor is read again at once, from its end on.
///
/// # Safety
/// A live matrix and live memory for the partials.
pub(super) unsafe fn partials(queue: &Queue<'_>, x: &TensorView, partials: Ptr) -> Result<u32> {
    // SAFETY: forwarded contract.
    unsafe { launch(queue, x, Ptr::NULL, partials) }
}

/// # Safety
/// A live matrix, and live memory behind whichever of the two is not null.
unsafe fn launch(queue: &Queue<'_>, x: &TensorView, amax: Ptr, partials: Ptr) -> Result<u32> {
    const ANY_COLS: i64 = 64;
    let v = vector(x.dtype);
    let walk = Walk::new(x.rows, x.cols, v, &[Layout::new(x.data, x.ld, x.dtype, 16)], true, ANY_COLS);
    let (col_tiles, tiles) = walk.tiles(TILE, if walk.aligned { 16 * v } else { ANY_COLS })?;
    // As many threads as take 128 KiB at a time on each multiprocessor, in few blocks, for what reads their partial amaxes; where tiles are few,
    // one to a block.
    let all = queue.multiprocessors();
    let (threads, count) = match walk.aligned {
        true if tiles >= 4 * all => (4 * THREADS, all),
        true => (THREADS, tiles),
        false => (THREADS, tiles.min(6 * all)),
    };
    let count = count.min(MAX_PARTIALS);
    let kept = (KEPT / (16 * 16 * TILE as u64)) as u32;
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
        keep_from: if partials.is_null() || cached(x) { 0 } else { tiles.saturating_sub(kept) },
    };
    let spec = Amax { input: x.dtype, aligned: walk.aligned };
    // SAFETY: the kernel's one parameter; pointers live by contract.
    unsafe { queue.launch(&spec, &Launch::new([count, 1, 1], threads), arguments![params]) }?;
    Ok(count)
}
