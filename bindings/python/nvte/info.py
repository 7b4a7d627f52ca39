"""What a bug report needs, as JSON.

    python -m nvte.info [cpu|cuda|cuda:N]

Without a device it describes cuda:0 where there is one, else the CPU.
"""

import ctypes
import json
import os
import platform
import sys

from . import _library
from ._errors import Error
from ._version import __version__
from .context import Context, library_dirs

#: Read by this package; the library reports those that it reads itself.
ENVIRONMENT = ("NVTE_LIBRARY",)


def _installed(name):
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _from_library(context=None):
    """The report of nvte_info as a dict."""
    lib, needed = _library.lib, ctypes.c_size_t()
    handle = None if context is None else context.handle
    _library.check(lib.nvte_info(handle, None, 0, ctypes.addressof(needed)))
    while True:
        # Between the two calls a path tried may have been added.
        buffer = ctypes.create_string_buffer(needed.value + 4096)
        _library.check(lib.nvte_info(handle, ctypes.addressof(buffer), len(buffer), ctypes.addressof(needed)))
        if needed.value <= len(buffer):
            return json.loads(buffer.value.decode("utf-8", "replace"))


def report(device=None):
    """Everything as a dict. `device`: the device to describe; None: cuda:0 where there is one, else the CPU."""
    out = {
        "package": __version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "packages": {name: _installed(name) for name in ("numpy", "ml_dtypes", "torch", "jax")},
        "environment": {name: os.environ.get(name) for name in ENVIRONMENT},
        "library_dirs": library_dirs(),
    }
    try:
        out["library"] = _library.loaded_path()
        context = None
        for choice in [device] if device is not None else ["cuda:0", "cpu"]:
            try:
                context = Context(choice)
                break
            except Error as e:
                out[f"no context on {choice}"] = str(e)
        out["report"] = _from_library(context)
    except Error as e:
        out["error"] = str(e)
    out["library_tried"] = [f"{path}: {outcome}" for path, outcome in _library.tried]
    return out


def main():
    """Prints it."""
    given = sys.argv[1:]
    if given in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    try:
        if len(given) > 1:
            raise ValueError(f"takes one device, and got {given}")
        made = report(*given)
    except ValueError as e:
        print(f"nvte.info: {e}", file=sys.stderr)
        return 2
    print(json.dumps(made, indent=2))
    return 1 if "error" in made else 0


if __name__ == "__main__":
    sys.exit(main())
