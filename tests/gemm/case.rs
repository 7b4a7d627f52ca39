//! One product: operands in every layout, the call, and the comparison with an f64 reference.

use nvte::{
    ops::gemm::{fp8_gemm, gemm, gemm_workspace, Accumulate, GemmArgs},
    Context, DType, Ptr, Result, Stream, TensorView,
};
use rand::{rngs::StdRng, RngExt};

use crate::common::{oracle, sync, tolerance, values, Guarded, SlotF32, Tensor};

pub const HIGH: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];
pub const FP8: [DType; 2] = [DType::E4m3, DType::E5m2];
pub const MODES: [Accumulate; 2] = [Accumulate::Fast, Accumulate::Precise];

/// Relative error that the accumulation may have.
pub fn bound(ctx: &Context, operands: DType, mode: Accumulate, k: usize) -> f64 {
    let k = k.max(1) as f64;
    match (operands.is_fp8() && ctx.capability().fp8_gemm_hardware, mode) {
        (false, _) => 2f64.powi(-20) * k.sqrt(),
        (true, Accumulate::Precise) => 2f64.powi(-12),
        (true, Accumulate::Fast) => 2f64.powi(-14) * k.sqrt(),
    }
}

/// An operand `[rows, k]` on the device in some layout, and what it holds.
pub struct Operand {
    pub tensor: Tensor,
    pub scale_inv: Option<SlotF32>,
    pub transpose: bool,
    pub view: TensorView,
    pub held: Vec<f32>,
    pub factor: f64,
}

#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// How it is stored: rows along K, or along M (N).
    pub k_major: bool,
    /// How it is described: as `[K, rows]`.
    pub transpose: bool,
    pub pad: usize,
    pub offset: usize,
}

impl Layout {
    pub const DENSE: Layout = Layout { k_major: true, transpose: false, pad: 0, offset: 0 };

    pub fn random(rng: &mut StdRng) -> Self {
        let aligned = rng.random_bool(0.3);
        let (pad, offset) = if aligned { (16 * rng.random_range(0..2), 0) } else { (rng.random_range(0..20), rng.random_range(0..20)) };
        Self { k_major: rng.random(), transpose: rng.random(), pad, offset }
    }
}

impl Operand {
    /// `values`: op(X), `[rows, k]`.
    pub fn new(ctx: &Context, dtype: DType, rows: usize, k: usize, l: Layout, values: &[f32], scale_inv: Option<f32>) -> Self {
        let (height, width) = if l.k_major { (rows, k) } else { (k, rows) };
        let at = |i: usize| if l.k_major { i } else { (i % rows) * k + i / rows };
        let stored: Vec<f32> = (0..rows * k).map(|i| values[at(i)]).collect();
        let (tensor, held_as_stored) = Tensor::input(ctx, dtype, height, width, width + l.pad, l.offset, &stored);
        let mut held = vec![0.0; rows * k];
        held_as_stored.into_iter().enumerate().for_each(|(i, v)| held[at(i)] = v);
        let mut view = tensor.view();
        (view.rows, view.cols) = if l.transpose { (k as i64, rows as i64) } else { (rows as i64, k as i64) };
        if l.k_major == l.transpose {
            // It lies as the transposed copy of what it is described as.
            (view.data, view.ld, view.data_t, view.ld_t) = (Ptr::NULL, 0, view.data, view.ld);
        }
        let slot = scale_inv.map(|v| SlotF32::new(ctx, v));
        view.scale_inv = slot.as_ref().map_or(Ptr::NULL, SlotF32::ptr);
        Self { tensor, scale_inv: slot, transpose: l.transpose, view, held, factor: f64::from(scale_inv.unwrap_or(1.0)) }
    }

    pub fn random(ctx: &Context, dtype: DType, rows: usize, k: usize, l: Layout, rng: &mut StdRng) -> Self {
        let scale_inv = (dtype.is_fp8() && rng.random_bool(0.8)).then(|| rng.random_range(0.01f32..4.0));
        Self::new(ctx, dtype, rows, k, l, &values(rng, rows * k, false), scale_inv)
    }
}

