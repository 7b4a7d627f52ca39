"""LayerNorm and RMSNorm as autograd functions."""

import ctypes

import torch

from .. import _abi
from .._arrays import pack_tensor
from .._library import check, lib, packer
from ..context import shared
from .functions import _fast, _finish, _functorch, _vector, nowhere, rows_of
from .plans import NUMBERS, scratch

_pack_fwd = packer(_abi.nvte_norm_fwd_args_t, "zero_centered_gamma x gamma beta y mu rsigma eps reserved")
_pack_bwd = packer(
    _abi.nvte_norm_bwd_args_t, "zero_centered_gamma dy x gamma mu rsigma dx dgamma dbeta workspace workspace_bytes"
)
_SIZE = ctypes.sizeof(_abi.nvte_tensor_t)
_Blocks = [ctypes.c_char * (_SIZE * n) for n in range(7)]
_float32, _is_grad_enabled = torch.float32, torch.is_grad_enabled
_workspaces = {}


def _matrix(t, rows, cols, ld):
    return pack_tensor(NUMBERS[t.dtype], 0, 0, t.data_ptr() or nowhere(t), rows, cols, ld, 0, 0, 0, 0, 0, 0, 0, 0)


def _in_memory(parts):
    """The structs that are there, one after the other: (what holds them, address of each or 0)."""
    present = [p for p in parts if p is not None]
    held = _Blocks[len(present)].from_buffer_copy(b"".join(present))
    at, addresses = ctypes.addressof(held), []
    for p in parts:
        if p is None:
            addresses.append(0)
        else:
            addresses.append(at)
            at += _SIZE
    return held, addresses


def _parameter(t, cols):
    return None if t is None else _matrix(t, 1, cols, cols)


def _stream(index):
    return torch._C._cuda_getCurrentRawStream(index) if index >= 0 else 0


def norm_forward(x, gamma, beta, eps, zero_centered, rms, dtype, stats):
    """(y, statistics or None, x as read). Statistics are f32: a row of means (not of RMSNorm) and one of 1 / deviations."""
    cols, index = x.shape[-1], x.get_device()
    x2, rows, ld = rows_of(x, cols)
    gamma, beta = _vector(gamma), _vector(beta)
    y = x.new_empty(x.shape, dtype=dtype)
    mu = rsigma = kept = None
    if stats:
        kept = x.new_empty((1 if rms else 2, rows), dtype=_float32)
        mu = kept.data_ptr() or nowhere(kept)
        rsigma = mu if rms else mu + 4 * rows
    held, (a, b, c, d) = _in_memory(
        (_matrix(x2, rows, cols, ld), _parameter(gamma, cols), _parameter(beta, cols), _matrix(y, rows, cols, cols))
    )
    arguments = _pack_fwd(zero_centered, a, b, c, d, 0 if rms else mu or 0, rsigma or 0, eps, 0)
    function = lib.nvte_rmsnorm_fwd if rms else lib.nvte_layernorm_fwd
    check(function(shared(index).handle, arguments, _stream(index)))
    return y, kept, x2


def norm_backward(how, needs, dy, x, gamma, kept):
    """Gradients of x, gamma and beta; `needs` says which. how: (eps, zero_centered_gamma, rms)."""
    _, zero_centered, rms = how
    cols, index = x.shape[-1], x.get_device()
    x, rows, ld = rows_of(x, cols)
    dy2, _, lddy = rows_of(dy, cols)
    gamma = _vector(gamma)
    dx = x.new_empty(dy.shape)
    like = x if gamma is None else gamma
    dgamma = like.new_empty(cols) if needs[1] else None
    dbeta = like.new_empty(cols) if needs[2] else None
    handle, stream = shared(index).handle, _stream(index)
    at = size = 0
    if dgamma is not None or dbeta is not None:
        size = _workspaces.get((index, cols))
        if size is None:
            asked = ctypes.c_uint64()
            check(lib.nvte_norm_bwd_workspace(handle, cols, ctypes.addressof(asked)))
            size = _workspaces[index, cols] = asked.value
        at, held_memory, _ = scratch(index, stream, size, x.device)
    held, (a, b, c, d, e, f) = _in_memory(
        (
            _matrix(dy2, rows, cols, lddy), _matrix(x, rows, cols, ld), _parameter(gamma, cols), _matrix(dx, rows, cols, cols),
            _parameter(dgamma, cols), _parameter(dbeta, cols),
        )
    )  # fmt: skip
    mu = kept.data_ptr() or nowhere(kept)
    arguments = _pack_bwd(zero_centered, a, b, c, 0 if rms else mu, mu if rms else mu + 4 * rows, d, e, f, at, size)
    function = lib.nvte_rmsnorm_bwd if rms else lib.nvte_layernorm_bwd
    check(function(handle, arguments, stream))
    return dx if needs[0] else None, dgamma, dbeta


class NormFunction(torch.autograd.Function):
    """LayerNorm or RMSNorm over the last dimension."""

    @staticmethod
    def forward(ctx, x, gamma, beta, how):
        y, kept, x2 = norm_forward(x, gamma, beta, *how, True)
        ctx.save_for_backward(x2, gamma, kept)
        ctx.how = how
        return y

    @staticmethod
    def backward(ctx, dy):
        grads = (*norm_backward(ctx.how[:3], ctx.needs_input_grad, dy, *ctx.saved_tensors), None)
        return _finish(dy, grads) if _is_grad_enabled() else grads


_norm = _fast(NormFunction)


def norm(x, gamma, beta, eps, zero_centered, rms, dtype):
    """LayerNorm or RMSNorm of x over its last dimension, in `dtype`."""
    if x.dtype not in NUMBERS or dtype not in NUMBERS:
        raise TypeError(f"input: {x.dtype} is not supported; float32, float16 and bfloat16 are")
    wanted = _is_grad_enabled() and (
        x.requires_grad or gamma is not None and gamma.requires_grad or beta is not None and beta.requires_grad
    )
    if not wanted:
        return norm_forward(x, gamma, beta, eps, zero_centered, rms, dtype, False)[0]
    how = (eps, zero_centered, rms, dtype)
    return NormFunction.apply(x, gamma, beta, how) if _functorch() else _norm(x, gamma, beta, how)
