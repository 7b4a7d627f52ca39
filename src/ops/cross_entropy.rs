//! Cross-entropy of logits with class targets: forward and gradient in one pass (NUMERICS section 8), whole or with the vocabulary in
//! slices; and what a backward pass then needs.
//!
//! With `m` the largest logit of a token and `s` the sum of `exp(x - m)`: `logsumexp = m + ln s`, and with label smoothing `e`
//! `loss = (1 - e) (logsumexp - x[target]) + e mean(logsumexp - x)`. An ignored target gives loss 0 and gradient 0, whatever the
//! logits hold; one outside the vocabulary gives NaN and NaN: it is seen, and nothing is read out of bounds.

use super::check;
use crate::{
    context::{Context, Stream},
    error::{Error, Result, Status},
    tensor::{DType, Ptr, TensorView},
};

/// What becomes of the losses of the tokens. The numbers are the C ABI's `NVTE_REDUCTION_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Reduction {
    /// Nothing.
    None = 0,
    /// Their sum.
    Sum = 1,
    /// Their sum over the number of targets that are not ignored (NaN where there is none); gradients are divided by it too.
    Mean = 2,
}

impl Reduction {
    /// The reduction with this number; `argument` names it in the error.
    pub fn from_i32(argument: &str, v: i32) -> Result<Self> {
        match v {
            0 => Ok(Self::None),
            1 => Ok(Self::Sum),
            2 => Ok(Self::Mean),
            _ => Err(Error::argument(Status::InvalidEnum, argument, v, "a reduction is 0 (none), 1 (sum) or 2 (mean)")),
        }
    }
}

/// Integer type of targets. The numbers are the C ABI's `NVTE_TARGET_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum TargetType {
    /// 64 bits.
    I64 = 0,
    /// 32 bits.
    I32 = 1,
}

impl TargetType {
    /// The type with this number; `argument` names it in the error.
    pub fn from_i32(argument: &str, v: i32) -> Result<Self> {
        match v {
            0 => Ok(Self::I64),
            1 => Ok(Self::I32),
            _ => Err(Error::argument(Status::InvalidEnum, argument, v, "a type of targets is 0 (i64) or 1 (i32)")),
        }
    }

    const fn size(self) -> usize {
        match self {
            Self::I64 => 8,
            Self::I32 => 4,
        }
    }
}

/// The targets and what is made of them: the same in all calls that belong together.
#[derive(Clone, Copy, Debug)]
pub struct Targets {
    /// `[tokens]`.
    pub data: Ptr,
    /// Their type.
    pub dtype: TargetType,
    /// Tokens with this target do not count.
    pub ignore_index: i64,
    /// `e` above, 0 to 1.
    pub label_smoothing: f32,
    /// What becomes of the losses.
    pub reduction: Reduction,
}

/// Where gradients go, and what they are multiplied with.
#[derive(Clone, Copy, Debug)]
pub struct LogitsGradient {
    /// Of the type and shape of the logits; may be the logits themselves.
    pub dlogits: TensorView,
    /// f32: gradient of the reduced loss (one value), or of each token's. Null: 1.
    pub dloss: Ptr,
    /// 0: one value; 1: one per token.
    pub dloss_stride: i64,
}

/// Results over tokens. Each may be null.
#[derive(Clone, Copy, Debug, Default)]
pub struct Losses {
    /// f32 `[tokens]`.
    pub loss: Ptr,
    /// f32 `[tokens]`.
    pub logsumexp: Ptr,
    /// One f32: the reduced loss. Null for [`Reduction::None`].
    pub total: Ptr,
}

/// Arguments of [`cross_entropy`].
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropyArgs {
    /// f32, f16 or bf16 `[tokens, vocabulary]`.
    pub logits: TensorView,
    /// The targets.
    pub targets: Targets,
    /// `None`: no gradient.
    pub gradient: Option<LogitsGradient>,
    /// Results.
    pub losses: Losses,
    /// Scratch memory, aligned to 16 bytes, of [`cross_entropy_workspace`] bytes; needed for a reduction.
    pub workspace: Ptr,
    /// Its size.
    pub workspace_bytes: u64,
}

