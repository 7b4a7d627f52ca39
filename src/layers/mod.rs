//! Layers: a whole Linear, norm + Linear or norm + MLP in one call forward and one backward.
//!
//! A [`Layer`] is a description, immutable and shared by equal layers, threads and streams. Everything that changes lies in memory of the
//! caller's: `saved` holds what the layer made for backward, `workspace` what one call needs, a [`WeightCache`] the FP8 copies of the
//! weights, and `live` / `scale` the layer's consecutive scaling slots. Their sizes are linear in the number of tokens ([`Layer::sizes`]).
//!
//! With `i` counting the layer's products (the MLP has two) and `n` their number, slot `2i` belongs to the input of product `i`, `2i + 1` to its
//! weight, and `2n + (n - 1 - i)` to the gradient of its output: x, w, dy; or for the MLP x1, w1, x2, w2, dy2, dy1.
//!
//! FP8 data inside a layer is padded to multiples of 16 with code 0x00 where a product runs along it, so that any number of tokens and
//! features takes the fast kernels.

mod arena;
mod backward;
mod forward;
mod weights;

use std::sync::{Arc, OnceLock};

use crate::{
    context::Context,
    error::{Error, Result, Status},
    numerics::Recipe,
    ops::{activation::Activation, cast::CurrentScaling, check, gemm::Accumulate, norm},
    tensor::{DType, Ptr},
};
use arena::Arena;
pub use weights::WeightCache;

/// What a layer computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// `y = x · Wᵀ + b`.
    Linear,
    /// `y = norm(x) · Wᵀ + b`.
    NormLinear(NormConfig),
    /// `y = act(norm(x) · W1ᵀ + b1) · W2ᵀ + b2`; `out_features` is `in_features`, and `ffn_features` the width between.
    NormMlp(NormConfig, Activation),
}

/// The norm of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormConfig {
    /// RMSNorm instead of LayerNorm: no mean, no beta.
    pub rms: bool,
    /// Added to the variance.
    pub eps: f32,
    /// The weight is `1 + gamma`.
    pub zero_centered_gamma: bool,
}

/// A layer's description.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerConfig {
    /// What it computes.
    pub kind: Kind,
    /// Features of x.
    pub in_features: i64,
    /// Features of y. The MLP's are `in_features`.
    pub out_features: i64,
    /// The MLP's width behind the activation; its first product gives twice as many where the activation is gated. Other kinds: 0.
    pub ffn_features: i64,
    /// Type of x, y, dy and dx: f32, f16 or bf16.
    pub dtype: DType,
    /// Type of weights, biases, gamma, beta and the gradients of all but the weights. Without a recipe it is `dtype`.
    pub param_dtype: DType,
    /// How FP8 is scaled; `None`: the products run in `dtype`.
    pub recipe: Option<Recipe>,
    /// FP8 accumulation of fprop, dgrad and wgrad.
    pub accumulate: [Accumulate; 3],
}

impl LayerConfig {
    /// A Linear with the default accumulation: fast forward, precise backward.
    pub fn linear(in_features: i64, out_features: i64, dtype: DType, recipe: Option<Recipe>) -> Self {
        Self {
            kind: Kind::Linear,
            in_features,
            out_features,
            ffn_features: 0,
            dtype,
            param_dtype: dtype,
            recipe,
            accumulate: [Accumulate::Fast, Accumulate::Precise, Accumulate::Precise],
        }
    }
}

/// What backward will be asked for, and how a call computes. What asks for gradients that a kind of layer has not is ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerFlags {
    /// The gradient of x.
    pub dx: bool,
    /// Gradients of weight (or bias) of each product.
    pub dw: [bool; 2],
    /// Gradients of gamma or beta.
    pub dnorm: bool,
    /// Add to the weights' gradients instead of replacing them.
    pub accumulate_dw: bool,
    /// Compute without FP8 and record amaxes.
    pub calibrate: bool,
    /// Weights were replaced: take the scale of their cast from their own amax.
    pub weight_scale_due: bool,
    /// And keep it: write it to the weight's slot and record the amax.
    pub weight_scale_keep: bool,
    /// Forward makes both layouts of a weight that dgrad will read, in one pass over it, and leaves the transposed one in `saved`: a byte more
    /// for each of its elements, and backward need not read the weight and cast it again. With a weight cache, which holds both, the room is asked for
    /// and not used.
    pub save_weight: bool,
}

