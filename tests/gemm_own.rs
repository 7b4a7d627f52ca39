//! The project's own GEMM kernels, each forced in turn, against an f64 reference. They exist on CUDA only.
#![cfg(feature = "cuda")]

mod common;

use common::{context, on_cuda, oracle, relative_error, rng, sync, values, Guarded, SlotF32, Tensor};
use nvte::{
    cuda_testing::{Operand, OwnArgs, OwnGemm, OwnKernel},
    Context, DType, Ptr, Stream,
};
use rand::{rngs::StdRng, RngExt};
use DType::{Bf16, E4m3, E5m2, F16, F32};

/// One operand in memory and the values it holds, `[rows, k]`.
struct Side {
    memory: Tensor,
    scale_inv: SlotF32,
    inv: f32,
    k_major: bool,
    held: Vec<f32>,
}

impl Side {
    fn random(ctx: &Context, rng: &mut StdRng, dtype: DType, rows: usize, k: usize, k_major: bool, aligned: bool) -> Self {
        let (r, c) = if k_major { (rows, k) } else { (k, rows) };
        let (pad, offset) = if aligned { (c.next_multiple_of(16) - c, 0) } else { (rng.random_range(0..5), rng.random_range(0..17)) };
        let (memory, stored) = Tensor::random(ctx, dtype, r, c, c + pad, offset, rng, false);
        let held = if k_major { stored } else { (0..rows * k).map(|i| stored[(i % k) * rows + i / k]).collect() };
        let inv = if dtype.is_fp8() { rng.random_range(0.25f32..4.0) } else { 1.0 };
        Self { memory, scale_inv: SlotF32::new(ctx, inv), inv, k_major, held }
    }

    fn operand(&self) -> Operand {
        let scale_inv = if self.memory.dtype.is_fp8() { self.scale_inv.ptr() } else { Ptr::NULL };
        Operand { dtype: self.memory.dtype, data: self.memory.ptr(), ld: self.memory.ld as i64, k_major: self.k_major, scale_inv }
    }
}

#[derive(Clone, Copy, Debug)]
struct Case {
    kernel: OwnKernel,
    a: DType,
    b: DType,
    d: DType,
    m: usize,
    n: usize,
    k: usize,
    layout: (bool, bool),
    aligned: bool,
    fast: bool,
    alpha: f32,
    /// Types of bias and C; beta is 0 without C.
    bias: Option<DType>,
    c: Option<DType>,
    in_place: bool,
    extra_ld: usize,
    offset: usize,
}

fn tolerance(arch: i32, c: &Case) -> f64 {
    let k = c.k as f64;
    match (c.kernel, c.fast) {
        (OwnKernel::Sm90, _) if arch != 90 => unreachable!(),
        (OwnKernel::Sm90, true) => 2f64.powi(-14) * k.sqrt().max(1.0),
        (OwnKernel::Sm90, false) => 2f64.powi(-12),
        _ => 2f64.powi(-20) * k.sqrt().max(1.0),
    }
}

