//! What a layer promises beside numbers: sizes, flags, weight caches, scales of replaced weights, calibration, threads.

use nvte::{
    layers::{ForwardArgs, Layer, LayerCall, LayerConfig, LayerFlags, Rows, WeightCache},
    numerics::{DelayedScaling, Recipe},
    ops::activation::Activation,
    Context, DType, Device, Ptr, Status, Stream,
};
use rand::{rngs::StdRng, RngExt};

use crate::{
    common::{context, rng, Guarded, POISON},
    rig::{bits, matrix, rows, Case, Held, How, Outputs, Rig, Scaling},
    HIGH, SCALINGS,
};

/// A case of each kind; the MLP's activation is gated in every other.
fn cases(scaling: Scaling, rng: &mut StdRng) -> Vec<Case> {
    (0..3)
        .map(|kind| {
            let dtype = HIGH[rng.random_range(0..3)];
            // Rows of every other case can be read by 16 bytes.
            let step = [1, 8][rng.random_range(0..2)];
            let k = rng.random_range(1..50usize).next_multiple_of(step);
            let mut case = Case::new(kind, rng.random_range(1..40), k, rng.random_range(1..50), dtype, scaling);
            case.activation = [Activation::Swiglu, Activation::GeluErf][rng.random_range(0..2)];
            case.rms = rng.random_bool(0.5);
            case
        })
        .collect()
}

fn cache(ctx: &Context, rig: &Rig) -> (Guarded, WeightCache) {
    let bytes = rig.layer.sizes(&LayerFlags::training()).weight_cache;
    let memory = Guarded::new(ctx, bytes as usize, 16);
    let cache = WeightCache { valid: 0, data: memory.ptr(), bytes };
    (memory, cache)
}

fn all_valid(case: &Case) -> u32 {
    (1 << (2 * case.weights().len())) - 1
}

fn assert_same(what: &str, a: &Outputs, b: &Outputs) {
    for (i, (a, b)) in a.codes().iter().zip(b.codes()).enumerate() {
        assert!(*a == b, "{what}: output {i} has other bits");
    }
}

#[test]
fn saved_is_as_small_as_promised() {
    let ctx = context();
    let mut rng = rng("saved_is_as_small_as_promised");
    let slope = |kind: u8, scaling: Scaling, activation: Activation, rms: bool, flags: LayerFlags, rng: &mut StdRng| {
        let mut case = Case::new(kind, 1, 48, 80, DType::Bf16, scaling);
        (case.activation, case.rms) = (activation, rms);
        Rig::new(&ctx, case, rng).layer.sizes(&flags)
    };
    let (h, f) = (48, 80);
    let all = LayerFlags::training();
    for scaling in [Scaling::Delayed, Scaling::Current] {
        for (kind, activation, want) in [
            (0, Activation::Gelu, h),
            (1, Activation::Gelu, h + 8),
            (2, Activation::Gelu, h + 3 * f + 8),
            (2, Activation::Swiglu, h + 5 * f + 8),
        ] {
            let sizes = slope(kind, scaling, activation, false, all, &mut rng);
            assert_eq!(sizes.saved.per_token, want, "kind {kind} {}", activation.name());
            // Nothing of the weights.
            assert!(sizes.saved.fixed < 4096 + 16 * (h + 5 * f), "kind {kind}: {:?}", sizes.saved);
            let rms = slope(kind, scaling, activation, true, all, &mut rng);
            assert_eq!(rms.saved.per_token, if kind == 0 { want } else { want - 4 }, "no mean");
        }
        // Frozen weights keep no transposed input.
        let frozen = LayerFlags { dx: true, ..LayerFlags::default() };
        for (kind, want) in [(0, 0), (1, 8), (2, 8 + 2 * f)] {
            let sizes = slope(kind, scaling, Activation::Gelu, false, frozen, &mut rng);
            assert_eq!(sizes.saved.per_token, want, "frozen weights, kind {kind}");
        }
        let last = LayerFlags { dw: [false, true], ..LayerFlags::default() };
        assert_eq!(slope(2, scaling, Activation::Gelu, false, last, &mut rng).saved.per_token, f, "only the second weight");
    }
    for scaling in SCALINGS {
        for kind in 0..3 {
            let sizes = slope(kind, scaling, Activation::Gelu, false, LayerFlags::default(), &mut rng);
            assert_eq!(sizes.saved, nvte::layers::Linear::default(), "no backward pass, nothing saved");
            assert_eq!(sizes.slots as usize, if kind == 2 { 6 } else { 3 });
            assert_eq!(sizes.weight_cache == 0, scaling == Scaling::None);
        }
    }
    // Without FP8 a Linear keeps nothing: its input is the caller's.
    assert_eq!(slope(0, Scaling::None, Activation::Gelu, false, all, &mut rng).saved.per_token, 0);
}

