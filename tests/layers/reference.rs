//! What a layer must give, in f64, from the formulas and the rules of NUMERICS alone.
//!
//! Every value carries how far the library may be off before it: the bounds of section 9 for one step, passed on through the steps that
//! follow. A rounding to FP8 or to a 16-bit type keeps both neighbours where the value may lie on either side of a tie, and is exact
//! where not; so a tensor of the caller's is compared code for code, and what follows from it as closely as can be promised.

use half::{bf16, f16};
use nvte::{ops::activation::Activation, DType};

use crate::common::{
    on_cuda,
    oracle::{decode, encode, ulp},
    tolerance::encode_f64,
};

/// A matrix whose elements lie within `e` of `v`.
#[derive(Clone, Debug, Default)]
pub struct Known {
    pub rows: usize,
    pub cols: usize,
    pub v: Vec<f64>,
    pub e: Vec<f64>,
}

/// `v` rounded once to a high-precision type. To 16 bits by way of an f32 whose last bit says that something is beyond it: `half` looks at
/// the upper half of an f64 alone, and takes what lies just beside a tie for one.
fn round(dtype: DType, v: f64) -> f64 {
    let near = v as f32;
    let odd = || match f64::from(near) == v || v.is_nan() {
        true => near,
        false => f32::from_bits((near.to_bits() - u32::from(f64::from(near.abs()) > v.abs())) | 1),
    };
    match dtype {
        DType::F32 => f64::from(near),
        DType::F16 => f16::from_f32(odd()).to_f64(),
        DType::Bf16 => bf16::from_f32(odd()).to_f64(),
        other => panic!("{} is FP8", other.name()),
    }
}

#[test]
fn rounding_sees_every_bit() {
    for (dtype, step) in [(DType::Bf16, 2f64.powi(-7)), (DType::F16, 2f64.powi(-10))] {
        for sign in [1.0, -1.0] {
            let (tie, little) = (1.0 + step / 2.0, 2f64.powi(-52));
            let all = [(tie, 1.0), (tie + little, 1.0 + step), (tie - little, 1.0), (tie + step, 1.0 + 2.0 * step), (1e-60, 0.0)];
            for (v, want) in all {
                assert_eq!(round(dtype, sign * v), sign * want, "{v} to {}", dtype.name());
            }
        }
    }
}

/// Rounding errors of a few f32 operations, relative to their largest term.
const STEP: f64 = 1.0 / (1 << 19) as f64;

impl Known {
    pub fn new(rows: usize, cols: usize, f: impl Fn(usize, usize) -> (f64, f64)) -> Self {
        let (v, e) = (0..rows * cols).map(|i| f(i / cols, i % cols)).unzip();
        Self { rows, cols, v, e }
    }

    pub fn exact(rows: usize, cols: usize, values: &[f32]) -> Self {
        assert_eq!(values.len(), rows * cols);
        Self::new(rows, cols, |r, c| (f64::from(values[r * cols + c]), 0.0))
    }

    fn at(&self, r: usize, c: usize) -> (f64, f64) {
        (self.v[r * self.cols + c], self.e[r * self.cols + c])
    }

    pub fn transpose(&self) -> Self {
        Self::new(self.cols, self.rows, |r, c| self.at(c, r))
    }

    fn map(&self, f: impl Fn(f64, f64) -> (f64, f64)) -> Self {
        Self::new(self.rows, self.cols, |r, c| {
            let (v, e) = self.at(r, c);
            f(v, e)
        })
    }

    pub fn round(&self, dtype: DType) -> Self {
        self.map(|v, e| {
            let (low, mid, high) = (round(dtype, v - e), round(dtype, v), round(dtype, v + e));
            (mid, (high - mid).max(mid - low))
        })
    }

    /// Cast to FP8 and back: `scale` is known to within the relative error `off`.
    pub fn quantize(&self, format: DType, (scale, off): (f32, f64)) -> Self {
        let (s, inv) = (f64::from(scale), f64::from(1.0 / scale));
        if off > 0.5 {
            // Whatever the scale is, it follows from these values: half a step of E5M2, and of its subnormals.
            let (_, most) = self.amax();
            return self.map(|v, e| (v, e + 0.13 * (v.abs() + e) + most / 512.0));
        }
        self.map(|v, e| {
            let mid = decode(format, encode(format, v as f32 * scale));
            if e == 0.0 && off == 0.0 {
                return (mid * inv, 0.0);
            }
            let slack = e * s + v.abs() * s * (off + STEP / 4.0);
            let value = |w: f64| decode(format, encode_f64(format, w));
            let wide = (value(v * s + slack) - mid).max(mid - value(v * s - slack)).max(0.0);
            (mid * inv, (wide * (1.0 + off) + mid.abs() * (off + STEP / 4.0)) * inv)
        })
    }

