//! cuBLASLt: its functions, resolved at first use into a table that returns plain integers, and one product as it wants to be asked.
//!
//! cuBLASLt is column-major. A row-major D[M,N] is to it the matrix Dᵀ[N,M], so it is asked for `Dᵀ = B · Aᵀ`: its A is our B.

use std::{
    ffi::{c_int, c_void, CStr},
    path::PathBuf,
    ptr,
    sync::{
        atomic::{AtomicBool, Ordering},
        OnceLock,
    },
};

use cudarc::cublaslt::sys::{
    cublasComputeType_t, cublasLtEpilogue_t, cublasLtMatmulAlgoConfigAttributes_t as AlgoAttribute, cublasLtMatmulAlgo_t,
    cublasLtMatmulDescAttributes_t as DescAttribute, cublasLtMatmulDescOpaque_t, cublasLtMatmulHeuristicResult_t,
    cublasLtMatmulPreferenceAttributes_t as PrefAttribute, cublasLtReductionScheme_t, cudaDataType_t,
};

use super::plans::Key;
use crate::{
    backend::cuda::{
        driver::{Driver, Handle, Relaxed},
        library::{self, Library},
    },
    error::{Error, Result, Status},
    ops::gemm::{Accumulate, Operand, Problem},
    tensor::{DType, Ptr},
};

/// `cublasLtMatmulDescOpaque_t` of CUDA 12.2 and later: 256 bytes without pointers into themselves, so a copy is a descriptor too.
pub(super) type Desc = [u64; 32];
const _: () = assert!(size_of::<Desc>() == size_of::<cublasLtMatmulDescOpaque_t>());
/// `cublasLtMatrixLayoutOpaque_t` (64 bytes; 112 since CUDA 13.1) and `cublasLtMatmulPreferenceOpaque_t` (64; 96).
/// Their initialisers are told how much room there is.
type Opaque = [u64; 16];
/// `cublasLtMatmulAlgo_t`: plain data that may be written down and read back with the same version of cuBLASLt.
pub(super) type Algo = [u64; 8];
const _: () = assert!(size_of::<Algo>() == size_of::<cublasLtMatmulAlgo_t>());

/// `cublasLtMatmulHeuristicResult_t`, its status as a plain integer.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Found {
    algo: Algo,
    workspace: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}
const _: () = assert!(size_of::<Found>() == size_of::<cublasLtMatmulHeuristicResult_t>());

/// Statuses with which cuBLASLt refuses a product before anything is enqueued.
const REFUSALS: [c_int; 3] = [7, 8, 15];

macro_rules! table {
    ($($field:ident = $symbol:literal : fn($($arg:ty),*) -> $ret:ty;)*) => {
        /// cuBLASLt's functions.
        pub(crate) struct CublasLt {
            library: Library,
            $($field: unsafe extern "C" fn($($arg),*) -> $ret,)*
        }

        impl CublasLt {
            fn resolve(library: Library) -> Result<Self> {
                Ok(Self {
                    $($field: {
                        let p = library.symbol($symbol).ok_or_else(|| Error::new(
                            Status::CublasLtNotFound,
                            format!("{} lacks {}", library.name(), $symbol.to_string_lossy()),
                        ))?;
                        // SAFETY: cuBLASLt's ABI fixes this function's signature.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> $ret>(p) }
                    },)*
                    library,
                })
            }
        }
    };
}

