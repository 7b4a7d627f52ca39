//! All parameters of a model in one piece of device memory, their gradients in another: one copy moves each.

use std::{ops::Range, rc::Rc};

use nvte::{Buffer, Context, Ptr, Result};
use rand::{rngs::StdRng, RngExt};
use rand_distr::StandardNormal;

/// What a parameter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// A weight `[out, in]`.
    Matrix,
    /// A bias or a norm's weight.
    Vector,
}

/// Where a parameter lies.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// What it is.
    pub group: Group,
    /// First element.
    pub start: usize,
    /// Output features; 1 for a vector.
    pub rows: usize,
    /// Input features, or the vector's length.
    pub cols: usize,
}

impl Part {
    /// Its elements.
    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.rows * self.cols
    }
}

/// Where all parameters lie.
#[derive(Clone, Default)]
pub struct Layout {
    parts: Vec<Part>,
    len: usize,
}

impl Layout {
    /// Appends a parameter.
    pub fn add(&mut self, group: Group, rows: usize, cols: usize) -> Part {
        let part = Part { group, start: self.len, rows, cols };
        self.parts.push(part);
        self.len += rows * cols;
        part
    }

    /// All parameters in order.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }
}

/// Values and gradients on the device.
#[derive(Clone)]
pub struct Parameters {
    /// Values.
    pub values: Rc<Buffer>,
    /// Gradients.
    pub gradients: Rc<Buffer>,
}

impl Parameters {
    /// Memory for all of them; every gradient starts as 0.
    pub fn new(ctx: &Context, values: &[f32]) -> Result<Self> {
        let gradients = Buffer::from_slice(ctx, &vec![0.0f32; values.len()])?;
        Ok(Self { values: Rc::new(Buffer::from_slice(ctx, values)?), gradients: Rc::new(gradients) })
    }

    /// Address of a parameter.
    pub fn ptr(&self, part: &Part) -> Ptr {
        self.values.ptr().offset(4 * part.start as u64)
    }

    /// Address of its gradient.
    pub fn gradient(&self, part: &Part) -> Ptr {
        self.gradients.ptr().offset(4 * part.start as u64)
    }
}

/// Normal values with variance `gain² / columns`.
pub fn normal(values: &mut [f32], part: &Part, gain: f32, rng: &mut StdRng) {
    let deviation = gain / (part.cols as f32).sqrt();
    for v in &mut values[part.range()] {
        let z: f32 = rng.sample(StandardNormal);
        *v = z * deviation;
    }
}
