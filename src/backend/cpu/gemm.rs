//! Matrix products on the CPU: operands decoded exactly to f32, multiplied by the f32 GEMM crate, one rounding at the end.
//!
//! D is cut into tiles whose size depends on the shape alone, and each tile walks over K in the same steps, on one thread. So results do
//! not depend on the number of threads, a forked child computes the same, and scratch memory stays small however large the operands.

use std::{cell::RefCell, ops::Range, slice};

use gemm_common::Parallelism;
use half::{bf16, f16};

use super::{
    element::{with_fp8, with_high, Element},
    parallel::Threads,
    simd::multiversion,
    view::{Matrix, Slot},
};
use crate::{
    numerics::{amax_bits, Fp8Format, E4M3, E5M2},
    ops::gemm::{Operand, Problem},
    tensor::{DType, Ptr},
};

/// Step of K: two decoded panels of 256 rows are 1 MiB, so they are still in cache when they are multiplied.
const STEP: usize = 512;
/// Sides of a tile. Decoding costs an element of each operand per side, so larger is better; smaller ones keep more threads busy.
const SIDES: [usize; 2] = [256, 128];
/// Below this many large tiles, smaller ones are used.
const FEW: usize = 32;

/// A type read exactly as f32, from raw bits so that the loop over it vectorises.
trait Decode {
    type Raw: Copy;
    fn decode(raw: Self::Raw) -> f32;
}

impl Decode for E4M3 {
    type Raw = u8;
    #[inline(always)]
    fn decode(raw: u8) -> f32 {
        <E4M3 as Fp8Format>::decode(raw)
    }
}

impl Decode for E5M2 {
    type Raw = u8;
    #[inline(always)]
    fn decode(raw: u8) -> f32 {
        // E5M2 is the upper half of an f16.
        f16::decode(u16::from(raw) << 8)
    }
}

impl Decode for bf16 {
    type Raw = u16;
    #[inline(always)]
    fn decode(raw: u16) -> f32 {
        f32::from_bits(u32::from(raw) << 16)
    }
}

impl Decode for f16 {
    type Raw = u16;
    #[inline(always)]
    fn decode(raw: u16) -> f32 {
        let (sign, shifted) = (u32::from(raw & 0x8000) << 16, u32::from(raw & 0x7FFF) << 13);
        // Subnormals: placed below a leading one, which is then subtracted; no f32 subnormal takes part.
        let leading = 113 << 23;
        let small = (f32::from_bits(shifted | leading) - f32::from_bits(leading)).to_bits();
        let large = shifted + if shifted >= 0x0F80_0000 { 224 << 23 } else { 112 << 23 };
        f32::from_bits(sign | if shifted < 1 << 23 { small } else { large })
    }
}

impl Decode for f32 {
    type Raw = f32;
    #[inline(always)]
    fn decode(raw: f32) -> f32 {
        raw
    }
}

multiversion! {
    /// Decodes a run of elements.
    fn decode_run<S: Decode>(raw: &[S::Raw], out: &mut [f32]) -> () {
        for (o, r) in out.iter_mut().zip(raw) {
            *o = S::decode(*r);
        }
    }
}

/// A piece of an operand in f32: element (row, k) at `row * row_stride + k * k_stride`.
#[derive(Clone, Copy)]
struct Panel {
    data: *const f32,
    row_stride: isize,
    k_stride: isize,
}

/// Rows `rows` and columns `ks` of an operand: in place where it is f32 already, else decoded into `scratch` as it lies.
///
/// # Safety
/// The operand is live.
unsafe fn panel(o: &Operand, rows: &Range<usize>, ks: &Range<usize>, scratch: &mut [f32]) -> Panel {
    let (major, minor) = if o.k_major { (rows, ks) } else { (ks, rows) };
    let (data, stride) = match o.dtype {
        // SAFETY: inside the operand.
        DType::F32 => (unsafe { o.data.as_ptr::<f32>().cast_const().add(major.start * o.ld as usize + minor.start) }, o.ld as isize),
        other => {
            // SAFETY: forwarded contract.
            unsafe {
                match other {
                    DType::F16 => decode_block::<f16>(o, major, minor, scratch),
                    DType::Bf16 => decode_block::<bf16>(o, major, minor, scratch),
                    DType::E4m3 => decode_block::<E4M3>(o, major, minor, scratch),
                    _ => decode_block::<E5M2>(o, major, minor, scratch),
                }
            }
            (scratch.as_ptr(), minor.len() as isize)
        }
    };
    let (row_stride, k_stride) = if o.k_major { (stride, 1) } else { (1, stride) };
    Panel { data, row_stride, k_stride }
}

