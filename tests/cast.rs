//! Casts to FP8 and back, transposes and amax against an oracle, bit for bit.

mod common;

use common::{assert_codes_equal, context, oracle, rng, streams::Streams, sync, Guarded, SlotF32, Tensor};
use nvte::{
    numerics::{scale_from_amax, ScaleRule},
    ops::{
        amax::{amax, AmaxArgs},
        cast::{
            cast_dbias, cast_dbias_workspace, cast_to_fp8, cast_to_fp8_current, cast_to_fp8_current_workspace, CastArgs, CastDbiasArgs,
            CurrentCastArgs, CurrentScaling,
        },
        dequantize::{dequantize, fp8_transpose, DequantizeArgs, TransposeArgs},
    },
    Context, DType, Ptr, Status, Stream, TensorView,
};
use rand::{rngs::StdRng, seq::IndexedRandom, RngExt};

const HIGH: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];
const FP8: [DType; 2] = [DType::E4m3, DType::E5m2];

/// Shapes that meet every path: whole tiles, tails in each direction, less than a vector, tall, wide, none.
const SHAPES: [(usize, usize); 16] = [
    (1, 1),
    (3, 5),
    (64, 64),
    (65, 130),
    (17, 33),
    (128, 256),
    (136, 264),
    (130, 136),
    (1, 1000),
    (1000, 1),
    (1, 4099),
    (300, 8),
    (8, 300),
    (257, 128),
    (0, 7),
    (7, 0),
];

/// How a matrix lies in memory.
#[derive(Clone, Copy, Debug)]
enum Lay {
    Dense,
    /// Rows padded to 16 elements, base aligned.
    Padded,
    /// Any stride, any base.
    Odd,
}
const LAYS: [Lay; 3] = [Lay::Dense, Lay::Padded, Lay::Odd];

impl Lay {
    /// (row stride, offset) in elements
    fn of(self, cols: usize, rng: &mut StdRng) -> (usize, usize) {
        match self {
            Lay::Dense => (cols, 0),
            Lay::Padded => (cols.next_multiple_of(16) + 16 * rng.random_range(0..2), 0),
            Lay::Odd => (cols + rng.random_range(0..5), rng.random_range(0..20)),
        }
    }
}

fn output(ctx: &Context, dtype: DType, rows: usize, cols: usize, lay: Lay, rng: &mut StdRng) -> Tensor {
    let (ld, offset) = lay.of(cols, rng);
    Tensor::output(ctx, dtype, rows, cols, ld, offset)
}

fn input(ctx: &Context, dtype: DType, rows: usize, cols: usize, lay: Lay, rng: &mut StdRng, special: bool) -> (Tensor, Vec<f32>) {
    let (ld, offset) = lay.of(cols, rng);
    Tensor::random(ctx, dtype, rows, cols, ld, offset, rng, special)
}

fn transposed<T: Copy>(v: &[T], rows: usize, cols: usize) -> Vec<T> {
    (0..cols * rows).map(|i| v[(i % rows) * cols + i / rows]).collect()
}

/// A tensor of codes in the layouts asked for.
struct Quantized {
    rows: Tensor,
    cols: Tensor,
    view: TensorView,
}

impl Quantized {
    fn new(ctx: &Context, dtype: DType, rows: usize, cols: usize, layouts: (bool, bool), lay: Lay, rng: &mut StdRng) -> Self {
        let q = output(ctx, dtype, rows, cols, lay, rng);
        let qt = output(ctx, dtype, cols, rows, lay, rng);
        let mut view = q.view().with_transpose(qt.ptr(), qt.ld as i64);
        if !layouts.0 {
            view.data = Ptr::NULL;
        }
        if !layouts.1 {
            view.data_t = Ptr::NULL;
        }
        Self { rows: q, cols: qt, view }
    }

