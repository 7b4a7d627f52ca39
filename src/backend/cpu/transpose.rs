//! Transposes of FP8 codes on the CPU.

use super::{
    parallel::{Grid, Threads},
    view::{Matrix, Slot},
};
use crate::{ops::dequantize::TransposeArgs, tensor::Ptr};

/// Rows and columns of the blocks in which codes are transposed: source and destination stay in the first-level cache.
pub(super) const BLOCK: usize = 64;

/// Transposes 8 x 8 bytes: word r holds row r, byte c of it column c.
#[inline(always)]
fn transpose_8x8(m: [u64; 8]) -> [u64; 8] {
    let mut m = m;
    // Swap ever smaller off-diagonal blocks: 4 x 4, 2 x 2, single bytes.
    for (step, mask) in [(4, 0x0000_0000_FFFF_FFFFu64), (2, 0x0000_FFFF_0000_FFFF), (1, 0x00FF_00FF_00FF_00FF)] {
        for i in 0..8 {
            if i & step == 0 {
                let (a, b) = (m[i], m[i + step]);
                m[i] = (a & mask) | (b & mask) << (8 * step);
                m[i + step] = ((a >> (8 * step)) & mask) | (b & !mask);
            }
        }
    }
    m
}

/// Writes the transpose of `rows` x `cols` codes (both at most [`BLOCK`]): element (r, c) lies at `src[r * BLOCK + c]` and goes to
/// (c0 + c, r0 + r) of `out`.
///
/// # Safety
/// Those elements of `out` are live and nobody else touches them.
pub(super) unsafe fn put_transposed(src: &[u8; BLOCK * BLOCK], rows: usize, cols: usize, out: &Matrix<u8>, c0: usize, r0: usize) {
    for c in (0..cols).step_by(8) {
        let width = (cols - c).min(8);
        for r in (0..rows).step_by(8) {
            let height = (rows - r).min(8);
            let word = |i: usize| u64::from_le_bytes(src[(r + i) * BLOCK + c..][..8].try_into().expect("eight bytes"));
            let columns = transpose_8x8(std::array::from_fn(word));
            for (j, column) in columns.iter().enumerate().take(width) {
                // SAFETY: by contract.
                let to = unsafe { out.part_mut(c0 + c + j, r0 + r, height) };
                match <&mut [u8; 8]>::try_from(&mut *to) {
                    Ok(whole) => *whole = column.to_le_bytes(),
                    Err(_) => to.copy_from_slice(&column.to_le_bytes()[..height]),
                }
            }
        }
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
        let mut block = [0; BLOCK * BLOCK];
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
    #[test]
    fn eight_by_eight() {
        let m: [u64; 8] = std::array::from_fn(|r| u64::from_le_bytes(std::array::from_fn(|c| (8 * r + c) as u8)));
        let t = super::transpose_8x8(m);
        for (r, row) in t.iter().enumerate() {
            assert_eq!(row.to_le_bytes(), std::array::from_fn(|c| (8 * c + r) as u8));
        }
    }
}
