//! Formats, scale rules and recipes: exhaustively, against oracles that share no code with the library.

mod common;

use common::{assert_codes_equal, context, oracle, rng, sync, Tensor};
use half::{bf16, f16};
use nvte::{
    numerics::{
        amax_bits, bf16_from_f32, canonical_amax, f16_from_f32, f16_to_f32, f32_canonical, scale_from_amax, update_slot, AmaxComputeAlgo,
        DelayedScaling, E8m0, Float8CurrentScaling, Format, Fp8Format, ScaleRule, SlotUpdate, E4M3, E5M2,
    },
    ops::cast::{cast_to_fp8, CastArgs},
    DType, Status, Stream,
};
use rand::RngExt;

/// Every upper half word with low halves that lie on, beside and between ties: 262 144 patterns.
fn encode_set() -> Vec<f32> {
    (0..=0xFFFFu32).flat_map(|high| [0u32, 1, 0x8000, 0xFFFF].map(|low| f32::from_bits(high << 16 | low))).collect()
}

fn codes_of<F: Fp8Format>(format: DType) {
    assert_eq!(F::NAME, format.name());
    let mut largest = 0.0f32;
    for code in 0..=255u8 {
        let (got, want) = (F::decode(code), oracle::decode(format, code.into()));
        if want.is_nan() {
            assert_eq!(got.to_bits(), 0x7FFF_FFFF, "{} {code:#x}", F::NAME);
            assert!(F::is_nan(code) && !F::is_infinite(code));
            assert_eq!(F::encode(got), F::NAN_CODE);
            continue;
        }
        assert_eq!(f64::from(got), want, "{} {code:#x}", F::NAME);
        assert_eq!(got.is_sign_negative(), code & 0x80 != 0);
        assert!(!F::is_nan(code) && F::is_infinite(code) == want.is_infinite());
        // Every finite value is its own code, infinity saturates.
        let back = if want.is_infinite() { code & 0x80 | F::MAX_CODE } else { code };
        assert_eq!(F::encode(got), back, "{} {code:#x}", F::NAME);
        if got.is_finite() {
            largest = largest.max(got);
        }
    }
    assert_eq!(F::table().map(f32::to_bits), std::array::from_fn(|i| F::decode(i as u8).to_bits()));
    assert_eq!((largest, F::decode(F::MAX_CODE)), (F::MAX, F::MAX));
    assert_eq!(F::decode(1), F::MIN_SUBNORMAL);
    assert_eq!(F::decode(1 << F::MANTISSA_BITS), F::MIN_NORMAL);
    assert_eq!(f64::from(F::MIN_NORMAL), 2f64.powi(1 - F::BIAS as i32));
}

#[test]
fn all_256_codes() {
    codes_of::<E4M3>(DType::E4m3);
    codes_of::<E5M2>(DType::E5m2);
    assert_eq!((E4M3::MAX, E4M3::MAX_CODE, E4M3::NAN_CODE), (448.0, 0x7E, 0x7F));
    assert_eq!((E5M2::MAX, E5M2::MAX_CODE, E5M2::NAN_CODE), (57344.0, 0x7B, 0x7F));
    let count = |f: fn(u8) -> bool| (0..=255u8).filter(|c| f(*c)).count();
    assert_eq!((count(E4M3::is_nan), count(E4M3::is_infinite), count(E5M2::is_nan), count(E5M2::is_infinite)), (2, 0, 6, 2));
}

#[test]
fn encode_every_upper_half_word() {
    for v in encode_set() {
        assert_eq!(u32::from(E4M3::encode(v)), oracle::encode(DType::E4m3, v), "e4m3 of {:#x}", v.to_bits());
        assert_eq!(u32::from(E5M2::encode(v)), oracle::encode(DType::E5m2, v), "e5m2 of {:#x}", v.to_bits());
    }
}

