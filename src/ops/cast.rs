//! Casts to FP8: given scale, current scaling, and with the bias gradient beside it.

use super::check;
use crate::{
    backend::Backend,
    context::{Context, Stream},
    error::{Error, Result, Status},
    numerics::{check_epsilon, check_margin, format_max, Float8CurrentScaling, ScaleRule},
    tensor::{DType, Ptr, TensorView},
};

/// Arguments of [`cast_to_fp8`].
#[derive(Clone, Copy, Debug)]
pub struct CastArgs {
    /// f32, f16 or bf16 `[rows, cols]`, row-wise.
    pub input: TensorView,
    /// FP8 `[rows, cols]`: row-wise, transposed or both; `scale` read (null: 1), `scale_inv` written, `amax` recorded.
    pub output: TensorView,
}

/// How current scaling makes its scale from the tensor's own amax.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CurrentScaling {
    /// The scale is divided by 2^margin.
    pub margin: i32,
    /// Floor of the amax.
    pub epsilon: f32,
    /// Round the scale down to a power of two.
    pub power_of_two: bool,
}

impl From<&Float8CurrentScaling> for CurrentScaling {
    fn from(r: &Float8CurrentScaling) -> Self {
        Self { margin: r.margin, epsilon: r.epsilon, power_of_two: r.power_of_two }
    }
}

impl CurrentScaling {
    pub(crate) fn rule(&self, output: DType) -> Result<ScaleRule> {
        check_margin(self.margin)?;
        check_epsilon(self.epsilon)?;
        Ok(ScaleRule { format_max: format_max(output), margin: self.margin, epsilon: self.epsilon, power_of_two: self.power_of_two })
    }
}

/// Arguments of [`cast_to_fp8_current`].
#[derive(Clone, Copy, Debug)]
pub struct CurrentCastArgs {
    /// f32, f16 or bf16 `[rows, cols]`, row-wise.
    pub input: TensorView,
    /// FP8 `[rows, cols]`: row-wise, transposed or both; `amax`, `scale` and `scale_inv` are written where not null.
    pub output: TensorView,
    /// How the scale follows from the amax.
    pub scaling: CurrentScaling,
    /// Scratch memory, aligned to 16 bytes.
    pub workspace: Ptr,
    /// Its size: at least [`cast_to_fp8_current_workspace`].
    pub workspace_bytes: u64,
}

/// Arguments of [`cast_dbias`].
#[derive(Clone, Copy, Debug)]
pub struct CastDbiasArgs {
    /// The gradient: f32, f16 or bf16 `[rows, cols]`, row-wise.
    pub input: TensorView,
    /// FP8 `[rows, cols]` as in [`cast_to_fp8`]; `None`: only the bias gradient is wanted.
    pub output: Option<TensorView>,
    /// Take the scale from the tensor's own amax (then `amax`, `scale` and `scale_inv` are written); `None`: as in [`cast_to_fp8`].
    pub current: Option<CurrentScaling>,
    /// Column sums of the input, `[cols]`.
    pub dbias: Ptr,
    /// f32, f16 or bf16.
    pub dbias_dtype: DType,
    /// Add to what `dbias` holds instead of replacing it.
    pub accumulate: bool,
    /// Scratch memory, aligned to 16 bytes.
    pub workspace: Ptr,
    /// Its size: at least [`cast_dbias_workspace`].
    pub workspace_bytes: u64,
}

/// Where the column sums of the input go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BiasGradient {
    pub(crate) ptr: Ptr,
    pub(crate) dtype: DType,
    pub(crate) accumulate: bool,
}

/// One validated cast, whatever it was called by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CastJob {
    pub(crate) input: TensorView,
    /// Both layouts null: nothing is cast.
    pub(crate) output: TensorView,
    /// Current scaling.
    pub(crate) current: Option<ScaleRule>,
    pub(crate) dbias: Option<BiasGradient>,
    /// Receives the scale that was used, one f32; null: not written.
    pub(crate) keep_scale: Ptr,
    /// One u32 on the device: where it is not 0, nothing is written. Null: as 0.
    pub(crate) skip: Ptr,
    /// The CPU needs none.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) workspace: Ptr,
}

impl CastJob {
    /// A cast with the scale in `output.scale`.
    pub(crate) fn new(input: TensorView, output: TensorView) -> Self {
        Self { input, output, current: None, dbias: None, keep_scale: Ptr::NULL, skip: Ptr::NULL, workspace: Ptr::NULL }
    }
}

/// `q = encode(f32(x) * scale)`, one rounding, saturating (NUMERICS section 2), into the layouts that are present.
///
/// Writes `1/scale` to `output.scale_inv` and records the amax of the input in `output.amax` where those are not null.
///
/// # Safety
/// See [the module](super).
pub unsafe fn cast_to_fp8(ctx: &Context, args: &CastArgs, stream: Stream) -> Result<()> {
    let (read, written) = cast_layouts(ctx, &args.input, &args.output)?;
    check::disjoint(&[read], &written)?;
    let job = CastJob::new(args.input, args.output);
    // SAFETY: validated; the caller vouches for the pointers.
    unsafe { ctx.backend().cast(&job, stream) }
}

/// Bytes of workspace that [`cast_to_fp8_current`] needs, whatever the shape.
pub fn cast_to_fp8_current_workspace(ctx: &Context) -> u64 {
    ctx.backend().amax_workspace()
}

