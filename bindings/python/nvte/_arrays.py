"""numpy arrays and torch tensors as the library sees them: addresses, sizes, strides, types.

A `Space` is one framework on one device. All arrays of a call must be of one space.
"""

import numbers
import sys

from . import _abi
from ._library import packer
from .context import shared
from .dtypes import ALL, bfloat16

pack_tensor = packer(
    _abi.nvte_tensor_t,
    "dtype scaling flags data rows cols ld data_t ld_t scale scale_inv scale_inv_ld scale_inv_t scale_inv_t_ld amax",
)

#: Stands for "any FP8 type" where an array of bytes does not say which.
BYTES = -1


def matrix_of(name, shape, strides):
    """(rows, cols, ld) of an array: the last dimension is the row, the others are flattened without a copy. Strides in elements."""
    n = len(shape)
    if n == 2:
        rows, cols = shape
        ld = strides[0]
    elif n > 2:
        cols, rows, ld = shape[-1], 1, None
        for size in shape[:-1]:
            rows *= size
        if rows * cols == 0:
            return rows, cols, cols
        step = 0
        for size, stride in zip(reversed(shape[:-1]), reversed(strides[:-1])):
            if size == 1:
                continue
            if ld is None:
                ld = stride
            elif stride != step:
                raise ValueError(f"{name}: shape {tuple(shape)} with strides {tuple(strides)} cannot be seen as a matrix: make it contiguous")
            step = stride * size
        ld = cols if ld is None else ld
    elif n == 1:
        rows, cols = 1, shape[0]
        ld = cols
    else:
        return 1, 1, 1
    if rows * cols == 0:
        return rows, cols, cols
    if cols > 1 and strides[-1] != 1:
        raise ValueError(f"{name}: the elements of a row must lie side by side, and their stride is {strides[-1]}: make it contiguous")
    if rows == 1:
        ld = cols
    elif ld < cols:
        raise ValueError(f"{name}: the row stride {ld} is smaller than the row, {cols} elements")
    return rows, cols, ld


class Space:
    """What the two frameworks share."""

    __slots__ = ("index", "device")

    def context(self, given):
        """The handle of the context to use."""
        if given is None:
            return shared(self.index).handle
        if given.device != self.device:
            raise ValueError(f"context is on {given.device}, and the arrays on {self.device}")
        return given.handle

    def matrix(self, name, x):
        """(type number, address, rows, cols, ld)."""
        raise NotImplementedError

    def vector(self, name, x, length=None):
        """(type number, address) of a vector without gaps."""
        number, address, rows, cols, ld = self.matrix(name, x)
        if rows > 1 and ld != cols:
            raise ValueError(f"{name}: must be contiguous")
        if length is not None and rows * cols != length:
            raise ValueError(f"{name}: has {rows * cols} elements, and {length} are needed")
        return number, address

    def high(self, name, x):
        """A row-wise f32, f16 or bf16 matrix as a C tensor, and its rows and columns."""
        number, address, rows, cols, ld = self.matrix(name, x)
        if number > 2 or number < 0:
            raise TypeError(f"{name}: must be float32, float16 or bfloat16, and is {x.dtype}")
        return pack_tensor(number, 0, 0, address, rows, cols, ld, 0, 0, 0, 0, 0, 0, 0, 0), rows, cols

    def slot(self, name, x):
        """Address of one float32; 0 for None."""
        if x is None:
            return 0
        number, address = self.vector(name, x, 1)
        if number != 0:
            raise TypeError(f"{name}: must be float32, and is {x.dtype}")
        return address

    def require(self, name, x):
        """`x` is of this space."""
        if x is not None and space_of(x) is not self:
            raise ValueError(f"{name} is {space_of(x)}, and the first array {self}")
        return x

    def __repr__(self):
        return f"{self.framework} on {self.device}"


