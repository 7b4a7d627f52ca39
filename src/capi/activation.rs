//! Activations and gated activations.

use std::{ffi::c_void, mem};

use super::{
    context::context,
    guard::guard,
    types::{flag, nvte_context_t, nvte_status_t, nvte_stream_t, nvte_tensor_t, out, read_struct, stream, tensor},
};
use crate::{
    ops::activation::{self, Activation, ActivationArgs, ActivationBwdArgs},
    tensor::{DType, Ptr},
};

/// x * sigmoid(2u), u = 0.79788456 (x + 0.044715 x^3): the tanh form, evaluated without cancellation.
pub const NVTE_ACTIVATION_GELU: i32 = 0;
/// x * Phi(x), with the normal distribution function.
pub const NVTE_ACTIVATION_GELU_ERF: i32 = 1;
/// x * sigmoid(x).
pub const NVTE_ACTIVATION_SILU: i32 = 2;
/// max(x, 0).
pub const NVTE_ACTIVATION_RELU: i32 = 3;
/// x * sigmoid(1.702 x).
pub const NVTE_ACTIVATION_QGELU: i32 = 4;
/// max(x, 0)^2.
pub const NVTE_ACTIVATION_SRELU: i32 = 5;
/// gelu(a) * b: gated forms take [rows, 2H], whose first half a is activated and whose second half b multiplies.
pub const NVTE_ACTIVATION_GEGLU: i32 = 16;
/// gelu_erf(a) * b.
pub const NVTE_ACTIVATION_GEGLU_ERF: i32 = 17;
/// silu(a) * b.
pub const NVTE_ACTIVATION_SWIGLU: i32 = 18;
/// relu(a) * b.
pub const NVTE_ACTIVATION_REGLU: i32 = 19;
/// qgelu(a) * b.
pub const NVTE_ACTIVATION_QGEGLU: i32 = 20;
/// srelu(a) * b.
pub const NVTE_ACTIVATION_SREGLU: i32 = 21;

/// Arguments of nvte_activation_bwd. Zero-initialise it and set struct_size.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct nvte_activation_bwd_args_t {
    /// sizeof(nvte_activation_bwd_args_t).
    pub struct_size: u32,
    /// NVTE_ACTIVATION_GELU, ...
    pub kind: i32,
    /// The gradient of the output, [rows, H].
    pub dy: *const nvte_tensor_t,
    /// The input of the forward pass, [rows, H]; gated: [rows, 2H].
    pub input: *const nvte_tensor_t,
    /// The gradient of the input, of its shape.
    pub output: *const nvte_tensor_t,
    /// Column sums of the gradient, one per column of output (device); NULL: not wanted.
    pub dbias: *mut c_void,
    /// NVTE_F32, NVTE_F16 or NVTE_BF16.
    pub dbias_dtype: i32,
    /// 1: add to what dbias holds; 0: replace it.
    pub accumulate: i32,
    /// Scratch memory (device), aligned to 16 bytes; used for dbias only.
    pub workspace: *mut c_void,
    /// Its size in bytes: at least what nvte_activation_bwd_workspace says.
    pub workspace_bytes: u64,
}

/// Applies an activation: y = f(x), or f(a) * b for a gated form, computed in f32 and rounded once to the output.
///
/// Shapes: input f32, f16 or bf16 [rows, H], gated [rows, 2H]; output [rows, H]: f32, f16 or bf16 in its data, or E4M3 or E5M2 in its
/// data, its data_t or both. Units: sizes and strides in elements. Pointers: tensors are host structs; data and slots are on the
/// device. Alignment: that of the element type; rows that start on 16 bytes are faster. Aliasing: the output must not overlap the input
/// or itself. Stream order: enqueued on `stream`, nothing waits. Determinism: the same bits every time on one back end; across back ends
/// within a few f32 roundings before the one cast. Limits: f(-inf) is -0 (relu, srelu: +0), f(+inf) is +inf, NaN gives NaN.
/// FP8: output.scale (NULL: 1) multiplies, 1/scale is written to output.scale_inv. The amax of the f32 values is recorded as a maximum in
/// output.amax, for every output type, where it is not NULL.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_NULL_POINTER, NVTE_ERROR_INVALID_DTYPE,
/// NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_INVALID_STRIDE, NVTE_ERROR_OVERLAP, NVTE_ERROR_MISALIGNED, NVTE_ERROR_WRONG_DEVICE,
/// NVTE_ERROR_SIZE_OVERFLOW, NVTE_ERROR_UNSUPPORTED (a transposed copy or a scale on an output that is not FP8),
/// NVTE_ERROR_NOT_CAPTURABLE.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed.
#[no_mangle]
pub unsafe extern "C" fn nvte_activation_fwd(
    ctx: nvte_context_t,
    kind: i32,
    input: *const nvte_tensor_t,
    output: *const nvte_tensor_t,
    stream_: nvte_stream_t,
) -> nvte_status_t {
    guard(|| {
        let (ctx, kind) = (context(ctx)?, Activation::from_i32("kind", kind)?);
        // SAFETY: by contract.
        unsafe {
            let args = ActivationArgs { kind, input: tensor("input", input)?, output: tensor("output", output)? };
            activation::activation_fwd(&ctx, &args, stream(stream_))
        }
    })
}