fn check(ctx: &Context, own: &OwnGemm, rng: &mut StdRng, case: Case) {
    let Case { m, n, k, .. } = case;
    let a = Side::random(ctx, rng, case.a, m, k, case.layout.0, case.aligned);
    let b = Side::random(ctx, rng, case.b, n, k, case.layout.1, case.aligned);
    let ldd = n + case.extra_ld;
    let bias = case.bias.map(|t| Tensor::random(ctx, t, 1, n, n, case.offset, rng, false));
    let c_type = if case.in_place { Some(case.d) } else { case.c };
    let c = c_type.map(|t| Tensor::random(ctx, t, m, n, ldd, case.offset, rng, false));
    let beta = if c.is_some() { rng.random_range(-2.0f32..2.0) } else { 0.0 };
    let fresh = Tensor::output(ctx, case.d, m, n, ldd, case.offset);
    let d = if case.in_place { &c.as_ref().unwrap().0 } else { &fresh };
    let before = rng.random_range(0.0f32..0.1);
    let scale = rng.random_range(0.1f32..8.0);
    let (d_scale, d_scale_inv, amax) = (SlotF32::new(ctx, scale), SlotF32::poisoned(ctx), SlotF32::new(ctx, before));
    let mut args = OwnArgs {
        ldd: ldd as i64,
        c: c.as_ref().map_or(Ptr::NULL, |c| c.0.ptr()),
        c_dtype: c_type.unwrap_or(F32),
        ldc: ldd as i64,
        bias: bias.as_ref().map_or(Ptr::NULL, |b| b.0.ptr()),
        bias_dtype: case.bias.unwrap_or(F32),
        d_scale: if case.d.is_fp8() { d_scale.ptr() } else { Ptr::NULL },
        d_scale_inv: if case.d.is_fp8() { d_scale_inv.ptr() } else { Ptr::NULL },
        amax: amax.ptr(),
        alpha: case.alpha,
        beta,
        fast_accumulate: case.fast,
        force: Some(case.kernel),
        ..plain([m, n, k], a.operand(), b.operand(), d.ptr(), case.d)
    };
    let bytes = own.workspace(&args).unwrap();
    let mut any = args;
    (any.a.data, any.b.data) = (Ptr::NULL, Ptr::NULL);
    assert!(own.workspace(&any).unwrap() >= bytes, "{case:?}: the query for any alignment");
    let workspace = with_workspace(ctx, own, &mut args);
    run(ctx, own, &args);
    workspace.read();

    let factor = f64::from(case.alpha) * f64::from(a.inv) * f64::from(b.inv);
    let mut want = vec![0f64; m * n];
    for r in 0..m {
        for s in 0..n {
            let dot: f64 = a.held[r * k..][..k].iter().zip(&b.held[s * k..][..k]).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
            let mut v = if k == 0 { 0.0 } else { factor * dot };
            if let Some((_, held)) = &bias {
                v += f64::from(held[s]);
            }
            if let Some((_, held)) = &c {
                v += f64::from(beta) * f64::from(held[r * n + s]);
            }
            want[r * n + s] = v;
        }
    }
    let inverse = if case.d.is_fp8() { 1.0 / f64::from(scale) } else { 1.0 };
    let got = d.read();
    let half_ulp = match case.d {
        F32 => 2f64.powi(-24),
        F16 => 2f64.powi(-11),
        Bf16 => 2f64.powi(-8),
        E4m3 => 2f64.powi(-4),
        E5m2 => 2f64.powi(-3),
    };
    // Elementwise saturation of FP8 is part of the contract; the reference saturates likewise.
    let limit = match case.d {
        E4m3 => 448.0,
        E5m2 => 57344.0,
        _ => f64::INFINITY,
    };
    let want_d: Vec<f64> = want.iter().map(|v| (v / inverse).clamp(-limit, limit)).collect();
    let e = relative_error(&got, &want_d);
    let bound = tolerance(own.arch(), &case) + half_ulp;
    assert!(e <= bound, "{case:?}: error {e:e}, bound {bound:e}; {}", own.describe(&args).unwrap());
    if m * n > 0 {
        let largest = want.iter().fold(f64::from(before), |m, v| m.max(v.abs()));
        let seen = f64::from(amax.read());
        let norm = (want.iter().map(|v| v * v).sum::<f64>()).sqrt();
        assert!((seen - largest).abs() <= largest * 1e-6 + norm * bound, "{case:?}: amax {seen}, want {largest}");
    } else {
        assert_eq!(amax.read(), before, "{case:?}: nothing to record");
    }
    if case.d.is_fp8() {
        assert_eq!(d_scale_inv.read(), 1.0 / scale, "{case:?}: scale_inv");
    }
}

/// D = A B^T and nothing else, D dense, by the kernel that the library would choose.
fn plain([m, n, k]: [usize; 3], a: Operand, b: Operand, d: Ptr, d_dtype: DType) -> OwnArgs {
    OwnArgs {
        m: m as i64,
        n: n as i64,
        k: k as i64,
        a,
        b,
        d,
        d_dtype,
        ldd: n as i64,
        c: Ptr::NULL,
        c_dtype: F32,
        ldc: 0,
        bias: Ptr::NULL,
        bias_dtype: F32,
        d_scale: Ptr::NULL,
        d_scale_inv: Ptr::NULL,
        amax: Ptr::NULL,
        alpha: 1.0,
        beta: 0.0,
        fast_accumulate: false,
        workspace: Ptr::NULL,
        workspace_bytes: 0,
        force: None,
    }
}

