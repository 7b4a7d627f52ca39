//! Cross-entropy on the CPU: a token at a time, its logits widened to f32 once.

use super::{
    element::{with_high, Element},
    norm::grain,
    parallel::Threads,
    simd::multiversion,
    softmax::{base_of, exponentials, largest},
    view::{Matrix, Slot},
};
use crate::{
    numerics::f32_canonical,
    ops::cross_entropy::{CrossEntropyCombineArgs, Job, Losses, Reduction, ScaleRowsArgs, TargetType, Targets},
    tensor::Ptr,
};

/// Numbers of a token: the largest logit, the sum of `exp(x - largest)`, the target's logit, the sum of logits.
#[derive(Clone, Copy)]
struct Part {
    most: f32,
    sum: f32,
    logit: f32,
    logits: f32,
}

multiversion! {
    fn widen<T: Element>(x: &[T], out: &mut [f32]) -> () {
        for (o, v) in out.iter_mut().zip(x) {
            *o = v.load();
        }
    }
}

multiversion! {
    fn total<>(v: &[f32]) -> f64 {
        let mut total = 0f64;
        for run in v.chunks(1024) {
            let mut sums = [0f32; 16];
            let mut chunks = run.chunks_exact(16);
            for c in &mut chunks {
                for i in 0..16 {
                    sums[i] += c[i];
                }
            }
            total += sums.iter().chain(chunks.remainder()).map(|s| f64::from(*s)).sum::<f64>();
        }
        total
    }
}

multiversion! {
    /// `e * scale - even`
    fn gradient<T: Element>(e: &[f32], scale: f32, even: f32, out: &mut [T]) -> () {
        for (o, e) in out.iter_mut().zip(e) {
            *o = T::store(*e * scale - even);
        }
    }
}

/// # Safety
/// A live target.
unsafe fn target(t: &Targets, i: usize) -> i64 {
    // SAFETY: by contract.
    unsafe {
        match t.dtype {
            TargetType::I64 => t.data.as_ptr::<i64>().add(i).read(),
            TargetType::I32 => i64::from(t.data.as_ptr::<i32>().add(i).read()),
        }
    }
}

/// Targets that count.
///
/// # Safety
/// Live targets.
unsafe fn count(t: &Targets, tokens: usize) -> f64 {
    // SAFETY: by contract.
    (0..tokens).filter(|i| unsafe { target(t, *i) } != t.ignore_index).count() as f64
}

/// The loss of a token, and its logsumexp.
fn finish(p: &Part, smoothing: f32, vocabulary: i64) -> (f32, f32) {
    let base = f64::from(base_of(p.most));
    let log_sum = libm::log(f64::from(p.sum));
    let smoothing = f64::from(smoothing);
    let mut loss = log_sum - (1.0 - smoothing) * (f64::from(p.logit) - base);
    if smoothing != 0.0 {
        loss -= smoothing * (f64::from(p.logits) / vocabulary as f64 - base);
    }
    (loss as f32, (base + log_sum) as f32)
}

/// # Safety
/// Null (then nothing happens), or memory of at least `i + 1` f32 whose element `i` nobody else touches.
unsafe fn put(p: Ptr, i: usize, v: f32) {
    if !p.is_null() {
        // SAFETY: by contract.
        unsafe { p.as_ptr::<f32>().add(i).write(f32_canonical(v)) }
    }
}

/// Writes the results of a token, and returns its loss.
///
/// # Safety
/// The results' memory is live.
unsafe fn put_results(losses: &Losses, t: &Targets, i: usize, vocabulary: i64, p: &Part) -> f32 {
    let (loss, lse) = finish(p, t.label_smoothing, vocabulary);
    // SAFETY: by contract.
    unsafe {
        let to = target(t, i);
        let loss = match to {
            to if to == t.ignore_index => 0.0,
            to if (0..vocabulary).contains(&to) => loss,
            _ => f32::NAN,
        };
        put(losses.logsumexp, i, lse);
        put(losses.loss, i, loss);
        loss
    }
}

/// The reduced loss.
///
/// # Safety
/// Its memory and the targets are live.
unsafe fn put_total(losses: &Losses, t: &Targets, tokens: usize, each: &[f32]) {
    let sum: f64 = each.iter().map(|v| f64::from(*v)).sum();
    // SAFETY: by contract.
    unsafe {
        let total = if t.reduction == Reduction::Mean { sum / count(t, tokens) } else { sum };
        Slot(losses.total).write(f32_canonical(total as f32));
    }
}

/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn cross_entropy(threads: &Threads, a: &Job) {
    // SAFETY: forwarded contract.
    with_high!(a.logits.dtype, T => unsafe { rows::<T>(threads, a) })
}

