//! The forward pass: `kernels/norm_fwd_sets.cu`, `norm_fwd_rows.cu`, `norm_fwd_row.cu`, `norm_fwd.cu`, and others by way of `tile.rs` and `any.rs`.

use super::{
    aligned,
    any::{AnyForward, AnyRows, Ring, RingSpec},
    max_smem, parameter,
    tile::Tile,
    vector, HIGH, MAX_GRID_X,
};
use crate::{
    backend::cuda::{
        dequantize::{load_transpose, transpose},
        jit::kernel_spec,
        launch::{arguments, blocks, Launch, Queue},
        sources::SourceFile,
        testing::Variant,
        CudaBackend,
    },
    context::Stream,
    error::Result,
    ops::{
        dequantize::TransposeArgs,
        norm::{Norm, NormFwdArgs},
    },
    tensor::{DType, Ptr, TensorView},
};

/// Every module of the forward pass.
pub(super) fn variants() -> Vec<Variant> {
    let mut all = Vec::new();
    for dtype in HIGH {
        all.push(Variant::of(&ForwardSpec { kernel: Forward::Add, x: dtype, norm: Norm::Layer }));
        for norm in [Norm::Layer, Norm::Rms] {
            for fp8 in [false, true] {
                for octets in ROW_OCTETS.into_iter().filter(|o| row_octets_serve(*o, dtype, norm, fp8)) {
                    all.push(Variant::of(&RowSpec { x: dtype, norm, fp8, octets }));
                }
            }
            if dtype != DType::F32 {
                for (fp8, vectors, rows) in RowsForward::KERNELS.into_iter().filter(|k| RowsForward::serves(norm, k)) {
                    all.push(Variant::of(&RowsSpec { x: dtype, norm, fp8, vectors, rows, smem: 0 }));
                }
                if norm == Norm::Rms {
                    all.extend([false, true].map(|fp8| Variant::of(&SetsSpec { x: dtype, fp8 })));
                }
            }
            all.push(Variant::of(&ForwardSpec { kernel: Forward::Transposed, x: dtype, norm }));
        }
    }
    all
}

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

/// `norm_fwd_rows`.
#[derive(Clone, Copy)]
struct RowsSpec {
    x: DType,
    norm: Norm,
    /// Whether y is FP8.
    fp8: bool,
    vectors: u64,
    rows: u64,
    /// Dynamic shared memory that the device allows.
    smem: u32,
}

kernel_spec!(
    RowsSpec: NormFwdRows, s => "norm_fwd_rows", "X" = s.x, "RMS" = s.norm, "FP8" = s.fp8, "VECTORS" = s.vectors,
    "ROWS" = s.rows;
    smem = s.smem
);

/// `norm_fwd_sets`.
#[derive(Clone, Copy)]
struct SetsSpec {
    x: DType,
    /// Whether y is FP8.
    fp8: bool,
}

kernel_spec!(SetsSpec: NormFwdSets, s => "norm_fwd_sets", "X" = s.x, "RMS" = Norm::Rms, "FP8" = s.fp8);

/// `Args` of `norm_fwd.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ForwardArgs {
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
    pub(super) early: u32,
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

/// How `norm_fwd_rows` runs: rows of a block, vectors of a thread in each, and warps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct RowsForward {
    rows: u64,
    vectors: u64,
    warps: u32,
    grid: u32,
}

impl RowsForward {
    /// What there are kernels for: whether y is FP8, vectors, rows.
    const KERNELS: [(bool, u64, u64); 7] =
        [(false, 1, 4), (false, 4, 1), (true, 1, 4), (true, 2, 4), (true, 4, 4), (true, 4, 1), (true, 6, 2)];
    /// Columns of a warp's vectors.
    const COLUMNS: u64 = 256;
    /// Up to so many rows, long ones have a block each: one row's work is the least that a launch can take.
    const FEW: u64 = 528;

    /// Whether there is such a kernel of this norm. RMSNorm of one vector is `norm_fwd_sets`.
    fn serves(norm: Norm, &(_, vectors, _): &(bool, u64, u64)) -> bool {
        norm == Norm::Layer || vectors > 1
    }