/// # Safety
/// The operand is live.
unsafe fn decode_block<S: Decode>(o: &Operand, major: &Range<usize>, minor: &Range<usize>, scratch: &mut [f32]) {
    let base = o.data.as_ptr::<S::Raw>().cast_const();
    for (line, out) in major.clone().zip(scratch.chunks_exact_mut(minor.len())) {
        // SAFETY: inside the operand.
        let raw = unsafe { slice::from_raw_parts(base.add(line * o.ld as usize + minor.start), minor.len()) };
        decode_run::<S>(raw, out);
    }
}

/// `acc[rows, cols] += A · Bᵀ`, row-major, on this thread.
///
/// # Safety
/// The panels hold `rows`, `cols` and `k` elements.
unsafe fn multiply(acc: &mut [f32], rows: usize, cols: usize, k: usize, a: Panel, b: Panel) {
    // The crate is at its best with a column-major result, so the transposed product is asked for: acc^T = B * A^T.
    // SAFETY: by contract; `acc` holds rows * cols elements.
    unsafe {
        gemm_f32::gemm::f32::get_gemm_fn()(
            cols,
            rows,
            k,
            acc.as_mut_ptr(),
            cols as isize,
            1,
            true,
            b.data,
            b.k_stride,
            b.row_stride,
            a.data,
            a.row_stride,
            a.k_stride,
            1.0,
            1.0,
            false,
            false,
            false,
            Parallelism::None,
        )
    }
}

thread_local! {
    /// Panels and accumulators of the tile at hand, about 1.5 MiB.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn gemm(threads: &Threads, p: &Problem) {
    // SAFETY: forwarded contract; slots are the caller's.
    unsafe {
        let d_scale = Slot(p.d_scale).read_or(1.0);
        let amax = match p.d_dtype {
            DType::E4m3 | DType::E5m2 => with_fp8!(p.d_dtype, F => tiles::<Coded<F>>(threads, p, d_scale)),
            _ => with_high!(p.d_dtype, T => tiles::<T>(threads, p, d_scale)),
        };
        Slot(p.d_scale_inv).write(1.0 / d_scale);
        Slot(p.d_amax).record(amax);
    }
}

/// Writes a run of D and returns the largest bit pattern of |v|.
trait Store: Send + Sync + 'static {
    type Raw: Copy + Send + Sync;
    fn store(v: &[f32], scale: f32, out: &mut [Self::Raw]) -> u32;
}

impl<T: Element> Store for T {
    type Raw = T;
    fn store(v: &[f32], _scale: f32, out: &mut [T]) -> u32 {
        for (o, v) in out.iter_mut().zip(v) {
            *o = T::store(*v);
        }
        0
    }
}

/// An FP8 output.
struct Coded<F>(F);

impl<F: Fp8Format> Store for Coded<F> {
    type Raw = u8;
    fn store(v: &[f32], scale: f32, out: &mut [u8]) -> u32 {
        encode_run::<F>(v, scale, out)
    }
}

multiversion! {
    fn encode_run<F: Fp8Format>(v: &[f32], scale: f32, out: &mut [u8]) -> u32 {
        let mut amax = 0;
        for (o, v) in out.iter_mut().zip(v) {
            amax = amax_bits(*v).max(amax);
            *o = F::encode(*v * scale);
        }
        amax
    }
}

