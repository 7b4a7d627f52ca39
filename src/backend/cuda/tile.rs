//! How a matrix is cut into tiles for the kernels that stand on `kernels/common/tile.cuh`.

use super::launch::blocks;
use crate::{
    error::Result,
    tensor::{DType, Ptr},
};

/// Threads of a block.
pub(super) const THREADS: u32 = 256;
/// Rows and columns of a tile of the aligned kernels.
pub(super) const TILE: i64 = 128;

/// Elements that one load of the aligned kernels takes from a row of `dtype`.
pub(super) const fn vector(dtype: DType) -> i64 {
    match dtype {
        DType::F32 => 4,
        _ => 8,
    }
}

/// Elements from which on a halo saves more than a launch, and more than conversions of an activation cost.
pub(super) const HALO_ELEMENTS: i64 = 1 << 22;

/// Whether the columns of transposed codes are written together with a halo of the tile (`HALO` of the kernels): they begin elsewhere in sectors
/// of 32 bytes, and there are tiles above others. A layout that is absent, or has nothing in it, has none.
pub(super) fn has_halo(codes: Ptr, ld: i64, rows: i64, cols: i64) -> bool {
    !codes.is_null() && rows > TILE && cols > 0 && (codes.0 | ld as u64) % 32 != 0
}

/// Rows of a tile of a small tensor (`LOW_ROWS` of the kernels).
const LOW_ROWS: i64 = 32;
/// Such tiles for each multiprocessor up to which they are the faster ones: all blocks run at the same time.
const LOW_TILES: u32 = 8;

/// Such tiles along the columns, and in all, of a matrix of few, whose codes go out transposed to what lies and begins at multiples of eight.
pub(super) fn low(rows: i64, cols: i64, codes_t: &Layout, multiprocessors: u32) -> Result<Option<(u32, u32)>> {
    if !codes_t.ptr.is_null() && (rows % 8 != 0 || !codes_t.aligned(2)) {
        return Ok(None);
    }
    let (across, all) = tiles(rows, cols, LOW_ROWS, TILE)?;
    Ok((all <= multiprocessors * LOW_TILES).then_some((across, all)))
}

/// What a kernel asks L2 for ahead of its blocks' turn (`ask_for_tile`): the first tiles, 8 MB of each input on an H200; and, steadily,
/// the tile that lies so many after a block's own, 4 MB.
#[derive(Clone, Copy, Default)]
pub(super) struct Ahead {
    pub(super) early: u32,
    pub(super) steady: u32,
}

impl Ahead {
    /// For `tiles` of an input; `both`: codes go out in both layouts, or transposed. Elsewhere blocks read without gaps as it is, unless there
    /// are few of them, and so do those that read f32.
    pub(super) fn new(multiprocessors: u32, tiles: u64, input: DType, both: bool) -> Self {
        let few = tiles < 4 * u64::from(multiprocessors);
        match (few, both && input != DType::F32) {
            (true, _) => Self { early: 2 * multiprocessors, steady: 0 },
            (false, true) => Self { early: 2 * multiprocessors, steady: multiprocessors },
            (false, false) => Self::default(),
        }
    }
}

/// One layout that a kernel reads or writes by vectors of `bytes`.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub(super) ptr: Ptr,
    pub(super) ld: i64,
    pub(super) size: usize,
    pub(super) bytes: u64,
}

impl Layout {
    pub(super) fn new(ptr: Ptr, ld: i64, dtype: DType, bytes: u64) -> Self {
        Self { ptr, ld, size: dtype.size(), bytes }
    }

    /// Whether every row starts at a multiple of the vector; an absent layout is no obstacle.
    pub(super) fn aligned(&self, rows: i64) -> bool {
        self.ptr.is_null() || (self.ptr.0 % self.bytes == 0 && (rows <= 1 || self.ld as u64 * self.size as u64 % self.bytes == 0))
    }

    fn contiguous(&self, rows: i64, cols: i64) -> bool {
        self.ptr.is_null() || rows <= 1 || self.ld == cols
    }
}

/// A matrix as a kernel walks it: `rows` rows of `cols`, the last with only `last`, and `tail` single elements behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Walk {
    pub(super) aligned: bool,
    /// Rewritten as rows of a tile's width; strides are that width.
    pub(super) flat: bool,
    pub(super) rows: i64,
    pub(super) cols: i64,
    pub(super) last: i64,
    pub(super) tail: u32,
}

