"""What all layers share: arguments, scaling state, and how a call begins."""

import copy
import math
import os
import weakref

import torch
from torch.nn import init
from torch.nn.utils.parametrize import is_parametrized

from . import checkpointing, region, state, traced
from .plans import CALIBRATE, NEEDS_DX, SAVE_WEIGHT, SCALE_DUE, SCALE_KEEP, WeightCache, plan_for, saves_weight

_debug = os.environ.get("NVTE_DEBUG", "0") not in ("", "0")
_local, _graph_task, _is_grad_enabled = region.local, torch._C._current_graph_task_id, torch.is_grad_enabled
_is_autocast_enabled, _autocast_dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
# Asks for all devices at once, without naming one: half the time of the other. Not in the oldest versions.
_is_any_autocast_enabled = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)

# torch 2.4 would make such a tensor a constant of what it compiles, unchecked: equal layers would use the scales of the first.
_STATIC_INPUTS = torch.__version__ >= (2, 5)

#: Arguments of NVIDIA's modules about parallelism and overlap, and the value that asks for none.
_PARALLEL = {
    "sequence_parallel": (False, None),
    "tp_group": (None,),
    "tp_size": (1, None),
    "get_rng_state_tracker": (None,),
    "rng_tracker_name": (None,),
    "parallel_mode": (None,),
    "set_parallel_mode": (False, None),
    "parameters_split": (None,),
    "return_layernorm_output_gathered": (False, None),
    "ub_overlap_ag": (False, None),
    "ub_overlap_rs": (False, None),
    "ub_overlap_rs_dgrad": (False, None),
    "ub_bulk_dgrad": (False, None),
    "ub_bulk_wgrad": (False, None),
    "ub_name": (None,),
    "delay_wgrad_compute": (False, None),
    "symmetric_ar_type": (None,),
    "fp8_output": (False, None),
    "fp8_grad": (False, None),
}
#: Arguments that change nothing here: sizes known beforehand, memory that is not kept anyway.
_IGNORED = {"seq_length", "micro_batch_size", "save_original_input", "activation_params"}


def refuse(kind, given):
    """Arguments that are accepted for what they do not ask."""
    for name, value in given.items():
        if name in _PARALLEL:
            if not any(value is d or (type(value) in (int, bool) and value == d) for d in _PARALLEL[name]):
                raise NotImplementedError(f"{kind}: {name} = {value!r} is not supported yet")
        elif name not in _IGNORED:
            raise TypeError(f"{kind}() got an unexpected keyword argument {name!r}")


def default_device(device):
    """The device of parameters: the one given, else CUDA where there is one, else the CPU."""
    if device is not None:
        return torch.device(device)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Module(torch.nn.Module):
    """What all modules share."""

    def _slow_forward(self, *_, **__):
        # Taken by torch while torch.jit.trace (and the older ONNX export) runs, which sees nothing of calls into the library.
        raise RuntimeError(f"{type(self).__name__} cannot be recorded by torch.jit.trace: use torch.export or torch.compile")


class Setting:
    """An attribute that plans are made from: setting it voids them. It lies among the others, and is read like them. A __setattr__ in place
    of it would see parameters too, and FSDP would set them through it in each pass, as new ones."""

    def __set_name__(self, _, name):
        self.name = name

    def __set__(self, layer, value):
        d = layer.__dict__
        d[self.name] = value
        if "_plans" in d:
            layer._replan()


