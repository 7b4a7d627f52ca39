//! Norms of the CPU back end: elements per second, on all cores and on one.

mod common;

use common::{context, matrix};
use criterion::{criterion_group, criterion_main, Criterion, Throughput};
use nvte::{
    ops::norm::{layernorm_bwd, layernorm_fwd, rmsnorm_bwd, rmsnorm_fwd, NormBwdArgs, NormFwdArgs},
    Buffer, DType, Ptr, Stream,
};

const ROWS: i64 = 2048;
const HIDDEN: i64 = 4096;

fn norms(c: &mut Criterion) {
    let mut group = c.benchmark_group("norm");
    group.throughput(Throughput::Elements((ROWS * HIDDEN) as u64)).sample_size(20);
    for threads in [None, Some(1)] {
        let (ctx, name) = context(threads);
        let slot = Buffer::from_slice(&ctx, &[1.0f32; 3]).expect("memory");
        let at = |i: u64| slot.ptr().offset(4 * i);
        let stats = [(); 2].map(|()| Buffer::from_slice(&ctx, &[0.5f32; ROWS as usize]).expect("memory"));
        let (_g, gamma) = matrix(&ctx, DType::F32, 1, HIDDEN);
        for dtype in [DType::Bf16, DType::F32] {
            let ((_x, x), (_y, y), (_q, q), (_t, t)) = (
                matrix(&ctx, dtype, ROWS, HIDDEN),
                matrix(&ctx, dtype, ROWS, HIDDEN),
                matrix(&ctx, DType::E4m3, ROWS, HIDDEN),
                matrix(&ctx, DType::E4m3, ROWS, HIDDEN),
            );
            let fp8 = q.with_scaling(at(0), at(1), at(2));
            let outputs = [(dtype.name(), y), ("e4m3", fp8), ("e4m3 + transpose", fp8.with_transpose(t.data, ROWS))];
            for (to, y) in outputs {
                let args = NormFwdArgs {
                    x,
                    residual: None,
                    sum: None,
                    gamma: Some(gamma),
                    beta: None,
                    zero_centered_gamma: false,
                    eps: 1e-5,
                    y,
                    mu: Ptr::NULL,
                    rsigma: stats[1].ptr(),
                };
                group.bench_function(name(&format!("layernorm {} to {to}", dtype.name())), |b| {
                    let args = NormFwdArgs { beta: Some(gamma), mu: stats[0].ptr(), ..args };
                    // SAFETY: all memory is live, here and below.
                    b.iter(|| unsafe { layernorm_fwd(&ctx, &args, Stream::NULL) })
                });
                group.bench_function(name(&format!("rmsnorm {} to {to}", dtype.name())), |b| {
                    // SAFETY: as above.
                    b.iter(|| unsafe { rmsnorm_fwd(&ctx, &args, Stream::NULL) })
                });
            }
            let ((_dx, dx), (_dg, dgamma), (_db, dbeta)) =
                (matrix(&ctx, dtype, ROWS, HIDDEN), matrix(&ctx, DType::F32, 1, HIDDEN), matrix(&ctx, DType::F32, 1, HIDDEN));
            let args = NormBwdArgs {
                dy: y,
                x,
                dsum: None,
                gamma: Some(gamma),
                zero_centered_gamma: false,
                mu: Ptr::NULL,
                rsigma: stats[1].ptr(),
                dx,
                dgamma: Some(dgamma),
                dbeta: None,
                workspace: Ptr::NULL,
                workspace_bytes: 0,
            };
            group.bench_function(name(&format!("layernorm backward {}", dtype.name())), |b| {
                let args = NormBwdArgs { dbeta: Some(dbeta), mu: stats[0].ptr(), ..args };
                // SAFETY: as above.
                b.iter(|| unsafe { layernorm_bwd(&ctx, &args, Stream::NULL) })
            });
            group.bench_function(name(&format!("rmsnorm backward {}", dtype.name())), |b| {
                // SAFETY: as above.
                b.iter(|| unsafe { rmsnorm_bwd(&ctx, &args, Stream::NULL) })
            });
        }
    }
    group.finish();
}

criterion_group!(benches, norms);
criterion_main!(benches);