/// Arguments of [`cross_entropy_partial`] and [`cross_entropy_gradient`]: a slice of the vocabulary.
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropySliceArgs {
    /// f32, f16 or bf16 `[tokens, n]`: classes `start .. start + n`.
    pub logits: TensorView,
    /// The targets, in the whole vocabulary.
    pub targets: Targets,
    /// First class of the slice.
    pub start: i64,
    /// Classes of all slices.
    pub vocabulary: i64,
    /// f32 `[tokens, 4]`, aligned to 16 bytes: the slice's own numbers, written by [`cross_entropy_partial`].
    pub partial: Ptr,
    /// f32 `[tokens, 4]`, aligned to 16 bytes: those of all slices together, read by [`cross_entropy_gradient`].
    pub combined: Ptr,
    /// For [`cross_entropy_gradient`].
    pub gradient: Option<LogitsGradient>,
    /// As in [`CrossEntropyArgs`]; only [`cross_entropy_gradient`] needs it.
    pub workspace: Ptr,
    /// Its size.
    pub workspace_bytes: u64,
}

/// Arguments of [`cross_entropy_combine`].
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropyCombineArgs {
    /// f32 `[ranks, tokens, 4]`, aligned to 16 bytes: what [`cross_entropy_partial`] wrote for each slice.
    pub partials: Ptr,
    /// Slices.
    pub ranks: i64,
    /// Elements from one slice's to the next, a multiple of 4; 0: dense.
    pub rank_stride: i64,
    /// Tokens.
    pub tokens: i64,
    /// Classes of all slices.
    pub vocabulary: i64,
    /// The targets.
    pub targets: Targets,
    /// f32 `[tokens, 4]`, aligned to 16 bytes, for [`cross_entropy_gradient`]; may be `partials` where there is one slice.
    pub combined: Ptr,
    /// Results.
    pub losses: Losses,
    /// As in [`CrossEntropyArgs`].
    pub workspace: Ptr,
    /// Its size.
    pub workspace_bytes: u64,
}

/// Arguments of [`scale_rows`].
#[derive(Clone, Copy, Debug)]
pub struct ScaleRowsArgs {
    /// f32, f16 or bf16 `[rows, cols]`, in place.
    pub x: TensorView,
    /// f32: one value, or one per row.
    pub scale: Ptr,
    /// 0: one value; 1: one per row.
    pub stride: i64,
}

/// What the back end gets of the calls that look at logits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) logits: TensorView,
    pub(crate) targets: Targets,
    pub(crate) start: i64,
    pub(crate) vocabulary: i64,
    pub(crate) gradient: Option<LogitsGradient>,
    pub(crate) losses: Losses,
    pub(crate) partial: Ptr,
    pub(crate) combined: Ptr,
    /// The CPU back end needs none.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) workspace: Ptr,
}

impl Job {
    /// Whether the number of targets that count is asked for.
    pub(crate) fn needs_count(&self) -> bool {
        self.targets.reduction == Reduction::Mean && (self.gradient.is_some() || !self.losses.total.is_null())
    }
}

/// Bytes of workspace that the calls need with a reduction; with [`Reduction::None`] they need none.
pub fn cross_entropy_workspace(ctx: &Context, tokens: i64) -> Result<u64> {
    if !(0..1 << 58).contains(&tokens) {
        let status = if tokens < 0 { Status::InvalidShape } else { Status::SizeOverflow };
        return Err(Error::argument(status, "tokens", tokens, "must be from 0 to 2^58"));
    }
    Ok(ctx.backend().cross_entropy_workspace(tokens))
}