#[test]
fn encode_ties_and_their_neighbours() {
    for (format, encode) in [(DType::E4m3, E4M3::encode as fn(f32) -> u8), (DType::E5m2, E5M2::encode)] {
        let finite: Vec<f32> = (0..128).map(|c| oracle::decode(format, c) as f32).filter(|v| v.is_finite()).collect();
        for (low, pair) in finite.windows(2).enumerate() {
            // Exact in f32, and so are its neighbours.
            let tie = (pair[0] + pair[1]) / 2.0;
            let even = low as u8 + (low as u8 & 1);
            for (v, want) in [(tie.next_down(), low as u8), (tie, even), (tie.next_up(), low as u8 + 1)] {
                assert_eq!(encode(v), want, "{} {v:e}", format.name());
                assert_eq!(encode(-v), want | 0x80, "{} -{v:e}", format.name());
            }
        }
    }
}

#[test]
fn encode_random_bits() {
    let mut rng = rng("encode_random_bits");
    for _ in 0..200_000 {
        let v = f32::from_bits(rng.random());
        assert_eq!(u32::from(E4M3::encode(v)), oracle::encode(DType::E4m3, v), "e4m3 of {:#x}", v.to_bits());
        assert_eq!(u32::from(E5M2::encode(v)), oracle::encode(DType::E5m2, v), "e5m2 of {:#x}", v.to_bits());
    }
}

/// The crate's conversions saturate as ours do; it keeps the sign of a NaN and in E5M2 writes another code for it, so NaNs are compared
/// as such. Its constants and predicates are not used: they are wrong.
#[test]
fn conversions_agree_with_the_float8_crate() {
    for v in encode_set() {
        let (a, b) = (float8::F8E4M3::from_f32(v), float8::F8E5M2::from_f32(v));
        if v.is_nan() {
            assert!(E4M3::is_nan(a.to_bits()) && E5M2::is_nan(b.to_bits()));
        } else {
            assert_eq!((E4M3::encode(v), E5M2::encode(v)), (a.to_bits(), b.to_bits()), "{:#x}", v.to_bits());
        }
    }
    for code in 0..=255u8 {
        let same = |ours: f32, theirs: f32| ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan());
        assert!(same(E4M3::decode(code), float8::F8E4M3::from_bits(code).to_f32()), "{code:#x}");
        assert!(same(E5M2::decode(code), float8::F8E5M2::from_bits(code).to_f32()), "{code:#x}");
    }
}

#[test]
fn sixteen_bit_types_exhaustively() {
    for bits in 0..=0xFFFFu16 {
        let (h, b) = (f16::from_bits(bits), bf16::from_bits(bits));
        let (hv, bv) = (h.to_f32(), b.to_f32());
        if hv.is_nan() {
            assert!(f16_to_f32(h).is_nan());
        } else {
            assert_eq!(f16_to_f32(h).to_bits(), hv.to_bits(), "{bits:#x}");
            assert_eq!(f16_from_f32(hv).to_bits(), bits);
        }
        let want = if bv.is_nan() { 0x7FFF } else { bits };
        assert_eq!(bf16_from_f32(bv).to_bits(), want);
    }
    let mut rng = rng("sixteen_bit_types_exhaustively");
    let random = (0..200_000).map(|_| f32::from_bits(rng.random()));
    for v in encode_set().into_iter().chain(random.collect::<Vec<_>>()) {
        let (h, b) = (f16_from_f32(v).to_bits(), bf16_from_f32(v).to_bits());
        if v.is_nan() {
            assert_eq!((h, b, f32_canonical(v).to_bits()), (0x7FFF, 0x7FFF, 0x7FFF_FFFF));
        } else {
            assert_eq!((h, b), (f16::from_f32(v).to_bits(), bf16::from_f32(v).to_bits()), "{:#x}", v.to_bits());
            assert_eq!(f32_canonical(v).to_bits(), v.to_bits());
        }
    }
}

