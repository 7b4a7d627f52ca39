"""AdamW and the norm of gradients over lists of tensors, against float64."""

import numpy as np
import pytest
from conftest import FP8, HIGH, assert_near, bits_of, codes_of, encode, largest, rounded, values, wide

import nvte

SHAPES = [(1,), (7,), (4096,), (5, 9), (130, 132), (3, 4, 8), (64, 200), (0, 4), (2050,)]


def as_f32(fw, v):
    return fw.array(np.asarray(v, np.float32).reshape(1))


def parameters(fw, rng, weight, gradient, master):
    held = [values(rng, s, special=False) for s in SHAPES]
    w = [fw.array(rounded(v, weight)) for v in held]
    g = [rounded(values(rng, s, special=False), gradient) for s in SHAPES]
    masters = [fw.array(v.astype(np.float32)) if master else None for v in held]
    exact = [(v if master else rounded(v, weight)) for v in held]
    m, v = ([fw.array(np.zeros(s, np.float32)) for s in SHAPES] for _ in range(2))
    return w, g, masters, m, v, [wide(e) for e in exact]


@pytest.mark.parametrize("weight", HIGH)
@pytest.mark.parametrize("master", [False, True])
@pytest.mark.parametrize("decoupled", [False, True])
def test_steps(fw, rng, weight, master, decoupled):
    gradient = HIGH[int(rng.integers(3))]
    w, g, masters, m, v, exact = parameters(fw, rng, weight, gradient, master)
    arrays = [fw.array(x) for x in g]
    tensors = nvte.ops.adamw_list(w, arrays, m, v, masters)
    assert len(tensors) == len(SHAPES) and "tensors on" in repr(tensors)
    step = as_f32(fw, 0)
    first, second, unsure = ([np.zeros(s) for s in SHAPES] for _ in range(3))
    for t in (1, 2):
        nvte.ops.adamw(tensors, step, lr=0.01, weight_decay=0.1, decoupled=decoupled)
        assert fw.numpy(step)[0] == t
        for i in range(len(SHAPES)):
            gi = wide(g[i]) + (0 if decoupled else 0.1 * exact[i])
            # Where a gradient and a decay nearly cancel, their rounding decides how much of a whole step is made.
            if not decoupled:
                unsure[i] = np.maximum(unsure[i], 0.05 * (np.abs(wide(g[i])) + 0.1 * np.abs(exact[i])) / (np.abs(gi) + 1e-8))
            first[i] = 0.9 * first[i] + 0.1 * gi
            second[i] = 0.999 * second[i] + 0.001 * gi**2
            change = 0.01 / (1 - 0.9**t) * first[i] / (np.sqrt(second[i] / (1 - 0.999**t)) + 1e-8)
            exact[i] = exact[i] - change - (0.01 * 0.1 * exact[i] if decoupled else 0)
            terms = np.abs(exact[i]) + 1 + unsure[i]
            assert_near(fw.numpy(w[i]), exact[i], weight, terms)
            if master:
                assert_near(fw.numpy(masters[i]), exact[i], "float32", terms)
                assert np.array_equal(codes_of(rounded(fw.numpy(masters[i]), weight)), codes_of(fw.numpy(w[i])))
            else:
                exact[i] = wide(fw.numpy(w[i]))
    # Other gradients in the same list.
    arrays = [fw.array(np.zeros_like(x)) for x in g]
    tensors.set_gradients(arrays)
    nvte.ops.adamw(tensors, step, lr=0.0)
    assert_near(fw.numpy(m[4]), 0.9 * first[4], "float32", 1)


@pytest.mark.parametrize("out", FP8)
def test_fp8_copies(fw, rng, out):
    w, g, masters, m, v, _ = parameters(fw, rng, "bfloat16", "bfloat16", True)
    matrices = [i for i, s in enumerate(SHAPES) if len(s) == 2 and 0 not in s]
    scale = np.float32(rng.uniform(1, 30))
    copies = [None] * len(SHAPES)
    for i in matrices:
        q = nvte.ops.cast_to_fp8(w[i], out, scale=float(scale), transpose=True, amax=as_f32(fw, 0))
        copies[i] = q
        q.amax = as_f32(fw, 0)
    tensors = nvte.ops.adamw_list(w, [fw.array(x) for x in g], m, v, masters, copies)
    nvte.ops.adamw(tensors, as_f32(fw, 0), lr=0.05)
    for i in matrices:
        new = fw.numpy(w[i]).astype(np.float32)
        want = encode(new * scale, out)
        assert np.array_equal(codes_of(fw.numpy(copies[i].data)), want)
        assert np.array_equal(codes_of(fw.numpy(copies[i].data_t)), want.T)
        assert bits_of(fw.numpy(copies[i].scale_inv)) == bits_of(np.float32(1) / scale)
        assert bits_of(fw.numpy(copies[i].amax)) == largest(new)


