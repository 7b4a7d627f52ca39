//! LayerNorm and RMSNorm, forward and backward, against f64 references.

#[path = "../common/mod.rs"]
mod common;

mod backward;
mod forward;

use backward::{call_backward, check_backward};
use common::{
    context, on_cuda, oracle, relative_error, rng, sync,
    tolerance::{assert_amax_close, assert_forward_close, assert_fp8_close, assert_within},
    Guarded, SlotF32, Tensor,
};
use forward::{call_forward, check_forward};
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