    /// Nothing where `norm_fwd_row` is as fast or as slow: codes are bound by instructions, which are fewer here.
    fn new(norm: Norm, fp8: bool, rows: u64, cols: u64) -> Option<Self> {
        let few = rows <= Self::FEW;
        let fits = |kernel: &(bool, u64, u64)| {
            let (codes, vectors, together) = kernel;
            let warps = cols / (Self::COLUMNS * vectors);
            let served = match (vectors, together) {
                (1, _) => 1..=6,
                (4, 1) if few => 2..=8,
                (2 | 4, 4) if !few => 1..=8,
                (6, _) => 6..=8,
                _ => return false,
            };
            *codes == fp8 && Self::serves(norm, kernel) && cols % (Self::COLUMNS * vectors) == 0 && served.contains(&warps)
        };
        let (_, vectors, together) = Self::KERNELS.into_iter().find(fits)?;
        let (warps, grid) = ((cols / (Self::COLUMNS * vectors)) as u32, rows.div_ceil(together) as u32);
        (1..1 << 31).contains(&rows).then_some(Self { rows: together, vectors, warps, grid })
    }

    fn launch(&self) -> Launch {
        let mut launch = Launch::new([self.grid, 1, 1], 32 * self.warps);
        // One vector stays in registers.
        if self.vectors > 1 {
            launch.smem = 16 * (self.rows * self.vectors) as u32 * launch.block;
        }
        launch
    }
}

/// How `norm_fwd_sets` runs: warps of a row, which are a block's, and as many blocks as find places by their registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct SetsForward {
    warps: u32,
    grid: u32,
}

impl SetsForward {
    /// Rows of a set, sets on their way.
    const ROWS: u64 = 4;
    const STAGES: u32 = 2;

    fn new(norm: Norm, rows: u64, cols: u64, multiprocessors: u32) -> Option<Self> {
        let warps = (cols / 256) as u32;
        let served = norm == Norm::Rms && cols % 256 == 0 && (1..=6).contains(&(cols / 256)) && (1..1 << 31).contains(&rows);
        // 64 registers a thread, of 65,536.
        served.then(|| Self { warps, grid: rows.div_ceil(Self::ROWS).min(u64::from(multiprocessors * (32 / warps))) as u32 })
    }

    fn launch(&self) -> Launch {
        let mut launch = Launch::new([self.grid, 1, 1], 32 * self.warps);
        launch.smem = 16 * Self::STAGES * Self::ROWS as u32 * launch.block;
        launch
    }
}

/// Whether `norm_fwd_sets` and `norm_fwd_rows` know the types: one of 16 bits for all there is but codes.
fn rows_serve(norm: Norm, a: &NormFwdArgs) -> bool {
    let same = |p: &Option<TensorView>| p.is_some_and(|t| t.dtype == a.x.dtype);
    a.x.dtype.size() == 2
        && a.residual.is_none()
        && (a.y.dtype.is_fp8() || a.y.dtype == a.x.dtype)
        && same(&a.gamma)
        && (norm == Norm::Rms || same(&a.beta))
}

/// How many blocks, of `rows` rows each, ask L2 for them ahead of the kernel before: those of 32 KB a multiprocessor, half of what finds places
/// in most kernels, all of whose rows are there.
fn early(queue: &Queue<'_>, launch: &Launch, a: &ForwardArgs, x: DType, rows: u64) -> u32 {
    let bytes = rows * a.hidden as u64 * x.size() as u64;
    queue.first_blocks(launch, bytes, 32).min((a.rows as u64 / rows) as u32)
}

