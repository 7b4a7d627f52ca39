//! Rotary position embedding on CUDA: launches of `kernels/rope.cu`, and of `kernels/rope_any.cu` where rows cannot be read as vectors.

use super::{
    jit::kernel_spec,
    launch::{arguments, blocks, Launch, Queue},
    sources::SourceFile,
    testing::Variant,
    CudaBackend,
};
use crate::{
    context::Stream,
    error::Result,
    ops::rope::{Heads, RopeJob, RopeKind},
    tensor::{DType, Ptr},
};

/// Threads of a block at most.
const THREADS: u64 = 256;
/// Heads that a thread takes in `rope.cu`.
const HEADS: u64 = 2;
/// Heads that a thread takes in `rope_any.cu`.
const HEADS_ANY: u64 = 4;

/// A module of `rope.cu`.
#[derive(Clone, Copy)]
struct Vectors {
    x: DType,
    kind: RopeKind,
}

kernel_spec!(Vectors: Rope, s => "rope", "X" = s.x, "KIND" = s.kind, "HEADS" = HEADS);

/// `rope_any.cu`.
#[derive(Clone, Copy)]
struct Any;

kernel_spec!(Any: RopeAny, s => "rope_any");

/// Every module of this family.
pub(super) fn variants() -> Vec<Variant> {
    let mut all = vec![Variant::of(&Any)];
    for x in [DType::F32, DType::F16, DType::Bf16] {
        for kind in [RopeKind::Plain, RopeKind::Split, RopeKind::Merge] {
            all.push(Variant::of(&Vectors { x, kind }));
        }
    }
    all
}

/// `RopeSide` of the kernels.
#[repr(C)]
#[derive(Clone, Copy)]
struct Side {
    data: Ptr,
    outer: i64,
    inner: i64,
    head: i64,
}

impl Side {
    fn new(h: Heads, inner_is_batch: bool) -> Self {
        let (outer, inner) = if inner_is_batch { (h.seq_stride, h.batch_stride) } else { (h.batch_stride, h.seq_stride) };
        Self { data: h.data, outer, inner, head: h.head_stride }
    }
}

/// `RopeParams` of the kernels.
#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    x: [Side; 3],
    y: [Side; 3],
    cos: Ptr,
    sin: Ptr,
    positions: Ptr,
    starts: Ptr,
    cu_seqlens: Ptr,
    tokens: i64,
    inner: i64,
    start: i64,
    table_rows: i64,
    table_ld: i64,
    positions_outer: i64,
    positions_inner: i64,
    head_dim: i64,
    rotary_dim: i64,
    sequences: i64,
    heads: u32,
    q_heads: u32,
    kv_heads: u32,
    group: u32,
    items: u32,
    work: u32,
    block_tokens: u32,
    head_step: u32,
    interleaved: u32,
    backward: u32,
    positions_i64: u32,
    inner_is_batch: u32,
    items_inverse: u32,
    work_inverse: u32,
    group_inverse: u32,
    pad: u32,
    inner_inverse: u64,
}

/// `ceil(2^32 / d)`, by which the kernels divide numbers below `n`; 0 where that would not be exact.
fn inverse32(d: u64, n: u64) -> u32 {
    if d > 1 && u128::from(d) * u128::from(n) < 1 << 32 {
        (1u64 << 32).div_ceil(d) as u32
    } else {
        0
    }
}

/// Likewise with `2^64`.
fn inverse64(d: u64, n: u64) -> u64 {
    if d > 1 && u128::from(d) * u128::from(n) < 1 << 64 {
        (1u128 << 64).div_ceil(u128::from(d)) as u64
    } else {
        0
    }
}

/// Elements of a 16-byte vector.
fn vector(dtype: DType) -> i64 {
    16 / dtype.size() as i64
}

/// Whether every head of a tensor begins on 16 bytes.
fn aligned(job: &RopeJob, h: &Heads) -> bool {
    let v = vector(job.dtype);
    let stride = |n: i64, s: i64| n <= 1 || s % v == 0;
    h.data.0 % 16 == 0 && stride(job.seq, h.seq_stride) && stride(job.batch, h.batch_stride) && stride(job.heads, h.head_stride)
}

/// Whether `rope.cu` can take the job.
fn is_aligned(job: &RopeJob) -> bool {
    let (v, r) = (vector(job.dtype), &job.rotation);
    let table = r.rotary_dim == 0 || (r.cos.0 % 16 == 0 && r.sin.0 % 16 == 0 && (r.table_rows <= 1 || r.table_ld % 4 == 0));
    job.head_dim % v == 0 && r.rotary_dim % (2 * v) == 0 && table && job.x.iter().chain(&job.y).all(|h| aligned(job, h))
}

