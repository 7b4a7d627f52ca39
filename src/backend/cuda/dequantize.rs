//! FP8 codes to high precision, and their transposes, on CUDA: launches of `kernels/dequantize.cu` and `kernels/transpose.cu`.

use super::{
    jit::kernel_spec,
    launch::{arguments, Launch, Queue},
    sources::SourceFile,
    testing::Variant,
    tile::{has_halo, tiles, vector, Layout, Walk, THREADS, TILE},
    CudaBackend,
};
use crate::{
    context::Stream,
    error::Result,
    ops::dequantize::{DequantizeArgs, TransposeArgs},
    tensor::{DType, Ptr, TensorView},
};

/// Rows and columns of a tile of `dequantize_any`.
const ANY: i64 = 64;

#[derive(Clone, Copy)]
enum From {
    Rows,
    Transposed,
    Any,
}

#[derive(Clone, Copy)]
struct Dequantize {
    input: DType,
    output: DType,
    from: From,
}

kernel_spec!(
    Dequantize: Dequantize, s => match s.from {
        From::Rows => "dequantize_tile",
        From::Transposed => "dequantize_tile_t",
        From::Any => "dequantize_any",
    },
    "IN" = s.input, "OUT" = s.output; also s.from
);

#[derive(Clone, Copy)]
struct Transpose {
    halo: bool,
    aligned: bool,
}

kernel_spec!(Transpose: Transpose, s => if s.aligned { "transpose_tile" } else { "transpose_any" }, "HALO" = s.halo; also s.aligned);

/// Every module of this family.
pub(super) fn variants() -> Vec<Variant> {
    let mut all: Vec<Variant> = [false, true].map(|halo| Variant::of(&Transpose { halo, aligned: true })).into();
    for input in [DType::E4m3, DType::E5m2] {
        for output in [DType::F32, DType::F16, DType::Bf16] {
            all.push(Variant::of(&Dequantize { input, output, from: From::Rows }));
        }
    }
    all
}

/// `DequantizeParams` of the kernel.
#[repr(C)]
struct DequantizeParams {
    q: Ptr,
    y: Ptr,
    scale_inv: Ptr,
    ldq: i64,
    ldy: i64,
    rows: i64,
    cols: i64,
    last: i64,
    col_tiles: u32,
    tail: u32,
    transposed: u32,
    pad: u32,
}

/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn dequantize(backend: &CudaBackend, a: &DequantizeArgs, stream: Stream) -> Result<()> {
    let (q, y) = (&a.input, &a.output);
    if q.is_empty() {
        return Ok(());
    }
    let queue = Queue::new(backend, stream)?;
    let out = Layout::new(y.data, y.ld, y.dtype, 16);
    let v = vector(y.dtype);
    let transposed = q.data.is_null();
    let (walk, from) = if transposed {
        let codes = Layout::new(q.data_t, q.ld_t, q.dtype, 8);
        let aligned = out.aligned(q.rows) && codes.aligned(q.cols) && q.rows % 8 == 0;
        let walk = Walk { aligned, flat: false, rows: q.rows, cols: q.cols, last: q.cols, tail: 0 };
        (walk, if aligned { From::Transposed } else { From::Any })
    } else {
        let walk = Walk::new(q.rows, q.cols, v, &[Layout::new(q.data, q.ld, q.dtype, v as u64), out], true, ANY);
        // The kernel for single elements knows nothing of a shorter last row: it walks the matrix as it is.
        let walk =
            if walk.aligned { walk } else { Walk { aligned: false, flat: false, rows: q.rows, cols: q.cols, last: q.cols, tail: 0 } };
        (walk, if walk.aligned { From::Rows } else { From::Any })
    };
    let size = if walk.aligned { TILE } else { ANY };
    let (col_tiles, all) = walk.tiles(size, size)?;
    let params = DequantizeParams {
        q: if transposed { q.data_t } else { q.data },
        y: y.data,
        scale_inv: q.scale_inv,
        ldq: if transposed { q.ld_t } else { walk.stride(q.ld) },
        ldy: walk.stride(y.ld),
        rows: walk.rows,
        cols: walk.cols,
        last: walk.last,
        col_tiles,
        tail: walk.tail,
        transposed: transposed.into(),
        pad: 0,
    };
    let spec = Dequantize { input: q.dtype, output: y.dtype, from };
    // SAFETY: the kernel's one parameter; pointers live by contract.
    unsafe { queue.launch(&spec, &Launch::new([all, 1, 1], THREADS), arguments![params]) }
}

/// `TransposeParams` of the kernel.
#[repr(C)]
struct TransposeParams {
    input: Ptr,
    out: Ptr,
    scale_inv: Ptr,
    scale_inv_out: Ptr,
    ld: i64,
    ldt: i64,
    rows: i64,
    cols: i64,
    col_tiles: u32,
    empty: u32,
    newest_first: u32,
}

/// Loads what [`transpose`] of codes into `y.data_t` may need: before the launches of an operation that ends with it.
pub(super) fn load_transpose(queue: &Queue<'_>, y: &TensorView) -> Result<()> {
    let halo = has_halo(y.data_t, y.ld_t, y.rows, y.cols);
    queue.load(&Transpose { halo, aligned: true })?;
    queue.load(&Transpose { halo, aligned: false })
}

/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn fp8_transpose(backend: &CudaBackend, a: &TransposeArgs, stream: Stream) -> Result<()> {
    // SAFETY: forwarded contract.
    unsafe { transpose(backend, a, false, stream) }
}

/// `newest_first`: the codes were just written row after row, so that the cache holds the last ones.
///
/// # Safety
/// Arguments validated, pointers live.
pub(super) unsafe fn transpose(backend: &CudaBackend, a: &TransposeArgs, newest_first: bool, stream: Stream) -> Result<()> {
    let (x, y) = (&a.input, &a.output);
    let scale_inv_out = if y.scale_inv == x.scale_inv { Ptr::NULL } else { y.scale_inv };
    if x.is_empty() && scale_inv_out.is_null() {
        return Ok(());
    }
    let queue = Queue::new(backend, stream)?;
    let ((input, ld), (out, ldt), rows, cols) = match x.data.is_null() {
        false => ((x.data, x.ld), (y.data_t, y.ld_t), x.rows, x.cols),
        true => ((x.data_t, x.ld_t), (y.data, y.ld), x.cols, x.rows),
    };
    let aligned = !x.is_empty() && cols % 8 == 0 && Layout::new(input, ld, x.dtype, 8).aligned(rows);
    let (col_tiles, all) = tiles(rows, cols, TILE, TILE)?;
    let params = TransposeParams {
        input,
        out,
        scale_inv: x.scale_inv,
        scale_inv_out,
        ld,
        ldt,
        rows,
        cols,
        col_tiles,
        empty: x.is_empty().into(),
        newest_first: newest_first.into(),
    };
    // SAFETY: the kernel's one parameter; pointers live by contract.
    unsafe {
        queue.launch(&Transpose { halo: has_halo(out, ldt, rows, cols), aligned }, &Launch::new([all, 1, 1], THREADS), arguments![params])
    }
}
