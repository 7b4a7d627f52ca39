//! The checkers themselves: what they let pass and what they stop.

mod common;

use common::{
    oracle, rng,
    tolerance::{assert_amax_close, encode_f64, fp8_is_close},
    values,
};
use nvte::DType;

#[test]
fn encode_f64_equals_the_oracle_on_f32_values() {
    let mut rng = rng("encode_f64_equals_the_oracle_on_f32_values");
    for dtype in [DType::E4m3, DType::E5m2] {
        for v in values(&mut rng, 4000, true) {
            assert_eq!(encode_f64(dtype, f64::from(v)), oracle::encode(dtype, v), "{v}");
        }
    }
}

#[test]
fn only_neighbours_near_a_tie_pass() {
    let e4m3 = |code, v, t| fp8_is_close(DType::E4m3, code, v, 1.0, t);
    // 1.0 = 0x38, 1.125 = 0x39, tie at 1.0625.
    assert!(e4m3(0x38, 1.0, 1.0) && !e4m3(0x39, 1.0, 1.0) && !e4m3(0x37, 1.0, 1.0));
    assert!(e4m3(0x38, 1.0625, 1.0) && e4m3(0x39, 1.0625, 1.0) && !e4m3(0x3A, 1.0625, 1.0));
    assert!(e4m3(0x39, 1.0625 - 1e-5, 1.0) && !e4m3(0x39, 1.0625 - 1e-4, 1.0));
    assert!(e4m3(0x39, 1.0625 - 1e-4, 1e3), "large terms allow more");
    // Zeros, saturation, NaN.
    assert!(e4m3(0x80, 1e-9, 1.0) && !e4m3(0x80, 1e-4, 1.0));
    assert!(e4m3(0x7E, 1e9, 1.0) && !e4m3(0x7D, 1e9, 1.0) && e4m3(0xFE, f64::NEG_INFINITY, 1.0));
    assert!(e4m3(0x7F, f64::NAN, 1.0) && !e4m3(0x7E, f64::NAN, 1.0) && !e4m3(0x7F, 1.0, 1.0));
    assert!(!fp8_is_close(DType::E5m2, 0x7C, 1e9, 1.0, 1.0), "saturating, never infinite");
}

#[test]
fn amax_sees_what_it_should() {
    assert_amax_close("plain", 3.0, 1.0, &[1.0, -3.0], &[1.0, 3.0]);
    assert_amax_close("before", 4.0, 4.0, &[1.0, -3.0], &[1.0, 3.0]);
    assert_amax_close("NaN", f32::NAN, 4.0, &[1.0, f64::NAN], &[1.0, 1.0]);
    assert!(std::panic::catch_unwind(|| assert_amax_close("off", 3.1, 1.0, &[1.0, -3.0], &[1.0, 3.0])).is_err());
    assert!(std::panic::catch_unwind(|| assert_amax_close("low", 2.9, 1.0, &[1.0, -3.0], &[1.0, 3.0])).is_err());
}