/// The same sets through the back end's cast, in both layouts.
#[test]
fn the_back_end_encodes_every_upper_half_word() {
    let ctx = context();
    let all16: Vec<f32> = (0..=0xFFFFu16).map(|b| f16::from_bits(b).to_f32()).collect();
    let allb16: Vec<f32> = (0..=0xFFFFu16).map(|b| bf16::from_bits(b).to_f32()).collect();
    for (input, values) in [(DType::F32, encode_set()), (DType::F16, all16), (DType::Bf16, allb16)] {
        // 512 columns: the kernel for whole vectors; 511: the one for single elements.
        for cols in [512usize, 511] {
            let rows = values.len() / cols;
            let values = &values[..rows * cols];
            let (x, held) = Tensor::input(&ctx, input, rows, cols, cols, 0, values);
            for format in [DType::E4m3, DType::E5m2] {
                let (q, qt) = (
                    Tensor::output(&ctx, format, rows, cols, cols, 0),
                    Tensor::output(&ctx, format, cols, rows, rows.next_multiple_of(16), 0),
                );
                let output = q.view().with_transpose(qt.ptr(), qt.ld as i64);
                // SAFETY: all tensors are live.
                unsafe { cast_to_fp8(&ctx, &CastArgs { input: x.view(), output }, Stream::NULL) }.unwrap();
                sync(&ctx);
                let want: Vec<u32> = held.iter().map(|v| oracle::encode(format, *v)).collect();
                let want_t: Vec<u32> = (0..want.len()).map(|i| want[i % rows * cols + i / rows]).collect();
                assert_codes_equal(&format!("{} -> {}", input.name(), format.name()), &q.codes(), &want, cols);
                assert_codes_equal(&format!("{} -> {} transposed", input.name(), format.name()), &qt.codes(), &want_t, rows);
            }
        }
    }
}

#[test]
fn amax_orders_bit_patterns() {
    let ladder = [0.0, f32::from_bits(1), f32::MIN_POSITIVE, 1.0, f32::MAX, f32::INFINITY, f32::NAN];
    for pair in ladder.windows(2) {
        for (a, b) in [(pair[0], pair[1]), (-pair[0], pair[1]), (pair[0], -pair[1])] {
            assert!(amax_bits(a) < amax_bits(b), "{a} {b}");
        }
    }
    for bits in [0x7F80_0001, 0x7FC0_0000, 0x7FFF_FFFF] {
        assert_eq!(canonical_amax(bits), 0x7FFF_FFFF);
    }
    for bits in [0, 1, 0x3F80_0000, 0x7F7F_FFFF, 0x7F80_0000] {
        assert_eq!(canonical_amax(bits), bits);
    }
}

#[test]
fn truth_table_of_the_scale() {
    let e4m3 = ScaleRule::plain(448.0);
    let previous = 7.0;
    for (amax, want) in [
        (0.0, previous),
        (3.0, 149.33333),
        (448.0, 1.0),
        (1e-40, f32::MAX),
        (f32::from_bits(1), f32::MAX),
        (f32::INFINITY, previous),
        (f32::NAN, previous),
        (f32::MAX, 448.0 / f32::MAX),
    ] {
        assert_eq!(scale_from_amax(amax, &e4m3, previous).to_bits(), f32::to_bits(want), "amax {amax}");
    }
    // epsilon is a floor, also of zero, and does not replace NaN or infinity.
    let floor = ScaleRule { epsilon: 0.5, ..e4m3 };
    for (amax, want) in [(0.0, 896.0), (0.25, 896.0), (0.5, 896.0), (1.0, 448.0), (f32::NAN, previous), (f32::INFINITY, previous)] {
        assert_eq!(scale_from_amax(amax, &floor, previous), want, "amax {amax}");
    }
    // 2^-margin.
    for margin in [-64, -3, 0, 1, 5, 64] {
        let rule = ScaleRule { margin, ..e4m3 };
        assert_eq!(f64::from(rule.margin_factor()), 2f64.powi(-margin));
        assert_eq!(f64::from(scale_from_amax(7.0, &rule, previous)), 64.0 * 2f64.powi(-margin));
    }
    // Rounded down to a power of two; FLT_MAX too.
    let power = ScaleRule { power_of_two: true, ..e4m3 };
    for (amax, want) in [(3.0, 128.0), (448.0, 1.0), (449.0, 0.5), (1.0, 256.0), (1e-40, 2f32.powi(127)), (0.0, previous)] {
        assert_eq!(scale_from_amax(amax, &power, previous), want, "amax {amax}");
    }
    // Never 0, never a zero mantissa and exponent, even where the quotient leaves the normal range.
    for power_of_two in [false, true] {
        let rule = ScaleRule { margin: 64, power_of_two, ..e4m3 };
        let s = scale_from_amax(f32::MAX, &rule, previous);
        assert!(s > 0.0 && s.is_finite(), "{s:e}");
        assert!(!power_of_two || s.to_bits().count_ones() == 1);
    }
}

