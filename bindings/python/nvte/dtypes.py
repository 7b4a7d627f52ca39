"""Element types, under the names that numpy, ml_dtypes, torch and people use."""

import sys


class DType:
    """An element type of the library. There is one object of each; compare with `is` or `==`."""

    __slots__ = ("name", "number", "itemsize", "numpy_name", "torch_name", "is_fp8", "max")

    def __init__(self, name, number, itemsize, numpy_name, torch_name, largest):
        self.name, self.number, self.itemsize, self.numpy_name, self.torch_name = name, number, itemsize, numpy_name, torch_name
        self.is_fp8 = itemsize == 1
        #: Largest finite value.
        self.max = largest

    def __repr__(self):
        return f"nvte.{self.name}"

    def __reduce__(self):
        return self.name


float32 = DType("float32", 0, 4, "float32", "float32", 3.4028234663852886e38)
float16 = DType("float16", 1, 2, "float16", "float16", 65504.0)
bfloat16 = DType("bfloat16", 2, 2, "bfloat16", "bfloat16", 3.3895313892515355e38)
float8_e4m3 = DType("float8_e4m3", 3, 1, "float8_e4m3fn", "float8_e4m3fn", 448.0)
float8_e5m2 = DType("float8_e5m2", 4, 1, "float8_e5m2", "float8_e5m2", 57344.0)

#: All types, in the order of their numbers.
ALL = (float32, float16, bfloat16, float8_e4m3, float8_e5m2)

_KNOWN = {t: t for t in ALL}
for _t in ALL:
    _KNOWN.update({_t.name: _t, _t.numpy_name: _t})
_KNOWN.update(f32=float32, f16=float16, bf16=bfloat16, e4m3=float8_e4m3, e5m2=float8_e5m2)


def not_one(what):
    """The error for what is none of them."""
    return TypeError(f"{what} is not an element type of nvte: {', '.join(t.name for t in ALL)}")


def as_dtype(value):
    """The DType of a name, of a numpy / ml_dtypes type or of a torch dtype."""
    try:
        return _KNOWN[value]
    except (KeyError, TypeError):
        pass
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    found = None
    if torch is not None and isinstance(value, torch.dtype):
        found = _KNOWN.get(str(value)[len("torch.") :])
    elif numpy is not None and not isinstance(value, str):
        try:
            found = _KNOWN.get(numpy.dtype(value).name)
        except TypeError:
            pass
    if found is None:
        raise not_one(repr(value))
    _KNOWN[value] = found
    return found
