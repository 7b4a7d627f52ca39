"""How much of each cast saturates or is flushed to zero, counted by torch operations beside the layers."""

import torch

from .. import ops
from . import state
from .layer import Layer
from .plans import SCALE_DUE, SCALE_KEEP

_TYPES = {448.0: torch.float8_e4m3fn, 57344.0: torch.float8_e5m2}
#: Magnitudes from here on round beyond the format's largest value.
_BEYOND = {448.0: 464.00003, 57344.0: 61440.0}
_NAMES = {3: ("x", "weight", "dy"), 6: ("x1", "w1", "x2", "w2", "dy2", "dy1")}


class Shares:
    """Of one tensor: elements cast, and which share of them saturated or was flushed to zero."""

    def __init__(self, device):
        self.counts = torch.zeros(3, dtype=torch.int64, device=device)

    def add(self, t, scale, largest):
        """Counts the elements of one cast."""
        v = t.detach().float() * scale
        codes = v.clamp(-largest, largest).to(_TYPES[largest])
        flushed = (codes.float() == 0) & (t != 0)
        saturated = v.abs() >= _BEYOND[largest]
        self.counts += torch.stack([torch.full((), t.numel(), device=t.device), saturated.sum(), flushed.sum()])

    @property
    def elements(self):
        """Elements cast."""
        return int(self.counts[0])

    @property
    def saturated(self):
        """Share whose magnitude would have rounded beyond the format's largest value."""
        return int(self.counts[1]) / max(self.elements, 1)

    @property
    def flushed(self):
        """Share that was not zero and became zero."""
        return int(self.counts[2]) / max(self.elements, 1)

    def __repr__(self):
        return f"Shares(elements={self.elements}, saturated={self.saturated:.3g}, flushed={self.flushed:.3g})"


class Collected(dict):
    """What was counted: collected[layer][tensor], e.g. s["encoder.0.fc"]["x"].saturated. Layers by their names in the model; tensors are
    x, weight and dy; of LayerNormMLP x1, w1, x2, w2, dy2 and dy1."""

    def __repr__(self):
        # The name of the model itself is empty.
        lines = [f"{layer}.{name}: {shares}".lstrip(".") for layer, tensors in self.items() for name, shares in tensors.items()]
        return "\n".join(lines) or "nothing was cast to FP8"


class _Collector:
    """Counts for one layer."""

    def __init__(self, target):
        self.target = target

    def _count(self, layer, run, i, t, weight=False):
        """Counts the cast of slot i; returns its scale as a number on the device."""
        plan, flags = run[0], run[1]
        spec, k = plan.mode.spec, layer._slots_wanted
        forward, backward = state.LARGEST[spec.format]
        largest = forward if i < k * 2 // 3 else backward
        one = torch.ones((), dtype=torch.float32, device=t.device)
        if spec.delayed and not (weight and flags & SCALE_DUE and not flags & SCALE_KEEP):
            scale = layer._slots.scale[i].clone()
        else:
            amax = t.detach().abs().amax().float() if t.numel() else one * 0
            scale = state.scale_from_amax(amax, one * largest, spec, one)
        name = _NAMES[k][i]
        if name not in self.target:
            self.target[name] = Shares(t.device)
        self.target[name].add(t, scale, largest)
        return scale.reshape(1), "e4m3" if largest == 448.0 else "e5m2"

    def _gradient(self, y, function):
        if y.requires_grad:

            def hook(g):
                with torch.no_grad():
                    function(g)

            y.register_hook(hook)

    @torch.no_grad()
    def linear(self, layer, run, x, weight, y):
        """Linear."""
        if run[0].fp8:
            self._count(layer, run, 0, x)
            self._count(layer, run, 1, weight, True)
            self._gradient(y, lambda g: self._count(layer, run, 2, g))

    def _normed(self, layer, x, gamma, beta):
        x = x.detach().contiguous()
        gamma, beta = gamma.detach(), None if beta is None else beta.detach()
        how = dict(zero_centered_gamma=layer.zero_centered_gamma, dtype="float32", stats=False)
        if layer.normalization == "RMSNorm":
            return ops.rmsnorm_fwd(x, gamma, layer.eps, **how)[0]
        return ops.layernorm_fwd(x, gamma, beta, layer.eps, **how)[0]

    @torch.no_grad()
    def norm_linear(self, layer, run, x, gamma, beta, weight, y):
        """LayerNormLinear."""
        if run[0].fp8:
            self._count(layer, run, 0, self._normed(layer, x, gamma, beta))
            self._count(layer, run, 1, weight, True)
            self._gradient(y, lambda g: self._count(layer, run, 2, g))

    @torch.no_grad()
    def norm_mlp(self, layer, run, x, gamma, beta, w1, b1, w2, y):
        """LayerNormMLP: what lies inside is computed again with the operations that the layer is made of."""
        if not run[0].fp8:
            return
        kind, dtype = layer.activation, str(x.dtype)[len("torch.") :]

        def cast(t, i, weight=False, **layouts):
            scale, fmt = self._count(layer, run, i, t, weight)
            return ops.cast_to_fp8(t.detach().contiguous(), fmt, scale=scale, **layouts)

        normed = self._normed(layer, x, gamma, beta).flatten(0, -2)
        bias = None if b1 is None else b1.detach()
        pre = ops.fp8_gemm(cast(normed, 0), cast(w1, 1, True), accumulate="fast", bias=bias, dtype=dtype)
        self._count(layer, run, 2, ops.activation_fwd(pre, kind, dtype="float32"))
        transposed = cast(w2, 3, True, rowwise=False, transpose=True)

        def gradient(g):
            q = cast(g.flatten(0, -2), 4)
            inner = ops.fp8_gemm(q, transposed, accumulate="precise", transpose_b=True, dtype=dtype)
            self._count(layer, run, 5, ops.activation_bwd(inner, pre, kind, dtype="float32")[0])

        self._gradient(y, gradient)


class collect_stats:
    """Counts, in the casts of the passes inside, the shares that saturate and that are flushed to zero. Slow; for eager layers.

    with nvte.torch.collect_stats(model) as s:
        loss = model(x)      # in an autocast region
        loss.backward()
    print(s)
    """

    def __init__(self, model):
        self.model = model

    def __enter__(self):
        found = Collected()
        self.layers = []
        for name, layer in self.model.named_modules():
            if isinstance(layer, Layer):
                found[name] = {}
                layer.__dict__["_stats"] = _Collector(found[name])
                self.layers.append(layer)
        return found

    def __exit__(self, *_):
        for layer in self.layers:
            layer.__dict__["_stats"] = None
        return False
