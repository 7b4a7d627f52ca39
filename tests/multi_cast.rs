//! Casts of lists of tensors: the bits of the same casts one by one.

mod common;

use common::{assert_codes_equal, context, oracle, rng, sync, Guarded, SlotF32, Tensor};
use nvte::{
    ops::{
        cast::{cast_to_fp8_current, cast_to_fp8_current_workspace, CastArgs, CurrentCastArgs, CurrentScaling},
        list::list_gradients,
        multi_cast::{cast_list, cast_list_workspace, multi_cast_to_fp8, MultiCastArgs},
    },
    Context, DType, Ptr, Status, Stream, TensorView,
};
use rand::{rngs::StdRng, seq::IndexedRandom, RngExt};

const HIGH: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];
const FP8: [DType; 2] = [DType::E4m3, DType::E5m2];
/// Whole tiles, tails in each direction, less than a vector, tall, wide, none.
const SHAPES: [(usize, usize); 16] = [
    (1, 1),
    (3, 5),
    (64, 64),
    (65, 130),
    (128, 256),
    (136, 264),
    (130, 136),
    (1, 1000),
    (1000, 1),
    (300, 8),
    (8, 300),
    (257, 128),
    (0, 7),
    (7, 0),
    (384, 132),
    (129, 48),
];

/// One cast, and what it is to give.
struct Cast {
    input: Tensor,
    held: Vec<f32>,
    codes: Tensor,
    turned: Tensor,
    layouts: (bool, bool),
    slots: [SlotF32; 3],
    scale: f32,
    before: f32,
}

impl Cast {
    fn new(ctx: &Context, (rows, cols): (usize, usize), aligned: bool, rng: &mut StdRng, special: bool) -> Self {
        let (input, output) = (*HIGH.choose(rng).unwrap(), *FP8.choose(rng).unwrap());
        let lay = |cols: usize, rng: &mut StdRng| match aligned {
            true => (cols.next_multiple_of(16) + 16 * rng.random_range(0..2), 0),
            false => (cols + rng.random_range(0..5), rng.random_range(0..20)),
        };
        let (ld, offset) = lay(cols, rng);
        let (input, held) = Tensor::random(ctx, input, rows, cols, ld, offset, rng, special);
        let (ld, offset) = lay(cols, rng);
        let codes = Tensor::output(ctx, output, rows, cols, ld, offset);
        let (ld, offset) = lay(rows, rng);
        let turned = Tensor::output(ctx, output, cols, rows, ld, offset);
        let (scale, before) = (rng.random_range(0.01f32..100.0), rng.random_range(0.0f32..4.0));
        let slots = [SlotF32::new(ctx, scale), SlotF32::poisoned(ctx), SlotF32::new(ctx, before)];
        let layouts = *[(true, false), (false, true), (true, true)].choose(rng).unwrap();
        Self { input, held, codes, turned, layouts, slots, scale, before }
    }

    fn args(&self) -> CastArgs {
        let mut view = self.codes.view().with_transpose(self.turned.ptr(), self.turned.ld as i64);
        if !self.layouts.0 {
            view.data = Ptr::NULL;
        }
        if !self.layouts.1 {
            view.data_t = Ptr::NULL;
        }
        let [scale, inverse, amax] = self.slots.each_ref().map(SlotF32::ptr);
        CastArgs { input: self.input.view(), output: view.with_scaling(scale, inverse, amax) }
    }

    fn check(&self, what: &str, scale: f32, amax: f32) {
        let (rows, cols, dtype) = (self.input.rows, self.input.cols, self.codes.dtype);
        let what = format!("{what}: {} -> {} [{rows}, {cols}] {:?}", self.input.dtype.name(), dtype.name(), self.layouts);
        let want: Vec<u32> = self.held.iter().map(|v| oracle::encode(dtype, v * scale)).collect();
        let turned: Vec<u32> = (0..rows * cols).map(|i| want[i % rows * cols + i / rows]).collect();
        for (t, want, present) in [(&self.codes, want, self.layouts.0), (&self.turned, turned, self.layouts.1)] {
            match present {
                true => assert_codes_equal(&what, &t.codes(), &want, t.cols),
                false => assert!(t.codes().iter().all(|b| *b == 0xFF), "{what}: an absent layout was written"),
            }
        }
        let [s, inverse, found] = self.slots.each_ref().map(|s| s.read().to_bits());
        assert_eq!(s, scale.to_bits(), "{what}: scale");
        assert_eq!(inverse, (1.0 / scale).to_bits(), "{what}: scale_inv");
        assert_eq!(found, amax.to_bits(), "{what}: amax");
    }
}

