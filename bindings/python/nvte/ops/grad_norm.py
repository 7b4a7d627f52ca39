"""The norm of lists of gradients, and their multiplication by a factor on the device."""

from .. import _abi
from .._library import check, lib, packer
from ..dtypes import float32
from ._common import asked, first_space
from .lists import TensorList, built, kinds_of, pointers, stretch

_arguments = packer(_abi.nvte_grad_norm_args_t, "reserved list grad_scale max_norm norm clip found_inf")


def _packed(gradients):
    """(space, what keeps the arguments, address of the tensors, their number)."""
    if not len(gradients):
        raise ValueError("gradients: a list of no tensors has no device")
    space = first_space(gradients[0])
    kept, (at,) = pointers(([stretch(space, "gradients", space.writable("gradients", x))[0] for x in gradients],))
    return space, kept, at, len(gradients)


def grad_list_workspace(gradients, *, context=None):
    """Bytes of the table of such a list."""
    space, kept, at, count = _packed(gradients)
    return asked(lib.nvte_grad_list_workspace, space.context(context), at, count)


def grad_list(gradients, *, workspace=None, stream=None, context=None):
    """A TensorList for grad_norm and grad_scale: float32, float16 or bfloat16 arrays without gaps.

    workspace: memory of grad_list_workspace bytes, aligned to 16, for the table, which must not be used for anything else; None: made
    here.
    """
    space, kept, at, count = _packed(gradients)
    make = lambda handle, found: lib.nvte_grad_list(handle, at, count, found, space.stream(stream))  # noqa: E731
    found = built(space, context, workspace, count, lib.nvte_grad_list_workspace, make, (at, count))
    found.gradients, found.kinds = list(gradients), kinds_of(space, gradients)
    return found


def _as_list(gradients, stream, context):
    return gradients if isinstance(gradients, TensorList) else grad_list(gradients, stream=stream, context=context)


def grad_norm(
    gradients, *, max_norm=float("inf"), grad_scale=None, norm=None, clip=None, found_inf=None, stream=None, context=None
):
    """The L2 norm of all gradients as one vector, in one launch; nothing waits for the host.

    gradients: a TensorList made by grad_list, or arrays. grad_scale: one float32 on the device that the norm is divided by (the factor
    of a scaled loss). norm: one float32 for the result; None: a new one. clip: one float32 that receives
    min(1, max_norm / (norm + 1e-6)). found_inf: one float32 that receives 1 where a gradient is infinite or NaN, else 0.
    No square overflows or vanishes. Returns norm.
    """
    gradients = _as_list(gradients, stream, context)
    space = gradients.space
    norm = space.empty((1,), float32) if norm is None else space.writable("norm", norm)
    arguments = _arguments(
        0, gradients.at, space.slot("grad_scale", grad_scale), max_norm, space.slot("norm", norm),
        space.written("clip", clip), space.written("found_inf", found_inf),
    )  # fmt: skip
    check(lib.nvte_grad_norm(gradients.handle, arguments, space.stream(stream)))
    return norm


def grad_scale(gradients, factor, *, stream=None, context=None):
    """Multiplies all gradients in place, in one launch, by one float32 on the device; where it is 1 they are not touched.

    gradients: a TensorList made by grad_list, or arrays.
    """
    gradients = _as_list(gradients, stream, context)
    space = gradients.space
    check(lib.nvte_grad_scale(gradients.handle, gradients.at, space.slot("factor", factor), space.stream(stream)))
