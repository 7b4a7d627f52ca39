"""Softmax and cross-entropy as functions with gradients."""

import torch

from .. import ops
from .plans import NUMBERS

_is_grad_enabled = torch.is_grad_enabled


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


@torch.compiler.disable
def cross_entropy(logits, target, ignore_index=-100, reduction="mean", label_smoothing=0.0, inplace_backward=False):
    """torch.nn.functional.cross_entropy for class targets, with the classes in the last dimension; the loss is float32.

    logits: float32, float16 or bfloat16 [..., vocabulary]: [N, V], [B, S, V]. target: integers [...]. Logits are read once, in their own
    type and without a copy in float32, and their gradient is written in the same pass; the backward pass only multiplies it with the
    gradient of the loss, on the device, where that is not 1. inplace_backward: the gradient goes where the logits are, which then hold
    them no more: no further memory is needed. A target outside the vocabulary (other than ignore_index) makes the loss NaN.
    """
    if target.is_floating_point():
        raise TypeError(f"target: must hold classes, and is {target.dtype}: probabilities of classes are not supported")
    if logits.dim() < 1 or target.shape != logits.shape[:-1]:
        raise ValueError(f"target: {tuple(target.shape)} must be the shape of logits, {tuple(logits.shape)}, without the last dimension")
    if target.dtype not in (torch.int64, torch.int32):
        target = target.long()
    options = {"ignore_index": ignore_index, "reduction": reduction, "label_smoothing": label_smoothing}
    target = target.contiguous()
    if not (_is_grad_enabled() and logits.requires_grad):
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


@torch.compiler.disable
def softmax(x, scale=1.0, mask=None, causal=False, offset=0):
    """softmax(scale * x) over the last dimension, with a mask and causality; the gradient is computed from the result alone.

    x: float32, float16 or bfloat16 [..., keys], or [..., heads, queries, keys]. mask: booleans or bytes, broadcast against x: what is not
    0 is hidden. causal: query i sees keys j <= i + offset. A row that is hidden altogether is 0, and so is its gradient.
    """
    if mask is not None:
        if mask.dtype not in (torch.bool, torch.uint8, torch.int8):
            raise TypeError(f"mask: must be of booleans or bytes, and is {mask.dtype}")
        if x.dim() and (mask.dim() == 0 or mask.shape[-1] != x.shape[-1]):
            mask = mask.expand((*mask.shape[:-1], x.shape[-1])).contiguous()
        elif mask.dim() and mask.stride(-1) != 1 and mask.shape[-1] > 1:
            mask = mask.contiguous()
    return _Softmax.apply(x, mask, float(scale), bool(causal), int(offset))
