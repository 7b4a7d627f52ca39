//! LayerNorm and RMSNorm on the CPU.
//!
//! A row is widened to f32 once. Sums run over 32 lanes in blocks and meet in f64, so that they stay accurate for any length and vectorise.

use super::{
    element::{with_fp8, with_high, Element},
    parallel::Threads,
    simd::multiversion,
    transpose::{put_transposed, BLOCK},
    view::{Matrix, Slot},
};
use crate::{
    numerics::{amax_bits, f32_canonical, Fp8Format},
    ops::norm::{Norm, NormBwdArgs, NormFwdArgs},
    tensor::{Ptr, TensorView},
};

const LANES: usize = 32;
/// Elements between two stops in f64. Few: roundings of equal values are equal, as many of 16 bits are, and do not cancel within a lane.
const RUN: usize = 16 * LANES;

/// Two sums over triples of equally long rows.
#[inline(always)]
fn sums(a: &[f32], b: &[f32], c: &[f32], f: impl Fn(f32, f32, f32) -> (f32, f32)) -> (f64, f64) {
    let (mut total, mut total2) = (0.0, 0.0);
    for ((a, b), c) in a.chunks(RUN).zip(b.chunks(RUN)).zip(c.chunks(RUN)) {
        let (mut s, mut s2) = ([0f32; LANES], [0f32; LANES]);
        let (mut ai, mut bi, mut ci) = (a.chunks_exact(LANES), b.chunks_exact(LANES), c.chunks_exact(LANES));
        for ((a, b), c) in (&mut ai).zip(&mut bi).zip(&mut ci) {
            for i in 0..LANES {
                let (p, q) = f(a[i], b[i], c[i]);
                s[i] += p;
                s2[i] += q;
            }
        }
        for (i, ((a, b), c)) in ai.remainder().iter().zip(bi.remainder()).zip(ci.remainder()).enumerate() {
            let (p, q) = f(*a, *b, *c);
            s[i] += p;
            s2[i] += q;
        }
        total += s.iter().map(|v| f64::from(*v)).sum::<f64>();
        total2 += s2.iter().map(|v| f64::from(*v)).sum::<f64>();
    }
    (total, total2)
}

multiversion! {
    fn widen<T: Element>(x: &[T], out: &mut [f32]) -> () {
        for (o, v) in out.iter_mut().zip(x) {
            *o = v.load();
        }
    }
}

multiversion! {
    fn narrow<T: Element>(v: &[f32], out: &mut [T]) -> () {
        for (o, v) in out.iter_mut().zip(v) {
            *o = T::store(*v);
        }
    }
}

multiversion! {
    /// Encodes a row and returns the largest bit pattern of |v|.
    fn encode<F: Fp8Format>(v: &[f32], scale: f32, out: &mut [u8]) -> u32 {
        let mut amax = 0;
        for (q, v) in out.iter_mut().zip(v) {
            amax = amax_bits(*v).max(amax);
            *q = F::encode(*v * scale);
        }
        amax
    }
}

multiversion! {
    fn sum_and_squares<>(x: &[f32]) -> (f64, f64) {
        sums(x, x, x, |v, _, _| (v, v * v))
    }
}

multiversion! {
    fn centred_sums<>(x: &[f32], centre: f32) -> (f64, f64) {
        sums(x, x, x, |v, _, _| (v - centre, (v - centre) * (v - centre)))
    }
}

multiversion! {
    /// `x = ((x - centre) - rest) * rsigma * weight + beta`
    fn normalise<>(x: &mut [f32], centre: f32, rest: f32, rsigma: f32, weight: &[f32], beta: &[f32]) -> () {
        for ((x, w), b) in x.iter_mut().zip(weight).zip(beta) {
            *x = ((*x - centre) - rest) * rsigma * *w + *b;
        }
    }
}

multiversion! {
    fn scale_row<>(x: &mut [f32], rsigma: f32, weight: &[f32]) -> () {
        for (x, w) in x.iter_mut().zip(weight) {
            *x = *x * rsigma * *w;
        }
    }
}