/// Adds the workspace that the call asks for.
fn with_workspace(ctx: &Context, own: &OwnGemm, args: &mut OwnArgs) -> Guarded {
    let workspace = Guarded::new(ctx, own.workspace(args).unwrap() as usize, 0);
    (args.workspace, args.workspace_bytes) = (workspace.ptr(), workspace.bytes() as u64);
    workspace
}

/// The call itself; everything it names is live.
fn run(ctx: &Context, own: &OwnGemm, args: &OwnArgs) {
    // SAFETY: all tensors are live and described as they are.
    unsafe { own.run(args, Stream::NULL) }.unwrap();
    sync(ctx);
}

/// The kernels this device can run, and the operand types of each.
fn kernels(own: &OwnGemm) -> Vec<(OwnKernel, DType, DType)> {
    let fp8 = [(E4m3, E4m3), (E4m3, E5m2), (E5m2, E4m3), (E5m2, E5m2)];
    let mut all: Vec<_> = fp8.iter().map(|(a, b)| (OwnKernel::Mma, *a, *b)).collect();
    all.extend([(OwnKernel::Mma, F16, F16), (OwnKernel::Mma, Bf16, Bf16), (OwnKernel::Simt, F32, F32), (OwnKernel::Simt, E4m3, F16)]);
    if own.arch() == 90 {
        all.extend(fp8.iter().map(|(a, b)| (OwnKernel::Sm90, *a, *b)));
    }
    all
}

#[test]
fn every_kernel_agrees_with_f64_on_odd_and_even_shapes() {
    if !on_cuda() {
        return;
    }
    let ctx = context();
    let own = OwnGemm::new(0).unwrap();
    let mut rng = rng("every_kernel_agrees_with_f64_on_odd_and_even_shapes");
    #[rustfmt::skip]
    let shapes = [(1, 1, 1), (128, 128, 128), (64, 256, 512), (127, 65, 129), (33, 200, 17), (257, 130, 1000), (16, 16, 16), (300, 3, 100), (5, 0, 8), (9, 7, 0)];
    for (kernel, a, b) in kernels(&own) {
        for (i, (m, n, k)) in shapes.into_iter().enumerate() {
            for layout in [(true, true), (true, false), (false, true), (false, false)] {
                let case = Case {
                    kernel,
                    a,
                    b,
                    d: DType::ALL[rng.random_range(0..5)],
                    m,
                    n,
                    k,
                    layout,
                    aligned: rng.random_bool(0.5),
                    fast: i % 2 == 0,
                    alpha: rng.random_range(-2.0f32..2.0),
                    bias: [None, Some(F32), Some(F16), Some(Bf16)][rng.random_range(0..4)],
                    c: [None, None, Some(F32), Some(F16), Some(Bf16)][rng.random_range(0..5)],
                    in_place: false,
                    extra_ld: rng.random_range(0..9),
                    offset: rng.random_range(0..9),
                };
                check(&ctx, &own, &mut rng, case);
            }
        }
    }
}

#[test]
fn random_shapes_strides_offsets_and_options() {
    if !on_cuda() {
        return;
    }
    let ctx = context();
    let own = OwnGemm::new(0).unwrap();
    let mut rng = rng("random_shapes_strides_offsets_and_options");
    for (kernel, a, b) in kernels(&own) {
        for _ in 0..40 {
            let d = DType::ALL[rng.random_range(0..5)];
            let in_place = !d.is_fp8() && rng.random_bool(0.3);
            let case = Case {
                kernel,
                a,
                b,
                d,
                m: rng.random_range(0..300),
                n: rng.random_range(0..300),
                k: rng.random_range(0..300),
                layout: (rng.random(), rng.random()),
                aligned: rng.random(),
                fast: rng.random(),
                alpha: 1.0,
                bias: [None, Some(F32), Some(Bf16)][rng.random_range(0..3)],
                c: [None, Some(F32), Some(Bf16)][rng.random_range(0..3)],
                in_place,
                extra_ld: rng.random_range(0..20),
                offset: rng.random_range(0..20),
            };
            check(&ctx, &own, &mut rng, case);
        }
    }
}