/// # Safety
/// Arguments validated, pointers live; no element is empty.
pub(super) unsafe fn rope(backend: &CudaBackend, job: &RopeJob, stream: Stream) -> Result<()> {
    let queue = Queue::new(backend, stream)?;
    let (r, p) = (&job.rotation, &job.places);
    let vectors = is_aligned(job);
    let rest = if job.in_place() { 0 } else { job.head_dim - r.rotary_dim };
    let (items, heads_each) = if vectors {
        let two = 2 * vector(job.dtype);
        ((r.rotary_dim / two + (rest + two - 1) / two) as u64, HEADS)
    } else {
        ((r.rotary_dim / 2 + rest) as u64, HEADS_ANY)
    };
    if items == 0 {
        return Ok(());
    }
    let steps = (job.heads as u64).div_ceil(heads_each);
    let work = items.saturating_mul(steps);
    let across = blocks(work.div_ceil(THREADS), 0xFFFF, "pieces of a token")?;
    // Whole tokens to a block; where one is too large, it is cut and a block has a piece of it.
    let block_tokens = (THREADS / work).max(1);
    let threads = (block_tokens * work).min(THREADS).next_multiple_of(32);
    let tokens = job.seq * job.batch;
    let down = blocks((tokens as u64).div_ceil(block_tokens), 0x7FFF_FFFF, "blocks of tokens")?;
    // A thread's last head may lie beyond the heads, and is counted in 32 bits.
    blocks(steps.saturating_mul(heads_each), 0xFFFF_FFFF, "heads")?;
    // Tokens that follow each other in memory follow each other in the grid.
    let inner_is_batch = job.batch > 1 && (job.seq == 1 || job.x[0].batch_stride < job.x[0].seq_stride);
    let order = |seq: i64, batch: i64| if inner_is_batch { (seq, batch) } else { (batch, seq) };
    let (positions_outer, positions_inner) = order(p.positions_seq_stride, p.positions_batch_stride);
    let inner = if inner_is_batch { job.batch } else { job.seq };
    let group = if job.grouped { job.q_heads / job.kv_heads + 2 } else { 0 };
    let params = Params {
        x: job.x.map(|h| Side::new(h, inner_is_batch)),
        y: job.y.map(|h| Side::new(h, inner_is_batch)),
        cos: r.cos,
        sin: r.sin,
        positions: p.positions,
        starts: p.starts,
        cu_seqlens: p.cu_seqlens,
        tokens,
        inner,
        start: p.start,
        table_rows: r.table_rows,
        table_ld: r.table_ld,
        positions_outer,
        positions_inner,
        head_dim: job.head_dim,
        rotary_dim: r.rotary_dim,
        sequences: p.sequences,
        heads: job.heads as u32,
        q_heads: job.q_heads as u32,
        kv_heads: job.kv_heads as u32,
        group: group as u32,
        items: items as u32,
        work: work as u32,
        block_tokens: block_tokens as u32,
        head_step: steps as u32,
        interleaved: r.interleaved.into(),
        backward: job.backward.into(),
        positions_i64: p.positions_i64.into(),
        inner_is_batch: inner_is_batch.into(),
        items_inverse: inverse32(items, work),
        work_inverse: inverse32(work, THREADS),
        group_inverse: inverse32(group as u64, job.heads as u64),
        pad: 0,
        inner_inverse: inverse64(inner as u64, tokens as u64),
    };
    let launch = Launch::new([down, across, 1], threads as u32);
    if vectors {
        // SAFETY: the one parameter of `rope`; pointers live by contract.
        unsafe { queue.launch(&Vectors { x: job.dtype, kind: job.kind }, &launch, arguments![params]) }
    } else {
        let (kind, dtype) = (job.kind as i32, job.dtype as i32);
        // SAFETY: the parameters of `rope_any`; pointers live by contract.
        unsafe { queue.launch(&Any, &launch, arguments![params, kind, dtype]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_divide_exactly() {
        for d in (1..300).chain([1000, 4095, 65_535]) {
            let n = ((1u64 << 32) - 1) / d;
            let m = inverse32(d, n);
            assert_eq!(m == 0, d == 1);
            for v in (0..n.min(2000)).chain(n.saturating_sub(2000)..n) {
                assert!(m == 0 || (v * u64::from(m)) >> 32 == v / d);
            }
        }
        for d in [2, 3, 7, 4096, 1 << 31, (1 << 31) + 1] {
            let n = u64::MAX / d;
            let m = inverse64(d, n);
            for v in (0..1000).chain(n - 1000..n) {
                assert!(m != 0 && ((u128::from(v) * u128::from(m)) >> 64) as u64 == v / d);
            }
        }
    }
}
