"""Cross-entropy, whole and with the vocabulary in slices."""

import collections

from .. import _abi
from .._library import check, lib, packer
from ..dtypes import float32
from ._common import asked, first_space, handle_of, in_memory, scratch, whole

_whole = packer(
    _abi.nvte_cross_entropy_args_t,
    "target_type logits dlogits target ignore_index dloss dloss_stride loss logsumexp total workspace workspace_bytes label_smoothing "
    "reduction",
)
_slice = packer(
    _abi.nvte_cross_entropy_slice_args_t,
    "target_type logits dlogits target ignore_index start vocabulary partial combined dloss dloss_stride workspace workspace_bytes "
    "label_smoothing reduction",
)
_combine = packer(
    _abi.nvte_cross_entropy_combine_args_t,
    "target_type partials ranks rank_stride tokens vocabulary target ignore_index combined loss logsumexp total workspace workspace_bytes "
    "label_smoothing reduction",
)

#: Name of each reduction and its number in C.
REDUCTIONS = {"none": 0, "sum": 1, "mean": 2}

CrossEntropy = collections.namedtuple("CrossEntropy", "loss total logsumexp dlogits")
CrossEntropy.__doc__ = "What cross_entropy returns; None for what was not asked for."
Combined = collections.namedtuple("Combined", "loss total logsumexp combined")
Combined.__doc__ = "What cross_entropy_combine returns; None for what was not asked for."


def _reduction(name):
    try:
        return REDUCTIONS[name]
    except (KeyError, TypeError):
        raise ValueError(f"reduction = {name!r}: must be one of {', '.join(REDUCTIONS)}") from None


def _targets(space, target, tokens):
    """(number of the type, address) of targets."""
    space.given("target", target)
    shape, strides, address, size = space.bytes_of("target", target)
    if size not in (4, 8) or "int" not in str(target.dtype) or "uint" in str(target.dtype):
        raise TypeError(f"target: must be of 64-bit or 32-bit integers, and is {target.dtype}")
    count, dense = space.layout(target)
    if count != tokens or not dense:
        raise ValueError(f"target: must be {tokens} integers without gaps, and has the shape {tuple(shape)}")
    return (0 if size == 8 else 1), address


def _dloss(space, dloss, tokens, name="dloss"):
    """(address, stride) of the gradient of the loss."""
    if dloss is None:
        return 0, 0
    count, _ = space.layout(space.require(name, dloss))
    many = count == tokens and tokens != 1
    return space.floats(name, dloss, tokens if many else 1), int(many)


def _gradient(space, given, logits):
    """(array or None, C tensor or None) of the gradient: True: a new one."""
    if given is None or given is False:
        return None, None
    if given is True:
        given = space.empty(logits.shape, space.known(logits))
    else:
        space.writable("dlogits", space.require("dlogits", given))
    return given, space.high("dlogits", given)[0]


def _result(space, name, wanted, shape):
    """(array or None, address) of float32 results: True: new ones."""
    if wanted is None or wanted is False:
        return None, 0
    length = 1
    for s in shape:
        length *= s
    if wanted is True:
        wanted = space.empty(shape, float32)
    else:
        space.writable(name, space.require(name, wanted))
    return wanted, space.floats(name, wanted, length)


def cross_entropy_workspace(device, tokens):
    """Bytes of workspace of cross_entropy, _combine and _gradient with a reduction, for a Context or a device."""
    return asked(lib.nvte_cross_entropy_workspace, handle_of(device), whole("tokens", tokens))


def _scratch(space, workspace, handle, reduction, tokens):
    if reduction == 0:
        return None, 0, 0
    return scratch(space, workspace, lib.nvte_cross_entropy_workspace, handle, tokens)


def cross_entropy(
    logits, target, *, ignore_index=-100, reduction="mean", label_smoothing=0.0, dlogits=None, dloss=None, loss=None, logsumexp=None,
    total=None, workspace=None, stream=None, context=None,
):  # fmt: skip
    """Cross-entropy over the last dimension and, in the same pass, the gradient of the logits.

    logits: float32, float16 or bfloat16 [..., vocabulary]. target: 64- or 32-bit integers [...]; those equal to ignore_index do not count;
    one outside the vocabulary gives NaN. reduction: "mean" (over the targets that count), "sum" or "none". dlogits: True or an array,
    which may be the logits themselves: receives the gradient, multiplied by dloss (one float32, or one per token; None: 1). loss,
    logsumexp: True or float32 arrays [...]: per token; total: the reduced loss. None: total with a reduction, loss without. workspace:
    scratch memory of cross_entropy_workspace bytes, aligned to 16; None: made here. Returns CrossEntropy(loss, total, logsumexp, dlogits).
    """
    space, number = first_space(logits), _reduction(reduction)
    source, tokens, _ = space.high("logits", logits)
    kind, targets = _targets(space, target, tokens)
    if loss is None and total is None:
        loss, total = number == 0, number != 0
    shape = logits.shape[:-1]
    loss, loss_at = _result(space, "loss", loss, shape)
    logsumexp, lse_at = _result(space, "logsumexp", logsumexp, shape)
    total, total_at = _result(space, "total", total, ())
    dlogits, gradient = _gradient(space, dlogits, logits)
    dloss_at, stride = _dloss(space, dloss, tokens)
    handle = space.context(context)
    keep, work, size = _scratch(space, workspace, handle, number, tokens)
    held, (a, b) = in_memory(source, gradient)
    arguments = _whole(
        kind, a, b, targets, ignore_index, dloss_at, stride, loss_at, lse_at, total_at, work, size, label_smoothing, number
    )  # fmt: skip
    check(lib.nvte_cross_entropy(handle, arguments, space.stream(stream)))
    return CrossEntropy(loss, total, logsumexp, dlogits)


