//! Softmax, forward and backward, against f64 references.

mod common;

use common::{
    context, on_cuda, rng, sync,
    tolerance::{assert_forward_close, assert_within, forward_bound},
    values, Guarded, Tensor,
};
use nvte::{
    ops::softmax::{softmax_bwd, softmax_fwd, Mask, Rows, SoftmaxBwdArgs, SoftmaxFwdArgs},
    Context, ContextOptions, DType, Device, Status, Stream,
};
use rand::{rngs::StdRng, RngExt};

const HIGH: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

/// Where a matrix lies: so that every row starts on 16 bytes, or somewhere.
fn place(rng: &mut StdRng, cols: usize) -> (usize, usize) {
    match rng.random_bool(0.5) {
        true => (cols.next_multiple_of(8) + 8 * rng.random_range(0..2), 8 * rng.random_range(0..2)),
        false => (cols + rng.random_range(0..10), rng.random_range(0..9)),
    }
}

/// How rows belong together, and what is hidden.
#[derive(Clone, Debug)]
struct Case {
    rows: usize,
    cols: usize,
    queries: usize,
    heads: usize,
    causal: bool,
    offset: i64,
    scale: f32,
    /// Strides of the mask, if there is one.
    mask: Option<[usize; 3]>,
}

impl Case {
    fn random(rng: &mut StdRng, cols: usize, most: usize) -> Self {
        let (batches, heads, queries) = (rng.random_range(1..3), rng.random_range(1..4), rng.random_range(1..most + 1));
        let causal = rng.random_bool(0.4);
        let width = cols as i64;
        let offset = [0, 0, 1, -2, width - queries as i64, i64::MAX, i64::MIN][rng.random_range(0..7)];
        let odd = rng.random_range(0..3);
        let mask = rng.random_bool(0.5).then(|| {
            let query = if rng.random_bool(0.3) { 0 } else { cols + odd };
            let head = if rng.random_bool(0.5) { 0 } else { queries * (cols + odd) };
            let batch = if rng.random_bool(0.3) { 0 } else { heads * queries * (cols + odd) };
            [batch, head, query]
        });
        let scale = [1.0, 0.125, -0.7, 3.0, 0.0][rng.random_range(0..5)];
        Self { rows: batches * heads * queries, cols, queries, heads, causal, offset, scale, mask }
    }

    fn groups(&self) -> Rows {
        Rows { queries: self.queries as i64, heads: self.heads as i64, causal: self.causal, offset: self.offset }
    }

    /// Whether an element is seen.
    fn sees(&self, mask: &[u8], row: usize, col: usize) -> bool {
        let (matrix, query) = (row / self.queries, row % self.queries);
        let far = self.causal && col as i128 > query as i128 + i128::from(self.offset);
        let hidden = self.mask.is_some_and(|[b, h, q]| mask[matrix / self.heads * b + matrix % self.heads * h + query * q + col] != 0);
        !far && !hidden
    }

    fn mask_bytes(&self) -> usize {
        let [b, h, q] = self.mask.unwrap_or([0; 3]);
        let batches = self.rows / self.queries / self.heads;
        (batches - 1) * b + (self.heads - 1) * h + (self.queries - 1) * q + self.cols
    }

    /// Softmax of `x` in f64.
    fn reference(&self, x: &[f32], mask: &[u8]) -> Vec<f64> {
        let mut out = vec![0.0; x.len()];
        for row in 0..self.rows {
            let seen: Vec<usize> = (0..self.cols).filter(|c| self.sees(mask, row, *c)).collect();
            let scaled = |c: usize| {
                let (v, s) = (f64::from(x[row * self.cols + c]), f64::from(self.scale));
                // -infinity times a scale of 0 is hidden too.
                if s == 0.0 && v == f64::NEG_INFINITY {
                    v
                } else {
                    v * s
                }
            };
            let most = seen.iter().fold(f64::NEG_INFINITY, |m, c| scaled(*c).max(m));
            if most == f64::NEG_INFINITY && !seen.iter().any(|c| scaled(*c).is_nan()) {
                continue;
            }
            let powers: Vec<f64> = seen.iter().map(|c| (scaled(*c) - most).exp()).collect();
            let sum: f64 = powers.iter().sum();
            for (c, p) in seen.iter().zip(&powers) {
                out[row * self.cols + c] = p / sum;
            }
            if sum.is_nan() {
                // The NaN row; what is hidden in it is 0 by causality, NaN by a mask: 0 times 1/NaN.
                for c in 0..self.cols {
                    let far = self.causal && c as i128 > (row % self.queries) as i128 + i128::from(self.offset);
                    out[row * self.cols + c] = if far { 0.0 } else { f64::NAN };
                }
            }
        }
        out
    }
}

