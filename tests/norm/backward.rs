//! Backward passes.

use super::{forward::formula, *};

pub unsafe fn call_backward(norm: Norm, ctx: &Context, args: &NormBwdArgs) -> nvte::Result<()> {
    // SAFETY: forwarded contract.
    unsafe {
        match norm {
            Norm::Layer => layernorm_bwd(ctx, args, Stream::NULL),
            Norm::Rms => rmsnorm_bwd(ctx, args, Stream::NULL),
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
    // Half a subnormal of f16, where all of it is as small.
    let norm = want.iter().map(|v| v * v).sum::<f64>().sqrt();
    let least = if got.dtype == DType::F16 && norm > 0.0 { 2f64.powi(-25) * (want.len() as f64).sqrt() / norm } else { 0.0 };
    let e = relative_error(&got.read(), want);
    assert!(e <= 1e-4 + rounding + least, "{what}: relative error {e}");
}

/// One backward pass, compared with the reference; returns the codes of dx, dgamma, dbeta.
pub fn check_backward(ctx: &Context, norm: Norm, types: [DType; 3], rows: usize, cols: usize, rng: &mut StdRng) -> [Vec<u32>; 3] {
    let [dyt, xt, dxt] = types;
    let aligned = rng.random_bool(0.6);
    let (mean, values) = (rng.random_range(-1.0f32..1.0), normal(rng, rows * cols, 0.3, 1.0));
    let (dy, dy_held) = matrix(ctx, dyt, rows, cols, aligned, &values, rng);
    let values = normal(rng, rows * cols, mean, 2.0);
    let (x, x_held) = matrix(ctx, xt, rows, cols, aligned, &values, rng);
    let zero_centered_gamma = rng.random_bool(0.5);
    let gamma = parameter(ctx, cols, aligned, if zero_centered_gamma { 0.0 } else { 1.0 }, rng);
    let stats = formula(norm, &x_held, cols, &vec![1.0; cols], None, 1e-5);
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
