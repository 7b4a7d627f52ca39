"""Matrix products: D = alpha * scale_inv_a * scale_inv_b * (A B^T) + bias + beta * C."""

import ctypes

from .. import _abi
from .._arrays import pack_tensor
from .._library import check, lib, packer
from ..dtypes import as_dtype, bfloat16
from ..tensor import Fp8Tensor
from ._common import any_output, as_fp8, asked, first_space, handle_of, in_memory, pack_fp8, scratch

_arguments = packer(
    _abi.nvte_gemm_args_t,
    "accumulate transpose_a transpose_b epilogue bias_dtype alpha beta a b bias c d workspace workspace_bytes",
)

_ACCUMULATE = {"fast": _abi.NVTE_ACCUMULATE_FAST, "precise": _abi.NVTE_ACCUMULATE_PRECISE}


def _product(
    a, b, fp8, accumulate="precise", transpose_a=False, transpose_b=False, alpha=1.0, beta=0.0, bias=None, c=None, dtype=None, scale=None,
    amax=None, out=None, query=False,
):  # fmt: skip
    """(space, what must stay alive, the C struct's values, D). With `query` a D that is not given has no memory."""
    try:
        mode = _ACCUMULATE[accumulate]
    except (KeyError, TypeError):
        raise ValueError(f"accumulate = {accumulate!r}: must be 'fast' or 'precise'") from None
    space = first_space(a)
    if fp8:
        a, b = as_fp8("a", a), as_fp8("b", b)
        left, rows, cols = pack_fp8(space, "a", a)
        right, rows_b, cols_b = pack_fp8(space, "b", b)
        if dtype is None and out is None:
            dtype = bfloat16
    else:
        left, rows, cols = space.high("a", a)
        right, rows_b, cols_b = space.high("b", space.given("b", b))
    m, n = cols if transpose_a else rows, cols_b if transpose_b else rows_b
    if query and out is None:
        kind = as_dtype(a.dtype if dtype is None else dtype)
        target = pack_tensor(kind.number, int(kind.is_fp8), 0, 0, m, n, n, 0, 0, 0, 0, 0, 0, 0, 0)
    else:
        shape = (m, n) if transpose_a or len(a.shape) < 2 else (*a.shape[:-1], n)
        out, target = any_output(
            space, shape, m, n, a, dtype, out=out, scale=scale, amax=amax, rowwise=True, transpose=False
        )
    added = None if c is None else space.high("c", space.require("c", c))[0]
    bias_type = bias_at = 0
    if bias is not None:
        bias_type, bias_at = space.vector("bias", space.require("bias", bias), n)
        if bias_type < 0:
            raise TypeError(f"bias: must be float32, float16 or bfloat16, and is {bias.dtype}")
    held, (at, bt, ct, dt) = in_memory(left, right, added, target)
    values = (mode, bool(transpose_a), bool(transpose_b), 0, bias_type, alpha, beta, at, bt, bias_at, ct, dt)
    return space, held, values, out


def _run(function, workspace, stream, context, *operands, **options):
    space, held, values, out = _product(*operands, **options)
    handle = space.context(context)
    if workspace is None:
        keep, work, size = scratch(space, None, lib.nvte_gemm_workspace, handle, _arguments(*values, 0, 0))
    else:
        keep, work, size = scratch(space, workspace, None)
    check(function(handle, _arguments(*values, work, size), space.stream(stream)))
    return out


def fp8_gemm(
    a, b, *, accumulate, transpose_a=False, transpose_b=False, alpha=1.0, beta=0.0, bias=None, c=None, dtype=None, scale=None, amax=None,
    out=None, workspace=None, stream=None, context=None,
):  # fmt: skip
    """The product of FP8 operands: D[M, N] = alpha * scale_inv_a * scale_inv_b * (A[M, K] B[N, K]^T) + bias[N] + beta * C[M, N].

    a: Fp8Tensor [M, K] (more dimensions are flattened), or [K, M] with transpose_a; b: [N, K], or [K, N] with transpose_b; E4M3 and E5M2
    in any pair. Where an operand holds both layouts, the one whose rows run along K is read. accumulate: "fast" (the tensor core's own
    accumulator, about 14 bits on sm_89 and sm_90) or "precise" (promoted to float32 as K goes on); there is no default.
    bias: [N]. c: [M, N], read where beta is not 0; it may be `out`. dtype: of D; None: bfloat16. An FP8 D is cast from the float32
    result with `scale`, and the amax before scaling is recorded in `amax`. workspace: scratch memory of gemm_workspace bytes, aligned to
    16; None: made here. Returns D.
    """
    return _run(
        lib.nvte_fp8_gemm, workspace, stream, context, a, b, True, accumulate, transpose_a, transpose_b, alpha, beta, bias, c, dtype,
        scale, amax, out,
    )  # fmt: skip


def gemm(
    a, b, *, transpose_a=False, transpose_b=False, alpha=1.0, beta=0.0, bias=None, c=None, dtype=None, scale=None, amax=None, out=None,
    workspace=None, stream=None, context=None,
):  # fmt: skip
    """The product of float32, float16 or bfloat16 operands, both of one type, accumulated in float32 (never as TF32).

    Arguments as in fp8_gemm; dtype of D: None: that of a.
    """
    return _run(
        lib.nvte_gemm, workspace, stream, context, a, b, False, "precise", transpose_a, transpose_b, alpha, beta, bias, c, dtype, scale,
        amax, out,
    )  # fmt: skip


def gemm_workspace(a, b, *, context=None, **options):
    """Bytes of workspace of fp8_gemm (FP8 operands) or gemm with these arguments. `out` need not be given."""
    space, held, values, _ = _product(a, b, _holds_fp8(a), query=True, **options)
    return asked(lib.nvte_gemm_workspace, space.context(context), _arguments(*values, 0, 0))


def gemm_prepare(a, b, *, out, candidates=16, workspace=None, stream=None, context=None, **options):
    """Times up to `candidates` ways to compute this product, OVERWRITING out, and keeps the fastest for later calls of the context.

    Arguments as in fp8_gemm or gemm. Never needed; it waits for the device.
    """
    space, held, values, _ = _product(a, b, _holds_fp8(a), out=out, **options)
    handle = space.context(context)
    keep, work, size = scratch(space, workspace, lib.nvte_gemm_workspace, handle, _arguments(*values, 0, 0))
    check(lib.nvte_gemm_prepare(handle, _arguments(*values, work, size), candidates, space.stream(stream)))


def gemm_plans_export(device):
    """The choices that gemm_prepare made, or that were imported, as text; for a Context or a device."""
    handle, needed = handle_of(device), ctypes.c_size_t()
    check(lib.nvte_gemm_plans_export(handle, None, 0, ctypes.addressof(needed)))
    while True:
        room = ctypes.create_string_buffer(needed.value)
        check(lib.nvte_gemm_plans_export(handle, ctypes.addressof(room), len(room), ctypes.addressof(needed)))
        if needed.value <= len(room):
            return room.value.decode()


def gemm_plans_import(device, text):
    """Takes over choices that gemm_plans_export gave on the same kind of device with the same versions."""
    check(lib.nvte_gemm_plans_import(handle_of(device), text.encode()))


def _holds_fp8(a):
    return isinstance(a, Fp8Tensor) or as_dtype(a.dtype).is_fp8
