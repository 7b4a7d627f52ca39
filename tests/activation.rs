//! Activations, forward and backward, against f64 formulas: every function, type, layout and kind of alignment.

mod common;

use common::{
    assert_codes_equal, context, oracle, relative_error, rng, sync,
    tolerance::{assert_amax_close, assert_fp8_close, assert_within, forward_bound},
    values, Guarded, SlotF32, Tensor,
};
use nvte::{
    ops::activation::{activation_bwd, activation_bwd_workspace, activation_fwd, Activation, ActivationArgs, ActivationBwdArgs},
    Context, DType, Ptr, Status, Stream, TensorView,
};
use rand::{rngs::StdRng, seq::IndexedRandom, RngExt};

const HIGH: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];
const SHAPES: [(usize, usize); 13] =
    [(1, 1), (3, 5), (1, 8), (7, 16), (64, 64), (65, 130), (130, 136), (17, 33), (128, 256), (300, 40), (1, 1000), (200, 1), (129, 264)];
const EMPTY: [(usize, usize); 3] = [(0, 7), (7, 0), (0, 0)];

/// What the formulas of NUMERICS section 8 say in f64: the value, the derivative, and the largest term of the derivative's sum.
struct Formula {
    value: f64,
    slope: f64,
    term: f64,
}

fn formula(kind: Activation, x: f64) -> Formula {
    // x sigmoid(z(x)) with z' given.
    let sigmoid = |z: f64, dz: f64| {
        let s = 1.0 / (1.0 + (-z).exp());
        let second = x * s * (1.0 / (1.0 + z.exp())) * dz;
        Formula { value: x * s, slope: s + second, term: s.max(second.abs()) }
    };
    if x.is_infinite() {
        // The limits, from the sign of x alone.
        let rectified = matches!(kind.function(), Activation::Relu | Activation::Srelu);
        let value = if x > 0.0 {
            x
        } else if rectified {
            0.0
        } else {
            -0.0
        };
        let slope = if x < 0.0 {
            0.0
        } else if kind.function() == Activation::Srelu {
            x
        } else {
            1.0
        };
        return Formula { value, slope, term: slope };
    }
    match kind.function() {
        Activation::Gelu => {
            let c = 2.0 * 0.79788456;
            sigmoid(c * (x + 0.044715 * x.powi(3)), c * (1.0 + 3.0 * 0.044715 * x * x))
        }
        Activation::Silu => sigmoid(x, 1.0),
        Activation::Qgelu => sigmoid(1.702 * x, 1.702),
        Activation::GeluErf => {
            let phi = 0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2);
            let second = x * (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
            Formula { value: x * phi, slope: phi + second, term: phi.max(second.abs()) }
        }
        Activation::Relu | Activation::Srelu => {
            let r = if x <= 0.0 { 0.0 } else { x };
            let step = if r > 0.0 { 1.0 } else { r };
            match kind.function() {
                Activation::Relu => Formula { value: r, slope: step, term: step },
                _ => Formula { value: r * r, slope: 2.0 * r, term: 2.0 * r },
            }
        }
        other => unreachable!("{} is no function", other.name()),
    }
}

/// The derivatives of the reference are right: against central differences.
#[test]
fn reference_slopes_are_finite_differences() {
    let mut rng = rng("reference_slopes_are_finite_differences");
    for kind in Activation::ALL {
        for _ in 0..200 {
            let x: f64 = rng.random_range(-6.0..6.0);
            let h = 1e-5;
            if matches!(kind.function(), Activation::Relu | Activation::Srelu) && x.abs() < 2.0 * h {
                continue;
            }
            let difference = (formula(kind, x + h).value - formula(kind, x - h).value) / (2.0 * h);
            assert!((formula(kind, x).slope - difference).abs() < 1e-8, "{} at {x}", kind.name());
        }
    }
}

/// One result of the reference: the value, the magnitude t of section 9 that its rounding errors scale with.
#[derive(Clone, Copy)]
struct Wanted {
    v: f64,
    t: f64,
}

