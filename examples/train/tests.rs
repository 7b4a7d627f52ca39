//! Gradients of all three precisions against an f64 model, the life of the scales, and a short run.

use super::*;
use crate::{data::Batch, loss::cross_entropy, model::Mlp};
use rand::{rngs::StdRng, RngExt, SeedableRng};
use rand_distr::StandardNormal;

const PRECISIONS: [Precision; 3] = [Precision::F32, Precision::Delayed, Precision::Current];

/// The back end named by NVTE_TEST_BACKEND.
fn context() -> Context {
    match std::env::var("NVTE_TEST_BACKEND").as_deref() {
        Ok("cuda") => Context::cuda(0).expect("NVTE_TEST_BACKEND=cuda needs a device"),
        _ => Context::cpu().expect("the CPU back end always exists"),
    }
}

/// A small model of odd sizes whose biases and norms are not at their initial zeros and ones.
fn unsettled(ctx: &Context, precision: Precision, shape: Shape, seed: u64) -> Mlp {
    let model = Mlp::new(ctx, precision, shape, seed).unwrap();
    let mut values = model.values().unwrap();
    let mut rng = StdRng::seed_from_u64(seed);
    values.iter_mut().for_each(|v| *v += 0.05 * rng.sample::<f32, _>(StandardNormal));
    model.set_values(&values).unwrap();
    model
}

fn gradients(model: &Mlp, batch: &Batch) -> Vec<f32> {
    let verdict = cross_entropy(&model.forward(&batch.inputs, true).unwrap(), &batch.classes);
    model.backward(&verdict.dlogits).unwrap();
    model.gradients().unwrap()
}

