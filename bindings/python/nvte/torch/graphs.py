"""Captured layers: make_graphed_callables with the arguments of NVIDIA's library."""

import contextlib
import gc
import weakref

import torch

from . import region, state
from .layer import Layer
from .region import Region, autocast, local, mode_of


class _Positional(torch.nn.Module):
    """A module whose last arguments by position are keywords of the one inside."""

    def __init__(self, inner, names):
        super().__init__()
        self.inner, self.names = inner, names

    def forward(self, *args):
        n = len(args) - len(self.names)
        return self.inner(*args[:n], **dict(zip(self.names, args[n:])))


def _layers(callables):
    seen = {}
    for c in callables:
        if isinstance(c, torch.nn.Module):
            seen.update((id(m), m) for m in c.modules() if isinstance(m, Layer))
    return list(seen.values())


def _main_grads(layers):
    for layer in layers:
        if layer.fuse_wgrad_accumulation:
            for p in layer.parameters(recurse=False):
                if getattr(p, "main_grad", None) is not None:
                    yield p.main_grad


class _Snapshot:
    """The scaling state of layers, to be put back after warm-up and capture."""

    def __init__(self, layers):
        self.layers = [(m, m._due, m._last, self.values(m)) for m in layers]
        self.main_grads = [(g, g.clone()) for g in _main_grads(layers)]

    @staticmethod
    def values(layer):
        slots = layer._slots
        return None if slots is None else (slots.pack(), slots.nonfinite.clone(), slots.part(slots.chunk.counters).clone())

    def restore(self):
        with torch.inference_mode(False), torch.no_grad():
            for layer, due, last, values in self.layers:
                layer.__dict__.update(_due=due, _last=last)
                slots = layer._slots
                if slots is None:
                    continue
                if values is None:
                    spec, group = slots.spec, slots.group
                    slots.clear()
                    slots.spec, slots.group = spec, group
                else:
                    packed, nonfinite, counters = values
                    slots.unpack(packed)
                    slots.nonfinite.copy_(nonfinite)
                    slots.part(slots.chunk.counters).copy_(counters)
            for g, before in self.main_grads:
                g.copy_(before)


def settle(layers, record):
    """The due cast of replaced weights, done ahead: a captured graph reads the scale from the slot."""
    for layer in layers:
        slots = layer._slots
        if not layer._due or slots is None or slots.spec is None:
            continue
        with torch.inference_mode(False), torch.no_grad():
            largest = slots.part(slots.chunk.format_max)
            for i, w in layer._weight_slots():
                amax = w.detach().abs().amax().float() if w.numel() else slots.live.new_zeros(())
                slots.scale[i].copy_(state.scale_from_amax(amax, largest[i], slots.spec, torch.ones_like(amax)))
                if record:
                    torch.maximum(slots.live[i], amax, out=slots.live[i])
        if record:
            layer.__dict__["_due"] = False


