//! The forward pass of a small Linear in one launch: `kernels/linear_small.cu`.

use super::{
    cast,
    gemm::{self, kernels::GemmOut},
    jit::kernel_spec,
    launch::{arguments, Launch, Queue},
    sources::SourceFile,
    testing::Variant,
    CudaBackend,
};
use crate::{
    context::Stream,
    error::Result,
    ops::{cast::CastJob, gemm::Problem},
    tensor::{DType, Ptr, TensorView},
};

/// Rows of x and of w that a block casts, and its threads.
const SIDE: i64 = 64;
const THREADS: u32 = 128;
/// A block's steps along k follow one another: the longer k, the more is lost against products whose blocks have several stages under way.
/// Where the two meet has not been measured; this is eight steps.
const MOST_K: i64 = 512;
/// Each block casts its operands again, which must cost less than a launch does. Not measured either: as far as launches dominate by far.
const MOST_PRODUCTS: i64 = 1 << 23;

struct LinearSmall {
    dtype: DType,
    /// w is codes already.
    codes: bool,
}

kernel_spec!(LinearSmall: LinearSmall, s => "linear_small", "IN" = s.dtype, "CODES" = s.codes);

/// Every module of this family.
pub(super) fn variants() -> Vec<Variant> {
    let all = [DType::F32, DType::F16, DType::Bf16].map(|dtype| [false, true].map(|codes| Variant::of(&LinearSmall { dtype, codes })));
    all.into_iter().flatten().collect()
}

/// `LinearParams` of the kernel.
#[repr(C)]
struct Params {
    x: Ptr,
    w: Ptr,
    xt: Ptr,
    scale_x: Ptr,
    scale_w: Ptr,
    scale_inv_x: Ptr,
    kept: Ptr,
    amax_x: Ptr,
    amax_w: Ptr,
    ldx: i64,
    ldw: i64,
    ldt: i64,
    m: i64,
    n: i64,
    k: i64,
    tiles_n: u64,
    out: GemmOut,
}

/// Enqueues the cast `x` and the product `p` of its codes with those of a weight as one launch, where that serves: few products, rows that
/// are read by 16 bytes, E4M3 with given scales. The row-wise codes of x are then not written. `w` makes the codes of the weight; it is part
/// of the launch too, unless they are to be kept. Whether it serves does not depend on `w` and `keep`, and neither do the results.
///
/// # Safety
/// Everything validated: `p` is the product of what the casts write; pointers live.
pub(super) unsafe fn linear_small(
    backend: &CudaBackend,
    x: &CastJob,
    w: Option<&CastJob>,
    keep: bool,
    p: &Problem,
    stream: Stream,
) -> Result<bool> {
    let dtype = x.input.dtype;
    let read_by_16 = |v: &TensorView| v.data.0 % 16 == 0 && (v.ld * v.dtype.size() as i64) % 16 == 0;
    let products = p.m.saturating_mul(p.n).saturating_mul(p.k);
    // The rows of the codes are padded with zeros, those of x are not.
    let k = x.input.cols;
    let small = (1..=MOST_PRODUCTS).contains(&products) && p.k <= MOST_K && k % 8 == 0;
    let transposed = x.output.data_t.is_null() || x.output.data_t.0 % 16 == 0 && x.output.ld_t % 16 == 0;
    let codes = [p.a.dtype, p.b.dtype] == [DType::E4m3; 2] && p.b.data.0 % 16 == 0 && p.b.ld % 16 == 0;
    if !(small && codes && transposed && p.d_dtype == dtype && read_by_16(&x.input)) {
        return Ok(false);
    }
    let plain = |w: &CastJob| w.current.is_none() && w.skip.is_null() && w.output.data_t.is_null();
    let inside = |w: &&CastJob| !keep && plain(w) && w.input.dtype == dtype && read_by_16(&w.input);
    let together = w.filter(inside);
    let queue = Queue::new(backend, stream)?;
    let spec = LinearSmall { dtype, codes: together.is_none() };
    queue.load(&spec)?;
    if let (Some(w), None) = (w, together) {
        // SAFETY: forwarded contract.
        unsafe { cast::cast(backend, w, stream)? };
    }
    let tiles_n = (p.n as u64).div_ceil(SIDE as u64);
    let blocks = (p.m as u64).div_ceil(SIDE as u64) * tiles_n;
    let slot = |of: fn(&CastJob) -> Ptr| together.map_or(Ptr::NULL, of);
    let params = Params {
        x: x.input.data,
        w: together.map_or(p.b.data, |w| w.input.data),
        xt: x.output.data_t,
        scale_x: x.output.scale,
        scale_w: slot(|w| w.output.scale),
        scale_inv_x: x.output.scale_inv,
        kept: slot(|w| w.keep_scale),
        amax_x: x.output.amax,
        amax_w: slot(|w| w.output.amax),
        ldx: x.input.ld,
        ldw: together.map_or(p.b.ld, |w| w.input.ld),
        ldt: x.output.ld_t,
        m: p.m,
        n: p.n,
        k,
        tiles_n,
        out: gemm::epilogue(p),
    };
    // SAFETY: the kernel's one parameter; pointers live by contract.
    unsafe { queue.launch(&spec, &Launch::new([blocks as u32, 1, 1], THREADS), arguments![params])? };
    Ok(true)
}
