"""Finds libnvte.so and binds the functions of its table, at the first use of any of them.

Everything goes through `nvte_api`: NVIDIA's library exports some of the same names and is loaded so that they win, but not this one.
"""

import ctypes
import os
import struct

from . import _abi
from ._errors import Error, LibraryNotFound, kind_of

#: What was tried to find the library: (path, outcome).
tried = []


def _candidates():
    given = os.environ.get("NVTE_LIBRARY")
    if given:
        # Named by the user: nothing else will do.
        return [given]
    return [os.path.join(os.path.dirname(os.path.abspath(__file__)), "libnvte.so"), "libnvte.so"]


def _open():
    for path in _candidates():
        if os.sep in path and not os.path.exists(path):
            tried.append((path, "not there"))
            continue
        try:
            handle = ctypes.CDLL(path)
        except OSError as e:
            tried.append((path, str(e)))
            continue
        tried.append((path, "opened"))
        return path, handle
    lines = "".join(f"\n  {path}: {outcome}" for path, outcome in tried)
    raise LibraryNotFound(f"libnvte.so was not found; NVTE_LIBRARY may name it. Tried:{lines}")


class _Library:
    """The functions as attributes, e.g. `lib.nvte_cast_to_fp8`; loaded when the first is asked for."""

    def __getattr__(self, name):
        if "path" not in self.__dict__:
            self._load()
            return getattr(self, name)
        if name.startswith("__") or name not in _abi.FUNCTIONS:
            raise AttributeError(name)
        raise LibraryNotFound(f"{self.path} (version {self.nvte_version().decode()}) has no {name}: it is older than this package")

    def _load(self):
        path, handle = _open()
        try:
            entry = handle.nvte_api
        except AttributeError:
            raise LibraryNotFound(f"{path} has no nvte_api: it is not the library of this package") from None
        entry.restype, entry.argtypes = ctypes.c_void_p, (ctypes.c_uint32,)
        table = entry(_abi.NVTE_ABI_VERSION)
        if not table:
            raise LibraryNotFound(f"{path} does not provide version {_abi.NVTE_ABI_VERSION} of the ABI")
        size = ctypes.c_uint32.from_address(table).value
        count = min((size - 8) // ctypes.sizeof(ctypes.c_void_p), len(_abi.FUNCTIONS))
        addresses = (ctypes.c_void_p * count).from_address(table + 8)
        bound = {}
        for (name, (result, arguments)), address in zip(_abi.FUNCTIONS.items(), addresses):
            bound[name] = ctypes.CFUNCTYPE(result, *arguments)(address)
        # `path` comes last: another thread that sees it sees the functions too.
        self.__dict__.update(bound, _handle=handle)
        self.__dict__["path"] = path


lib = _Library()


def loaded_path():
    """Path of the loaded library (loads it)."""
    lib.nvte_version  # noqa: B018
    return lib.path


def check(status):
    """Raises what a status says. Must run on the thread of the call."""
    if status:
        raise error(status)


def error(status):
    """The exception for a status, with the message of the thread's last error."""
    name = lib.nvte_status_name(status).decode()
    message = lib.nvte_last_error().decode("utf-8", "replace")
    return kind_of(status)(f"{message} ({name})" if message else name, status, name, lib.nvte_last_error_code())


_LETTERS = {
    ctypes.c_uint32: "I",
    ctypes.c_int32: "i",
    ctypes.c_int64: "q",
    ctypes.c_uint64: "Q",
    ctypes.c_size_t: "N",
    ctypes.c_float: "f",
    ctypes.c_double: "d",
    ctypes.c_void_p: "P",
    ctypes.c_char_p: "P",
}


def packing(structure, fields):
    """(pack, size) for a C struct: `pack` makes its bytes from the size and all other values, in order.

    `fields` names the rest, so that a struct that changed is an error when this module is loaded and not a wrong argument later.
    """
    declared = [name for name, _ in structure._fields_]
    wanted = ["struct_size", *fields.split()]
    if declared != wanted:
        raise Error(f"{structure.__name__} has the fields {declared}, and {wanted} were expected")
    layout = struct.Struct("@" + "".join(_LETTERS[kind] for _, kind in structure._fields_) + "0q")
    size = ctypes.sizeof(structure)
    if layout.size != size:
        raise Error(f"{structure.__name__} has {size} bytes, and its format {layout.size}")
    return layout.pack, size


def packer(structure, fields):
    """A fast way to fill a C struct: a function from all values, in order, to bytes. struct_size is filled in."""
    pack, size = packing(structure, fields)

    def packed(*values):
        try:
            return pack(size, *values)
        except (struct.error, OverflowError):
            pass
        raise _unfit(structure, values)

    return packed


def _unfit(structure, values):
    """What to raise for values that a C struct cannot hold."""
    for (name, kind), value in zip(structure._fields_[1:], values):
        letter = _LETTERS[kind]
        try:
            struct.pack("@" + letter, value)
        except (struct.error, OverflowError):
            if letter in "fd":
                return TypeError(f"{name} = {value!r}: must be a number")
            if not hasattr(value, "__index__"):
                return TypeError(f"{name} = {value!r}: must be an integer")
            bits, signed = 8 * ctypes.sizeof(kind), letter in "iq"
            least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
            return ValueError(f"{name} = {value}: must be from {least} to {most}")
    return TypeError(f"{structure.__name__}: takes {len(structure._fields_) - 1} values, and got {len(values)}")
