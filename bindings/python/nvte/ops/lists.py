"""Lists of tensors for operations that take any number of them in one launch."""

import array
import ctypes

from .. import _abi
from .._arrays import pack_tensor
from .._library import check, lib
from ._common import in_memory, scratch

_LIST = ctypes.sizeof(_abi.nvte_list_t)


class TensorList:
    """Tensors of one call, ready for use: a table of their addresses in device memory, and its description.

    Made by adamw_list and grad_list. It serves as long as the addresses stay, and keeps the arrays alive; `set_gradients` exchanges
    the gradients. Calls with one list belong on one stream.
    """

    __slots__ = ("space", "handle", "count", "raw", "memory", "at", "arrays", "gradients", "kinds", "context")

    def __init__(self, space, handle, count, memory):
        """memory: (what keeps it, address, bytes) of the table."""
        self.space, self.handle, self.count = space, handle, count
        self.arrays = self.gradients = self.kinds = self.context = None
        self.memory, data, size = memory
        self.raw = _abi.nvte_list_t(struct_size=_LIST, data=data, bytes=size)
        self.at = ctypes.addressof(self.raw)

    def set_gradients(self, gradients, *, stream=None):
        """Other gradients of the same types and sizes, in order: arrays, or their addresses. Enqueued; nothing waits."""
        arrays = None
        if len(gradients) and not isinstance(gradients[0], int):
            arrays, space = list(gradients), self.space
            for g, (dtype, length) in zip(arrays, self.kinds or ()):
                count, dense = space.layout(space.given("gradients", g))
                if self.arrays is None:
                    # A list of gradients alone is one that grad_scale writes.
                    space.writable("gradients", g)
                if g.dtype != dtype or count != length or not dense:
                    raise ValueError(
                        f"gradients: must be {dtype} of {length} elements without gaps, as in the list, and one is {g.dtype} {tuple(g.shape)}"
                    )
            gradients = [space.extent(g)[0] for g in arrays]
        found = array.array("Q", gradients)
        at, count = found.buffer_info()
        check(lib.nvte_list_gradients(self.handle, self.at, at, count, self.space.stream(stream)))
        if arrays is not None:
            # Not before: until then the table points to the old ones.
            self.gradients = arrays

    def __len__(self):
        return self.count

    def __repr__(self):
        return f"TensorList({self.count} tensors on {self.space.device}, {self.raw.blocks} blocks)"


def stretch(space, name, x, kinds="float32, float16 or bfloat16", numbers=(0, 1, 2)):
    """An array without gaps as a C tensor, and its shape as a matrix."""
    space.given(name, x)
    number, address, rows, cols, ld = space.matrix(name, x)
    if number not in numbers:
        raise TypeError(f"{name}: must be {kinds}, and is {x.dtype}")
    return pack_tensor(number, 0, 0, address, rows, cols, ld, 0, 0, 0, 0, 0, 0, 0, 0), rows, cols


def kinds_of(space, gradients):
    """What gradients that take the place of these must be: (type, elements) of each."""
    return [(g.dtype, space.layout(g)[0]) for g in gradients]


def addressed(structs):
    """(what keeps it, array of the structs' addresses); None gives 0."""
    held, addresses = in_memory(*structs)
    return (held, array.array("Q", addresses)), addresses


def pointers(columns):
    """Columns of structs (each a list, or None) as arrays of pointers: (what keeps them, address of each array)."""
    kept, at = [], []
    for structs in columns:
        if structs is None:
            at.append(0)
            continue
        keep, _ = addressed(structs)
        kept.append(keep)
        at.append(keep[1].buffer_info()[0])
    return kept, at


def built(space, context, workspace, count, query, make, arguments):
    """A list: asks for the size of its table, makes room, has it written. `make(handle, list address)` returns a status."""
    handle = space.context(context)
    found = TensorList(space, handle, count, scratch(space, workspace, query, handle, *arguments))
    # A context lives as long as its lists.
    found.context = context
    check(make(handle, found.at))
    return found


def list_gradients(tensors, gradients, *, stream=None):
    """Puts other gradients, of the same types and sizes, in place of those of a TensorList. Enqueued; nothing waits."""
    tensors.set_gradients(gradients, stream=stream)