/// Buffers of exactly these sizes lie between guards.
#[test]
fn sizes_suffice_for_any_number_of_tokens() {
    let (ctx, mut rng) = (context(), rng("sizes_suffice_for_any_number_of_tokens"));
    for tokens in (0..200).chain([255, 1000, 4099]) {
        let scaling = SCALINGS[tokens % 3];
        let (kind, k, n) = ((tokens / 3 % 3) as u8, rng.random_range(1..20), rng.random_range(1..20));
        let mut case = Case::new(kind, tokens, k, n, HIGH[rng.random_range(0..3)], scaling);
        case.activation = Activation::ALL[tokens % 12];
        let rig = Rig::new(&ctx, case, &mut rng);
        let cached = scaling != Scaling::None && rng.random_bool(0.5);
        let (memory, mut cache) = cache(&ctx, &rig);
        let got = rig.run_with(&How::training(), Some(&mut cache).filter(|_| cached)).unwrap();
        memory.read();
        // NaN would show memory that was read before it was written.
        assert!(got.y.read().iter().chain(&got.dx.unwrap().read()).all(|v| v.is_finite()), "{case:?}");
    }
}

/// Only memory moves: from backward's workspace to what is saved.
#[test]
fn saved_weights_change_no_bits() {
    let (ctx, mut rng) = (context(), rng("saved_weights_change_no_bits"));
    for scaling in SCALINGS {
        for case in (0..3).flat_map(|_| cases(scaling, &mut rng)).collect::<Vec<_>>() {
            let rig = Rig::new(&ctx, case, &mut rng);
            let due = LayerFlags { weight_scale_due: true, weight_scale_keep: true, ..LayerFlags::training() };
            for flags in [LayerFlags::training(), due, LayerFlags { dx: false, dnorm: false, ..due }] {
                let saving = LayerFlags { save_weight: true, ..flags };
                let (plain, got) = (rig.run(&How::with(flags)), rig.run(&How::with(saving)));
                assert_same(&format!("{case:?} {flags:?}"), &plain, &got);
                let (without, with) = (rig.layer.sizes(&flags), rig.layer.sizes(&saving));
                assert_eq!(without.saved.per_token, with.saved.per_token);
                let read = |i: usize| scaling != Scaling::None && (flags.dx || i == 1);
                let codes = |i: usize, (n, k): (usize, usize)| if read(i) { (k * n.next_multiple_of(16)) as u64 } else { 0 };
                let all: u64 = case.weights().into_iter().enumerate().map(|(i, w)| codes(i, w)).sum();
                let more = with.saved.fixed - without.saved.fixed;
                assert!((all..=all + 2048).contains(&more), "{case:?} {flags:?}: {more} bytes more for {all}");
                assert!(without.backward_workspace.fixed - with.backward_workspace.fixed >= all);
                // A cache holds all that is needed.
                if scaling != Scaling::None {
                    let (_memory, mut c) = cache(&ctx, &rig);
                    assert_same("with a cache", &plain, &rig.run_with(&How::with(saving), Some(&mut c)).unwrap());
                }
            }
        }
    }
}