fn check_forward(ctx: &Context, case: &Case, dtype: DType, x: &[f32], in_place: bool, rng: &mut StdRng) -> Vec<u32> {
    let (ld, offset) = place(rng, case.cols);
    let (x, held) = Tensor::input(ctx, dtype, case.rows, case.cols, ld, offset, x);
    let (ld, offset) = if rng.random_bool(0.6) { (x.ld, offset) } else { place(rng, case.cols) };
    let y = Tensor::output(ctx, dtype, case.rows, case.cols, ld, offset);
    let density = [0.0, 0.1, 0.5, 1.0][rng.random_range(0..4)];
    let bytes: Vec<u8> = (0..case.mask_bytes()).map(|_| if rng.random_bool(density) { rng.random_range(1..=255) } else { 0 }).collect();
    let mask = Guarded::from_bytes(ctx, &bytes, rng.random_range(0..9));
    let [batch_stride, head_stride, query_stride] = case.mask.unwrap_or([0; 3]).map(|s| s as i64);
    let data = if case.mask.is_some() { mask.ptr() } else { nvte::Ptr::NULL };
    let out = if in_place { &x } else { &y };
    let args = SoftmaxFwdArgs {
        x: x.view(),
        y: out.view(),
        scale: case.scale,
        rows: case.groups(),
        mask: Mask { data, batch_stride, head_stride, query_stride },
    };
    // SAFETY: all tensors are live.
    unsafe { softmax_fwd(ctx, &args, Stream::NULL) }.unwrap();
    sync(ctx);
    let want = case.reference(&held, &bytes);
    let what = format!("{} {case:?} in place {in_place}", dtype.name());
    // The largest term of a row is 1; beside it, exponentials below 2^-125 are 0.
    let terms: Vec<f64> = want.iter().map(|v| v.max(2f64.powi(-100))).collect();
    assert_forward_close(&what, dtype, &out.read(), &want, &terms);
    if !in_place {
        assert!(x.read().iter().zip(&held).all(|(a, b)| a.to_bits() == b.to_bits()), "{what}: x was written");
    }
    mask.read();
    out.codes()
}

const COLS: [usize; 28] =
    [0, 1, 2, 3, 7, 8, 9, 16, 31, 33, 64, 127, 128, 257, 511, 512, 513, 1000, 1024, 1025, 1030, 1300, 2048, 4096, 4097, 5000, 8200, 16384];

#[test]
fn forward_equals_the_reference() {
    let (ctx, mut rng) = (context(), rng("forward_equals_the_reference"));
    for cols in COLS {
        for dtype in HIGH {
            let case = Case::random(&mut rng, cols, if cols > 2000 { 2 } else { 5 });
            let spread = [1.0, 10.0, 1e3][rng.random_range(0..3)];
            let x: Vec<f32> = values(&mut rng, case.rows * cols, false).into_iter().map(|v| v * spread).collect();
            let in_place = rng.random_bool(0.3);
            check_forward(&ctx, &case, dtype, &x, in_place, &mut rng);
        }
    }
}

/// Rows that no registers hold, at any alignment.
#[test]
fn long_rows() {
    let (ctx, mut rng) = (context(), rng("long_rows"));
    let lengths = if on_cuda() { vec![16385, 32768, 32769, 70_001, 262_144, 1_000_003] } else { vec![32769, 70_001] };
    for cols in lengths {
        for dtype in HIGH {
            let case = Case::random(&mut rng, cols, 2);
            let x: Vec<f32> = values(&mut rng, case.rows * cols, false).into_iter().map(|v| v * 4.0).collect();
            check_forward(&ctx, &case, dtype, &x, rng.random_bool(0.3), &mut rng);
            check_backward(&ctx, &case, dtype, rng.random_bool(0.3), &mut rng);
        }
    }
}

#[test]
fn infinities_and_nan() {
    let (ctx, mut rng) = (context(), rng("infinities_and_nan"));
    for cols in [1, 5, 40, 300, 2000] {
        for dtype in HIGH {
            for odd in [f32::NEG_INFINITY, f32::INFINITY, f32::NAN, -f32::NAN] {
                let mut case = Case::random(&mut rng, cols, 3);
                case.mask = None;
                if case.scale == 0.0 {
                    case.scale = 1.0;
                }
                let mut x = values(&mut rng, case.rows * cols, false);
                for row in x.chunks_mut(cols) {
                    match rng.random_range(0..3) {
                        0 => row.fill(odd),
                        1 => row[rng.random_range(0..cols)] = odd,
                        _ => {}
                    }
                }
                check_forward(&ctx, &case, dtype, &x, false, &mut rng);
            }
        }
    }
}

