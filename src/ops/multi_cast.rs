//! Casts of a list of tensors to FP8 in one launch: the weights of a layer, or of a model.

use super::{
    cast::{cast_layouts, CurrentScaling},
    check,
    list::{self, Blocks, Claim, ListKind, TensorList},
};
use crate::{
    context::{Context, Stream},
    error::{Error, Result, Status},
    numerics::{format_max, ScaleRule},
    ops::cast::CastArgs,
    tensor::{DType, Ptr, TensorView},
};

/// Rows and columns of a block.
const TILE: i64 = 128;

/// Arguments of [`multi_cast_to_fp8`].
#[derive(Clone, Copy, Debug)]
pub struct MultiCastArgs {
    /// Made by [`cast_list`].
    pub list: TensorList,
    /// Take each scale from the tensor's own amax (then `amax`, `scale` and `scale_inv` are written); `None`: `scale` is read and `amax`
    /// recorded.
    pub current: Option<CurrentScaling>,
    /// One u32, or null: where it is not 0 nothing is written.
    pub skip: Ptr,
}

/// One validated call. Current scaling has the same rule for every tensor but for the format's largest value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MultiCastJob {
    pub(crate) list: TensorList,
    pub(crate) current: Option<CurrentScaling>,
    pub(crate) skip: Ptr,
}

/// A tensor in the table. Mirrored by `CastEntry` in `kernels/multi_cast.cu`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct CastEntry {
    first: u32,
    blocks: u32,
    x: Ptr,
    q: Ptr,
    qt: Ptr,
    scale: Ptr,
    scale_inv: Ptr,
    amax: Ptr,
    ldx: i64,
    ldq: i64,
    ldqt: i64,
    rows: i64,
    cols: i64,
    /// Types of input and codes, four bits each.
    types: u32,
    col_tiles: u32,
    pad: [u64; 3],
}

// SAFETY: integers (a `Ptr` is one) with no gaps between them, for which zeros are valid.
unsafe impl bytemuck::Zeroable for CastEntry {}
// SAFETY: as above; every pattern of bits is valid.
unsafe impl bytemuck::Pod for CastEntry {}

const _: () = assert!(std::mem::size_of::<CastEntry>() == 128);

impl CastEntry {
    /// The cast that it stands for.
    pub(crate) fn cast(&self) -> CastArgs {
        let dtype = |place: u32| DType::ALL[(self.types >> (4 * place) & 7) as usize % DType::ALL.len()];
        CastArgs {
            input: TensorView::new(dtype(0), self.x, self.rows, self.cols).with_ld(self.ldx),
            output: TensorView::new(dtype(1), self.q, self.rows, self.cols)
                .with_ld(self.ldq)
                .with_transpose(self.qt, self.ldqt)
                .with_scaling(self.scale, self.scale_inv, self.amax),
        }
    }
}

/// The rule of one format.
pub(crate) fn rule(c: &CurrentScaling, output: DType) -> ScaleRule {
    ScaleRule { format_max: format_max(output), margin: c.margin, epsilon: c.epsilon, power_of_two: c.power_of_two }
}

fn entries(casts: &[CastArgs]) -> Result<(Vec<CastEntry>, Blocks)> {
    let mut blocks = Blocks::default();
    let mut all = Vec::with_capacity(casts.len());
    for (i, c) in casts.iter().enumerate() {
        all.push(entry(c, &mut blocks).map_err(|e| list::of_tensor(i, e))?);
    }
    Ok((all, blocks))
}

