//! Activations on CUDA: launches of `kernels/activation.cu`, of `kernels/activation_high.cu` where there are neither codes nor column sums, and
//! of `kernels/activation_any.cu` where rows do not start on 16 bytes.

use super::{
    cast::{finish_dbias, partial_rows, Dbias},
    jit::{kernel_spec, KernelSpec},
    launch::{arguments, blocks, Launch, Queue},
    sources::SourceFile,
    testing::Variant,
    tile::{self, has_halo, vector, Ahead, Layout, HALO_ELEMENTS},
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
const MAX_GRID_X: u64 = 0x7FFF_FFFF;

/// A module of `activation.cu`.
#[derive(Clone, Copy)]
struct Tile {
    erf: bool,
    gated: bool,
    backward: bool,
    input: DType,
    fp8: bool,
    form: Form,
}

/// `FORM` of the kernel.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Plain,
    /// Both inputs of a backward wait in shared memory.
    Staged,
    /// Of the transposed codes; forward without a gate.
    Halo,
    /// `activation_low`: a small tensor.
    Low,
}

kernel_spec!(
    Tile: Activation, s => if s.form == Form::Low { "activation_low" } else { "activation" },
    "ERF" = s.erf, "GATED" = s.gated, "BACKWARD" = s.backward, "IN" = s.input, "FP8" = s.fp8, "FORM" = s.form;
    // Two inputs of 16 bits.
    smem = if s.form == Form::Staged { 2 * 2 * (TILE * TILE) as u32 } else { 0 }
);

/// A module of `activation_high.cu`.
#[derive(Clone, Copy)]
struct High {
    erf: bool,
    gated: bool,
    backward: bool,
    input: DType,
}

kernel_spec!(
    High: ActivationHigh, s => "activation_high",
    "ERF" = s.erf, "GATED" = s.gated, "BACKWARD" = s.backward, "IN" = s.input
);

impl High {
    const THREADS: u32 = 128;

    /// Vectors of a block.
    fn vectors(&self) -> u64 {
        u64::from(Self::THREADS) * if self.gated { 1 } else { 2 }
    }
}

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
            if bit(2) || bit(3) {
                let plain = Tile { erf: bit(0), gated: bit(1), backward: bit(2), input, fp8: bit(3), form: Form::Plain };
                all.push(Variant::of(&plain));
                if bit(3) {
                    all.push(Variant::of(&Tile { form: Form::Low, ..plain }));
                }
            } else {
                all.extend([false, true].map(|backward| Variant::of(&High { erf: bit(0), gated: bit(1), backward, input })));
            }
        }
    }
    for erf in [false, true] {
        for input in [DType::F32, DType::F16, DType::Bf16] {
            all.push(Variant::of(&Tile { erf, gated: false, backward: false, input, fp8: true, form: Form::Halo }));
        }
    }
    for erf in [false, true] {
        for input in [DType::F16, DType::Bf16] {
            all.push(Variant::of(&Tile { erf, gated: false, backward: true, input, fp8: true, form: Form::Staged }));
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
    early: u32,
    ahead: u32,
}

/// `Rows` of `activation_high.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Rows {
    vectors: i64,
    multiplier: u32,
    shift: u32,
}

impl Rows {
    /// Of so many vectors each: (n * multiplier) >> shift is n / vectors for every n below 2^31.
    fn new(vectors: u64) -> Self {
        let (multiplier, shift) = match vectors {
            1..=0x7FFF_FFFF => {
                let shift = 31 + vectors.next_power_of_two().trailing_zeros();
                ((1u64 << shift) / vectors + 1, shift)
            }
            // Not asked for.
            _ => (0, 0),
        };
        Self { vectors: vectors as i64, multiplier: multiplier as u32, shift }
    }
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
    let tiles = |n: i64| (n as u64).div_ceil(TILE as u64).max(1);
    let across = tiles(hidden);
    let count = tiles(x.rows).saturating_mul(across);
    let ahead = Ahead::new(queue.multiprocessors(), count, x.dtype, !y.data_t.is_null());
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
        early: ahead.early,
        ahead: ahead.steady,
    };
    let (erf, gated, backward) = (kind.function() == Activation::GeluErf, kind.is_gated(), dy.is_some());
    let (input, fp8) = (x.dtype, y.dtype.is_fp8());
    let few = match aligned && fp8 && sums.is_null() {
        true => tile::low(x.rows, hidden, &Layout::new(y.data_t, y.ld_t, y.dtype, 8), queue.multiprocessors())?,
        false => None,
    };
    if let Some((col_tiles, count)) = few {
        let spec = Tile { erf, gated, backward, input, fp8, form: Form::Low };
        let params = Params { col_tiles, ..params };
        // SAFETY: the one parameter of `activation_low`; pointers live by contract.
        return unsafe { queue.launch(&spec, &Launch::new([count, 1, 1], THREADS), arguments![params]) };
    }
    if aligned && !fp8 && sums.is_null() {
        let spec = High { erf, gated, backward, input };
        let per_row = hidden as u64 / vector(input) as u64;
        let count = (x.rows as u64).saturating_mul(per_row).div_ceil(spec.vectors()).max(1);
        let launch = Launch::new([blocks(count, MAX_GRID_X, "blocks of the tensor")?, 1, 1], High::THREADS);
        // SAFETY: the two parameters of `activation_high`; pointers live by contract.
        return unsafe { queue.launch(&spec, &launch, arguments![params, Rows::new(per_row)]) };
    }
    let grid = blocks(count, MAX_GRID_X, "tiles of the tensor")?;
    let mut launch = Launch::new([grid, 1, 1], THREADS);
    if aligned {
        // Three blocks of it take 210 KiB of a multiprocessor's shared memory.
        let roomy = matches!(queue.backend.capability.arch, 90 | 100 | 103);
        let staged = roomy && backward && fp8 && !gated && input != DType::F32;
        let large = x.rows.saturating_mul(hidden) >= HALO_ELEMENTS;
        let halo = fp8 && !gated && !backward && large && has_halo(y.data_t, y.ld_t, x.rows, hidden);
        let form = if staged {
            Form::Staged
        } else if halo {
            Form::Halo
        } else {
            Form::Plain
        };
        let spec = Tile { erf, gated, backward, input, fp8, form };
        launch.smem = spec.dynamic_smem();
        // SAFETY: the one parameter of `activation`; pointers live by contract.
        unsafe { queue.launch(&spec, &launch, arguments![params]) }
    } else {
        let spec = Any { inputs: 1 + u32::from(gated) + u32::from(backward) };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisions_by_a_row_are_exact() {
        for vectors in (1..300).chain([512, 513, 3585, 8191, 65_536, 99_991, 0x3FFF_FFFF, 0x4000_0000, 0x4000_0001, 0x7FFF_FFFF]) {
            let r = Rows::new(vectors);
            let near = |k: u64| [k * vectors, k * vectors + 1, (k + 1) * vectors - 1];
            for n in [0, 1, 2, 1000, 0x7FFF_FFFF / vectors - 1, 0x7FFF_FFFF / vectors].into_iter().flat_map(near).filter(|n| *n < 1 << 31) {
                assert_eq!((n * u64::from(r.multiplier)) >> r.shift, n / vectors, "{n} / {vectors}");
            }
        }
    }
}
