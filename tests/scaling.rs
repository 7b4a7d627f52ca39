//! The delayed-scaling update against a plain model of NUMERICS section 4, bit for bit, over any layout of the history.

mod common;

use std::collections::VecDeque;

use common::{context, rng, sync, Guarded};
use nvte::{
    numerics::{AmaxComputeAlgo, DelayedScaling},
    ops::scaling::{scaling_update, ScalingUpdateArgs},
    Context, Ptr, Status, Stream,
};
use rand::{rngs::StdRng, seq::IndexedRandom, RngExt};

fn words(ctx: &Context, v: &[u32]) -> Guarded {
    Guarded::from_bytes(ctx, bytemuck::cast_slice(v), 0)
}

fn read(g: &Guarded) -> Vec<u32> {
    g.read().chunks_exact(4).map(|b| u32::from_ne_bytes(b.try_into().unwrap())).collect()
}

/// One slot, as the rules say in words.
#[derive(Clone)]
struct Slot {
    live: f32,
    scale: f32,
    history: VecDeque<f32>,
    format_max: f32,
    nonfinite: u32,
}

#[derive(Clone, Copy, Debug)]
struct Options {
    margin: i32,
    epsilon: f32,
    power_of_two: bool,
    algo: AmaxComputeAlgo,
    interval: u32,
}

impl Slot {
    fn update(&mut self, o: &Options, due: bool) {
        let a0 = std::mem::take(&mut self.live);
        if a0 == 0.0 {
            return;
        }
        if !a0.is_finite() {
            self.nonfinite += 1;
            return;
        }
        let window = match o.algo {
            AmaxComputeAlgo::MostRecent => a0,
            AmaxComputeAlgo::Max => self.history.iter().fold(a0, |m, h| if h.is_nan() || m.is_nan() { f32::NAN } else { m.max(*h) }),
        };
        self.history.push_back(a0);
        self.history.pop_front();
        let a = if window < o.epsilon { o.epsilon } else { window };
        if !due || !a.is_finite() || a == 0.0 {
            return;
        }
        let s = ((f64::from(self.format_max) * 2f64.powi(-o.margin) / f64::from(a)) as f32).min(f32::MAX);
        self.scale = if o.power_of_two { 2f32.powi(f64::from(s).log2().floor() as i32) } else { s };
    }
}

/// The caller's memory.
struct Arrays {
    args: ScalingUpdateArgs,
    live: Guarded,
    scale: Guarded,
    history: Guarded,
    nonfinite: Guarded,
    scale_inv: Guarded,
    counter: Guarded,
    _format_max: Guarded,
}

const UNUSED: u32 = 0xDEAD_BEEF;

fn at(a: &ScalingUpdateArgs, slot: usize, step: usize) -> usize {
    slot * a.slot_stride as usize + step * a.step_stride as usize
}

impl Arrays {
    fn new(ctx: &Context, slots: &[Slot], len: usize, strides: (i64, i64), o: &Options) -> Self {
        let of = |f: fn(&Slot) -> u32| words(ctx, &slots.iter().map(f).collect::<Vec<_>>());
        let mut args = ScalingUpdateArgs::from_recipe(&DelayedScaling::default());
        (args.slot_stride, args.step_stride) = strides;
        let extent = if len > 1 { at(&args, slots.len() - 1, len - 2) + 1 } else { 0 };
        let mut history = vec![UNUSED; extent];
        for (i, s) in slots.iter().enumerate() {
            for (j, h) in s.history.iter().take(len - 1).enumerate() {
                history[at(&args, i, j)] = h.to_bits();
            }
        }
        let format_max = of(|s| s.format_max.to_bits());
        let mut all = Self {
            args,
            live: of(|s| s.live.to_bits()),
            scale: of(|s| s.scale.to_bits()),
            history: words(ctx, &history),
            nonfinite: of(|s| s.nonfinite),
            scale_inv: Guarded::new(ctx, 4 * slots.len(), 0),
            counter: words(ctx, &[0]),
            _format_max: format_max,
        };
        all.args = ScalingUpdateArgs {
            slots: slots.len() as i64,
            history_len: len as i64,
            live: all.live.ptr(),
            scale: all.scale.ptr(),
            history: if len > 1 { all.history.ptr() } else { Ptr::NULL },
            format_max: all._format_max.ptr(),
            nonfinite: all.nonfinite.ptr(),
            scale_inv: all.scale_inv.ptr(),
            counter: all.counter.ptr(),
            interval: o.interval,
            margin: o.margin,
            epsilon: o.epsilon,
            power_of_two: o.power_of_two,
            algo: o.algo,
            ..all.args
        };
        all
    }

