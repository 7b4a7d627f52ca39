//! The backward pass: `kernels/norm_bwd.cu`, and for other rows those of `any.rs`.

use super::{
    aligned,
    any::{slabs, Any, AnyArgs, AnyRows, STRIP},
    max_smem, parameter, vector, HIGH, MAX_GRID_X,
};
use crate::{
    backend::cuda::{
        jit::kernel_spec,
        launch::{arguments, blocks, Launch, Queue},
        sources::SourceFile,
        testing::Variant,
        CudaBackend,
    },
    context::Stream,
    error::Result,
    ops::norm::{Norm, NormBwdArgs},
    tensor::{DType, Ptr},
};

/// Every module of the backward pass.
pub(super) fn variants() -> Vec<Variant> {
    let mut all = Vec::new();
    for dtype in HIGH {
        for norm in [Norm::Layer, Norm::Rms] {
            for octets in BACKWARD_OCTETS {
                all.push(Variant::of(&BackwardSpec { dtype, norm, octets, cluster: false, smem: 0 }));
            }
            all.push(Variant::of(&BackwardSpec { dtype, norm, octets: cluster_octets(dtype), cluster: true, smem: 0 }).on(90, 999));
        }
    }
    all
}

/// Shared memory of a kernel with a ring of rows, per thread: of each stage of the ring; of each group once the ring is done with;
/// of one group, for all.
struct Bytes {
    stage: u64,
    group: u64,
    block: u64,
    /// Stages at most where a block has one row at a time, and where it has several: one more to fill is a longer start.
    stages: [u64; 2],
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
        let stages = |groups: u64| (room / (row_threads * groups * bytes.stage)).min(bytes.stages[usize::from(groups > 1)]);
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

/// What the arguments of all backward kernels begin with.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Matrices {
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
}

/// `Args` of `norm_bwd.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct BackwardArgs {
    matrices: Matrices,
    gamma_dt: i32,
    zero_centered: i32,
    warps: i32,
    stages: i32,
    inv_n: f32,
}

/// How `norm_bwd_row` runs; nothing where the row is too long for the threads' registers or the device's shared memory.
fn backward_plan(dtype: DType, tensors: u64, rows: u64, cols: u64, multiprocessors: u32, max_smem: u32) -> Option<RowPlan> {
    let row_threads = |octets: u64| cols.div_ceil(8 * octets).next_multiple_of(32);
    // The fewest octets, but a row more at a time is worth a third.
    let pairs = |o: &u64| *o < 4 && row_threads(*o) <= BACKWARD_THREADS / 2;
    let octets =
        BACKWARD_OCTETS.into_iter().find(pairs).or_else(|| BACKWARD_OCTETS.into_iter().find(|o| row_threads(*o) <= BACKWARD_THREADS))?;
    // dy and x, perhaps dsum; a weight; at the end two sums.
    let columns = octets * 8;
    let bytes = Bytes { stage: columns * tensors * dtype.size() as u64, group: columns * 8, block: columns * 4, stages: [3, 2] };
    RowPlan::new(octets, BACKWARD_THREADS, cols, rows, multiprocessors, max_smem, bytes)
}

/// Blocks of a cluster and groups of a block at most, and columns of a thread in eights.
const MAX_CLUSTER: u64 = 8;
const CLUSTER_GROUPS: u64 = 4;
/// (With as many of f32 the sums would not fit the registers.)
const fn cluster_octets(dtype: DType) -> u64 {
    match dtype {
        DType::F32 => 3,
        _ => 4,
    }
}

/// The same for longer rows, which the blocks of a cluster share out; with their number. The plan's grid counts clusters.
fn cluster_plan(dtype: DType, tensors: u64, rows: u64, cols: u64, multiprocessors: u32, max_smem: u32) -> Option<(u32, RowPlan)> {
    let vectors = cols / vector(dtype);
    let plan = |blocks: u64| {
        let share = vectors.div_ceil(blocks) * vector(dtype);
        let columns = cluster_octets(dtype) * 8;
        let bytes = Bytes { stage: columns * tensors * dtype.size() as u64, group: columns * 8, block: columns * 4, stages: [4, 4] };
        let threads = BACKWARD_THREADS.min(share.div_ceil(columns).next_multiple_of(32) * CLUSTER_GROUPS);
        let plan = RowPlan::new(cluster_octets(dtype), threads, share, rows, multiprocessors / blocks as u32, max_smem, bytes)?;
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
pub(in crate::backend::cuda) unsafe fn norm_bwd(backend: &CudaBackend, norm: Norm, a: &NormBwdArgs, stream: Stream) -> Result<()> {
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
    let launch = Launch::new([strips, if dbeta.is_null() { 1 } else { 2 }, 1], 256);
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
    let vectors = cols % vector(dtype) == 0
        && rows < 1 << 31
        && [&a.dy, &a.x, &a.dx].into_iter().chain(&a.dsum).all(|t| t.dtype == dtype && aligned(t, 16));
    let ((dsum, dsum_dt), ld_dsum) = (parameter(&a.dsum), a.dsum.map_or(0, |t| t.ld));
    let matrices = Matrices {
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
    };
    let tensors = if a.dsum.is_some() { 3 } else { 2 };
    let max_smem = max_smem(queue);
    let alone = || backward_plan(dtype, tensors, rows, cols, multiprocessors, max_smem).map(|p| (1, p));
    let clusters = queue.backend.capability.arch >= 90;
    let together = || cluster_plan(dtype, tensors, rows, cols, multiprocessors, max_smem).filter(|_| clusters);
    if let Some((cluster, p)) = vectors.then(|| alone().or_else(together)).flatten() {
        let args =
            BackwardArgs { matrices, gamma_dt, zero_centered, warps: p.warps as i32, stages: p.stages as i32, inv_n: 1.0 / cols as f32 };
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
        matrices,
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
                }
            }
        }
    }
}
