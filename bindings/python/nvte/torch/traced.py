"""The layers as operators for torch.compile: used only while tracing.

An operator is one layer's pass, functional for the compiler: what it records about amaxes is read by no one inside a compiled function. A
layer's scales are an argument; by their address the operator finds the layer's slots when it runs, and with them what eager layers keep in
Python: recorded amaxes, weights that were replaced, cached weights. All that tells one layer or step from another is in tensors, so equal
layers share what was compiled. A region's token lives as long as the tensor saved for backward.
"""

import torch

from .._version import __version__
from . import functions, norms, region
from .plans import CALIBRATE, NEEDS_DNORM, NEEDS_DX, SAVE_WEIGHT, is_large, plan_for, saves_weight
from .state import by_address

_library = torch.library.Library("nvte", "DEF")
_library.define(
    "layer(Tensor x, Tensor?[] parameters, Tensor? scale, str layer, str mode, int flags, bool record, int first, bool norm_out)"
    " -> (Tensor, Tensor, Tensor)"
)
_library.define(
    "layer_backward(Tensor dy, Tensor? dnorm, Tensor? x, Tensor?[] parameters, Tensor saved, Tensor? scale, str layer, str mode, int flags,"
    " bool record, int first, bool[] needs) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_library.define(
    "norm(Tensor x, Tensor? gamma, Tensor? beta, float eps, bool zero_centered, bool rms, ScalarType dtype) -> (Tensor, Tensor)"
)
_library.define(
    "norm_backward(Tensor dy, Tensor x, Tensor? gamma, Tensor statistics, float eps, bool zero_centered, bool rms, bool[] needs)"
    " -> (Tensor, Tensor, Tensor)"
)
_layers = {}
#: Number of parameters of each kind, and which of them are weights.
_PARTS = {"linear": (2, (0,)), "layernorm_linear": (4, (2,)), "layernorm_mlp": (6, (2, 4))}


def register(kind, dims, norm, activation):
    """The text that stands for a description in compiled code, which compilers keep on disk: with the version that its sizes belong to."""
    text = f"{kind} {dims} {norm} {activation} {__version__}"
    _layers.setdefault(text, (kind, dims, norm, activation))
    return text


def _plan(x, parameters, layer, mode):
    kind, dims, norm, activation = _layers[layer]
    weight = parameters[_PARTS[kind][1][0]]
    index = -1 if x.device.type == "cpu" else x.device.index
    return kind, plan_for(kind, index, x.dtype, weight.dtype, region.modes_by_text[mode] if mode else None, dims, norm, activation)


def _begin(plan, scale, mode, flags, record, first, grads):
    """(run without the last field, what the addresses point into): as `Layer._begin`, from inside an operator."""
    slots = None if scale is None else by_address.get(scale.data_ptr())
    owner = None if slots is None or slots.owner is None else slots.owner()
    found = region.modes_by_text[mode] if mode else None
    inner, token = region.local.region, None
    engine = region.graph_task() != -1
    if owner is not None:
        d = owner.__dict__
        if engine and (inner is None or not inner.engine):
            last = d["_last"]
            if ("" if last is None else last.text) != mode:
                raise RuntimeError(
                    "a compiled layer is recomputed outside the region of its first pass: use nvte.torch.checkpoint, or "
                    "context_fn=nvte.torch.checkpoint_contexts"
                )
        elif region.local.text != mode:
            raise RuntimeError(f"a layer compiled for the region {mode!r} runs in {region.local.text!r}: call the compiled function there")
        elif inner is None:
            if grads or d["training"]:
                d["_last"] = None
        elif inner.trains or grads:
            d["_last"] = found = inner.mode
            token = inner.token
            if (token is None or token.started) and grads and not engine:
                token = inner.token = region.Token()
    if found is None:
        return (plan, flags, 0, 0, 0, 0, None), None
    if owner is None:
        if record and found.delayed:
            raise RuntimeError("a compiled layer does not know its scaling state: its scales were copied on the way to the operator")
        if not found.fp8:
            flags |= CALIBRATE
        return (plan, flags, 0, scale.data_ptr() if found.delayed and scale is not None else 0, 0, 0, None), None
    flags, live, at, cache_at, skip_at, kept = owner._prepare(
        found, plan, token, flags, record, None if first < 0 else bool(first), engine, grads
    )
    return (plan, flags, live, at, cache_at, skip_at, token), kept