impl LayerFlags {
    /// Everything is wanted.
    pub fn training() -> Self {
        Self { dx: true, dw: [true; 2], dnorm: true, ..Self::default() }
    }

    /// A number for each of those that sizes depend on.
    fn index(&self) -> usize {
        let all = [self.dx, self.dw[0], self.dw[1], self.dnorm, self.calibrate, self.save_weight];
        all.iter().fold(0, |n, b| 2 * n + usize::from(*b))
    }

    /// Whether there will be a backward pass that reads what forward saves.
    fn backward(&self) -> bool {
        self.dx || self.dw[0] || self.dw[1] || self.dnorm
    }

    /// Whether the gradient passes the last product of the MLP.
    fn chain(&self) -> bool {
        self.dx || self.dw[0] || self.dnorm
    }

    /// Whether the gradient passes the first product.
    fn dgrad(&self) -> bool {
        self.dx || self.dnorm
    }

    /// Whether the gradient of product `i`'s input is wanted.
    fn dgrad_of(&self, i: usize) -> bool {
        if i == 0 {
            self.dgrad()
        } else {
            self.chain()
        }
    }
}

/// A size that is linear in the number of tokens: an upper bound for every number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Linear {
    /// Bytes per token.
    pub per_token: u64,
    /// Bytes whatever the number.
    pub fixed: u64,
}

impl Linear {
    /// The size for this many tokens.
    pub fn bytes(&self, tokens: i64) -> u64 {
        self.per_token.saturating_mul(tokens.max(0) as u64).saturating_add(self.fixed)
    }
}

/// Sizes of the memory that a layer asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerSizes {
    /// What forward leaves for backward.
    pub saved: Linear,
    /// Forward's workspace.
    pub forward_workspace: Linear,
    /// Backward's workspace.
    pub backward_workspace: Linear,
    /// FP8 copies of the weights, both layouts.
    pub weight_cache: u64,
    /// Scaling slots.
    pub slots: u32,
}

/// One product of a layer: `[tokens, k] · [n, k]ᵀ`.
#[derive(Clone, Copy, Debug)]
struct Product {
    n: i64,
    k: i64,
}

/// One layer's description with its checks done. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Layer {
    ctx: Context,
    config: LayerConfig,
    products: [Product; 2],
    count: usize,
    /// Sizes that were asked for, by `LayerFlags::index`: every call checks the memory it is given.
    sizes: Arc<[OnceLock<LayerSizes>; 64]>,
}

/// A row-major matrix of the caller's whose rows count tokens or features as the argument says.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rows {
    /// First element; null where the argument is absent.
    pub data: Ptr,
    /// Elements from row to row, at least a row's; of no meaning for one row.
    pub ld: i64,
}

/// What both passes are given.
#[derive(Clone, Copy, Debug)]
pub struct LayerCall {
    /// Rows of x.
    pub tokens: i64,
    /// Backward is given those of its forward, and may change `accumulate_dw` alone.
    pub flags: LayerFlags,
    /// Written by forward, read by backward; aligned to 16 bytes.
    pub saved: Ptr,
    /// At least [`LayerSizes::saved`].
    pub saved_bytes: u64,
    /// Scratch memory of this call, aligned to 16 bytes.
    pub workspace: Ptr,
    /// At least what [`Layer::sizes`] says.
    pub workspace_bytes: u64,
    /// f32 slots that record amaxes; null: nothing is recorded. Current scaling records in calibration only.
    pub live: Ptr,
    /// f32 slots of the scales of delayed scaling; null: 1.
    pub scale: Ptr,
    /// One u32 on the device: where it is not 0 a cached weight is not cast again. Null: as 0. Needs a weight cache.
    pub skip_refresh: Ptr,
}

/// Arguments of [`Layer::forward`].
#[derive(Clone, Copy, Debug)]
pub struct ForwardArgs {
    /// Sizes, flags and memory.
    pub call: LayerCall,
    /// `[tokens, in_features]`.
    pub x: Rows,
    /// `[in_features]`; null: 1. Kinds with a norm.
    pub gamma: Ptr,
    /// `[in_features]`; null: 0. LayerNorm.
    pub beta: Ptr,
    /// `[n, k]` of each product.
    pub weights: [Rows; 2],
    /// `[n]` of each product; null: none.
    pub biases: [Ptr; 2],
    /// `[tokens, out_features]`.
    pub y: Rows,
    /// Receives the norm's output `[tokens, in_features]` in `dtype`; null: not wanted.
    pub norm_out: Rows,
}

