//! Rotary position embedding: alone, and fused with the split of packed QKV.
//!
//! Of each head's `head_dim` elements the first `rotary_dim` are rotated in pairs, the rest is copied. A pair `(a, b)` at position `t` with
//! the table's `c = cos[t, i]` and `s = sin[t, i]` becomes `(a c - b s, b c + a s)`: in f32, each product and the sum rounded, then rounded
//! once to the type of the data, so that all back ends give the same bits. The backward pass rotates by the opposite angle.

use super::check;
use crate::{
    backend::{cpu::Ieee, Backend},
    context::{Context, Stream},
    error::{Error, Result, Status},
    tensor::{DType, Ptr, TensorView},
};

/// Which elements of a head make a pair, and the table of angles.
#[derive(Clone, Copy, Debug)]
pub struct Rotation {
    /// Pairs are neighbours (2i, 2i + 1), as in GPT-J; otherwise (i, i + rotary_dim / 2), as in GPT-NeoX.
    pub interleaved: bool,
    /// Elements of a head that are rotated, from its first on: even, at most the head.
    pub rotary_dim: i64,
    /// f32 `[table_rows, rotary_dim / 2]`: cosines of the angles.
    pub cos: Ptr,
    /// Likewise: sines.
    pub sin: Ptr,
    /// Positions in the table.
    pub table_rows: i64,
    /// Row stride of both tables.
    pub table_ld: i64,
}

/// Which row of the table a token takes: `start + place + starts[sequence]`. A position outside the table gives NaN.
#[derive(Clone, Copy, Debug, Default)]
pub struct Places {
    /// Added to every position.
    pub start: i64,
    /// The place of each token, i32 or i64; null: its number within its sequence.
    pub positions: Ptr,
    /// They are i64.
    pub positions_i64: bool,
    /// Elements from one token of a sequence to the next.
    pub positions_seq_stride: i64,
    /// Elements from one sequence of the batch to the next; 0: all share theirs.
    pub positions_batch_stride: i64,
    /// i32 `[batch]` (packed: `[sequences]`), or null.
    pub starts: Ptr,
    /// i32 `[sequences + 1]`: where each of the sequences packed along `seq` begins, ascending, and where the last ends; then `batch` is 1.
    /// Tokens of no sequence are copied as they are. Null: not packed.
    pub cu_seqlens: Ptr,
    /// Sequences of `cu_seqlens`.
    pub sequences: i64,
}

/// A tensor `[seq, batch, heads, head_dim]` by its strides, in elements; those of a head lie side by side.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heads {
    /// First element.
    pub data: Ptr,
    /// From token to token of a sequence.
    pub seq_stride: i64,
    /// From sequence to sequence of the batch.
    pub batch_stride: i64,
    /// From head to head.
    pub head_stride: i64,
}

/// Arguments of [`rope_fwd`] and [`rope_bwd`].
#[derive(Clone, Copy, Debug)]
pub struct RopeArgs {
    /// f32, f16 or bf16, of input and output.
    pub dtype: DType,
    /// Tokens of a sequence; of all sequences where they are packed.
    pub seq: i64,
    /// Sequences of this length.
    pub batch: i64,
    /// Heads of a token.
    pub heads: i64,
    /// Elements of a head.
    pub head_dim: i64,
    /// Input; backward: gradient of the output.
    pub x: Heads,
    /// Output; backward: gradient of the input. It may be the input, with the same strides.
    pub y: Heads,
    /// Pairs and table.
    pub rotation: Rotation,
    /// Positions.
    pub places: Places,
}

/// How a row of packed QKV is ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum QkvOrder {
    /// All query heads, all key heads, all value heads.
    Concatenated = 0,
    /// For each key head: the query heads that share it, it, and its value head.
    Grouped = 1,
}

impl QkvOrder {
    /// The order with this number; `argument` names it in the error.
    pub fn from_i32(argument: &str, v: i32) -> Result<Self> {
        match v {
            0 => Ok(Self::Concatenated),
            1 => Ok(Self::Grouped),
            other => Err(Error::argument(Status::InvalidEnum, argument, other, "must be 0 (concatenated) or 1 (grouped)")),
        }
    }
}

