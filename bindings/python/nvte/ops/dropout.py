"""Dropout with bias and residual."""

from .. import _abi
from .._arrays import BYTES
from .._library import check, lib, packer
from ._common import asked, first_space, handle_of, in_memory, scratch, whole

_forward = packer(_abi.nvte_dropout_fwd_args_t, "reserved p x bias residual y mask mask_ld rng rng_stream")
_backward = packer(
    _abi.nvte_dropout_bwd_args_t,
    "dbias_dtype p dy dx mask mask_ld rng rng_stream dbias accumulate reserved workspace workspace_bytes",
)


def _mask(space, mask, x, rows, cols, write):
    """(array or None, address, bytes from row to row) of a mask for `x`; True: a new one."""
    if mask is None or mask is False:
        return None, 0, 0
    width = (cols + 7) // 8
    if mask is True:
        mask = space.bytes((*x.shape[:-1], width))
    number, address, r, c, ld = space.matrix("mask", space.require("mask", mask))
    if number != BYTES or (r, c) != (rows, width):
        raise ValueError(f"mask: must be bytes [{rows}, {width}], and is {mask.dtype} {tuple(mask.shape)}")
    if write:
        space.writable("mask", mask)
    return mask, address, ld


def _out(space, out, x):
    if out is None:
        return space.empty_as(x, tuple(x.shape))
    return space.writable("out", space.require("out", out))


def dropout_fwd(
    x, p, rng=None, *, bias=None, residual=None, mask=None, rng_stream=0, out=None, stream=None, context=None
):
    """y = (x + bias) / (1 - p) where an element is kept, 0 where not, plus the residual; computed in float32, rounded once.

    x: float32, float16 or bfloat16 [..., cols]; bias: [cols] of any of these types; residual: as x. rng: two 64-bit integers on the device,
    seed and offset of the generator (None where p is 0 or 1); rng_stream tells draws with the same two apart. Element i of x in row-major
    order takes word i % 4 of Philox4x32-10 with key seed and counter (offset + i // 4, rng_stream), and is kept if that is at least
    round(p * 2^32). mask: True, or bytes [..., ceil(cols / 8)]: receives a bit per element, lowest bit first. out: memory for y, which may
    be x or residual. Returns (y, mask).
    """
    space = first_space(x)
    source, rows, cols = space.high("x", x)
    out = _out(space, out, x)
    target, _, _ = space.high("out", out)
    added = None if residual is None else space.high("residual", space.require("residual", residual))[0]
    mask, mask_at, ld = _mask(space, mask, x, rows, cols, True)
    held, (a, b, c, d) = in_memory(source, space.parameter("bias", bias), added, target)
    arguments = _forward(0, p, a, b, c, d, mask_at, ld, space.longs("rng", rng, 2), rng_stream)
    check(lib.nvte_dropout_fwd(space.context(context), arguments, space.stream(stream)))
    return out, mask


def dropout_bwd_workspace(device, rows, cols):
    """Bytes of workspace of dropout_bwd with a dbias, for a Context or a device."""
    return asked(lib.nvte_dropout_bwd_workspace, handle_of(device), whole("rows", rows), whole("cols", cols))


def dropout_bwd(
    dy, p, rng=None, *, mask=None, rng_stream=0, out=None, dbias=None, accumulate=False, workspace=None, stream=None, context=None
):
    """The gradient of dropout_fwd: dx = dy / (1 - p) where an element was kept, 0 where not. The residual's gradient is dy itself.

    p, rng, rng_stream: the forward pass' own; with its mask nothing is drawn and rng may be None. dbias: True (of dy's type) or an array
    [cols]: the column sums of dx before it is rounded; accumulate adds to what the array holds. out: memory for dx, which may be dy.
    workspace: scratch memory of dropout_bwd_workspace bytes, aligned to 16, for dbias; None: made here. Returns (dx, dbias).
    """
    space = first_space(dy)
    source, rows, cols = space.high("dy", dy)
    out = _out(space, out, dy)
    target, _, _ = space.high("out", out)
    _, mask_at, ld = _mask(space, mask, dy, rows, cols, False)
    handle = space.context(context)
    dbias, dbias_type, dbias_at = space.sums(dbias, cols, dy, accumulate)
    keep, work, size = None, 0, 0
    if dbias is not None:
        keep, work, size = scratch(space, workspace, lib.nvte_dropout_bwd_workspace, handle, rows, cols)
    held, (a, b) = in_memory(source, target)
    arguments = _backward(
        dbias_type, p, a, b, mask_at, ld, space.longs("rng", rng, 2), rng_stream, dbias_at, bool(accumulate), 0, work, size
    )
    check(lib.nvte_dropout_bwd(handle, arguments, space.stream(stream)))
    return out, dbias
