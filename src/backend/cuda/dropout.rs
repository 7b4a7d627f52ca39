//! Dropout on CUDA: launches of `kernels/dropout.cu`.

use super::{
    cast::{finish_dbias, Dbias},
    jit::kernel_spec,
    launch::{arguments, blocks, Launch, Queue},
    sources::SourceFile,
    testing::Variant,
    CudaBackend,
};
use crate::{
    context::Stream,
    error::Result,
    ops::dropout::{DropoutJob, Keep},
    tensor::{DType, Ptr, TensorView},
};

const THREADS: u32 = 256;
/// Rows of a block at a time.
const STRIP: u64 = 32;
/// Rows of a block of `dropout_drawn` at a time, and its blocks for each multiprocessor: some four times what is there at once.
const DRAWN_STRIP: u64 = 16;
const DRAWN_BLOCKS: u64 = 16;
/// Columns of a block of `dropout_any`.
const ANY_COLS: u64 = 256;
/// Columns of a tensor that is taken as one row cut into pieces.
const FLAT: i64 = 4096;

#[derive(Clone, Copy)]
struct Dropout {
    x: DType,
    backward: bool,
    kernel: Kernel,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kernel {
    /// What is kept is known.
    Known,
    /// It is drawn.
    Drawn,
    /// Where rows cannot be read as vectors.
    Any,
}

kernel_spec!(
    Dropout: Dropout, s => match s.kernel {
        Kernel::Known => "dropout",
        Kernel::Drawn => "dropout_drawn",
        Kernel::Any => "dropout_any",
    },
    "X" = s.x, "BACKWARD" = s.backward; also s.kernel
);

/// Every module of this family.
pub(super) fn variants() -> Vec<Variant> {
    let types = [DType::F32, DType::F16, DType::Bf16];
    types.into_iter().flat_map(|x| [false, true].map(|backward| Variant::of(&Dropout { x, backward, kernel: Kernel::Known }))).collect()
}

/// `DropoutParams` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    x: Ptr,
    residual: Ptr,
    y: Ptr,
    bias: Ptr,
    mask: Ptr,
    rng: Ptr,
    sums: Ptr,
    ldx: i64,
    ldr: i64,
    ldy: i64,
    ld_mask: i64,
    rows: i64,
    cols: i64,
    last: i64,
    stream: u64,
    keep: u32,
    threshold: u32,
    scale: f32,
    bias_type: i32,
    col_tiles: u32,
    steps: u32,
}

/// Bytes of the partial sums of a bias gradient, at the smallest number of rows for each.
pub(super) fn workspace(rows: i64, cols: i64) -> u64 {
    (rows as u64).div_ceil(STRIP) * cols as u64 * 4
}

fn starts_on_16(t: &TensorView) -> bool {
    t.data.0 % 16 == 0 && (t.rows <= 1 || (t.ld as u64 * t.dtype.size() as u64) % 16 == 0)
}

fn dense(t: &TensorView) -> bool {
    t.rows <= 1 || t.ld == t.cols
}

/// The job as one row cut into pieces, where columns mean nothing and nothing lies between rows: odd widths are then no obstacle, nor is
/// a single long row.
fn flat(job: &DropoutJob) -> Option<DropoutJob> {
    let tensors = [Some(job.x), Some(job.y), job.residual];
    let total = job.x.rows.checked_mul(job.x.cols)?;
    let mask = job.mask.is_null() || (job.x.cols % 8 == 0 && (job.x.rows <= 1 || job.mask_ld == job.x.cols / 8));
    let plain = job.bias.is_none() && job.dbias.is_none() && mask && total % 8 == 0 && tensors.iter().flatten().all(dense);
    plain.then(|| {
        let rows = (total as u64).div_ceil(FLAT as u64) as i64;
        let turn = |t: TensorView| TensorView { rows, cols: FLAT, ld: FLAT, ..t };
        DropoutJob { x: turn(job.x), y: turn(job.y), residual: job.residual.map(turn), mask_ld: FLAT / 8, ..*job }
    })
}

