//! The forward pass.

use super::{
    pad, slot,
    weights::{with_valid, Copies, WeightCast},
    Arena, ForwardArgs, Layer, LayerFlags, Linear, Rows, WeightCache,
};
use crate::{
    context::Stream,
    error::{Error, Result, Status},
    ops::{
        activation::{self, ActivationArgs},
        amax::{self, AmaxArgs},
        cast::CastJob,
        check,
        gemm::{self, Accumulate, GemmArgs},
        norm::{self, Norm, NormFwdArgs},
    },
    tensor::{DType, Ptr, TensorView},
};

/// What forward leaves for backward; null where it leaves nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Saved {
    /// Of the FP8 input of each product.
    pub(super) scale_inv: [Ptr; 2],
    /// The scale that each weight was cast with, where there is no cache.
    pub(super) weight_scale: [Ptr; 2],
    /// What dgrad reads of each weight, where the flags ask for that and there is no cache.
    pub(super) weight: [Option<Copies>; 2],
    pub(super) mu: Ptr,
    pub(super) rsigma: Ptr,
    /// Input of each product: FP8 `[k, pad(tokens)]`; without FP8 `[tokens, k]`, for a Linear the caller's x.
    pub(super) input: [Ptr; 2],
    /// The activation's input `[tokens, n]` of the first product.
    pub(super) pre: Ptr,
}

/// Where forward keeps what it needs for itself.
pub(super) struct ForwardPlan {
    /// FP8: `[tokens, pad(k)]` of each product. Otherwise the input where it is not saved.
    input: [Ptr; 2],
    scale_inv: [Ptr; 2],
    copies: [Copies; 2],
    pre: Ptr,
    /// f32 `[tokens, k]` before a current-scaling cast of what the layer itself made.
    unrounded: Ptr,
    amax: Ptr,
    pub(super) gemm: Ptr,
    pub(super) gemm_bytes: u64,
}

impl Layer {
    pub(super) fn saved(&self, arena: &mut Arena, flags: &LayerFlags) -> Saved {
        let mut s = Saved::default();
        if !flags.backward() {
            return s;
        }
        let (fp8, size, norm) = (self.fp8(flags), self.config.dtype.size() as u64, self.config.norm());
        if fp8 {
            let head = arena.fixed(16);
            s.scale_inv = [head, head.offset(4)];
            s.weight_scale = [head.offset(8), head.offset(12)];
            for i in (0..self.count).filter(|i| flags.save_weight && flags.dgrad_of(*i)) {
                s.weight[i] = Some(self.copies(arena, i, false, true));
            }
        }
        if let Some(n) = norm.filter(|_| flags.dgrad()) {
            s.rsigma = arena.per_token(4);
            s.mu = if n.rms { Ptr::NULL } else { arena.per_token(4) };
        }
        for (i, p) in self.products().iter().enumerate() {
            if i == 1 && flags.chain() {
                s.pre = arena.per_token(self.products[0].n as u64 * size);
            }
            s.input[i] = match (flags.dw[i], fp8) {
                (false, _) => Ptr::NULL,
                (true, true) => arena.transposed(p.k),
                // A Linear's input is the caller's x.
                (true, false) if i == 0 && norm.is_none() => Ptr::NULL,
                (true, false) => arena.per_token(p.k as u64 * size),
            };
        }
        s
    }

    /// Scratch memory for any of these products, each once as `[tokens, k] · [n, k]ᵀ` and, where `wgrad`, as `[n, tokens] · [k, tokens]ᵀ`.
    pub(super) fn gemm_bound(&self, fp8: bool, wgrad: bool) -> Linear {
        let (scratch, packs) = self.ctx.backend().gemm_scratch(fp8);
        let size = if fp8 { 2 } else { self.config.dtype.size() as u64 };
        let mut most = Linear::default();
        if packs {
            for p in self.products() {
                let (n, k) = (p.n as u64, p.k as u64);
                // Rows are padded to at most 128 bytes, operands to 256.
                let row = |length: u64| length * size + 128;
                let roles = [
                    Linear { per_token: row(k), fixed: n * row(k) },
                    Linear { per_token: row(n), fixed: k * row(n) },
                    Linear { per_token: (n + k) * size, fixed: (n + k) * 128 },
                ];
                for r in &roles[..if wgrad { 3 } else { 2 }] {
                    most.per_token = most.per_token.max(r.per_token);
                    most.fixed = most.fixed.max(r.fixed + 512);
                }
            }
        }
        most.fixed += scratch;
        most
    }

