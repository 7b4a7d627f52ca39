//! Layers: every kind in every mode against f64 references, and what their contract says beside numbers.

#[path = "../common/mod.rs"]
mod common;
mod contract;
mod reference;
mod rig;

use common::{context, on_cuda, rng, values};
use nvte::{layers::LayerFlags, numerics::Format, ops::activation::Activation, DType};
use rand::{rngs::StdRng, RngExt};
use rig::{Case, How, Rig, Scaling};

const HIGH: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];
const SHAPES: [(usize, usize, usize); 10] = [
    (17, 33, 31),
    (16, 32, 48),
    (1, 16, 16),
    (1, 7, 5),
    (32, 16, 64),
    (5, 1, 1),
    (40, 48, 16),
    (7, 65, 34),
    (130, 136, 150),
    (70, 208, 90),
];
const EMPTY: [(usize, usize, usize); 4] = [(0, 17, 9), (5, 0, 7), (6, 9, 0), (0, 0, 0)];
const SCALINGS: [Scaling; 3] = [Scaling::None, Scaling::Delayed, Scaling::Current];

/// A case with everything drawn that may be drawn.
fn draw(kind: u8, (tokens, k, n): (usize, usize, usize), dtype: DType, scaling: Scaling, rng: &mut StdRng) -> Case {
    let mut c = Case::new(kind, tokens, k, n, dtype, scaling);
    if scaling != Scaling::None && rng.random_bool(0.5) {
        c.param_dtype = HIGH[rng.random_range(0..3)];
    }
    c.rms = rng.random_bool(0.5);
    c.zero_centered = rng.random_bool(0.5);
    c.activation = Activation::ALL[rng.random_range(0..12)];
    c.format = if rng.random_bool(0.5) { Format::Hybrid } else { Format::E4m3 };
    (c.bias, c.gamma, c.beta) = (rng.random_bool(0.7), rng.random_bool(0.8), rng.random_bool(0.8));
    c.dw_dtype = HIGH[rng.random_range(0..3)];
    c.strided = rng.random_bool(0.5);
    c
}

fn draw_how(rng: &mut StdRng, kind: u8) -> How {
    let mut how = How::training();
    how.flags.accumulate_dw = rng.random_bool(0.5);
    how.flags.save_weight = rng.random_bool(0.5);
    how.record = rng.random_bool(0.9);
    if kind > 0 {
        (how.norm_out, how.dnorm_out) = (rng.random_bool(0.5), rng.random_bool(0.5));
    }
    how
}

#[test]
fn every_kind_equals_the_reference() {
    let (ctx, mut rng) = (context(), rng("every_kind_equals_the_reference"));
    let mut open = Vec::new();
    for kind in 0..3 {
        for scaling in SCALINGS {
            for dtype in HIGH {
                for shape in SHAPES {
                    let (case, how) = (draw(kind, shape, dtype, scaling, &mut rng), draw_how(&mut rng, kind));
                    let rig = Rig::new(&ctx, case, &mut rng);
                    open.push(rig.check(&how, &rig.run(&how)));
                }
            }
        }
    }
    // The bounds mean something: steps before a result leave little of it open, as a rule.
    open.sort_by(f64::total_cmp);
    let median = open[open.len() / 2];
    assert!(on_cuda() || median < 2e-3, "half of the cases leave more than {median} open");
}

#[test]
fn every_activation_with_and_without_its_parts() {
    let (ctx, mut rng) = (context(), rng("every_activation_with_and_without_its_parts"));
    for activation in Activation::ALL {
        for scaling in SCALINGS {
            let dtype = HIGH[rng.random_range(0..3)];
            let case = Case { activation, ..draw(2, (17, 33, 30), dtype, scaling, &mut rng) };
            let (rig, how) = (Rig::new(&ctx, case, &mut rng), draw_how(&mut rng, 2));
            rig.check(&how, &rig.run(&how));
        }
    }
    for part in 0..16u32 {
        let mut case = Case::new(1 + (part % 2) as u8, 9, 20, 18, DType::Bf16, SCALINGS[part as usize % 3]);
        (case.bias, case.gamma, case.beta, case.zero_centered) = (part & 2 == 0, part & 4 == 0, part & 8 == 0, part % 3 == 0);
        let rig = Rig::new(&ctx, case, &mut rng);
        rig.check(&How::training(), &rig.run(&How::training()));
    }
}

#[test]
fn empty_layers() {
    let (ctx, mut rng) = (context(), rng("empty_layers"));
    for kind in 0..3 {
        for scaling in SCALINGS {
            for shape in EMPTY {
                let dtype = HIGH[rng.random_range(0..3)];
                let (case, how) = (draw(kind, shape, dtype, scaling, &mut rng), draw_how(&mut rng, kind));
                let rig = Rig::new(&ctx, case, &mut rng);
                rig.check(&how, &rig.run(&how));
            }
        }
    }
}