/// Computes D tile by tile; returns the largest bit pattern of |v| where D is FP8.
///
/// # Safety
/// As [`gemm`].
unsafe fn tiles<S: Store>(threads: &Threads, p: &Problem, d_scale: f32) -> u32 {
    let (m, n, k) = (p.m as usize, p.n as usize, p.k as usize);
    let count = |side: usize| (m.div_ceil(side), n.div_ceil(side));
    let side = if count(SIDES[0]).0 * count(SIDES[0]).1 < FEW { SIDES[1] } else { SIDES[0] };
    let (down, across) = count(side);
    // The product of the scales is formed in f64: each may be extreme where it is not. With K = 0 they mean nothing.
    // SAFETY: the slots are the caller's.
    let inverse = |slot: Ptr| f64::from(unsafe { Slot(slot).read_or(1.0) });
    let scale = if k == 0 { 0.0 } else { f64::from(p.alpha) * inverse(p.a.scale_inv) * inverse(p.b.scale_inv) };
    let out = Matrix::<S::Raw>::new(p.d, p.ldd, p.n);
    let amax = threads.map(down * across, 1, |piece| {
        let (row, col) = (piece.start / across * side, piece.start % across * side);
        let (rows, cols) = (row..(row + side).min(m), col..(col + side).min(n));
        SCRATCH.with_borrow_mut(|scratch| {
            let (height, width) = (rows.len(), cols.len());
            let (area, a_size, b_size) = (height * width, height * k.min(STEP), width * k.min(STEP));
            scratch.resize((area + a_size + b_size + 2 * width).max(scratch.len()), 0.0);
            let (acc, rest) = scratch.split_at_mut(area);
            let (a_scratch, rest) = rest.split_at_mut(a_size);
            let (b_scratch, rest) = rest.split_at_mut(b_size);
            let (bias, rest) = rest.split_at_mut(width);
            let old = &mut rest[..width];
            acc.fill(0.0);
            for start in (0..k).step_by(STEP) {
                let ks = start..(start + STEP).min(k);
                // SAFETY: operands are live; panels hold what is asked of them.
                unsafe {
                    let a = panel(&p.a, &rows, &ks, a_scratch);
                    let b = panel(&p.b, &cols, &ks, b_scratch);
                    multiply(acc, height, width, ks.len(), a, b);
                }
            }
            if !p.bias.is_null() {
                // SAFETY: the bias has N elements.
                unsafe { load(p.bias_dtype, p.bias, cols.start, bias) }
            }
            let mut amax = 0;
            for (r, v) in rows.clone().zip(acc.chunks_exact_mut(width)) {
                v.iter_mut().for_each(|v| *v = (f64::from(*v) * scale) as f32);
                if !p.bias.is_null() {
                    v.iter_mut().zip(&*bias).for_each(|(v, b)| *v += b);
                }
                if p.beta != 0.0 {
                    // SAFETY: row `r` of C exists; where C is D, this piece writes it afterwards.
                    unsafe { load(p.c_dtype, p.c, r * p.ldc as usize + cols.start, old) }
                    v.iter_mut().zip(&*old).for_each(|(v, c)| *v += p.beta * c);
                }
                // SAFETY: this piece alone writes these elements of D.
                amax = S::store(v, d_scale, unsafe { out.part_mut(r, cols.start, width) }).max(amax);
            }
            amax
        })
    });
    amax.into_iter().max().unwrap_or(0)
}

/// `out.len()` elements from element `at`, as f32.
///
/// # Safety
/// They are live.
unsafe fn load(dtype: DType, data: Ptr, at: usize, out: &mut [f32]) {
    // SAFETY: by contract.
    unsafe {
        match dtype {
            DType::F32 => out.copy_from_slice(slice::from_raw_parts(data.as_ptr::<f32>().add(at), out.len())),
            DType::F16 => decode_run::<f16>(slice::from_raw_parts(data.as_ptr::<u16>().add(at), out.len()), out),
            _ => decode_run::<bf16>(slice::from_raw_parts(data.as_ptr::<u16>().add(at), out.len()), out),
        }
    }
}
