//! The backward pass.

use super::{
    forward::{multiply, pad_codes, view, Saved},
    pad, slot,
    weights::{with_valid, Copies, WeightCast},
    Arena, BackwardArgs, Layer, LayerFlags, Linear, WeightCache,
};
use crate::{
    context::Stream,
    error::{Error, Result, Status},
    ops::{
        activation::{self, ActivationBwdArgs},
        cast::{BiasGradient, CastJob},
        check,
        gemm::{Accumulate, GemmArgs},
        norm::{self, NormBwdArgs},
    },
    tensor::{DType, Ptr, TensorView},
};

/// Where backward keeps what it needs for itself.
pub(super) struct BackwardPlan {
    /// FP8 gradient of each product's output: `[tokens, pad(n)]`.
    row: [Ptr; 2],
    /// The same transposed: `[n, pad(tokens)]`.
    transposed: [Ptr; 2],
    scale_inv: [Ptr; 2],
    copies: [Copies; 2],
    /// Gradient of the activation's output `[tokens, k]`.
    dact: Ptr,
    /// Gradient of the first product's output: without FP8 in the layer's type, with current scaling in f32 before its cast.
    dpre: Ptr,
    /// Gradient of the norm's output.
    dnorm: Ptr,
    /// Takes the gradient of x where only gamma's and beta's are wanted.
    dx: Ptr,
    /// For amaxes, and behind them column sums.
    reduce: Ptr,
    reduce_bytes: u64,
    norm: Ptr,
    norm_bytes: u64,
    gemm: Ptr,
    gemm_bytes: u64,
}

/// The gradient of a product's output in the layouts that the next products read.
struct Gradient {
    /// `[tokens, n]` for dgrad.
    row: TensorView,
    /// `[n, tokens]` for wgrad, where FP8; else the same as `row`.
    transposed: TensorView,
}

/// Where dgrad finds a weight, and the cast that must come first.
struct WeightForBackward {
    copies: Copies,
    job: Option<CastJob>,
}

impl Layer {
    pub(super) fn backward_plan(&self, arena: &mut Arena, flags: &LayerFlags, cached: bool) -> BackwardPlan {
        let (fp8, size) = (self.fp8(flags), self.config.dtype.size() as u64);
        let none = Copies { scale: Ptr::NULL, scale_inv: Ptr::NULL, row: Ptr::NULL, transposed: Ptr::NULL };
        let mut plan = BackwardPlan {
            row: [Ptr::NULL; 2],
            transposed: [Ptr::NULL; 2],
            scale_inv: [Ptr::NULL; 2],
            copies: [none; 2],
            dact: Ptr::NULL,
            dpre: Ptr::NULL,
            dnorm: Ptr::NULL,
            dx: Ptr::NULL,
            reduce: Ptr::NULL,
            reduce_bytes: 0,
            norm: Ptr::NULL,
            norm_bytes: 0,
            gemm: Ptr::NULL,
            gemm_bytes: 0,
        };
        let widest = self.products().iter().map(|p| p.n as u64).max().unwrap_or(0);
        if fp8 {
            let head = arena.fixed(8);
            plan.scale_inv = [head, slot(head, 1)];
            for (i, p) in self.products().iter().enumerate() {
                if i + 1 < self.count && !flags.chain() {
                    continue;
                }
                if flags.dgrad_of(i) {
                    plan.row[i] = arena.per_token(pad(p.n) as u64);
                    if !(cached || flags.save_weight) {
                        plan.copies[i] = self.copies(arena, i, false, true);
                    }
                }
                if flags.dw[i] {
                    plan.transposed[i] = arena.transposed(p.n);
                }
            }
        }
        if self.count == 2 && flags.chain() {
            plan.dact = arena.per_token(self.products[1].k as u64 * size);
            let n = self.products[0].n as u64;
            if !fp8 {
                plan.dpre = arena.per_token(n * size);
            } else if self.current().is_some() {
                plan.dpre = arena.per_token(n * Self::UNROUNDED.size() as u64);
            }
        }
        if self.config.norm().is_some() && flags.dgrad() {
            let k = self.products[0].k;
            plan.dnorm = arena.per_token(k as u64 * size);
            plan.dx = if flags.dx { Ptr::NULL } else { arena.per_token(k as u64 * size) };
            plan.norm_bytes = norm::norm_bwd_workspace(&self.ctx, k).unwrap_or(0);
            plan.norm = arena.fixed(plan.norm_bytes);
        }
        // One f32 per column for each 128 rows, and one more row.
        let reduce = Linear { per_token: widest.div_ceil(32), fixed: self.ctx.backend().amax_workspace() + 4 * widest };
        plan.reduce = arena.linear(reduce);
        plan.reduce_bytes = reduce.bytes(arena.tokens());
        let bound = self.gemm_bound(fp8, true);
        plan.gemm = arena.linear(bound);
        plan.gemm_bytes = bound.bytes(arena.tokens());
        plan
    }

