"""The errors of the C library as exceptions."""


class Error(Exception):
    """An error of the library.

    status: the NVTE_ERROR_* number. name: its name. code: what the library below (CUDA driver, NVRTC, cuBLASLt) returned, 0 where
    none was involved.
    """

    def __init__(self, message, status=0, name="", code=0):
        super().__init__(message)
        self.status, self.name, self.code = status, name, code

    def __reduce__(self):
        return type(self), (self.args[0], self.status, self.name, self.code)


class ArgumentError(Error, ValueError):
    """An argument breaks a rule; the message names the argument, its value and the rule."""


class UnsupportedError(Error, NotImplementedError):
    """The combination of options has no path here."""


class CudaError(Error, RuntimeError):
    """The driver, NVRTC or cuBLASLt is missing or failed, or the call cannot be captured."""


class OutOfMemoryError(Error, MemoryError):
    """Memory could not be allocated."""


class InternalError(Error, RuntimeError):
    """A defect of the library."""


class LibraryNotFound(Error, ImportError):
    """libnvte.so was not found, does not load, or is not one that this package can use."""


def kind_of(status):
    """The class for a status: families have ranges of their own."""
    if status == 901:
        return OutOfMemoryError
    if 100 <= status < 200:
        return ArgumentError
    if status == 200:
        return UnsupportedError
    if 201 <= status < 900:
        return CudaError
    return InternalError
