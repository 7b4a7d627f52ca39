//! Cross-entropy, whole and with the vocabulary in slices, against an f64 reference.

mod common;

use common::{
    context, on_cuda, rng, sync,
    tolerance::{assert_within, forward_bound},
    values, Guarded, SlotF32, Tensor,
};
use nvte::{
    ops::cross_entropy::{
        cross_entropy, cross_entropy_combine, cross_entropy_gradient, cross_entropy_partial, cross_entropy_workspace, scale_rows,
        CrossEntropyArgs, CrossEntropyCombineArgs, CrossEntropySliceArgs, LogitsGradient, Losses, Reduction, ScaleRowsArgs, TargetType,
        Targets,
    },
    Context, ContextOptions, DType, Device, Ptr, Status, Stream,
};
use rand::{rngs::StdRng, RngExt};

const HIGH: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

fn place(rng: &mut StdRng, cols: usize) -> (usize, usize) {
    match rng.random_bool(0.5) {
        true => (cols.next_multiple_of(8) + 8 * rng.random_range(0..2), 8 * rng.random_range(0..2)),
        false => (cols + rng.random_range(0..10), rng.random_range(0..9)),
    }
}

/// Targets and options of a call, with the memory they lie in.
struct Case {
    tokens: usize,
    vocabulary: usize,
    targets: Vec<i64>,
    ignore: i64,
    smoothing: f32,
    reduction: Reduction,
    dtype: TargetType,
    memory: Guarded,
    /// One value, one per token, or none.
    dloss: Option<Vec<f32>>,
    dloss_memory: Guarded,
    workspace: Guarded,
}

impl Case {
    fn random(ctx: &Context, tokens: usize, vocabulary: usize, bad: bool, rng: &mut StdRng) -> Self {
        let top = vocabulary.max(1) as i64;
        let ignore = if rng.random_bool(0.5) { -100 } else { rng.random_range(0..top) };
        let targets: Vec<i64> = (0..tokens)
            .map(|_| match rng.random_range(0..8) {
                0 => ignore,
                1 if bad => [-1, top, top + 7, i64::from(i32::MIN)][rng.random_range(0..4)],
                2 => top - 1,
                _ => rng.random_range(0..top),
            })
            .collect();
        let dtype = [TargetType::I64, TargetType::I32][rng.random_range(0..2)];
        let bytes: Vec<u8> = match dtype {
            TargetType::I64 => targets.iter().flat_map(|t| t.to_ne_bytes()).collect(),
            TargetType::I32 => targets.iter().flat_map(|t| (*t as i32).to_ne_bytes()).collect(),
        };
        let dloss = match rng.random_range(0..3) {
            0 => None,
            1 => Some(values(rng, 1, false)),
            _ => Some(values(rng, tokens, false)),
        };
        let reduction = [Reduction::None, Reduction::Sum, Reduction::Mean][rng.random_range(0..3)];
        let size = if reduction == Reduction::None { 0 } else { cross_entropy_workspace(ctx, tokens as i64).unwrap() as usize };
        Self {
            tokens,
            vocabulary,
            ignore,
            smoothing: [0.0, 0.1, 0.5][rng.random_range(0..3)],
            reduction,
            memory: Guarded::from_bytes(ctx, &bytes, bytes.len() / tokens.max(1)),
            dloss_memory: Guarded::from_bytes(ctx, &dloss.iter().flatten().flat_map(|v| v.to_ne_bytes()).collect::<Vec<_>>(), 4),
            workspace: Guarded::new(ctx, size, 0),
            targets,
            dtype,
            dloss,
        }
    }

    fn targets(&self) -> Targets {
        Targets {
            data: self.memory.ptr(),
            dtype: self.dtype,
            ignore_index: self.ignore,
            label_smoothing: self.smoothing,
            reduction: self.reduction,
        }
    }