/// # Safety
/// Arguments validated, pointers live.
pub(in crate::backend::cuda) unsafe fn norm_fwd(
    backend: &CudaBackend,
    norm: Norm,
    a: &NormFwdArgs,
    alike: bool,
    stream: Stream,
) -> Result<()> {
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
        early: 0,
    };
    let (mut x_vectors, vectors) = forward_vectors(a);
    let multiprocessors = queue.multiprocessors();
    let transposed = !y.data_t.is_null() && !x.is_empty();
    let (rows, cols) = (args.rows as u64, x.cols as u64);
    if transposed {
        (args.yt, args.ldyt) = (y.data_t, y.ld_t);
    }
    let codes = transposed || alike && y.dtype.is_fp8();
    let tiles = vectors && queue.backend.capability.arch >= 90 && args.yt.0 % 16 == 0 && args.ldyt % 16 == 0;
    if let Some(tile) = Tile::new(x.dtype, rows, cols).filter(|_| codes && tiles) {
        // SAFETY: as the caller promises.
        if unsafe { tile.run(&queue, norm, a, args)? } {
            return Ok(());
        }
    }
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
        args.warps = i32::from(x_vectors);
        let tiles = blocks((x.rows as u64).div_ceil(64), MAX_GRID_X, "tiles of rows")?;
        // Shares of the columns, until every multiprocessor has two blocks; each share finds the statistics of its rows anew.
        let shares = (u64::from(multiprocessors) * 2 / u64::from(tiles)).clamp(1, (x.cols as u64).div_ceil(64).min(64));
        // SAFETY: as above.
        return unsafe { queue.launch(&spec, &Launch::new([tiles, shares as u32, 1], 256), arguments![args]) };
    }
    let plan = RowForward::new(x.dtype, norm, y.dtype.is_fp8(), rows, cols).filter(|_| vectors);
    if let Some(p) = plan {
        (args.warps, args.slots) = (p.warps as i32, p.slots as i32);
    }
    if transposed {
        // Nothing is enqueued unless all of it can be.
        load_transpose(&queue, y)?;
    }
    let max_smem = max_smem(&queue);
    let sets = SetsForward::new(norm, rows, cols, multiprocessors).filter(|_| vectors && rows_serve(norm, a));
    let together =
        RowsForward::new(norm, y.dtype.is_fp8(), rows, cols).filter(|p| vectors && rows_serve(norm, a) && p.launch().smem <= max_smem);
    if let Some(p) = sets {
        let (launch, spec) = (p.launch(), SetsSpec { x: x.dtype, fp8: y.dtype.is_fp8() });
        args.warps = p.warps as i32;
        // All of them: a block has one set for each four of `norm_fwd_rows`.
        args.early = launch.grid[0].min((rows / SetsForward::ROWS) as u32);
        // SAFETY: as above.
        unsafe { queue.launch(&spec, &launch, arguments![args])? };
    } else if let Some(p) = together {
        let launch = p.launch();
        args.warps = p.warps as i32;
        args.early = early(&queue, &launch, &args, x.dtype, p.rows);
        let spec = RowsSpec { x: x.dtype, norm, fp8: y.dtype.is_fp8(), vectors: p.vectors, rows: p.rows, smem: max_smem };
        // SAFETY: as above.
        unsafe { queue.launch(&spec, &launch, arguments![args])? };
    } else if let Some(p) = plan {
        let (launch, spec) = (p.launch(), RowSpec { x: x.dtype, norm, fp8: y.dtype.is_fp8(), octets: p.octets });
        args.early = early(&queue, &launch, &args, x.dtype, if p.warps == 1 { ROWS_PER_BLOCK } else { 1 });
        // SAFETY: as above.
        unsafe { queue.launch(&spec, &launch, arguments![args])? };
    } else {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_together_are_covered_and_fit() {
        for cols in 0..20_000 {
            for rows in [0, 1, 4, 5, RowsForward::FEW, RowsForward::FEW + 1, 1 << 31] {
                for (norm, fp8) in [Norm::Layer, Norm::Rms].into_iter().flat_map(|n| [(n, false), (n, true)]) {
                    let sets = SetsForward::new(norm, rows, cols, 132);
                    if let Some(p) = sets {
                        assert!(u64::from(p.warps) * 256 == cols && p.launch().smem <= 48 << 10 && p.grid <= 32 * 132, "{p:?}");
                        assert!(p.grid > 0 && u64::from(p.grid) <= rows.div_ceil(4), "{p:?} for {rows} rows");
                    }
                    let Some(p) = RowsForward::new(norm, fp8, rows, cols) else {
                        assert!(sets.is_some() || ![1024, 1280].contains(&cols) || !(1..1 << 31).contains(&rows), "{rows} rows of {cols}");
                        continue;
                    };
                    assert_eq!(u64::from(p.warps) * p.vectors * 256, cols);
                    assert!((1..=8).contains(&p.warps) && RowsForward::KERNELS.contains(&(fp8, p.vectors, p.rows)), "{p:?}");
                    assert!(u64::from(p.grid) * p.rows >= rows && p.launch().smem <= 65_536, "{p:?}");
                }
            }
        }
    }

    #[test]
    fn every_plan_covers_its_row_and_fits() {
        for dtype in HIGH {
            let long = [1000, 1024, 1280, 4096, 5120, 8192, 12_288, 14_336, 16_384, 20_480, 24_576, 24_584, 65_536];
            for cols in (1..300).chain(long).filter(|c| c % vector(dtype) == 0) {
                for rows in [0, 1, 7, 131, 132, 133, 5000, 1 << 33] {
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
