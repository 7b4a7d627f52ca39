"""One function per C operation, on numpy arrays (CPU) and torch tensors (CPU or CUDA).

All arrays of a call are of one framework and on one device. Inputs may have any row stride; more than two dimensions are flattened
without a copy, the last one is the row. Outputs are made where they are not given. torch: work is enqueued on the current stream of the
device (`stream=` takes another one, or nvte.PREPARE: check, compile, load, enqueue nothing); autograd sees none of it.
`context=` takes an nvte.Context in place of the device's shared one. Errors are subclasses of nvte.Error, or TypeError and ValueError
where an array itself does not fit.
"""

from .cast import cast_to_fp8

__all__ = ["cast_to_fp8"]
