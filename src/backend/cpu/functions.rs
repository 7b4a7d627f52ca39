//! exp and the activation functions in f32, in one source that the compiler vectorises: no table, no branch, no fused multiply-add, so
//! that every processor gives the same bits.

// Coefficients of fitted polynomials: near a constant of mathematics, or longer than an f32, on purpose.
#![allow(clippy::approx_constant, clippy::excessive_precision)]

/// `2^t` for `t <= 0`, within 1.2 ulp; 0 below 2^-125. The result for NaN is some number: callers multiply it with the NaN itself.
#[inline(always)]
pub(super) fn exp2_of_negative(t: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to an integer, which then sits in the low mantissa bits.
    const ROUND: f32 = 12_582_912.0;
    let k = t + ROUND;
    let f = t - (k - ROUND);
    // Minimax on [-1/2, 1/2], relative error 2e-9.
    let mut p = 1.534_584_6e-4;
    for c in [1.339_993_1e-3, 9.618_489e-3, 5.550_328_6e-2, 0.240_226_46, std::f32::consts::LN_2, 1.0] {
        p = p * f + c;
    }
    let scaled = f32::from_bits(p.to_bits().wrapping_add(k.to_bits() << 23));
    if t < -125.0 {
        0.0
    } else {
        scaled
    }
}

/// Beyond ±128 every sigmoid here is 0 or 1 in f32. Clamping there keeps infinities out of products with 0; NaN passes.
const FAR: f32 = 128.0;

#[inline(always)]
fn clamp_low(x: f32) -> f32 {
    if x < -FAR {
        -FAR
    } else {
        x
    }
}

#[inline(always)]
fn clamp(x: f32) -> f32 {
    let x = clamp_low(x);
    if x > FAR {
        FAR
    } else {
        x
    }
}

/// A function and its derivative.
pub(super) trait Function: 'static {
    /// `f(x)`.
    fn value(x: f32) -> f32;
    /// `f(x)` and `f'(x)`.
    fn value_and_slope(x: f32) -> (f32, f32);
}

/// `sigmoid(z)` and `sigmoid(z) * (1 - sigmoid(z))` for `z = t * ln 2`: from exp(-|z|), so that neither overflows nor cancels.
#[inline(always)]
fn sigmoid(t: f32) -> (f32, f32) {
    let e = exp2_of_negative(-t.abs());
    let r = 1.0 / (1.0 + e);
    let er = e * r;
    (if t >= 0.0 { r } else { er }, er * r)
}