    /// Layouts that are present hold `want`; the others still hold poison.
    fn check(&self, what: &str, want: &[u32]) {
        let (r, c) = (self.rows.rows, self.rows.cols);
        let want_t = transposed(want, r, c);
        for (name, t, want, present) in [("", &self.rows, want, self.view.data), (" transposed", &self.cols, &want_t[..], self.view.data_t)]
        {
            match present.is_null() {
                false => assert_codes_equal(&format!("{what}{name}"), &t.codes(), want, t.cols),
                true => assert!(t.codes().iter().all(|b| *b == 0xFF), "{what}{name}: an absent layout was written"),
            }
        }
    }
}

const LAYOUTS: [(bool, bool); 3] = [(true, false), (false, true), (true, true)];

#[test]
fn cast_equals_the_oracle() {
    let ctx = context();
    let mut rng = rng("cast_equals_the_oracle");
    for (rows, cols) in SHAPES {
        for input_type in HIGH {
            for output_type in FP8 {
                for layouts in LAYOUTS {
                    for lay in LAYS {
                        let (x, held) = input(&ctx, input_type, rows, cols, lay, &mut rng, true);
                        let q = Quantized::new(&ctx, output_type, rows, cols, layouts, lay, &mut rng);
                        let factor: f32 = rng.random_range(0.01f32..100.0);
                        let before = rng.random_range(0.0f32..4.0);
                        let (scale, inv, amax) = (SlotF32::new(&ctx, factor), SlotF32::poisoned(&ctx), SlotF32::new(&ctx, before));
                        let view = q.view.with_scaling(scale.ptr(), inv.ptr(), amax.ptr());
                        // SAFETY: all tensors are live.
                        unsafe { cast_to_fp8(&ctx, &CastArgs { input: x.view(), output: view }, Stream::NULL) }.unwrap();
                        sync(&ctx);
                        let what = format!("{} -> {} [{rows}, {cols}] {lay:?} {layouts:?}", input_type.name(), output_type.name());
                        let want: Vec<u32> = held.iter().map(|v| oracle::encode(output_type, v * factor)).collect();
                        q.check(&what, &want);
                        assert_eq!(inv.read().to_bits(), (1.0f32 / factor).to_bits(), "{what}: scale_inv");
                        let mut all = held.clone();
                        all.push(before);
                        assert_eq!(amax.read().to_bits(), oracle::amax(&all).to_bits(), "{what}: amax");
                        assert_eq!(scale.read().to_bits(), factor.to_bits(), "{what}: scale was written");
                    }
                }
            }
        }
    }
}

/// More tiles than a device has multiprocessors: blocks of full height on CUDA, where small tensors are cut into lower ones.
#[test]
fn many_tiles_of_odd_shape() {
    let ctx = context();
    let mut rng = rng("many_tiles_of_odd_shape");
    for (rows, cols, lay) in [(1531, 1800, Lay::Dense), (1531, 1801, Lay::Dense), (1537, 1923, Lay::Odd), (4104, 1160, Lay::Padded)] {
        let (x, held) = input(&ctx, DType::Bf16, rows, cols, lay, &mut rng, true);
        let q = Quantized::new(&ctx, DType::E4m3, rows, cols, (true, true), lay, &mut rng);
        // SAFETY: all tensors are live.
        unsafe { cast_to_fp8(&ctx, &CastArgs { input: x.view(), output: q.view }, Stream::NULL) }.unwrap();
        sync(&ctx);
        let want: Vec<u32> = held.iter().map(|v| oracle::encode(DType::E4m3, *v)).collect();
        q.check(&format!("[{rows}, {cols}] {lay:?}"), &want);
        let codes: Vec<u8> = want.iter().map(|c| *c as u8).collect();
        let (_memory, view) = self::codes(&ctx, DType::E4m3, rows, cols, lay, &codes, &mut rng);
        let yt = output(&ctx, DType::E4m3, cols, rows, lay, &mut rng);
        let y = TensorView::new(DType::E4m3, Ptr::NULL, rows as i64, cols as i64).with_transpose(yt.ptr(), yt.ld as i64);
        // SAFETY: all tensors are live.
        unsafe { fp8_transpose(&ctx, &TransposeArgs { input: view, output: y }, Stream::NULL) }.unwrap();
        assert_codes_equal(&format!("transpose [{rows}, {cols}] {lay:?}"), &yt.codes(), &transposed(&want, rows, cols), rows);
    }
}

