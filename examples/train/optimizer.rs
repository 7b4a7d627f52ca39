//! AdamW on the host: the library computes gradients, a program may update its weights as it likes.

use crate::parameters::{Group, Layout};

const BETA1: f64 = 0.9;
const BETA2: f64 = 0.99;
const EPSILON: f32 = 1e-8;
const WEIGHT_DECAY: f32 = 0.05;
/// Part of the steps in which the learning rate rises to its peak; afterwards it falls along half a cosine.
const WARM_UP: f64 = 0.05;
const PEAK: f64 = 2e-3;

/// First and second moments of every parameter.
pub struct AdamW {
    m: Vec<f32>,
    v: Vec<f32>,
    step: i32,
    steps: usize,
}

impl AdamW {
    /// For `len` parameters and a run of `steps` steps.
    pub fn new(len: usize, steps: usize) -> Self {
        Self { m: vec![0.0; len], v: vec![0.0; len], step: 0, steps }
    }

    /// One step on all parameters. Matrices decay; biases and norms do not.
    pub fn step(&mut self, layout: &Layout, weights: &mut [f32], gradients: &[f32]) {
        let rate = learning_rate(self.step as usize, self.steps);
        self.step += 1;
        let unbias1 = (1.0 / (1.0 - BETA1.powi(self.step))) as f32;
        let unbias2 = (1.0 / (1.0 - BETA2.powi(self.step))) as f32;
        let (beta1, beta2) = (BETA1 as f32, BETA2 as f32);
        for part in layout.parts() {
            let keep = if part.group == Group::Matrix { 1.0 - rate * WEIGHT_DECAY } else { 1.0 };
            let r = part.range();
            let moments = self.m[r.clone()].iter_mut().zip(&mut self.v[r.clone()]);
            for ((w, g), (m, v)) in weights[r.clone()].iter_mut().zip(&gradients[r]).zip(moments) {
                *m += (1.0 - beta1) * (g - *m);
                *v += (1.0 - beta2) * (g * g - *v);
                *w = *w * keep - rate * (*m * unbias1) / ((*v * unbias2).sqrt() + EPSILON);
            }
        }
    }
}

fn learning_rate(step: usize, steps: usize) -> f32 {
    let warm_up = (WARM_UP * steps as f64).max(1.0);
    let at = step as f64;
    let factor = if at < warm_up {
        (at + 1.0) / warm_up.ceil()
    } else {
        0.5 + 0.5 * (std::f64::consts::PI * (at - warm_up) / (steps as f64 - warm_up).max(1.0)).cos()
    };
    (PEAK * factor) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_rises_to_its_peak_and_falls_to_nothing() {
        let rates: Vec<f32> = (0..400).map(|s| learning_rate(s, 400)).collect();
        assert!(rates[..20].is_sorted() && rates[20..].iter().rev().is_sorted());
        assert!((rates[19] - PEAK as f32).abs() < 1e-6 && rates[399] < 1e-5);
        assert!(rates.iter().all(|r| *r > 0.0));
    }

    #[test]
    fn the_first_step_moves_each_weight_by_the_rate_against_its_gradient() {
        let mut layout = Layout::default();
        layout.add(Group::Matrix, 1, 2);
        layout.add(Group::Vector, 1, 2);
        let mut w = vec![1.0f32; 4];
        AdamW::new(4, 1).step(&layout, &mut w, &[0.5, -2.0, 1e-3, 0.0]);
        let (rate, decay) = (PEAK as f32, 1.0 - PEAK as f32 * WEIGHT_DECAY);
        for (w, want) in w.iter().zip([decay - rate, decay + rate, 1.0 - rate, 1.0]) {
            assert!((w - want).abs() < 1e-6, "{w} {want}");
        }
    }
}
