//! Set-up that the benchmarks of the CPU back end share.

use criterion::BenchmarkId;
use half::bf16;
use nvte::{Buffer, Context, ContextOptions, DType, Device, TensorView};

/// A matrix of values between -4 and 4 (f16 and FP8: of small normal numbers), and its memory.
pub fn matrix(ctx: &Context, dtype: DType, rows: i64, cols: i64) -> (Buffer, TensorView) {
    let values = (0..rows * cols).map(|i| (i * 7919 % 1009 - 504) as f32 / 126.0);
    let memory = match dtype {
        DType::F32 => Buffer::from_slice(ctx, &values.collect::<Vec<f32>>()),
        DType::Bf16 => Buffer::from_slice(ctx, &values.map(|v| bf16::from_f32(v).to_bits()).collect::<Vec<u16>>()),
        _ => Buffer::from_slice(ctx, &(0..rows as usize * cols as usize * dtype.size()).map(|i| 0x38 + (i % 7) as u8).collect::<Vec<u8>>()),
    };
    let memory = memory.expect("memory");
    let view = TensorView::new(dtype, memory.ptr(), rows, cols);
    (memory, view)
}

/// A context on so many threads, or on all cores, and how a benchmark on it is called.
pub fn context(threads: Option<usize>) -> (Context, impl Fn(&str) -> BenchmarkId) {
    let ctx = Context::new(Device::Cpu, &ContextOptions { num_threads: threads, ..Default::default() }).expect("the CPU");
    (ctx, move |what: &str| BenchmarkId::new(what.to_owned(), threads.map_or("all cores".into(), |n| format!("{n} thread"))))
}
