"""Layer handles and the memory that calls ask for: one plan for each distinct description and device, shared by all equal layers."""

import ctypes
import threading

import torch

from .. import _abi
from .._library import check, lib
from ..context import shared
from . import state

NUMBERS = {torch.float32: _abi.NVTE_F32, torch.float16: _abi.NVTE_F16, torch.bfloat16: _abi.NVTE_BF16}
NEEDS_DX, NEEDS_DW, NEEDS_DW2 = _abi.NVTE_LAYER_NEEDS_DX, _abi.NVTE_LAYER_NEEDS_DW, _abi.NVTE_LAYER_NEEDS_DW2
NEEDS_DNORM, ACCUMULATE_DW, CALIBRATE = _abi.NVTE_LAYER_NEEDS_DNORM, _abi.NVTE_LAYER_ACCUMULATE_DW, _abi.NVTE_LAYER_CALIBRATE
SCALE_DUE, SCALE_KEEP = _abi.NVTE_LAYER_WEIGHT_SCALE_DUE, _abi.NVTE_LAYER_WEIGHT_SCALE_KEEP
SAVE_WEIGHT = _abi.NVTE_LAYER_SAVE_WEIGHT
LINEAR, NORM_LINEAR, NORM_MLP = "linear", "layernorm_linear", "layernorm_mlp"
_FORMATS = {"HYBRID": _abi.NVTE_FORMAT_HYBRID, "E4M3": _abi.NVTE_FORMAT_E4M3}
#: Elements of a weight from which on its transposed codes may be kept from forward to backward.
LARGE = 1 << 20
#: Scratch memory beyond this is not kept between calls.
KEPT = 64 << 20

_distributed = torch.distributed.is_available()
_lock = threading.Lock()
_plans = {}


class Plan:
    """A layer handle and its sizes."""

    __slots__ = (
        "handle", "index", "where", "dtype", "param_dtype", "number", "fp8", "kind", "k", "n", "mode", "stream", "sizes", "slots",
        "cache_bytes", "full", "forward", "backward", "room", "large",
    )  # fmt: skip

    def __init__(self, kind, index, dtype, param_dtype, mode, dims, norm, activation):
        spec = None if mode is None else mode.spec
        config = state.struct(
            _abi.nvte_layer_config_t,
            dtype=NUMBERS[dtype],
            param_dtype=NUMBERS[param_dtype],
            in_features=dims[0],
            out_features=dims[1],
            ffn_features=dims[2],
            activation=activation,
        )
        if norm is not None:
            config.eps, config.rmsnorm, config.zero_centered_gamma = norm
        if spec is not None:
            config.recipe = _abi.NVTE_RECIPE_DELAYED if spec.delayed else _abi.NVTE_RECIPE_CURRENT
            config.format, config.margin, config.epsilon = _FORMATS[spec.format], spec.margin, spec.epsilon
            config.power_of_two = spec.power_of_two
        made = ctypes.c_void_p()
        create = getattr(lib, f"nvte_{kind}_create")
        check(create(shared(index).handle, ctypes.addressof(config), ctypes.addressof(made)))
        self.handle, self.index, self.kind, self.mode = made.value, index, kind, mode
        self.where = torch.device("cpu") if index < 0 else torch.device("cuda", index)
        self.dtype, self.param_dtype, self.fp8 = dtype, param_dtype, mode is not None and mode.fp8
        self.number = NUMBERS[param_dtype]
        self.forward, self.backward = getattr(lib, f"nvte_{kind}_fwd"), getattr(lib, f"nvte_{kind}_bwd")
        self.k, self.n = dims[0], dims[1]
        self.stream = torch._C._cuda_getCurrentRawStream if index >= 0 else _no_stream
        self.room = None
        self.sizes = {}
        sizes = self.ask(0)
        self.slots, self.cache_bytes = sizes.slots, sizes.weight_cache
        # Bits of a weight cache whose row-wise copies are all filled.
        self.full = 5 if kind == NORM_MLP else 1
        # Weights whose second cast is felt.
        self.large = self.fp8 and is_large(dims)

    def ask(self, flags):
        """nvte_layer_sizes."""
        sizes = state.struct(_abi.nvte_layer_sizes_t)
        check(lib.nvte_layer_sizes(self.handle, flags, ctypes.addressof(sizes)))
        return sizes

    def bytes_like(self, x):
        """`room`: makes that many bytes beside the tensors of this plan, which takes less time than naming type and device."""
        with torch.inference_mode(False):
            self.room = x.detach().new_empty(0, dtype=torch.uint8).new_empty
        return self.room

    def bytes(self, flags):
        """(saved, forward workspace, backward workspace), each per token and fixed."""
        s = self.ask(flags)
        made = self.sizes[flags] = (
            s.saved_per_token, s.saved_fixed, s.forward_workspace_per_token, s.forward_workspace_fixed,
            s.backward_workspace_per_token, s.backward_workspace_fixed,
        )  # fmt: skip
        return made


