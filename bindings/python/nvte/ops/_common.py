"""What the operations share: FP8 arguments and results, structs in memory, workspaces."""

import ctypes
import operator

from .._arrays import BYTES, pack_tensor, scale_of, space_of
from .._library import check
from ..context import Context, shared_context
from ..dtypes import ALL, as_dtype, float32, float8_e4m3
from ..tensor import Fp8Tensor


def first_space(x):
    """The space of a call's first argument, an array or an Fp8Tensor."""
    if isinstance(x, Fp8Tensor):
        x = x.data if x.data is not None else x.data_t
    return space_of(x)


def as_fp8(name, x):
    """An FP8 argument: an Fp8Tensor as it is, an array of FP8 codes as one with scale_inv 1."""
    if isinstance(x, Fp8Tensor):
        return x
    if x is None:
        raise TypeError(f"{name} is None")
    try:
        return Fp8Tensor(x)
    except TypeError:
        raise TypeError(f"{name}: must be an Fp8Tensor or an array of an FP8 type, and is {getattr(x, 'dtype', type(x))}") from None


def pack_fp8(space, name, q, write=False, scale=None, amax=None):
    """(C tensor, rows, cols) of an Fp8Tensor with these slots."""
    number, data, data_t = q.dtype.number, q.data, q.data_t
    address = ld = address_t = ld_t = 0
    if data is not None:
        address, rows, cols, ld = _codes(space, name, "data", data, number, write)
    if data_t is not None:
        address_t, r, c, ld_t = _codes(space, name, "data_t", data_t, number, write)
        if data is not None and (rows != c or cols != r):
            raise ValueError(f"{name}.data_t is [{r}, {c}], and {name}.data [{rows}, {cols}]: it must be its transpose")
        rows, cols = c, r
    slot = space.written if write else space.slot
    scale, scale_inv, amax = space.slot("scale", scale), slot("scale_inv", q.scale_inv), slot("amax", amax)
    return pack_tensor(number, 1, 0, address, rows, cols, ld, address_t, ld_t, scale, scale_inv, 0, 0, 0, amax), rows, cols


def _codes(space, name, field, array, number, write):
    space.require(name, array)
    held, address, rows, cols, ld = space.matrix(name, array)
    if held != number and held != BYTES:
        raise TypeError(f"{name}.{field} holds {array.dtype}, and {name} is {ALL[number].name}")
    if write:
        space.writable(name, array)
    return address, rows, cols, ld


def fp8_output(space, name, shape, rows, cols, dtype, *, out, scale, amax, rowwise, transpose, own_slots=False):
    """An FP8 result: `out`, or a new one. Returns (Fp8Tensor, C tensor).

    own_slots: scale and amax are results too, and are made where they are not given.
    """
    if out is None:
        dtype = float8_e4m3 if dtype is None else as_dtype(dtype)
        if not dtype.is_fp8:
            raise TypeError(f"dtype = {dtype.name}: must be an FP8 type")
        if not rowwise and not transpose:
            raise ValueError("rowwise and transpose are both False: at least one layout must be asked for")
        out = Fp8Tensor(
            space.empty(shape, dtype) if rowwise else None,
            data_t=space.empty((cols, rows), dtype) if transpose else None,
            dtype=dtype,
        )
    else:
        out = as_fp8("out", out)
        if dtype is not None and as_dtype(dtype) is not out.dtype:
            raise TypeError(f"dtype = {as_dtype(dtype).name}, and out is {out.dtype.name}")
    if out.scale_inv is None:
        # Codes without it would have no meaning.
        out.scale_inv = space.empty((1,), float32)
    if scale is not None:
        out.scale = scale_of(space, scale)
    if amax is not None:
        out.amax = amax
    if own_slots:
        if out.scale is None:
            out.scale = space.empty((1,), float32)
        space.writable("scale", out.scale)
        if out.amax is None:
            out.amax = space.empty((1,), float32)
    return out, pack_fp8(space, name, out, True, out.scale, out.amax)[0]


def is_fp8(dtype, out):
    """Whether the result asked for is FP8."""
    if out is None:
        return dtype is not None and as_dtype(dtype).is_fp8
    return isinstance(out, Fp8Tensor) or as_dtype(out.dtype).is_fp8


def any_output(space, shape, rows, cols, like, dtype, *, out, scale, amax, rowwise, transpose):
    """A result of high precision or FP8: `out`, or a new one; `like`: the array whose type it has if nothing else is said."""
    if dtype is None and out is not None and scale is None and rowwise and not transpose and not isinstance(out, Fp8Tensor):
        # What a training step passes, shortest.
        number, address, r, c, ld = space.matrix("out", space.require("out", out))
        if 0 <= number <= 2:
            space.writable("out", out)
            return out, pack_tensor(number, 0, 0, address, r, c, ld, 0, 0, 0, 0, 0, 0, 0, space.written("amax", amax))
    if is_fp8(dtype, out):
        return fp8_output(
            space, "out", shape, rows, cols, dtype, out=out, scale=scale, amax=amax, rowwise=rowwise, transpose=transpose
        )
    if transpose or not rowwise:
        raise ValueError("rowwise and transpose are for FP8 results: others are row-wise")
    if out is None:
        out = space.empty(shape, as_dtype(like.dtype if dtype is None else dtype))
    else:
        if dtype is not None and as_dtype(dtype) is not as_dtype(out.dtype):
            raise TypeError(f"dtype = {as_dtype(dtype).name}, and out is {out.dtype}")
        space.writable("out", space.require("out", out))
    number, address, rows, cols, ld = space.matrix("out", out)
    # The library says what a result of high precision may not have.
    scale, amax = space.slot("scale", scale_of(space, scale)), space.written("amax", amax)
    return out, pack_tensor(number, 0, 0, address, rows, cols, ld, 0, 0, scale, 0, 0, 0, 0, amax)


_blocks = {}


def in_memory(*structs):
    """Structs one after the other: (object that keeps them, address of each). None gives address 0."""
    joined = b"".join([s for s in structs if s is not None])
    size = len(joined)
    kind = _blocks.get(size)
    if kind is None:
        kind = _blocks[size] = ctypes.c_char * size
    held = kind.from_buffer_copy(joined)
    at, addresses = ctypes.addressof(held), []
    for s in structs:
        if s is None:
            addresses.append(0)
        else:
            addresses.append(at)
            at += len(s)
    return held, addresses


def handle_of(device):
    """The handle of a Context, or of a device's shared one."""
    return device.handle if isinstance(device, Context) else shared_context(device).handle


def whole(name, value):
    """An integer of 64 bits: ctypes drops what does not fit."""
    try:
        n = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} = {value!r}: must be an integer") from None
    if not -(1 << 63) <= n < 1 << 63:
        raise ValueError(f"{name} = {n}: must fit 64 bits")
    return n


def asked(query, *arguments):
    """Bytes that a query of the library says."""
    size = ctypes.c_uint64()
    check(query(*arguments, ctypes.addressof(size)))
    return size.value


def scratch(space, given, query, *arguments):
    """Workspace: the one given, or as much as the query says: (object that keeps it, address, bytes)."""
    if given is not None:
        if not space.layout(space.writable("workspace", space.require("workspace", given)))[1]:
            raise ValueError(f"workspace: must be without gaps, and has the shape {tuple(given.shape)}: make it contiguous")
        address, size = space.extent(given)
        return given, address, size
    size = asked(query, *arguments)
    if size == 0:
        return None, 0, 0
    held, address = space.workspace(size)
    return held, address, size
