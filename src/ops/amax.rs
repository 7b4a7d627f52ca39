//! The amax of a tensor, alone.

use super::check;
use crate::{
    context::{Context, Stream},
    error::Result,
    tensor::{Ptr, TensorView},
};

/// Arguments of [`amax`].
#[derive(Clone, Copy, Debug)]
pub struct AmaxArgs {
    /// f32, f16 or bf16 `[rows, cols]`, row-wise.
    pub input: TensorView,
    /// One f32: the amax is recorded as a maximum with what it holds.
    pub amax: Ptr,
}

/// Records the largest |x| (NUMERICS section 3): by bit pattern, so that NaN is above infinity. No elements: nothing is recorded.
///
/// # Safety
/// See [the module](super).
pub unsafe fn amax(ctx: &Context, args: &AmaxArgs, stream: Stream) -> Result<()> {
    let b = ctx.backend();
    check::dtype("input", &args.input, check::HIGH)?;
    let read = check::rowwise(b, "input", &args.input)?;
    check::required(b, "amax", args.amax, 4)?;
    check::disjoint(&[read], &[check::Range { name: "amax", start: args.amax.0, end: args.amax.0 + 4 }])?;
    // SAFETY: validated; the caller vouches for the pointers.
    unsafe { b.amax(args, stream) }
}
