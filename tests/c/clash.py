"""clash.py FAKE LIBRARY VERSION: opens the fake with RTLD_GLOBAL, then our library, and calls it by name and through the table."""
import ctypes
import sys

fake = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
library = ctypes.CDLL(sys.argv[2])
assert fake.nvte_version() == 77777
assert ctypes.CDLL(None).nvte_layernorm_fwd() == 77777

library.nvte_version.restype = ctypes.c_char_p
assert library.nvte_version().decode() == sys.argv[3]


class Api(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("reserved", ctypes.c_uint32), ("version", ctypes.CFUNCTYPE(ctypes.c_char_p))]


library.nvte_api.restype = ctypes.POINTER(Api)
assert not library.nvte_api(0)
assert library.nvte_api(1).contents.version().decode() == sys.argv[3]

context = ctypes.c_void_p()
assert library.nvte_context_create(0, 0, None, ctypes.byref(context)) == 0
assert library.nvte_context_trim(context) == 0
assert library.nvte_context_destroy(context) == 0
assert library.nvte_context_destroy(context) == 107
library.nvte_last_error.restype = ctypes.c_char_p
assert b"destroyed" in library.nvte_last_error()
print("passed")
