//! Casts to FP8 on the CPU.

use super::{
    amax,
    element::{with_fp8, with_high, Element},
    parallel::{Grid, Threads},
    simd::multiversion,
    transpose::{put_transposed, BLOCK},
    view::{Matrix, Slot},
};
use crate::{
    numerics::{amax_bits, canonical_amax, scale_from_amax, Fp8Format},
    ops::cast::{BiasGradient, CastJob},
    tensor::TensorView,
};

multiversion! {
    /// Encodes a run of elements and returns the largest bit pattern of |x|.
    pub(super) fn encode_run<T: Element, F: Fp8Format>(x: &[T], scale: f32, out: &mut [u8]) -> u32 {
        let mut amax = 0;
        for (q, v) in out.iter_mut().zip(x) {
            let v = v.load();
            amax = amax_bits(v).max(amax);
            *q = F::encode(v * scale);
        }
        amax
    }
}

multiversion! {
    /// Adds a run of elements to sums.
    fn add_run<T: Element>(x: &[T], sums: &mut [f32]) -> () {
        for (s, v) in sums.iter_mut().zip(x) {
            *s += v.load();
        }
    }
}

/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn cast(threads: &Threads, job: &CastJob) {
    let (x, q) = (&job.input, &job.output);
    // SAFETY: forwarded contract.
    unsafe {
        if !job.skip.is_null() && job.skip.as_ptr::<u32>().read() != 0 {
            return;
        }
        let scale = match &job.current {
            None => Slot(q.scale).read_or(1.0),
            Some(rule) => {
                let amax = f32::from_bits(canonical_amax(amax::of(threads, x.dtype, x)));
                let scale = if x.is_empty() { 1.0 } else { scale_from_amax(amax, rule, 1.0) };
                Slot(q.amax).write(amax);
                Slot(q.scale).write(scale);
                scale
            }
        };
        let amax = with_high!(x.dtype, T => {
            if let Some(b) = &job.dbias {
                with_high!(b.dtype, B => column_sums::<T, B>(threads, x, b));
            }
            with_fp8!(q.dtype, F => codes::<T, F>(threads, x, q, scale))
        });
        Slot(q.scale_inv).write(1.0 / scale);
        Slot(job.keep_scale).write(scale);
        if job.current.is_none() {
            Slot(q.amax).record(amax);
        }
    }
}

/// Casts into the layouts that are present; returns the amax as bits.
///
/// # Safety
/// Live matrices of these types.
unsafe fn codes<T: Element, F: Fp8Format>(threads: &Threads, x: &TensorView, q: &TensorView, scale: f32) -> u32 {
    let input = Matrix::<T>::new(x.data, x.ld, x.cols);
    let out = Matrix::<u8>::new(q.data, q.ld, q.cols);
    let out_t = Matrix::<u8>::new(q.data_t, q.ld_t, q.rows);
    let (row_wise, transposed) = (!q.data.is_null(), !q.data_t.is_null());
    if !row_wise && !transposed {
        return 0;
    }
    let pieces = Grid::new(x.rows as usize, x.cols as usize).map(threads, |rows, cols| {
        let mut amax = 0;
        if !transposed {
            for r in rows {
                // SAFETY: parts of existing rows; only this piece writes its output.
                let m =
                    unsafe { encode_run::<T, F>(input.part(r, cols.start, cols.len()), scale, out.part_mut(r, cols.start, cols.len())) };
                amax = m.max(amax);
            }
            return amax;
        }
        let mut block = [0; BLOCK * BLOCK];
        for r0 in rows.clone().step_by(BLOCK) {
            for c0 in cols.clone().step_by(BLOCK) {
                let (height, width) = ((rows.end - r0).min(BLOCK), (cols.end - c0).min(BLOCK));
                for r in 0..height {
                    let codes = &mut block[r * BLOCK..][..width];
                    // SAFETY: a part of an existing row.
                    amax = encode_run::<T, F>(unsafe { input.part(r0 + r, c0, width) }, scale, codes).max(amax);
                    if row_wise {
                        // SAFETY: only this piece writes its output.
                        unsafe { out.part_mut(r0 + r, c0, width) }.copy_from_slice(codes);
                    }
                }
                // SAFETY: as above.
                unsafe { put_transposed(&block, height, width, &out_t, c0, r0) }
            }
        }
        amax
    });
    pieces.into_iter().max().unwrap_or(0)
}

/// Column sums in f32: over 128 rows at a time, then over those partial sums.
///
/// # Safety
/// A live matrix and a live vector of these types.
unsafe fn column_sums<T: Element, B: Element>(threads: &Threads, x: &TensorView, b: &BiasGradient) {
    const ROWS: usize = 128;
    const COLUMNS: usize = 256;
    let input = Matrix::<T>::new(x.data, x.ld, x.cols);
    let out = Matrix::<B>::new(b.ptr, x.cols, x.cols);
    threads.map(x.cols as usize, COLUMNS, |cols| {
        let (mut total, mut part) = ([0f32; COLUMNS], [0f32; COLUMNS]);
        for r in 0..x.rows as usize {
            // SAFETY: a part of an existing row.
            add_run::<T>(unsafe { input.part(r, cols.start, cols.len()) }, &mut part);
            if (r + 1) % ROWS == 0 || r + 1 == x.rows as usize {
                add_run::<f32>(&part, &mut total);
                part.fill(0.0);
            }
        }
        // SAFETY: only this piece writes these columns.
        for (o, s) in unsafe { out.part_mut(0, cols.start, cols.len()) }.iter_mut().zip(total) {
            *o = B::store(if b.accumulate { o.load() + s } else { s });
        }
    });
}
