//! Matrix products: FP8 and high-precision GEMM.
//!
//! ```text
//! D[M,N] = alpha * scale_inv_A * scale_inv_B * (op(A)[M,K] · op(B)[N,K]ᵀ) + bias[N] + beta * C[M,N]
//! ```
//!
//! Accumulated in f32, the bias added in f32 after scaling, rounded once (NUMERICS sections 5 and 6). Any sizes, strides and
//! alignments: where the fastest kernel has conditions, another one serves.

use super::{cast::CastJob, check};
use crate::{
    context::{Context, Stream},
    error::{Error, Result, Status},
    tensor::{DType, Ptr, TensorView},
};

/// How FP8 products are accumulated. There is no default: the caller says which. For operands of 16 and 32 bits both mean f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Accumulate {
    /// The tensor core's own accumulator for the whole K (about 14 bits on sm_89 and sm_90).
    Fast = 1,
    /// Partial sums are promoted to f32 as K goes on.
    Precise = 2,
}

impl Accumulate {
    /// The mode with this number; 0 is none.
    pub fn from_i32(v: i32) -> Result<Self> {
        match v {
            1 => Ok(Self::Fast),
            2 => Ok(Self::Precise),
            _ => Err(Error::argument(Status::InvalidEnum, "accumulate", v, "must be 1 (fast) or 2 (precise); there is no default")),
        }
    }
}

/// What is applied to each element before it is rounded. The activations are names kept for later: for now they are an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum Epilogue {
    /// Nothing.
    #[default]
    None = 0,
    /// gelu, tanh form. Reserved.
    Gelu = 1,
    /// gelu, erf form. Reserved.
    GeluErf = 2,
    /// x · sigmoid(x). Reserved.
    Silu = 3,
    /// max(x, 0). Reserved.
    Relu = 4,
    /// x · sigmoid(1.702 x). Reserved.
    Qgelu = 5,
    /// max(x, 0)². Reserved.
    Srelu = 6,
}

impl Epilogue {
    /// The epilogue with this number.
    pub fn from_i32(v: i32) -> Result<Self> {
        use Epilogue::*;
        [None, Gelu, GeluErf, Silu, Relu, Qgelu, Srelu]
            .into_iter()
            .find(|e| *e as i32 == v)
            .ok_or_else(|| Error::argument(Status::InvalidEnum, "epilogue", v, "must be 0 (none); 1 to 6 are kept for activations"))
    }
}

/// Arguments of [`fp8_gemm`] and [`gemm`].
#[derive(Clone, Copy, Debug)]
pub struct GemmArgs {
    /// `[M, K]`, or `[K, M]` with `transpose_a`. FP8 with `scale_inv` (null: 1), or f32, f16, bf16. Where both layouts (`data`, `data_t`)
    /// are present they hold the same values, and the call reads the one whose rows run along K.
    pub a: TensorView,
    /// `[N, K]`, or `[K, N]` with `transpose_b`. Likewise.
    pub b: TensorView,
    /// `a` is given as `[K, M]`.
    pub transpose_a: bool,
    /// `b` is given as `[K, N]`.
    pub transpose_b: bool,
    /// Factor of the product. 0: A and B are not read.
    pub alpha: f32,
    /// Factor of C. 0: C is not read.
    pub beta: f32,
    /// `[N]`, contiguous; null: none.
    pub bias: Ptr,
    /// f32, f16 or bf16; looked at only where there is a bias.
    pub bias_dtype: DType,
    /// f32, f16 or bf16 `[M, N]`; needed where `beta` is not 0. It may be `d` itself (same address, stride and type), else must not overlap it.
    pub c: Option<TensorView>,
    /// `[M, N]`: f32, f16, bf16; or FP8, with `scale` read (null: 1), `scale_inv` written, and the amax of the values before scaling recorded.
    pub d: TensorView,
    /// How FP8 products are accumulated.
    pub accumulate: Accumulate,
    /// Applied before rounding.
    pub epilogue: Epilogue,
    /// Memory that the call may use until the stream has passed, a multiple of 16 bytes; its contents do not matter. Never shared by two streams.
    pub workspace: Ptr,
    /// Its size, at least what [`gemm_workspace`] says.
    pub workspace_bytes: u64,
}

impl GemmArgs {
    /// `D = op(A) · op(B)ᵀ`: alpha 1, no bias, no C, no workspace; both operands with their rows along K.
    pub fn new(a: TensorView, b: TensorView, d: TensorView, accumulate: Accumulate) -> Self {
        Self {
            a,
            b,
            transpose_a: false,
            transpose_b: false,
            alpha: 1.0,
            beta: 0.0,
            bias: Ptr::NULL,
            bias_dtype: DType::F32,
            c: None,
            d,
            accumulate,
            epilogue: Epilogue::None,
            workspace: Ptr::NULL,
            workspace_bytes: 0,
        }
    }