    /// `self · bᵀ`. `fp8`: by tensor cores, where there are any.
    pub fn times(&self, b: &Self, fp8: bool) -> Self {
        assert_eq!(self.cols, b.cols);
        // A tensor core cuts each term to the grid of the largest: for one element up to twice what NUMERICS allows the whole.
        let unit = if fp8 && on_cuda() { 2f64.powi(-11) } else { 2f64.powi(-20) };
        Self::new(self.rows, b.rows, |r, c| {
            let (mut sum, mut terms, mut off) = (0.0, 0.0, 0.0);
            for k in 0..self.cols {
                let ((x, dx), (y, dy)) = (self.at(r, k), b.at(c, k));
                sum += x * y;
                terms += (x * y).abs();
                off += x.abs() * dy + y.abs() * dx + dx * dy;
            }
            (sum, off + unit * terms)
        })
    }

    pub fn plus(&self, b: &Self) -> Self {
        Self::new(self.rows, self.cols, |r, c| {
            let ((v, e), (w, f)) = (self.at(r, c), b.at(r % b.rows.max(1), c));
            (v + w, e + f + STEP / 8.0 * (v.abs() + w.abs()))
        })
    }

    /// Sums over rows: `[1, cols]`.
    pub fn column_sums(&self) -> Self {
        Self::new(1, self.cols, |_, c| {
            let all = (0..self.rows).map(|r| self.at(r, c));
            all.fold((0.0, 0.0), |(v, e), (w, f)| (v + w, e + f + 2f64.powi(-20) * w.abs()))
        })
    }

    /// The largest magnitude, between two bounds.
    pub fn amax(&self) -> (f64, f64) {
        let all = self.v.iter().zip(&self.e);
        all.fold((0.0, 0.0), |(low, high), (v, e)| (f64::max(low, v.abs() - e), f64::max(high, v.abs() + e)))
    }

    /// The scale of current scaling.
    pub fn own_scale(&self, format: DType) -> (f32, f64) {
        if self.v.is_empty() {
            return (1.0, 0.0);
        }
        let largest = self.v.iter().fold(0f64, |m, v| m.max(v.abs())) as f32;
        let max: f32 = if format == DType::E4m3 { 448.0 } else { 57344.0 };
        let scale = if largest == 0.0 { 1.0 } else { (max / largest).min(f32::MAX) };
        let (low, high) = self.amax();
        let off = if high == low { 0.0 } else { (high - low) / low.max(1e-30) + STEP / 4.0 };
        (scale, off)
    }

    /// Compares what the library gave in `dtype`. Returns the share of the bound in the size of the result.
    pub fn check(&self, what: &str, dtype: DType, got: &[f32]) -> f64 {
        assert_eq!(got.len(), self.v.len(), "{what}: number of elements");
        for (i, g) in got.iter().enumerate() {
            let (v, e) = (self.v[i], self.e[i]);
            let bound = e * 1.0001 + 0.5001 * ulp(dtype, v.abs() + e);
            assert!(
                (f64::from(*g) - v).abs() <= bound,
                "{what}: at ({}, {}): got {g}, want {v} within {bound} ({} of it from steps before)",
                i / self.cols.max(1),
                i % self.cols.max(1),
                e
            );
        }
        let norm = |x: &[f64]| x.iter().map(|v| v * v).sum::<f64>().sqrt();
        if norm(&self.v) == 0.0 {
            0.0
        } else {
            norm(&self.e) / norm(&self.v)
        }
    }
}

