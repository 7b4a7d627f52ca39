//! Activations, forward and backward, against f64 formulas: every function, type, layout and kind of alignment.

#[path = "../common/mod.rs"]
mod common;

mod output;
mod reference;

use common::{assert_codes_equal, context, oracle, rng, sync, tolerance::forward_bound, values, SlotF32, Tensor};
use nvte::{
    ops::activation::{activation_bwd, activation_bwd_workspace, activation_fwd, Activation, ActivationArgs, ActivationBwdArgs},
    Context, DType, Ptr, Status, Stream, TensorView,
};
use output::{Dbias, Output};
use rand::{rngs::StdRng, seq::IndexedRandom, RngExt};
use reference::{backward, formula, forward, width};

const HIGH: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];
const SHAPES: [(usize, usize); 13] =
    [(1, 1), (3, 5), (1, 8), (7, 16), (64, 64), (65, 130), (130, 136), (17, 33), (128, 256), (300, 40), (1, 1000), (200, 1), (129, 264)];
const EMPTY: [(usize, usize); 3] = [(0, 7), (7, 0), (0, 0)];

/// Inputs where f32 and f64 agree on what is NaN: a product of an infinity with something that only f32 rounds to 0 is kept out, be it
/// the function of `a` or a product of the two others.
fn inputs(rng: &mut StdRng, kind: Activation, rows: usize, hidden: usize, special: bool) -> (Vec<f32>, Vec<f32>) {
    let width = width(kind, hidden);
    let mut x: Vec<f32> = values(rng, rows * width, special).into_iter().map(|v| v * 2.0).collect();
    let dy = values(rng, rows * hidden, special);
    for r in 0..rows {
        for c in 0..hidden {
            let (b, g) = (if kind.is_gated() { x[r * width + hidden + c] } else { 1.0 }, dy[r * hidden + c]);
            let vanishes = b != 0.0 && g != 0.0 && (b * g).abs() < 1e-30;
            let a = &mut x[r * width + c];
            // f16 turns what is large into an infinity.
            let large = |v: f32| v.abs() > 6e4;
            if ((large(b) || large(g)) && !(1e-3..4.0).contains(&a.abs())) || (vanishes && large(*a)) {
                *a = a.signum() * 1.5;
            }
        }
    }
    (x, dy)
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
                    let width = width(kind, hidden);
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

/// Without a bias gradient.
fn bwd_args(kind: Activation, dy: TensorView, input: TensorView, output: TensorView) -> ActivationBwdArgs {
    ActivationBwdArgs {
        kind,
        dy,
        input,
        output,
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
                    let width = width(kind, hidden);
                    let aligned = rng.random();
                    let gradient = if rng.random_bool(0.8) { input } else { *HIGH.choose(&mut rng).unwrap() };
                    let (pad, offset) = placement(&mut rng, width, aligned);
                    let (x, x_held) = Tensor::input(&ctx, input, rows, width, width + pad, offset, &x);
                    let (pad, offset) = placement(&mut rng, hidden, aligned);
                    let (dy, dy_held) = Tensor::input(&ctx, gradient, rows, hidden, hidden + pad, offset, &dy);
                    let (pad, offset) = placement(&mut rng, width, aligned);
                    let dx = Output::new(&ctx, &mut rng, output, rows, width, pad, offset);
                    let mut args = bwd_args(kind, dy.view(), x.view(), dx.view());
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
                        d.check(&what, &wanted, width, args.accumulate);
                    }
                }
            }
        }
    }
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
            let width = width(kind, hidden);
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
                    ..bwd_args(kind, dy.view(), x.view(), dx.view())
                };
                // SAFETY: all tensors are live.
                unsafe { activation_bwd(&ctx, &args, Stream::NULL) }.unwrap();
                sync(&ctx);
                let what = format!("d{} -> {} aligned {aligned}", kind.name(), output.name());
                let wanted = backward(kind, &x_held, &dy_held, hidden);
                d.check(&what, &wanted, width, false);
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
    // One small shape for all functions, and for some one of more tiles than a device has multiprocessors, where blocks are larger.
    let all = Activation::ALL.into_iter().map(|kind| (kind, 150, 168));
    for (kind, rows, hidden) in all.chain([(Activation::Gelu, 1203, 1800), (Activation::Swiglu, 1203, 1800)]) {
        for (input, output) in [(DType::Bf16, DType::E4m3), (DType::F32, DType::E5m2), (DType::F16, DType::F32), (DType::F32, DType::Bf16)]
        {
            let (x, dy) = inputs(&mut rng, kind, rows, hidden, false);
            let width = width(kind, hidden);
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
                    activation_bwd(&ctx, &bwd_args(kind, dy.view(), x.view(), dx.view()), Stream::NULL).unwrap();
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
            let args = bwd_args(kind, dy.view(), x.view(), dx.view());
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
            ..bwd_args(kind, dy.view(), x.view(), dx.view())
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
            let width = width(kind, hidden);
            let d = Dbias::new(&ctx, &mut rng, kind, 0, hidden, DType::F32);
            let (inv, amax) = (SlotF32::poisoned(&ctx), SlotF32::new(&ctx, 0.5));
            let nothing = |dtype, cols: usize| TensorView::new(dtype, Ptr::NULL, 0, cols as i64);
            let output = nothing(DType::E5m2, width).with_scaling(Ptr::NULL, inv.ptr(), amax.ptr());
            let args = ActivationBwdArgs {
                dbias: d.vector.ptr(),
                accumulate,
                workspace: d.workspace.ptr(),
                workspace_bytes: d.bytes,
                ..bwd_args(kind, nothing(DType::Bf16, hidden), nothing(DType::Bf16, width), output)
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
