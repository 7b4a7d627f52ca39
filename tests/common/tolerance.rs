//! The bounds of NUMERICS section 9 for results of arithmetic: against f64 references, with `t`, per element, the largest magnitude
//! among the terms added to form the value.

use nvte::DType;

use super::oracle::{decode, ulp};

/// Codes of non-negative finite values in ascending order are 0..=max; a signed step number makes both zeros 0.
fn step(code: u32) -> i32 {
    let a = (code & 0x7F) as i32;
    if code & 0x80 != 0 {
        -a
    } else {
        a
    }
}

fn max_code(dtype: DType) -> u32 {
    match dtype {
        DType::E4m3 => 0x7E,
        DType::E5m2 => 0x7B,
        other => panic!("{} is not FP8", other.name()),
    }
}

/// The code of `w`: nearest, ties to even, saturating, NaN as 0x7F; rounded from f64 in one step.
pub fn encode_f64(dtype: DType, w: f64) -> u32 {
    if w.is_nan() {
        return 0x7F;
    }
    let (sign, a, max) = (if w.is_sign_negative() { 0x80 } else { 0 }, w.abs(), max_code(dtype));
    // Codes 0..=max ascend in value: the first that is not below `a`.
    let codes: Vec<u32> = (0..=max).collect();
    let up = codes.partition_point(|c| decode(dtype, *c) < a) as u32;
    if up == 0 {
        return sign;
    }
    if up > max {
        return sign | max;
    }
    let (below, above) = (a - decode(dtype, up - 1), decode(dtype, up) - a);
    let code = if below < above || (below == above && (up - 1) % 2 == 0) { up - 1 } else { up };
    sign | code
}

/// Whether `code` may stand for `v`: with `w = v * scale` and a slack of `2^-16 |w| + 2^-20 t scale`, it lies between the codes of
/// `w - slack` and `w + slack`. For a slack below a step that is: the nearest code, or its neighbour where the tie is within the slack.
pub fn fp8_is_close(dtype: DType, code: u32, v: f64, scale: f32, t: f64) -> bool {
    let (scale, w) = (f64::from(scale), v * f64::from(scale));
    let want = encode_f64(dtype, w);
    if code == want {
        return true;
    }
    if w.is_nan() || code & 0x7F > max_code(dtype) {
        return false;
    }
    let slack = 2f64.powi(-16) * w.abs() + 2f64.powi(-20) * t * scale;
    if code ^ want == 0x80 && want & 0x7F == 0 {
        return w.abs() <= slack; // the other zero
    }
    (step(encode_f64(dtype, w - slack))..=step(encode_f64(dtype, w + slack))).contains(&step(code))
}

/// All codes are those of `values` under `scale`, or allowed neighbours. Panics with the first that is not.
pub fn assert_fp8_close(what: &str, dtype: DType, codes: &[u32], values: &[f64], scale: f32, t: &[f64]) {
    assert_eq!(codes.len(), values.len(), "{what}: number of elements");
    assert_eq!(codes.len(), t.len(), "{what}: number of terms");
    let bad = |i: &usize| !fp8_is_close(dtype, codes[*i], values[*i], scale, t[*i]);
    if let Some(i) = (0..codes.len()).find(bad) {
        let wrong = (0..codes.len()).filter(bad).count();
        let w = values[i] * f64::from(scale);
        panic!(
            "{what}: {wrong} of {} codes are wrong; first at {i}: got {:#x} = {}, want {:#x} for {w} (value {}, scale {scale}, t {})",
            codes.len(),
            codes[i],
            decode(dtype, codes[i]),
            encode_f64(dtype, w),
            values[i],
            t[i],
        );
    }
}

/// How far a forward result of type `dtype` may lie from `want`.
pub fn forward_bound(dtype: DType, want: f64, t: f64) -> f64 {
    match dtype {
        DType::F32 => 1e-5 * want.abs() + 1e-6,
        _ => 2.0 * ulp(dtype, want) + 2f64.powi(-22) * t,
    }
}

/// Largest finite value of a high-precision type.
fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => f64::from(f32::MAX),
        DType::F16 => 65504.0,
        DType::Bf16 => f64::from(f32::from_bits(0x7F7F_0000)),
        other => panic!("{} is FP8", other.name()),
    }
}

/// Every element within `bound(i)` of `want`; NaN where and only where NaN is wanted; infinity where it is wanted, or where the type's
/// largest value is within the bound. Panics with the first that is not.
pub fn assert_within(what: &str, dtype: DType, got: &[f32], want: &[f64], bound: impl Fn(usize) -> f64) {
    assert_eq!(got.len(), want.len(), "{what}: number of elements");
    let good = |i: usize| {
        let (g, w) = (f64::from(got[i]), want[i]);
        if w.is_nan() || g.is_nan() {
            return w.is_nan() && g.is_nan();
        }
        if g.is_infinite() || w.is_infinite() {
            return g == w || (g.is_infinite() && g * w > 0.0 && w.abs() + bound(i) >= largest(dtype));
        }
        (g - w).abs() <= bound(i)
    };
    if let Some(i) = (0..got.len()).find(|i| !good(*i)) {
        let wrong = (0..got.len()).filter(|i| !good(*i)).count();
        panic!("{what}: {wrong} of {} are out of bounds; first at {i}: got {}, want {} within {}", got.len(), got[i], want[i], bound(i));
    }
}

/// The forward bound of section 9, elementwise.
pub fn assert_forward_close(what: &str, dtype: DType, got: &[f32], want: &[f64], t: &[f64]) {
    assert_within(what, dtype, got, want, |i| forward_bound(dtype, want[i], t[i]));
}

/// A recorded amax follows from values that may each be off by section 9's bound: it lies that close to the largest |v|.
/// NaN and infinity must be seen. `before`: what the slot held.
pub fn assert_amax_close(what: &str, got: f32, before: f32, values: &[f64], t: &[f64]) {
    if values.iter().any(|v| v.is_nan()) {
        return assert!(got.is_nan(), "{what}: amax {got} hides a NaN");
    }
    let (mut low, mut high) = (f64::from(before), f64::from(before));
    for (v, t) in values.iter().zip(t) {
        // A product may end, and a factor of it have been, among the subnormals of f32.
        let slack = 2f64.powi(-16) * v.abs() + 2f64.powi(-20) * t + ulp(DType::F32, 0.0);
        low = low.max(v.abs() - slack);
        high = high.max(v.abs() + slack);
    }
    let g = f64::from(got);
    let seen = if high > largest(DType::F32) { got == f32::INFINITY || g >= low } else { g <= high };
    assert!(g >= low && seen, "{what}: amax {got} is not in {low}..{high}");
}
