"""The lines of NVTE_DEBUG to a Python function."""

import ctypes

from ._library import check, lib

_LINE = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p)
_kept = None


def set_log(function):
    """Sends each line of what NVTE_DEBUG asks for to `function(text)`, from whatever thread; None: to standard error again."""
    global _kept
    made = _LINE(lambda line, _: function(line.decode("utf-8", "replace"))) if function is not None else None
    check(lib.nvte_set_log(ctypes.cast(made, ctypes.c_void_p) if made is not None else None, None))
    # The old one is let go only now that nothing calls it.
    _kept = made
