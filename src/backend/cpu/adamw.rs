//! AdamW on the CPU: the blocks of `kernels/adamw.cu`, with the same operations in the same order, so with the same bits.

use half::{bf16, f16};

use super::{
    element::{with_fp8, Element},
    parallel::Threads,
    simd::multiversion,
    transpose::{put_transposed, BLOCK},
    view::{Matrix, Slot},
};
use crate::{
    numerics::{amax_bits, Fp8Format},
    ops::adamw::{AdamwArgs, AdamwEntry, CHUNK, TILE},
    tensor::{DType, Ptr},
};

/// Elements worked on at a time.
const RUN: usize = 128;

/// What all elements share.
#[derive(Clone, Copy)]
struct Step {
    beta1: f32,
    beta1_rest: f32,
    beta2: f32,
    beta2_rest: f32,
    eps: f32,
    /// lr / (1 - beta1^t)
    size: f32,
    /// 1 / sqrt(1 - beta2^t)
    root: f32,
    /// Decoupled: lr * weight_decay. L2: weight_decay.
    decay: f32,
    /// What gradients are multiplied by.
    factor: f32,
}

/// beta^n by squaring, the same multiplications everywhere.
fn power(mut beta: f64, mut n: u32) -> f64 {
    let mut r = 1.0;
    while n != 0 {
        if n & 1 != 0 {
            r *= beta;
        }
        beta *= beta;
        n >>= 1;
    }
    r
}

impl Step {
    fn new(a: &AdamwArgs, taken: f32, lr: f64, factor: f32) -> Self {
        let n = (taken as u32).min(0x7FFF_FFFF) + 1;
        let (bias1, bias2) = match a.bias_correction {
            true => (1.0 - power(a.beta1, n), 1.0 - power(a.beta2, n)),
            false => (1.0, 1.0),
        };
        Self {
            beta1: a.beta1 as f32,
            beta1_rest: (1.0 - a.beta1) as f32,
            beta2: a.beta2 as f32,
            beta2_rest: (1.0 - a.beta2) as f32,
            eps: a.eps as f32,
            size: (lr / bias1) as f32,
            root: (1.0 / bias2.sqrt()) as f32,
            decay: if a.decoupled { (lr * a.weight_decay) as f32 } else { a.weight_decay as f32 },
            factor,
        }
    }
}

multiversion! {
    /// The update of a run of elements.
    fn update<>(s: &Step, decoupled: bool, w: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) -> () {
        for (((w, g), m), v) in w.iter_mut().zip(g).zip(m).zip(v) {
            let mut g = g * s.factor;
            if !decoupled {
                g += s.decay * *w;
            }
            *m = s.beta1 * *m + s.beta1_rest * g;
            *v = s.beta2 * *v + (s.beta2_rest * g) * g;
            let mut change = s.size * (*m / (v.sqrt() * s.root + s.eps));
            if decoupled {
                change += s.decay * *w;
            }
            *w -= change;
        }
    }
}

/// A stretch of elements of a type known at run time.
#[derive(Clone, Copy)]
struct Stretch {
    data: Ptr,
    dtype: DType,
}

impl Stretch {
    /// # Safety
    /// Elements `at..at + out.len()` are live.
    unsafe fn load(self, at: usize, out: &mut [f32]) {
        // SAFETY: by contract, here and below.
        unsafe {
            match self.dtype {
                DType::F32 => load::<f32>(self.data, at, out),
                DType::F16 => load::<f16>(self.data, at, out),
                _ => load::<bf16>(self.data, at, out),
            }
        }
    }

    /// Writes, and leaves in `values` what was written.
    ///
    /// # Safety
    /// As [`Stretch::load`], and nobody else touches them.
    unsafe fn store(self, at: usize, values: &mut [f32]) {
        // SAFETY: by contract, here and below.
        unsafe {
            match self.dtype {
                DType::F32 => store::<f32>(self.data, at, values),
                DType::F16 => store::<f16>(self.data, at, values),
                _ => store::<bf16>(self.data, at, values),
            }
        }
    }
}

/// # Safety
/// As [`Stretch::load`].
unsafe fn load<T: Element>(data: Ptr, at: usize, out: &mut [f32]) {
    // SAFETY: by contract.
    let from = unsafe { Matrix::<T>::new(data, 0, 0).part(0, at, out.len()) };
    for (o, v) in out.iter_mut().zip(from) {
        *o = v.load();
    }
}

/// # Safety
/// As [`Stretch::store`].
unsafe fn store<T: Element>(data: Ptr, at: usize, values: &mut [f32]) {
    // SAFETY: by contract.
    let to = unsafe { Matrix::<T>::new(data, 0, 0).part_mut(0, at, values.len()) };
    for (t, v) in to.iter_mut().zip(values) {
        *t = T::store(*v);
        *v = t.load();
    }
}

/// One tensor's memory, and the step.
struct Job<'a> {
    e: &'a AdamwEntry,
    gradient: Stretch,
    step: &'a Step,
    decoupled: bool,
}

