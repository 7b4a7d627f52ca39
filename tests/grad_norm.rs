//! The norm of lists of gradients against f64, and their multiplication, bit for bit.

mod common;

use common::{assert_codes_equal, context, oracle, rng, sync, values, Guarded, SlotF32, Tensor};
use nvte::{
    ops::{
        grad_norm::{grad_list, grad_list_workspace, grad_norm, grad_scale, GradNormArgs, GradScaleArgs},
        list::{list_gradients, TensorList},
    },
    Context, DType, Ptr, Status, Stream, TensorView,
};
use rand::{rngs::StdRng, seq::IndexedRandom, RngExt};

const HIGH: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];
const SIZES: [(usize, usize); 14] = [
    (1, 1),
    (1, 7),
    (3, 5),
    (1, 1000),
    (64, 64),
    (1, 8192),
    (1, 8193),
    (1, 4096),
    (5, 4097),
    (1, 100_003),
    (0, 3),
    (3, 0),
    (1, 16),
    (2, 2),
];

fn gradients(ctx: &Context, rng: &mut StdRng, magnitude: impl Fn(DType, f32) -> f32) -> Vec<(Tensor, Vec<f32>)> {
    let mut all = Vec::new();
    for (rows, cols) in SIZES {
        let dtype = *HIGH.choose(rng).unwrap();
        let v: Vec<f32> = values(rng, rows * cols, false).into_iter().map(|v| magnitude(dtype, v)).collect();
        let offset = if rng.random_bool(0.5) { 0 } else { rng.random_range(0..9) };
        all.push(Tensor::input(ctx, dtype, rows, cols, cols, offset, &v));
    }
    all
}

struct Rig {
    list: TensorList,
    table: Guarded,
    norm: SlotF32,
    clip: SlotF32,
    found: SlotF32,
}

impl Rig {
    fn new(ctx: &Context, all: &[(Tensor, Vec<f32>)]) -> Self {
        let views: Vec<TensorView> = all.iter().map(|(t, _)| t.view()).collect();
        let table = Guarded::new(ctx, grad_list_workspace(ctx, &views).unwrap() as usize, 0);
        // SAFETY: everything is live.
        let list = unsafe { grad_list(ctx, &views, table.ptr(), table.bytes() as u64, Stream::NULL) }.unwrap();
        Self { list, table, norm: SlotF32::poisoned(ctx), clip: SlotF32::poisoned(ctx), found: SlotF32::poisoned(ctx) }
    }

    fn args(&self, max_norm: f64) -> GradNormArgs {
        GradNormArgs {
            list: self.list,
            grad_scale: Ptr::NULL,
            max_norm,
            norm: self.norm.ptr(),
            clip: self.clip.ptr(),
            found_inf: self.found.ptr(),
        }
    }

    fn run(&self, ctx: &Context, args: &GradNormArgs) -> (f32, f32, f32) {
        // SAFETY: everything is live.
        unsafe { grad_norm(ctx, args, Stream::NULL) }.unwrap();
        sync(ctx);
        self.table.read();
        (self.norm.read(), self.clip.read(), self.found.read())
    }
}

fn exact(all: &[(Tensor, Vec<f32>)]) -> f64 {
    all.iter().flat_map(|(_, v)| v).map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt()
}

fn assert_norm(what: &str, got: f32, want: f64) {
    assert!((f64::from(got) - want).abs() <= 2e-6 * want + 1e-45, "{what}: {got:e} for {want:e}");
}

