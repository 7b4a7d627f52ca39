//! LayerNorm and RMSNorm on CUDA: which of the kernels of `kernels/norm_fwd.cu`, `norm_fwd_row.cu`, `norm_fwd_any.cu`, `norm_bwd.cu`
//! and `norm_bwd_any.cu` runs, and how.

use super::{
    dequantize::{load_transpose, transpose},
    jit::kernel_spec,
    launch::{arguments, blocks, Launch, Queue},
    norm_any::{slabs, Any, AnyArgs, AnyForward, AnyRows, Ring, RingSpec, STRIP},
    sources::SourceFile,
    testing::Variant,
    CudaBackend,
};
use crate::{
    context::Stream,
    error::Result,
    ops::{
        dequantize::TransposeArgs,
        norm::{Norm, NormBwdArgs, NormFwdArgs},
    },
    tensor::{DType, Ptr, TensorView},
};

const HIGH: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

const MAX_GRID_X: u64 = 0x7FFF_FFFF;

/// Elements of a 16-byte vector.
pub(super) fn vector(dtype: DType) -> u64 {
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
    let mut all = vec![Variant::of(&Any::Dx)];
    for dtype in HIGH {
        all.push(Variant::of(&ForwardSpec { kernel: Forward::Add, x: dtype, norm: Norm::Layer }));
        for norm in [Norm::Layer, Norm::Rms] {
            for fp8 in [false, true] {
                for octets in ROW_OCTETS.into_iter().filter(|o| row_octets_serve(*o, dtype, norm, fp8)) {
                    all.push(Variant::of(&RowSpec { x: dtype, norm, fp8, octets }));
                }
            }
            all.push(Variant::of(&ForwardSpec { kernel: Forward::Transposed, x: dtype, norm }));
            all.push(Variant::of(&AnyForward { vectors: true, x: dtype, norm, smem: 0 }));
            if Ring::serves(dtype) {
                all.push(Variant::of(&RingSpec { x: dtype, norm, smem: 0 }).on(90, 999));
            }
            for octets in BACKWARD_OCTETS {
                all.push(Variant::of(&BackwardSpec { dtype, norm, octets, cluster: false, smem: 0 }));
            }
            all.push(Variant::of(&BackwardSpec { dtype, norm, octets: CLUSTER_OCTETS, cluster: true, smem: 0 }).on(90, 999));
        }
    }
    all
}

// ---------------------------------------------------------------- rings of rows

/// Shared memory of a kernel with a ring of rows, per thread: of each stage of the ring; of each group once the ring is done with;
/// of one group, for all.
struct Bytes {
    stage: u64,
    group: u64,
    block: u64,
    /// Stages at most: one more to fill is a longer start.
    stages: u64,
}

/// How `norm_bwd_row` runs: one block per multiprocessor, groups of warps with a row each, a ring of rows to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RowPlan {
    octets: u64,
    warps: u32,
    groups: u32,
    stages: u32,
    smem: u32,
    grid: u32,
}

impl RowPlan {
    /// At most `threads` of them, each with `octets` times eight columns; nothing where a row takes more, or more than `max_smem`.
    fn new(octets: u64, threads: u64, cols: u64, rows: u64, multiprocessors: u32, max_smem: u32, bytes: Bytes) -> Option<Self> {
        let row_threads = cols.max(1).div_ceil(8 * octets).next_multiple_of(32);
        // As many groups as fit; fewer where there are not enough rows for all multiprocessors, or no second stage to fetch into.
        let most = (threads / row_threads).min(rows.max(1).div_ceil(u64::from(multiprocessors)));
        let room = u64::from(max_smem).checked_sub(row_threads * bytes.block)?;
        let stages = |groups: u64| (room / (row_threads * groups * bytes.stage)).min(bytes.stages);
        let groups = (1..=most).rev().find(|g| stages(*g) >= 2).or((most > 0 && stages(1) > 0).then_some(1))?;
        let ring = stages(groups) * row_threads * groups * bytes.stage;
        let smem = (row_threads * bytes.block + ring).max(row_threads * groups * bytes.group);
        (smem <= u64::from(max_smem)).then(|| Self {
            octets,
            warps: (row_threads / 32) as u32,
            groups: groups as u32,
            stages: stages(groups) as u32,
            smem: smem as u32,
            grid: rows.max(1).div_ceil(groups).min(u64::from(multiprocessors)) as u32,
        })
    }