def test_scalars(fw, rng):
    w, g, masters, m, v, _ = parameters(fw, rng, "float32", "float16", False)
    tensors = nvte.ops.adamw_list(w, [fw.array(x) for x in g], m, v)
    before, step = [np.array(fw.numpy(x)) for x in w], as_f32(fw, 0)
    nvte.ops.adamw(tensors, step, found_inf=as_f32(fw, 1))
    assert fw.numpy(step)[0] == 0 and all(np.array_equal(fw.numpy(a), b) for a, b in zip(w, before))
    nvte.ops.adamw(tensors, step, lr=as_f32(fw, 0.5), found_inf=as_f32(fw, 0), grad_scale=as_f32(fw, 64), clip=as_f32(fw, 0.5), weight_decay=0)
    assert fw.numpy(step)[0] == 1
    gi = wide(g[2]) / 128
    want = wide(before[2]) - 0.5 * gi / (np.abs(gi) + 1e-8)
    assert_near(fw.numpy(w[2]), want, "float32", np.abs(want) + 1)
    with pytest.raises(nvte.ArgumentError, match="beta1"):
        nvte.ops.adamw(tensors, step, betas=(1.0, 0.9))
    with pytest.raises(TypeError, match="adamw_list"):
        nvte.ops.adamw(w, step)
    with pytest.raises(ValueError, match="gradients: has 1"):
        nvte.ops.adamw_list(w, [g[0]], m, v)
    with pytest.raises(ValueError, match="no tensors"):
        nvte.ops.adamw_list([], [], [], [])
    with pytest.raises(TypeError, match="lr is None"):
        nvte.ops.adamw(tensors, step, lr=None)


def test_a_list_keeps_its_context(fw):
    device = fw.device if hasattr(fw, "device") else "cpu"
    tensors = nvte.ops.grad_list([fw.array(np.full(9, 2, np.float32))], context=nvte.Context(device))
    assert fw.numpy(nvte.ops.grad_norm(tensors))[0] == 6


def test_other_gradients(fw, rng):
    held = [values(rng, s, special=False) for s in ((6,), (2, 5))]
    tensors = nvte.ops.grad_list([fw.array(v) for v in held])
    kept = tensors.gradients
    for wrong in (
        [fw.array(held[0].astype(np.float16)), fw.array(held[1])],
        [fw.array(held[0]), fw.array(held[1][:1])],
        [fw.array(np.repeat(held[0], 2))[::2], fw.array(held[1])],
    ):
        with pytest.raises(ValueError, match="gradients: must be"):
            tensors.set_gradients(wrong)
    with pytest.raises(nvte.ArgumentError, match="count"):
        tensors.set_gradients([fw.array(held[0])])
    # What was refused left the list, and what it keeps alive, as they were.
    assert tensors.gradients is kept
    assert abs(fw.numpy(nvte.ops.grad_norm(tensors))[0] - np.sqrt(sum((v**2).sum() for v in held))) < 1e-4
    tensors.set_gradients([fw.array(3 * held[0]), fw.array(3 * held[1].reshape(5, 2))])
    assert abs(fw.numpy(nvte.ops.grad_norm(tensors))[0] - 3 * np.sqrt(sum((v**2).sum() for v in held))) < 1e-4


@pytest.mark.parametrize("high", HIGH)
def test_grad_norm(fw, rng, high):
    held = [rounded(values(rng, s, special=False), high) for s in SHAPES]
    arrays = [fw.array(x) for x in held]
    want = np.sqrt(sum((wide(x) ** 2).sum() for x in held))
    tensors = nvte.ops.grad_list(arrays)
    clip, found = as_f32(fw, 7), as_f32(fw, 7)
    norm = nvte.ops.grad_norm(tensors, max_norm=want / 2, clip=clip, found_inf=found)
    assert abs(fw.numpy(norm)[0] - want) <= 2e-6 * want
    assert abs(fw.numpy(clip)[0] - 0.5) < 1e-5 and fw.numpy(found)[0] == 0
    assert abs(fw.numpy(nvte.ops.grad_norm(arrays, grad_scale=as_f32(fw, 8)))[0] - want / 8) <= 1e-6 * want
    nvte.ops.grad_scale(tensors, clip)
    factor = fw.numpy(clip)[0]
    for a, x in zip(arrays, held):
        assert np.array_equal(codes_of(fw.numpy(a)), codes_of(rounded(x.astype(np.float32) * factor, high)))
    if high != "float16":
        big = [fw.array(rounded(np.full(5000, 1e30, np.float32), high))]
        assert abs(fw.numpy(nvte.ops.grad_norm(big))[0] / (1e30 * np.sqrt(5000)) - 1) < 1e-2
    bad = np.ones(40, np.float32)
    bad[17] = np.nan
    nvte.ops.grad_norm([fw.array(rounded(bad, high))], found_inf=found)
    assert fw.numpy(found)[0] == 1
