//! Activations in f64, and how far results may be from them.

use nvte::ops::activation::Activation;
use rand::RngExt;

use crate::common::rng;

/// Columns of the input for `hidden` columns of the output.
pub fn width(kind: Activation, hidden: usize) -> usize {
    if kind.is_gated() {
        2 * hidden
    } else {
        hidden
    }
}

/// What the formulas of NUMERICS section 8 say in f64: the value, the derivative, and the largest term of the derivative's sum.
pub struct Formula {
    pub value: f64,
    pub slope: f64,
    pub term: f64,
}

pub fn formula(kind: Activation, x: f64) -> Formula {
    // x sigmoid(z(x)) with z' given.
    let sigmoid = |z: f64, dz: f64| {
        let s = 1.0 / (1.0 + (-z).exp());
        let second = x * s * (1.0 / (1.0 + z.exp())) * dz;
        Formula { value: x * s, slope: s + second, term: s.max(second.abs()) }
    };
    if x.is_infinite() {
        // The limits, from the sign of x alone.
        let rectified = matches!(kind.function(), Activation::Relu | Activation::Srelu);
        let value = if x > 0.0 {
            x
        } else if rectified {
            0.0
        } else {
            -0.0
        };
        let slope = if x < 0.0 {
            0.0
        } else if kind.function() == Activation::Srelu {
            x
        } else {
            1.0
        };
        return Formula { value, slope, term: slope };
    }
    match kind.function() {
        Activation::Gelu => {
            let c = 2.0 * 0.79788456;
            sigmoid(c * (x + 0.044715 * x.powi(3)), c * (1.0 + 3.0 * 0.044715 * x * x))
        }
        Activation::Silu => sigmoid(x, 1.0),
        Activation::Qgelu => sigmoid(1.702 * x, 1.702),
        Activation::GeluErf => {
            let phi = 0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2);
            let second = x * (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
            Formula { value: x * phi, slope: phi + second, term: phi.max(second.abs()) }
        }
        Activation::Relu | Activation::Srelu => {
            let r = if x <= 0.0 { 0.0 } else { x };
            let step = if r > 0.0 { 1.0 } else { r };
            match kind.function() {
                Activation::Relu => Formula { value: r, slope: step, term: step },
                _ => Formula { value: r * r, slope: 2.0 * r, term: 2.0 * r },
            }
        }
        other => unreachable!("{} is no function", other.name()),
    }
}

/// The derivatives of the reference are right: against central differences.
#[test]
fn reference_slopes_are_finite_differences() {
    let mut rng = rng("reference_slopes_are_finite_differences");
    for kind in Activation::ALL {
        for _ in 0..200 {
            let x: f64 = rng.random_range(-6.0..6.0);
            let h = 1e-5;
            if matches!(kind.function(), Activation::Relu | Activation::Srelu) && x.abs() < 2.0 * h {
                continue;
            }
            let difference = (formula(kind, x + h).value - formula(kind, x - h).value) / (2.0 * h);
            assert!((formula(kind, x).slope - difference).abs() < 1e-8, "{} at {x}", kind.name());
        }
    }
}

/// One result of the reference: the value, the magnitude t of section 9 that its rounding errors scale with.
#[derive(Clone, Copy)]
pub struct Wanted {
    pub v: f64,
    pub t: f64,
}

/// |x| as the bounds use it: an infinite input has an exact result.
fn scale_of(x: f64) -> f64 {
    if x.is_finite() {
        x.abs()
    } else {
        0.0
    }
}

pub fn forward(kind: Activation, x: &[f32], hidden: usize) -> Vec<Wanted> {
    let width = width(kind, hidden);
    let one = |row: &[f32], c: usize| {
        let (a, b) = (f64::from(row[c]), if kind.is_gated() { f64::from(row[hidden + c]) } else { 1.0 });
        Wanted { v: formula(kind, a).value * b, t: scale_of(a) * scale_of(b) }
    };
    x.chunks(width.max(1)).flat_map(|row| (0..hidden).map(move |c| one(row, c)).collect::<Vec<_>>()).collect()
}

pub fn backward(kind: Activation, x: &[f32], dy: &[f32], hidden: usize) -> Vec<Wanted> {
    let width = width(kind, hidden);
    let mut out = Vec::new();
    for (row, g) in x.chunks(width.max(1)).zip(dy.chunks(hidden.max(1))) {
        for c in 0..width {
            let (a, g) = (f64::from(row[c % hidden]), f64::from(g[c % hidden]));
            let f = formula(kind, a);
            out.push(if c >= hidden {
                Wanted { v: g * f.value, t: scale_of(g) * scale_of(a) }
            } else {
                let b = if kind.is_gated() { f64::from(row[hidden + c]) } else { 1.0 };
                // Terms below 1e-28 come from exponentials that f32 may flush to 0, and with them the sign of a derivative; products below
                // 1e-36 are subnormal.
                Wanted { v: g * b * f.slope, t: (scale_of(g) * scale_of(b)).max(1e-36) * scale_of(f.term).max(1e-28) }
            });
        }
    }
    out
}
