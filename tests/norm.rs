//! LayerNorm and RMSNorm, forward and backward, against f64 references.

mod common;

use common::{
    context, on_cuda, oracle, relative_error, rng, sync,
    tolerance::{assert_amax_close, assert_forward_close, assert_fp8_close, assert_within},
    Guarded, SlotF32, Tensor,
};
use nvte::{
    ops::norm::{layernorm_bwd, layernorm_fwd, norm_bwd_workspace, rmsnorm_bwd, rmsnorm_fwd, NormBwdArgs, NormFwdArgs},
    Context, ContextOptions, DType, Device, Ptr, Status, Stream, TensorView,
};
use rand::{rngs::StdRng, RngExt};

const HIGH: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];
const FP8: [DType; 2] = [DType::E4m3, DType::E5m2];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Norm {
    Layer,
    Rms,
}
const NORMS: [Norm; 2] = [Norm::Layer, Norm::Rms];

/// Where a matrix lies: so that vectors can be used, or somewhere.
fn place(rng: &mut StdRng, cols: usize, aligned: bool) -> (usize, usize) {
    match aligned {
        true => (cols.next_multiple_of(16) + 16 * rng.random_range(0..2), 16 * rng.random_range(0..2)),
        false => (cols + rng.random_range(0..4), rng.random_range(0..4)),
    }
}

fn normal(rng: &mut StdRng, n: usize, mean: f32, deviation: f32) -> Vec<f32> {
    common::values(rng, n, false).into_iter().map(|v| v * deviation + mean).collect()
}

fn any(rng: &mut StdRng) -> DType {
    HIGH[rng.random_range(0..3)]
}

fn matrix(ctx: &Context, dtype: DType, rows: usize, cols: usize, aligned: bool, v: &[f32], rng: &mut StdRng) -> (Tensor, Vec<f32>) {
    let (ld, offset) = place(rng, cols, aligned);
    Tensor::input(ctx, dtype, rows, cols, ld, offset, v)
}

fn output(ctx: &Context, dtype: DType, rows: usize, cols: usize, aligned: bool, rng: &mut StdRng) -> Tensor {
    let (ld, offset) = place(rng, cols, aligned);
    Tensor::output(ctx, dtype, rows, cols, ld, offset)
}

/// A parameter of any type, or none.
fn parameter(ctx: &Context, cols: usize, aligned: bool, centre: f32, rng: &mut StdRng) -> Option<(Tensor, Vec<f32>)> {
    if rng.random_bool(0.15) {
        return None;
    }
    let values = normal(rng, cols, centre, 0.5);
    let dtype = any(rng);
    Some(matrix(ctx, dtype, 1, cols, aligned, &values, rng))
}

fn weights(gamma: &Option<(Tensor, Vec<f32>)>, cols: usize, zero_centered: bool) -> Vec<f64> {
    match gamma {
        None => vec![1.0; cols],
        Some((_, g)) => g.iter().map(|g| f64::from(if zero_centered { 1.0 + g } else { *g })).collect(),
    }
}

struct Forward {
    y: Vec<f64>,
    /// Largest term of each element.
    t: Vec<f64>,
    mu: Vec<f64>,
    rsigma: Vec<f64>,
}

fn forward(norm: Norm, x: &[f32], cols: usize, weight: &[f64], beta: Option<&[f32]>, eps: f32) -> Forward {
    let mut out = Forward { y: Vec::new(), t: Vec::new(), mu: Vec::new(), rsigma: Vec::new() };
    for row in x.chunks(cols.max(1)) {
        let row: Vec<f64> = row.iter().map(|v| f64::from(*v)).collect();
        let n = row.len() as f64;
        let mean = if norm == Norm::Layer { row.iter().sum::<f64>() / n } else { 0.0 };
        let variance = row.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n;
        let rsigma = 1.0 / (variance + f64::from(eps)).sqrt();
        // A mean is a sum too: where it all but vanishes, and an element with it, what its terms lost in rounding is still there.
        let terms = if norm == Norm::Layer { row.iter().map(|v| v.abs()).sum::<f64>() / n / 16.0 } else { 0.0 };
        for (i, v) in row.iter().enumerate() {
            let b = beta.map_or(0.0, |b| f64::from(b[i]));
            out.y.push((v - mean) * rsigma * weight[i] + b);
            out.t.push((v.abs().max(mean.abs()).max(terms) * rsigma * weight[i].abs()).max(b.abs()));
        }
        out.mu.push(mean);
        out.rsigma.push(rsigma);
    }
    out
}

