//! One layer with random data on the device, its passes, and what the reference says they give.

use nvte::{
    layers::{BackwardArgs, ForwardArgs, Kind, Layer, LayerCall, LayerConfig, LayerFlags, NormConfig, Rows, WeightCache},
    numerics::{DelayedScaling, Float8CurrentScaling, Format, Recipe},
    ops::{activation::Activation, gemm::Accumulate},
    Context, DType, Ptr, Result, Stream,
};
use rand::{rngs::StdRng, RngExt};

use crate::{
    common::{oracle, sync, values, Guarded, Tensor},
    reference::{activation, activation_gradient, Known, Norm},
};

/// How a case scales FP8.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scaling {
    None,
    Delayed,
    Current,
}

/// What is to be tried.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// 0 Linear, 1 norm + Linear, 2 norm + MLP.
    pub kind: u8,
    pub rms: bool,
    pub zero_centered: bool,
    pub activation: Activation,
    pub tokens: usize,
    pub k: usize,
    /// Output features; the MLP's ffn_features.
    pub n: usize,
    pub dtype: DType,
    pub param_dtype: DType,
    pub scaling: Scaling,
    pub format: Format,
    pub bias: bool,
    pub gamma: bool,
    pub beta: bool,
    pub dw_dtype: DType,
    /// Rows lie apart, and off aligned addresses.
    pub strided: bool,
}

pub const EPS: f32 = 1e-5;

impl Case {
    pub fn new(kind: u8, tokens: usize, k: usize, n: usize, dtype: DType, scaling: Scaling) -> Self {
        Self {
            kind,
            rms: false,
            zero_centered: false,
            activation: Activation::Gelu,
            tokens,
            k,
            n,
            dtype,
            param_dtype: dtype,
            scaling,
            format: Format::Hybrid,
            bias: true,
            gamma: true,
            beta: true,
            dw_dtype: DType::F32,
            strided: false,
        }
    }

    /// Rows and columns of each weight.
    pub fn weights(&self) -> Vec<(usize, usize)> {
        match self.kind {
            2 if self.activation.is_gated() => vec![(2 * self.n, self.k), (self.k, self.n)],
            2 => vec![(self.n, self.k), (self.k, self.n)],
            _ => vec![(self.n, self.k)],
        }
    }

    pub fn out(&self) -> usize {
        if self.kind == 2 {
            self.k
        } else {
            self.n
        }
    }

    /// The flags that mean something for this kind.
    pub fn own(&self, flags: &LayerFlags) -> LayerFlags {
        LayerFlags { dnorm: flags.dnorm && self.kind > 0, dw: [flags.dw[0], flags.dw[1] && self.kind == 2], ..*flags }
    }

    pub fn slots(&self) -> usize {
        3 * self.weights().len()
    }

    pub fn config(&self) -> LayerConfig {
        let norm = NormConfig { rms: self.rms, eps: EPS, zero_centered_gamma: self.zero_centered };
        LayerConfig {
            kind: match self.kind {
                0 => Kind::Linear,
                1 => Kind::NormLinear(norm),
                _ => Kind::NormMlp(norm, self.activation),
            },
            in_features: self.k as i64,
            out_features: self.out() as i64,
            ffn_features: if self.kind == 2 { self.n as i64 } else { 0 },
            dtype: self.dtype,
            param_dtype: self.param_dtype,
            recipe: match self.scaling {
                Scaling::None => None,
                Scaling::Delayed => Some(Recipe::Delayed(DelayedScaling { fp8_format: self.format, ..Default::default() })),
                Scaling::Current => Some(Recipe::Current(Float8CurrentScaling { fp8_format: self.format, ..Default::default() })),
            },
            accumulate: [Accumulate::Fast, Accumulate::Precise, Accumulate::Precise],
        }
    }
}

/// A tensor and the values that it holds.
pub struct Held {
    pub t: Tensor,
    pub v: Vec<f32>,
}

