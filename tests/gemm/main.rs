//! Matrix products against f64 products of the decoded operands, within the bounds of NUMERICS section 9.

#[path = "../common/mod.rs"]
mod common;

mod case;
mod codes;
mod cublaslt;
mod large;

use case::*;
use common::{context, on_cuda, oracle, rng, sync, values, Guarded, SlotF32, Tensor};
use nvte::{
    ops::gemm::{fp8_gemm, gemm, gemm_plans_export, gemm_plans_import, gemm_prepare, gemm_workspace, Accumulate, Epilogue, GemmArgs},
    Context, ContextOptions, DType, Device, Ptr, Status, Stream, TensorView,
};
use rand::RngExt;

#[test]
fn every_pair_output_and_mode() {
    let (ctx, mut rng) = (context(), rng("every_pair_output_and_mode"));
    for (a, b) in pairs() {
        for d in DType::ALL {
            for mode in MODES {
                // The first has a fast path on tensor cores, the second none.
                for (m, n, k) in [(64, 96, 160), (37, 51, 67)] {
                    Case::new(m, n, k, a, b, d, mode).run(&ctx, &mut rng);
                }
            }
        }
    }
}

#[test]
fn every_layout() {
    let (ctx, mut rng) = (context(), rng("every_layout"));
    for (a, b) in [(DType::E4m3, DType::E5m2), (DType::Bf16, DType::Bf16), (DType::F32, DType::F32)] {
        for bits in 0..16 {
            for (m, n, k, pad, offset) in [(48, 80, 112, 16, 0), (45, 83, 111, 3, 5)] {
                let layout = |s: u32| Layout { k_major: bits >> s & 1 != 0, transpose: bits >> (s + 1) & 1 != 0, pad, offset };
                let mut case = Case::new(m, n, k, a, b, DType::F32, Accumulate::Precise);
                (case.layout_a, case.layout_b, case.pad, case.offset) = (layout(0), layout(2), pad, offset);
                case.run(&ctx, &mut rng);
            }
        }
    }
}

#[test]
fn where_both_layouts_are_there_either_is_read() {
    let (ctx, mut rng) = (context(), rng("where_both_layouts_are_there_either_is_read"));
    let (m, n, k) = (33, 47, 65);
    for transpose in [false, true] {
        let x = values(&mut rng, m * k, false);
        let mut a = Operand::new(&ctx, DType::E4m3, m, k, Layout { transpose, ..Layout::DENSE }, &x, Some(0.5));
        let other = Operand::new(&ctx, DType::E4m3, m, k, Layout { transpose, k_major: false, ..Layout::DENSE }, &x, None);
        let present = other.view;
        if transpose {
            (a.view.data, a.view.ld) = (present.data, present.ld);
        } else {
            (a.view.data_t, a.view.ld_t) = (present.data_t, present.ld_t);
        }
        assert!(!a.view.data.is_null() && !a.view.data_t.is_null());
        let b = Operand::random(&ctx, DType::E4m3, n, k, Layout::DENSE, &mut rng);
        Case::new(m, n, k, DType::E4m3, DType::E4m3, DType::F32, Accumulate::Precise).run_with(&ctx, &mut rng, &a, &b);
        assert!(a.scale_inv.is_some() && a.tensor.ptr() != other.tensor.ptr());
    }
}

#[test]
fn bias_c_alpha_beta() {
    let (ctx, mut rng) = (context(), rng("bias_c_alpha_beta"));
    for (a, b) in [(DType::E4m3, DType::E4m3), (DType::E5m2, DType::E4m3), (DType::F16, DType::F16), (DType::F32, DType::F32)] {
        for d in DType::ALL {
            for bias in [None, Some(DType::F32), Some(DType::F16), Some(DType::Bf16)] {
                for (beta, c, c_is_d) in
                    [(0.0, DType::F32, false), (1.0, d, true), (-0.5, d, false), (2.0, DType::Bf16, false), (1.0, DType::F32, false)]
                {
                    let aligned = rng.random_bool(0.5);
                    let (m, n, k) = if aligned { (32, 64, 96) } else { (31, 35, 50) };
                    let mut case = Case::new(m, n, k, a, b, d, MODES[rng.random_range(0..2)]);
                    case.bias = bias.map(|t| (t, if aligned { 0 } else { 1 }));
                    (case.beta, case.c, case.c_is_d) = (beta, c, c_is_d);
                    case.alpha = [1.0, -1.5, 0.25, 0.0][rng.random_range(0..4)];
                    case.run(&ctx, &mut rng);
                }
            }
        }
    }
}