    fn launch(&self) -> Launch {
        let mut launch = Launch::new([self.grid, 1, 1], self.warps * 32 * self.groups);
        launch.smem = self.smem;
        launch
    }
}

/// What the driver and static arrays take of a block's shared memory is less than 1 KiB.
fn max_smem(queue: &Queue<'_>) -> u32 {
    queue.backend.max_shared_memory.saturating_sub(1024)
}

// ---------------------------------------------------------------- forward

/// `norm_fwd_row`: columns of a thread in eights, with the most threads each leaves registers for; rows of a block where one warp has a row.
const ROW_OCTETS: [u64; 3] = [4, 5, 8];
const ROW_THREADS: [u64; 3] = [1024, 896, 512];
/// Rows beyond this are shared out in eight octets a thread, where that is faster.
const LONG_ROW: u64 = 5120;
const ROWS_PER_BLOCK: u64 = 4;

/// The kernels of `norm_fwd.cu`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Forward {
    Transposed,
    Add,
}

#[derive(Clone, Copy)]
struct ForwardSpec {
    kernel: Forward,
    x: DType,
    norm: Norm,
}

kernel_spec!(
    ForwardSpec: NormFwd, s => match s.kernel {
        Forward::Transposed => "norm_fwd_transposed",
        Forward::Add => "norm_fwd_add",
    },
    "X" = s.x, "RMS" = s.norm, "KERNEL" = s.kernel
);

/// `norm_fwd_row`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct RowSpec {
    x: DType,
    norm: Norm,
    /// Whether y is FP8.
    fp8: bool,
    octets: u64,
}

kernel_spec!(RowSpec: NormFwdRow, s => "norm_fwd_row", "X" = s.x, "RMS" = s.norm, "FP8" = s.fp8, "OCTETS" = s.octets);

/// `Args` of `norm_fwd.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ForwardArgs {
    x: Ptr,
    ldx: i64,
    residual: Ptr,
    ld_residual: i64,
    sum: Ptr,
    ld_sum: i64,
    gamma: Ptr,
    beta: Ptr,
    y: Ptr,
    ldy: i64,
    yt: Ptr,
    ldyt: i64,
    mu: Ptr,
    rsigma: Ptr,
    scale: Ptr,
    scale_inv: Ptr,
    amax: Ptr,
    rows: i64,
    hidden: i64,
    eps: f32,
    inv_n: f32,
    gamma_dt: i32,
    beta_dt: i32,
    y_dt: i32,
    zero_centered: i32,
    warps: i32,
    slots: i32,
    kept: i32,
    again: i32,
}

/// Whether x can be read, and everything else read and written, a vector of x at a time.
fn forward_vectors(a: &NormFwdArgs) -> (bool, bool) {
    let n = vector(a.x.dtype);
    let x = a.x.cols as u64 % n == 0 && aligned(&a.x, 16);
    let unit = |d: DType| (n * d.size() as u64).min(16);
    let parameter = |p: &Option<TensorView>| p.is_none_or(|t| t.data.0 % unit(t.dtype) == 0);
    let stream = [&a.residual, &a.sum].into_iter().flatten().all(|t| aligned(t, 16));
    (x, x && stream && aligned(&a.y, unit(a.y.dtype)) && parameter(&a.gamma) && parameter(&a.beta))
}

/// Whether there is a `norm_fwd_row` of this kind. Four octets serve all; the fifth is worth its registers where they hold 16 bits each;
/// eight are unpacked once for each pass, which pays with bf16, and where memory alone is not the limit.
fn row_octets_serve(octets: u64, x: DType, norm: Norm, fp8: bool) -> bool {
    match octets {
        4 => true,
        5 => x != DType::F32,
        _ => x == DType::Bf16 && (fp8 || norm == Norm::Layer),
    }
}