/// Value and derivative of the function that an activation applies.
pub fn function(kind: Activation, x: f64) -> (f64, f64) {
    let swish = |z: f64, dz: f64| {
        let s = 1.0 / (1.0 + (-z).exp());
        (x * s, s + x * s * (1.0 - s) * dz)
    };
    match kind.function() {
        Activation::Gelu => {
            let c = 2.0 * 0.79788456;
            swish(c * x * (1.0 + 0.044715 * x * x), c * (1.0 + 0.134145 * x * x))
        }
        Activation::GeluErf => {
            let phi = 0.5 * libm::erfc(-x / std::f64::consts::SQRT_2);
            (x * phi, phi + x * (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt())
        }
        Activation::Silu => swish(x, 1.0),
        Activation::Qgelu => swish(1.702 * x, 1.702),
        Activation::Relu => (x.max(0.0), if x > 0.0 { 1.0 } else { 0.0 }),
        _ => (x.max(0.0).powi(2), 2.0 * x.max(0.0)),
    }
}

/// The derivative of `function` near x: no second derivative exceeds 2.5.
fn slope(kind: Activation, (x, e): (f64, f64)) -> (f64, f64) {
    let (_, d) = function(kind, x);
    let jump = kind.function() == Activation::Relu && x.abs() <= e && e > 0.0;
    (d, if jump { 1.0 } else { 2.5 * e })
}

fn value(kind: Activation, (x, e): (f64, f64)) -> (f64, f64) {
    let (f, d) = function(kind, x);
    // Round its kink relu has no second derivative, and moves no farther than x.
    let kink = kind.function() == Activation::Relu && x.abs() <= e;
    (f, if kink { e } else { (d.abs() + 2.5 * e) * e })
}

/// The product of values known to some error.
fn product(factors: &[(f64, f64)]) -> (f64, f64) {
    let v: f64 = factors.iter().map(|f| f.0).product();
    let most: f64 = factors.iter().map(|f| f.0.abs() + f.1).product();
    (v, most - v.abs())
}

pub fn activation(kind: Activation, pre: &Known) -> Known {
    let hidden = if kind.is_gated() { pre.cols / 2 } else { pre.cols };
    Known::new(pre.rows, hidden, |r, c| {
        let (a, b) = (pre.at(r, c), if kind.is_gated() { pre.at(r, hidden + c) } else { (1.0, 0.0) });
        let (v, e) = product(&[value(kind, a), b]);
        (v, e + STEP * (a.0.abs().max(v.abs()) * b.0.abs().max(0.0)).max(v.abs()))
    })
}

pub fn activation_gradient(kind: Activation, pre: &Known, dy: &Known) -> Known {
    let hidden = dy.cols;
    Known::new(pre.rows, pre.cols, |r, c| {
        let (a, g) = (pre.at(r, c % hidden), dy.at(r, c % hidden));
        if c >= hidden {
            let (v, e) = product(&[g, value(kind, a)]);
            return (v, e + STEP * g.0.abs() * a.0.abs().max(v.abs()));
        }
        let b = if kind.is_gated() { pre.at(r, hidden + c) } else { (1.0, 0.0) };
        let d = slope(kind, a);
        let (v, e) = product(&[g, b, d]);
        (v, e + STEP * (g.0 * b.0).abs() * (1.0 + a.0.abs()).max(d.0.abs()))
    })
}

/// A norm's description and parameters.
pub struct Norm {
    pub rms: bool,
    pub eps: f32,
    pub weight: Vec<f64>,
    pub beta: Vec<f64>,
}

struct Row {
    mean: f64,
    rsigma: f64,
    /// What rounding of the mean is relative to: it may itself be small.
    size: f64,
}

impl Norm {
    fn row(&self, x: &[f64]) -> Row {
        let n = x.len() as f64;
        let mean = if self.rms { 0.0 } else { x.iter().sum::<f64>() / n };
        let variance = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
        let size = x.iter().map(|v| v.abs()).sum::<f64>() / n;
        Row { mean, rsigma: 1.0 / (variance + f64::from(self.eps)).sqrt(), size }
    }

    pub fn forward(&self, x: &Known) -> Known {
        let rows: Vec<Row> = x.v.chunks(x.cols.max(1)).map(|r| self.row(r)).collect();
        Known::new(x.rows, x.cols, |r, c| {
            let (v, Row { mean, rsigma, size }) = (x.at(r, c).0, &rows[r]);
            let term = (v.abs().max(*size) * rsigma * self.weight[c].abs()).max(self.beta[c].abs());
            ((v - mean) * rsigma * self.weight[c] + self.beta[c], STEP / 2.0 * term)
        })
    }

    /// dx, dgamma, dbeta.
    pub fn backward(&self, x: &Known, dy: &Known) -> [Known; 3] {
        let rows: Vec<Row> = x.v.chunks(x.cols.max(1)).map(|r| self.row(r)).collect();
        let hat = |r: usize, c: usize| (x.at(r, c).0 - rows[r].mean) * rows[r].rsigma;
        // Rounding of x - mean, relative to the normalised value.
        let hat_term = |r: usize, c: usize| x.at(r, c).0.abs().max(rows[r].size) * rows[r].rsigma;
        let n = x.cols as f64;
        let means: Vec<[(f64, f64); 2]> = (0..x.rows)
            .map(|r| {
                let mut sums = [(0.0, 0.0); 2];
                for c in 0..x.cols {
                    let (g, e) = dy.at(r, c);
                    let (g, e, h) = (g * self.weight[c], e * self.weight[c].abs(), hat(r, c));
                    sums[0] = (sums[0].0 + g, sums[0].1 + e + STEP * g.abs());
                    sums[1] = (sums[1].0 + g * h, sums[1].1 + e * h.abs() + STEP * (g.abs() * hat_term(r, c).max(h.abs())));
                }
                sums.map(|(v, e)| (v / n, e / n))
            })
            .collect();
        let dx = Known::new(x.rows, x.cols, |r, c| {
            let (g, e) = dy.at(r, c);
            let (w, h) = (self.weight[c], hat(r, c));
            let [mean, dot] = means[r];
            let mean = if self.rms { (0.0, 0.0) } else { mean };
            let terms = (g * w).abs() + mean.0.abs() + dot.0.abs() * hat_term(r, c).max(h.abs());
            let off = e * w.abs() + mean.1 + h.abs() * dot.1 + STEP * terms;
            ((g * w - mean.0 - h * dot.0) * rows[r].rsigma, off * rows[r].rsigma)
        });
        let dgamma = Known::new(x.rows, x.cols, |r, c| {
            let (g, e) = dy.at(r, c);
            (g * hat(r, c), e * hat(r, c).abs() + STEP * g.abs() * hat_term(r, c))
        });
        [dx, dgamma.column_sums(), dy.column_sums()]
    }
}
