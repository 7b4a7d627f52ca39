//! The library's operations as this program calls them: on one stream, in f32 or FP8, with one scratch buffer for all.

use std::cell::RefCell;

use nvte::{
    ops::{
        activation::{activation_bwd, activation_bwd_workspace, activation_fwd, Activation, ActivationArgs, ActivationBwdArgs},
        cast::{
            cast_dbias, cast_dbias_workspace, cast_to_fp8, cast_to_fp8_current, cast_to_fp8_current_workspace, CastArgs, CastDbiasArgs,
            CurrentCastArgs, CurrentScaling,
        },
        gemm::{fp8_gemm, gemm, gemm_workspace, Accumulate, GemmArgs},
        norm::{layernorm_bwd, layernorm_fwd, norm_bwd_workspace, NormBwdArgs, NormFwdArgs},
        scaling::{scaling_update, ScalingUpdateArgs},
    },
    Buffer, Context, DType, Ptr, Result, Stream, TensorView,
};

/// Added to the variance by every norm.
pub const NORM_EPSILON: f32 = 1e-5;

/// A device and its scratch memory.
///
/// The operations are unsafe because they trust pointers. Here every view is made from a buffer that its owner keeps for as long as the
/// model lives, with the sizes that buffer was made for, and all work runs on one stream: that is what each SAFETY comment below refers to.
pub struct Compute {
    ctx: Context,
    workspace: RefCell<Buffer>,
}

/// `d = a · bᵀ + bias + add`; an operand given as `[K, rows]` is transposed.
pub struct Product {
    pub a: TensorView,
    pub b: TensorView,
    pub d: TensorView,
    pub transpose_a: bool,
    pub transpose_b: bool,
    pub bias: Ptr,
    pub add: Option<TensorView>,
    pub accumulate: Accumulate,
}

impl Product {
    /// Without transposes, bias or addend.
    pub fn new(a: TensorView, b: TensorView, d: TensorView, accumulate: Accumulate) -> Self {
        Self { a, b, d, transpose_a: false, transpose_b: false, bias: Ptr::NULL, add: None, accumulate }
    }
}

/// Gradients that a norm's backward pass writes.
pub struct NormGradients {
    pub dx: TensorView,
    pub dgamma: TensorView,
    pub dbeta: TensorView,
}

impl Compute {
    /// On a context's device.
    pub fn new(ctx: &Context) -> Result<Self> {
        Ok(Self { ctx: ctx.clone(), workspace: RefCell::new(Buffer::new(ctx, 1 << 20)?) })
    }

    /// Uninitialised bytes.
    pub fn bytes(&self, n: usize) -> Result<Buffer> {
        Buffer::new(&self.ctx, n)
    }

    /// Uninitialised f32 values.
    pub fn floats(&self, n: usize) -> Result<Buffer> {
        Buffer::new(&self.ctx, 4 * n)
    }

    /// These values.
    pub fn upload(&self, values: &[f32]) -> Result<Buffer> {
        Buffer::from_slice(&self.ctx, values)
    }

    /// Scratch memory of at least `bytes`. It grows in the first step and then stays: operations never allocate.
    fn scratch(&self, bytes: u64) -> Result<(Ptr, u64)> {
        let mut held = self.workspace.borrow_mut();
        if (held.bytes() as u64) < bytes {
            // Work that still uses the old one must be over before it is freed.
            self.ctx.synchronize(Stream::NULL)?;
            *held = self.bytes(bytes as usize)?;
        }
        Ok((held.ptr(), held.bytes() as u64))
    }

    /// A matrix product with f32 or FP8 operands.
    pub fn product(&self, p: &Product) -> Result<()> {
        let mut args = GemmArgs::new(p.a, p.b, p.d, p.accumulate).with_transposes(p.transpose_a, p.transpose_b);
        if !p.bias.is_null() {
            args = args.with_bias(p.bias, DType::F32);
        }
        if let Some(c) = p.add {
            args = args.with_c(1.0, c);
        }
        let (workspace, bytes) = self.scratch(gemm_workspace(&self.ctx, &args)?)?;
        let args = args.with_workspace(workspace, bytes);
        let multiply = if p.a.dtype.is_fp8() { fp8_gemm } else { gemm };
        // SAFETY: see `Compute`.
        unsafe { multiply(&self.ctx, &args, Stream::NULL) }
    }

    /// `y += x`: x is one row, and each sum over its one row is added to what y holds.
    pub fn add(&self, x: &TensorView, y: &TensorView) -> Result<()> {
        let row = TensorView::new(DType::F32, x.data, 1, x.rows * x.cols);
        self.sum_columns(&row, None, false, y.data, true)
    }

