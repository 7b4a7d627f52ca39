//! Softmax over rows: scaled, masked, causal; forward and backward (NUMERICS section 8).
//!
//! Arithmetic is f32. What is hidden counts as -infinity, and so does an element that is -infinity (times the scale); a row that holds
//! nothing else becomes 0, and its gradient 0. A NaN or +infinity that is seen makes its row NaN; one that is hidden does nothing.

use super::check;
use crate::{
    context::{Context, Stream},
    error::{Error, Result, Status},
    tensor::{DType, Ptr, TensorView},
};

/// How rows belong together: row `r` is query `r % queries` of matrix `r / queries`, and matrix `m` is head `m % heads` of batch
/// `m / heads`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rows {
    /// Rows of a matrix; 0: all of them.
    pub queries: i64,
    /// Matrices of a batch; 0: 1.
    pub heads: i64,
    /// Query `i` sees keys `j <= i + offset` only.
    pub causal: bool,
    /// 0: the first query sees the first key.
    pub offset: i64,
}

/// A mask of bytes: an element whose byte is not 0 is hidden. Strides count bytes; 0 repeats the same rows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mask {
    /// The bytes, `cols` of them side by side for each row; null: no mask.
    pub data: Ptr,
    /// From one batch to the next.
    pub batch_stride: i64,
    /// From one head to the next.
    pub head_stride: i64,
    /// From one query to the next.
    pub query_stride: i64,
}

/// Arguments of [`softmax_fwd`].
#[derive(Clone, Copy, Debug)]
pub struct SoftmaxFwdArgs {
    /// f32, f16 or bf16 `[rows, cols]`.
    pub x: TensorView,
    /// Of the type and shape of `x`; may be `x` itself.
    pub y: TensorView,
    /// Multiplies `x`; finite.
    pub scale: f32,
    /// Which rows belong together.
    pub rows: Rows,
    /// What is hidden beside what causality hides.
    pub mask: Mask,
}

/// Arguments of [`softmax_bwd`].
#[derive(Clone, Copy, Debug)]
pub struct SoftmaxBwdArgs {
    /// f32, f16 or bf16 `[rows, cols]`: gradient of the output.
    pub dy: TensorView,
    /// Of the same type and shape: the output of the forward pass.
    pub y: TensorView,
    /// Of the same type and shape: gradient of the input; may be `dy` itself.
    pub dx: TensorView,
    /// The forward pass' own.
    pub scale: f32,
    /// The forward pass' own. (Its mask is not needed: what it hid is 0 in `y`.)
    pub rows: Rows,
}

/// `y = softmax(scale * x)`, row by row.
///
/// # Safety
/// See [the module](super).
pub unsafe fn softmax_fwd(ctx: &Context, args: &SoftmaxFwdArgs, stream: Stream) -> Result<()> {
    let (x, y, b) = (&args.x, &args.y, ctx.backend());
    check::dtype("x", x, check::HIGH)?;
    let read = check::rowwise(b, "x", x)?;
    same("y", y, "x", x)?;
    let written = check::rowwise(b, "y", y)?;
    finite(args.scale)?;
    let rows = args.rows.checked(x)?;
    let mask = mask_range(ctx, args, &rows)?;
    let inputs = [if is_same(x, y) { mask } else { read }, mask];
    check::disjoint(&inputs, &[written])?;
    // SAFETY: validated; the caller vouches for the pointers.
    unsafe { b.softmax_fwd(&SoftmaxFwdArgs { rows, ..*args }, stream) }
}

/// `dx = scale * y * (dy - sum(y * dy))`, row by row. Under causality what is hidden is written as 0 and not read.
///
/// # Safety
/// See [the module](super).
pub unsafe fn softmax_bwd(ctx: &Context, args: &SoftmaxBwdArgs, stream: Stream) -> Result<()> {
    let (dy, y, dx, b) = (&args.dy, &args.y, &args.dx, ctx.backend());
    check::dtype("dy", dy, check::HIGH)?;
    let gradient = check::rowwise(b, "dy", dy)?;
    same("y", y, "dy", dy)?;
    let read = check::rowwise(b, "y", y)?;
    same("dx", dx, "dy", dy)?;
    let written = check::rowwise(b, "dx", dx)?;
    finite(args.scale)?;
    let rows = args.rows.checked(dy)?;
    check::disjoint(&[read, if is_same(dy, dx) { read } else { gradient }], &[written])?;
    // SAFETY: validated; the caller vouches for the pointers.
    unsafe { b.softmax_bwd(&SoftmaxBwdArgs { rows, ..*args }, stream) }
}