def make_graphed_callables(
    modules, sample_args, num_warmup_iters=3, allow_unused_input=False, sample_kwargs=None, fp8_enabled=None, fp8_calibrating=None,
    fp8_recipe=None, fp8_group=None, fp8_weight_caching=None, enabled=None, calibrating=None, recipe=None, amax_reduction_group=None,
    cache_quantized_params=None, pool=None, retain_graph_in_backward=False, **others,
):  # fmt: skip
    """Captures the forward and backward passes of modules as CUDA graphs.

    modules: a callable or a tuple of them; sample_args: the arguments of one, or of each. Returns callables that are used as the modules
    were, with the same shapes. enabled, calibrating, recipe, amax_reduction_group (or their older names with fp8_): the region that is
    captured. cache_quantized_params (fp8_weight_caching): the returned callables take is_first_microbatch. Scales, histories and
    main_grads are after the capture what they were before. Called without gradients, the modules run uncaptured.
    """
    for name, value in others.items():
        if value not in (None, False):
            raise NotImplementedError(f"make_graphed_callables: {name} is not supported yet")
    if retain_graph_in_backward:
        raise NotImplementedError("make_graphed_callables: retain_graph_in_backward is not supported yet")

    def either(new, old, default):
        return new if new is not None else old if old is not None else default

    enabled, calibrating = either(enabled, fp8_enabled, False), either(calibrating, fp8_calibrating, False)
    recipe, group = either(recipe, fp8_recipe, None), either(amax_reduction_group, fp8_group, None)
    caching = either(cache_quantized_params, fp8_weight_caching, False)
    many = isinstance(modules, (tuple, list))
    callables = tuple(modules) if many else (modules,)
    arguments = tuple(sample_args) if many else (tuple(sample_args) if isinstance(sample_args, (tuple, list)) else (sample_args,),)
    keywords = tuple(sample_kwargs or ({},) * len(callables)) if many else (sample_kwargs or {},)
    if not torch.cuda.is_available():
        raise RuntimeError("make_graphed_callables: CUDA graphs need a CUDA device")
    mode = mode_of(enabled, recipe, calibrating, group)
    if mode is not None and mode.spec.functions:
        raise RuntimeError("a recipe with functions of its own (amax_compute_algo, scaling_factor_compute_algo) cannot be captured")
    names = [tuple(k) for k in keywords]
    wrapped = [_Positional(c, n) if n else c for c, n in zip(callables, names)]
    given = [(*a, *k.values()) for a, k in zip(arguments, keywords)]

    layers = _layers(callables)
    for layer in layers:
        layer._state_slots()
    snapshot = _Snapshot(layers)
    skip = torch.zeros(1, dtype=torch.int32, device="cuda") if caching and mode is not None and mode.fp8 else None
    for layer in layers:
        # A due cast must not become part of the graph: see settle.
        layer.__dict__.update(_due=False, _skip=skip)
    originals = [c.forward if isinstance(c, torch.nn.Module) else c for c in callables]
    # A region of its own that ends no period.
    own = Region(mode, None, True, False)
    try:
        options = {} if pool is None else {"pool": pool}
        with _no_collection():
            graphed = torch.cuda.make_graphed_callables(
                tuple(wrapped), tuple(given), num_warmup_iters=num_warmup_iters, allow_unused_input=allow_unused_input, **options
            )
    finally:
        own.leave()
        # What the graphs read and write stays, whatever becomes of the layers.
        memory = [layer._cache for layer in layers if skip is not None]
        for layer in layers:
            layer.__dict__.update(_skip=None, _cache=None if skip is not None else layer._cache)
        snapshot.restore()
    for c in callables:
        if isinstance(c, torch.nn.Module):
            for p in c.parameters():
                if p.requires_grad:
                    _keep_apart(p)
    made = []
    for c, g, original, order in zip(callables, graphed, originals, names):
        replay = g.forward if isinstance(g, torch.nn.Module) else g
        call = _Captured(replay, original, c, order, _layers((c,)), mode, skip, memory)
        if isinstance(c, torch.nn.Module):
            c.forward = call
        made.append(c if isinstance(c, torch.nn.Module) else call)
    return tuple(made) if many else made[0]


@contextlib.contextmanager
def _no_collection():
    """While a stream captures, Python must not collect an older graph: its end makes the capture invalid."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _keep_apart(parameter):
    """A first gradient is copied: autograd would make the graph's own memory the parameter's `grad`, and the next replay writes there."""
    held = weakref.ref(parameter)

    def first_is_copied(grad):
        p = held()
        # No gradient comes where the product adds to main_grad by itself.
        return grad.clone() if grad is not None and (p is None or p.grad is None) else grad

    parameter.register_hook(first_is_copied)


class _Captured:
    """What a captured module is called through."""

    def __init__(self, graphed, original, module, names, layers, mode, skip, memory):
        self.graphed, self.original, self.module, self.names = graphed, original, module, names
        self.layers, self.mode, self.skip, self.memory = layers, mode, skip, memory
        self.training = getattr(module, "training", True)

    def __call__(self, *args, **kwargs):
        first = kwargs.pop("is_first_microbatch", None) if self.skip is not None else None
        if not torch.is_grad_enabled() or getattr(self.module, "training", True) != self.training:
            return self.original(*args, **kwargs)
        args = (*args, *(kwargs[n] for n in self.names))
        if self.mode is None:
            return self.graphed(*args)
        if local.region is not None:
            return self.replay(args, first)
        mode, group = self.mode, self.mode.group
        with autocast(mode.fp8, mode.spec.recipe, mode.calibrating, None if group is state.NO_GROUP else group.group):
            return self.replay(args, first)

    def replay(self, args, first):
        inner = local.region
        settle(self.layers, True)
        if self.skip is not None:
            self.skip.fill_(0 if first is None or first else 1)
        token = inner.token
        if token is None or token.started:
            token = inner.token = region.Token()
        for layer in self.layers:
            if layer._slots is not None:
                layer._slots.device.watch(token)
        out = self.graphed(*args)

        # The captured nodes know no token: those of the replay hold it.
        def started(grads):
            token.started = True

        outputs = (out,) if isinstance(out, torch.Tensor) else torch.utils._pytree.tree_leaves(out)
        for node in {o.grad_fn for o in outputs if isinstance(o, torch.Tensor) and o.grad_fn is not None}:
            node.register_prehook(started)
        return out
