//! The project's own GEMM: every shape, stride and alignment, on every architecture.
//!
//! Three kernels: FP8 on the tensor cores of sm_90 (TMA, wgmma); 16-bit operands on `mma.sync` (any architecture, and FP8 decoded to f16 where
//! there is no FP8 path); plain f32 arithmetic. The first two read K-major rows at multiples of 16 bytes; an operand that does not lie like that
//! is repacked into the workspace first. Which kernel, tile and packing is a pure function of shape, types, alignment and device.

use super::{
    kernels::{EpilogueOnly, GemmOut, MmaKernel, PackKernel, SimtKernel, Sm90Kernel},
    tile::{group, sm90_tile},
};
use crate::{
    backend::cuda::{
        driver::CUtensorMap,
        jit::KernelSpec,
        launch::{arguments, blocks, Launch, Queue},
    },
    error::{Error, Result, Status},
    tensor::{DType, Ptr},
};

/// One operand of the product: `[rows, k]`.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    /// Element type.
    pub dtype: DType,
    /// First element. Null in workspace queries: any alignment is provided for.
    pub data: Ptr,
    /// Stride in elements: from row to row if `k_major`, else from one k to the next.
    pub ld: i64,
    /// Element (r, k) lies at `r * ld + k`; otherwise at `k * ld + r`.
    pub k_major: bool,
    /// One f32 on the device; null: 1.
    pub scale_inv: Ptr,
}

/// Which kernel multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnKernel {
    /// FP8 tensor cores of sm_90.
    Sm90,
    /// 16-bit tensor cores; FP8 operands are decoded to f16.
    Mma,
    /// f32 arithmetic.
    Simt,
}

/// `D[m,n] = alpha * scale_inv_a * scale_inv_b * (A[m,k] · B[n,k]^T) + bias[n] + beta * C[m,n]`, validated by the caller.
///
/// FP8 output: `D = encode(v * *d_scale)`. C may be D, otherwise nothing overlaps.
#[derive(Clone, Copy, Debug)]
pub struct OwnArgs {
    /// Rows of A and D.
    pub m: i64,
    /// Rows of B, columns of D.
    pub n: i64,
    /// Common extent.
    pub k: i64,
    /// `[m, k]`.
    pub a: Operand,
    /// `[n, k]`.
    pub b: Operand,
    /// Output.
    pub d: Ptr,
    /// Its type.
    pub d_dtype: DType,
    /// Its row stride in elements.
    pub ldd: i64,
    /// Read where beta is not 0.
    pub c: Ptr,
    /// f32, f16 or bf16.
    pub c_dtype: DType,
    /// Its row stride in elements.
    pub ldc: i64,
    /// `[n]`; null: none.
    pub bias: Ptr,
    /// f32, f16 or bf16.
    pub bias_dtype: DType,
    /// FP8 output: the multiplier, one f32; null: 1.
    pub d_scale: Ptr,
    /// Receives `1 / *d_scale`; null: not written.
    pub d_scale_inv: Ptr,
    /// Records the amax of the f32 result before `d_scale`; null: not recorded.
    pub amax: Ptr,
    /// Factor of the product; 0: A and B are not read.
    pub alpha: f32,
    /// Factor of C.
    pub beta: f32,
    /// FP8 on sm_90: one accumulator for the whole of K instead of a promotion every 128.
    pub fast_accumulate: bool,
    /// Base a multiple of 16.
    pub workspace: Ptr,
    /// At least what the workspace query says.
    pub workspace_bytes: u64,
    /// For tests: this kernel instead of the chosen one. An error where it cannot do it.
    pub force: Option<OwnKernel>,
}

/// Rows and columns of one launch: tile numbers, coordinates and rows of tensor maps then fit their 32 bits.
const SIDE: i64 = 1 << 21;
/// The greatest K whose byte coordinates fit a tensor map's.
const SM90_MAX_K: i64 = i32::MAX as i64 - 255;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packed {
    /// In the workspace.
    offset: u64,
    /// Bytes from row to row.
    pitch: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    kernel: OwnKernel,
    a: Option<Packed>,
    b: Option<Packed>,
    workspace: u64,
}

