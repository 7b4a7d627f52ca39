"""Regions: where FP8 runs, by which recipe, and when a period of delayed scaling ends."""

import functools
import threading

import torch

from .. import recipe as recipes
from . import state

graph_task = torch._C._current_graph_task_id
_is_compiling = torch.compiler.is_compiling
is_grad_enabled = torch.is_grad_enabled


class Local(threading.local):
    """The innermost region of each thread, and the text of its mode for code that is traced: compilers guard on it."""

    # Tells the compiler of torch 2.4 to ask the object, as later ones do: it finds no attributes of subclasses otherwise.
    __slots__ = ()

    def __init__(self):
        # Not as attributes of the class: compilers would read those, whatever the thread has set.
        self.region, self.text = None, ""


local = Local()


class Spec:
    """A recipe as it was when a region was entered; one object for each distinct one."""

    __slots__ = (
        "recipe", "delayed", "format", "margin", "epsilon", "power_of_two", "history_len", "algo", "scaling_algo", "interval", "reduces",
        "functions",
    )  # fmt: skip

    def __init__(self, recipe):
        self.recipe = recipe
        self.delayed = isinstance(recipe, recipes.DelayedScaling)
        self.format, self.margin, self.epsilon = recipe.fp8_format.name, recipe.margin, recipe.epsilon
        self.power_of_two = recipe.power_of_two
        self.history_len = getattr(recipe, "amax_history_len", 1)
        self.algo = getattr(recipe, "amax_compute_algo", "max")
        self.scaling_algo = getattr(recipe, "scaling_factor_compute_algo", None)
        self.interval = getattr(recipe, "interval", 1)
        self.reduces = getattr(recipe, "reduce_amax", False)
        self.functions = callable(self.algo) or self.scaling_algo is not None
        if self.history_len > state.HISTORY:
            raise ValueError(f"amax_history_len = {self.history_len}: must be at most {state.HISTORY}")


class Mode:
    """What a region decides for a layer; one object for each distinct one."""

    __slots__ = ("spec", "fp8", "calibrating", "group", "delayed", "text")

    def __init__(self, spec, fp8, calibrating, group):
        # What compiled code knows of it: the same in each process.
        self.text = f"{'fp8 ' if fp8 else ''}{'calibrating ' if calibrating else ''}{spec.recipe!r}"
        modes_by_text.setdefault(self.text, self)
        self.spec, self.fp8, self.calibrating, self.delayed = spec, fp8, calibrating, spec.delayed
        self.group = state.group_of(group, spec.reduces)


_specs = {}
_modes = {}
#: Modes by their text; of those that differ in their group, the first.
modes_by_text = {}
_default = recipes.DelayedScaling()


#: The last answer of `mode_of`, with what it was asked: programs enter the same region again and again.
_recent = (None,) * 6


def mode_of(enabled, recipe, calibrating, group):
    """The mode of a region; None: high precision."""
    global _recent
    if not enabled and not calibrating:
        return None
    if recipe is None:
        recipe = _default
    last, values, was_enabled, was_calibrating, last_group, mode = _recent
    if recipe is last and enabled is was_enabled and calibrating is was_calibrating and group is last_group and recipe.__dict__ == values:
        return mode
    mode = _find_mode(enabled, recipe, calibrating, group)
    _recent = (recipe, dict(recipe.__dict__), enabled, calibrating, group, mode)
    return mode


def _find_mode(enabled, recipe, calibrating, group):
    key = (type(recipe), *recipe.__dict__.values())
    spec = _specs.get(key)
    if spec is None:
        if not isinstance(recipe, recipes.Recipe):
            raise TypeError(f"recipe = {recipe!r}: must be one of nvte.recipe")
        import copy

        spec = _specs.setdefault(key, Spec(copy.copy(recipe)))
    key = (spec, enabled, calibrating, group)
    mode = _modes.get(key)
    if mode is None:
        if not enabled and not spec.delayed:
            return None
        mode = _modes.setdefault(key, Mode(spec, enabled, calibrating, group))
    return mode


class Token:
    """A training region whose backward may come: held by each node's ctx, watched by the devices."""

    __slots__ = ("started", "number", "devices", "settled", "__weakref__")
    #: How many there have been. Not a number: setting an attribute of a class makes its next uses slow.
    count = [0]

    def __init__(self):
        count = Token.count
        count[0] += 1
        self.number, self.started, self.devices = count[0], False, set()
        # Attributes of the last layer whose replaced weights were to be cast with a scale of their own.
        self.settled = None


