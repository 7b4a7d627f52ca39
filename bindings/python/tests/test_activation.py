"""Activations and gated activations against float64."""

import math

import numpy as np
import pytest
from conftest import FP8, GRAIN, HIGH, assert_codes_near, assert_near, bits_of, codes_of, distance, rounded, values, wide

import nvte
from nvte.ops.activation import ACTIVATIONS

erf = np.vectorize(math.erf, otypes=[float])


def sigmoid(v):
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-v))


def gelu(v):
    u = math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)
    s = sigmoid(2 * u)
    return v * s, s + v * s * (1 - s) * 2 * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * v**2)


def gelu_erf(v):
    phi = 0.5 * (1 + erf(v / math.sqrt(2)))
    return v * phi, phi + v * np.exp(-v * v / 2) / math.sqrt(2 * math.pi)


def swish(a):
    def f(v):
        s = sigmoid(a * v)
        return v * s, s + a * v * s * (1 - s)

    return f


FUNCTIONS = {
    "gelu": gelu,
    "gelu_erf": gelu_erf,
    "silu": swish(1.0),
    "relu": lambda v: (np.maximum(v, 0), (v > 0).astype(float)),
    "qgelu": swish(1.702),
    "srelu": lambda v: (np.maximum(v, 0) ** 2, 2 * np.maximum(v, 0)),
}
GATED = {"geglu": "gelu", "geglu_erf": "gelu_erf", "swiglu": "silu", "reglu": "relu", "qgeglu": "qgelu", "sreglu": "srelu"}
KINDS = [*FUNCTIONS, *GATED]


def forward(kind, x):
    """(y, largest terms)."""
    x = wide(x)
    if kind in FUNCTIONS:
        return FUNCTIONS[kind](x)[0], np.abs(x) * (np.abs(x) if kind == "srelu" else 1)
    a, b = np.split(x, 2, axis=-1)
    f = FUNCTIONS[GATED[kind]](a)[0]
    return f * b, np.abs(a * b) * (np.abs(a) if kind == "sreglu" else 1)


def backward(kind, dy, x):
    dy, x = wide(dy), wide(x)
    if kind in FUNCTIONS:
        return dy * FUNCTIONS[kind](x)[1]
    a, b = np.split(x, 2, axis=-1)
    f, d = FUNCTIONS[GATED[kind]](a)
    return np.concatenate([dy * b * d, dy * f], axis=-1)


def test_names():
    assert sorted(ACTIVATIONS) == sorted(KINDS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("high", HIGH)
def test_forward(fw, rng, kind, high):
    for shape in [(1, 2), (33, 70), (0, 8), (2, 3, 16)]:
        held = rounded(values(rng, shape, special=False) * 2, high)
        x = fw.strided(held, 3) if len(shape) == 2 else fw.array(held)
        amax = fw.array(np.zeros(1, np.float32))
        y = nvte.ops.activation_fwd(x, kind, amax=amax)
        want, t = forward(kind, held)
        assert tuple(y.shape) == want.shape and str(y.dtype).endswith(high)
        assert_near(fw.numpy(y), want, high, t)
        peak = np.abs(want).max(initial=0)
        assert abs(float(fw.numpy(amax)[0]) - peak) <= 1e-5 * peak + 1e-6


@pytest.mark.parametrize("kind", ["gelu", "swiglu"])
@pytest.mark.parametrize("out", FP8)
def test_forward_to_fp8(fw, rng, kind, out):
    held = rounded(values(rng, (65, 96), special=False), "bfloat16")
    scale, amax = np.float32(rng.uniform(1, 50)), fw.array(np.zeros(1, np.float32))
    y = nvte.ops.activation_fwd(fw.array(held), kind, dtype=out, scale=float(scale), amax=amax, transpose=True)
    want, t = forward(kind, held)
    assert y.shape == want.shape
    assert_codes_near(codes_of(fw.numpy(y.data)), want, out, scale, t)
    assert np.array_equal(codes_of(fw.numpy(y.data_t)), codes_of(fw.numpy(y.data)).T)
    assert bits_of(fw.numpy(y.scale_inv)) == bits_of(np.float32(1) / scale)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("high", HIGH)
def test_backward(fw, rng, kind, high):
    for shape in [(1, 2), (70, 34), (0, 8)]:
        held = rounded(values(rng, shape, special=False) * 2, high)
        gradient = rounded(values(rng, (shape[0], shape[1] // (2 if kind in GATED else 1)), special=False), high)
        sums = fw.array(np.zeros(shape[1], np.float32))
        dx, dbias = nvte.ops.activation_bwd(fw.strided(gradient, 1), fw.strided(held, 2), kind, dbias=sums)
        want = backward(kind, gradient, held)
        assert dbias is sums and tuple(dx.shape) == shape and str(dx.dtype).endswith(high)
        assert distance(wide(fw.numpy(dx)), want, GRAIN[high]) <= {"float32": 1e-5, "float16": 1e-3, "bfloat16": 5e-3}[high]
        assert np.abs(fw.numpy(sums) - want.sum(0)).max(initial=0) <= 1e-4 * max(1, np.abs(want).sum(0).max(initial=0))
        nvte.ops.activation_bwd(fw.array(gradient), fw.array(held), kind, dbias=sums, accumulate=True)
        assert np.abs(fw.numpy(sums) - 2 * want.sum(0)).max(initial=0) <= 2e-4 * max(1, np.abs(want).sum(0).max(initial=0))


def test_backward_to_fp8(fw, rng):
    held, gradient = (rounded(values(rng, (40, 64), special=False), "bfloat16") for _ in range(2))
    scale = np.float32(8)
    dx, dbias = nvte.ops.activation_bwd(fw.array(gradient), fw.array(held), "gelu", dtype="e5m2", scale=8.0, transpose=True, dbias=True)
    want = backward("gelu", gradient, held)
    assert_codes_near(codes_of(fw.numpy(dx.data)), want, "float8_e5m2", scale, np.abs(wide(gradient)) * np.maximum(1, np.abs(wide(held))))
    assert np.array_equal(codes_of(fw.numpy(dx.data_t)), codes_of(fw.numpy(dx.data)).T)
    assert str(dbias.dtype).endswith("bfloat16") and distance(wide(fw.numpy(dbias)), want.sum(0)) < 0.01


def test_errors(fw):
    x = fw.array(np.ones((3, 5), np.float32))
    with pytest.raises(ValueError, match="must be one of gelu"):
        nvte.ops.activation_fwd(x, "tanh")
    with pytest.raises(ValueError, match="two halves"):
        nvte.ops.activation_fwd(x, "swiglu")
    with pytest.raises(nvte.ArgumentError, match=r"\[3, 4\]"):
        nvte.ops.activation_bwd(x, fw.array(np.ones((3, 4), np.float32)), "relu")
    with pytest.raises(nvte.UnsupportedError, match="scale"):
        nvte.ops.activation_fwd(x, "relu", scale=2.0)
