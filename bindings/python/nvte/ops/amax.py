"""amax alone."""

from .._library import check, lib
from ..dtypes import float32
from ._common import first_space


def amax(x, out=None, *, stream=None, context=None):
    """Records the largest |x|: NaN above infinity above every finite value.

    x: float32, float16 or bfloat16. out: one float32 that takes the maximum with what it holds; None: a new one from 0. Returns it.
    """
    space = first_space(x)
    source, _, _ = space.high("x", x)
    out = space.zeros((1,), float32) if out is None else space.writable("out", out)
    check(lib.nvte_amax(space.context(context), source, space.slot("out", out), space.stream(stream)))
    return out