table! {
    get_version = c"cublasLtGetVersion": fn() -> usize;
    create = c"cublasLtCreate": fn(*mut Handle) -> c_int;
    destroy = c"cublasLtDestroy": fn(Handle) -> c_int;
    desc_init = c"cublasLtMatmulDescInit_internal": fn(*mut Desc, usize, c_int, c_int) -> c_int;
    desc_set = c"cublasLtMatmulDescSetAttribute": fn(*mut Desc, c_int, *const c_void, usize) -> c_int;
    layout_init = c"cublasLtMatrixLayoutInit_internal": fn(*mut Opaque, usize, c_int, u64, u64, i64) -> c_int;
    preference_init = c"cublasLtMatmulPreferenceInit_internal": fn(*mut Opaque, usize) -> c_int;
    preference_set = c"cublasLtMatmulPreferenceSetAttribute": fn(*mut Opaque, c_int, *const c_void, usize) -> c_int;
    heuristic = c"cublasLtMatmulAlgoGetHeuristic": fn(Handle, *const Desc, *const Opaque, *const Opaque, *const Opaque, *const Opaque, *const Opaque, c_int, *mut Found, *mut c_int) -> c_int;
    check = c"cublasLtMatmulAlgoCheck": fn(Handle, *const Desc, *const Opaque, *const Opaque, *const Opaque, *const Opaque, *const Algo, *mut Found) -> c_int;
    algo_get = c"cublasLtMatmulAlgoConfigGetAttribute": fn(*const Algo, c_int, *mut c_void, usize, *mut usize) -> c_int;
    matmul = c"cublasLtMatmul": fn(Handle, *const Desc, *const f32, *const c_void, *const Opaque, *const c_void, *const Opaque, *const f32, *const c_void, *const Opaque, *mut c_void, *const Opaque, *const Algo, *mut c_void, usize, Handle) -> c_int;
    status_name = c"cublasLtGetStatusName": fn(c_int) -> *const std::ffi::c_char;
}

/// What is said where it is missing.
pub(crate) const NOT_FOUND: &str =
    "cuBLASLt (libcublasLt.so.13 or .12) was not found: `pip install nvidia-cublas`, or name its folder in NVTE_LIBRARY_PATH";

impl CublasLt {
    /// cuBLASLt, found and opened at first use; where it was not found, the next context looks again.
    pub(crate) fn get(dirs: &[PathBuf]) -> Result<&'static CublasLt> {
        static LIBRARY: OnceLock<CublasLt> = OnceLock::new();
        if let Some(l) = LIBRARY.get() {
            return Ok(l);
        }
        let library = library::find(&library::CUBLAS_LT, dirs).ok_or_else(|| Error::new(Status::CublasLtNotFound, NOT_FOUND))?;
        let loaded = Self::resolve(library)?;
        Ok(LIBRARY.get_or_init(|| loaded))
    }

    /// 130100 for 13.1.0.
    pub(crate) fn version(&self) -> usize {
        // SAFETY: no arguments.
        unsafe { (self.get_version)() }
    }

    /// A handle for the current CUDA context. Allocates.
    pub(super) fn new_handle(&self) -> Result<Handle> {
        let mut handle = ptr::null_mut();
        // SAFETY: an out-pointer.
        let code = unsafe { (self.create)(&mut handle) };
        match code {
            0 => Ok(handle),
            _ => Err(self.error("cublasLtCreate", code)),
        }
    }

    /// # Safety
    /// A handle of [`CublasLt::new_handle`], not used afterwards.
    pub(super) unsafe fn end_handle(&self, handle: Handle) {
        // SAFETY: by contract.
        unsafe { (self.destroy)(handle) };
    }

    fn error(&self, what: &str, code: c_int) -> Error {
        // SAFETY: gives a static string for every number.
        let name = unsafe {
            let p = (self.status_name)(code);
            if p.is_null() {
                "unknown".into()
            } else {
                CStr::from_ptr(p).to_string_lossy()
            }
        };
        Error::with_code(Status::CublasLt, code, format!("{what} of {} returned {code} ({name})", self.library.name()))
    }

    fn set<T>(&self, desc: &mut Desc, attribute: DescAttribute, value: &T) -> Option<()> {
        // SAFETY: an initialised descriptor; the value has the size passed.
        let code = unsafe { (self.desc_set)(desc, attribute as c_int, ptr::from_ref(value).cast(), size_of::<T>()) };
        (code == 0).then_some(())
    }

    fn layout(&self, dtype: DType, rows: i64, cols: i64, ld: i64) -> Option<Opaque> {
        let mut layout = Opaque::default();
        // SAFETY: room as passed.
        let code = unsafe { (self.layout_init)(&mut layout, size_of::<Opaque>(), data_type(dtype), rows as u64, cols as u64, ld) };
        (code == 0).then_some(layout)
    }
}

