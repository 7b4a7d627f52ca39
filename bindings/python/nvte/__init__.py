"""nvte: FP8 training of Transformers, on numpy arrays and torch tensors.

    import nvte
    q = nvte.ops.cast_to_fp8(x, "e4m3", scale=scale, amax=amax, transpose=True)   # an nvte.Fp8Tensor
    y = nvte.ops.dequantize(q)

`nvte.ops` has one function per C operation; it works on numpy arrays (CPU; FP8 and bfloat16 types of ml_dtypes) and on torch tensors
(CPU or CUDA, on the current stream). `nvte.recipe` holds the scaling recipes, `python -m nvte.info` prints what a bug report needs.
Importing needs nothing but Python and touches no driver: the library is loaded at the first use.
"""

from . import ops, recipe
from ._errors import (
    ArgumentError,
    CudaError,
    Error,
    InternalError,
    LibraryNotFound,
    OutOfMemoryError,
    UnsupportedError,
)
from ._log import set_log
from ._version import __version__
from .context import PREPARE, Capability, Context, shared_context
from .dtypes import DType, as_dtype, bfloat16, float8_e4m3, float8_e5m2, float16, float32
from .tensor import Fp8Tensor
from .worthwhile import fp8_worthwhile

__all__ = [
    "ArgumentError",
    "Capability",
    "Context",
    "CudaError",
    "DType",
    "Error",
    "Fp8Tensor",
    "InternalError",
    "LibraryNotFound",
    "OutOfMemoryError",
    "PREPARE",
    "UnsupportedError",
    "__version__",
    "as_dtype",
    "bfloat16",
    "float16",
    "float32",
    "float8_e4m3",
    "float8_e5m2",
    "fp8_worthwhile",
    "info",
    "library_version",
    "ops",
    "recipe",
    "set_log",
    "shared_context",
]


def library_version():
    """Version of the loaded library."""
    from ._library import lib

    return lib.nvte_version().decode()


def __getattr__(name):
    # Loaded on demand: `python -m nvte.info` runs it as a program, and nothing else needs it.
    if name == "info":
        from importlib import import_module

        return import_module(".info", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