def is_large(dims):
    """Whether the weights of a layer of these sizes are LARGE; of an MLP the second is asked, which is never the larger."""
    k, n, ffn = dims
    return k * (ffn or n) >= LARGE


def saves_weight(layer, weight):
    """Whether forward keeps the transposed FP8 weight for its backward, a byte for each element, rather than have that cast the weight again.

    `keep_fp8_weight_transpose_cache` says so. Where it says nothing: yes, but not where there are several processes, which may have sharded
    their weights to save just this memory, nor for what something else than the layer has put in a parameter's place."""
    wanted = layer.keep_fp8_weight_transpose_cache
    if wanted is not None:
        return wanted
    if _distributed and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
        return False
    return isinstance(weight, torch.nn.Parameter)


def _no_stream(_):
    return 0


def plan_for(kind, index, dtype, param_dtype, mode, dims, norm=None, activation=0):
    """The plan of a description."""
    for what, t in (("input", dtype), ("parameters", param_dtype)):
        if t not in NUMBERS:
            raise TypeError(f"{what}: {t} is not supported; float32, float16 and bfloat16 are")
    key = (kind, index, dtype, param_dtype, mode, dims, norm, activation)
    found = _plans.get(key)
    if found is None:
        with _lock:
            found = _plans.get(key)
            if found is None:
                found = _plans[key] = Plan(kind, index, dtype, param_dtype, mode, dims, norm, activation)
    return found


class _Scratch(threading.local):
    """Scratch memory of this thread, for each stream."""

    def __init__(self):
        self.kept = {}


_scratch = _Scratch()
_is_capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", None)


def scratch(index, stream, size, where):
    """(address, what keeps it) of scratch memory for one call. Kept for the thread's next call on the stream: they run one by one."""
    found = _scratch.kept.get((index, stream))
    # Stream 0 never captures: then there is no need to ask. It stands for all streams of the CPU, too.
    if found is not None and found[2] >= size and (not stream or not _is_capturing()):
        return found
    with torch.inference_mode(False):
        held = torch.empty(max(size, 256), dtype=torch.uint8, device=where)
    made = (held.data_ptr(), held, held.numel())
    if size <= KEPT and not state.capturing(index):
        if len(_scratch.kept) > 32:
            _scratch.kept.clear()
        _scratch.kept[index, stream] = made
    return made


class WeightCache:
    """FP8 copies of a layer's weights, for calls with is_first_microbatch."""

    __slots__ = ("memory", "raw", "at", "plan", "recorded")

    def __init__(self, plan):
        with torch.inference_mode(False):
            self.memory = torch.empty(max(plan.cache_bytes, 1), dtype=torch.uint8, device=plan.where)
        self.plan, self.recorded = plan, False
        self.raw = state.struct(_abi.nvte_weight_cache_t, data=self.memory.data_ptr(), bytes=self.memory.numel())
        self.at = ctypes.addressof(self.raw)