unsafe fn call_forward(norm: Norm, ctx: &Context, args: &NormFwdArgs) -> nvte::Result<()> {
    // SAFETY: forwarded contract.
    unsafe {
        match norm {
            Norm::Layer => layernorm_fwd(ctx, args, Stream::NULL),
            Norm::Rms => rmsnorm_fwd(ctx, args, Stream::NULL),
        }
    }
}

unsafe fn call_backward(norm: Norm, ctx: &Context, args: &NormBwdArgs) -> nvte::Result<()> {
    // SAFETY: forwarded contract.
    unsafe {
        match norm {
            Norm::Layer => layernorm_bwd(ctx, args, Stream::NULL),
            Norm::Rms => rmsnorm_bwd(ctx, args, Stream::NULL),
        }
    }
}

/// The outputs of one forward pass as raw codes: y, its transpose, mu, rsigma.
type Codes = (Vec<u32>, Vec<u32>, Vec<u32>, Vec<u32>);

/// One forward pass on `values`, compared with the reference; returns what it wrote.
fn check_forward(ctx: &Context, norm: Norm, xt: DType, yt: DType, rows: usize, cols: usize, values: &[f32], rng: &mut StdRng) -> Codes {
    let aligned = rng.random_bool(0.5);
    let (x, x_held) = matrix(ctx, xt, rows, cols, aligned, values, rng);
    // With a residual, what is normalised is the sum as it is written: f32's sum, rounded once.
    let more = normal(rng, rows * cols, 0.1, 0.5);
    let residual = rng.random_bool(0.4).then(|| matrix(ctx, xt, rows, cols, aligned, &more, rng));
    let sum = output(ctx, xt, rows, cols, aligned, rng);
    let held: Vec<f32> = match &residual {
        None => x_held.clone(),
        Some((_, r)) => x_held.iter().zip(r).map(|(x, r)| oracle::to_bytes(xt, x + r).1).collect(),
    };
    let zero_centered_gamma = rng.random_bool(0.5);
    let gamma = parameter(ctx, cols, aligned, if zero_centered_gamma { 0.0 } else { 1.0 }, rng);
    let beta = if norm == Norm::Layer { parameter(ctx, cols, aligned, 0.0, rng) } else { None };
    let eps = [0.0, 1e-6, 1e-5, 0.1][rng.random_range(if cols < 2 { 1..4 } else { 0..4 })];
    let (row_wise, transposed) =
        if yt.is_fp8() { [(true, false), (false, true), (true, true)][rng.random_range(0..3)] } else { (true, false) };
    let (y, y_t) = (output(ctx, yt, rows, cols, aligned, rng), output(ctx, yt, cols, rows, aligned, rng));
    let with_stats = rng.random_bool(0.7);
    let (mu, rsigma) = (output(ctx, DType::F32, 1, rows, false, rng), output(ctx, DType::F32, 1, rows, false, rng));
    let (factor, before) = (rng.random_range(0.01f32..100.0), rng.random_range(0.0f32..4.0));
    let (scale, inv, amax) = (SlotF32::new(ctx, factor), SlotF32::poisoned(ctx), SlotF32::new(ctx, before));
    let mut view = y.view();
    if yt.is_fp8() {
        view = view.with_scaling(scale.ptr(), inv.ptr(), amax.ptr());
    }
    if transposed {
        view = view.with_transpose(y_t.ptr(), y_t.ld as i64);
    }
    if !row_wise {
        view.data = Ptr::NULL;
    }
    let stat = |t: &Tensor, wanted: bool| if wanted && with_stats { t.ptr() } else { Ptr::NULL };
    let args = NormFwdArgs {
        x: x.view(),
        residual: residual.as_ref().map(|r| r.0.view()),
        sum: residual.as_ref().map(|_| sum.view()),
        gamma: gamma.as_ref().map(|g| g.0.view()),
        beta: beta.as_ref().map(|b| b.0.view()),
        zero_centered_gamma,
        eps,
        y: view,
        mu: stat(&mu, norm == Norm::Layer),
        rsigma: stat(&rsigma, true),
    };
    // SAFETY: all tensors are live.
    unsafe { call_forward(norm, ctx, &args) }.unwrap();
    sync(ctx);

    let types = format!("{} -> {}", xt.name(), yt.name());
    let what = format!("{norm:?}Norm {types} [{rows}, {cols}] aligned {aligned} zero-centred {zero_centered_gamma} eps {eps}");
    let what = format!("{what} residual {}", residual.is_some());
    let weight = weights(&gamma, cols, zero_centered_gamma);
    let want = forward(norm, &held, cols, &weight, beta.as_ref().map(|b| &b.1[..]), eps);
    let at = |i: usize| (i % rows.max(1)) * cols + i / rows.max(1);
    if yt.is_fp8() {
        if row_wise {
            assert_fp8_close(&what, yt, &y.codes(), &want.y, factor, &want.t);
        }
        if transposed {
            let (v, t): (Vec<_>, Vec<_>) = (0..rows * cols).map(|i| (want.y[at(i)], want.t[at(i)])).unzip();
            assert_fp8_close(&format!("{what} transposed"), yt, &y_t.codes(), &v, factor, &t);
        }
        if row_wise && transposed {
            let (codes, codes_t) = (y.codes(), y_t.codes());
            assert!((0..rows * cols).all(|i| codes_t[i] == codes[at(i)]), "{what}: the layouts hold different codes");
        }
        assert_eq!(inv.read().to_bits(), (1.0f32 / factor).to_bits(), "{what}: scale_inv");
        assert_amax_close(&what, amax.read(), before, &want.y, &want.t);
    } else {
        assert_forward_close(&what, yt, &y.read(), &want.y, &want.t);
    }
    if with_stats && cols > 0 {
        let largest = |r: usize| held[r * cols..(r + 1) * cols].iter().fold(0f64, |m, v| m.max(f64::from(v.abs())));
        if norm == Norm::Layer {
            assert_within(&format!("{what}: mu"), DType::F32, &mu.read(), &want.mu, |r| 1e-6 * largest(r) + 1e-30);
        }
        assert_within(&format!("{what}: rsigma"), DType::F32, &rsigma.read(), &want.rsigma, |r| 1e-5 * want.rsigma[r]);
    }
    // The sum is exact, inputs are as they were.
    let number = |v: &f32| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() };
    if residual.is_some() {
        assert!(sum.read().iter().map(number).eq(held.iter().map(number)), "{what}: sum");
    }
    let bits = |t: &Tensor| t.codes().into_iter().map(|c| oracle::from_code(t.dtype, c).to_bits()).collect::<Vec<_>>();
    let same = |t: &Tensor, v: &[f32]| bits(t) == v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    assert!(same(&x, &x_held), "{what}: x was written");
    for (t, v) in gamma.iter().chain(&beta).chain(&residual) {
        assert!(same(t, v), "{what}: a parameter was written");
    }
    (y.codes(), y_t.codes(), mu.codes(), rsigma.codes())
}