fn casts(ctx: &Context, rng: &mut StdRng, special: bool) -> Vec<Cast> {
    SHAPES.iter().flat_map(|s| [(*s, true), (*s, false)]).map(|(s, aligned)| Cast::new(ctx, s, aligned, rng, special)).collect()
}

/// Casts of more than 4096 blocks, of which none has more than 640: on a device such lists take amax and cast in one kernel.
fn long(ctx: &Context, rng: &mut StdRng, special: bool) -> Vec<Cast> {
    let long = (0..8).map(|i| ([(1, 75_000), (75_000, 1)][i % 2], i % 4 < 2));
    let mut all = casts(ctx, rng, special);
    for (at, (shape, aligned)) in long.enumerate() {
        all.insert(3 * at, Cast::new(ctx, shape, aligned, rng, special));
    }
    all
}

/// A table, and the call on it.
fn rig(ctx: &Context, args: &[CastArgs]) -> (Guarded, MultiCastArgs) {
    let table = Guarded::new(ctx, cast_list_workspace(ctx, args).unwrap() as usize, 0);
    // SAFETY: everything is live.
    let list = unsafe { cast_list(ctx, args, table.ptr(), table.bytes() as u64, Stream::NULL) }.unwrap();
    (table, MultiCastArgs { list, current: None, skip: Ptr::NULL })
}

fn run(ctx: &Context, args: &MultiCastArgs) {
    // SAFETY: everything is live.
    unsafe { multi_cast_to_fp8(ctx, args, Stream::NULL) }.unwrap();
    sync(ctx);
}

#[test]
fn given_scales() {
    let ctx = context();
    let mut rng = rng("given_scales");
    for _ in 0..4 {
        let all = casts(&ctx, &mut rng, true);
        let (table, call) = rig(&ctx, &all.iter().map(Cast::args).collect::<Vec<_>>());
        run(&ctx, &call);
        table.read();
        for c in &all {
            let mut seen = c.held.clone();
            seen.push(c.before);
            c.check("delayed", c.scale, oracle::amax(&seen));
        }
    }
}

#[test]
fn current_scaling() {
    let ctx = context();
    let mut rng = rng("current_scaling");
    for round in 0..6 {
        let all = if round < 4 { casts } else { long }(&ctx, &mut rng, round % 2 == 1);
        let args: Vec<CastArgs> = all.iter().map(Cast::args).collect();
        let (table, call) = rig(&ctx, &args);
        for _ in 0..2 {
            let scaling = CurrentScaling {
                margin: rng.random_range(-2..3),
                epsilon: *[0.0, 1e-6, 10.0].choose(&mut rng).unwrap(),
                power_of_two: rng.random_bool(0.5),
            };
            run(&ctx, &MultiCastArgs { current: Some(scaling), ..call });
            table.read();
            for c in &all {
                // The same cast alone, into slots of its own.
                let [scale, inverse, amax] = std::array::from_fn(|_| SlotF32::poisoned(&ctx));
                let workspace = Guarded::new(&ctx, cast_to_fp8_current_workspace(&ctx) as usize, 0);
                let codes = Tensor::output(&ctx, c.codes.dtype, c.codes.rows, c.codes.cols, c.codes.cols, 0);
                let alone = CurrentCastArgs {
                    input: c.input.view(),
                    output: codes.view().with_scaling(scale.ptr(), inverse.ptr(), amax.ptr()),
                    scaling,
                    workspace: workspace.ptr(),
                    workspace_bytes: workspace.bytes() as u64,
                };
                // SAFETY: everything is live.
                unsafe { cast_to_fp8_current(&ctx, &alone, Stream::NULL) }.unwrap();
                sync(&ctx);
                c.check(&format!("{scaling:?}"), scale.read(), amax.read());
            }
        }
    }
}

