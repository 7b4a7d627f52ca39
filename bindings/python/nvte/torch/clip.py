"""Clipping of gradients by their norm, without waiting for the device."""

import threading

import torch

from .. import ops
from .optimizer import _dense, _flat
from .plans import NUMBERS
from .state import capturing

_KEPT = 16


class _Lists(threading.local):
    """Lists of this thread: with a shared one, calls of two threads would exchange each other's gradients."""

    def __init__(self):
        self.kept = {}


_lists = _Lists()


def _list_for(gradients, index):
    """The list of these gradients: the one of last time, with new addresses where they moved."""
    stream = torch._C._cuda_getCurrentRawStream(index) if index >= 0 else 0
    if capturing(index):
        return ops.grad_list([_flat(g) for g in gradients])
    key = (index, stream, *((g.dtype, g.numel()) for g in gradients))
    at = [g.data_ptr() for g in gradients]
    kept = _lists.kept
    found = kept.get(key)
    if found is None:
        if len(kept) >= _KEPT:
            kept.pop(next(iter(kept)))
        tensors = ops.grad_list([_flat(g) for g in gradients])
        # Gradients go when their owner lets them go.
        tensors.gradients = None
        kept[key] = tensors, at
        return tensors
    tensors, old = found
    if at != old:
        tensors.set_gradients(at)
        kept[key] = tensors, at
    return tensors


def clip_grad_norm_(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    """torch.nn.utils.clip_grad_norm_ in two launches: the norm of all gradients as one vector, which it returns, and their scaling,
    which touches no memory where the norm is small enough. Nothing waits for the device, unless error_if_nonfinite asks it to.

    parameters: an iterable of tensors with gradients, or one. Norms other than the Euclidean, and gradients that are no plain dense
    tensors, go to torch's own function.
    """
    parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    gradients = [p.grad for p in parameters if p.grad is not None]
    plain = all(type(g) is torch.Tensor and g.layout == torch.strided and g.dtype in NUMBERS and _dense(g) for g in gradients)
    if float(norm_type) != 2.0 or not plain:
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
    if not gradients:
        return torch.tensor(0.0)
    with torch.no_grad():
        by_device = {}
        for g in gradients:
            by_device.setdefault(g.device, []).append(g.detach())
        lists = [(device, _list_for(part, part[0].get_device())) for device, part in by_device.items()]
        first = lists[0][0]
        norm, clip = torch.empty(2, dtype=torch.float32, device=first)
        if len(lists) == 1:
            ops.grad_norm(lists[0][1], max_norm=float(max_norm), norm=norm, clip=clip)
        else:
            norms = [ops.grad_norm(tensors).to(first) for _, tensors in lists]
            norm = torch.linalg.vector_norm(torch.cat(norms))
            clip = (float(max_norm) / (norm + 1e-6)).clamp(max=1.0)
        if error_if_nonfinite and not torch.isfinite(norm):
            raise RuntimeError(
                f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, so it cannot be clipped"
            )
        for device, tensors in lists:
            ops.grad_scale(tensors, clip.to(device))
    return norm
