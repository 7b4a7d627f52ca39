//! Cross-entropy on CUDA: launches of `kernels/cross_entropy.cu`, and of the small kernels of `kernels/loss.cu`.

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
    ops::cross_entropy::{CrossEntropyCombineArgs, Job, Reduction, ScaleRowsArgs, TargetType, Targets},
    tensor::{DType, Ptr, TensorView},
};

/// Vectors of a thread and threads of a block of `cross_entropy_row`, and blocks of a row at most.
const SLOTS: u64 = 8;
const ROW_THREADS: u64 = 512;
const MAX_CLUSTER: u64 = 8;
const LOOP_THREADS: u32 = 512;
const MAX_GRID_X: u64 = 0x7FFF_FFFF;
/// The number of targets that count lies at the start of the workspace, losses of tokens behind it.
const COUNT_BYTES: u64 = 16;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kernel {
    Row,
    Loop,
    ScaleRows,
}

#[derive(Clone, Copy)]
struct Spec {
    kernel: Kernel,
    dtype: DType,
}

kernel_spec!(
    Spec: CrossEntropy, s => match s.kernel {
        Kernel::Row => "cross_entropy_row",
        Kernel::Loop => "cross_entropy_loop",
        Kernel::ScaleRows => "scale_rows",
    },
    "X" = s.dtype; also s.kernel
);

/// `cross_entropy_ring`: stages of a ring in shared memory, groups of threads that take them in turn; a warp besides fills them.
const RING_ARCHITECTURES: (i32, i32) = (90, 109);
const RING_BYTES: u32 = 216 * 1024;
const RING_STAGES: u64 = 12;
const RING_GROUPS: u64 = 3;
const RING_THREADS: u32 = 256;
/// What a block has of a row at most, so that two more find room; and the vectors of a piece of a row that is not kept for its gradient: as
/// many as the threads of a group take at two times.
const SLICE_BYTES: u64 = 72 * 1024;
const PIECE: u64 = 2048;
/// Rows up to this have more to gain from many blocks a multiprocessor.
const RING_ROW_BYTES: u64 = 32 * 1024;

#[derive(Clone, Copy)]
struct Ring {
    dtype: DType,
}

kernel_spec!(
    Ring: CrossEntropyRing, s => "cross_entropy_ring", "X" = s.dtype, "GROUPS" = RING_GROUPS, "GROUP_THREADS" = RING_THREADS;
    smem = RING_BYTES
);

/// The kernels of `loss.cu`.
#[derive(Clone, Copy)]
enum Small {
    Count,
    Total,
    Combine,
}

kernel_spec!(enum Small: Loss, Count = "loss_count", Total = "loss_total", Combine = "loss_combine");

/// Every module of this family.
pub(super) fn variants() -> Vec<Variant> {
    let types = [DType::F32, DType::F16, DType::Bf16];
    let rows = types.into_iter().map(|dtype| Variant::of(&Spec { kernel: Kernel::Row, dtype }));
    let rings = types.into_iter().map(|dtype| Variant::of(&Ring { dtype }).on(RING_ARCHITECTURES.0, RING_ARCHITECTURES.1));
    rows.chain(rings).chain([Variant::of(&Small::Count)]).collect()
}

pub(super) fn workspace(tokens: i64) -> u64 {
    COUNT_BYTES + (tokens as u64 * 4).next_multiple_of(16)
}

/// `Args` of `cross_entropy.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    x: Ptr,
    ldx: i64,
    dx: Ptr,
    lddx: i64,
    target: Ptr,
    dloss: Ptr,
    dloss_stride: i64,
    count: Ptr,
    loss: Ptr,
    lse: Ptr,
    partial: Ptr,
    combined: Ptr,
    tokens: i64,
    cols: i64,
    start: i64,
    vocabulary: i64,
    ignore: i64,
    smoothing: f32,
    narrow: i32,
    blocks: u32,
}

/// `Args` of `loss.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct SmallArgs {
    target: Ptr,
    partials: Ptr,
    ranks: i64,
    rank_stride: i64,
    combined: Ptr,
    loss: Ptr,
    lse: Ptr,
    total: Ptr,
    count: Ptr,
    tokens: i64,
    vocabulary: i64,
    ignore: i64,
    smoothing: f32,
    narrow: i32,
}

impl SmallArgs {
    fn new(t: &Targets, tokens: i64, vocabulary: i64) -> Self {
        Self {
            target: t.data,
            partials: Ptr::NULL,
            ranks: 0,
            rank_stride: 0,
            combined: Ptr::NULL,
            loss: Ptr::NULL,
            lse: Ptr::NULL,
            total: Ptr::NULL,
            count: Ptr::NULL,
            tokens,
            vocabulary,
            ignore: t.ignore_index,
            smoothing: t.label_smoothing,
            narrow: i32::from(t.dtype == TargetType::I32),
        }
    }
}