/// Columns of the transposed layout that begin anywhere in a sector, of a tensor whose rows lie on 16 bytes: on CUDA each tile then writes into
/// the rows above it.
#[test]
fn transposed_columns_begin_anywhere() {
    let ctx = context();
    let mut rng = rng("transposed_columns_begin_anywhere");
    for (rows, cols) in [(1, 8), (31, 16), (127, 136), (128, 128), (129, 136), (160, 264), (257, 120), (391, 136)] {
        for (input_type, output_type) in HIGH.into_iter().flat_map(|h| FP8.map(|f| (h, f))) {
            for row_wise in [false, true] {
                let (x, held) = input(&ctx, input_type, rows, cols, Lay::Dense, &mut rng, true);
                let q = output(&ctx, output_type, rows, cols, Lay::Dense, &mut rng);
                let qt = Tensor::output(&ctx, output_type, cols, rows, rows + rng.random_range(0..40), rng.random_range(0..40));
                let mut view = q.view().with_transpose(qt.ptr(), qt.ld as i64);
                if !row_wise {
                    view.data = Ptr::NULL;
                }
                // SAFETY: all tensors are live.
                unsafe { cast_to_fp8(&ctx, &CastArgs { input: x.view(), output: view }, Stream::NULL) }.unwrap();
                sync(&ctx);
                let what = format!("{} -> {} [{rows}, {cols}], columns {} apart", input_type.name(), output_type.name(), qt.ld);
                let want: Vec<u32> = held.iter().map(|v| oracle::encode(output_type, *v)).collect();
                Quantized { rows: q, cols: qt, view }.check(&what, &want);
                let codes: Vec<u8> = want.iter().map(|c| *c as u8).collect();
                let (_memory, view) = self::codes(&ctx, output_type, rows, cols, Lay::Dense, &codes, &mut rng);
                let yt = Tensor::output(&ctx, output_type, cols, rows, rows + rng.random_range(0..40), rng.random_range(0..40));
                let y = TensorView::new(output_type, Ptr::NULL, rows as i64, cols as i64).with_transpose(yt.ptr(), yt.ld as i64);
                // SAFETY: all tensors are live.
                unsafe { fp8_transpose(&ctx, &TransposeArgs { input: view, output: y }, Stream::NULL) }.unwrap();
                assert_codes_equal(&format!("transpose {what}"), &yt.codes(), &transposed(&want, rows, cols), rows);
            }
        }
    }
}

#[test]
fn slots_may_be_absent() {
    let ctx = context();
    let mut rng = rng("slots_may_be_absent");
    let (x, held) = input(&ctx, DType::Bf16, 40, 72, Lay::Dense, &mut rng, true);
    let q = Quantized::new(&ctx, DType::E4m3, 40, 72, (true, true), Lay::Dense, &mut rng);
    // SAFETY: all tensors are live.
    unsafe { cast_to_fp8(&ctx, &CastArgs { input: x.view(), output: q.view }, Stream::NULL) }.unwrap();
    q.check("no slots", &held.iter().map(|v| oracle::encode(DType::E4m3, *v)).collect::<Vec<_>>());
}

/// Everything current scaling must write for these values.
fn current_reference(values: &[f32], output: DType, s: &CurrentScaling) -> (f32, f32) {
    let amax = oracle::amax(values);
    if values.is_empty() {
        return (0.0, 1.0);
    }
    let format_max = if output == DType::E4m3 { 448.0 } else { 57344.0 };
    let rule = ScaleRule { format_max, margin: s.margin, epsilon: s.epsilon, power_of_two: s.power_of_two };
    (amax, scale_from_amax(amax, &rule, 1.0))
}

#[test]
fn current_scaling_equals_the_oracle() {
    let shapes: Vec<_> = SHAPES.into_iter().chain([(700, 1048), (3, 70_001)]).collect();
    check_current_scaling("current_scaling_equals_the_oracle", &shapes, &HIGH, &LAYS, &LAYOUTS);
}

