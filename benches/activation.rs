//! Activations of the CPU back end: elements of the result per second, on all cores and on one.

use criterion::{criterion_group, criterion_main, BenchmarkId, Criterion, Throughput};
use half::bf16;
use nvte::{
    ops::activation::{activation_bwd, activation_fwd, Activation, ActivationArgs, ActivationBwdArgs},
    Buffer, Context, ContextOptions, DType, Device, Ptr, Stream, TensorView,
};

const ROWS: i64 = 2048;
const HIDDEN: i64 = 4096;

/// A matrix of values between -4 and 4, and its memory.
fn matrix(ctx: &Context, dtype: DType, cols: i64) -> (Buffer, TensorView) {
    let values = (0..ROWS * cols).map(|i| (i * 7919 % 1009 - 504) as f32 / 126.0);
    let memory = match dtype {
        DType::F32 => Buffer::from_slice(ctx, &values.collect::<Vec<f32>>()),
        DType::Bf16 => Buffer::from_slice(ctx, &values.map(|v| bf16::from_f32(v).to_bits()).collect::<Vec<u16>>()),
        _ => Buffer::new(ctx, (ROWS * cols) as usize * dtype.size()),
    };
    let memory = memory.expect("memory");
    let view = TensorView::new(dtype, memory.ptr(), ROWS, cols);
    (memory, view)
}

fn activations(c: &mut Criterion) {
    let mut group = c.benchmark_group("activation");
    group.throughput(Throughput::Elements((ROWS * HIDDEN) as u64)).sample_size(20);
    for threads in [None, Some(1)] {
        let ctx = Context::new(Device::Cpu, &ContextOptions { num_threads: threads, ..Default::default() }).expect("the CPU");
        let name = |what: &str| BenchmarkId::new(what.to_owned(), threads.map_or("all cores".into(), |n| format!("{n} thread")));
        let slot = Buffer::from_slice(&ctx, &[1.0f32; 3]).expect("memory");
        let at = |i: u64| slot.ptr().offset(4 * i);
        let kinds = [Activation::Gelu, Activation::GeluErf, Activation::Silu, Activation::Relu, Activation::Swiglu];
        for (dtype, kinds) in [(DType::Bf16, &kinds[..]), (DType::F32, &kinds[..1])] {
            for kind in kinds.iter().copied() {
                let width = if kind.is_gated() { 2 * HIDDEN } else { HIDDEN };
                let ((_x, x), (_dy, dy), (_s, sums)) =
                    (matrix(&ctx, dtype, width), matrix(&ctx, dtype, HIDDEN), matrix(&ctx, DType::F32, width));
                for (format, cols) in [(DType::E4m3, HIDDEN), (DType::E5m2, width)] {
                    let ((_y, y), (_q, q), (_t, t)) = (matrix(&ctx, dtype, cols), matrix(&ctx, format, cols), matrix(&ctx, format, cols));
                    let q = q.with_scaling(at(0), at(1), at(2));
                    let both = format!("{} + transpose", format.name());
                    for (to, output) in [(dtype.name(), y), (format.name(), q), (both.as_str(), q.with_transpose(t.data, ROWS))] {
                        if format == DType::E4m3 {
                            let args = ActivationArgs { kind, input: x, output };
                            group.bench_function(name(&format!("{} {} to {to}", kind.name(), dtype.name())), |b| {
                                // SAFETY: all memory is live, here and below.
                                b.iter(|| unsafe { activation_fwd(&ctx, &args, Stream::NULL) })
                            });
                            continue;
                        }
                        let args = ActivationBwdArgs {
                            kind,
                            dy,
                            input: x,
                            output,
                            dbias: sums.data,
                            dbias_dtype: DType::F32,
                            accumulate: false,
                            workspace: Ptr::NULL,
                            workspace_bytes: 0,
                        };
                        group.bench_function(name(&format!("{} backward {} to {to}, dbias", kind.name(), dtype.name())), |b| {
                            // SAFETY: as above.
                            b.iter(|| unsafe { activation_bwd(&ctx, &args, Stream::NULL) })
                        });
                    }
                }
            }
        }
    }
    group.finish();
}

criterion_group!(benches, activations);
criterion_main!(benches);
