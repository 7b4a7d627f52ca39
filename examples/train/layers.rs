//! The library's layers with this model's parameters: one call forward, one backward.

use std::cell::Cell;

use nvte::{
    layers::{BackwardArgs, ForwardArgs, Kind, Layer, LayerCall, LayerConfig, LayerFlags, NormConfig, Rows},
    numerics::{Float8CurrentScaling, Recipe},
    ops::activation::Activation,
    Buffer, DType, Ptr, Result,
};
use nvte::{Stream, TensorView};

use crate::{
    compute::Compute,
    parameters::{Group, Layout, Parameters, Part},
    slots::{recipe, Slot, Slots},
};

/// Added to the variance by every norm.
pub const NORM_EPSILON: f32 = 1e-5;

/// In which precision a model multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// f32 throughout.
    F32,
    /// FP8; scales follow from the amaxes of earlier steps.
    Delayed,
    /// FP8; each tensor is measured just before it is cast.
    Current,
}

/// What layers share.
pub struct Shared {
    /// The device.
    pub compute: Compute,
    /// Weights and gradients.
    pub parameters: Parameters,
    /// Scaling state.
    pub slots: Slots,
}

/// One layer of the library: its description, its parameters' places, and what its forward pass leaves for its backward pass.
pub struct Unit {
    layer: Layer,
    /// Weight and bias of the norm, where there is one.
    norm: Option<[Part; 2]>,
    /// Weight and bias of each product.
    pub products: Vec<[Part; 2]>,
    slot: Slot,
    saved: Buffer,
    /// The flags of the forward pass that backward belongs to.
    flags: Cell<LayerFlags>,
    /// The weights are new: no scale has followed from them yet.
    fresh: Cell<bool>,
}

/// Sizes of a layer.
#[derive(Clone, Copy)]
pub struct UnitShape {
    /// Linear, norm + Linear or norm + MLP.
    pub kind: Kind,
    /// Input features.
    pub inputs: usize,
    /// Output features.
    pub outputs: usize,
    /// Features inside an MLP.
    pub hidden: usize,
    /// Most rows of a batch.
    pub rows: usize,
    /// Whether anything before it learns.
    pub dx: bool,
}

impl UnitShape {
    /// A plain Linear at the model's input.
    pub fn linear(rows: usize, inputs: usize, outputs: usize) -> Self {
        Self { kind: Kind::Linear, inputs, outputs, hidden: 0, rows, dx: false }
    }

    /// LayerNorm and a Linear.
    pub fn norm_linear(rows: usize, inputs: usize, outputs: usize) -> Self {
        Self { kind: Kind::NormLinear(NORM), dx: true, ..Self::linear(rows, inputs, outputs) }
    }

    /// LayerNorm and an MLP with GELU.
    pub fn norm_mlp(rows: usize, width: usize, hidden: usize) -> Self {
        Self { kind: Kind::NormMlp(NORM, Activation::Gelu), hidden, dx: true, ..Self::linear(rows, width, width) }
    }
}

const NORM: NormConfig = NormConfig { rms: false, eps: NORM_EPSILON, zero_centered_gamma: false };

impl Unit {
    /// Takes its parameters and slots.
    pub fn new(c: &Compute, layout: &mut Layout, slots: &mut Slots, precision: Precision, s: &UnitShape) -> Result<Self> {
        let recipe = match precision {
            Precision::F32 => None,
            Precision::Delayed => Some(Recipe::Delayed(recipe())),
            Precision::Current => Some(Recipe::Current(Float8CurrentScaling::default())),
        };
        let config = LayerConfig {
            kind: s.kind,
            ffn_features: s.hidden as i64,
            ..LayerConfig::linear(s.inputs as i64, s.outputs as i64, DType::F32, recipe)
        };
        let layer = Layer::new(c.context(), &config)?;
        let mut norm = None;
        if s.kind != Kind::Linear {
            norm = Some([layout.add(Group::Vector, 1, s.inputs), layout.add(Group::Vector, 1, s.inputs)]);
        }
        let mut product = |n, k| [layout.add(Group::Matrix, n, k), layout.add(Group::Vector, 1, n)];
        let products = match s.kind {
            Kind::NormMlp(..) => vec![product(s.hidden, s.inputs), product(s.outputs, s.hidden)],
            _ => vec![product(s.outputs, s.inputs)],
        };
        let flags = LayerFlags { dx: s.dx, ..LayerFlags::training() };
        let sizes = layer.sizes(&flags);
        Ok(Self {
            layer,
            norm,
            products,
            slot: slots.take(sizes.slots as usize),
            saved: c.bytes(sizes.saved.bytes(s.rows as i64) as usize)?,
            flags: flags.into(),
            fresh: (precision == Precision::Delayed).into(),
        })
    }