fn kernel_for(arch: i32, g: &OwnArgs) -> Result<OwnKernel> {
    let (a, b) = (g.a.dtype, g.b.dtype);
    let sm90 = arch == 90 && a.is_fp8() && b.is_fp8() && g.k <= SM90_MAX_K;
    let mma = (a.is_fp8() && b.is_fp8()) || (a == b && a.size() == 2);
    let chosen = match g.force {
        Some(k) => k,
        None if sm90 => OwnKernel::Sm90,
        None if mma => OwnKernel::Mma,
        None => OwnKernel::Simt,
    };
    let possible = match chosen {
        OwnKernel::Sm90 => sm90,
        OwnKernel::Mma => mma,
        OwnKernel::Simt => true,
    };
    if !possible {
        return Err(Error::argument(
            Status::Unsupported,
            "kernel",
            format!("{chosen:?}"),
            format!("does not multiply {} by {} with k = {} on sm_{arch}", a.name(), b.name(), g.k),
        ));
    }
    Ok(chosen)
}

/// Nothing is multiplied; A and B are not read.
fn no_products(g: &OwnArgs) -> bool {
    g.m == 0 || g.n == 0 || g.k == 0 || g.alpha == 0.0
}

fn plan(arch: i32, g: &OwnArgs) -> Result<Plan> {
    if no_products(g) {
        return Ok(Plan { kernel: OwnKernel::Simt, a: None, b: None, workspace: 0 });
    }
    let kernel = kernel_for(arch, g)?;
    let mut end = 0u64;
    let mut pack = |o: &Operand, rows: i64| -> Result<Option<Packed>> {
        let decode = kernel == OwnKernel::Mma && o.dtype.is_fp8();
        let aligned =
            !o.data.is_null() && o.data.0 % 16 == 0 && o.k_major && (rows == 1 || o.ld.wrapping_mul(o.dtype.size() as i64) % 16 == 0);
        if kernel == OwnKernel::Simt || (aligned && !decode) {
            return Ok(None);
        }
        let bytes = (g.k as u64).checked_mul(if decode { 2 } else { o.dtype.size() as u64 });
        // Long rows start at whole cache lines, short ones do not pay for it.
        let unit = if bytes >= Some(1024) { 128 } else { 16 };
        let pitch = bytes.and_then(|b| b.checked_next_multiple_of(unit));
        let total = pitch.and_then(|p| p.checked_mul(rows as u64)?.checked_add(end)?.checked_next_multiple_of(256));
        match (pitch, total) {
            (Some(pitch), Some(total)) if total <= i64::MAX as u64 => {
                let offset = std::mem::replace(&mut end, total);
                Ok(Some(Packed { offset, pitch: pitch as i64 }))
            }
            _ => Err(Error::argument(Status::SizeOverflow, "workspace", format!("[{rows}, {}]", g.k), "its size must fit 63 bits")),
        }
    };
    let a = pack(&g.a, g.m)?;
    let b = pack(&g.b, g.n)?;
    Ok(Plan { kernel, a, b, workspace: end })
}

/// Workspace in bytes that [`run`] needs on this architecture. With null operands: for any alignment.
pub(crate) fn workspace(arch: i32, g: &OwnArgs) -> Result<u64> {
    Ok(plan(arch, g)?.workspace)
}

/// What would run, for the log and for tests.
pub(crate) fn describe(arch: i32, multiprocessors: u32, g: &OwnArgs) -> Result<String> {
    let p = plan(arch, g)?;
    let tile = match p.kernel {
        _ if no_products(g) => "epilogue only".to_string(),
        OwnKernel::Sm90 => {
            let t = sm90_tile(g.m.min(SIDE), g.n.min(SIDE), g.k, !g.fast_accumulate, multiprocessors);
            let mode = if g.fast_accumulate { "fast" } else { "promoted every 128" };
            format!("own FP8 kernel, tile {}x{}, cluster {}, accumulation {mode}", t.bm, t.bn, t.cluster)
        }
        OwnKernel::Mma => "own 16-bit kernel".to_string(),
        OwnKernel::Simt => "own f32 kernel".to_string(),
    };
    let packs = ["", ", packs A", ", packs B", ", packs A and B"][usize::from(p.a.is_some()) + 2 * usize::from(p.b.is_some())];
    Ok(format!("{tile}{packs}"))
}