/// Small integers, so that sums are exact in every accumulator, and a bias and a C that make f32 sums exact: the result is then the exact
/// value rounded once. A library that rounds before it adds shows here.
#[test]
fn one_rounding() {
    let (ctx, mut rng) = (context(), rng("one_rounding"));
    let (m, n, k) = (64, 64, 64);
    for (a, b) in pairs() {
        for d in HIGH {
            for addend in HIGH {
                for with_c in [false, true] {
                    let mut whole = |count: usize| -> Vec<f32> { (0..count).map(|_| rng.random_range(-4i32..=4) as f32).collect() };
                    let (x, y) = (whole(m * k), whole(n * k));
                    let x = Operand::new(&ctx, a, m, k, Layout::DENSE, &x, a.is_fp8().then_some(0.5));
                    let y = Operand::new(&ctx, b, n, k, Layout::DENSE, &y, b.is_fp8().then_some(2.0));
                    let mut fractions =
                        |count: usize| -> Vec<f32> { (0..count).map(|_| rng.random_range(-127i32..=127) as f32 / 64.0).collect() };
                    let (bias, bias_held) = Tensor::input(&ctx, addend, 1, n, n, 0, &fractions(n));
                    let (c, c_held) = Tensor::input(&ctx, d, m, n, n, 0, &fractions(m * n));
                    let out = Tensor::output(&ctx, d, m, n, n, 0);
                    let mut args = GemmArgs::new(x.view, y.view, out.view(), Accumulate::Precise).with_bias(bias.ptr(), addend);
                    let beta = if with_c { 0.5 } else { 0.0 };
                    args = args.with_c(beta, c.view());
                    run(&ctx, &args);
                    let r = reference(&x, &y, m, n, k, 1.0, Some(&bias_held), beta, Some(&c_held));
                    let want: Vec<u32> = r.want.iter().map(|v| code(d, *v as f32)).collect();
                    let what = format!("{} x {} -> {} + {} bias, beta {beta}", a.name(), b.name(), d.name(), addend.name());
                    common::assert_codes_equal(&what, &out.codes(), &want, n);
                }
            }
        }
    }
}

fn code(d: DType, v: f32) -> u32 {
    u32::from_le_bytes(oracle::to_bytes(d, v).0)
}

/// Partial sums beside a large one: what the precise mode is for.
#[test]
fn precise_accumulation_keeps_small_terms() {
    let (ctx, mut rng) = (context(), rng("precise_accumulation_keeps_small_terms"));
    let (m, n, k) = (16, 16, 8192);
    for (a, b) in [(DType::E4m3, DType::E4m3), (DType::E4m3, DType::E5m2), (DType::E5m2, DType::E5m2)] {
        for mode in MODES {
            let head = rng.random_range(0..k);
            // 256 * 256 once, 1/4 * 1/4 everywhere else: an accumulator of 14 bits beside 65536 keeps multiples of 8.
            let x: Vec<f32> = (0..m * k).map(|i| if i % k == head { 256.0 } else { 0.25 }).collect();
            let y: Vec<f32> = (0..n * k).map(|i| if i % k == head { 256.0 } else { 0.25 }).collect();
            let x = Operand::new(&ctx, a, m, k, Layout::DENSE, &x, None);
            let y = Operand::new(&ctx, b, n, k, Layout::DENSE, &y, None);
            let out = Tensor::output(&ctx, DType::F32, m, n, n, 0);
            run(&ctx, &GemmArgs::new(x.view, y.view, out.view(), mode));
            let want = 65536.0 + (k - 1) as f64 / 16.0;
            let error = out.read().iter().map(|v| (f64::from(*v) - want).abs() / want).fold(0.0, f64::max);
            println!("{} x {} {mode:?}: {error:e}", a.name(), b.name());
            let hardware = ctx.capability().fp8_gemm_hardware;
            let allowed = match mode {
                Accumulate::Precise if hardware => 2f64.powi(-12),
                Accumulate::Fast if hardware => 2f64.powi(-6),
                _ => 2f64.powi(-20) * (k as f64).sqrt(),
            };
            assert!(error <= allowed, "{} x {} {mode:?}: {error:e} > {allowed:e}", a.name(), b.name());
        }
    }
}