fn data_type(t: DType) -> c_int {
    let t = match t {
        DType::F32 => cudaDataType_t::CUDA_R_32F,
        DType::F16 => cudaDataType_t::CUDA_R_16F,
        DType::Bf16 => cudaDataType_t::CUDA_R_16BF,
        DType::E4m3 => cudaDataType_t::CUDA_R_8F_E4M3,
        DType::E5m2 => cudaDataType_t::CUDA_R_8F_E5M2,
    };
    t as c_int
}

const MIB: u64 = 1 << 20;

/// The most that [`scratch`] says.
pub(super) const MOST_SCRATCH: u64 = 32 * MIB;

/// Scratch memory that cuBLASLt may choose its algorithm for: sixteen slices of K of this result, whole mebibytes, 32 MiB at most.
pub(super) fn scratch(p: &Problem) -> u64 {
    let slices = (p.m as u64).saturating_mul(p.n as u64).saturating_mul(64);
    slices.div_ceil(MIB).clamp(1, MOST_SCRATCH / MIB) * MIB
}

/// Whether cuBLASLt can compute this product exactly as specified. It may still refuse; these are its published conditions, and those
/// under which it adds the bias without another rounding.
pub(super) fn serves(arch: i32, p: &Problem) -> bool {
    const LIMIT: i64 = i32::MAX as i64;
    let (a, b, d) = (p.a.dtype, p.b.dtype, p.d_dtype);
    let aligned = |ptr: Ptr| ptr.0 % 16 == 0;
    if p.m == 0 || p.n == 0 || p.k == 0 || p.m > LIMIT || p.n > LIMIT || p.k > LIMIT {
        return false;
    }
    // To a 16-bit D it rounds before it adds beta C (measured: up to 1.5 ulp).
    if p.beta != 0.0 && (p.c_dtype != d || d.size() == 2) {
        return false;
    }
    if a.is_fp8() {
        let k_major = p.a.k_major && p.b.k_major;
        let multiples = [p.k, p.n, p.a.ld, p.b.ld].iter().all(|v| v % 16 == 0);
        let row = d.size() as i64;
        let rows = p.ldd.wrapping_mul(row) % 16 == 0 && (p.beta == 0.0 || p.ldc.wrapping_mul(row) % 16 == 0);
        let bases = [p.a.data, p.b.data, p.c, p.d].into_iter().all(aligned);
        // The datacentre parts of the 10.x family read other layouts too.
        let layouts = k_major || (100..120).contains(&arch) && p.m % 16 == 0;
        let bias = p.bias.is_null() || aligned(p.bias) && p.bias_dtype == if d == DType::F32 { DType::Bf16 } else { d };
        return arch >= 89 && (a, b) != (DType::E5m2, DType::E5m2) && !d.is_fp8() && layouts && multiples && rows && bases && bias;
    }
    // Its kernels for odd shapes round a 16-bit product before they add the bias.
    let even = d == DType::F32
        || [p.m, p.n, p.k, p.a.ld, p.b.ld, p.ldd].iter().all(|v| v % 8 == 0) && [p.a.data, p.b.data, p.d].into_iter().all(aligned);
    (d == a || d == DType::F32) && (p.bias.is_null() || aligned(p.bias) && p.bias_dtype == d && even)
}

/// A product as cuBLASLt knows it: immutable, shared by threads. Pointers go into a copy of the descriptor at each call.
pub(super) struct LtPlan {
    lt: &'static CublasLt,
    desc: Desc,
    /// Our B, our A, C, D.
    layouts: [Opaque; 4],
    pub(super) algo: Algo,
    pub(super) workspace: usize,
    /// Whether it has run: cuBLASLt loads a kernel when it first enqueues it.
    ran: AtomicBool,
}

/// How a call of cuBLASLt ended.
pub(super) enum Outcome {
    Enqueued,
    /// Refused with this status, and nothing was enqueued.
    Refused(c_int),
}