/// Losses and, where wanted, the gradient of the logits, in one pass over them.
///
/// # Safety
/// See [the module](super).
pub unsafe fn cross_entropy(ctx: &Context, args: &CrossEntropyArgs, stream: Stream) -> Result<()> {
    let (x, b) = (&args.logits, ctx.backend());
    check::dtype("logits", x, check::HIGH)?;
    let read = check::rowwise(b, "logits", x)?;
    let targets = args.targets.checked(ctx, x.rows)?;
    let [dlogits, dloss] = gradient_ranges(ctx, x, &args.gradient)?;
    let [loss, lse, total] = args.losses.checked(ctx, x.rows, args.targets.reduction)?;
    let workspace = workspace(ctx, args.targets.reduction, x.rows, args.workspace, args.workspace_bytes)?;
    let logits = if is_in_place(x, &args.gradient) { targets } else { read };
    check::disjoint(&[logits, targets, dloss], &[dlogits, loss, lse, total, workspace])?;
    check::disjoint(&[read], &[loss, lse, total, workspace])?;
    let job = Job {
        logits: *x,
        targets: args.targets,
        start: 0,
        vocabulary: x.cols,
        gradient: args.gradient,
        losses: args.losses,
        partial: Ptr::NULL,
        combined: Ptr::NULL,
        workspace: args.workspace,
    };
    // SAFETY: validated; the caller vouches for the pointers.
    unsafe { b.cross_entropy(&job, stream) }
}

/// Of a slice of the vocabulary, per token: the largest logit, the sum of `exp(x - largest)`, the target's logit (0 where it is in another
/// slice, ignored or bad) and, with label smoothing, the sum of the logits.
///
/// # Safety
/// See [the module](super).
pub unsafe fn cross_entropy_partial(ctx: &Context, args: &CrossEntropySliceArgs, stream: Stream) -> Result<()> {
    let b = ctx.backend();
    for (name, absent) in [("combined", args.combined.is_null()), ("dlogits", args.gradient.is_none())] {
        if !absent {
            return Err(Error::argument(Status::Unsupported, name, "not NULL", "belongs to the call that writes the gradient"));
        }
    }
    let (read, targets) = slice_ranges(ctx, args)?;
    let partial = numbers(ctx, "partial", args.partial, args.logits.rows)?;
    check::disjoint(&[read, targets], &[partial])?;
    let job = slice_job(args);
    // SAFETY: validated; the caller vouches for the pointers.
    unsafe { b.cross_entropy(&job, stream) }
}

/// The gradient of a slice's logits from what all slices have together.
///
/// # Safety
/// See [the module](super).
pub unsafe fn cross_entropy_gradient(ctx: &Context, args: &CrossEntropySliceArgs, stream: Stream) -> Result<()> {
    let (x, b) = (&args.logits, ctx.backend());
    if !args.partial.is_null() {
        return Err(Error::argument(Status::Unsupported, "partial", "not NULL", "belongs to the call that writes it"));
    }
    if args.gradient.is_none() {
        return Err(Error::argument(Status::NullPointer, "dlogits", "NULL", "is required"));
    }
    let (read, targets) = slice_ranges(ctx, args)?;
    let combined = numbers(ctx, "combined", args.combined, x.rows)?;
    let [dlogits, dloss] = gradient_ranges(ctx, x, &args.gradient)?;
    let workspace = workspace(ctx, args.targets.reduction, x.rows, args.workspace, args.workspace_bytes)?;
    let logits = if is_in_place(x, &args.gradient) { targets } else { read };
    check::disjoint(&[logits, targets, dloss, combined], &[dlogits, workspace])?;
    check::disjoint(&[read], &[workspace])?;
    // SAFETY: validated; the caller vouches for the pointers.
    unsafe { b.cross_entropy(&slice_job(args), stream) }
}