impl Held {
    pub fn known(&self) -> Known {
        Known::exact(self.t.rows, self.t.cols, &self.v)
    }
}

/// How one run is made.
#[derive(Clone, Copy, Debug)]
pub struct How {
    pub flags: LayerFlags,
    pub norm_out: bool,
    pub dnorm_out: bool,
    pub record: bool,
    /// No scales are given.
    pub unscaled: bool,
    /// The flag on the device, if there is one.
    pub skip_refresh: Option<u32>,
    pub stream: Stream,
}

impl How {
    pub fn training() -> Self {
        let flags = LayerFlags::training();
        Self { flags, norm_out: false, dnorm_out: false, record: true, unscaled: false, skip_refresh: None, stream: Stream::NULL }
    }
    pub fn with(flags: LayerFlags) -> Self {
        Self { flags, ..Self::training() }
    }
}

/// What the two passes wrote.
pub struct Outputs {
    pub y: Tensor,
    pub norm_out: Option<Tensor>,
    pub dx: Option<Tensor>,
    pub dgamma: Option<Tensor>,
    pub dbeta: Option<Tensor>,
    pub dw: Vec<Option<Tensor>>,
    pub db: Vec<Option<Tensor>>,
    /// As the backward pass left them.
    pub live: Vec<f32>,
    pub scale: Vec<f32>,
    pub saved: Vec<u8>,
}

impl Outputs {
    /// Every output as codes, to compare runs bit for bit.
    pub fn codes(&self) -> Vec<Vec<u32>> {
        let single = [Some(&self.y), self.norm_out.as_ref(), self.dx.as_ref(), self.dgamma.as_ref(), self.dbeta.as_ref()];
        let all = single.into_iter().chain(self.dw.iter().map(Option::as_ref)).chain(self.db.iter().map(Option::as_ref));
        all.map(|t| t.map_or(vec![], Tensor::codes)).chain([bits(&self.live), bits(&self.scale)]).collect()
    }
}

pub fn bits(v: &[f32]) -> Vec<u32> {
    v.iter().map(|v| v.to_bits()).collect()
}

pub struct Rig {
    pub ctx: Context,
    pub case: Case,
    pub layer: Layer,
    pub x: Held,
    pub gamma: Option<Held>,
    pub beta: Option<Held>,
    pub w: Vec<Held>,
    pub b: Vec<Option<Held>>,
    pub dy: Held,
    pub dnorm_out: Held,
    /// What the weights' gradients hold before they are added to.
    pub dw0: Vec<Vec<f32>>,
    pub live0: Vec<f32>,
    pub scale0: Vec<f32>,
    place: (usize, usize),
}

pub fn matrix(ctx: &Context, dtype: DType, rows: usize, cols: usize, (gap, offset): (usize, usize), v: &[f32]) -> Held {
    let (t, v) = Tensor::input(ctx, dtype, rows, cols, cols + gap, offset, v);
    Held { t, v }
}