/// How `norm_fwd_row` runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct RowForward {
    octets: u64,
    /// Of a row, and vectors of a thread in it.
    warps: u32,
    slots: u32,
    grid: u32,
}

impl RowForward {
    /// Nothing where a row is too long for the threads' registers, or where there are too many for a launch.
    fn new(dtype: DType, norm: Norm, fp8: bool, rows: u64, cols: u64) -> Option<Self> {
        let fits = |i: &usize| {
            let octets = ROW_OCTETS[*i];
            row_octets_serve(octets, dtype, norm, fp8)
                && (octets < 8 || cols > LONG_ROW)
                && cols.div_ceil(8 * octets).next_multiple_of(32) <= ROW_THREADS[*i]
        };
        // Long rows: the most octets. Else the fewest columns beyond the row, then the fewest warps.
        let padded = |i: &usize| cols.next_multiple_of(32 * 8 * ROW_OCTETS[*i]);
        let octets = ROW_OCTETS[if fits(&2) { 2 } else { [1, 0].into_iter().filter(fits).min_by_key(padded)? }];
        let warps = cols.max(1).div_ceil(32 * 8 * octets);
        let slots = (cols / vector(dtype)).div_ceil(32 * warps);
        let per_block = if warps == 1 { ROWS_PER_BLOCK } else { 1 };
        let grid = rows.div_ceil(per_block).max(1);
        (grid <= MAX_GRID_X).then_some(Self { octets, warps: warps as u32, slots: slots as u32, grid: grid as u32 })
    }

    fn launch(&self) -> Launch {
        Launch::new([self.grid, 1, 1], 32 * if self.warps == 1 { ROWS_PER_BLOCK as u32 } else { self.warps })
    }
}

