//! AdamW over a list of tensors, in one launch.

use super::{
    cast::fp8_output,
    check,
    list::{self, Blocks, Claim, ListKind, TensorList, TABLE_ALIGNMENT},
};
use crate::{
    context::{Context, Stream},
    error::{Error, Result, Status},
    tensor::{DType, Ptr, TensorView},
};

/// Elements of a block that walks a tensor as one stretch of memory.
pub(crate) const CHUNK: i64 = 4096;
/// Rows and columns of a block that also writes FP8 codes.
pub(crate) const TILE: i64 = 128;

/// One parameter and its state. All of one shape, with no gaps between rows.
#[derive(Clone, Copy, Debug)]
pub struct AdamwTensor {
    /// f32, f16 or bf16, read (without a master) and written.
    pub weight: TensorView,
    /// f32, f16 or bf16.
    pub gradient: TensorView,
    /// f32 weights of which `weight` is the rounded copy; `None`: `weight` is all there is.
    pub master: Option<TensorView>,
    /// First moment: f32 or bf16.
    pub exp_avg: TensorView,
    /// Second moment, of the same type.
    pub exp_avg_sq: TensorView,
    /// FP8 copy of the new weight as in [`cast_to_fp8`](super::cast::cast_to_fp8).
    pub fp8: Option<TensorView>,
}

/// Arguments of [`adamw`].
#[derive(Clone, Copy, Debug)]
pub struct AdamwArgs {
    /// Made by [`adamw_list`].
    pub list: TensorList,
    /// One f32: steps taken so far; 1 is added unless the step is skipped.
    pub step: Ptr,
    /// One f32: the learning rate; null: `lr`.
    pub lr_ptr: Ptr,
    /// The learning rate where `lr_ptr` is null.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decay of the weights.
    pub weight_decay: f64,
    /// The decay acts on the weights (AdamW); false: on the gradients (L2).
    pub decoupled: bool,
    /// Moments are divided by 1 - beta^step.
    pub bias_correction: bool,
    /// One f32, or null: where it is not 0 the step is skipped, and nothing is written.
    pub found_inf: Ptr,
    /// One f32, or null: gradients are divided by it.
    pub grad_scale: Ptr,
    /// One f32, or null: gradients are multiplied by it.
    pub clip: Ptr,
}

/// A tensor in the table. Mirrored by `AdamwEntry` in `kernels/adamw.cu`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct AdamwEntry {
    pub(crate) first: u32,
    pub(crate) blocks: u32,
    pub(crate) weight: Ptr,
    pub(crate) master: Ptr,
    pub(crate) exp_avg: Ptr,
    pub(crate) exp_avg_sq: Ptr,
    pub(crate) q: Ptr,
    pub(crate) qt: Ptr,
    pub(crate) scale: Ptr,
    pub(crate) scale_inv: Ptr,
    pub(crate) amax: Ptr,
    /// Walked as one stretch: 1 row.
    pub(crate) rows: i64,
    pub(crate) cols: i64,
    pub(crate) ldq: i64,
    pub(crate) ldqt: i64,
    /// Types of weight, gradient, moments and codes, four bits each; then whether it is cut into tiles.
    types: u32,
    pub(crate) col_tiles: u32,
    pad: u64,
}

// SAFETY: integers (a `Ptr` is one) with no gaps between them, for which zeros are valid.
unsafe impl bytemuck::Zeroable for AdamwEntry {}
// SAFETY: as above; every pattern of bits is valid.
unsafe impl bytemuck::Pod for AdamwEntry {}

/// The data type in four bits of `types`.
fn type_at(types: u32, place: u32) -> DType {
    DType::ALL[(types >> (4 * place) & 7) as usize % DType::ALL.len()]
}

impl AdamwEntry {
    pub(crate) fn weight_type(&self) -> DType {
        type_at(self.types, 0)
    }
    pub(crate) fn gradient_type(&self) -> DType {
        type_at(self.types, 1)
    }
    pub(crate) fn moment_type(&self) -> DType {
        type_at(self.types, 2)
    }
    pub(crate) fn fp8_type(&self) -> DType {
        type_at(self.types, 3)
    }
    pub(crate) fn tiled(&self) -> bool {
        self.types >> 16 & 1 != 0
    }
}