/// f64 results, and per element the size that errors are measured against.
pub struct Reference {
    pub want: Vec<f64>,
    pub size: Vec<f64>,
}

pub fn reference(
    a: &Operand,
    b: &Operand,
    m: usize,
    n: usize,
    k: usize,
    alpha: f32,
    bias: Option<&[f32]>,
    beta: f32,
    c: Option<&[f32]>,
) -> Reference {
    let (mut want, mut size) = (vec![0.0; m * n], vec![0.0; m * n]);
    let factor = f64::from(alpha) * a.factor * b.factor;
    let (left, right): (Vec<f64>, Vec<f64>) =
        (a.held.iter().map(|v| f64::from(*v)).collect(), b.held.iter().map(|v| f64::from(*v)).collect());
    for i in 0..m {
        let row = &left[i * k..(i + 1) * k];
        for j in 0..n {
            let other = &right[j * k..(j + 1) * k];
            let (mut sum, mut squares) = (0.0, 0.0);
            if alpha != 0.0 {
                for (x, y) in row.iter().zip(other) {
                    sum += x * y;
                    squares += (x * y) * (x * y);
                }
            }
            let at = i * n + j;
            // Not infinity times zero where there is no product.
            let product = if alpha == 0.0 || k == 0 { 0.0 } else { factor * sum };
            let added = bias.map_or(0.0, |x| f64::from(x[j]));
            let old = if beta == 0.0 { 0.0 } else { f64::from(beta) * c.map_or(0.0, |x| f64::from(x[at])) };
            want[at] = product + added + old;
            size[at] = (factor * squares.sqrt()).abs() + added.abs() + old.abs();
        }
    }
    Reference { want, size }
}

/// Frobenius and elementwise.
pub fn assert_close(what: &str, dtype: DType, got: &[f32], r: &Reference, bound: f64) {
    let half = |w: f64| 0.5 * oracle::ulp(dtype, w);
    // Far more than a sum of random errors reaches, far less than a misplaced element.
    tolerance::assert_within(what, dtype, got, &r.want, |i| half(r.want[i]) * 1.01 + 16.0 * bound * r.size[i]);
    let (mut error, mut size, mut rounding) = (0.0, 0.0, 0.0);
    for i in (0..got.len()).filter(|i| r.want[*i].is_finite() && got[*i].is_finite()) {
        error += (f64::from(got[i]) - r.want[i]).powi(2);
        size += r.size[i].powi(2);
        rounding += half(r.want[i]).powi(2);
    }
    let (error, allowed) = (error.sqrt(), bound * size.sqrt() + rounding.sqrt());
    assert!(error <= allowed * 1.0001, "{what}: error {error:e}, allowed {allowed:e} (relative bound {bound:e})");
}

/// Everything of one call.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub a: DType,
    pub b: DType,
    pub d: DType,
    pub mode: Accumulate,
    pub layout_a: Layout,
    pub layout_b: Layout,
    pub alpha: f32,
    pub beta: f32,
    /// Type, and elements off an aligned address.
    pub bias: Option<(DType, usize)>,
    pub c: DType,
    pub c_is_d: bool,
    pub pad: usize,
    pub offset: usize,
}

impl Case {
    pub fn new(m: usize, n: usize, k: usize, a: DType, b: DType, d: DType, mode: Accumulate) -> Self {
        let (layout_a, layout_b) = (Layout::DENSE, Layout::DENSE);
        Self { m, n, k, a, b, d, mode, layout_a, layout_b, alpha: 1.0, beta: 0.0, bias: None, c: d, c_is_d: false, pad: 0, offset: 0 }
    }

    /// Computes and compares.
    pub fn run(&self, ctx: &Context, rng: &mut StdRng) {
        let (m, n, k) = (self.m, self.n, self.k);
        let a = Operand::random(ctx, self.a, m, k, self.layout_a, rng);
        let b = Operand::random(ctx, self.b, n, k, self.layout_b, rng);
        self.run_with(ctx, rng, &a, &b);
    }

