//! Softmax on CUDA: launches of `kernels/softmax.cu`.

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
    ops::softmax::{Mask, Rows, SoftmaxBwdArgs, SoftmaxFwdArgs},
    tensor::{DType, Ptr, TensorView},
};

/// Vectors of a thread where the row lies in registers: as they are worked on, or as they lie in memory; and threads of a row's block then.
const SLOTS: u64 = 4;
const WIDE_SLOTS: u64 = 8;
const THREADS: u64 = 1024;
const WIDE_THREADS: u64 = 512;
/// Blocks of a row at most.
const MAX_CLUSTER: u64 = 8;
/// Threads of a block that has several rows.
const SMALL_BLOCK: u32 = 64;
const LOOP_THREADS: u32 = 512;
const MAX_GRID_X: u64 = 0x7FFF_FFFF;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kernel {
    ForwardRow,
    ForwardRowMasked,
    ForwardWide,
    ForwardLoop,
    BackwardRow,
    BackwardLoop,
}

#[derive(Clone, Copy)]
struct Spec {
    kernel: Kernel,
    dtype: DType,
}

kernel_spec!(
    Spec: Softmax, s => match s.kernel {
        Kernel::ForwardRow => "softmax_fwd_row",
        Kernel::ForwardRowMasked => "softmax_fwd_row_masked",
        Kernel::ForwardWide => "softmax_fwd_wide",
        Kernel::ForwardLoop => "softmax_fwd_loop",
        Kernel::BackwardRow => "softmax_bwd_row",
        Kernel::BackwardLoop => "softmax_bwd_loop",
    },
    "X" = s.dtype, "BACKWARD" = matches!(s.kernel, Kernel::BackwardRow | Kernel::BackwardLoop); also s.kernel
);

/// Every module of this family.
pub(super) fn variants() -> Vec<Variant> {
    let types = [DType::F32, DType::F16, DType::Bf16];
    let kernels = [Kernel::ForwardRow, Kernel::BackwardRow];
    types.into_iter().flat_map(|dtype| kernels.map(|kernel| Variant::of(&Spec { kernel, dtype }))).collect()
}

/// `Args` of the kernels.
#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    x: Ptr,
    ldx: i64,
    dy: Ptr,
    lddy: i64,
    y: Ptr,
    ldy: i64,
    mask: Ptr,
    mask_batch: i64,
    mask_head: i64,
    mask_query: i64,
    rows: i64,
    cols: i64,
    queries: i64,
    heads: i64,
    offset: i64,
    scale: f32,
    flip: u32,
    causal: i32,
    lanes: u32,
    blocks: u32,
    early: u32,
}

impl Args {
    fn new(x: &TensorView, y: &TensorView, rows: &Rows, mask: &Mask) -> Self {
        Self {
            x: x.data,
            ldx: x.ld,
            dy: Ptr::NULL,
            lddy: 0,
            y: y.data,
            ldy: y.ld,
            mask: mask.data,
            mask_batch: mask.batch_stride,
            mask_head: mask.head_stride,
            mask_query: mask.query_stride,
            rows: x.rows,
            cols: x.cols,
            queries: rows.queries,
            heads: rows.heads,
            offset: rows.offset,
            scale: 1.0,
            flip: 0,
            causal: rows.causal.into(),
            lanes: 0,
            blocks: 1,
            early: 0,
        }
    }
}

/// 16-byte vectors that a row of `t` touches at most.
fn vectors_of(t: &TensorView) -> u64 {
    let n = 16 / t.dtype.size() as u64;
    // Rows that may start anywhere take up to a vector more.
    (t.cols as u64 + if rows_on_vectors(t) { 0 } else { n - 1 }).div_ceil(n)
}

fn rows_on_vectors(t: &TensorView) -> bool {
    t.data.0 % 16 == 0 && (t.rows <= 1 || t.ld as u64 * t.dtype.size() as u64 % 16 == 0)
}

