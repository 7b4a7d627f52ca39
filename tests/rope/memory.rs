//! Tensors `[seq, batch, heads, head_dim]` in any order of memory, between guards.

use nvte::{ops::rope::Heads, Context, DType};
use rand::{rngs::StdRng, RngExt};

use crate::common::{oracle, values, Guarded, POISON};

/// Which dimension is outermost in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Order {
    Sbhd,
    Bshd,
    Bhsd,
}

pub struct Block {
    dtype: DType,
    dims: [usize; 4],
    /// Of seq, batch and heads.
    strides: [usize; 3],
    memory: Guarded,
}

impl Block {
    /// `dense`: the heads of a token lie side by side; otherwise there may be gaps anywhere.
    fn strides([seq, batch, heads, d]: [usize; 4], order: Order, aligned: bool, dense: bool, rng: &mut StdRng) -> [usize; 3] {
        let mut gap = || if aligned { 16 * rng.random_range(0..2) } else { rng.random_range(0..3) };
        let step = |extent: usize, gap: usize| if aligned { (extent + gap).next_multiple_of(8) } else { extent + gap };
        let head = if dense { d } else { step(d, gap()) };
        match order {
            Order::Sbhd => {
                let b = step(head * heads, if dense { 0 } else { gap() });
                [step(b * batch, if dense { 0 } else { gap() }), b, head]
            }
            Order::Bshd => {
                let s = step(head * heads, if dense { 0 } else { gap() });
                [s, step(s * seq, if dense { 0 } else { gap() }), head]
            }
            Order::Bhsd => {
                let s = step(d, gap());
                let h = step(s * seq, gap());
                [s, step(h * heads, gap()), h]
            }
        }
    }

    fn make(ctx: &Context, dtype: DType, dims: [usize; 4], strides: [usize; 3], aligned: bool, random: bool, rng: &mut StdRng) -> Self {
        let [seq, batch, heads, d] = dims;
        let empty = dims.contains(&0);
        let extent = if empty { 0 } else { (seq - 1) * strides[0] + (batch - 1) * strides[1] + (heads - 1) * strides[2] + d };
        let offset = if aligned { 16 * rng.random_range(0..2) } else { rng.random_range(0..4) * dtype.size() };
        let mut block = Self { dtype, dims, strides, memory: Guarded::new(ctx, 0, 0) };
        let mut bytes = vec![POISON; extent * dtype.size()];
        if random {
            let v = values(rng, dims.iter().product(), true);
            for (at, v) in block.places().into_iter().zip(v) {
                let (b, _) = oracle::to_bytes(dtype, v);
                bytes[at * dtype.size()..(at + 1) * dtype.size()].copy_from_slice(&b[..dtype.size()]);
            }
        }
        block.memory = Guarded::from_bytes(ctx, &bytes, offset);
        block
    }

    pub fn random(ctx: &Context, dtype: DType, dims: [usize; 4], order: Order, aligned: bool, rng: &mut StdRng) -> Self {
        let strides = Self::strides(dims, order, aligned, false, rng);
        Self::make(ctx, dtype, dims, strides, aligned, true, rng)
    }

    pub fn output(ctx: &Context, dtype: DType, dims: [usize; 4], order: Order, aligned: bool, rng: &mut StdRng) -> Self {
        let strides = Self::strides(dims, order, aligned, false, rng);
        Self::make(ctx, dtype, dims, strides, aligned, false, rng)
    }

    pub fn dense_random(ctx: &Context, dtype: DType, dims: [usize; 4], order: Order, aligned: bool, rng: &mut StdRng) -> Self {
        let strides = Self::strides(dims, order, aligned, true, rng);
        Self::make(ctx, dtype, dims, strides, aligned, true, rng)
    }

    pub fn dense_output(ctx: &Context, dtype: DType, dims: [usize; 4], order: Order, aligned: bool, rng: &mut StdRng) -> Self {
        let strides = Self::strides(dims, order, aligned, true, rng);
        Self::make(ctx, dtype, dims, strides, aligned, false, rng)
    }

    /// Where each element lies, in the order of the dimensions.
    fn places(&self) -> Vec<usize> {
        let ([seq, batch, heads, d], [s, b, h]) = (self.dims, self.strides);
        let mut all = Vec::with_capacity(seq * batch * heads * d);
        for i in 0..seq {
            for j in 0..batch {
                for k in 0..heads {
                    all.extend((0..d).map(|e| i * s + j * b + k * h + e));
                }
            }
        }
        all
    }

    pub fn view(&self) -> Heads {
        Heads {
            data: self.memory.ptr(),
            seq_stride: self.strides[0] as i64,
            batch_stride: self.strides[1] as i64,
            head_stride: self.strides[2] as i64,
        }
    }

    /// The codes, in the order of the dimensions; panics where a guard or a gap was written.
    pub fn codes(&self) -> Vec<u32> {
        let (bytes, size) = (self.memory.read(), self.dtype.size());
        let mut gap = vec![true; bytes.len() / size];
        let mut out = Vec::new();
        for at in self.places() {
            let mut word = [0; 4];
            word[..size].copy_from_slice(&bytes[at * size..(at + 1) * size]);
            out.push(u32::from_le_bytes(word));
            gap[at] = false;
        }
        for (at, _) in gap.iter().enumerate().filter(|(_, gap)| **gap) {
            assert!(bytes[at * size..(at + 1) * size].iter().all(|b| *b == POISON), "the gap at {at} was written");
        }
        out
    }
}