#[test]
fn scale_against_f64() {
    let mut rng = rng("scale_against_f64");
    for _ in 0..100_000 {
        let amax = f32::from_bits(rng.random_range(0x0080_0000u32..0x7F80_0000));
        let rule = ScaleRule {
            format_max: if rng.random_bool(0.5) { 448.0 } else { 57344.0 },
            margin: rng.random_range(-8..9),
            epsilon: if rng.random_bool(0.5) { 0.0 } else { rng.random_range(0.0f32..2.0) },
            power_of_two: rng.random_bool(0.5),
        };
        let exact = f64::from(rule.format_max) * 2f64.powi(-rule.margin) / f64::from(amax.max(rule.epsilon));
        let mut want = (exact as f32).min(f32::MAX);
        if want < f32::MIN_POSITIVE {
            continue;
        }
        if rule.power_of_two {
            want = 2f32.powi(f64::from(want).log2().floor() as i32);
        }
        assert_eq!(scale_from_amax(amax, &rule, 1.0).to_bits(), want.to_bits(), "{amax:e} {rule:?}");
    }
}

#[test]
fn one_slot_of_delayed_scaling() {
    use AmaxComputeAlgo::{Max, MostRecent};
    let rule = ScaleRule::plain(448.0);
    let update = |live: f32, history: &[f32], algo, due| update_slot(live, history.iter().copied(), algo, &rule, 5.0, due);
    assert_eq!(update(0.0, &[9.0, 1.0], Max, true), SlotUpdate::Unchanged);
    assert_eq!(update(-0.0, &[9.0, 1.0], Max, true), SlotUpdate::Unchanged);
    for bad in [f32::INFINITY, f32::NAN, f32::from_bits(0x7FFF_FFFF)] {
        for algo in [Max, MostRecent] {
            assert_eq!(update(bad, &[9.0, 1.0], algo, true), SlotUpdate::NonFinite);
            assert_eq!(update(bad, &[], algo, false), SlotUpdate::NonFinite);
        }
    }
    assert_eq!(update(2.0, &[7.0, 1.0], Max, true), SlotUpdate::Rolled(64.0));
    assert_eq!(update(7.0, &[2.0, 1.0], Max, true), SlotUpdate::Rolled(64.0));
    assert_eq!(update(7.0, &[20.0, 10.0], MostRecent, true), SlotUpdate::Rolled(64.0));
    // L = 1: the window is the live amax.
    assert_eq!(update(7.0, &[], Max, true), SlotUpdate::Rolled(64.0));
    assert_eq!(update(7.0, &[], MostRecent, true), SlotUpdate::Rolled(64.0));
    // Between the steps of an interval the history rolls and the scale stays.
    assert_eq!(update(7.0, &[2.0], Max, false), SlotUpdate::Rolled(5.0));
    // A history that never was filled is zeros; one with a NaN that the caller put there keeps the scale.
    assert_eq!(update(7.0, &[0.0; 1023], Max, true), SlotUpdate::Rolled(64.0));
    assert_eq!(update(7.0, &[0.0, f32::NAN], Max, true), SlotUpdate::Rolled(5.0));
    assert_eq!(update(7.0, &[0.0, f32::INFINITY], Max, true), SlotUpdate::Rolled(5.0));
    assert_eq!(update(1e-40, &[0.0], Max, true), SlotUpdate::Rolled(f32::MAX));
}