    fn workspace(&self) -> (Ptr, u64) {
        let bytes = self.workspace.bytes() as u64;
        (if bytes == 0 { Ptr::NULL } else { self.workspace.ptr() }, bytes)
    }

    fn gradient(&self, dlogits: &Tensor) -> LogitsGradient {
        let many = self.dloss.as_ref().is_some_and(|d| d.len() == self.tokens && self.tokens != 1);
        let dloss = if self.dloss.is_some() { self.dloss_memory.ptr() } else { Ptr::NULL };
        LogitsGradient { dlogits: dlogits.view(), dloss, dloss_stride: i64::from(many) }
    }

    fn what(&self, dtype: DType) -> String {
        format!(
            "{} [{}, {}] {:?} {:?} smoothing {} ignore {} targets {:?} dloss {:?}",
            dtype.name(),
            self.tokens,
            self.vocabulary,
            self.dtype,
            self.reduction,
            self.smoothing,
            self.ignore,
            &self.targets[..self.tokens.min(8)],
            self.dloss.as_ref().map(|d| &d[..d.len().min(4)])
        )
    }

    /// What must come out for these logits.
    fn reference(&self, x: &[f32]) -> Reference {
        let (v, e) = (self.vocabulary, f64::from(self.smoothing));
        let mut r = Reference::default();
        let counted = self.targets.iter().filter(|t| **t != self.ignore).count() as f64;
        for (i, t) in self.targets.iter().enumerate() {
            let row: Vec<f64> = x[i * v..(i + 1) * v].iter().map(|x| f64::from(*x)).collect();
            let most = row.iter().fold(f64::NEG_INFINITY, |m, x| x.max(m));
            let base = if most == f64::NEG_INFINITY { 0.0 } else { most };
            let sum: f64 = row.iter().map(|x| (x - base).exp()).sum();
            let lse = base + sum.ln();
            let (ignored, good) = (*t == self.ignore, (0..v as i64).contains(t));
            let g = self.dloss.as_ref().map_or(1.0, |d| f64::from(d[if d.len() == self.tokens { i } else { 0 }]));
            let g = if self.reduction == Reduction::Mean { g / counted } else { g };
            let mean = row.iter().sum::<f64>() / v as f64;
            let loss = match (ignored, good) {
                (true, _) => 0.0,
                (false, false) => f64::NAN,
                _ if e == 0.0 => lse - row[*t as usize],
                _ => (1.0 - e) * (lse - row[*t as usize]) + e * (lse - mean),
            };
            let size = row.iter().fold(0f64, |m, x| if x.is_finite() { x.abs().max(m) } else { m });
            r.loss.push(loss);
            r.loss_terms.push(size);
            r.lse.push(lse);
            for (c, x) in row.iter().enumerate() {
                let p = (x - base).exp() / sum;
                let hit = if c as i64 == *t { 1.0 } else { 0.0 };
                r.dx.push(match (ignored, good) {
                    (true, _) => 0.0,
                    (false, false) => f64::NAN,
                    _ => g * (p - e / v as f64 - (1.0 - e) * hit),
                });
                // In f32 the exponential of x - max is off by the rounding of its argument, too: |x - max| 2^-24, at most |ln p| 2^-24, of it.
                let power = if p > 0.0 { p * (1.5 + p.ln().abs() / 4.0) } else { 0.0 };
                // The largest exponential is 1; beside it, those below 2^-125 are 0.
                r.dx_terms.push(g.abs() * power.max(hit).max(e / v as f64).max(2f64.powi(-100)));
            }
        }
        let sum: f64 = r.loss.iter().sum();
        r.total = match self.reduction {
            Reduction::None => f64::NAN,
            Reduction::Sum => sum,
            Reduction::Mean => sum / counted,
        };
        r
    }
}

#[derive(Default)]
struct Reference {
    loss: Vec<f64>,
    loss_terms: Vec<f64>,
    lse: Vec<f64>,
    dx: Vec<f64>,
    dx_terms: Vec<f64>,
    total: f64,
}

