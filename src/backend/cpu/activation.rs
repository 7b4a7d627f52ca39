//! Activations on the CPU, in runs of one row: read as f32, apply, write. Each step is its own vectorised loop over a buffer in the
//! first-level cache, so that types, functions and outputs combine without a loop for every combination.

use super::{
    cast::encode_run,
    element::{with_fp8, with_high, Element},
    functions::{Function, Gelu, GeluErf, Qgelu, Relu, Silu, Srelu},
    parallel::{Grid, Threads},
    simd::multiversion,
    transpose::{put_transposed, BLOCK},
    view::{Matrix, Slot},
};
use crate::{
    numerics::amax_bits,
    ops::activation::{Activation, ActivationArgs, ActivationBwdArgs},
    tensor::TensorView,
};

/// Elements of a run.
const RUN: usize = 256;

multiversion! {
    fn load_run<T: Element>(x: &[T], out: &mut [f32]) -> () {
        for (o, v) in out.iter_mut().zip(x) {
            *o = v.load();
        }
    }
}

multiversion! {
    /// Rounds a run once and returns the largest bit pattern of |v|.
    fn store_run<T: Element>(v: &[f32], out: &mut [T]) -> u32 {
        let mut amax = 0;
        for (o, v) in out.iter_mut().zip(v) {
            amax = amax_bits(*v).max(amax);
            *o = T::store(*v);
        }
        amax
    }
}

multiversion! {
    fn value_run<F: Function>(x: &[f32], value: &mut [f32]) -> () {
        for (v, x) in value.iter_mut().zip(x) {
            *v = F::value(*x);
        }
    }
}

multiversion! {
    fn slope_run<F: Function>(x: &[f32], value: &mut [f32], slope: &mut [f32]) -> () {
        for ((v, s), x) in value.iter_mut().zip(slope).zip(x) {
            (*v, *s) = F::value_and_slope(*x);
        }
    }
}

/// `x[i] *= y[i]`
fn multiply(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x *= y;
    }
}

/// `x[i] += y[i]`
fn add(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

type Value = fn(&[f32], &mut [f32]);
type Slope = fn(&[f32], &mut [f32], &mut [f32]);

fn functions(kind: Activation) -> (Value, Slope) {
    match kind.function() {
        Activation::Gelu => (value_run::<Gelu>, slope_run::<Gelu>),
        Activation::GeluErf => (value_run::<GeluErf>, slope_run::<GeluErf>),
        Activation::Silu => (value_run::<Silu>, slope_run::<Silu>),
        Activation::Relu => (value_run::<Relu>, slope_run::<Relu>),
        Activation::Qgelu => (value_run::<Qgelu>, slope_run::<Qgelu>),
        _ => (value_run::<Srelu>, slope_run::<Srelu>),
    }
}

/// Reads part of a row as f32.
///
/// # Safety
/// A live matrix that holds those elements.
unsafe fn read(x: &TensorView, row: usize, col: usize, out: &mut [f32]) {
    with_high!(x.dtype, T => {
        // SAFETY: by contract.
        load_run::<T>(unsafe { Matrix::<T>::new(x.data, x.ld, x.cols).part(row, col, out.len()) }, out)
    })
}

/// Where a piece puts its results.
struct Output<'a> {
    y: &'a TensorView,
    scale: f32,
    /// Codes of the block under way, for the transposed copy: one block per half.
    blocks: [Box<[u8; BLOCK * BLOCK]>; 2],
    amax: u32,
}

impl<'a> Output<'a> {
    fn new(y: &'a TensorView, scale: f32) -> Self {
        Self { y, scale, blocks: [Box::new([0; BLOCK * BLOCK]), Box::new([0; BLOCK * BLOCK])], amax: 0 }
    }

    /// Writes a run at (`row`, `col`); `half` and `block_row` say where its codes wait for [`Output::transpose`].
    ///
    /// # Safety
    /// The elements are live and nobody else touches them; for a transposed copy at most a block wide.
    unsafe fn put(&mut self, v: &[f32], row: usize, col: usize, half: usize, block_row: usize) {
        let y = self.y;
        let amax = if y.dtype.is_fp8() {
            let out = Matrix::<u8>::new(y.data, y.ld, y.cols);
            with_fp8!(y.dtype, F => {
                if y.data_t.is_null() {
                    // SAFETY: by contract.
                    encode_run::<f32, F>(v, self.scale, unsafe { out.part_mut(row, col, v.len()) })
                } else {
                    let codes = &mut self.blocks[half][block_row * BLOCK..][..v.len()];
                    let amax = encode_run::<f32, F>(v, self.scale, codes);
                    if !y.data.is_null() {
                        // SAFETY: by contract.
                        unsafe { out.part_mut(row, col, v.len()) }.copy_from_slice(codes);
                    }
                    amax
                }
            })
        } else {
            // SAFETY: by contract.
            with_high!(y.dtype, T => store_run::<T>(v, unsafe { Matrix::<T>::new(y.data, y.ld, y.cols).part_mut(row, col, v.len()) }))
        };
        self.amax = amax.max(self.amax);
    }

