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

/// Vectors of a thread where the row lies in registers, and threads of a block that has several rows.
const SLOTS: u64 = 4;
const SMALL_BLOCK: u32 = 64;
const LOOP_THREADS: u32 = 512;
const MAX_GRID_X: u64 = 0x7FFF_FFFF;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kernel {
    ForwardRow,
    ForwardRowMasked,
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
        }
    }
}

/// Threads of a row that lies in registers: a power of two of lanes, or whole warps; nothing where it is too long for that.
fn lanes(t: &TensorView) -> Option<u32> {
    let n = 16 / t.dtype.size() as u64;
    // Rows that may start anywhere take up to a vector more.
    let aligned = t.data.0 % 16 == 0 && (t.rows <= 1 || t.ld as u64 % n == 0);
    let vectors = (t.cols as u64 + if aligned { 0 } else { n - 1 }).div_ceil(n);
    let threads = vectors.div_ceil(SLOTS);
    match threads {
        0..=32 => Some(threads.next_power_of_two().max(4) as u32),
        33..=1024 => Some(threads.next_multiple_of(32) as u32),
        _ => None,
    }
}

/// # Safety
/// `args` describes live tensors, `t` the one that is cut into vectors.
unsafe fn run(queue: &Queue<'_>, row: Kernel, long: Kernel, t: &TensorView, mut args: Args) -> Result<()> {
    let (kernel, launch) = match lanes(t) {
        Some(lanes) => {
            args.lanes = lanes;
            let per_block = if lanes > 32 { 1 } else { u64::from(SMALL_BLOCK / lanes) };
            let grid = blocks((t.rows as u64).div_ceil(per_block).max(1), MAX_GRID_X, "blocks of rows")?;
            (row, Launch::new([grid, 1, 1], if lanes > 32 { lanes } else { SMALL_BLOCK }))
        }
        None => (long, Launch::new([(t.rows as u64).clamp(1, MAX_GRID_X) as u32, 1, 1], LOOP_THREADS)),
    };
    // Nothing to do; the kernel was loaded all the same.
    if t.is_empty() {
        return queue.load(&Spec { kernel, dtype: t.dtype });
    }
    // SAFETY: `Args`, with pointers live by contract.
    unsafe { queue.launch(&Spec { kernel, dtype: t.dtype }, &launch, arguments![args]) }
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
    let row = if a.mask.data.is_null() { Kernel::ForwardRow } else { Kernel::ForwardRowMasked };
    // SAFETY: forwarded contract.
    unsafe { run(&queue, row, Kernel::ForwardLoop, &a.x, args) }
}

/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn softmax_bwd(backend: &CudaBackend, a: &SoftmaxBwdArgs, stream: Stream) -> Result<()> {
    let queue = Queue::new(backend, stream)?;
    let mut args = Args::new(&a.y, &a.dx, &a.rows, &Mask::default());
    (args.dy, args.lddy, args.scale) = (a.dy.data, a.dy.ld, a.scale);
    // SAFETY: forwarded contract.
    unsafe { run(&queue, Kernel::BackwardRow, Kernel::BackwardLoop, &a.y, args) }
}