/// Puts the numbers of all slices together, and finishes the losses. Every rank that holds all of them gets the same bits.
///
/// # Safety
/// See [the module](super).
pub unsafe fn cross_entropy_combine(ctx: &Context, args: &CrossEntropyCombineArgs, stream: Stream) -> Result<()> {
    let b = ctx.backend();
    for (name, v) in [("tokens", args.tokens), ("vocabulary", args.vocabulary)] {
        if v < 0 {
            return Err(Error::argument(Status::InvalidShape, name, v, "must not be negative"));
        }
    }
    if args.ranks < 1 {
        return Err(Error::argument(Status::InvalidShape, "ranks", args.ranks, "must be at least 1"));
    }
    let row = args.tokens.checked_mul(4).ok_or_else(|| Error::argument(Status::SizeOverflow, "tokens", args.tokens, "must fit 61 bits"))?;
    let stride = if args.rank_stride == 0 { row } else { args.rank_stride };
    if stride < row || stride % 4 != 0 {
        let rule = format!("must be a multiple of 4, at least 4 tokens = {row}");
        return Err(Error::argument(Status::InvalidStride, "rank_stride", stride, rule));
    }
    let targets = args.targets.checked(ctx, args.tokens)?;
    let spread = TensorView::new(DType::F32, args.partials, args.ranks, row).with_ld(stride);
    let partials = check::Range { name: "partials", ..check::rowwise(b, "partials", &spread)? };
    check::pointer(b, "partials", args.partials, 16)?;
    let combined = numbers(ctx, "combined", args.combined, args.tokens)?;
    let [loss, lse, total] = args.losses.checked(ctx, args.tokens, args.targets.reduction)?;
    let workspace = workspace(ctx, args.targets.reduction, args.tokens, args.workspace, args.workspace_bytes)?;
    let apart = if args.ranks == 1 && args.combined == args.partials { targets } else { partials };
    check::disjoint(&[apart, targets], &[combined, loss, lse, total, workspace])?;
    check::disjoint(&[partials], &[loss, lse, total, workspace])?;
    // SAFETY: validated; the caller vouches for the pointers.
    unsafe { b.cross_entropy_combine(&CrossEntropyCombineArgs { rank_stride: stride, ..*args }, stream) }
}

/// `x[row] *= scale[row * stride]`, in place. Rows whose scale is 1 are not touched: what a backward pass costs where the gradient of the
/// loss is 1.
///
/// # Safety
/// See [the module](super).
pub unsafe fn scale_rows(ctx: &Context, args: &ScaleRowsArgs, stream: Stream) -> Result<()> {
    let (x, b) = (&args.x, ctx.backend());
    check::dtype("x", x, check::HIGH)?;
    let written = check::rowwise(b, "x", x)?;
    let read = check::Range { name: "scale", ..per_token(ctx, "scale", args.scale, args.stride, x.rows, false)? };
    check::disjoint(&[read], &[written])?;
    // SAFETY: validated; the caller vouches for the pointers.
    unsafe { b.scale_rows(args, stream) }
}

fn slice_job(a: &CrossEntropySliceArgs) -> Job {
    Job {
        logits: a.logits,
        targets: a.targets,
        start: a.start,
        vocabulary: a.vocabulary,
        gradient: a.gradient,
        losses: Losses::default(),
        partial: a.partial,
        combined: a.combined,
        workspace: a.workspace,
    }
}

/// The ranges of a slice's logits and targets.
fn slice_ranges(ctx: &Context, a: &CrossEntropySliceArgs) -> Result<(check::Range, check::Range)> {
    check::dtype("logits", &a.logits, check::HIGH)?;
    let read = check::rowwise(ctx.backend(), "logits", &a.logits)?;
    let targets = a.targets.checked(ctx, a.logits.rows)?;
    if a.vocabulary < 0 {
        return Err(Error::argument(Status::InvalidShape, "vocabulary", a.vocabulary, "must not be negative"));
    }
    let fits = a.start >= 0 && a.start.checked_add(a.logits.cols).is_some_and(|end| end <= a.vocabulary);
    if !fits {
        let rule = format!("the slice's {} classes must end within the vocabulary, {}", a.logits.cols, a.vocabulary);
        return Err(Error::argument(Status::InvalidShape, "start", a.start, rule));
    }
    Ok((read, targets))
}