    pub(super) fn forward_plan(&self, arena: &mut Arena, flags: &LayerFlags, cached: bool) -> ForwardPlan {
        let (fp8, size) = (self.fp8(flags), self.config.dtype.size() as u64);
        let saved = self.saved(&mut Arena::measure(), flags);
        let mut plan = ForwardPlan {
            input: [Ptr::NULL; 2],
            scale_inv: saved.scale_inv,
            copies: [Copies { scale: Ptr::NULL, scale_inv: Ptr::NULL, row: Ptr::NULL, transposed: Ptr::NULL }; 2],
            pre: Ptr::NULL,
            unrounded: Ptr::NULL,
            amax: Ptr::NULL,
            gemm: Ptr::NULL,
            gemm_bytes: 0,
        };
        let head = if fp8 { arena.fixed(8) } else { Ptr::NULL };
        plan.scale_inv = [head, slot(head, 1)];
        let mut made = 0;
        for (i, p) in self.products().iter().enumerate() {
            let ours = i == 1 || self.config.norm().is_some();
            if fp8 {
                plan.input[i] = arena.per_token(pad(p.k) as u64);
                if !cached {
                    plan.copies[i] = self.copies(arena, i, true, false);
                }
                made = if ours { made.max(p.k) } else { made };
            } else if ours && !(flags.backward() && flags.dw[i]) {
                plan.input[i] = arena.per_token(p.k as u64 * size);
            }
        }
        if self.count == 2 && !(flags.backward() && flags.chain()) {
            plan.pre = arena.per_token(self.products[0].n as u64 * size);
        }
        if fp8 && self.current().is_some() {
            plan.unrounded = arena.per_token(made as u64 * Self::UNROUNDED.size() as u64);
        }
        if fp8 {
            plan.amax = arena.fixed(self.ctx.backend().amax_workspace());
        }
        let bound = self.gemm_bound(fp8, false);
        plan.gemm = arena.linear(bound);
        plan.gemm_bytes = bound.bytes(arena.tokens());
        plan
    }

    /// Checks, then enqueues the whole forward pass. `cache`: FP8 copies of the weights, filled where they are not; `None`: they are made
    /// for this call alone.
    ///
    /// # Safety
    /// Pointers are live, with the extents that the arguments describe, until the stream has passed.
    pub unsafe fn forward(&self, a: &ForwardArgs, cache: Option<&mut WeightCache>, stream: Stream) -> Result<()> {
        let mut own = *a;
        own.call.flags = self.own_flags(&a.call.flags);
        // SAFETY: forwarded contract.
        with_valid(cache, stream, |cache| unsafe { self.run_forward(&own, cache, stream) })
    }