/// dW += dYᵀ·X over micro-batches, into an f32 gradient, from operands with tokens as their rows.
#[test]
fn weight_gradient_accumulates_into_f32() {
    let (ctx, mut rng) = (context(), rng("weight_gradient_accumulates_into_f32"));
    for (tokens, outputs, inputs) in [(64, 48, 80), (37, 19, 53)] {
        let start = values(&mut rng, outputs * inputs, false);
        let (grad, held) = Tensor::input(&ctx, DType::F32, outputs, inputs, inputs, 0, &start);
        let mut want: Vec<f64> = held.iter().map(|v| f64::from(*v)).collect();
        let mut size: Vec<f64> = want.iter().map(|v| v.abs()).collect();
        for _ in 0..4 {
            let l = Layout { k_major: false, transpose: true, ..Layout::DENSE };
            let dy = Operand::random(&ctx, DType::E5m2, outputs, tokens, l, &mut rng);
            let x = Operand::random(&ctx, DType::E4m3, inputs, tokens, l, &mut rng);
            let args =
                GemmArgs::new(dy.view, x.view, grad.view(), Accumulate::Precise).with_transposes(true, true).with_c(1.0, grad.view());
            run(&ctx, &args);
            let r = reference(&dy, &x, outputs, inputs, tokens, 1.0, None, 0.0, None);
            want.iter_mut().zip(&r.want).for_each(|(w, v)| *w += v);
            size.iter_mut().zip(&r.size).for_each(|(s, v)| *s += v);
        }
        let bound = bound(&ctx, DType::E4m3, Accumulate::Precise, tokens);
        assert_close("weight gradient", DType::F32, &grad.read(), &Reference { want, size }, bound);
    }
}

#[test]
fn sizes_of_zero_and_one() {
    let (ctx, mut rng) = (context(), rng("sizes_of_zero_and_one"));
    for (a, b) in [(DType::E4m3, DType::E5m2), (DType::Bf16, DType::Bf16)] {
        for d in DType::ALL {
            for m in [0, 1, 17] {
                for n in [0, 1, 16] {
                    for k in [0, 1, 16] {
                        let mut case = Case::new(m, n, k, a, b, d, Accumulate::Fast);
                        case.bias = rng.random_bool(0.5).then_some((DType::F32, 0));
                        case.beta = if rng.random() { 1.0 } else { 0.0 };
                        (case.c, case.c_is_d) = (d, rng.random());
                        (case.layout_a, case.layout_b) = (Layout::random(&mut rng), Layout::random(&mut rng));
                        case.run(&ctx, &mut rng);
                    }
                }
            }
        }
    }
}

