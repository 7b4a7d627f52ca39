//! AdamW over lists of tensors against f64, codes bit for bit against casts of the new weights.

mod common;

use common::{assert_codes_equal, context, oracle, rng, sync, values, Guarded, SlotF32, Tensor};
use nvte::{
    ops::{
        adamw::{adamw, adamw_list, adamw_list_workspace, AdamwArgs, AdamwTensor},
        list::list_gradients,
    },
    Context, DType, Ptr, Status, Stream, TensorView,
};
use rand::{rngs::StdRng, seq::IndexedRandom, RngExt};

const HIGH: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

/// Less than a vector, tails, whole and several chunks and tiles, tall, wide, none.
const SHAPES: [(usize, usize); 17] = [
    (1, 1),
    (1, 3),
    (1, 8),
    (1, 1000),
    (1, 4096),
    (1, 4099),
    (1, 12_289),
    (3, 5),
    (64, 64),
    (128, 128),
    (130, 260),
    (65, 131),
    (257, 36),
    (1, 2050),
    (0, 7),
    (7, 0),
    (300, 4),
];

#[derive(Clone, Copy, Debug)]
struct Kind {
    weight: DType,
    gradient: DType,
    moment: DType,
    master: bool,
    fp8: Option<(DType, bool, bool)>,
    aligned: bool,
}

impl Kind {
    fn random(rng: &mut StdRng, fp8: bool) -> Self {
        let weight = *HIGH.choose(rng).unwrap();
        let layouts = *[(true, true), (true, false), (false, true)].choose(rng).unwrap();
        Self {
            weight,
            gradient: *HIGH.choose(rng).unwrap(),
            moment: if rng.random_bool(0.3) { DType::Bf16 } else { DType::F32 },
            master: rng.random_bool(0.5),
            fp8: (fp8 && rng.random_bool(0.7)).then(|| (*[DType::E4m3, DType::E5m2].choose(rng).unwrap(), layouts.0, layouts.1)),
            aligned: rng.random_bool(0.6),
        }
    }
}

/// A parameter on the device, and what it is to be.
struct Parameter {
    kind: Kind,
    weight: Tensor,
    gradient: Tensor,
    master: Tensor,
    moments: [Tensor; 2],
    codes: [Tensor; 2],
    slots: [SlotF32; 3],
    scale: f32,
    before: f32,
    // In f64 from what the device holds: weight, first and second moment.
    w: Vec<f64>,
    g: Vec<f32>,
    m: Vec<f64>,
    v: Vec<f64>,
    // How far first and second moment and weight may lie from these.
    apart: Vec<[f64; 3]>,
}

fn wide(v: &[f32]) -> Vec<f64> {
    v.iter().map(|v| f64::from(*v)).collect()
}

impl Parameter {
    fn new(ctx: &Context, kind: Kind, (rows, cols): (usize, usize), rng: &mut StdRng) -> Self {
        let n = rows * cols;
        let offset = |rng: &mut StdRng| if kind.aligned { 0 } else { rng.random_range(0..9) };
        let dense = |dtype: DType, v: &[f32], rng: &mut StdRng| Tensor::input(ctx, dtype, rows, cols, cols, offset(rng), v);
        let first = values(rng, n, false);
        let (weight, held) = dense(kind.weight, &first, rng);
        // A master lies near the weight, not on it.
        let (master, full) = dense(DType::F32, &first, rng);
        let (gradient, g) = dense(kind.gradient, &values(rng, n, false), rng);
        let start: Vec<f32> = values(rng, n, false).iter().map(|v| v * 0.1).collect();
        let (exp_avg, m) = dense(kind.moment, &start, rng);
        let start: Vec<f32> = start.iter().map(|v| v * v + 1e-4).collect();
        let (exp_avg_sq, v) = dense(kind.moment, &start, rng);
        let fp8 = kind.fp8.map_or(DType::E4m3, |f| f.0);
        let (ldq, ldt) = if kind.aligned {
            (cols.next_multiple_of(16) + 16, rows.next_multiple_of(16))
        } else {
            (cols + rng.random_range(0..5), rows + rng.random_range(0..5))
        };
        let codes = [Tensor::output(ctx, fp8, rows, cols, ldq, offset(rng)), Tensor::output(ctx, fp8, cols, rows, ldt, offset(rng))];
        let (scale, before) = (rng.random_range(0.1f32..50.0), rng.random_range(0.0f32..2.0));
        let slots = [SlotF32::new(ctx, scale), SlotF32::poisoned(ctx), SlotF32::new(ctx, before)];
        let w = wide(if kind.master { &full } else { &held });
        Self {
            kind,
            weight,
            gradient,
            master,
            moments: [exp_avg, exp_avg_sq],
            codes,
            slots,
            scale,
            before,
            w,
            g,
            m: wide(&m),
            v: wide(&v),
            apart: vec![[0.0; 3]; n],
        }
    }

