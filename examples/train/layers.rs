//! A linear layer and a norm on top of the library's operations, forward and backward.

use nvte::{Buffer, DType, Ptr, Result, TensorView};

use crate::{
    compute::{Compute, NormGradients, Product},
    operand::{Operand, Origin, Precision, BACKWARD, FORWARD},
    parameters::{Group, Layout, Parameters, Part},
    slots::Slots,
};

/// What layers share.
pub struct Shared {
    /// The device.
    pub compute: Compute,
    /// Weights and gradients.
    pub parameters: Parameters,
    /// Scaling state.
    pub slots: Slots,
}

/// `y = x · Wᵀ + b`, with x, W and the gradient of y in the model's precision.
pub struct Linear {
    /// `[out, in]`.
    pub weight: Part,
    /// `[out]`.
    pub bias: Part,
    precision: Precision,
    w: Operand,
    /// The input: the caller writes or casts it before `forward`.
    pub x: Operand,
    /// The gradient of the output: likewise before `backward`.
    pub dy: Operand,
    /// The weights are new: no scale has followed from them yet.
    fresh: std::cell::Cell<bool>,
}

/// Sizes and origins of a linear layer.
pub struct LinearShape {
    /// Input features.
    pub inputs: usize,
    /// Output features.
    pub outputs: usize,
    /// Most rows of a batch.
    pub rows: usize,
    /// Where its input comes from.
    pub x: Origin,
    /// Where the gradient of its output comes from.
    pub dy: Origin,
}

impl Linear {
    /// Takes its parameters and slots.
    pub fn new(c: &Compute, layout: &mut Layout, slots: &mut Slots, precision: Precision, s: &LinearShape) -> Result<Self> {
        let mut operand = |origin, dtype, rows, cols| Operand::new(c, slots, precision, origin, dtype, rows, cols);
        Ok(Self {
            weight: layout.add(Group::Matrix, s.outputs, s.inputs),
            bias: layout.add(Group::Vector, 1, s.outputs),
            precision,
            x: operand(s.x, DType::E4m3, s.rows, s.inputs)?,
            w: operand(Origin::Matrix, DType::E4m3, s.outputs, s.inputs)?,
            dy: operand(s.dy, DType::E5m2, s.rows, s.outputs)?,
            fresh: true.into(),
        })
    }

    /// Writes `y`, plus `residual` where given.
    pub fn forward(&self, m: &Shared, rows: usize, y: &TensorView, residual: Option<TensorView>, training: bool) -> Result<()> {
        let weight = m.parameters.view(&self.weight);
        if self.precision == Precision::Delayed && self.fresh.get() {
            self.w.cast_current(&m.compute, &m.slots, &weight, training)?;
            // Outside training nothing was written to the slot, so the cast stays due.
            self.fresh.set(!training);
        } else {
            self.w.cast(&m.compute, &m.slots, &weight, training)?;
        }
        let a = self.x.view(&m.slots, rows, training);
        let b = self.w.view(&m.slots, self.weight.rows, training);
        let bias = m.parameters.ptr(&self.bias);
        m.compute.product(&Product { bias, add: residual, ..Product::new(a, b, *y, FORWARD) })
    }

    /// Writes the gradient of the weight and, where given, of the input. That of the bias was written along with `dy`.
    pub fn backward(&self, m: &Shared, rows: usize, dx: Option<TensorView>) -> Result<()> {
        let dy = self.dy.view(&m.slots, rows, true);
        if let Some(dx) = dx {
            let w = self.w.view(&m.slots, self.weight.rows, true);
            m.compute.product(&Product { transpose_b: true, ..Product::new(dy, w, dx, BACKWARD) })?;
        }
        let x = self.x.view(&m.slots, rows, true);
        let dw = m.parameters.gradient(&self.weight);
        m.compute.product(&Product { transpose_a: true, transpose_b: true, ..Product::new(dy, x, dw, BACKWARD) })
    }

    /// Where the gradient of the bias goes.
    pub fn dbias(&self, m: &Shared) -> Ptr {
        m.parameters.gradient_ptr(&self.bias)
    }
}

/// LayerNorm over the features.
pub struct Norm {
    /// Its weight, `[features]`.
    pub gamma: Part,
    beta: Part,
    mean: Buffer,
    rsigma: Buffer,
}

impl Norm {
    /// Takes its parameters.
    pub fn new(c: &Compute, layout: &mut Layout, rows: usize, features: usize) -> Result<Self> {
        Ok(Self {
            gamma: layout.add(Group::Vector, 1, features),
            beta: layout.add(Group::Vector, 1, features),
            mean: c.floats(rows)?,
            rsigma: c.floats(rows)?,
        })
    }

    fn statistics(&self) -> (Ptr, Ptr) {
        (self.mean.ptr(), self.rsigma.ptr())
    }

    /// Normalises `x` into `y`.
    pub fn forward(&self, m: &Shared, x: &TensorView, y: &TensorView) -> Result<()> {
        let p = &m.parameters;
        m.compute.norm(x, p.view(&self.gamma), p.view(&self.beta), y, self.statistics())
    }

    /// Writes the gradients of `x` and of the parameters.
    pub fn backward(&self, m: &Shared, dy: &TensorView, x: &TensorView, dx: &TensorView) -> Result<()> {
        let p = &m.parameters;
        let out = NormGradients { dx: *dx, dgamma: p.gradient(&self.gamma), dbeta: p.gradient(&self.beta) };
        m.compute.norm_backward(dy, x, p.view(&self.gamma), self.statistics(), &out)
    }
}