fn entry(c: &CastArgs, blocks: &mut Blocks) -> Result<CastEntry> {
    let (x, q) = (&c.input, &c.output);
    check::sizes("input", x)?;
    check::extent("input", DType::F32, x.rows, x.cols, x.cols)?;
    let up = |n: i64| (n as u64).div_ceil(TILE as u64).max(1);
    let wide = u32::try_from(up(x.cols))
        .map_err(|_| Error::argument(Status::SizeOverflow, "input.cols", x.cols, "this many tiles do not fit a launch"))?;
    // A cast of nothing still writes its scale_inv, so it has a block.
    let (first, blocks) = blocks.take(up(x.rows).saturating_mul(u64::from(wide)), true)?;
    Ok(CastEntry {
        first,
        blocks,
        x: x.data,
        q: q.data,
        qt: q.data_t,
        scale: q.scale,
        scale_inv: q.scale_inv,
        amax: q.amax,
        ldx: x.ld,
        ldq: q.ld,
        ldqt: q.ld_t,
        rows: x.rows,
        cols: x.cols,
        types: x.dtype as u32 | (q.dtype as u32) << 4,
        col_tiles: wide,
        pad: [0; 3],
    })
}

fn host_part(data: Ptr, bytes: u64, entries: &[CastEntry], blocks: &Blocks) -> TensorList {
    let largest = entries.iter().map(|e| u64::from(e.blocks)).max().unwrap_or(0);
    TensorList { kind: ListKind::Casts, data, bytes, count: entries.len() as i64, blocks: [blocks.total, largest] }
}

/// Bytes of the table of a list of these casts; only shapes count.
pub fn cast_list_workspace(_ctx: &Context, casts: &[CastArgs]) -> Result<u64> {
    list::count(casts.len())?;
    let (entries, blocks) = entries(casts)?;
    Ok(host_part(Ptr::NULL, 0, &entries, &blocks).needed())
}

/// Makes a list: writes its table, in stream order, to `data` (device memory, a multiple of 16, of `bytes`).
///
/// Every cast is one that [`cast_to_fp8`](super::cast::cast_to_fp8) takes, of any types, shapes and strides. The table serves as long as
/// the tensors stay where they are. One list is used by one stream at a time. With [`Stream::PREPARE`] the host part is made and the table
/// not written.
///
/// # Safety
/// See [the module](super).
pub unsafe fn cast_list(ctx: &Context, casts: &[CastArgs], data: Ptr, bytes: u64, stream: Stream) -> Result<TensorList> {
    list::count(casts.len())?;
    let mut claims = Vec::with_capacity(3 * casts.len() + 1);
    for (index, c) in casts.iter().enumerate() {
        // Tensors may share slots: the parts of one tensor do.
        let (read, [row, col, ..]) = cast_layouts(ctx, &c.input, &c.output).map_err(|e| list::of_tensor(index, e))?;
        claims.push(Claim { index, range: read, written: false });
        claims.extend([row, col].map(|range| Claim { index, range, written: true }));
    }
    let (entries, blocks) = entries(casts)?;
    let made = host_part(data, bytes, &entries, &blocks);
    claims.push(Claim { index: casts.len(), range: made.check(ctx, ListKind::Casts)?, written: true });
    list::disjoint(claims)?;
    let inputs: Vec<Ptr> = casts.iter().map(|c| c.input.data).collect();
    // SAFETY: validated; the caller vouches for the memory.
    unsafe { list::write(ctx, &made, bytemuck::cast_slice(&entries), &inputs, stream) }?;
    Ok(made)
}

/// All casts of a list, with the bits of [`cast_to_fp8`](super::cast::cast_to_fp8) or
/// [`cast_to_fp8_current`](super::cast::cast_to_fp8_current): with given scales in one launch, with current scaling in two or three.
///
/// # Safety
/// See [the module](super); everything the list points to is live.
pub unsafe fn multi_cast_to_fp8(ctx: &Context, args: &MultiCastArgs, stream: Stream) -> Result<()> {
    args.list.check(ctx, ListKind::Casts)?;
    check::pointer(ctx.backend(), "skip", args.skip, 4)?;
    if let Some(c) = &args.current {
        c.rule(DType::E4m3)?;
    }
    let job = MultiCastJob { list: args.list, current: args.current, skip: args.skip };
    // SAFETY: validated; the caller vouches for the pointers.
    unsafe { ctx.backend().multi_cast(&job, stream) }
}
