"""Dropout with bias and residual as an autograd function."""

import torch

from ..ops import dropout as ops
from .functions import forward_ad, refuse_tangents

_library = torch.library.Library("nvte", "FRAGMENT")
_library.define("dropout(Tensor x, Tensor? bias, Tensor? residual, Tensor? rng, float p) -> Tensor")
_library.define("dropout_backward(Tensor dy, Tensor? rng, float p, ScalarType? dbias) -> (Tensor, Tensor)")
_TYPES = (torch.float32, torch.float16, torch.bfloat16)


def draw(device):
    """Seed and offset from the generator of `device`: as torch.manual_seed and a graph's replays say, with no wait for the device."""
    return torch.randint(2**63 - 1, (2,), dtype=torch.int64, device=device)


def _rows(x):
    return x if x.is_contiguous() or x.dim() == 2 and x.stride(1) == 1 and x.stride(0) >= x.shape[1] else x.contiguous()


def _forward(x, bias, residual, rng, p):
    if bias is not None and not bias.is_contiguous():
        bias = bias.contiguous()
    return ops.dropout_fwd(_rows(x), p, rng, bias=bias, residual=None if residual is None else _rows(residual))[0]


def _backward(dy, rng, p, dbias):
    sums = None if dbias is None else dy.new_empty(dy.shape[-1], dtype=dbias)
    dx, sums = ops.dropout_bwd(_rows(dy), p, rng, dbias=sums)
    return dx, dy.new_empty(0) if sums is None else sums


def _shape(x, bias, residual, rng, p):
    return x.new_empty(x.shape)


def _backward_shapes(dy, rng, p, dbias):
    return dy.new_empty(dy.shape), dy.new_empty(0 if dbias is None else dy.shape[-1], dtype=dbias or dy.dtype)


class _Dropout(torch.autograd.Function):
    """`forward` and `backward`: the operators, or what is behind them."""

    @staticmethod
    def forward(ctx, calls, x, bias, residual, rng, p):
        ctx.save_for_backward(rng)
        ctx.p, ctx.again, ctx.bias_type = p, calls[1], None if bias is None else bias.dtype
        return calls[0](x, bias, residual, rng, p)

    @staticmethod
    def backward(ctx, dy):
        _, wants_x, wants_bias, wants_residual = ctx.needs_input_grad[:4]
        (rng,) = ctx.saved_tensors
        dx = dbias = None
        if wants_bias or wants_x and ctx.p > 0:
            dx, dbias = ctx.again(dy, rng, ctx.p, ctx.bias_type if wants_bias else None)
        elif wants_x:
            dx = dy
        return None, dx if wants_x else None, dbias if wants_bias else None, dy if wants_residual else None, None, None


class _Gradient(torch.autograd.Function):
    """The gradient is linear in dy, with the same draw."""

    @staticmethod
    def forward(ctx, call, dy, rng, p, dbias):
        ctx.save_for_backward(rng)
        ctx.p, ctx.has_bias = p, dbias is not None
        ctx.again = _run_backward if call is _backward else torch.ops.nvte.dropout_backward
        return call(dy, rng, p, dbias)

    @staticmethod
    def backward(ctx, ddx, ddbias):
        (rng,) = ctx.saved_tensors
        if ctx.has_bias:
            ddx = ddx + ddbias.to(ddx.dtype)
        return None, ctx.again(ddx, rng, ctx.p, None)[0], None, None, None


def _wanted(*tensors):
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        return True
    if forward_ad._current_level >= 0:
        refuse_tangents(*tensors)
    return False


def _below(name):
    operator = getattr(torch.ops.nvte, name)

    def call(*given):
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*given)

    return call


for _name, _real, _shapes in (("dropout", _forward, _shape), ("dropout_backward", _backward, _backward_shapes)):
    _library.impl(_name, _real, "CPU")
    _library.impl(_name, _real, "CUDA")
    torch.library.register_fake(f"nvte::{_name}", _shapes, lib=_library)
_operators = (_below("dropout"), torch.ops.nvte.dropout_backward)
_below_backward = _below("dropout_backward")
_library.impl(
    "dropout",
    lambda x, bias, residual, rng, p: (
        _Dropout.apply(_operators, x, bias, residual, rng, p) if _wanted(x, bias, residual) else _operators[0](x, bias, residual, rng, p)
    ),
    "Autograd",
)
_library.impl(
    "dropout_backward",
    lambda dy, rng, p, dbias: (
        _Gradient.apply(_below_backward, dy, rng, p, dbias) if _wanted(dy) else _below_backward(dy, rng, p, dbias)
    ),
    "Autograd",
)


def _run_backward(dy, rng, p, dbias):
    return _Gradient.apply(_backward, dy, rng, p, dbias) if _wanted(dy) else _backward(dy, rng, p, dbias)


_direct = (_forward, _run_backward)


def bias_dropout_add(x, bias, residual, p, training=True):
    """dropout(x + bias, p) + residual in one pass, and one backward; bias and residual may be None.

    x: float32, float16 or bfloat16 [..., n]; bias: [n] of any of these types; residual: of x's shape and type. What is dropped follows
    torch's generator of the device (torch.manual_seed, recomputation, replays of a graph); it is drawn again in the backward pass, so
    nothing of the size of x is kept. Not training: x + bias + residual.
    """
    if x.dtype not in _TYPES:
        raise TypeError(f"x: {x.dtype} is not supported; float32, float16 and bfloat16 are")
    if residual is not None and (residual.dtype is not x.dtype or residual.shape != x.shape):
        raise ValueError(f"residual is {residual.dtype} {tuple(residual.shape)}, and x {x.dtype} {tuple(x.shape)}")
    if bias is not None and bias.shape != x.shape[-1:]:
        raise ValueError(f"bias has the shape {tuple(bias.shape)}, and x {tuple(x.shape)}")
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"p = {p}: must be from 0 to 1")
    p = float(p) if training else 0.0
    rng = draw(x.device) if 0.0 < p < 1.0 else None
    if torch.compiler.is_compiling():
        return torch.ops.nvte.dropout(x, bias, residual, rng, p)
    if _wanted(x, bias, residual):
        return _Dropout.apply(_direct, x, bias, residual, rng, p)
    return _forward(x, bias, residual, rng, p)