    /// The norm's weight.
    pub fn gamma(&self) -> Option<&Part> {
        self.norm.as_ref().map(|n| &n[0])
    }

    fn call(&self, m: &Shared, rows: usize, flags: LayerFlags, workspace: (Ptr, u64)) -> LayerCall {
        let training = flags.dw[0];
        LayerCall {
            tokens: rows as i64,
            flags,
            saved: self.saved.ptr(),
            saved_bytes: self.saved.bytes() as u64,
            workspace: workspace.0,
            workspace_bytes: workspace.1,
            // Outside training no amax is recorded.
            live: if training { m.slots.live(self.slot) } else { Ptr::NULL },
            scale: m.slots.scale(self.slot),
            skip_refresh: Ptr::NULL,
        }
    }

    fn pair<T: Copy + Default>(&self, which: usize, at: impl Fn(&Part) -> T) -> [T; 2] {
        let mut out = [T::default(); 2];
        out.iter_mut().zip(&self.products).for_each(|(o, p)| *o = at(&p[which]));
        out
    }

    fn of_norm(&self, which: usize, at: impl Fn(&Part) -> Ptr) -> Ptr {
        self.norm.as_ref().map_or(Ptr::NULL, |n| at(&n[which]))
    }

    /// Writes `y`. In training everything is kept that `backward` needs.
    pub fn forward(&self, m: &Shared, x: &TensorView, y: &TensorView, training: bool) -> Result<()> {
        let mut flags = LayerFlags::default();
        if training {
            flags = LayerFlags { weight_scale_due: false, weight_scale_keep: false, ..self.flags.get() };
        }
        // Outside training the scale is not kept in the slot, so that it stays due.
        flags.weight_scale_due = self.fresh.get();
        flags.weight_scale_keep = self.fresh.get() && training;
        let (rows, p) = (x.rows as usize, &m.parameters);
        let workspace = m.compute.scratch(self.layer.sizes(&flags).forward_workspace.bytes(x.rows))?;
        let args = ForwardArgs {
            call: self.call(m, rows, flags, workspace),
            x: matrix(x),
            gamma: self.of_norm(0, |part| p.ptr(part)),
            beta: self.of_norm(1, |part| p.ptr(part)),
            weights: self.pair(0, |part| Rows { data: p.ptr(part), ld: part.cols as i64 }),
            biases: self.pair(1, |part| p.ptr(part)),
            y: matrix(y),
            norm_out: Rows::default(),
        };
        // SAFETY: see `Compute`.
        unsafe { self.layer.forward(&args, None, Stream::NULL)? };
        if training {
            self.flags.set(flags);
            self.fresh.set(false);
        }
        Ok(())
    }

    /// Writes the gradients of the parameters and, where given, of the input `x` that forward was given.
    pub fn backward(&self, m: &Shared, x: &TensorView, dy: &TensorView, dx: Option<&TensorView>) -> Result<()> {
        let (flags, p) = (self.flags.get(), &m.parameters);
        let workspace = m.compute.scratch(self.layer.sizes(&flags).backward_workspace.bytes(x.rows))?;
        let args = BackwardArgs {
            call: self.call(m, x.rows as usize, flags, workspace),
            dy: matrix(dy),
            x: matrix(x),
            gamma: self.of_norm(0, |part| p.ptr(part)),
            weights: self.pair(0, |part| Rows { data: p.ptr(part), ld: part.cols as i64 }),
            dnorm_out: Rows::default(),
            dx: dx.map_or(Rows::default(), matrix),
            dgamma: self.of_norm(0, |part| p.gradient(part)),
            dbeta: self.of_norm(1, |part| p.gradient(part)),
            dw: self.pair(0, |part| Rows { data: p.gradient(part), ld: part.cols as i64 }),
            dw_dtype: DType::F32,
            db: self.pair(1, |part| p.gradient(part)),
        };
        // SAFETY: see `Compute`.
        unsafe { self.layer.backward(&args, None, Stream::NULL) }
    }
}

fn matrix(t: &TensorView) -> Rows {
    Rows { data: t.data, ld: t.ld }
}
