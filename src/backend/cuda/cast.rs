//! Casts to FP8 on CUDA: launches of `kernels/cast.cu`, and of `kernels/dbias.cu` behind it.

use super::{
    amax,
    jit::kernel_spec,
    launch::{arguments, blocks, Launch, Queue},
    sources::SourceFile,
    testing::Variant,
    tile::{self, has_halo, vector, Ahead, Layout, Walk, HALO_ELEMENTS, THREADS, TILE},
    CudaBackend,
};
use crate::{
    context::Stream,
    error::Result,
    ops::cast::{BiasGradient, CastJob},
    tensor::{DType, Ptr},
};

const HIGH: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

#[derive(Clone, Copy)]
struct Cast {
    input: DType,
    output: DType,
    dbias: bool,
    halo: bool,
    entry: Entry,
}

/// Which kernel of the module.
#[derive(Clone, Copy, PartialEq)]
enum Entry {
    Tile,
    Any,
    Pair,
    Low,
    Held,
}

kernel_spec!(
    Cast: Cast, s => match s.entry {
        Entry::Tile => "cast_tile",
        Entry::Any => "cast_any",
        Entry::Pair => "cast_pair",
        Entry::Low => "cast_low",
        Entry::Held => "cast_held",
    },
    "IN" = s.input, "OUT" = s.output, "DBIAS" = s.dbias, "HALO" = s.halo; also s.entry;
    smem = if s.entry == Entry::Held { HELD_SMEM } else { 0 }
);

/// `cast_held`: threads of a block, the tiles that one holds, and what of them lies in shared memory.
const HELD_THREADS: u32 = 2 * 256 + 32;
const HELD_TILES: u32 = 9;
const HELD_SMEM: u32 = 7 * 32 * 1024;
/// Where it was measured; and the bytes of a tensor from which on it is faster than two launches.
const HELD_ARCH: i32 = 90;
const HELD_LEAST: u64 = 4_000_000;

#[derive(Clone, Copy)]
pub(super) struct Dbias;

kernel_spec!(Dbias: Dbias, s => "dbias_finish");

/// Every module of this family.
pub(super) fn variants() -> Vec<Variant> {
    let mut all = Vec::new();
    for input in HIGH {
        for output in [DType::E4m3, DType::E5m2] {
            for (dbias, halo) in [(false, false), (false, true), (true, false), (true, true)] {
                all.push(Variant::of(&Cast { input, output, dbias, halo, entry: Entry::Tile }));
            }
        }
    }
    all.push(Variant::of(&Dbias));
    all
}

/// `CastParams` of the kernel.
#[derive(Clone, Copy)]
#[repr(C)]
struct Params {
    x: Ptr,
    q: Ptr,
    qt: Ptr,
    scale: Ptr,
    scale_inv: Ptr,
    amax: Ptr,
    kept: Ptr,
    skip: Ptr,
    partials: Ptr,
    sums: Ptr,
    dbias: Ptr,
    ldx: i64,
    ldq: i64,
    ldqt: i64,
    rows: i64,
    cols: i64,
    last: i64,
    col_tiles: u32,
    partial_count: u32,
    tail: u32,
    power_of_two: u32,
    empty: u32,
    margin_factor: f32,
    epsilon: f32,
    dbias_dtype: u32,
    accumulate: u32,
    tiles: u32,
    early: u32,
    ahead: u32,
    cached: u32,
}

/// `DbiasParams` of the kernel.
#[repr(C)]
struct DbiasParams {
    partials: Ptr,
    out: Ptr,
    count: i64,
    cols: i64,
    accumulate: u32,
    dtype: u32,
}

/// Rows whose sums the cast kernels leave as one partial row.
pub(super) fn partial_rows(rows: i64) -> i64 {
    (rows as u64).div_ceil(TILE as u64).max(1) as i64
}

/// Bytes of the partial sums.
pub(super) fn dbias_workspace(rows: i64, cols: i64) -> u64 {
    partial_rows(rows) as u64 * cols as u64 * 4
}

/// `CastPair` of the kernel.
#[repr(C)]
struct Pair {
    first: Params,
    second: Params,
    blocks: u32,
    pad: u32,
}

/// How a cast is cut into blocks. Current scaling is not filled in.
struct Cut {
    params: Params,
    blocks: u32,
    /// Threads of a block.
    threads: u32,
    aligned: bool,
    /// Tiles have a halo.
    halo: bool,
    /// The column sums that a second kernel adds up: those of more than one row of tiles.
    unfinished: Option<BiasGradient>,
}

