//! One training run: a model, its optimizer and its record.

use std::time::{Duration, Instant};

use nvte::{Context, Result};

use crate::{
    data::{Batch, Digits},
    layers::Precision,
    loss::cross_entropy,
    model::{Mlp, Shape},
    optimizer::AdamW,
};

/// A model in training.
pub struct Run {
    model: Mlp,
    optimizer: AdamW,
    weights: Vec<f32>,
    /// Loss of every step so far.
    pub losses: Vec<f32>,
    /// Time spent in steps and tests.
    pub time: Duration,
}

impl Run {
    /// A new model; `seed` fixes its weights.
    pub fn new(ctx: &Context, precision: Precision, shape: Shape, steps: usize, seed: u64) -> Result<Self> {
        let model = Mlp::new(ctx, precision, shape, seed)?;
        let weights = model.values()?;
        Ok(Self { optimizer: AdamW::new(weights.len(), steps), model, weights, losses: Vec::new(), time: Duration::ZERO })
    }

    /// Forward, backward, update.
    pub fn step(&mut self, batch: &Batch) -> Result<f32> {
        let start = Instant::now();
        let logits = self.model.forward(&batch.inputs, true)?;
        let verdict = cross_entropy(&logits, &batch.classes);
        self.model.backward(&verdict.dlogits)?;
        self.optimizer.step(self.model.layout(), &mut self.weights, &self.model.gradients()?);
        self.model.set_values(&self.weights)?;
        self.losses.push(verdict.loss);
        self.time += start.elapsed();
        Ok(verdict.loss)
    }

    /// Part of the held-back images that the model gets right, in percent.
    pub fn test(&mut self, digits: &Digits, rows: usize) -> Result<f64> {
        let start = Instant::now();
        let (mut right, mut all) = (0, 0);
        for batch in digits.test(rows) {
            right += cross_entropy(&self.model.forward(&batch.inputs, false)?, &batch.classes).right;
            all += batch.rows();
        }
        self.time += start.elapsed();
        Ok(100.0 * right as f64 / all as f64)
    }
}
