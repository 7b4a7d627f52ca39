"""Cross-entropy: against NumPy in float64, whole and in slices."""

import numpy as np
import pytest
from conftest import HIGH, assert_near, rounded, values, wide

import nvte


def reference(x, target, ignore, smoothing, reduction, dloss=1.0):
    """(loss per token, reduced loss, logsumexp, gradient) in float64."""
    v = wide(x).reshape(-1, x.shape[-1])
    t = np.asarray(target).reshape(-1)
    lse = np.log(np.exp(v - v.max(-1, keepdims=True)).sum(-1)) + v.max(-1)
    counts = t != ignore
    at = np.where(counts, t, 0)
    hit = np.eye(v.shape[1])[at]
    loss = (1 - smoothing) * (lse - (v * hit).sum(-1)) + smoothing * (lse - v.mean(-1))
    loss = np.where(counts, loss, 0)
    g = np.asarray(dloss) / (counts.sum() if reduction == "mean" else 1)
    p = np.exp(v - lse[:, None])
    dx = np.where(counts[:, None], (p - smoothing / v.shape[1] - (1 - smoothing) * hit) * np.reshape(g, (-1, 1)), 0)
    total = {"none": None, "sum": loss.sum(), "mean": loss.sum() / max(counts.sum(), 1)}[reduction]
    return loss.reshape(target.shape), total, lse.reshape(target.shape), dx.reshape(x.shape)


@pytest.mark.parametrize("high", HIGH)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_one_pass(fw, rng, high, reduction):
    for shape in ((4, 7), (2, 3, 130), (5, 1001)):
        for smoothing in (0.0, 0.1):
            held = rounded(values(rng, shape, special=False) * 3, high)
            target = rng.integers(0, shape[-1], shape[:-1]).astype(rng.choice([np.int64, np.int32]))
            target.reshape(-1)[0] = -100
            scale = np.float32(rng.standard_normal())
            out = nvte.ops.cross_entropy(
                fw.array(held), fw.array(target), reduction=reduction, label_smoothing=smoothing, dlogits=True, loss=True,
                logsumexp=True, total=reduction != "none", dloss=fw.array(np.full(1, scale)),
            )  # fmt: skip
            loss, total, lse, dx = reference(held, target, -100, smoothing, reduction, scale)
            assert_near(fw.numpy(out.loss), loss, "float32", 30)
            assert_near(fw.numpy(out.logsumexp), lse, "float32", 30)
            if total is None:
                assert out.total is None
            else:
                assert_near(fw.numpy(out.total), total, "float32", 1000)
            assert tuple(out.dlogits.shape) == shape and str(out.dlogits.dtype).endswith(high)
            assert_near(fw.numpy(out.dlogits), dx, high, np.abs(scale))


def test_defaults_and_in_place(fw, rng):
    held = values(rng, (6, 33), special=False)
    target = rng.integers(0, 33, 6)
    x = fw.array(held)
    out = nvte.ops.cross_entropy(x, fw.array(target))
    assert out.loss is None and out.logsumexp is None and out.dlogits is None and tuple(out.total.shape) == ()
    loss, total, _, dx = reference(held, target, -100, 0.0, "mean")
    assert_near(fw.numpy(out.total), total, "float32", 30)
    again = nvte.ops.cross_entropy(x, fw.array(target), reduction="none")
    assert again.total is None
    assert_near(fw.numpy(again.loss), loss, "float32", 30)
    assert nvte.ops.cross_entropy(x, fw.array(target), dlogits=x).dlogits is x
    assert_near(fw.numpy(x), dx, "float32", 1)
    size = nvte.ops.cross_entropy_workspace("cuda:0" if "cuda" in fw.name else "cpu", 6)
    assert size >= 0


def test_slices(fw, rng):
    held = values(rng, (2, 5, 100), special=False)
    target = rng.integers(0, 100, (2, 5))
    target[0, 0] = 3
    cuts, t = (0, 17, 60, 100), fw.array(target)
    common = {"ignore_index": 3, "label_smoothing": 0.2}
    pieces = [fw.array(held[..., a:b].copy()) for a, b in zip(cuts, cuts[1:])]
    found = [fw.numpy(nvte.ops.cross_entropy_partial(p, t, a, 100, **common)) for p, a in zip(pieces, cuts)]
    out = nvte.ops.cross_entropy_combine(fw.array(np.stack(found)), t, 100, logsumexp=True, loss=True, total=True, **common)
    loss, total, lse, dx = reference(held, target, 3, 0.2, "mean")
    assert_near(fw.numpy(out.total), total, "float32", 30)
    assert_near(fw.numpy(out.loss), loss, "float32", 30)
    assert_near(fw.numpy(out.logsumexp), lse, "float32", 30)
    for p, a, b in zip(pieces, cuts, cuts[1:]):
        got = nvte.ops.cross_entropy_gradient(p, t, out.combined, a, 100, **common)
        assert_near(fw.numpy(got), dx[..., a:b], "float32", 1)


def test_scale_rows(fw, rng):
    held = values(rng, (3, 4, 9), special=False)
    x = fw.array(held)
    assert nvte.ops.scale_rows(x, fw.array(np.full(1, 0.5, np.float32))) is x
    assert (fw.numpy(x) == held * np.float32(0.5)).all()
    scales = rng.standard_normal(12).astype(np.float32)
    nvte.ops.scale_rows(x, fw.array(scales))
    assert (fw.numpy(x) == held * np.float32(0.5) * scales.reshape(3, 4, 1)).all()


def test_what_does_not_fit(fw, rng):
    x, target = fw.array(values(rng, (4, 9), special=False)), fw.array(np.zeros(4, np.int64))
    with pytest.raises(TypeError, match="64-bit or 32-bit integers"):
        nvte.ops.cross_entropy(x, fw.array(np.zeros(4, np.float32)))
    with pytest.raises(ValueError, match="4 integers"):
        nvte.ops.cross_entropy(x, fw.array(np.zeros(5, np.int64)))
    with pytest.raises(ValueError, match="reduction"):
        nvte.ops.cross_entropy(x, target, reduction="median")
    with pytest.raises(nvte.ArgumentError, match="label_smoothing"):
        nvte.ops.cross_entropy(x, target, label_smoothing=1.5)
    with pytest.raises(nvte.UnsupportedError, match="total"):
        nvte.ops.cross_entropy(x, target, reduction="none", total=True)
    with pytest.raises(ValueError, match="ranks, tokens, 4"):
        nvte.ops.cross_entropy_combine(x, target, 9)
