//! Dropout with bias and residual, forward and backward (NUMERICS section 8: the generator and which elements are kept).

use super::{cast::BiasGradient, check};
use crate::{
    backend::Backend,
    context::{Context, Stream},
    error::{Error, Result, Status},
    numerics::drop_threshold,
    tensor::{DType, Ptr, TensorView},
};

/// Where the random numbers of a call come from.
#[derive(Clone, Copy, Debug)]
pub struct Random {
    /// Two u64 on the device, aligned to 8 bytes: seed and offset. Not read where p is 0 or 1, and may then be null.
    pub rng: Ptr,
    /// Tells draws with the same seed and offset apart.
    pub stream: u64,
}

/// Arguments of [`dropout_fwd`].
#[derive(Clone, Copy, Debug)]
pub struct DropoutFwdArgs {
    /// f32, f16 or bf16 `[rows, cols]`.
    pub x: TensorView,
    /// f32, f16 or bf16 `[1, cols]`, added to each row; `None`: 0.
    pub bias: Option<TensorView>,
    /// `[rows, cols]` of x's type, added after the dropout; `None`: 0.
    pub residual: Option<TensorView>,
    /// `[rows, cols]` of x's type. It may be x or the residual, with the same stride.
    pub y: TensorView,
    /// `[rows, ceil(cols / 8)]` bytes: bit `c % 8` of byte `c / 8` of a row says whether element c is kept; bits past the last column are 0.
    /// Null: not written.
    pub mask: Ptr,
    /// Bytes from row to row of the mask.
    pub mask_ld: i64,
    /// Probability of dropping, from 0 to 1.
    pub p: f64,
    /// The draw.
    pub random: Random,
}

/// Arguments of [`dropout_bwd`].
#[derive(Clone, Copy, Debug)]
pub struct DropoutBwdArgs {
    /// Gradient of y: f32, f16 or bf16 `[rows, cols]`.
    pub dy: TensorView,
    /// Gradient of x, of dy's type and shape. It may be dy, with the same stride.
    pub dx: TensorView,
    /// What the forward pass wrote; null: drawn again.
    pub mask: Ptr,
    /// Bytes from row to row of the mask.
    pub mask_ld: i64,
    /// The forward pass'.
    pub p: f64,
    /// The forward pass'.
    pub random: Random,
    /// Column sums of the f32 gradient before it is rounded, `[cols]`: the gradient of the bias; null: not wanted.
    pub dbias: Ptr,
    /// f32, f16 or bf16.
    pub dbias_dtype: DType,
    /// Add to what `dbias` holds instead of replacing it.
    pub accumulate: bool,
    /// Scratch memory, aligned to 16 bytes; needed for `dbias` only.
    pub workspace: Ptr,
    /// Its size: at least [`dropout_bwd_workspace`].
    pub workspace_bytes: u64,
}

/// Which elements are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Keep {
    All = 0,
    None = 1,
    /// Those that are drawn.
    Draw = 2,
    /// Those that a mask says.
    Mask = 3,
}

/// One pass, as back ends see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DropoutJob {
    pub(crate) backward: bool,
    pub(crate) x: TensorView,
    pub(crate) y: TensorView,
    pub(crate) bias: Option<TensorView>,
    pub(crate) residual: Option<TensorView>,
    pub(crate) keep: Keep,
    /// Written forward, read backward.
    pub(crate) mask: Ptr,
    pub(crate) mask_ld: i64,
    /// With `Keep::Draw`.
    pub(crate) threshold: u32,
    pub(crate) random: Random,
    /// 1 / (1 - p).
    pub(crate) scale: f32,
    pub(crate) dbias: Option<BiasGradient>,
    /// The CPU needs none.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) workspace: Ptr,
}

fn probability(p: f64) -> Result<()> {
    match (0.0..=1.0).contains(&p) {
        true => Ok(()),
        false => Err(Error::argument(Status::InvalidValue, "p", p, "must be from 0 to 1")),
    }
}

/// What `p` asks for without a mask, and the threshold.
fn drawn(p: f64) -> (Keep, u32) {
    let threshold = drop_threshold(p);
    match u32::try_from(threshold) {
        Ok(0) => (Keep::All, 0),
        Ok(t) => (Keep::Draw, t),
        Err(_) => (Keep::None, 0),
    }
}