#[test]
fn a_cache_changes_no_bits() {
    let (ctx, mut rng) = (context(), rng("a_cache_changes_no_bits"));
    for scaling in [Scaling::Delayed, Scaling::Current] {
        for case in cases(scaling, &mut rng) {
            let mut rig = Rig::new(&ctx, case, &mut rng);
            let how = How::training();
            let plain = rig.run(&how);
            let (memory, mut c) = cache(&ctx, &rig);
            assert_same("a new cache", &plain, &rig.run_with(&how, Some(&mut c)).unwrap());
            assert_eq!(c.valid, all_valid(&case), "both layouts of all weights are filled");
            let filled = memory.read();

            // A filled cache is read and not written, whatever the slot says now; and its casts record nothing.
            let scales = rig.scale0.clone();
            for i in 0..rig.w.len() {
                rig.scale0[2 * i + 1] *= 3.0;
            }
            let again = rig.run_with(&how, Some(&mut c)).unwrap();
            assert!(memory.read() == filled, "a filled cache was written");
            assert_eq!(again.y.codes(), plain.y.codes());
            assert_eq!(again.dx.as_ref().unwrap().codes(), plain.dx.as_ref().unwrap().codes());
            for i in 0..rig.w.len() {
                assert_eq!(again.live[2 * i + 1].to_bits(), rig.live0[2 * i + 1].to_bits(), "a weight that was not cast was recorded");
            }

            // The flag on the device says the same, with no host in between.
            c.valid = 0;
            let kept = rig.run_with(&How { skip_refresh: Some(7), ..how }, Some(&mut c)).unwrap();
            assert!(memory.read() == filled, "codes to be kept were written");
            assert_eq!(kept.y.codes(), plain.y.codes());
            c.valid = 0;
            let fresh = rig.run_with(&How { skip_refresh: Some(0), ..how }, Some(&mut c)).unwrap();
            assert_same("a flag of 0", &rig.run(&how), &fresh);
            rig.scale0 = scales;

            // Forward alone fills the row-wise copies, and backward what it lacks, from the same scale.
            c.valid = 0;
            let idle = How::with(LayerFlags::default());
            rig.run_with(&idle, Some(&mut c)).unwrap();
            assert_eq!(c.valid, all_valid(&case) & 0b0101);
            rig.scale0.iter_mut().for_each(|s| *s *= 0.5);
            let valid = all_valid(&case) & 0b0101;
            let mixed = rig.run_with(&how, Some(&mut c)).unwrap();
            assert_eq!(c.valid, all_valid(&case));
            let mut full = WeightCache { valid, ..c };
            full.valid = all_valid(&case);
            assert_same("copies of one scale", &mixed, &rig.run_with(&how, Some(&mut full)).unwrap());
        }
    }
}

#[test]
fn replaced_weights() {
    let (ctx, mut rng) = (context(), rng("replaced_weights"));
    for case in (0..3).flat_map(|_| cases(Scaling::Delayed, &mut rng)).collect::<Vec<_>>() {
        let rig = Rig::new(&ctx, case, &mut rng);
        let due = LayerFlags { weight_scale_due: true, ..LayerFlags::training() };
        let kept = LayerFlags { weight_scale_keep: true, ..due };
        for flags in [due, kept] {
            let how = How::with(flags);
            let got = rig.run(&how);
            rig.check(&how, &got);
            let (_memory, mut c) = cache(&ctx, &rig);
            assert_same("with a cache", &got, &rig.run_with(&how, Some(&mut c)).unwrap());
        }
        let (due, kept) = (rig.run(&How::with(due)), rig.run(&How::with(kept)));
        assert_eq!(due.y.codes(), kept.y.codes(), "keeping the scale changes no codes");
        // From then on the slot gives the same codes.
        let mut after = rig;
        after.scale0.clone_from(&kept.scale);
        assert_eq!(after.run(&How::training()).y.codes(), kept.y.codes());
    }
    // Current scaling has no slots to keep anything in.
    let rig = Rig::new(&ctx, Case::new(0, 7, 9, 11, DType::F16, Scaling::Current), &mut rng);
    let how = How::with(LayerFlags { weight_scale_due: true, weight_scale_keep: true, ..LayerFlags::training() });
    assert_same("current scaling", &rig.run(&How::training()), &rig.run(&how));
}

#[test]
fn calibration_computes_without_fp8_and_records() {
    let (ctx, mut rng) = (context(), rng("calibration_computes_without_fp8_and_records"));
    for scaling in [Scaling::Delayed, Scaling::Current] {
        for case in cases(scaling, &mut rng) {
            let mut rig = Rig::new(&ctx, case, &mut rng);
            let how = How::with(LayerFlags { calibrate: true, ..LayerFlags::training() });
            let got = rig.run(&how);
            rig.check(&how, &got);
            // A gradient that no product reads is not recorded.
            let idle = How::with(LayerFlags { calibrate: true, ..LayerFlags::default() });
            rig.check(&idle, &rig.run(&idle));
            assert!(got.live.iter().zip(&rig.live0).all(|(a, b)| a > b || *b > 1.0), "{case:?}: {:?}", got.live);
            assert_eq!(bits(&rig.run(&How { record: false, ..how }).live), bits(&rig.live0));
            // The same bits as the layer that has no recipe.
            rig.case.scaling = Scaling::None;
            rig.layer = Layer::new(&ctx, &rig.case.config()).unwrap();
            assert_eq!(rig.run(&How::training()).codes()[..5], got.codes()[..5]);
        }
    }
}