impl Walk {
    /// For a kernel that reads and writes `layouts`, all row-wise, with `vector` elements per access; `any_width`: columns of a tile of
    /// the kernel that takes single elements. `foldable`: columns have no meaning to the kernel.
    pub(super) fn new(rows: i64, cols: i64, vector: i64, layouts: &[Layout], foldable: bool, any_width: i64) -> Self {
        let plain = Self { aligned: false, flat: false, rows, cols, last: cols, tail: 0 };
        if rows == 0 || cols == 0 {
            return Self { aligned: true, ..plain };
        }
        let total = rows.checked_mul(cols);
        match total {
            Some(total) if foldable && layouts.iter().all(|l| l.contiguous(rows, cols)) => {
                let aligned = layouts.iter().all(|l| l.aligned(1));
                let (width, tail) = if aligned { (TILE, total % vector) } else { (any_width, 0) };
                let whole = total - tail;
                let rows = (whole as u64).div_ceil(width as u64) as i64;
                Self { aligned, flat: true, rows, cols: width, last: whole - width * (rows - 1), tail: tail as u32 }
            }
            _ => Self { aligned: cols % vector == 0 && layouts.iter().all(|l| l.aligned(rows)), ..plain },
        }
    }

    /// The stride of a layout under this walk.
    pub(super) fn stride(&self, ld: i64) -> i64 {
        if self.flat {
            self.cols
        } else {
            ld
        }
    }

    /// Tiles of `height` x `width`: along the columns, and in all. At least one.
    pub(super) fn tiles(&self, height: i64, width: i64) -> Result<(u32, u32)> {
        tiles(self.rows, self.cols, height, width)
    }
}

/// Tiles of `height` x `width` in a matrix: along the columns, and in all. At least one.
pub(super) fn tiles(rows: i64, cols: i64, height: i64, width: i64) -> Result<(u32, u32)> {
    const LIMIT: u64 = 0x7FFF_FFFF;
    let down = (rows as u64).div_ceil(height as u64).max(1);
    let across = (cols as u64).div_ceil(width as u64).max(1);
    let all = blocks(down.saturating_mul(across), LIMIT, "tiles of the tensor")?;
    Ok((across as u32, all))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(ptr: u64, ld: i64) -> Layout {
        Layout::new(Ptr(ptr), ld, DType::Bf16, 16)
    }

    #[test]
    fn a_contiguous_matrix_becomes_rows_of_a_tile() {
        for (rows, cols) in [(1, 1), (1, 8), (3, 5), (128, 128), (1, 1000), (1, 1 << 33), (7, 131)] {
            let w = Walk::new(rows, cols, 8, &[layout(4096, cols)], true, 64);
            assert!(w.flat && w.aligned);
            assert_eq!((w.rows - 1) * TILE + w.last + i64::from(w.tail), rows * cols);
            assert!(w.last % 8 == 0 && w.tail < 8);
            let w = Walk::new(rows, cols, 8, &[layout(4098, cols)], true, 64);
            assert!(w.flat && !w.aligned && w.tail == 0);
            assert_eq!((w.rows - 1) * 64 + w.last, rows * cols);
        }
    }

    #[test]
    fn columns_on_sectors_have_no_halo() {
        assert!(!has_halo(Ptr::NULL, 207, 207, 8) && !has_halo(Ptr(4096), 256, 250, 8) && !has_halo(Ptr(4097), 207, 207, 0));
        assert!(has_halo(Ptr(4096), 208, 208, 8) && has_halo(Ptr(4112), 256, 250, 8) && has_halo(Ptr(4097), 207, 207, 8));
        // One row of tiles has none above it.
        assert!(!has_halo(Ptr(4097), 128, 128, 8) && has_halo(Ptr(4097), 129, 129, 8));
    }

    #[test]
    fn strides_and_alignment_choose_the_kernel() {
        assert!(Walk::new(4, 64, 8, &[layout(4096, 72)], true, 64).aligned);
        assert!(!Walk::new(4, 64, 8, &[layout(4096, 72)], true, 64).flat);
        assert!(!Walk::new(4, 64, 8, &[layout(4096, 65)], true, 64).aligned);
        assert!(!Walk::new(4, 60, 8, &[layout(4096, 72)], true, 64).aligned);
        assert!(!Walk::new(4, 64, 8, &[layout(4104, 72)], true, 64).aligned);
        assert!(!Walk::new(4, 64, 8, &[layout(4096, 64)], false, 64).flat);
    }
}
