//! The delayed-scaling update on the CPU.

use super::parallel::Threads;
use crate::{
    numerics::{update_slot, ScaleRule, SlotUpdate},
    ops::scaling::{ScalingUpdateArgs, MAX_INTERVAL},
    tensor::Ptr,
};

/// Element `i` of an array of the caller's.
///
/// # Safety
/// The result may be used as the caller's array allows.
unsafe fn at<T>(base: Ptr, i: usize) -> *mut T {
    // SAFETY: by contract.
    unsafe { base.as_ptr::<T>().add(i) }
}

/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn scaling_update(threads: &Threads, a: &ScalingUpdateArgs) {
    // SAFETY: one word of the caller's.
    let due = a.interval == 1 || unsafe { advance(a.counter.as_ptr(), a.interval) };
    threads.map(a.slots as usize, 16, |slots| {
        for i in slots {
            // SAFETY: forwarded contract; slots do not share memory.
            unsafe { slot(a, i, due) }
        }
    });
}

/// Counts one update; returns whether scales change at it.
///
/// # Safety
/// A live word.
unsafe fn advance(counter: *mut u32, interval: u32) -> bool {
    // SAFETY: by contract.
    unsafe {
        let c = counter.read() % MAX_INTERVAL;
        let due = c + 1 >= interval;
        counter.write(if due { 0 } else { c + 1 });
        due
    }
}

/// # Safety
/// Arguments validated, pointers live, `i` a slot that nobody else touches.
unsafe fn slot(a: &ScalingUpdateArgs, i: usize, due: bool) {
    let steps = a.history_len as usize - 1;
    // SAFETY: forwarded contract.
    unsafe {
        let history = at::<f32>(a.history, i * a.slot_stride as usize);
        let entry = |j: usize| history.add(j * a.step_stride as usize);
        let (live, scale) = (at::<f32>(a.live, i), at::<f32>(a.scale, i));
        let rule =
            ScaleRule { format_max: at::<f32>(a.format_max, i).read(), margin: a.margin, epsilon: a.epsilon, power_of_two: a.power_of_two };
        match update_slot(live.read(), (0..steps).map(|j| entry(j).read()), a.algo, &rule, scale.read(), due) {
            SlotUpdate::Unchanged => {}
            SlotUpdate::NonFinite => {
                live.write(0.0);
                if !a.nonfinite.is_null() {
                    let n = at::<u32>(a.nonfinite, i);
                    n.write(n.read().wrapping_add(1));
                }
            }
            SlotUpdate::Rolled(s) => {
                for j in 1..steps {
                    entry(j - 1).write(entry(j).read());
                }
                if steps > 0 {
                    entry(steps - 1).write(live.read());
                }
                live.write(0.0);
                scale.write(s);
            }
        }
        if !a.scale_inv.is_null() {
            at::<f32>(a.scale_inv, i).write(1.0 / scale.read());
        }
    }
}