def _some(t, like):
    return like.new_empty(0) if t is None else t


def _forward(x, parameters, scale, layer, mode, flags, record, first, norm_out):
    kind, plan = _plan(x, parameters, layer, mode)
    run, kept = _begin(plan, scale, mode, flags, record, first, flags != 0)
    run = (*run, (None, norm_out, kept))
    if kind == "linear":
        y, saved, _ = functions.linear_forward(x, *parameters, run)
        normed = None
    elif kind == "layernorm_linear":
        y, normed, saved, _ = functions.norm_linear_forward(x, *parameters, run)
    else:
        y, normed, saved, _ = functions.norm_mlp_forward(x, *parameters, run)
    if saved is None:
        saved = x.new_empty(0, dtype=torch.uint8)
    # Kept as long as the memory is; the tensor itself is another one where checkpointing has handed it on.
    saved.untyped_storage()._nvte_run = run
    return y, _some(normed, x), saved


def _backward(dy, dnorm, x, parameters, saved, scale, layer, mode, flags, record, first, needs):
    kind, plan = _plan(dy, parameters, layer, mode)
    run = getattr(saved.untyped_storage(), "_nvte_run", None)
    if run is None:
        # A copy of what forward saved: the flags that forward may have added concern weights just cast.
        if first >= 0:
            raise RuntimeError(
                "a compiled layer called with is_first_microbatch does not find its FP8 weights in copies of what it saved "
                "(hooks of saved tensors, such as save_on_cpu): leave is_first_microbatch out"
            )
        slots = None if scale is None else by_address.get(scale.data_ptr())
        found = region.modes_by_text[mode] if mode else None
        live = slots.live_at if slots is not None and record and found is not None and found.delayed else 0
        at = scale.data_ptr() if found is not None and found.delayed and scale is not None else 0
        run = (plan, flags if found is None or found.fp8 else flags | CALIBRATE, live, at, 0, 0, None, (None, False, None))
    held = saved if saved.numel() else None
    wanted = (*needs, False)
    none = None
    if kind == "linear":
        w = parameters[0]
        dx, dw, db, _ = functions.linear_backward(run, (needs[0], needs[1], needs[2], False), dy, w, held, x)
        grads = (dx, dw, db, none, none, none, none)
    elif kind == "layernorm_linear":
        grads = functions.norm_linear_backward(run, wanted, dy, dnorm, parameters[0], parameters[2], held, x)[:5] + (none, none)
    else:
        grads = functions.norm_mlp_backward(run, wanted, dy, dnorm, parameters[0], parameters[2], parameters[4], held, x)[:7]
    return tuple(_some(g, dy) for g in grads)


def _saved_bytes(plan, flags, tokens):
    sizes = plan.sizes.get(flags) or plan.bytes(flags)
    return sizes[0] * tokens + sizes[1]


def _rows(shape):
    tokens = 1
    for n in shape[:-1]:
        tokens = tokens * n
    return tokens


def _forward_shapes(x, parameters, scale, layer, mode, flags, record, first, norm_out):
    kind, plan = _plan(x, parameters, layer, mode)
    if mode and not plan.fp8:
        flags |= CALIBRATE
    saved = _saved_bytes(plan, flags, _rows(x.shape))
    return (
        x.new_empty((*x.shape[:-1], plan.n)), x.new_empty(x.shape if norm_out else (0,)), x.new_empty((saved,), dtype=torch.uint8)
    )  # fmt: skip


