//! Activations of the CPU back end: elements of the result per second, on all cores and on one.

mod common;

use common::{context, matrix};
use criterion::{criterion_group, criterion_main, Criterion, Throughput};
use nvte::{
    ops::activation::{activation_bwd, activation_fwd, Activation, ActivationArgs, ActivationBwdArgs},
    Buffer, DType, Ptr, Stream,
};

const ROWS: i64 = 2048;
const HIDDEN: i64 = 4096;

fn activations(c: &mut Criterion) {
    let mut group = c.benchmark_group("activation");
    group.throughput(Throughput::Elements((ROWS * HIDDEN) as u64)).sample_size(20);
    for threads in [None, Some(1)] {
        let (ctx, name) = context(threads);
        let slot = Buffer::from_slice(&ctx, &[1.0f32; 3]).expect("memory");
        let at = |i: u64| slot.ptr().offset(4 * i);
        let kinds = [Activation::Gelu, Activation::GeluErf, Activation::Silu, Activation::Relu, Activation::Swiglu];
        for (dtype, kinds) in [(DType::Bf16, &kinds[..]), (DType::F32, &kinds[..1])] {
            for kind in kinds.iter().copied() {
                let width = if kind.is_gated() { 2 * HIDDEN } else { HIDDEN };
                let ((_x, x), (_dy, dy), (_s, sums)) =
                    (matrix(&ctx, dtype, ROWS, width), matrix(&ctx, dtype, ROWS, HIDDEN), matrix(&ctx, DType::F32, ROWS, width));
                for (format, cols) in [(DType::E4m3, HIDDEN), (DType::E5m2, width)] {
                    let ((_y, y), (_q, q), (_t, t)) =
                        (matrix(&ctx, dtype, ROWS, cols), matrix(&ctx, format, ROWS, cols), matrix(&ctx, format, ROWS, cols));
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
