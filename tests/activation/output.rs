//! What an activation writes: an output of any type, and a bias gradient; each knows how it must have come out.

use nvte::{
    ops::activation::{activation_bwd_workspace, Activation},
    Context, DType, Ptr, TensorView,
};
use rand::{rngs::StdRng, seq::IndexedRandom, RngExt};

use crate::{
    common::{
        assert_codes_equal, oracle, relative_error,
        tolerance::{assert_amax_close, assert_fp8_close, assert_within},
        Guarded, SlotF32, Tensor,
    },
    reference::{width, Wanted},
};

/// An output of any type with its layouts and slots.
pub struct Output {
    pub row: Tensor,
    pub col: Tensor,
    pub scale: SlotF32,
    pub inv: SlotF32,
    pub amax: SlotF32,
    pub factor: f32,
    pub before: f32,
    pub layouts: (bool, bool),
}

impl Output {
    pub fn new(ctx: &Context, rng: &mut StdRng, dtype: DType, rows: usize, cols: usize, pad: usize, offset: usize) -> Self {
        let layouts = if dtype.is_fp8() { *[(true, false), (false, true), (true, true)].choose(rng).unwrap() } else { (true, false) };
        let (factor, before) = (rng.random_range(0.01f32..100.0), if rng.random() { 0.0 } else { rng.random_range(0.0f32..8.0) });
        // Columns of codes may begin anywhere, whatever the rows do.
        let (step, start) = match rng.random() {
            true => (rows.next_multiple_of(16) + pad, offset),
            false => (rows + rng.random_range(0..33), rng.random_range(0..33)),
        };
        let col_type = if dtype.is_fp8() { dtype } else { DType::E4m3 };
        Self {
            row: Tensor::output(ctx, dtype, rows, cols, cols + pad, offset),
            col: Tensor::output(ctx, col_type, cols, rows, step, start),
            scale: SlotF32::new(ctx, factor),
            inv: SlotF32::poisoned(ctx),
            amax: SlotF32::new(ctx, before),
            factor,
            before,
            layouts,
        }
    }

    pub fn view(&self) -> TensorView {
        let mut v = self.row.view();
        v.amax = self.amax.ptr();
        if self.row.dtype.is_fp8() {
            v = v.with_transpose(self.col.ptr(), self.col.ld as i64).with_scaling(self.scale.ptr(), self.inv.ptr(), self.amax.ptr());
            if !self.layouts.0 {
                v.data = Ptr::NULL;
            }
            if !self.layouts.1 {
                v.data_t = Ptr::NULL;
            }
        }
        v
    }

    /// Row-wise codes, from whichever layout is there; both, where both are, are equal.
    pub fn codes(&self, what: &str) -> Vec<u32> {
        if !self.layouts.1 {
            return self.row.codes();
        }
        let (rows, cols) = (self.row.rows, self.row.cols);
        let t = self.col.codes();
        let turned: Vec<u32> = (0..rows * cols).map(|i| t[(i % cols) * rows + i / cols]).collect();
        if self.layouts.0 {
            assert_codes_equal(&format!("{what}: the two layouts"), &turned, &self.row.codes(), cols);
        }
        turned
    }

    pub fn check(&self, what: &str, wanted: &[Wanted], bound: impl Fn(DType, Wanted) -> f64) {
        let dtype = self.row.dtype;
        let (v, t): (Vec<f64>, Vec<f64>) = wanted.iter().map(|w| (w.v, w.t)).unzip();
        let codes = self.codes(what);
        if dtype.is_fp8() {
            assert_fp8_close(what, dtype, &codes, &v, self.factor, &t);
            assert_eq!(self.inv.read().to_bits(), (1.0f32 / self.factor).to_bits(), "{what}: scale_inv");
        } else {
            let got: Vec<f32> = codes.into_iter().map(|c| oracle::from_code(dtype, c)).collect();
            assert_within(what, dtype, &got, &v, |i| bound(dtype, wanted[i]));
        }
        assert_amax_close(what, self.amax.read(), self.before, &v, &t);
    }
}

/// A bias gradient's vector and workspace.
pub struct Dbias {
    pub vector: Tensor,
    pub before: Vec<f32>,
    pub workspace: Guarded,
    pub bytes: u64,
}

impl Dbias {
    pub fn new(ctx: &Context, rng: &mut StdRng, kind: Activation, rows: usize, hidden: usize, dtype: DType) -> Self {
        let width = width(kind, hidden);
        let bytes = activation_bwd_workspace(ctx, kind, rows as i64, hidden as i64).unwrap();
        let offset = rng.random_range(0..3);
        let (vector, before) = Tensor::random(ctx, dtype, 1, width, width, offset, rng, false);
        Self { vector, before, workspace: Guarded::new(ctx, bytes as usize, 0), bytes }
    }

    /// The sums are those of `wanted`, with what was there before where `accumulate`.
    pub fn check(&self, what: &str, wanted: &[Wanted], width: usize, accumulate: bool) {
        let mut sums: Vec<f64> = self.before.iter().map(|v| if accumulate { f64::from(*v) } else { 0.0 }).collect();
        for (i, w) in wanted.iter().enumerate() {
            sums[i % width] += w.v;
        }
        let got = self.vector.read();
        let half_ulp = [0.0, 2f64.powi(-11), 2f64.powi(-8)][self.vector.dtype as usize];
        let error = relative_error(&got, &sums);
        // With few columns a sum may cancel to nothing: then the terms count.
        let terms: f64 = wanted.iter().map(|w| w.t * w.t).sum::<f64>().sqrt();
        let norm: f64 = sums.iter().map(|s| s * s).sum::<f64>().sqrt();
        // Half a subnormal of f16.
        let least = if self.vector.dtype == DType::F16 { 2f64.powi(-25) * (width as f64).sqrt() } else { 0.0 };
        assert!(
            error * norm <= (1e-4 + half_ulp) * norm + 1e-6 * terms + least,
            "{what}: dbias {} off by {error}",
            self.vector.dtype.name()
        );
        // The workspace is whole outside its bounds.
        self.workspace.read();
    }
}