#[test]
fn forward_equals_the_reference() {
    let ctx = context();
    let mut rng = rng("forward_equals_the_reference");
    let shapes = [
        (1, 1),
        (6, 2),
        (5, 3),
        (4, 17),
        (33, 64),
        (130, 72),
        (7, 128),
        (9, 256),
        (65, 1000),
        (3, 1280),
        (70, 2056),
        (2, 4096),
        (0, 5),
        (5, 0),
    ];
    for norm in NORMS {
        for xt in HIGH {
            for yt in DType::ALL {
                for (rows, cols) in shapes {
                    let mean = rng.random_range(-3.0..3.0);
                    let values = normal(&mut rng, rows * cols, mean, 2.0);
                    check_forward(&ctx, norm, xt, yt, rows, cols, &values, &mut rng);
                }
            }
        }
    }
}

#[test]
fn forward_of_long_rows_equals_the_reference() {
    let ctx = context();
    let mut rng = rng("forward_of_long_rows_equals_the_reference");
    for (rows, cols) in
        [(3, 8192), (2, 12_288), (7, 18_433), (40, 18_440), (2, 28_680), (2, 65_536), (2, 65_537), (3, 100_000), (1, 99_999), (1, 250_001)]
    {
        for norm in NORMS {
            for xt in HIGH {
                let yt = DType::ALL[rng.random_range(0..5)];
                let values = normal(&mut rng, rows * cols, 0.5, 1.0);
                check_forward(&ctx, norm, xt, yt, rows, cols, &values, &mut rng);
            }
        }
    }
}