impl Reference {
    fn check_losses(&self, what: &str, loss: &[f32], lse: &[f32], total: Option<f32>) {
        let bound = |want: f64, t: f64| 1e-5 * want.abs() + 1e-6 + 2f64.powi(-21) * t;
        assert_within(&format!("{what}: loss"), DType::F32, loss, &self.loss, |i| bound(self.loss[i], self.loss_terms[i]));
        assert_within(&format!("{what}: logsumexp"), DType::F32, lse, &self.lse, |i| bound(self.lse[i], self.loss_terms[i]));
        if let Some(total) = total {
            let size: f64 = self.loss.iter().zip(&self.loss_terms).map(|(l, t)| l.abs() + 0.1 * t).sum();
            assert_within(&format!("{what}: total"), DType::F32, &[total], &[self.total], |_| 1e-5 * size + 1e-6);
        }
    }

    fn check_gradient(&self, what: &str, dtype: DType, got: &[f32]) {
        assert_within(&format!("{what}: gradient"), dtype, got, &self.dx, |i| forward_bound(dtype, self.dx[i], self.dx_terms[i]));
    }
}

fn floats(g: &Guarded) -> Vec<f32> {
    g.read().chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect()
}

/// What a call wrote, as bits: loss, logsumexp, gradient.
type Bits = (Vec<u8>, Vec<u8>, Vec<u32>);

fn check_whole(ctx: &Context, case: &Case, dtype: DType, x: &[f32], rng: &mut StdRng) -> Bits {
    let (ld, offset) = place(rng, case.vocabulary);
    let (x, held) = Tensor::input(ctx, dtype, case.tokens, case.vocabulary, ld, offset, x);
    let (ld, offset) = if rng.random_bool(0.6) { (x.ld, offset) } else { place(rng, case.vocabulary) };
    let dx = Tensor::output(ctx, dtype, case.tokens, case.vocabulary, ld, offset);
    let (with_gradient, in_place) = (rng.random_bool(0.8), rng.random_bool(0.3));
    let out = if in_place { &x } else { &dx };
    let (loss, lse, total) = (Guarded::new(ctx, 4 * case.tokens, 4), Guarded::new(ctx, 4 * case.tokens, 8), SlotF32::poisoned(ctx));
    // Without the losses, ignored tokens are not looked at.
    let full = rng.random_bool(0.7);
    let reduced = case.reduction != Reduction::None;
    let (workspace, workspace_bytes) = case.workspace();
    let some = |g: &Guarded| if full { g.ptr() } else { Ptr::NULL };
    let args = CrossEntropyArgs {
        logits: x.view(),
        targets: case.targets(),
        gradient: with_gradient.then(|| case.gradient(out)),
        losses: Losses { loss: some(&loss), logsumexp: some(&lse), total: if reduced { total.ptr() } else { Ptr::NULL } },
        workspace,
        workspace_bytes,
    };
    // SAFETY: all memory is live.
    unsafe { cross_entropy(ctx, &args, Stream::NULL) }.unwrap();
    sync(ctx);
    let what = format!("{} gradient {with_gradient} in place {in_place} losses {full}", case.what(dtype));
    let want = case.reference(&held);
    if full {
        want.check_losses(&what, &floats(&loss), &floats(&lse), reduced.then(|| total.read()));
    }
    if with_gradient {
        want.check_gradient(&what, dtype, &out.read());
    }
    if !(with_gradient && in_place) {
        assert!(x.read().iter().zip(&held).all(|(a, b)| a.to_bits() == b.to_bits()), "{what}: the logits were written");
    }
    case.workspace.read();
    case.memory.read();
    (loss.read(), lse.read(), out.codes())
}

