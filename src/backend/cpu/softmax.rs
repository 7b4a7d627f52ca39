//! Softmax on the CPU: a row at a time, widened to f32 once.

use super::{
    element::{with_high, Element},
    functions::exp2_of_negative,
    norm::grain,
    parallel::Threads,
    simd::multiversion,
    view::Matrix,
};
use crate::ops::softmax::{SoftmaxBwdArgs, SoftmaxFwdArgs};

const LANES: usize = 16;
/// Elements that are summed in f32 before their lanes meet in f64, so that sums stay accurate for any length.
const RUN: usize = 64 * LANES;

multiversion! {
    /// `x` with its sign turned over where `flip` says so.
    fn widen<T: Element>(x: &[T], flip: u32, out: &mut [f32]) -> () {
        for (o, v) in out.iter_mut().zip(x) {
            *o = f32::from_bits(v.load().to_bits() ^ flip);
        }
    }
}

multiversion! {
    fn hide<>(v: &mut [f32], mask: &[u8]) -> () {
        for (v, m) in v.iter_mut().zip(mask) {
            *v = if *m != 0 { f32::NEG_INFINITY } else { *v };
        }
    }
}

multiversion! {
    /// The largest; NaN is passed over.
    pub(super) fn largest<>(v: &[f32]) -> f32 {
        let mut most = [f32::NEG_INFINITY; LANES];
        let mut chunks = v.chunks_exact(LANES);
        for c in &mut chunks {
            for i in 0..LANES {
                most[i] = if c[i] > most[i] { c[i] } else { most[i] };
            }
        }
        let mut all = f32::NEG_INFINITY;
        for v in most.iter().chain(chunks.remainder()) {
            all = if *v > all { *v } else { all };
        }
        all
    }
}

/// `2^t` for `t <= 0`; NaN stays NaN.
#[inline(always)]
pub(super) fn power(t: f32) -> f32 {
    let e = exp2_of_negative(t);
    if t.is_nan() {
        t
    } else {
        e
    }
}

/// What exponents are counted from: the maximum, unless there is nothing above -infinity.
pub(super) fn base_of(most: f32) -> f32 {
    if most == f32::NEG_INFINITY {
        0.0
    } else {
        most
    }
}

multiversion! {
    /// `v = 2^((v - base) * scale)`; returns the sum.
    pub(super) fn exponentials<>(v: &mut [f32], base: f32, scale: f32) -> f64 {
        let mut total = 0f64;
        for run in v.chunks_mut(RUN) {
            let mut sums = [0f32; LANES];
            let mut chunks = run.chunks_exact_mut(LANES);
            for c in &mut chunks {
                for i in 0..LANES {
                    c[i] = power((c[i] - base) * scale);
                    sums[i] += c[i];
                }
            }
            for v in chunks.into_remainder() {
                *v = power((*v - base) * scale);
                total += f64::from(*v);
            }
            total += sums.iter().map(|s| f64::from(*s)).sum::<f64>();
        }
        total
    }
}

multiversion! {
    fn scaled<T: Element>(v: &[f32], factor: f32, out: &mut [T]) -> () {
        for (o, v) in out.iter_mut().zip(v) {
            *o = T::store(*v * factor);
        }
    }
}

/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn softmax_fwd(threads: &Threads, a: &SoftmaxFwdArgs) {
    if a.x.is_empty() {
        return;
    }
    // SAFETY: forwarded contract.
    with_high!(a.x.dtype, T => unsafe { forward::<T>(threads, a) })
}

/// # Safety
/// As [`softmax_fwd`].
unsafe fn forward<T: Element>(threads: &Threads, a: &SoftmaxFwdArgs) {
    let (x, y) = (Matrix::<T>::new(a.x.data, a.x.ld, a.x.cols), Matrix::<T>::new(a.y.data, a.y.ld, a.y.cols));
    let flip = if a.scale < 0.0 { 0x8000_0000 } else { 0 };
    // Not 0, so that -infinity stays what it is.
    let scale = (a.scale.abs() * std::f32::consts::LOG2_E).max(f32::from_bits(1));
    threads.map(a.x.rows as usize, grain(a.x.cols), |piece| {
        let mut v = vec![0f32; a.x.cols as usize];
        for row in piece {
            let n = a.rows.visible(row as i64, a.x.cols) as usize;
            let v = &mut v[..n];
            // SAFETY: the row exists and is written by this piece alone, after it was read: x may be y.
            unsafe {
                widen::<T>(x.part(row, 0, n), flip, v);
                if !a.mask.data.is_null() {
                    hide(v, std::slice::from_raw_parts(a.mask.row(&a.rows, row as i64).as_ptr(), n));
                }
                let sum = exponentials(v, base_of(largest(v)), scale) as f32;
                let factor = if sum == 0.0 { 0.0 } else { 1.0 / sum };
                let out = y.row_mut(row);
                scaled::<T>(v, factor, &mut out[..n]);
                out[n..].fill(T::store(0.0));
            }
        }
    });
}

multiversion! {
    fn dot<T: Element>(y: &[T], dy: &[T]) -> f64 {
        let mut total = 0f64;
        for (y, dy) in y.chunks(RUN).zip(dy.chunks(RUN)) {
            let mut sums = [0f32; LANES];
            let (mut yc, mut dc) = (y.chunks_exact(LANES), dy.chunks_exact(LANES));
            for (y, dy) in (&mut yc).zip(&mut dc) {
                for i in 0..LANES {
                    sums[i] += y[i].load() * dy[i].load();
                }
            }
            for (y, dy) in yc.remainder().iter().zip(dc.remainder()) {
                total += f64::from(y.load() * dy.load());
            }
            total += sums.iter().map(|s| f64::from(*s)).sum::<f64>();
        }
        total
    }
}

multiversion! {
    fn gradient<>(y: &[f32], dy: &mut [f32], sum: f32, scale: f32) -> () {
        for (d, y) in dy.iter_mut().zip(y) {
            *d = scale * (*y * (*d - sum));
        }
    }
}

/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn softmax_bwd(threads: &Threads, a: &SoftmaxBwdArgs) {
    if a.y.is_empty() {
        return;
    }
    // SAFETY: forwarded contract.
    with_high!(a.y.dtype, T => unsafe { backward::<T>(threads, a) })
}

/// # Safety
/// As [`softmax_bwd`].
unsafe fn backward<T: Element>(threads: &Threads, a: &SoftmaxBwdArgs) {
    let matrix = |t: &crate::tensor::TensorView| Matrix::<T>::new(t.data, t.ld, t.cols);
    let (y, dy, dx) = (matrix(&a.y), matrix(&a.dy), matrix(&a.dx));
    threads.map(a.y.rows as usize, grain(a.y.cols), |piece| {
        let (mut v, mut d) = (vec![0f32; a.y.cols as usize], vec![0f32; a.y.cols as usize]);
        for row in piece {
            let n = a.rows.visible(row as i64, a.y.cols) as usize;
            // SAFETY: the row exists and is written by this piece alone, after it was read: dy may be dx.
            unsafe {
                let (y, dy) = (y.part(row, 0, n), dy.part(row, 0, n));
                let sum = dot::<T>(y, dy) as f32;
                widen::<T>(y, 0, &mut v[..n]);
                widen::<T>(dy, 0, &mut d[..n]);
                gradient(&v[..n], &mut d[..n], sum, a.scale);
                let out = dx.row_mut(row);
                scaled::<T>(&d[..n], 1.0, &mut out[..n]);
                out[n..].fill(T::store(0.0));
            }
        }
    });
}