/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn norm_fwd(backend: &CudaBackend, norm: Norm, a: &NormFwdArgs, stream: Stream) -> Result<()> {
    let queue = Queue::new(backend, stream)?;
    let (x, y) = (&a.x, &a.y);
    let ((gamma, gamma_dt), (beta, beta_dt)) = (parameter(&a.gamma), parameter(&a.beta));
    let mut args = ForwardArgs {
        x: x.data,
        ldx: x.ld,
        residual: a.residual.map_or(Ptr::NULL, |t| t.data),
        ld_residual: a.residual.map_or(0, |t| t.ld),
        sum: a.sum.map_or(Ptr::NULL, |t| t.data),
        ld_sum: a.sum.map_or(0, |t| t.ld),
        gamma,
        beta,
        y: y.data,
        ldy: y.ld,
        yt: Ptr::NULL,
        ldyt: 0,
        mu: a.mu,
        rsigma: a.rsigma,
        scale: y.scale,
        scale_inv: y.scale_inv,
        amax: y.amax,
        // A tensor without elements still has its scale_inv written.
        rows: if x.is_empty() { 0 } else { x.rows },
        hidden: x.cols,
        eps: a.eps,
        inv_n: 1.0 / x.cols as f32,
        gamma_dt,
        beta_dt,
        y_dt: y.dtype as i32,
        zero_centered: i32::from(a.zero_centered_gamma),
        warps: 0,
        slots: 0,
        kept: 0,
        again: i32::from(!y.data_t.is_null()),
    };
    let (mut x_vectors, vectors) = forward_vectors(a);
    let multiprocessors = queue.multiprocessors();
    let transposed = !y.data_t.is_null() && !x.is_empty();
    let (rows, cols) = (args.rows as u64, x.cols as u64);
    if transposed && y.data.is_null() {
        let spec = ForwardSpec { kernel: Forward::Transposed, x: x.dtype, norm };
        if let Some(sum) = &a.sum {
            // Nothing is enqueued unless all of it can be.
            queue.load(&spec)?;
            let launch = Launch::new([rows.clamp(1, MAX_GRID_X) as u32, 1, 1], cols.div_ceil(4).next_multiple_of(32).clamp(32, 512) as u32);
            // SAFETY: `Args`, with pointers live by contract.
            unsafe { queue.launch(&ForwardSpec { kernel: Forward::Add, x: x.dtype, norm: Norm::Layer }, &launch, arguments![args])? };
            (args.x, args.ldx, args.residual) = (sum.data, sum.ld, Ptr::NULL);
            x_vectors = cols % vector(x.dtype) == 0 && aligned(sum, 16);
        }
        (args.yt, args.ldyt, args.warps) = (y.data_t, y.ld_t, i32::from(x_vectors));
        let tiles = blocks((x.rows as u64).div_ceil(64), MAX_GRID_X, "tiles of rows")?;
        // Shares of the columns, until every multiprocessor has two blocks; each share finds the statistics of its rows anew.
        let shares = (u64::from(multiprocessors) * 2 / u64::from(tiles)).clamp(1, (x.cols as u64).div_ceil(64).min(64));
        // SAFETY: as above.
        return unsafe { queue.launch(&spec, &Launch::new([tiles, shares as u32, 1], 256), arguments![args]) };
    }
    if transposed {
        // Nothing is enqueued unless all of it can be.
        load_transpose(&queue)?;
    }
    if let Some(p) = RowForward::new(x.dtype, norm, y.dtype.is_fp8(), rows, cols).filter(|_| vectors) {
        (args.warps, args.slots) = (p.warps as i32, p.slots as i32);
        let spec = RowSpec { x: x.dtype, norm, fp8: y.dtype.is_fp8(), octets: p.octets };
        // SAFETY: as above.
        unsafe { queue.launch(&spec, &p.launch(), arguments![args])? };
    } else {
        let max_smem = max_smem(&queue);
        let clusters = vectors && a.residual.is_none() && queue.backend.capability.arch >= 90;
        let smem = max_smem.saturating_sub(Ring::SMEM_LESS);
        if let Some(p) = clusters.then(|| Ring::new(x.dtype, norm, cols, smem)).flatten() {
            (args.warps, args.slots, args.kept) = (p.warps as i32, p.slots as i32, Ring::STAGES as i32);
            let spec = RingSpec { x: x.dtype, norm, smem };
            let (mut launch, wanted) = p.launch(rows);
            launch.grid[0] *= wanted.min(queue.clusters(&spec, &launch)?);
            // SAFETY: as above.
            unsafe { queue.launch(&spec, &launch, arguments![args])? };
        } else {
            let (p, kept) = AnyRows::forward(vectors, x.dtype, rows, cols, multiprocessors, max_smem);
            (args.warps, args.slots, args.kept) = (p.warps as i32, p.slots as i32, kept as i32);
            let spec = AnyForward { vectors, x: x.dtype, norm, smem: max_smem };
            // SAFETY: as above.
            unsafe { queue.launch(&spec, &p.launch(kept), arguments![args])? };
        }
    }
    if !transposed {
        return Ok(());
    }
    // The second layout is a transpose of codes that are still in L2, in part or whole: cheaper than a second look at x, and the same codes.
    let codes = TensorView { data_t: Ptr::NULL, scale_inv: Ptr::NULL, ..*y };
    let args = TransposeArgs { input: codes, output: TensorView { data: Ptr::NULL, scale_inv: Ptr::NULL, ..*y } };
    // SAFETY: as above; stream order puts it behind the codes.
    unsafe { transpose(backend, &args, true, stream) }
}

// ---------------------------------------------------------------- backward

/// Columns of a thread of `norm_bwd_row`, in eights.
const BACKWARD_OCTETS: [u64; 3] = [2, 3, 4];
const BACKWARD_THREADS: u64 = 512;

/// `norm_bwd_row`.
#[derive(Clone, Copy)]
struct BackwardSpec {
    dtype: DType,
    norm: Norm,
    octets: u64,
    /// Whether the blocks of a cluster share rows out.
    cluster: bool,
    /// Dynamic shared memory that the device allows.
    smem: u32,
}

kernel_spec!(
    BackwardSpec: NormBwd, s => "norm_bwd_row", "TYPE" = s.dtype, "RMS" = s.norm, "OCTETS" = s.octets, "CLUSTER" = s.cluster;
    smem = s.smem
);