#[test]
fn norm_equals_f64() {
    let ctx = context();
    let mut rng = rng("norm_equals_f64");
    for round in 0..6 {
        let all = gradients(&ctx, &mut rng, |_, v| v);
        let (rig, want) = (Rig::new(&ctx, &all), exact(&all));
        for max_norm in [0.0, want / 3.0, want * 2.0, f64::INFINITY] {
            let (norm, clip, found) = rig.run(&ctx, &rig.args(max_norm));
            assert_norm(&format!("round {round}"), norm, want);
            assert_norm("clip", clip, (max_norm / (want + 1e-6)).min(1.0));
            assert_eq!(found, 0.0);
        }
        // The same memory gives the same bits.
        let first = rig.run(&ctx, &rig.args(1.0)).0;
        assert_eq!(rig.run(&ctx, &rig.args(1.0)).0.to_bits(), first.to_bits());
        let scale = SlotF32::new(&ctx, 1024.0);
        let (norm, clip, _) = rig.run(&ctx, &GradNormArgs { grad_scale: scale.ptr(), ..rig.args(want / 4096.0) });
        assert_norm("scaled", norm, want / 1024.0);
        assert_norm("clip of the scaled", clip, want / 4096.0 / (want / 1024.0 + 1e-6));
        // Results that are not wanted.
        rig.run(&ctx, &GradNormArgs { clip: Ptr::NULL, found_inf: Ptr::NULL, ..rig.args(1.0) });
    }
}

#[test]
fn no_square_overflows_or_vanishes() {
    let ctx = context();
    let mut rng = rng("no_square_overflows_or_vanishes");
    for (large, small) in [(1e37, 1e-3), (1e30, 1e30), (1e-30, 1e-30), (1e-40, 1e-42), (1e18, 1e-30), (1e15, 1e14), (1e-15, 3e-15)] {
        let all = gradients(&ctx, &mut rng, |dtype, v| match dtype {
            // f16 holds neither.
            DType::F16 => 0.0,
            DType::F32 => v * large,
            _ => v * small,
        });
        let rig = Rig::new(&ctx, &all);
        let want = exact(&all);
        let (norm, _, found) = rig.run(&ctx, &rig.args(1.0));
        if want < f64::from(f32::MAX) {
            assert_norm(&format!("{large:e} and {small:e}"), norm, want);
        } else {
            assert_eq!(norm, f32::INFINITY);
        }
        assert_eq!(found, 0.0, "every gradient is finite");
    }
    // Magnitudes mixed within a tensor.
    let v: Vec<f32> = (0..50_000).map(|i| [1e-30f32, 1.0, 1e-18, 3e5][i % 4]).collect();
    for dtype in [DType::F32, DType::Bf16] {
        let all = [Tensor::input(&ctx, dtype, 1, v.len(), v.len(), 0, &v)];
        let rig = Rig::new(&ctx, &all);
        assert_norm("mixed", rig.run(&ctx, &rig.args(1.0)).0, exact(&all));
    }
}

#[test]
fn infinities_and_nans_are_seen() {
    let ctx = context();
    let mut rng = rng("infinities_and_nans_are_seen");
    for dtype in HIGH {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for n in [1, 5, 8, 20_011] {
                let mut v = values(&mut rng, n, false);
                v[rng.random_range(0..n)] = bad;
                let all = [
                    Tensor::input(&ctx, DType::F32, 1, 3, 3, 0, &[1.0, 2.0, 3.0]),
                    Tensor::input(&ctx, dtype, 1, n, n, rng.random_range(0..9), &v),
                ];
                let rig = Rig::new(&ctx, &all);
                let (norm, clip, found) = rig.run(&ctx, &rig.args(1.0));
                assert_eq!(found, 1.0, "{bad} in {}", dtype.name());
                if bad.is_nan() {
                    assert!(norm.is_nan() && clip.is_nan());
                } else {
                    assert_eq!((norm, clip), (f32::INFINITY, 0.0));
                }
            }
        }
    }
}

#[test]
fn a_list_of_nothing_has_the_norm_0() {
    let ctx = context();
    for all in [vec![], vec![(Tensor::output(&ctx, DType::F32, 0, 5, 5, 0), vec![])]] {
        let rig = Rig::new(&ctx, &all);
        assert_eq!(rig.run(&ctx, &rig.args(1.0)), (0.0, 1.0, 0.0));
        let factor = SlotF32::new(&ctx, 3.0);
        // SAFETY: everything is live.
        unsafe { grad_scale(&ctx, &GradScaleArgs { list: rig.list, factor: factor.ptr() }, Stream::NULL) }.unwrap();
    }
}

