//! Transposes of FP8 codes on the CPU.

use super::{
    parallel::{Grid, Threads},
    simd::multiversion,
    view::{Matrix, Slot},
};
use crate::{ops::dequantize::TransposeArgs, tensor::Ptr};

/// Rows and columns of the blocks in which codes are transposed: source and destination stay in the first-level cache.
pub(super) const BLOCK: usize = 64;

const LEN: usize = BLOCK * BLOCK;

/// A block of codes.
pub(super) type Block = [u8; LEN];

/// Moves element i of one half to 2i and element i of the other to 2i+1: rotates the bits of every index left by one.
#[inline(always)]
fn shuffle(from: &Block, to: &mut Block) {
    let (low, high) = from.split_at(LEN / 2);
    for i in 0..LEN / 2 {
        to[2 * i] = low[i];
        to[2 * i + 1] = high[i];
    }
}

multiversion! {
    /// Transposes a block. Index bits are (row, column), six each, so six rotations by one swap them; each is a plain interleave, which
    /// vectorises.
    fn transpose_block<>(block: &Block, out: &mut Block) -> () {
        let mut other = [0; LEN];
        shuffle(block, &mut other);
        shuffle(&other, out);
        for _ in 0..2 {
            shuffle(out, &mut other);
            shuffle(&other, out);
        }
    }
}

/// Writes the transpose of `rows` x `cols` codes (both at most [`BLOCK`]): element (r, c) lies at `block[r * BLOCK + c]` and goes to
/// (c0 + c, r0 + r) of `out`.
///
/// # Safety
/// Those elements of `out` are live and nobody else touches them.
pub(super) unsafe fn put_transposed(block: &Block, rows: usize, cols: usize, out: &Matrix<u8>, c0: usize, r0: usize) {
    // A sliver is not worth a whole block.
    if rows * cols <= LEN / 8 {
        for c in 0..cols {
            // SAFETY: by contract.
            for (r, to) in unsafe { out.part_mut(c0 + c, r0, rows) }.iter_mut().enumerate() {
                *to = block[r * BLOCK + c];
            }
        }
        return;
    }
    let mut turned = [0; LEN];
    transpose_block(block, &mut turned);
    for c in 0..cols {
        // SAFETY: by contract.
        unsafe { out.part_mut(c0 + c, r0, rows) }.copy_from_slice(&turned[c * BLOCK..][..rows]);
    }
}

/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn fp8_transpose(threads: &Threads, a: &TransposeArgs) {
    let (x, y) = (&a.input, &a.output);
    // SAFETY: forwarded contract.
    unsafe {
        match x.data.is_null() {
            false => transpose(threads, (x.data, x.ld), (y.data_t, y.ld_t), x.rows as usize, x.cols as usize),
            true => transpose(threads, (x.data_t, x.ld_t), (y.data, y.ld), x.cols as usize, x.rows as usize),
        }
        if y.scale_inv != x.scale_inv {
            Slot(y.scale_inv).write(Slot(x.scale_inv).read_or(1.0));
        }
    }
}

/// # Safety
/// `from` is a live matrix `[rows, cols]`, `to` one `[cols, rows]` apart from it.
unsafe fn transpose(threads: &Threads, from: (Ptr, i64), to: (Ptr, i64), rows: usize, cols: usize) {
    let (from, to) = (Matrix::<u8>::new(from.0, from.1, cols as i64), Matrix::<u8>::new(to.0, to.1, rows as i64));
    Grid::new(rows, cols).map(threads, |rs, cs| {
        let mut block = [0; LEN];
        for r0 in rs.clone().step_by(BLOCK) {
            for c0 in cs.clone().step_by(BLOCK) {
                let (height, width) = ((rs.end - r0).min(BLOCK), (cs.end - c0).min(BLOCK));
                for r in 0..height {
                    // SAFETY: a part of an existing row.
                    block[r * BLOCK..][..width].copy_from_slice(unsafe { from.part(r0 + r, c0, width) });
                }
                // SAFETY: these elements of the output belong to this piece.
                unsafe { put_transposed(&block, height, width, &to, c0, r0) }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_transposed() {
        let original: Block = std::array::from_fn(|i| (i * 7 + i / BLOCK * 3) as u8);
        let mut block = [0; LEN];
        transpose_block(&original, &mut block);
        for (i, b) in block.iter().enumerate() {
            assert_eq!(*b, original[i % BLOCK * BLOCK + i / BLOCK]);
        }
    }
}