/// With K = 0 the slots of A and B mean nothing, and with beta = 0 neither does C, nor what D held.
#[test]
fn what_is_not_read_does_not_leak() {
    let (ctx, mut rng) = (context(), rng("what_is_not_read_does_not_leak"));
    for (a, b) in [(DType::E4m3, DType::E4m3), (DType::F16, DType::F16)] {
        for d in HIGH {
            for (m, n) in [(48, 64), (17, 23)] {
                let k = 32;
                let nan = vec![f32::NAN; m * n];
                let (c, _) = Tensor::input(&ctx, d, m, n, n, 0, &nan);
                let x = Operand::random(&ctx, a, m, k, Layout::DENSE, &mut rng);
                let y = Operand::random(&ctx, b, n, k, Layout::DENSE, &mut rng);
                // C beside D, and C that is D, both NaN.
                let out = Tensor::output(&ctx, d, m, n, n, 0);
                for view in [out.view(), c.view()] {
                    run(&ctx, &GemmArgs::new(x.view, y.view, view, Accumulate::Fast).with_c(0.0, c.view()));
                    let got = if view.data == c.ptr() { c.read() } else { out.read() };
                    let r = reference(&x, &y, m, n, k, 1.0, None, 0.0, None);
                    assert_close("beta 0", d, &got, &r, bound(&ctx, a, Accumulate::Fast, k));
                }
                // alpha = 0: operands of NaN.
                let bad = Operand::new(&ctx, a, m, k, Layout::DENSE, &vec![f32::NAN; m * k], a.is_fp8().then_some(f32::NAN));
                let (bias, held) = Tensor::random(&ctx, DType::F32, 1, n, n, 0, &mut rng, false);
                let mut args = GemmArgs::new(bad.view, y.view, out.view(), Accumulate::Fast).with_bias(bias.ptr(), DType::F32);
                args.alpha = 0.0;
                run(&ctx, &args);
                let want: Vec<u32> = (0..m * n).map(|i| code(d, held[i % n])).collect();
                common::assert_codes_equal("alpha 0", &out.codes(), &want, n);
            }
        }
    }
}

#[test]
fn nan_and_infinity_propagate() {
    let (ctx, mut rng) = (context(), rng("nan_and_infinity_propagate"));
    for (a, b) in pairs() {
        for (m, n, k) in [(32, 48, 64), (13, 21, 19)] {
            let (mut x, y) = (values(&mut rng, m * k, false), values(&mut rng, n * k, false));
            x[3 * k + 5] = f32::NAN;
            let infinite = match a {
                DType::E4m3 | DType::E5m2 => None,
                _ => Some(f32::INFINITY),
            };
            if let Some(v) = infinite {
                x[7 * k + 1] = v;
            }
            let x = Operand::new(&ctx, a, m, k, Layout::DENSE, &x, None);
            let y = Operand::new(&ctx, b, n, k, Layout::DENSE, &y, None);
            for d in DType::ALL {
                let out = Tensor::output(&ctx, d, m, n, n, 0);
                let amax = SlotF32::new(&ctx, 0.0);
                let mut view = out.view();
                if d.is_fp8() {
                    view.amax = amax.ptr();
                }
                run(&ctx, &GemmArgs::new(x.view, y.view, view, Accumulate::Precise));
                let r = reference(&x, &y, m, n, k, 1.0, None, 0.0, None);
                let got = out.read();
                let what = format!("{} x {} -> {} [{m}, {n}, {k}]", a.name(), b.name(), d.name());
                if d.is_fp8() {
                    assert!((0..n).all(|j| got[3 * n + j].is_nan()), "{what}: NaN row");
                    assert!((0..m * n).all(|i| i / n == 3 || r.want[i].is_nan() || got[i].is_finite()), "{what}: NaN leaks");
                    assert!(amax.read().is_nan(), "{what}: amax hides NaN");
                } else {
                    assert_close(&what, d, &got, &r, bound(&ctx, a, Accumulate::Precise, k));
                }
            }
        }
    }
}

/// scale_inv far from 1, each beyond what f32 could hold squared; the product is ordinary.
#[test]
fn extreme_scales_multiply_out() {
    let (ctx, mut rng) = (context(), rng("extreme_scales_multiply_out"));
    let (m, n, k) = (24, 24, 48);
    let (x, y) = (values(&mut rng, m * k, false), values(&mut rng, n * k, false));
    for (s, t) in [(1e30f32, 1e-30f32), (1e-38, 1e38)] {
        let a = Operand::new(&ctx, DType::E4m3, m, k, Layout::DENSE, &x, Some(s));
        let b = Operand::new(&ctx, DType::E4m3, n, k, Layout::DENSE, &y, Some(t));
        Case::new(m, n, k, DType::E4m3, DType::E4m3, DType::F32, Accumulate::Precise).run_with(&ctx, &mut rng, &a, &b);
    }
}

