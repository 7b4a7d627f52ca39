//! Dropout on the CPU.

use super::{
    element::{with_high, Element},
    parallel::Threads,
    view::Matrix,
};
use crate::{
    numerics::random_words,
    ops::dropout::{DropoutJob, Keep},
    tensor::TensorView,
};

/// Most pieces of a backward pass: each keeps a partial bias gradient.
const PIECES: usize = 32;

/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn dropout(threads: &Threads, job: &DropoutJob) {
    // SAFETY: forwarded contract.
    with_high!(job.x.dtype, T => unsafe { typed::<T>(threads, job) })
}

/// # Safety
/// As [`dropout`].
unsafe fn typed<T: Element>(threads: &Threads, job: &DropoutJob) {
    let (rows, cols) = (job.x.rows as usize, job.x.cols as usize);
    let mut bias = vec![0f32; if job.bias.is_some() { cols } else { 0 }];
    if let Some(t) = &job.bias {
        // SAFETY: a live row.
        with_high!(t.dtype, B => bias.iter_mut().zip(unsafe { Matrix::<B>::new(t.data, t.cols, t.cols).row(0) }).for_each(|(o, v)| *o = v.load()));
    }
    // No slices: the output may be an input.
    // SAFETY: a row of a live matrix.
    let row_of = |t: &TensorView, row: usize| unsafe { t.data.as_ptr::<T>().add(row * t.ld as usize) };
    let mut grain = (65_536 / cols.max(1)).clamp(1, 4096);
    if job.dbias.is_some() {
        grain = grain.max(rows.div_ceil(PIECES));
    }
    let partials = threads.map(rows, grain, |piece| {
        let mut kept = vec![false; cols];
        let mut sums = vec![0f32; if job.dbias.is_some() { cols } else { 0 }];
        for row in piece {
            // SAFETY: rows of the job, of which this piece writes its own, each element after it was read.
            unsafe {
                which(job, row, &mut kept);
                let (from, to) = (row_of(&job.x, row).cast_const(), row_of(&job.y, row));
                let added = job.residual.as_ref().map(|t| row_of(t, row).cast_const());
                for (c, keep) in kept.iter().enumerate() {
                    let rest = added.map(|r| r.add(c).read().load());
                    let mut v = 0.0;
                    if *keep {
                        v = from.add(c).read().load();
                        if let Some(b) = bias.get(c) {
                            v += b;
                        }
                        v *= job.scale;
                    }
                    if let Some(rest) = rest {
                        v += rest;
                    }
                    if let Some(s) = sums.get_mut(c) {
                        *s += v;
                    }
                    to.add(c).write(T::store(v));
                }
                put_mask(job, row, &kept);
            }
        }
        sums
    });
    let Some(b) = &job.dbias else { return };
    let mut total = vec![0f64; cols];
    for sums in &partials {
        total.iter_mut().zip(sums).for_each(|(t, s)| *t += f64::from(*s));
    }
    with_high!(b.dtype, B => {
        // SAFETY: a live row that nobody else touches.
        let out = unsafe { Matrix::<B>::new(b.ptr, job.x.cols, job.x.cols).row_mut(0) };
        for (o, t) in out.iter_mut().zip(&total) {
            *o = B::store(if b.accumulate { o.load() + *t as f32 } else { *t as f32 });
        }
    });
}

/// Which elements of a row are kept.
///
/// # Safety
/// A row of the job.
unsafe fn which(job: &DropoutJob, row: usize, kept: &mut [bool]) {
    match job.keep {
        Keep::All => kept.fill(true),
        Keep::None => kept.fill(false),
        Keep::Mask => {
            // SAFETY: a row of the mask has a bit for each element.
            let bits = unsafe { Matrix::<u8>::new(job.mask, job.mask_ld, kept.len().div_ceil(8) as i64).row(row) };
            kept.iter_mut().enumerate().for_each(|(c, k)| *k = bits[c / 8] >> (c % 8) & 1 == 1);
        }
        Keep::Draw => {
            // SAFETY: seed and offset are live.
            let [seed, offset] = unsafe { job.random.rng.as_ptr::<[u64; 2]>().read() };
            let first = row as u64 * kept.len() as u64;
            let mut words = [0; 4];
            for (c, k) in kept.iter_mut().enumerate() {
                let i = first + c as u64;
                if c == 0 || i % 4 == 0 {
                    words = random_words(seed, offset, job.random.stream, i / 4);
                }
                *k = words[(i % 4) as usize] >= job.threshold;
            }
        }
    }
}

/// Writes a row of the mask, forward and where there is one.
///
/// # Safety
/// A row of the job that nobody else touches.
unsafe fn put_mask(job: &DropoutJob, row: usize, kept: &[bool]) {
    if job.backward || job.mask.is_null() {
        return;
    }
    // SAFETY: by contract.
    let bits = unsafe { Matrix::<u8>::new(job.mask, job.mask_ld, kept.len().div_ceil(8) as i64).row_mut(row) };
    for (bits, kept) in bits.iter_mut().zip(kept.chunks(8)) {
        *bits = kept.iter().enumerate().map(|(j, k)| u8::from(*k) << j).sum();
    }
}