fn entries(tensors: &[AdamwTensor]) -> Result<(Vec<AdamwEntry>, Blocks)> {
    let mut blocks = Blocks::default();
    let mut all = Vec::with_capacity(tensors.len());
    for (i, t) in tensors.iter().enumerate() {
        entry(t, &mut blocks).map(|e| all.push(e)).map_err(|e| list::of_tensor(i, e))?;
    }
    Ok((all, blocks))
}

fn entry(t: &AdamwTensor, blocks: &mut Blocks) -> Result<AdamwEntry> {
    let w = &t.weight;
    check::sizes("weight", w)?;
    check::extent("weight", DType::F32, w.rows, w.cols, w.cols)?;
    let absent = TensorView::new(DType::E4m3, Ptr::NULL, w.rows, w.cols);
    let q = t.fp8.unwrap_or(absent);
    let tiled = t.fp8.is_some();
    let (rows, cols) = if tiled { (w.rows, w.cols) } else { (1, w.rows * w.cols) };
    let up = |n: i64, by: i64| (n as u64).div_ceil(by as u64);
    // A cast of nothing still writes its scale_inv, so it has a block.
    let (tall, wide) = (up(rows, TILE).max(1), up(cols, TILE).max(1));
    let wide = u32::try_from(wide)
        .map_err(|_| Error::argument(Status::SizeOverflow, "weight.cols", cols, "this many tiles do not fit a launch"))?;
    let needed = if tiled { tall.saturating_mul(u64::from(wide)) } else { up(cols, CHUNK) };
    let (first, blocks) = blocks.take(needed, tiled)?;
    let types = [w.dtype, t.gradient.dtype, t.exp_avg.dtype, q.dtype].into_iter().rev().fold(0, |n, d| n << 4 | d as u32);
    Ok(AdamwEntry {
        first,
        blocks,
        weight: w.data,
        master: t.master.map_or(Ptr::NULL, |m| m.data),
        exp_avg: t.exp_avg.data,
        exp_avg_sq: t.exp_avg_sq.data,
        q: q.data,
        qt: q.data_t,
        scale: q.scale,
        scale_inv: q.scale_inv,
        amax: q.amax,
        rows,
        cols,
        ldq: q.ld,
        ldqt: q.ld_t,
        types: types | u32::from(tiled) << 16,
        col_tiles: wide,
        pad: 0,
    })
}

fn host_part(data: Ptr, bytes: u64, count: i64, blocks: &Blocks) -> TensorList {
    TensorList { kind: ListKind::Adamw, data, bytes, count, blocks: [blocks.total, blocks.tiles] }
}

/// Bytes of the table of a list of these tensors; only their shapes and which of them have FP8 copies count.
pub fn adamw_list_workspace(_ctx: &Context, tensors: &[AdamwTensor]) -> Result<u64> {
    let count = list::count(tensors.len())?;
    let (_, blocks) = entries(tensors)?;
    Ok(host_part(Ptr::NULL, 0, count, &blocks).needed())
}

/// Makes a list: writes its table, in stream order, to `data` (device memory, a multiple of 16, of `bytes`).
///
/// The table holds pointers: it serves as long as these stay. One list is used by one stream at a time. With
/// [`Stream::PREPARE`] the host part is made and the table not written.
///
/// # Safety
/// See [the module](super).
pub unsafe fn adamw_list(ctx: &Context, tensors: &[AdamwTensor], data: Ptr, bytes: u64, stream: Stream) -> Result<TensorList> {
    let count = list::count(tensors.len())?;
    let mut claims = Vec::with_capacity(6 * tensors.len() + 1);
    for (i, t) in tensors.iter().enumerate() {
        claim(ctx, i, t, &mut claims).map_err(|e| list::of_tensor(i, e))?;
    }
    let (entries, blocks) = entries(tensors)?;
    let made = host_part(data, bytes, count, &blocks);
    claims.push(Claim { index: tensors.len(), range: made.check(ctx, ListKind::Adamw)?, written: true });
    list::disjoint(claims)?;
    let gradients: Vec<Ptr> = tensors.iter().map(|t| t.gradient.data).collect();
    // SAFETY: validated; the caller vouches for the memory.
    unsafe { list::write(ctx, &made, bytemuck::cast_slice(&entries), &gradients, stream) }?;
    Ok(made)
}