class Layer(Module):
    """What the layers with scaling state share."""

    _kind = None
    _slots_wanted = 3
    #: Whether each forward keeps the transposed FP8 weight until its backward; None: see `plans.saves_weight`.
    keep_fp8_weight_transpose_cache = None

    def _start(self, name, fuse_wgrad_accumulation):
        d = self.__dict__
        d["name"] = name
        d["fuse_wgrad_accumulation"] = bool(fuse_wgrad_accumulation)
        # Weights were replaced: their next cast takes its scale from their own amax.
        d["_due"] = True
        # The mode of the last training region: what a recomputation runs in.
        d["_last"] = None
        d["_slots"] = None
        d["_plans"] = {}
        d["_cache"] = None
        d["_stats"] = None
        # A word on the device, where a captured graph asks it whether weights are to be cast.
        d["_skip"] = None
        d["_text"] = traced.register(self._kind, *self._dims())
        d["_scale_view"] = None
        # Parameters that were taken away, which may be brought back: {name: (weak reference, shape)}.
        d["_away"] = {}

    def _device(self):
        """The device of the parameters, also of those that a parametrization keeps."""
        for parameter in self.parameters():
            return parameter.device
        return default_device(None) if self._slots is None else self._slots.device.where

    def _take_slots(self):
        """Slots on the device of the parameters, where that has any."""
        index = state.index_of(self._device())
        if index is not None:
            self._slots_on(index)

    def _slots_on(self, index):
        d = self.__dict__
        old = d["_slots"]
        if old is None:
            d["_slots"] = state.device_of(index).take(self._slots_wanted)
        elif old.index != index:
            d["_slots"] = old.copy_to(index)
        self._adopt()
        return d["_slots"]

    def _adopt(self):
        """The slots know the layer, and compiled code its scales."""
        d = self.__dict__
        slots = d["_slots"]
        slots.owner = weakref.ref(self)
        # Its own version counter: what happens to other layers' scales between a pass and its backward pass is none of this one's.
        view = slots.scale.data
        # Captured by the compiler's own graphs as it is, not copied; no guard on its address.
        if _STATIC_INPUTS:
            view._dynamo_static_input_type = "unguarded"
        d["_scale_view"] = view

    def _weight_slots(self):
        """(slot, weight) of each weight."""
        return [(1, self._get("weight"))]

    # --- values to look at ---

    @property
    def fp8_scale(self):
        """The scales in use, f32 [k]: x, w, dy; of the MLP x1, w1, x2, w2, dy2, dy1. A view; do not write to it."""
        return self._state_slots().scale

    @property
    def fp8_amax(self):
        """Amaxes recorded in the period that runs, f32 [k]."""
        return self._state_slots().live

    @property
    def fp8_amax_history(self):
        """Older amaxes, f32 [k, 1024], newest last."""
        return self._state_slots().history

    @property
    def fp8_nonfinite(self):
        """Periods dropped because an amax was infinite or NaN, int32 [k]."""
        return self._state_slots().nonfinite

    @property
    def fp8_state(self):
        """What a state_dict keeps under this name, f32 [k, 2 + 1024]: scale, live amax, history. A copy."""
        return checkpointing.packed(self)

    @property
    def fp8_state_header(self):
        """What a state_dict keeps under this name, int32 [4]: version, k, whether weights were replaced, counter of updates."""
        return checkpointing.header(self)

    def _state_slots(self):
        if self._slots is None:
            self._take_slots()
        if self._slots is None:
            raise RuntimeError(f"{type(self).__name__}: there is no scaling state on the meta device")
        return self._slots

    # --- state ---

    def _replaced(self):
        """Weights were replaced."""
        d = self.__dict__
        d["_due"] = True
        if d["_cache"] is not None:
            d["_cache"].raw.valid = 0

    def reset_scaling(self):
        """Forgets all amaxes and scales."""
        if self._slots is not None:
            self._slots.clear()
        self._replaced()

    def register_parameter(self, name, param):
        d = self.__dict__
        if "_due" not in d:
            super().register_parameter(name, param)
            return
        if name in (checkpointing.STATE, checkpointing.HEADER):
            # HuggingFace's from_pretrained assigns whatever a state_dict names.
            checkpointing.assign(self, name, param)
            return
        before = self._parameters.get(name)
        super().register_parameter(name, param)
        away, shape = d["_away"].pop(name, (None, None))
        if param is not None and away is not None and away() is param:
            # As FSDP does in each pass.
            if param.shape == shape:
                return
        elif param is not before:
            self._replaced()
        # Sizes follow the weight, as in nn.Linear.
        self._resize(name)
        self._replan()

    def __delattr__(self, name):
        parameter = self._parameters.get(name)
        super().__delattr__(name)
        # FSDP puts a tensor in a parameter's place meanwhile.
        if isinstance(parameter, torch.nn.Parameter):
            # Its id would say nothing: a new parameter may lie where this one lay.
            self.__dict__["_away"][name] = weakref.ref(parameter), parameter.shape

    def _replan(self):
        """Sizes or settings changed: what calls have prepared from them is void."""
        d = self.__dict__
        d["_plans"] = {}
        d["_text"] = traced.register(self._kind, *self._dims())

    def _resize(self, name):
        """Parameter `name` is another one."""

    def _check_shapes(self):
        """Parameters of other sizes than the layer's are refused: the library knows only where they begin."""
        for name, shape in self._shapes().items():
            # Not one that a parametrization makes: making it may have effects.
            found = self._parameters.get(name)
            if found is not None and found.shape != shape:
                raise ValueError(f"{name}: has shape {tuple(found.shape)}, and must have {shape} in {self}")

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        d = self.__dict__
        # FP8 copies lie where the weights were, and plans belong to a device.
        d["_cache"] = None
        self._take_slots()
        return self

    def __getstate__(self):
        kept = self.__dict__.copy()
        kept.update(_plans={}, _cache=None, _last=None, _stats=None, _skip=None, _scale_view=None, _away={})
        return kept

    def __deepcopy__(self, memo):
        kind = type(self)
        if is_parametrized(self):
            # Its own class refuses to be pickled.
            kind = kind.__bases__[0]
        made = memo[id(self)] = type(self).__new__(type(self))
        made.__setstate__(copy.deepcopy(kind.__getstate__(self), memo))
        return made

    def __setstate__(self, stored):
        super().__setstate__(stored)
        slots = self._slots
        if slots is not None:
            if slots.owner is not None and slots.owner() is not None:
                # A shallow copy: one layer, one scaling state.
                self.__dict__["_slots"] = slots.copy_to(slots.index)
            self._adopt()

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        checkpointing.save(self, destination, prefix)

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs):
        found = checkpointing.read(self, state_dict, prefix, error_msgs)
        if found is checkpointing.DAMAGED:
            return
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        unexpected_keys[:] = [k for k in unexpected_keys if not checkpointing.is_ours(k, prefix)]
        checkpointing.load(self, found, state_dict, prefix)

    def extra_repr(self):
        return ", ".join(f"{k}={v}" for k, v in self._describe().items())

    # --- calls ---

    def _begin(self, x, weight, others, needs, first, norm_out=False):
        """(x in the type to compute in, run, type that the parameters must have) of a call. Host time counts here."""
        d = self.__dict__
        index = x.get_device()
        inner = _local.region
        engine = _graph_task() != -1
        grad = _is_grad_enabled()
        token = None
        if engine and (inner is None or not inner.engine):
            # A recomputation: as at the first pass.
            mode = d["_last"]
        elif inner is None:
            mode = None
            if d["_last"] is not None and (grad or d["training"]):
                d["_last"] = None
        else:
            mode, token = inner.mode, inner.token
            if inner.trains or grad:
                d["_last"] = mode
                if (token is None or token.started) and grad and not engine:
                    # Also for a pass after a backward inside the region: scales wait for its own.
                    token = inner.token = region.Token()
        dtype = x.dtype
        if _is_any_autocast_enabled():
            kind = "cuda" if index >= 0 else "cpu"
            wanted = _autocast_dtype(kind) if _is_autocast_enabled(kind) else dtype
            if dtype is not wanted:
                dtype = wanted
                x = x.to(dtype)
        if mode is not None and mode.fp8:
            param_dtype = weight.dtype
        else:
            param_dtype = dtype
        plan = d["_plans"].get((mode, dtype, param_dtype, index))
        if plan is None:
            if index >= 0 and not x.is_cuda:
                raise RuntimeError(f"tensors on {x.device} are not supported: layers of nvte run on cpu and cuda")
            plan = self._plan(mode, dtype, param_dtype, index)
        if weight.get_device() != index:
            raise RuntimeError(f"{type(self).__name__}: the input is on {x.device}, and the weight on {weight.device}")
        flags = live = scale = cache_at = skip_at = 0
        if grad:
            if x.requires_grad:
                needs |= NEEDS_DX
            flags = needs
        kept = None
        if mode is not None:
            record = grad and d["training"] or mode.calibrating
            if flags and plan.large and first is None and d["_skip"] is None and saves_weight(self, weight):
                flags |= SAVE_WEIGHT
            flags, live, scale, cache_at, skip_at, kept = self._prepare(mode, plan, token, flags, record, first, engine, grad)
        fused = None
        if d["fuse_wgrad_accumulation"]:
            fused = others
        return x, (plan, flags, live, scale, cache_at, skip_at, token, (fused, norm_out, kept)), param_dtype

    def _prepare(self, mode, plan, token, flags, record, first, engine, grad):
        """(flags, live, scale, cache address, address of the graph's flag, what they point into) of a call with a recipe."""
        d = self.__dict__
        live = scale = cache_at = skip_at = 0
        kept = slots = None
        if mode.delayed:
            slots = d["_slots"]
            if slots is None or slots.index != plan.index:
                slots = self._slots_on(plan.index)
            if slots.spec is not mode.spec or slots.group is not mode.group:
                slots.assign(mode.spec, mode.group, grad and token is not None)
            scale = slots.scale_at
            if record:
                live = slots.live_at
            if token is not None and plan.index not in token.devices:
                slots.device.watch(token)
            kept = slots
        else:
            record = False
        if not mode.fp8:
            return flags | CALIBRATE, live, scale, 0, 0, kept
        if d["_due"] and slots is not None:
            flags |= SCALE_DUE | SCALE_KEEP if record else SCALE_DUE
        if first is not None or d["_skip"] is not None:
            cache = d["_cache"]
            if cache is None or cache.plan is not plan:
                cache = d["_cache"] = WeightCache(plan)
            if d["_skip"] is not None:
                # The cast is part of the graph, and asks the flag when it runs.
                cache.raw.valid, skip_at = 0, d["_skip"].data_ptr()
            # What a first pass without gradients has filled was not recorded yet.
            elif first and not (engine and cache.recorded):
                cache.raw.valid = 0
            if cache.raw.valid & plan.full == plan.full:
                flags &= ~(SCALE_DUE | SCALE_KEEP)
            else:
                cache.recorded = record or slots is None
            cache_at, kept = cache.at, (slots, cache)
        if flags & SCALE_KEEP:
            d["_due"] = False
            if token is not None:
                token.settled = d
        return flags, live, scale, cache_at, skip_at, kept

    def _plan(self, mode, dtype, param_dtype, index):
        self._check_shapes()
        plan = plan_for(self._kind, index, dtype, param_dtype, mode, *self._dims())
        self._plans[mode, dtype, param_dtype, index] = plan
        if _debug:
            how = "in high precision" if mode is None or not mode.fp8 else f"in FP8, {mode.spec.recipe!r}"
            where = "cpu" if index < 0 else f"cuda:{index}"
            name = f" {self.name}" if self.name else ""
            what = f"{type(self).__name__}{name} ({self.extra_repr()})"
            print(f"nvte: {what} on {where}: {dtype}, parameters {param_dtype}, {how}", flush=True)
        return plan

    def _get(self, name):
        """A parameter; also one that a wrapper (parametrization, FSDP) keeps elsewhere."""
        found = self._parameters.get(name)
        if found is None and name not in self._parameters:
            found = getattr(self, name, None)
        return found


def cast(t, dtype):
    return t if t is None or t.dtype is dtype else t.to(dtype)


def fan_in_init(weight, bias, init_method):
    """nn.Linear's default; with init_method the bias is zero."""
    if init_method is not None:
        init_method(weight)
        if bias is not None:
            init.zeros_(bias)
        return
    init.kaiming_uniform_(weight, a=math.sqrt(5))
    if bias is not None:
        fan_in = weight.shape[1]
        bound = 1 / math.sqrt(fan_in) if fan_in > 0 else 0
        init.uniform_(bias, -bound, bound)