impl LtPlan {
    /// Everything but the algorithm.
    fn new(lt: &'static CublasLt, p: &Problem) -> Option<Self> {
        let mut desc = Desc::default();
        let (compute, scale) = (cublasComputeType_t::CUBLAS_COMPUTE_32F as c_int, data_type(DType::F32));
        // SAFETY: room as passed.
        if unsafe { (lt.desc_init)(&mut desc, size_of::<Desc>(), compute, scale) } != 0 {
            return None;
        }
        // K-major rows are, column by column, the matrix [K, rows].
        let operand = |o: &Operand, rows: i64| match o.k_major {
            true => lt.layout(o.dtype, p.k, rows, o.ld),
            false => lt.layout(o.dtype, rows, p.k, o.ld),
        };
        lt.set(&mut desc, DescAttribute::CUBLASLT_MATMUL_DESC_TRANSA, &i32::from(p.b.k_major))?;
        lt.set(&mut desc, DescAttribute::CUBLASLT_MATMUL_DESC_TRANSB, &i32::from(!p.a.k_major))?;
        if p.a.dtype.is_fp8() {
            lt.set(&mut desc, DescAttribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM, &i8::from(p.accumulate == Accumulate::Fast))?;
        }
        if !p.bias.is_null() {
            lt.set(&mut desc, DescAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &(cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS as u32))?;
            lt.set(&mut desc, DescAttribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &data_type(p.bias_dtype))?;
        }
        let d = lt.layout(p.d_dtype, p.n, p.m, p.ldd)?;
        let c = if p.beta == 0.0 { d } else { lt.layout(p.c_dtype, p.n, p.m, p.ldc)? };
        let layouts = [operand(&p.b, p.n)?, operand(&p.a, p.m)?, c, d];
        Some(Self { lt, desc, layouts, algo: Algo::default(), workspace: 0, ran: AtomicBool::new(false) })
    }

    /// With an algorithm chosen earlier, if this cuBLASLt accepts it.
    pub(super) fn with_algo(lt: &'static CublasLt, handle: Handle, p: &Problem, algo: &Algo) -> Option<Self> {
        let mut plan = Self::new(lt, p)?;
        let (desc, mut found) = (plan.with_pointers(p)?, Found::default());
        let [b, a, c, d] = &plan.layouts;
        // SAFETY: a live handle; initialised descriptors; an out-pointer.
        let code = unsafe { (lt.check)(handle, &desc, b, a, c, d, algo, &mut found) };
        if code != 0 || found.state > 0 || found.workspace as u64 > scratch(p) {
            return None;
        }
        (plan.algo, plan.workspace) = (*algo, found.workspace);
        Some(plan)
    }

    /// Up to `count` plans, the heuristic's first choice first.
    pub(super) fn candidates(lt: &'static CublasLt, handle: Handle, p: &Problem, key: &Key, count: usize) -> Option<Vec<Self>> {
        let plan = Self::new(lt, p)?;
        let desc = plan.with_pointers(p)?;
        let mut preference = Opaque::default();
        // SAFETY: room as passed.
        if unsafe { (lt.preference_init)(&mut preference, size_of::<Opaque>()) } != 0 {
            return None;
        }
        let mut set = |attribute: PrefAttribute, value: u64, size: usize| {
            // SAFETY: an initialised preference; on a little-endian machine the first `size` bytes are the value.
            let code = unsafe { (lt.preference_set)(&mut preference, attribute as c_int, ptr::from_ref(&value).cast(), size) };
            (code == 0).then_some(())
        };
        set(PrefAttribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, scratch(p), 8)?;
        // Slices of K are added in f32: in the workspace, or in D where that is f32 itself.
        let in_place = match p.d_dtype {
            DType::F32 => cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_INPLACE as u64,
            _ => 0,
        };
        let schemes = cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u64 | in_place;
        set(PrefAttribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes, 4)?;
        let [a, b, c, d] = key.alignments();
        set(PrefAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, b, 4)?;
        set(PrefAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, a, 4)?;
        set(PrefAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, c, 4)?;
        set(PrefAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, d, 4)?;
        let mut found = vec![Found::default(); count];
        let mut n: c_int = 0;
        let [b, a, c, d] = &plan.layouts;
        // SAFETY: a live handle; initialised descriptors; room for `count` results.
        let code = unsafe { (lt.heuristic)(handle, &desc, b, a, c, d, &preference, count as c_int, found.as_mut_ptr(), &mut n) };
        if code != 0 {
            return None;
        }
        found.truncate(n.max(0) as usize);
        let good = found.iter().filter(|f| f.state == 0 && f.workspace as u64 <= scratch(p));
        Some(
            good.map(|f| Self {
                lt,
                desc: plan.desc,
                layouts: plan.layouts,
                algo: f.algo,
                workspace: f.workspace,
                ran: AtomicBool::new(false),
            })
            .collect(),
        )
    }

