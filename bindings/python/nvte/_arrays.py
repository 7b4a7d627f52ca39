"""numpy arrays and torch tensors as the library sees them: addresses, sizes, strides, types.

A `Space` is one framework on one device. All arrays of a call must be of one space.
"""

import numbers
import sys

from . import _abi
from ._library import packer
from .context import shared
from .dtypes import ALL, as_dtype, bfloat16, not_one

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


def gapless(shape):
    """Strides of an array without gaps: those of one without elements say nothing."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


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

    def parameter(self, name, x):
        """A vector [n] as a C tensor [1, n]; None stays None."""
        if x is None:
            return None
        self.require(name, x)
        number, address, rows, cols, ld = self.matrix(name, x)
        if number > 2 or number < 0:
            raise TypeError(f"{name}: must be float32, float16 or bfloat16, and is {x.dtype}")
        if rows != 1:
            raise ValueError(f"{name}: must be a vector, and has the shape {tuple(x.shape)}")
        return pack_tensor(number, 0, 0, address, 1, cols, cols, 0, 0, 0, 0, 0, 0, 0, 0)

    def known(self, x):
        """The DType of an array."""
        return as_dtype(x.dtype)

    def sums(self, dbias, cols, like, accumulate):
        """A bias gradient: (array or None, type number, address). True: a new one of the type of `like`."""
        if dbias is None or dbias is False:
            return None, 0, 0
        if dbias is True:
            if accumulate:
                raise ValueError("accumulate: needs an array to add to")
            dbias = self.empty((cols,), self.known(like))
        else:
            self.writable("dbias", self.require("dbias", dbias))
        number, address = self.vector("dbias", dbias, cols)
        if number > 2 or number < 0:
            raise TypeError(f"dbias: must be float32, float16 or bfloat16, and is {dbias.dtype}")
        return dbias, number, address

    def floats(self, name, x, length):
        """Address of a float32 vector; 0 for None."""
        if x is None:
            return 0
        self.require(name, x)
        number, address = self.vector(name, x, length)
        if number != 0:
            raise TypeError(f"{name}: must be float32, and is {x.dtype}")
        return address

    def words(self, name, x, length):
        """Address of a vector of 32-bit integers without gaps, which the call will write; 0 for None."""
        if x is None:
            return 0
        self.writable(name, self.require(name, x))
        if x.dtype not in self.integers:
            raise TypeError(f"{name}: must be of 32-bit integers, and is {x.dtype}")
        count, dense = self.layout(x)
        if count != length or not dense:
            raise ValueError(f"{name}: must be {length} integers without gaps, and has the shape {tuple(x.shape)}")
        return self.extent(x)[0]

    def words_read(self, name, x, length):
        """Address of a vector of 32-bit integers without gaps, which the call reads; 0 for None."""
        if x is None:
            return 0
        if self.require(name, x).dtype not in self.integers:
            raise TypeError(f"{name}: must be of 32-bit integers, and is {x.dtype}")
        count, dense = self.layout(x)
        if count != length or not dense:
            raise ValueError(f"{name}: must be {length} integers without gaps, and has the shape {tuple(x.shape)}")
        return self.extent(x)[0]

    def longs(self, name, x, length):
        """Address of a vector of 64-bit integers without gaps, which the call reads; 0 for None."""
        if x is None:
            return 0
        if str(self.require(name, x).dtype).rsplit(".", 1)[-1] not in ("int64", "uint64"):
            raise TypeError(f"{name}: must be of 64-bit integers, and is {x.dtype}")
        count, dense = self.layout(x)
        if count != length or not dense:
            raise ValueError(f"{name}: must be {length} integers without gaps, and has the shape {tuple(x.shape)}")
        return self.extent(x)[0]

    def slot(self, name, x):
        """Address of one float32; 0 for None."""
        return self.floats(name, x, 1)

    def written(self, name, x, length=1):
        """Address of a float32 vector that the call will write; 0 for None."""
        return self.floats(name, self.writable(name, x), length)

    def require(self, name, x):
        """`x` is of this space."""
        if x is None:
            return x
        try:
            found = space_of(x)
        except (TypeError, ValueError) as e:
            raise type(e)(f"{name}: {e}") from None
        if found is not self:
            raise ValueError(f"{name} is {found}, and the first array {self}")
        return x

    def given(self, name, x):
        """`x`, without which there is no call, is of this space."""
        if x is None:
            raise TypeError(f"{name} is None")
        return self.require(name, x)

    def __repr__(self):
        return f"{self.framework} on {self.device}"


class NumpySpace(Space):
    """numpy arrays, on the CPU."""

    __slots__ = ("np", "numbers", "types", "integers", "long")
    framework = "numpy"

    def __init__(self):
        import numpy as np

        self.np, self.index, self.device = np, -1, "cpu"
        self.numbers = {np.dtype(np.float32): 0, np.dtype(np.float16): 1, np.dtype(np.uint8): BYTES, np.dtype(np.int8): BYTES}
        self.integers, self.long = (np.dtype(np.uint32), np.dtype(np.int32)), np.dtype(np.int64)
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
            raise not_one(f"{name}: {dtype}")
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
        if x is not None and not self.require(name, x).flags.writeable:
            raise ValueError(f"{name} is read-only")
        return x

    def empty(self, shape, dtype):
        return self.np.empty(shape, self.type(dtype))

    def zeros(self, shape, dtype):
        return self.np.zeros(shape, self.type(dtype))

    def bytes(self, shape):
        return self.np.empty(shape, self.np.uint8)

    def full(self, value):
        return self.np.full(1, value, self.np.float32)

    def workspace(self, size):
        """Scratch memory aligned to 16 bytes: (object that keeps it, address)."""
        held = self.np.empty(size + 15, self.np.uint8)
        address = held.__array_interface__["data"][0]
        return held, (address + 15) & ~15

    def empty_as(self, x, shape):
        """A new array of the type of `x`."""
        return self.np.empty(shape, x.dtype)

    def layout(self, x):
        """(elements, whether they lie without gaps)."""
        return x.size, x.flags.c_contiguous

    def grid(self, name, x):
        """(address, shape, strides in elements) of a float32 matrix with any strides."""
        self.require(name, x)
        if x.ndim != 2 or x.dtype != self.types[0]:
            raise TypeError(f"{name}: must be float32 [slots, steps], and is {x.dtype} {x.shape}")
        return x.__array_interface__["data"][0], x.shape, [s // 4 for s in x.strides]

    def strided(self, name, x):
        """(type number, address, shape, strides in elements)."""
        size, number = x.dtype.itemsize, self.number(name, x.dtype)
        if any(s % size for s in x.strides):
            raise ValueError(f"{name}: strides {x.strides} in bytes are no multiples of the element, {size}")
        return number, x.__array_interface__["data"][0], x.shape, tuple(s // size for s in x.strides) if x.size else gapless(x.shape)

    def indices(self, name, x):
        """(address, whether they are of 64 bits, shape, strides in elements) of integers."""
        if self.require(name, x).dtype != self.long and x.dtype not in self.integers:
            raise TypeError(f"{name}: must be of 32- or 64-bit integers, and is {x.dtype}")
        return x.__array_interface__["data"][0], x.dtype == self.long, x.shape, tuple(s // x.dtype.itemsize for s in x.strides)

    def extent(self, x):
        """(address, bytes) of an array without gaps."""
        return x.__array_interface__["data"][0], x.nbytes

    def bytes_of(self, name, x):
        """(shape, strides in bytes, address, bytes of an element) of an array of any type."""
        size = x.dtype.itemsize
        return x.shape, x.strides if x.size else [s * size for s in gapless(x.shape)], x.__array_interface__["data"][0], size

    def stream(self, given):
        return stream_handle(given)


class TorchSpace(Space):
    """torch tensors on one device."""

    __slots__ = ("torch", "numbers", "types", "integers", "where", "current_stream", "float32")
    framework = "torch"

    def __init__(self, index):
        import torch

        self.torch, self.index, self.float32 = torch, index, torch.float32
        self.device = "cpu" if index < 0 else f"cuda:{index}"
        self.where = torch.device(self.device)
        self.types = [getattr(torch, t.torch_name) for t in ALL]
        self.numbers = {t: n for n, t in enumerate(self.types)}
        self.integers = (torch.int32, torch.uint32)
        self.numbers.update({torch.uint8: BYTES, torch.int8: BYTES})
        # The public way costs 7 µs, this one 0.2.
        self.current_stream = torch._C._cuda_getCurrentRawStream if index >= 0 else None

    def type(self, dtype):
        return self.types[dtype.number]

    def matrix(self, name, x):
        number, shape, strides = self.numbers.get(x.dtype), x.shape, x.stride()
        if number is None:
            raise not_one(f"{name}: {x.dtype}")
        # The frequent kinds first: host time counts.
        if len(shape) == 2:
            rows, cols = shape
            ld, step = strides
            if rows > 1 and step == 1 and ld >= cols > 0:
                return number, x.data_ptr(), rows, cols, ld
        elif len(shape) > 2 and x.is_contiguous():
            cols = shape[-1]
            if cols:
                return number, x.data_ptr() or 256, x.numel() // cols, cols, cols
        rows, cols, ld = matrix_of(name, shape, strides)
        # A tensor without elements has no address, and is there all the same.
        return number, x.data_ptr() or 256, rows, cols, ld

    def floats(self, name, x, length):
        if x is None:
            return 0
        if (
            type(x) in _torch_types
            and x.dtype is self.float32
            and x.numel() == length
            and (x.is_cpu if self.index < 0 else x.get_device() == self.index)
            and (length == 1 or x.is_contiguous())
        ):
            return x.data_ptr()
        return super().floats(name, x, length)

    def parameter(self, name, x):
        here = type(x) in _torch_types and (x.is_cpu if self.index < 0 else x.get_device() == self.index)
        if here and x.dim() == 1 and x.is_contiguous():
            number, length = self.numbers.get(x.dtype, BYTES), x.shape[0]
            if 0 <= number <= 2:
                return pack_tensor(number, 0, 0, x.data_ptr(), 1, length, length, 0, 0, 0, 0, 0, 0, 0, 0)
        return super().parameter(name, x)

    def require(self, name, x):
        # get_device is -1 for the CPU, and for kinds of devices that are not supported.
        if x is None or type(x) in _torch_types and (x.is_cpu if self.index < 0 else x.get_device() == self.index):
            return x
        return super().require(name, x)

    def writable(self, name, x):
        return x

    def empty(self, shape, dtype):
        return self.torch.empty(shape, dtype=self.types[dtype.number], device=self.where)

    def zeros(self, shape, dtype):
        return self.torch.zeros(shape, dtype=self.types[dtype.number], device=self.where)

    def bytes(self, shape):
        return self.torch.empty(shape, dtype=self.torch.uint8, device=self.where)

    def full(self, value):
        return self.torch.full((1,), value, dtype=self.torch.float32, device=self.where)

    def workspace(self, size):
        """Scratch memory aligned to 16 bytes: (object that keeps it, address). Freed in stream order by torch."""
        held = self.torch.empty(size + (15 if self.index < 0 else 0), dtype=self.torch.uint8, device=self.where)
        return held, (held.data_ptr() + 15) & ~15

    def empty_as(self, x, shape):
        """A new tensor of the type of `x`."""
        return self.torch.empty(shape, dtype=x.dtype, device=self.where)

    def layout(self, x):
        """(elements, whether they lie without gaps)."""
        return x.numel(), x.is_contiguous()

    def grid(self, name, x):
        """(address, shape, strides in elements) of a float32 matrix with any strides."""
        self.require(name, x)
        if x.dim() != 2 or x.dtype != self.torch.float32:
            raise TypeError(f"{name}: must be float32 [slots, steps], and is {x.dtype} {tuple(x.shape)}")
        return x.data_ptr(), x.shape, x.stride()

    def strided(self, name, x):
        """(type number, address, shape, strides in elements)."""
        number = self.numbers.get(x.dtype)
        if number is None:
            raise not_one(f"{name}: {x.dtype}")
        return number, x.data_ptr() or 256, x.shape, x.stride() if x.numel() else gapless(x.shape)

    def indices(self, name, x):
        """(address, whether they are of 64 bits, shape, strides in elements) of integers."""
        if self.require(name, x).dtype is not self.torch.int64 and x.dtype not in self.integers:
            raise TypeError(f"{name}: must be of 32- or 64-bit integers, and is {x.dtype}")
        return x.data_ptr() or 256, x.dtype is self.torch.int64, x.shape, x.stride()

    def extent(self, x):
        """(address, bytes) of a tensor without gaps."""
        return x.data_ptr(), x.numel() * x.element_size()

    def bytes_of(self, name, x):
        """(shape, strides in bytes, address, bytes of an element) of a tensor of any type."""
        size = x.element_size()
        return x.shape, [s * size for s in (x.stride() if x.numel() else gapless(x.shape))], x.data_ptr() or 256, size

    def stream(self, given):
        if given is None:
            return 0 if self.current_stream is None else self.current_stream(self.index)
        return stream_handle(given)


def stream_handle(given):
    """A raw stream: of a number, or of an object with `cuda_stream` (torch.cuda.Stream)."""
    return 0 if given is None else int(getattr(given, "cuda_stream", given))


_spaces = {}
_kinds = {}
_torch_types = set()


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
    if found is None or index < 0 and not x.is_cpu:
        if x.device.type not in ("cpu", "cuda"):
            raise ValueError(f"tensors on {x.device.type} are not supported: cpu or cuda")
        found = _spaces[index] = TorchSpace(index)
    return found


def _classify(x):
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        kind = _torch
        _torch_types.add(type(x))
    elif numpy is not None and isinstance(x, numpy.ndarray):
        kind = _numpy
    else:
        raise TypeError(f"{type(x).__module__}.{type(x).__qualname__}: must be a numpy array or a torch tensor")
    _kinds[type(x)] = kind
    return kind


def scale_of(space, scale):
    """A scale slot: the array given, or a new one that holds the number given."""
    if scale is None or type(scale) in _kinds:
        return scale
    return space.full(float(scale)) if isinstance(scale, numbers.Real) else scale