    /// # Safety
    /// As [`Layer::forward`].
    unsafe fn run_forward(&self, a: &ForwardArgs, mut cache: Option<&mut WeightCache>, stream: Stream) -> Result<()> {
        let (call, flags, config) = (&a.call, &a.call.flags, &self.config);
        let (fp8, t) = (self.fp8(flags), call.tokens);
        let sizes = self.sizes(flags);
        let [saved_range, workspace, live, scale, skip] = self.check_call(call, sizes.saved, sizes.forward_workspace)?;
        let (x, x_range) = self.matrix("x", config.dtype, a.x, t, self.products[0].k)?;
        let last = self.products[self.count - 1];
        let (y, y_range) = self.matrix("y", config.dtype, a.y, t, last.n)?;
        let none = check::Range { name: "", start: 0, end: 0 };
        let mut inputs = [x_range, none, none, none, none, none, none, skip];
        for (i, p) in self.products().iter().enumerate() {
            let [weight, bias, ..] = self.names(i);
            inputs[1 + 2 * i] = self.matrix(weight, config.param_dtype, a.weights[i], p.n, p.k)?.1;
            inputs[2 + 2 * i] = self.parameter(bias, a.biases[i], p.n)?;
        }
        self.check_norm_arguments(&[("gamma", a.gamma), ("beta", a.beta), ("norm_out", a.norm_out.data)])?;
        inputs[5] = self.parameter("gamma", a.gamma, x.cols)?;
        inputs[6] = self.parameter("beta", a.beta, x.cols)?;
        let norm_out = match a.norm_out.data.is_null() {
            true => None,
            false => Some(self.matrix("norm_out", config.dtype, a.norm_out, t, x.cols)?),
        };
        self.check_cache(call, fp8, cache.is_some())?;
        let (cached, cache_range) = match cache.as_deref().filter(|_| fp8) {
            Some(c) => self.cached(c).map(|(copies, range)| (Some(copies), range))?,
            None => (None, none),
        };
        let norm_range = norm_out.map_or(none, |n| n.1);
        check::disjoint(&inputs, &[y_range, saved_range, workspace, norm_range, cache_range, live, scale])?;

        let saved = self.saved(&mut Arena::place(call.saved, t), flags);
        let mut plan = self.forward_plan(&mut Arena::place(call.workspace, t), flags, cached.is_some());
        if flags.backward() {
            plan.scale_inv = saved.scale_inv;
        }
        // SAFETY: everything was checked; the caller vouches for the pointers.
        unsafe {
            if let Some((view, _)) = norm_out {
                self.norm(a, &x, view, Ptr::NULL, Ptr::NULL, stream)?;
            }
            let mut copies = plan.copies;
            let mut weight = None;
            if fp8 {
                let mut jobs = [None; 2];
                for i in 0..self.count {
                    (copies[i], jobs[i]) = self.weight_for_forward(a, i, &saved, &plan, cached, cache.as_deref_mut())?;
                }
                weight = self.cast_weights(jobs, stream)?;
            }
            let mut pre = TensorView::new(config.dtype, Ptr::NULL, 0, 0);
            for (i, p) in self.products().iter().enumerate() {
                let out = if i + 1 == self.count {
                    y
                } else {
                    let at = if saved.pre.is_null() { plan.pre } else { saved.pre };
                    TensorView::new(config.dtype, at, t, p.n)
                };
                let from = if i == 0 { &x } else { &pre };
                if fp8 {
                    let codes = self.codes(a, i, &saved, &plan);
                    let factor = |w: TensorView, scale_inv| w.with_scaling(Ptr::NULL, scale_inv, Ptr::NULL);
                    let input = TensorView::new(codes.dtype, codes.data, t, pad(p.k));
                    let w = TensorView::new(codes.dtype, copies[i].row, p.n, pad(p.k));
                    let product = GemmArgs::new(factor(input, codes.scale_inv), factor(w, copies[i].scale_inv), out, config.accumulate[0]);
                    let product = self.with_bias(&plan, product, a.biases[i]);
                    let x = CastJob::new(*from, codes);
                    let alone = config.norm().is_none() && self.current().is_none();
                    // A small Linear is one launch.
                    if !(alone && gemm::linear_small(&self.ctx, &x, weight.as_ref(), cached.is_some(), &product, stream)?) {
                        self.fp8_input(a, i, from, codes, &saved, &plan, weight.take(), stream)?;
                        multiply(self, &product, stream)?;
                    }
                } else {
                    let input = self.high_input(a, i, from, &saved, &plan, stream)?;
                    let ld = if p.n == 1 { p.k } else { a.weights[i].ld };
                    let weight = TensorView::new(config.param_dtype, a.weights[i].data, p.n, p.k).with_ld(ld);
                    if flags.calibrate {
                        self.calibrate(&[(&input, i, 0), (&weight, i, 1)], call.live, stream)?;
                    }
                    let product = GemmArgs::new(input, weight, out, Accumulate::Precise);
                    multiply(self, &self.with_bias(&plan, product, a.biases[i]), stream)?;
                }
                pre = out;
            }
        }
        Ok(())
    }

    fn with_bias(&self, plan: &ForwardPlan, args: GemmArgs, bias: Ptr) -> GemmArgs {
        args.with_bias(bias, self.config.param_dtype).with_workspace(plan.gemm, plan.gemm_bytes)
    }

    /// # Safety
    /// As [`Layer::forward`], checked.
    unsafe fn norm(&self, a: &ForwardArgs, x: &TensorView, y: TensorView, mu: Ptr, rsigma: Ptr, stream: Stream) -> Result<()> {
        let Some(n) = self.config.norm() else { return Ok(()) };
        let parameter = |p: Ptr| (!p.is_null()).then(|| TensorView::new(self.config.param_dtype, p, 1, x.cols));
        let (gamma, beta) = (parameter(a.gamma), parameter(a.beta));
        let args = NormFwdArgs {
            x: *x,
            residual: None,
            sum: None,
            gamma,
            beta,
            zero_centered_gamma: n.zero_centered_gamma,
            eps: n.eps,
            y,
            mu,
            rsigma,
        };
        let norm = if n.rms { Norm::Rms } else { Norm::Layer };
        // SAFETY: forwarded contract.
        unsafe { norm::forward(&self.ctx, norm, &args, true, stream) }
    }