/// What kernels hold on the chip between amax and scale: as much as fits, tiles that end within it, and a little more.
#[test]
fn current_scaling_of_a_few_megabytes() {
    let name = "current_scaling_of_a_few_megabytes";
    check_current_scaling(name, &[(2049, 1048), (1000, 2008)], &HIGH, &[Lay::Dense, Lay::Padded], &LAYOUTS);
    check_current_scaling(name, &[(1, 3_000_000), (1, 3_000_001)], &[DType::Bf16], &[Lay::Dense], &[(true, false)]);
    check_current_scaling(name, &[(8064, 2304), (4736, 4240)], &[DType::Bf16], &[Lay::Padded], &[(true, true)]);
    check_current_scaling(name, &[(4700, 2048)], &[DType::F32], &[Lay::Dense], &[(false, true)]);
}

fn check_current_scaling(name: &str, shapes: &[(usize, usize)], inputs: &[DType], lays: &[Lay], all_layouts: &[(bool, bool)]) {
    let ctx = context();
    let mut rng = rng(name);
    let workspace = Guarded::new(&ctx, cast_to_fp8_current_workspace(&ctx) as usize, 0);
    for &(rows, cols) in shapes {
        for &input_type in inputs {
            for &lay in lays {
                let output_type = *FP8.choose(&mut rng).unwrap();
                let layouts = *all_layouts.choose(&mut rng).unwrap();
                let scaling = CurrentScaling {
                    margin: rng.random_range(-2..3),
                    epsilon: *[0.0, 1e-6, 10.0].choose(&mut rng).unwrap(),
                    power_of_two: rng.random_bool(0.5),
                };
                let special = rng.random_bool(0.3);
                let (x, held) = input(&ctx, input_type, rows, cols, lay, &mut rng, special);
                let q = Quantized::new(&ctx, output_type, rows, cols, layouts, lay, &mut rng);
                let (scale, inv, amax) = (SlotF32::poisoned(&ctx), SlotF32::poisoned(&ctx), SlotF32::poisoned(&ctx));
                let args = CurrentCastArgs {
                    input: x.view(),
                    output: q.view.with_scaling(scale.ptr(), inv.ptr(), amax.ptr()),
                    scaling,
                    workspace: workspace.ptr(),
                    workspace_bytes: workspace.bytes() as u64,
                };
                // SAFETY: all tensors are live.
                unsafe { cast_to_fp8_current(&ctx, &args, Stream::NULL) }.unwrap();
                sync(&ctx);
                workspace.read();
                let what = format!("{} -> {} [{rows}, {cols}] {lay:?} {layouts:?} {scaling:?}", input_type.name(), output_type.name());
                let (want_amax, want_scale) = current_reference(&held, output_type, &scaling);
                assert_eq!(amax.read().to_bits(), want_amax.to_bits(), "{what}: amax");
                assert_eq!(scale.read().to_bits(), want_scale.to_bits(), "{what}: scale");
                assert_eq!(inv.read().to_bits(), (1.0 / want_scale).to_bits(), "{what}: scale_inv");
                q.check(&what, &held.iter().map(|v| oracle::encode(output_type, v * want_scale)).collect::<Vec<_>>());
            }
        }
    }
}