/// f32 `[tokens, 4]`.
fn numbers(ctx: &Context, name: &'static str, p: Ptr, tokens: i64) -> Result<check::Range> {
    let count = tokens.checked_mul(4).ok_or_else(|| Error::argument(Status::SizeOverflow, name, tokens, "its size must fit 63 bits"))?;
    let range = check::vector(ctx.backend(), name, p, DType::F32, count, false)?;
    check::pointer(ctx.backend(), name, p, 16)?;
    Ok(range)
}

/// One f32, or one per token.
fn per_token(ctx: &Context, name: &'static str, p: Ptr, stride: i64, tokens: i64, optional: bool) -> Result<check::Range> {
    if stride != 0 && stride != 1 {
        return Err(Error::argument(
            Status::InvalidStride,
            format_args!("{name}_stride"),
            stride,
            "must be 0 (one value) or 1 (one per token)",
        ));
    }
    check::vector(ctx.backend(), name, p, DType::F32, if stride == 0 { 1 } else { tokens }, optional)
}

/// The ranges of a gradient and of what multiplies it.
fn gradient_ranges(ctx: &Context, logits: &TensorView, g: &Option<LogitsGradient>) -> Result<[check::Range; 2]> {
    let Some(g) = g else {
        let none = |name| check::Range { name, start: 0, end: 0 };
        return Ok([none("dlogits"), none("dloss")]);
    };
    if g.dlogits.dtype != logits.dtype {
        let rule = format!("must be the type of logits, {}", logits.dtype.name());
        return Err(Error::argument(Status::InvalidDType, "dlogits.dtype", g.dlogits.dtype.name(), rule));
    }
    check::same_shape("dlogits", &g.dlogits, "logits", logits)?;
    let written = check::rowwise(ctx.backend(), "dlogits", &g.dlogits)?;
    Ok([written, per_token(ctx, "dloss", g.dloss, g.dloss_stride, logits.rows, true)?])
}

/// Whether the gradient goes where the logits are.
fn is_in_place(logits: &TensorView, g: &Option<LogitsGradient>) -> bool {
    g.is_some_and(|g| g.dlogits.data == logits.data && (g.dlogits.ld == logits.ld || logits.rows <= 1))
}

fn workspace(ctx: &Context, reduction: Reduction, tokens: i64, p: Ptr, bytes: u64) -> Result<check::Range> {
    let needed = if reduction == Reduction::None { 0 } else { cross_entropy_workspace(ctx, tokens)? };
    check::workspace_range(ctx.backend(), p, bytes, needed)
}

impl Targets {
    fn checked(&self, ctx: &Context, tokens: i64) -> Result<check::Range> {
        if !(0.0..=1.0).contains(&self.label_smoothing) {
            return Err(Error::argument(Status::InvalidValue, "label_smoothing", self.label_smoothing, "must be from 0 to 1"));
        }
        // Of the size and alignment of a target; what it is called does not show.
        let (per, dtype) = (self.dtype.size() as i64 / 4, DType::F32);
        let count = tokens.checked_mul(per).ok_or_else(|| Error::argument(Status::SizeOverflow, "target", tokens, "must fit 60 bits"))?;
        let range = check::vector(ctx.backend(), "target", self.data, dtype, count, false)?;
        check::pointer(ctx.backend(), "target", self.data, self.dtype.size())?;
        Ok(range)
    }
}

impl Losses {
    fn checked(&self, ctx: &Context, tokens: i64, reduction: Reduction) -> Result<[check::Range; 3]> {
        let b = ctx.backend();
        if reduction == Reduction::None && !self.total.is_null() {
            return Err(Error::argument(Status::Unsupported, "total", "not NULL", "goes with a reduction"));
        }
        Ok([
            check::vector(b, "loss", self.loss, DType::F32, tokens, true)?,
            check::vector(b, "logsumexp", self.logsumexp, DType::F32, tokens, true)?,
            check::vector(b, "total", self.total, DType::F32, 1, true)?,
        ])
    }
}
