//! Activations on CUDA: launches of `kernels/activation.cu`, and of `kernels/activation_any.cu` where rows do not start on 16 bytes.

use super::{
    cast::{finish_dbias, partial_rows, Dbias},
    jit::{kernel_spec, KernelSpec},
    launch::{arguments, blocks, Launch, Queue},
    sources::SourceFile,
    testing::Variant,
    tile::{has_halo, HALO_ELEMENTS},
    CudaBackend,
};
use crate::{
    context::Stream,
    error::Result,
    ops::{
        activation::{Activation, ActivationArgs, ActivationBwdArgs},
        cast::BiasGradient,
    },
    tensor::{DType, Ptr, TensorView},
};

/// Rows and columns of a tile.
const TILE: i64 = 128;
const THREADS: u32 = 256;

/// A module of `activation.cu`.
#[derive(Clone, Copy)]
struct Tile {
    erf: bool,
    gated: bool,
    backward: bool,
    input: DType,
    fp8: bool,
    /// Both inputs of a backward wait in shared memory.
    staged: bool,
    /// Of the transposed codes; forward without a gate.
    halo: bool,
}

kernel_spec!(
    Tile: Activation, s => "activation",
    "ERF" = s.erf, "GATED" = s.gated, "BACKWARD" = s.backward, "IN" = s.input, "FP8" = s.fp8, "STAGED" = s.staged, "HALO" = s.halo;
    // Two inputs of 16 bits.
    smem = if s.staged { 2 * 2 * (TILE * TILE) as u32 } else { 0 }
);

/// A module of `activation_any.cu`.
#[derive(Clone, Copy)]
struct Any {
    inputs: u32,
}

kernel_spec!(Any: ActivationAny, s => "activation_any", "INPUTS" = s.inputs);

/// Every module of this family.
pub(super) fn variants() -> Vec<Variant> {
    let mut all: Vec<Variant> = (1..=3).map(|inputs| Variant::of(&Any { inputs })).collect();
    for bits in 0..16 {
        let bit = |i: i32| bits >> i & 1 == 1;
        for input in [DType::F32, DType::F16, DType::Bf16] {
            all.push(Variant::of(&Tile { erf: bit(0), gated: bit(1), backward: bit(2), input, fp8: bit(3), staged: false, halo: false }));
        }
    }
    for erf in [false, true] {
        for input in [DType::F32, DType::F16, DType::Bf16] {
            all.push(Variant::of(&Tile { erf, gated: false, backward: false, input, fp8: true, staged: false, halo: true }));
        }
    }
    for erf in [false, true] {
        for input in [DType::F16, DType::Bf16] {
            all.push(Variant::of(&Tile { erf, gated: false, backward: true, input, fp8: true, staged: true, halo: false }));
        }
    }
    all
}

/// `ActivationParams` of `kernels/common/activation.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    x: Ptr,
    dy: Ptr,
    y: Ptr,
    y_t: Ptr,
    scale: Ptr,
    scale_inv: Ptr,
    amax: Ptr,
    sums: Ptr,
    ldx: i64,
    lddy: i64,
    ldy: i64,
    ldy_t: i64,
    rows: i64,
    hidden: i64,
    kind: i32,
    x_type: i32,
    dy_type: i32,
    y_type: i32,
    col_tiles: u32,
    backward: u32,
}

/// Whether every row of a matrix starts on a multiple of `bytes`.
fn rows_start_on(bytes: u64, data: Ptr, ld: i64, dtype: DType) -> bool {
    data.0 % bytes == 0 && (ld as u64 * dtype.size() as u64) % bytes == 0
}

/// Whether `activation.cu` can take the tensors. With `hidden` a multiple of 8 the second half of a row starts as the first does.
fn is_aligned(x: &TensorView, dy: Option<&TensorView>, y: &TensorView, hidden: i64) -> bool {
    let inputs = [Some(x), dy];
    let inputs = inputs.iter().flatten().all(|t| t.dtype == x.dtype && rows_start_on(16, t.data, t.ld, t.dtype));
    // Codes leave in words of eight; the transposed copy may lie anywhere. A null pointer is a multiple of anything.
    let row_wise = y.data.is_null() || rows_start_on(if y.dtype.is_fp8() { 8 } else { 16 }, y.data, y.ld, y.dtype);
    hidden % 8 == 0 && inputs && row_wise
}