/// A NaN that is hidden does nothing.
#[test]
fn hidden_elements_do_nothing() {
    let (ctx, mut rng) = (context(), rng("hidden_elements_do_nothing"));
    let (rows, cols) = (6, 75);
    for dtype in HIGH {
        let mut bytes = vec![0u8; rows * cols];
        let mut x = values(&mut rng, rows * cols, false);
        for (b, v) in bytes.iter_mut().zip(&mut x) {
            if rng.random_bool(0.3) {
                (*b, *v) = (1, [f32::NAN, f32::INFINITY, 1e30][rng.random_range(0..3)]);
            }
        }
        // The last row is hidden altogether.
        bytes[(rows - 1) * cols..].fill(7);
        let mask = Guarded::from_bytes(&ctx, &bytes, 0);
        let (x, held) = Tensor::input(&ctx, dtype, rows, cols, cols, 0, &x);
        let y = Tensor::output(&ctx, dtype, rows, cols, cols, 0);
        let args = SoftmaxFwdArgs {
            x: x.view(),
            y: y.view(),
            scale: 1.0,
            rows: Rows::default(),
            mask: Mask { data: mask.ptr(), query_stride: cols as i64, ..Mask::default() },
        };
        // SAFETY: all tensors are live.
        unsafe { softmax_fwd(&ctx, &args, Stream::NULL) }.unwrap();
        sync(&ctx);
        let case = Case { rows, cols, queries: rows, heads: 1, causal: false, offset: 0, scale: 1.0, mask: Some([0, 0, cols]) };
        let want = case.reference(&held, &bytes);
        let got = y.read();
        assert_forward_close(dtype.name(), dtype, &got, &want, &want);
        assert!(got[(rows - 1) * cols..].iter().all(|v| v.to_bits() == 0), "a row that is hidden altogether");
    }
}

fn check_backward(ctx: &Context, case: &Case, dtype: DType, in_place: bool, rng: &mut StdRng) -> Vec<u32> {
    // Probabilities, and rows of zeros such as a mask leaves.
    let mut p: Vec<f32> = values(rng, case.rows * case.cols, false).into_iter().map(|v| (2.0 * v).exp()).collect();
    for row in p.chunks_mut(case.cols.max(1)) {
        let sum: f32 = row.iter().sum();
        let empty = rng.random_bool(0.2);
        row.iter_mut().for_each(|v| *v = if empty { 0.0 } else { *v / sum });
    }
    let mut d = values(rng, case.rows * case.cols, false);
    if case.causal {
        // What causality hides is not read.
        for (i, (p, d)) in p.iter_mut().zip(&mut d).enumerate() {
            let (row, col) = (i / case.cols, i % case.cols);
            if !(Case { mask: None, ..case.clone() }).sees(&[], row, col) {
                (*p, *d) = (f32::NAN, f32::NAN);
            }
        }
    }
    let (ld, offset) = place(rng, case.cols);
    let (y, p) = Tensor::input(ctx, dtype, case.rows, case.cols, ld, offset, &p);
    let near = |rng: &mut StdRng| if rng.random_bool(0.6) { (ld, offset) } else { place(rng, case.cols) };
    let (ld, offset) = near(rng);
    let (dy, d) = Tensor::input(ctx, dtype, case.rows, case.cols, ld, offset, &d);
    let (ld, offset) = near(rng);
    let dx = Tensor::output(ctx, dtype, case.rows, case.cols, ld, offset);
    let out = if in_place { &dy } else { &dx };
    let args = SoftmaxBwdArgs { dy: dy.view(), y: y.view(), dx: out.view(), scale: case.scale, rows: case.groups() };
    // SAFETY: all tensors are live.
    unsafe { softmax_bwd(ctx, &args, Stream::NULL) }.unwrap();
    sync(ctx);
    let (mut want, mut terms) = (vec![0.0; p.len()], vec![0.0; p.len()]);
    for row in 0..case.rows {
        let seen: Vec<usize> =
            (0..case.cols).filter(|c| Case { mask: None, ..case.clone() }.sees(&[], row, *c)).map(|c| row * case.cols + c).collect();
        let product = |i: usize| f64::from(p[i]) * f64::from(d[i]);
        let (sum, size) = seen.iter().fold((0.0, 0.0), |(s, a), i| (s + product(*i), a + product(*i).abs()));
        for i in seen {
            let s = f64::from(case.scale);
            want[i] = s * f64::from(p[i]) * (f64::from(d[i]) - sum);
            terms[i] = (s * f64::from(p[i])).abs() * f64::from(d[i]).abs().max(size);
        }
    }
    let what = format!("backward {} {case:?} in place {in_place}", dtype.name());
    assert_within(&what, dtype, &out.read(), &want, |i| forward_bound(dtype, want[i], terms[i]));
    out.codes()
}