def cross_entropy_partial(
    logits, target, start, vocabulary, *, ignore_index=-100, label_smoothing=0.0, out=None, stream=None, context=None
):
    """Of a slice of the vocabulary, per token: (largest logit, sum of exp(x - largest), the target's logit or 0, sum of logits).

    logits: [..., n], the classes start .. start + n of `vocabulary`. target: classes of the whole vocabulary. The last number is filled
    with label smoothing only. out: float32 [tokens, 4], aligned to 16 bytes. Returns it.
    """
    space = first_space(logits)
    source, tokens, _ = space.high("logits", logits)
    kind, targets = _targets(space, target, tokens)
    out, out_at = _result(space, "out", True if out is None else out, (tokens, 4))
    held, (a,) = in_memory(source)
    arguments = _slice(kind, a, 0, targets, ignore_index, start, vocabulary, out_at, 0, 0, 0, 0, 0, label_smoothing, 0)
    check(lib.nvte_cross_entropy_partial(space.context(context), arguments, space.stream(stream)))
    return out


def cross_entropy_combine(
    partials, target, vocabulary, *, ignore_index=-100, reduction="mean", label_smoothing=0.0, combined=None, loss=None, logsumexp=None,
    total=None, workspace=None, stream=None, context=None,
):  # fmt: skip
    """Puts what cross_entropy_partial found in all slices together, and finishes the losses.

    partials: float32 [ranks, tokens, 4] without gaps, as gathered. Other arguments as in cross_entropy. combined: an array [tokens, 4], for
    cross_entropy_gradient. Returns Combined(loss, total, logsumexp, combined).
    """
    space, number = first_space(partials), _reduction(reduction)
    if len(partials.shape) != 3 or partials.shape[2] != 4:
        raise ValueError(f"partials: must be [ranks, tokens, 4], and is {tuple(partials.shape)}")
    ranks, tokens, _ = partials.shape
    at = space.floats("partials", partials, ranks * tokens * 4)
    kind, targets = _targets(space, target, tokens)
    if loss is None and total is None:
        loss, total = number == 0, number != 0
    loss, loss_at = _result(space, "loss", loss, target.shape)
    logsumexp, lse_at = _result(space, "logsumexp", logsumexp, target.shape)
    total, total_at = _result(space, "total", total, ())
    combined, combined_at = _result(space, "combined", True if combined is None else combined, (tokens, 4))
    handle = space.context(context)
    keep, work, size = _scratch(space, workspace, handle, number, tokens)
    arguments = _combine(
        kind, at, ranks, 0, tokens, vocabulary, targets, ignore_index, combined_at, loss_at, lse_at, total_at, work, size,
        label_smoothing, number,
    )  # fmt: skip
    check(lib.nvte_cross_entropy_combine(handle, arguments, space.stream(stream)))
    return Combined(loss, total, logsumexp, combined)


def cross_entropy_gradient(
    logits, target, combined, start, vocabulary, *, ignore_index=-100, reduction="mean", label_smoothing=0.0, dlogits=True, dloss=None,
    workspace=None, stream=None, context=None,
):  # fmt: skip
    """The gradient of a slice's logits, from what cross_entropy_combine made of all slices; other arguments as there. Returns dlogits."""
    space, number = first_space(logits), _reduction(reduction)
    source, tokens, _ = space.high("logits", logits)
    kind, targets = _targets(space, target, tokens)
    combined_at = space.floats("combined", combined, tokens * 4)
    dlogits, gradient = _gradient(space, dlogits, logits)
    dloss_at, stride = _dloss(space, dloss, tokens)
    handle = space.context(context)
    keep, work, size = _scratch(space, workspace, handle, number, tokens)
    held, (a, b) = in_memory(source, gradient)
    arguments = _slice(
        kind, a, b, targets, ignore_index, start, vocabulary, 0, combined_at, dloss_at, stride, work, size, label_smoothing, number
    )  # fmt: skip
    check(lib.nvte_cross_entropy_gradient(handle, arguments, space.stream(stream)))
    return dlogits


def scale_rows(x, scale, *, stream=None, context=None):
    """x *= scale, row by row, in place; rows whose scale is 1 are neither read nor written.

    x: float32, float16 or bfloat16 [..., cols]. scale: one float32, or one per row. Returns x.
    """
    space = first_space(x)
    target, rows, _ = space.high("x", space.writable("x", x))
    address, stride = _dloss(space, scale, rows, "scale")
    check(lib.nvte_scale_rows(space.context(context), address, stride, target, space.stream(stream)))
    return x
