"""Casts to FP8."""

from .._library import check, lib
from ._common import first_space, fp8_output


def cast_to_fp8(x, dtype=None, *, scale=None, amax=None, rowwise=True, transpose=False, out=None, stream=None, context=None):
    """Casts to FP8 with a given scale: q = encode(float32(x) * scale), one rounding to nearest even, saturating; NaN becomes 0x7F.

    x: float32, float16 or bfloat16 [..., cols]. dtype: "e4m3" (default) or "e5m2", or numpy's or torch's name of it. scale: one float32
    on the device, or a number; None: 1. amax: one float32 that records the largest |x| as a maximum with what it holds; None: not
    recorded. rowwise, transpose: which layouts to write. out: an Fp8Tensor or an FP8 array to write into.
    Returns an Fp8Tensor whose scale_inv is 1/scale.
    """
    space = first_space(x)
    source, rows, cols = space.high("x", x)
    q, target = fp8_output(
        space, "out", x.shape, rows, cols, dtype, out=out, scale=scale, amax=amax, rowwise=rowwise, transpose=transpose
    )
    check(lib.nvte_cast_to_fp8(space.context(context), source, target, space.stream(stream)))
    return q
