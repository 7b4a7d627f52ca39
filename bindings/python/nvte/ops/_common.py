"""What the operations share: FP8 arguments and results, calls."""

from .._arrays import BYTES, pack_tensor, scale_of, space_of
from ..dtypes import as_dtype, float32, float8_e4m3
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
    number = q.dtype.number
    address = ld = address_t = ld_t = 0
    rows = cols = None
    for field, array in (("data", q.data), ("data_t", q.data_t)):
        if array is None:
            continue
        full = f"{name}.{field}"
        space.require(full, array)
        held, at, r, c, stride = space.matrix(full, array)
        if held not in (number, BYTES):
            raise TypeError(f"{full} holds {array.dtype}, and {name} is {q.dtype.name}")
        if write:
            space.writable(full, array)
        if field == "data":
            address, rows, cols, ld = at, r, c, stride
        else:
            if rows is not None and (rows, cols) != (c, r):
                raise ValueError(f"{full} is [{r}, {c}], and {name}.data [{rows}, {cols}]: it must be its transpose")
            address_t, rows, cols, ld_t = at, c, r, stride
    slots = (scale, q.scale_inv, amax)
    for field, array in zip(("scale", "scale_inv", "amax"), slots):
        if array is not None:
            space.require(f"{name}.{field}", array)
    scale, scale_inv, amax = (space.slot(f"{name}.{f}", a) for f, a in zip(("scale", "scale_inv", "amax"), slots))
    return pack_tensor(number, 1, 0, address, rows, cols, ld, address_t, ld_t, scale, scale_inv, 0, 0, 0, amax), rows, cols


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
        if out.amax is None:
            out.amax = space.empty((1,), float32)
    return out, pack_fp8(space, name, out, True, out.scale, out.amax)[0]
