//! The L2 norm over a list of gradients, and their multiplication by a factor on the device.

use super::{
    check,
    list::{self, Blocks, Claim, ListKind, TensorList},
};
use crate::{
    context::{Context, Stream},
    error::{Error, Result, Status},
    tensor::{DType, Ptr, TensorView},
};

/// Bytes that a block reads.
pub(crate) const CHUNK: u64 = 16_384;

/// Arguments of [`grad_norm`].
#[derive(Clone, Copy, Debug)]
pub struct GradNormArgs {
    /// Made by [`grad_list`].
    pub list: TensorList,
    /// One f32, or null: the norm is divided by it (gradients of a scaled loss).
    pub grad_scale: Ptr,
    /// For `clip`: the norm gradients are to have at most.
    pub max_norm: f64,
    /// Receives the norm, one f32.
    pub norm: Ptr,
    /// Receives min(1, max_norm / (norm + 1e-6)), one f32; null: not wanted.
    pub clip: Ptr,
    /// Receives 1 where a gradient is infinite or NaN, else 0, one f32; null: not wanted.
    pub found_inf: Ptr,
}

/// Arguments of [`grad_scale`].
#[derive(Clone, Copy, Debug)]
pub struct GradScaleArgs {
    /// Made by [`grad_list`].
    pub list: TensorList,
    /// One f32: what the gradients are multiplied by. Where it is 1 they are not touched.
    pub factor: Ptr,
}

/// A tensor in the table. Mirrored by `GradEntry` in `kernels/grad_norm.cu`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct GradEntry {
    pub(crate) first: u32,
    pub(crate) blocks: u32,
    pub(crate) count: i64,
    dtype: u32,
    pad: [u32; 3],
}

// SAFETY: integers with no gaps between them, for which zeros are valid.
unsafe impl bytemuck::Zeroable for GradEntry {}
// SAFETY: as above; every pattern of bits is valid.
unsafe impl bytemuck::Pod for GradEntry {}

impl GradEntry {
    pub(crate) fn dtype(&self) -> DType {
        DType::ALL[self.dtype as usize % DType::ALL.len()]
    }
}

fn entries(gradients: &[TensorView]) -> Result<(Vec<GradEntry>, Blocks)> {
    let mut blocks = Blocks::default();
    let mut all = Vec::with_capacity(gradients.len());
    for (i, g) in gradients.iter().enumerate() {
        let mut one = || {
            check::sizes("gradient", g)?;
            let bytes = check::extent("gradient", g.dtype, g.rows, g.cols, g.cols)?;
            let (first, blocks) = blocks.take(bytes.div_ceil(CHUNK), false)?;
            Ok(GradEntry { first, blocks, count: g.rows * g.cols, dtype: g.dtype as u32, pad: [0; 3] })
        };
        all.push(one().map_err(|e| list::of_tensor(i, e))?);
    }
    Ok((all, blocks))
}

fn host_part(data: Ptr, bytes: u64, count: i64, blocks: &Blocks) -> TensorList {
    TensorList { kind: ListKind::Gradients, data, bytes, count, blocks: [blocks.total, blocks.tiles] }
}

/// Bytes of the table of a list of these gradients; only their shapes and types count.
pub fn grad_list_workspace(_ctx: &Context, gradients: &[TensorView]) -> Result<u64> {
    let count = list::count(gradients.len())?;
    let (_, blocks) = entries(gradients)?;
    Ok(host_part(Ptr::NULL, 0, count, &blocks).needed())
}

/// Makes a list: writes its table, in stream order, to `data` (device memory, a multiple of 16, of `bytes`).
///
/// Gradients are f32, f16 or bf16, with no gaps between rows. The table serves as long as they stay where they are. One list is used by
/// one stream at a time. With [`Stream::PREPARE`] the host part is made and the table not written.
///
/// # Safety
/// See [the module](super).
pub unsafe fn grad_list(ctx: &Context, gradients: &[TensorView], data: Ptr, bytes: u64, stream: Stream) -> Result<TensorList> {
    let count = list::count(gradients.len())?;
    let mut claims = Vec::with_capacity(gradients.len() + 1);
    for (index, g) in gradients.iter().enumerate() {
        let mut one = || {
            check::dtype("gradient", g, check::HIGH)?;
            let range = check::rowwise(ctx.backend(), "gradient", g)?;
            list::dense("gradient", g)?;
            // They are written where they are scaled.
            claims.push(Claim { index, range, written: true });
            Ok(())
        };
        one().map_err(|e| list::of_tensor(index, e))?;
    }
    let (entries, blocks) = entries(gradients)?;
    let made = host_part(data, bytes, count, &blocks);
    claims.push(Claim { index: gradients.len(), range: made.check(ctx, ListKind::Gradients)?, written: true });
    list::disjoint(claims)?;
    let pointers: Vec<Ptr> = gradients.iter().map(|g| g.data).collect();
    // SAFETY: validated; the caller vouches for the memory.
    unsafe { list::write(ctx, &made, bytemuck::cast_slice(&entries), &pointers, stream) }?;
    Ok(made)
}

/// The L2 norm of all gradients of a list, as one vector. No square overflows or vanishes, whatever the magnitudes; NaN gives NaN, and
/// an infinity without a NaN gives infinity. The order of additions depends on the list and the device alone.
///
/// # Safety
/// See [the module](super); everything the list points to is live.
pub unsafe fn grad_norm(ctx: &Context, args: &GradNormArgs, stream: Stream) -> Result<()> {
    let b = ctx.backend();
    let table = args.list.check(ctx, ListKind::Gradients)?;
    check::pointer(b, "grad_scale", args.grad_scale, 4)?;
    let norm = check::vector(b, "norm", args.norm, DType::F32, 1, false)?;
    let clip = check::vector(b, "clip", args.clip, DType::F32, 1, true)?;
    let found = check::vector(b, "found_inf", args.found_inf, DType::F32, 1, true)?;
    check::disjoint(&[], &[norm, clip, found, table])?;
    if args.max_norm.is_nan() || args.max_norm < 0.0 {
        return Err(Error::argument(Status::InvalidValue, "max_norm", args.max_norm, "must not be negative or NaN"));
    }
    // SAFETY: validated; the caller vouches for the pointers.
    unsafe { b.grad_norm(args, stream) }
}

/// Multiplies all gradients of a list by a factor on the device, in f32, rounded once.
///
/// # Safety
/// See [the module](super); everything the list points to is live.
pub unsafe fn grad_scale(ctx: &Context, args: &GradScaleArgs, stream: Stream) -> Result<()> {
    args.list.check(ctx, ListKind::Gradients)?;
    check::required(ctx.backend(), "factor", args.factor, 4)?;
    // SAFETY: validated; the caller vouches for the pointers.
    unsafe { ctx.backend().grad_scale(args, stream) }
}

const _: () = assert!(std::mem::size_of::<GradEntry>() == 32);