/// Enqueues the product.
///
/// # Safety
/// Arguments validated (shapes, strides, nulls, alignment to the element), pointers live, the workspace not in use by another stream.
pub(crate) unsafe fn run(queue: &Queue<'_>, g: &OwnArgs) -> Result<()> {
    let (arch, multiprocessors) = (queue.backend.capability.arch, queue.multiprocessors());
    let p = plan(arch, g)?;
    if g.workspace_bytes < p.workspace {
        return Err(Error::argument(
            Status::WorkspaceTooSmall,
            "workspace_bytes",
            g.workspace_bytes,
            format!("must be at least {}", p.workspace),
        ));
    }
    crate::debug::log(2, || {
        let what = describe(arch, multiprocessors, g).unwrap_or_default();
        format!("gemm [{}, {}, {}] {} x {} -> {}: {what}", g.m, g.n, g.k, g.a.dtype.name(), g.b.dtype.name(), g.d_dtype.name())
    });
    if no_products(g) {
        // SAFETY: by contract.
        return unsafe { epilogue_only(queue, g) };
    }
    // SAFETY: by contract; packed operands lie in the workspace, whose size was checked.
    unsafe {
        let a = pack(queue, g, &g.a, g.m, p.a, p.kernel)?;
        let b = pack(queue, g, &g.b, g.n, p.b, p.kernel)?;
        for m0 in (0..g.m).step_by(SIDE as usize) {
            for n0 in (0..g.n).step_by(SIDE as usize) {
                let part = Part {
                    out: out(g, m0, n0),
                    a: a.starting_at(m0),
                    b: b.starting_at(n0),
                    m: (g.m - m0).min(SIDE),
                    n: (g.n - n0).min(SIDE),
                };
                match p.kernel {
                    OwnKernel::Sm90 => sm90(queue, g, &part)?,
                    OwnKernel::Mma => mma(queue, g, &part)?,
                    OwnKernel::Simt => simt(queue, g, &part)?,
                }
            }
        }
    }
    Ok(())
}

/// An operand as a kernel reads it: strides in bytes.
#[derive(Clone, Copy)]
struct Rows {
    data: u64,
    row: i64,
    k: i64,
    dtype: DType,
}

impl Rows {
    fn starting_at(self, r: i64) -> Self {
        Self { data: self.data.wrapping_add_signed(r * self.row), ..self }
    }
}

/// What one launch computes.
struct Part {
    out: GemmOut,
    a: Rows,
    b: Rows,
    m: i64,
    n: i64,
}

pub(super) fn out(g: &OwnArgs, m0: i64, n0: i64) -> GemmOut {
    let at = |p: Ptr, ld: i64, t: DType| if p.is_null() { 0 } else { p.0 + ((m0 * ld + n0) * t.size() as i64) as u64 };
    let read_c = g.beta != 0.0;
    GemmOut {
        d: at(g.d, g.ldd, g.d_dtype),
        c: if read_c { at(g.c, g.ldc, g.c_dtype) } else { 0 },
        bias: at(g.bias, 0, g.bias_dtype),
        scale_inv_a: g.a.scale_inv.0,
        scale_inv_b: g.b.scale_inv.0,
        d_scale: g.d_scale.0,
        d_scale_inv: g.d_scale_inv.0,
        amax: g.amax.0,
        ldd: g.ldd,
        ldc: if read_c { g.ldc } else { 0 },
        alpha: g.alpha,
        beta: g.beta,
        c_dtype: g.c_dtype as i32,
        bias_dtype: g.bias_dtype as i32,
    }
}