/// NVTE_FUZZ_CASES products of random description; none may be refused.
#[test]
fn random_products() {
    let (ctx, mut rng) = (context(), rng("random_products"));
    let count = std::env::var("NVTE_FUZZ_CASES").ok().and_then(|v| v.parse().ok()).unwrap_or(60);
    let all = pairs();
    for _ in 0..count {
        let (a, b) = all[rng.random_range(0..all.len())];
        // Multiples of 16 often enough that the fast paths are met too.
        let unit = if rng.random_bool(0.3) { 16 } else { 1 };
        let mut side = || rng.random_range(0..=300 / unit) * unit;
        let (m, n, k) = (side(), side(), side());
        let mut case = Case::new(m, n, k, a, b, DType::ALL[rng.random_range(0..5)], MODES[rng.random_range(0..2)]);
        (case.layout_a, case.layout_b) = (Layout::random(&mut rng), Layout::random(&mut rng));
        case.alpha = if rng.random() { 1.0 } else { rng.random_range(-2.0f32..2.0) };
        case.beta = if rng.random() { 0.0 } else { rng.random_range(-2.0f32..2.0) };
        case.bias = rng.random_bool(0.5).then(|| (HIGH[rng.random_range(0..3)], rng.random_range(0..4)));
        (case.c, case.c_is_d) = (if rng.random() { case.d } else { HIGH[rng.random_range(0..3)] }, rng.random());
        if rng.random_bool(0.7) {
            (case.pad, case.offset) = (rng.random_range(0..20), rng.random_range(0..20));
        }
        case.run(&ctx, &mut rng);
    }
}

