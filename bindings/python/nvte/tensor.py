"""FP8 codes and what travels with them."""

from .dtypes import as_dtype


class Fp8Tensor:
    """A quantized matrix: codes row-wise, transposed or both, and the scale_inv by which they are read.

    data: codes [..., cols] or None. data_t: the transposed copy [cols, rows] or None. Arrays of an FP8 type, or of bytes (uint8) with
    `dtype` given. scale_inv: one float32 on the same device, written by casts, read by products and dequantize (None: 1).
    scale, amax: the slots a cast was given, or has written (None: none). `value = float32(code) * scale_inv`.
    """

    __slots__ = ("data", "data_t", "scale_inv", "scale", "amax", "dtype")

    def __init__(self, data=None, scale_inv=None, data_t=None, *, scale=None, amax=None, dtype=None):
        held = data if data is not None else data_t
        if held is None:
            raise ValueError("data and data_t are both None: at least one layout must be present")
        self.data, self.data_t, self.scale_inv, self.scale, self.amax = data, data_t, scale_inv, scale, amax
        self.dtype = as_dtype(held.dtype if dtype is None else dtype)
        if not self.dtype.is_fp8:
            raise TypeError(f"dtype = {self.dtype.name}: must be an FP8 type")

    @property
    def shape(self):
        """That of the values: of `data`, or [rows, cols] where only the transposed copy is there."""
        return tuple(self.data.shape) if self.data is not None else tuple(self.data_t.shape)[::-1]

    def __repr__(self):
        layouts = [name for name in ("data", "data_t") if getattr(self, name) is not None]
        return f"Fp8Tensor({self.dtype.name}, shape={self.shape}, {' and '.join(layouts)})"
