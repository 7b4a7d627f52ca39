"""Softmax."""

from .. import _abi
from .._library import check, lib, packer
from ._common import first_space, in_memory

_forward = packer(
    _abi.nvte_softmax_fwd_args_t,
    "causal x y mask mask_batch_stride mask_head_stride mask_query_stride queries heads offset scale reserved",
)
_backward = packer(_abi.nvte_softmax_bwd_args_t, "causal dy y dx queries offset scale reserved")


def grouping(shape):
    """(queries, heads) of an array [..., heads, queries, keys]."""
    n = len(shape)
    return (shape[-2] if n > 1 else 1), (shape[-3] if n > 2 else 1)


def mask_strides(space, mask, shape):
    """(address, strides in bytes of batch, head and query) of a mask that is broadcast against [..., heads, queries, keys]."""
    space.require("mask", mask)
    own, strides, address, size = space.bytes_of("mask", mask)
    if size != 1:
        raise TypeError(f"mask: must be of booleans or bytes, and is {mask.dtype}")
    n = len(shape)
    if len(own) > n or any(m not in (1, s) for m, s in zip(own, shape[n - len(own) :])):
        raise ValueError(f"mask: the shape {tuple(own)} is not broadcast to {tuple(shape)}")
    own = (1,) * (n - len(own)) + tuple(own)
    strides = [0] * (n - len(strides)) + [0 if m == 1 else s for m, s in zip(own[n - len(strides) :], strides)]
    if n and shape[-1] > 1 and (own[-1] == 1 or strides[-1] != 1):
        raise ValueError("mask: the bytes of a row must lie side by side: make it contiguous, expanded along the keys")
    if any(s < 0 for s in strides):
        raise ValueError("mask: strides must not be negative: make it contiguous")
    batch = 0
    # The dimensions before the heads are one: their strides must tell the same story.
    outer = [(s, t) for s, t in zip(shape[:-3], strides[:-3]) if s != 1]
    if outer:
        batch = outer[-1][1]
        step = 1
        for s, t in reversed(outer):
            if t != batch * step:
                raise ValueError(f"mask: the shape {tuple(own)} cannot be seen as one batch dimension: make it contiguous, expanded along all of them")
            step *= s
    return address, batch, strides[-3] if n > 2 else 0, strides[-2] if n > 1 else 0


def _result(space, name, given, like):
    """Where the result goes: the array given, or a new one of the shape and type of `like`."""
    if given is None:
        return space.empty(like.shape, space.known(like))
    return space.writable(name, space.require(name, given))


def softmax_fwd(x, *, scale=1.0, mask=None, causal=False, offset=0, out=None, stream=None, context=None):
    """y = softmax(scale * x) over the last dimension.

    x: float32, float16 or bfloat16 [..., keys], or [..., heads, queries, keys] where there is a mask or causality. mask: booleans or
    bytes, broadcast against x: an element whose byte is not 0 is hidden. causal: query i sees keys j <= i + offset. What is hidden
    becomes 0; a row that is hidden altogether is 0. out: an array for the result; may be x. Returns y, in the type of x.
    """
    space = first_space(x)
    source, _, _ = space.high("x", x)
    out = _result(space, "out", out, x)
    target, _, _ = space.high("out", out)
    queries, heads = grouping(x.shape)
    address = batch = head = query = 0
    if mask is not None:
        address, batch, head, query = mask_strides(space, mask, x.shape)
    held, (a, b) = in_memory(source, target)
    arguments = _forward(bool(causal), a, b, address, batch, head, query, queries, heads, offset, scale, 0)
    check(lib.nvte_softmax_fwd(space.context(context), arguments, space.stream(stream)))
    return out


def softmax_bwd(dy, y, *, scale=1.0, causal=False, offset=0, dx=None, stream=None, context=None):
    """The gradient of softmax_fwd: dx = scale * y * (dy - sum(y * dy)). A mask is not needed: what it hid is 0 in y.

    dy, y: of one type. scale, causal, offset: the forward pass' own. dx: an array for the result; may be dy. Returns dx.
    """
    space = first_space(y)
    source, _, _ = space.high("y", y)
    gradient, _, _ = space.high("dy", space.given("dy", dy))
    dx = _result(space, "dx", dx, y)
    target, _, _ = space.high("dx", dx)
    held, (a, b, c) = in_memory(gradient, source, target)
    arguments = _backward(bool(causal), a, b, c, grouping(y.shape)[0], offset, scale, 0)
    check(lib.nvte_softmax_bwd(space.context(context), arguments, space.stream(stream)))
    return dx
