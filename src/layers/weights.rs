//! FP8 copies of the weights: in a cache of the caller's, or for one call in its workspace.

use super::{forward::view, pad, slot, Arena, Layer, LayerCall, Rows};
use crate::{
    context::Stream,
    error::{Error, Result, Status},
    ops::{
        amax::{self, AmaxArgs},
        cast::CastJob,
        check,
    },
    tensor::{Ptr, TensorView},
};

/// FP8 copies of a layer's weights in memory of the caller's. `valid` is written by the calls: bit `2i` says that the row-wise copy of
/// weight `i` is filled, bit `2i + 1` that the transposed one is. Whoever changes a weight sets it to 0.
#[derive(Clone, Copy, Debug)]
pub struct WeightCache {
    /// Which copies are filled.
    pub valid: u32,
    /// Device memory, aligned to 16 bytes.
    pub data: Ptr,
    /// At least [`LayerSizes::weight_cache`](super::LayerSizes::weight_cache).
    pub bytes: u64,
}

/// Where the copies of one weight lie: the scale and its reciprocal, the row-wise codes `[n, pad(k)]`, the transposed ones `[k, pad(n)]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copies {
    pub(super) scale: Ptr,
    pub(super) scale_inv: Ptr,
    pub(super) row: Ptr,
    pub(super) transposed: Ptr,
}

impl Layer {
    /// Takes room for the copies of weight `i`; of the two layouts those that are wanted.
    pub(super) fn copies(&self, arena: &mut Arena, i: usize, row: bool, transposed: bool) -> Copies {
        let p = self.products[i];
        let scale = arena.fixed(8);
        let row = if row { arena.fixed((p.n * pad(p.k)) as u64) } else { Ptr::NULL };
        let transposed = if transposed { arena.fixed((p.k * pad(p.n)) as u64) } else { Ptr::NULL };
        Copies { scale, scale_inv: scale.offset(4), row, transposed }
    }

    pub(super) fn cache_bytes(&self) -> u64 {
        if self.config.recipe.is_none() {
            return 0;
        }
        let mut arena = Arena::measure();
        for i in 0..self.count {
            self.copies(&mut arena, i, true, true);
        }
        arena.bound().fixed
    }

    /// Checks a cache and finds the copies in it.
    pub(super) fn cached(&self, cache: &WeightCache) -> Result<([Copies; 2], check::Range)> {
        let needed = self.cache_bytes();
        if cache.bytes < needed {
            let rule = format!("must be at least {needed}");
            return Err(Error::argument(Status::WorkspaceTooSmall, "weight_cache.bytes", cache.bytes, rule));
        }
        let known = (1 << (2 * self.count)) - 1;
        if cache.valid & !known != 0 {
            let rule = format!("must be at most {known}: two bits for each weight");
            return Err(Error::argument(Status::InvalidValue, "weight_cache.valid", cache.valid, rule));
        }
        check::required(self.ctx.backend(), "weight_cache.data", cache.data, 16)?;
        let mut arena = Arena::place(cache.data, 0);
        let first = self.copies(&mut arena, 0, true, true);
        let second = if self.count == 2 { self.copies(&mut arena, 1, true, true) } else { first };
        let range = check::Range { name: "weight_cache", start: cache.data.0, end: cache.data.0.saturating_add(needed) };
        Ok(([first, second], range))
    }

    /// The cast of weight `i` into the layouts of `to` that are not null.
    pub(super) fn weight_job(&self, call: &LayerCall, i: usize, w: Rows, to: &Copies, how: &WeightCast) -> Result<CastJob> {
        let p = self.products[i];
        let input = view(self.config.param_dtype, w, p.n, p.k);
        let (forward, _) = self.formats();
        let output = TensorView::new(forward, to.row, p.n, p.k).with_ld(pad(p.k)).with_transpose(to.transposed, pad(p.n));
        let [_, s, _] = self.slots(i);
        let (scale, live) = (slot(call.scale, s), slot(call.live, s));
        let job = match how {
            WeightCast::Again => CastJob::new(input, output.with_scaling(to.scale, to.scale_inv, Ptr::NULL)),
            WeightCast::Fresh { workspace } => {
                let due = call.flags.weight_scale_due && self.current().is_none();
                let own = due || self.current().is_some();
                let keep = due && call.flags.weight_scale_keep;
                let (scale, live) = if own && !keep { (Ptr::NULL, Ptr::NULL) } else { (scale, live) };
                let rule = own.then(|| self.replaced().rule(forward)).transpose()?;
                let output = output.with_scaling(scale, to.scale_inv, live);
                CastJob { current: rule, keep_scale: to.scale, workspace: *workspace, ..CastJob::new(input, output) }
            }
        };
        Ok(CastJob { skip: call.skip_refresh, ..job })
    }

    /// A cast that records its amax as a maximum, with current scaling too, which by itself would replace what the slot holds.
    ///
    /// # Safety
    /// As the calls of the layer.
    pub(super) unsafe fn cast_and_record(&self, job: &CastJob, stream: Stream) -> Result<()> {
        let mut job = *job;
        // SAFETY: forwarded contract.
        unsafe {
            if job.current.is_some() && !job.output.amax.is_null() {
                amax::amax(&self.ctx, &AmaxArgs { input: job.input, amax: job.output.amax }, stream)?;
                job.output.amax = Ptr::NULL;
            }
            self.ctx.backend().cast(&job, stream)
        }
    }
}

/// Runs a pass; the caller's `valid` changes only if it filled copies: not on an error, and not on the prepare stream.
pub(super) fn with_valid(
    cache: Option<&mut WeightCache>,
    stream: Stream,
    pass: impl FnOnce(Option<&mut WeightCache>) -> Result<()>,
) -> Result<()> {
    let mut copy = cache.as_deref().copied();
    pass(copy.as_mut())?;
    if let (Some(to), Some(copy)) = (cache.filter(|_| stream != Stream::PREPARE), copy) {
        to.valid = copy.valid;
    }
    Ok(())
}

/// How a weight's scale is found.
pub(super) enum WeightCast {
    /// By the recipe and the flags; it is kept beside the copies. Current scaling reduces in `workspace`.
    Fresh {
        /// Scratch memory of [`amax_workspace`](crate::backend::Backend::amax_workspace) bytes.
        workspace: Ptr,
    },
    /// The one kept beside the copies: the same codes again.
    Again,
}
