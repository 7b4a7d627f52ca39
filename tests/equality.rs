//! CPU = CUDA, bit for bit, on random bit patterns: codes, transposes, scale_inv, amax, dequantize, current scaling.
//! Runs where NVTE_TEST_BACKEND=cuda; NVTE_TEST_ELEMENTS sets the number of elements per pair of types (10^8 for the record).

mod common;

use common::{on_cuda, rng, sync};
use nvte::{
    ops::{
        cast::{
            cast_dbias, cast_dbias_workspace, cast_to_fp8, cast_to_fp8_current, cast_to_fp8_current_workspace, CastArgs, CastDbiasArgs,
            CurrentCastArgs, CurrentScaling,
        },
        dequantize::{dequantize, fp8_transpose, DequantizeArgs, TransposeArgs},
    },
    Buffer, Context, DType, Ptr, Stream, TensorView,
};
use rand::{rngs::StdRng, Rng, RngExt};

const HIGH: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

/// One chunk: the bytes of the input and everything that decides what happens to it.
struct Case {
    input: DType,
    output: DType,
    rows: usize,
    cols: usize,
    /// Elements between the start of a buffer and of the matrix in it.
    offset: usize,
    bytes: Vec<u8>,
    scale: f32,
    scaling: CurrentScaling,
}

/// What one back end made of a case: names and bytes.
type Results = Vec<(String, Vec<u8>)>;

struct Made {
    buffer: Buffer,
    skip: usize,
    bytes: usize,
}

impl Made {
    fn new(ctx: &Context, dtype: DType, elements: usize, offset: usize) -> Self {
        let (skip, bytes) = (offset * dtype.size(), elements * dtype.size());
        let buffer = Buffer::from_slice(ctx, &vec![0xA5u8; skip + bytes]).expect("test memory");
        Self { buffer, skip, bytes }
    }
    fn ptr(&self) -> Ptr {
        self.buffer.ptr().offset(self.skip as u64)
    }
    fn read(&self) -> Vec<u8> {
        self.buffer.read(self.skip, self.bytes).unwrap()
    }
}

fn run(ctx: &Context, case: &Case) -> Results {
    let (rows, cols, n) = (case.rows as i64, case.cols as i64, case.rows * case.cols);
    let mut out = Results::new();
    let x = Made::new(ctx, case.input, n, case.offset);
    x.buffer.write(x.skip, &case.bytes).unwrap();
    let x_view = TensorView::new(case.input, x.ptr(), rows, cols);
    let slots = |scale: f32| Buffer::from_slice(ctx, &[scale, f32::NAN, 0.0]).expect("test memory");
    let slot = |b: &Buffer, i: u64| b.ptr().offset(4 * i);
    let codes = |skip| Made::new(ctx, case.output, n, skip);
    let view = |q: &Made, qt: &Made, s: &Buffer| {
        TensorView::new(case.output, q.ptr(), rows, cols).with_transpose(qt.ptr(), rows).with_scaling(slot(s, 0), slot(s, 1), slot(s, 2))
    };
    let workspace = Buffer::new(ctx, cast_dbias_workspace(ctx, rows, cols).unwrap() as usize).expect("test memory");

    // A given scale.
    let (q, qt, s) = (codes(case.offset), codes(case.offset), slots(case.scale));
    // SAFETY: all memory is live, here and below.
    unsafe { cast_to_fp8(ctx, &CastArgs { input: x_view, output: view(&q, &qt, &s) }, Stream::NULL) }.unwrap();
    sync(ctx);
    out.push(("codes".into(), q.read()));
    out.push(("transposed codes".into(), qt.read()));
    out.push(("scale, scale_inv, amax".into(), s.read(0, 12).unwrap()));

    // Row-wise only, where columns mean nothing.
    let row_wise = codes(case.offset);
    let flat = TensorView { data_t: Ptr::NULL, ..view(&row_wise, &qt, &s) };
    // SAFETY: as above.
    unsafe { cast_to_fp8(ctx, &CastArgs { input: x_view, output: flat }, Stream::NULL) }.unwrap();
    sync(ctx);
    out.push(("codes, row-wise only".into(), row_wise.read()));

    // Current scaling, with the bias gradient's pass and without.
    let (q2, qt2, s2) = (codes(case.offset), codes(case.offset), slots(f32::NAN));
    let current = CurrentCastArgs {
        input: x_view,
        output: view(&q2, &qt2, &s2),
        scaling: case.scaling,
        workspace: workspace.ptr(),
        workspace_bytes: cast_to_fp8_current_workspace(ctx),
    };
    // SAFETY: as above.
    unsafe { cast_to_fp8_current(ctx, &current, Stream::NULL) }.unwrap();
    sync(ctx);
    out.push(("current scaling: codes".into(), q2.read()));
    out.push(("current scaling: transposed codes".into(), qt2.read()));
    out.push(("current scaling: scale, scale_inv, amax".into(), s2.read(0, 12).unwrap()));
    let (q3, qt3, s3) = (codes(case.offset), codes(case.offset), slots(f32::NAN));
    let sums = Made::new(ctx, DType::F32, case.cols, 0);
    let args = CastDbiasArgs {
        input: x_view,
        output: Some(view(&q3, &qt3, &s3)),
        current: Some(case.scaling),
        dbias: sums.ptr(),
        dbias_dtype: DType::F32,
        accumulate: false,
        workspace: workspace.ptr(),
        workspace_bytes: workspace.bytes() as u64,
    };
    // SAFETY: as above.
    unsafe { cast_dbias(ctx, &args, Stream::NULL) }.unwrap();
    sync(ctx);
    out.push(("with dbias: codes".into(), q3.read()));
    out.push(("with dbias: transposed codes".into(), qt3.read()));
    out.push(("with dbias: scale, scale_inv, amax".into(), s3.read(0, 12).unwrap()));

    // Back, from either layout. The codes of the cast hold no infinity and one NaN; the input's own bytes, as codes, hold everything.
    let raw = Made::new(ctx, case.output, n, case.offset);
    raw.buffer.write(raw.skip, &case.bytes[..n]).unwrap();
    for (name, row, col) in [("codes", q.ptr(), qt.ptr()), ("any codes", raw.ptr(), raw.ptr())] {
        for high in HIGH {
            for (layout, data, data_t) in [("row-wise", row, Ptr::NULL), ("transposed", Ptr::NULL, col)] {
                let y = Made::new(ctx, high, n, case.offset);
                let mut input = TensorView::new(case.output, data, rows, cols).with_transpose(data_t, rows);
                input.scale_inv = slot(&s, 1);
                let args = DequantizeArgs { input, output: TensorView::new(high, y.ptr(), rows, cols) };
                // SAFETY: as above.
                unsafe { dequantize(ctx, &args, Stream::NULL) }.unwrap();
                sync(ctx);
                out.push((format!("dequantize of {layout} {name} to {}", high.name()), y.read()));
            }
        }
    }
    let turned = codes(case.offset);
    let input = TensorView::new(case.output, raw.ptr(), rows, cols);
    let output = TensorView { data: Ptr::NULL, ..input }.with_transpose(turned.ptr(), rows);
    // SAFETY: as above.
    unsafe { fp8_transpose(ctx, &TransposeArgs { input, output }, Stream::NULL) }.unwrap();
    sync(ctx);
    out.push(("transpose".into(), turned.read()));
    out
}