/// A description to spoil, and what it then must say.
#[test]
fn errors_name_the_argument_and_leave_d_alone() {
    let (ctx, mut rng) = (context(), rng("errors_name_the_argument_and_leave_d_alone"));
    let (m, n, k) = (16, 32, 48);
    let a = Operand::random(&ctx, DType::E4m3, m, k, Layout::DENSE, &mut rng);
    let b = Operand::random(&ctx, DType::E4m3, n, k, Layout::DENSE, &mut rng);
    let out = Tensor::output(&ctx, DType::Bf16, m, n, n, 0);
    let (c, _) = Tensor::random(&ctx, DType::Bf16, m, n, n, 0, &mut rng, false);
    let slot = SlotF32::new(&ctx, 1.0);
    let good = GemmArgs::new(a.view, b.view, out.view(), Accumulate::Fast);
    let workspace = Guarded::new(&ctx, gemm_workspace(&ctx, &good).unwrap() as usize + 4096, 0);
    let good = good.with_workspace(workspace.ptr(), workspace.bytes() as u64);
    type Spoil<'a> = Box<dyn Fn(&mut GemmArgs) + 'a>;
    let spoils: Vec<(Status, &str, Spoil<'_>)> = vec![
        (Status::InvalidDType, "a.dtype", Box::new(|g| g.a.dtype = DType::F32)),
        (Status::InvalidDType, "b.dtype", Box::new(|g| g.b.dtype = DType::Bf16)),
        (Status::InvalidShape, "a.rows", Box::new(|g| g.a.rows = 15)),
        (Status::InvalidShape, "b.rows", Box::new(|g| g.b.rows = 31)),
        (Status::InvalidShape, "b.cols", Box::new(|g| g.b.cols = 47)),
        (Status::InvalidShape, "d.rows", Box::new(|g| g.d.rows = -1)),
        (Status::InvalidStride, "a.ld", Box::new(|g| g.a.ld = 47)),
        (Status::InvalidStride, "d.ld", Box::new(|g| g.d.ld = 31)),
        (Status::NullPointer, "a.data", Box::new(|g| g.a.data = Ptr::NULL)),
        (Status::NullPointer, "d.data", Box::new(|g| g.d.data = Ptr::NULL)),
        (Status::Misaligned, "d.data", Box::new(|g| g.d.data.0 += 1)),
        (Status::Misaligned, "a.scale_inv", Box::new(|g| g.a.scale_inv.0 += 2)),
        (Status::NullPointer, "c", Box::new(|g| g.beta = 1.0)),
        (Status::InvalidDType, "c.dtype", Box::new(|g| (g.beta, g.c) = (1.0, Some(TensorView { dtype: DType::E4m3, ..c.view() })))),
        (Status::InvalidShape, "c", Box::new(|g| (g.beta, g.c) = (1.0, Some(TensorView { rows: 15, ..c.view() })))),
        (Status::InvalidDType, "bias_dtype", Box::new(|g| (g.bias, g.bias_dtype) = (c.ptr(), DType::E5m2))),
        (Status::Unsupported, "d.data_t", Box::new(|g| g.d.data_t = c.ptr())),
        (Status::Unsupported, "d.amax", Box::new(|g| g.d.amax = slot.ptr())),
        (Status::Unsupported, "epilogue", Box::new(|g| g.epilogue = Epilogue::Gelu)),
        (Status::Overlap, "d", Box::new(|g| g.d.data = Ptr(g.a.data.0 & !1))),
        (Status::Overlap, "d", Box::new(|g| (g.beta, g.c) = (1.0, Some(TensorView { data: g.d.data.offset(2), rows: 16, ..g.d })))),
        (Status::Overlap, "d", Box::new(|g| (g.beta, g.c) = (1.0, Some(TensorView { dtype: DType::F16, ..g.d })))),
    ];
    for (status, name, spoil) in &spoils {
        let mut args = good;
        spoil(&mut args);
        // SAFETY: everything named is live; the call is refused.
        let e = unsafe { fp8_gemm(&ctx, &args, Stream::NULL) }.expect_err(name);
        assert_eq!(e.status(), *status, "{name}: {e}");
        assert!(e.message().starts_with(name), "{name}: {e}");
    }
    // SAFETY: as above.
    let e = unsafe { gemm(&ctx, &good, Stream::NULL) }.unwrap_err();
    assert_eq!((e.status(), e.message().starts_with("a.dtype")), (Status::InvalidDType, true), "{e}");
    if on_cuda() {
        let args = good.with_workspace(workspace.ptr(), gemm_workspace(&ctx, &good).unwrap().saturating_sub(1));
        if args.workspace_bytes > 0 {
            // SAFETY: as above.
            let e = unsafe { fp8_gemm(&ctx, &args, Stream::NULL) }.unwrap_err();
            assert_eq!(e.status(), Status::WorkspaceTooSmall, "{e}");
        }
    }
    assert!(Accumulate::from_i32(0).is_err() && Accumulate::from_i32(3).is_err() && Epilogue::from_i32(7).is_err());
    sync(&ctx);
    assert!(out.codes().iter().all(|v| *v == 0xFFFF), "D was written by a refused call");
    // SAFETY: everything is live.
    unsafe { fp8_gemm(&ctx, &good, Stream::PREPARE) }.unwrap();
    sync(&ctx);
    assert!(out.codes().iter().all(|v| *v == 0xFFFF), "D was written by a prepared call");
}