#[test]
fn one_pass_equals_the_reference() {
    let (ctx, mut rng) = (context(), rng("one_pass_equals_the_reference"));
    for vocabulary in [1, 2, 3, 7, 8, 9, 31, 64, 100, 255, 256, 257, 1000, 1023, 2048, 4097, 10_007] {
        for dtype in HIGH {
            for _ in 0..if vocabulary > 1000 { 1 } else { 3 } {
                let tokens = rng.random_range(1..if vocabulary > 1000 { 4 } else { 9 });
                let case = Case::random(&ctx, tokens, vocabulary, false, &mut rng);
                let spread = [1.0, 5.0, 50.0][rng.random_range(0..3)];
                let x: Vec<f32> = values(&mut rng, tokens * vocabulary, false).into_iter().map(|v| v * spread).collect();
                check_whole(&ctx, &case, dtype, &x, &mut rng);
            }
        }
    }
}

/// Every number of blocks of a row, and rows that no registers hold.
#[test]
fn large_vocabularies() {
    let (ctx, mut rng) = (context(), rng("large_vocabularies"));
    let sizes: &[usize] = match on_cuda() {
        true => &[30_522, 32_768, 32_769, 50_257, 65_536, 128_256, 131_072, 151_936, 262_144, 262_145, 400_001],
        false => &[30_522, 50_257],
    };
    for vocabulary in sizes {
        for dtype in HIGH {
            let case = Case::random(&ctx, 3, *vocabulary, true, &mut rng);
            let x: Vec<f32> = values(&mut rng, 3 * vocabulary, false).into_iter().map(|v| v * 3.0).collect();
            check_whole(&ctx, &case, dtype, &x, &mut rng);
            check_slices(&ctx, &case, dtype, &x, &mut rng);
        }
    }
}

/// More rows than a device works on at a time: blocks that walk over them come round several times, past ignored ones too.
#[test]
fn many_long_rows() {
    let (ctx, mut rng) = (context(), rng("many_long_rows"));
    let sizes: &[(usize, usize)] = match on_cuda() {
        true => &[(1300, 17_003), (1300, 16_384), (500, 40_003), (200, 100_003)],
        false => &[(20, 17_003), (20, 40_003)],
    };
    for (tokens, vocabulary) in sizes {
        let dtype = HIGH[rng.random_range(0..3)];
        let case = Case::random(&ctx, *tokens, *vocabulary, true, &mut rng);
        let x: Vec<f32> = values(&mut rng, tokens * vocabulary, false).into_iter().map(|v| v * 3.0).collect();
        for _ in 0..3 {
            check_whole(&ctx, &case, dtype, &x, &mut rng);
        }
    }
}

/// Logits so large that their products with log2(e) are rounded to whole numbers.
#[test]
fn large_logits() {
    let (ctx, mut rng) = (context(), rng("large_logits"));
    for vocabulary in [40, 20_011] {
        for dtype in [DType::F32, DType::Bf16] {
            for size in [1e5, 1e7, 1e20, 1e38] {
                let mut case = Case::random(&ctx, 5, vocabulary, false, &mut rng);
                (case.reduction, case.smoothing, case.dloss) = (Reduction::None, 0.0, None);
                case.workspace = Guarded::new(&ctx, 0, 0);
                let mut x: Vec<f32> = values(&mut rng, 5 * vocabulary, false).into_iter().map(|v| v.clamp(-1.0, 1.0) * size).collect();
                // Rows whose largest are equal, of either sign.
                for (i, row) in x.chunks_mut(vocabulary).enumerate() {
                    let most = if i % 2 == 0 { size } else { -size };
                    for v in row.iter_mut() {
                        *v = if rng.random_bool(0.01) { most } else { v.min(most) };
                    }
                }
                check_whole(&ctx, &case, dtype, &x, &mut rng);
            }
        }
    }
}