/// Output vectors per row of threads (as a power of two) and blocks along k and along the rows, as `kernels/gemm_pack.cu` counts them.
fn pack_blocks(spec: &PackKernel, rows: u64, pitch: u64) -> (u32, [u64; 2]) {
    if spec.transposed {
        // Tiles of 128 bytes of the input each way.
        let side = 128 / spec.input.size() as u64;
        let row_elements = pitch / if spec.decode { 2 } else { spec.input.size() as u64 };
        return (0, [row_elements.div_ceil(side), rows.div_ceil(side)]);
    }
    let vectors = pitch / 16;
    let tx_log = vectors.next_power_of_two().trailing_zeros().min(5);
    (tx_log, [vectors.div_ceil(1 << tx_log), rows.div_ceil(4 * (256 >> tx_log))])
}

/// The operand itself, or its copy in the workspace after enqueuing the kernel that makes it.
unsafe fn pack(queue: &Queue<'_>, g: &OwnArgs, o: &Operand, rows: i64, packed: Option<Packed>, kernel: OwnKernel) -> Result<Rows> {
    let size = o.dtype.size() as i64;
    let Some(p) = packed else {
        let (row, k) = if o.k_major { (o.ld * size, size) } else { (size, o.ld * size) };
        return Ok(Rows { data: o.data.0, row, k, dtype: o.dtype });
    };
    let spec = PackKernel { input: o.dtype, decode: kernel == OwnKernel::Mma && o.dtype.is_fp8(), transposed: !o.k_major };
    let to = g.workspace.0 + p.offset;
    let pitch = p.pitch as u64;
    let (tx_log, [blocks_k, blocks_r]) = pack_blocks(&spec, rows as u64, pitch);
    let grid = blocks(blocks_k.saturating_mul(blocks_r), 0x7FFF_FFFF, "blocks of an operand")?;
    let blocks_k = blocks_k as u32;
    let args = arguments![o.data, to, rows, g.k, o.ld, p.pitch, tx_log, blocks_k];
    // SAFETY: the parameters of `gemm_pack` in their order; input live by contract, the copy inside the workspace.
    unsafe { queue.launch(&spec, &Launch::new([grid, 1, 1], 256), args)? };
    let (dtype, k) = if spec.decode { (DType::F16, 2) } else { (o.dtype, size) };
    Ok(Rows { data: to, row: p.pitch, k, dtype })
}

/// Tile counts, and rows of tiles to walk together.
fn tiles(part: &Part, bm: u32, bn: u32, at_once: u32) -> (u32, u32, u32) {
    ((part.m as u64).div_ceil(bm.into()) as u32, (part.n as u64).div_ceil(bn.into()) as u32, group(bm, bn, at_once))
}

unsafe fn sm90(queue: &Queue<'_>, g: &OwnArgs, part: &Part) -> Result<()> {
    let precise = !g.fast_accumulate;
    let t = sm90_tile(part.m, part.n, g.k, precise, queue.multiprocessors());
    let spec = Sm90Kernel { a: part.a.dtype, b: part.b.dtype, d: g.d_dtype, precise, tile: t };
    let clusters_at_once = (queue.multiprocessors() / t.cluster).max(1);
    let (clusters_m, tiles_n, group) = tiles(part, t.bm * t.cluster, t.bn, clusters_at_once);
    let tiles_m = clusters_m * t.cluster;
    let map_a = tensor_map(queue, &part.a, part.m, g.k, t.bm)?;
    let map_b = tensor_map(queue, &part.b, part.n, g.k, t.bn / t.cluster)?;
    let (m, n, k) = (part.m as i32, part.n as i32, g.k as i32);
    let grid = [clusters_at_once.min(clusters_m * tiles_n) * t.cluster, 1, 1];
    let launch = Launch { smem: spec.dynamic_smem(), cluster: t.cluster, ..Launch::new(grid, 384) };
    // SAFETY: the parameters of `gemm_sm90` in their order; pointers live by contract.
    unsafe { queue.launch(&spec, &launch, arguments![map_a, map_b, part.out, m, n, k, tiles_m, tiles_n, group]) }
}

