"""Casts of lists of tensors to FP8: the weights of a layer, or of a model, in one launch."""

from .. import _abi
from .._library import check, lib, packer
from ._common import as_fp8, asked, first_space, fp8_output, pack_fp8
from .cast import _parameters
from .lists import TensorList, built, pointers

_arguments = packer(_abi.nvte_multi_cast_args_t, "current list skip margin epsilon power_of_two reserved")


def _packed(inputs, outputs):
    """(space, what keeps the tensors, addresses of both arrays, their number)."""
    if not len(inputs):
        raise ValueError("inputs: a list of no tensors has no device")
    if len(outputs) != len(inputs):
        raise ValueError(f"outputs: has {len(outputs)} entries, and inputs {len(inputs)}")
    space = first_space(inputs[0])
    targets = []
    for q in outputs:
        q = as_fp8("outputs", q)
        if q.scale_inv is None:
            raise ValueError("outputs: an Fp8Tensor without scale_inv: codes without it would have no meaning")
        targets.append(pack_fp8(space, "outputs", q, True, q.scale, q.amax)[0])
    kept, at = pointers(([space.high("inputs", space.given("inputs", x))[0] for x in inputs], targets))
    return space, kept, at, len(inputs)


def cast_list_workspace(inputs, outputs, *, context=None):
    """Bytes of the table of such a list."""
    space, kept, at, count = _packed(inputs, outputs)
    return asked(lib.nvte_cast_list_workspace, space.context(context), *at, count)


def cast_list(inputs, outputs, *, workspace=None, stream=None, context=None):
    """A TensorList for multi_cast_to_fp8: arrays and the Fp8Tensors they are cast into, each pair of its own shape and types.

    inputs: float32, float16 or bfloat16 [..., cols] with any row stride. outputs: with data, data_t or both, scale_inv, and scale and amax
    where they are wanted. workspace: memory of cast_list_workspace bytes, aligned to 16, for the table, which must not be used for
    anything else; None: made here.
    """
    space, kept, at, count = _packed(inputs, outputs)
    make = lambda handle, found: lib.nvte_cast_list(handle, *at, count, found, space.stream(stream))  # noqa: E731
    found = built(space, context, workspace, count, lib.nvte_cast_list_workspace, make, (*at, count))
    found.arrays = list(inputs), list(outputs)
    return found


def multi_cast_to_fp8(
    tensors, dtype=None, *, current=False, recipe=None, margin=0, epsilon=0.0, power_of_two=False, skip=None, rowwise=True,
    transpose=False, stream=None, context=None,
):  # fmt: skip
    """Casts of a whole list, with the bits of cast_to_fp8, in one launch; with current scaling those of cast_to_fp8_current, in three.

    tensors: a TensorList made by cast_list; or arrays, for which Fp8Tensors are made here (dtype, rowwise, transpose as in cast_to_fp8).
    current=True (or a recipe): each scale follows from the tensor's own amax (margin, epsilon, power_of_two as in cast_to_fp8_current).
    skip: one 32-bit integer on the device; where it is not 0 nothing is written. Returns the list of Fp8Tensors.
    """
    current = bool(current or recipe is not None)
    if not isinstance(tensors, TensorList):
        if not len(tensors):
            return []
        space = first_space(tensors[0])
        made = []
        for x in tensors:
            _, rows, cols = space.high("tensors", space.given("tensors", x))
            q, _ = fp8_output(
                space, "out", x.shape, rows, cols, dtype, out=None, scale=None, amax=None, rowwise=rowwise, transpose=transpose,
                own_slots=current,
            )  # fmt: skip
            made.append(q)
        tensors = cast_list(tensors, made, stream=stream, context=context)
    space = tensors.space
    parameters = _parameters(recipe, margin, epsilon, power_of_two)
    arguments = _arguments(current, tensors.at, space.words("skip", skip, 1), *parameters, 0)
    check(lib.nvte_multi_cast_to_fp8(tensors.handle, arguments, space.stream(stream)))
    return list(tensors.arrays[1])