#[test]
fn backward_equals_the_reference() {
    let (ctx, mut rng) = (context(), rng("backward_equals_the_reference"));
    for cols in COLS {
        for dtype in HIGH {
            let case = Case::random(&mut rng, cols, if cols > 2000 { 2 } else { 5 });
            let in_place = rng.random_bool(0.3);
            check_backward(&ctx, &case, dtype, in_place, &mut rng);
        }
    }
}

#[test]
fn no_rows() {
    let (ctx, mut rng) = (context(), rng("no_rows"));
    for (rows, cols) in [(0, 0), (0, 9), (4, 0)] {
        let x = Tensor::random(&ctx, DType::Bf16, rows, cols, cols, 0, &mut rng, false).0;
        let y = Tensor::output(&ctx, DType::Bf16, rows, cols, cols, 0);
        let args = SoftmaxFwdArgs { x: x.view(), y: y.view(), scale: 1.0, rows: Rows::default(), mask: Mask::default() };
        // SAFETY: all tensors are live.
        unsafe { softmax_fwd(&ctx, &args, Stream::NULL) }.unwrap();
        let args = SoftmaxBwdArgs { dy: x.view(), y: x.view(), dx: y.view(), scale: 1.0, rows: Rows::default() };
        // SAFETY: all tensors are live.
        unsafe { softmax_bwd(&ctx, &args, Stream::NULL) }.unwrap();
        sync(&ctx);
        y.codes();
    }
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
    let (rows, cols) = (300, 777);
    for dtype in HIGH {
        let x = values(&mut rng, rows * cols, false);
        let all: Vec<[Vec<u32>; 2]> = contexts
            .iter()
            .map(|ctx| {
                let (x, _) = Tensor::input(ctx, dtype, rows, cols, cols + 1, 1, &x);
                let (y, dx) = (Tensor::output(ctx, dtype, rows, cols, cols, 0), Tensor::output(ctx, dtype, rows, cols, cols + 2, 0));
                let (groups, mask) = (Rows { queries: 100, heads: 3, causal: true, offset: 400 }, Mask::default());
                let args = SoftmaxFwdArgs { x: x.view(), y: y.view(), scale: 0.3, rows: groups, mask };
                // SAFETY: all tensors are live.
                unsafe { softmax_fwd(ctx, &args, Stream::NULL) }.unwrap();
                let args = SoftmaxBwdArgs { dy: x.view(), y: y.view(), dx: dx.view(), scale: 0.3, rows: groups };
                // SAFETY: all tensors are live.
                unsafe { softmax_bwd(ctx, &args, Stream::NULL) }.unwrap();
                sync(ctx);
                [y.codes(), dx.codes()]
            })
            .collect();
        assert!(all[0] == all[1], "{}", dtype.name());
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let ctx = context();
    let x = Tensor::output(&ctx, DType::Bf16, 12, 8, 8, 0);
    let y = Tensor::output(&ctx, DType::Bf16, 12, 8, 8, 0);
    let good = SoftmaxFwdArgs { x: x.view(), y: y.view(), scale: 1.0, rows: Rows::default(), mask: Mask::default() };
    let refused = |args: SoftmaxFwdArgs, status: Status, text: &str| {
        // SAFETY: all tensors are live.
        let e = unsafe { softmax_fwd(&ctx, &args, Stream::NULL) }.unwrap_err();
        assert_eq!(e.status(), status, "{e}");
        assert!(e.message().contains(text), "{e}");
    };
    refused(SoftmaxFwdArgs { rows: Rows { queries: 5, ..Rows::default() }, ..good }, Status::InvalidShape, "queries = 5");
    refused(SoftmaxFwdArgs { rows: Rows { queries: 4, heads: 2, ..Rows::default() }, ..good }, Status::InvalidShape, "heads = 2");
    refused(SoftmaxFwdArgs { y: y.view().with_ld(9), x: y.view(), ..good }, Status::Overlap, "y");
    let mut view = y.view();
    view.dtype = DType::F16;
    refused(SoftmaxFwdArgs { y: view, ..good }, Status::InvalidDType, "y.dtype");
}