#[test]
fn bad_targets_infinities_and_nan() {
    let (ctx, mut rng) = (context(), rng("bad_targets_infinities_and_nan"));
    for vocabulary in [1, 6, 40, 700] {
        for dtype in HIGH {
            for odd in [f32::NEG_INFINITY, f32::INFINITY, f32::NAN] {
                let tokens = 6;
                let mut case = Case::random(&ctx, tokens, vocabulary, true, &mut rng);
                case.reduction = Reduction::None;
                case.workspace = Guarded::new(&ctx, 0, 0);
                case.dloss = None;
                case.smoothing = 0.0;
                let mut x = values(&mut rng, tokens * vocabulary, false);
                for row in x.chunks_mut(vocabulary) {
                    match rng.random_range(0..3) {
                        0 => row.fill(odd),
                        1 => row[rng.random_range(0..vocabulary)] = odd,
                        _ => {}
                    }
                }
                check_whole(&ctx, &case, dtype, &x, &mut rng);
            }
        }
    }
}

/// Slices of the vocabulary, their numbers put together, the gradient of each slice.
fn check_slices(ctx: &Context, case: &Case, dtype: DType, x: &[f32], rng: &mut StdRng) {
    let (tokens, v) = (case.tokens, case.vocabulary);
    let ranks = rng.random_range(1..4);
    let mut cuts: Vec<usize> = (1..ranks).map(|_| rng.random_range(0..=v)).collect();
    cuts.extend([0, v]);
    cuts.sort();
    let gap = 4 * rng.random_range(0..3);
    let partials = Guarded::new(ctx, 4 * (ranks * (4 * tokens + gap) - gap), 0);
    let at = |rank: usize| partials.ptr().offset((4 * rank * (4 * tokens + gap)) as u64);
    let mut held = vec![0.0; tokens * v];
    let mut slices = Vec::new();
    for rank in 0..ranks {
        let (from, to) = (cuts[rank], cuts[rank + 1]);
        let mine: Vec<f32> = (0..tokens).flat_map(|i| x[i * v + from..i * v + to].to_vec()).collect();
        let (ld, offset) = place(rng, to - from);
        let (t, values) = Tensor::input(ctx, dtype, tokens, to - from, ld, offset, &mine);
        for i in 0..tokens {
            held[i * v + from..i * v + to].copy_from_slice(&values[i * (to - from)..(i + 1) * (to - from)]);
        }
        let args = CrossEntropySliceArgs {
            logits: t.view(),
            targets: case.targets(),
            start: from as i64,
            vocabulary: v as i64,
            partial: at(rank),
            combined: Ptr::NULL,
            gradient: None,
            workspace: Ptr::NULL,
            workspace_bytes: 0,
        };
        // SAFETY: all memory is live.
        unsafe { cross_entropy_partial(ctx, &args, Stream::NULL) }.unwrap();
        slices.push((t, args));
    }
    let (loss, lse, total) = (Guarded::new(ctx, 4 * tokens, 0), Guarded::new(ctx, 4 * tokens, 0), SlotF32::poisoned(ctx));
    let combined = Guarded::new(ctx, 16 * tokens, 0);
    let reduced = case.reduction != Reduction::None;
    let (workspace, workspace_bytes) = case.workspace();
    let keep = rng.random_bool(0.7);
    let args = CrossEntropyCombineArgs {
        partials: partials.ptr(),
        ranks: ranks as i64,
        rank_stride: (4 * tokens + gap) as i64,
        tokens: tokens as i64,
        vocabulary: v as i64,
        targets: case.targets(),
        combined: combined.ptr(),
        losses: Losses {
            loss: if keep { loss.ptr() } else { Ptr::NULL },
            logsumexp: lse.ptr(),
            total: if reduced { total.ptr() } else { Ptr::NULL },
        },
        workspace,
        workspace_bytes,
    };
    // SAFETY: all memory is live.
    unsafe { cross_entropy_combine(ctx, &args, Stream::NULL) }.unwrap();
    sync(ctx);
    let what = format!("slices {cuts:?} {}", case.what(dtype));
    let want = case.reference(&held);
    let losses = if keep { floats(&loss) } else { want.loss.iter().map(|v| *v as f32).collect() };
    want.check_losses(&what, &losses, &floats(&lse), reduced.then(|| total.read()));
    let mut got = vec![0.0; tokens * v];
    for (rank, (t, args)) in slices.iter().enumerate() {
        let (from, to) = (cuts[rank], cuts[rank + 1]);
        let (ld, offset) = place(rng, to - from);
        let dx = Tensor::output(ctx, dtype, tokens, to - from, ld, offset);
        let out = if rng.random_bool(0.5) { &dx } else { t };
        let gradient = Some(case.gradient(out));
        let args = CrossEntropySliceArgs { partial: Ptr::NULL, combined: combined.ptr(), gradient, workspace, workspace_bytes, ..*args };
        // SAFETY: all memory is live.
        unsafe { cross_entropy_gradient(ctx, &args, Stream::NULL) }.unwrap();
        sync(ctx);
        for (i, row) in out.read().chunks((to - from).max(1)).enumerate() {
            got[i * v + from..i * v + to].copy_from_slice(row);
        }
    }
    want.check_gradient(&what, dtype, &got);
    partials.read();
    combined.read();
    case.workspace.read();
}