/// Current scaling in one call: the amax of the input, the scale from it (NUMERICS section 4, previous = 1), then the cast.
///
/// Writes (not records) `amax`, `scale` and `scale_inv` of the output where those are not null; for an empty tensor 0, 1 and 1.
///
/// # Safety
/// See [the module](super).
pub unsafe fn cast_to_fp8_current(ctx: &Context, args: &CurrentCastArgs, stream: Stream) -> Result<()> {
    let (read, written) = cast_layouts(ctx, &args.input, &args.output)?;
    let rule = args.scaling.rule(args.output.dtype)?;
    let scratch = check::workspace_range(ctx.backend(), args.workspace, args.workspace_bytes, cast_to_fp8_current_workspace(ctx))?;
    let [row, col, scale_inv, amax] = written;
    check::disjoint(&[read], &[row, col, scale_inv, amax, scale_slot(ctx.backend(), &args.output)?, scratch])?;
    let job = CastJob { current: Some(rule), workspace: args.workspace, ..CastJob::new(args.input, args.output) };
    // SAFETY: validated; the caller vouches for the pointers.
    unsafe { ctx.backend().cast(&job, stream) }
}

/// Bytes of workspace that [`cast_dbias`] needs for an input of this shape.
pub fn cast_dbias_workspace(ctx: &Context, rows: i64, cols: i64) -> Result<u64> {
    let shape = TensorView::new(DType::F32, Ptr::NULL, rows, cols);
    check::sizes("input", &shape)?;
    // Far above any memory, and far from overflow.
    if check::extent("input", DType::F32, rows, cols, cols)? > 1 << 60 {
        return Err(Error::argument(Status::SizeOverflow, "input", format!("[{rows}, {cols}]"), "its size in bytes must fit 60 bits"));
    }
    Ok(ctx.backend().amax_workspace() + ctx.backend().dbias_workspace(rows, cols))
}

/// A cast to FP8 with the bias gradient in the same pass: `dbias[c] = sum over r of input[r, c]`, in f32, in an order that depends on
/// nothing but shape and layout. With no rows the sums are 0.
///
/// # Safety
/// See [the module](super).
pub unsafe fn cast_dbias(ctx: &Context, args: &CastDbiasArgs, stream: Stream) -> Result<()> {
    let (b, x) = (ctx.backend(), &args.input);
    let (read, written, output) = match &args.output {
        Some(q) => {
            let (read, written) = cast_layouts(ctx, x, q)?;
            (read, written, *q)
        }
        None => {
            check::dtype("input", x, check::HIGH)?;
            let read = check::rowwise(b, "input", x)?;
            let absent = check::Range { name: "output", start: 0, end: 0 };
            (read, [absent; 4], TensorView::new(DType::E4m3, Ptr::NULL, x.rows, x.cols))
        }
    };
    let current = match (&args.current, &args.output) {
        (Some(c), Some(q)) => Some(c.rule(q.dtype)?),
        (Some(_), None) => return Err(Error::argument(Status::Unsupported, "current", "set", "needs an output to scale")),
        (None, _) => None,
    };
    let vector = TensorView::new(args.dbias_dtype, args.dbias, 1, x.cols);
    check::dtype("dbias", &vector, check::HIGH)?;
    let sums = check::vector(b, "dbias", args.dbias, args.dbias_dtype, x.cols, false)?;
    let needed = cast_dbias_workspace(ctx, x.rows, x.cols)?;
    let scratch = check::workspace_range(b, args.workspace, args.workspace_bytes, needed)?;
    let ([row, col, scale_inv, amax], scale) = (written, scale_slot(b, &output)?);
    check::disjoint(&[read, scale], &[row, col, scale_inv, amax, sums, scratch])?;
    if current.is_some() {
        // Then the scale is written.
        check::disjoint(&[read], &[scale])?;
    }
    let dbias = BiasGradient { ptr: args.dbias, dtype: args.dbias_dtype, accumulate: args.accumulate };
    let job = CastJob { current, dbias: Some(dbias), workspace: args.workspace, ..CastJob::new(*x, output) };
    // SAFETY: validated; the caller vouches for the pointers.
    unsafe { b.cast(&job, stream) }
}

/// Checks both sides of a cast. Returns the range read and those written.
pub(crate) fn cast_layouts(ctx: &Context, x: &TensorView, q: &TensorView) -> Result<(check::Range, [check::Range; 4])> {
    check::dtype("input", x, check::HIGH)?;
    check::dtype("output", q, check::FP8)?;
    let read = check::rowwise(ctx.backend(), "input", x)?;
    check::same_shape("output", q, "input", x)?;
    Ok((read, fp8_output(ctx, "output", q)?))
}

/// Checks an FP8 output: at least one layout, and its slots, none of which shares memory with another. Returns what every call writes:
/// the layouts, scale_inv and amax.
pub(crate) fn fp8_output(ctx: &Context, name: &'static str, q: &TensorView) -> Result<[check::Range; 4]> {
    let b = ctx.backend();
    if q.data.is_null() && q.data_t.is_null() && !q.is_empty() {
        return Err(Error::argument(
            Status::NullPointer,
            format_args!("{name}.data and {name}.data_t"),
            "NULL",
            "at least one layout must be present",
        ));
    }
    let absent = check::Range { name, start: 0, end: 0 };
    let row = if q.data.is_null() { absent } else { check::rowwise(b, name, q)? };
    let col = if q.data_t.is_null() { absent } else { check::transposed(b, name, q)? };
    let scale = scale_slot(b, q)?;
    let written = [row, col, slot(b, "scale_inv", q.scale_inv)?, slot(b, "amax", q.amax)?];
    check::disjoint(&[scale], &written)?;
    Ok(written)
}

/// One f32; null passes.
pub(crate) fn slot(b: &dyn Backend, name: &'static str, p: Ptr) -> Result<check::Range> {
    check::vector(b, name, p, DType::F32, 1, true)
}

/// The scale of an output, which current scaling writes and all others read.
pub(crate) fn scale_slot(b: &dyn Backend, q: &TensorView) -> Result<check::Range> {
    slot(b, "scale", q.scale)
}
