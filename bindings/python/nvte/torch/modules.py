"""The modules: Linear, LayerNorm, RMSNorm, LayerNormLinear, LayerNormMLP."""

import math
import numbers

import torch
from torch.nn import Parameter, init

from .. import _abi
from .functions import LinearFunction, _check_width, _functorch, linear, linear_forward, norm_linear, norm_mlp
from .functions import forward_ad, refuse_tangents
from . import traced
from .layer import Layer, Module, Setting, cast, default_device, fan_in_init, refuse
from .norms import norm
from .plans import LINEAR, NEEDS_DNORM, NEEDS_DW, NEEDS_DW2, NORM_LINEAR, NORM_MLP

ACTIVATIONS = {
    "gelu": _abi.NVTE_ACTIVATION_GELU,
    "gelu_erf": _abi.NVTE_ACTIVATION_GELU_ERF,
    "silu": _abi.NVTE_ACTIVATION_SILU,
    "relu": _abi.NVTE_ACTIVATION_RELU,
    "qgelu": _abi.NVTE_ACTIVATION_QGELU,
    "srelu": _abi.NVTE_ACTIVATION_SRELU,
    "geglu": _abi.NVTE_ACTIVATION_GEGLU,
    "geglu_erf": _abi.NVTE_ACTIVATION_GEGLU_ERF,
    "swiglu": _abi.NVTE_ACTIVATION_SWIGLU,
    "reglu": _abi.NVTE_ACTIVATION_REGLU,
    "qgeglu": _abi.NVTE_ACTIVATION_QGEGLU,
    "sreglu": _abi.NVTE_ACTIVATION_SREGLU,
}