    /// Writes the block at (`row`, `col`) to the transposed copy, where there is one.
    ///
    /// # Safety
    /// The elements are live and nobody else touches them.
    unsafe fn transpose(&self, height: usize, width: usize, row: usize, col: usize, half: usize) {
        if !self.y.data_t.is_null() {
            let out = Matrix::<u8>::new(self.y.data_t, self.y.ld_t, self.y.rows);
            // SAFETY: by contract.
            unsafe { put_transposed(&self.blocks[half], height, width, &out, col, row) }
        }
    }
}

/// What a piece of the work leaves.
struct Piece {
    amax: u32,
    col: usize,
    /// Column sums of each half of the output from column `col` on, where wanted.
    sums: [Vec<f32>; 2],
}

/// Forward, or with `dy` backward, over pieces that do not depend on the number of threads.
///
/// # Safety
/// Arguments validated, pointers live.
unsafe fn run(threads: &Threads, kind: Activation, x: &TensorView, dy: Option<&TensorView>, y: &TensorView, sums: bool) -> Vec<Piece> {
    let hidden = dy.unwrap_or(y).cols as usize;
    let (value, slope) = functions(kind);
    let (gated, halves) = (kind.is_gated(), if kind.is_gated() && dy.is_some() { 2 } else { 1 });
    // SAFETY: by contract.
    let scale = unsafe { Slot(y.scale).read_or(1.0) };
    let width = if y.data_t.is_null() { RUN } else { BLOCK };
    Grid::new(x.rows as usize, hidden).map(threads, |rows, cols| {
        let mut out = Output::new(y, scale);
        let mut sums = [0, 1].map(|half| vec![0f32; if sums && half < halves { cols.len() } else { 0 }]);
        let (mut a, mut b, mut g, mut s) = ([0f32; RUN], [0f32; RUN], [0f32; RUN], [0f32; RUN]);
        let mut v = [0f32; RUN];
        for r0 in rows.clone().step_by(BLOCK) {
            let height = (rows.end - r0).min(BLOCK);
            for c in cols.clone().step_by(width) {
                let n = (cols.end - c).min(width);
                let (a, b, g, s, v) = (&mut a[..n], &mut b[..n], &mut g[..n], &mut s[..n], &mut v[..n]);
                for r in r0..r0 + height {
                    // SAFETY: elements of the inputs; only this piece writes the outputs' elements that belong to them.
                    unsafe {
                        read(x, r, c, a);
                        if gated {
                            read(x, r, hidden + c, b);
                        }
                        let Some(dy) = dy else {
                            value(a, v);
                            if gated {
                                multiply(v, b);
                            }
                            out.put(v, r, c, 0, r - r0);
                            continue;
                        };
                        read(dy, r, c, g);
                        slope(a, v, s);
                        if gated {
                            // The second half is dy f(a), the first dy b f'(a).
                            multiply(v, g);
                            multiply(g, b);
                            out.put(v, r, hidden + c, 1, r - r0);
                        }
                        multiply(g, s);
                        out.put(g, r, c, 0, r - r0);
                    }
                    if !sums[0].is_empty() {
                        add(&mut sums[0][c - cols.start..], g);
                        if gated {
                            add(&mut sums[1][c - cols.start..], v);
                        }
                    }
                }
                for half in 0..halves {
                    // SAFETY: as above.
                    unsafe { out.transpose(height, n, r0, half * hidden + c, half) }
                }
            }
        }
        Piece { amax: out.amax, col: cols.start, sums }
    })
}

/// # Safety
/// The output's slots are live.
unsafe fn finish(y: &TensorView, pieces: &[Piece]) {
    // SAFETY: by contract.
    unsafe {
        if y.dtype.is_fp8() {
            Slot(y.scale_inv).write(1.0 / Slot(y.scale).read_or(1.0));
        }
        Slot(y.amax).record(pieces.iter().map(|p| p.amax).max().unwrap_or(0));
    }
}

/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn activation_fwd(threads: &Threads, args: &ActivationArgs) {
    // SAFETY: forwarded contract.
    unsafe { finish(&args.output, &run(threads, args.kind, &args.input, None, &args.output, false)) }
}

/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn activation_bwd(threads: &Threads, args: &ActivationBwdArgs) {
    let wanted = !args.dbias.is_null();
    // SAFETY: forwarded contract.
    let pieces = unsafe { run(threads, args.kind, &args.input, Some(&args.dy), &args.output, wanted) };
    // SAFETY: forwarded contract.
    unsafe { finish(&args.output, &pieces) }
    if wanted && args.input.cols > 0 {
        let mut total = vec![0f32; args.input.cols as usize];
        for piece in &pieces {
            for (half, sums) in piece.sums.iter().enumerate().filter(|(_, s)| !s.is_empty()) {
                let from = half * args.dy.cols as usize + piece.col;
                add(&mut total[from..from + sums.len()], sums);
            }
        }
        with_high!(args.dbias_dtype, T => {
            // SAFETY: the vector is live by contract.
            let out = unsafe { Matrix::<T>::new(args.dbias, args.input.cols, args.input.cols).row_mut(0) };
            for (o, s) in out.iter_mut().zip(&total) {
                *o = T::store(if args.accumulate { o.load() + s } else { *s });
            }
        });
    }
}