    /// What is multiplied by weight `i`, made from x or from the activation's input, written to `to`.
    ///
    /// # Safety
    /// As [`Layer::forward`], checked.
    unsafe fn make(&self, a: &ForwardArgs, i: usize, from: &TensorView, to: TensorView, saved: &Saved, stream: Stream) -> Result<()> {
        // SAFETY: forwarded contract.
        unsafe {
            match self.config.activation() {
                Some(kind) if i == 1 => activation::activation_fwd(&self.ctx, &ActivationArgs { kind, input: *from, output: to }, stream),
                _ => self.norm(a, from, to, saved.mu, saved.rsigma, stream),
            }
        }
    }

    /// Casts the weights that are due, those of an MLP in one launch where one kernel serves them. What can share the launch of the
    /// caller's x instead is handed back.
    ///
    /// # Safety
    /// As [`Layer::forward`], checked.
    unsafe fn cast_weights(&self, jobs: [Option<CastJob>; 2], stream: Stream) -> Result<Option<CastJob>> {
        let given = |job: &CastJob| job.current.is_none();
        // SAFETY: forwarded contract.
        unsafe {
            for job in jobs.iter().flatten() {
                pad_codes(self, &job.output, stream)?;
            }
            match &jobs {
                [Some(first), Some(second)] if given(first) && given(second) => self.ctx.backend().cast_pair(first, second, stream)?,
                [Some(only), None] if given(only) && self.config.norm().is_none() => return Ok(Some(*only)),
                _ => {
                    for job in jobs.iter().flatten() {
                        self.cast_and_record(job, stream)?;
                    }
                }
            }
        }
        Ok(None)
    }

    /// The input of product `i` in FP8, by delayed scaling: row-wise for the product, transposed in `saved`.
    fn codes(&self, a: &ForwardArgs, i: usize, saved: &Saved, plan: &ForwardPlan) -> TensorView {
        let (t, k) = (a.call.tokens, self.products[i].k);
        let [s, ..] = self.slots(i);
        let codes = TensorView::new(self.formats().0, plan.input[i], t, k).with_ld(pad(k)).with_transpose(saved.input[i], pad(t));
        codes.with_scaling(slot(a.call.scale, s), plan.scale_inv[i], slot(a.call.live, s))
    }

    /// Fills `codes` of product `i` by the layer's recipe. `weight`: a cast that goes with it, in the same launch if one kernel serves both.
    ///
    /// # Safety
    /// As [`Layer::forward`], checked.
    unsafe fn fp8_input(
        &self,
        a: &ForwardArgs,
        i: usize,
        from: &TensorView,
        codes: TensorView,
        saved: &Saved,
        plan: &ForwardPlan,
        weight: Option<CastJob>,
        stream: Stream,
    ) -> Result<()> {
        let b = self.ctx.backend();
        let ours = i == 1 || self.config.norm().is_some();
        // SAFETY: forwarded contract.
        unsafe {
            match self.current() {
                None if ours => self.make(a, i, from, codes, saved, stream)?,
                None => match weight {
                    Some(weight) => b.cast_pair(&CastJob::new(*from, codes), &weight, stream)?,
                    None => b.cast(&CastJob::new(*from, codes), stream)?,
                },
                Some(rule) => {
                    let unrounded = TensorView::new(Self::UNROUNDED, plan.unrounded, codes.rows, codes.cols);
                    if ours {
                        self.make(a, i, from, unrounded, saved, stream)?;
                    }
                    let input = if ours { unrounded } else { *from };
                    let codes = codes.with_scaling(Ptr::NULL, codes.scale_inv, Ptr::NULL);
                    b.cast(&CastJob { current: Some(rule.rule(codes.dtype)?), workspace: plan.amax, ..CastJob::new(input, codes) }, stream)?
                }
            }
            pad_codes(self, &codes, stream)
        }
    }

    /// The input of product `i` without FP8.
    ///
    /// # Safety
    /// As [`Layer::forward`], checked.
    unsafe fn high_input(
        &self,
        a: &ForwardArgs,
        i: usize,
        from: &TensorView,
        saved: &Saved,
        plan: &ForwardPlan,
        stream: Stream,
    ) -> Result<TensorView> {
        if i == 0 && self.config.norm().is_none() {
            return Ok(*from);
        }
        let at = if saved.input[i].is_null() { plan.input[i] } else { saved.input[i] };
        let to = TensorView::new(self.config.dtype, at, a.call.tokens, self.products[i].k);
        // SAFETY: forwarded contract.
        unsafe { self.make(a, i, from, to, saved, stream)? };
        Ok(to)
    }