    fn tensor(&self) -> AdamwTensor {
        let fp8 = self.kind.fp8.map(|(_, rows, cols)| {
            let [q, qt] = &self.codes;
            let mut view = q.view().with_transpose(qt.ptr(), qt.ld as i64);
            if !rows {
                view.data = Ptr::NULL;
            }
            if !cols {
                view.data_t = Ptr::NULL;
            }
            let [scale, inverse, amax] = self.slots.each_ref().map(SlotF32::ptr);
            view.with_scaling(scale, inverse, amax)
        });
        AdamwTensor {
            weight: self.weight.view(),
            gradient: self.gradient.view(),
            master: self.kind.master.then(|| self.master.view()),
            exp_avg: self.moments[0].view(),
            exp_avg_sq: self.moments[1].view(),
            fp8,
        }
    }

    /// One step in f64, from what the device holds, and how far single roundings in f32 may lead from it.
    fn step(&mut self, o: &Options, t: i32) {
        let (b1, b2) = if o.bias_correction { (1.0 - o.beta1.powi(t), 1.0 - o.beta2.powi(t)) } else { (1.0, 1.0) };
        // Every constant and every operation is rounded once; each line names its own roundings, the terms carry theirs along.
        let e = f64::from(f32::EPSILON) / 2.0;
        let (rest1, rest2, rate) = (1.0 - o.beta1, 1.0 - o.beta2, o.lr / b1);
        for i in 0..self.w.len() {
            let mut g = f64::from(self.g[i]) * o.factor;
            let mut eg = 2.0 * e * g.abs();
            if !o.decoupled {
                // Where a decay nearly cancels a gradient, what is left of it is mostly rounding.
                let decay = o.weight_decay * self.w[i];
                g += decay;
                eg += 2.0 * e * decay.abs() + e * g.abs();
            }
            let terms = (o.beta1 * self.m[i]).abs() + (rest1 * g).abs();
            self.m[i] = o.beta1 * self.m[i] + rest1 * g;
            let em = rest1 * eg + 2.0 * e * terms + e * self.m[i].abs();
            self.v[i] = o.beta2 * self.v[i] + rest2 * g * g;
            let ev = rest2 * (2.0 * g.abs() + eg) * eg + 4.0 * e * self.v[i];
            let (root, least) = ((self.v[i] / b2).sqrt() + o.eps, ((self.v[i] - ev).max(0.0) / b2).sqrt() + o.eps);
            let mut change = rate * self.m[i] / root;
            let mut ew = rate * ((self.m[i].abs() + em) / least - self.m[i].abs() / root) + 7.0 * e * change.abs();
            if o.decoupled {
                let decay = o.lr * o.weight_decay * self.w[i];
                change += decay;
                ew += 2.0 * e * decay.abs() + e * change.abs();
            }
            self.w[i] -= change;
            self.apart[i] = [em, ev, ew + e * self.w[i].abs()];
        }
    }

