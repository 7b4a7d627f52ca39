//! Tensors of more than 2^31 elements (and 2^32 bytes): offsets that do not fit 32 bits. On the CPU the same checks run on a small one.

mod common;

use common::{
    context,
    large::{Large, Pool},
    on_cuda, oracle, rng, sync,
    tolerance::assert_forward_close,
    Guarded, SlotF32, Tensor,
};
use half::bf16;
use nvte::{
    numerics::random_words,
    ops::{
        cast::{cast_to_fp8, CastArgs},
        cross_entropy::{cross_entropy, CrossEntropyArgs, LogitsGradient, Losses, Reduction, TargetType, Targets},
        dropout::{dropout_fwd, DropoutFwdArgs, Random},
        gemm::{fp8_gemm, gemm_workspace, Accumulate, GemmArgs},
        norm::{layernorm_fwd, NormFwdArgs},
        rope::{rope_fwd, rope_table, Heads, Places, RopeArgs, Rotation},
        softmax::{softmax_bwd, softmax_fwd, Mask, Rows, SoftmaxBwdArgs, SoftmaxFwdArgs},
    },
    Context, DType, Error, Ptr, Status, Stream, TensorView,
};
use rand::{rngs::StdRng, RngExt};

/// More than the largest step holds at once: the input, its codes, and as much again for an output or a workspace.
const MEMORY: u64 = 14 << 30;
const SCALE: f32 = 3.0;
/// Put into the last element: the amax.
const PEAK: f32 = 128.0;

/// A bf16 matrix: a pool's elements, and a peak at the end.
struct Input {
    memory: Large,
    pool: Pool,
    rows: usize,
    cols: usize,
}

impl Input {
    fn new(ctx: &Context, rows: usize, cols: usize, rng: &mut StdRng) -> Result<Self, Error> {
        let pool = Pool::new(DType::Bf16, rng);
        assert!(pool.amax() < PEAK);
        let memory = Large::of_pool(ctx, &pool, rows * cols, 0)?;
        memory.write(2 * (rows * cols - 1), &bf16::from_f32(PEAK).to_le_bytes());
        Ok(Self { memory, pool, rows, cols })
    }

    fn view(&self) -> TensorView {
        TensorView::new(DType::Bf16, self.memory.ptr(), self.rows as i64, self.cols as i64)
    }

    fn value(&self, at: usize) -> f32 {
        if at + 1 == self.rows * self.cols {
            PEAK
        } else {
            self.pool.value(at)
        }
    }

    fn code(&self, at: usize) -> u32 {
        oracle::encode(DType::E4m3, self.value(at) * SCALE)
    }

    fn total(&self) -> usize {
        self.rows * self.cols
    }

    /// Where runs of elements are looked at: both ends, either side of element 2^30 (byte 2^31) and 2^31 (byte 2^32), and anywhere.
    fn places(&self, run: usize, rng: &mut StdRng) -> Vec<usize> {
        let last = self.total() - run;
        let mut all = vec![0, last, ((1 << 30) - run / 2).min(last), ((1 << 31) - run / 2).min(last)];
        all.extend((0..60).map(|_| rng.random_range(0..=last)));
        all
    }
}

/// Both layouts and the amax of a cast. Returns the row-wise codes.
fn casts(ctx: &Context, x: &Input, rng: &mut StdRng) -> Result<Large, Error> {
    let (q, qt) = (Large::new(ctx, x.total(), 0)?, Large::new(ctx, x.total(), 0)?);
    let (scale, inverse, amax) = (SlotF32::new(ctx, SCALE), SlotF32::poisoned(ctx), SlotF32::new(ctx, 0.0));
    let output = TensorView::new(DType::E4m3, q.ptr(), x.rows as i64, x.cols as i64).with_transpose(qt.ptr(), x.rows as i64).with_scaling(
        scale.ptr(),
        inverse.ptr(),
        amax.ptr(),
    );
    // SAFETY: everything is live.
    unsafe { cast_to_fp8(ctx, &CastArgs { input: x.view(), output }, Stream::NULL) }?;
    sync(ctx);
    assert_eq!((amax.read(), inverse.read()), (PEAK, 1.0 / SCALE), "amax and scale_inv");
    const RUN: usize = 256;
    for at in x.places(RUN, rng) {
        let want: Vec<u32> = (at..at + RUN).map(|i| x.code(i)).collect();
        common::assert_codes_equal(&format!("codes from {at} on"), &q.codes(at, RUN), &want, RUN);
        let want: Vec<u32> = (at..at + RUN).map(|i| x.code(i % x.rows * x.cols + i / x.rows)).collect();
        common::assert_codes_equal(&format!("transposed codes from {at} on"), &qt.codes(at, RUN), &want, RUN);
    }
    q.assert_guards("row-wise codes");
    qt.assert_guards("transposed codes");
    x.memory.assert_guards("input");
    Ok(q)
}