#[test]
fn slices_equal_the_whole() {
    let (ctx, mut rng) = (context(), rng("slices_equal_the_whole"));
    for vocabulary in [1, 2, 9, 64, 100, 1000, 3001] {
        for dtype in HIGH {
            let tokens = rng.random_range(1..6);
            let case = Case::random(&ctx, tokens, vocabulary, true, &mut rng);
            let x: Vec<f32> = values(&mut rng, tokens * vocabulary, false).into_iter().map(|v| v * 4.0).collect();
            check_slices(&ctx, &case, dtype, &x, &mut rng);
        }
    }
}

#[test]
fn nothing_to_do() {
    let (ctx, mut rng) = (context(), rng("nothing_to_do"));
    for (tokens, vocabulary) in [(0, 0), (0, 7)] {
        let case = Case::random(&ctx, tokens, vocabulary, false, &mut rng);
        check_whole(&ctx, &case, DType::Bf16, &[], &mut rng);
    }
    // No classes: every target is outside of them.
    let mut case = Case::random(&ctx, 3, 0, false, &mut rng);
    case.ignore = -100;
    case.targets = vec![0, 0, 0];
    case.memory = Guarded::from_bytes(&ctx, &[0; 24], 0);
    let (x, loss) = (Tensor::output(&ctx, DType::F32, 3, 0, 0, 0), Guarded::new(&ctx, 12, 0));
    let (workspace, workspace_bytes) = case.workspace();
    let losses = Losses { loss: loss.ptr(), ..Losses::default() };
    let args = CrossEntropyArgs {
        logits: x.view(),
        targets: case.targets(),
        gradient: Some(case.gradient(&x)),
        losses,
        workspace,
        workspace_bytes,
    };
    // SAFETY: all memory is live.
    unsafe { cross_entropy(&ctx, &args, Stream::NULL) }.unwrap();
    sync(&ctx);
    assert!(floats(&loss).iter().all(|v| v.is_nan()));
}