    /// The copies of weight `i`, and the cast that fills them where they are not.
    fn weight_for_forward(
        &self,
        a: &ForwardArgs,
        i: usize,
        saved: &Saved,
        plan: &ForwardPlan,
        cached: Option<[Copies; 2]>,
        cache: Option<&mut WeightCache>,
    ) -> Result<(Copies, Option<CastJob>)> {
        let flags = &a.call.flags;
        let how = WeightCast::Fresh { workspace: plan.amax };
        let (Some(copies), Some(cache)) = (cached, cache) else {
            let mut copies = plan.copies[i];
            if let Some(kept) = saved.weight[i] {
                copies = Copies { row: copies.row, ..kept };
            } else if flags.backward() {
                copies.scale = saved.weight_scale[i];
            }
            return Ok((copies, Some(self.weight_job(&a.call, i, a.weights[i], &copies, &how)?)));
        };
        let (copies, row, transposed) = (copies[i], 1 << (2 * i), 2 << (2 * i));
        if cache.valid & row != 0 {
            return Ok((copies, None));
        }
        let both = flags.dgrad_of(i);
        let to = Copies { transposed: if both { copies.transposed } else { Ptr::NULL }, ..copies };
        let job = self.weight_job(&a.call, i, a.weights[i], &to, &how)?;
        cache.valid = cache.valid & !transposed | row | if both { transposed } else { 0 };
        Ok((copies, Some(job)))
    }

    /// Records the amaxes of tensors that stay in high precision: (tensor, product, which of its slots).
    ///
    /// # Safety
    /// As [`Layer::forward`], checked.
    pub(super) unsafe fn calibrate(&self, all: &[(&TensorView, usize, usize)], live: Ptr, stream: Stream) -> Result<()> {
        for (t, i, which) in all.iter().filter(|_| !live.is_null()) {
            let args = AmaxArgs { input: **t, amax: slot(live, self.slots(*i)[*which]) };
            // SAFETY: forwarded contract.
            unsafe { amax::amax(&self.ctx, &args, stream)? };
        }
        Ok(())
    }

    /// Arguments that belong to a norm are absent where the layer has none.
    pub(super) fn check_norm_arguments(&self, all: &[(&'static str, Ptr)]) -> Result<()> {
        let norm = self.config.norm();
        for (name, p) in all.iter().filter(|(_, p)| !p.is_null()) {
            let refused = match norm {
                None => Some("must be NULL: the layer has no norm"),
                Some(n) if n.rms && name.ends_with("beta") => Some("must be NULL: RMSNorm has none"),
                Some(_) => None,
            };
            if let Some(rule) = refused {
                return Err(Error::argument(Status::Unsupported, name, format!("{:#x}", p.0), rule));
            }
        }
        Ok(())
    }

    /// A cache is of use in FP8 only, and the device's flag needs one.
    pub(super) fn check_cache(&self, call: &super::LayerCall, fp8: bool, cache: bool) -> Result<()> {
        if !(call.skip_refresh.is_null() || fp8 && cache) {
            return Err(Error::argument(Status::Unsupported, "skip_refresh", "not NULL", "needs a weight cache and FP8"));
        }
        Ok(())
    }
}

/// Zeroes what lies between the codes and the ends of their padded rows.
///
/// # Safety
/// Layouts that are not null are live with those strides.
pub(super) unsafe fn pad_codes(layer: &Layer, q: &TensorView, stream: Stream) -> Result<()> {
    let b = layer.ctx.backend();
    let (rows, cols) = (q.rows as u64, q.cols as u64);
    // SAFETY: by contract.
    unsafe {
        if !q.data.is_null() {
            b.zero_2d(q.data.offset(cols), q.ld as u64, q.ld as u64 - cols, rows, stream)?;
        }
        if !q.data_t.is_null() {
            b.zero_2d(q.data_t.offset(rows), q.ld_t as u64, q.ld_t as u64 - rows, cols, stream)?;
        }
    }
    Ok(())
}

/// One product, FP8 or not.
///
/// # Safety
/// As the calls of the layer.
pub(super) unsafe fn multiply(layer: &Layer, args: &GemmArgs, stream: Stream) -> Result<()> {
    // SAFETY: forwarded contract.
    unsafe {
        match args.a.dtype.is_fp8() {
            true => gemm::fp8_gemm(&layer.ctx, args, stream),
            false => gemm::gemm(&layer.ctx, args, stream),
        }
    }
}

/// The caller's matrix as a view whose stride means something.
pub(super) fn view(dtype: DType, m: Rows, rows: i64, cols: i64) -> TensorView {
    TensorView::new(dtype, m.data, rows, cols).with_ld(if rows == 1 { cols } else { m.ld })
}
