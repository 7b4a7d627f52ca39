"""Casts to FP8, bit for bit."""

import numpy as np
import pytest
from conftest import FP8, HIGH, NUMPY, bits_of, codes_of, encode, largest, rounded, values

import nvte


@pytest.mark.parametrize("out", FP8)
@pytest.mark.parametrize("high", HIGH)
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (64, 64), (65, 130), (0, 7), (7, 0), (1000, 1)])
def test_cast_to_fp8(fw, rng, shape, high, out):
    held = rounded(values(rng, shape), high)
    x = fw.strided(held, int(rng.integers(0, 4)))
    scale, before = np.float32(rng.uniform(0.01, 100)), np.float32(rng.uniform(0, 4))
    amax = fw.array(np.full(1, before, np.float32))
    q = nvte.ops.cast_to_fp8(x, out, scale=fw.array(np.full(1, scale)), amax=amax, transpose=True)
    with np.errstate(over="ignore"):
        want = encode(held.astype(np.float32) * scale, out)
    assert q.dtype.name == out and q.shape == shape
    assert np.array_equal(codes_of(fw.numpy(q.data)), want)
    assert np.array_equal(codes_of(fw.numpy(q.data_t)), want.T)
    assert bits_of(fw.numpy(q.scale_inv)) == bits_of(np.float32(1) / scale)
    recorded = max(largest(held.astype(np.float32)), largest(before))
    # A NaN is recorded in one form; which one is not promised here.
    if recorded <= 0x7F800000:
        assert bits_of(fw.numpy(amax)) == recorded
    else:
        assert np.isnan(fw.numpy(amax)).all()


def test_layouts_and_outputs(fw, rng):
    held = values(rng, (6, 10), special=False)
    x = fw.array(held)
    want = encode(held, "float8_e4m3")
    only_t = nvte.ops.cast_to_fp8(x, rowwise=False, transpose=True)
    assert only_t.data is None and only_t.shape == (6, 10)
    assert np.array_equal(codes_of(fw.numpy(only_t.data_t)), want.T)
    # Into given memory, with row strides.
    room = fw.strided(np.zeros((6, 10), NUMPY["float8_e4m3"]), 3)
    q = nvte.ops.cast_to_fp8(x, out=room)
    assert q.data is room and np.array_equal(codes_of(fw.numpy(room)), want)
    again = nvte.ops.cast_to_fp8(x, out=q, scale=2.0)
    assert again is q and np.array_equal(codes_of(fw.numpy(q.data)), encode(held * np.float32(2), "float8_e4m3"))
    assert fw.numpy(q.scale_inv)[0] == 0.5
    with pytest.raises(ValueError, match="at least one layout"):
        nvte.ops.cast_to_fp8(x, rowwise=False)


def test_bytes_as_codes(fw, rng):
    held = values(rng, (6, 10), special=False)
    room = nvte.Fp8Tensor(fw.array(np.zeros((6, 10), np.uint8)), dtype="e5m2")
    nvte.ops.cast_to_fp8(fw.array(held), out=room)
    assert np.array_equal(fw.numpy(room.data), encode(held, "float8_e5m2"))


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 1, 3, 4), (7,), ()])
def test_other_ranks(fw, rng, shape):
    held = values(rng, shape, special=False)
    q = nvte.ops.cast_to_fp8(fw.array(held), transpose=True)
    assert q.shape == shape
    want = encode(held, "float8_e4m3")
    assert np.array_equal(codes_of(fw.numpy(q.data)), want)
    cols = shape[-1] if shape else 1
    assert np.array_equal(codes_of(fw.numpy(q.data_t)), want.reshape(-1, cols).T)


def test_flattened_without_copies(fw, rng):
    wide = values(rng, (4, 3, 16), special=False)
    view = fw.array(wide)[:, :, :10]
    q = nvte.ops.cast_to_fp8(view)
    assert np.array_equal(codes_of(fw.numpy(q.data)), encode(wide[:, :, :10], "float8_e4m3"))
    for bad in (fw.array(wide)[:, :2, :], fw.array(wide)[:, :, ::2]):
        with pytest.raises(ValueError, match="make it contiguous"):
            nvte.ops.cast_to_fp8(bad)