    /// The descriptor with the addresses of one call.
    #[inline]
    fn with_pointers(&self, p: &Problem) -> Option<Desc> {
        let mut desc = self.desc;
        if p.a.dtype.is_fp8() {
            self.lt.set(&mut desc, DescAttribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &p.b.scale_inv.0)?;
            self.lt.set(&mut desc, DescAttribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &p.a.scale_inv.0)?;
        }
        if !p.bias.is_null() {
            self.lt.set(&mut desc, DescAttribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p.bias.0)?;
        }
        Some(desc)
    }

    /// Enqueues the product.
    ///
    /// # Safety
    /// The problem has this plan's key, its pointers are live, the workspace has `scratch` bytes from the next multiple of 256.
    #[inline]
    pub(super) unsafe fn run(&self, handle: Handle, p: &Problem, stream: Handle) -> Result<Outcome> {
        let Some(desc) = self.with_pointers(p) else { return Ok(Outcome::Refused(7)) };
        let [b, a, c, d] = &self.layouts;
        let old = if p.beta == 0.0 { p.d } else { p.c };
        let workspace = p.workspace.0.next_multiple_of(256) as *mut c_void;
        let ran = self.ran.load(Ordering::Relaxed);
        let _loading = if ran { None } else { Some(Relaxed::new(Driver::get()?)) };
        // SAFETY: by contract.
        let code = unsafe {
            (self.lt.matmul)(
                handle,
                &desc,
                &p.alpha,
                p.b.data.as_ptr(),
                b,
                p.a.data.as_ptr(),
                a,
                &p.beta,
                old.as_ptr(),
                c,
                p.d.as_ptr(),
                d,
                &self.algo,
                workspace,
                self.workspace,
                stream,
            )
        };
        match code {
            0 => {
                if !ran {
                    self.ran.store(true, Ordering::Relaxed);
                }
                Ok(Outcome::Enqueued)
            }
            code if REFUSALS.contains(&code) => Ok(Outcome::Refused(code)),
            code => Err(self.lt.error("cublasLtMatmul", code)),
        }
    }

    /// Whether its kernel is loaded.
    pub(super) fn has_run(&self) -> bool {
        self.ran.load(Ordering::Relaxed)
    }