#[test]
fn forward_of_many_rows_equals_the_reference() {
    let ctx = context();
    let mut rng = rng("forward_of_many_rows_equals_the_reference");
    // More rows than a grid has blocks on any device.
    for (rows, cols) in [(40_000, 8), (20_000, 33)] {
        for norm in NORMS {
            let (xt, yt) = (any(&mut rng), DType::ALL[rng.random_range(0..5)]);
            let values = normal(&mut rng, rows * cols, 0.5, 1.0);
            check_forward(&ctx, norm, xt, yt, rows, cols, &values, &mut rng);
        }
    }
}

#[test]
fn layouts_of_many_rows_equal_the_reference() {
    let ctx = context();
    let mut rng = rng("layouts_of_many_rows_equal_the_reference");
    // Tiles that rows and columns leave incomplete, rows of one warp and of several; which layouts, and whether they are aligned, is drawn.
    for (rows, cols) in [(1203, 40), (1616, 264), (531, 1288), (77, 3080), (150, 4096)] {
        for norm in NORMS {
            for (xt, yt) in [(DType::Bf16, DType::E4m3), (DType::F16, DType::E5m2), (DType::Bf16, DType::E5m2)] {
                let values = normal(&mut rng, rows * cols, 0.5, 1.0);
                check_forward(&ctx, norm, xt, yt, rows, cols, &values, &mut rng);
            }
        }
    }
}

#[test]
fn variance_survives_a_large_mean() {
    let ctx = context();
    let mut rng = rng("variance_survives_a_large_mean");
    for (rows, cols) in [(3, 64), (2, 1000), (2, 4096), (1, 65_536)] {
        for yt in DType::ALL {
            // E[x^2] - E[x]^2 has no digit left here.
            let values = normal(&mut rng, rows * cols, 1e4, 0.5);
            check_forward(&ctx, Norm::Layer, DType::F32, yt, rows, cols, &values, &mut rng);
            let constant = vec![1234.5; rows * cols];
            let x = Tensor::input(&ctx, DType::F32, rows, cols, cols, 0, &constant).0;
            let y = Tensor::output(&ctx, DType::F32, rows, cols, cols, 0);
            let (mu, rsigma) = (Ptr::NULL, Ptr::NULL);
            let (gamma, beta, zero_centered_gamma, eps) = (None, None, false, 1e-5);
            let args =
                NormFwdArgs { x: x.view(), residual: None, sum: None, gamma, beta, zero_centered_gamma, eps, y: y.view(), mu, rsigma };
            // SAFETY: all tensors are live.
            unsafe { layernorm_fwd(&ctx, &args, Stream::NULL) }.unwrap();
            sync(&ctx);
            assert!(y.read().iter().all(|v| v.abs() < 1e-6), "a constant row has no deviations");
        }
    }
}

#[test]
fn bad_rows_stay_bad_alone() {
    let ctx = context();
    let mut rng = rng("bad_rows_stay_bad_alone");
    let (rows, cols) = (23, 264);
    for norm in NORMS {
        for xt in HIGH {
            for yt in DType::ALL {
                let mut values = normal(&mut rng, rows * cols, 0.0, 1.0);
                for (row, v) in [(2, f32::NAN), (7, f32::INFINITY), (8, f32::NEG_INFINITY), (22, f32::NAN)] {
                    values[row * cols + rng.random_range(0..cols)] = v;
                }
                // A NaN amax and codes 0x7F where they belong are part of the comparison.
                check_forward(&ctx, norm, xt, yt, rows, cols, &values, &mut rng);
            }
        }
    }
}

struct Backward {
    dx: Vec<f64>,
    /// Sum of the magnitudes that make up each element of dx.
    t: Vec<f64>,
    dgamma: Vec<f64>,
    dbeta: Vec<f64>,
}

