"""Casts to FP8: given scale, current scaling, with the bias gradient beside it."""

from .. import _abi
from .._library import check, lib, packer
from ._common import asked, first_space, fp8_output, handle_of, in_memory, scratch, whole

_current = packer(_abi.nvte_cast_current_args_t, "margin epsilon power_of_two input output workspace workspace_bytes")
_dbias = packer(
    _abi.nvte_cast_dbias_args_t,
    "dbias_dtype input output dbias accumulate current margin epsilon power_of_two reserved workspace workspace_bytes",
)


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


def _parameters(recipe, margin, epsilon, power_of_two):
    if recipe is None:
        return margin, epsilon, bool(power_of_two)
    return recipe.margin, recipe.epsilon, recipe.power_of_two


def cast_to_fp8_current_workspace(device):
    """Bytes of workspace of cast_to_fp8_current, for a Context or a device; the same for every shape."""
    return asked(lib.nvte_cast_to_fp8_current_workspace, handle_of(device))


def cast_to_fp8_current(
    x, dtype=None, *, recipe=None, margin=0, epsilon=0.0, power_of_two=False, rowwise=True, transpose=False, out=None, workspace=None,
    stream=None, context=None,
):  # fmt: skip
    """Casts to FP8 with current scaling: the amax of this x, the scale that follows from it, the cast; nothing waits for the host.

    x, dtype, rowwise, transpose, out: as in cast_to_fp8. recipe: a Float8CurrentScaling in place of margin (the scale is divided by
    2^margin), epsilon (floor of the amax) and power_of_two (the scale is rounded down to one). workspace: scratch memory of
    cast_to_fp8_current_workspace bytes, aligned to 16; None: made here. Returns an Fp8Tensor with scale_inv, scale and amax written.
    """
    space = first_space(x)
    source, rows, cols = space.high("x", x)
    q, target = fp8_output(
        space, "out", x.shape, rows, cols, dtype, out=out, scale=None, amax=None, rowwise=rowwise, transpose=transpose, own_slots=True
    )
    handle = space.context(context)
    keep, work, size = scratch(space, workspace, lib.nvte_cast_to_fp8_current_workspace, handle)
    held, (a, b) = in_memory(source, target)
    arguments = _current(*_parameters(recipe, margin, epsilon, power_of_two), a, b, work, size)
    check(lib.nvte_cast_to_fp8_current(handle, arguments, space.stream(stream)))
    return q


def cast_dbias_workspace(device, rows, cols):
    """Bytes of workspace of cast_dbias for an input of this shape, for a Context or a device."""
    return asked(lib.nvte_cast_dbias_workspace, handle_of(device), whole("rows", rows), whole("cols", cols))


def cast_dbias(
    x, dtype=None, *, scale=None, amax=None, current=False, recipe=None, margin=0, epsilon=0.0, power_of_two=False, rowwise=True,
    transpose=False, out=None, dbias=True, accumulate=False, workspace=None, stream=None, context=None,
):  # fmt: skip
    """Casts a gradient to FP8 and, in the same pass, sums its columns: dbias[c] = sum over rows of x[r, c], in float32.

    x, dtype, scale, amax, rowwise, transpose, out: as in cast_to_fp8; out=False: nothing is cast, only the sums are wanted.
    current=True (or a recipe): current scaling as in cast_to_fp8_current. dbias: an array [cols], or True: a new one in x's type;
    accumulate: the sums are added to what it holds. workspace: scratch memory of cast_dbias_workspace bytes, aligned to 16; None: made
    here. Returns (Fp8Tensor or None, dbias).
    """
    space = first_space(x)
    source, rows, cols = space.high("x", x)
    current = bool(current or recipe is not None)
    q = target = None
    if out is not False:
        q, target = fp8_output(
            space, "out", x.shape, rows, cols, dtype, out=out, scale=scale, amax=amax, rowwise=rowwise, transpose=transpose,
            own_slots=current,
        )  # fmt: skip
    dbias, dbias_type, dbias_at = space.sums(dbias, cols, x, accumulate)
    handle = space.context(context)
    keep, work, size = scratch(space, workspace, lib.nvte_cast_dbias_workspace, handle, rows, cols)
    held, (a, b) = in_memory(source, target)
    parameters = _parameters(recipe, margin, epsilon, power_of_two)
    arguments = _dbias(dbias_type, a, b, dbias_at, bool(accumulate), current, *parameters, 0, work, size)
    check(lib.nvte_cast_dbias(handle, arguments, space.stream(stream)))
    return q, dbias