impl Job<'_> {
    /// Updates elements `at..at + n`, n at most [`RUN`]; leaves the new weights, as written, in `w`.
    ///
    /// # Safety
    /// They are live, and nobody else touches them.
    unsafe fn run(&self, at: usize, n: usize, w: &mut [f32; RUN]) {
        let e = self.e;
        let weight = Stretch { data: e.weight, dtype: e.weight_type() };
        let master = Stretch { data: e.master, dtype: DType::F32 };
        let [exp_avg, exp_avg_sq] = [e.exp_avg, e.exp_avg_sq].map(|data| Stretch { data, dtype: e.moment_type() });
        let (mut g, mut m, mut v) = ([0.0; RUN], [0.0; RUN], [0.0; RUN]);
        let (w, g, m, v) = (&mut w[..n], &mut g[..n], &mut m[..n], &mut v[..n]);
        // SAFETY: by contract.
        unsafe {
            if e.master.is_null() { weight } else { master }.load(at, w);
            self.gradient.load(at, g);
            exp_avg.load(at, m);
            exp_avg_sq.load(at, v);
            update(self.step, self.decoupled, w, g, m, v);
            exp_avg.store(at, m);
            exp_avg_sq.store(at, v);
            if !e.master.is_null() {
                master.store(at, w);
            }
            weight.store(at, w);
        }
    }

    /// Block `block` of a tensor that is one stretch.
    ///
    /// # Safety
    /// Live memory that nobody else touches.
    unsafe fn chunk(&self, block: usize) {
        let mut w = [0.0; RUN];
        let end = ((block + 1) * CHUNK as usize).min(self.e.cols as usize);
        for at in (block * CHUNK as usize..end).step_by(RUN) {
            // SAFETY: by contract.
            unsafe { self.run(at, (end - at).min(RUN), &mut w) }
        }
    }

    /// Block `block` of a tensor with FP8 codes; returns the amax of the new weights as bits.
    ///
    /// # Safety
    /// Live memory that nobody else touches.
    unsafe fn tile<F: Fp8Format>(&self, block: usize, scale: f32) -> u32 {
        let (e, across) = (self.e, self.e.col_tiles as usize);
        let (rows, cols, size) = (e.rows as usize, e.cols as usize, TILE as usize);
        let (r0, c0) = (block / across * size, block % across * size);
        let (height, width) = (rows.saturating_sub(r0).min(size), cols.saturating_sub(c0).min(size));
        let (q, qt) = (Matrix::<u8>::new(e.q, e.ldq, e.cols), Matrix::<u8>::new(e.qt, e.ldqt, e.rows));
        let (mut amax, mut w) = (0, [0.0; RUN]);
        let mut squares = [[0; BLOCK * BLOCK]; 2];
        for r in 0..height {
            // SAFETY: by contract; a row of a tile is one run.
            unsafe { self.run((r0 + r) * cols + c0, width, &mut w) };
            let mut codes = [0; RUN];
            for (code, v) in codes[..width].iter_mut().zip(&w) {
                amax = amax_bits(*v).max(amax);
                *code = F::encode(*v * scale);
            }
            if !e.q.is_null() {
                // SAFETY: only this block writes these codes.
                unsafe { q.part_mut(r0 + r, c0, width) }.copy_from_slice(&codes[..width]);
            }
            if e.qt.is_null() {
                continue;
            }
            for (square, part) in squares.iter_mut().zip(codes.chunks_exact(BLOCK)) {
                square[r % BLOCK * BLOCK..][..BLOCK].copy_from_slice(part);
            }
            if (r + 1) % BLOCK == 0 || r + 1 == height {
                let top = r / BLOCK * BLOCK;
                for (i, square) in squares.iter().enumerate().filter(|(i, _)| i * BLOCK < width) {
                    let left = i * BLOCK;
                    // SAFETY: only this block writes these codes.
                    unsafe { put_transposed(square, r + 1 - top, (width - left).min(BLOCK), &qt, c0 + left, r0 + top) }
                }
            }
        }
        amax
    }
}

const _: () = assert!(RUN == TILE as usize && RUN == 2 * BLOCK);

/// # Safety
/// Arguments validated, pointers live, the table written.
pub(super) unsafe fn adamw(threads: &Threads, a: &AdamwArgs) {
    let t = a.list.table();
    // SAFETY: forwarded contract, here and below.
    unsafe {
        if Slot(a.found_inf).read_or(0.0) != 0.0 {
            return;
        }
        let entries = std::slice::from_raw_parts(t.entries.as_ptr::<AdamwEntry>(), a.list.count as usize);
        let gradients = std::slice::from_raw_parts(t.pointers.as_ptr::<u64>(), a.list.count as usize);
        let taken = Slot(a.step).read_or(0.0);
        let lr = if a.lr_ptr.is_null() { a.lr } else { f64::from(Slot(a.lr_ptr).read_or(0.0)) };
        let factor = Slot(a.clip).read_or(1.0) * (1.0 / Slot(a.grad_scale).read_or(1.0));
        let step = Step::new(a, taken, lr, factor);
        let amaxes = threads.map(a.list.blocks[0] as usize, 8, |blocks| {
            let mut found = Vec::new();
            for block in blocks {
                // Tensors without blocks share their first block with the next one, which comes last.
                let i = entries.partition_point(|e| e.first as usize <= block) - 1;
                let e = &entries[i];
                let gradient = Stretch { data: Ptr(gradients[i]), dtype: e.gradient_type() };
                let job = Job { e, gradient, step: &step, decoupled: a.decoupled };
                let block = block - e.first as usize;
                if !e.tiled() {
                    job.chunk(block);
                    continue;
                }
                let scale = Slot(e.scale).read_or(1.0);
                found.push((i, with_fp8!(e.fp8_type(), F => job.tile::<F>(block, scale))));
            }
            found
        });
        for (i, amax) in amaxes.into_iter().flatten() {
            Slot(entries[i].amax).record(amax);
        }
        for e in entries.iter().filter(|e| e.tiled()) {
            Slot(e.scale_inv).write(1.0 / Slot(e.scale).read_or(1.0));
        }
        Slot(a.step).write(taken + 1.0);
    }
}