/// Rows of a LayerNorm: the first, the last, those at elements 2^30 and 2^31, and some others.
fn norms(ctx: &Context, x: &Input, rng: &mut StdRng) -> Result<(), Error> {
    let y = Large::new(ctx, 2 * x.total(), 0)?;
    let (mu, rsigma) = (Guarded::new(ctx, 4 * x.rows, 0), Guarded::new(ctx, 4 * x.rows, 0));
    let view = TensorView::new(DType::Bf16, y.ptr(), x.rows as i64, x.cols as i64);
    let args = NormFwdArgs {
        x: x.view(),
        residual: None,
        sum: None,
        gamma: None,
        beta: None,
        zero_centered_gamma: false,
        eps: 1e-5,
        y: view,
        mu: mu.ptr(),
        rsigma: rsigma.ptr(),
    };
    // SAFETY: everything is live.
    unsafe { layernorm_fwd(ctx, &args, Stream::NULL) }?;
    sync(ctx);
    let floats = |g: &Guarded| -> Vec<f32> { g.read().chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect() };
    let (mu, rsigma) = (floats(&mu), floats(&rsigma));
    assert!(mu.iter().chain(&rsigma).all(|v| v.is_finite()), "statistics of every row");
    for at in x.places(1, rng).into_iter().take(12) {
        let row = at / x.cols;
        let held: Vec<f64> = (0..x.cols).map(|c| f64::from(x.value(row * x.cols + c))).collect();
        let mean = held.iter().sum::<f64>() / x.cols as f64;
        let variance = held.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / x.cols as f64;
        let r = 1.0 / (variance + 1e-5).sqrt();
        let want: Vec<f64> = held.iter().map(|v| (v - mean) * r).collect();
        let terms: Vec<f64> = held.iter().map(|v| (v * r).abs().max((mean * r).abs())).collect();
        assert_forward_close(&format!("row {row}"), DType::Bf16, &y.bf16(row * x.cols, x.cols), &want, &terms);
        assert!((f64::from(mu[row]) - mean).abs() <= 1e-5, "mean of row {row}: {} for {mean}", mu[row]);
        assert!((f64::from(rsigma[row]) - r).abs() <= 1e-5 * r, "rsigma of row {row}: {} for {r}", rsigma[row]);
    }
    y.assert_guards("norm");
    Ok(())
}