impl Rig {
    pub fn new(ctx: &Context, case: Case, rng: &mut StdRng) -> Self {
        let place = if case.strided { (rng.random_range(0..5), rng.random_range(0..4)) } else { (0, 0) };
        let mut random = |dtype, rows: usize, cols: usize, centre: f32, size: f32| {
            let v: Vec<f32> = values(rng, rows * cols, false).into_iter().map(|v| v * size + centre).collect();
            matrix(ctx, dtype, rows, cols, place, &v)
        };
        let (t, k, p) = (case.tokens, case.k, case.param_dtype);
        let x = random(case.dtype, t, k, 0.3, 1.0);
        let norm = case.kind > 0;
        let gamma = (norm && case.gamma).then(|| random(p, 1, k, if case.zero_centered { 0.0 } else { 1.0 }, 0.3));
        let beta = (norm && case.beta && !case.rms).then(|| random(p, 1, k, 0.0, 0.3));
        let shapes = case.weights();
        let size = |k: usize| 1.0 / (k.max(1) as f32).sqrt();
        let w: Vec<Held> = shapes.iter().map(|(n, k)| random(p, *n, *k, 0.0, size(*k))).collect();
        let b = shapes.iter().map(|(n, _)| case.bias.then(|| random(p, 1, *n, 0.0, 0.5))).collect();
        let dy = random(case.dtype, t, case.out(), 0.05, 0.5);
        let dnorm_out = random(case.dtype, t, k, 0.0, 0.5);
        let dw0 = shapes.iter().map(|(n, k)| random(case.dw_dtype, *n, *k, 0.0, 1.0).v).collect();
        // Now and then a slot has seen more in this period than it will be shown.
        let recorded = |rng: &mut StdRng| rng.random_range(0.0f32..0.01) * if rng.random_bool(0.2) { 1e5 } else { 1.0 };
        let (live0, scale0) = (0..case.slots()).map(|_| (recorded(rng), rng.random_range(5.0f32..150.0))).unzip();
        let layer = Layer::new(ctx, &case.config()).unwrap();
        Self { ctx: ctx.clone(), case, layer, x, gamma, beta, w, b, dy, dnorm_out, dw0, live0, scale0, place }
    }

    pub fn output(&self, dtype: DType, rows: usize, cols: usize) -> Tensor {
        Tensor::output(&self.ctx, dtype, rows, cols, cols + self.place.0, self.place.1)
    }

    /// Both passes.
    pub fn run(&self, how: &How) -> Outputs {
        self.run_with(how, None).unwrap()
    }