/// `Args` of `norm_bwd.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct BackwardArgs {
    dy: Ptr,
    lddy: i64,
    x: Ptr,
    ldx: i64,
    gamma: Ptr,
    mu: Ptr,
    rsigma: Ptr,
    dx: Ptr,
    lddx: i64,
    dsum: Ptr,
    ld_dsum: i64,
    partial: Ptr,
    rows: i64,
    hidden: i64,
    gamma_dt: i32,
    zero_centered: i32,
    warps: i32,
    stages: i32,
}

/// How `norm_bwd_row` runs; nothing where the row is too long for the threads' registers or the device's shared memory.
fn backward_plan(dtype: DType, tensors: u64, rows: u64, cols: u64, multiprocessors: u32, max_smem: u32) -> Option<RowPlan> {
    let octets = BACKWARD_OCTETS.into_iter().find(|o| cols.div_ceil(8 * o).next_multiple_of(32) <= BACKWARD_THREADS)?;
    // dy and x, perhaps dsum; a weight; at the end two sums.
    let columns = octets * 8;
    let bytes = Bytes { stage: columns * tensors * dtype.size() as u64, group: columns * 8, block: columns * 4, stages: 3 };
    RowPlan::new(octets, BACKWARD_THREADS, cols, rows, multiprocessors, max_smem, bytes)
}

/// Blocks of a cluster and groups of a block at most, and columns of a thread in eights.
const MAX_CLUSTER: u64 = 8;
const CLUSTER_GROUPS: u64 = 4;
const CLUSTER_OCTETS: u64 = 4;

/// The same for longer rows, which the blocks of a cluster share out; with their number. The plan's grid counts clusters.
fn cluster_plan(dtype: DType, tensors: u64, rows: u64, cols: u64, multiprocessors: u32, max_smem: u32) -> Option<(u32, RowPlan)> {
    let vectors = cols / vector(dtype);
    let plan = |blocks: u64| {
        let share = vectors.div_ceil(blocks) * vector(dtype);
        let columns = CLUSTER_OCTETS * 8;
        let bytes = Bytes { stage: columns * tensors * dtype.size() as u64, group: columns * 8, block: columns * 4, stages: 4 };
        let threads = BACKWARD_THREADS.min(share.div_ceil(columns).next_multiple_of(32) * CLUSTER_GROUPS);
        let plan = RowPlan::new(CLUSTER_OCTETS, threads, share, rows, multiprocessors / blocks as u32, max_smem, bytes)?;
        // Each block has a share, and fetches ahead.
        (share * (blocks - 1) < cols && plan.stages >= 2).then_some((blocks as u32, share, plan))
    };
    // The columns that a block has under way; pairs of blocks leave no multiprocessor idle, clusters of more do.
    let worth = |(blocks, share, plan): &(u32, u64, RowPlan)| share * u64::from(plan.groups) * if *blocks == 2 { 10 } else { 9 };
    let few = (2..=4).rev().filter_map(plan).max_by_key(worth);
    few.or_else(|| (5..=MAX_CLUSTER).find_map(plan)).map(|(blocks, _, plan)| (blocks, plan))
}

/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn norm_bwd(backend: &CudaBackend, norm: Norm, a: &NormBwdArgs, stream: Stream) -> Result<()> {
    let queue = Queue::new(backend, stream)?;
    let (rows, cols) = (a.x.rows as u64, a.x.cols as u64);
    if cols == 0 {
        return Ok(());
    }
    let ((dgamma, dgamma_dt), (dbeta, dbeta_dt)) = (parameter(&a.dgamma), parameter(&a.dbeta));
    let sums = !dgamma.is_null() || !dbeta.is_null();
    let strips = blocks(cols.div_ceil(32), MAX_GRID_X, "strips of columns")?;
    if sums {
        // Nothing is enqueued unless all of it can be.
        queue.load(&Any::Sum)?;
    }
    let count = if rows > 0 {
        // SAFETY: forwarded contract.
        unsafe { partial_sums(&queue, norm, a, sums)? }
    } else {
        0
    };
    if !sums {
        return Ok(());
    }
    let stride = a.x.cols * if norm == Norm::Rms { 1 } else { 2 };
    let launch = Launch::new([strips, if dbeta.is_null() { 1 } else { 2 }, 1], 1024);
    let args = arguments![a.workspace, count, stride, a.x.cols, dgamma, dgamma_dt, dbeta, dbeta_dt];
    // SAFETY: the parameters of `norm_param_sum` in their order; pointers live by contract.
    unsafe { queue.launch(&Any::Sum, &launch, args) }
}