/// A parameter as f32; `default` where there is none.
///
/// # Safety
/// The parameter is live.
unsafe fn parameter(p: &Option<TensorView>, cols: usize, zero_centered: bool, default: f32) -> Vec<f32> {
    let Some(t) = p else { return vec![default; cols] };
    let mut out = vec![0.0; cols];
    // SAFETY: a live row by contract.
    with_high!(t.dtype, T => widen::<T>(unsafe { Matrix::<T>::new(t.data, t.cols, t.cols).row(0) }, &mut out));
    if zero_centered {
        out.iter_mut().for_each(|v| *v += 1.0);
    }
    out
}

/// Rows in a piece: about 64 Ki elements, so that threads share evenly and a piece stays in cache.
pub(super) fn grain(cols: i64) -> usize {
    (65_536 / cols.max(1)).clamp(1, 4096) as usize
}

/// Statistics of a row: what is subtracted (a rounded mean and what the rounding lost) and 1/sigma.
struct Stats {
    centre: f32,
    rest: f32,
    rsigma: f32,
}

/// The point on which LayerNorm centres a row of T: its mean, to 12 bits where T has 16. Then x - centre is exact (for x within 2^12 of it):
/// its rounding errors, which values of one binade share, would add up in the rest of the mean. NaN stays NaN.
fn centre_of<T: Element>(mean: f32) -> f32 {
    if size_of::<T>() == 4 || mean.is_nan() {
        return mean;
    }
    f32::from_bits(mean.to_bits().wrapping_add(0x800) & 0xFFFF_F000)
}

/// Of a row of T, widened.
fn stats<T: Element>(norm: Norm, x: &[f32], eps: f32) -> Stats {
    let n = x.len() as f64;
    let rsigma = |variance: f64| (1.0 / (variance + f64::from(eps)).sqrt()) as f32;
    let (sum, squares) = sum_and_squares(x);
    match norm {
        Norm::Rms => Stats { centre: 0.0, rest: 0.0, rsigma: rsigma(squares / n) },
        Norm::Layer => {
            let centre = centre_of::<T>((sum / n) as f32);
            let (rest, squares) = centred_sums(x, centre);
            let variance = (squares - rest * rest / n) / n;
            // Not `f64::max`: a NaN must stay one.
            Stats { centre, rest: (rest / n) as f32, rsigma: rsigma(if variance < 0.0 { 0.0 } else { variance }) }
        }
    }
}

/// Writes one row of the output and, where the transposed copy is wanted, its codes into the scratch row; returns the largest bit
/// pattern of |v|.
type Store<'a> = dyn Fn(usize, &[f32], &mut [u8]) -> u32 + Sync + 'a;

/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn norm_fwd(threads: &Threads, norm: Norm, a: &NormFwdArgs) {
    let y = &a.y;
    // SAFETY: each row is written by the one piece that owns it; pointers live by contract.
    unsafe {
        if !y.dtype.is_fp8() {
            with_high!(y.dtype, T => {
                let out = Matrix::<T>::new(y.data, y.ld, y.cols);
                forward(threads, norm, a, &move |row, v, _| {
                    narrow::<T>(v, out.row_mut(row));
                    0
                });
            });
            return;
        }
        let scale = Slot(y.scale).read_or(1.0);
        let out = Matrix::<u8>::new(y.data, y.ld, y.cols);
        let row_wise = !y.data.is_null();
        let amax = with_fp8!(y.dtype, F => forward(threads, norm, a, &move |row, v, codes| {
            if !row_wise {
                return encode::<F>(v, scale, codes);
            }
            let amax = encode::<F>(v, scale, out.row_mut(row));
            if !codes.is_empty() {
                codes.copy_from_slice(out.row(row));
            }
            amax
        }));
        Slot(y.scale_inv).write(1.0 / scale);
        Slot(y.amax).record(amax);
    }
}

/// # Safety
/// As [`norm_fwd`].
unsafe fn forward(threads: &Threads, norm: Norm, a: &NormFwdArgs, store: &Store<'_>) -> u32 {
    if a.x.is_empty() {
        return 0;
    }
    // SAFETY: forwarded contract.
    with_high!(a.x.dtype, T => unsafe { forward_rows::<T>(threads, norm, a, store) })
}