/// The same bits every time; on the CPU whatever the number of threads.
#[test]
fn same_bits_every_time() {
    let mut rng = rng("same_bits_every_time");
    let options = |n| ContextOptions { num_threads: Some(n), ..ContextOptions::default() };
    let contexts = match on_cuda() {
        true => vec![context(), context()],
        false => [1, 4].map(|n| Context::new(Device::Cpu, &options(n)).unwrap()).into(),
    };
    let (tokens, vocabulary) = (150, 1003);
    for dtype in HIGH {
        let x = values(&mut rng, tokens * vocabulary, false);
        let seed: u64 = rng.random();
        let all: Vec<(Vec<u8>, u32, Vec<u32>)> = contexts
            .iter()
            .map(|ctx| {
                let mut rng = <StdRng as rand::SeedableRng>::seed_from_u64(seed);
                let mut case = Case::random(ctx, tokens, vocabulary, false, &mut rng);
                (case.reduction, case.smoothing) = (Reduction::Mean, 0.1);
                case.workspace = Guarded::new(ctx, cross_entropy_workspace(ctx, tokens as i64).unwrap() as usize, 0);
                let (x, _) = Tensor::input(ctx, dtype, tokens, vocabulary, vocabulary, 0, &x);
                let (dx, loss) = (Tensor::output(ctx, dtype, tokens, vocabulary, vocabulary, 0), Guarded::new(ctx, 4 * tokens, 0));
                let total = SlotF32::poisoned(ctx);
                let (workspace, workspace_bytes) = case.workspace();
                let args = CrossEntropyArgs {
                    logits: x.view(),
                    targets: case.targets(),
                    gradient: Some(case.gradient(&dx)),
                    losses: Losses { loss: loss.ptr(), logsumexp: Ptr::NULL, total: total.ptr() },
                    workspace,
                    workspace_bytes,
                };
                // SAFETY: all memory is live.
                unsafe { cross_entropy(ctx, &args, Stream::NULL) }.unwrap();
                sync(ctx);
                (loss.read(), total.read().to_bits(), dx.codes())
            })
            .collect();
        assert!(all[0] == all[1], "{}", dtype.name());
    }
}

#[test]
fn rows_are_scaled() {
    let (ctx, mut rng) = (context(), rng("rows_are_scaled"));
    for dtype in HIGH {
        for (rows, cols) in [(1, 1), (5, 9), (7, 1000), (600, 33), (2, 20_001)] {
            for many in [false, true] {
                let (ld, offset) = place(&mut rng, cols);
                let (x, held) = Tensor::random(&ctx, dtype, rows, cols, ld, offset, &mut rng, false);
                let count = if many { rows } else { 1 };
                let scales: Vec<f32> = (0..count).map(|_| [1.0, 0.25, -3.0, 0.0][rng.random_range(0..4)]).collect();
                let memory = Guarded::from_bytes(&ctx, &scales.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<_>>(), 0);
                let args = ScaleRowsArgs { x: x.view(), scale: memory.ptr(), stride: i64::from(many) };
                // SAFETY: all memory is live.
                unsafe { scale_rows(&ctx, &args, Stream::NULL) }.unwrap();
                sync(&ctx);
                let want: Vec<f64> =
                    held.iter().enumerate().map(|(i, v)| f64::from(*v) * f64::from(scales[if many { i / cols } else { 0 }])).collect();
                assert_within("scaled", dtype, &x.read(), &want, |i| 0.5001 * common::oracle::ulp(dtype, want[i]));
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let (ctx, mut rng) = (context(), rng("what_does_not_fit_is_refused"));
    let case = Case::random(&ctx, 4, 9, false, &mut rng);
    let x = Tensor::output(&ctx, DType::Bf16, 4, 9, 9, 0);
    let partial = Guarded::new(&ctx, 64, 0);
    let good = CrossEntropySliceArgs {
        logits: x.view(),
        targets: case.targets(),
        start: 3,
        vocabulary: 12,
        partial: partial.ptr(),
        combined: Ptr::NULL,
        gradient: None,
        workspace: Ptr::NULL,
        workspace_bytes: 0,
    };
    for (start, vocabulary) in [(-1, 12), (4, 12), (i64::MAX, 12), (3, 11)] {
        let args = CrossEntropySliceArgs { start, vocabulary, ..good };
        // SAFETY: all memory is live.
        let e = unsafe { cross_entropy_partial(&ctx, &args, Stream::NULL) }.unwrap_err();
        assert_eq!(e.status(), Status::InvalidShape, "{e}");
        assert!(e.message().contains("start"), "{e}");
    }
}