/// A tensor that kernels hold on the chip, on streams of each priority one by one and then all at once, where blocks that wait for one another
/// could take places between each other's.
#[test]
fn current_scaling_on_streams_of_any_priority() {
    let ctx = context();
    let mut rng = rng("current_scaling_on_streams_of_any_priority");
    let streams = Streams::of_each_priority(&ctx);
    let (rows, cols) = (2312, 1048);
    let (x, held) = input(&ctx, DType::Bf16, rows, cols, Lay::Dense, &mut rng, false);
    let (want_amax, want_scale) = current_reference(&held, DType::E4m3, &CurrentScaling::default());
    let want: Vec<u32> = held.iter().map(|v| oracle::encode(DType::E4m3, v * want_scale)).collect();
    for group in streams.0.chunks(1).chain([&streams.0[..]]) {
        let made: Vec<_> = group
            .iter()
            .map(|stream| {
                let q = Quantized::new(&ctx, DType::E4m3, rows, cols, (true, true), Lay::Padded, &mut rng);
                let slots = [(); 3].map(|()| SlotF32::poisoned(&ctx));
                (*stream, q, slots, Guarded::new(&ctx, cast_to_fp8_current_workspace(&ctx) as usize, 0))
            })
            .collect();
        // These streams do not wait for what the default stream still copies.
        sync(&ctx);
        for _ in 0..if group.len() > 1 { 50 } else { 1 } {
            for (stream, q, [scale, inv, amax], workspace) in &made {
                let args = CurrentCastArgs {
                    input: x.view(),
                    output: q.view.with_scaling(scale.ptr(), inv.ptr(), amax.ptr()),
                    scaling: CurrentScaling::default(),
                    workspace: workspace.ptr(),
                    workspace_bytes: workspace.bytes() as u64,
                };
                // SAFETY: all tensors are live, and stay so until the stream has been waited for.
                unsafe { cast_to_fp8_current(&ctx, &args, *stream) }.unwrap();
            }
        }
        for (stream, ..) in &made {
            ctx.synchronize(*stream).unwrap();
        }
        for (i, (_, q, slots, workspace)) in made.iter().enumerate() {
            let what = format!("stream {i} of {}", group.len());
            workspace.read();
            q.check(&what, &want);
            let found = slots.each_ref().map(|slot| slot.read().to_bits());
            assert_eq!(found, [want_scale, 1.0 / want_scale, want_amax].map(f32::to_bits), "{what}: scale, scale_inv, amax");
        }
    }
}

#[test]
fn amax_equals_the_oracle() {
    let ctx = context();
    let mut rng = rng("amax_equals_the_oracle");
    for (rows, cols) in SHAPES.into_iter().chain([(1200, 1000), (2, 100_003)]) {
        for dtype in HIGH {
            for lay in LAYS {
                let special = rng.random_bool(0.5);
                let (x, mut held) = input(&ctx, dtype, rows, cols, lay, &mut rng, special);
                let before = rng.random_range(0.0f32..5.0);
                let slot = SlotF32::new(&ctx, before);
                // SAFETY: all tensors are live.
                unsafe { amax(&ctx, &AmaxArgs { input: x.view(), amax: slot.ptr() }, Stream::NULL) }.unwrap();
                held.push(before);
                assert_eq!(slot.read().to_bits(), oracle::amax(&held).to_bits(), "{} [{rows}, {cols}] {lay:?}", dtype.name());
            }
        }
    }
}

/// All codes, then random ones.
fn random_codes(n: usize, rng: &mut StdRng) -> Vec<u8> {
    (0..n).map(|i| if i < 256 { i as u8 } else { rng.random() }).collect()
}

/// A matrix that holds these codes.
fn codes(ctx: &Context, dtype: DType, rows: usize, cols: usize, lay: Lay, data: &[u8], rng: &mut StdRng) -> (Guarded, TensorView) {
    let (ld, offset) = lay.of(cols, rng);
    let mut bytes = vec![0xFF; if rows * cols == 0 { 0 } else { (rows - 1) * ld + cols }];
    for r in 0..rows {
        for c in 0..cols {
            bytes[r * ld + c] = data[r * cols + c];
        }
    }
    let memory = Guarded::from_bytes(ctx, &bytes, offset);
    let view = TensorView::new(dtype, memory.ptr(), rows as i64, cols as i64).with_ld(ld as i64);
    (memory, view)
}

/// What dequantize must write: the f32 product, rounded once, NaN in one form.
fn dequantized(format: DType, code: u8, scale_inv: f32, output: DType) -> u32 {
    let v = oracle::decode(format, code.into()) as f32 * scale_inv;
    match (output, v.is_nan()) {
        (DType::F32, true) => 0x7FFF_FFFF,
        (_, true) => 0x7FFF,
        (DType::F32, false) => v.to_bits(),
        (DType::F16, false) => half::f16::from_f32(v).to_bits().into(),
        (_, false) => half::bf16::from_f32(v).to_bits().into(),
    }
}