/// Inputs and weights that FP8 represents: the layer with FP8 differs from the one without by rounding of the accumulation alone.
#[test]
fn representable_inputs_lose_nothing() {
    let (ctx, mut rng) = (context(), rng("representable_inputs_lose_nothing"));
    for (tokens, k, n) in [(17, 33, 40), (64, 128, 32)] {
        let outputs = |representable: bool, rng: &mut StdRng| {
            let mut case = Case::new(0, tokens, k, n, DType::F32, Scaling::Delayed);
            let mut rig = Rig::new(&ctx, case, rng);
            rig.scale0.fill(1.0);
            let held = |v: &[f32]| -> Vec<f32> {
                v.iter().map(|v| if representable { rig::held_value(DType::E4m3, 8.0 * v) } else { 8.0 * v }).collect()
            };
            let (x, w, b) = (held(&values(rng, tokens * k, false)), held(&values(rng, n * k, false)), values(rng, n, false));
            let with = |case: Case, rig: Option<Rig>, rng: &mut StdRng| {
                let mut rig = rig.unwrap_or_else(|| Rig::new(&ctx, case, rng));
                rig.x = rig::matrix(&ctx, DType::F32, tokens, k, (0, 0), &x);
                rig.w = vec![rig::matrix(&ctx, DType::F32, n, k, (0, 0), &w)];
                rig.b = vec![Some(rig::matrix(&ctx, DType::F32, 1, n, (0, 0), &b))];
                rig.run(&How::training()).y.read()
            };
            let fp8 = with(case, Some(rig), rng);
            case.scaling = Scaling::None;
            let high = with(case, None, rng);
            let largest = high.iter().fold(0f32, |m, v| m.max(v.abs()));
            fp8.iter().zip(&high).fold(0f32, |m, (a, b)| m.max((a - b).abs())) / largest
        };
        let (exact, plain) = (outputs(true, &mut rng), outputs(false, &mut rng));
        assert!(exact < 1e-3, "representable inputs: off by {exact}");
        assert!(plain > exact && plain > 1e-3, "plain inputs: off by {plain} only");
    }
}

/// The gradients of the layers without FP8 are those of their outputs: along a random direction, in f64 of the same formula.
#[test]
fn gradients_are_directional_derivatives() {
    let (ctx, mut rng) = (context(), rng("gradients_are_directional_derivatives"));
    for round in 0..24 {
        let mut case = draw((round % 3) as u8, (5, 12, 9), DType::F32, Scaling::None, &mut rng);
        (case.bias, case.gamma, case.beta, case.dw_dtype) = (true, true, true, DType::F32);
        let rig = Rig::new(&ctx, case, &mut rng);
        let how = How::training();
        let got = rig.run(&how);
        // The loss is <y, dy>; its derivative along d is <gradient, d>.
        let (mut along, mut size) = (0.0, 0.0);
        let mut step = |gradient: &[f32], d: &[f32]| {
            for (g, d) in gradient.iter().zip(d) {
                along += f64::from(*g) * f64::from(*d);
                size += (f64::from(*g) * f64::from(*d)).abs();
            }
        };
        let mut directions = Vec::new();
        let direction = |n: usize, rng: &mut StdRng| -> Vec<f32> { values(rng, n, false) };
        let mut add = |t: Option<&common::Tensor>, rng: &mut StdRng| {
            let d = direction(t.map_or(0, |t| t.rows * t.cols), rng);
            if let Some(t) = t {
                step(&t.read(), &d);
            }
            directions.push(d);
        };
        add(got.dx.as_ref(), &mut rng);
        add(got.dgamma.as_ref(), &mut rng);
        add(got.dbeta.as_ref(), &mut rng);
        for i in 0..rig.w.len() {
            add(got.dw[i].as_ref(), &mut rng);
            add(got.db[i].as_ref(), &mut rng);
        }
        let loss = |h: f64| rig.loss(&directions, h);
        let h = 1e-5;
        let want = (loss(h) - loss(-h)) / (2.0 * h);
        assert!((along - want).abs() <= 1e-5 * size + 1e-6, "{case:?}: {along} along the direction, not {want}");
    }
}

/// What the flags leave out leaves the rest as it is.
#[test]
fn any_set_of_flags() {
    let (ctx, mut rng) = (context(), rng("any_set_of_flags"));
    for kind in 0..3 {
        for scaling in SCALINGS {
            for set in 0..16u32 {
                let has = |bit: u32| set & bit != 0;
                let (dx, dw, dnorm) = (has(1), [has(2), has(4)], has(8));
                let flags = LayerFlags { dx, dw, dnorm, ..LayerFlags::default() };
                let case = draw(kind, (6, 10, 12), HIGH[rng.random_range(0..3)], scaling, &mut rng);
                let (rig, how) = (Rig::new(&ctx, case, &mut rng), How::with(flags));
                rig.check(&how, &rig.run(&how));
            }
        }
    }
}
