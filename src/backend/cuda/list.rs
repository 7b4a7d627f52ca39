//! Tables of lists of tensors on CUDA: launches of `kernels/list.cu`.

use super::{
    jit::kernel_spec,
    launch::{arguments, Launch, Queue},
    sources::SourceFile,
    testing::Variant,
    CudaBackend,
};
use crate::{context::Stream, error::Result, tensor::Ptr};

/// Threads of a block of all kernels about lists.
pub(super) const THREADS: u32 = 256;

#[derive(Clone, Copy)]
enum List {
    Write,
    Map,
}

kernel_spec!(enum List: List, Write = "list_write", Map = "list_map");

/// Every module of this family.
pub(super) fn variants() -> Vec<Variant> {
    vec![Variant::of(&List::Write)]
}

/// Words that one launch writes: with them the argument stays below the 4 KiB that every driver takes.
const WORDS: usize = 960;

/// `ListWrite` of the kernel.
#[repr(C)]
struct Write {
    to: Ptr,
    count: u32,
    pad: u32,
    words: [u32; WORDS],
}

/// `ListMap` of the kernel.
#[repr(C)]
struct Map {
    entries: Ptr,
    map: Ptr,
    stride: u64,
}

/// # Safety
/// Live memory of that many bytes, a multiple of four.
pub(super) unsafe fn write(backend: &CudaBackend, to: Ptr, bytes: &[u8], stream: Stream) -> Result<()> {
    let queue = Queue::new(backend, stream)?;
    queue.load(&List::Write)?;
    for (i, part) in bytes.chunks(4 * WORDS).enumerate() {
        let mut p = Write { to: to.offset((i * 4 * WORDS) as u64), count: (part.len() / 4) as u32, pad: 0, words: [0; WORDS] };
        bytemuck::cast_slice_mut::<u32, u8>(&mut p.words)[..part.len()].copy_from_slice(part);
        // SAFETY: the kernel's one parameter; the memory is live by contract.
        unsafe { queue.launch(&List::Write, &Launch::new([1, 1, 1], THREADS), arguments![p]) }?;
    }
    Ok(())
}

/// # Safety
/// Live entries, and a map with a word for each of their blocks.
pub(super) unsafe fn map(backend: &CudaBackend, entries: Ptr, stride: u64, count: u32, map: Ptr, stream: Stream) -> Result<()> {
    let queue = Queue::new(backend, stream)?;
    queue.load(&List::Map)?;
    if count == 0 {
        return Ok(());
    }
    let p = Map { entries, map, stride };
    // SAFETY: the kernel's one parameter; the memory is live by contract.
    unsafe { queue.launch(&List::Map, &Launch::new([count, 1, 1], THREADS), arguments![p]) }
}