def _backward_shapes(dy, dnorm, x, parameters, saved, scale, layer, mode, flags, record, first, needs):
    kind, plan = _plan(dy, parameters, layer, mode)
    made = [dy.new_empty((*dy.shape[:-1], plan.k)) if needs[0] else dy.new_empty(0)]
    for p, wanted in zip(parameters, needs[1:]):
        made.append(p.new_empty(p.shape) if wanted else dy.new_empty(0))
    while len(made) < 7:
        made.append(dy.new_empty(0))
    return tuple(made)


class _Layer(torch.autograd.Function):
    """The operator's derivative, in terms of the other operator."""

    @staticmethod
    def forward(ctx, x, scale, layer, mode, flags, record, first, norm_out, *parameters):
        with torch._C._AutoDispatchBelowAutograd():
            y, normed, saved = torch.ops.nvte.layer(x, parameters, scale, layer, mode, flags, record, first, norm_out)
        kind = _layers[layer][0]
        reads_x = flags & (NEEDS_DX | NEEDS_DNORM) if kind != "linear" else flags & 2 and not mode.startswith("fp8")
        ctx.save_for_backward(x if reads_x else None, scale, saved, *parameters)
        ctx.what = (layer, mode, flags, record, first, norm_out)
        ctx.mark_non_differentiable(saved)
        ctx.set_materialize_grads(False)
        return y, normed, saved

    @staticmethod
    def backward(ctx, dy, dnorm, _):
        x, scale, saved, *parameters = ctx.saved_tensors
        layer, mode, flags, record, first, norm_out = ctx.what
        if dy is None and dnorm is None:
            return (None,) * (8 + len(parameters))
        if dy is None:
            dy = dnorm.new_zeros((*dnorm.shape[:-1], _layers[layer][1][1]))
        if not norm_out or x is None:
            dnorm = None
        needs = [ctx.needs_input_grad[0], *ctx.needs_input_grad[8:]]
        grads = torch.ops.nvte.layer_backward(dy, dnorm, x, parameters, saved, scale, layer, mode, flags, record, first, needs)
        grads = [g if wanted else None for g, wanted in zip(grads, needs)]
        return (grads[0], None, None, None, None, None, None, None, *grads[1:])


def _layer_autograd(x, parameters, scale, layer, mode, flags, record, first, norm_out):
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, *parameters)):
        return _Layer.apply(x, scale, layer, mode, flags, record, first, norm_out, *parameters)
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.nvte.layer(x, parameters, scale, layer, mode, flags, record, first, norm_out)


def _refused(*_):
    raise RuntimeError("layers of nvte have no second derivatives: their backward pass cannot be differentiated")


class _LayerBackward(torch.autograd.Function):
    """Refuses a second derivative."""

    @staticmethod
    def forward(ctx, operator, given, *tensors):
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*given)

    backward = staticmethod(_refused)


def _once(operator):
    def call(*given):
        tensors = [t for g in given for t in (g if isinstance(g, (list, tuple)) else (g,)) if isinstance(t, torch.Tensor)]
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            return _LayerBackward.apply(operator(), given, *tensors)
        with torch._C._AutoDispatchBelowAutograd():
            return operator()(*given)

    return call


# --- norms ---


def _norm_forward(x, gamma, beta, eps, zero_centered, rms, dtype):
    return norms.norm_forward(x, gamma, beta, eps, zero_centered, rms, dtype, True)[:2]


def _norm_shapes(x, gamma, beta, eps, zero_centered, rms, dtype):
    return x.new_empty(x.shape, dtype=dtype), x.new_empty((1 if rms else 2, _rows(x.shape)), dtype=torch.float32)


def _norm_backward(dy, x, gamma, statistics, eps, zero_centered, rms, needs):
    grads = norms.norm_backward((eps, zero_centered, rms), needs, dy, x, gamma, statistics)
    return tuple(_some(g, dy) for g in grads)