/// The factor of what is kept; with nothing kept it does not matter.
fn factor(p: f64) -> f32 {
    if p < 1.0 {
        (1.0 / (1.0 - p)) as f32
    } else {
        0.0
    }
}

/// Checks a mask of `[rows, cols]` elements; null passes.
fn mask_range(b: &dyn Backend, mask: Ptr, ld: i64, rows: i64, cols: i64) -> Result<check::Range> {
    let bytes = TensorView::new(DType::E4m3, mask, rows, cols / 8 + i64::from(cols % 8 != 0));
    if mask.is_null() {
        return Ok(check::Range { name: "mask", start: 0, end: 0 });
    }
    if ld < bytes.cols {
        return Err(Error::argument(Status::InvalidStride, "mask_ld", ld, format!("must be at least {} bytes", bytes.cols)));
    }
    let size = check::extent("mask", DType::E4m3, rows, bytes.cols, ld)?;
    check::vector(b, "mask", mask, DType::E4m3, size as i64, true)
}

/// Checks seed and offset where they are read.
fn random_range(b: &dyn Backend, r: &Random, read: bool) -> Result<check::Range> {
    if !read {
        return Ok(check::Range { name: "rng", start: 0, end: 0 });
    }
    check::required(b, "rng", r.rng, 8)?;
    Ok(check::Range { name: "rng", start: r.rng.0, end: r.rng.0.saturating_add(16) })
}

fn same_dtype(name: &str, t: &TensorView, other: &str, o: &TensorView) -> Result<()> {
    match t.dtype == o.dtype {
        true => Ok(()),
        false => {
            let rule = format!("must be the type of {other}, {}", o.dtype.name());
            Err(Error::argument(Status::InvalidDType, format_args!("{name}.dtype"), t.dtype.name(), rule))
        }
    }
}

/// Nothing is written where something else is read; `out` may be one of `inputs` exactly.
fn written(inputs: &[(check::Range, &TensorView)], out: (check::Range, &TensorView)) -> Result<()> {
    for (range, t) in inputs {
        let same = t.data == out.1.data && (t.rows <= 1 || t.ld == out.1.ld);
        if !same {
            check::disjoint(&[*range], &[out.0])?;
        }
    }
    Ok(())
}

/// `y = (kept ? (x + bias) / (1 - p) : 0) + residual`: in f32, each operation rounded, then rounded once to the type of y.
///
/// What x holds where an element is dropped does not matter. With p = 0 all are kept, with p = 1 none, and nothing is drawn.
///
/// # Safety
/// See [the module](super).
pub unsafe fn dropout_fwd(ctx: &Context, a: &DropoutFwdArgs, stream: Stream) -> Result<()> {
    let (x, y, b) = (&a.x, &a.y, ctx.backend());
    probability(a.p)?;
    check::dtype("x", x, check::HIGH)?;
    check::dtype("y", y, check::HIGH)?;
    let read = check::rowwise(b, "x", x)?;
    check::same_shape("y", y, "x", x)?;
    same_dtype("y", y, "x", x)?;
    let mut bias = check::Range { name: "bias", start: 0, end: 0 };
    if let Some(t) = &a.bias {
        check::dtype("bias", t, check::HIGH)?;
        if (t.rows, t.cols) != (1, x.cols) {
            let rule = format!("must be [1, {}]", x.cols);
            return Err(Error::argument(Status::InvalidShape, "bias", format!("[{}, {}]", t.rows, t.cols), rule));
        }
        bias = check::vector(b, "bias", t.data, t.dtype, t.cols, false)?;
    }
    let mut inputs = vec![(read, x)];
    if let Some(t) = &a.residual {
        check::dtype("residual", t, check::HIGH)?;
        let range = check::rowwise(b, "residual", t)?;
        check::same_shape("residual", t, "x", x)?;
        same_dtype("residual", t, "x", x)?;
        inputs.push((range, t));
    }
    let out = check::rowwise(b, "y", y)?;
    let mask = mask_range(b, a.mask, a.mask_ld, x.rows, x.cols)?;
    let (keep, threshold) = drawn(a.p);
    let rng = random_range(b, &a.random, keep == Keep::Draw && !x.is_empty())?;
    written(&inputs, (out, y))?;
    let all: Vec<check::Range> = inputs.iter().map(|i| i.0).chain([bias, rng, out]).collect();
    check::disjoint(&[bias, rng], &[out])?;
    check::disjoint(&all, &[mask])?;
    if x.is_empty() {
        return Ok(());
    }
    let job = DropoutJob {
        backward: false,
        x: *x,
        y: *y,
        bias: a.bias,
        residual: a.residual,
        keep,
        mask: a.mask,
        mask_ld: a.mask_ld,
        threshold,
        random: a.random,
        scale: factor(a.p),
        dbias: None,
        workspace: Ptr::NULL,
    };
    // SAFETY: validated; the caller vouches for the pointers.
    unsafe { b.dropout(&job, stream) }
}