/// Whether each row of `a` begins as far behind a boundary of 16 bytes as that of `b` does.
fn begin_alike(a: &TensorView, b: &TensorView) -> bool {
    let step = |t: &TensorView| t.ld as u64 * t.dtype.size() as u64 % 16;
    a.data.0 % 16 == b.data.0 % 16 && (a.rows <= 1 || step(a) == step(b))
}

/// How a row lies in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    /// Blocks of the row.
    blocks: u32,
    /// Threads of the row or, of more than one block, of each: a power of two of lanes, or whole warps.
    lanes: u32,
}

impl Row {
    /// `slots` vectors a thread and at most `threads` a block; nothing where the row is too long for that, or for a grid.
    fn new(vectors: u64, rows: u64, slots: u64, threads: u64, max_cluster: u64) -> Option<Self> {
        let all = vectors.div_ceil(slots);
        let blocks = all.div_ceil(threads).max(1).next_power_of_two();
        let lanes = match all.div_ceil(blocks) {
            n if all <= 32 => n.next_power_of_two().max(4),
            n => n.next_multiple_of(32),
        };
        let fits = blocks <= max_cluster && rows.saturating_mul(blocks) <= MAX_GRID_X;
        fits.then_some(Self { blocks: blocks as u32, lanes: lanes as u32 })
    }

    fn launch(self, rows: u64) -> Result<Launch> {
        let per_block = if self.lanes > 32 { 1 } else { u64::from(SMALL_BLOCK / self.lanes) };
        let grid = blocks(rows.div_ceil(per_block).max(1) * u64::from(self.blocks), MAX_GRID_X, "blocks of rows")?;
        let mut launch = Launch::new([grid, 1, 1], if self.lanes > 32 { self.lanes } else { SMALL_BLOCK });
        launch.cluster = self.blocks;
        Ok(launch)
    }
}

/// Whether a forward pass keeps rows as they lie in memory, twice as much of them a thread: it then works out each power twice. That is
/// faster where one warp is enough instead of two, and where few blocks fit a multiprocessor (later with a mask, which is worked into the row
/// first); and other rows cannot be shifted into place.
fn is_wide(x: &TensorView, y: &TensorView, masked: bool) -> bool {
    let vectors = vectors_of(y);
    !begin_alike(x, y) || if masked { vectors > 2048 } else { (129..=240).contains(&vectors) || vectors > 512 }
}

/// # Safety
/// `args` describes live tensors of `t`'s shape; `row`: the kernel of rows in registers and how they lie there.
unsafe fn run(queue: &Queue<'_>, t: &TensorView, row: Option<(Kernel, Row)>, long: Kernel, mut args: Args) -> Result<()> {
    let rows = t.rows as u64;
    let (kernel, launch) = match row {
        Some((kernel, row)) => {
            let launch = row.launch(rows)?;
            (args.lanes, args.blocks) = (row.lanes, row.blocks);
            // What causality hides is not read.
            if args.causal == 0 && row.blocks == 1 {
                let bytes = rows.div_ceil(u64::from(launch.grid[0])) * t.cols as u64 * t.dtype.size() as u64;
                args.early = queue.first_blocks(&launch, bytes, 64);
            }
            (kernel, launch)
        }
        None => (long, Launch::new([rows.clamp(1, MAX_GRID_X) as u32, 1, 1], LOOP_THREADS)),
    };
    let spec = Spec { kernel, dtype: t.dtype };
    // Nothing to do; the kernel was loaded all the same.
    if t.is_empty() {
        return queue.load(&spec);
    }
    // SAFETY: `Args`, with pointers live by contract.
    unsafe { queue.launch(&spec, &launch, arguments![args]) }
}

fn max_cluster(backend: &CudaBackend) -> u64 {
    if backend.capability.arch >= 90 {
        MAX_CLUSTER
    } else {
        1
    }
}