/// Products with several tiles per block, all tile sizes, clusters with an odd number of tile rows.
#[test]
fn large_shapes_reach_every_tile() {
    if !on_cuda() {
        return;
    }
    let ctx = context();
    let own = OwnGemm::new(0).unwrap();
    let mut rng = rng("large_shapes_reach_every_tile");
    let mut seen = Vec::new();
    let shapes: [(usize, usize, usize); 6] =
        [(4096, 8192, 260), (4225, 8447, 133), (2049, 2047, 515), (1000, 1030, 300), (12288, 3000, 64), (385, 36000, 128)];
    for (m, n, k) in shapes {
        let pitch = k.next_multiple_of(16);
        let (a, held_a) = Tensor::input(&ctx, E4m3, m, k, pitch, 0, &values(&mut rng, m * k, false));
        let (b, held_b) = Tensor::input(&ctx, E5m2, n, k, pitch, 0, &values(&mut rng, n * k, false));
        for fast in [true, false] {
            for kernel in [OwnKernel::Sm90, OwnKernel::Mma] {
                if kernel == OwnKernel::Sm90 && own.arch() != 90 {
                    continue;
                }
                let d = Tensor::output(&ctx, Bf16, m, n, n, 0);
                let operand = |t: &Tensor| Operand { dtype: t.dtype, data: t.ptr(), ld: pitch as i64, k_major: true, scale_inv: Ptr::NULL };
                let mut args =
                    OwnArgs { fast_accumulate: fast, force: Some(kernel), ..plain([m, n, k], operand(&a), operand(&b), d.ptr(), Bf16) };
                let workspace = with_workspace(&ctx, &own, &mut args);
                run(&ctx, &own, &args);
                workspace.read();
                let what = own.describe(&args).unwrap();
                seen.push(what.clone());
                // Every row and column is looked at, in a sample of 20 000 elements and all of the last row and column.
                let got = d.read();
                let (mut diff, mut norm) = (0f64, 0f64);
                let mut look = |r: usize, s: usize| {
                    let want: f64 = (0..k).map(|i| f64::from(held_a[r * k + i]) * f64::from(held_b[s * k + i])).sum();
                    let v = f64::from(got[r * n + s]);
                    let bound = 0.02 * want.abs() + 0.05 * (k as f64).sqrt();
                    assert!((v - want).abs() <= bound, "{what}: [{m}, {n}, {k}] at ({r}, {s}): got {v}, want {want}");
                    diff += (v - want).powi(2);
                    norm += want * want;
                };
                for _ in 0..20_000 {
                    look(rng.random_range(0..m), rng.random_range(0..n));
                }
                (0..n).for_each(|s| look(m - 1, s));
                (0..m).for_each(|r| look(r, n - 1));
                let bound = 2f64.powi(-14) * (k as f64).sqrt() + 2f64.powi(-8);
                assert!((diff / norm).sqrt() <= bound, "{what}: [{m}, {n}, {k}]: error {:e}", (diff / norm).sqrt());
            }
        }
    }
    seen.sort();
    seen.dedup();
    println!("{}", seen.join("\n"));
}