/// `[rows, k]` bytes in boxes of 128 bytes x `box_rows`, swizzled as wgmma reads them; zeros outside.
fn tensor_map(queue: &Queue<'_>, o: &Rows, rows: i64, k: i64, box_rows: u32) -> Result<CUtensorMap> {
    // SAFETY: an opaque array of integers.
    let mut map: CUtensorMap = unsafe { std::mem::zeroed() };
    if queue.stream.is_prepare() {
        return Ok(map);
    }
    const UINT8: i32 = 0;
    const INTERLEAVE_NONE: i32 = 0;
    const SWIZZLE_128B: i32 = 3;
    const L2_PROMOTION_256B: i32 = 3;
    const FILL_ZERO: i32 = 0;
    let sizes = [k as u64, rows as u64];
    // A single row may have any stride; what is written here is never used.
    let strides = [if rows == 1 { (k as u64).next_multiple_of(16) } else { o.row as u64 }];
    let (boxes, steps) = ([128u32, box_rows], [1u32, 1]);
    let driver = queue.backend.driver;
    // SAFETY: rank 2 with that many sizes, boxes and steps, and one stride; the out-pointer is aligned by its type.
    driver.check("cuTensorMapEncodeTiled", unsafe {
        (driver.tensor_map_encode_tiled)(
            &mut map,
            UINT8,
            2,
            o.data as *mut std::ffi::c_void,
            sizes.as_ptr(),
            strides.as_ptr(),
            boxes.as_ptr(),
            steps.as_ptr(),
            INTERLEAVE_NONE,
            SWIZZLE_128B,
            L2_PROMOTION_256B,
            FILL_ZERO,
        )
    })?;
    Ok(map)
}

/// Large tiles where they fill the device.
fn large(part: &Part, multiprocessors: u32) -> bool {
    (part.m as u64).div_ceil(128) * (part.n as u64).div_ceil(128) >= u64::from(multiprocessors)
}

unsafe fn mma(queue: &Queue<'_>, g: &OwnArgs, part: &Part) -> Result<()> {
    let large = large(part, queue.multiprocessors());
    let spec = MmaKernel { input: part.a.dtype, d: g.d_dtype, large };
    let side = if large { 128 } else { 64 };
    let (tiles_m, tiles_n, group) = tiles(part, side, side, 2 * queue.multiprocessors());
    let (m, n, k) = (part.m as i32, part.n as i32, g.k);
    let launch = Launch { smem: spec.dynamic_smem(), ..Launch::new([tiles_m * tiles_n, 1, 1], spec.threads()) };
    let args = arguments![part.a.data, part.b.data, part.a.row, part.b.row, part.out, m, n, k, tiles_m, tiles_n, group];
    // SAFETY: the parameters of `gemm_mma` in their order; pointers live by contract.
    unsafe { queue.launch(&spec, &launch, args) }
}

unsafe fn simt(queue: &Queue<'_>, g: &OwnArgs, part: &Part) -> Result<()> {
    let large = large(part, queue.multiprocessors());
    let spec = SimtKernel { a: part.a.dtype, b: part.b.dtype, d: g.d_dtype, large };
    let side = if large { 128 } else { 64 };
    let (tiles_m, tiles_n, group) = tiles(part, side, side, 2 * queue.multiprocessors());
    let (m, n, k) = (part.m as i32, part.n as i32, g.k);
    let (size_a, size_b) = (part.a.dtype.size() as i64, part.b.dtype.size() as i64);
    let (row_a, k_a) = (part.a.row / size_a, part.a.k / size_a);
    let (row_b, k_b) = (part.b.row / size_b, part.b.k / size_b);
    let launch = Launch::new([tiles_m * tiles_n, 1, 1], spec.threads());
    let args = arguments![part.a.data, part.b.data, row_a, k_a, row_b, k_b, part.out, m, n, k, tiles_m, tiles_n, group];
    // SAFETY: the parameters of `gemm_simt` in their order; pointers live by contract.
    unsafe { queue.launch(&spec, &launch, args) }
}

