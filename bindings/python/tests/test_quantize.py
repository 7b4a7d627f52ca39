"""Current scaling, bias gradients, amax, dequantize, transposes, scaling updates."""

import numpy as np
import pytest
from conftest import FP8, HIGH, LARGEST, NUMPY, bits_of, codes_of, decode, distance, encode, largest, rounded, values, wide

import nvte
from nvte.recipe import DelayedScaling, Float8CurrentScaling

f32 = np.float32


def scale_from_amax(amax, maximum, previous=1.0, margin=0, epsilon=0.0, power_of_two=False):
    """NUMERICS section 4, in numpy."""
    a = f32(amax) if not amax < epsilon else f32(epsilon)
    if np.isnan(a) or np.isinf(a) or a == 0:
        return f32(previous)
    with np.errstate(over="ignore"):
        s = f32(maximum * 2.0**-margin) / a
    s = min(s, np.finfo(f32).max)
    return f32(2.0 ** np.floor(np.log2(np.float64(s)))) if power_of_two else f32(s)


@pytest.mark.parametrize("out", FP8)
@pytest.mark.parametrize("high", HIGH)
@pytest.mark.parametrize("parameters", [{}, dict(margin=2, power_of_two=True), dict(epsilon=100.0)], ids=str)
def test_current_scaling(fw, rng, high, out, parameters):
    for shape in [(1, 1), (33, 47), (128, 64), (0, 5)]:
        held = rounded(values(rng, shape, special=False), high)
        x = fw.strided(held, 3)
        q = nvte.ops.cast_to_fp8_current(x, out, transpose=True, **parameters)
        seen = f32(np.abs(held.astype(f32)).max(initial=0))
        scale = scale_from_amax(seen, LARGEST[out], **parameters) if held.size else f32(1)
        assert bits_of(fw.numpy(q.amax)) == bits_of(seen)
        assert bits_of(fw.numpy(q.scale)) == bits_of(scale)
        assert bits_of(fw.numpy(q.scale_inv)) == bits_of(f32(1) / scale)
        want = encode(held.astype(f32) * scale, out)
        assert np.array_equal(codes_of(fw.numpy(q.data)), want)
        assert np.array_equal(codes_of(fw.numpy(q.data_t)), want.T)


def test_current_scaling_by_recipe(fw, rng):
    held = values(rng, (16, 24), special=False)
    recipe = Float8CurrentScaling(margin=1, power_of_two=True)
    q = nvte.ops.cast_to_fp8_current(fw.array(held), "e5m2", recipe=recipe)
    assert fw.numpy(q.scale)[0] == scale_from_amax(np.abs(held).max(), 57344.0, margin=1, power_of_two=True)
    size = nvte.ops.cast_to_fp8_current_workspace(nvte.shared_context("cuda:0" if "cuda" in fw.name else "cpu"))
    again = nvte.ops.cast_to_fp8_current(fw.array(held), out=q, workspace=fw.array(np.zeros(size + 64, np.uint8)) if size else None)
    assert again is q and fw.numpy(q.scale)[0] == scale_from_amax(np.abs(held).max(), 57344.0)


@pytest.mark.parametrize("high", HIGH)
def test_cast_dbias(fw, rng, high):
    for shape in [(1, 1), (70, 33), (300, 64), (0, 4)]:
        held = rounded(values(rng, shape, special=False), high)
        x = fw.strided(held, 2)
        scale = f32(rng.uniform(0.5, 2))
        amax = fw.array(np.zeros(1, f32))
        sums = fw.array(np.full(shape[1], 3, f32))
        q, dbias = nvte.ops.cast_dbias(x, "e5m2", scale=float(scale), amax=amax, transpose=True, dbias=sums, accumulate=True)
        assert dbias is sums
        want = wide(held).sum(0)
        assert np.abs(wide(fw.numpy(sums)) - 3 - want).max() <= 1e-4 * max(1, np.abs(wide(held)).sum(0).max())
        codes = encode(held.astype(f32) * scale, "float8_e5m2")
        assert np.array_equal(codes_of(fw.numpy(q.data)), codes) and np.array_equal(codes_of(fw.numpy(q.data_t)), codes.T)
        assert bits_of(fw.numpy(amax)) == largest(held.astype(f32))
        nothing, again = nvte.ops.cast_dbias(x, out=False)
        assert nothing is None and str(again.dtype).endswith(high)
        assert distance(wide(fw.numpy(again)), want) < 0.01
    current, _ = nvte.ops.cast_dbias(fw.array(values(rng, (8, 8), special=False)), current=True)
    assert fw.numpy(current.scale)[0] == scale_from_amax(fw.numpy(current.amax)[0], 448.0)
    with pytest.raises(ValueError, match="array to add to"):
        nvte.ops.cast_dbias(fw.array(np.ones((2, 2), f32)), accumulate=True)


@pytest.mark.parametrize("high", HIGH)
def test_amax(fw, rng, high):
    held = rounded(values(rng, (37, 53), special=False), high)
    held[5, 7] = -np.inf if rng.random() < 0.5 else held[5, 7]
    slot = nvte.ops.amax(fw.strided(held, 5))
    assert bits_of(fw.numpy(slot)) == largest(held.astype(f32))
    assert nvte.ops.amax(fw.array(np.full(3, 1e30, f32)), slot) is slot
    assert bits_of(fw.numpy(slot)) == max(largest(held.astype(f32)), largest(f32(1e30)))
    assert np.isnan(fw.numpy(nvte.ops.amax(fw.array(np.array([1, np.nan, np.inf], f32))))).all()
    assert fw.numpy(nvte.ops.amax(fw.array(np.zeros((0, 3), f32))))[0] == 0