    /// Compares with the device, and takes over what it holds for the next step.
    fn check(&mut self, what: &str) {
        let what = format!("{what}: {:?} [{}, {}]", self.kind, self.weight.rows, self.weight.cols);
        let close = |name: &str, dtype: DType, got: &[f32], want: &[f64], which: usize| {
            for (i, (g, w)) in got.iter().zip(want).enumerate() {
                // The bounds are of first order: a tenth more covers products of two roundings.
                let bound = 1.1 * self.apart[i][which] + 0.51 * oracle::ulp(dtype, *w);
                assert!((f64::from(*g) - w).abs() <= bound, "{what}: {name}[{i}]: {g} for {w}, at most {bound:e} apart");
            }
        };
        let [m, v] = self.moments.each_ref().map(Tensor::read);
        close("exp_avg", self.kind.moment, &m, &self.m, 0);
        close("exp_avg_sq", self.kind.moment, &v, &self.v, 1);
        let weight = self.weight.read();
        if self.kind.master {
            let master = self.master.read();
            close("master", DType::F32, &master, &self.w, 2);
            let rounded: Vec<u32> = master.iter().map(|v| code(self.kind.weight, *v)).collect();
            assert_codes_equal(&format!("{what}: weight"), &self.weight.codes(), &rounded, self.weight.cols);
            self.w = wide(&master);
        } else {
            close("weight", self.kind.weight, &weight, &self.w, 2);
            self.w = wide(&weight);
        }
        (self.m, self.v) = (wide(&m), wide(&v));
        let Some((fp8, rows, cols)) = self.kind.fp8 else { return };
        let want: Vec<u32> = weight.iter().map(|v| oracle::encode(fp8, v * self.scale)).collect();
        let (h, w) = (self.weight.rows, self.weight.cols);
        if rows {
            assert_codes_equal(&format!("{what}: codes"), &self.codes[0].codes(), &want, w);
        }
        if cols {
            let turned: Vec<u32> = (0..h * w).map(|i| want[i % h * w + i / h]).collect();
            assert_codes_equal(&format!("{what}: transposed codes"), &self.codes[1].codes(), &turned, h);
        }
        assert_eq!(self.slots[1].read(), 1.0 / self.scale, "{what}: scale_inv");
        let mut all = weight;
        all.push(self.before);
        assert_eq!(self.slots[2].read(), oracle::amax(&all), "{what}: amax");
        self.before = self.slots[2].read();
    }

    /// Everything that a step writes.
    fn bits(&self) -> Vec<Vec<u32>> {
        let slots = self.slots.iter().map(|s| vec![s.read().to_bits()]);
        let tensors = [&self.weight, &self.master].into_iter().chain(&self.moments).chain(&self.codes);
        tensors.map(Tensor::codes).chain(slots).collect()
    }
}

fn code(dtype: DType, v: f32) -> u32 {
    let (b, _) = oracle::to_bytes(dtype, v);
    let mut word = [0; 4];
    word[..dtype.size()].copy_from_slice(&b[..dtype.size()]);
    u32::from_le_bytes(word)
}

#[derive(Clone, Copy, Debug)]
struct Options {
    lr: f64,
    beta1: f64,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
    decoupled: bool,
    bias_correction: bool,
    factor: f64,
}

const USUAL: Options =
    Options { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01, decoupled: true, bias_correction: true, factor: 1.0 };

/// A list and the scalars on the device.
struct Rig {
    table: Guarded,
    args: AdamwArgs,
    step: SlotF32,
}

impl Rig {
    fn new(ctx: &Context, all: &[Parameter], o: &Options) -> Self {
        let tensors: Vec<AdamwTensor> = all.iter().map(Parameter::tensor).collect();
        let table = Guarded::new(ctx, adamw_list_workspace(ctx, &tensors).unwrap() as usize, 0);
        // SAFETY: everything is live, here and below.
        let list = unsafe { adamw_list(ctx, &tensors, table.ptr(), table.bytes() as u64, Stream::NULL) }.unwrap();
        let step = SlotF32::new(ctx, 0.0);
        let args = AdamwArgs {
            list,
            step: step.ptr(),
            lr_ptr: Ptr::NULL,
            lr: o.lr,
            beta1: o.beta1,
            beta2: o.beta2,
            eps: o.eps,
            weight_decay: o.weight_decay,
            decoupled: o.decoupled,
            bias_correction: o.bias_correction,
            found_inf: Ptr::NULL,
            grad_scale: Ptr::NULL,
            clip: Ptr::NULL,
        };
        Self { table, args, step }
    }