/// Arguments of [`rope_qkv_fwd`] and [`rope_qkv_bwd`]. Head strides are the head's length, whatever they say.
#[derive(Clone, Copy, Debug)]
pub struct RopeQkvArgs {
    /// f32, f16 or bf16, of everything.
    pub dtype: DType,
    /// Tokens of a sequence; of all sequences where they are packed.
    pub seq: i64,
    /// Sequences of this length.
    pub batch: i64,
    /// Query heads.
    pub q_heads: i64,
    /// Key heads, and value heads.
    pub kv_heads: i64,
    /// Elements of a head.
    pub head_dim: i64,
    /// Order of the packed tensor.
    pub order: QkvOrder,
    /// Packed, `[seq, batch, (q_heads + 2 kv_heads) * head_dim]`: input forward, output backward.
    pub qkv: Heads,
    /// `[seq, batch, q_heads, head_dim]`: output forward (rotated), input backward, like the next two.
    pub q: Heads,
    /// `[seq, batch, kv_heads, head_dim]`, rotated.
    pub k: Heads,
    /// `[seq, batch, kv_heads, head_dim]`, copied.
    pub v: Heads,
    /// Pairs and table.
    pub rotation: Rotation,
    /// Positions.
    pub places: Places,
}

/// What a job does with heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RopeKind {
    /// One tensor to another.
    Plain,
    /// Packed QKV to its parts.
    Split,
    /// The parts to packed QKV.
    Merge,
}

/// One pass, as back ends see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RopeJob {
    pub(crate) kind: RopeKind,
    pub(crate) dtype: DType,
    /// By the opposite angle.
    pub(crate) backward: bool,
    pub(crate) seq: i64,
    pub(crate) batch: i64,
    /// Heads of a token on the packed side.
    pub(crate) heads: i64,
    pub(crate) head_dim: i64,
    /// Packed QKV: query heads, key heads, order.
    pub(crate) q_heads: i64,
    pub(crate) kv_heads: i64,
    pub(crate) grouped: bool,
    /// One tensor, or the three parts.
    pub(crate) x: [Heads; 3],
    pub(crate) y: [Heads; 3],
    pub(crate) rotation: Rotation,
    pub(crate) places: Places,
}

impl RopeJob {
    /// Whether the output is the input: what is not rotated is then in its place already.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) fn in_place(&self) -> bool {
        self.kind == RopeKind::Plain && self.x[0].data == self.y[0].data
    }

    /// The part of packed QKV (0: q, 1: k, 2: v) that a head of the packed row belongs to, and its number there.
    pub(crate) fn part(&self, head: i64) -> (usize, i64) {
        if self.kind == RopeKind::Plain {
            return (0, head);
        }
        if !self.grouped {
            return match head - self.q_heads {
                rest if rest < 0 => (0, head),
                rest if rest < self.kv_heads => (1, rest),
                rest => (2, rest - self.kv_heads),
            };
        }
        let shared = self.q_heads / self.kv_heads;
        let (group, place) = (head / (shared + 2), head % (shared + 2));
        if place < shared {
            (0, group * shared + place)
        } else {
            ((place - shared + 1) as usize, group)
        }
    }
}

/// `y = rotate(x)`.
///
/// # Safety
/// See [the module](super).
pub unsafe fn rope_fwd(ctx: &Context, args: &RopeArgs, stream: Stream) -> Result<()> {
    // SAFETY: forwarded contract.
    unsafe { plain(ctx, args, false, stream) }
}

/// The gradient of [`rope_fwd`]: `y`, the input's, from `x`, the output's, by the opposite rotation.
///
/// # Safety
/// See [the module](super).
pub unsafe fn rope_bwd(ctx: &Context, args: &RopeArgs, stream: Stream) -> Result<()> {
    // SAFETY: forwarded contract.
    unsafe { plain(ctx, args, true, stream) }
}

/// Packed QKV to q, k and v, of which q and k are rotated.
///
/// # Safety
/// See [the module](super).
pub unsafe fn rope_qkv_fwd(ctx: &Context, args: &RopeQkvArgs, stream: Stream) -> Result<()> {
    // SAFETY: forwarded contract.
    unsafe { packed(ctx, args, false, stream) }
}