#[test]
fn dequantize_equals_the_oracle() {
    let ctx = context();
    let mut rng = rng("dequantize_equals_the_oracle");
    for (rows, cols) in SHAPES {
        for format in FP8 {
            for output_type in HIGH {
                for from_transposed in [false, true] {
                    for lay in LAYS {
                        let data = random_codes(rows * cols, &mut rng);
                        let scale_inv = *[1.0, 0.013, 3.7e4, 1e-39, 2.0f32.powi(-20)].choose(&mut rng).unwrap();
                        let slot = SlotF32::new(&ctx, scale_inv);
                        let (_memory, mut view) = if from_transposed {
                            let (memory, t) = codes(&ctx, format, cols, rows, lay, &transposed(&data, rows, cols), &mut rng);
                            let v = TensorView::new(format, Ptr::NULL, rows as i64, cols as i64).with_transpose(t.data, t.ld);
                            (memory, v)
                        } else {
                            codes(&ctx, format, rows, cols, lay, &data, &mut rng)
                        };
                        view.scale_inv = slot.ptr();
                        let y = output(&ctx, output_type, rows, cols, lay, &mut rng);
                        // SAFETY: all tensors are live.
                        unsafe { dequantize(&ctx, &DequantizeArgs { input: view, output: y.view() }, Stream::NULL) }.unwrap();
                        sync(&ctx);
                        let want: Vec<u32> = data.iter().map(|c| dequantized(format, *c, scale_inv, output_type)).collect();
                        let what = format!("{} -> {} [{rows}, {cols}] {lay:?} t={from_transposed}", format.name(), output_type.name());
                        assert_codes_equal(&what, &y.codes(), &want, cols);
                    }
                }
            }
        }
    }
}

#[test]
fn transpose_moves_every_code() {
    let ctx = context();
    let mut rng = rng("transpose_moves_every_code");
    for (rows, cols) in SHAPES {
        for format in FP8 {
            for lay in LAYS {
                let data = random_codes(rows * cols, &mut rng);
                let moved: Vec<u32> = transposed(&data, rows, cols).into_iter().map(u32::from).collect();
                let (inv_in, inv_out) = (SlotF32::new(&ctx, 0.37), SlotF32::poisoned(&ctx));
                // Row-wise to transposed.
                let (_memory, mut x) = codes(&ctx, format, rows, cols, lay, &data, &mut rng);
                x.scale_inv = inv_in.ptr();
                let yt = output(&ctx, format, cols, rows, lay, &mut rng);
                let mut y = TensorView::new(format, Ptr::NULL, rows as i64, cols as i64).with_transpose(yt.ptr(), yt.ld as i64);
                y.scale_inv = inv_out.ptr();
                // SAFETY: all tensors are live.
                unsafe { fp8_transpose(&ctx, &TransposeArgs { input: x, output: y }, Stream::NULL) }.unwrap();
                assert_codes_equal(&format!("transpose [{rows}, {cols}] {lay:?}"), &yt.codes(), &moved, rows);
                assert_eq!(inv_out.read(), 0.37);
                // And back: the same memory read as the transposed copy of a matrix whose rows are missing; one view for both arguments.
                let z = output(&ctx, format, cols, rows, lay, &mut rng);
                let (_memory, t) = codes(&ctx, format, rows, cols, lay, &data, &mut rng);
                let source = TensorView::new(format, Ptr::NULL, cols as i64, rows as i64).with_transpose(t.data, t.ld);
                let target = z.view().with_transpose(t.data, t.ld);
                // SAFETY: all tensors are live.
                unsafe { fp8_transpose(&ctx, &TransposeArgs { input: source, output: target }, Stream::NULL) }.unwrap();
                assert_codes_equal(&format!("transpose back [{rows}, {cols}] {lay:?}"), &z.codes(), &moved, rows);
            }
        }
    }
}