    /// Which of cuBLASLt's kernels it is, in its own numbers.
    pub(super) fn describe(&self) -> String {
        let get = |attribute: AlgoAttribute| {
            let (mut v, mut written) = (-1i32, 0usize);
            // SAFETY: four bytes of room; an out-pointer.
            unsafe { (self.lt.algo_get)(&self.algo, attribute as c_int, ptr::from_mut(&mut v).cast(), 4, &mut written) };
            v
        };
        format!(
            "cuBLASLt {}, algorithm {}, tile {}, stages {}, split {}, workspace {}",
            self.lt.version(),
            get(AlgoAttribute::CUBLASLT_ALGO_CONFIG_ID),
            get(AlgoAttribute::CUBLASLT_ALGO_CONFIG_TILE_ID),
            get(AlgoAttribute::CUBLASLT_ALGO_CONFIG_STAGES_ID),
            get(AlgoAttribute::CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
            self.workspace
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ops::gemm::GemmArgs, tensor::TensorView};

    fn problem(t: DType, d: DType, change: impl Fn(&mut GemmArgs)) -> Problem {
        let view = |t, rows, cols, at: u64| TensorView::new(t, Ptr(at), rows, cols);
        let mut args = GemmArgs::new(view(t, 48, 64, 1 << 20), view(t, 32, 64, 2 << 20), view(d, 48, 32, 3 << 20), Accumulate::Fast);
        change(&mut args);
        Problem::any(&args).unwrap()
    }

    #[test]
    fn what_cublaslt_is_asked_for() {
        use DType::*;
        let asked = |arch, t, d, change: fn(&mut GemmArgs)| serves(arch, &problem(t, d, change));
        for d in [F32, F16, Bf16] {
            assert!(asked(90, E4m3, d, |_| {}) && asked(89, E4m3, d, |g| g.a.dtype = E5m2));
            assert!(!asked(80, E4m3, d, |_| {}), "no FP8 there");
            assert!(!asked(90, E5m2, d, |_| {}), "a pair that tensor cores lack");
        }
        assert!(!asked(90, E4m3, E4m3, |_| {}), "FP8 output");
        let not_fp8: [fn(&mut GemmArgs); 9] = [
            |g| g.a.data.0 += 8,
            |g| g.a.ld = 72,
            |g| g.d.ld = 36,
            |g| (g.transpose_a, g.a.rows, g.a.cols, g.a.ld) = (true, 64, 48, 48),
            |g| (g.bias, g.bias_dtype) = (Ptr(256), F32),
            |g| (g.bias, g.bias_dtype) = (Ptr(258), Bf16),
            |g| (g.beta, g.c) = (1.0, Some(TensorView { dtype: F32, ..g.d })),
            |g| (g.beta, g.c) = (1.0, Some(g.d)),
            |g| g.alpha = 0.0,
        ];
        for (i, change) in not_fp8.into_iter().enumerate() {
            assert!(!asked(90, E4m3, Bf16, change), "{i}");
        }
        let fp8: [fn(&mut GemmArgs); 3] = [
            |g| (g.bias, g.bias_dtype) = (Ptr(256), Bf16),
            |g| (g.a.rows, g.d.rows) = (47, 47),
            |g| (g.transpose_a, g.a.rows, g.a.cols, g.a.data_t, g.a.ld_t) = (true, 64, 48, Ptr(512), 64),
        ];
        for (i, change) in fp8.into_iter().enumerate() {
            assert!(asked(90, E4m3, Bf16, change), "{i}");
        }
        // 16 and 32 bits: any layout and alignment; output of their own type or f32; nothing that would round twice.
        assert!(asked(80, Bf16, Bf16, |g| g.a.data.0 += 2) && asked(80, F16, F32, |g| g.a.ld = 65) && asked(80, F32, F32, |_| {}));
        assert!(!asked(90, Bf16, F16, |_| {}) && !asked(90, F32, Bf16, |_| {}) && !asked(90, F16, E5m2, |_| {}));
        assert!(!asked(90, Bf16, F32, |g| (g.bias, g.bias_dtype) = (Ptr(256), Bf16)));
        assert!(asked(90, E4m3, F32, |g| (g.beta, g.c) = (1.0, Some(g.d))) && asked(90, Bf16, F32, |g| (g.beta, g.c) = (1.0, Some(g.d))));
        assert!(asked(90, Bf16, Bf16, |g| (g.bias, g.bias_dtype) = (Ptr(256), Bf16)));
        assert!(!asked(90, Bf16, Bf16, |g| (g.bias, g.bias_dtype, g.a.ld) = (Ptr(256), Bf16, 65)));
        assert!(!asked(90, F16, F16, |g| (g.beta, g.c) = (1.0, Some(g.d))));
    }

    /// With the library, but no device: it accepts the descriptors, and a copy with addresses leaves the plan as it was.
    #[test]
    fn descriptors_are_accepted_and_copied() {
        let lt = match CublasLt::get(&[]) {
            Ok(lt) => lt,
            Err(e) => return println!("not run: {e}"),
        };
        assert!(lt.version() >= 120_000);
        for t in DType::ALL {
            for k_major in [false, true] {
                let p = problem(t, DType::F32, |g| {
                    (g.bias, g.bias_dtype) = (Ptr(256), if t.is_fp8() { DType::Bf16 } else { DType::F32 });
                    if t.is_fp8() {
                        g.a.scale_inv = Ptr(64);
                    }
                    if !k_major {
                        (g.transpose_a, g.a.rows, g.a.cols, g.a.ld) = (true, 64, 48, 48);
                    }
                    (g.beta, g.c) = (1.0, Some(g.d));
                });
                let plan = LtPlan::new(lt, &p).expect("accepted");
                let before = plan.desc;
                let copy = plan.with_pointers(&p).expect("accepted");
                assert!(plan.desc == before && copy != before);
                assert!(copy.contains(&p.bias.0) && (!t.is_fp8() || copy.contains(&p.a.scale_inv.0)));
            }
        }
    }
}