    /// Both passes; outputs stay as they were where one fails.
    pub fn run_with(&self, how: &How, mut cache: Option<&mut WeightCache>) -> Result<Outputs> {
        let (case, ctx, own) = (&self.case, &self.ctx, self.case.own(&how.flags));
        let (t, k, p) = (case.tokens, case.k, case.param_dtype);
        let flags = how.flags;
        let sizes = self.layer.sizes(&flags);
        let memory = |s: nvte::layers::Linear| Guarded::new(ctx, s.bytes(t as i64) as usize, 16 * (t % 3));
        let (saved, forward, backward) = (memory(sizes.saved), memory(sizes.forward_workspace), memory(sizes.backward_workspace));
        let live = Guarded::from_bytes(ctx, &bytes_of(&self.live0), 0);
        let scale = Guarded::from_bytes(ctx, &bytes_of(&self.scale0), 0);
        let skip = how.skip_refresh.map(|v| Guarded::from_bytes(ctx, &v.to_ne_bytes(), 0));
        let mut call = LayerCall {
            tokens: t as i64,
            flags,
            saved: if saved.bytes() == 0 { Ptr::NULL } else { saved.ptr() },
            saved_bytes: saved.bytes() as u64,
            workspace: forward.ptr(),
            workspace_bytes: forward.bytes() as u64,
            live: if how.record { live.ptr() } else { Ptr::NULL },
            scale: if how.unscaled { Ptr::NULL } else { scale.ptr() },
            skip_refresh: skip.as_ref().map_or(Ptr::NULL, Guarded::ptr),
        };
        let (y, norm_out) = (self.output(case.dtype, t, case.out()), how.norm_out.then(|| self.output(case.dtype, t, k)));
        let weights: Vec<Rows> = (0..2).map(|i| self.w.get(i).map_or(Rows::default(), |w| rows(&w.t))).collect();
        let weights = [weights[0], weights[1]];
        let f = ForwardArgs {
            call,
            x: rows(&self.x.t),
            gamma: held(&self.gamma),
            beta: held(&self.beta),
            weights,
            biases: [0, 1].map(|i| self.b.get(i).map_or(Ptr::NULL, held)),
            y: rows(&y),
            norm_out: norm_out.as_ref().map_or(Rows::default(), rows),
        };
        // SAFETY: all memory is live, here and below.
        unsafe { self.layer.forward(&f, cache.as_deref_mut(), how.stream)? };
        sync(ctx);
        forward.read();
        let after_forward = saved.read();

        let dx = own.dx.then(|| self.output(case.dtype, t, k));
        let vector = |wanted: bool, n: usize| wanted.then(|| self.output(p, 1, n));
        let dgamma = vector(own.dnorm && case.gamma, k);
        let dbeta = vector(own.dnorm && case.beta && !case.rms, k);
        let shapes = case.weights();
        let dw: Vec<Option<Tensor>> = shapes
            .iter()
            .enumerate()
            .map(|(i, (n, k))| {
                own.dw[i].then(|| match own.accumulate_dw {
                    true => matrix(ctx, case.dw_dtype, *n, *k, self.place, &self.dw0[i]).t,
                    false => self.output(case.dw_dtype, *n, *k),
                })
            })
            .collect();
        let chain = own.dx || own.dw[0] || own.dnorm;
        let db: Vec<Option<Tensor>> =
            shapes.iter().enumerate().map(|(i, (n, _))| vector(case.bias && (chain || i + 1 == shapes.len()), *n)).collect();
        (call.workspace, call.workspace_bytes) = (backward.ptr(), backward.bytes() as u64);
        let saved_weights = flags.save_weight && cache.is_none() && case.scaling != Scaling::None && !flags.calibrate;
        let g = BackwardArgs {
            call,
            dy: rows(&self.dy.t),
            x: rows(&self.x.t),
            gamma: held(&self.gamma),
            weights: if saved_weights { [Rows::default(); 2] } else { weights },
            dnorm_out: if how.dnorm_out { rows(&self.dnorm_out.t) } else { Rows::default() },
            dx: dx.as_ref().map_or(Rows::default(), rows),
            dgamma: pointer(&dgamma),
            dbeta: pointer(&dbeta),
            dw: [0, 1].map(|i| dw.get(i).and_then(Option::as_ref).map_or(Rows::default(), rows)),
            dw_dtype: case.dw_dtype,
            db: [0, 1].map(|i| db.get(i).map_or(Ptr::NULL, pointer)),
        };
        // SAFETY: as above.
        unsafe { self.layer.backward(&g, cache.as_deref_mut(), how.stream)? };
        sync(ctx);
        let outputs = |()| [&dx, &dgamma, &dbeta].into_iter().chain(&dw).chain(&db).flatten().map(Tensor::codes).collect::<Vec<_>>();
        if !own.accumulate_dw {
            let first = outputs(());
            // SAFETY: as above.
            unsafe { self.layer.backward(&g, cache, how.stream)? };
            sync(ctx);
            assert!(first == outputs(()), "{case:?}: a second backward pass gave other bits");
        }
        backward.read();
        assert!(saved.read() == after_forward, "{case:?}: backward wrote to what forward saved");
        self.inputs_are_as_they_were();
        let f32s = |g: &Guarded| g.read().chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect();
        Ok(Outputs { y, norm_out, dx, dgamma, dbeta, dw, db, live: f32s(&live), scale: f32s(&scale), saved: after_forward })
    }

    fn inputs_are_as_they_were(&self) {
        let all = [&self.x, &self.dy, &self.dnorm_out].into_iter().chain(&self.gamma).chain(&self.beta).chain(&self.w);
        for (i, h) in all.chain(self.b.iter().flatten()).enumerate() {
            assert!(bits(&h.t.read()) == bits(&h.v), "{:?}: input {i} was written", self.case);
        }
    }