/// |x| as the bounds use it: an infinite input has an exact result.
fn scale_of(x: f64) -> f64 {
    if x.is_finite() {
        x.abs()
    } else {
        0.0
    }
}

fn forward(kind: Activation, x: &[f32], hidden: usize) -> Vec<Wanted> {
    let width = if kind.is_gated() { 2 * hidden } else { hidden };
    let one = |row: &[f32], c: usize| {
        let (a, b) = (f64::from(row[c]), if kind.is_gated() { f64::from(row[hidden + c]) } else { 1.0 });
        Wanted { v: formula(kind, a).value * b, t: scale_of(a) * scale_of(b) }
    };
    x.chunks(width.max(1)).flat_map(|row| (0..hidden).map(move |c| one(row, c)).collect::<Vec<_>>()).collect()
}

fn backward(kind: Activation, x: &[f32], dy: &[f32], hidden: usize) -> Vec<Wanted> {
    let width = if kind.is_gated() { 2 * hidden } else { hidden };
    let mut out = Vec::new();
    for (row, g) in x.chunks(width.max(1)).zip(dy.chunks(hidden.max(1))) {
        for c in 0..width {
            let (a, g) = (f64::from(row[c % hidden]), f64::from(g[c % hidden]));
            let f = formula(kind, a);
            out.push(if c >= hidden {
                Wanted { v: g * f.value, t: scale_of(g) * scale_of(a) }
            } else {
                let b = if kind.is_gated() { f64::from(row[hidden + c]) } else { 1.0 };
                // Terms below 1e-28 come from exponentials that f32 may flush to 0, and with them the sign of a derivative; products below
                // 1e-36 are subnormal.
                Wanted { v: g * b * f.slope, t: (scale_of(g) * scale_of(b)).max(1e-36) * scale_of(f.term).max(1e-28) }
            });
        }
    }
    out
}

/// Inputs where f32 and f64 agree on what is NaN: a product of an infinity with something that only f32 rounds to 0 is kept out.
fn inputs(rng: &mut StdRng, kind: Activation, rows: usize, hidden: usize, special: bool) -> (Vec<f32>, Vec<f32>) {
    let width = if kind.is_gated() { 2 * hidden } else { hidden };
    let mut x: Vec<f32> = values(rng, rows * width, special).into_iter().map(|v| v * 2.0).collect();
    let dy = values(rng, rows * hidden, special);
    for r in 0..rows {
        for c in 0..hidden {
            let b = if kind.is_gated() { x[r * width + hidden + c] } else { 1.0 };
            let a = &mut x[r * width + c];
            // f16 turns what is large into an infinity.
            if (b.abs() > 6e4 || dy[r * hidden + c].abs() > 6e4) && !(1e-3..4.0).contains(&a.abs()) {
                *a = a.signum() * 1.5;
            }
        }
    }
    (x, dy)
}

/// An output of any type with its layouts and slots.
struct Output {
    row: Tensor,
    col: Tensor,
    scale: SlotF32,
    inv: SlotF32,
    amax: SlotF32,
    factor: f32,
    before: f32,
    layouts: (bool, bool),
}

impl Output {
    fn new(ctx: &Context, rng: &mut StdRng, dtype: DType, rows: usize, cols: usize, pad: usize, offset: usize) -> Self {
        let layouts = if dtype.is_fp8() { *[(true, false), (false, true), (true, true)].choose(rng).unwrap() } else { (true, false) };
        let (factor, before) = (rng.random_range(0.01f32..100.0), if rng.random() { 0.0 } else { rng.random_range(0.0f32..8.0) });
        let col_type = if dtype.is_fp8() { dtype } else { DType::E4m3 };
        Self {
            row: Tensor::output(ctx, dtype, rows, cols, cols + pad, offset),
            col: Tensor::output(ctx, col_type, cols, rows, rows.next_multiple_of(16) + pad, offset),
            scale: SlotF32::new(ctx, factor),
            inv: SlotF32::poisoned(ctx),
            amax: SlotF32::new(ctx, before),
            factor,
            before,
            layouts,
        }
    }