/// Bytes of workspace that nvte_activation_bwd needs with a dbias; without one it needs none.
///
/// Shapes: those of dy: `rows`, and `hidden` = H. Units: elements; *bytes in bytes. Pointers: host. Alignment: natural. Aliasing: none.
/// Stream order: none. Determinism: a function of its arguments and the kind of device.
///
/// Errors: NVTE_ERROR_INVALID_HANDLE, NVTE_ERROR_INVALID_ENUM, NVTE_ERROR_INVALID_SHAPE, NVTE_ERROR_SIZE_OVERFLOW,
/// NVTE_ERROR_NULL_POINTER. On an error *bytes is not written.
///
/// # Safety
/// `bytes` is NULL or writable.
#[no_mangle]
pub unsafe extern "C" fn nvte_activation_bwd_workspace(
    ctx: nvte_context_t,
    kind: i32,
    rows: i64,
    hidden: i64,
    bytes: *mut u64,
) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        let needed = activation::activation_bwd_workspace(&ctx, Activation::from_i32("kind", kind)?, rows, hidden)?;
        // SAFETY: by contract.
        unsafe { out("bytes", bytes, needed) }
    })
}

/// The gradient of an activation: dx = dy * f'(x); gated, side by side, da = dy * b * f'(a) and db = dy * f(a). Computed in f32 and rounded
/// once to the output. With dbias also the column sums of the f32 values, before any cast.
///
/// Shapes: dy f32, f16 or bf16 [rows, H]; input f32, f16 or bf16 [rows, H], gated [rows, 2H]; output of input's shape: f32, f16 or bf16
/// in its data, or E4M3 or E5M2 in its data, its data_t or both; dbias one element per column of output. Units: sizes and strides in
/// elements, workspace_bytes in bytes. Pointers: args and tensors are host structs; data, slots, dbias and workspace are on the device.
/// Alignment: that of the element type (workspace: 16 bytes); dy and input of one type whose rows start on 16 bytes are faster.
/// Aliasing: output, dbias and workspace must not overlap each other or an input. Stream order: enqueued on `stream`, nothing waits; the
/// workspace is in use until then. Determinism: the same bits every time on one back end (sums have one order, no float atomics).
/// Limits: f'(-inf) is 0, f'(+inf) is 1 (srelu: +inf), NaN gives NaN; products follow IEEE 754. With no rows the sums are 0.
/// FP8: output.scale (NULL: 1) multiplies, 1/scale is written to output.scale_inv. The amax of the f32 values is recorded as a maximum in
/// output.amax, for every output type, where it is not NULL.
///
/// Errors: those of nvte_activation_fwd, NVTE_ERROR_INVALID_STRUCT_SIZE, NVTE_ERROR_WORKSPACE_TOO_SMALL.
///
/// # Safety
/// Structs are sized and live; device memory is live until the stream has passed.
#[no_mangle]
pub unsafe extern "C" fn nvte_activation_bwd(
    ctx: nvte_context_t,
    args: *const nvte_activation_bwd_args_t,
    stream_: nvte_stream_t,
) -> nvte_status_t {
    guard(|| {
        let ctx = context(ctx)?;
        // SAFETY: by contract.
        unsafe {
            let a = read_struct("args", args, mem::size_of::<nvte_activation_bwd_args_t>())?;
            let unpacked = ActivationBwdArgs {
                kind: Activation::from_i32("kind", a.kind)?,
                dy: tensor("dy", a.dy)?,
                input: tensor("input", a.input)?,
                output: tensor("output", a.output)?,
                dbias: Ptr::from(a.dbias),
                dbias_dtype: DType::from_i32("dbias_dtype", a.dbias_dtype)?,
                accumulate: flag("accumulate", a.accumulate)?,
                workspace: Ptr::from(a.workspace),
                workspace_bytes: a.workspace_bytes,
            };
            activation::activation_bwd(&ctx, &unpacked, stream(stream_))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Status;

    #[test]
    fn numbers_of_the_abi_are_those_of_the_crate() {
        let numbers = [
            NVTE_ACTIVATION_GELU,
            NVTE_ACTIVATION_GELU_ERF,
            NVTE_ACTIVATION_SILU,
            NVTE_ACTIVATION_RELU,
            NVTE_ACTIVATION_QGELU,
            NVTE_ACTIVATION_SRELU,
            NVTE_ACTIVATION_GEGLU,
            NVTE_ACTIVATION_GEGLU_ERF,
            NVTE_ACTIVATION_SWIGLU,
            NVTE_ACTIVATION_REGLU,
            NVTE_ACTIVATION_QGEGLU,
            NVTE_ACTIVATION_SREGLU,
        ];
        for (number, kind) in numbers.into_iter().zip(Activation::ALL) {
            assert_eq!(number, kind as i32, "{}", kind.name());
            assert_eq!(Activation::from_i32("kind", number).unwrap(), kind);
            assert_eq!(kind.function() as i32, number % 16);
        }
        for wrong in [-1, 6, 15, 22, i32::MAX] {
            assert_eq!(Activation::from_i32("kind", wrong).unwrap_err().status(), Status::InvalidEnum);
        }
    }
}