/// For `multiprocessors` to share out; `full`: in tiles of full height, whatever their number.
fn cut(job: &CastJob, multiprocessors: u32, full: bool) -> Result<Cut> {
    let (x, q) = (&job.input, &job.output);
    let dbias = job.dbias.filter(|_| x.cols > 0);
    let at_once = dbias.filter(|_| partial_rows(x.rows) == 1);
    let v = vector(x.dtype);
    let row_wise = [Layout::new(x.data, x.ld, x.dtype, 16), Layout::new(q.data, q.ld, q.dtype, v as u64)];
    let foldable = q.data_t.is_null() && dbias.is_none();
    let walk = Walk::new(x.rows, x.cols, v, &row_wise, foldable, TILE);
    let halo = walk.aligned && has_halo(q.data_t, q.ld_t, x.rows, x.cols);
    // A thread takes the same work in a lower tile, so that is a matter of how many multiprocessors have something to do. Column sums
    // are those of full tiles, and a halo is as high above a lower one.
    let (mut col_tiles, mut blocks) = walk.tiles(TILE, TILE)?;
    let mut threads = THREADS;
    let given = Ahead::new(multiprocessors, blocks.into(), x.dtype, !q.data_t.is_null());
    // Current scaling reads x before its turn as it is, and finds some of it, or all, in the cache.
    let ahead = match job.current {
        None => given,
        Some(_) if amax::cached(x) => Ahead::default(),
        Some(_) => Ahead { early: 0, ..given },
    };
    if blocks < 4 * multiprocessors && !full && dbias.is_none() && !halo {
        threads = THREADS / 2;
        (col_tiles, blocks) = walk.tiles(TILE / 2, TILE)?;
    }
    let params = Params {
        x: x.data,
        q: q.data,
        qt: q.data_t,
        scale: q.scale,
        scale_inv: q.scale_inv,
        amax: q.amax,
        kept: job.keep_scale,
        skip: job.skip,
        partials: Ptr::NULL,
        sums: if dbias.is_some() { job.workspace.offset(amax::WORKSPACE) } else { Ptr::NULL },
        dbias: at_once.map_or(Ptr::NULL, |b| b.ptr),
        ldx: walk.stride(x.ld),
        ldq: walk.stride(q.ld),
        ldqt: q.ld_t,
        rows: walk.rows,
        cols: walk.cols,
        last: walk.last,
        col_tiles,
        partial_count: 0,
        tail: walk.tail,
        power_of_two: job.current.is_some_and(|c| c.power_of_two).into(),
        empty: x.is_empty().into(),
        margin_factor: job.current.map_or(1.0, |c| c.margin_factor()),
        epsilon: job.current.map_or(0.0, |c| c.epsilon),
        dbias_dtype: at_once.map_or(0, |b| b.dtype as u32),
        accumulate: at_once.is_some_and(|b| b.accumulate).into(),
        tiles: blocks,
        early: ahead.early,
        ahead: ahead.steady,
        cached: (job.current.is_some() && amax::cached(x)).into(),
    };
    Ok(Cut { params, blocks, threads, aligned: walk.aligned, halo, unfinished: dbias.filter(|_| at_once.is_none()) })
}

/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn cast(backend: &CudaBackend, job: &CastJob, stream: Stream) -> Result<()> {
    let queue = Queue::new(backend, stream)?;
    let (x, q) = (&job.input, &job.output);
    let Cut { mut params, blocks, threads, aligned, halo, unfinished } = cut(job, queue.multiprocessors(), false)?;
    if job.current.is_some() {
        params.partials = job.workspace;
        let spec = Cast { input: x.dtype, output: q.dtype, dbias: false, halo: false, entry: Entry::Held };
        if let Some((params, launch)) = if aligned { held(&queue, job, &spec, &params)? } else { None } {
            // SAFETY: the kernel's one parameter; the workspace has a word for each block; pointers live by contract.
            match unsafe { queue.launch(&spec, &launch, arguments![params]) } {
                Err(e) if REFUSED.contains(&e.code()) => {}
                // What is prepared may run on a stream of any priority.
                Ok(()) if queue.stream.is_prepare() => {}
                done => return done,
            }
        }
        // SAFETY: forwarded contract; the workspace starts with room for the partials.
        params.partial_count = unsafe { amax::partials(&queue, x, params.partials) }?;
    }
    if let (true, Some((params, blocks))) = (aligned, low(job, &params, queue.multiprocessors())?) {
        let spec = Cast { input: x.dtype, output: q.dtype, dbias: false, halo: false, entry: Entry::Low };
        // SAFETY: the kernel's one parameter; pointers live by contract.
        return unsafe { queue.launch(&spec, &Launch::new([blocks, 1, 1], THREADS), arguments![params]) };
    }
    if unfinished.is_some() {
        queue.load(&Dbias)?;
    }
    let entry = if aligned { Entry::Tile } else { Entry::Any };
    let spec = Cast { input: x.dtype, output: q.dtype, dbias: !params.sums.is_null(), halo, entry };
    // SAFETY: the kernel's one parameter, the partial sums in stream order; pointers live by contract.
    unsafe {
        queue.launch(&spec, &Launch::new([blocks, 1, 1], threads), arguments![params])?;
        finish_sums(&queue, job, &params, &unfinished)
    }
}