    /// Checks, then enqueues the whole backward pass. Reads `saved` and never writes it: calling it twice is legal.
    ///
    /// `cache`: the one that forward was given. `None`: W^T is found in `saved`, or cast again with the scale that forward used.
    ///
    /// # Safety
    /// Pointers are live, with the extents that the arguments describe, until the stream has passed.
    pub unsafe fn backward(&self, a: &BackwardArgs, cache: Option<&mut WeightCache>, stream: Stream) -> Result<()> {
        let mut own = *a;
        own.call.flags = self.own_flags(&a.call.flags);
        // SAFETY: forwarded contract.
        with_valid(cache, stream, |cache| unsafe { self.run_backward(&own, cache, stream) })
    }

    /// # Safety
    /// As [`Layer::backward`].
    unsafe fn run_backward(&self, a: &BackwardArgs, mut cache: Option<&mut WeightCache>, stream: Stream) -> Result<()> {
        let (call, flags, config) = (&a.call, &a.call.flags, &self.config);
        let (fp8, t, last) = (self.fp8(flags), call.tokens, self.count - 1);
        let sizes = self.sizes(flags);
        let [saved_range, workspace, live, scale, skip] = self.check_call(call, sizes.saved, sizes.backward_workspace)?;
        let none = check::Range { name: "", start: 0, end: 0 };
        let (dy, dy_range) = self.matrix("dy", config.dtype, a.dy, t, self.products[last].n)?;
        let k0 = self.products[0].k;
        let norm = config.norm();
        let reads_x = if norm.is_some() { flags.dgrad() } else { flags.dw[0] && !fp8 };
        let x = view(config.dtype, a.x, t, k0);
        let mut inputs = [dy_range, saved_range, none, none, none, none, none, skip];
        if reads_x {
            inputs[2] = self.matrix("x", config.dtype, a.x, t, k0)?.1;
        }
        self.check_norm_arguments(&[("gamma", a.gamma), ("dgamma", a.dgamma), ("dbeta", a.dbeta), ("dnorm_out", a.dnorm_out.data)])?;
        inputs[3] = self.parameter("gamma", a.gamma, k0)?;
        let extra = match a.dnorm_out.data.is_null() {
            true => None,
            false => {
                let (m, range) = self.matrix("dnorm_out", config.dtype, a.dnorm_out, t, k0)?;
                inputs[4] = range;
                Some(m)
            }
        };
        let mut outputs = [workspace, none, none, none, none, none, none, none, none, live, scale];
        let wanted = |name: &'static str, p: Ptr, asked: bool| match p.is_null() || asked {
            true => Ok(!p.is_null()),
            false => Err(Error::argument(Status::Unsupported, name, format!("{:#x}", p.0), "the flags of forward did not ask for it")),
        };
        if wanted("dx", a.dx.data, flags.dx)? || flags.dx {
            outputs[1] = self.matrix("dx", config.dtype, a.dx, t, k0)?.1;
        }
        if wanted("dgamma", a.dgamma, flags.dnorm)? | wanted("dbeta", a.dbeta, flags.dnorm)? {
            (outputs[2], outputs[3]) = (self.parameter("dgamma", a.dgamma, k0)?, self.parameter("dbeta", a.dbeta, k0)?);
        }
        if a.dw_dtype.is_fp8() {
            return Err(Error::argument(Status::InvalidDType, "dw_dtype", a.dw_dtype.name(), "must be one of f32, f16, bf16"));
        }
        for (i, p) in self.products().iter().enumerate() {
            let [weight, _, dw, db] = self.names(i);
            if flags.dgrad_of(i) && !(fp8 && flags.save_weight && cache.is_none()) {
                inputs[5 + i] = self.matrix(weight, config.param_dtype, a.weights[i], p.n, p.k)?.1;
            }
            if wanted(dw, a.dw[i].data, flags.dw[i])? {
                outputs[4 + 2 * i] = self.matrix(dw, a.dw_dtype, a.dw[i], p.n, p.k)?.1;
            }
            if wanted(db, a.db[i], i == last || flags.chain())? {
                outputs[5 + 2 * i] = self.parameter(db, a.db[i], p.n)?;
            }
        }
        self.check_cache(call, fp8, cache.is_some())?;
        let cached = match cache.as_deref().filter(|_| fp8) {
            Some(c) => {
                let (copies, range) = self.cached(c)?;
                outputs[8] = range;
                Some(copies)
            }
            None => None,
        };
        check::disjoint(&inputs, &outputs)?;

