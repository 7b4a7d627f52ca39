//! Forward passes.

use super::*;

pub struct Forward {
    pub y: Vec<f64>,
    /// Largest term of each element.
    pub t: Vec<f64>,
    pub mu: Vec<f64>,
    pub rsigma: Vec<f64>,
}

pub fn formula(norm: Norm, x: &[f32], cols: usize, weight: &[f64], beta: Option<&[f32]>, eps: f32) -> Forward {
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

pub unsafe fn call_forward(norm: Norm, ctx: &Context, args: &NormFwdArgs) -> nvte::Result<()> {
    // SAFETY: forwarded contract.
    unsafe {
        match norm {
            Norm::Layer => layernorm_fwd(ctx, args, Stream::NULL),
            Norm::Rms => rmsnorm_fwd(ctx, args, Stream::NULL),
        }
    }
}

/// The outputs of one forward pass as raw codes: y, its transpose, mu, rsigma.
pub type Codes = (Vec<u32>, Vec<u32>, Vec<u32>, Vec<u32>);

/// One forward pass on `values`, compared with the reference; returns what it wrote.
pub fn check_forward(ctx: &Context, norm: Norm, xt: DType, yt: DType, rows: usize, cols: usize, values: &[f32], rng: &mut StdRng) -> Codes {
    check_forward_of(ctx, norm, [xt, yt], false, rows, cols, values, rng)
}

/// The same where `plain` says whether everything is as layers have it: aligned, without a residual, parameters there and of x's type.
fn check_forward_of(
    ctx: &Context,
    norm: Norm,
    [xt, yt]: [DType; 2],
    plain: bool,
    rows: usize,
    cols: usize,
    values: &[f32],
    rng: &mut StdRng,
) -> Codes {
    let aligned = plain || rng.random_bool(0.5);
    let (x, x_held) = matrix(ctx, xt, rows, cols, aligned, values, rng);
    // With a residual, what is normalised is the sum as it is written: f32's sum, rounded once.
    let more = normal(rng, rows * cols, 0.1, 0.5);
    let residual = (!plain && rng.random_bool(0.4)).then(|| matrix(ctx, xt, rows, cols, aligned, &more, rng));
    let sum = output(ctx, xt, rows, cols, aligned, rng);
    let held: Vec<f32> = match &residual {
        None => x_held.clone(),
        Some((_, r)) => x_held.iter().zip(r).map(|(x, r)| oracle::to_bytes(xt, x + r).1).collect(),
    };
    let zero_centered_gamma = rng.random_bool(0.5);
    let any_parameter = |centre: f32, rng: &mut StdRng| {
        if plain {
            let values = normal(rng, cols, centre, 0.5);
            return Some(matrix(ctx, xt, 1, cols, true, &values, rng));
        }
        parameter(ctx, cols, aligned, centre, rng)
    };
    let gamma = any_parameter(if zero_centered_gamma { 0.0 } else { 1.0 }, rng);
    let beta = if norm == Norm::Layer { any_parameter(0.0, rng) } else { None };
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
    let want = formula(norm, &held, cols, &weight, beta.as_ref().map(|b| &b.1[..]), eps);
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

/// What layers ask for, of whole warps' columns: rows that blocks share out evenly and that they do not, one warp and several.
#[test]
fn forward_of_plain_rows_equals_the_reference() {
    let ctx = context();
    let mut rng = rng("forward_of_plain_rows_equals_the_reference");
    let few = [(1, 256), (7, 512), (2, 768), (33, 1280), (5, 1792), (6, 2048), (37, 2560), (130, 4096), (3, 8192), (3, 12_288)];
    for (rows, cols) in few.into_iter().chain([(601, 1024), (533, 2048), (530, 5120)]) {
        for norm in NORMS {
            for xt in [DType::Bf16, DType::F16] {
                for yt in [DType::E4m3, DType::E5m2, xt] {
                    let values = normal(&mut rng, rows * cols, 0.5, 1.0);
                    check_forward_of(&ctx, norm, [xt, yt], true, rows, cols, &values, &mut rng);
                }
            }
        }
    }
    // So many that a block has several sets of them.
    let rows = if on_cuda() && std::env::var_os("NVTE_TEST_SMALL").is_none() { 8451 } else { 51 };
    for yt in [DType::E4m3, DType::Bf16] {
        let values = normal(&mut rng, rows * 1536, 0.5, 1.0);
        check_forward_of(&ctx, Norm::Rms, [DType::Bf16, yt], true, rows, 1536, &values, &mut rng);
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

/// Codes that the cache of no device holds. Row-wise codes alone, which other tests compare with the reference, may come from another kernel:
/// then a few are the neighbouring code.
#[test]
fn layouts_beyond_the_cache_hold_the_codes_of_one() {
    let ctx = context();
    let mut rng = rng("layouts_beyond_the_cache_hold_the_codes_of_one");
    let parts = if on_cuda() && std::env::var_os("NVTE_TEST_SMALL").is_none() { 64 } else { 1 };
    for (rows, cols, xt, with_residual) in [
        (16 * 45, 1024, DType::F32, false),
        (16 * 9, 5128, DType::F16, true),
        (16 * 3, 16_384, DType::Bf16, false),
        (16 * 6, 8192, DType::Bf16, true),
    ] {
        let rows = rows * parts + 48;
        let values = normal(&mut rng, rows * cols, 0.5, 1.0);
        let x = matrix(&ctx, xt, rows, cols, true, &values, &mut rng).0;
        let residual = with_residual.then(|| matrix(&ctx, xt, rows, cols, true, &values, &mut rng).0);
        let gamma = parameter(&ctx, cols, true, 1.0, &mut rng);
        let beta = parameter(&ctx, cols, true, 0.0, &mut rng);
        for norm in NORMS {
            let yt = FP8[rng.random_range(0..2)];
            let mut made = Vec::new();
            for both in [false, true] {
                let (y, y_t) = (output(&ctx, yt, rows, cols, true, &mut rng), output(&ctx, yt, cols, rows, true, &mut rng));
                let sum = output(&ctx, xt, rows, cols, true, &mut rng);
                let (mu, rsigma) = (output(&ctx, DType::F32, 1, rows, false, &mut rng), output(&ctx, DType::F32, 1, rows, false, &mut rng));
                let (scale, inv, amax) = (SlotF32::new(&ctx, 3.0), SlotF32::poisoned(&ctx), SlotF32::new(&ctx, 0.5));
                let view = y.view().with_scaling(scale.ptr(), inv.ptr(), amax.ptr());
                let args = NormFwdArgs {
                    x: x.view(),
                    residual: residual.as_ref().map(|r| r.view()),
                    sum: residual.as_ref().map(|_| sum.view()),
                    gamma: gamma.as_ref().map(|g| g.0.view()),
                    beta: beta.as_ref().filter(|_| norm == Norm::Layer).map(|b| b.0.view()),
                    zero_centered_gamma: false,
                    eps: 1e-5,
                    y: if both { view.with_transpose(y_t.ptr(), y_t.ld as i64) } else { view },
                    mu: if norm == Norm::Layer { mu.ptr() } else { Ptr::NULL },
                    rsigma: rsigma.ptr(),
                };
                // SAFETY: all tensors are live.
                unsafe { call_forward(norm, &ctx, &args) }.unwrap();
                sync(&ctx);
                let codes = y.codes();
                if both {
                    let t = y_t.codes();
                    let differ = (0..rows * cols).filter(|i| t[(i % cols) * rows + i / cols] != codes[*i]).count();
                    assert_eq!(differ, 0, "{norm:?}Norm [{rows}, {cols}]: codes of the transposed layout");
                }
                made.push((codes, sum.codes(), mu.codes(), rsigma.codes(), inv.read().to_bits(), amax.read().to_bits()));
            }
            let what = format!("{norm:?}Norm [{rows}, {cols}]");
            let [(one, sum, mu, rsigma, inv, amax), (both, ..)] = &made[..] else { unreachable!() };
            assert!(*sum == made[1].1 && *inv == made[1].4, "{what}: a second layout changes the sum or scale_inv");
            let neighbours = |a: u32, b: u32| a == b || a.abs_diff(b) == 1 || (a | b) == 0x80;
            assert!(one.iter().zip(both).all(|(a, b)| neighbours(*a, *b)), "{what}: a second layout changes codes");
            let differ = one.iter().zip(both).filter(|(a, b)| a != b).count();
            assert!(differ <= 8 + rows * cols / 10_000, "{what}: a second layout changes {differ} codes");
            let near = |a: u32, b: u32| (f32::from_bits(a) - f32::from_bits(b)).abs() <= 1e-5 * f32::from_bits(a).abs() + 1e-6;
            for (name, a, b) in [("mu", mu, &made[1].2), ("rsigma", rsigma, &made[1].3)] {
                // LayerNorm alone writes mu; elsewhere it holds what it held.
                assert!(a.iter().zip(b).all(|(a, b)| a == b || near(*a, *b)), "{what}: a second layout changes {name}");
            }
            assert!(near(*amax, made[1].5), "{what}: a second layout changes the amax");
        }
    }
}

/// Tiles of every width, in part or whole: the columns, types and layouts of what norms in front of FP8 products make.
#[test]
fn tiles_equal_the_reference() {
    let ctx = context();
    let mut rng = rng("tiles_equal_the_reference");
    let few = [(16, 264), (96, 512), (80, 776), (48, 1000), (64, 1024), (112, 1288), (32, 4096)];
    // Blocks of two, three and four groups.
    let wide = [(16, 4104), (32, 5120), (48, 7168), (16, 8192), (16, 8200), (32, 12_288), (16, 12_296), (16, 16_384)];
    for norm in NORMS {
        for xt in [DType::F16, DType::Bf16] {
            for (rows, cols) in few.into_iter().chain(wide) {
                // Rows near and far from zero, of which the latter are summed up otherwise, and rows that hold one value.
                let mut values = normal(&mut rng, rows * cols, 0.5, 1.0);
                for row in 0..rows {
                    let (mean, deviation) = [(0.0, 1.0), (20.0, 1.0), (-3.0, 0.01), (1.5, 0.0)][rng.random_range(0..4)];
                    values[row * cols..(row + 1) * cols].iter_mut().for_each(|v| *v = *v * deviation + mean);
                }
                check_forward(&ctx, norm, xt, FP8[rng.random_range(0..2)], rows, cols, &values, &mut rng);
            }
        }
    }
    // More rows than the device holds at a time, and as many as take larger blocks.
    let rows = if on_cuda() && std::env::var_os("NVTE_TEST_SMALL").is_none() { 8208 } else { 144 };
    for norm in NORMS {
        let values = normal(&mut rng, rows * 1024, 0.5, 1.0);
        check_forward(&ctx, norm, DType::Bf16, DType::E4m3, rows, 1024, &values, &mut rng);
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

/// Such a row lies on its mean, whatever the number of columns: nothing is left of it, and with `eps` 0 no value at all.
#[test]
fn rows_of_one_value_lie_on_their_mean() {
    let ctx = context();
    let mut rng = rng("rows_of_one_value_lie_on_their_mean");
    let rows = 16;
    for cols in [1000, 1024, 1288, 1304, 2816, 4104, 5000, 5120, 9000, 12_296] {
        for (xt, yt) in [DType::F16, DType::Bf16].into_iter().flat_map(|xt| [(xt, xt), (xt, DType::E4m3), (xt, DType::E5m2)]) {
            for (transposed, eps) in [(false, 0.0), (false, 1e-20), (true, 0.0), (true, 1e-20)] {
                if transposed && !yt.is_fp8() {
                    continue;
                }
                // Of few bits, so that the sum of the row is exact.
                let one: Vec<f32> = (0..rows).map(|_| rng.random_range(-31..32) as f32 / 8.0).collect();
                let values: Vec<f32> = (0..rows * cols).map(|i| one[i / cols]).collect();
                let x = matrix(&ctx, xt, rows, cols, true, &values, &mut rng).0;
                let (y, y_t) = (output(&ctx, yt, rows, cols, true, &mut rng), output(&ctx, yt, cols, rows, true, &mut rng));
                let view = if transposed { y.view().with_transpose(y_t.ptr(), y_t.ld as i64) } else { y.view() };
                let (gamma, beta, zero_centered_gamma) = (None, None, false);
                let (mu, rsigma) = (Ptr::NULL, Ptr::NULL);
                let args =
                    NormFwdArgs { x: x.view(), residual: None, sum: None, gamma, beta, zero_centered_gamma, eps, y: view, mu, rsigma };
                // SAFETY: all tensors are live.
                unsafe { layernorm_fwd(&ctx, &args, Stream::NULL) }.unwrap();
                sync(&ctx);
                let good = |v: &f32| if eps == 0.0 { v.is_nan() } else { *v == 0.0 };
                let what = format!("{} -> {} [{rows}, {cols}] transposed {transposed} eps {eps}", xt.name(), yt.name());
                let i = y.read().iter().position(|v| !good(v));
                assert!(i.is_none(), "{what}: element {i:?} is {} where all are {}", y.read()[i.unwrap()], one[i.unwrap() / cols]);
                assert!(!transposed || y_t.read().iter().all(good), "{what}: the transposed layout");
            }
        }
    }
}

#[test]
fn bad_rows_stay_bad_alone() {
    let ctx = context();
    let mut rng = rng("bad_rows_stay_bad_alone");
    let cols = 264;
    for norm in NORMS {
        for (xt, rows) in HIGH.into_iter().flat_map(|xt| [(xt, 23), (xt, 32)]) {
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