def _norm_backward_shapes(dy, x, gamma, statistics, eps, zero_centered, rms, needs):
    like = x if gamma is None else gamma
    width = x.shape[-1]
    return (
        x.new_empty(x.shape if needs[0] else (0,)),
        like.new_empty(width) if needs[1] else dy.new_empty(0),
        like.new_empty(width) if needs[2] else dy.new_empty(0),
    )


class _Norm(torch.autograd.Function):
    """The norm's derivative, in terms of the other operator."""

    @staticmethod
    def forward(ctx, x, gamma, beta, eps, zero_centered, rms, dtype):
        with torch._C._AutoDispatchBelowAutograd():
            y, statistics = torch.ops.nvte.norm(x, gamma, beta, eps, zero_centered, rms, dtype)
        ctx.save_for_backward(x, gamma, statistics)
        ctx.how = (eps, zero_centered, rms)
        ctx.mark_non_differentiable(statistics)
        return y, statistics

    @staticmethod
    def backward(ctx, dy, _):
        x, gamma, statistics = ctx.saved_tensors
        needs = list(ctx.needs_input_grad[:3])
        grads = torch.ops.nvte.norm_backward(dy, x, gamma, statistics, *ctx.how, needs)
        return (*[g if wanted else None for g, wanted in zip(grads, needs)], None, None, None, None)


def _norm_autograd(x, gamma, beta, eps, zero_centered, rms, dtype):
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, gamma, beta)):
        return _Norm.apply(x, gamma, beta, eps, zero_centered, rms, dtype)
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.nvte.norm(x, gamma, beta, eps, zero_centered, rms, dtype)


for _name, _real, _shapes, _derivative in (
    ("layer", _forward, _forward_shapes, _layer_autograd),
    ("layer_backward", _backward, _backward_shapes, _once(lambda: torch.ops.nvte.layer_backward)),
    ("norm", _norm_forward, _norm_shapes, _norm_autograd),
    ("norm_backward", _norm_backward, _norm_backward_shapes, _once(lambda: torch.ops.nvte.norm_backward)),
):
    _library.impl(_name, _real, "CPU")
    _library.impl(_name, _real, "CUDA")
    _library.impl(_name, _derivative, "Autograd")
    torch.library.register_fake(f"nvte::{_name}", _shapes, lib=_library)


def call(layer, x, parameters, needs, first, norm_out=False):
    """(y, norm's output or None) of a layer, as dynamo traces it. `needs`: flags of the parameters' gradients."""
    if layer.fuse_wgrad_accumulation:
        raise RuntimeError("fuse_wgrad_accumulation is not supported under torch.compile")
    layer._check_shapes()
    kind = "cuda" if x.is_cuda else "cpu"
    if torch.is_autocast_enabled(kind):
        x = x.to(torch.get_autocast_dtype(kind))
    mode = region.local.text
    weight = parameters[_PARTS[layer._kind][1][0]]
    if not mode.startswith("fp8"):
        parameters = [p if p is None else p.to(x.dtype) for p in parameters]
    else:
        dtype = weight.dtype
        parameters = [p if p is None else p.to(dtype) for p in parameters]
    flags = 0
    if torch.is_grad_enabled():
        flags = needs | (NEEDS_DX if x.requires_grad else 0)
        wanted = flags and first is None and layer._skip is None and mode.startswith("fp8")
        if wanted and is_large(layer._dims()[0]) and saves_weight(layer, weight):
            flags |= SAVE_WEIGHT
    record = torch.is_grad_enabled() and layer.training or "calibrating" in mode
    chosen = -1 if first is None else int(first)
    y, normed, _ = torch.ops.nvte.layer(x, parameters, layer._scale_view, layer._text, mode, flags, record, chosen, norm_out)
    return y, normed if norm_out else None


def norm(x, gamma, beta, eps, zero_centered, rms, dtype):
    """A norm as dynamo traces it."""
    return torch.ops.nvte.norm(x, gamma, beta, eps, zero_centered, rms, dtype)[0]


__all__ = ["call", "norm", "register"]