fn backward(norm: Norm, dy: &[f32], x: &[f32], cols: usize, weight: &[f64], mu: &[f32], rsigma: &[f32]) -> Backward {
    let mut out = Backward { dx: Vec::new(), t: Vec::new(), dgamma: vec![0.0; cols], dbeta: vec![0.0; cols] };
    for (r, (dy, x)) in dy.chunks(cols.max(1)).zip(x.chunks(cols.max(1))).enumerate() {
        let (n, s) = (cols as f64, f64::from(rsigma[r]));
        let m = if norm == Norm::Layer { f64::from(mu[r]) } else { 0.0 };
        let xhat: Vec<f64> = x.iter().map(|v| (f64::from(*v) - m) * s).collect();
        let g: Vec<f64> = dy.iter().zip(weight).map(|(d, w)| f64::from(*d) * w).collect();
        let products = xhat.iter().zip(&g).map(|(x, g)| x * g).sum::<f64>() / n;
        let plain = if norm == Norm::Layer { g.iter().sum::<f64>() / n } else { 0.0 };
        let magnitude = xhat.iter().zip(&g).map(|(x, g)| (x * g).abs()).sum::<f64>() / n;
        let plain_magnitude = g.iter().map(|g| g.abs()).sum::<f64>() / n;
        for i in 0..cols {
            out.dx.push((g[i] - xhat[i] * products - plain) * s);
            out.t.push((g[i].abs() + xhat[i].abs() * magnitude + plain_magnitude) * s);
            out.dgamma[i] += f64::from(dy[i]) * xhat[i];
            out.dbeta[i] += f64::from(dy[i]);
        }
    }
    out
}

fn check_gradient(what: &str, got: &Tensor, want: &[f64]) {
    let rounding = match got.dtype {
        DType::F32 => 0.0,
        DType::F16 => 2f64.powi(-11),
        _ => 2f64.powi(-8),
    };
    let e = relative_error(&got.read(), want);
    assert!(e <= 1e-4 + rounding, "{what}: relative error {e}");
}

/// One backward pass, compared with the reference; returns the codes of dx, dgamma, dbeta.
fn check_backward(ctx: &Context, norm: Norm, types: [DType; 3], rows: usize, cols: usize, rng: &mut StdRng) -> [Vec<u32>; 3] {
    let [dyt, xt, dxt] = types;
    let aligned = rng.random_bool(0.6);
    let (mean, values) = (rng.random_range(-1.0f32..1.0), normal(rng, rows * cols, 0.3, 1.0));
    let (dy, dy_held) = matrix(ctx, dyt, rows, cols, aligned, &values, rng);
    let values = normal(rng, rows * cols, mean, 2.0);
    let (x, x_held) = matrix(ctx, xt, rows, cols, aligned, &values, rng);
    let zero_centered_gamma = rng.random_bool(0.5);
    let gamma = parameter(ctx, cols, aligned, if zero_centered_gamma { 0.0 } else { 1.0 }, rng);
    let stats = forward(norm, &x_held, cols, &vec![1.0; cols], None, 1e-5);
    let single = |v: &[f64]| v.iter().map(|v| *v as f32).collect::<Vec<f32>>();
    let (mut mu_values, mut rsigma_values) = (single(&stats.mu), single(&stats.rsigma));
    mu_values.resize(rows, 0.0);
    rsigma_values.resize(rows, 1.0);
    let mu = matrix(ctx, DType::F32, 1, rows, false, &mu_values, rng).0;
    let rsigma = matrix(ctx, DType::F32, 1, rows, false, &rsigma_values, rng).0;
    let values = normal(rng, rows * cols, 0.1, 1.0);
    let dsum_dtype = if rng.random_bool(0.7) { xt } else { any(rng) };
    let dsum = rng.random_bool(0.4).then(|| matrix(ctx, dsum_dtype, rows, cols, aligned, &values, rng));
    let dx = output(ctx, dxt, rows, cols, aligned, rng);
    let (gt, bt) = (any(rng), any(rng));
    let (dgamma, dbeta) = (output(ctx, gt, 1, cols, false, rng), output(ctx, bt, 1, cols, false, rng));
    let (want_dgamma, want_dbeta) = (rng.random_bool(0.8), norm == Norm::Layer && rng.random_bool(0.8));
    let bytes = norm_bwd_workspace(ctx, cols as i64).unwrap();
    let workspace = Guarded::new(ctx, bytes as usize, 16 * rng.random_range(0..2));
    let args = NormBwdArgs {
        dy: dy.view(),
        x: x.view(),
        dsum: dsum.as_ref().map(|d| d.0.view()),
        gamma: gamma.as_ref().map(|g| g.0.view()),
        zero_centered_gamma,
        mu: if norm == Norm::Layer { mu.ptr() } else { Ptr::NULL },
        rsigma: rsigma.ptr(),
        dx: dx.view(),
        dgamma: want_dgamma.then(|| dgamma.view()),
        dbeta: want_dbeta.then(|| dbeta.view()),
        workspace: workspace.ptr(),
        workspace_bytes: bytes,
    };
    // SAFETY: all tensors are live.
    unsafe { call_backward(norm, ctx, &args) }.unwrap();
    sync(ctx);
    let first = [dx.codes(), dgamma.codes(), dbeta.codes()];

    let what = format!("{norm:?}Norm backward {types:?} [{rows}, {cols}] aligned {aligned} zero-centred {zero_centered_gamma}");
    let what = format!("{what} dsum {:?}", dsum.as_ref().map(|_| dsum_dtype));
    let mut want = backward(norm, &dy_held, &x_held, cols, &weights(&gamma, cols, zero_centered_gamma), &mu_values, &rsigma_values);
    if let Some((_, d)) = &dsum {
        want.dx.iter_mut().zip(d).for_each(|(dx, d)| *dx += f64::from(*d));
        want.t.iter_mut().zip(d).for_each(|(t, d)| *t += f64::from(d.abs()));
    }
    assert_within(&what, dxt, &dx.read(), &want.dx, |i| match dxt {
        DType::F32 => 1e-5 * want.t[i] + 1e-6,
        _ => 2.0 * oracle::ulp(dxt, want.dx[i]) + 2f64.powi(-18) * want.t[i],
    });
    if want_dgamma {
        check_gradient(&format!("{what}: dgamma"), &dgamma, &want.dgamma);
    }
    if want_dbeta {
        check_gradient(&format!("{what}: dbeta"), &dbeta, &want.dbeta);
    }
    workspace.read();

    // Again, over a workspace full of other numbers: the same bits.
    // SAFETY: all tensors are live.
    unsafe { call_backward(norm, ctx, &args) }.unwrap();
    sync(ctx);
    assert_eq!(first, [dx.codes(), dgamma.codes(), dbeta.codes()], "{what}: a second run gave other bits");
    first
}