/// Arguments of [`Layer::backward`]. Null outputs are not wanted, but for `dx`, which the flags decide.
#[derive(Clone, Copy, Debug)]
pub struct BackwardArgs {
    /// Sizes, flags and memory.
    pub call: LayerCall,
    /// `[tokens, out_features]`.
    pub dy: Rows,
    /// As in forward. A Linear with a recipe does not read it.
    pub x: Rows,
    /// As in forward.
    pub gamma: Ptr,
    /// As in forward. Not read where forward saved what of them is needed ([`LayerFlags::save_weight`] without a cache).
    pub weights: [Rows; 2],
    /// A gradient that reached the norm's output by itself; null: none.
    pub dnorm_out: Rows,
    /// `[tokens, in_features]`.
    pub dx: Rows,
    /// `[in_features]`.
    pub dgamma: Ptr,
    /// `[in_features]`.
    pub dbeta: Ptr,
    /// `[n, k]` of each product, of `dw_dtype`.
    pub dw: [Rows; 2],
    /// f32, f16 or bf16.
    pub dw_dtype: DType,
    /// `[n]` of each product.
    pub db: [Ptr; 2],
}

impl Layer {
    /// Checks a description.
    pub fn new(ctx: &Context, config: &LayerConfig) -> Result<Self> {
        let c = config;
        for (name, d) in [("dtype", c.dtype), ("param_dtype", c.param_dtype)] {
            if d.is_fp8() {
                return Err(Error::argument(Status::InvalidDType, name, d.name(), "must be one of f32, f16, bf16"));
            }
        }
        if c.recipe.is_none() && c.param_dtype != c.dtype {
            let rule = format!("must be dtype, {}, where there is no recipe", c.dtype.name());
            return Err(Error::argument(Status::InvalidDType, "param_dtype", c.param_dtype.name(), rule));
        }
        match &c.recipe {
            Some(Recipe::Delayed(r)) => r.validate()?,
            Some(Recipe::Current(r)) => r.validate()?,
            None => {}
        }
        // Half of what fits, so that no product of two sizes and an element overflows.
        const MOST: i64 = 1 << 30;
        let size = |name: &str, v: i64| match v {
            0..=MOST => Ok(v),
            v if v < 0 => Err(Error::argument(Status::InvalidShape, name, v, "must not be negative")),
            v => Err(Error::argument(Status::SizeOverflow, name, v, format!("must be at most {MOST}"))),
        };
        let (k, n) = (size("in_features", c.in_features)?, size("out_features", c.out_features)?);
        let mlp = if let Kind::NormMlp(_, activation) = c.kind { Some(activation) } else { None };
        let (products, count) = match mlp {
            None if c.ffn_features != 0 => {
                return Err(Error::argument(Status::InvalidValue, "ffn_features", c.ffn_features, "must be 0 for this kind of layer"))
            }
            None => ([Product { n, k }; 2], 1),
            Some(_) if n != k => {
                return Err(Error::argument(Status::InvalidShape, "out_features", n, format!("must be in_features = {k}")))
            }
            Some(activation) => {
                let f = size("ffn_features", c.ffn_features)?;
                ([Product { n: if activation.is_gated() { 2 * f } else { f }, k }, Product { n, k: f }], 2)
            }
        };
        if let Some(norm) = c.norm() {
            norm::check_eps(norm.eps)?;
        }
        Ok(Self { ctx: ctx.clone(), config: *c, products, count, sizes: Arc::new([const { OnceLock::new() }; 64]) })
    }

    /// Its description.
    pub fn config(&self) -> &LayerConfig {
        &self.config
    }

    /// The context it runs on.
    pub fn context(&self) -> &Context {
        &self.ctx
    }

    /// The flags without those that ask for gradients of what this kind of layer has not.
    fn own_flags(&self, flags: &LayerFlags) -> LayerFlags {
        let mut own = *flags;
        own.dnorm &= self.config.norm().is_some();
        own.dw[1] &= self.count == 2;
        own
    }

    /// Sizes of the memory that calls with these flags need.
    pub fn sizes(&self, flags: &LayerFlags) -> LayerSizes {
        let flags = &self.own_flags(flags);
        *self.sizes[flags.index()].get_or_init(|| self.measure(flags))
    }