/// Softmax of all rows, then the gradient in the place of its own input, and the cross-entropy's: a few rows of each.
fn row_wise(ctx: &Context, x: &Input, rng: &mut StdRng) -> Result<(), Error> {
    let y = Large::new(ctx, 2 * x.total(), 0)?;
    let view = TensorView::new(DType::Bf16, y.ptr(), x.rows as i64, x.cols as i64);
    let args = SoftmaxFwdArgs { x: x.view(), y: view, scale: 0.5, rows: Rows::default(), mask: Mask::default() };
    // SAFETY: everything is live.
    unsafe { softmax_fwd(ctx, &args, Stream::NULL) }?;
    sync(ctx);
    let held = |row: usize| -> Vec<f64> { (0..x.cols).map(|c| f64::from(x.value(row * x.cols + c))).collect() };
    let places: Vec<usize> = x.places(1, rng).into_iter().take(8).map(|at| at / x.cols).collect();
    let probabilities = |row: usize, scale: f64| -> Vec<f64> {
        let held = held(row);
        let most = held.iter().fold(f64::NEG_INFINITY, |m, v| v.max(m));
        let powers: Vec<f64> = held.iter().map(|v| ((v - most) * scale).exp()).collect();
        let sum: f64 = powers.iter().sum();
        powers.into_iter().map(|p| p / sum).collect()
    };
    // Exponentials far below the largest are 0.
    let terms = |want: &[f64]| -> Vec<f64> { want.iter().map(|v| v.abs().max(2f64.powi(-100))).collect() };
    for row in &places {
        let want = probabilities(*row, 0.5);
        assert_forward_close(&format!("softmax of row {row}"), DType::Bf16, &y.bf16(row * x.cols, x.cols), &want, &terms(&want));
    }
    // The input in the place of the probabilities: any numbers will do.
    let args = SoftmaxBwdArgs { dy: view, y: x.view(), dx: view, scale: 1.0, rows: Rows::default() };
    let before: Vec<Vec<f32>> = places.iter().map(|row| y.bf16(row * x.cols, x.cols)).collect();
    // SAFETY: everything is live.
    unsafe { softmax_bwd(ctx, &args, Stream::NULL) }?;
    sync(ctx);
    for (row, dy) in places.iter().zip(&before) {
        let held = held(*row);
        let (sum, size) = held.iter().zip(dy).fold((0.0, 0.0), |(s, a), (y, d)| (s + y * f64::from(*d), a + (y * f64::from(*d)).abs()));
        let want: Vec<f64> = held.iter().zip(dy).map(|(y, d)| y * (f64::from(*d) - sum)).collect();
        let terms: Vec<f64> = held.iter().zip(dy).map(|(y, d)| (y * f64::from(*d)).abs().max(y.abs() * size)).collect();
        assert_forward_close(&format!("softmax backward of row {row}"), DType::Bf16, &y.bf16(row * x.cols, x.cols), &want, &terms);
    }
    let targets: Vec<u8> = (0..x.rows).flat_map(|row| ((row % x.cols) as i32).to_ne_bytes()).collect();
    let (target, loss) = (Guarded::from_bytes(ctx, &targets, 0), Guarded::new(ctx, 4 * x.rows, 0));
    let args = CrossEntropyArgs {
        logits: x.view(),
        targets: Targets {
            data: target.ptr(),
            dtype: TargetType::I32,
            ignore_index: -100,
            label_smoothing: 0.0,
            reduction: Reduction::None,
        },
        gradient: Some(LogitsGradient { dlogits: view, dloss: Ptr::NULL, dloss_stride: 0 }),
        losses: Losses { loss: loss.ptr(), ..Losses::default() },
        workspace: Ptr::NULL,
        workspace_bytes: 0,
    };
    // SAFETY: everything is live.
    unsafe { cross_entropy(ctx, &args, Stream::NULL) }?;
    sync(ctx);
    let losses: Vec<f32> = loss.read().chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect();
    assert!(losses.iter().all(|v| v.is_finite()), "the loss of every row");
    for row in places {
        let mut want = probabilities(row, 1.0);
        let at = row % x.cols;
        let nll = -want[at].ln();
        assert!((f64::from(losses[row]) - nll).abs() <= 1e-5 * nll + 1e-3, "loss of row {row}: {} for {nll}", losses[row]);
        want[at] -= 1.0;
        let mut terms = terms(&want);
        terms[at] = 1.0;
        assert_forward_close(&format!("gradient of row {row}"), DType::Bf16, &y.bf16(row * x.cols, x.cols), &want, &terms);
    }
    y.assert_guards("softmax and gradients");
    Ok(())
}

/// Few columns, so that the codes are read once; `skip` leaves out that many of the first codes of each row, so that they must be repacked.
fn products(ctx: &Context, x: &Input, q: &Large, skip: usize, rng: &mut StdRng) -> Result<(), Error> {
    let (m, n, k) = (x.rows, 16, x.cols - skip);
    let (b, held) = Tensor::random(ctx, DType::E4m3, n, k, k, 0, rng, false);
    let d = Tensor::output(ctx, DType::F32, m, n, n, 0);
    let a = TensorView::new(DType::E4m3, q.ptr().offset(skip as u64), m as i64, k as i64).with_ld(x.cols as i64);
    let args = GemmArgs::new(a, b.view(), d.view(), Accumulate::Precise);
    let bytes = gemm_workspace(ctx, &args)?;
    let workspace = Large::new(ctx, bytes as usize, 0)?;
    let at = if bytes == 0 { Ptr::NULL } else { workspace.ptr() };
    // SAFETY: everything is live.
    unsafe { fp8_gemm(ctx, &args.with_workspace(at, bytes), Stream::NULL) }?;
    sync(ctx);
    workspace.assert_guards("workspace");
    let got = d.read();
    let (mut error, mut size) = (0.0, 0.0);
    for at in x.places(1, rng) {
        let row = at / x.cols;
        let codes = q.codes(row * x.cols + skip, k);
        let left: Vec<f64> = codes.into_iter().map(|c| oracle::decode(DType::E4m3, c)).collect();
        for j in 0..n {
            let terms = left.iter().zip(&held[j * k..]).map(|(a, b)| a * f64::from(*b));
            let (want, squares) = terms.fold((0.0, 0.0), |(s, q), t| (s + t, q + t * t));
            let (v, limit) = (f64::from(got[row * n + j]), 16.0 * 2f64.powi(-12) * squares.sqrt());
            assert!((v - want).abs() <= limit, "({row}, {j}), {skip} left out: got {v}, want {want} within {limit}");
            error += (v - want).powi(2);
            size += squares;
        }
    }
    assert!(error.sqrt() <= 2f64.powi(-12) * size.sqrt(), "{skip} left out: error {:e}", (error / size).sqrt());
    assert!(got.iter().all(|v| v.is_finite()), "every row was written");
    Ok(())
}