/// Values whose product leaves f32's range on the way, infinities and NaN.
#[test]
fn extreme_scales_and_special_values() {
    if !on_cuda() {
        return;
    }
    let ctx = context();
    let own = OwnGemm::new(0).unwrap();
    for (kernel, a_type, b_type) in kernels(&own) {
        if !b_type.is_fp8() {
            continue;
        }
        let (m, n, k) = (3, 5, 7);
        let mut a_values = vec![1.0f32; m * k];
        a_values[k] = f32::NAN;
        let (a, _) = Tensor::input(&ctx, a_type, m, k, k, 1, &a_values);
        let (b, _) = Tensor::input(&ctx, b_type, n, k, k, 3, &vec![2.0f32; n * k]);
        let (inv_a, inv_b) = (SlotF32::new(&ctx, 1e-39), SlotF32::new(&ctx, 1e38));
        let d = Tensor::output(&ctx, F32, m, n, n, 0);
        let amax = SlotF32::new(&ctx, 0.0);
        let operand = |t: &Tensor, s: &SlotF32| Operand { dtype: t.dtype, data: t.ptr(), ld: k as i64, k_major: true, scale_inv: s.ptr() };
        let mut args = OwnArgs {
            fast_accumulate: true,
            force: Some(kernel),
            amax: amax.ptr(),
            alpha: 10.0,
            ..plain([m, n, k], operand(&a, &inv_a), operand(&b, &inv_b), d.ptr(), F32)
        };
        let workspace = with_workspace(&ctx, &own, &mut args);
        run(&ctx, &own, &args);
        workspace.read();
        let got = d.read();
        for (i, v) in got.iter().enumerate() {
            // 7 products of 2, times 10 * 1e-39 * 1e38 = 1 (1e-39 is a subnormal: 6 digits).
            assert!(if i / n == 1 { v.is_nan() } else { (v - 14.0).abs() < 1e-4 }, "{kernel:?} {a_type:?} {b_type:?}: element {i} is {v}");
        }
        assert!(amax.read().is_nan(), "{kernel:?}: NaN stays on top");
    }
}

/// The rates that the issue asks for; printed, and held to a floor far below them so that a broken pipeline shows.
#[test]
fn rate_on_odd_vocabularies() {
    // Under a sanitizer there is no rate to speak of.
    if !on_cuda() || std::env::var_os("NVTE_TEST_SMALL").is_some() {
        return;
    }
    let ctx = context();
    let own = OwnGemm::new(0).unwrap();
    if own.arch() != 90 {
        return;
    }
    let mut rng = rng("rate_on_odd_vocabularies");
    for (m, n, k) in [(12288usize, 28996usize, 1024usize), (4097, 4095, 4099), (8192, 8192, 8192)] {
        for fast in [true, false] {
            let codes = |rng: &mut StdRng, len: usize| -> Vec<u8> {
                // Codes of N(0, 1): what power draw and hence clocks depend on.
                let some = values(rng, 1 << 16, false);
                let table: Vec<u8> = some.iter().map(|v| oracle::encode(E4m3, *v) as u8).collect();
                (0..len).map(|i| table[(i.wrapping_mul(0x9E37_79B9) >> 7) & 0xFFFF]).collect()
            };
            let a = Guarded::from_bytes(&ctx, &codes(&mut rng, m * k), 0);
            let b = Guarded::from_bytes(&ctx, &codes(&mut rng, n * k), 0);
            let d = Guarded::new(&ctx, m * n * 2, 0);
            let operand = |p: Ptr| Operand { dtype: E4m3, data: p, ld: k as i64, k_major: true, scale_inv: Ptr::NULL };
            let mut args =
                OwnArgs { fast_accumulate: fast, force: None, ..plain([m, n, k], operand(a.ptr()), operand(b.ptr()), d.ptr(), Bf16) };
            let workspace = with_workspace(&ctx, &own, &mut args);
            // SAFETY: all tensors are live and described as they are.
            let mut run = || unsafe { own.run(&args, Stream::NULL) };
            run().unwrap();
            own.seconds(10, &mut run).unwrap();
            let best = (0..5).map(|_| own.seconds(20, &mut run).unwrap()).fold(f64::INFINITY, f64::min);
            let rate = 2.0 * m as f64 * n as f64 * k as f64 / best / 1e12;
            println!("[{m}, {n}, {k}] {}: {:.1} us, {rate:.0} TFLOPS", own.describe(&args).unwrap(), best * 1e6);
            workspace.read();
            assert!(rate > 200.0, "{rate} TFLOPS");
        }
    }
}
