"""From FP8 codes back to high precision, and from one layout of codes to the other."""

from .._library import check, lib
from ..dtypes import as_dtype, float32
from ..tensor import Fp8Tensor
from ._common import as_fp8, first_space, pack_fp8


def dequantize(q, dtype=None, *, out=None, stream=None, context=None):
    """y = float32(code) * scale_inv, rounded once to dtype (None: that of out, else float32).

    q: an Fp8Tensor or an array of FP8 codes (scale_inv 1); `data` is read, `data_t` where there is no `data`. Returns y.
    """
    q = as_fp8("q", q)
    space = first_space(q)
    source, _, _ = pack_fp8(space, "q", q)
    if out is None:
        out = space.empty(q.shape, float32 if dtype is None else as_dtype(dtype))
    elif dtype is not None and as_dtype(dtype) is not as_dtype(out.dtype):
        raise TypeError(f"dtype = {as_dtype(dtype).name}, and out is {out.dtype}")
    target, _, _ = space.high("out", space.writable("out", space.require("out", out)))
    check(lib.nvte_dequantize(space.context(context), source, target, space.stream(stream)))
    return out


def fp8_transpose(q, *, out=None, stream=None, context=None):
    """The missing layout of a quantized matrix: the same codes, transposed.

    q: an Fp8Tensor (or an array of FP8 codes). `data_t` is made from `data`; where there is no `data`, `data` from `data_t`.
    out: the array to write into; None: q's own where it has both layouts, else a new one.
    Returns an Fp8Tensor with both layouts and q's slots.
    """
    q = as_fp8("q", q)
    space = first_space(q)
    source, rows, cols = pack_fp8(space, "q", q)
    if q.data is not None:
        data_t = q.data_t if out is None else out
        if data_t is None:
            data_t = space.empty_as(q.data, (cols, rows))
        both = Fp8Tensor(q.data, q.scale_inv, data_t, scale=q.scale, amax=q.amax, dtype=q.dtype)
        made = Fp8Tensor(data_t=data_t, dtype=q.dtype)
    else:
        data = space.empty_as(q.data_t, (rows, cols)) if out is None else out
        both = Fp8Tensor(data, q.scale_inv, q.data_t, scale=q.scale, amax=q.amax, dtype=q.dtype)
        made = Fp8Tensor(data, dtype=q.dtype)
    # The slots are shared: nothing has to be written to them.
    target, _, _ = pack_fp8(space, "out", made, write=True)
    check(lib.nvte_fp8_transpose(space.context(context), source, target, space.stream(stream)))
    return both
