//! Casts to FP8 on the CPU.

use super::{
    element::{with_fp8, with_high, Element},
    parallel::Threads,
    simd::multiversion,
    view::{Matrix, Slot},
};
use crate::{
    numerics::{amax_bits, Fp8Format},
    ops::cast::CastArgs,
    tensor::TensorView,
};

multiversion! {
    /// Encodes a run of elements and returns the largest bit pattern of |x|.
    fn encode_run<T: Element, F: Fp8Format>(x: &[T], scale: f32, out: &mut [u8]) -> u32 {
        let mut amax = 0;
        for (q, v) in out.iter_mut().zip(x) {
            let v = v.load();
            amax = amax_bits(v).max(amax);
            *q = F::encode(v * scale);
        }
        amax
    }
}

/// Rows in a piece: about 64 Ki elements, so that threads share evenly and a piece stays in cache.
fn grain(cols: i64) -> usize {
    (65_536 / cols.max(1)).clamp(1, 4096) as usize
}

/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn cast_to_fp8(threads: &Threads, a: &CastArgs) {
    // SAFETY: forwarded contract.
    unsafe {
        let scale = Slot(a.output.scale).read_or(1.0);
        with_high!(a.input.dtype, T => with_fp8!(a.output.dtype, F => cast::<T, F>(threads, &a.input, &a.output, scale)));
        Slot(a.output.scale_inv).write(1.0 / scale);
    }
}

unsafe fn cast<T: Element, F: Fp8Format>(threads: &Threads, x: &TensorView, q: &TensorView, scale: f32) {
    if x.is_empty() {
        return;
    }
    let (cols, rows) = (x.cols as usize, x.rows as usize);
    let input = Matrix::<T>::new(x.data, x.ld, x.cols);
    let out = Matrix::<u8>::new(q.data, q.ld, q.cols);
    let out_t = Matrix::<u8>::new(q.data_t, q.ld_t, q.rows);
    let (row_wise, transposed) = (!q.data.is_null(), !q.data_t.is_null());
    let amax = threads.map(rows, grain(x.cols).next_multiple_of(8), |piece| {
        let mut amax = 0;
        let mut scratch = vec![0u8; if transposed { cols * 8 } else { 0 }];
        // Eight rows at a time, so that the transposed copy is written in runs of eight bytes.
        for block in piece.clone().step_by(8) {
            let n = (piece.end - block).min(8);
            for r in 0..n {
                // SAFETY: the row exists, and only this piece writes its outputs.
                unsafe {
                    let x = input.row(block + r);
                    let m = match row_wise {
                        true => encode_run::<T, F>(x, scale, out.row_mut(block + r)),
                        false => encode_run::<T, F>(x, scale, &mut scratch[r * cols..(r + 1) * cols]),
                    };
                    amax = m.max(amax);
                    if row_wise && transposed {
                        scratch[r * cols..(r + 1) * cols].copy_from_slice(out.row(block + r));
                    }
                }
            }
            if transposed {
                for c in 0..cols {
                    for r in 0..n {
                        // SAFETY: element (c, block + r) of the transposed copy belongs to this piece.
                        unsafe { out_t.set(c, block + r, scratch[r * cols + c]) }
                    }
                }
            }
        }
        amax
    });
    // SAFETY: the slot is the caller's.
    unsafe { Slot(q.amax).record(amax.into_iter().max().unwrap_or(0)) }
}