def _number_of(activation):
    """The library's number of an activation."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation = {activation!r}: must be one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[activation]


def _halves(activation):
    """How often fc1 computes the width of what it hands on: gated activations take two halves."""
    return 2 if _number_of(activation) >= _abi.NVTE_ACTIVATION_GEGLU else 1


_is_compiling = torch.compiler.is_compiling
_is_grad_enabled, _is_autocast_enabled, _autocast_dtype = torch.is_grad_enabled, torch.is_autocast_enabled, torch.get_autocast_dtype


class Linear(Layer):
    """y = x W^T + b, in FP8 inside an autocast region.

    in_features, out_features, bias: as torch.nn.Linear. init_method: fills the weight (None: as torch.nn.Linear). return_bias: forward
    returns (y, bias) and does not add the bias. params_dtype: type of the parameters (None: torch's default). fuse_wgrad_accumulation:
    the weight's gradient is added to `weight.main_grad`. Arguments about parallelism and overlap raise NotImplementedError.
    """

    _kind = LINEAR
    in_features, out_features = Setting(), Setting()

    def __init__(
        self, in_features, out_features, sequence_parallel=False, fuse_wgrad_accumulation=False, tp_group=None, tp_size=1,
        get_rng_state_tracker=None, init_method=None, bias=True, return_bias=False, params_dtype=None, parallel_mode=None,
        parameters_split=None, device=None, ub_overlap_ag=False, ub_overlap_rs=False, name=None, dtype=None, **others,
    ):  # fmt: skip
        super().__init__()
        refuse(
            "Linear", dict(sequence_parallel=sequence_parallel, tp_group=tp_group, tp_size=tp_size, parallel_mode=parallel_mode,
                           get_rng_state_tracker=get_rng_state_tracker, parameters_split=parameters_split, ub_overlap_ag=ub_overlap_ag,
                           ub_overlap_rs=ub_overlap_rs, **others))  # fmt: skip
        self.in_features, self.out_features = in_features, out_features
        self.use_bias, self.return_bias, self.init_method = bool(bias), bool(return_bias), init_method
        kind = dict(device=default_device(device), dtype=params_dtype or dtype or torch.get_default_dtype())
        self.weight = Parameter(torch.empty(out_features, in_features, **kind))
        if bias:
            self.bias = Parameter(torch.empty(out_features, **kind))
        else:
            self.register_parameter("bias", None)
        self._start(name, fuse_wgrad_accumulation)
        self.reset_parameters()
        self._take_slots()

    def reset_parameters(self, defer_init=False):
        """New values for the parameters."""
        if not defer_init and self.weight.device.type != "meta":
            fan_in_init(self.weight, self.bias, self.init_method)
        self.reset_scaling()

    def _dims(self):
        return (self.in_features, self.out_features, 0), None, 0

    def _shapes(self):
        return {"weight": (self.out_features, self.in_features), "bias": (self.out_features,)}

    def _resize(self, name):
        if name == "weight" and self.weight is not None and self.weight.dim() == 2:
            self.out_features, self.in_features = self.weight.shape

    def _describe(self):
        return dict(in_features=self.in_features, out_features=self.out_features, bias=self.use_bias)

    def forward(self, inp, is_first_microbatch=None, fp8_output=False, fp8_grad=False):
        """x [..., in_features] to y [..., out_features].

        is_first_microbatch: True: the weight is cast to FP8 and the copy kept; False: that copy is used; None: it is cast for this call.
        """
        if fp8_output or fp8_grad:
            refuse("Linear", dict(fp8_output=fp8_output, fp8_grad=fp8_grad))
        parameters = self._parameters
        weight = parameters.get("weight")
        if weight is None:
            weight = self.weight
        bias = parameters.get("bias")
        if bias is None and "bias" not in parameters:
            bias = self.bias
        added = None if self.return_bias else bias
        shape = inp.shape
        if not shape or shape[-1] != self.in_features:
            _check_width(inp, self.in_features)
        needs = NEEDS_DW if weight.requires_grad else 0
        if _is_compiling():
            y, _ = traced.call(self, inp, [weight, added], needs, is_first_microbatch)
            return (y, bias if bias is None else bias.to(y.dtype)) if self.return_bias else y
        x, run, dtype = self._begin(inp, weight, (weight,), needs, is_first_microbatch)
        # Gradients of x or the weight: only then flags ask for something.
        graph = run[1] & 3 != 0 or (added is not None and added.requires_grad and _is_grad_enabled())
        if weight.dtype is not dtype:
            weight = weight.to(dtype)
        if added is not None and added.dtype is not dtype:
            added = added.to(dtype)
        if not graph:
            if forward_ad._current_level >= 0:
                refuse_tangents(x, weight, added)
            y = linear_forward(x, weight, added, run)[0]
        elif _functorch():
            y = LinearFunction.apply(x, weight, added, run)
        else:
            y = linear(x, weight, added, run)
        if self._stats is not None:
            self._stats.linear(self, run, x, weight, y)
        return (y, bias if bias is None else bias.to(y.dtype)) if self.return_bias else y


class _WithNorm(Layer):
    """What the layers with a norm share."""

    eps, normalization, zero_centered_gamma = Setting(), Setting(), Setting()

    def _norm(self, features, eps, normalization, zero_centered_gamma, kind):
        if normalization not in ("LayerNorm", "RMSNorm"):
            raise ValueError(f"normalization = {normalization!r}: must be 'LayerNorm' or 'RMSNorm'")
        self.eps, self.normalization, self.zero_centered_gamma = float(eps), normalization, bool(zero_centered_gamma)
        self.layer_norm_weight = Parameter(torch.empty(features, **kind))
        if normalization == "LayerNorm":
            self.layer_norm_bias = Parameter(torch.empty(features, **kind))
        else:
            self.register_parameter("layer_norm_bias", None)

    def reset_layer_norm_parameters(self):
        """The norm's parameters that change nothing."""
        (init.zeros_ if self.zero_centered_gamma else init.ones_)(self.layer_norm_weight)
        if self.layer_norm_bias is not None:
            init.zeros_(self.layer_norm_bias)

    def _results(self, y, norm_out, bias):
        """What forward returns."""
        if not self.return_bias and norm_out is None:
            return y
        out = (y,)
        if self.return_bias:
            out += (None if bias is None else bias.to(y.dtype),)
        return out + (norm_out,) if norm_out is not None else out

    def _norm_config(self):
        return self.eps, self.normalization == "RMSNorm", self.zero_centered_gamma


class LayerNormLinear(_WithNorm):
    """y = norm(x) W^T + b, in FP8 inside an autocast region.

    normalization: "LayerNorm" or "RMSNorm"; eps: added to the variance; zero_centered_gamma: the norm's weight is 1 + layer_norm_weight.
    return_layernorm_output: forward returns the norm's output too. Others as in Linear.
    """

    _kind = NORM_LINEAR
    in_features, out_features = Setting(), Setting()

    def __init__(
        self, in_features, out_features, eps=1e-5, sequence_parallel=False, fuse_wgrad_accumulation=False, tp_group=None, tp_size=1,
        get_rng_state_tracker=None, init_method=None, bias=True, normalization="LayerNorm", return_bias=False, params_dtype=None,
        parallel_mode=None, return_layernorm_output=False, return_layernorm_output_gathered=False, parameters_split=None,
        zero_centered_gamma=False, device=None, name=None, dtype=None, **others,
    ):  # fmt: skip
        super().__init__()
        refuse(
            "LayerNormLinear", dict(sequence_parallel=sequence_parallel, tp_group=tp_group, tp_size=tp_size, parallel_mode=parallel_mode,
                                    get_rng_state_tracker=get_rng_state_tracker, parameters_split=parameters_split,
                                    return_layernorm_output_gathered=return_layernorm_output_gathered, **others))  # fmt: skip
        self.in_features, self.out_features = in_features, out_features
        self.use_bias, self.return_bias, self.init_method = bool(bias), bool(return_bias), init_method
        self.return_layernorm_output = bool(return_layernorm_output)
        kind = dict(device=default_device(device), dtype=params_dtype or dtype or torch.get_default_dtype())
        self._norm(in_features, eps, normalization, zero_centered_gamma, kind)
        self.weight = Parameter(torch.empty(out_features, in_features, **kind))
        if bias:
            self.bias = Parameter(torch.empty(out_features, **kind))
        else:
            self.register_parameter("bias", None)
        self._start(name, fuse_wgrad_accumulation)
        self.reset_parameters()
        self._take_slots()

    def reset_parameters(self, defer_init=False):
        """New values for the parameters."""
        if not defer_init and self.weight.device.type != "meta":
            self.reset_layer_norm_parameters()
            fan_in_init(self.weight, self.bias, self.init_method)
        self.reset_scaling()

    def _dims(self):
        return (self.in_features, self.out_features, 0), self._norm_config(), 0

    def _shapes(self):
        k, n = self.in_features, self.out_features
        return {"layer_norm_weight": (k,), "layer_norm_bias": (k,), "weight": (n, k), "bias": (n,)}

    def _resize(self, name):
        if name == "weight" and self.weight is not None and self.weight.dim() == 2:
            self.out_features = self.weight.shape[0]

    def _describe(self):
        return dict(
            in_features=self.in_features, out_features=self.out_features, bias=self.use_bias, normalization=self.normalization, eps=self.eps
        )

    def forward(self, inp, is_first_microbatch=None, fp8_output=False):
        """x [..., in_features] to y [..., out_features]; with return_bias and return_layernorm_output (y, bias, norm(x))."""
        if fp8_output:
            refuse("LayerNormLinear", dict(fp8_output=fp8_output))
        _check_width(inp, self.in_features)
        gamma, beta = self._get("layer_norm_weight"), self._get("layer_norm_bias")
        weight, bias = self._get("weight"), self._get("bias")
        added = None if self.return_bias else bias
        needs = NEEDS_DW if weight.requires_grad else 0
        if gamma.requires_grad or beta is not None and beta.requires_grad:
            needs |= NEEDS_DNORM
        if _is_compiling():
            parameters = [gamma, beta, weight, added]
            return self._results(*traced.call(self, inp, parameters, needs, is_first_microbatch, self.return_layernorm_output), bias)
        x, run, dtype = self._begin(inp, weight, (weight,), needs, is_first_microbatch, self.return_layernorm_output)
        graph = _is_grad_enabled() and (run[1] & 15 != 0 or added is not None and added.requires_grad)
        gamma, beta, weight, added = cast(gamma, dtype), cast(beta, dtype), cast(weight, dtype), cast(added, dtype)
        y, norm_out = norm_linear(x, gamma, beta, weight, added, run, graph)
        if self._stats is not None:
            self._stats.norm_linear(self, run, x, gamma, beta, weight, y)
        return self._results(y, norm_out, bias)


class LayerNormMLP(_WithNorm):
    """y = act(norm(x) W1^T + b1) W2^T + b2, in FP8 inside an autocast region.

    activation: "gelu" (the tanh form), "gelu_erf", "relu", "silu", "qgelu", "srelu", or gated "geglu", "swiglu", "reglu", "qgeglu",
    "sreglu", "geglu_erf", whose fc1_weight has 2 * ffn_hidden_size rows. Others as in LayerNormLinear.
    """

    _kind = NORM_MLP
    hidden_size, ffn_hidden_size, activation = Setting(), Setting(), Setting()
    _slots_wanted = 6

    def _weight_slots(self):
        return [(1, self._get("fc1_weight")), (3, self._get("fc2_weight"))]

    def __init__(
        self, hidden_size, ffn_hidden_size, eps=1e-5, sequence_parallel=False, return_bias=False, get_rng_state_tracker=None,
        tp_group=None, tp_size=1, init_method=None, bias=True, normalization="LayerNorm", activation="gelu",
        output_layer_init_method=None, fuse_wgrad_accumulation=False, params_dtype=None, return_layernorm_output=False,
        return_layernorm_output_gathered=False, seq_length=None, micro_batch_size=None, set_parallel_mode=False,
        zero_centered_gamma=False, device=None, name=None, dtype=None, **others,
    ):  # fmt: skip
        super().__init__()
        refuse(
            "LayerNormMLP", dict(sequence_parallel=sequence_parallel, tp_group=tp_group, tp_size=tp_size,
                                 set_parallel_mode=set_parallel_mode, get_rng_state_tracker=get_rng_state_tracker,
                                 return_layernorm_output_gathered=return_layernorm_output_gathered, **others))  # fmt: skip
        self.hidden_size, self.ffn_hidden_size, self.activation = hidden_size, ffn_hidden_size, activation
        self.use_bias, self.return_bias = bool(bias), bool(return_bias)
        self.init_method, self.output_layer_init_method = init_method, output_layer_init_method
        self.return_layernorm_output = bool(return_layernorm_output)
        kind = dict(device=default_device(device), dtype=params_dtype or dtype or torch.get_default_dtype())
        self._norm(hidden_size, eps, normalization, zero_centered_gamma, kind)
        rows = ffn_hidden_size * _halves(activation)
        self.fc1_weight = Parameter(torch.empty(rows, hidden_size, **kind))
        if bias:
            self.fc1_bias = Parameter(torch.empty(rows, **kind))
        else:
            self.register_parameter("fc1_bias", None)
        self.fc2_weight = Parameter(torch.empty(hidden_size, ffn_hidden_size, **kind))
        if bias:
            self.fc2_bias = Parameter(torch.empty(hidden_size, **kind))
        else:
            self.register_parameter("fc2_bias", None)
        self._start(name, fuse_wgrad_accumulation)
        self.reset_parameters()
        self._take_slots()

    def reset_parameters(self, defer_init=False):
        """New values for the parameters."""
        if not defer_init and self.fc1_weight.device.type != "meta":
            self.reset_layer_norm_parameters()
            fan_in_init(self.fc1_weight, self.fc1_bias, self.init_method)
            fan_in_init(self.fc2_weight, self.fc2_bias, self.output_layer_init_method or self.init_method)
        self.reset_scaling()

    def _dims(self):
        return (self.hidden_size, self.hidden_size, self.ffn_hidden_size), self._norm_config(), _number_of(self.activation)

    def _shapes(self):
        k, f = self.hidden_size, self.ffn_hidden_size
        rows = f * _halves(self.activation)
        return {
            "layer_norm_weight": (k,), "layer_norm_bias": (k,), "fc1_weight": (rows, k), "fc1_bias": (rows,), "fc2_weight": (k, f),
            "fc2_bias": (k,),
        }  # fmt: skip

    def _describe(self):
        return dict(
            hidden_size=self.hidden_size, ffn_hidden_size=self.ffn_hidden_size, activation=self.activation, bias=self.use_bias,
            normalization=self.normalization, eps=self.eps,
        )  # fmt: skip

    def forward(self, inp, is_first_microbatch=None):
        """x [..., hidden_size] to y of the same shape; with return_bias and return_layernorm_output (y, fc2_bias, norm(x))."""
        _check_width(inp, self.hidden_size, "hidden_size")
        gamma, beta = self._get("layer_norm_weight"), self._get("layer_norm_bias")
        w1, b1, w2, b2 = self._get("fc1_weight"), self._get("fc1_bias"), self._get("fc2_weight"), self._get("fc2_bias")
        added = None if self.return_bias else b2
        needs = NEEDS_DW if w1.requires_grad or b1 is not None and b1.requires_grad else 0
        if w2.requires_grad:
            needs |= NEEDS_DW2
        if gamma.requires_grad or beta is not None and beta.requires_grad:
            needs |= NEEDS_DNORM
        if _is_compiling():
            parameters = [gamma, beta, w1, b1, w2, added]
            return self._results(*traced.call(self, inp, parameters, needs, is_first_microbatch, self.return_layernorm_output), b2)
        x, run, dtype = self._begin(inp, w1, (w1, w2), needs, is_first_microbatch, self.return_layernorm_output)
        graph = _is_grad_enabled() and (run[1] & 15 != 0 or added is not None and added.requires_grad)
        gamma, beta, added = cast(gamma, dtype), cast(beta, dtype), cast(added, dtype)
        w1, b1, w2 = cast(w1, dtype), cast(b1, dtype), cast(w2, dtype)
        y, norm_out = norm_mlp(x, gamma, beta, w1, b1, w2, added, run, graph)
        if self._stats is not None:
            self._stats.norm_mlp(self, run, x, gamma, beta, w1, b1, w2, y)
        return self._results(y, norm_out, b2)


class _Norm(Module):
    """What LayerNorm and RMSNorm share."""

    _rms = False

    def __init__(self, normalized_shape=None, eps=1e-5, sequence_parallel=None, params_dtype=None, zero_centered_gamma=False,
                 hidden_size=None, device=None, dtype=None, **others):  # fmt: skip
        super().__init__()
        refuse(type(self).__name__, dict(sequence_parallel=sequence_parallel, **others))
        if normalized_shape is None:
            normalized_shape = hidden_size
        if normalized_shape is None:
            raise TypeError(f"{type(self).__name__}() misses normalized_shape")
        self.normalized_shape = (normalized_shape,) if isinstance(normalized_shape, numbers.Integral) else tuple(normalized_shape)
        self.eps, self.zero_centered_gamma = float(eps), bool(zero_centered_gamma)
        kind = dict(device=default_device(device), dtype=params_dtype or dtype or torch.get_default_dtype())
        self.weight = Parameter(torch.empty(self.normalized_shape, **kind))
        if not self._rms:
            self.bias = Parameter(torch.empty(self.normalized_shape, **kind))
        self.reset_parameters()

    def reset_parameters(self, defer_init=False):
        """Parameters that change nothing."""
        if defer_init:
            return
        bias = None if self._rms else self.bias
        for p, fill in ((self.weight, init.zeros_ if self.zero_centered_gamma else init.ones_), (bias, init.zeros_)):
            if p is not None and p.device.type != "meta":
                fill(p)

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs):
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        # NVIDIA's modules store an empty one.
        unexpected_keys[:] = [k for k in unexpected_keys if k != prefix + "_extra_state"]

    def extra_repr(self):
        return f"{self.normalized_shape}, eps={self.eps}, zero_centered_gamma={self.zero_centered_gamma}"

    def forward(self, inp, residual=None):
        """The norm over the last dimensions; under torch.autocast in its type. With a residual: that of inp + residual, and the sum, which
        takes one pass over memory where both have one type and shape."""
        if residual is not None and (
            _is_compiling() or residual.dtype != inp.dtype or residual.shape != inp.shape or residual.device != inp.device
        ):
            total = inp + residual
            return self.forward(total), total
        shape, parameters = inp.shape, self._parameters
        weight, bias = parameters.get("weight"), parameters.get("bias")
        if weight is None:
            weight = self.weight
            if weight is None:
                # Taken over from an nn.LayerNorm without one.
                weight = inp.new_full(self.normalized_shape, 0.0 if self.zero_centered_gamma else 1.0)
        if bias is None and not self._rms:
            bias = self.bias
        dims = len(self.normalized_shape)
        if shape[-dims:] != self.normalized_shape:
            raise ValueError(f"input: the last dimensions of {tuple(shape)} must be {self.normalized_shape}")
        if weight.get_device() != inp.get_device():
            raise RuntimeError(f"{type(self).__name__}: the input is on {inp.device}, and the weight on {weight.device}")
        kind = "cuda" if inp.is_cuda else "cpu"
        dtype = _autocast_dtype(kind) if _is_autocast_enabled(kind) else inp.dtype
        if dims > 1:
            inp, weight = inp.reshape(*shape[:-dims], math.prod(self.normalized_shape)), weight.reshape(-1)
            bias = None if bias is None else bias.reshape(-1)
        if residual is not None:
            residual = residual.reshape(inp.shape)
            y, total = norm(inp, weight, bias, self.eps, self.zero_centered_gamma, self._rms, dtype, residual)
            return y.reshape(shape), total.reshape(shape)
        run = traced.norm if _is_compiling() else norm
        y = run(inp, weight, bias, self.eps, self.zero_centered_gamma, self._rms, dtype)
        return y.reshape(shape) if dims > 1 else y


class LayerNorm(_Norm):
    """LayerNorm over the last dimensions, with the names of torch.nn.LayerNorm.

    normalized_shape: a number or several. zero_centered_gamma: the weight is 1 + weight. Others as in Linear.
    """


class RMSNorm(_Norm):
    """RMSNorm over the last dimensions; arguments as in LayerNorm."""

    _rms = True
