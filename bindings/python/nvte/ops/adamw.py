"""AdamW over lists of tensors."""

from .. import _abi
from .._library import check, lib, packer
from ._common import as_fp8, asked, first_space, pack_fp8
from .lists import TensorList, built, kinds_of, pointers, stretch

_list_arguments = packer(
    _abi.nvte_adamw_list_args_t, "reserved count weights gradients masters exp_avgs exp_avg_sqs fp8s"
)
_arguments = packer(
    _abi.nvte_adamw_args_t,
    "decoupled bias_correction reserved list step lr_ptr found_inf grad_scale clip lr beta1 beta2 eps weight_decay",
)


def _packed(weights, gradients, exp_avgs, exp_avg_sqs, masters, fp8):
    """(space, what keeps the arguments, arguments) of a list."""
    count = len(weights)
    if not count:
        raise ValueError("weights: a list of no tensors has no device")
    for name, column in (("gradients", gradients), ("exp_avgs", exp_avgs), ("exp_avg_sqs", exp_avg_sqs), ("masters", masters), ("fp8", fp8)):
        if column is not None and len(column) != count:
            raise ValueError(f"{name}: has {len(column)} entries, and weights {count}")
    space = first_space(weights[0])
    plain = lambda name, column: [stretch(space, name, x)[0] for x in column]  # noqa: E731
    written = lambda name, column: plain(name, [space.writable(name, x) for x in column])  # noqa: E731
    optional = lambda pack, column: None if column is None else [None if x is None else pack(x) for x in column]  # noqa: E731
    kept, at = pointers(
        (
            written("weights", weights),
            plain("gradients", gradients),
            optional(lambda x: stretch(space, "masters", space.writable("masters", x))[0], masters),
            written("exp_avgs", exp_avgs),
            written("exp_avg_sqs", exp_avg_sqs),
            optional(lambda q: packed_fp8(space, q), fp8),
        )
    )
    return space, kept, _list_arguments(0, count, *at)


def adamw_list_workspace(weights, gradients, exp_avgs, exp_avg_sqs, masters=None, fp8=None, *, context=None):
    """Bytes of the table of such a list."""
    space, kept, arguments = _packed(weights, gradients, exp_avgs, exp_avg_sqs, masters, fp8)
    return asked(lib.nvte_adamw_list_workspace, space.context(context), arguments)


def adamw_list(weights, gradients, exp_avgs, exp_avg_sqs, masters=None, fp8=None, *, workspace=None, stream=None, context=None):
    """A TensorList for adamw: sequences of arrays, one of each per parameter, all of its shape and without gaps.

    weights, gradients: float32, float16 or bfloat16. exp_avgs, exp_avg_sqs: the moments, float32 or bfloat16, zeros at the start.
    masters: float32 weights of which `weights` are the rounded copies; None, for all or for some: there is none. fp8: Fp8Tensors that
    every step fills with the new weights, row-wise, transposed or both, as cast_to_fp8 would (scale read, scale_inv written, amax
    recorded); None, for all or for some: not wanted. workspace: memory of adamw_list_workspace bytes, aligned to 16, for the table,
    which must not be used for anything else; None: made here.
    """
    space, kept, arguments = _packed(weights, gradients, exp_avgs, exp_avg_sqs, masters, fp8)
    make = lambda handle, found: lib.nvte_adamw_list(handle, arguments, found, space.stream(stream))  # noqa: E731
    found = built(space, context, workspace, len(weights), lib.nvte_adamw_list_workspace, make, (arguments,))
    found.arrays, found.gradients = [list(c) for c in (weights, exp_avgs, exp_avg_sqs, masters, fp8) if c is not None], list(gradients)
    found.kinds = kinds_of(space, gradients)
    return found


def packed_fp8(space, q):
    """An FP8 copy of a weight as a C tensor."""
    q = as_fp8("fp8", q)
    if q.scale_inv is None:
        raise ValueError("fp8: an Fp8Tensor without scale_inv: codes without it would have no meaning")
    return pack_fp8(space, "fp8", q, True, q.scale, q.amax)[0]


def adamw(
    tensors, step, *, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, decoupled=True, bias_correction=True, found_inf=None,
    grad_scale=None, clip=None, stream=None,
):  # fmt: skip
    """One step of AdamW for all tensors of a list, in one launch and in place; the same bits on the CPU and on CUDA.

    tensors: made by adamw_list. step: one float32, the steps taken so far; 1 is added. lr: a number, or one float32 on the device.
    decoupled: the decay acts on the weights; False: on the gradients (L2). bias_correction: the moments are corrected for their start
    at 0. found_inf: one float32; where it is not 0 the step is skipped and nothing is written. grad_scale: one float32 that gradients
    are divided by; clip: one that they are multiplied with (see grad_norm). Returns step.
    """
    if not isinstance(tensors, TensorList):
        raise TypeError(f"tensors: must be a TensorList, made by adamw_list, and is {type(tensors).__name__}")
    space = tensors.space
    number = isinstance(lr, (int, float))
    if lr is None:
        raise TypeError("lr is None: must be a number or one float32")
    arguments = _arguments(
        bool(decoupled), bool(bias_correction), 0, tensors.at, space.written("step", step),
        0 if number else space.slot("lr", lr), space.slot("found_inf", found_inf), space.slot("grad_scale", grad_scale),
        space.slot("clip", clip), lr if number else 0.0, *betas, eps, weight_decay,
    )  # fmt: skip
    check(lib.nvte_adamw(tensors.handle, arguments, space.stream(stream)))
    return step
