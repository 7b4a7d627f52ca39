//! AdamW on CUDA: one launch of `kernels/adamw.cu`.

use super::{
    jit::kernel_spec,
    launch::{arguments, Launch, Queue},
    list::THREADS,
    sources::SourceFile,
    testing::Variant,
    CudaBackend,
};
use crate::{context::Stream, error::Result, ops::adamw::AdamwArgs, tensor::Ptr};

#[derive(Clone, Copy)]
struct Adamw {
    /// Some tensors have FP8 copies.
    tiles: bool,
}

kernel_spec!(Adamw: Adamw, s => "adamw", "TILES" = s.tiles);

/// Every module of this family.
pub(super) fn variants() -> Vec<Variant> {
    [false, true].map(|tiles| Variant::of(&Adamw { tiles })).into()
}

/// `AdamwParams` of the kernel.
#[repr(C)]
struct Params {
    entries: Ptr,
    gradients: Ptr,
    map: Ptr,
    counter: Ptr,
    step: Ptr,
    lr_ptr: Ptr,
    found_inf: Ptr,
    grad_scale: Ptr,
    clip: Ptr,
    lr: f64,
    beta1: f64,
    beta2: f64,
    weight_decay: f64,
    b1: f32,
    b1_rest: f32,
    b2: f32,
    b2_rest: f32,
    eps: f32,
    blocks: u32,
    decoupled: u32,
    bias_correction: u32,
}

/// # Safety
/// Arguments validated, pointers live, the table written.
pub(super) unsafe fn adamw(backend: &CudaBackend, a: &AdamwArgs, stream: Stream) -> Result<()> {
    let queue = Queue::new(backend, stream)?;
    let table = a.list.table();
    let params = Params {
        entries: table.entries,
        gradients: table.pointers,
        map: table.map,
        counter: table.header,
        step: a.step,
        lr_ptr: a.lr_ptr,
        found_inf: a.found_inf,
        grad_scale: a.grad_scale,
        clip: a.clip,
        lr: a.lr,
        beta1: a.beta1,
        beta2: a.beta2,
        weight_decay: a.weight_decay,
        b1: a.beta1 as f32,
        b1_rest: (1.0 - a.beta1) as f32,
        b2: a.beta2 as f32,
        b2_rest: (1.0 - a.beta2) as f32,
        eps: a.eps as f32,
        blocks: a.list.blocks[0] as u32,
        decoupled: a.decoupled.into(),
        bias_correction: a.bias_correction.into(),
    };
    let spec = Adamw { tiles: a.list.blocks[1] > 0 };
    // With no blocks the step is counted all the same.
    let grid = params.blocks.max(1);
    // SAFETY: the kernel's one parameter; pointers live by contract.
    unsafe { queue.launch(&spec, &Launch::new([grid, 1, 1], THREADS), arguments![params]) }
}