    /// The same with these transposition flags.
    pub fn with_transposes(mut self, transpose_a: bool, transpose_b: bool) -> Self {
        (self.transpose_a, self.transpose_b) = (transpose_a, transpose_b);
        self
    }

    /// The same with a bias.
    pub fn with_bias(mut self, bias: impl Into<Ptr>, dtype: DType) -> Self {
        (self.bias, self.bias_dtype) = (bias.into(), dtype);
        self
    }

    /// The same with `beta * c` added.
    pub fn with_c(mut self, beta: f32, c: TensorView) -> Self {
        (self.beta, self.c) = (beta, Some(c));
        self
    }

    /// The same with a workspace.
    pub fn with_workspace(mut self, workspace: impl Into<Ptr>, bytes: u64) -> Self {
        (self.workspace, self.workspace_bytes) = (workspace.into(), bytes);
        self
    }
}

/// `D = alpha·scale_inv_A·scale_inv_B·(A·Bᵀ) + bias + beta·C` with FP8 operands, in any pair of formats.
///
/// # Safety
/// See [the module](super).
pub unsafe fn fp8_gemm(ctx: &Context, args: &GemmArgs, stream: Stream) -> Result<()> {
    let p = Problem::fp8(args)?;
    p.check_memory(ctx, args)?;
    // SAFETY: validated; the caller vouches for the pointers.
    unsafe { ctx.backend().gemm(&p, stream) }
}

/// The forward pass of a small Linear in one launch, where the back end has one; says whether it has run. The cast `x` and, where the codes
/// of the weight are not there yet, the cast `w`, of which `keep` says that its codes are read again; `args` multiplies what they write.
///
/// # Safety
/// See [the module](super). The casts are validated.
pub(crate) unsafe fn linear_small(
    ctx: &Context,
    x: &CastJob,
    w: Option<&CastJob>,
    keep: bool,
    args: &GemmArgs,
    stream: Stream,
) -> Result<bool> {
    let p = Problem::fp8(args)?;
    p.check_memory(ctx, args)?;
    // SAFETY: validated; the caller vouches for the pointers.
    unsafe { ctx.backend().linear_small(x, w, keep, &p, stream) }
}

/// `D = alpha·(A·Bᵀ) + bias + beta·C` with f32, f16 or bf16 operands, both of one type. f32 is never computed as TF32.
///
/// # Safety
/// See [the module](super).
pub unsafe fn gemm(ctx: &Context, args: &GemmArgs, stream: Stream) -> Result<()> {
    let p = Problem::high(args)?;
    p.check_memory(ctx, args)?;
    // SAFETY: validated; the caller vouches for the pointers.
    unsafe { ctx.backend().gemm(&p, stream) }
}

/// Bytes of workspace that a call with these arguments needs.
///
/// Depends on types, sizes, strides, layouts, flags and the device, and of the pointers only on which are null and which are multiples of
/// 16 bytes (null counts as one that is): ask with null pointers before there is memory, if the memory will be aligned so.
pub fn gemm_workspace(ctx: &Context, args: &GemmArgs) -> Result<u64> {
    ctx.backend().gemm_workspace(&Problem::any(args)?)
}

/// Times up to `candidates` ways to compute this product on the caller's buffers and keeps the fastest for all later calls of this
/// context with the same types, sizes, strides and alignments. **Overwrites D** (and its slots), and waits for the device.
///
/// Never needed: without it the library's first choice is taken, which depends on nothing but the arguments, the device and the version
/// of cuBLASLt. The choices can be carried to another process: [`gemm_plans_export`].
///
/// # Safety
/// See [the module](super).
pub unsafe fn gemm_prepare(ctx: &Context, args: &GemmArgs, candidates: u32, stream: Stream) -> Result<()> {
    let p = Problem::any(args)?;
    p.check_memory(ctx, args)?;
    if candidates == 0 || candidates > MAX_CANDIDATES {
        return Err(Error::argument(Status::InvalidValue, "candidates", candidates, format!("must be 1 to {MAX_CANDIDATES}")));
    }
    // SAFETY: validated; the caller vouches for the pointers.
    unsafe { ctx.backend().gemm_prepare(&p, candidates, stream) }
}

/// Most candidates that [`gemm_prepare`] times.
pub const MAX_CANDIDATES: u32 = 64;