    fn run(&self, ctx: &Context) {
        // SAFETY: everything is live.
        unsafe { adamw(ctx, &self.args, Stream::NULL) }.unwrap();
        sync(ctx);
        self.table.read();
    }
}

#[test]
fn steps_equal_f64() {
    let ctx = context();
    let mut rng = rng("steps_equal_f64");
    for fp8 in [false, true] {
        for round in 0..4 {
            let o = Options {
                lr: rng.random_range(1e-4..1e-2),
                weight_decay: *[0.0, 0.01, 0.3].choose(&mut rng).unwrap(),
                decoupled: rng.random_bool(0.7),
                bias_correction: round != 3,
                beta2: *[0.999, 0.95].choose(&mut rng).unwrap(),
                ..USUAL
            };
            let mut all: Vec<Parameter> = SHAPES
                .iter()
                .chain(SHAPES.iter().rev())
                .map(|shape| Parameter::new(&ctx, Kind::random(&mut rng, fp8), *shape, &mut rng))
                .collect();
            let rig = Rig::new(&ctx, &all, &o);
            for t in 1..4 {
                rig.run(&ctx);
                assert_eq!(rig.step.read(), t as f32, "step");
                for p in &mut all {
                    p.step(&o, t);
                    p.check(&format!("fp8 {fp8}, {o:?}, step {t}"));
                }
            }
        }
    }
}

#[test]
fn late_steps_have_their_corrections() {
    let ctx = context();
    let mut rng = rng("late_steps_have_their_corrections");
    let o = Options { beta1: 0.99, beta2: 0.9999, ..USUAL };
    for t in [10, 1000, 123_456, 16_000_000] {
        let kind = Kind { weight: DType::F32, gradient: DType::F32, moment: DType::F32, master: false, fp8: None, aligned: true };
        let mut all = [Parameter::new(&ctx, kind, (3, 700), &mut rng)];
        let rig = Rig::new(&ctx, &all, &o);
        rig.step.write((t - 1) as f32);
        rig.run(&ctx);
        assert_eq!(rig.step.read(), t as f32);
        all[0].step(&o, t);
        all[0].check(&format!("step {t}"));
    }
}

#[test]
fn factors_and_learning_rate_come_from_the_device() {
    let ctx = context();
    let mut rng = rng("factors_and_learning_rate_come_from_the_device");
    let lr = 0.003f32;
    let o = Options { lr: f64::from(lr), factor: 0.25 / 1024.0, ..USUAL };
    let mut all: Vec<Parameter> = SHAPES.iter().map(|s| Parameter::new(&ctx, Kind::random(&mut rng, true), *s, &mut rng)).collect();
    let mut rig = Rig::new(&ctx, &all, &o);
    let (rate, scale, clip, found) =
        (SlotF32::new(&ctx, lr), SlotF32::new(&ctx, 1024.0), SlotF32::new(&ctx, 0.25), SlotF32::new(&ctx, 0.0));
    rig.args = AdamwArgs { lr_ptr: rate.ptr(), lr: 0.0, grad_scale: scale.ptr(), clip: clip.ptr(), found_inf: found.ptr(), ..rig.args };
    rig.run(&ctx);
    for p in &mut all {
        p.step(&o, 1);
        p.check("first");
    }
    // A flag of any kind skips the step, and nothing is written.
    let before: Vec<_> = all.iter().map(Parameter::bits).collect();
    for flag in [1.0, f32::NAN, -0.5, f32::INFINITY] {
        found.write(flag);
        rig.run(&ctx);
        assert_eq!(rig.step.read(), 1.0, "a skipped step was counted");
        assert!(all.iter().zip(&before).all(|(p, b)| p.bits() == *b), "a skipped step wrote something");
    }
    found.write(0.0);
    rate.write(0.0);
    rig.run(&ctx);
    assert_eq!(rig.step.read(), 2.0);
    for p in &mut all {
        p.step(&Options { lr: 0.0, ..o }, 2);
        p.check("without a rate");
    }
}

