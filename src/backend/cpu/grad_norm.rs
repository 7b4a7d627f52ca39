//! The norm of a list of gradients on the CPU, in f64: no f32 squares to a number outside its range.

use super::{
    element::{with_high, Element},
    parallel::Threads,
    simd::multiversion,
    view::{Matrix, Slot},
};
use crate::{
    ops::{
        grad_norm::{GradEntry, GradNormArgs, GradScaleArgs, CHUNK},
        list::TensorList,
    },
    tensor::Ptr,
};

multiversion! {
    /// Sum of squares: eight sums side by side.
    fn squares<T: Element>(x: &[T]) -> f64 {
        let mut sums = [0.0f64; 8];
        for part in x.chunks(8) {
            for (s, v) in sums.iter_mut().zip(part) {
                let v = f64::from(v.load());
                *s += v * v;
            }
        }
        sums.iter().sum()
    }
}

multiversion! {
    fn scale_run<T: Element>(x: &mut [T], factor: f32) -> () {
        for v in x {
            *v = T::store(v.load() * factor);
        }
    }
}

/// Calls `f` with (entry, gradient, first element, elements) of every block; results in order.
///
/// # Safety
/// The table is written and live.
unsafe fn for_blocks<R: Send>(
    threads: &Threads,
    list: &TensorList,
    f: impl Fn(&GradEntry, Ptr, usize, usize) -> R + Send + Sync,
) -> Vec<R> {
    let t = list.table();
    // SAFETY: by contract.
    let (entries, gradients) = unsafe {
        let n = list.count as usize;
        (std::slice::from_raw_parts(t.entries.as_ptr::<GradEntry>(), n), std::slice::from_raw_parts(t.pointers.as_ptr::<u64>(), n))
    };
    threads.map(list.blocks[0] as usize, 1, |block| {
        // Tensors without blocks share their first block with the next one, which comes last.
        let i = entries.partition_point(|e| e.first as usize <= block.start) - 1;
        let e = &entries[i];
        let per = CHUNK as usize / e.dtype().size();
        let at = (block.start - e.first as usize) * per;
        f(e, Ptr(gradients[i]), at, (e.count as usize - at).min(per))
    })
}

/// # Safety
/// Arguments validated, pointers live, the table written.
pub(super) unsafe fn grad_norm(threads: &Threads, a: &GradNormArgs) {
    // SAFETY: forwarded contract, here and below.
    unsafe {
        let sums = for_blocks(
            threads,
            &a.list,
            |e, data, at, n| with_high!(e.dtype(), T => squares::<T>(Matrix::<T>::new(data, 0, 0).part(0, at, n))),
        );
        let total: f64 = sums.iter().sum();
        let norm = total.sqrt() / f64::from(Slot(a.grad_scale).read_or(1.0));
        let clip = a.max_norm / (norm + 1e-6);
        Slot(a.norm).write(norm as f32);
        Slot(a.clip).write(if clip > 1.0 { 1.0 } else { clip as f32 });
        Slot(a.found_inf).write(if total.is_finite() { 0.0 } else { 1.0 });
    }
}

/// # Safety
/// Arguments validated, pointers live, the table written.
pub(super) unsafe fn grad_scale(threads: &Threads, a: &GradScaleArgs) {
    // SAFETY: forwarded contract, here and below.
    unsafe {
        let factor = Slot(a.factor).read_or(1.0);
        if factor == 1.0 {
            return;
        }
        for_blocks(
            threads,
            &a.list,
            |e, data, at, n| with_high!(e.dtype(), T => scale_run::<T>(Matrix::<T>::new(data, 0, 0).part_mut(0, at, n), factor)),
        );
    }
}
