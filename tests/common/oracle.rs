//! Oracles that share no code with the library: FP8 by search in a table of exact values, everything in f64.

use half::{bf16, f16};
use nvte::DType;

/// (mantissa bits, bias, code of the largest finite value)
fn parameters(dtype: DType) -> (i32, i32, u32) {
    match dtype {
        DType::E4m3 => (3, 7, 0x7E),
        DType::E5m2 => (2, 15, 0x7B),
        other => panic!("{} is not FP8", other.name()),
    }
}

/// The magnitude of a finite code, from the definition of the format.
fn magnitude(dtype: DType, code: u32) -> f64 {
    let (m, bias, _) = parameters(dtype);
    let (e, f) = ((code >> m) as i32, (code & ((1 << m) - 1)) as f64 / f64::from(1 << m));
    if e == 0 {
        f * 2f64.powi(1 - bias)
    } else {
        (1.0 + f) * 2f64.powi(e - bias)
    }
}

/// The exact value of an FP8 code.
pub fn decode(dtype: DType, code: u32) -> f64 {
    let (_, _, max) = parameters(dtype);
    let sign = if code & 0x80 != 0 { -1.0 } else { 1.0 };
    let a = code & 0x7F;
    if a <= max {
        sign * magnitude(dtype, a)
    } else if dtype == DType::E5m2 && a == 0x7C {
        sign * f64::INFINITY
    } else {
        f64::NAN
    }
}

/// Nearest code, ties to the even one, saturating; NaN is 0x7F.
pub fn encode(dtype: DType, v: f32) -> u32 {
    if v.is_nan() {
        return 0x7F;
    }
    let (_, _, max) = parameters(dtype);
    let sign = if v.is_sign_negative() { 0x80 } else { 0 };
    let a = f64::from(v).abs();
    // The largest code whose value does not exceed `a`.
    let (mut low, mut high) = (0, max);
    while low < high {
        let mid = (low + high).div_ceil(2);
        if magnitude(dtype, mid) <= a {
            low = mid;
        } else {
            high = mid - 1;
        }
    }
    if low == max {
        return sign | max;
    }
    let (down, up) = (a - magnitude(dtype, low), magnitude(dtype, low + 1) - a);
    let code = if down < up || (down == up && low % 2 == 0) { low } else { low + 1 };
    sign | code
}

/// `v` in `dtype`: its bytes (the first `size` count) and its value.
pub fn to_bytes(dtype: DType, v: f32) -> ([u8; 4], f32) {
    match dtype {
        DType::F32 => (v.to_le_bytes(), v),
        DType::F16 => {
            let h = f16::from_f32(v);
            let b = h.to_bits().to_le_bytes();
            ([b[0], b[1], 0, 0], h.to_f32())
        }
        DType::Bf16 => {
            let h = bf16::from_f32(v);
            let b = h.to_bits().to_le_bytes();
            ([b[0], b[1], 0, 0], h.to_f32())
        }
        fp8 => {
            let c = encode(fp8, v);
            ([c as u8, 0, 0, 0], decode(fp8, c) as f32)
        }
    }
}

/// The value of raw bits.
pub fn from_code(dtype: DType, code: u32) -> f32 {
    match dtype {
        DType::F32 => f32::from_bits(code),
        DType::F16 => f16::from_bits(code as u16).to_f32(),
        DType::Bf16 => bf16::from_bits(code as u16).to_f32(),
        fp8 => decode(fp8, code) as f32,
    }
}

/// The largest |v| as amax compares: NaN (as 0x7FFFFFFF) above infinity.
pub fn amax(values: &[f32]) -> f32 {
    if values.iter().any(|v| v.is_nan()) {
        return f32::from_bits(0x7FFF_FFFF);
    }
    values.iter().fold(0.0, |m, v| v.abs().max(m))
}

/// Spacing of `dtype`'s numbers at `v` (FP8 excluded): one ulp.
pub fn ulp(dtype: DType, v: f64) -> f64 {
    let (mantissa, least): (i32, i32) = match dtype {
        DType::F32 => (23, -126),
        DType::F16 => (10, -14),
        DType::Bf16 => (7, -126),
        other => panic!("{} has no ulp here", other.name()),
    };
    let e = if v == 0.0 || !v.is_finite() { least } else { (v.abs().log2().floor() as i32).max(least) };
    2f64.powi(e - mantissa)
}
