"""Softmax: against NumPy in float64."""

import numpy as np
import pytest
from conftest import HIGH, assert_near, rounded, values, wide

import nvte


def reference(x, scale, hidden):
    """Softmax in float64 with what is hidden."""
    v = np.where(hidden, -np.inf, wide(x) * scale)
    most = v.max(-1, keepdims=True, initial=-np.inf)
    e = np.exp(v - np.where(np.isinf(most), 0, most))
    total = e.sum(-1, keepdims=True)
    return e / np.where(total == 0, 1, total)


def far(shape, offset):
    """What causality hides."""
    queries, keys = shape[-2:]
    return np.broadcast_to(np.arange(keys) > np.arange(queries)[:, None] + offset, shape)


@pytest.mark.parametrize("high", HIGH)
def test_forward_and_backward(fw, rng, high):
    for shape in ((5,), (3, 7), (2, 3, 4, 130), (2, 1, 9, 33)):
        for causal in (False, True):
            held = rounded(values(rng, shape, special=False) * 3, high)
            scale, offset = float(rng.choice([1.0, 0.25, -2.0])), int(rng.integers(-2, 5))
            x = fw.array(held)
            y = nvte.ops.softmax_fwd(x, scale=scale, causal=causal, offset=offset)
            hidden = far(shape if len(shape) > 1 else (1, *shape), offset).reshape(shape) if causal else np.zeros(shape, bool)
            assert tuple(y.shape) == shape and str(y.dtype).endswith(high)
            assert_near(fw.numpy(y), reference(held, scale, hidden), high, 1e-30)
            gradient = rounded(values(rng, shape, special=False), high)
            dx = nvte.ops.softmax_bwd(fw.array(gradient), y, scale=scale, causal=causal, offset=offset)
            p, d = wide(fw.numpy(y)), wide(gradient)
            products = p * d
            want = scale * p * (d - products.sum(-1, keepdims=True))
            assert_near(fw.numpy(dx), want, high, abs(scale) * p * np.maximum(abs(d), abs(products).sum(-1, keepdims=True)))
            assert (wide(fw.numpy(dx))[hidden] == 0).all()


def test_masks(fw, rng):
    shape = (3, 4, 5, 24)
    held = values(rng, shape, special=False)
    x = fw.array(held)
    for kind in ((3, 4, 5, 24), (3, 1, 5, 24), (1, 1, 5, 24), (5, 24), (24,), (3, 1, 1, 24), (1, 4, 1, 24)):
        mask = rng.random(kind) < 0.4
        if len(kind) > 1 and rng.random() < 0.5:
            mask[..., 0, :] = True
        for given in (mask, mask.astype(np.uint8) * 3):
            y = nvte.ops.softmax_fwd(x, mask=fw.array(given))
            assert_near(fw.numpy(y), reference(held, 1.0, np.broadcast_to(mask, shape)), "float32", 1e-30)
    # Five dimensions: the first two are batches.
    deep = fw.array(held.reshape(1, 3, 4, 5, 24))
    mask = rng.random((1, 3, 1, 5, 24)) < 0.4
    y = nvte.ops.softmax_fwd(deep, mask=fw.array(mask))
    assert_near(fw.numpy(y)[0], reference(held, 1.0, np.broadcast_to(mask[0], shape)), "float32", 1e-30)


def test_masks_of_nothing(fw, rng):
    for shape in ((0, 2, 3, 4), (2, 3, 0, 4), (2, 3, 4, 0)):
        # Strides of what has no elements may be anything: numpy's are then 0.
        mask = rng.random(shape) < 0.5
        y = nvte.ops.softmax_fwd(fw.array(np.ones(shape, np.float32)), mask=fw.array(mask) if fw.name != "numpy" else mask)
        assert tuple(y.shape) == shape


def test_in_place_and_strides(fw, rng):
    held = values(rng, (6, 50), special=False)
    x = fw.strided(held, 3)
    out = nvte.ops.softmax_fwd(x, out=x)
    assert out is x
    want = reference(held, 1.0, np.zeros(held.shape, bool))
    assert_near(fw.numpy(x), want, "float32", 1e-30)
    dy = fw.array(held)
    assert nvte.ops.softmax_bwd(dy, x, dx=dy) is dy


def test_what_does_not_fit(fw, rng):
    x = fw.array(values(rng, (2, 3, 4, 8), special=False))
    with pytest.raises(TypeError, match="booleans or bytes"):
        nvte.ops.softmax_fwd(x, mask=fw.array(np.zeros(8, np.float32)))
    with pytest.raises(ValueError, match="not broadcast"):
        nvte.ops.softmax_fwd(x, mask=fw.array(np.zeros((4, 7), bool)))
    with pytest.raises(ValueError, match="side by side"):
        nvte.ops.softmax_fwd(x, mask=fw.array(np.zeros((4, 1), bool)))
    with pytest.raises(nvte.ArgumentError, match="scale"):
        nvte.ops.softmax_fwd(x, scale=float("inf"))
    with pytest.raises(nvte.ArgumentError, match="dtype"):
        nvte.ops.softmax_bwd(x, x, dx=fw.array(np.zeros((2, 3, 4, 8), np.float16)))