#[test]
fn gradients_move() {
    let ctx = context();
    let mut rng = rng("gradients_move");
    let kinds: Vec<Kind> = SHAPES.iter().map(|_| Kind::random(&mut rng, true)).collect();
    let mut all: Vec<Parameter> = SHAPES.iter().zip(&kinds).map(|(s, k)| Parameter::new(&ctx, *k, *s, &mut rng)).collect();
    let rig = Rig::new(&ctx, &all, &USUAL);
    for t in 1..3 {
        for p in &mut all {
            let (rows, cols) = (p.weight.rows, p.weight.cols);
            let v = values(&mut rng, rows * cols, false);
            (p.gradient, p.g) = Tensor::input(&ctx, p.kind.gradient, rows, cols, cols, rng.random_range(0..9), &v);
        }
        let pointers: Vec<Ptr> = all.iter().map(|p| p.gradient.ptr()).collect();
        // SAFETY: everything is live.
        unsafe { list_gradients(&ctx, &rig.args.list, &pointers, Stream::NULL) }.unwrap();
        rig.run(&ctx);
        for p in &mut all {
            p.step(&USUAL, t);
            p.check(&format!("step {t}"));
        }
    }
    // SAFETY: as above.
    let refused = unsafe { list_gradients(&ctx, &rig.args.list, &[], Stream::NULL) }.unwrap_err();
    assert_eq!(refused.status(), Status::InvalidShape);
}