/// The choices made by [`gemm_prepare`] (or imported) as lines of text.
pub fn gemm_plans_export(ctx: &Context) -> String {
    ctx.backend().gemm_plans_export()
}

/// Takes over choices that [`gemm_plans_export`] wrote on the same kind of device with the same version of cuBLASLt.
pub fn gemm_plans_import(ctx: &Context, text: &str) -> Result<()> {
    ctx.backend().gemm_plans_import(text)
}

/// One operand as the product reads it: `rows` of K elements each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operand {
    pub(crate) dtype: DType,
    pub(crate) data: Ptr,
    pub(crate) ld: i64,
    /// Element (row, k) lies at `row * ld + k`; otherwise at `k * ld + row`.
    pub(crate) k_major: bool,
    pub(crate) scale_inv: Ptr,
}

/// A product whose types and sizes fit each other, with one layout chosen per operand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Problem {
    pub(crate) m: i64,
    pub(crate) n: i64,
    /// 0 where alpha is 0: the operands are then not read.
    pub(crate) k: i64,
    pub(crate) a: Operand,
    pub(crate) b: Operand,
    pub(crate) alpha: f32,
    pub(crate) beta: f32,
    /// Null: none.
    pub(crate) bias: Ptr,
    pub(crate) bias_dtype: DType,
    /// Null where beta is 0.
    pub(crate) c: Ptr,
    pub(crate) c_dtype: DType,
    pub(crate) ldc: i64,
    pub(crate) d: Ptr,
    pub(crate) d_dtype: DType,
    pub(crate) ldd: i64,
    /// The slots of an FP8 D; null otherwise.
    pub(crate) d_scale: Ptr,
    pub(crate) d_scale_inv: Ptr,
    pub(crate) d_amax: Ptr,
    /// The CPU always promotes.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) accumulate: Accumulate,
    pub(crate) workspace: Ptr,
    pub(crate) workspace_bytes: u64,
}

impl Problem {
    /// With FP8 operands.
    pub(crate) fn fp8(args: &GemmArgs) -> Result<Self> {
        check::dtype("a", &args.a, check::FP8)?;
        check::dtype("b", &args.b, check::FP8)?;
        Self::new(args)
    }

    /// With f32, f16 or bf16 operands.
    pub(crate) fn high(args: &GemmArgs) -> Result<Self> {
        check::dtype("a", &args.a, check::HIGH)?;
        check::dtype("b", &args.b, check::HIGH)?;
        if args.a.dtype != args.b.dtype {
            return Err(Error::argument(
                Status::InvalidDType,
                "b.dtype",
                args.b.dtype.name(),
                format!("must be that of a, {}", args.a.dtype.name()),
            ));
        }
        for (name, t) in [("a.scale_inv", &args.a), ("b.scale_inv", &args.b)] {
            if !t.scale_inv.is_null() {
                return Err(Error::argument(Status::Unsupported, name, "not NULL", "belongs to FP8 operands"));
            }
        }
        Self::new(args)
    }

    /// With whatever operands `a` has.
    pub(crate) fn any(args: &GemmArgs) -> Result<Self> {
        if args.a.dtype.is_fp8() {
            Self::fp8(args)
        } else {
            Self::high(args)
        }
    }

    fn new(args: &GemmArgs) -> Result<Self> {
        let d = &args.d;
        check::sizes("d", d)?;
        let (m, n) = (d.rows, d.cols);
        let (a, k) = operand("a", &args.a, args.transpose_a, m)?;
        let (b, k_of_b) = operand("b", &args.b, args.transpose_b, n)?;
        if k != k_of_b {
            return Err(Error::argument(
                Status::InvalidShape,
                if args.transpose_b { "b.rows" } else { "b.cols" },
                k_of_b,
                format!("must be K = {k}, as in a"),
            ));
        }
        if args.epilogue != Epilogue::None {
            return Err(Error::argument(
                Status::Unsupported,
                "epilogue",
                format!("{:?}", args.epilogue),
                "activations are not fused yet: must be none",
            ));
        }
        if !d.data_t.is_null() {
            return Err(Error::argument(Status::Unsupported, "d.data_t", "not NULL", "a product writes the row-wise layout only"));
        }
        if !d.dtype.is_fp8() {
            for (name, p) in [("d.scale", d.scale), ("d.scale_inv", d.scale_inv), ("d.amax", d.amax)] {
                if !p.is_null() {
                    return Err(Error::argument(Status::Unsupported, name, "not NULL", "belongs to an FP8 output"));
                }
            }
        }
        if !args.bias.is_null() && args.bias_dtype.is_fp8() {
            return Err(Error::argument(Status::InvalidDType, "bias_dtype", args.bias_dtype.name(), "must be one of f32, f16, bf16"));
        }
        let c = match args.c {
            Some(c) if args.beta != 0.0 => {
                check::dtype("c", &c, check::HIGH)?;
                check::same_shape("c", &c, "d", d)?;
                c
            }
            None if args.beta != 0.0 => {
                return Err(Error::argument(Status::NullPointer, "c", "NULL", format!("is required where beta = {} is not 0", args.beta)));
            }
            _ => TensorView::new(DType::F32, Ptr::NULL, m, n),
        };
        // The stride of a single row means nothing; one form of it makes equal products equal.
        let stride = |ld: i64| if m == 1 { n } else { ld };
        Ok(Self {
            m,
            n,
            k: if args.alpha == 0.0 { 0 } else { k },
            a,
            b,
            alpha: args.alpha,
            beta: args.beta,
            bias: args.bias,
            bias_dtype: args.bias_dtype,
            c: c.data,
            c_dtype: c.dtype,
            ldc: stride(c.ld),
            d: d.data,
            d_dtype: d.dtype,
            ldd: stride(d.ld),
            d_scale: d.scale,
            d_scale_inv: d.scale_inv,
            d_amax: d.amax,
            accumulate: args.accumulate,
            workspace: args.workspace,
            workspace_bytes: args.workspace_bytes,
        })
    }