/// # Safety
/// As [`cross_entropy`].
unsafe fn rows<T: Element>(threads: &Threads, a: &Job) {
    let (tokens, cols, t) = (a.logits.rows as usize, a.logits.cols as usize, &a.targets);
    let x = Matrix::<T>::new(a.logits.data, a.logits.ld, a.logits.cols);
    // SAFETY: live by contract.
    let divisor = if a.needs_count() { unsafe { count(t, tokens) as f32 } } else { 1.0 };
    let losses = threads.map(tokens, grain(a.logits.cols), |piece| {
        let mut v = vec![0f32; cols];
        let mut losses = Vec::with_capacity(piece.len());
        for row in piece {
            // SAFETY: the row exists in all arrays and is written by this piece alone, after it was read: the gradient may go there.
            unsafe {
                let to = target(t, row);
                let (ignored, at) =
                    (to == t.ignore_index, to.checked_sub(a.start).and_then(|c| usize::try_from(c).ok()).filter(|c| *c < cols));
                let bad = !(0..a.vocabulary).contains(&to);
                let at = at.filter(|_| !ignored && !bad);
                // Without columns there may be no memory.
                if cols > 0 {
                    widen::<T>(x.part(row, 0, cols), &mut v);
                }
                let p = match a.combined.is_null() {
                    false => {
                        let c = std::slice::from_raw_parts(a.combined.as_ptr::<f32>().add(4 * row), 4);
                        exponentials(&mut v, base_of(c[0]), std::f32::consts::LOG2_E);
                        Part { most: c[0], sum: c[1], logit: c[2], logits: c[3] }
                    }
                    true => {
                        let most = largest(&v);
                        let logits = if t.label_smoothing == 0.0 { 0.0 } else { total(&v) as f32 };
                        let logit = at.map_or(0.0, |c| v[c]);
                        let sum = exponentials(&mut v, base_of(most), std::f32::consts::LOG2_E) as f32;
                        let p = Part { most, sum, logit, logits };
                        if !a.partial.is_null() {
                            for (k, n) in [p.most, p.sum, p.logit, p.logits].into_iter().enumerate() {
                                put(a.partial, 4 * row + k, n);
                            }
                        }
                        losses.push(put_results(&a.losses, t, row, a.vocabulary, &p));
                        p
                    }
                };
                let Some(g) = a.gradient.as_ref().filter(|_| cols > 0) else { continue };
                let out = Matrix::<T>::new(g.dlogits.data, g.dlogits.ld, g.dlogits.cols).row_mut(row);
                let each = if g.dloss.is_null() { 1.0 } else { g.dloss.as_ptr::<f32>().add(row * g.dloss_stride as usize).read() };
                let factor = each / divisor;
                if ignored {
                    out.fill(T::store(0.0));
                } else if bad {
                    out.fill(T::store(f32::NAN));
                } else {
                    let even = if t.label_smoothing == 0.0 { 0.0 } else { t.label_smoothing * factor / a.vocabulary as f32 };
                    let scale = factor * (1.0 / p.sum);
                    gradient::<T>(&v, scale, even, out);
                    if let Some(c) = at {
                        out[c] = T::store((v[c] * scale - even) - (1.0 - t.label_smoothing) * factor);
                    }
                }
            }
        }
        losses
    });
    if !a.losses.total.is_null() {
        // SAFETY: live by contract.
        unsafe { put_total(&a.losses, t, tokens, &losses.concat()) }
    }
}

/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn combine(a: &CrossEntropyCombineArgs) {
    let tokens = a.tokens as usize;
    let mut losses = Vec::with_capacity(tokens);
    for i in 0..tokens {
        // SAFETY: live by contract.
        unsafe {
            let part = |r: usize| {
                let p = a.partials.as_ptr::<f32>().add(r * a.rank_stride as usize + 4 * i);
                Part { most: p.read(), sum: p.add(1).read(), logit: p.add(2).read(), logits: p.add(3).read() }
            };
            let parts: Vec<Part> = (0..a.ranks as usize).map(part).collect();
            let most = largest(&parts.iter().map(|p| p.most).collect::<Vec<_>>());
            let mut all = Part { most, sum: 0.0, logit: 0.0, logits: 0.0 };
            for p in &parts {
                let mut e = [p.most];
                exponentials(&mut e, base_of(most), std::f32::consts::LOG2_E);
                all.sum += p.sum * e[0];
                all.logit += p.logit;
                all.logits += p.logits;
            }
            for (k, n) in [all.most, all.sum, all.logit, all.logits].into_iter().enumerate() {
                put(a.combined, 4 * i + k, n);
            }
            losses.push(put_results(&a.losses, &a.targets, i, a.vocabulary, &all));
        }
    }
    if !a.losses.total.is_null() {
        // SAFETY: live by contract.
        unsafe { put_total(&a.losses, &a.targets, tokens, &losses) }
    }
}

multiversion! {
    fn scale_row<T: Element>(x: &mut [T], scale: f32) -> () {
        for v in x.iter_mut() {
            *v = T::store(v.load() * scale);
        }
    }
}

/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn scale_rows(threads: &Threads, a: &ScaleRowsArgs) {
    if a.x.is_empty() {
        return;
    }
    with_high!(a.x.dtype, T => {
        let x = Matrix::<T>::new(a.x.data, a.x.ld, a.x.cols);
        threads.map(a.x.rows as usize, grain(a.x.cols), |piece| {
            for row in piece {
                // SAFETY: the row exists and is this piece's alone.
                unsafe {
                    let scale = a.scale.as_ptr::<f32>().add(row * a.stride as usize).read();
                    if scale != 1.0 {
                        scale_row::<T>(x.row_mut(row), scale);
                    }
                }
            }
        });
    });
}