#[test]
fn backward_equals_the_reference() {
    let ctx = context();
    let mut rng = rng("backward_equals_the_reference");
    let shapes = [
        (1, 1),
        (6, 2),
        (5, 3),
        (4, 17),
        (33, 64),
        (300, 72),
        (7, 128),
        (600, 256),
        (65, 1000),
        (200, 1280),
        (70, 2056),
        (2, 4096),
        (0, 5),
        (5, 0),
    ];
    for norm in NORMS {
        for (rows, cols) in shapes {
            for t in HIGH {
                check_backward(&ctx, norm, [t, t, t], rows, cols, &mut rng);
            }
            let mixed = [any(&mut rng), any(&mut rng), any(&mut rng)];
            check_backward(&ctx, norm, mixed, rows, cols, &mut rng);
        }
    }
}

#[test]
fn backward_of_long_rows_equals_the_reference() {
    let ctx = context();
    let mut rng = rng("backward_of_long_rows_equals_the_reference");
    for (rows, cols) in [(5, 8192), (150, 12_288), (3, 16_384), (150, 18_440), (9, 28_681), (67, 32_768), (2, 65_536), (3, 99_999)] {
        for norm in NORMS {
            let t = any(&mut rng);
            check_backward(&ctx, norm, [t, t, t], rows, cols, &mut rng);
        }
    }
}

#[test]
fn backward_of_many_rows_equals_the_reference() {
    let ctx = context();
    let mut rng = rng("backward_of_many_rows_equals_the_reference");
    for (rows, cols) in [(30_000, 8), (10_000, 33), (3000, 256)] {
        for norm in NORMS {
            let t = any(&mut rng);
            check_backward(&ctx, norm, [t, t, t], rows, cols, &mut rng);
        }
    }
}

