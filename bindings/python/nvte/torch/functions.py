"""Layers as autograd functions: one call of the library forward, one backward.

A call is described by a `run`, a tuple that `Layer._begin` makes: (plan, flags, live, scale, cache address, address of the flag that
keeps a cached weight, token, (weights with a main_grad or None, whether the norm's output is wanted, what the addresses point into)). The token is
held by the node's ctx until its backward has run.
"""

import math

import torch

from .. import _abi
from .._library import check, packer, packing
from .plans import ACCUMULATE_DW, NEEDS_DNORM, NEEDS_DX, NUMBERS, scratch

_call = "flags tokens saved saved_bytes workspace workspace_bytes live scale weight_cache skip_refresh "
_pack_linear_fwd, _SIZE_LINEAR_FWD = packing(_abi.nvte_linear_fwd_args_t, _call + "x ldx weight ldw bias y ldy")
_pack_linear_bwd, _SIZE_LINEAR_BWD = packing(
    _abi.nvte_linear_bwd_args_t, _call + "dy lddy x ldx weight ldw dx lddx dw lddw db dw_dtype reserved"
)
_pack_norm_linear_fwd = packer(
    _abi.nvte_layernorm_linear_fwd_args_t, _call + "x ldx gamma beta weight ldw bias y ldy norm_out ld_norm_out"
)
_pack_norm_linear_bwd = packer(
    _abi.nvte_layernorm_linear_bwd_args_t,
    _call + "dy lddy x ldx gamma weight ldw dnorm_out ld_dnorm_out dx lddx dgamma dbeta dw lddw db dw_dtype reserved",
)
_pack_mlp_fwd = packer(
    _abi.nvte_layernorm_mlp_fwd_args_t,
    _call + "x ldx gamma beta fc1_weight ld_fc1_weight fc1_bias fc2_weight ld_fc2_weight fc2_bias y ldy norm_out ld_norm_out",
)
_pack_mlp_bwd = packer(
    _abi.nvte_layernorm_mlp_bwd_args_t,
    _call + "dy lddy x ldx gamma fc1_weight ld_fc1_weight fc2_weight ld_fc2_weight dnorm_out ld_dnorm_out dx lddx dgamma dbeta "
    "dfc1_weight ld_dfc1_weight dfc1_bias dfc2_weight ld_dfc2_weight dfc2_bias dw_dtype reserved",
)

_is_grad_enabled = torch.is_grad_enabled
_Function = torch.autograd.Function
forward_ad = torch.autograd.forward_ad
_functorch = torch._C._are_functorch_transforms_active


def rows_of(x, width):
    """(tensor, rows, row stride) of x as a matrix whose rows lie without gaps."""
    if x.is_contiguous():
        return x, x.numel() // width if width else math.prod(x.shape[:-1]), width
    if x.dim() == 2:
        ld, step = x.stride()
        if step == 1 and ld >= width:
            return x, x.shape[0], ld
    x = x.contiguous()
    return x, x.numel() // width if width else math.prod(x.shape[:-1]), width


def weight_of(w):
    """(tensor, row stride) of a weight."""
    if w.is_contiguous():
        return w, w.shape[1]
    ld, step = w.stride()
    if step == 1 and ld >= w.shape[1]:
        return w, ld
    return w.contiguous(), w.shape[1]


def nowhere(t, wanted=0):
    """Stands for the address of a tensor without elements, which has none and is there all the same. wanted: elements it must have."""
    if t.numel():
        what = "tensors" if type(t) in (torch.Tensor, torch.nn.Parameter) else f"{type(t).__name__}s"
        raise RuntimeError(f"{what} on {t.device} hold no data: layers of nvte run on plain tensors on cpu and cuda")
    if wanted:
        raise ValueError(f"a parameter of shape {tuple(t.shape)} must have {wanted} elements: its data were taken away")
    return 256


def address(t):
    """Address of a vector without gaps; 0 where there is none."""
    return 0 if t is None else t.data_ptr() or nowhere(t)


