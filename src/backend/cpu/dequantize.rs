//! FP8 codes to high precision on the CPU.

use super::{
    element::{with_fp8, with_high, Element},
    parallel::{Grid, Threads},
    simd::multiversion,
    transpose::{put_transposed, BLOCK},
    view::{Matrix, Slot},
};
use crate::{
    numerics::Fp8Format,
    ops::dequantize::DequantizeArgs,
    tensor::{Ptr, TensorView},
};

multiversion! {
    /// Decodes a run of codes.
    fn decode_run<T: Element, F: Fp8Format>(q: &[u8], scale_inv: f32, out: &mut [T]) -> () {
        for (y, q) in out.iter_mut().zip(q) {
            *y = T::store(F::decode(*q) * scale_inv);
        }
    }
}

/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn dequantize(threads: &Threads, a: &DequantizeArgs) {
    // SAFETY: forwarded contract.
    unsafe {
        let scale_inv = Slot(a.input.scale_inv).read_or(1.0);
        with_fp8!(a.input.dtype, F => with_high!(a.output.dtype, T => decode::<T, F>(threads, &a.input, &a.output, scale_inv)));
    }
}

/// # Safety
/// Live matrices of these types.
unsafe fn decode<T: Element, F: Fp8Format>(threads: &Threads, q: &TensorView, y: &TensorView, scale_inv: f32) {
    let out = Matrix::<T>::new(y.data, y.ld, y.cols);
    let codes = Matrix::<u8>::new(q.data, q.ld, q.cols);
    let codes_t = Matrix::<u8>::new(q.data_t, q.ld_t, q.rows);
    Grid::new(q.rows as usize, q.cols as usize).map(threads, |rows, cols| {
        if q.data != Ptr::NULL {
            for r in rows {
                // SAFETY: parts of existing rows; only this piece writes its output.
                unsafe { decode_run::<T, F>(codes.part(r, cols.start, cols.len()), scale_inv, out.part_mut(r, cols.start, cols.len())) }
            }
            return;
        }
        let (mut from, mut block) = ([0; BLOCK * BLOCK], [0; BLOCK * BLOCK]);
        for r0 in rows.clone().step_by(BLOCK) {
            for c0 in cols.clone().step_by(BLOCK) {
                let (height, width) = ((rows.end - r0).min(BLOCK), (cols.end - c0).min(BLOCK));
                let local = Matrix::<u8>::new(Ptr::from(block.as_mut_ptr()), BLOCK as i64, BLOCK as i64);
                // SAFETY: parts of existing rows; `block` is ours; only this piece writes its output.
                unsafe {
                    for c in 0..width {
                        from[c * BLOCK..][..height].copy_from_slice(codes_t.part(c0 + c, r0, height));
                    }
                    put_transposed(&from, width, height, &local, 0, 0);
                    for r in 0..height {
                        decode_run::<T, F>(local.part(r, 0, width), scale_inv, out.part_mut(r0 + r, c0, width));
                    }
                }
            }
        }
    });
}