    /// Pointers, strides, overlap and workspace.
    fn check_memory(&self, ctx: &Context, args: &GemmArgs) -> Result<()> {
        let backend = ctx.backend();
        let slot = |name: &'static str, p: Ptr| -> Result<check::Range> {
            check::pointer(backend, name, p, 4)?;
            Ok(check::Range { name, start: p.0, end: if p.is_null() { 0 } else { p.0 + 4 } })
        };
        let none = check::Range { name: "", start: 0, end: 0 };
        let operand = |name, o: &Operand, t: &TensorView, transposed: bool| match (self.k, o.k_major == transposed) {
            (0, _) => Ok(none),
            (_, true) => check::transposed(backend, name, t),
            (_, false) => check::rowwise(backend, name, t),
        };
        let d = check::rowwise(backend, "d", &args.d)?;
        let c = match &args.c {
            Some(c) if self.beta != 0.0 => check::rowwise(backend, "c", c)?,
            _ => none,
        };
        // Each element of C is read before the one of D in its place is written.
        let in_place = self.c == self.d && self.c_dtype == self.d_dtype && self.ldc == self.ldd;
        let workspace = backend.gemm_workspace(self)?;
        check::workspace(backend, self.workspace, self.workspace_bytes, workspace)?;
        let inputs = [
            operand("a", &self.a, &args.a, args.transpose_a)?,
            operand("b", &self.b, &args.b, args.transpose_b)?,
            check::vector(backend, "bias", self.bias, self.bias_dtype, self.n, true)?,
            if in_place { none } else { c },
            slot("a.scale_inv", self.a.scale_inv)?,
            slot("b.scale_inv", self.b.scale_inv)?,
            slot("d.scale", self.d_scale)?,
        ];
        let used = if workspace == 0 { 0 } else { self.workspace_bytes };
        let outputs = [
            d,
            slot("d.scale_inv", self.d_scale_inv)?,
            slot("d.amax", self.d_amax)?,
            check::Range { name: "workspace", start: self.workspace.0, end: self.workspace.0.saturating_add(used) },
        ];
        check::disjoint(&inputs, &outputs)
    }
}

/// Chooses the layout to read; returns it with its K.
fn operand(name: &'static str, t: &TensorView, transposed: bool, rows: i64) -> Result<(Operand, i64)> {
    check::sizes(name, t)?;
    let (found, k) = if transposed { (t.cols, t.rows) } else { (t.rows, t.cols) };
    if found != rows {
        let (field, size) = (if transposed { "cols" } else { "rows" }, if name == "a" { "M" } else { "N" });
        return Err(Error::argument(
            Status::InvalidShape,
            format_args!("{name}.{field}"),
            found,
            format!("must be {size} = {rows}, as in d"),
        ));
    }
    // `data` runs along the columns, `data_t` along the rows: take the one that runs along K, if it is there.
    let use_t = !t.data_t.is_null() && (transposed || t.data.is_null());
    let (data, ld) = if use_t { (t.data_t, t.ld_t) } else { (t.data, t.ld) };
    let k_major = transposed == use_t;
    let ld = match (k_major, rows, k) {
        (true, 1, _) => k,
        (false, _, 1) => rows,
        _ => ld,
    };
    Ok((Operand { dtype: t.dtype, data, ld, k_major, scale_inv: t.scale_inv }, k))
}
