"""Softmax and cross-entropy as functions with gradients: straight to the library in eager mode, operators while a compiler traces."""

import torch

from .. import ops
from .functions import forward_ad, refuse_tangents
from .plans import NUMBERS

_is_grad_enabled, _is_compiling = torch.is_grad_enabled, torch.compiler.is_compiling
_below = torch._C._AutoDispatchBelowAutograd
_library = torch.library.Library("nvte", "FRAGMENT")
_library.define(
    "cross_entropy(Tensor logits, Tensor target, int ignore_index, str reduction, float label_smoothing, bool gradient)"
    " -> (Tensor, Tensor)"
)
_library.define("scaled_rows(Tensor x, Tensor scale) -> Tensor")
_library.define("softmax(Tensor x, Tensor? mask, float scale, bool causal, int offset) -> Tensor")
_library.define("softmax_backward(Tensor dy, Tensor y, float scale, bool causal, int offset) -> Tensor")


class _Once(torch.autograd.Function):
    """A gradient made with create_graph: a second derivative of it is refused."""

    @staticmethod
    def forward(ctx, anchor, gradient, name):
        ctx.name = name
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx, _):
        raise RuntimeError(f"nvte.torch.{ctx.name} has no second derivative: its backward pass cannot be differentiated")


def _finished(gradient, name):
    """What a backward pass returns."""
    if not _is_grad_enabled():
        return gradient
    # The gradient of the result need not have a graph of its own, and the second derivative is wrong all the same.
    return _Once.apply(gradient.new_empty(0).requires_grad_(), gradient, name)


def _matrix(x, name):
    """x as the library takes it: rows without gaps, one stride between them; a copy where that is not so."""
    if x.dtype not in NUMBERS:
        raise TypeError(f"{name}: {x.dtype} is not supported; float32, float16 and bfloat16 are")
    if x.is_contiguous() or x.dim() == 2 and x.stride(1) == 1 and x.stride(0) >= x.shape[1]:
        return x
    return x.contiguous()


# ------------------------------------------------------------------------------------------------------------------- cross-entropy


class _CrossEntropy(torch.autograd.Function):
    """The gradient is computed in the forward pass; the backward pass multiplies it with that of the loss, where that is not 1."""

    @staticmethod
    def forward(ctx, logits, target, options, inplace):
        read = _matrix(logits, "logits")
        # A copy that was made here is as good a place as any.
        room = read if inplace or read is not logits else True
        found = ops.cross_entropy(read, target, dlogits=room, **options)
        if room is logits:
            torch.autograd.graph.increment_version(logits)
        ctx.gradient = found.dlogits
        return found.loss if found.total is None else found.total

    @staticmethod
    def backward(ctx, dloss):
        gradient, ctx.gradient = ctx.gradient, None
        if gradient is None:
            raise RuntimeError(
                "nvte.torch.cross_entropy: a second backward pass through the same loss; its gradient, computed with the loss, was handed "
                "out by the first (add losses up, or call cross_entropy again)"
            )
        with torch.no_grad():
            ops.scale_rows(gradient, dloss.contiguous().view(-1))
        return _finished(gradient, "cross_entropy"), None, None, None


def cross_entropy(logits, target, ignore_index=-100, reduction="mean", label_smoothing=0.0, inplace_backward=False):
    """torch.nn.functional.cross_entropy for class targets, with the classes in the last dimension; the loss is float32.

    logits: float32, float16 or bfloat16 [..., vocabulary]: [N, V], [B, S, V]. target: integers [...]. Logits are read once, in their own
    type and without a copy in float32, and their gradient is written in the same pass; the backward pass only multiplies it with the
    gradient of the loss, on the device, where that is not 1. inplace_backward: the gradient goes where the logits are, which then hold
    them no more: no further memory is needed. (Compiled code decides by itself where things go.) A
    target outside the vocabulary, other than ignore_index, makes the loss NaN. One backward pass per loss; no second derivatives.
    """
    if target.is_floating_point():
        raise TypeError(f"target: must hold classes, and is {target.dtype}: probabilities of classes are not supported")
    if logits.dim() < 1 or target.shape != logits.shape[:-1]:
        raise ValueError(f"target: {tuple(target.shape)} must be the shape of logits, {tuple(logits.shape)}, without the last dimension")
    if target.dtype not in (torch.int64, torch.int32):
        target = target.long()
    if _is_compiling():
        gradient = _is_grad_enabled() and logits.requires_grad
        return torch.ops.nvte.cross_entropy(logits, target, ignore_index, reduction, label_smoothing, gradient)[0]
    options = {"ignore_index": ignore_index, "reduction": reduction, "label_smoothing": label_smoothing}
    target = target.contiguous()
    if not (_is_grad_enabled() and logits.requires_grad):
        if forward_ad._current_level >= 0:
            refuse_tangents(logits)
        found = ops.cross_entropy(_matrix(logits, "logits"), target, **options)
        return found.loss if found.total is None else found.total
    if inplace_backward and logits.is_leaf:
        raise RuntimeError("inplace_backward: the logits are a leaf, whose values would be lost")
    return _CrossEntropy.apply(logits, target, options, inplace_backward)


# ------------------------------------------------------------------------------------------------------------------------- softmax


class _Softmax(torch.autograd.Function):
    """Backward needs the result alone: what was hidden is 0 there."""

    @staticmethod
    def forward(ctx, x, mask, scale, causal, offset):
        y = ops.softmax_fwd(_matrix(x, "x"), scale=scale, mask=mask, causal=causal, offset=offset)
        ctx.save_for_backward(y)
        ctx.how = {"scale": scale, "causal": causal, "offset": offset}
        return y

    @staticmethod
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        with torch.no_grad():
            dx = ops.softmax_bwd(_matrix(dy.to(y.dtype), "dy"), y.detach(), **ctx.how)
        return _finished(dx, "softmax"), None, None, None, None