#[test]
fn no_scales_are_scales_of_one() {
    let (ctx, mut rng) = (context(), rng("no_scales_are_scales_of_one"));
    for case in cases(Scaling::Delayed, &mut rng) {
        let mut rig = Rig::new(&ctx, case, &mut rng);
        let mut without = rig.run(&How { unscaled: true, ..How::training() });
        rig.scale0.fill(1.0);
        without.scale.fill(1.0);
        assert_same("scales of 1", &rig.run(&How::training()), &without);
    }
}

/// Bad input is seen in the slots, not hidden, and backward sees what forward saw.
#[test]
fn what_is_not_finite_is_recorded() {
    let (ctx, mut rng) = (context(), rng("what_is_not_finite_is_recorded"));
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut rig = Rig::new(&ctx, Case::new(0, 19, 23, 11, HIGH[rng.random_range(0..3)], Scaling::Delayed), &mut rng);
        let spoil = |h: &Held, at: usize| {
            let mut v = h.v.clone();
            v[at] = bad;
            matrix(&ctx, h.t.dtype, h.t.rows, h.t.cols, (0, 0), &v)
        };
        rig.x = spoil(&rig.x, 19 * 23 - 1);
        rig.dy = spoil(&rig.dy, 5);
        let how = How { flags: LayerFlags { dx: true, dw: [true, false], ..LayerFlags::default() }, ..How::training() };
        let got = rig.run(&how);
        for slot in [0, 2] {
            assert_eq!((got.live[slot].is_nan(), got.live[slot].is_finite()), (bad.is_nan(), false), "slot {slot} for {bad}");
        }
        assert_eq!(got.y.read().iter().any(|v| v.is_nan()), bad.is_nan(), "infinity saturates, NaN stays");
        assert_eq!(got.dx.unwrap().read().iter().any(|v| v.is_nan()), bad.is_nan());
    }
}

#[test]
fn preparing_writes_nothing() {
    let (ctx, mut rng) = (context(), rng("preparing_writes_nothing"));
    for scaling in SCALINGS {
        for case in cases(scaling, &mut rng) {
            let rig = Rig::new(&ctx, case, &mut rng);
            let how = How { stream: Stream::PREPARE, ..How::training() };
            let (memory, mut c) = cache(&ctx, &rig);
            let cached = scaling != Scaling::None;
            let got = rig.run_with(&how, Some(&mut c).filter(|_| cached)).unwrap();
            let untouched = |v: &[u8]| v.iter().all(|b| *b == POISON);
            let y = got.y.codes();
            assert!(y.iter().all(|c| *c == u32::MAX >> (32 - 8 * case.dtype.size())), "{case:?}: y was written");
            assert!(got.dx.unwrap().codes() == vec![u32::MAX >> (32 - 8 * case.dtype.size()); case.tokens * case.k]);
            assert!(untouched(&got.saved) && untouched(&memory.read()), "{case:?}: memory was written");
            assert_eq!((bits(&got.live), bits(&got.scale)), (bits(&rig.live0), bits(&rig.scale0)));
            assert_eq!(c.valid, 0, "{case:?}: a prepared call filled no copies");
        }
    }
}

#[test]
fn threads_share_a_layer() {
    let (ctx, mut rng) = (context(), rng("threads_share_a_layer"));
    for scaling in SCALINGS {
        for case in cases(scaling, &mut rng) {
            // Data of their own, one layer.
            let first = Rig::new(&ctx, case, &mut rng);
            let mut second = Rig::new(&ctx, case, &mut rng);
            second.layer = first.layer.clone();
            let alone = [first.run(&How::training()).codes(), second.run(&How::training()).codes()];
            std::thread::scope(|s| {
                for (rig, want) in [&first, &second].into_iter().zip(&alone) {
                    s.spawn(move || (0..4).for_each(|_| assert!(rig.run(&How::training()).codes() == *want)));
                }
            });
        }
    }
}

