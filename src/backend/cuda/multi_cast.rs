//! Casts of a list on CUDA: launches of `kernels/multi_cast.cu`.

use super::{
    jit::kernel_spec,
    launch::{arguments, Launch, Queue},
    list::THREADS,
    sources::SourceFile,
    testing::Variant,
    CudaBackend,
};
use crate::{
    backend::Backend,
    context::Stream,
    error::Result,
    ops::{
        list::TensorList,
        multi_cast::{rule, MultiCastJob},
    },
    tensor::{DType, Ptr},
};

#[derive(Clone, Copy)]
enum Multi {
    /// With given scales.
    Cast,
    /// With scales from what `Amax` left.
    Measured,
    Amax,
    Current,
}

kernel_spec!(
    enum Multi: MultiCast, Cast = "multi_cast", Measured = "multi_measured", Amax = "multi_amax", Current = "multi_current"
);

/// Every module of this family.
pub(super) fn variants() -> Vec<Variant> {
    vec![Variant::of(&Multi::Cast)]
}

/// `MultiCastParams` of the kernels.
#[repr(C)]
struct Params {
    entries: Ptr,
    map: Ptr,
    amaxes: Ptr,
    skip: Ptr,
    power_of_two: u32,
    margin_factor: f32,
    epsilon: f32,
    blocks: u32,
    lag: u32,
    pad: u32,
}

/// Lists of fewer blocks take amaxes and casts in two kernels: what one saves of memory is less than its ends cost.
const LONG: u64 = 4096;
/// Blocks that amaxes are ahead of casts, at most: 32 KiB of 16-bit input each, of a cache of some 50 MB that holds the codes too.
const MOST_AHEAD: u64 = 832;
/// And beyond those of the largest tensor.
const AHEAD: u64 = 192;
/// Blocks of `multi_current` on a multiprocessor.
const BLOCKS_PER_PROCESSOR: u32 = 3;

/// How far `multi_current` takes amaxes ahead of casts, if it serves the list.
fn lag(list: &TensorList) -> Option<u32> {
    let [blocks, largest] = list.blocks;
    let lag = largest + AHEAD;
    ((LONG..1 << 30).contains(&blocks) && lag <= MOST_AHEAD).then_some(lag as u32)
}

/// # Safety
/// Arguments validated, pointers live, the table written.
pub(super) unsafe fn multi_cast(backend: &CudaBackend, job: &MultiCastJob, stream: Stream) -> Result<()> {
    let queue = Queue::new(backend, stream)?;
    let (table, blocks) = (job.list.table(), job.list.blocks[0] as u32);
    let current = job.current.as_ref();
    let lag = current.and_then(|_| lag(&job.list));
    let params = Params {
        entries: table.entries,
        map: table.map,
        amaxes: if current.is_some() { table.scratch } else { Ptr::NULL },
        skip: job.skip,
        power_of_two: current.is_some_and(|c| c.power_of_two).into(),
        margin_factor: current.map_or(1.0, |c| rule(c, DType::E4m3).margin_factor()),
        epsilon: current.map_or(0.0, |c| c.epsilon),
        blocks,
        lag: lag.unwrap_or(0),
        pad: 0,
    };
    if lag.is_some() {
        queue.load(&Multi::Current)?;
        let bytes = (u64::from(blocks) + 1) * 4;
        let grid = blocks.min(queue.multiprocessors() * BLOCKS_PER_PROCESSOR);
        // SAFETY: the table has a word for each block and one more; the kernel's one parameter; pointers live by contract.
        unsafe {
            backend.zero_2d(table.scratch, bytes, bytes, 1, stream)?;
            return queue.launch(&Multi::Current, &Launch::new([grid, 1, 1], THREADS), arguments![params]);
        }
    }
    let cast = if current.is_some() { Multi::Measured } else { Multi::Cast };
    queue.load(&cast)?;
    let launch = Launch::new([blocks, 1, 1], THREADS);
    if current.is_some() {
        queue.load(&Multi::Amax)?;
    }
    if blocks == 0 {
        return Ok(());
    }
    if current.is_some() {
        let bytes = job.list.count as u64 * 4;
        // SAFETY: the table has a word for each tensor; the kernel's one parameter; pointers live by contract.
        unsafe {
            backend.zero_2d(table.scratch, bytes, bytes, 1, stream)?;
            queue.launch(&Multi::Amax, &launch, arguments![params])?;
        }
    }
    // SAFETY: the kernel's one parameter; pointers live by contract.
    unsafe { queue.launch(&cast, &launch, arguments![params]) }
}