/// A small tensor in lower tiles, by `cast_low`.
fn low(job: &CastJob, params: &Params, multiprocessors: u32) -> Result<Option<(Params, u32)>> {
    let q = &job.output;
    if job.current.is_some() || job.dbias.is_some() || params.last != params.cols || params.tail != 0 {
        return Ok(None);
    }
    let found = tile::low(params.rows, params.cols, &Layout::new(q.data_t, q.ld_t, q.dtype, 8), multiprocessors)?;
    Ok(found.map(|(col_tiles, tiles)| (Params { col_tiles, ..*params }, tiles)))
}

/// `CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE` and `CUDA_ERROR_NOT_SUPPORTED`.
const REFUSED: [i32; 2] = [720, 801];

/// Current scaling in one launch of `cast_held`, where the chip holds the tensor and the device all blocks at a time.
fn held(queue: &Queue<'_>, job: &CastJob, spec: &Cast, params: &Params) -> Result<Option<(Params, Launch)>> {
    let (backend, x, q) = (queue.backend, &job.input, &job.output);
    let bytes = (x.rows as u64).saturating_mul(x.cols as u64).saturating_mul(x.dtype.size() as u64);
    let room = backend.capability.arch == HELD_ARCH && backend.max_shared_memory >= HELD_SMEM + 1024;
    let aligned = params.tail == 0 && Layout::new(q.data_t, q.ld_t, q.dtype, 16).aligned(2);
    if !room || !aligned || bytes < HELD_LEAST || job.dbias.is_some() || !queue.default_priority() {
        return Ok(None);
    }
    let (col_tiles, tiles) = tile::tiles(params.rows, params.cols, TILE, 16 * vector(x.dtype))?;
    let blocks = queue.multiprocessors().min(tiles);
    if tiles > blocks * HELD_TILES {
        return Ok(None);
    }
    let launch = Launch { smem: HELD_SMEM, cooperative: true, ..Launch::new([blocks, 1, 1], HELD_THREADS) };
    let fits = queue.clusters(spec, &launch)? >= blocks;
    Ok(fits.then_some((Params { col_tiles, tiles, ..*params }, launch)))
}

/// # Safety
/// The kernel that leaves the partial sums has been enqueued.
unsafe fn finish_sums(queue: &Queue<'_>, job: &CastJob, params: &Params, unfinished: &Option<BiasGradient>) -> Result<()> {
    match unfinished {
        // SAFETY: forwarded contract.
        Some(b) => unsafe { finish_dbias(queue, params.sums, partial_rows(job.input.rows), job.input.cols, b) },
        None => Ok(()),
    }
}

/// An input or a gradient and a weight with given scales, in one launch where one kernel serves both.
///
/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn cast_pair(backend: &CudaBackend, a: &CastJob, b: &CastJob, stream: Stream) -> Result<()> {
    let multiprocessors = backend.capability.multiprocessors as u32;
    let (first, second) = (cut(a, multiprocessors, true)?, cut(b, multiprocessors, true)?);
    let blocks = first.blocks.checked_add(second.blocks).filter(|n| *n <= 0x7FFF_FFFF);
    let given = a.current.is_none() && b.current.is_none() && b.dbias.is_none();
    let same = a.input.dtype == b.input.dtype && b.output.dtype == DType::E4m3 && first.aligned && second.aligned;
    // Two casts with a halo may be faster.
    let halo =
        [(&first, a), (&second, b)].iter().any(|(cut, job)| cut.halo && job.input.rows.saturating_mul(job.input.cols) >= HALO_ELEMENTS);
    let (Some(blocks), true, true, false) = (blocks, given, same, halo) else {
        // SAFETY: forwarded contract.
        return unsafe { cast(backend, a, stream).and_then(|()| cast(backend, b, stream)) };
    };
    let queue = Queue::new(backend, stream)?;
    let spec = Cast { input: a.input.dtype, output: a.output.dtype, dbias: !first.params.sums.is_null(), halo: false, entry: Entry::Pair };
    if first.unfinished.is_some() {
        queue.load(&Dbias)?;
    }
    let pair = Pair { first: first.params, second: second.params, blocks: first.blocks, pad: 0 };
    // SAFETY: the kernel's one parameter, the partial sums in stream order; pointers live by contract.
    unsafe {
        queue.launch(&spec, &Launch::new([blocks, 1, 1], THREADS), arguments![pair])?;
        finish_sums(&queue, a, &pair.first, &first.unfinished)
    }
}

/// Adds up `count` partial rows of column sums.
///
/// # Safety
/// `partials` is `[count, cols]` f32, the bias gradient `[cols]`, both live.
pub(super) unsafe fn finish_dbias(queue: &Queue<'_>, partials: Ptr, count: i64, cols: i64, b: &BiasGradient) -> Result<()> {
    let params = DbiasParams { partials, out: b.ptr, count, cols, accumulate: b.accumulate.into(), dtype: b.dtype as u32 };
    let grid = blocks((cols as u64).div_ceil(32), 0x7FFF_FFFF, "columns")?;
    // SAFETY: the kernel's one parameter; pointers live by contract.
    unsafe { queue.launch(&Dbias, &Launch::new([grid, 1, 1], 2 * THREADS), arguments![params]) }
}
