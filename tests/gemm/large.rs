//! Products of thousands of rows, columns and terms, all odd, at odd strides and offsets: compared in a sample of elements.

use nvte::{
    ops::gemm::{gemm_workspace, GemmArgs},
    Context, DType, Ptr, Stream, TensorView,
};
use rand::{rngs::StdRng, RngExt};

use crate::{
    case::*,
    common::{
        context,
        large::{Large, Pool},
        on_cuda, oracle, rng, sync, SlotF32, POISON,
    },
};

/// `[rows, k]`, stored along k or along the rows.
struct Side {
    memory: Large,
    pool: Pool,
    scale_inv: SlotF32,
    factor: f64,
    k_major: bool,
    rows: usize,
    k: usize,
    ld: usize,
}

impl Side {
    fn random(ctx: &Context, dtype: DType, rows: usize, k: usize, rng: &mut StdRng) -> Self {
        let k_major = rng.random_bool(0.6);
        let (height, width) = if k_major { (rows, k) } else { (k, rows) };
        // Sizes are odd, so these strides are odd, and now and then aligned.
        let ld = if rng.random_bool(0.8) { width + 2 * rng.random_range(0..10) } else { width.next_multiple_of(16) };
        let offset = rng.random_range(0..17) * dtype.size();
        let pool = Pool::new(dtype, rng);
        let memory = Large::of_pool(ctx, &pool, (height - 1) * ld + width, offset).unwrap();
        let factor = if dtype.is_fp8() { rng.random_range(0.01f32..4.0) } else { 1.0 };
        Self { memory, pool, scale_inv: SlotF32::new(ctx, factor), factor: f64::from(factor), k_major, rows, k, ld }
    }

    fn view(&self) -> TensorView {
        let (rows, cols) = if self.k_major { (self.rows, self.k) } else { (self.k, self.rows) };
        let mut v = TensorView::new(self.pool.dtype, self.memory.ptr(), rows as i64, cols as i64).with_ld(self.ld as i64);
        if v.dtype.is_fp8() {
            v.scale_inv = self.scale_inv.ptr();
        }
        v
    }

    fn at(&self, row: usize, i: usize) -> f64 {
        f64::from(self.pool.value(if self.k_major { row * self.ld + i } else { i * self.ld + row }))
    }
}

/// Corners, the last row and column in part, and elements drawn at random.
fn sample(m: usize, n: usize, count: usize, rng: &mut StdRng) -> Vec<(usize, usize)> {
    let mut all = vec![(0, 0), (0, n - 1), (m - 1, 0), (m - 1, n - 1)];
    for i in all.len()..count {
        let (r, c) = (rng.random_range(0..m), rng.random_range(0..n));
        all.push(match i % 8 {
            0 => (m - 1, c),
            1 => (r, n - 1),
            _ => (r, c),
        });
    }
    all
}

fn product(ctx: &Context, (m, n, k): (usize, usize, usize), samples: usize, rng: &mut StdRng) {
    let all = pairs();
    let (ta, tb) = all[rng.random_range(0..all.len())];
    let (dtype, mode) = (HIGH[rng.random_range(0..3)], MODES[rng.random_range(0..2)]);
    let (a, b) = (Side::random(ctx, ta, m, k, rng), Side::random(ctx, tb, n, k, rng));
    let (ldd, offset) = (n + 2 * rng.random_range(0..10), rng.random_range(0..17));
    let d = Large::new(ctx, ((m - 1) * ldd + n) * dtype.size(), offset * dtype.size()).unwrap();
    let out = TensorView::new(dtype, d.ptr(), m as i64, n as i64).with_ld(ldd as i64);
    let what = format!(
        "[{m}, {n}, {k}] {} x {} -> {} {mode:?}, along K: {} {}, strides {} {} {ldd}, at {:#x} {:#x} {:#x}",
        ta.name(),
        tb.name(),
        dtype.name(),
        a.k_major,
        b.k_major,
        a.ld,
        b.ld,
        a.memory.ptr().0,
        b.memory.ptr().0,
        d.ptr().0
    );
    let args = GemmArgs::new(a.view(), b.view(), out, mode).with_transposes(!a.k_major, !b.k_major);
    let bytes = gemm_workspace(ctx, &args).unwrap_or_else(|e| panic!("{what}: {e}"));
    let workspace = Large::new(ctx, bytes as usize, 0).unwrap();
    let at = if bytes == 0 { Ptr::NULL } else { workspace.ptr() };
    // SAFETY: everything is live.
    unsafe { call(ctx, &args.with_workspace(at, bytes), Stream::NULL) }.unwrap_or_else(|e| panic!("{what}: refused: {e}"));
    sync(ctx);
    for memory in [&d, &workspace, &a.memory, &b.memory] {
        memory.assert_guards(&what);
    }

    // Every element was written, and nothing between rows.
    let (bytes, es) = (d.read(0, ((m - 1) * ldd + n) * dtype.size()), dtype.size());
    for (r, row) in bytes.chunks(ldd * es).enumerate() {
        let (row, gap) = row.split_at(n * es);
        assert!(gap.iter().all(|b| *b == POISON), "{what}: gap after row {r} was written");
        let unwritten = row.chunks_exact(es).position(|e| e.iter().all(|b| *b == POISON));
        assert!(unwritten.is_none(), "{what}: ({r}, {}) was not written", unwritten.unwrap_or(0));
    }
    let (mut got, mut reference) = (Vec::new(), Reference { want: Vec::new(), size: Vec::new() });
    for (r, c) in sample(m, n, samples, rng) {
        let mut word = [0; 4];
        word[..es].copy_from_slice(&bytes[(r * ldd + c) * es..][..es]);
        got.push(oracle::from_code(dtype, u32::from_le_bytes(word)));
        let (mut sum, mut squares) = (0.0, 0.0);
        for i in 0..k {
            let p = a.at(r, i) * b.at(c, i);
            sum += p;
            squares += p * p;
        }
        reference.want.push(sum * a.factor * b.factor);
        reference.size.push(squares.sqrt() * a.factor * b.factor);
    }
    assert_close(&what, dtype, &got, &reference, bound(ctx, ta, mode, k));
}

/// On a device twenty-two of them; on the CPU a few smaller ones.
#[test]
fn large_odd_products() {
    let (ctx, mut rng) = (context(), rng("large_odd_products"));
    #[rustfmt::skip]
    let large = [
        (4097, 4095, 4099), (8193, 1025, 2049), (1027, 8191, 3001), (5003, 7001, 1009), (2999, 3001, 5003), (9973, 2053, 1031),
        (1999, 1501, 12289), (6007, 1013, 6011), (1009, 10007, 2003), (3331, 4447, 5557), (7919, 2207, 1129), (2311, 6553, 3571),
        (4001, 1201, 8009), (1301, 1303, 15013), (11003, 1007, 2017), (2741, 9341, 1511), (5801, 5803, 1001), (3457, 2909, 4513),
        (1151, 12007, 2503), (8089, 3049, 1901), (1001, 50257, 1025), (16385, 1001, 1003),
    ];
    let small = [(257, 131, 513), (65, 511, 1027), (301, 299, 303), (1, 1025, 777)];
    let some = std::env::var_os("NVTE_TEST_SMALL").is_some();
    let (shapes, samples) = if on_cuda() && !some { (&large[..], 4096) } else { (&small[..], 512) };
    for shape in shapes {
        product(&ctx, *shape, samples, &mut rng);
    }
}