#[test]
fn infinite_and_nan_gradients_reach_the_weights() {
    let ctx = context();
    let mut rng = rng("infinite_and_nan_gradients_reach_the_weights");
    let kind = Kind {
        weight: DType::Bf16,
        gradient: DType::F32,
        moment: DType::F32,
        master: true,
        fp8: Some((DType::E4m3, true, true)),
        aligned: true,
    };
    let mut p = Parameter::new(&ctx, kind, (5, 12), &mut rng);
    let mut g = values(&mut rng, 60, false);
    (g[3], g[17], g[31]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
    (p.gradient, p.g) = Tensor::input(&ctx, DType::F32, 5, 12, 12, 0, &g);
    let all = [p];
    let rig = Rig::new(&ctx, &all, &USUAL);
    rig.run(&ctx);
    let (weight, codes) = (all[0].weight.read(), all[0].codes[0].codes());
    for i in 0..60 {
        // inf / inf
        let bad = [3, 17, 31].contains(&i);
        assert_eq!(weight[i].is_nan(), bad, "weight {i}");
        assert_eq!(codes[i] == 0x7F, bad, "code {i}");
    }
    assert!(all[0].slots[2].read().is_nan(), "amax");
}

#[test]
fn a_list_of_nothing_counts_the_step() {
    let ctx = context();
    let rig = Rig::new(&ctx, &[], &USUAL);
    rig.run(&ctx);
    rig.run(&ctx);
    assert_eq!(rig.step.read(), 2.0);
}

#[test]
fn preparing_writes_nothing() {
    let ctx = context();
    let mut rng = rng("preparing_writes_nothing");
    let all = [Parameter::new(&ctx, Kind::random(&mut rng, true), (130, 260), &mut rng)];
    let (tensors, before) = ([all[0].tensor()], all[0].bits());
    let table = Guarded::new(&ctx, adamw_list_workspace(&ctx, &tensors).unwrap() as usize, 0);
    // SAFETY: everything is live.
    let list = unsafe { adamw_list(&ctx, &tensors, table.ptr(), table.bytes() as u64, Stream::PREPARE) }.unwrap();
    assert!(table.read().iter().all(|b| *b == common::POISON));
    let rig = Rig::new(&ctx, &all, &USUAL);
    assert_eq!((list.count, list.blocks), (rig.args.list.count, rig.args.list.blocks));
    // SAFETY: as above.
    unsafe { adamw(&ctx, &AdamwArgs { list, ..rig.args }, Stream::PREPARE) }.unwrap();
    sync(&ctx);
    assert_eq!(all[0].bits(), before);
    assert_eq!(rig.step.read(), 0.0);
}

#[test]
fn what_does_not_fit_is_refused() {
    let ctx = context();
    let mut rng = rng("what_does_not_fit_is_refused");
    let kind = Kind {
        weight: DType::Bf16,
        gradient: DType::Bf16,
        moment: DType::F32,
        master: true,
        fp8: Some((DType::E4m3, true, true)),
        aligned: true,
    };
    let all: Vec<Parameter> = (0..2).map(|_| Parameter::new(&ctx, kind, (8, 16), &mut rng)).collect();
    let good: Vec<AdamwTensor> = all.iter().map(Parameter::tensor).collect();
    let table = Guarded::new(&ctx, adamw_list_workspace(&ctx, &good).unwrap() as usize, 0);
    let make = |t: &[AdamwTensor], bytes: usize| {
        // SAFETY: everything is live; what is wrong is refused.
        unsafe { adamw_list(&ctx, t, table.ptr(), bytes as u64, Stream::NULL) }
    };
    type Change = fn(&mut AdamwTensor, &AdamwTensor);
    let changes: [(Change, Status, &str); 12] = [
        (|t, _| t.weight.dtype = DType::E4m3, Status::InvalidDType, "weight.dtype"),
        (|t, _| t.gradient.dtype = DType::E5m2, Status::InvalidDType, "gradient.dtype"),
        (|t, _| t.exp_avg_sq.dtype = DType::Bf16, Status::InvalidDType, "exp_avg_sq.dtype"),
        (|t, _| t.exp_avg.dtype = DType::F16, Status::InvalidDType, "exp_avg.dtype"),
        (|t, _| t.master.as_mut().unwrap().dtype = DType::Bf16, Status::InvalidDType, "master.dtype"),
        (|t, _| t.gradient.rows = 7, Status::InvalidShape, "gradient"),
        (|t, _| t.weight.ld = 17, Status::InvalidStride, "weight.ld"),
        (|t, _| t.exp_avg.data = Ptr::NULL, Status::NullPointer, "exp_avg.data"),
        (|t, _| t.exp_avg.data.0 += 2, Status::Misaligned, "exp_avg.data"),
        (|t, o| t.weight.data = o.weight.data, Status::Overlap, "weight"),
        (|t, o| t.gradient.data = o.exp_avg.data, Status::Overlap, "of tensor"),
        (|t, _| t.fp8.as_mut().unwrap().dtype = DType::F32, Status::InvalidDType, "fp8.dtype"),
    ];
    for (i, (change, status, text)) in changes.into_iter().enumerate() {
        let mut bad = good.clone();
        change(&mut bad[1], &good[0]);
        let e = make(&bad, table.bytes()).unwrap_err();
        assert_eq!(e.status(), status, "{i}: {e}");
        assert!(e.message().contains(text) && e.message().starts_with("tensor "), "{i}: {e}");
    }
    assert_eq!(make(&good, table.bytes() - 16).unwrap_err().status(), Status::WorkspaceTooSmall);
    let huge = [AdamwTensor { weight: TensorView::new(DType::F32, 4096u64 as *mut u8, i64::MAX, 3), ..good[0] }];
    assert_eq!(adamw_list_workspace(&ctx, &huge).unwrap_err().status(), Status::SizeOverflow);
    assert!(table.read().iter().all(|b| *b == common::POISON), "a refused call wrote the table");
}
