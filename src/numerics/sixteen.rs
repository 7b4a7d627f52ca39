//! f32 to the 16-bit types as the hardware does it: nearest even, and every NaN becomes 0x7FFF.

use half::{bf16, f16};

/// `v` rounded once to bfloat16.
#[inline(always)]
pub fn bf16_from_f32(v: f32) -> bf16 {
    let b = v.to_bits();
    let rounded = (b.wrapping_add(0x7FFF + ((b >> 16) & 1)) >> 16) as u16;
    bf16::from_bits(if v.is_nan() { 0x7FFF } else { rounded })
}

/// `v` rounded once to binary16. Branch-free, so that a loop over it vectorises.
#[inline(always)]
pub fn f16_from_f32(v: f32) -> f16 {
    let bits = v.to_bits();
    let (sign, abs) = ((bits >> 16) & 0x8000, bits & 0x7FFF_FFFF);
    // 65536 and everything above it is infinity; so is, by rounding, what lies between 65520 and 65536.
    let clamped = abs.min(0x4780_0000);
    let normal = ((clamped + 0xFFF + ((clamped >> 13) & 1)) >> 13).wrapping_sub((127 - 15) << 10);
    // Below the least normal: the f32 adder rounds to multiples of 2^-24.
    let subnormal = (f32::from_bits(clamped) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let code = if clamped < 0x3880_0000 { subnormal } else { normal };
    f16::from_bits(if abs > 0x7F80_0000 { 0x7FFF } else { (sign | code) as u16 })
}

/// The exact value of a binary16. Branch-free, so that a loop over it vectorises.
#[inline(always)]
pub fn f16_to_f32(v: f16) -> f32 {
    let h = u32::from(v.to_bits());
    let (sign, abs) = ((h & 0x8000) << 16, h & 0x7FFF);
    // Exponent and mantissa in place, then 2^112 moves the bias from 15 to 127; subnormals come out right because f32 has room for them.
    let finite = (f32::from_bits(abs << 13) * f32::from_bits((127 + 112) << 23)).to_bits();
    let special = 0x7F80_0000 | abs << 13;
    f32::from_bits(sign | if abs >= 0x7C00 { special } else { finite })
}

/// `v`, with every NaN as 0x7FFFFFFF.
#[inline(always)]
pub fn f32_canonical(v: f32) -> f32 {
    if v.is_nan() {
        f32::from_bits(0x7FFF_FFFF)
    } else {
        v
    }
}