def softmax(x, scale=1.0, mask=None, causal=False, offset=0):
    """softmax(scale * x) over the last dimension, with a mask and causality; the gradient is computed from the result alone.

    x: float32, float16 or bfloat16 [..., keys], or [..., heads, queries, keys]. mask: booleans or bytes, broadcast against x: what is not
    0 is hidden. causal: query i sees keys j <= i + offset. A row that is hidden altogether is 0, and so is its gradient.
    """
    if mask is not None:
        if mask.dtype not in (torch.bool, torch.uint8, torch.int8):
            raise TypeError(f"mask: must be of booleans or bytes, and is {mask.dtype}")
        if mask.dim() > x.dim() or any(m not in (1, n) for m, n in zip(reversed(mask.shape), reversed(x.shape))):
            raise ValueError(f"mask: its shape {tuple(mask.shape)} must broadcast to that of x, {tuple(x.shape)}")
        if x.dim() and (mask.dim() == 0 or mask.shape[-1] != x.shape[-1]):
            mask = mask.expand((*mask.shape[:-1], x.shape[-1])).contiguous()
        elif mask.dim() and mask.stride(-1) != 1 and mask.shape[-1] > 1:
            mask = mask.contiguous()
        if x.dim() > 4 and any(n != 1 for n in mask.shape[:-3]):
            # What comes before the heads is one dimension for the library.
            mask = mask.expand((*x.shape[:-3], *mask.shape[-3:])).contiguous()
    if _is_compiling():
        return torch.ops.nvte.softmax(x, mask, scale, causal, offset)
    return _Softmax.apply(x, mask, float(scale), bool(causal), int(offset))


# ----------------------------------------------------------------------------------------------------------- operators for compilers


def _loss(logits, target, ignore_index, reduction, label_smoothing, gradient):
    options = {"ignore_index": ignore_index, "reduction": reduction, "label_smoothing": label_smoothing}
    found = ops.cross_entropy(_matrix(logits, "logits"), target.contiguous(), dlogits=True if gradient else None, **options)
    return found.loss if found.total is None else found.total, found.dlogits if gradient else logits.new_empty(0)


def _loss_shapes(logits, target, ignore_index, reduction, label_smoothing, gradient):
    shape = logits.shape[:-1] if reduction == "none" else ()
    return logits.new_empty(shape, dtype=torch.float32), logits.new_empty(logits.shape if gradient else (0,))


def _scaled(x, scale):
    return ops.scale_rows(x.clone(memory_format=torch.contiguous_format), scale.contiguous().view(-1))


def _probabilities(x, mask, scale, causal, offset):
    return ops.softmax_fwd(_matrix(x, "x"), scale=scale, mask=mask, causal=causal, offset=offset)


def _probabilities_backward(dy, y, scale, causal, offset):
    return ops.softmax_bwd(_matrix(dy.to(y.dtype), "dy"), _matrix(y, "y"), scale=scale, causal=causal, offset=offset)


def _same_shape(x, *_):
    return x.new_empty(x.shape)


class _Loss(torch.autograd.Function):
    """The loss as an operator."""

    @staticmethod
    def forward(ctx, logits, target, ignore_index, reduction, label_smoothing, gradient):
        with _below():
            loss, gradient = torch.ops.nvte.cross_entropy(logits, target, ignore_index, reduction, label_smoothing, True)
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(gradient)
        return loss, gradient

    @staticmethod
    def backward(ctx, dloss, _):
        (gradient,) = ctx.saved_tensors
        return torch.ops.nvte.scaled_rows(gradient, dloss), None, None, None, None, None


class _Probabilities(torch.autograd.Function):
    """The softmax as an operator."""

    @staticmethod
    def forward(ctx, x, mask, scale, causal, offset):
        with _below():
            y = torch.ops.nvte.softmax(x, mask, scale, causal, offset)
        ctx.save_for_backward(y)
        ctx.how = (scale, causal, offset)
        return y

    @staticmethod
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        return torch.ops.nvte.softmax_backward(dy, y, *ctx.how), None, None, None, None


def _differentiated(name, function):
    """What autograd does with an operator whose first argument has a gradient."""
    operator = getattr(torch.ops.nvte, name)

    def call(x, *rest):
        if function is not None and _is_grad_enabled() and x.requires_grad:
            return function.apply(x, *rest)
        if function is None and _is_grad_enabled() and any(t.requires_grad for t in (x, *rest) if isinstance(t, torch.Tensor)):
            raise RuntimeError(f"nvte::{name} has no derivative: nvte.torch has no second ones of softmax and cross_entropy")
        with _below():
            return operator(x, *rest)

    return call


for _name, _real, _shapes, _function in (
    ("cross_entropy", _loss, _loss_shapes, _Loss),
    ("scaled_rows", _scaled, _same_shape, None),
    ("softmax", _probabilities, _same_shape, _Probabilities),
    ("softmax_backward", _probabilities_backward, lambda dy, y, *_: y.new_empty(y.shape), None),
):
    _library.impl(_name, _real, "CPU")
    _library.impl(_name, _real, "CUDA")
    torch.library.register_fake(f"nvte::{_name}", _shapes, lib=_library)
    _library.impl(_name, _differentiated(_name, _function), "Autograd")
