"""The back end under test, fresh random data, oracles that share no code with the library."""

import atexit
import gc
import os
import shutil
import tempfile
import time

import ml_dtypes
import numpy as np
import pytest

BACKEND = os.environ.get("NVTE_TEST_BACKEND", "cpu")
# Code that torch compiled for another state of the library is not taken from a cache.
if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="nvte-inductor-")
    atexit.register(shutil.rmtree, os.environ["TORCHINDUCTOR_CACHE_DIR"], ignore_errors=True)
NUMPY = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8_e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
LARGEST = {"float8_e4m3": 448.0, "float8_e5m2": 57344.0}
HIGH = ["float32", "float16", "bfloat16"]
FP8 = ["float8_e4m3", "float8_e5m2"]

try:
    import torch
except ImportError:
    torch = None
    # Some import parts of it before they could skip themselves.
    collect_ignore_glob = ["test_torch_*.py"]


class Numpy:
    """numpy arrays on the CPU."""

    name = "numpy"

    @staticmethod
    def array(a):
        """An array of the framework with the values (and type) of a numpy array."""
        return np.array(a)

    @staticmethod
    def numpy(x):
        """A numpy array, FP8 and bfloat16 in the types of ml_dtypes."""
        return np.asarray(x)

    @staticmethod
    def strided(a, pad):
        """The values of a matrix with `pad` elements between its rows."""
        wide = np.zeros((a.shape[0], a.shape[1] + pad), a.dtype)
        wide[:, : a.shape[1]] = a
        return wide[:, : a.shape[1]]


class Torch:
    """torch tensors on a device."""

    def __init__(self, device):
        self.name, self.device = f"torch-{device}", device

    def array(self, a):
        a = np.ascontiguousarray(a) if np.ndim(a) else np.asarray(a)
        kind = getattr(torch, a.dtype.name)
        if a.dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
            raw = np.uint16 if a.dtype.itemsize == 2 else np.uint8
            signed = torch.from_numpy(a.view(raw).astype(np.int16 if raw is np.uint16 else raw, copy=True))
            return signed.to(self.device).view(kind)
        return torch.from_numpy(np.array(a)).to(self.device)

    def numpy(self, x):
        x = x.detach().cpu()
        name = str(x.dtype)[len("torch.") :]
        if name == "bfloat16":
            return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        if name.startswith("float8"):
            return x.view(torch.uint8).numpy().view(getattr(ml_dtypes, name))
        return x.numpy()

    def strided(self, a, pad):
        rows, cols = a.shape
        wide = np.zeros((rows, cols + pad), a.dtype)
        wide[:, :cols] = a
        return self.array(wide)[:, :cols]


FRAMEWORKS = []
if BACKEND == "cpu":
    FRAMEWORKS.append(Numpy())
if torch is not None:
    FRAMEWORKS.append(Torch("cuda:0" if BACKEND == "cuda" else "cpu"))


@pytest.fixture(autouse=BACKEND == "cuda")
def no_collection():
    """Captured graphs of earlier tests end between tests, and not while one captures, which would make the capture invalid."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(params=FRAMEWORKS, ids=lambda f: f.name)
def fw(request):
    """Each framework on the back end under test."""
    return request.param


@pytest.fixture
def rng(request):
    """Fresh random numbers; pytest shows the seed where a test fails, and NVTE_TEST_SEED fixes it."""
    seed = int(os.environ.get("NVTE_TEST_SEED") or time.time_ns())
    print(f"{request.node.name}: NVTE_TEST_SEED={seed}")
    return np.random.default_rng(seed)


def rounded(v, name):
    """float32 values in a type of 32 or 16 bits; the large ones become infinite."""
    with np.errstate(over="ignore"):
        return np.asarray(v, np.float32).astype(NUMPY[name])


def values(rng, shape, special=True):
    """Normal values; where `special`, now and then a large, tiny, zero, infinite or NaN one."""
    v = rng.standard_normal(shape, dtype=np.float32)
    if special and v.size:
        for factor in (1e5, 1e-5, 0.0, -0.0, 1e-39):
            v = np.where(rng.random(shape) < 1 / 64, v * np.float32(factor), v)
        for odd in (np.inf, -np.inf, np.nan):
            v = np.where(rng.random(shape) < 1 / 1000, np.float32(odd), v)
    return v.astype(np.float32)


def encode(v, name):
    """FP8 codes of float32 values, saturating; NaN is 0x7F."""
    v = np.asarray(v, np.float32)
    clipped = np.clip(v, -LARGEST[name], LARGEST[name])
    # From float32: ml_dtypes rounds twice from float64.
    codes = clipped.astype(NUMPY[name]).view(np.uint8)
    return np.where(np.isnan(v), np.uint8(0x7F), codes)


def largest(v):
    """amax by bit pattern: NaN above infinity."""
    bits = np.ascontiguousarray(v, np.float32).view(np.uint32) & 0x7FFFFFFF
    return bits.max(initial=0).astype(np.uint32)


def bits_of(x):
    """The bits of one float32."""
    return int(np.asarray(x, np.float32).reshape(()).view(np.uint32))


def codes_of(x):
    """FP8 codes as bytes."""
    return np.array(x, order="C", copy=True).view(np.uint8)


def decode(codes, name):
    """float32 values of FP8 codes."""
    return np.asarray(codes, np.uint8).view(NUMPY[name]).astype(np.float32)


def wide(x):
    """float64 values of an array of any type."""
    return np.asarray(x).astype(np.float32).astype(np.float64)


def distance(got, want, grain=0.0):
    """Relative Frobenius distance; infinite where a NaN is on one side only. Differences of elements up to `grain` count for nothing."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape
    if (np.isnan(got) != np.isnan(want)).any():
        return np.inf
    norm = np.linalg.norm(np.nan_to_num(want))
    error = np.linalg.norm(np.maximum(np.abs(np.nan_to_num(got - want)) - grain, 0))
    return error / norm if norm else error


#: What lies between neighbours next to 0.
GRAIN = {"float32": 0.0, "float16": 2.0**-24, "bfloat16": 0.0}
#: Half a unit in the last place, relative.
HALF_ULP = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def assert_near(got, want, name, scale):
    """Elementwise: two units in the last place of the type, and 2^-22 of the largest term that went into the value (NUMERICS 9)."""
    got, want = wide(got), np.asarray(want, np.float64)
    if name == "float32":
        bound = 1e-5 * np.abs(want) + 1e-6 + 2.0**-22 * scale
    else:
        bound = 4 * HALF_ULP[name] * np.abs(want) + 2.0**-22 * scale + (2.0**-23 if name == "float16" else 0)
    wrong = ~(np.abs(got - want) <= bound)
    assert not wrong.any(), f"{wrong.sum()} of {wrong.size}; first at {np.argwhere(wrong)[0]}: {got[wrong][0]} for {want[wrong][0]}"


def assert_codes_near(codes, want, name, scale, t):
    """FP8 codes of float64 values: equal, or a neighbour where the value lies within the slack of a tie (NUMERICS 9)."""
    scale = np.float64(scale)
    got = np.asarray(codes, np.uint8)
    slack = (2.0**-16 * np.abs(want) + 2.0**-20 * t) * scale
    low, high = (decode(encode((want * scale + d).astype(np.float32), name), name) for d in (-slack, slack))
    value = decode(got, name)
    good = (low <= value) & (value <= high)
    assert good.all(), f"{(~good).sum()} of {good.size}; first at {np.argwhere(~good)[0]}"
