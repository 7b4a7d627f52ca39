//! Lists of tensors for operations that take any number of them in one launch.
//!
//! A list has two parts: a [`TensorList`] on the host, which says how many blocks of work there are, and a table in the caller's device
//! memory, which says what each block works on. The table is written in stream order from kernel arguments (no host memory is read
//! later, so it may be done under capture), once; an operation then passes one pointer.

use super::check;
use crate::{
    context::{Context, Stream},
    error::{Error, Result, Status},
    tensor::{Ptr, TensorView},
};

/// What a list is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum ListKind {
    /// [`adamw`](super::adamw).
    Adamw = 1,
    /// [`grad_norm`](super::grad_norm).
    Gradients = 2,
    /// [`multi_cast`](super::multi_cast).
    Casts = 3,
}

impl ListKind {
    const ALL: [ListKind; 3] = [ListKind::Adamw, ListKind::Gradients, ListKind::Casts];

    /// The kind with this number.
    pub fn from_i32(name: &str, v: i32) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|k| *k as i32 == v)
            .ok_or_else(|| Error::argument(Status::InvalidEnum, name, v, "must be a list that one of the list functions has written"))
    }

    /// Bytes of a tensor's entry in the table.
    const fn entry(self) -> u64 {
        match self {
            ListKind::Adamw | ListKind::Casts => 128,
            ListKind::Gradients => 32,
        }
    }

    /// Scratch memory behind the entries of `n` tensors with so many blocks.
    fn scratch(self, n: u64, blocks: u64) -> u64 {
        match self {
            ListKind::Adamw => 0,
            ListKind::Gradients => MAX_PARTIALS as u64 * 8,
            // The amax of each tensor; or of each block, and a counter.
            ListKind::Casts => n.max(blocks + 1) * 4,
        }
    }
}

/// Most partial sums of a reduction over a list, of eight bytes each.
pub(crate) const MAX_PARTIALS: u32 = 4096;
/// What a table begins with: counters by which blocks find out who is last.
const HEADER: u64 = 256;
/// Tables begin at multiples of this.
pub(crate) const TABLE_ALIGNMENT: usize = 16;

/// A list: its host part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorList {
    /// What it is for.
    pub kind: ListKind,
    /// Its table, in device memory.
    pub data: Ptr,
    /// Bytes of the table.
    pub bytes: u64,
    /// Tensors.
    pub count: i64,
    /// Blocks of work, and how many of them are tiles; of a list of casts, how many the largest tensor has.
    pub blocks: [u64; 2],
}

/// Where the parts of a table lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table {
    /// The counters; the CPU needs none.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) header: Ptr,
    /// One entry per tensor; each begins with its first block and its number of blocks, as u32.
    pub(crate) entries: Ptr,
    /// One pointer per tensor: the gradients, which move while all else stays.
    pub(crate) pointers: Ptr,
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) scratch: Ptr,
    /// The tensor of each block, as u32; the CPU searches instead.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) map: Ptr,
    bytes: u64,
}

impl TensorList {
    pub(crate) fn table(&self) -> Table {
        let n = self.count as u64;
        let entries = HEADER;
        let pointers = entries + n * self.kind.entry();
        let scratch = (pointers + n * 8).next_multiple_of(16);
        let map = scratch + self.kind.scratch(n, self.blocks[0]);
        let at = |offset: u64| Ptr(self.data.0.wrapping_add(offset));
        let bytes = (map + self.blocks[0] * 4).next_multiple_of(16);
        Table { header: self.data, entries: at(entries), pointers: at(pointers), scratch: at(scratch), map: at(map), bytes }
    }

    /// Bytes its table takes.
    pub(crate) fn needed(&self) -> u64 {
        self.table().bytes
    }