fn draw(rng: &mut StdRng, input: DType, output: DType, elements: usize) -> Case {
    // Whole tiles half of the time, any width else.
    let cols = if rng.random_bool(0.5) { 128 * rng.random_range(1usize..17) } else { rng.random_range(1usize..3000) }.min(elements);
    let mut rows = (elements / cols).max(1);
    if rng.random_bool(0.5) && rows > 16 {
        rows -= rows % 16;
    }
    let mut bytes = vec![0; rows * cols * input.size()];
    rng.fill_bytes(&mut bytes);
    // Any bits hold NaN, and current scaling then has nothing to scale by: every other case is made finite.
    if rng.random_bool(0.5) {
        bytes.iter_mut().skip(input.size() - 1).step_by(input.size()).for_each(|b| *b &= 0xBF);
    }
    let scaling = CurrentScaling {
        margin: rng.random_range(-2..3),
        epsilon: if rng.random_bool(0.5) { 0.0 } else { 1e-3 },
        power_of_two: rng.random_bool(0.5),
    };
    let scale = f32::from_bits(rng.random_range(0x2000_0000u32..0x6000_0000));
    Case { input, output, rows, cols, offset: if rng.random_bool(0.7) { 0 } else { rng.random_range(1usize..16) }, bytes, scale, scaling }
}

#[test]
fn cpu_and_cuda_give_the_same_bits() {
    if !on_cuda() {
        return println!("not run: NVTE_TEST_BACKEND is not cuda");
    }
    let (cpu, cuda) = (Context::cpu().unwrap(), Context::cuda(0).unwrap());
    let total: usize = std::env::var("NVTE_TEST_ELEMENTS").ok().and_then(|v| v.parse().ok()).unwrap_or(1 << 20);
    let mut rng = rng("cpu_and_cuda_give_the_same_bits");
    for input in HIGH {
        for output in [DType::E4m3, DType::E5m2] {
            let mut done = 0;
            while done < total {
                let case = draw(&mut rng, input, output, (total - done).min(1 << 22).min(total.div_ceil(6)));
                done += case.rows * case.cols;
                let what = format!("{} -> {} [{}, {}] offset {}", input.name(), output.name(), case.rows, case.cols, case.offset);
                for ((name, a), (_, b)) in run(&cpu, &case).into_iter().zip(run(&cuda, &case)) {
                    if let Some(i) = (0..a.len()).find(|i| a[*i] != b[*i]) {
                        let wrong = a.iter().zip(&b).filter(|(a, b)| a != b).count();
                        panic!(
                            "{what}: {name}: {wrong} of {} bytes differ, first at {i}: {:#x} on the CPU, {:#x} on CUDA",
                            a.len(),
                            a[i],
                            b[i]
                        );
                    }
                }
            }
            println!("{} -> {}: {done} elements equal", input.name(), output.name());
        }
    }
}