/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn softmax_fwd(backend: &CudaBackend, a: &SoftmaxFwdArgs, stream: Stream) -> Result<()> {
    let queue = Queue::new(backend, stream)?;
    let mut args = Args::new(&a.x, &a.y, &a.rows, &a.mask);
    // Never 0, so that -infinity stays what it is; the sign is turned over in x.
    args.scale = (a.scale.abs() * std::f32::consts::LOG2_E).max(f32::from_bits(1));
    args.flip = match (a.scale < 0.0, a.x.dtype) {
        (false, _) => 0,
        (true, DType::F32) => 0x8000_0000,
        (true, _) => 0x8000_8000,
    };
    let (vectors, rows, masked) = (vectors_of(&a.y), a.x.rows as u64, !a.mask.data.is_null());
    let row = if is_wide(&a.x, &a.y, masked) {
        Row::new(vectors, rows, WIDE_SLOTS, WIDE_THREADS, max_cluster(backend)).map(|row| (Kernel::ForwardWide, row))
    } else {
        let kernel = if masked { Kernel::ForwardRowMasked } else { Kernel::ForwardRow };
        Row::new(vectors, rows, SLOTS, THREADS, 1).map(|row| (kernel, row))
    };
    // SAFETY: forwarded contract.
    unsafe { run(&queue, &a.x, row, Kernel::ForwardLoop, args) }
}

/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn softmax_bwd(backend: &CudaBackend, a: &SoftmaxBwdArgs, stream: Stream) -> Result<()> {
    let queue = Queue::new(backend, stream)?;
    let mut args = Args::new(&a.y, &a.dx, &a.rows, &Mask::default());
    (args.dy, args.lddy, args.scale) = (a.dy.data, a.dy.ld, a.scale);
    let row = Row::new(vectors_of(&a.dx), a.y.rows as u64, SLOTS, THREADS, max_cluster(backend)).map(|row| (Kernel::BackwardRow, row));
    // SAFETY: forwarded contract.
    unsafe { run(&queue, &a.y, row, Kernel::BackwardLoop, args) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_plan_covers_its_row() {
        for vectors in (0..3000).chain([4096, 4097, 8192, 16_384, 32_768]) {
            for (slots, threads) in [(SLOTS, THREADS), (WIDE_SLOTS, WIDE_THREADS)] {
                for cluster in [1, MAX_CLUSTER] {
                    let Some(row) = Row::new(vectors, 3, slots, threads, cluster) else {
                        assert!(vectors > slots * threads * cluster, "{vectors} vectors have no plan");
                        continue;
                    };
                    let (blocks, lanes) = (u64::from(row.blocks), u64::from(row.lanes));
                    assert!(blocks * lanes * slots >= vectors && blocks <= cluster && lanes <= threads, "{row:?} for {vectors}");
                    assert!(lanes % 32 == 0 || (lanes.is_power_of_two() && blocks == 1), "{row:?}");
                    assert_eq!(row.launch(3).unwrap().grid[0], if lanes > 32 { 3 * row.blocks } else { 3_u32.div_ceil(64 / row.lanes) });
                }
            }
        }
        assert_eq!(Row::new(8 * 4096, 1 << 29, SLOTS, THREADS, MAX_CLUSTER), None);
    }

    #[test]
    fn rows_that_begin_alike() {
        let tensor = |at: u64, ld: i64, rows: i64| TensorView::new(DType::Bf16, Ptr(at), rows, 4096).with_ld(ld);
        assert!(begin_alike(&tensor(4096, 4096, 3), &tensor(4112, 4104, 3)) && begin_alike(&tensor(4098, 4097, 3), &tensor(8194, 4105, 3)));
        assert!(
            !begin_alike(&tensor(4096, 4097, 3), &tensor(4096, 4096, 3)) && begin_alike(&tensor(4096, 4097, 1), &tensor(4096, 4096, 1))
        );
        assert!(!begin_alike(&tensor(4096, 4096, 3), &tensor(4098, 4096, 3)));
        assert_eq!((vectors_of(&tensor(4096, 4096, 3)), vectors_of(&tensor(4096, 4097, 3))), (512, 513));
    }
}