#[test]
fn results_do_not_depend_on_threads_or_runs() {
    let mut seed = rng("results_do_not_depend_on_threads_or_runs");
    let contexts: Vec<Context> = match on_cuda() {
        true => vec![context(), context()],
        false => {
            [1, 2, 3].map(|n| Context::new(Device::Cpu, &ContextOptions { num_threads: Some(n), ..Default::default() }).unwrap()).into()
        }
    };
    for (rows, cols) in [(700, 520), (90, 4104), (1000, 77)] {
        let (xt, yt) = (any(&mut seed), FP8[seed.random_range(0..2)]);
        let values = normal(&mut seed, rows * cols, 0.0, 1.0);
        for norm in NORMS {
            let fixed: u64 = seed.random();
            let again = |ctx: &Context| {
                let mut rng: StdRng = rand::SeedableRng::seed_from_u64(fixed);
                let forward = check_forward(ctx, norm, xt, yt, rows, cols, &values, &mut rng);
                (forward, check_backward(ctx, norm, [xt; 3], rows, cols, &mut rng))
            };
            let first = again(&contexts[0]);
            for ctx in &contexts[1..] {
                assert!(first == again(ctx), "{norm:?}Norm [{rows}, {cols}]: other bits");
            }
        }
    }
}

#[test]
fn no_rows_give_zero_weight_gradients() {
    let ctx = context();
    let (x, _) = Tensor::input(&ctx, DType::Bf16, 0, 40, 40, 0, &[]);
    let (dgamma, dbeta) = (Tensor::output(&ctx, DType::F32, 1, 40, 40, 0), Tensor::output(&ctx, DType::Bf16, 1, 40, 40, 1));
    let bytes = norm_bwd_workspace(&ctx, 40).unwrap();
    let workspace = Guarded::new(&ctx, bytes as usize, 0);
    let args = NormBwdArgs {
        dy: x.view(),
        x: x.view(),
        dsum: None,
        gamma: None,
        zero_centered_gamma: false,
        mu: Ptr::NULL,
        rsigma: Ptr::NULL,
        dx: x.view(),
        dgamma: Some(dgamma.view()),
        dbeta: Some(dbeta.view()),
        workspace: workspace.ptr(),
        workspace_bytes: bytes,
    };
    // SAFETY: all tensors are live.
    unsafe { layernorm_bwd(&ctx, &args, Stream::NULL) }.unwrap();
    sync(&ctx);
    assert_eq!(dgamma.read(), vec![0.0; 40]);
    assert_eq!(dbeta.read(), vec![0.0; 40]);
}

#[test]
fn preparing_writes_nothing() {
    let ctx = context();
    let x = Tensor::output(&ctx, DType::Bf16, 8, 64, 64, 0);
    let (y, y_t) = (Tensor::output(&ctx, DType::E4m3, 8, 64, 64, 0), Tensor::output(&ctx, DType::E4m3, 64, 8, 8, 0));
    let view = y.view().with_transpose(y_t.ptr(), 8);
    let (mu, rsigma) = (Ptr::NULL, Ptr::NULL);
    let args = NormFwdArgs {
        x: x.view(),
        residual: None,
        sum: None,
        gamma: None,
        beta: None,
        zero_centered_gamma: false,
        eps: 1e-5,
        y: view,
        mu,
        rsigma,
    };
    // SAFETY: all tensors are live.
    unsafe { layernorm_fwd(&ctx, &args, Stream::PREPARE) }.unwrap();
    sync(&ctx);
    assert!(y.codes().iter().chain(&y_t.codes()).all(|c| *c == u32::from(common::POISON)));
}