    /// To FP8 with the scale in the slot.
    pub fn cast(&self, x: &TensorView, codes: &TensorView) -> Result<()> {
        // SAFETY: see `Compute`.
        unsafe { cast_to_fp8(&self.ctx, &CastArgs { input: *x, output: *codes }, Stream::NULL) }
    }

    /// To FP8 with a scale from the tensor's own amax; both are written to the slot where it is given.
    pub fn cast_current(&self, x: &TensorView, codes: &TensorView) -> Result<()> {
        let (workspace, workspace_bytes) = self.scratch(cast_to_fp8_current_workspace(&self.ctx))?;
        let args = CurrentCastArgs { input: *x, output: *codes, scaling: CurrentScaling::default(), workspace, workspace_bytes };
        // SAFETY: see `Compute`.
        unsafe { cast_to_fp8_current(&self.ctx, &args, Stream::NULL) }
    }

    /// A gradient to FP8 (where codes are wanted), and its column sums.
    pub fn cast_gradient(&self, dy: &TensorView, codes: Option<&TensorView>, current: bool, dbias: Ptr) -> Result<()> {
        self.sum_columns(dy, codes, current, dbias, false)
    }

    fn sum_columns(&self, x: &TensorView, codes: Option<&TensorView>, current: bool, sums: Ptr, accumulate: bool) -> Result<()> {
        let (workspace, workspace_bytes) = self.scratch(cast_dbias_workspace(&self.ctx, x.rows, x.cols)?)?;
        let args = CastDbiasArgs {
            input: *x,
            output: codes.copied(),
            current: current.then(CurrentScaling::default),
            dbias: sums,
            dbias_dtype: DType::F32,
            accumulate,
            workspace,
            workspace_bytes,
        };
        // SAFETY: see `Compute`.
        unsafe { cast_dbias(&self.ctx, &args, Stream::NULL) }
    }

    /// LayerNorm; `y` may be FP8. The statistics are kept for the backward pass.
    pub fn norm(&self, x: &TensorView, gamma: TensorView, beta: TensorView, y: &TensorView, (mu, rsigma): (Ptr, Ptr)) -> Result<()> {
        let (gamma, beta) = (Some(gamma), Some(beta));
        let args = NormFwdArgs { x: *x, gamma, beta, zero_centered_gamma: false, eps: NORM_EPSILON, y: *y, mu, rsigma };
        // SAFETY: see `Compute`.
        unsafe { layernorm_fwd(&self.ctx, &args, Stream::NULL) }
    }

    /// Gradients of [`Compute::norm`].
    pub fn norm_backward(
        &self,
        dy: &TensorView,
        x: &TensorView,
        gamma: TensorView,
        (mu, rsigma): (Ptr, Ptr),
        out: &NormGradients,
    ) -> Result<()> {
        let (workspace, workspace_bytes) = self.scratch(norm_bwd_workspace(&self.ctx, x.cols)?)?;
        let args = NormBwdArgs {
            dy: *dy,
            x: *x,
            gamma: Some(gamma),
            zero_centered_gamma: false,
            mu,
            rsigma,
            dx: out.dx,
            dgamma: Some(out.dgamma),
            dbeta: Some(out.dbeta),
            workspace,
            workspace_bytes,
        };
        // SAFETY: see `Compute`.
        unsafe { layernorm_bwd(&self.ctx, &args, Stream::NULL) }
    }

    /// `y = gelu(x)`; `y` may be FP8.
    pub fn gelu(&self, x: &TensorView, y: &TensorView) -> Result<()> {
        let args = ActivationArgs { kind: Activation::Gelu, input: *x, output: *y };
        // SAFETY: see `Compute`.
        unsafe { activation_fwd(&self.ctx, &args, Stream::NULL) }
    }

    /// `dx = dy * gelu'(x)`, which may be FP8, and its column sums.
    pub fn gelu_backward(&self, dy: &TensorView, x: &TensorView, dx: &TensorView, dbias: Ptr) -> Result<()> {
        let needed = activation_bwd_workspace(&self.ctx, Activation::Gelu, dy.rows, dy.cols)?;
        let (workspace, workspace_bytes) = self.scratch(needed)?;
        let args = ActivationBwdArgs {
            kind: Activation::Gelu,
            dy: *dy,
            input: *x,
            output: *dx,
            dbias,
            dbias_dtype: DType::F32,
            accumulate: false,
            workspace,
            workspace_bytes,
        };
        // SAFETY: see `Compute`.
        unsafe { activation_bwd(&self.ctx, &args, Stream::NULL) }
    }

    /// Recorded amaxes become scales.
    pub fn scaling_update(&self, args: &ScalingUpdateArgs) -> Result<()> {
        // SAFETY: see `Compute`.
        unsafe { scaling_update(&self.ctx, args, Stream::NULL) }
    }
}