/// The gradient of [`rope_qkv_fwd`]: from those of q, k and v to that of packed QKV.
///
/// # Safety
/// See [the module](super).
pub unsafe fn rope_qkv_bwd(ctx: &Context, args: &RopeQkvArgs, stream: Stream) -> Result<()> {
    // SAFETY: forwarded contract.
    unsafe { packed(ctx, args, true, stream) }
}

/// Cosines and sines `[cos.len() / (rotary_dim / 2), rotary_dim / 2]` for positions from `start` on: the angle of pair i at position t is
/// `t * base^(-2i / rotary_dim)`, formed in f64 by functions in Rust, so that a table is the same on every system.
pub fn rope_table(start: i64, rotary_dim: i64, base: f64, cos: &mut [f32], sin: &mut [f32]) -> Result<()> {
    if rotary_dim < 0 || rotary_dim % 2 != 0 {
        return Err(Error::argument(Status::InvalidShape, "rotary_dim", rotary_dim, "must be even and not negative"));
    }
    if !(base > 0.0 && base.is_finite()) {
        return Err(Error::argument(Status::InvalidValue, "base", base, "must be finite and above 0"));
    }
    if rotary_dim == 0 {
        return Ok(());
    }
    let half = (rotary_dim / 2) as usize;
    let _ieee = Ieee::enter();
    let frequencies: Vec<f64> = (0..half).map(|i| libm::pow(base, -2.0 * i as f64 / rotary_dim as f64)).collect();
    for (row, (cos, sin)) in cos.chunks_mut(half).zip(sin.chunks_mut(half)).enumerate() {
        let position = start as f64 + row as f64;
        for ((c, s), f) in cos.iter_mut().zip(sin).zip(&frequencies) {
            let angle = position * f;
            (*c, *s) = (libm::cos(angle) as f32, libm::sin(angle) as f32);
        }
    }
    Ok(())
}

fn negative(name: impl std::fmt::Display, v: i64) -> Result<()> {
    match v < 0 {
        true => Err(Error::argument(Status::InvalidShape, name, v, "must not be negative")),
        false => Ok(()),
    }
}

fn dtype(d: DType) -> Result<()> {
    match check::HIGH.contains(&d) {
        true => Ok(()),
        false => Err(Error::argument(Status::InvalidDType, "dtype", d.name(), "must be one of f32, f16, bf16")),
    }
}