#[test]
fn wrong_arguments_are_refused() {
    let ctx = context();
    let (x, y) = (Tensor::output(&ctx, DType::F32, 4, 6, 6, 0), Tensor::output(&ctx, DType::F32, 4, 6, 6, 0));
    let stats = Tensor::output(&ctx, DType::F32, 1, 4, 4, 0);
    let gamma = Tensor::output(&ctx, DType::F32, 1, 6, 6, 0);
    let good = NormFwdArgs {
        x: x.view(),
        residual: None,
        sum: None,
        gamma: Some(gamma.view()),
        beta: None,
        zero_centered_gamma: false,
        eps: 1e-5,
        y: y.view(),
        mu: Ptr::NULL,
        rsigma: stats.ptr(),
    };
    let refused = |norm: Norm, change: &dyn Fn(&mut NormFwdArgs), status: Status, name: &str| {
        let mut args = good;
        change(&mut args);
        // SAFETY: refused, so nothing is read or written.
        let e = unsafe { call_forward(norm, &ctx, &args) }.unwrap_err();
        assert_eq!(e.status(), status, "{e}");
        assert!(e.message().starts_with(name), "{e} does not name {name}");
    };
    refused(Norm::Layer, &|a| a.eps = -1.0, Status::InvalidValue, "eps");
    refused(Norm::Layer, &|a| a.eps = f32::NAN, Status::InvalidValue, "eps");
    refused(Norm::Layer, &|a| a.x.dtype = DType::E4m3, Status::InvalidDType, "x.dtype");
    refused(Norm::Layer, &|a| a.x.ld = 5, Status::InvalidStride, "x.ld");
    refused(Norm::Layer, &|a| a.y.rows = 3, Status::InvalidShape, "y");
    refused(Norm::Layer, &|a| a.y.data = a.x.data, Status::Overlap, "y");
    refused(Norm::Layer, &|a| a.y.data_t = stats.ptr(), Status::Unsupported, "y.data_t");
    refused(Norm::Layer, &|a| a.y.amax = stats.ptr(), Status::Unsupported, "y.amax");
    refused(Norm::Layer, &|a| a.gamma = Some(x.view()), Status::InvalidShape, "gamma");
    refused(Norm::Layer, &|a| a.mu = a.rsigma, Status::Overlap, "mu");
    refused(Norm::Layer, &|a| a.x.data = Ptr::NULL, Status::NullPointer, "x.data");
    refused(Norm::Layer, &|a| a.residual = Some(a.x), Status::NullPointer, "sum");
    refused(Norm::Rms, &|a| a.sum = Some(a.x), Status::NullPointer, "residual");
    refused(Norm::Layer, &|a| (a.residual, a.sum) = (Some(a.x), Some(a.x)), Status::Overlap, "sum");
    refused(
        Norm::Layer,
        &|a| (a.residual, a.sum) = (Some(TensorView { dtype: DType::F16, ..a.x }), Some(a.y)),
        Status::InvalidDType,
        "residual.dtype",
    );
    refused(Norm::Rms, &|a| a.beta = a.gamma, Status::Unsupported, "beta");
    refused(Norm::Rms, &|a| a.mu = a.rsigma, Status::Unsupported, "mu");
    assert!(y.codes().iter().all(|c| *c == u32::MAX), "y was written");

    let dx = Tensor::output(&ctx, DType::F32, 4, 6, 6, 0);
    let dgamma = Tensor::output(&ctx, DType::F32, 1, 6, 6, 0);
    let good = NormBwdArgs {
        dy: y.view(),
        x: x.view(),
        dsum: None,
        gamma: None,
        zero_centered_gamma: false,
        mu: stats.ptr(),
        rsigma: stats.ptr(),
        dx: dx.view(),
        dgamma: None,
        dbeta: None,
        workspace: Ptr::NULL,
        workspace_bytes: 0,
    };
    let refused = |norm: Norm, change: &dyn Fn(&mut NormBwdArgs), status: Status, name: &str| {
        let mut args = good;
        change(&mut args);
        // SAFETY: refused, so nothing is read or written.
        let e = unsafe { call_backward(norm, &ctx, &args) }.unwrap_err();
        assert_eq!(e.status(), status, "{e}");
        assert!(e.message().starts_with(name), "{e} does not name {name}");
    };
    refused(Norm::Layer, &|a| a.rsigma = Ptr::NULL, Status::NullPointer, "rsigma");
    refused(Norm::Layer, &|a| a.mu = Ptr::NULL, Status::NullPointer, "mu");
    refused(Norm::Layer, &|a| a.dx.data = a.dy.data, Status::Overlap, "dx");
    refused(Norm::Layer, &|a| a.dgamma = Some(dx.view()), Status::InvalidShape, "dgamma");
    refused(Norm::Layer, &|a| a.dsum = Some(gamma.view()), Status::InvalidShape, "dsum");
    refused(Norm::Layer, &|a| a.dsum = Some(a.dx), Status::Overlap, "dx");
    refused(Norm::Rms, &|_| (), Status::Unsupported, "mu");
    if norm_bwd_workspace(&ctx, 6).unwrap() > 0 {
        refused(Norm::Layer, &|a| a.dgamma = Some(dgamma.view()), Status::WorkspaceTooSmall, "workspace_bytes");
    }
    assert_eq!(norm_bwd_workspace(&ctx, -1).unwrap_err().status(), Status::InvalidShape);
}