    fn measure(&self, flags: &LayerFlags) -> LayerSizes {
        let mut arenas = [Arena::measure(), Arena::measure(), Arena::measure()];
        self.saved(&mut arenas[0], flags);
        // A cache or none, whichever takes more: without one the weights' copies lie in the workspace.
        self.forward_plan(&mut arenas[1], flags, false);
        self.backward_plan(&mut arenas[2], flags, false);
        let [saved, forward_workspace, backward_workspace] = arenas.map(|a| a.bound());
        LayerSizes { saved, forward_workspace, backward_workspace, weight_cache: self.cache_bytes(), slots: 3 * self.count as u32 }
    }

    fn products(&self) -> &[Product] {
        &self.products[..self.count]
    }

    fn fp8(&self, flags: &LayerFlags) -> bool {
        self.config.recipe.is_some() && !flags.calibrate
    }

    /// Parameters of current scaling, where the recipe is that.
    fn current(&self) -> Option<CurrentScaling> {
        match &self.config.recipe {
            Some(Recipe::Current(r)) => Some(r.into()),
            _ => None,
        }
    }

    /// Parameters for the cast of replaced weights.
    fn replaced(&self) -> CurrentScaling {
        match &self.config.recipe {
            Some(Recipe::Current(r)) => r.into(),
            Some(Recipe::Delayed(r)) => CurrentScaling { margin: r.margin, epsilon: r.epsilon, power_of_two: r.power_of_two },
            None => CurrentScaling::default(),
        }
    }

    /// Formats of forward operands and of gradients.
    fn formats(&self) -> (DType, DType) {
        let format = match &self.config.recipe {
            Some(Recipe::Delayed(r)) => r.fp8_format,
            Some(Recipe::Current(r)) => r.fp8_format,
            None => Default::default(),
        };
        (format.forward(), format.backward())
    }

    /// Type in which the values just before a current-scaling cast lie for its two passes.
    const UNROUNDED: DType = DType::F32;

    /// Slots of input, weight and output gradient of product `i`.
    fn slots(&self, i: usize) -> [u64; 3] {
        [2 * i, 2 * i + 1, 3 * self.count - 1 - i].map(|s| s as u64)
    }

    /// Checks what both passes share. Returns where `saved`, the workspace, `live`, `scale` and `skip_refresh` lie.
    fn check_call(&self, c: &LayerCall, saved: Linear, workspace: Linear) -> Result<[check::Range; 5]> {
        let b = self.ctx.backend();
        if self.config.recipe.is_none() && c.flags.calibrate {
            return Err(Error::argument(Status::Unsupported, "calibrate", 1, "needs a recipe whose slots record"));
        }
        if !self.fp8(&c.flags) && self.config.param_dtype != self.config.dtype {
            let rule = format!("must be dtype, {}, where products run without FP8", self.config.dtype.name());
            return Err(Error::argument(Status::InvalidDType, "param_dtype", self.config.param_dtype.name(), rule));
        }
        if c.tokens < 0 {
            return Err(Error::argument(Status::InvalidShape, "tokens", c.tokens, "must not be negative"));
        }
        const MOST: i64 = 1 << 40;
        if c.tokens > MOST {
            return Err(Error::argument(Status::SizeOverflow, "tokens", c.tokens, format!("must be at most {MOST}")));
        }
        let mut ranges = [check::Range { name: "saved", start: 0, end: 0 }; 5];
        for (range, (name, bytes_name, p, given, needed)) in ranges.iter_mut().zip([
            ("saved", "saved_bytes", c.saved, c.saved_bytes, saved.bytes(c.tokens)),
            ("workspace", "workspace_bytes", c.workspace, c.workspace_bytes, workspace.bytes(c.tokens)),
        ]) {
            if needed == 0 {
                continue;
            }
            if needed > i64::MAX as u64 {
                return Err(Error::argument(Status::SizeOverflow, "tokens", c.tokens, format!("the size of {name} must fit 63 bits")));
            }
            if given < needed {
                return Err(Error::argument(Status::WorkspaceTooSmall, bytes_name, given, format!("must be at least {needed}")));
            }
            check::required(b, name, p, 16)?;
            *range = check::Range { name, start: p.0, end: p.0.saturating_add(needed) };
        }
        let slots = 3 * self.count as i64;
        ranges[2] = check::vector(b, "live", c.live, DType::F32, slots, true)?;
        ranges[3] = check::vector(b, "scale", c.scale, DType::F32, slots, true)?;
        // A u32, of f32's size.
        ranges[4] = check::vector(b, "skip_refresh", c.skip_refresh, DType::F32, 1, true)?;
        Ok(ranges)
    }