class NumpySpace(Space):
    """numpy arrays, on the CPU."""

    __slots__ = ("np", "numbers", "types")
    framework = "numpy"

    def __init__(self):
        import numpy as np

        self.np, self.index, self.device = np, -1, "cpu"
        self.numbers = {np.dtype(np.float32): 0, np.dtype(np.float16): 1, np.dtype(np.uint8): BYTES, np.dtype(np.int8): BYTES}
        self.types = [np.dtype(np.float32), np.dtype(np.float16), None, None, None]

    def _learn(self):
        """Takes in the types of ml_dtypes; False where it is not installed."""
        try:
            import ml_dtypes
        except ImportError:
            return False
        for t in ALL[2:]:
            self.types[t.number] = self.np.dtype(getattr(ml_dtypes, t.numpy_name))
            self.numbers[self.types[t.number]] = t.number
        return True

    def type(self, dtype):
        """numpy's type for a DType. FP8 codes are bytes where ml_dtypes is not installed."""
        found = self.types[dtype.number]
        if found is None:
            if self._learn():
                return self.types[dtype.number]
            if dtype is bfloat16:
                raise ImportError("numpy has no bfloat16 of its own: install ml_dtypes")
            return self.np.dtype(self.np.uint8)
        return found

    def number(self, name, dtype):
        """The library's number for an array's type."""
        found = self.numbers.get(dtype)
        if found is None and "ml_dtypes" in sys.modules and self.types[2] is None:
            self._learn()
            found = self.numbers.get(dtype)
        if found is None:
            raise TypeError(f"{name}: {dtype} is not an element type of nvte")
        return found

    def matrix(self, name, x):
        dtype = x.dtype
        size, strides = dtype.itemsize, x.strides
        number = self.number(name, dtype)
        for s in strides:
            if s % size:
                raise ValueError(f"{name}: strides {strides} in bytes are no multiples of the element, {size}")
        rows, cols, ld = matrix_of(name, x.shape, [s // size for s in strides])
        return number, x.__array_interface__["data"][0], rows, cols, ld

    def writable(self, name, x):
        """`x`, which the call will write."""
        if not x.flags.writeable:
            raise ValueError(f"{name} is read-only")
        return x

    def empty(self, shape, dtype):
        return self.np.empty(shape, self.type(dtype))

    def zeros(self, shape, dtype):
        return self.np.zeros(shape, self.type(dtype))

    def full(self, value):
        return self.np.full(1, value, self.np.float32)

    def workspace(self, size):
        """Scratch memory aligned to 16 bytes: (object that keeps it, address)."""
        held = self.np.empty(size + 15, self.np.uint8)
        address = held.__array_interface__["data"][0]
        return held, (address + 15) & ~15

    def stream(self, given):
        return stream_handle(given)


class TorchSpace(Space):
    """torch tensors on one device."""

    __slots__ = ("torch", "numbers", "types", "where", "current_stream")
    framework = "torch"

    def __init__(self, index):
        import torch

        self.torch, self.index = torch, index
        self.device = "cpu" if index < 0 else f"cuda:{index}"
        self.where = torch.device(self.device)
        self.types = [getattr(torch, t.torch_name) for t in ALL]
        self.numbers = {t: n for n, t in enumerate(self.types)}
        self.numbers.update({torch.uint8: BYTES, torch.int8: BYTES})
        # The public way costs 7 µs, this one 0.2.
        self.current_stream = torch._C._cuda_getCurrentRawStream if index >= 0 else None

    def type(self, dtype):
        return self.types[dtype.number]

    def matrix(self, name, x):
        number = self.numbers.get(x.dtype)
        if number is None:
            raise TypeError(f"{name}: {x.dtype} is not an element type of nvte")
        rows, cols, ld = matrix_of(name, x.shape, x.stride())
        return number, x.data_ptr(), rows, cols, ld

    def writable(self, name, x):
        return x

    def empty(self, shape, dtype):
        return self.torch.empty(shape, dtype=self.types[dtype.number], device=self.where)

    def zeros(self, shape, dtype):
        return self.torch.zeros(shape, dtype=self.types[dtype.number], device=self.where)

    def full(self, value):
        return self.torch.full((1,), value, dtype=self.torch.float32, device=self.where)

    def workspace(self, size):
        """Scratch memory aligned to 16 bytes: (object that keeps it, address). Freed in stream order by torch."""
        held = self.torch.empty(size + (15 if self.index < 0 else 0), dtype=self.torch.uint8, device=self.where)
        return held, (held.data_ptr() + 15) & ~15

    def stream(self, given):
        if given is None:
            return 0 if self.current_stream is None else self.current_stream(self.index)
        return stream_handle(given)


def stream_handle(given):
    """A raw stream: of a number, or of an object with `cuda_stream` (torch.cuda.Stream)."""
    return 0 if given is None else int(getattr(given, "cuda_stream", given))


_spaces = {}
_kinds = {}


def space_of(x):
    """The space of an array."""
    kind = _kinds.get(type(x)) or _classify(x)
    return kind(x)


def _numpy(_):
    found = _spaces.get("numpy")
    if found is None:
        found = _spaces["numpy"] = NumpySpace()
    return found


def _torch(x):
    index = x.get_device()
    found = _spaces.get(index)
    if found is None:
        if x.device.type not in ("cpu", "cuda"):
            raise ValueError(f"tensors on {x.device.type} are not supported: cpu or cuda")
        found = _spaces[index] = TorchSpace(index)
    return found


def _classify(x):
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        kind = _torch
    elif numpy is not None and isinstance(x, numpy.ndarray):
        kind = _numpy
    else:
        raise TypeError(f"{type(x).__module__}.{type(x).__qualname__}: must be a numpy array or a torch tensor")
    _kinds[type(x)] = kind
    return kind


def scale_of(space, scale):
    """A scale slot: the array given, or a new one that holds the number given."""
    return space.full(float(scale)) if isinstance(scale, numbers.Real) else scale