    /// The list was made for this operation, and its memory is there.
    pub(crate) fn check(&self, ctx: &Context, kind: ListKind) -> Result<check::Range> {
        if self.kind != kind {
            return Err(Error::argument(Status::InvalidEnum, "list.kind", self.kind as i32, format!("must be {}", kind as i32)));
        }
        if self.count < 0 || self.count > MAX_TENSORS {
            return Err(Error::argument(Status::InvalidShape, "list.count", self.count, "must be what the list function wrote"));
        }
        if self.blocks[0] > MAX_BLOCKS || self.blocks[1] > self.blocks[0] {
            return Err(Error::argument(Status::SizeOverflow, "list.blocks", self.blocks[0], "must be what the list function wrote"));
        }
        let needed = self.needed();
        if self.bytes < needed {
            return Err(Error::argument(Status::WorkspaceTooSmall, "list.bytes", self.bytes, format!("must be at least {needed}")));
        }
        check::required(ctx.backend(), "list.data", self.data, TABLE_ALIGNMENT)?;
        Ok(check::Range { name: "list.data", start: self.data.0, end: self.data.0.saturating_add(needed) })
    }
}

/// Most tensors of a list.
const MAX_TENSORS: i64 = 1 << 24;
/// Most blocks of a launch.
const MAX_BLOCKS: u64 = 0x7FFF_FFFF;

/// Counts the blocks of a list's tensors, one after the other.
#[derive(Default)]
pub(crate) struct Blocks {
    pub(crate) total: u64,
    pub(crate) tiles: u64,
}

impl Blocks {
    /// `n` blocks more: (the first of them, how many).
    pub(crate) fn take(&mut self, n: u64, tiles: bool) -> Result<(u32, u32)> {
        let first = self.total;
        self.total = first.saturating_add(n);
        if self.total > MAX_BLOCKS {
            return Err(Error::argument(Status::SizeOverflow, "tensors", self.total, format!("at most {MAX_BLOCKS} blocks fit a launch")));
        }
        if tiles {
            self.tiles += n;
        }
        Ok((first as u32, n as u32))
    }
}

/// The number of tensors fits a list.
pub(crate) fn count(n: usize) -> Result<i64> {
    match i64::try_from(n) {
        Ok(n) if n <= MAX_TENSORS => Ok(n),
        _ => Err(Error::argument(Status::SizeOverflow, "count", n, format!("at most {MAX_TENSORS}"))),
    }
}

/// An error about one tensor of a list says which.
pub(crate) fn of_tensor(index: usize, e: Error) -> Error {
    Error::with_code(e.status(), e.code(), format!("tensor {index}: {}", e.message()))
}

/// The tensor has no gaps between its rows: lists hold plain stretches of memory.
pub(crate) fn dense(name: &str, t: &TensorView) -> Result<()> {
    if t.rows <= 1 || t.cols == 0 || t.ld == t.cols {
        return Ok(());
    }
    Err(Error::argument(
        Status::InvalidStride,
        format_args!("{name}.ld"),
        t.ld,
        format!("must be cols = {}: rows lie side by side", t.cols),
    ))
}

/// Memory of a list's tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub(crate) index: usize,
    pub(crate) range: check::Range,
    pub(crate) written: bool,
}

/// No memory that is written is memory of anything else in the list.
pub(crate) fn disjoint(mut claims: Vec<Claim>) -> Result<()> {
    claims.retain(|c| c.range.start < c.range.end);
    claims.sort_by_key(|c| c.range.start);
    // Of what began before: what reaches furthest, and what of it is written.
    let (mut any, mut written): (Option<Claim>, Option<Claim>) = (None, None);
    for c in claims {
        let before = if c.written { any } else { written };
        if let Some(b) = before.filter(|b| b.range.end > c.range.start) {
            return Err(of_tensor(
                c.index,
                Error::argument(
                    Status::Overlap,
                    c.range.name,
                    format!("{:#x}..{:#x}", c.range.start, c.range.end),
                    format!("must not overlap {} of tensor {} ({:#x}..{:#x})", b.range.name, b.index, b.range.start, b.range.end),
                ),
            ));
        }
        let further = |old: Option<Claim>| old.filter(|o| o.range.end >= c.range.end).or(Some(c));
        any = further(any);
        if c.written {
            written = further(written);
        }
    }
    Ok(())
}

