//! Casts of the CPU back end: elements per second, on all cores and on one.

mod common;

use common::{context, matrix};
use criterion::{criterion_group, criterion_main, Criterion, Throughput};
use nvte::{
    numerics::DelayedScaling,
    ops::{
        amax::{amax, AmaxArgs},
        cast::{cast_to_fp8, cast_to_fp8_current, CastArgs, CurrentCastArgs, CurrentScaling},
        dequantize::{dequantize, fp8_transpose, DequantizeArgs, TransposeArgs},
        scaling::{scaling_update, ScalingUpdateArgs},
    },
    Buffer, Context, DType, Ptr, Stream, TensorView,
};

const ROWS: i64 = 4096;
const COLS: i64 = 4096;

fn casts(c: &mut Criterion) {
    let mut group = c.benchmark_group("cast");
    group.throughput(Throughput::Elements((ROWS * COLS) as u64)).sample_size(20);
    for threads in [None, Some(1)] {
        let (ctx, name) = context(threads);
        let slot = Buffer::from_slice(&ctx, &[1.0f32; 3]).expect("memory");
        let at = |i: u64| slot.ptr().offset(4 * i);
        for input in [DType::Bf16, DType::F16, DType::F32] {
            let (_x, x) = matrix(&ctx, input, ROWS, COLS);
            for output in [DType::E4m3, DType::E5m2] {
                let ((_q, q), (_t, t)) = (matrix(&ctx, output, ROWS, COLS), matrix(&ctx, output, ROWS, COLS));
                let scaled = q.with_scaling(at(0), at(1), at(2));
                let both = scaled.with_transpose(t.data, ROWS);
                for (layouts, output_view) in [("", scaled), (" + transpose", both)] {
                    group.bench_function(name(&format!("{} to {}{layouts}", input.name(), output.name())), |b| {
                        // SAFETY: all memory is live, here and below.
                        b.iter(|| unsafe { cast_to_fp8(&ctx, &CastArgs { input: x, output: output_view }, Stream::NULL) })
                    });
                }
            }
            let (_q, q) = matrix(&ctx, DType::E4m3, ROWS, COLS);
            let output = q.with_scaling(at(0), at(1), at(2));
            let args = CurrentCastArgs { input: x, output, scaling: CurrentScaling::default(), workspace: Ptr::NULL, workspace_bytes: 0 };
            group.bench_function(name(&format!("{} to e4m3, current scaling", input.name())), |b| {
                // SAFETY: as above.
                b.iter(|| unsafe { cast_to_fp8_current(&ctx, &args, Stream::NULL) })
            });
            group.bench_function(name(&format!("amax of {}", input.name())), |b| {
                // SAFETY: as above.
                b.iter(|| unsafe { amax(&ctx, &AmaxArgs { input: x, amax: at(2) }, Stream::NULL) })
            });
            for format in [DType::E4m3, DType::E5m2] {
                let (_q, q) = matrix(&ctx, format, ROWS, COLS);
                group.bench_function(name(&format!("{} to {}", format.name(), input.name())), |b| {
                    // SAFETY: as above.
                    b.iter(|| unsafe { dequantize(&ctx, &DequantizeArgs { input: q, output: x }, Stream::NULL) })
                });
            }
        }
        let ((_q, q), (_t, t)) = (matrix(&ctx, DType::E4m3, ROWS, COLS), matrix(&ctx, DType::E4m3, ROWS, COLS));
        let args = TransposeArgs { input: q, output: TensorView { data: Ptr::NULL, ..q }.with_transpose(t.data, ROWS) };
        group.bench_function(name("transpose"), |b| {
            // SAFETY: as above.
            b.iter(|| unsafe { fp8_transpose(&ctx, &args, Stream::NULL) })
        });
    }
    group.finish();
}

fn update(c: &mut Criterion) {
    const SLOTS: usize = 2000;
    const STEPS: usize = 1023;
    let ctx = Context::cpu().expect("the CPU");
    let array = |v: f32, n: usize| Buffer::from_slice(&ctx, &vec![v; n]).expect("memory");
    let (live, scale, history, format_max) = (array(1.0, SLOTS), array(1.0, SLOTS), array(1.0, SLOTS * STEPS), array(448.0, SLOTS));
    let args = ScalingUpdateArgs {
        slots: SLOTS as i64,
        live: live.ptr(),
        scale: scale.ptr(),
        history: history.ptr(),
        slot_stride: STEPS as i64,
        step_stride: 1,
        format_max: format_max.ptr(),
        ..ScalingUpdateArgs::from_recipe(&DelayedScaling::default())
    };
    c.bench_function("scaling update, 2000 slots of 1024", |b| {
        b.iter(|| {
            live.write(0, &[1.0f32; SLOTS]).expect("memory");
            // SAFETY: all memory is live.
            unsafe { scaling_update(&ctx, &args, Stream::NULL) }
        })
    });
}

criterion_group!(benches, casts, update);
criterion_main!(benches);