class Region:
    """One entry of an autocast region."""

    __slots__ = ("mode", "token", "parent", "trains", "engine", "before")

    def __init__(self, mode, token, trains, engine):
        self.mode, self.token, self.trains, self.engine = mode, token, trains, engine
        self.parent, self.before = local.region, local.text
        local.region, local.text = self, "" if mode is None else mode.text

    def leave(self):
        """Back to the region around it."""
        local.region, local.text = self.parent, self.before


#: A region was left by an exception: what was recorded stays, and the next region does not end the period.
_failed = False


class autocast:
    """Layers inside run in FP8 by a recipe.

    enabled: False: in high precision. recipe: one of nvte.recipe; None: the default one. calibrating: record amaxes while computing in
    high precision (enabled=False), also where no gradients are wanted. amax_reduction_group: ranks that share amaxes; None: all.
    Regions nest; each thread has its own. Entering the outermost one with gradients on ends the period of delayed scaling, where no
    earlier region waits for its backward. May be entered many times, and used as a decorator.
    """

    __slots__ = ("enabled", "recipe", "calibrating", "group")

    def __init__(self, enabled=True, recipe=None, calibrating=False, amax_reduction_group=None):
        self.enabled, self.recipe, self.calibrating, self.group = bool(enabled), recipe, bool(calibrating), amax_reduction_group
        if recipe is not None and not isinstance(recipe, recipes.Recipe):
            raise TypeError(f"recipe = {recipe!r}: must be one of nvte.recipe")

    def __enter__(self):
        global _failed
        if _is_compiling():
            raise RuntimeError("nvte.torch.autocast cannot be entered inside a compiled function: put the region round the call of it")
        mode = mode_of(self.enabled, self.recipe, self.calibrating, self.group)
        parent = local.region
        engine = graph_task() != -1
        trains = is_grad_enabled()
        token = None
        if engine:
            pass
        elif parent is not None and not parent.engine:
            token = parent.token
        elif trains:
            token = Token()
            if _failed:
                _failed = False
            else:
                for device in state.devices.values():
                    if device.chunks and not device.waits(token.number):
                        device.update()
        Region(mode, token, trains, engine)

    def __exit__(self, kind, *_):
        global _failed
        region = local.region
        region.leave()
        if region.parent is None and not region.engine:
            if kind is not None:
                if region.trains and kind.__name__ != "_StopRecomputationError":
                    _failed = True
                    if region.token is not None:
                        region.token.started = True
                        if region.token.settled is not None:
                            # Its call may be the one that failed; doing it twice is harmless.
                            region.token.settled["_due"] = True
            elif region.mode is not None and region.mode.calibrating and not region.trains:
                for device in state.devices.values():
                    if device.chunks and not device.waits(Token.count[0]):
                        device.update()
        return False

    def __call__(self, function):
        @functools.wraps(function)
        def inside(*args, **kwargs):
            with self:
                return function(*args, **kwargs)

        return inside


def fp8_autocast(enabled=True, calibrating=False, fp8_recipe=None, fp8_group=None, _graph=False):
    """The older name of `autocast`."""
    return autocast(enabled=enabled, recipe=fp8_recipe, calibrating=calibrating, amax_reduction_group=fp8_group)


class restored:
    """A region as it was at a layer's first pass, for its recomputation."""

    __slots__ = ("mode", "token", "trains")

    def __init__(self, mode, token, trains):
        self.mode, self.token, self.trains = mode, token, trains

    def __enter__(self):
        Region(self.mode, self.token, self.trains, True)

    def __exit__(self, *_):
        local.region.leave()
        return False


def is_fp8_enabled():
    """Whether a layer called here would run in FP8."""
    return local.text.startswith("fp8")


def layers_of(model):
    """The layers of nvte in a model."""
    from .layer import Layer

    return [m for m in model.modules() if isinstance(m, Layer)]


def update_scaling(model):
    """Ends the period of delayed scaling for the layers of a model, now."""
    state.update_of([layer._slots for layer in layers_of(model)])


def reset_scaling(model):
    """The layers of a model forget all amaxes; the next cast of their weights takes its scale from the weights themselves."""
    for layer in layers_of(model):
        layer.reset_scaling()