#[test]
fn slots_may_be_absent_and_lists_empty() {
    let ctx = context();
    let mut rng = rng("slots_may_be_absent_and_lists_empty");
    let c = Cast::new(&ctx, (130, 136), true, &mut rng, false);
    let mut args = c.args();
    (args.output.scale, args.output.scale_inv, args.output.amax) = (Ptr::NULL, Ptr::NULL, Ptr::NULL);
    let (_table, call) = rig(&ctx, &[args]);
    run(&ctx, &call);
    let want: Vec<u32> = c.held.iter().map(|v| oracle::encode(c.codes.dtype, *v)).collect();
    if c.layouts.0 {
        assert_codes_equal("no slots", &c.codes.codes(), &want, 136);
    }
    run(&ctx, &MultiCastArgs { current: Some(CurrentScaling::default()), ..call });
    let (_table, nothing) = rig(&ctx, &[]);
    run(&ctx, &nothing);
    run(&ctx, &MultiCastArgs { current: Some(CurrentScaling::default()), ..nothing });
}

#[test]
fn a_flag_on_the_device_skips_everything() {
    let ctx = context();
    let mut rng = rng("a_flag_on_the_device_skips_everything");
    let all = long(&ctx, &mut rng, false);
    let (_table, call) = rig(&ctx, &all.iter().map(Cast::args).collect::<Vec<_>>());
    let flag = Guarded::from_bytes(&ctx, &1u32.to_ne_bytes(), 0);
    for current in [None, Some(CurrentScaling::default())] {
        run(&ctx, &MultiCastArgs { current, skip: flag.ptr(), ..call });
        for c in &all {
            assert!(c.codes.codes().iter().chain(&c.turned.codes()).all(|b| *b == 0xFF));
            assert_eq!((c.slots[0].read(), c.slots[2].read()), (c.scale, c.before));
            assert!(c.slots[1].read().is_nan());
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let ctx = context();
    let mut rng = rng("what_does_not_fit_is_refused");
    let all: Vec<Cast> = (0..2).map(|_| Cast { layouts: (true, true), ..Cast::new(&ctx, (8, 16), true, &mut rng, false) }).collect();
    let good: Vec<CastArgs> = all.iter().map(Cast::args).collect();
    let table = Guarded::new(&ctx, cast_list_workspace(&ctx, &good).unwrap() as usize, 0);
    let make = |c: &[CastArgs], bytes: usize| {
        // SAFETY: everything is live; what is wrong is refused.
        unsafe { cast_list(&ctx, c, table.ptr(), bytes as u64, Stream::NULL) }
    };
    type Change = fn(&mut CastArgs, &CastArgs);
    let changes: [(Change, Status); 7] = [
        (|c, _| c.input.dtype = DType::E4m3, Status::InvalidDType),
        (|c, _| c.output.dtype = DType::Bf16, Status::InvalidDType),
        (|c, _| c.input.ld = 15, Status::InvalidStride),
        (|c, _| c.output.rows = 9, Status::InvalidShape),
        (|c, _| (c.output.data, c.output.data_t) = (Ptr::NULL, Ptr::NULL), Status::NullPointer),
        (|c, o| c.output.data = o.output.data, Status::Overlap),
        (|c, o| c.output.data_t = o.input.data, Status::Overlap),
    ];
    for (i, (change, status)) in changes.into_iter().enumerate() {
        let mut bad = good.clone();
        change(&mut bad[1], &good[0]);
        let e = make(&bad, table.bytes()).unwrap_err();
        assert_eq!(e.status(), status, "{i}: {e}");
        assert!(e.message().starts_with("tensor "), "{i}: {e}");
    }
    assert_eq!(make(&good, table.bytes() - 16).unwrap_err().status(), Status::WorkspaceTooSmall);
    let huge = [CastArgs { input: TensorView::new(DType::F32, Ptr(4096), 1 << 40, 1 << 20), ..good[0] }];
    assert_eq!(cast_list_workspace(&ctx, &huge).unwrap_err().status(), Status::SizeOverflow);
    assert!(table.read().iter().all(|b| *b == common::POISON), "a refused call wrote the table");
    let (_table, call) = rig(&ctx, &good);
    // SAFETY: as above.
    let refused = |args: &MultiCastArgs| unsafe { multi_cast_to_fp8(&ctx, args, Stream::NULL) }.unwrap_err().status();
    let bad = CurrentScaling { margin: 65, ..CurrentScaling::default() };
    assert_eq!(refused(&MultiCastArgs { current: Some(bad), ..call }), Status::InvalidValue);
    assert_eq!(refused(&MultiCastArgs { skip: Ptr(call.list.data.0 + 2), ..call }), Status::Misaligned);
    // SAFETY: as above.
    let moved = unsafe { list_gradients(&ctx, &call.list, &[Ptr::NULL; 2], Stream::NULL) };
    assert_eq!(moved.unwrap_err().status(), Status::InvalidEnum);
}