/// # Safety
/// As [`norm_fwd`].
unsafe fn forward_rows<T: Element>(threads: &Threads, norm: Norm, a: &NormFwdArgs, store: &Store<'_>) -> u32 {
    let (rows, cols) = (a.x.rows as usize, a.x.cols as usize);
    // SAFETY: live by contract.
    let (weight, beta) = unsafe { (parameter(&a.gamma, cols, a.zero_centered_gamma, 1.0), parameter(&a.beta, cols, false, 0.0)) };
    let x = Matrix::<T>::new(a.x.data, a.x.ld, a.x.cols);
    let stream = a.residual.zip(a.sum).map(|(r, s)| (Matrix::<T>::new(r.data, r.ld, r.cols), Matrix::<T>::new(s.data, s.ld, s.cols)));
    let transposed = Matrix::<u8>::new(a.y.data_t, a.y.ld_t, a.y.rows);
    let width = if a.y.data_t.is_null() { 0 } else { cols };
    let amax = threads.map(rows, grain(a.x.cols).next_multiple_of(if width > 0 { BLOCK } else { 1 }), |piece| {
        let mut amax = 0;
        let (mut row, mut more) = (vec![0f32; cols], vec![0f32; stream.as_ref().map_or(0, |_| cols)]);
        // Codes of as many rows as the transposed copy is written at a time.
        let mut codes = vec![0u8; BLOCK * width];
        for first in piece.clone().step_by(BLOCK) {
            let n = (piece.end - first).min(BLOCK);
            for r in 0..n {
                // SAFETY: the row exists, and nobody writes it.
                widen::<T>(unsafe { x.row(first + r) }, &mut row);
                if let Some((residual, sum)) = &stream {
                    // SAFETY: the row exists in both; only this piece writes that of the sum.
                    let (residual, sum) = unsafe { (residual.row(first + r), sum.row_mut(first + r)) };
                    widen::<T>(residual, &mut more);
                    add(&mut row, &more);
                    narrow::<T>(&row, sum);
                    widen::<T>(sum, &mut row);
                }
                let s = stats::<T>(norm, &row, a.eps);
                match norm {
                    Norm::Layer => normalise(&mut row, s.centre, s.rest, s.rsigma, &weight, &beta),
                    Norm::Rms => scale_row(&mut row, s.rsigma, &weight),
                }
                // SAFETY: null, or one element per row.
                unsafe {
                    // An infinite mean is one, although nothing can be centred on it.
                    put(a.mu, first + r, if s.centre.is_infinite() { s.centre } else { s.centre + s.rest });
                    put(a.rsigma, first + r, s.rsigma);
                }
                amax = store(first + r, &row, &mut codes[r * width..(r + 1) * width]).max(amax);
            }
            for col in (0..width).step_by(BLOCK) {
                let wide = (width - col).min(BLOCK);
                let mut block = [0; BLOCK * BLOCK];
                for r in 0..n {
                    block[r * BLOCK..][..wide].copy_from_slice(&codes[r * width + col..][..wide]);
                }
                // SAFETY: these elements of the transposed copy belong to this piece.
                unsafe { put_transposed(&block, n, wide, &transposed, col, first) }
            }
        }
        amax
    });
    amax.into_iter().max().unwrap_or(0)
}

/// # Safety
/// Null (then nothing happens), or memory of at least `i + 1` f32 whose element `i` nobody else touches.
unsafe fn put(p: Ptr, i: usize, v: f32) {
    if !p.is_null() {
        // SAFETY: by contract.
        unsafe { p.as_ptr::<f32>().add(i).write(f32_canonical(v)) }
    }
}

multiversion! {
    /// (sum of g * xhat, sum of g) with `g = dy * weight`.
    fn backward_sums<>(dy: &[f32], xhat: &[f32], weight: &[f32]) -> (f64, f64) {
        sums(dy, xhat, weight, |d, x, w| (d * w * x, d * w))
    }
}

multiversion! {
    /// `dx = (dy * weight - xhat * a - b) * rsigma`, in the place of `dy`.
    fn input_gradient<>(dy: &mut [f32], xhat: &[f32], weight: &[f32], a: f32, b: f32, rsigma: f32) -> () {
        for ((d, x), w) in dy.iter_mut().zip(xhat).zip(weight) {
            *d = (*d * *w - *x * a - b) * rsigma;
        }
    }
}

multiversion! {
    fn add_product<>(sum: &mut [f32], a: &[f32], b: &[f32]) -> () {
        for ((s, a), b) in sum.iter_mut().zip(a).zip(b) {
            *s += *a * *b;
        }
    }
}

