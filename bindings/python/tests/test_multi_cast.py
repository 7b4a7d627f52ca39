"""Casts of lists of tensors: the bits of the same casts one by one."""

import numpy as np
import pytest
from conftest import FP8, HIGH, bits_of, codes_of, rounded, values

import nvte
from nvte.recipe import Float8CurrentScaling

SHAPES = [(1, 1), (33, 65), (128, 256), (3, 4, 40), (300, 8), (0, 8), (130, 136)]


def slots(fw, q):
    return [bits_of(fw.numpy(x)) for x in (q.scale_inv, q.scale, q.amax)]


@pytest.mark.parametrize("out", FP8)
@pytest.mark.parametrize("current", [False, True])
def test_bits(fw, rng, out, current):
    one = lambda v: fw.array(np.full(1, v, np.float32))  # noqa: E731
    inputs = [fw.array(rounded(values(rng, s), HIGH[i % 3])) for i, s in enumerate(SHAPES)]
    inputs.append(fw.strided(rounded(values(rng, (20, 30)), "float32"), 3))
    scales = [float(v) for v in rng.uniform(0.1, 30, len(inputs)).astype(np.float32)]
    recipe = Float8CurrentScaling(power_of_two=True) if current else None

    def alone(x, scale):
        if current:
            return nvte.ops.cast_to_fp8_current(x, out, recipe=recipe, transpose=True)
        return nvte.ops.cast_to_fp8(x, out, scale=one(scale), amax=one(0), transpose=True)

    want = [alone(x, s) for x, s in zip(inputs, scales)]
    # Room of the same kind, with other contents.
    room = [nvte.ops.cast_to_fp8(fw.array(np.zeros(tuple(x.shape), np.float32)), out, scale=one(s), amax=one(0), transpose=True) for x, s in zip(inputs, scales)]
    tensors = nvte.ops.cast_list(inputs, room)
    assert nvte.ops.cast_list_workspace(inputs, room) > 0
    got = nvte.ops.multi_cast_to_fp8(tensors, recipe=recipe)
    for a, b in zip(got, want):
        assert np.array_equal(codes_of(fw.numpy(a.data)), codes_of(fw.numpy(b.data)))
        assert np.array_equal(codes_of(fw.numpy(a.data_t)), codes_of(fw.numpy(b.data_t)))
        assert slots(fw, a) == slots(fw, b)


def test_without_a_list(fw, rng):
    inputs = [fw.array(values(rng, s)) for s in SHAPES]
    for q, x in zip(nvte.ops.multi_cast_to_fp8(inputs, "e5m2", current=True, transpose=True), inputs):
        want = nvte.ops.cast_to_fp8_current(x, "e5m2", transpose=True)
        assert np.array_equal(codes_of(fw.numpy(q.data_t)), codes_of(fw.numpy(want.data_t)))
    for q, x in zip(nvte.ops.multi_cast_to_fp8(inputs), inputs):
        assert q.data_t is None
        assert np.array_equal(codes_of(fw.numpy(q.data)), codes_of(fw.numpy(nvte.ops.cast_to_fp8(x).data)))
    assert nvte.ops.multi_cast_to_fp8([]) == []
    skip = fw.array(np.ones(1, np.int32))
    tensors = nvte.ops.cast_list(inputs, nvte.ops.multi_cast_to_fp8(inputs))
    before = [codes_of(fw.numpy(q.data)) for q in tensors.arrays[1]]
    nvte.ops.multi_cast_to_fp8(tensors, current=True, margin=2, skip=skip)
    assert all(np.array_equal(codes_of(fw.numpy(q.data)), b) for q, b in zip(tensors.arrays[1], before))
    with pytest.raises(ValueError, match="outputs: has 1"):
        nvte.ops.cast_list(inputs, tensors.arrays[1][:1])