/// Heads of sixteen elements, rotated by each token's position.
fn rotations(ctx: &Context, x: &Input, rng: &mut StdRng) -> Result<(), Error> {
    const DIM: usize = 16;
    let y = Large::new(ctx, 2 * x.total(), 0)?;
    let (mut cos, mut sin) = (vec![0f32; x.rows * DIM / 2], vec![0f32; x.rows * DIM / 2]);
    rope_table(0, DIM as i64, 10_000.0, &mut cos, &mut sin)?;
    let device = |v: &[f32]| Guarded::from_bytes(ctx, &v.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<u8>>(), 0);
    let (c, s) = (device(&cos), device(&sin));
    let side = |data| Heads { data, seq_stride: x.cols as i64, batch_stride: 0, head_stride: DIM as i64 };
    let args = RopeArgs {
        dtype: DType::Bf16,
        seq: x.rows as i64,
        batch: 1,
        heads: (x.cols / DIM) as i64,
        head_dim: DIM as i64,
        x: side(x.memory.ptr()),
        y: side(y.ptr()),
        rotation: Rotation {
            interleaved: false,
            rotary_dim: DIM as i64,
            cos: c.ptr(),
            sin: s.ptr(),
            table_rows: x.rows as i64,
            table_ld: DIM as i64 / 2,
        },
        places: Places::default(),
    };
    // SAFETY: everything is live.
    unsafe { rope_fwd(ctx, &args, Stream::NULL) }?;
    sync(ctx);
    for at in x.places(1, rng) {
        let head = at / DIM * DIM;
        let (row, got) = (head / x.cols, y.bf16(head, DIM));
        for i in 0..DIM / 2 {
            let (a, b) = (x.value(head + i), x.value(head + i + DIM / 2));
            let (c, s) = (cos[row * DIM / 2 + i], sin[row * DIM / 2 + i]);
            let want = [a * c - b * s, b * c + a * s].map(|v| bf16::from_f32(v).to_f32());
            assert_eq!([got[i], got[i + DIM / 2]], want, "pair {i} of the head at {head}");
        }
    }
    y.assert_guards("rotated heads");
    Ok(())
}

/// A quarter dropped, by words that the number of the element gives.
fn dropouts(ctx: &Context, x: &Input, rng: &mut StdRng) -> Result<(), Error> {
    let y = Large::new(ctx, 2 * x.total(), 0)?;
    let (seed, offset): (u64, u64) = (rng.random(), rng.random());
    let state = Guarded::from_bytes(ctx, &[seed, offset].map(u64::to_ne_bytes).concat(), 0);
    let view = TensorView::new(DType::Bf16, y.ptr(), x.rows as i64, x.cols as i64);
    let args = DropoutFwdArgs {
        x: x.view(),
        bias: None,
        residual: None,
        y: view,
        mask: Ptr::NULL,
        mask_ld: 0,
        p: 0.25,
        random: Random { rng: state.ptr(), stream: 1 },
    };
    // SAFETY: everything is live.
    unsafe { dropout_fwd(ctx, &args, Stream::NULL) }?;
    sync(ctx);
    const RUN: usize = 64;
    for at in x.places(RUN, rng) {
        for (i, got) in (at..at + RUN).zip(y.bf16(at, RUN)) {
            let kept = random_words(seed, offset, 1, i as u64 / 4)[i % 4] >= 1 << 30;
            let want = if kept { bf16::from_f32(x.value(i) * (1.0f32 / 0.75)).to_f32() } else { 0.0 };
            assert_eq!(got, want, "element {i}");
        }
    }
    y.assert_guards("dropout");
    Ok(())
}

fn all(ctx: &Context, rows: usize, cols: usize) -> Result<(), Error> {
    let mut rng = rng("beyond_two_to_the_31_elements");
    let x = Input::new(ctx, rows, cols, &mut rng)?;
    let q = casts(ctx, &x, &mut rng)?;
    norms(ctx, &x, &mut rng)?;
    row_wise(ctx, &x, &mut rng)?;
    rotations(ctx, &x, &mut rng)?;
    dropouts(ctx, &x, &mut rng)?;
    products(ctx, &x, &q, 0, &mut rng)?;
    products(ctx, &x, &q, 1, &mut rng)
}

#[test]
fn beyond_two_to_the_31_elements() {
    let ctx = context();
    if !on_cuda() || std::env::var_os("NVTE_TEST_SMALL").is_some() {
        return all(&ctx, 300, 272).unwrap();
    }
    let (rows, cols) = (65_552, 32_784);
    assert!(rows * cols > 1 << 31);
    let total = ctx.capability().total_memory;
    if total < MEMORY {
        return println!("not run: the device has {total} bytes of memory, {MEMORY} are needed");
    }
    match all(&ctx, rows, cols) {
        Err(e) if e.status() == Status::OutOfMemory => println!("not run: {e}"),
        other => other.unwrap(),
    }
}
