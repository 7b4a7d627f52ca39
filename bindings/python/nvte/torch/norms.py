"""LayerNorm and RMSNorm as autograd functions."""

import ctypes
import struct
import threading

import torch

from .. import _abi
from .._arrays import pack_tensor
from .._library import check, lib, packer
from ..context import shared
from .functions import _fast, _finish, _functorch, _vector, forward_ad, nowhere, refuse_tangents, rows_of
from .plans import NUMBERS, scratch

_pack_fwd = packer(_abi.nvte_norm_fwd_args_t, "zero_centered_gamma x gamma beta y mu rsigma eps reserved residual sum")
_pack_bwd = packer(
    _abi.nvte_norm_bwd_args_t, "zero_centered_gamma dy x gamma mu rsigma dx dgamma dbeta workspace workspace_bytes dsum"
)
_tensor = _abi.nvte_tensor_t
_SIZE, _DATA = ctypes.sizeof(_tensor), _tensor.data.offset
_put_matrix, _put_pointer, _put_pointers = struct.Struct("@P3q").pack_into, struct.Struct("@P").pack_into, struct.Struct("@2P").pack_into
_put_workspace = struct.Struct("@PQ").pack_into
# What the formats above write in one go.
assert [_tensor.rows.offset, _tensor.cols.offset, _tensor.ld.offset] == [_DATA + 8, _DATA + 16, _DATA + 24]
_FWD_STATISTICS, _BWD_STATISTICS = _abi.nvte_norm_fwd_args_t.mu.offset, _abi.nvte_norm_bwd_args_t.mu.offset
_BWD_WORKSPACE = _abi.nvte_norm_bwd_args_t.workspace.offset
assert _abi.nvte_norm_fwd_args_t.rsigma.offset == _FWD_STATISTICS + 8 and _abi.nvte_norm_bwd_args_t.rsigma.offset == _BWD_STATISTICS + 8
_float32, _is_grad_enabled, _empty_like = torch.float32, torch.is_grad_enabled, torch.empty_like
_workspaces = {}


class _Frames(threading.local):
    """Arguments of calls in this thread, by what stays the same from call to call."""

    def __init__(self):
        self.forward, self.backward = {}, {}


_frames = _Frames()


def _frame(types, cols, pack):
    """(memory, address of the arguments, their offset): C tensors of these types (None: absent) with `cols` columns, then the arguments,
    which `pack` makes from the tensors' addresses."""
    size = _SIZE * len(types)
    memory = (ctypes.c_char * (size + 128))()
    start = ctypes.addressof(memory)
    addresses = []
    for i, t in enumerate(types):
        addresses.append(0 if t is None else start + i * _SIZE)
        if t is not None:
            memory[i * _SIZE : (i + 1) * _SIZE] = pack_tensor(NUMBERS[t], 0, 0, 0, 1, cols, cols, 0, 0, 0, 0, 0, 0, 0, 0)
    arguments = pack(*addresses)
    memory[size : size + len(arguments)] = arguments
    return memory, start + size, size


def _type(t):
    return None if t is None else t.dtype


def _parameter(t, cols):
    """A weight or bias as the library reads it; it knows only where one begins."""
    if t is None:
        return None
    if t.numel() != cols:
        raise ValueError(f"weight, bias: {tuple(t.shape)} has {t.numel()} elements, and must have the {cols} of what is normalised")
    return t if t.is_contiguous() else t.contiguous()


def _stream(index):
    return torch._C._cuda_getCurrentRawStream(index) if index >= 0 else 0


def norm_forward(x, gamma, beta, eps, zero_centered, rms, dtype, stats, residual=None):
    """(y, statistics or None, x as read or, with a residual of x's type and shape, their sum). Statistics are f32: a row of means (not of
    RMSNorm) and one of 1 / deviations."""
    cols, index = x.shape[-1], x.get_device()
    x2, rows, ld = rows_of(x, cols)
    gamma, beta = _parameter(gamma, cols), _parameter(beta, cols)
    # Asked for like another tensor, memory comes in half the time.
    y = _empty_like(x2, dtype=dtype) if ld == cols else x.new_empty(x.shape, dtype=dtype)
    mu = rsigma = kept = None
    if stats:
        kept = x.new_empty_strided((1 if rms else 2, rows), (rows, 1), dtype=_float32)
        mu = kept.data_ptr() or nowhere(kept)
        rsigma = mu if rms else mu + 4 * rows
    key = (x.dtype, _type(gamma), _type(beta), dtype, _type(residual), cols, eps, zero_centered)
    frame = _frames.forward.get(key)
    if frame is None:
        frame = _frames.forward[key] = _frame(
            (*key[:5], key[4]), cols, lambda a, b, c, d, e, f: _pack_fwd(zero_centered, a, b, c, d, 0, 0, eps, 0, e, f)
        )  # fmt: skip
    memory, at, offset = frame
    _put_matrix(memory, _DATA, x2.data_ptr() or nowhere(x2), rows, cols, ld)
    if gamma is not None:
        _put_pointer(memory, _SIZE + _DATA, gamma.data_ptr() or nowhere(gamma))
    if beta is not None:
        _put_pointer(memory, 2 * _SIZE + _DATA, beta.data_ptr() or nowhere(beta))
    _put_matrix(memory, 3 * _SIZE + _DATA, y.data_ptr() or nowhere(y), rows, cols, cols)
    if residual is not None:
        r2, _, ldr = rows_of(residual, cols)
        total = _empty_like(x2) if ld == cols else x.new_empty(x.shape)
        _put_matrix(memory, 4 * _SIZE + _DATA, r2.data_ptr() or nowhere(r2), rows, cols, ldr)
        _put_matrix(memory, 5 * _SIZE + _DATA, total.data_ptr() or nowhere(total), rows, cols, cols)
    _put_pointers(memory, offset + _FWD_STATISTICS, 0 if rms else mu or 0, rsigma or 0)
    function = lib.nvte_rmsnorm_fwd if rms else lib.nvte_layernorm_fwd
    status = function(shared(index).handle, at, _stream(index))
    if status:
        check(status)
    return y, kept, x2 if residual is None else total