/// Bytes of workspace that [`dropout_bwd`] needs with a `dbias` for a gradient of this shape; without one it needs none.
pub fn dropout_bwd_workspace(ctx: &Context, rows: i64, cols: i64) -> Result<u64> {
    for (what, v) in [("rows", rows), ("cols", cols)] {
        if v < 0 {
            return Err(Error::argument(Status::InvalidShape, what, v, "must not be negative"));
        }
    }
    // Far above any memory, and far from overflow.
    if i128::from(rows.max(1)) * i128::from(cols) > 1 << 58 {
        let size = format_args!("[{rows}, {cols}]").to_string();
        return Err(Error::argument(Status::SizeOverflow, "dy", size, "its size in bytes must fit 60 bits"));
    }
    Ok(ctx.backend().dropout_workspace(rows, cols))
}

/// The gradient of [`dropout_fwd`]: `dx = dy / (1 - p)` where an element was kept, 0 where not, and the column sums of that; the gradient of
/// the residual is dy.
///
/// # Safety
/// See [the module](super).
pub unsafe fn dropout_bwd(ctx: &Context, a: &DropoutBwdArgs, stream: Stream) -> Result<()> {
    let (dy, dx, b) = (&a.dy, &a.dx, ctx.backend());
    probability(a.p)?;
    check::dtype("dy", dy, check::HIGH)?;
    check::dtype("dx", dx, check::HIGH)?;
    let read = check::rowwise(b, "dy", dy)?;
    check::same_shape("dx", dx, "dy", dy)?;
    same_dtype("dx", dx, "dy", dy)?;
    let out = check::rowwise(b, "dx", dx)?;
    let mask = mask_range(b, a.mask, a.mask_ld, dy.rows, dy.cols)?;
    let (mut keep, threshold) = drawn(a.p);
    if keep == Keep::Draw && !a.mask.is_null() {
        keep = Keep::Mask;
    }
    let rng = random_range(b, &a.random, keep == Keep::Draw && !dy.is_empty())?;
    let absent = check::Range { name: "dbias", start: 0, end: 0 };
    let (sums, scratch) = if a.dbias.is_null() {
        (absent, absent)
    } else {
        let vector = TensorView::new(a.dbias_dtype, a.dbias, 1, dy.cols);
        check::dtype("dbias", &vector, check::HIGH)?;
        let sums = check::vector(b, "dbias", a.dbias, a.dbias_dtype, dy.cols, false)?;
        let needed = dropout_bwd_workspace(ctx, dy.rows, dy.cols)?;
        (sums, check::workspace_range(b, a.workspace, a.workspace_bytes, needed)?)
    };
    written(&[(read, dy)], (out, dx))?;
    check::disjoint(&[mask, rng], &[out])?;
    check::disjoint(&[read, mask, rng, out], &[sums, scratch])?;
    if dy.cols == 0 || (dy.rows == 0 && a.dbias.is_null()) {
        return Ok(());
    }
    let dbias = (!a.dbias.is_null()).then_some(BiasGradient { ptr: a.dbias, dtype: a.dbias_dtype, accumulate: a.accumulate });
    let job = DropoutJob {
        backward: true,
        x: *dy,
        y: *dx,
        bias: None,
        residual: None,
        keep,
        mask: a.mask,
        mask_ld: a.mask_ld,
        threshold,
        random: a.random,
        scale: factor(a.p),
        dbias,
        workspace: a.workspace,
    };
    // SAFETY: validated; the caller vouches for the pointers.
    unsafe { b.dropout(&job, stream) }
}