@pytest.mark.parametrize("name", FP8)
@pytest.mark.parametrize("high", HIGH)
def test_dequantize(fw, rng, high, name):
    codes = rng.integers(0, 256, (19, 31)).astype(np.uint8)
    inverse = f32(rng.uniform(0.01, 100))
    q = nvte.Fp8Tensor(fw.strided(codes.view(NUMPY[name]), 1), fw.array(np.full(1, inverse)))
    with np.errstate(over="ignore", invalid="ignore"):
        want = (decode(codes, name) * inverse).astype(NUMPY[high])
    got = fw.numpy(nvte.ops.dequantize(q, high))
    assert got.dtype == NUMPY[high]
    assert np.array_equal(got.astype(f32), want.astype(f32), equal_nan=True)
    only_t = nvte.Fp8Tensor(None, q.scale_inv, fw.array(np.ascontiguousarray(codes.T).view(NUMPY[name])))
    got = fw.numpy(nvte.ops.dequantize(only_t, out=fw.array(np.zeros((19, 31), NUMPY[high]))))
    assert np.array_equal(got.astype(f32), want.astype(f32), equal_nan=True)
    plain = fw.numpy(nvte.ops.dequantize(fw.array(codes.view(NUMPY[name]))))
    assert np.array_equal(plain, decode(codes, name), equal_nan=True)


@pytest.mark.parametrize("name", FP8)
def test_transpose(fw, rng, name):
    for shape in [(1, 1), (5, 3), (64, 130), (0, 4)]:
        codes = rng.integers(0, 256, shape).astype(np.uint8)
        inverse = fw.array(np.ones(1, f32))
        q = nvte.ops.fp8_transpose(nvte.Fp8Tensor(fw.strided(codes.view(NUMPY[name]), 2), inverse))
        assert np.array_equal(codes_of(fw.numpy(q.data_t)), codes.T) and q.scale_inv is inverse and q.dtype.name == name
        back = nvte.ops.fp8_transpose(nvte.Fp8Tensor(None, inverse, q.data_t))
        assert np.array_equal(codes_of(fw.numpy(back.data)), codes) and back.data_t is q.data_t
        room = fw.array(np.zeros(shape[::-1], np.uint8))
        nvte.ops.fp8_transpose(nvte.Fp8Tensor(fw.array(codes), dtype=name), out=room)
        assert np.array_equal(fw.numpy(room), codes.T)


@pytest.mark.parametrize("algo", ["max", "most_recent"])
@pytest.mark.parametrize("slots_first", [True, False])
def test_scaling_update(fw, rng, algo, slots_first):
    slots, length, interval = 9, 5, 2
    recipe = DelayedScaling(amax_history_len=length, amax_compute_algo=algo, interval=interval, margin=1)
    older = np.zeros((slots, length - 1), f32)
    maximum = np.where(np.arange(slots) % 2, f32(448), f32(57344))
    scales, counts = np.ones(slots, f32), np.zeros(slots, np.int32)
    history = fw.array(older) if slots_first else fw.array(np.ascontiguousarray(older.T)).T
    live, scale, nonfinite = fw.array(np.zeros(slots, f32)), fw.array(scales), fw.array(counts)
    inverse, counter = fw.array(np.zeros(slots, f32)), fw.array(np.zeros(1, np.int32))
    limits = fw.array(maximum)
    for step in range(8):
        recorded = rng.uniform(0.1, 10, slots).astype(f32)
        recorded[rng.random(slots) < 0.2] = 0
        recorded[rng.random(slots) < 0.1] = np.inf
        recorded[rng.random(slots) < 0.1] = np.nan
        live[:] = fw.array(recorded)
        made = nvte.ops.scaling_update(
            live, scale, history, limits, recipe=recipe, nonfinite=nonfinite, scale_inv=inverse, counter=counter
        )
        assert made is scale
        due = step % interval == interval - 1
        for i, a in enumerate(recorded):
            if a == 0:
                continue
            if not np.isfinite(a):
                counts[i] += 1
                continue
            window = max(a, older[i].max()) if algo == "max" else a
            older[i] = [*older[i, 1:], a]
            if due:
                scales[i] = scale_from_amax(window, maximum[i], scales[i], margin=1)
        assert np.array_equal(fw.numpy(live), np.zeros(slots, f32))
        assert np.array_equal(fw.numpy(scale), scales)
        assert np.array_equal(fw.numpy(history), older)
        assert np.array_equal(fw.numpy(nonfinite), counts)
        assert np.array_equal(fw.numpy(inverse), f32(1) / scales)


def test_scaling_update_of_a_window_of_one(fw):
    live, scale = fw.array(np.array([2, 0], f32)), fw.array(np.ones(2, f32))
    nvte.ops.scaling_update(live, scale, None, fw.array(np.full(2, 448, f32)))
    assert fw.numpy(scale).tolist() == [224, 1] and fw.numpy(live).tolist() == [0, 0]
    with pytest.raises(ValueError, match="window of 1024"):
        nvte.ops.scaling_update(live, scale, None, scale, recipe=DelayedScaling())
    with pytest.raises(nvte.UnsupportedError, match="function"):
        nvte.ops.scaling_update(live, scale, None, scale, recipe=DelayedScaling(amax_history_len=1, amax_compute_algo=max))
    with pytest.raises(TypeError, match="32-bit"):
        nvte.ops.scaling_update(live, scale, None, scale, counter=fw.array(np.zeros(1, np.int64)))
