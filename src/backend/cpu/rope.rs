//! Rotary position embedding on the CPU.

use super::{
    element::{with_high, Element},
    parallel::Threads,
};
use crate::{
    ops::rope::{Heads, RopeJob, RopeKind},
    tensor::Ptr,
};

/// Tokens in a piece: about 64 Ki elements.
fn grain(job: &RopeJob) -> usize {
    (65_536 / job.heads.saturating_mul(job.head_dim).max(1)).clamp(1, 4096) as usize
}

/// # Safety
/// Arguments validated, pointers live; no element is empty.
pub(super) unsafe fn rope(threads: &Threads, job: &RopeJob) {
    // SAFETY: forwarded contract.
    with_high!(job.dtype, T => unsafe { typed::<T>(threads, job) })
}

/// # Safety
/// As [`rope`].
unsafe fn typed<T: Element>(threads: &Threads, job: &RopeJob) {
    let half = (job.rotation.rotary_dim / 2) as usize;
    // Which sides hold q, k and v as tensors of their own.
    let (x_parts, y_parts) = (job.kind == RopeKind::Merge, job.kind == RopeKind::Split);
    threads.map((job.seq * job.batch) as usize, grain(job), |piece| {
        let (mut cos, mut sin) = (vec![0f32; half], vec![0f32; half]);
        for token in piece {
            let (seq, batch) = (token as i64 / job.batch, token as i64 % job.batch);
            // SAFETY: a token of the job; its elements are written by this piece alone.
            unsafe {
                let rotated = angles(job, seq, batch, &mut cos, &mut sin);
                for head in 0..job.heads {
                    let (part, number) = job.part(head);
                    let from = head_of::<T>(&job.x, if x_parts { (part, number) } else { (0, head) }, seq, batch);
                    let to = head_of::<T>(&job.y, if y_parts { (part, number) } else { (0, head) }, seq, batch);
                    let turn = if rotated && part < 2 { half } else { 0 };
                    rotate(job, from, to, &cos[..turn], &sin[..turn]);
                }
            }
        }
    });
}

/// Where a head lies: in which of the tensors, and its number there.
///
/// # Safety
/// A head of the job.
unsafe fn head_of<T>(side: &[Heads; 3], (part, number): (usize, i64), seq: i64, batch: i64) -> *mut T {
    let h = &side[part];
    // SAFETY: an element of the tensor by contract.
    unsafe { h.data.as_ptr::<T>().offset((seq * h.seq_stride + batch * h.batch_stride + number * h.head_stride) as isize) }
}

/// One head: pairs by the table's angles, everything behind them as it is. `from` may be `to`.
///
/// # Safety
/// Two heads of the job; nobody else touches the second.
unsafe fn rotate<T: Element>(job: &RopeJob, from: *const T, to: *mut T, cos: &[f32], sin: &[f32]) {
    let (half, interleaved) = (cos.len(), job.rotation.interleaved);
    for (i, (c, s)) in cos.iter().zip(sin).enumerate() {
        let (first, second) = if interleaved { (2 * i, 2 * i + 1) } else { (i, i + half) };
        // SAFETY: elements of the heads.
        unsafe {
            let (a, b) = (from.add(first).read().load(), from.add(second).read().load());
            to.add(first).write(T::store(a * c - b * s));
            to.add(second).write(T::store(b * c + a * s));
        }
    }
    // SAFETY: as above; where the heads are the same this moves nothing.
    unsafe { std::ptr::copy(from.add(2 * half), to.add(2 * half), job.head_dim as usize - 2 * half) }
}

/// # Safety
/// A live array of i32 that reaches to `i`.
unsafe fn word(p: Ptr, i: i64) -> i64 {
    // SAFETY: by contract.
    i64::from(unsafe { p.as_ptr::<i32>().offset(i as isize).read() })
}

/// Fills in cosines and sines for a token (those of the opposite angle backward); whether it is rotated at all.
///
/// # Safety
/// A token of the job.
unsafe fn angles(job: &RopeJob, seq: i64, batch: i64, cos: &mut [f32], sin: &mut [f32]) -> bool {
    let (p, r) = (&job.places, &job.rotation);
    if cos.is_empty() {
        return false;
    }
    let (mut place, mut sequence) = (seq, batch);
    // SAFETY: arrays of the lengths the checks asked for.
    unsafe {
        if !p.cu_seqlens.is_null() {
            let (mut low, mut high) = (0, p.sequences);
            if seq < word(p.cu_seqlens, low) || seq >= word(p.cu_seqlens, high) {
                return false;
            }
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                if word(p.cu_seqlens, middle) <= seq {
                    low = middle;
                } else {
                    high = middle;
                }
            }
            (place, sequence) = (seq - word(p.cu_seqlens, low), low);
        }
        if !p.positions.is_null() {
            let i = seq * p.positions_seq_stride + batch * p.positions_batch_stride;
            place = if p.positions_i64 { p.positions.as_ptr::<i64>().offset(i as isize).read() } else { word(p.positions, i) };
        }
        if !p.starts.is_null() {
            place = place.wrapping_add(word(p.starts, sequence));
        }
        let position = place.wrapping_add(p.start);
        if position < 0 || position >= r.table_rows {
            cos.fill(f32::NAN);
            sin.fill(f32::NAN);
            return true;
        }
        let row = (position * r.table_ld) as usize;
        cos.copy_from_slice(std::slice::from_raw_parts(r.cos.as_ptr::<f32>().add(row), cos.len()));
        sin.copy_from_slice(std::slice::from_raw_parts(r.sin.as_ptr::<f32>().add(row), sin.len()));
    }
    if job.backward {
        sin.iter_mut().for_each(|s| *s = -*s);
    }
    true
}