    pub fn run_with(&self, ctx: &Context, rng: &mut StdRng, a: &Operand, b: &Operand) {
        let (m, n, k) = (self.m, self.n, self.k);
        let what = format!("{self:?}");
        let bias = self.bias.map(|(t, offset)| Tensor::random(ctx, t, 1, n, n, offset, rng, false));
        let c_type = if self.c.is_fp8() { DType::F32 } else { self.c };
        let in_place = self.c_is_d && c_type == self.d;
        let (old, old_held) = Tensor::random(ctx, c_type, m, n, n + self.pad, self.offset, rng, false);
        let out = Tensor::output(ctx, self.d, m, n, n + self.pad, self.offset);
        let d = if in_place { &old } else { &out };
        let scale = SlotF32::new(ctx, rng.random_range(0.5f32..8.0));
        let (inv, amax) = (SlotF32::poisoned(ctx), SlotF32::new(ctx, 0.0));
        let mut view = d.view();
        if self.d.is_fp8() {
            view = view.with_scaling(scale.ptr(), inv.ptr(), amax.ptr());
        }
        let mut args = GemmArgs::new(a.view, b.view, view, self.mode).with_transposes(a.transpose, b.transpose);
        args.alpha = self.alpha;
        if self.beta != 0.0 {
            args = args.with_c(self.beta, old.view());
        }
        if let Some((t, _)) = &bias {
            args = args.with_bias(t.ptr(), t.dtype);
        }
        let bytes = gemm_workspace(ctx, &args).unwrap_or_else(|e| panic!("{what}: {e}"));
        let workspace = Guarded::new(ctx, bytes as usize, 0);
        args = args.with_workspace(workspace.ptr(), bytes);
        // SAFETY: everything is live.
        unsafe { call(ctx, &args, Stream::NULL) }.unwrap_or_else(|e| panic!("{what}: refused: {e}"));
        sync(ctx);
        workspace.read();
        let held = |t: &Option<(Tensor, Vec<f32>)>| t.as_ref().map(|x| x.1.clone());
        let r = reference(a, b, m, n, k, self.alpha, held(&bias).as_deref(), self.beta, Some(&old_held));
        let bound = bound(ctx, self.a, self.mode, k);
        if !self.d.is_fp8() {
            return assert_close(&what, self.d, &d.read(), &r, bound);
        }
        let factor = scale.read();
        // In units of 2^-20, as the tolerances count: as wide as `assert_close` is for single elements.
        let t: Vec<f64> = r.size.iter().map(|s| 16.0 * s * bound * 2f64.powi(20)).collect();
        tolerance::assert_fp8_close(&what, self.d, &d.codes(), &r.want, factor, &t);
        tolerance::assert_amax_close(&what, amax.read(), 0.0, &r.want, &t);
        assert_eq!(inv.read().to_bits(), (1.0 / factor).to_bits(), "{what}: scale_inv");
    }
}

pub unsafe fn call(ctx: &Context, args: &GemmArgs, stream: Stream) -> Result<()> {
    // SAFETY: by contract.
    unsafe {
        match args.a.dtype.is_fp8() {
            true => fp8_gemm(ctx, args, stream),
            false => gemm(ctx, args, stream),
        }
    }
}

/// With exactly the workspace asked for.
pub fn run(ctx: &Context, args: &GemmArgs) {
    let bytes = gemm_workspace(ctx, args).unwrap();
    let workspace = Guarded::new(ctx, bytes as usize, 0);
    // SAFETY: the callers keep everything live.
    unsafe { call(ctx, &args.with_workspace(workspace.ptr(), bytes), Stream::NULL) }.unwrap();
    sync(ctx);
    workspace.read();
}

/// (A, B) that a product takes.
pub fn pairs() -> Vec<(DType, DType)> {
    let fp8 = FP8.into_iter().flat_map(|a| FP8.map(|b| (a, b)));
    fp8.chain(HIGH.map(|t| (t, t))).collect()
}