#[test]
fn timed_choices_can_be_carried_over() {
    let (ctx, mut rng) = (context(), rng("timed_choices_can_be_carried_over"));
    let (m, n, k) = (128, 256, 192);
    for (t, d) in [(DType::E4m3, DType::Bf16), (DType::Bf16, DType::F32), (DType::E4m3, DType::E4m3)] {
        let a = Operand::random(&ctx, t, m, k, Layout::DENSE, &mut rng);
        let b = Operand::random(&ctx, t, n, k, Layout::DENSE, &mut rng);
        let out = Tensor::output(&ctx, d, m, n, n, 0);
        let args = GemmArgs::new(a.view, b.view, out.view(), Accumulate::Precise);
        let workspace = Guarded::new(&ctx, gemm_workspace(&ctx, &args).unwrap() as usize, 0);
        let args = args.with_workspace(workspace.ptr(), workspace.bytes() as u64);
        // SAFETY: everything is live.
        unsafe {
            assert_eq!(gemm_prepare(&ctx, &args, 0, Stream::NULL).unwrap_err().status(), Status::InvalidValue);
            gemm_prepare(&ctx, &args, 4, Stream::NULL).unwrap();
        }
        Case::new(m, n, k, t, t, d, Accumulate::Precise).run_with(&ctx, &mut rng, &a, &b);
    }
    let text = gemm_plans_export(&ctx);
    assert_eq!(on_cuda(), text.lines().count() > 1, "{text}");
    let other = context();
    gemm_plans_import(&other, &text).unwrap();
    assert_eq!(gemm_plans_export(&other), text);
    Case::new(m, n, k, DType::E4m3, DType::E4m3, DType::Bf16, Accumulate::Precise).run(&other, &mut rng);
    gemm_plans_import(&other, "").unwrap();
    assert_eq!(gemm_plans_import(&other, "of another device").unwrap_err().status(), Status::Unsupported);
    other.trim();
    Case::new(m, n, k, DType::Bf16, DType::Bf16, DType::F32, Accumulate::Precise).run(&other, &mut rng);
}

/// The CPU's results have the same bits whatever the number of threads, in a forked child too.
#[test]
fn threads_do_not_change_results() {
    if on_cuda() {
        return;
    }
    let mut rng = rng("threads_do_not_change_results");
    let context = |n| Context::new(Device::Cpu, &ContextOptions { num_threads: Some(n), ..Default::default() }).unwrap();
    let one = context(1);
    for (m, n, k) in [(300, 290, 1100), (1, 700, 513), (129, 1, 40)] {
        let (x, y) = (values(&mut rng, m * k, false), values(&mut rng, n * k, false));
        for t in [DType::E4m3, DType::F32] {
            let a = Operand::new(&one, t, m, k, Layout::DENSE, &x, None);
            let b = Operand::new(&one, t, n, k, Layout::DENSE, &y, None);
            let result = |ctx: &Context| {
                let out = Tensor::output(ctx, DType::F32, m, n, n, 0);
                run(ctx, &GemmArgs::new(a.view, b.view, out.view(), Accumulate::Fast));
                out.codes()
            };
            let want = result(&one);
            for threads in [2, 3, 7] {
                let ctx = context(threads);
                common::assert_codes_equal(&format!("{threads} threads"), &result(&ctx), &want, n);
            }
        }
    }
}

/// A child of a process whose pool has run has no pool of its own any more: it computes on its one thread, and the same bits.
#[cfg(target_os = "linux")]
#[test]
fn a_forked_child_computes_the_same() {
    if on_cuda() {
        return;
    }
    let mut rng = rng("a_forked_child_computes_the_same");
    let ctx = Context::new(Device::Cpu, &ContextOptions { num_threads: Some(3), ..Default::default() }).unwrap();
    let (m, n, k) = (300, 290, 200);
    let a = Operand::random(&ctx, DType::E4m3, m, k, Layout::DENSE, &mut rng);
    let b = Operand::random(&ctx, DType::E5m2, n, k, Layout::DENSE, &mut rng);
    let out = Tensor::output(&ctx, DType::F32, m, n, n, 0);
    let args = GemmArgs::new(a.view, b.view, out.view(), Accumulate::Fast);
    run(&ctx, &args);
    let want = out.codes();
    let bytes = m * n * 4;
    // SAFETY: D is m * n f32 of this process; the child touches nothing but its own copy of it and leaves without unwinding.
    unsafe {
        let d = std::slice::from_raw_parts_mut(out.ptr().as_ptr::<u8>(), bytes);
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            // Should it hang, it ends.
            libc::alarm(60);
            d.fill(0xFF);
            let ok = fp8_gemm(&ctx, &args, Stream::NULL).is_ok();
            let same = d.chunks_exact(4).zip(&want).all(|(g, w)| g == w.to_le_bytes());
            libc::_exit(if ok && same { 0 } else { 1 });
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert_eq!(status, 0, "the child failed or hung");
    }
}

