//! f32 to the 16-bit types as the hardware does it: nearest even, and every NaN becomes 0x7FFF.

use half::{bf16, f16};

/// `v` rounded once to bfloat16.
#[inline(always)]
pub fn bf16_from_f32(v: f32) -> bf16 {
    let b = v.to_bits();
    let rounded = (b.wrapping_add(0x7FFF + ((b >> 16) & 1)) >> 16) as u16;
    bf16::from_bits(if v.is_nan() { 0x7FFF } else { rounded })
}

/// `v` rounded once to binary16.
#[inline(always)]
pub fn f16_from_f32(v: f32) -> f16 {
    if v.is_nan() {
        f16::from_bits(0x7FFF)
    } else {
        f16::from_f32(v)
    }
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