    /// What the passes must give.
    pub fn expected(&self, how: &How) -> Expected {
        let (case, flags) = (&self.case, &self.case.own(&how.flags));
        let fp8 = case.scaling != Scaling::None && !flags.calibrate;
        let count = self.w.len();
        let mut e = Expected {
            scale: self.scale0.clone(),
            live: self.live0.iter().map(|v| (f64::from(*v), f64::from(*v))).collect(),
            ..Default::default()
        };
        let x = self.x.known();
        let norm = self.norm();
        let made = norm.as_ref().map_or(x.clone(), |n| n.forward(&x));
        e.norm_out = made.clone();
        let slot = |i: usize, which: usize| [2 * i, 2 * i + 1, 3 * count - 1 - i][which];
        // The operand of a product, from the values before its cast.
        let operand = |e: &mut Expected, v: &Known, i: usize, which: usize| -> Known {
            let (s, format) = (slot(i, which), if which == 2 { case.format.backward() } else { case.format.forward() });
            let due = which == 1 && flags.weight_scale_due && case.scaling == Scaling::Delayed;
            let own = case.scaling == Scaling::Current || due;
            let records = flags.calibrate || !own || (due && flags.weight_scale_keep);
            let v = if fp8 { v.clone() } else { v.round(case.dtype) };
            if case.scaling != Scaling::None && records && how.record {
                let (low, high) = v.amax();
                e.live[s] = (e.live[s].0.max(low), e.live[s].1.max(high));
            }
            if !fp8 {
                return v;
            }
            let scale = if own { v.own_scale(format) } else { (e.scale[s], 0.0) };
            if due && flags.weight_scale_keep {
                e.scale[s] = scale.0;
            }
            v.quantize(format, scale)
        };
        let w: Vec<Known> = (0..count).map(|i| operand(&mut e, &self.w[i].known(), i, 1)).collect();
        let (mut from, mut inputs, mut pre) = (made, Vec::new(), None);
        for (i, weight) in w.iter().enumerate() {
            let input = operand(&mut e, &from, i, 0);
            let mut out = input.times(weight, fp8);
            if let Some(b) = &self.b[i] {
                out = out.plus(&b.known());
            }
            inputs.push(input);
            if i + 1 < count {
                let rounded = out.round(case.dtype);
                from = activation(case.activation, &rounded);
                pre = Some(rounded);
            } else {
                e.y = out;
            }
        }
        let chain = flags.dx || flags.dw[0] || flags.dnorm;
        let mut from = self.dy.known();
        for i in (0..count).rev() {
            if i + 1 < count {
                if !chain {
                    break;
                }
                from = activation_gradient(case.activation, pre.as_ref().unwrap(), &from);
            }
            e.db[i] = from.column_sums();
            let dgrad = if i == 0 { flags.dx || flags.dnorm } else { chain };
            if !dgrad && !flags.dw[i] {
                continue;
            }
            let g = operand(&mut e, &from, i, 2);
            let dw = g.transpose().times(&inputs[i].transpose(), fp8);
            e.dw[i] = match flags.accumulate_dw {
                true => dw.plus(&Known::exact(dw.rows, dw.cols, &self.dw0[i])),
                false => dw,
            };
            if dgrad {
                from = g.times(&w[i].transpose(), fp8);
                if i == 0 && how.dnorm_out && norm.is_some() {
                    from = from.plus(&self.dnorm_out.known());
                }
                if i > 0 || norm.is_some() {
                    from = from.round(case.dtype);
                }
            }
        }
        if flags.dx || flags.dnorm {
            match &norm {
                None => e.dx = from,
                Some(n) => [e.dx, e.dgamma, e.dbeta] = n.backward(&x, &from),
            }
        }
        e
    }

    fn norm(&self) -> Option<Norm> {
        let (case, k) = (&self.case, self.case.k);
        (case.kind > 0).then(|| Norm {
            rms: case.rms,
            eps: EPS,
            weight: match &self.gamma {
                None => vec![1.0; k],
                Some(g) => g.v.iter().map(|g| f64::from(if case.zero_centered { 1.0 + g } else { *g })).collect(),
            },
            beta: self.beta.as_ref().map_or(vec![0.0; k], |b| b.v.iter().map(|b| f64::from(*b)).collect()),
        })
    }

