//! The delayed-scaling update of all slots.

use super::check;
use crate::{
    context::{Context, Stream},
    error::{Error, Result, Status},
    numerics::{check_epsilon, check_margin, AmaxComputeAlgo, DelayedScaling},
    tensor::{DType, Ptr},
};

/// Largest interval: the upper bits of the counter serve the update while it runs.
pub(crate) const MAX_INTERVAL: u32 = 1 << 20;

/// Arguments of [`scaling_update`]: caller-provided arrays over `slots` slots (NUMERICS section 4).
#[derive(Clone, Copy, Debug)]
pub struct ScalingUpdateArgs {
    /// Number of slots.
    pub slots: i64,
    /// `[slots]` f32: amaxes recorded in the period that ends; read, and set to 0 where they were taken.
    pub live: Ptr,
    /// `[slots]` f32: scales, read and written.
    pub scale: Ptr,
    /// f32: the `history_len - 1` older amaxes of slot i at `history + i*slot_stride + j*step_stride` (elements), j = 0 the oldest.
    pub history: Ptr,
    /// Elements between slots.
    pub slot_stride: i64,
    /// Elements between steps.
    pub step_stride: i64,
    /// Window length L, the live amax included.
    pub history_len: i64,
    /// `[slots]` f32: largest finite value of each slot's format.
    pub format_max: Ptr,
    /// `[slots]` u32, or null: counts of periods dropped because their amax was not finite.
    pub nonfinite: Ptr,
    /// `[slots]` f32, or null: receives 1/scale, for information.
    pub scale_inv: Ptr,
    /// One u32 that starts at 0: updates since scales last changed. Required where `interval` is above 1, else may be null.
    pub counter: Ptr,
    /// Scales change at every interval-th update.
    pub interval: u32,
    /// Scales are divided by 2^margin.
    pub margin: i32,
    /// Floor of the amax.
    pub epsilon: f32,
    /// Round scales down to powers of two.
    pub power_of_two: bool,
    /// How the amax follows from the window.
    pub algo: AmaxComputeAlgo,
}

impl ScalingUpdateArgs {
    /// Arrays still to be filled in, options from a recipe.
    pub fn from_recipe(r: &DelayedScaling) -> Self {
        Self {
            slots: 0,
            live: Ptr::NULL,
            scale: Ptr::NULL,
            history: Ptr::NULL,
            slot_stride: 0,
            step_stride: 0,
            history_len: r.amax_history_len as i64,
            format_max: Ptr::NULL,
            nonfinite: Ptr::NULL,
            scale_inv: Ptr::NULL,
            counter: Ptr::NULL,
            interval: r.interval,
            margin: r.margin,
            epsilon: r.epsilon,
            power_of_two: r.power_of_two,
            algo: r.amax_compute_algo,
        }
    }
}

/// Ends a period for every slot, in one launch: rolls the histories and makes the new scales. With no slots nothing happens.
///
/// # Safety
/// See [the module](super).
pub unsafe fn scaling_update(ctx: &Context, args: &ScalingUpdateArgs, stream: Stream) -> Result<()> {
    let (b, n) = (ctx.backend(), args.slots);
    if n < 0 {
        return Err(Error::argument(Status::InvalidShape, "slots", n, "must not be negative"));
    }
    if n > 1 << 31 {
        return Err(Error::argument(Status::SizeOverflow, "slots", n, "at most 2^31"));
    }
    if args.history_len < 1 {
        return Err(Error::argument(Status::InvalidValue, "history_len", args.history_len, "at least 1"));
    }
    if args.interval == 0 || args.interval > MAX_INTERVAL {
        return Err(Error::argument(Status::InvalidValue, "interval", args.interval, format!("between 1 and {MAX_INTERVAL}")));
    }
    check_margin(args.margin)?;
    check_epsilon(args.epsilon)?;
    if n == 0 {
        return Ok(());
    }
    let f = |name, p, optional| check::vector(b, name, p, DType::F32, n, optional);
    let word = |name, p, len, optional| check::vector(b, name, p, DType::F32, len, optional);
    let outputs = [
        f("live", args.live, false)?,
        f("scale", args.scale, false)?,
        history(ctx, args)?,
        word("nonfinite", args.nonfinite, n, true)?,
        f("scale_inv", args.scale_inv, true)?,
        word("counter", args.counter, 1, args.interval == 1)?,
    ];
    let read = f("format_max", args.format_max, false)?;
    check::disjoint(&[read], &outputs)?;
    // SAFETY: validated; the caller vouches for the pointers.
    unsafe { b.scaling_update(args, stream) }
}

/// The history: its elements must not share memory.
fn history(ctx: &Context, a: &ScalingUpdateArgs) -> Result<check::Range> {
    let (n, steps) = (a.slots, a.history_len - 1);
    if steps == 0 {
        return Ok(check::Range { name: "history", start: 0, end: 0 });
    }
    let overflow = || {
        let value = format!("{n} slots of {steps} with strides {} and {}", a.slot_stride, a.step_stride);
        Error::argument(Status::SizeOverflow, "history", value, "its size in bytes must fit 63 bits")
    };
    if a.step_stride < 1 {
        return Err(Error::argument(Status::InvalidStride, "step_stride", a.step_stride, "at least 1"));
    }
    if a.slot_stride < 1 {
        return Err(Error::argument(Status::InvalidStride, "slot_stride", a.slot_stride, "at least 1"));
    }
    let along_steps = (steps - 1).checked_mul(a.step_stride).ok_or_else(overflow)?;
    let along_slots = (n - 1).checked_mul(a.slot_stride).ok_or_else(overflow)?;
    if n > 1 && steps > 1 && a.slot_stride <= along_steps && a.step_stride <= along_slots {
        return Err(Error::argument(
            Status::InvalidStride,
            "slot_stride and step_stride",
            format!("{} and {}", a.slot_stride, a.step_stride),
            format!("histories overlap: slot_stride must exceed {along_steps} or step_stride {along_slots}"),
        ));
    }
    let elements = along_steps.checked_add(along_slots).and_then(|e| e.checked_add(1)).ok_or_else(overflow)?;
    let bytes = elements.checked_mul(4).ok_or_else(overflow)? as u64;
    check::required(ctx.backend(), "history", a.history, 4)?;
    let end = a.history.0.checked_add(bytes).ok_or_else(overflow)?;
    Ok(check::Range { name: "history", start: a.history.0, end })
}