/// 16-byte vectors that a row touches at most.
fn vectors_of(t: &TensorView) -> u64 {
    let n = 16 / t.dtype.size() as u64;
    // Rows that may start anywhere take up to a vector more.
    let aligned = t.data.0 % 16 == 0 && (t.rows <= 1 || t.ld as u64 % n == 0);
    (t.cols as u64).saturating_add(if aligned { 0 } else { n - 1 }).div_ceil(n)
}

/// `RingArgs` of the kernel, behind its `Args`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RingArgs {
    row: Args,
    stages: u32,
    slice: u32,
    pieces: u32,
}

/// How `cross_entropy_ring` takes rows: blocks of a cluster, pieces of a row and vectors of one, stages. Nothing where it does not.
fn ring_plan(x: &TensorView, dx: Option<&TensorView>, arch: i32, shared_memory: u32) -> Option<[u32; 4]> {
    let vectors = vectors_of(x);
    let device = (RING_ARCHITECTURES.0..=RING_ARCHITECTURES.1).contains(&arch) && shared_memory >= RING_BYTES + 8 * 1024;
    let stride = |t: &TensorView| t.ld as u64 * t.dtype.size() as u64 % 16;
    let together = dx.is_none_or(|dx| dx.data.0 % 16 == x.data.0 % 16 && (x.rows <= 1 || stride(dx) == stride(x)));
    // Columns are counted in 31 bits.
    if !device || !together || x.cols > 1 << 30 || vectors * 16 <= RING_ROW_BYTES {
        return None;
    }
    // As many for each group.
    let stages = |slice: u64| (u64::from(RING_BYTES) / (slice * 16)).min(RING_STAGES) / RING_GROUPS * RING_GROUPS;
    if dx.is_none() {
        return Some([1, vectors.div_ceil(PIECE), PIECE, stages(PIECE)].map(|n| n as u32));
    }
    // Twice the stages are worth a neighbour to wait for. Clusters of 4 leave as many multiprocessors idle as those of 8 do.
    let cluster = if vectors * 16 <= 2 * SLICE_BYTES { 2 } else { MAX_CLUSTER };
    let slice = vectors.div_ceil(cluster);
    (slice * 16 <= SLICE_BYTES).then(|| [cluster, 1, slice, stages(slice)].map(|n| n as u32))
}

/// As many blocks as the device holds at a time.
fn ring_launch(queue: &Queue<'_>, ring: &Ring, plan: [u32; 4], rows: i64) -> Result<Launch> {
    let mut launch = Launch::new([1, 1, 1], RING_GROUPS as u32 * RING_THREADS + 32);
    (launch.cluster, launch.smem) = (plan[0], RING_BYTES);
    queue.load(ring)?;
    let clusters = if launch.cluster == 1 { queue.multiprocessors() } else { queue.clusters(ring, &launch)? };
    launch.grid[0] = clusters.min(rows.clamp(1, 1 << 30) as u32) * launch.cluster;
    Ok(launch)
}

/// Blocks of a row and threads of a block of `cross_entropy_row`; nothing where the row is too long for the device's registers.
fn row_plan(t: &TensorView, arch: i32) -> Option<(u32, u32)> {
    let vectors = vectors_of(t);
    let most = if arch >= 90 { MAX_CLUSTER } else { 1 };
    let blocks = vectors.div_ceil(SLOTS * ROW_THREADS).max(1).next_power_of_two();
    // The grid counts rows in 31 bits.
    let fits = blocks <= most && (t.rows as u64).saturating_mul(blocks) <= MAX_GRID_X;
    fits.then(|| (blocks as u32, vectors.div_ceil(SLOTS * blocks).next_multiple_of(32).max(32) as u32))
}