    fn view(&self) -> TensorView {
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
    fn codes(&self, what: &str) -> Vec<u32> {
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

    fn check(&self, what: &str, wanted: &[Wanted], bound: impl Fn(DType, Wanted) -> f64) {
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

/// A stride and an offset: half the time such that every row starts on 16 bytes.
fn placement(rng: &mut StdRng, cols: usize, aligned: bool) -> (usize, usize) {
    if aligned {
        (cols.next_multiple_of(16) - cols + 16 * rng.random_range(0..2), 16 * rng.random_range(0..2))
    } else {
        (rng.random_range(0..5), rng.random_range(0..5))
    }
}

fn shapes(rng: &mut StdRng, n: usize) -> Vec<(usize, usize)> {
    let mut some: Vec<_> = (0..n).map(|_| *SHAPES.choose(rng).unwrap()).collect();
    some.push(*EMPTY.choose(rng).unwrap());
    some
}

#[test]
fn forward_is_close_to_the_formulas() {
    let ctx = context();
    let mut rng = rng("forward_is_close_to_the_formulas");
    for kind in Activation::ALL {
        for input in HIGH {
            for output in DType::ALL {
                for (rows, hidden) in shapes(&mut rng, 3) {
                    let (x, _) = inputs(&mut rng, kind, rows, hidden, true);
                    let width = if kind.is_gated() { 2 * hidden } else { hidden };
                    let aligned = rng.random();
                    let (pad, offset) = placement(&mut rng, width, aligned);
                    let (x, held) = Tensor::input(&ctx, input, rows, width, width + pad, offset, &x);
                    let (pad, offset) = placement(&mut rng, hidden, aligned);
                    let y = Output::new(&ctx, &mut rng, output, rows, hidden, pad, offset);
                    let args = ActivationArgs { kind, input: x.view(), output: y.view() };
                    // SAFETY: all tensors are live.
                    unsafe { activation_fwd(&ctx, &args, Stream::NULL) }.unwrap();
                    sync(&ctx);
                    let what = format!("{} {} -> {} [{rows}, {hidden}] aligned {aligned}", kind.name(), input.name(), output.name());
                    // Section 9's bound of f32 counts a gate's factor too.
                    y.check(&what, &forward(kind, &held, hidden), |d, w| {
                        forward_bound(d, w.v, w.t) + if d == DType::F32 { 2f64.powi(-20) * w.t } else { 0.0 }
                    });
                }
            }
        }
    }
}

/// A bias gradient's vector and workspace.
struct Dbias {
    vector: Tensor,
    before: Vec<f32>,
    workspace: Guarded,
    bytes: u64,
}

impl Dbias {
    fn new(ctx: &Context, rng: &mut StdRng, kind: Activation, rows: usize, hidden: usize, dtype: DType) -> Self {
        let width = if kind.is_gated() { 2 * hidden } else { hidden };
        let bytes = activation_bwd_workspace(ctx, kind, rows as i64, hidden as i64).unwrap();
        let offset = rng.random_range(0..3);
        let (vector, before) = Tensor::random(ctx, dtype, 1, width, width, offset, rng, false);
        Self { vector, before, workspace: Guarded::new(ctx, bytes as usize, 0), bytes }
    }
}

fn bwd_args(kind: Activation, dy: &Tensor, x: &Tensor, dx: &Output) -> ActivationBwdArgs {
    ActivationBwdArgs {
        kind,
        dy: dy.view(),
        input: x.view(),
        output: dx.view(),
        dbias: Ptr::NULL,
        dbias_dtype: DType::F32,
        accumulate: false,
        workspace: Ptr::NULL,
        workspace_bytes: 0,
    }
}

#[test]
fn backward_is_close_to_the_formulas() {
    let ctx = context();
    let mut rng = rng("backward_is_close_to_the_formulas");
    for kind in Activation::ALL {
        for input in HIGH {
            for output in DType::ALL {
                for (rows, hidden) in shapes(&mut rng, 3) {
                    let special = rng.random();
                    let (x, dy) = inputs(&mut rng, kind, rows, hidden, special);
                    let width = if kind.is_gated() { 2 * hidden } else { hidden };
                    let aligned = rng.random();
                    let gradient = if rng.random_bool(0.8) { input } else { *HIGH.choose(&mut rng).unwrap() };
                    let (pad, offset) = placement(&mut rng, width, aligned);
                    let (x, x_held) = Tensor::input(&ctx, input, rows, width, width + pad, offset, &x);
                    let (pad, offset) = placement(&mut rng, hidden, aligned);
                    let (dy, dy_held) = Tensor::input(&ctx, gradient, rows, hidden, hidden + pad, offset, &dy);
                    let (pad, offset) = placement(&mut rng, width, aligned);
                    let dx = Output::new(&ctx, &mut rng, output, rows, width, pad, offset);
                    let mut args = bwd_args(kind, &dy, &x, &dx);
                    let sum_type = *HIGH.choose(&mut rng).unwrap();
                    let sums = (!special).then(|| Dbias::new(&ctx, &mut rng, kind, rows, hidden, sum_type));
                    if let Some(d) = &sums {
                        (args.dbias, args.dbias_dtype, args.accumulate) = (d.vector.ptr(), d.vector.dtype, rng.random());
                        (args.workspace, args.workspace_bytes) = (d.workspace.ptr(), d.bytes);
                    }
                    // SAFETY: all tensors are live.
                    unsafe { activation_bwd(&ctx, &args, Stream::NULL) }.unwrap();
                    sync(&ctx);
                    let what = format!(
                        "d{} {} (dy {}) -> {} [{rows}, {hidden}] aligned {aligned}",
                        kind.name(),
                        input.name(),
                        gradient.name(),
                        output.name()
                    );
                    let wanted = backward(kind, &x_held, &dy_held, hidden);
                    dx.check(&what, &wanted, |d, w| {
                        let slack = 2f64.powi(-20) * w.t;
                        slack + if d == DType::F32 { 1e-5 * w.v.abs() + oracle::ulp(d, 0.0) } else { 2.0 * oracle::ulp(d, w.v) }
                    });
                    if let Some(d) = sums {
                        check_dbias(&what, &d, &wanted, width, args.accumulate);
                    }
                }
            }
        }
    }
}

fn check_dbias(what: &str, d: &Dbias, wanted: &[Wanted], width: usize, accumulate: bool) {
    let mut sums: Vec<f64> = d.before.iter().map(|v| if accumulate { f64::from(*v) } else { 0.0 }).collect();
    for (i, w) in wanted.iter().enumerate() {
        sums[i % width] += w.v;
    }
    let got = d.vector.read();
    let half_ulp = [0.0, 2f64.powi(-11), 2f64.powi(-8)][d.vector.dtype as usize];
    let error = relative_error(&got, &sums);
    // With few columns a sum may cancel to nothing: then the terms count.
    let terms: f64 = wanted.iter().map(|w| w.t * w.t).sum::<f64>().sqrt();
    let norm: f64 = sums.iter().map(|s| s * s).sum::<f64>().sqrt();
    // Half a subnormal of f16.
    let least = if d.vector.dtype == DType::F16 { 2f64.powi(-25) * (width as f64).sqrt() } else { 0.0 };
    assert!(error * norm <= (1e-4 + half_ulp) * norm + 1e-6 * terms + least, "{what}: dbias {} off by {error}", d.vector.dtype.name());
    // The workspace is whole outside its bounds.
    d.workspace.read();
}

/// Large enough for several tiles and blocks, dbias over many of them, and the same bits every time.
#[test]
fn many_tiles_and_the_same_bits_every_time() {
    let ctx = context();
    let mut rng = rng("many_tiles_and_the_same_bits_every_time");
    for (kind, output) in [
        (Activation::Gelu, DType::E5m2),
        (Activation::Swiglu, DType::E4m3),
        (Activation::GegluErf, DType::Bf16),
        (Activation::Sreglu, DType::F32),
        (Activation::Silu, DType::F16),
    ] {
        for (aligned, rows, hidden) in [(true, 700, 392), (false, 701, 393)] {
            let (x, dy) = inputs(&mut rng, kind, rows, hidden, false);
            let width = if kind.is_gated() { 2 * hidden } else { hidden };
            let (x, x_held) = Tensor::input(&ctx, DType::Bf16, rows, width, width, 0, &x);
            let (dy, dy_held) = Tensor::input(&ctx, DType::Bf16, rows, hidden, hidden, 0, &dy);
            let mut first = None;
            for _ in 0..3 {
                let dx = Output { layouts: (true, output.is_fp8()), ..Output::new(&ctx, &mut rng, output, rows, width, 0, 0) };
                let d = Dbias::new(&ctx, &mut rng, kind, rows, hidden, DType::F32);
                dx.scale.write(1.0);
                let args = ActivationBwdArgs {
                    dbias: d.vector.ptr(),
                    workspace: d.workspace.ptr(),
                    workspace_bytes: d.bytes,
                    ..bwd_args(kind, &dy, &x, &dx)
                };
                // SAFETY: all tensors are live.
                unsafe { activation_bwd(&ctx, &args, Stream::NULL) }.unwrap();
                sync(&ctx);
                let what = format!("d{} -> {} aligned {aligned}", kind.name(), output.name());
                let wanted = backward(kind, &x_held, &dy_held, hidden);
                check_dbias(&what, &d, &wanted, width, false);
                let bits = (dx.codes(&what), d.vector.codes());
                assert!(*first.get_or_insert_with(|| bits.clone()) == bits, "{what}: other bits the second time");
            }
        }
    }
}

/// Rows on 16 bytes and rows that are not take different paths on CUDA, to the same bits.
#[test]
fn alignment_does_not_change_the_bits() {
    let ctx = context();
    let mut rng = rng("alignment_does_not_change_the_bits");
    let (rows, hidden) = (150, 168);
    for kind in Activation::ALL {
        for (input, output) in [(DType::Bf16, DType::E4m3), (DType::F32, DType::E5m2), (DType::F16, DType::F32), (DType::F32, DType::Bf16)]
        {
            let (x, dy) = inputs(&mut rng, kind, rows, hidden, false);
            let width = if kind.is_gated() { 2 * hidden } else { hidden };
            let mut runs = Vec::new();
            for shift in [0, 1] {
                let (x, _) = Tensor::input(&ctx, input, rows, width, width + shift, shift, &x);
                let (dy, _) = Tensor::input(&ctx, input, rows, hidden, hidden + shift, shift, &dy);
                let all = |o: Output| Output { layouts: (true, output.is_fp8()), ..o };
                let y = all(Output::new(&ctx, &mut rng, output, rows, hidden, shift, shift));
                let dx = all(Output::new(&ctx, &mut rng, output, rows, width, shift, shift));
                for o in [&y, &dx] {
                    o.scale.write(3.0);
                    o.amax.write(0.0);
                }
                // SAFETY: all tensors are live.
                unsafe {
                    activation_fwd(&ctx, &ActivationArgs { kind, input: x.view(), output: y.view() }, Stream::NULL).unwrap();
                    activation_bwd(&ctx, &bwd_args(kind, &dy, &x, &dx), Stream::NULL).unwrap();
                }
                sync(&ctx);
                runs.push((y.codes(kind.name()), dx.codes(kind.name()), y.amax.read().to_bits(), dx.amax.read().to_bits()));
            }
            let what = format!("{} {} -> {}", kind.name(), input.name(), output.name());
            assert_codes_equal(&format!("{what} forward"), &runs[1].0, &runs[0].0, hidden);
            assert_codes_equal(&format!("{what} backward"), &runs[1].1, &runs[0].1, width);
            assert_eq!((runs[0].2, runs[0].3), (runs[1].2, runs[1].3), "{what}: amax");
        }
    }
}

/// Infinities, NaN, zeros and the edges of f32 through every function, by value.
#[test]
fn ends_are_the_limits() {
    let ctx = context();
    let ends = [
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        0.0,
        -0.0,
        f32::MAX,
        f32::MIN,
        1e-40,
        -1e-40,
        200.0,
        -200.0,
        1e20,
        -1e20,
        15.0,
        -15.0,
        1.0,
    ];
    for kind in Activation::ALL {
        for pad in [0, 1] {
            let n = ends.len();
            let mut x = ends.to_vec();
            if kind.is_gated() {
                x.extend([1.0; 16]);
            }
            let (x, _) = Tensor::input(&ctx, DType::F32, 1, x.len(), x.len() + pad, pad, &x);
            let (dy, _) = Tensor::input(&ctx, DType::F32, 1, n, n + pad, pad, &[1.0; 16]);
            let y = Tensor::output(&ctx, DType::F32, 1, n, n + pad, pad);
            let dx = Tensor::output(&ctx, DType::F32, 1, x.cols, x.cols + pad, pad);
            let args = ActivationBwdArgs {
                kind,
                dy: dy.view(),
                input: x.view(),
                output: dx.view(),
                dbias: Ptr::NULL,
                dbias_dtype: DType::F32,
                accumulate: false,
                workspace: Ptr::NULL,
                workspace_bytes: 0,
            };
            // SAFETY: all tensors are live.
            unsafe {
                activation_fwd(&ctx, &ActivationArgs { kind, input: x.view(), output: y.view() }, Stream::NULL).unwrap();
                activation_bwd(&ctx, &args, Stream::NULL).unwrap();
            }
            sync(&ctx);
            let (y, dx) = (y.read(), dx.read());
            for (i, x) in ends.into_iter().enumerate() {
                let f = formula(kind, f64::from(x));
                let near = |got: f32, want: f64| {
                    let want = want as f32;
                    got == want || (got.is_nan() && want.is_nan()) || (got - want).abs() <= 1e-5 * want.abs() + 1e-35
                };
                assert!(near(y[i], f.value), "{}({x}) = {}, not {}", kind.name(), y[i], f.value);
                assert!(near(dx[i], f.slope), "{}'({x}) = {}, not {}", kind.name(), dx[i], f.slope);
                if x == f32::NEG_INFINITY {
                    assert_eq!(y[i].to_bits(), (f.value as f32).to_bits(), "{}: the sign of the limit", kind.name());
                }
                if kind.is_gated() {
                    assert!(near(dx[n + i], f.value), "{}: gate at {x}: {}", kind.name(), dx[n + i]);
                }
            }
        }
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let mut rng = rng("results_do_not_depend_on_the_number_of_threads");
    let (rows, hidden, kind) = (530, 264, Activation::Swiglu);
    let (x, dy) = inputs(&mut rng, kind, rows, hidden, false);
    let mut first = None;
    for threads in [1, 2, 5] {
        let options = nvte::ContextOptions { num_threads: Some(threads), ..Default::default() };
        let ctx = Context::new(nvte::Device::Cpu, &options).unwrap();
        let (x, _) = Tensor::input(&ctx, DType::F32, rows, 2 * hidden, 2 * hidden, 0, &x);
        let (dy, _) = Tensor::input(&ctx, DType::F32, rows, hidden, hidden, 0, &dy);
        let dx = Output { layouts: (true, true), ..Output::new(&ctx, &mut rng, DType::E5m2, rows, 2 * hidden, 0, 0) };
        dx.scale.write(1.0);
        let d = Dbias::new(&ctx, &mut rng, kind, rows, hidden, DType::F32);
        let args = ActivationBwdArgs {
            dbias: d.vector.ptr(),
            workspace: d.workspace.ptr(),
            workspace_bytes: d.bytes,
            ..bwd_args(kind, &dy, &x, &dx)
        };
        // SAFETY: all tensors are live.
        unsafe { activation_bwd(&ctx, &args, Stream::NULL) }.unwrap();
        let bits = (dx.codes("threads"), d.vector.codes());
        assert!(*first.get_or_insert_with(|| bits.clone()) == bits, "{threads} threads");
    }
}

/// With no rows nothing is read, so pointers may be null, and the sums are 0.
#[test]
fn no_rows_give_sums_of_zero() {
    let ctx = context();
    let mut rng = rng("no_rows_give_sums_of_zero");
    for (kind, hidden) in [(Activation::Gelu, 40), (Activation::Geglu, 40), (Activation::Reglu, 37)] {
        for accumulate in [false, true] {
            let width = if kind.is_gated() { 2 * hidden } else { hidden };
            let d = Dbias::new(&ctx, &mut rng, kind, 0, hidden, DType::F32);
            let (inv, amax) = (SlotF32::poisoned(&ctx), SlotF32::new(&ctx, 0.5));
            let nothing = |dtype, cols: usize| TensorView::new(dtype, Ptr::NULL, 0, cols as i64);
            let args = ActivationBwdArgs {
                kind,
                dy: nothing(DType::Bf16, hidden),
                input: nothing(DType::Bf16, width),
                output: nothing(DType::E5m2, width).with_scaling(Ptr::NULL, inv.ptr(), amax.ptr()),
                dbias: d.vector.ptr(),
                dbias_dtype: DType::F32,
                accumulate,
                workspace: d.workspace.ptr(),
                workspace_bytes: d.bytes,
            };
            // SAFETY: what is not null is live.
            unsafe { activation_bwd(&ctx, &args, Stream::NULL) }.unwrap();
            sync(&ctx);
            let want: Vec<f32> = d.before.iter().map(|v| if accumulate { *v } else { 0.0 }).collect();
            assert_eq!(d.vector.read(), want, "{}", kind.name());
            assert_eq!((inv.read(), amax.read()), (1.0, 0.5), "{}", kind.name());
        }
    }
}

/// Rules that only this family has (tests/bad_input throws the general ones).
#[test]
fn refuses_what_it_cannot_honour() {
    let ctx = context();
    let mut rng = rng("refuses_what_it_cannot_honour");
    let (x, _) = Tensor::random(&ctx, DType::F32, 4, 8, 8, 0, &mut rng, false);
    let y = Tensor::output(&ctx, DType::F32, 4, 8, 8, 0);
    let half = Tensor::output(&ctx, DType::F32, 4, 4, 4, 0);
    let slot = SlotF32::new(&ctx, 1.0);
    let fwd = |kind, output: TensorView| {
        // SAFETY: all tensors are live.
        unsafe { activation_fwd(&ctx, &ActivationArgs { kind, input: x.view(), output }, Stream::NULL) }.map_err(|e| e.status())
    };
    assert_eq!(fwd(Activation::Gelu, half.view()), Err(Status::InvalidShape));
    assert_eq!(fwd(Activation::Geglu, y.view()), Err(Status::InvalidShape));
    assert_eq!(fwd(Activation::Gelu, y.view().with_transpose(half.ptr(), 4)), Err(Status::Unsupported));
    assert_eq!(fwd(Activation::Gelu, TensorView { scale: slot.ptr(), ..y.view() }), Err(Status::Unsupported));
    assert_eq!(fwd(Activation::Gelu, TensorView { scale_inv: slot.ptr(), ..y.view() }), Err(Status::Unsupported));
    assert!(y.read().iter().chain(&half.read()).all(|v| v.is_nan()), "a refused call wrote");
    assert_eq!(fwd(Activation::Gelu, y.view()), Ok(()));
    assert_eq!(fwd(Activation::Geglu, half.view()), Ok(()));
    assert_eq!(activation_bwd_workspace(&ctx, Activation::Gelu, -1, 4).unwrap_err().status(), Status::InvalidShape);
    assert_eq!(activation_bwd_workspace(&ctx, Activation::Geglu, 4, i64::MAX).unwrap_err().status(), Status::SizeOverflow);
}