/// A dimension: its size, its stride, and its name.
type Dimension = (i64, i64, &'static str);

/// The range of a tensor `[seq, batch, heads, head_dim]`; `written`: no two elements may share memory.
fn layout(
    b: &dyn Backend,
    name: &'static str,
    h: &Heads,
    dims: [Dimension; 3],
    width: i64,
    d: DType,
    written: bool,
) -> Result<check::Range> {
    for (_, stride, what) in dims {
        if stride < 0 {
            return Err(Error::argument(Status::InvalidStride, format_args!("{name}_{what}_stride"), stride, "must not be negative"));
        }
    }
    if width == 0 || dims.iter().any(|d| d.0 == 0) {
        return Ok(check::Range { name, start: 0, end: 0 });
    }
    let too_large = || Error::argument(Status::SizeOverflow, name, format!("{dims:?} of {width}"), "its size in bytes must fit 63 bits");
    let mut inner = dims;
    inner.sort_by_key(|d| d.1);
    let mut extent = width;
    for (size, stride, what) in inner.into_iter().filter(|d| d.0 > 1) {
        if written && stride < extent {
            let rule = format!("elements must not share memory: at least {extent}");
            return Err(Error::argument(Status::InvalidStride, format_args!("{name}_{what}_stride"), stride, rule));
        }
        extent = (size - 1).checked_mul(stride).and_then(|n| n.checked_add(extent)).ok_or_else(too_large)?;
    }
    if extent.checked_mul(d.size() as i64).is_none() {
        return Err(too_large());
    }
    check::vector(b, name, h.data, d, extent, false)
}

/// Checks table and positions; returns what is read.
fn angles(b: &dyn Backend, r: &Rotation, p: &Places, seq: i64, batch: i64, head_dim: i64, empty: bool) -> Result<[check::Range; 5]> {
    if r.rotary_dim < 0 || r.rotary_dim % 2 != 0 || r.rotary_dim > head_dim {
        let rule = format!("must be even, and from 0 to head_dim = {head_dim}");
        return Err(Error::argument(Status::InvalidShape, "rotary_dim", r.rotary_dim, rule));
    }
    negative("table_rows", r.table_rows)?;
    let table = |name, ptr| {
        let t = TensorView::new(DType::F32, ptr, r.table_rows, r.rotary_dim / 2).with_ld(r.table_ld);
        if r.table_ld < t.cols {
            let rule = format!("must be at least rotary_dim / 2 = {}", t.cols);
            return Err(Error::argument(Status::InvalidStride, "table_ld", r.table_ld, rule));
        }
        let elements = check::extent(name, DType::F32, t.rows, t.cols, t.ld)? / 4;
        check::vector(b, name, ptr, DType::F32, if empty { 0 } else { elements as i64 }, false)
    };
    let cos = table("cos", r.cos)?;
    let sin = table("sin", r.sin)?;
    negative("sequences", p.sequences)?;
    let none = |name| check::Range { name, start: 0, end: 0 };
    let integers = |name, ptr: Ptr, len: i64| match empty || ptr.is_null() {
        true => Ok(none(name)),
        false => check::vector(b, name, ptr, DType::F32, len, true),
    };
    let packed = !p.cu_seqlens.is_null();
    if packed && batch > 1 {
        return Err(Error::argument(Status::InvalidShape, "batch", batch, "must be 1 with cu_seqlens: sequences are packed along seq"));
    }
    let many = p
        .sequences
        .checked_add(1)
        .ok_or_else(|| Error::argument(Status::SizeOverflow, "sequences", p.sequences, "the size of cu_seqlens must fit 63 bits"))?;
    let cu_seqlens = integers("cu_seqlens", p.cu_seqlens, many)?;
    let starts = integers("start_positions", p.starts, if packed { p.sequences } else { batch })?;
    if p.positions.is_null() {
        return Ok([cos, sin, cu_seqlens, starts, none("positions")]);
    }
    for (what, stride) in [("seq", p.positions_seq_stride), ("batch", p.positions_batch_stride)] {
        if stride < 0 {
            return Err(Error::argument(Status::InvalidStride, format_args!("positions_{what}_stride"), stride, "must not be negative"));
        }
    }
    let size = if p.positions_i64 { 8 } else { 4 };
    let reach = |n: i64, stride: i64| (n - 1).max(0).checked_mul(stride);
    let bytes = reach(seq, p.positions_seq_stride)
        .zip(reach(batch, p.positions_batch_stride))
        .and_then(|(s, b)| s.checked_add(b)?.checked_add(1)?.checked_mul(size))
        .ok_or_else(|| Error::argument(Status::SizeOverflow, "positions", p.positions.0, "their size in bytes must fit 63 bits"))?;
    check::pointer(b, "positions", p.positions, size as usize)?;
    Ok([cos, sin, cu_seqlens, starts, integers("positions", p.positions, if empty { 0 } else { bytes / 4 })?])
}

/// Elements of the tensor; the sizes are not negative.
fn sizes(all: [(&str, i64); 4]) -> Result<bool> {
    for (name, v) in all {
        negative(name, v)?;
    }
    Ok(all.iter().any(|(_, v)| *v == 0))
}

unsafe fn plain(ctx: &Context, a: &RopeArgs, backward: bool, stream: Stream) -> Result<()> {
    let b = ctx.backend();
    dtype(a.dtype)?;
    let empty = sizes([("seq", a.seq), ("batch", a.batch), ("heads", a.heads), ("head_dim", a.head_dim)])?;
    let read = angles(b, &a.rotation, &a.places, a.seq, a.batch, a.head_dim, empty)?;
    let side = |name, h: &Heads, written| {
        let dims = [(a.seq, h.seq_stride, "seq"), (a.batch, h.batch_stride, "batch"), (a.heads, h.head_stride, "head")];
        layout(b, name, h, dims, a.head_dim, a.dtype, written)
    };
    let (x, y) = (side("x", &a.x, false)?, side("y", &a.y, true)?);
    let alike = |n: i64, s: i64, t: i64| n <= 1 || s == t;
    let same = a.x.data == a.y.data
        && alike(a.seq, a.x.seq_stride, a.y.seq_stride)
        && alike(a.batch, a.x.batch_stride, a.y.batch_stride)
        && alike(a.heads, a.x.head_stride, a.y.head_stride);
    check::disjoint(&read, &[y])?;
    if !same {
        check::disjoint(&[x], &[y])?;
    }
    if empty {
        return Ok(());
    }
    let job = RopeJob {
        kind: RopeKind::Plain,
        dtype: a.dtype,
        backward,
        seq: a.seq,
        batch: a.batch,
        heads: a.heads,
        head_dim: a.head_dim,
        q_heads: a.heads,
        kv_heads: 0,
        grouped: false,
        x: [a.x; 3],
        y: [a.y; 3],
        rotation: a.rotation,
        places: a.places,
    };
    // SAFETY: validated; the caller vouches for the pointers.
    unsafe { b.rope(&job, stream) }
}

unsafe fn packed(ctx: &Context, a: &RopeQkvArgs, backward: bool, stream: Stream) -> Result<()> {
    let b = ctx.backend();
    dtype(a.dtype)?;
    sizes([("seq", a.seq), ("batch", a.batch), ("q_heads", a.q_heads), ("kv_heads", a.kv_heads)])?;
    negative("head_dim", a.head_dim)?;
    if a.order == QkvOrder::Grouped && (a.kv_heads == 0 && a.q_heads > 0 || a.kv_heads > 0 && a.q_heads % a.kv_heads != 0) {
        let rule = format!("must be a multiple of kv_heads = {} where heads are grouped", a.kv_heads);
        return Err(Error::argument(Status::InvalidShape, "q_heads", a.q_heads, rule));
    }
    let heads = a.kv_heads.checked_mul(2).and_then(|n| n.checked_add(a.q_heads));
    let width = heads.and_then(|n| n.checked_mul(a.head_dim));
    let (Some(heads), Some(width)) = (heads, width) else {
        return Err(Error::argument(Status::SizeOverflow, "head_dim", a.head_dim, "the size of a token must fit 63 bits"));
    };
    let empty = a.seq == 0 || a.batch == 0 || width == 0;
    let read = angles(b, &a.rotation, &a.places, a.seq, a.batch, a.head_dim, empty)?;
    let side = |name, h: &Heads, heads: i64, written| {
        let width = heads * a.head_dim;
        let dims = [(a.seq, h.seq_stride, "seq"), (a.batch, h.batch_stride, "batch"), (1, width, "head")];
        layout(b, name, h, dims, width, a.dtype, written)
    };
    let qkv = side("qkv", &a.qkv, heads, backward)?;
    let q = side("q", &a.q, a.q_heads, !backward)?;
    let k = side("k", &a.k, a.kv_heads, !backward)?;
    let v = side("v", &a.v, a.kv_heads, !backward)?;
    let [cos, sin, cu_seqlens, starts, positions] = read;
    match backward {
        false => check::disjoint(&[qkv, cos, sin, cu_seqlens, starts, positions], &[q, k, v])?,
        true => check::disjoint(&[q, k, v, cos, sin, cu_seqlens, starts, positions], &[qkv])?,
    }
    if empty {
        return Ok(());
    }
    let dense = |h: Heads| Heads { head_stride: a.head_dim, ..h };
    let (whole, parts) = ([dense(a.qkv); 3], [dense(a.q), dense(a.k), dense(a.v)]);
    let job = RopeJob {
        kind: if backward { RopeKind::Merge } else { RopeKind::Split },
        dtype: a.dtype,
        backward,
        seq: a.seq,
        batch: a.batch,
        heads,
        head_dim: a.head_dim,
        q_heads: a.q_heads,
        kv_heads: a.kv_heads,
        grouped: a.order == QkvOrder::Grouped,
        x: if backward { parts } else { whole },
        y: if backward { whole } else { parts },
        rotation: a.rotation,
        places: a.places,
    };
    // SAFETY: validated; the caller vouches for the pointers.
    unsafe { b.rope(&job, stream) }
}