def norm_backward(how, needs, dy, x, gamma, kept, dsum=None):
    """Gradients of x, gamma and beta; `needs` says which. how: (eps, zero_centered_gamma, rms). dsum: added to that of x."""
    _, zero_centered, rms = how
    cols, index = x.shape[-1], x.get_device()
    x, rows, ld = rows_of(x, cols)
    dy2, _, lddy = rows_of(dy, cols)
    gamma = _vector(gamma)
    dx = _empty_like(x) if ld == cols else x.new_empty(dy.shape)
    like = x if gamma is None else gamma
    dgamma = like.new_empty(cols) if needs[1] else None
    dbeta = like.new_empty(cols) if needs[2] else None
    handle, stream = shared(index).handle, _stream(index)
    workspace = size = 0
    if dgamma is not None or dbeta is not None:
        size = _workspaces.get((index, cols))
        if size is None:
            asked = ctypes.c_uint64()
            check(lib.nvte_norm_bwd_workspace(handle, cols, ctypes.addressof(asked)))
            size = _workspaces[index, cols] = asked.value
        workspace, held, _ = scratch(index, stream, size, x.device)
    key = (dy.dtype, x.dtype, _type(gamma), dx.dtype, _type(dgamma), _type(dbeta), _type(dsum), cols, zero_centered)
    frame = _frames.backward.get(key)
    if frame is None:
        frame = _frames.backward[key] = _frame(
            key[:7], cols, lambda a, b, c, d, e, f, g: _pack_bwd(zero_centered, a, b, c, 0, 0, d, e, f, 0, 0, g)
        )  # fmt: skip
    memory, at, offset = frame
    _put_matrix(memory, _DATA, dy2.data_ptr() or nowhere(dy2), rows, cols, lddy)
    _put_matrix(memory, _SIZE + _DATA, x.data_ptr() or nowhere(x), rows, cols, ld)
    _put_matrix(memory, 3 * _SIZE + _DATA, dx.data_ptr() or nowhere(dx), rows, cols, cols)
    for i, t in ((2, gamma), (4, dgamma), (5, dbeta)):
        if t is not None:
            _put_pointer(memory, i * _SIZE + _DATA, t.data_ptr() or nowhere(t))
    if dsum is not None:
        more, _, ldm = rows_of(dsum, cols)
        _put_matrix(memory, 6 * _SIZE + _DATA, more.data_ptr() or nowhere(more), rows, cols, ldm)
    mu = kept.data_ptr() or nowhere(kept)
    _put_pointers(memory, offset + _BWD_STATISTICS, 0 if rms else mu, mu if rms else mu + 4 * rows)
    _put_workspace(memory, offset + _BWD_WORKSPACE, workspace, size)
    function = lib.nvte_rmsnorm_bwd if rms else lib.nvte_layernorm_bwd
    status = function(handle, at, stream)
    if status:
        check(status)
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


class ResidualNormFunction(torch.autograd.Function):
    """(norm of x + residual, x + residual)."""

    @staticmethod
    def forward(ctx, x, gamma, beta, residual, how):
        y, kept, total = norm_forward(x, gamma, beta, *how, True, residual)
        ctx.save_for_backward(total, gamma, kept)
        ctx.how = how
        ctx.set_materialize_grads(False)
        return y, total

    @staticmethod
    def backward(ctx, dy, dsum):
        if dy is None:
            return dsum, None, None, dsum, None
        needs = (ctx.needs_input_grad[0] or ctx.needs_input_grad[3], *ctx.needs_input_grad[1:3])
        dx, dgamma, dbeta = norm_backward(ctx.how[:3], needs, dy, *ctx.saved_tensors, dsum)
        grads = dx, dgamma, dbeta, dx, None
        return _finish(dy, grads) if _is_grad_enabled() else grads


_norm, _residual_norm = _fast(NormFunction), _fast(ResidualNormFunction)


def norm(x, gamma, beta, eps, zero_centered, rms, dtype, residual=None):
    """LayerNorm or RMSNorm of x over its last dimension, in `dtype`; with a residual of x's type and shape that of the sum, and the sum."""
    if x.dtype not in NUMBERS or dtype not in NUMBERS:
        raise TypeError(f"input: {x.dtype} is not supported; float32, float16 and bfloat16 are")
    wanted = _is_grad_enabled() and (
        x.requires_grad
        or gamma is not None and gamma.requires_grad
        or beta is not None and beta.requires_grad
        or residual is not None and residual.requires_grad
    )
    if not wanted:
        if forward_ad._current_level >= 0:
            refuse_tangents(x, gamma, beta, residual)
        y, _, total = norm_forward(x, gamma, beta, eps, zero_centered, rms, dtype, False, residual)
        return y if residual is None else (y, total)
    how = (eps, zero_centered, rms, dtype)
    if residual is not None:
        call = ResidualNormFunction.apply if _functorch() else _residual_norm
        return call(x, gamma, beta, residual, how)
    return NormFunction.apply(x, gamma, beta, how) if _functorch() else _norm(x, gamma, beta, how)
