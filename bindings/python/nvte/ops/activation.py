"""Activations and gated activations."""

from .. import _abi
from .._library import check, lib, packer
from ._common import any_output, asked, first_space, handle_of, in_memory, scratch, whole

_backward = packer(
    _abi.nvte_activation_bwd_args_t, "kind dy input output dbias dbias_dtype accumulate workspace workspace_bytes"
)

#: Name of each activation and its number in C. Gated forms take [..., 2H] and give [..., H].
ACTIVATIONS = {
    name[len("NVTE_ACTIVATION_") :].lower(): number for name, number in vars(_abi).items() if name.startswith("NVTE_ACTIVATION_")
}
GATED = 16


def _number(kind):
    try:
        return ACTIVATIONS[kind]
    except (KeyError, TypeError):
        raise ValueError(f"kind = {kind!r}: must be one of {', '.join(ACTIVATIONS)}") from None


def activation_fwd(
    x, kind, *, dtype=None, scale=None, amax=None, rowwise=True, transpose=False, out=None, stream=None, context=None
):
    """y = f(x), or f(a) * b for the halves of each row of x in a gated form; computed in float32, rounded once.

    x: float32, float16 or bfloat16 [..., H] or [..., 2H]. kind: "gelu" (tanh form), "gelu_erf", "silu", "relu", "qgelu", "srelu", or gated
    "geglu", "geglu_erf", "swiglu", "reglu", "qgeglu", "sreglu". dtype: of y; None: that of x. An FP8 y is cast from the float32 result as
    in cast_to_fp8 (scale, rowwise, transpose); amax is recorded for every type. Returns y, an Fp8Tensor where its type is FP8.
    """
    number, space = _number(kind), first_space(x)
    source, rows, cols = space.high("x", x)
    shape = x.shape
    if number >= GATED:
        if cols % 2:
            raise ValueError(f"x: has {cols} columns, and {kind} needs two halves")
        cols //= 2
        shape = (*shape[:-1], cols)
    y, target = any_output(
        space, shape, rows, cols, x, dtype, out=out, scale=scale, amax=amax, rowwise=rowwise, transpose=transpose
    )
    check(lib.nvte_activation_fwd(space.context(context), number, source, target, space.stream(stream)))
    return y


def activation_bwd_workspace(device, kind, rows, hidden):
    """Bytes of workspace of activation_bwd with a dbias, for a Context or a device; hidden: columns of dy."""
    return asked(lib.nvte_activation_bwd_workspace, handle_of(device), _number(kind), whole("rows", rows), whole("hidden", hidden))


def activation_bwd(
    dy, x, kind, *, dtype=None, scale=None, amax=None, rowwise=True, transpose=False, out=None, dbias=None, accumulate=False,
    workspace=None, stream=None, context=None,
):  # fmt: skip
    """The gradient of activation_fwd: dx = dy * f'(x); gated: both halves side by side.

    dy: [..., H]. x: the forward pass' input. dtype, scale, amax, rowwise, transpose, out: of dx, as in activation_fwd. dbias: True or an
    array [columns of x]: the column sums of dx before any cast; accumulate adds to what the array holds. workspace: scratch memory of
    activation_bwd_workspace bytes, aligned to 16, for dbias; None: made here. Returns (dx, dbias).
    """
    number, space = _number(kind), first_space(x)
    source, rows, cols = space.high("x", x)
    gradient, _, hidden = space.high("dy", space.given("dy", dy))
    dx, target = any_output(
        space, x.shape, rows, cols, x, dtype, out=out, scale=scale, amax=amax, rowwise=rowwise, transpose=transpose
    )
    handle = space.context(context)
    dbias, dbias_type, dbias_at = space.sums(dbias, cols, x, accumulate)
    keep, work, size = None, 0, 0
    if dbias is not None:
        keep, work, size = scratch(space, workspace, lib.nvte_activation_bwd_workspace, handle, number, rows, hidden)
    held, (a, b, c) = in_memory(gradient, source, target)
    arguments = _backward(number, a, b, c, dbias_at, dbias_type, bool(accumulate), work, size)
    check(lib.nvte_activation_bwd(handle, arguments, space.stream(stream)))
    return dx, dbias