/// Checks one tensor; adds its memory to `claims`.
fn claim(ctx: &Context, index: usize, t: &AdamwTensor, claims: &mut Vec<Claim>) -> Result<()> {
    const MOMENTS: &[DType] = &[DType::F32, DType::Bf16];
    let b = ctx.backend();
    let mut add = |range, written| claims.push(Claim { index, range, written });
    let parts = [
        ("weight", Some(t.weight), check::HIGH, true),
        ("gradient", Some(t.gradient), check::HIGH, false),
        ("master", t.master, &[DType::F32][..], true),
        ("exp_avg", Some(t.exp_avg), MOMENTS, true),
        ("exp_avg_sq", Some(t.exp_avg_sq), MOMENTS, true),
    ];
    for (name, part, types, written) in parts {
        let Some(x) = part else { continue };
        check::dtype(name, &x, types)?;
        check::same_shape(name, &x, "weight", &t.weight)?;
        let range = check::rowwise(b, name, &x)?;
        list::dense(name, &x)?;
        add(range, written);
    }
    if t.exp_avg_sq.dtype != t.exp_avg.dtype {
        return Err(Error::argument(Status::InvalidDType, "exp_avg_sq.dtype", t.exp_avg_sq.dtype.name(), "must be that of exp_avg"));
    }
    if let Some(q) = &t.fp8 {
        check::dtype("fp8", q, check::FP8)?;
        check::same_shape("fp8", q, "weight", &t.weight)?;
        // Tensors may share slots: the parts of one tensor do.
        let [row, col, ..] = fp8_output(ctx, "fp8", q)?;
        add(row, true);
        add(col, true);
    }
    Ok(())
}

/// A number the update multiplies with.
fn finite(name: &str, v: f64, low: f64, below: f64) -> Result<()> {
    if v >= low && v < below {
        return Ok(());
    }
    let rule = if below == f64::INFINITY { "finite and not negative".to_owned() } else { format!("at least {low} and below {below}") };
    Err(Error::argument(Status::InvalidValue, name, v, rule))
}

/// One step of AdamW (NUMERICS section 8) for all tensors of a list. With t = steps taken + 1, in f32, each operation rounded by itself in
/// this order, where what is the same for all elements is formed in f64 (clip / grad_scale in f32) and rounded once:
///
/// ```text
/// g = gradient * (clip / grad_scale)                (L2: g += weight_decay * w)
/// m = beta1 * m + (1 - beta1) * g;   v = beta2 * v + ((1 - beta2) * g) * g
/// w -= (lr / (1 - beta1^t)) * (m / (sqrt(v) * (1 / sqrt(1 - beta2^t)) + eps)) + (lr * weight_decay) * w
/// ```
///
/// # Safety
/// See [the module](super); everything the list points to is live.
pub unsafe fn adamw(ctx: &Context, args: &AdamwArgs, stream: Stream) -> Result<()> {
    let b = ctx.backend();
    args.list.check(ctx, ListKind::Adamw)?;
    check::required(b, "step", args.step, 4)?;
    for (name, p) in [("lr_ptr", args.lr_ptr), ("found_inf", args.found_inf), ("grad_scale", args.grad_scale), ("clip", args.clip)] {
        check::pointer(b, name, p, 4)?;
    }
    finite("lr", args.lr, 0.0, f64::INFINITY)?;
    finite("beta1", args.beta1, 0.0, 1.0)?;
    finite("beta2", args.beta2, 0.0, 1.0)?;
    finite("eps", args.eps, 0.0, f64::INFINITY)?;
    finite("weight_decay", args.weight_decay, 0.0, f64::INFINITY)?;
    // SAFETY: validated; the caller vouches for the pointers.
    unsafe { b.adamw(args, stream) }
}

const _: () = assert!(std::mem::size_of::<AdamwEntry>() == 128 && TABLE_ALIGNMENT % std::mem::align_of::<AdamwEntry>() == 0);