/// The C API's tests throw everything at the layers; here what only Rust can say, and that outputs stay as they were.
#[test]
fn refused_calls_write_nothing() {
    let (ctx, mut rng) = (context(), rng("refused_calls_write_nothing"));
    for case in cases(Scaling::Delayed, &mut rng) {
        let rig = Rig::new(&ctx, case, &mut rng);
        let (memory, c) = cache(&ctx, &rig);
        let refused = |how: How, cache: Option<WeightCache>, status: Status, name: &str| {
            let mut cache = cache;
            let before = cache.map(|c| c.valid);
            let Err(e) = rig.run_with(&how, cache.as_mut()) else { panic!("{case:?}: {name} was taken") };
            assert_eq!(e.status(), status, "{e}");
            assert!(e.to_string().contains(name), "{e}");
            assert_eq!(cache.map(|c| c.valid), before);
        };
        let how = How::training();
        refused(How { skip_refresh: Some(0), ..how }, None, Status::Unsupported, "skip_refresh");
        refused(how, Some(WeightCache { bytes: c.bytes - 1, ..c }), Status::WorkspaceTooSmall, "weight_cache.bytes");
        refused(how, Some(WeightCache { valid: 1 << 8, ..c }), Status::InvalidValue, "weight_cache.valid");
        refused(how, Some(WeightCache { data: Ptr::NULL, ..c }), Status::NullPointer, "weight_cache.data");
        refused(how, Some(WeightCache { data: c.data.offset(4), ..c }), Status::Misaligned, "weight_cache.data");
        refused(how, Some(WeightCache { data: rig.x.t.ptr(), bytes: 1 << 40, ..c }), Status::Overlap, "weight_cache");
        assert!(memory.read().iter().all(|b| *b == POISON));
    }
    let none = Rig::new(&ctx, Case::new(0, 3, 4, 5, DType::F32, Scaling::None), &mut rng);
    let how = How::with(LayerFlags { calibrate: true, ..LayerFlags::training() });
    assert!(none.run_with(&how, None).err().unwrap().to_string().contains("calibrate"));
    let mut mixed = Case::new(0, 3, 4, 5, DType::F32, Scaling::Delayed);
    mixed.param_dtype = DType::Bf16;
    let mixed = Rig::new(&ctx, mixed, &mut rng);
    assert!(mixed.run_with(&how, None).err().unwrap().to_string().contains("param_dtype"));
}

/// Forward's arguments for a Linear in this memory, with no backward pass to come.
fn inference(tokens: i64, workspace: &Guarded, [x, weight, y]: [Rows; 3], skip_refresh: Ptr) -> ForwardArgs {
    let call = LayerCall {
        tokens,
        flags: LayerFlags::default(),
        saved: Ptr::NULL,
        saved_bytes: 0,
        workspace: workspace.ptr(),
        workspace_bytes: workspace.bytes() as u64,
        live: Ptr::NULL,
        scale: Ptr::NULL,
        skip_refresh,
    };
    let (weights, biases) = ([weight, Rows::default()], [Ptr::NULL; 2]);
    ForwardArgs { call, x, gamma: Ptr::NULL, beta: Ptr::NULL, weights, biases, y, norm_out: Rows::default() }
}

#[test]
fn the_flag_of_a_cache_is_an_input_like_others() {
    let (ctx, mut rng) = (context(), rng("the_flag_of_a_cache_is_an_input_like_others"));
    let rig = Rig::new(&ctx, Case::new(0, 3, 4, 5, DType::F32, Scaling::Delayed), &mut rng);
    let (_memory, mut c) = cache(&ctx, &rig);
    let workspace = Guarded::new(&ctx, rig.layer.sizes(&LayerFlags::default()).forward_workspace.bytes(3) as usize, 0);
    let y = rig.output(DType::F32, 3, 5);
    for flag in [y.ptr(), workspace.ptr(), c.data] {
        let f = inference(3, &workspace, [rows(&rig.x.t), rows(&rig.w[0].t), rows(&y)], flag);
        // SAFETY: all memory is live.
        let e = unsafe { rig.layer.forward(&f, Some(&mut c), Stream::NULL) }.unwrap_err();
        assert!(e.status() == Status::Overlap && e.to_string().contains("skip_refresh"), "{e}");
    }
}

/// Work is counted in elements: rows of none take no time.
#[test]
fn any_number_of_empty_tokens() {
    let ctx = context();
    if ctx.device() != Device::Cpu {
        return;
    }
    let layer = Layer::new(&ctx, &LayerConfig::linear(0, 0, DType::Bf16, Some(Recipe::Delayed(DelayedScaling::default())))).unwrap();
    let tokens = 1 << 40;
    let workspace = Guarded::new(&ctx, layer.sizes(&LayerFlags::default()).forward_workspace.bytes(tokens) as usize, 0);
    // SAFETY: there are no elements.
    unsafe { layer.forward(&inference(tokens, &workspace, [Rows::default(); 3], Ptr::NULL), None, Stream::NULL).unwrap() };
}