/// Writes a table. `entries`: those of all tensors, as bytes; `pointers`: one per tensor.
///
/// # Safety
/// The memory of the table is live; see [the module](super).
pub(crate) unsafe fn write(ctx: &Context, list: &TensorList, entries: &[u8], pointers: &[Ptr], stream: Stream) -> Result<()> {
    debug_assert_eq!(entries.len() as u64, list.count as u64 * list.kind.entry());
    let (t, b) = (list.table(), ctx.backend());
    // SAFETY: parts of the table, by contract.
    unsafe {
        b.list_write(t.header, &[0; HEADER as usize], stream)?;
        b.list_write(t.entries, entries, stream)?;
        self::pointers(ctx, list, pointers, stream)?;
        b.list_map(t.entries, list.kind.entry(), list.count as u32, t.map, stream)
    }
}

/// Writes the pointers of a table, one per tensor.
///
/// # Safety
/// As [`write`].
pub(crate) unsafe fn pointers(ctx: &Context, list: &TensorList, pointers: &[Ptr], stream: Stream) -> Result<()> {
    let words: Vec<u64> = pointers.iter().map(|p| p.0).collect();
    // SAFETY: forwarded contract.
    unsafe { ctx.backend().list_write(list.table().pointers, bytemuck::cast_slice(&words), stream) }
}

/// Puts other gradients in place of those a list was made with, of the same types and sizes. Enqueued; nothing waits.
///
/// # Safety
/// See [the module](super); the gradients have the sizes and types of those of the list.
pub unsafe fn list_gradients(ctx: &Context, list: &TensorList, gradients: &[Ptr], stream: Stream) -> Result<()> {
    list.check(ctx, list.kind)?;
    if list.kind == ListKind::Casts {
        return Err(Error::argument(Status::InvalidEnum, "list.kind", list.kind as i32, "must be a list of gradients, or of AdamW"));
    }
    if gradients.len() as i64 != list.count {
        return Err(Error::argument(Status::InvalidShape, "count", gradients.len(), format!("must be list.count = {}", list.count)));
    }
    for (i, p) in gradients.iter().enumerate() {
        // Every element type is allowed two bytes; what an entry says is on the device.
        check::pointer(ctx.backend(), "gradient", *p, 2).map_err(|e| of_tensor(i, e))?;
    }
    // SAFETY: validated; the caller vouches for the pointers.
    unsafe { pointers(ctx, list, gradients, stream) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(index: usize, start: u64, end: u64, written: bool) -> Claim {
        Claim { index, range: check::Range { name: "x", start, end }, written }
    }

    #[test]
    fn overlaps_are_found_wherever_they_are() {
        assert!(disjoint(vec![]).is_ok());
        assert!(disjoint(vec![claim(0, 10, 20, true), claim(1, 20, 30, true), claim(2, 5, 10, false)]).is_ok());
        // Two that are only read may share.
        assert!(disjoint(vec![claim(0, 10, 20, false), claim(1, 15, 30, false)]).is_ok());
        assert!(disjoint(vec![claim(0, 10, 20, true), claim(1, 19, 30, false)]).is_err());
        assert!(disjoint(vec![claim(0, 10, 20, false), claim(1, 19, 30, true)]).is_err());
        // A long one that began early, others between.
        assert!(disjoint(vec![claim(0, 0, 100, true), claim(1, 90, 95, false)]).is_err());
        assert!(disjoint(vec![claim(0, 0, 100, false), claim(1, 10, 20, false), claim(2, 50, 60, true)]).is_err());
        // Nothing is shared with what has no bytes.
        assert!(disjoint(vec![claim(0, 10, 20, true), claim(1, 15, 15, true)]).is_ok());
    }

    #[test]
    fn parts_of_a_table_lie_behind_each_other() {
        for kind in ListKind::ALL {
            for (count, blocks) in [(0, 0), (1, 1), (3, 17), (300, 250_000)] {
                let list = TensorList { kind, data: Ptr(4096), bytes: 0, count, blocks: [blocks, 0] };
                let t = list.table();
                assert!(t.entries.0 >= t.header.0 + HEADER && t.entries.0 % 16 == 0);
                assert!(t.pointers.0 >= t.entries.0 + count as u64 * kind.entry() && t.pointers.0 % 8 == 0);
                assert!(t.scratch.0 >= t.pointers.0 + 8 * count as u64 && t.scratch.0 % 16 == 0);
                assert!(t.map.0 >= t.scratch.0 + kind.scratch(count as u64, blocks) && t.bytes >= t.map.0 - 4096 + 4 * blocks);
            }
        }
    }
}
