"""One function per C operation, on numpy arrays (CPU) and torch tensors (CPU or CUDA).

All arrays of a call are of one framework and on one device. Inputs may have any row stride; more than two dimensions are flattened
without a copy, the last one is the row. Outputs are made where they are not given. torch: work is enqueued on the current stream of the
device (`stream=` takes another one, or nvte.PREPARE: check, compile, load, enqueue nothing); autograd sees none of it.
`context=` takes an nvte.Context in place of the device's shared one. Errors are subclasses of nvte.Error, or TypeError and ValueError
where an array or a number itself does not fit.
"""

from .activation import activation_bwd, activation_bwd_workspace, activation_fwd
from .adamw import adamw, adamw_list, adamw_list_workspace
from .amax import amax
from .cast import (
    cast_dbias,
    cast_dbias_workspace,
    cast_to_fp8,
    cast_to_fp8_current,
    cast_to_fp8_current_workspace,
)
from .cross_entropy import (
    cross_entropy,
    cross_entropy_combine,
    cross_entropy_gradient,
    cross_entropy_partial,
    cross_entropy_workspace,
    scale_rows,
)
from .dequantize import dequantize, fp8_transpose
from .dropout import dropout_bwd, dropout_bwd_workspace, dropout_fwd
from .gemm import fp8_gemm, gemm, gemm_plans_export, gemm_plans_import, gemm_prepare, gemm_workspace
from .grad_norm import grad_list, grad_list_workspace, grad_norm, grad_scale
from .lists import TensorList, list_gradients
from .multi_cast import cast_list, cast_list_workspace, multi_cast_to_fp8
from .norm import layernorm_bwd, layernorm_fwd, norm_bwd_workspace, rmsnorm_bwd, rmsnorm_fwd
from .rope import rope_bwd, rope_fwd, rope_qkv_bwd, rope_qkv_fwd, rope_table
from .scaling import scaling_update
from .softmax import softmax_bwd, softmax_fwd

__all__ = [
    "TensorList",
    "activation_bwd",
    "activation_bwd_workspace",
    "activation_fwd",
    "adamw",
    "adamw_list",
    "adamw_list_workspace",
    "amax",
    "cast_dbias",
    "cast_dbias_workspace",
    "cast_list",
    "cast_list_workspace",
    "cast_to_fp8",
    "cast_to_fp8_current",
    "cast_to_fp8_current_workspace",
    "cross_entropy",
    "cross_entropy_combine",
    "cross_entropy_gradient",
    "cross_entropy_partial",
    "cross_entropy_workspace",
    "dequantize",
    "dropout_bwd",
    "dropout_bwd_workspace",
    "dropout_fwd",
    "fp8_gemm",
    "fp8_transpose",
    "gemm",
    "gemm_plans_export",
    "gemm_plans_import",
    "gemm_prepare",
    "gemm_workspace",
    "grad_list",
    "grad_list_workspace",
    "grad_norm",
    "grad_scale",
    "layernorm_bwd",
    "layernorm_fwd",
    "list_gradients",
    "multi_cast_to_fp8",
    "norm_bwd_workspace",
    "rmsnorm_bwd",
    "rmsnorm_fwd",
    "rope_bwd",
    "rope_fwd",
    "rope_qkv_bwd",
    "rope_qkv_fwd",
    "rope_table",
    "scale_rows",
    "scaling_update",
    "softmax_bwd",
    "softmax_fwd",
]