def _vector(t):
    return t if t is None or t.is_contiguous() else t.contiguous()


def refuse_tangents(*tensors):
    """Forward-mode derivatives, which calls without a graph would drop silently."""
    if any(t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        raise NotImplementedError("nvte.torch has no forward-mode derivatives")


def _room(run, tokens, forward):
    """(saved bytes, workspace bytes) of a call."""
    plan, flags = run[0], run[1]
    sizes = plan.sizes.get(flags)
    if sizes is None:
        sizes = plan.bytes(flags)
    a, b, c, d, e, f = sizes
    return (a * tokens + b, c * tokens + d) if forward else (a * tokens + b, e * tokens + f)


def _check_width(x, width, what="in_features"):
    if not x.dim() or x.shape[-1] != width:
        raise ValueError(f"input: the last dimension of {tuple(x.shape)} must be {what} = {width}")


def saved_room(plan, like, size):
    """(bytes, address) for what forward leaves to backward; (None, 0) where that is nothing."""
    if not size:
        return None, 0
    saved = (plan.room or plan.bytes_like(like))(size)
    return saved, saved.data_ptr()


def matrix_like(t, rows, width):
    """Room for [..., width] beside t [..., another width] of so many rows. Naming the strides takes a third less time."""
    dims = t.dim()
    if dims == 2:
        return t.new_empty_strided((rows, width), (width, 1))
    if dims == 3:
        batch, length, _ = t.shape
        return t.new_empty_strided((batch, length, width), (length * width, width, 1))
    return t.new_empty((*t.shape[:-1], width))


def realigned(saved):
    """(bytes, address) of what forward saved and a hook has put at an odd address."""
    saved = saved.clone()
    return saved, saved.data_ptr()


def main_grad_of(w):
    """Where the gradient of a parameter is accumulated by the product itself."""
    target = getattr(w, "main_grad", None)
    if target is None:
        raise RuntimeError("fuse_wgrad_accumulation: the weight has no main_grad")
    if hasattr(w, "grad_added_to_main_grad"):
        w.grad_added_to_main_grad = True
    if target.dtype not in NUMBERS or not target.is_contiguous() or target.shape != w.shape or target.device != w.device:
        raise RuntimeError("main_grad: must be float32, float16 or bfloat16, contiguous, of the weight's shape and on its device")
    return target


def _weight_gradients(needs, run, weights, positions):
    """(gradients to return, tensors to write, flags) for the weights; accumulated into main_grad where that is asked for."""
    flags, targets, results = run[1], [], []
    fused = run[7][0]
    for w, i in zip(weights, positions):
        if not needs[i]:
            targets.append(None)
            results.append(None)
        elif fused is None:
            dw = matrix_like(w, *w.shape)
            targets.append(dw)
            results.append(dw)
        else:
            original = fused[len(targets)]
            targets.append(main_grad_of(original))
            results.append(None)
            flags |= ACCUMULATE_DW
    return results, targets, flags


class _Once(_Function):
    """Gradients made with create_graph: a second derivative of them is refused."""

    @staticmethod
    def forward(ctx, dy, *grads):
        return tuple(g.view_as(g) for g in grads)

    @staticmethod
    def backward(ctx, *_):
        raise RuntimeError("layers of nvte have no second derivatives: their backward pass cannot be differentiated")


def _finish(dy, grads, more=True):
    """What a backward pass with create_graph returns. more: gradients depend on more than dy, which then need have no graph of its own."""
    present = [g for g in grads if g is not None]
    if present and (more or dy.requires_grad):
        made = iter(_Once.apply(present[0].new_empty(0).requires_grad_(), *present))
        return tuple(None if g is None else next(made) for g in grads)
    return grads


# --- Linear ---


def linear_forward(x, weight, bias, run):
    """(y, saved, x as read). Host time counts: the frequent case is written out."""
    plan, flags, live, scale, cache, skip, _, _ = run
    k, n, index, sizes = plan.k, plan.n, plan.index, plan.sizes.get(flags)
    shape = x.shape
    if len(shape) == 2 and x.is_contiguous():
        tokens, ldx = shape[0], k
        # Naming the strides takes a third less time than `new_empty`.
        y = x.new_empty_strided((tokens, n), (n, 1))
    else:
        y = matrix_like(x, shape[0], n)
        x, tokens, ldx = rows_of(x, k)
    if weight.is_contiguous():
        ldw = k
    else:
        weight, ldw = weight_of(weight)
    bias_at = 0
    if bias is not None:
        if not bias.is_contiguous():
            bias = bias.contiguous()
        bias_at = bias.data_ptr() or nowhere(bias, n)
    per_token, fixed, w_per_token, w_fixed, _, _ = plan.bytes(flags) if sizes is None else sizes
    saved_bytes, size = per_token * tokens + fixed, w_per_token * tokens + w_fixed
    stream = plan.stream(index)
    at, held, _ = scratch(index, stream, size, plan.where)
    if saved_bytes:
        saved = (plan.room or plan.bytes_like(x))(saved_bytes)
        saved_at = saved.data_ptr()
    else:
        saved, saved_at = None, 0
    status = plan.forward(
        plan.handle,
        _pack_linear_fwd(
            _SIZE_LINEAR_FWD, flags, tokens, saved_at, saved_bytes, at, size, live, scale, cache, skip, x.data_ptr() or nowhere(x), ldx,
            weight.data_ptr() or nowhere(weight, n * k), ldw, bias_at, y.data_ptr() or nowhere(y), n,
        ),
        stream,
    )  # fmt: skip
    if status:
        check(status)
    return y, saved, x


def linear_backward(run, needs, dy, weight, saved, x=None):
    """Gradients of x, weight and bias; `needs` says which."""
    plan, flags, live, scale, cache, skip, token, kept = run
    if token is not None:
        token.started = True
    k, n, index, sizes = plan.k, plan.n, plan.index, plan.sizes.get(flags)
    shape = dy.shape
    if len(shape) == 2 and dy.is_contiguous():
        tokens, lddy = shape[0], n
        dx = dy.new_empty_strided((tokens, k), (k, 1)) if flags & NEEDS_DX else None
    else:
        dx = matrix_like(dy, shape[0], k) if flags & NEEDS_DX else None
        dy, tokens, lddy = rows_of(dy, n)
    per_token, fixed, _, _, w_per_token, w_fixed = plan.bytes(flags) if sizes is None else sizes
    _, needs_dw, needs_db, _ = needs
    dw = db = None
    dw_at = db_at = 0
    number = plan.number
    if needs_dw:
        if kept[0] is None:
            dw = weight.new_empty_strided((n, k), (k, 1))
            dw_at = dw.data_ptr() or nowhere(dw)
        else:
            target = main_grad_of(kept[0][0])
            dw_at, number = target.data_ptr() or nowhere(target), NUMBERS[target.dtype]
            flags |= ACCUMULATE_DW
    if needs_db:
        db = weight.new_empty(n)
        db_at = db.data_ptr() or nowhere(db)
    x_at, ldx = 0, k
    if x is not None:
        x, _, ldx = rows_of(x, k)
        x_at = x.data_ptr() or nowhere(x)
    if weight.is_contiguous():
        ldw = k
    else:
        weight, ldw = weight_of(weight)
    saved_bytes, size = per_token * tokens + fixed, w_per_token * tokens + w_fixed
    saved_at = 0 if saved is None else saved.data_ptr()
    if saved_at & 15:
        saved, saved_at = realigned(saved)
    stream = plan.stream(index)
    at, held, _ = scratch(index, stream, size, plan.where)
    status = plan.backward(
        plan.handle,
        _pack_linear_bwd(
            _SIZE_LINEAR_BWD, flags, tokens, saved_at, saved_bytes, at, size, live, scale, cache, skip,
            dy.data_ptr() or nowhere(dy), lddy, x_at, ldx, weight.data_ptr() or nowhere(weight), ldw,
            0 if dx is None else dx.data_ptr() or nowhere(dx), k,
            dw_at, k, db_at, number, 0,
        ),
        stream,
    )  # fmt: skip
    if status:
        check(status)
    return dx, dw, db, None


class LinearFunction(_Function):
    """y = x W^T + b."""

    @staticmethod
    def forward(ctx, x, weight, bias, run):
        y, saved, x2 = linear_forward(x, weight, bias, run)
        if run[0].fp8 or not run[1] & 2:
            # FP8 keeps its own copy of x.
            ctx.save_for_backward(weight, saved)
        else:
            ctx.save_for_backward(weight, saved, x2)
        ctx.run = run
        return y

    @staticmethod
    def backward(ctx, dy):
        grads = linear_backward(ctx.run, ctx.needs_input_grad, dy, *ctx.saved_tensors)
        # dx depends on the weight, the weight's gradient on x.
        return _finish(dy, grads, ctx.run[1] & 3 == 3) if _is_grad_enabled() else grads


# --- norm + Linear ---


def norm_linear_forward(x, gamma, beta, weight, bias, run):
    """(y, norm's output or None, saved, x as read)."""
    plan, flags, live, scale, cache, skip, _, kept = run
    k, n = plan.k, plan.n
    x2, tokens, ldx = rows_of(x, k)
    w, ldw = weight_of(weight)
    gamma, beta, bias = _vector(gamma), _vector(beta), _vector(bias)
    y = matrix_like(x, tokens, n)
    norm_out = matrix_like(x, tokens, k) if kept[1] else None
    saved_bytes, size = _room(run, tokens, True)
    index = plan.index
    stream = plan.stream(index)
    at, held, _ = scratch(index, stream, size, plan.where)
    saved, saved_at = saved_room(plan, x, saved_bytes)
    arguments = _pack_norm_linear_fwd(
        flags, tokens, saved_at, saved_bytes, at, size, live, scale, cache, skip, x2.data_ptr() or nowhere(x2), ldx,
        address(gamma), address(beta), w.data_ptr() or nowhere(w), ldw, address(bias), y.data_ptr() or nowhere(y), n, address(norm_out), k,
    )  # fmt: skip
    status = plan.forward(plan.handle, arguments, stream)
    if status:
        check(status)
    return y, norm_out, saved, x2


def norm_linear_backward(run, needs, dy, dnorm, gamma, weight, saved, x):
    """Gradients of x, gamma, beta, weight and bias; `needs` says which."""
    plan, _, live, scale, cache, skip, token, _ = run
    if token is not None:
        token.started = True
    k, n = plan.k, plan.n
    if dy is None:
        if dnorm is None:
            return (None,) * 6
        dy = dnorm.new_zeros((*dnorm.shape[:-1], n))
    dy2, tokens, lddy = rows_of(dy, n)
    w, ldw = weight_of(weight)
    (dw,), (target,), flags = _weight_gradients(needs, run, (weight,), (3,))
    dx = matrix_like(dy, tokens, k) if needs[0] else None
    dgamma = weight.new_empty(k) if needs[1] else None
    dbeta = weight.new_empty(k) if needs[2] else None
    db = weight.new_empty(n) if needs[4] else None
    x_at, ldx, dnorm_at, ld_dnorm = 0, k, 0, k
    if x is not None:
        x, _, ldx = rows_of(x, k)
        x_at = x.data_ptr() or nowhere(x)
        if dnorm is not None:
            dnorm, _, ld_dnorm = rows_of(dnorm, k)
            dnorm_at = dnorm.data_ptr() or nowhere(dnorm)
    gamma = _vector(gamma)
    saved_bytes, size = _room(run, tokens, False)
    saved_at = 0 if saved is None else saved.data_ptr()
    if saved_at & 15:
        saved, saved_at = realigned(saved)
    index = plan.index
    stream = plan.stream(index)
    at, held, _ = scratch(index, stream, size, plan.where)
    arguments = _pack_norm_linear_bwd(
        flags, tokens, saved_at, saved_bytes, at, size, live, scale, cache, skip,
        dy2.data_ptr() or nowhere(dy2), lddy, x_at, ldx, address(gamma), w.data_ptr() or nowhere(w), ldw, dnorm_at, ld_dnorm,
        address(dx), k, address(dgamma), address(dbeta), address(target), k, address(db),
        NUMBERS[weight.dtype if target is None else target.dtype], 0,
    )  # fmt: skip
    status = plan.backward(plan.handle, arguments, stream)
    if status:
        check(status)
    return dx, dgamma, dbeta, dw, db, None


class NormLinearFunction(_Function):
    """y = norm(x) W^T + b, and the norm's output where wanted."""

    @staticmethod
    def forward(ctx, x, gamma, beta, weight, bias, run):
        y, norm_out, saved, x2 = norm_linear_forward(x, gamma, beta, weight, bias, run)
        ctx.save_for_backward(gamma, weight, saved, x2 if run[1] & (NEEDS_DX | NEEDS_DNORM) else None)
        ctx.run = run
        if norm_out is None:
            return y
        ctx.set_materialize_grads(False)
        return y, norm_out

    @staticmethod
    def backward(ctx, dy, dnorm=None):
        grads = norm_linear_backward(ctx.run, ctx.needs_input_grad, dy, dnorm, *ctx.saved_tensors)
        return _finish(dy, grads) if _is_grad_enabled() else grads


# --- norm + MLP ---


def norm_mlp_forward(x, gamma, beta, w1, b1, w2, b2, run):
    """(y, norm's output or None, saved, x as read)."""
    plan, flags, live, scale, cache, skip, _, kept = run
    k = plan.k
    x2, tokens, ldx = rows_of(x, k)
    w1, ld1 = weight_of(w1)
    w2, ld2 = weight_of(w2)
    gamma, beta, b1, b2 = _vector(gamma), _vector(beta), _vector(b1), _vector(b2)
    y = matrix_like(x, tokens, k)
    norm_out = matrix_like(x, tokens, k) if kept[1] else None
    saved_bytes, size = _room(run, tokens, True)
    index = plan.index
    stream = plan.stream(index)
    at, held, _ = scratch(index, stream, size, plan.where)
    saved, saved_at = saved_room(plan, x, saved_bytes)
    arguments = _pack_mlp_fwd(
        flags, tokens, saved_at, saved_bytes, at, size, live, scale, cache, skip, x2.data_ptr() or nowhere(x2), ldx,
        address(gamma), address(beta), w1.data_ptr() or nowhere(w1), ld1, address(b1), w2.data_ptr() or nowhere(w2), ld2, address(b2),
        y.data_ptr() or nowhere(y), k, address(norm_out), k,
    )  # fmt: skip
    status = plan.forward(plan.handle, arguments, stream)
    if status:
        check(status)
    return y, norm_out, saved, x2


def norm_mlp_backward(run, needs, dy, dnorm, gamma, w1, w2, saved, x):
    """Gradients of x, gamma, beta, w1, b1, w2 and b2; `needs` says which."""
    plan, _, live, scale, cache, skip, token, _ = run
    if token is not None:
        token.started = True
    k = plan.k
    if dy is None:
        if dnorm is None:
            return (None,) * 8
        dy = torch.zeros_like(dnorm)
    dy2, tokens, lddy = rows_of(dy, k)
    w1, ld1 = weight_of(w1)
    w2, ld2 = weight_of(w2)
    (dw1, dw2), (target1, target2), flags = _weight_gradients(needs, run, (w1, w2), (3, 5))
    dx = matrix_like(dy, tokens, k) if needs[0] else None
    dgamma = w1.new_empty(k) if needs[1] else None
    dbeta = w1.new_empty(k) if needs[2] else None
    db1 = w1.new_empty(w1.shape[0]) if needs[4] else None
    db2 = w1.new_empty(k) if needs[6] else None
    x_at, ldx, dnorm_at, ld_dnorm = 0, k, 0, k
    if x is not None:
        x, _, ldx = rows_of(x, k)
        x_at = x.data_ptr() or nowhere(x)
        if dnorm is not None:
            dnorm, _, ld_dnorm = rows_of(dnorm, k)
            dnorm_at = dnorm.data_ptr() or nowhere(dnorm)
    gamma = _vector(gamma)
    target = target1 if target1 is not None else target2
    saved_bytes, size = _room(run, tokens, False)
    saved_at = 0 if saved is None else saved.data_ptr()
    if saved_at & 15:
        saved, saved_at = realigned(saved)
    index = plan.index
    stream = plan.stream(index)
    at, held, _ = scratch(index, stream, size, plan.where)
    arguments = _pack_mlp_bwd(
        flags, tokens, saved_at, saved_bytes, at, size, live, scale, cache, skip,
        dy2.data_ptr() or nowhere(dy2), lddy, x_at, ldx, address(gamma), w1.data_ptr() or nowhere(w1), ld1,
        w2.data_ptr() or nowhere(w2), ld2, dnorm_at, ld_dnorm, address(dx), k, address(dgamma), address(dbeta), address(target1), k, address(db1),
        address(target2), w2.shape[1], address(db2), NUMBERS[w1.dtype if target is None else target.dtype], 0,
    )  # fmt: skip
    status = plan.backward(plan.handle, arguments, stream)
    if status:
        check(status)
    return dx, dgamma, dbeta, dw1, db1, dw2, db2, None


class NormMLPFunction(_Function):
    """y = act(norm(x) W1^T + b1) W2^T + b2, and the norm's output where wanted."""

    @staticmethod
    def forward(ctx, x, gamma, beta, w1, b1, w2, b2, run):
        y, norm_out, saved, x2 = norm_mlp_forward(x, gamma, beta, w1, b1, w2, b2, run)
        ctx.save_for_backward(gamma, w1, w2, saved, x2 if run[1] & (NEEDS_DX | NEEDS_DNORM) else None)
        ctx.run = run
        if norm_out is None:
            return y
        ctx.set_materialize_grads(False)
        return y, norm_out

    @staticmethod
    def backward(ctx, dy, dnorm=None):
        grads = norm_mlp_backward(ctx.run, ctx.needs_input_grad, dy, dnorm, *ctx.saved_tensors)
        return _finish(dy, grads) if _is_grad_enabled() else grads


# Function.apply of torch looks for functorch each time; where none is active its own work can be left out.
def _fast(kind):
    return super(_Function, kind).apply


linear, _norm_linear, _norm_mlp = _fast(LinearFunction), _fast(NormLinearFunction), _fast(NormMLPFunction)


def norm_linear(x, gamma, beta, weight, bias, run, graph):
    """(y, norm's output or None)."""
    if not graph:
        if forward_ad._current_level >= 0:
            refuse_tangents(x, gamma, beta, weight, bias)
        return norm_linear_forward(x, gamma, beta, weight, bias, run)[:2]
    apply = NormLinearFunction.apply if _functorch() else _norm_linear
    out = apply(x, gamma, beta, weight, bias, run)
    return out if run[7][1] else (out, None)


def norm_mlp(x, gamma, beta, w1, b1, w2, b2, run, graph):
    """(y, norm's output or None)."""
    if not graph:
        if forward_ad._current_level >= 0:
            refuse_tangents(x, gamma, beta, w1, b1, w2, b2)
        return norm_mlp_forward(x, gamma, beta, w1, b1, w2, b2, run)[:2]
    apply = NormMLPFunction.apply if _functorch() else _norm_mlp
    out = apply(x, gamma, beta, w1, b1, w2, b2, run)
    return out if run[7][1] else (out, None)