/// `x * sigmoid(x (A + B x^2))`; the constants include log2(e).
macro_rules! sigmoid_function {
    ($(#[$meta:meta])* $name:ident, $a:expr, $b:expr) => {
        $(#[$meta])*
        pub(super) struct $name;
        impl Function for $name {
            #[inline(always)]
            fn value(x: f32) -> f32 {
                let c = clamp(x);
                let (s, _) = sigmoid(c * ($a + $b * (c * c)));
                clamp_low(x) * s
            }
            #[inline(always)]
            fn value_and_slope(x: f32) -> (f32, f32) {
                const LN_2: f32 = std::f32::consts::LN_2;
                let c = clamp(x);
                let (s, ss) = sigmoid(c * ($a + $b * (c * c)));
                (clamp_low(x) * s, s + c * ss * ($a * LN_2 + 3.0 * $b * LN_2 * (c * c)))
            }
        }
    };
}

sigmoid_function!(
    /// Tanh form: 2u log2(e) = x (2.3022082 + 0.10294324 x^2).
    Gelu,
    2.302_208_2f32,
    0.102_943_24f32
);
sigmoid_function!(
    /// x log2(e).
    Silu,
    std::f32::consts::LOG2_E,
    0.0f32
);
sigmoid_function!(
    /// 1.702 x log2(e).
    Qgelu,
    2.455_467f32,
    0.0f32
);

/// `x * Phi(x)`.
pub(super) struct GeluErf;

/// `Phi(x)` and `exp(-x^2/2)` for |x| <= 128.
#[inline(always)]
fn normal(x: f32) -> (f32, f32) {
    let e = exp2_of_negative(x * x * -0.721_347_5);
    // Phi(-a) = exp(-a^2/2) Q(t) with t = 1/(1 + 0.28 a): minimax in t, 5e-8 near a = 0, 2.5e-7 relative in the tail;
    // the rounding of x^2 adds up to 6e-7 within 3 deviations, 7e-6 within 13.
    let t = 1.0 / (1.0 + 0.28 * x.abs());
    let mut q = 0.024_647_82;
    for c in [-0.092_962_034, 0.090_764_12, -0.004_389_784_5, 0.071_410_04, 0.084_130_64, 0.102_986_58, 0.111_709_1, 0.111_703_54] {
        q = q * t + c;
    }
    let tail = e * (t * q);
    (if x >= 0.0 { 1.0 - tail } else { tail }, e)
}

impl Function for GeluErf {
    #[inline(always)]
    fn value(x: f32) -> f32 {
        clamp_low(x) * normal(clamp(x)).0
    }
    #[inline(always)]
    fn value_and_slope(x: f32) -> (f32, f32) {
        let c = clamp(x);
        let (phi, e) = normal(c);
        (clamp_low(x) * phi, phi + c * e * 0.398_942_3)
    }
}

/// `max(x, 0)`, NaN kept.
pub(super) struct Relu;

impl Function for Relu {
    #[inline(always)]
    fn value(x: f32) -> f32 {
        if x <= 0.0 {
            0.0
        } else {
            x
        }
    }
    #[inline(always)]
    fn value_and_slope(x: f32) -> (f32, f32) {
        let r = Self::value(x);
        (r, if r > 0.0 { 1.0 } else { r })
    }
}

/// `max(x, 0)^2`, NaN kept.
pub(super) struct Srelu;

impl Function for Srelu {
    #[inline(always)]
    fn value(x: f32) -> f32 {
        let r = Relu::value(x);
        r * r
    }
    #[inline(always)]
    fn value_and_slope(x: f32) -> (f32, f32) {
        let r = Relu::value(x);
        (r * r, 2.0 * r)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp2_is_within_1_2_ulp() {
        let mut worst = 0f64;
        for i in 0..1_250_000 {
            let t = -(i as f32) * 1e-4;
            let (got, want) = (f64::from(exp2_of_negative(t)), f64::from(t).exp2());
            let ulp = 2f64.powi(want.log2().floor() as i32 - 23);
            worst = worst.max((got - want).abs() / ulp);
        }
        assert!(worst < 1.2, "{worst} ulp");
        assert_eq!(exp2_of_negative(0.0), 1.0);
        assert_eq!(exp2_of_negative(-125.5), 0.0);
        assert_eq!(exp2_of_negative(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp2_of_negative(-3e38), 0.0);
    }

    #[test]
    fn normal_distribution_is_close_to_erfc() {
        for i in -1300..=1300 {
            let x = i as f32 * 0.01;
            let want = 0.5 * libm::erfc(-f64::from(x) * std::f64::consts::FRAC_1_SQRT_2);
            let got = f64::from(normal(x).0);
            assert!((got - want).abs() <= 6e-7 * want + 7e-6 * want * f64::from(i < -300) + 1e-30, "{x}: {got} for {want}");
        }
    }

    #[test]
    fn ends_are_the_limits() {
        fn check<F: Function>(low: f32) {
            for x in [f32::INFINITY, 3e38, 1e20] {
                let (v, s) = F::value_and_slope(x);
                assert_eq!((v, s, F::value(x)), (x, 1.0, x));
            }
            for x in [f32::NEG_INFINITY, -3e38, -1e20, -200.0] {
                let (v, s) = F::value_and_slope(x);
                assert_eq!((v.to_bits(), s), (low.to_bits(), 0.0));
                assert_eq!(F::value(x).to_bits(), low.to_bits());
            }
            assert!(F::value(f32::NAN).is_nan() && F::value_and_slope(f32::NAN).1.is_nan());
        }
        check::<Gelu>(-0.0);
        check::<GeluErf>(-0.0);
        check::<Silu>(-0.0);
        check::<Qgelu>(-0.0);
        check::<Relu>(0.0);
        assert_eq!(Srelu::value_and_slope(f32::INFINITY), (f32::INFINITY, f32::INFINITY));
        assert_eq!(Srelu::value_and_slope(f32::NEG_INFINITY), (0.0, 0.0));
        assert!(Srelu::value(f32::NAN).is_nan() && Srelu::value_and_slope(f32::NAN).1.is_nan());
    }
}