        let saved = self.saved(&mut Arena::place(call.saved, t), flags);
        let plan = self.backward_plan(&mut Arena::place(call.workspace, t), flags, cached.is_some());
        // SAFETY: everything was checked; the caller vouches for the pointers.
        unsafe {
            let mut from = dy;
            for i in (0..self.count).rev() {
                if i < last && !flags.chain() {
                    break;
                }
                let p = self.products[i];
                let (dgrad, wgrad) = (flags.dgrad_of(i), !a.dw[i].data.is_null());
                let weight = match fp8 && dgrad {
                    true => Some(self.weight_for_backward(a, i, &saved, &plan, cached, cache.as_deref())?),
                    false => None,
                };
                let g = match fp8 {
                    true => self.fp8_gradient(a, i, &from, &saved, &plan, wgrad, weight.as_ref(), stream)?,
                    false => self.high_gradient(a, i, &from, &saved, &plan, dgrad || wgrad, stream)?,
                };
                if let (Some(_), Some(cache)) = (&weight, cache.as_deref_mut()) {
                    cache.valid |= 2 << (2 * i);
                }
                if dgrad {
                    let out = match (i, norm) {
                        (1, _) => TensorView::new(config.dtype, plan.dact, t, p.k),
                        (_, Some(_)) => TensorView::new(config.dtype, plan.dnorm, t, p.k),
                        (_, None) => view(config.dtype, a.dx, t, p.k),
                    };
                    let mut args = if let Some(WeightForBackward { copies, .. }) = &weight {
                        let weight = TensorView::new(self.formats().0, copies.transposed, p.k, pad(p.n));
                        let weight = weight.with_scaling(Ptr::NULL, copies.scale_inv, Ptr::NULL);
                        GemmArgs::new(g.row, weight, out, config.accumulate[1])
                    } else {
                        let weight = view(config.param_dtype, a.weights[i], p.n, p.k);
                        GemmArgs::new(g.row, weight, out, Accumulate::Precise).with_transposes(false, true)
                    };
                    if let Some(extra) = extra.filter(|_| i == 0) {
                        args = args.with_c(1.0, extra);
                    }
                    multiply(self, &args.with_workspace(plan.gemm, plan.gemm_bytes), stream)?;
                    from = out;
                }
                if wgrad {
                    let dw = view(a.dw_dtype, a.dw[i], p.n, p.k);
                    let mut args = if fp8 {
                        let input = TensorView::new(self.formats().0, saved.input[i], p.k, pad(t));
                        let input = input.with_scaling(Ptr::NULL, saved.scale_inv[i], Ptr::NULL);
                        GemmArgs::new(g.transposed, input, dw, config.accumulate[2])
                    } else {
                        let own = TensorView::new(config.dtype, saved.input[i], t, p.k);
                        let input = if saved.input[i].is_null() { x } else { own };
                        GemmArgs::new(g.transposed, input, dw, Accumulate::Precise).with_transposes(true, true)
                    };
                    if flags.accumulate_dw {
                        args = args.with_c(1.0, dw);
                    }
                    multiply(self, &args.with_workspace(plan.gemm, plan.gemm_bytes), stream)?;
                }
            }
            if flags.dgrad() {
                self.norm_backward(a, &from, &x, &saved, &plan, stream)?;
            }
        }
        Ok(())
    }

    /// The gradient of product `i`'s output in FP8, the bias gradient beside it, and the cast of the weight that dgrad waits for.
    ///
    /// # Safety
    /// As [`Layer::backward`], checked.
    unsafe fn fp8_gradient(
        &self,
        a: &BackwardArgs,
        i: usize,
        from: &TensorView,
        saved: &Saved,
        plan: &BackwardPlan,
        wgrad: bool,
        weight: Option<&WeightForBackward>,
        stream: Stream,
    ) -> Result<Gradient> {
        let (t, n, b) = (a.call.tokens, self.products[i].n, self.ctx.backend());
        let (_, format) = self.formats();
        let [.., s] = self.slots(i);
        let activation = self.config.activation().filter(|_| i == 0);
        // Where the first product's bias gradient alone is wanted, the activation's codes go somewhere all the same.
        let nowhere = activation.is_some() && plan.row[i].is_null();
        let transposed = if wgrad || nowhere { plan.transposed[i] } else { Ptr::NULL };
        let codes = TensorView::new(format, plan.row[i], t, n).with_ld(pad(n)).with_transpose(transposed, pad(t));
        let delayed = codes.with_scaling(slot(a.call.scale, s), plan.scale_inv[i], slot(a.call.live, s));
        let just_in_time = codes.with_scaling(Ptr::NULL, plan.scale_inv[i], Ptr::NULL);
        let cast = !plan.row[i].is_null() || !transposed.is_null();
        let current = self.current().map(|c| c.rule(format)).transpose()?;
        let job = |input: TensorView, dbias: Ptr| CastJob {
            current: current.filter(|_| cast),
            dbias: (!dbias.is_null()).then_some(BiasGradient { ptr: dbias, dtype: self.config.param_dtype, accumulate: false }),
            workspace: plan.reduce,
            // Where nothing is cast nothing is recorded.
            ..CastJob::new(input, if current.is_none() && cast { delayed } else { just_in_time })
        };
        let mut weight = weight.and_then(|w| w.job.as_ref());
        // SAFETY: forwarded contract.
        unsafe {
            if let Some(job) = weight {
                pad_codes(self, &job.output, stream)?;
            }
            match activation {
                Some(_) if current.is_some() => {
                    let unrounded = TensorView::new(Self::UNROUNDED, plan.dpre, t, n);
                    self.activation_backward(a, from, saved, unrounded, plan, stream)?;
                    b.cast(&job(unrounded, Ptr::NULL), stream)?;
                }
                Some(_) => self.activation_backward(a, from, saved, delayed, plan, stream)?,
                None if cast || !a.db[i].is_null() => {
                    let job = job(*from, a.db[i]);
                    match weight.take_if(|w| w.current.is_none()) {
                        Some(weight) => b.cast_pair(&job, weight, stream)?,
                        None => b.cast(&job, stream)?,
                    }
                }
                None => {}
            }
            if let Some(job) = weight {
                self.cast_and_record(job, stream)?;
            }
            pad_codes(self, &codes, stream)?;
        }
        let operand = |data: Ptr, rows: i64, cols: i64| {
            TensorView::new(format, data, rows, cols).with_scaling(Ptr::NULL, plan.scale_inv[i], Ptr::NULL)
        };
        Ok(Gradient { row: operand(plan.row[i], t, pad(n)), transposed: operand(transposed, n, pad(t)) })
    }

    /// The gradient of product `i`'s output without FP8, and the bias gradient beside it. `multiplied`: a product reads it.
    ///
    /// # Safety
    /// As [`Layer::backward`], checked.
    unsafe fn high_gradient(
        &self,
        a: &BackwardArgs,
        i: usize,
        from: &TensorView,
        saved: &Saved,
        plan: &BackwardPlan,
        multiplied: bool,
        stream: Stream,
    ) -> Result<Gradient> {
        let (t, n) = (a.call.tokens, self.products[i].n);
        let mut g = *from;
        // SAFETY: forwarded contract.
        unsafe {
            if i == 0 && self.count == 2 {
                g = TensorView::new(self.config.dtype, plan.dpre, t, n);
                self.activation_backward(a, from, saved, g, plan, stream)?;
            } else if !a.db[i].is_null() {
                let dbias = BiasGradient { ptr: a.db[i], dtype: self.config.param_dtype, accumulate: false };
                let nothing = TensorView::new(DType::E4m3, Ptr::NULL, t, n);
                let job = CastJob { dbias: Some(dbias), workspace: plan.reduce, ..CastJob::new(g, nothing) };
                self.ctx.backend().cast(&job, stream)?;
            }
            if a.call.flags.calibrate && multiplied {
                self.calibrate(&[(&g, i, 2)], a.call.live, stream)?;
            }
        }
        Ok(Gradient { row: g, transposed: g })
    }

    /// From the gradient of the activation's output to that of its input, with the first product's bias gradient.
    ///
    /// # Safety
    /// As [`Layer::backward`], checked.
    unsafe fn activation_backward(
        &self,
        a: &BackwardArgs,
        dy: &TensorView,
        saved: &Saved,
        output: TensorView,
        plan: &BackwardPlan,
        stream: Stream,
    ) -> Result<()> {
        let Some(kind) = self.config.activation() else { return Ok(()) };
        let input = TensorView::new(self.config.dtype, saved.pre, a.call.tokens, self.products[0].n);
        let args = ActivationBwdArgs {
            kind,
            dy: *dy,
            input,
            output,
            dbias: a.db[0],
            dbias_dtype: self.config.param_dtype,
            accumulate: false,
            workspace: plan.reduce,
            workspace_bytes: plan.reduce_bytes,
        };
        // SAFETY: forwarded contract.
        unsafe { activation::activation_bwd(&self.ctx, &args, stream) }
    }

    /// # Safety
    /// As [`Layer::backward`], checked.
    unsafe fn norm_backward(
        &self,
        a: &BackwardArgs,
        dy: &TensorView,
        x: &TensorView,
        saved: &Saved,
        plan: &BackwardPlan,
        stream: Stream,
    ) -> Result<()> {
        let Some(n) = self.config.norm() else { return Ok(()) };
        let parameter = |p: Ptr| (!p.is_null()).then(|| TensorView::new(self.config.param_dtype, p, 1, x.cols));
        let scratch = TensorView::new(self.config.dtype, plan.dx, x.rows, x.cols);
        let dx = if a.call.flags.dx { view(self.config.dtype, a.dx, x.rows, x.cols) } else { scratch };
        let args = NormBwdArgs {
            dy: *dy,
            x: *x,
            dsum: None,
            gamma: parameter(a.gamma),
            zero_centered_gamma: n.zero_centered_gamma,
            mu: saved.mu,
            rsigma: saved.rsigma,
            dx,
            dgamma: parameter(a.dgamma),
            dbeta: parameter(a.dbeta),
            workspace: plan.norm,
            workspace_bytes: plan.norm_bytes,
        };
        // SAFETY: forwarded contract.
        unsafe {
            match n.rms {
                true => norm::rmsnorm_bwd(&self.ctx, &args, stream),
                false => norm::layernorm_bwd(&self.ctx, &args, stream),
            }
        }
    }

    /// The transposed copy of weight `i`: in the cache, or the cast that makes it.
    fn weight_for_backward(
        &self,
        a: &BackwardArgs,
        i: usize,
        saved: &Saved,
        plan: &BackwardPlan,
        cached: Option<[Copies; 2]>,
        cache: Option<&WeightCache>,
    ) -> Result<WeightForBackward> {
        let job = |to: &Copies, how: &WeightCast| self.weight_job(&a.call, i, a.weights[i], to, how);
        let (Some(copies), Some(cache)) = (cached, cache) else {
            if let Some(copies) = saved.weight[i] {
                return Ok(WeightForBackward { copies, job: None });
            }
            let copies = Copies { scale: saved.weight_scale[i], ..plan.copies[i] };
            return Ok(WeightForBackward { copies, job: Some(job(&copies, &WeightCast::Again)?) });
        };
        let (copies, row, transposed) = (copies[i], 1 << (2 * i), 2 << (2 * i));
        if cache.valid & transposed != 0 {
            return Ok(WeightForBackward { copies, job: None });
        }
        let kept = cache.valid & row != 0;
        let how = if kept { WeightCast::Again } else { WeightCast::Fresh { workspace: plan.reduce } };
        let to = Copies { row: Ptr::NULL, ..copies };
        Ok(WeightForBackward { copies, job: Some(job(&to, &how)?) })
    }
}
