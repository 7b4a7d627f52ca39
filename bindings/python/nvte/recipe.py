"""Scaling recipes: how FP8 scales follow from what the tensors hold. Plain descriptions; the library does the work."""

import numbers

from .dtypes import float8_e4m3, float8_e5m2


class Format:
    """Which FP8 format serves which pass: Format.E4M3 (everywhere) or Format.HYBRID (E4M3, and E5M2 for gradients)."""

    __slots__ = ("name", "forward", "backward")

    def __init__(self, name, forward, backward):
        self.name = name
        #: Format of activations and weights.
        self.forward = forward
        #: Format of gradients.
        self.backward = backward

    def __repr__(self):
        return f"Format.{self.name}"

    def __reduce__(self):
        return getattr, (Format, self.name)


Format.E4M3 = Format("E4M3", float8_e4m3, float8_e4m3)
Format.HYBRID = Format("HYBRID", float8_e4m3, float8_e5m2)


def _format(value):
    # Other libraries' formats are enumerations with the same names.
    if not isinstance(value, (str, Format)):
        value = getattr(value, "name", value)
    if isinstance(value, str):
        value = {"E4M3": Format.E4M3, "HYBRID": Format.HYBRID}.get(value.upper(), value)
    if isinstance(value, Format):
        return value
    if str(value).upper().endswith("E5M2"):
        raise ValueError(f"fp8_format = {value}: E5M2 alone is too coarse for activations and weights; use HYBRID or E4M3")
    raise ValueError(f"fp8_format = {value!r}: must be Format.HYBRID or Format.E4M3")


def _whole(value):
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and value // 1 == value


def _margin(value):
    if not _whole(value) or not -64 <= value <= 64:
        raise ValueError(f"margin = {value}: must be a whole number between -64 and 64")
    return int(value)


def _count(name, value):
    if not _whole(value) or value < 1:
        raise ValueError(f"{name} = {value}: must be a whole number, at least 1")
    return int(value)


def _epsilon(value):
    if not isinstance(value, numbers.Real) or not 0 <= value < float("inf"):
        raise ValueError(f"epsilon = {value!r}: must be a number, finite and not negative")
    return float(value)


class Recipe:
    """What the recipes share: they compare by value, and print as they are made."""

    def __eq__(self, other):
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self):
        return hash((type(self), *self.__dict__.items()))

    def __repr__(self):
        return f"{type(self).__name__}({', '.join(f'{k}={v}' for k, v in self.__dict__.items())})"

    def delayed(self):
        """Whether it is delayed scaling."""
        return isinstance(self, DelayedScaling)

    def float8_current_scaling(self):
        """Whether it is current scaling."""
        return isinstance(self, Float8CurrentScaling)


class DelayedScaling(Recipe):
    """Scales follow from the amaxes of earlier steps.

    margin: scales are divided by 2^margin. interval: scales change at every interval-th update. amax_history_len: the window L, the
    newest amax included. amax_compute_algo: "max" of the window, "most_recent", or a function from a layer's window [L, slots] (the
    newest first) to amaxes [slots]. scaling_factor_compute_algo: a function from (amaxes, scales, largest values of the formats, this
    recipe) to new scales, all [slots]; None: the usual rule. Functions are compared by identity: one made anew for each step is a recipe
    of its own each time, which is kept. reduce_amax: amaxes are reduced over the ranks before an update.
    power_of_two: scales are rounded down to powers of two. epsilon: floor of the amax.
    """

    def __init__(
        self,
        margin=0,
        interval=1,
        fp8_format="HYBRID",
        amax_history_len=1024,
        amax_compute_algo="max",
        reduce_amax=True,
        power_of_two=False,
        epsilon=0.0,
        scaling_factor_compute_algo=None,
    ):
        self.margin = _margin(margin)
        self.interval = _count("interval", interval)
        self.fp8_format = _format(fp8_format)
        self.amax_history_len = _count("amax_history_len", amax_history_len)
        if amax_compute_algo not in ("max", "most_recent") and not callable(amax_compute_algo):
            raise ValueError(f"amax_compute_algo = {amax_compute_algo!r}: must be 'max', 'most_recent' or a function")
        self.amax_compute_algo = amax_compute_algo
        self.reduce_amax = bool(reduce_amax)
        self.power_of_two = bool(power_of_two)
        self.epsilon = _epsilon(epsilon)
        if scaling_factor_compute_algo is not None and not callable(scaling_factor_compute_algo):
            raise ValueError(f"scaling_factor_compute_algo = {scaling_factor_compute_algo!r}: must be None or a function")
        self.scaling_factor_compute_algo = scaling_factor_compute_algo


class Float8CurrentScaling(Recipe):
    """The scale of each cast follows from the amax of its own tensor. Parameters as in DelayedScaling."""

    def __init__(self, fp8_format="HYBRID", margin=0, power_of_two=False, epsilon=0.0):
        self.fp8_format = _format(fp8_format)
        self.margin = _margin(margin)
        self.power_of_two = bool(power_of_two)
        self.epsilon = _epsilon(epsilon)


__all__ = ["DelayedScaling", "Float8CurrentScaling", "Format", "Recipe"]