/// No products: `bias + beta * C`, or with no elements at all `d_scale_inv` alone.
unsafe fn epilogue_only(queue: &Queue<'_>, g: &OwnArgs) -> Result<()> {
    let empty = g.m == 0 || g.n == 0;
    if empty && g.d_scale_inv.is_null() {
        return Ok(());
    }
    let chunks = (g.m as u64).div_ceil(16).saturating_mul((g.n as u64).div_ceil(64));
    let grid = chunks.div_ceil(8).clamp(1, 8 * u64::from(queue.multiprocessors())) as u32;
    let part = out(g, 0, 0);
    // SAFETY: the parameters of `gemm_epilogue_only` in their order; pointers live by contract.
    unsafe { queue.launch(&EpilogueOnly { d: g.d_dtype }, &Launch::new([grid, 1, 1], 256), arguments![part, g.m, g.n]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(a: DType, b: DType, m: i64, n: i64, k: i64) -> OwnArgs {
        let operand = |dtype| Operand { dtype, data: Ptr(1 << 20), ld: k, k_major: true, scale_inv: Ptr::NULL };
        OwnArgs {
            m,
            n,
            k,
            a: operand(a),
            b: operand(b),
            d: Ptr(1 << 21),
            d_dtype: DType::F32,
            ldd: n,
            c: Ptr::NULL,
            c_dtype: DType::F32,
            ldc: 0,
            bias: Ptr::NULL,
            bias_dtype: DType::F32,
            d_scale: Ptr::NULL,
            d_scale_inv: Ptr::NULL,
            amax: Ptr::NULL,
            alpha: 1.0,
            beta: 0.0,
            fast_accumulate: true,
            workspace: Ptr::NULL,
            workspace_bytes: 0,
            force: None,
        }
    }

    #[test]
    fn the_kernel_follows_from_types_and_architecture() {
        let of = |arch, a, b| plan(arch, &args(a, b, 64, 64, 64)).unwrap().kernel;
        assert_eq!(of(90, DType::E4m3, DType::E5m2), OwnKernel::Sm90);
        assert_eq!(of(89, DType::E4m3, DType::E5m2), OwnKernel::Mma);
        assert_eq!(of(100, DType::E5m2, DType::E5m2), OwnKernel::Mma);
        assert_eq!(of(90, DType::Bf16, DType::Bf16), OwnKernel::Mma);
        assert_eq!(of(90, DType::F32, DType::F32), OwnKernel::Simt);
        assert_eq!(of(90, DType::F16, DType::Bf16), OwnKernel::Simt);
    }

    #[test]
    fn aligned_operands_are_read_in_place_and_others_are_packed() {
        let mut g = args(DType::E4m3, DType::E4m3, 100, 50, 64);
        assert_eq!(workspace(90, &g).unwrap(), 0);
        // Decoding always writes a copy: 100 and 50 rows of 128 bytes.
        assert_eq!(workspace(80, &g).unwrap(), 12_800 + 6_400);
        g.a.data = Ptr((1 << 20) + 1);
        assert_eq!(plan(90, &g).unwrap().a, Some(Packed { offset: 0, pitch: 64 }));
        g.b.k_major = false;
        assert_eq!(plan(90, &g).unwrap().b, Some(Packed { offset: 6_400, pitch: 64 }));
        // Null: any alignment.
        (g.a.data, g.b.k_major) = (Ptr::NULL, true);
        assert_eq!(workspace(90, &g).unwrap(), 6_400);
        let mut g = args(DType::E4m3, DType::E4m3, 1, 1, 4099);
        assert_eq!(workspace(90, &g).unwrap(), 0, "a single row has no stride");
        g.a.data = Ptr::NULL;
        assert_eq!(workspace(90, &g).unwrap(), 4224 + 128);
        g.force = Some(OwnKernel::Simt);
        assert_eq!(workspace(90, &g).unwrap(), 0);
    }

    #[test]
    fn what_cannot_be_forced_is_an_error_and_sizes_do_not_wrap() {
        let mut g = args(DType::F32, DType::F32, 8, 8, 8);
        g.force = Some(OwnKernel::Sm90);
        assert_eq!(workspace(90, &g).unwrap_err().status(), Status::Unsupported);
        let mut g = args(DType::E4m3, DType::E4m3, i64::MAX / 4, 8, 1 << 20);
        g.a.data = Ptr::NULL;
        assert_eq!(workspace(90, &g).unwrap_err().status(), Status::SizeOverflow);
        assert_eq!(plan(90, &args(DType::E4m3, DType::E4m3, 8, 8, 1 << 31)).unwrap().kernel, OwnKernel::Mma);
    }
}