/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn dropout(backend: &CudaBackend, job: &DropoutJob, stream: Stream) -> Result<()> {
    let queue = Queue::new(backend, stream)?;
    if job.dbias.is_some() {
        // Both kernels are there before the first is enqueued.
        queue.load(&Dbias)?;
    }
    let mut strips = 0;
    if job.x.rows > 0 {
        // SAFETY: forwarded contract.
        strips = unsafe { elements(&queue, job) }?;
    }
    match &job.dbias {
        // SAFETY: the partial sums are being written in stream order.
        Some(b) => unsafe { finish_dbias(&queue, job.workspace, strips as i64, job.x.cols, b) },
        None => Ok(()),
    }
}

/// Everything but the end of the bias gradient; returns the number of partial sums of each column.
///
/// # Safety
/// As [`dropout`]; there are rows.
unsafe fn elements(queue: &Queue<'_>, given: &DropoutJob) -> Result<u64> {
    let total = given.x.rows.saturating_mul(given.x.cols);
    let flat = flat(given);
    let job = flat.as_ref().unwrap_or(given);
    let (x, y) = (&job.x, &job.y);
    let others = [job.residual, job.bias];
    let vectors = x.cols % 8 == 0 && starts_on_16(x) && starts_on_16(y) && others.iter().flatten().all(starts_on_16);
    let width = if vectors { 32 * 16 / x.dtype.size() as u64 } else { ANY_COLS };
    let across = (x.cols as u64).div_ceil(width);
    let kernel = match job.keep {
        _ if !vectors => Kernel::Any,
        Keep::Draw => Kernel::Drawn,
        _ => Kernel::Known,
    };
    let down = (x.rows as u64).div_ceil(if kernel == Kernel::Drawn { DRAWN_STRIP } else { STRIP });
    let multiprocessors = u64::from(queue.multiprocessors());
    let steps = match (kernel, &job.dbias) {
        // Each step's rows come while those of the one before are drawn; two of them at least leave no more partial sums than there is room for.
        (Kernel::Drawn, dbias) => {
            down.saturating_mul(across).div_ceil(multiprocessors * DRAWN_BLOCKS).clamp(if dbias.is_some() { 2 } else { 1 }, 1 << 20)
        }
        // The fewer partial sums the better, as long as there are many blocks for each multiprocessor.
        (_, Some(_)) => (down.saturating_mul(across) / (multiprocessors * 24)).clamp(1, 4),
        (_, None) => 1,
    };
    let strips = down.div_ceil(steps);
    let grid = blocks(strips.saturating_mul(across), 0x7FFF_FFFF, "tiles of the tensor")?;
    let params = Params {
        x: x.data,
        residual: job.residual.map_or(Ptr::NULL, |t| t.data),
        y: y.data,
        bias: job.bias.map_or(Ptr::NULL, |t| t.data),
        mask: job.mask,
        rng: job.random.rng,
        sums: if job.dbias.is_some() { job.workspace } else { Ptr::NULL },
        ldx: x.ld,
        ldr: job.residual.map_or(0, |t| t.ld),
        ldy: y.ld,
        ld_mask: job.mask_ld,
        rows: x.rows,
        cols: x.cols,
        last: if flat.is_some() { total - FLAT * (x.rows - 1) } else { x.cols },
        stream: job.random.stream,
        keep: job.keep as u32,
        threshold: job.threshold,
        scale: job.scale,
        bias_type: job.bias.map_or(0, |t| t.dtype as i32),
        col_tiles: across as u32,
        steps: steps as u32,
    };
    let spec = Dropout { x: x.dtype, backward: job.backward, kernel };
    // SAFETY: the kernel's one parameter; pointers live by contract.
    unsafe { queue.launch(&spec, &Launch::new([grid, 1, 1], THREADS), arguments![params]) }?;
    Ok(strips)
}