#[cfg(feature = "capi")]
#[test]
fn from_c() {
    use nvte::capi::{context::*, gemm::*, types::*};
    let (ctx, mut rng) = (context(), rng("from_c"));
    let (m, n, k) = (20, 30, 40);
    let a = Operand::random(&ctx, DType::E4m3, m, k, Layout::DENSE, &mut rng);
    let b = Operand::random(&ctx, DType::E5m2, n, k, Layout::DENSE, &mut rng);
    let out = Tensor::output(&ctx, DType::F32, m, n, n, 0);
    let tensor = |v: &TensorView| {
        // SAFETY: a plain C struct, for which zeros are valid.
        let mut t: nvte_tensor_t = unsafe { std::mem::zeroed() };
        t.struct_size = size_of::<nvte_tensor_t>() as u32;
        (t.dtype, t.scaling) = (v.dtype as i32, i32::from(v.dtype.is_fp8()));
        (t.data, t.rows, t.cols, t.ld) = (v.data.as_ptr(), v.rows, v.cols, v.ld);
        t.scale_inv = v.scale_inv.as_ptr();
        t
    };
    let (ta, tb, td) = (tensor(&a.view), tensor(&b.view), tensor(&out.view()));
    // SAFETY: as above; then calls with live structs and memory.
    unsafe {
        let mut args: nvte_gemm_args_t = std::mem::zeroed();
        args.struct_size = size_of::<nvte_gemm_args_t>() as u32;
        (args.a, args.b, args.d, args.alpha) = (&ta, &tb, &td, 1.0);
        let mut handle = std::ptr::null_mut();
        let device = if on_cuda() { NVTE_DEVICE_CUDA } else { NVTE_DEVICE_CPU };
        assert_eq!(nvte_context_create(device, 0, std::ptr::null(), &mut handle), NVTE_OK);
        assert_eq!(nvte_fp8_gemm(handle, &args, std::ptr::null_mut()), NVTE_ERROR_INVALID_ENUM, "accumulate has no default");
        args.accumulate = NVTE_ACCUMULATE_PRECISE;
        let mut bytes = u64::MAX;
        assert_eq!(nvte_gemm_workspace(handle, &args, &mut bytes), NVTE_OK);
        let workspace = Guarded::new(&ctx, bytes as usize, 0);
        (args.workspace, args.workspace_bytes) = (workspace.ptr().as_ptr(), bytes);
        assert_eq!(nvte_gemm(handle, &args, std::ptr::null_mut()), NVTE_ERROR_INVALID_DTYPE);
        args.epilogue = 2;
        assert_eq!(nvte_fp8_gemm(handle, &args, std::ptr::null_mut()), NVTE_ERROR_UNSUPPORTED);
        args.epilogue = NVTE_EPILOGUE_NONE;
        assert_eq!(nvte_fp8_gemm(handle, &args, std::ptr::null_mut()), NVTE_OK);
        sync(&ctx);
        let r = reference(&a, &b, m, n, k, 1.0, None, 0.0, None);
        assert_close("from C", DType::F32, &out.read(), &r, bound(&ctx, DType::E4m3, Accumulate::Precise, k));
        let mut needed = 0;
        assert_eq!(nvte_gemm_plans_export(handle, std::ptr::null_mut(), 0, &mut needed), NVTE_OK);
        let mut text = vec![0i8; needed];
        assert_eq!(nvte_gemm_plans_export(handle, text.as_mut_ptr().cast(), needed, &mut needed), NVTE_OK);
        assert_eq!(nvte_gemm_plans_import(handle, text.as_ptr().cast()), NVTE_OK);
        assert_eq!(nvte_context_destroy(handle), NVTE_OK);
    }
}
