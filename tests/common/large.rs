//! Tensors too large to hold element by element on the host: filled with a repeating pool, looked at in samples.

use half::bf16;
use nvte::{Buffer, Context, DType, Ptr, Result, Stream};
use rand::rngs::StdRng;

use super::{oracle, values, POISON};

const GUARD: usize = 4096;
const GUARD_BYTE: u8 = 0xA5;

/// Elements that repeat along a tensor, with their values. Their number is a prime that divides no stride in use: rows and columns differ.
pub struct Pool {
    pub dtype: DType,
    bytes: Vec<u8>,
    values: Vec<f32>,
}

impl Pool {
    const LEN: usize = 65_521;

    /// Normal values in `dtype`.
    pub fn new(dtype: DType, rng: &mut StdRng) -> Self {
        let (mut bytes, mut held) = (Vec::new(), Vec::new());
        for v in values(rng, Self::LEN, false) {
            let (b, v) = oracle::to_bytes(dtype, v);
            bytes.extend_from_slice(&b[..dtype.size()]);
            held.push(v);
        }
        Self { dtype, bytes, values: held }
    }

    /// The value of the element that lies `at` elements behind the first.
    pub fn value(&self, at: usize) -> f32 {
        self.values[at % Self::LEN]
    }

    /// The largest magnitude.
    pub fn amax(&self) -> f32 {
        oracle::amax(&self.values)
    }
}

/// Device memory between guards, poisoned.
pub struct Large {
    buffer: Buffer,
    offset: usize,
    bytes: usize,
}

impl Large {
    /// `offset` shifts the start by that many bytes off a 256-byte boundary. An error where the device has no such memory left.
    pub fn new(ctx: &Context, bytes: usize, offset: usize) -> Result<Self> {
        let start = GUARD + offset;
        let buffer = Buffer::new(ctx, start + bytes + GUARD)?;
        buffer.fill(POISON, Stream::NULL)?;
        ctx.synchronize(Stream::NULL)?;
        buffer.write(0, &vec![GUARD_BYTE; start])?;
        buffer.write(start + bytes, &[GUARD_BYTE; GUARD])?;
        Ok(Self { buffer, offset: start, bytes })
    }

    /// Filled with a pool's elements over and over.
    pub fn of_pool(ctx: &Context, pool: &Pool, elements: usize, offset: usize) -> Result<Self> {
        let out = Self::new(ctx, elements * pool.dtype.size(), offset)?;
        let chunk = pool.bytes.repeat((out.bytes / pool.bytes.len() + 1).min(512));
        for at in (0..out.bytes).step_by(chunk.len()) {
            out.write(at, &chunk[..chunk.len().min(out.bytes - at)]);
        }
        Ok(out)
    }

    pub fn ptr(&self) -> Ptr {
        self.buffer.ptr().offset(self.offset as u64)
    }

    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.bytes);
        self.buffer.write(self.offset + at, bytes).unwrap();
    }

    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.bytes);
        self.buffer.read(self.offset + at, len).unwrap()
    }

    /// `len` elements of one byte each, from element `at` on.
    pub fn codes(&self, at: usize, len: usize) -> Vec<u32> {
        self.read(at, len).into_iter().map(u32::from).collect()
    }

    /// `len` bf16 elements from element `at` on.
    pub fn bf16(&self, at: usize, len: usize) -> Vec<f32> {
        self.read(2 * at, 2 * len).chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
    }

    /// Panics where a guard byte changed.
    pub fn assert_guards(&self, what: &str) {
        for (at, len) in [(0, self.offset), (self.offset + self.bytes, GUARD)] {
            let bytes: Vec<u8> = self.buffer.read(at, len).unwrap();
            let wrong = bytes.iter().position(|b| *b != GUARD_BYTE);
            assert!(wrong.is_none(), "{what}: guard byte at {} was overwritten", (at + wrong.unwrap_or(0)) as i64 - self.offset as i64);
        }
    }
}