    fn check(&self, what: &str, slots: &[Slot], len: usize) {
        let column = |name: &str, g: &Guarded, f: &dyn Fn(&Slot) -> u32| {
            let (got, want) = (read(g), slots.iter().map(f).collect::<Vec<_>>());
            for i in 0..slots.len() {
                assert_eq!(got[i], want[i], "{what}: {name} of slot {i}");
            }
        };
        column("live", &self.live, &|s| s.live.to_bits());
        column("scale", &self.scale, &|s| s.scale.to_bits());
        column("nonfinite", &self.nonfinite, &|s| s.nonfinite);
        column("scale_inv", &self.scale_inv, &|s| (1.0 / s.scale).to_bits());
        let history = read(&self.history);
        let mut used = vec![false; history.len()];
        for (i, s) in slots.iter().enumerate() {
            for j in 0..len - 1 {
                let k = at(&self.args, i, j);
                used[k] = true;
                assert_eq!(history[k], s.history[j].to_bits(), "{what}: history of slot {i}, step {j}");
            }
        }
        assert!(history.iter().zip(used).all(|(h, used)| used || *h == UNUSED), "{what}: memory between histories was written");
    }
}

fn amax(rng: &mut StdRng) -> f32 {
    match rng.random_range(0..12) {
        0 | 1 => 0.0,
        2 => f32::INFINITY,
        3 => f32::from_bits(0x7FFF_FFFF),
        4 => 1e-40,
        5 => 3e38,
        _ => rng.random_range(1e-4f32..100.0),
    }
}

fn random_slots(rng: &mut StdRng, n: usize, len: usize) -> Vec<Slot> {
    (0..n)
        .map(|_| Slot {
            live: amax(rng),
            scale: rng.random_range(0.01f32..100.0),
            // What a window holds is finite; one slot in ten has something else in it, put there by the caller.
            history: (0..len - 1)
                .map(|_| match rng.random_range(0.0..1.0) {
                    p if p < 0.1 / len as f64 => f32::NAN,
                    p if p < 0.5 => 0.0,
                    _ => rng.random_range(1e-4f32..50.0),
                })
                .collect(),
            format_max: *[448.0, 57344.0].choose(rng).unwrap(),
            nonfinite: rng.random_range(0..5),
        })
        .collect()
}

/// `n` histories of `len - 1` steps: lanes along steps, along slots, and neither.
fn layouts(n: i64, steps: i64) -> Vec<(i64, i64)> {
    let steps = steps.max(1);
    vec![(steps, 1), (steps + 5, 1), (1, n), (1, n + 3), (2 * steps + 1, 2), (3, 3 * n + 1)]
}

#[test]
fn updates_follow_the_rules() {
    let ctx = context();
    let mut rng = rng("updates_follow_the_rules");
    for (n, len) in [(1, 1), (1, 2), (3, 1), (5, 3), (33, 16), (70, 34), (9, 1024), (40, 513), (2, 1500), (35, 2100)] {
        for strides in layouts(n, len - 1) {
            let o = Options {
                margin: rng.random_range(-2..3),
                epsilon: *[0.0, 0.0, 1e-3, 5.0].choose(&mut rng).unwrap(),
                power_of_two: rng.random_bool(0.3),
                algo: *[AmaxComputeAlgo::Max, AmaxComputeAlgo::MostRecent].choose(&mut rng).unwrap(),
                interval: rng.random_range(1..4),
            };
            let mut slots = random_slots(&mut rng, n as usize, len as usize);
            let arrays = Arrays::new(&ctx, &slots, len as usize, strides, &o);
            for step in 1..=5u32 {
                // SAFETY: all arrays are live.
                unsafe { scaling_update(&ctx, &arrays.args, Stream::NULL) }.unwrap();
                sync(&ctx);
                let due = step % o.interval == 0;
                slots.iter_mut().for_each(|s| s.update(&o, due));
                let what = format!("{n} slots, L = {len}, strides {strides:?}, {o:?}, update {step}");
                arrays.check(&what, &slots, len as usize);
                if o.interval > 1 {
                    assert_eq!(read(&arrays.counter)[0], step % o.interval, "{what}: counter");
                }
                // The next period.
                slots.iter_mut().for_each(|s| s.live = amax(&mut rng));
                let live: Vec<f32> = slots.iter().map(|s| s.live).collect();
                arrays.live.overwrite(bytemuck::cast_slice(&live));
            }
        }
    }
}