/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn cross_entropy(backend: &CudaBackend, a: &Job, stream: Stream) -> Result<()> {
    let queue = Queue::new(backend, stream)?;
    let (x, t) = (&a.logits, &a.targets);
    let total = !a.losses.total.is_null();
    let ring = Ring { dtype: x.dtype };
    let dx = a.gradient.as_ref().map(|g| &g.dlogits);
    let plan = match ring_plan(x, dx, backend.capability.arch, backend.max_shared_memory) {
        Some(plan) => Some((ring_launch(&queue, &ring, plan, x.rows)?, plan)),
        None => None,
    };
    let (kernel, launch) = match (&plan, row_plan(x, backend.capability.arch)) {
        (Some((launch, _)), _) => (Kernel::Row, *launch),
        (None, Some((cluster, threads))) => {
            let mut launch = Launch::new([x.rows.max(1) as u32 * cluster, 1, 1], threads);
            launch.cluster = cluster;
            (Kernel::Row, launch)
        }
        (None, None) => (Kernel::Loop, Launch::new([(x.rows as u64).clamp(1, MAX_GRID_X) as u32, 1, 1], LOOP_THREADS)),
    };
    let spec = Spec { kernel, dtype: x.dtype };
    // Nothing is enqueued unless all of it can be.
    if plan.is_none() {
        queue.load(&spec)?;
    }
    if total {
        queue.load(&Small::Total)?;
    }
    let mut small = SmallArgs::new(t, x.rows, a.vocabulary);
    if a.needs_count() {
        small.count = a.workspace;
        // SAFETY: `Args` of the kernel, with pointers live by contract.
        unsafe { queue.launch(&Small::Count, &Launch::new([1, 1, 1], 1024), arguments![small])? };
    }
    small.loss = if total && a.losses.loss.is_null() { a.workspace.offset(COUNT_BYTES) } else { a.losses.loss };
    let args = Args {
        x: x.data,
        ldx: x.ld,
        dx: a.gradient.map_or(Ptr::NULL, |g| g.dlogits.data),
        lddx: a.gradient.map_or(0, |g| g.dlogits.ld),
        target: t.data,
        dloss: a.gradient.map_or(Ptr::NULL, |g| g.dloss),
        dloss_stride: a.gradient.map_or(0, |g| g.dloss_stride),
        count: small.count,
        loss: small.loss,
        lse: a.losses.logsumexp,
        partial: a.partial,
        combined: a.combined,
        tokens: x.rows,
        cols: x.cols,
        start: a.start,
        vocabulary: a.vocabulary,
        ignore: t.ignore_index,
        smoothing: t.label_smoothing,
        narrow: small.narrow,
        blocks: launch.cluster,
    };
    match plan {
        // With no columns there are losses all the same.
        _ if x.rows == 0 => (),
        Some((_, [_, pieces, slice, stages])) => {
            let args = RingArgs { row: args, stages, slice, pieces };
            // SAFETY: as above.
            unsafe { queue.launch(&ring, &launch, arguments![args])? };
        }
        // SAFETY: as above.
        None => unsafe { queue.launch(&spec, &launch, arguments![args])? },
    }
    if !total {
        return Ok(());
    }
    small.total = a.losses.total;
    // SAFETY: as above.
    unsafe { queue.launch(&Small::Total, &Launch::new([1, 1, 1], 1024), arguments![small]) }
}

/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn combine(backend: &CudaBackend, a: &CrossEntropyCombineArgs, stream: Stream) -> Result<()> {
    let queue = Queue::new(backend, stream)?;
    let total = !a.losses.total.is_null();
    queue.load(&Small::Combine)?;
    let mut args = SmallArgs::new(&a.targets, a.tokens, a.vocabulary);
    if total {
        queue.load(&Small::Total)?;
        if a.targets.reduction == Reduction::Mean {
            args.count = a.workspace;
            // SAFETY: `Args` of the kernel, with pointers live by contract.
            unsafe { queue.launch(&Small::Count, &Launch::new([1, 1, 1], 1024), arguments![args])? };
        }
    }
    (args.partials, args.ranks, args.rank_stride, args.combined) = (a.partials, a.ranks, a.rank_stride, a.combined);
    args.loss = if total && a.losses.loss.is_null() { a.workspace.offset(COUNT_BYTES) } else { a.losses.loss };
    args.lse = a.losses.logsumexp;
    if a.tokens > 0 {
        let grid = (a.tokens as u64).div_ceil(256).min(MAX_GRID_X) as u32;
        // SAFETY: as above.
        unsafe { queue.launch(&Small::Combine, &Launch::new([grid, 1, 1], 256), arguments![args])? };
    }
    if !total {
        return Ok(());
    }
    args.total = a.losses.total;
    // SAFETY: as above.
    unsafe { queue.launch(&Small::Total, &Launch::new([1, 1, 1], 1024), arguments![args]) }
}

/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn scale_rows(backend: &CudaBackend, a: &ScaleRowsArgs, stream: Stream) -> Result<()> {
    /// `ScaleArgs` of the kernel.
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Args {
        x: Ptr,
        ldx: i64,
        scale: Ptr,
        stride: i64,
        rows: i64,
        cols: i64,
    }
    let queue = Queue::new(backend, stream)?;
    let spec = Spec { kernel: Kernel::ScaleRows, dtype: a.x.dtype };
    if a.x.is_empty() {
        return queue.load(&spec);
    }
    let args = Args { x: a.x.data, ldx: a.x.ld, scale: a.scale, stride: a.stride, rows: a.x.rows, cols: a.x.cols };
    // Few blocks, that walk over the rows: where the scale is 1 they are gone at once.
    let grid = blocks((a.x.rows as u64).min(u64::from(queue.multiprocessors()) * 4), MAX_GRID_X, "blocks of rows")?;
    // SAFETY: as above.
    unsafe { queue.launch(&spec, &Launch::new([grid, 1, 1], LOOP_THREADS), arguments![args]) }
}
