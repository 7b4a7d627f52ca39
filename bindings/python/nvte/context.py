"""Contexts: one device and its caches each. The operations make one per device by themselves."""

import ctypes
import os
import sys
import threading

from . import _abi
from ._library import check, lib

#: As a stream: check the arguments, compile and load what the call needs, and enqueue nothing.
PREPARE = (1 << 8 * ctypes.sizeof(ctypes.c_void_p)) - 1


def library_dirs():
    """Folders in which pip puts NVRTC and cuBLASLt, newest CUDA first."""
    found = []
    for entry in sys.path:
        parent = os.path.join(entry or ".", "nvidia")
        try:
            names = sorted(os.listdir(parent), reverse=True)
        except OSError:
            continue
        folders = (os.path.join(parent, name, "lib") for name in names)
        found += [f for f in folders if f not in found and os.path.isdir(f)]
    return found


def parse_device(device):
    """("cpu" | "cuda", ordinal) of "cpu", "cuda", "cuda:1", 1 or a torch.device."""
    kind, index = getattr(device, "type", None), getattr(device, "index", None)
    if isinstance(device, int) and not isinstance(device, bool):
        kind, index = "cuda", device
    elif isinstance(device, str):
        kind, colon, number = device.partition(":")
        try:
            index = int(number) if colon else None
        except ValueError:
            kind = None
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"device = {device!r}: must be 'cpu', 'cuda' or 'cuda:N'")
    if kind == "cpu":
        return kind, 0
    if index is None:
        torch = sys.modules.get("torch")
        index = torch.cuda.current_device() if torch is not None and torch.cuda.is_available() else 0
    return kind, index


class Capability:
    """What a device can do; the fields are those of nvte_capability_t."""

    def __init__(self, raw):
        for name, _ in raw._fields_[1:]:
            value = getattr(raw, name)
            setattr(self, name, value.decode("utf-8", "replace") if isinstance(value, bytes) else value)
        self.fp8_cast_hardware = bool(self.fp8_cast_hardware)
        self.fp8_gemm_hardware = bool(self.fp8_gemm_hardware)
        self.fp8_gemm_k_major_only = bool(self.fp8_gemm_k_major_only)

    def __repr__(self):
        return "Capability(" + ", ".join(f"{k}={v!r}" for k, v in self.__dict__.items()) + ")"


class Context:
    """One device and its caches: compiled kernels, GEMM plans, threads. Threads may share it.

    device: "cpu", "cuda", "cuda:1", a number or a torch.device. num_threads: of a CPU context (0: NVTE_NUM_THREADS, else all cores).
    cache_dir: folder of compiled kernels (None: NVTE_CACHE_DIR, else ~/.cache/nvte; "": off). library_dirs: folders searched for NVRTC
    and cuBLASLt (None: those of pip's nvidia packages).
    """

    __slots__ = ("handle", "device", "ordinal", "__weakref__")

    def __init__(self, device="cpu", *, num_threads=0, cache_dir=None, library_dirs=None):
        self.handle = None
        kind, self.ordinal = parse_device(device)
        self.device = "cpu" if kind == "cpu" else f"cuda:{self.ordinal}"
        options = _abi.nvte_context_options_t(struct_size=ctypes.sizeof(_abi.nvte_context_options_t), num_threads=num_threads)
        if cache_dir is not None:
            options.cache_dir = os.fsencode(cache_dir)
        if kind == "cuda":
            folders = globals()["library_dirs"]() if library_dirs is None else library_dirs
            if folders:
                options.library_dirs = b":".join(os.fsencode(f) for f in folders)
        made = ctypes.c_void_p()
        number = _abi.NVTE_DEVICE_CUDA if kind == "cuda" else _abi.NVTE_DEVICE_CPU
        check(lib.nvte_context_create(number, self.ordinal, ctypes.addressof(options), ctypes.addressof(made)))
        self.handle = made.value

    def capability(self):
        """What the device can do."""
        raw = _abi.nvte_capability_t(struct_size=ctypes.sizeof(_abi.nvte_capability_t))
        check(lib.nvte_capability(self.handle, ctypes.addressof(raw)))
        return Capability(raw)

    def trim(self):
        """Frees what can be made again (GEMM plans)."""
        check(lib.nvte_context_trim(self.handle))

    def synchronize(self, stream=0):
        """Waits until everything enqueued on a stream (a raw handle) has run."""
        check(lib.nvte_context_synchronize(self.handle, stream))

    def close(self):
        """Ends the context; work already enqueued runs on. Later uses of it are errors."""
        handle, self.handle = self.handle, None
        if handle:
            check(lib.nvte_context_destroy(handle))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        try:
            self.close()
        except Exception:  # the interpreter is going away
            pass

    def __repr__(self):
        return f"Context({self.device!r}{'' if self.handle else ', closed'})"


_shared = {}
_lock = threading.Lock()


def _new_lock():
    global _lock
    _lock = threading.Lock()


# A thread that held it does not exist in the child.
os.register_at_fork(after_in_child=_new_lock)


def shared_context(device="cpu"):
    """The context that operations use for a device: made once, never closed."""
    kind, ordinal = parse_device(device)
    return shared(-1 if kind == "cpu" else ordinal)


def shared(index):
    """The same by number; -1 is the CPU."""
    found = _shared.get(index)
    if found is None:
        with _lock:
            found = _shared.get(index)
            if found is None:
                found = _shared[index] = Context("cpu" if index < 0 else index)
    return found