#[test]
fn dbias_beside_the_cast() {
    let ctx = context();
    let mut rng = rng("dbias_beside_the_cast");
    for (rows, cols) in SHAPES.into_iter().chain([(5000, 40)]) {
        for input_type in HIGH {
            for lay in LAYS {
                let (x, held) = input(&ctx, input_type, rows, cols, lay, &mut rng, false);
                let output_type = *FP8.choose(&mut rng).unwrap();
                let dbias_type = *HIGH.choose(&mut rng).unwrap();
                let layouts = *[(false, false), (true, false), (false, true), (true, true)].choose(&mut rng).unwrap();
                let q = Quantized::new(&ctx, output_type, rows, cols, layouts, lay, &mut rng);
                let accumulate = rng.random_bool(0.5);
                let start: Vec<f32> = (0..cols).map(|_| if accumulate { rng.random_range(-2.0f32..2.0) } else { f32::NAN }).collect();
                let (sums, start) = Tensor::input(&ctx, dbias_type, 1, cols, cols, rng.random_range(0..4), &start);
                let (scale, inv, amax) = (SlotF32::new(&ctx, 3.0), SlotF32::poisoned(&ctx), SlotF32::new(&ctx, 0.5));
                let current = (layouts != (false, false) && rng.random_bool(0.5)).then(CurrentScaling::default);
                let workspace = Guarded::new(&ctx, cast_dbias_workspace(&ctx, rows as i64, cols as i64).unwrap() as usize, 0);
                let view = q.view.with_scaling(scale.ptr(), inv.ptr(), amax.ptr());
                let args = CastDbiasArgs {
                    input: x.view(),
                    output: (layouts != (false, false)).then_some(view),
                    current,
                    dbias: sums.ptr(),
                    dbias_dtype: dbias_type,
                    accumulate,
                    workspace: workspace.ptr(),
                    workspace_bytes: workspace.bytes() as u64,
                };
                let mut first = Vec::new();
                for run in 0..2 {
                    // SAFETY: all tensors are live.
                    unsafe { cast_dbias(&ctx, &args, Stream::NULL) }.unwrap();
                    sync(&ctx);
                    workspace.read();
                    let what = format!("{} [{rows}, {cols}] {lay:?} {layouts:?} accumulate={accumulate}", input_type.name());
                    let factor = if current.is_some() { current_reference(&held, output_type, &CurrentScaling::default()).1 } else { 3.0 };
                    if args.output.is_some() {
                        q.check(&what, &held.iter().map(|v| oracle::encode(output_type, v * factor)).collect::<Vec<_>>());
                        assert_eq!(inv.read().to_bits(), (1.0 / factor).to_bits(), "{what}");
                    }
                    if run == 0 {
                        let got = sums.read();
                        for c in 0..cols {
                            let column = (0..rows).map(|r| f64::from(held[r * cols + c]));
                            let base = if accumulate { f64::from(start[c]) } else { 0.0 };
                            let (want, size): (f64, f64) =
                                (column.clone().sum::<f64>() + base, column.map(f64::abs).sum::<f64>() + base.abs());
                            let bound = oracle::ulp(dbias_type, want) / 2.0 + size * 2f64.powi(-20);
                            assert!((f64::from(got[c]) - want).abs() <= bound, "{what}: column {c}: {} instead of {want}", got[c]);
                        }
                        first = sums.codes();
                    } else if !accumulate {
                        assert_eq!(first, sums.codes(), "{what}: a second run gives other bits");
                    }
                }
            }
        }
    }
}