multiversion! {
    fn add<>(sum: &mut [f32], a: &[f32]) -> () {
        for (s, a) in sum.iter_mut().zip(a) {
            *s += *a;
        }
    }
}

multiversion! {
    /// `x = (x - mu) * rsigma`
    fn standardise<>(x: &mut [f32], mu: f32, rsigma: f32) -> () {
        for x in x.iter_mut() {
            *x = (*x - mu) * rsigma;
        }
    }
}

/// Most pieces of a backward pass: each keeps a partial weight gradient.
const BACKWARD_PIECES: usize = 32;

/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn norm_bwd(threads: &Threads, norm: Norm, a: &NormBwdArgs) {
    let (rows, cols) = (a.x.rows as usize, a.x.cols as usize);
    let mut partials = Vec::new();
    if !a.x.is_empty() {
        // SAFETY: live by contract.
        let weight = unsafe { parameter(&a.gamma, cols, a.zero_centered_gamma, 1.0) };
        let lengths = (a.dgamma.map_or(0, |_| cols), a.dbeta.map_or(0, |_| cols));
        let grain = grain(a.x.cols).max(rows.div_ceil(BACKWARD_PIECES));
        partials = threads.map(rows, grain, |piece| {
            let (mut dgamma, mut dbeta) = (vec![0f32; lengths.0], vec![0f32; lengths.1]);
            let (mut dy, mut xhat) = (vec![0f32; cols], vec![0f32; cols]);
            let mut more = vec![0f32; a.dsum.map_or(0, |_| cols)];
            for row in piece {
                // SAFETY: the row exists in all tensors, and only this piece writes it.
                unsafe {
                    read_row(&a.dy, row, &mut dy);
                    read_row(&a.x, row, &mut xhat);
                    let rsigma = a.rsigma.as_ptr::<f32>().add(row).read();
                    let mu = if norm == Norm::Layer { a.mu.as_ptr::<f32>().add(row).read() } else { 0.0 };
                    standardise(&mut xhat, mu, rsigma);
                    add_product(&mut dgamma, &dy, &xhat);
                    add(&mut dbeta, &dy);
                    let (products, plain) = backward_sums(&dy, &xhat, &weight);
                    let mean = if norm == Norm::Layer { plain / cols as f64 } else { 0.0 };
                    input_gradient(&mut dy, &xhat, &weight, (products / cols as f64) as f32, mean as f32, rsigma);
                    if let Some(dsum) = &a.dsum {
                        read_row(dsum, row, &mut more);
                        add(&mut dy, &more);
                    }
                    write_row(&a.dx, row, &dy);
                }
            }
            (dgamma, dbeta)
        });
    }
    // SAFETY: live by contract.
    unsafe {
        parameter_gradient(&a.dgamma, partials.iter().map(|p| &p.0[..]));
        parameter_gradient(&a.dbeta, partials.iter().map(|p| &p.1[..]));
    }
}

/// # Safety
/// A live row.
unsafe fn read_row(t: &TensorView, row: usize, out: &mut [f32]) {
    // SAFETY: by contract.
    with_high!(t.dtype, T => widen::<T>(unsafe { Matrix::<T>::new(t.data, t.ld, t.cols).row(row) }, out));
}

/// # Safety
/// A live row that nobody else touches.
unsafe fn write_row(t: &TensorView, row: usize, v: &[f32]) {
    // SAFETY: by contract.
    with_high!(t.dtype, T => narrow::<T>(v, unsafe { Matrix::<T>::new(t.data, t.ld, t.cols).row_mut(row) }));
}

/// The sum of the pieces' partial gradients, in their order; 0 where there are none.
///
/// # Safety
/// The gradient's memory is live.
unsafe fn parameter_gradient<'a>(out: &Option<TensorView>, partials: impl Iterator<Item = &'a [f32]>) {
    let Some(t) = out.filter(|t| t.cols > 0) else { return };
    let mut sum = vec![0f64; t.cols as usize];
    for p in partials {
        sum.iter_mut().zip(p).for_each(|(s, v)| *s += f64::from(*v));
    }
    let sum: Vec<f32> = sum.into_iter().map(|v| v as f32).collect();
    // SAFETY: by contract; a single row has any stride.
    unsafe { write_row(&t.with_ld(t.cols), 0, &sum) }
}