#[test]
fn optional_arrays_may_be_absent() {
    let ctx = context();
    let mut rng = rng("optional_arrays_may_be_absent");
    let o = Options { margin: 0, epsilon: 0.0, power_of_two: false, algo: AmaxComputeAlgo::Max, interval: 1 };
    let mut slots = random_slots(&mut rng, 20, 5);
    let mut arrays = Arrays::new(&ctx, &slots, 5, (4, 1), &o);
    (arrays.args.nonfinite, arrays.args.scale_inv, arrays.args.counter) = (Ptr::NULL, Ptr::NULL, Ptr::NULL);
    // SAFETY: all arrays are live.
    unsafe { scaling_update(&ctx, &arrays.args, Stream::NULL) }.unwrap();
    sync(&ctx);
    slots.iter_mut().for_each(|s| s.update(&o, true));
    for (i, s) in slots.iter().enumerate() {
        assert_eq!((read(&arrays.live)[i], read(&arrays.scale)[i]), (0, s.scale.to_bits()));
    }
    assert!(read(&arrays.scale_inv).iter().all(|w| *w == u32::MAX), "an absent array was written");
}

#[test]
fn many_slots_in_one_launch() {
    let ctx = context();
    let mut rng = rng("many_slots_in_one_launch");
    // More than one pass of the largest grid that the counter allows.
    for strides in [(1, 1), (1, 40_000)] {
        let o = Options { margin: 0, epsilon: 0.0, power_of_two: false, algo: AmaxComputeAlgo::Max, interval: 2 };
        let mut slots = random_slots(&mut rng, 40_000, 2);
        let arrays = Arrays::new(&ctx, &slots, 2, strides, &o);
        for step in 1..=2 {
            // SAFETY: all arrays are live.
            unsafe { scaling_update(&ctx, &arrays.args, Stream::NULL) }.unwrap();
            sync(&ctx);
            slots.iter_mut().for_each(|s| s.update(&o, step == 2));
            slots.iter_mut().for_each(|s| s.live = 0.0);
            arrays.check(&format!("update {step}"), &slots, 2);
        }
        assert_eq!(read(&arrays.counter), [0]);
    }
}

#[test]
fn no_slots_and_bad_arguments() {
    let ctx = context();
    let mut rng = rng("no_slots_and_bad_arguments");
    let o = Options { margin: 0, epsilon: 0.0, power_of_two: false, algo: AmaxComputeAlgo::Max, interval: 3 };
    let slots = random_slots(&mut rng, 4, 6);
    let arrays = Arrays::new(&ctx, &slots, 6, (5, 1), &o);
    let call = |change: &dyn Fn(&mut ScalingUpdateArgs)| {
        let mut args = arrays.args;
        change(&mut args);
        // SAFETY: all arrays are live.
        unsafe { scaling_update(&ctx, &args, Stream::NULL) }.map_err(|e| e.status())
    };
    assert_eq!(call(&|a| (a.slots, a.live) = (0, Ptr::NULL)), Ok(()));
    assert_eq!(read(&arrays.counter), [0]);
    assert_eq!(call(&|a| a.slots = -1), Err(Status::InvalidShape));
    assert_eq!(call(&|a| a.history_len = 0), Err(Status::InvalidValue));
    assert_eq!(call(&|a| a.interval = 0), Err(Status::InvalidValue));
    assert_eq!(call(&|a| a.counter = Ptr::NULL), Err(Status::NullPointer));
    assert_eq!(call(&|a| a.slot_stride = 4), Err(Status::InvalidStride));
    assert_eq!(call(&|a| a.history = a.live), Err(Status::Overlap));
    sync(&ctx);
    for (i, s) in slots.iter().enumerate() {
        assert_eq!(read(&arrays.live)[i], s.live.to_bits(), "a refused call wrote something");
    }
}