    /// A matrix of the caller's, checked.
    fn matrix(&self, name: &'static str, dtype: DType, m: Rows, rows: i64, cols: i64) -> Result<(crate::TensorView, check::Range)> {
        let ld = if rows == 1 { cols } else { m.ld };
        let view = crate::TensorView::new(dtype, m.data, rows, cols).with_ld(ld);
        Ok((view, check::rowwise(self.ctx.backend(), name, &view)?))
    }

    /// A parameter of `len` elements, checked. Null passes.
    fn parameter(&self, name: &'static str, p: Ptr, len: i64) -> Result<check::Range> {
        check::vector(self.ctx.backend(), name, p, self.config.param_dtype, len, true)
    }

    /// Names of a product's weight, its bias and their gradients in messages.
    fn names(&self, i: usize) -> [&'static str; 4] {
        match (self.count, i) {
            (1, _) => ["weight", "bias", "dw", "db"],
            (_, 0) => ["fc1_weight", "fc1_bias", "dfc1_weight", "dfc1_bias"],
            _ => ["fc2_weight", "fc2_bias", "dfc2_weight", "dfc2_bias"],
        }
    }
}

impl LayerConfig {
    fn norm(&self) -> Option<NormConfig> {
        match self.kind {
            Kind::Linear => None,
            Kind::NormLinear(n) | Kind::NormMlp(n, _) => Some(n),
        }
    }

    fn activation(&self) -> Option<Activation> {
        match self.kind {
            Kind::NormMlp(_, a) => Some(a),
            _ => None,
        }
    }
}

/// The next multiple of 16.
fn pad(v: i64) -> i64 {
    (v + 15) & !15
}

/// Slot `i` of an array of f32; null stays null.
fn slot(base: Ptr, i: u64) -> Ptr {
    if base.is_null() {
        base
    } else {
        base.offset(4 * i)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numerics::{DelayedScaling, Float8CurrentScaling};

    /// What is placed ends within the bound, for any number of tokens that the bound fits.
    #[test]
    fn no_layout_ends_past_its_bound() {
        let ctx = Context::cpu().unwrap();
        let norm = NormConfig { rms: false, eps: 1e-5, zero_centered_gamma: false };
        let kinds = [Kind::Linear, Kind::NormLinear(norm), Kind::NormMlp(norm, Activation::Gelu), Kind::NormMlp(norm, Activation::Swiglu)];
        let recipes = [None, Some(Recipe::Delayed(DelayedScaling::default())), Some(Recipe::Current(Float8CurrentScaling::default()))];
        for (kind, recipe) in kinds.into_iter().flat_map(|k| recipes.map(|r| (k, r))) {
            for (k, n) in [(1, 1), (33, 17), (0, 5), (1024, 4096), (1 << 20, 3)] {
                let config = LayerConfig { kind, ..LayerConfig::linear(k, n, DType::Bf16, recipe) };
                let mlp = LayerConfig { out_features: k, ffn_features: n, ..config };
                let layer = Layer::new(&ctx, if config.activation().is_some() { &mlp } else { &config }).unwrap();
                for set in 0..64u32 {
                    let has = |bit: u32| set & bit != 0;
                    let flags = LayerFlags { dx: has(1), dw: [has(2), has(4)], dnorm: has(8), save_weight: has(32), ..Default::default() };
                    let flags = layer.own_flags(&flags);
                    let sizes = layer.sizes(&flags);
                    for tokens in (0..200).chain([4095, (1 << 31) - 1, (1 << 31) + 7, 1 << 40]) {
                        // The worst address that is a multiple of 16.
                        let at = Ptr(4096 + 16);
                        let end = |bound: Linear, place: &dyn Fn(&mut Arena)| {
                            if bound.bytes(tokens) > i64::MAX as u64 {
                                return;
                            }
                            let mut arena = Arena::place(at, tokens);
                            place(&mut arena);
                            assert!(arena.end() <= at.0 + bound.bytes(tokens), "{config:?} {flags:?}, {tokens} tokens");
                        };
                        end(sizes.saved, &|a| _ = layer.saved(a, &flags));
                        end(sizes.forward_workspace, &|a| _ = layer.forward_plan(a, &flags, has(16)));
                        end(sizes.backward_workspace, &|a| _ = layer.backward_plan(a, &flags, has(16)));
                    }
                }
            }
        }
    }
}
