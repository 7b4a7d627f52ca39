//! Products on the CPU back end, decoding included, beside the f32 GEMM crate alone on operands already in f32.

use criterion::{criterion_group, criterion_main, Criterion, Throughput};
use gemm_common::Parallelism;
use nvte::{
    ops::gemm::{fp8_gemm, gemm, Accumulate, GemmArgs},
    Context, DType, Ptr, Stream, TensorView,
};
use rand::{rngs::StdRng, RngExt, SeedableRng};

const SIDE: usize = 1024;

fn products(c: &mut Criterion) {
    let ctx = Context::cpu().unwrap();
    let threads = ctx.capability().multiprocessors as usize;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let mut rng = StdRng::seed_from_u64(1);
    let bits = |rng: &mut StdRng| -> Vec<u32> { (0..SIDE * SIDE / 2).map(|_| rng.random()).collect() };
    let floats = |rng: &mut StdRng| -> Vec<f32> { (0..SIDE * SIDE).map(|_| rng.random_range(-1.0f32..1.0)).collect() };
    let (x, y) = (floats(&mut rng), floats(&mut rng));
    let mut d = vec![0.0f32; SIDE * SIDE];
    let mut group = c.benchmark_group(format!("gemm {SIDE}^3, {threads} threads"));
    group.throughput(Throughput::Elements(2 * (SIDE * SIDE * SIDE) as u64));
    group.sample_size(20);

    group.bench_function("f32 crate alone", |b| {
        b.iter(|| {
            // Both operands K-major and D row-major, as below.
            let (n, one) = (SIDE as isize, 1);
            // SAFETY: three matrices of SIDE x SIDE.
            pool.install(|| unsafe {
                gemm_f32::gemm::f32::get_gemm_fn()(
                    SIDE,
                    SIDE,
                    SIDE,
                    d.as_mut_ptr(),
                    n,
                    one,
                    false,
                    y.as_ptr(),
                    one,
                    n,
                    x.as_ptr(),
                    n,
                    one,
                    0.0,
                    1.0,
                    false,
                    false,
                    false,
                    Parallelism::Rayon(threads),
                )
            })
        })
    });

    let side = SIDE as i64;
    let out = TensorView::new(DType::F32, d.as_mut_ptr(), side, side);
    for t in DType::ALL {
        let random = [bits(&mut rng), bits(&mut rng)];
        let (a, b) = match t {
            DType::F32 => (Ptr::from(x.as_ptr()), Ptr::from(y.as_ptr())),
            _ => (Ptr::from(random[0].as_ptr()), Ptr::from(random[1].as_ptr())),
        };
        let args = GemmArgs::new(TensorView::new(t, a, side, side), TensorView::new(t, b, side, side), out, Accumulate::Precise);
        group.bench_function(t.name(), |bench| {
            // SAFETY: the vectors are live.
            bench.iter(|| unsafe {
                match t.is_fp8() {
                    true => fp8_gemm(&ctx, &args, Stream::NULL),
                    false => gemm(&ctx, &args, Stream::NULL),
                }
                .unwrap()
            })
        });
    }
    group.finish();
}

criterion_group!(benches, products);
criterion_main!(benches);
