//! The delayed-scaling update on CUDA: one launch of `kernels/scaling.cu`.

use super::{
    jit::kernel_spec,
    launch::{arguments, Launch, Queue},
    sources::SourceFile,
    testing::Variant,
    CudaBackend,
};
use crate::{
    context::Stream,
    error::Result,
    numerics::{AmaxComputeAlgo, ScaleRule},
    ops::scaling::ScalingUpdateArgs,
    tensor::Ptr,
};

/// Blocks announce themselves in twelve bits of the interval counter.
const MAX_BLOCKS: u64 = 4095;

#[derive(Clone, Copy)]
enum Update {
    /// Lanes along the steps, which lie side by side.
    Rows,
    /// Lanes along the steps, any stride.
    Any,
    /// Lanes along the slots.
    Cols,
}

kernel_spec!(enum Update: Scaling, Rows = "scaling_rows", Any = "scaling_any", Cols = "scaling_cols");

/// Every module of this family.
pub(super) fn variants() -> Vec<Variant> {
    vec![Variant::of(&Update::Rows)]
}

/// `ScalingParams` of the kernel.
#[repr(C)]
struct Params {
    live: Ptr,
    scale: Ptr,
    history: Ptr,
    format_max: Ptr,
    nonfinite: Ptr,
    scale_inv: Ptr,
    counter: Ptr,
    slot_stride: i64,
    step_stride: i64,
    steps: i64,
    slots: u32,
    interval: u32,
    margin_factor: f32,
    epsilon: f32,
    power_of_two: u32,
    most_recent: u32,
}

/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn scaling_update(backend: &CudaBackend, a: &ScalingUpdateArgs, stream: Stream) -> Result<()> {
    let queue = Queue::new(backend, stream)?;
    let rule = ScaleRule { format_max: 0.0, margin: a.margin, epsilon: a.epsilon, power_of_two: a.power_of_two };
    let params = Params {
        live: a.live,
        scale: a.scale,
        history: a.history,
        format_max: a.format_max,
        nonfinite: a.nonfinite,
        scale_inv: a.scale_inv,
        counter: if a.interval > 1 { a.counter } else { Ptr::NULL },
        slot_stride: a.slot_stride,
        step_stride: a.step_stride,
        steps: a.history_len - 1,
        slots: a.slots as u32,
        interval: a.interval,
        margin_factor: rule.margin_factor(),
        epsilon: a.epsilon,
        power_of_two: a.power_of_two.into(),
        most_recent: (a.algo == AmaxComputeAlgo::MostRecent).into(),
    };
    // Lanes run along whichever direction is denser.
    let kernel = match (a.slot_stride, a.step_stride) {
        (slot, step) if a.slots > 1 && slot < step => Update::Cols,
        (_, 1) => Update::Rows,
        _ => Update::Any,
    };
    let (per_block, threads) = if matches!(kernel, Update::Cols) { (32, 1024) } else { (8, 256) };
    let grid = (a.slots as u64).div_ceil(per_block).min(MAX_BLOCKS) as u32;
    // SAFETY: the kernel's one parameter; pointers live by contract.
    unsafe { queue.launch(&kernel, &Launch::new([grid, 1, 1], threads), arguments![params]) }
}