fn fresh_seed(test: &str) -> u64 {
    let fresh = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = std::env::var("NVTE_TEST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(fresh);
    println!("{test}: NVTE_TEST_SEED={seed}");
    seed
}

#[test]
fn gradients_of_every_parameter_agree_with_differences_of_an_f64_model() {
    let ctx = context();
    let seed = fresh_seed("gradients_of_every_parameter");
    let shape = Shape { width: 19, hidden: 31, blocks: 2, rows: 16 };
    let batch = Digits::load().batches(13, seed).next().unwrap();
    let model = unsettled(&ctx, Precision::F32, shape, seed);
    let values: Vec<f64> = model.values().unwrap().into_iter().map(f64::from).collect();
    let got = gradients(&model, &batch);
    let mut rng = StdRng::seed_from_u64(seed);
    for (i, part) in model.layout().parts().iter().enumerate() {
        // Along a few random directions of each parameter, so that each of its elements counts.
        for _ in 0..3 {
            let direction: Vec<f64> = part.range().map(|_| rng.sample(StandardNormal)).collect();
            let h = 1e-5;
            let at = |sign: f64| {
                let mut moved = values.clone();
                moved[part.range()].iter_mut().zip(&direction).for_each(|(v, d)| *v += sign * h * d);
                reference::loss(model.layout(), &moved, &shape, &batch.inputs, &batch.classes)
            };
            let want = (at(1.0) - at(-1.0)) / (2.0 * h);
            let got: Vec<f64> = got[part.range()].iter().map(|g| f64::from(*g)).collect();
            let slope: f64 = got.iter().zip(&direction).map(|(g, d)| g * d).sum();
            let norm = got.iter().map(|g| g * g).sum::<f64>().sqrt();
            assert!((slope - want).abs() < 2e-5 * norm + 1e-7, "parameter {i} {part:?}: {slope} against {want}");
        }
    }
}

#[test]
fn fp8_gradients_point_where_f32_gradients_point() {
    let ctx = context();
    let seed = fresh_seed("fp8_gradients");
    let shape = Shape { width: 64, hidden: 96, blocks: 2, rows: 64 };
    let batch = Digits::load().batches(50, seed).next().unwrap();
    let of = |precision, steps| {
        let model = unsettled(&ctx, precision, shape, seed);
        // Delayed scaling needs one step to see how large gradients are.
        (0..steps).for_each(|_| drop(gradients(&model, &batch)));
        (gradients(&model, &batch), model)
    };
    let (want, model) = of(Precision::F32, 0);
    for (precision, steps) in [(Precision::Delayed, 2), (Precision::Current, 0)] {
        let (got, _) = of(precision, steps);
        for (i, part) in model.layout().parts().iter().enumerate() {
            let (a, b) = (&got[part.range()], &want[part.range()]);
            let dot = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
            let error = (dot(a, a) - 2.0 * dot(a, b) + dot(b, b)).max(0.0).sqrt() / dot(b, b).sqrt();
            assert!(error < 0.2, "{precision:?}: parameter {i} {part:?} is {error:.3} off");
            let exact = error == 0.0 && i != model.layout().parts().len() - 1;
            assert!(!exact, "{precision:?}: parameter {i} {part:?} is exactly that of f32: was anything cast?");
        }
    }
}

#[test]
fn delayed_scales_follow_from_the_step_before_and_tests_leave_them_alone() {
    let ctx = context();
    let seed = fresh_seed("delayed_scales");
    let shape = Shape { width: 32, hidden: 48, blocks: 1, rows: 32 };
    let batch = Digits::load().batches(32, seed).next().unwrap();
    let model = unsettled(&ctx, Precision::Delayed, shape, seed);
    // x, w, dy of the stem; x1, w1, x2, w2, dy2, dy1 of the block; x, w, dy of the head.
    let weights = [1, 4, 6, 10];
    model.forward(&batch.inputs, false).unwrap();
    assert!(model.scales().unwrap().iter().all(|s| *s == 1.0), "a test pass writes no scale");

    gradients(&model, &batch);
    let first = model.scales().unwrap();
    let values = model.values().unwrap();
    let matrices = model.layout().parts().iter().filter(|p| p.group == parameters::Group::Matrix);
    for (slot, part) in weights.iter().zip(matrices) {
        let amax = values[part.range()].iter().fold(0.0f32, |a, v| a.max(v.abs()));
        assert_eq!(first[*slot].to_bits(), (448.0 / amax).to_bits(), "new weights are measured");
    }
    assert!((0..12).all(|i| weights.contains(&i) || first[i] == 1.0), "{first:?}");

    let before = model.forward(&batch.inputs, false).unwrap();
    assert_eq!(model.scales().unwrap(), first, "a test pass does not end the period");
    gradients(&model, &batch);
    let second = model.scales().unwrap();
    assert!((0..12).all(|i| if weights.contains(&i) { second[i] == first[i] } else { second[i] > 1.0 }), "{second:?}");
    let pixels = batch.inputs.iter().fold(0.0f32, |a, v| a.max(v.abs()));
    assert_eq!(second[0].to_bits(), (448.0 / pixels).to_bits());
    assert_ne!(model.forward(&batch.inputs, false).unwrap(), before, "new scales give new codes");
}

#[test]
fn a_run_repeats_itself_bit_for_bit() {
    let (ctx, digits) = (context(), Digits::load());
    let shape = Shape { width: 40, hidden: 56, blocks: 1, rows: 32 };
    let losses = || train(&ctx, &digits, shape, &PRECISIONS, 4, 1).unwrap().into_iter().map(|r| r.losses).collect::<Vec<_>>();
    assert_eq!(losses(), losses());
}

#[test]
fn losses_fall_in_thirty_steps() {
    let (ctx, digits) = (context(), Digits::load());
    let shape = Shape { width: 64, hidden: 128, blocks: 2, rows: 128 };
    for r in train(&ctx, &digits, shape, &PRECISIONS, 30, 1).unwrap() {
        let losses = r.mean_losses();
        let mean = |l: &[f32]| l.iter().sum::<f32>() / l.len() as f32;
        let (first, last) = (mean(&losses[..3]), mean(&losses[27..]));
        println!("{}: loss {first:.3} -> {last:.3}, accuracy {:.1} %", name(r.precision), r.mean());
        assert!(last < 0.8 * first, "{}: {first} -> {last}", name(r.precision));
        assert!(r.mean() > 50.0, "{}: {} %", name(r.precision), r.mean());
    }
}

#[test]
fn a_picture_that_cannot_be_written_is_refused_by_name() {
    let missing = std::env::temp_dir().join("nvte-train-has-no-such-folder");
    let options = Options::parse_from(["train", "--plot", missing.join("x.svg").to_str().unwrap()]);
    let error = run_all(&options).unwrap_err().to_string();
    assert!(error.starts_with("--plot ") && error.ends_with(&format!("{} is not a folder", missing.display())), "{error}");
    // A folder where a file should be.
    let folder = std::env::temp_dir();
    let o =
        ["train", "--steps", "1", "--seeds", "1", "--batch", "8", "--width", "16", "--recipe", "f32", "--plot", folder.to_str().unwrap()];
    let error = run_all(&Options::parse_from(o)).unwrap_err().to_string();
    assert!(error.starts_with(&format!("--plot {}: ", folder.display())), "{error}");
}
