//! The norm of a list of gradients on CUDA: launches of `kernels/grad_norm.cu`.

use super::{
    jit::kernel_spec,
    launch::{arguments, Launch, Queue},
    list::THREADS,
    sources::SourceFile,
    testing::Variant,
    CudaBackend,
};
use crate::{
    context::Stream,
    error::Result,
    ops::{
        grad_norm::{GradNormArgs, GradScaleArgs},
        list::MAX_PARTIALS,
    },
    tensor::Ptr,
};

/// Blocks of the norm that a multiprocessor holds at a time.
const PER_PROCESSOR: u32 = 6;

#[derive(Clone, Copy)]
enum Grad {
    Norm,
    Scale,
}

kernel_spec!(enum Grad: GradNorm, Norm = "grad_norm", Scale = "grad_scale");

/// Every module of this family.
pub(super) fn variants() -> Vec<Variant> {
    vec![Variant::of(&Grad::Norm)]
}

/// `GradNormParams` of the kernel.
#[repr(C)]
struct NormParams {
    entries: Ptr,
    gradients: Ptr,
    map: Ptr,
    partials: Ptr,
    counter: Ptr,
    grad_scale: Ptr,
    norm: Ptr,
    clip: Ptr,
    found_inf: Ptr,
    max_norm: f64,
    blocks: u32,
    pad: u32,
}

/// `GradScaleParams` of the kernel.
#[repr(C)]
struct ScaleParams {
    entries: Ptr,
    gradients: Ptr,
    map: Ptr,
    factor: Ptr,
}

/// # Safety
/// Arguments validated, pointers live, the table written.
pub(super) unsafe fn grad_norm(backend: &CudaBackend, a: &GradNormArgs, stream: Stream) -> Result<()> {
    let queue = Queue::new(backend, stream)?;
    let (table, blocks) = (a.list.table(), a.list.blocks[0] as u32);
    let params = NormParams {
        entries: table.entries,
        gradients: table.pointers,
        map: table.map,
        partials: table.scratch,
        counter: table.header,
        grad_scale: a.grad_scale,
        norm: a.norm,
        clip: a.clip,
        found_inf: a.found_inf,
        max_norm: a.max_norm,
        blocks,
        pad: 0,
    };
    let grid = blocks.clamp(1, (queue.multiprocessors() * PER_PROCESSOR).min(MAX_PARTIALS));
    // SAFETY: the kernel's one parameter; pointers live by contract.
    unsafe { queue.launch(&Grad::Norm, &Launch::new([grid, 1, 1], THREADS), arguments![params]) }
}

/// # Safety
/// Arguments validated, pointers live, the table written.
pub(super) unsafe fn grad_scale(backend: &CudaBackend, a: &GradScaleArgs, stream: Stream) -> Result<()> {
    let queue = Queue::new(backend, stream)?;
    let (table, blocks) = (a.list.table(), a.list.blocks[0] as u32);
    if blocks == 0 {
        return queue.load(&Grad::Scale);
    }
    let params = ScaleParams { entries: table.entries, gradients: table.pointers, map: table.map, factor: a.factor };
    // SAFETY: the kernel's one parameter; pointers live by contract.
    unsafe { queue.launch(&Grad::Scale, &Launch::new([blocks, 1, 1], THREADS), arguments![params]) }
}