/// Forward, or with `dy` backward; `sums`: partial column sums, one row for every 128 rows of the tensor, or null.
///
/// # Safety
/// Arguments validated, pointers live.
unsafe fn run(queue: &Queue<'_>, kind: Activation, x: &TensorView, dy: Option<&TensorView>, y: &TensorView, sums: Ptr) -> Result<()> {
    let hidden = dy.unwrap_or(y).cols;
    let aligned = is_aligned(x, dy, y, hidden);
    // An empty tensor still gets one block: it writes scale_inv.
    let tiles = |n: i64, of: i64| (n as u64).div_ceil(of as u64).max(1);
    let (mut down, across) = (tiles(x.rows, TILE), tiles(hidden, TILE));
    let mut threads = THREADS;
    let fp8 = y.dtype.is_fp8();
    // Few blocks: lower tiles, with half the rows to a thread. Column sums are those of full tiles, and codes are made in those.
    if aligned && !fp8 && sums.is_null() && down.saturating_mul(across) < 3 * u64::from(queue.multiprocessors()) {
        threads = THREADS / 2;
        down = tiles(x.rows, TILE / 4);
    }
    let grid = blocks(down.saturating_mul(across), 0x7FFF_FFFF, "tiles of the tensor")?;
    let params = Params {
        x: x.data,
        dy: dy.map_or(Ptr::NULL, |t| t.data),
        y: y.data,
        y_t: y.data_t,
        scale: y.scale,
        scale_inv: y.scale_inv,
        amax: y.amax,
        sums,
        ldx: x.ld,
        lddy: dy.map_or(0, |t| t.ld),
        ldy: y.ld,
        ldy_t: y.ld_t,
        rows: x.rows,
        hidden,
        kind: kind as i32,
        x_type: x.dtype as i32,
        dy_type: dy.map_or(0, |t| t.dtype as i32),
        y_type: y.dtype as i32,
        col_tiles: across as u32,
        backward: dy.is_some().into(),
    };
    let mut launch = Launch::new([grid, 1, 1], threads);
    let backward = dy.is_some();
    if aligned {
        let erf = kind.function() == Activation::GeluErf;
        let gated = kind.is_gated();
        // Three blocks of it take 210 KiB of a multiprocessor's shared memory.
        let roomy = matches!(queue.backend.capability.arch, 90 | 100 | 103);
        let staged = roomy && backward && fp8 && !gated && x.dtype != DType::F32;
        let large = x.rows.saturating_mul(hidden) >= HALO_ELEMENTS;
        let halo = fp8 && !gated && !backward && large && has_halo(y.data_t, y.ld_t, x.rows, hidden);
        let spec = Tile { erf, gated, backward, input: x.dtype, fp8, staged, halo };
        launch.smem = spec.dynamic_smem();
        // SAFETY: the one parameter of `activation`; pointers live by contract.
        unsafe { queue.launch(&spec, &launch, arguments![params]) }
    } else {
        let spec = Any { inputs: 1 + u32::from(kind.is_gated()) + u32::from(backward) };
        // SAFETY: the one parameter of `activation_any`; pointers live by contract.
        unsafe { queue.launch(&spec, &launch, arguments![params]) }
    }
}

/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn activation_fwd(backend: &CudaBackend, a: &ActivationArgs, stream: Stream) -> Result<()> {
    let queue = Queue::new(backend, stream)?;
    // SAFETY: forwarded contract.
    unsafe { run(&queue, a.kind, &a.input, None, &a.output, Ptr::NULL) }
}

/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn activation_bwd(backend: &CudaBackend, a: &ActivationBwdArgs, stream: Stream) -> Result<()> {
    let queue = Queue::new(backend, stream)?;
    let dbias =
        (!a.dbias.is_null() && a.input.cols > 0).then_some(BiasGradient { ptr: a.dbias, dtype: a.dbias_dtype, accumulate: a.accumulate });
    if dbias.is_some() {
        // Both kernels are there before the first is enqueued.
        queue.load(&Dbias)?;
    }
    let sums = if dbias.is_some() { a.workspace } else { Ptr::NULL };
    // SAFETY: forwarded contract.
    unsafe { run(&queue, a.kind, &a.input, Some(&a.dy), &a.output, sums) }?;
    match &dbias {
        // SAFETY: the partial sums are being written in stream order.
        Some(b) => unsafe { finish_dbias(&queue, sums, partial_rows(a.input.rows), a.input.cols, b) },
        None => Ok(()),
    }
}