/// The same memory, element by element.
fn is_same(a: &TensorView, b: &TensorView) -> bool {
    a.data == b.data && (a.ld == b.ld || a.rows <= 1)
}

/// Same type, same shape.
fn same(name: &str, t: &TensorView, other: &str, o: &TensorView) -> Result<()> {
    if t.dtype != o.dtype {
        let rule = format!("must be the type of {other}, {}", o.dtype.name());
        return Err(Error::argument(Status::InvalidDType, format_args!("{name}.dtype"), t.dtype.name(), rule));
    }
    check::same_shape(name, t, other, o)
}

fn finite(scale: f32) -> Result<()> {
    if scale.is_finite() {
        return Ok(());
    }
    Err(Error::argument(Status::InvalidValue, "scale", scale, "must be finite"))
}

impl Rows {
    /// Filled in for `t`: `queries` and `heads` are at least 1 and divide its rows; `offset` is no larger than tells anything.
    fn checked(self, t: &TensorView) -> Result<Self> {
        for (name, v) in [("queries", self.queries), ("heads", self.heads)] {
            if v < 0 {
                return Err(Error::argument(Status::InvalidShape, name, v, "must not be negative"));
            }
        }
        let queries = if self.queries == 0 { t.rows.max(1) } else { self.queries };
        let heads = self.heads.max(1);
        if t.rows % queries != 0 {
            return Err(Error::argument(Status::InvalidShape, "queries", queries, format!("must divide the rows, {}", t.rows)));
        }
        if t.rows / queries % heads != 0 {
            let rule = format!("must divide the matrices, {} of {queries} rows", t.rows / queries);
            return Err(Error::argument(Status::InvalidShape, "heads", heads, rule));
        }
        Ok(Self { queries, heads, causal: self.causal, offset: self.offset.clamp(-queries, t.cols) })
    }

    /// How many elements of a row causality leaves.
    pub(crate) fn visible(&self, row: i64, cols: i64) -> i64 {
        match self.causal {
            true => (row % self.queries + self.offset + 1).clamp(0, cols),
            false => cols,
        }
    }
}

impl Mask {
    /// Where a row's bytes lie.
    pub(crate) fn row(&self, rows: &Rows, row: i64) -> Ptr {
        let (matrix, query) = (row / rows.queries, row % rows.queries);
        let (batch, head) = (matrix / rows.heads, matrix % rows.heads);
        self.data.offset((batch * self.batch_stride + head * self.head_stride + query * self.query_stride) as u64)
    }
}

/// What the mask's bytes span.
fn mask_range(ctx: &Context, a: &SoftmaxFwdArgs, rows: &Rows) -> Result<check::Range> {
    let (m, t) = (&a.mask, &a.x);
    let strides = [("mask_batch_stride", m.batch_stride), ("mask_head_stride", m.head_stride), ("mask_query_stride", m.query_stride)];
    for (name, stride) in strides {
        if stride < 0 {
            return Err(Error::argument(Status::InvalidStride, name, stride, "must not be negative"));
        }
    }
    if m.data.is_null() || t.is_empty() {
        return Ok(check::Range { name: "mask", start: 0, end: 0 });
    }
    let counts = [t.rows / rows.queries / rows.heads, rows.heads, rows.queries];
    let mut bytes = Some(t.cols);
    for ((_, stride), count) in strides.into_iter().zip(counts) {
        bytes = bytes.and_then(|b| stride.checked_mul(count - 1)?.checked_add(b));
    }
    let bytes = bytes.ok_or_else(|| {
        let value = format!("strides {}, {}, {}", m.batch_stride, m.head_stride, m.query_stride);
        Error::argument(Status::SizeOverflow, "mask", value, "its size in bytes must fit 63 bits")
    })?;
    // One byte is what an element of E4M3 takes.
    check::vector(ctx.backend(), "mask", m.data, DType::E4m3, bytes, true)
}