    /// `<y, dy>` where x, gamma, beta, and each weight with its bias have moved by `h` along their directions. In f64, nothing rounded.
    pub fn loss(&self, directions: &[Vec<f32>], h: f64) -> f64 {
        let moved = |v: Known, d: &[f32]| {
            let along = |r: usize, c: usize| d.get(r * v.cols + c).map_or(0.0, |d| h * f64::from(*d));
            Known::new(v.rows, v.cols, |r, c| (v.v[r * v.cols + c] + along(r, c), 0.0))
        };
        let mut from = moved(self.x.known(), &directions[0]);
        if let Some(norm) = self.norm() {
            let vector =
                |v: Vec<f64>, d: &[f32]| v.iter().enumerate().map(|(i, v)| v + d.get(i).map_or(0.0, |d| h * f64::from(*d))).collect();
            let (weight, beta) = (vector(norm.weight, &directions[1]), vector(norm.beta, &directions[2]));
            from = Norm { weight, beta, ..norm }.forward(&from);
        }
        for (i, w) in self.w.iter().enumerate() {
            if i > 0 {
                from = activation(self.case.activation, &from);
            }
            from = from.times(&moved(w.known(), &directions[3 + 2 * i]), false);
            if let Some(b) = &self.b[i] {
                from = from.plus(&moved(b.known(), &directions[4 + 2 * i]));
            }
        }
        from.v.iter().zip(&self.dy.v).map(|(y, d)| y * f64::from(*d)).sum()
    }

    /// A run, compared with the reference. Returns the largest share of what steps before a result leave open in it.
    pub fn check(&self, how: &How, got: &Outputs) -> f64 {
        let (case, e) = (&self.case, self.expected(how));
        let what = |name: &str| format!("{name} of {case:?} {how:?}");
        let mut open: f64 = 0.0;
        let (p, d) = (case.param_dtype, case.dtype);
        let mut one = |name: &str, dtype: DType, got: Option<&Tensor>, want: &Known| {
            if let Some(got) = got {
                open = open.max(want.check(&what(name), dtype, &got.read()));
            }
        };
        one("y", d, Some(&got.y), &e.y);
        one("norm_out", d, got.norm_out.as_ref(), &e.norm_out);
        one("dx", d, got.dx.as_ref(), &e.dx);
        one("dgamma", p, got.dgamma.as_ref(), &e.dgamma);
        one("dbeta", p, got.dbeta.as_ref(), &e.dbeta);
        for i in 0..self.w.len() {
            one(["dw", "dw2"][i], case.dw_dtype, got.dw[i].as_ref(), &e.dw[i]);
            one(["db", "db2"][i], p, got.db[i].as_ref(), &e.db[i]);
        }
        assert_eq!(bits(&got.scale), bits(&e.scale), "{}", what("scales"));
        for (s, (live, (low, high))) in got.live.iter().zip(&e.live).enumerate() {
            let v = f64::from(*live);
            assert!(v >= low * (1.0 - 1e-7) && v <= high * (1.0 + 1e-7), "{}: {v} is not in {low}..{high}", what(&format!("slot {s}")));
            assert!(low != high || v == *low, "{}: {v}, not {low}", what(&format!("slot {s}")));
        }
        open
    }
}

/// What the reference gives.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    pub y: Known,
    pub norm_out: Known,
    pub dx: Known,
    pub dgamma: Known,
    pub dbeta: Known,
    pub dw: [Known; 2],
    pub db: [Known; 2],
    pub live: Vec<(f64, f64)>,
    pub scale: Vec<f32>,
}

/// One row has no stride.
pub fn rows(t: &Tensor) -> Rows {
    Rows { data: t.ptr(), ld: if t.rows == 1 { -1 } else { t.ld as i64 } }
}

pub fn held(h: &Option<Held>) -> Ptr {
    h.as_ref().map_or(Ptr::NULL, |h| h.t.ptr())
}

fn pointer(t: &Option<Tensor>) -> Ptr {
    t.as_ref().map_or(Ptr::NULL, Tensor::ptr)
}

pub fn bytes_of(v: &[f32]) -> Vec<u8> {
    v.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

/// `v` as `dtype` holds it.
pub fn held_value(dtype: DType, v: f32) -> f32 {
    oracle::to_bytes(dtype, v).1
}