#[test]
fn rules_are_enforced() {
    let ctx = context();
    let mut rng = rng("rules_are_enforced");
    let (x, _) = input(&ctx, DType::Bf16, 8, 16, Lay::Dense, &mut rng, false);
    let q = Quantized::new(&ctx, DType::E4m3, 8, 16, (true, true), Lay::Dense, &mut rng);
    let scratch = Guarded::new(&ctx, cast_dbias_workspace(&ctx, 8, 16).unwrap() as usize, 0);
    let good = CurrentCastArgs {
        input: x.view(),
        output: q.view,
        scaling: CurrentScaling::default(),
        workspace: scratch.ptr(),
        workspace_bytes: scratch.bytes() as u64,
    };
    let current = |change: &dyn Fn(&mut CurrentCastArgs)| {
        let mut args = good;
        change(&mut args);
        // SAFETY: all tensors are live.
        unsafe { cast_to_fp8_current(&ctx, &args, Stream::NULL) }.map_err(|e| e.status())
    };
    assert_eq!(current(&|a| a.scaling.margin = 65), Err(Status::InvalidValue));
    assert_eq!(current(&|a| a.scaling.epsilon = -1.0), Err(Status::InvalidValue));
    assert_eq!(current(&|a| a.scaling.epsilon = f32::NAN), Err(Status::InvalidValue));
    assert_eq!(current(&|a| a.output.dtype = DType::F16), Err(Status::InvalidDType));
    assert_eq!(current(&|a| a.input.dtype = DType::E5m2), Err(Status::InvalidDType));
    if cast_to_fp8_current_workspace(&ctx) > 0 {
        assert_eq!(current(&|a| a.workspace_bytes = 3), Err(Status::WorkspaceTooSmall));
        assert_eq!(current(&|a| a.workspace = Ptr::NULL), Err(Status::NullPointer));
    }
    let transpose = |input: TensorView, output: TensorView| {
        // SAFETY: all tensors are live.
        unsafe { fp8_transpose(&ctx, &TransposeArgs { input, output }, Stream::NULL) }.map_err(|e| e.status())
    };
    assert_eq!(transpose(q.view, TensorView { dtype: DType::E5m2, ..q.view }), Err(Status::InvalidDType));
    assert_eq!(transpose(q.view, TensorView { data: x.ptr(), ..q.view }), Err(Status::Unsupported));
    assert_eq!(transpose(q.view, TensorView { data_t: q.view.data, ..q.view }), Err(Status::Overlap));
    assert_eq!(transpose(q.view, TensorView { data_t: Ptr::NULL, ..q.view }), Err(Status::NullPointer));
    let dbias = |change: &dyn Fn(&mut CastDbiasArgs)| {
        let sums = Guarded::new(&ctx, 64, 0);
        let mut args = CastDbiasArgs {
            input: x.view(),
            output: Some(q.view),
            current: None,
            dbias: sums.ptr(),
            dbias_dtype: DType::F32,
            accumulate: false,
            workspace: scratch.ptr(),
            workspace_bytes: scratch.bytes() as u64,
        };
        change(&mut args);
        // SAFETY: all tensors are live.
        unsafe { cast_dbias(&ctx, &args, Stream::NULL) }.map_err(|e| e.status())
    };
    assert_eq!(dbias(&|_| {}), Ok(()));
    assert_eq!(dbias(&|a| a.dbias = Ptr::NULL), Err(Status::NullPointer));
    assert_eq!(dbias(&|a| a.dbias_dtype = DType::E4m3), Err(Status::InvalidDType));
    assert_eq!(dbias(&|a| a.dbias = a.input.data), Err(Status::Overlap));
    assert_eq!(dbias(&|a| (a.output, a.current) = (None, Some(CurrentScaling::default()))), Err(Status::Unsupported));
}

#[test]
fn the_prepare_stream_enqueues_nothing() {
    let ctx = context();
    let mut rng = rng("the_prepare_stream_enqueues_nothing");
    let (x, _) = input(&ctx, DType::F32, 20, 30, Lay::Dense, &mut rng, false);
    let q = Quantized::new(&ctx, DType::E5m2, 20, 30, (true, true), Lay::Dense, &mut rng);
    let inv = SlotF32::poisoned(&ctx);
    let output = q.view.with_scaling(Ptr::NULL, inv.ptr(), Ptr::NULL);
    // SAFETY: all tensors are live.
    unsafe { cast_to_fp8(&ctx, &CastArgs { input: x.view(), output }, Stream::PREPARE) }.unwrap();
    sync(&ctx);
    assert!(q.rows.codes().iter().chain(&q.cols.codes()).all(|c| *c == 0xFF) && inv.read().to_bits() == u32::MAX);
}