#[test]
fn e8m0_scales() {
    for b in 0..=254u8 {
        assert_eq!(f64::from(E8m0(b).to_f32()), 2f64.powi(i32::from(b) - 127));
        assert!(!E8m0(b).is_nan());
        assert_eq!(E8m0::from_f32_round_up(E8m0(b).to_f32()), E8m0(b));
        // Anything above it needs the next one.
        let above = E8m0(b).to_f32().next_up();
        assert_eq!(E8m0::from_f32_round_up(above), E8m0((b + 1).min(254)), "{above:e}");
    }
    assert!(E8m0::NAN.is_nan() && E8m0(255).to_f32().is_nan());
    assert_eq!(E8m0::from_f32_round_up(f32::NAN), E8m0::NAN);
    assert_eq!(E8m0::from_f32_round_up(f32::INFINITY), E8m0(254));
    assert_eq!(E8m0::from_f32_round_up(f32::MAX), E8m0(254));
    for v in [0.0, -0.0, -3.0, f32::NEG_INFINITY, f32::from_bits(1)] {
        assert_eq!(E8m0::from_f32_round_up(v), E8m0(0), "{v}");
    }
    // Of a block: round up of amax / 448, so that the largest element never saturates.
    for (amax, want) in [(448.0, 127), (448.0f32.next_up(), 128), (1.0, 119), (0.0, 0), (f32::INFINITY, 254), (f32::NAN, 255)] {
        assert_eq!(E8m0::from_amax(amax, 448.0), E8m0(want), "{amax}");
    }
    let mut rng = rng("e8m0_scales");
    for _ in 0..20_000 {
        let amax = f32::from_bits(rng.random_range(0x0100_0000u32..0x7F80_0000));
        let b = E8m0::from_amax(amax, 448.0);
        let quotient = amax * (1.0 / 448.0);
        assert!(b.to_f32() >= quotient && (b.0 == 0 || E8m0(b.0 - 1).to_f32() < quotient), "{amax:e}");
    }
}

#[test]
fn recipes_are_checked() {
    let good = DelayedScaling::default();
    assert_eq!((good.margin, good.interval, good.amax_history_len), (0, 1, 1024));
    assert_eq!((good.amax_compute_algo, good.fp8_format, good.reduce_amax), (AmaxComputeAlgo::Max, Format::Hybrid, true));
    assert_eq!((Format::Hybrid.forward(), Format::Hybrid.backward()), (DType::E4m3, DType::E5m2));
    assert_eq!((Format::E4m3.forward(), Format::E4m3.backward()), (DType::E4m3, DType::E4m3));
    assert!(good.validate().is_ok() && Float8CurrentScaling::default().validate().is_ok());
    let bad = [
        ("margin", DelayedScaling { margin: 65, ..good }),
        ("margin", DelayedScaling { margin: i32::MIN, ..good }),
        ("interval", DelayedScaling { interval: 0, ..good }),
        ("amax_history_len", DelayedScaling { amax_history_len: 0, ..good }),
        ("epsilon", DelayedScaling { epsilon: -1e-3, ..good }),
        ("epsilon", DelayedScaling { epsilon: f32::NAN, ..good }),
        ("epsilon", DelayedScaling { epsilon: f32::INFINITY, ..good }),
    ];
    for (name, recipe) in bad {
        let e = recipe.validate().unwrap_err();
        assert_eq!(e.status(), Status::InvalidValue);
        assert!(e.message().starts_with(name), "{e}");
    }
    let good = Float8CurrentScaling::default();
    for bad in [Float8CurrentScaling { margin: -65, ..good }, Float8CurrentScaling { epsilon: f32::NAN, ..good }] {
        assert_eq!(bad.validate().unwrap_err().status(), Status::InvalidValue);
    }
}
