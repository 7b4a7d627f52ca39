"""The delayed-scaling update."""

from .. import _abi
from .._errors import UnsupportedError
from .._library import check, lib, packer
from ._common import first_space

_arguments = packer(
    _abi.nvte_scaling_update_args_t,
    "algo slots history_len live scale history slot_stride step_stride format_max nonfinite scale_inv counter interval margin epsilon "
    "power_of_two",
)

_ALGORITHMS = {"max": _abi.NVTE_AMAX_MAX, "most_recent": _abi.NVTE_AMAX_MOST_RECENT}


def scaling_update(
    live, scale, history, format_max, *, recipe=None, margin=0, interval=1, amax_compute_algo="max", power_of_two=False, epsilon=0.0,
    nonfinite=None, scale_inv=None, counter=None, stream=None, context=None,
):  # fmt: skip
    """Ends a period for all slots in one launch: rolls the amax histories and makes the new scales, in place.

    live, scale: float32 [slots]; live (the amaxes recorded) becomes 0 where it was taken. history: float32 [slots, L - 1] with any
    strides, the older amaxes, oldest first; None where L is 1. format_max: float32 [slots], 448 or 57344. recipe: a DelayedScaling in
    place of margin, interval, amax_compute_algo, power_of_two and epsilon. nonfinite: 32-bit integers [slots] that count the periods
    dropped for an infinite or NaN amax. scale_inv: float32 [slots], receives 1/scale. counter: one 32-bit integer that starts at 0,
    needed where interval is above 1. Returns scale.
    """
    if recipe is not None:
        margin, interval, amax_compute_algo = recipe.margin, recipe.interval, recipe.amax_compute_algo
        power_of_two, epsilon = recipe.power_of_two, recipe.epsilon
        length = 0 if history is None else history.shape[-1]
        if length + 1 != recipe.amax_history_len:
            raise ValueError(f"history: holds {length} steps, and the recipe's window of {recipe.amax_history_len} needs one less than that")
    algo = _ALGORITHMS.get(amax_compute_algo) if isinstance(amax_compute_algo, str) else None
    if algo is None:
        if callable(amax_compute_algo):
            raise UnsupportedError("amax_compute_algo is a function: it is for the layers to call, the update knows 'max' and 'most_recent'")
        raise ValueError(f"amax_compute_algo = {amax_compute_algo!r}: must be 'max' or 'most_recent'")
    space = first_space(live)
    slots = live.shape[0] if len(live.shape) else 1
    live_at, scale_at = space.written("live", live, slots), space.written("scale", scale, slots)
    history_at = slot_stride = step_stride = older = 0
    if history is not None:
        history_at, (rows, older), (slot_stride, step_stride) = space.grid("history", space.writable("history", history))
        if rows != slots:
            raise ValueError(f"history: has {rows} slots, and live {slots}")
    arguments = _arguments(
        algo, slots, older + 1, live_at, scale_at, history_at, slot_stride, step_stride, space.floats("format_max", format_max, slots),
        space.words("nonfinite", nonfinite, slots), space.written("scale_inv", scale_inv, slots), space.words("counter", counter, 1),
        interval, margin, epsilon, bool(power_of_two),
    )  # fmt: skip
    check(lib.nvte_scaling_update(space.context(context), arguments, space.stream(stream)))
    return scale