/// Writes dx and, where `sums`, the partial weight gradients; returns how many there are of each.
///
/// # Safety
/// As [`norm_bwd`].
unsafe fn partial_sums(queue: &Queue<'_>, norm: Norm, a: &NormBwdArgs, sums: bool) -> Result<i64> {
    let (rows, cols, multiprocessors) = (a.x.rows as u64, a.x.cols as u64, queue.multiprocessors());
    let (gamma, gamma_dt) = parameter(&a.gamma);
    let (zero_centered, partial) = (i32::from(a.zero_centered_gamma), if sums { a.workspace } else { Ptr::NULL });
    let dtype = a.x.dtype;
    let vectors = cols % vector(dtype) == 0 && [&a.dy, &a.x, &a.dx].into_iter().chain(&a.dsum).all(|t| t.dtype == dtype && aligned(t, 16));
    let ((dsum, dsum_dt), ld_dsum) = (parameter(&a.dsum), a.dsum.map_or(0, |t| t.ld));
    let tensors = if a.dsum.is_some() { 3 } else { 2 };
    let max_smem = max_smem(queue);
    let alone = || backward_plan(dtype, tensors, rows, cols, multiprocessors, max_smem).map(|p| (1, p));
    let clusters = queue.backend.capability.arch >= 90;
    let together = || cluster_plan(dtype, tensors, rows, cols, multiprocessors, max_smem).filter(|_| clusters);
    if let Some((cluster, p)) = vectors.then(|| alone().or_else(together)).flatten() {
        let args = BackwardArgs {
            dy: a.dy.data,
            lddy: a.dy.ld,
            x: a.x.data,
            ldx: a.x.ld,
            gamma,
            mu: a.mu,
            rsigma: a.rsigma,
            dx: a.dx.data,
            lddx: a.dx.ld,
            dsum,
            ld_dsum,
            partial,
            rows: a.x.rows,
            hidden: a.x.cols,
            gamma_dt,
            zero_centered,
            warps: p.warps as i32,
            stages: p.stages as i32,
        };
        let mut launch = p.launch();
        let spec = BackwardSpec { dtype, norm, octets: p.octets, cluster: cluster > 1, smem: max_smem };
        if cluster > 1 {
            launch.cluster = cluster;
            launch.grid[0] = launch.grid[0].min(queue.clusters(&spec, &launch)?) * cluster;
        }
        // SAFETY: `Args` of `norm_bwd.cu`; pointers live by contract.
        unsafe { queue.launch(&spec, &launch, arguments![args])? };
        return Ok(i64::from(launch.grid[0] / cluster));
    }
    let p = AnyRows::backward(rows, cols);
    let args = AnyArgs {
        dy: a.dy.data,
        lddy: a.dy.ld,
        x: a.x.data,
        ldx: a.x.ld,
        gamma,
        mu: a.mu,
        rsigma: a.rsigma,
        dx: a.dx.data,
        lddx: a.dx.ld,
        dsum,
        ld_dsum,
        partial,
        rows: a.x.rows,
        hidden: a.x.cols,
        dy_dt: a.dy.dtype as i32,
        x_dt: a.x.dtype as i32,
        dx_dt: a.dx.dtype as i32,
        dsum_dt,
        gamma_dt,
        zero_centered,
        rms: norm as i32,
        warps: p.warps as i32,
        slots: p.slots as i32,
    };
    let slabs = slabs(rows, cols, multiprocessors);
    let strips = blocks(cols.div_ceil(STRIP), MAX_GRID_X, "strips of columns")?;
    if sums {
        queue.load(&Any::Params)?;
    }
    // SAFETY: `Args` of `norm_bwd_any.cu`; pointers live by contract.
    unsafe {
        queue.launch(&Any::Dx, &p.launch(0), arguments![args])?;
        if sums {
            queue.launch(&Any::Params, &Launch::new([strips, slabs, 1], 256), arguments![args])?;
        }
    }
    Ok(i64::from(slabs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_plan_covers_its_row_and_fits() {
        for dtype in HIGH {
            for cols in (1..300).chain([1000, 1024, 1280, 4096, 5120, 8192, 12_288, 14_336, 16_384, 16_385, 20_480, 24_576, 24_584, 65_536])
            {
                for rows in [0, 1, 7, 131, 132, 133, 5000, 1 << 33] {
                    for (max_smem, tensors) in [100_352, 166_912, 231_424].into_iter().flat_map(|m| [(m, 2), (m, 3)]) {
                        let Some(p) = backward_plan(dtype, tensors, rows, cols, 132, max_smem) else {
                            assert!(cols > 8000, "{cols} columns of {} have no plan", dtype.name());
                            continue;
                        };
                        let (size, block) = (dtype.size() as u32, p.warps * 32 * p.groups);
                        assert!(u64::from(p.warps) * 32 * 8 * p.octets >= cols);
                        // Barriers: one per group of several warps, and that of the block.
                        assert!(block <= 512 && (p.warps == 1 || p.groups < 16), "{p:?}");
                        assert!(p.smem <= max_smem && (1..=3).contains(&p.stages) && (1..=132).contains(&p.grid));
                        let columns = p.warps * 32 * p.octets as u32 * 8;
                        assert!(p.smem >= columns * 4 + p.stages * columns * p.groups * tensors as u32 * size, "{p:?}");
                        assert!(p.smem >= columns * p.groups * 8, "{p:?}");
                    }
                    if cols % vector(dtype) > 0 {
                        continue;
                    }
                    for (max_smem, tensors) in [100_352, 166_912, 231_424].into_iter().flat_map(|m| [(m, 2), (m, 3)]) {
                        let Some((blocks, p)) = cluster_plan(dtype, tensors, rows, cols, 132, max_smem) else {
                            assert!(!(8 * 32..=16_384).contains(&cols), "{cols} columns of {} have no plan", dtype.name());
                            continue;
                        };
                        let share = u64::from(p.warps) * 32 * 8 * p.octets;
                        assert!(share * u64::from(blocks) >= cols && p.warps * 32 * p.groups <= 512 && p.groups <= 4, "{p:?}");
                        assert!(p.smem <= max_smem && (2..=4).contains(&p.stages) && p.grid * blocks <= 132 && p.grid > 0);
                        let size = dtype.size() as u32;
                        assert!(p.smem as u64 >= share * 4 + u64::from(p.stages * p.groups * tensors as u32 * size) * share, "{p:?}");
                    }
                    for (norm, fp8) in [Norm::Layer, Norm::Rms].into_iter().flat_map(|n| [(n, false), (n, true)]) {
                        let Some(p) = RowForward::new(dtype, norm, fp8, rows, cols) else {
                            assert!(cols >= 32_768 || rows > 1 << 31, "{cols} columns of {} have no plan", dtype.name());
                            continue;
                        };
                        let (warps, slots, n) = (u64::from(p.warps), u64::from(p.slots), vector(dtype));
                        assert!(warps * 32 * slots * n >= cols && (warps - 1) * 32 * slots * n < cols, "{p:?} for {cols}");
                        let most = ROW_THREADS[ROW_OCTETS.into_iter().position(|o| o == p.octets).unwrap()];
                        assert!(slots * n <= p.octets * 8 && u64::from(p.launch().block) <= most);
                        assert!(u64::from(p.grid) * if warps == 1 { ROWS_PER_BLOCK } else { 1 } >= rows);
                    }
                }
            }
        }
    }
}
