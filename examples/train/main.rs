//! Trains a residual MLP on handwritten digits in f32, in FP8 with delayed scaling and in FP8 with current scaling, side by side on the
//! same batches from the same initial weights, and compares what they reach:
//!
//! ```text
//! cargo run --release --example train
//! cargo run --release --example train -- --device cuda
//! ```
//!
//! Each layer is one call of the library forward and one backward, and scales are updated in one call; data moves in and out by copies, and
//! the loss and the optimizer run on the host. Start reading at `model.rs`, then `layers.rs`.

mod compute;
mod data;
mod layers;
mod loss;
mod model;
mod optimizer;
mod parameters;
mod plot;
#[cfg(test)]
mod reference;
mod run;
mod slots;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::{Parser, ValueEnum};
use data::Digits;
use indicatif::{ProgressBar, ProgressStyle};
use layers::Precision;
use model::Shape;
use nvte::Context;
use run::Run;

/// Trains a small network on handwritten digits in f32 and FP8, side by side.
#[derive(Parser)]
struct Options {
    /// Where to compute.
    #[arg(long, value_enum, default_value = "cpu")]
    device: Device,
    /// What to train.
    #[arg(long, value_enum, default_value = "all")]
    recipe: Recipe,
    /// Training steps of each run.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// Runs of each recipe, from different initial weights and with different batches.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    seeds: u32,
    /// Features of the residual stream; blocks are twice as wide inside.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=8192))]
    width: u32,
    /// Images per step.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=65536))]
    batch: u32,
    /// Where the picture of the losses goes (SVG).
    #[arg(long, default_value = "train.svg")]
    plot: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum Device {
    Cpu,
    Cuda,
}

#[derive(Clone, Copy, ValueEnum)]
enum Recipe {
    F32,
    /// FP8, delayed scaling.
    Delayed,
    /// FP8, current scaling.
    Current,
    All,
}

impl Recipe {
    fn precisions(self) -> Vec<Precision> {
        match self {
            Recipe::F32 => vec![Precision::F32],
            Recipe::Delayed => vec![Precision::Delayed],
            Recipe::Current => vec![Precision::Current],
            Recipe::All => vec![Precision::F32, Precision::Delayed, Precision::Current],
        }
    }
}

fn name(p: Precision) -> &'static str {
    match p {
        Precision::F32 => "f32",
        Precision::Delayed => "FP8 delayed",
        Precision::Current => "FP8 current",
    }
}

/// What one recipe reached over all seeds.
struct Record {
    precision: Precision,
    accuracies: Vec<f64>,
    /// Losses of all seeds.
    losses: Vec<Vec<f32>>,
    time: Duration,
}

impl Record {
    fn mean(&self) -> f64 {
        self.accuracies.iter().sum::<f64>() / self.accuracies.len() as f64
    }

    /// Step by step the mean over the seeds.
    fn mean_losses(&self) -> Vec<f32> {
        let mean = |i| self.losses.iter().map(|l| l[i]).sum::<f32>() / self.losses.len() as f32;
        (0..self.losses[0].len()).map(mean).collect()
    }
}

fn main() -> ExitCode {
    match run_all(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("train: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run_all(o: &Options) -> Result<(), Box<dyn std::error::Error>> {
    // Before minutes of training, not after.
    let unusable = |e: &dyn std::fmt::Display| format!("--plot {}: {e}", o.plot.display());
    if let Some(folder) = o.plot.parent().filter(|f| !f.as_os_str().is_empty() && !f.is_dir()) {
        return Err(unusable(&format!("{} is not a folder", folder.display())).into());
    }
    let ctx = match o.device {
        Device::Cpu => Context::cpu()?,
        Device::Cuda => Context::cuda(0)?,
    };
    let digits = Digits::load();
    let shape = Shape { width: o.width as usize, hidden: 2 * o.width as usize, blocks: 3, rows: o.batch as usize };
    println!(
        "residual MLP, {} blocks of {} -> {} -> {}, on {}: {} images to train on, {} to test, {} steps of {}",
        shape.blocks,
        shape.width,
        shape.hidden,
        shape.width,
        ctx.capability().name,
        digits.train_len(),
        digits.test_len(),
        o.steps,
        o.batch
    );
    let records = train(&ctx, &digits, shape, &o.recipe.precisions(), o.steps as usize, u64::from(o.seeds))?;
    report(&records);

    let curve = |r: &Record| plot::Curve { label: format!("{} ({:.2} %)", name(r.precision), r.mean()), losses: r.mean_losses() };
    plot::draw(&o.plot, "Handwritten digits: f32 and FP8 on the same batches", &records.iter().map(curve).collect::<Vec<_>>())
        .map_err(|e| unusable(&e))?;
    println!("loss curves: {}", o.plot.display());
    Ok(())
}

/// Trains all recipes in step with each other, seed after seed.
fn train(ctx: &Context, digits: &Digits, shape: Shape, recipes: &[Precision], steps: usize, seeds: u64) -> nvte::Result<Vec<Record>> {
    let record = |p: &Precision| Record { precision: *p, accuracies: vec![], losses: vec![], time: Duration::ZERO };
    let mut records: Vec<Record> = recipes.iter().map(record).collect();
    for seed in 1..=seeds {
        let style = ProgressStyle::with_template("{prefix} {bar:30} {pos}/{len} {elapsed} {msg}").expect("a valid template");
        let bar = ProgressBar::new(steps as u64).with_style(style).with_prefix(format!("seed {seed}/{seeds}"));
        let start = |p: &Precision| Run::new(ctx, *p, shape, steps, seed);
        let mut runs = recipes.iter().map(start).collect::<nvte::Result<Vec<_>>>()?;
        for batch in digits.batches(shape.rows, seed).take(steps) {
            let mut message = String::from("loss:");
            for (run, p) in runs.iter_mut().zip(recipes) {
                let loss = run.step(&batch)?;
                message += &format!(" {} {loss:.4}", name(*p));
            }
            bar.set_message(message);
            bar.inc(1);
        }
        bar.finish();
        for (run, record) in runs.into_iter().zip(&mut records) {
            let mut run = run;
            record.accuracies.push(run.test(digits, shape.rows)?);
            record.time += run.time;
            record.losses.push(run.losses);
        }
    }
    Ok(records)
}

/// The table of accuracies, and what FP8 cost.
fn report(records: &[Record]) {
    let seeds = records[0].accuracies.len();
    print!("\ntest accuracy, %");
    (1..=seeds).for_each(|s| print!("  {:>7}", format!("seed {s}")));
    println!("  {:>7}  {:>6}", "mean", "s/seed");
    for r in records {
        print!("{:<16}", name(r.precision));
        r.accuracies.iter().for_each(|a| print!("  {a:>7.2}"));
        println!("  {:>7.2}  {:>6.1}", r.mean(), r.time.as_secs_f64() / seeds as f64);
    }
    if let Some(f32) = records.iter().find(|r| r.precision == Precision::F32) {
        for r in records.iter().filter(|r| r.precision != Precision::F32) {
            println!("{}: {:+.2} points against f32", name(r.precision), r.mean() - f32.mean());
        }
    }
    println!();
}

#[cfg(test)]
mod tests;
