//! What all integration tests share: the back end under test, fresh random data, guarded and poisoned buffers, independent oracles.
#![allow(dead_code)]

pub mod cc;
pub mod elf;
pub mod large;
pub mod oracle;
pub mod streams;
pub mod tolerance;

use half::{bf16, f16};
use nvte::{Buffer, Context, DType, Ptr, Stream, TensorView};
use rand::{rngs::StdRng, RngExt, SeedableRng};

/// The back end named by NVTE_TEST_BACKEND (cpu, the default, or cuda).
pub fn context() -> Context {
    match std::env::var("NVTE_TEST_BACKEND").as_deref() {
        Ok("cuda") => Context::cuda(0).expect("NVTE_TEST_BACKEND=cuda needs a device"),
        Ok("cpu") | Err(_) => Context::cpu().expect("the CPU back end always exists"),
        Ok(other) => panic!("NVTE_TEST_BACKEND={other}: cpu or cuda"),
    }
}

/// Whether the back end under test is CUDA.
pub fn on_cuda() -> bool {
    std::env::var("NVTE_TEST_BACKEND").as_deref() == Ok("cuda")
}

/// Fresh random numbers; the seed is printed (cargo shows it when the test fails) and can be fixed with NVTE_TEST_SEED.
pub fn rng(test: &str) -> StdRng {
    let fresh = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = std::env::var("NVTE_TEST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(fresh);
    println!("{test}: NVTE_TEST_SEED={seed}");
    StdRng::seed_from_u64(seed)
}

/// Normal values with now and then a large, a tiny, a zero, an infinite or a NaN one where `special`.
pub fn values(rng: &mut StdRng, n: usize, special: bool) -> Vec<f32> {
    let normal = rand_distr::StandardNormal;
    (0..n)
        .map(|_| {
            let v: f32 = rng.sample(normal);
            if !special {
                return v;
            }
            match rng.random_range(0..64) {
                0 => v * 1e5,
                1 => v * 1e-5,
                2 => 0.0,
                3 => -0.0,
                4 => v * 1e-39,
                5 if rng.random_bool(0.05) => f32::INFINITY,
                6 if rng.random_bool(0.05) => f32::NEG_INFINITY,
                7 if rng.random_bool(0.05) => f32::NAN,
                _ => v,
            }
        })
        .collect()
}

/// Bytes of guard on each side of every buffer.
const GUARD: usize = 512;
const GUARD_BYTE: u8 = 0xA5;
/// Outputs start as this byte everywhere: NaN in every format.
pub const POISON: u8 = 0xFF;

/// Device memory between guards, poisoned.
pub struct Guarded {
    buffer: Buffer,
    offset: usize,
    bytes: usize,
}

impl Guarded {
    /// `offset` shifts the start by that many bytes off a 256-byte boundary.
    pub fn new(ctx: &Context, bytes: usize, offset: usize) -> Self {
        let total = GUARD + offset + bytes + GUARD;
        let mut host = vec![GUARD_BYTE; total];
        host[GUARD + offset..GUARD + offset + bytes].fill(POISON);
        let buffer = Buffer::from_slice(ctx, &host).expect("test memory");
        Self { buffer, offset: GUARD + offset, bytes }
    }

    pub fn from_bytes(ctx: &Context, data: &[u8], offset: usize) -> Self {
        let g = Self::new(ctx, data.len(), offset);
        g.buffer.write(g.offset, data).unwrap();
        g
    }

    pub fn ptr(&self) -> Ptr {
        self.buffer.ptr().offset(self.offset as u64)
    }

    /// New contents for memory that is there already.
    pub fn overwrite(&self, data: &[u8]) {
        assert_eq!(data.len(), self.bytes);
        self.buffer.write(self.offset, data).unwrap();
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The contents; panics where a guard byte changed.
    pub fn read(&self) -> Vec<u8> {
        let all: Vec<u8> = self.buffer.read(0, self.buffer.bytes()).unwrap();
        for (i, b) in all.iter().enumerate() {
            let inside = i >= self.offset && i < self.offset + self.bytes;
            assert!(inside || *b == GUARD_BYTE, "guard byte at {} was overwritten with {b:#x}", i as i64 - self.offset as i64);
        }
        all[self.offset..self.offset + self.bytes].to_vec()
    }
}

impl Guarded {
    /// As [`Guarded::read`], but of more than twice `most` bytes only the first and the last `most`.
    pub fn read_ends(&self, most: usize) -> Vec<u8> {
        if self.bytes <= 2 * most {
            return self.read();
        }
        let (from, to) = (self.offset - GUARD, self.offset + self.bytes - most);
        let mut ends: Vec<u8> = self.buffer.read(from, GUARD + most).unwrap();
        ends.extend(self.buffer.read::<u8>(to, most + GUARD).unwrap());
        let guards = [&ends[..GUARD], &ends[ends.len() - GUARD..]];
        assert!(guards.iter().all(|g| g.iter().all(|b| *b == GUARD_BYTE)), "a guard byte was overwritten");
        ends
    }
}

/// One f32 on the device (a scale, scale_inv or amax slot).
pub struct SlotF32(Guarded);

impl SlotF32 {
    pub fn new(ctx: &Context, v: f32) -> Self {
        Self(Guarded::from_bytes(ctx, &v.to_ne_bytes(), 0))
    }
    pub fn poisoned(ctx: &Context) -> Self {
        Self(Guarded::new(ctx, 4, 0))
    }
    pub fn ptr(&self) -> Ptr {
        self.0.ptr()
    }
    pub fn write(&self, v: f32) {
        self.0.buffer.write(self.0.offset, &[v]).unwrap();
    }
    pub fn read(&self) -> f32 {
        f32::from_ne_bytes(self.0.read().try_into().unwrap())
    }
}

/// A matrix on the device with a row stride, between guards; the gaps between rows are guarded too.
pub struct Tensor {
    pub dtype: DType,
    pub rows: usize,
    pub cols: usize,
    pub ld: usize,
    memory: Guarded,
}

impl Tensor {
    fn bytes(dtype: DType, rows: usize, cols: usize, ld: usize) -> usize {
        if rows == 0 || cols == 0 {
            0
        } else {
            ((rows - 1) * ld + cols) * dtype.size()
        }
    }

    /// Poisoned, `offset` elements off an aligned address.
    pub fn output(ctx: &Context, dtype: DType, rows: usize, cols: usize, ld: usize, offset: usize) -> Self {
        let memory = Guarded::new(ctx, Self::bytes(dtype, rows, cols, ld), offset * dtype.size());
        Self { dtype, rows, cols, ld, memory }
    }

    /// `values` (row-major, dense) rounded to `dtype`; returns with it what the device holds, as f32.
    pub fn input(ctx: &Context, dtype: DType, rows: usize, cols: usize, ld: usize, offset: usize, values: &[f32]) -> (Self, Vec<f32>) {
        assert_eq!(values.len(), rows * cols);
        let mut bytes = vec![POISON; Self::bytes(dtype, rows, cols, ld)];
        let mut held = Vec::with_capacity(values.len());
        for r in 0..rows {
            for c in 0..cols {
                let (b, v) = oracle::to_bytes(dtype, values[r * cols + c]);
                let at = (r * ld + c) * dtype.size();
                bytes[at..at + dtype.size()].copy_from_slice(&b[..dtype.size()]);
                held.push(v);
            }
        }
        let memory = Guarded::from_bytes(ctx, &bytes, offset * dtype.size());
        (Self { dtype, rows, cols, ld, memory }, held)
    }

    /// Random values (see [`values`]) in `dtype`.
    pub fn random(
        ctx: &Context,
        dtype: DType,
        rows: usize,
        cols: usize,
        ld: usize,
        offset: usize,
        rng: &mut StdRng,
        special: bool,
    ) -> (Self, Vec<f32>) {
        Self::input(ctx, dtype, rows, cols, ld, offset, &values(rng, rows * cols, special))
    }

    pub fn view(&self) -> TensorView {
        TensorView::new(self.dtype, self.memory.ptr(), self.rows as i64, self.cols as i64).with_ld(self.ld as i64)
    }

    pub fn ptr(&self) -> Ptr {
        self.memory.ptr()
    }

    /// The elements as raw little-endian codes, row-major and dense; panics where a guard or a gap between rows was written.
    pub fn codes(&self) -> Vec<u32> {
        let bytes = self.memory.read();
        let (s, mut out) = (self.dtype.size(), Vec::with_capacity(self.rows * self.cols));
        for (i, e) in bytes.chunks_exact(s).enumerate() {
            let mut word = [0; 4];
            word[..s].copy_from_slice(e);
            if i % self.ld < self.cols {
                out.push(u32::from_le_bytes(word));
            } else {
                assert!(e.iter().all(|b| *b == POISON), "gap after row {} was written", i / self.ld);
            }
        }
        out
    }

    /// The elements as f32.
    pub fn read(&self) -> Vec<f32> {
        self.codes().into_iter().map(|c| oracle::from_code(self.dtype, c)).collect()
    }
}

/// Runs everything enqueued so far.
pub fn sync(ctx: &Context) {
    ctx.synchronize(Stream::NULL).unwrap();
}

/// Panics with coordinates and bytes of the first difference.
pub fn assert_codes_equal(what: &str, got: &[u32], want: &[u32], cols: usize) {
    assert_eq!(got.len(), want.len(), "{what}: number of elements");
    if let Some(i) = (0..got.len()).find(|i| got[*i] != want[*i]) {
        let wrong = (0..got.len()).filter(|i| got[*i] != want[*i]).count();
        panic!(
            "{what}: {wrong} of {} differ; first at ({}, {}): got {:#x}, want {:#x}",
            got.len(),
            i / cols.max(1),
            i % cols.max(1),
            got[i],
            want[i]
        );
    }
}

/// Relative Frobenius error; NaN wherever a NaN is on one side only.
pub fn relative_error(got: &[f32], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let (mut d, mut n) = (0.0, 0.0);
    for (g, w) in got.iter().zip(want) {
        d += (f64::from(*g) - w).powi(2);
        n += w * w;
    }
    if d == 0.0 {
        0.0
    } else {
        (d / n).sqrt()
    }
}

pub fn bf16_of(v: f32) -> f32 {
    bf16::from_f32(v).to_f32()
}

pub fn f16_of(v: f32) -> f32 {
    f16::from_f32(v).to_f32()
}