#[test]
fn scaling_rounds_once() {
    let ctx = context();
    let mut rng = rng("scaling_rounds_once");
    for factor in [0.37f32, 1.0, 0.0, 1e-6, 1e6, f32::NAN] {
        let all = gradients(&ctx, &mut rng, |_, v| v);
        let rig = Rig::new(&ctx, &all);
        let slot = SlotF32::new(&ctx, factor);
        // SAFETY: everything is live.
        unsafe { grad_scale(&ctx, &GradScaleArgs { list: rig.list, factor: slot.ptr() }, Stream::NULL) }.unwrap();
        sync(&ctx);
        for (t, held) in &all {
            if factor.is_nan() {
                assert!(t.read().iter().all(|v| v.is_nan()));
                continue;
            }
            let want: Vec<u32> = held
                .iter()
                .map(|v| {
                    let (b, _) = oracle::to_bytes(t.dtype, v * factor);
                    let mut word = [0; 4];
                    word[..t.dtype.size()].copy_from_slice(&b[..t.dtype.size()]);
                    u32::from_le_bytes(word)
                })
                .collect();
            assert_codes_equal(&format!("{} times {factor}", t.dtype.name()), &t.codes(), &want, t.cols);
        }
    }
}

#[test]
fn gradients_move() {
    let ctx = context();
    let mut rng = rng("gradients_move");
    let n = 5000;
    let first = [Tensor::random(&ctx, DType::Bf16, 1, n, n, 0, &mut rng, false)];
    let rig = Rig::new(&ctx, &first);
    let second = [Tensor::random(&ctx, DType::Bf16, 1, n, n, 3, &mut rng, false)];
    // SAFETY: everything is live.
    unsafe { list_gradients(&ctx, &rig.list, &[second[0].0.ptr()], Stream::NULL) }.unwrap();
    assert_norm("moved", rig.run(&ctx, &rig.args(1.0)).0, exact(&second));
}

#[test]
fn what_does_not_fit_is_refused() {
    let ctx = context();
    let mut rng = rng("what_does_not_fit_is_refused");
    let all: Vec<_> = (0..2).map(|_| Tensor::random(&ctx, DType::F32, 4, 6, 6, 0, &mut rng, false)).collect();
    let rig = Rig::new(&ctx, &all);
    let good: Vec<TensorView> = all.iter().map(|(t, _)| t.view()).collect();
    let fresh = Guarded::new(&ctx, rig.table.bytes(), 0);
    let make = |t: &[TensorView], bytes: usize| {
        // SAFETY: everything is live; what is wrong is refused.
        unsafe { grad_list(&ctx, t, fresh.ptr(), bytes as u64, Stream::NULL) }
    };
    type Change = fn(&mut TensorView, &TensorView);
    let changes: [(Change, Status); 6] = [
        (|t, _| t.dtype = DType::E4m3, Status::InvalidDType),
        (|t, _| t.ld = 7, Status::InvalidStride),
        (|t, _| t.data = Ptr::NULL, Status::NullPointer),
        (|t, _| t.data.0 += 1, Status::Misaligned),
        (|t, _| t.rows = -1, Status::InvalidShape),
        (|t, o| t.data = o.data, Status::Overlap),
    ];
    for (i, (change, status)) in changes.into_iter().enumerate() {
        let mut bad = good.clone();
        change(&mut bad[1], &good[0]);
        assert_eq!(make(&bad, fresh.bytes()).unwrap_err().status(), status, "{i}");
    }
    assert_eq!(make(&good, fresh.bytes() - 16).unwrap_err().status(), Status::WorkspaceTooSmall);
    assert!(fresh.read().iter().all(|b| *b == common::POISON), "a refused call wrote the table");
    // SAFETY: as above.
    let refused = |args: &GradNormArgs| unsafe { grad_norm(&ctx, args, Stream::NULL) }.unwrap_err().status();
    assert_eq!(refused(&GradNormArgs { norm: Ptr::NULL, ..rig.args(1.0) }), Status::NullPointer);
    assert_eq!(refused(&GradNormArgs { clip: rig.norm.ptr(), ..rig.args(1.0) }), Status::Overlap);
    assert_eq!(refused(&rig.args(-1.0)), Status::InvalidValue);
    assert_eq!(refused(&rig.args(f64::NAN)), Status::InvalidValue);
}
