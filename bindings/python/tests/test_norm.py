"""LayerNorm and RMSNorm against float64."""

import numpy as np
import pytest
from conftest import FP8, GRAIN, HIGH, assert_codes_near, assert_near, bits_of, codes_of, distance, rounded, values, wide

import nvte

EPS = 1e-5


def reference(kind, x, gamma, beta, centered):
    """(y, mu, rsigma, largest terms of y) in float64."""
    x = wide(x)
    mu = x.mean(-1, keepdims=True) if kind == "layernorm" else np.zeros((*x.shape[:-1], 1))
    rsigma = 1 / np.sqrt(((x - mu) ** 2).mean(-1, keepdims=True) + EPS)
    weight = (0 if gamma is None else wide(gamma)) + (1 if centered or gamma is None else 0)
    shift = 0 if beta is None else wide(beta)
    t = np.maximum(np.maximum(np.abs(x), np.abs(mu)) * rsigma * np.abs(weight), np.abs(shift))
    return (x - mu) * rsigma * weight + shift, mu[..., 0], rsigma[..., 0], t


def forward(kind, x, gamma, beta, **options):
    if kind == "layernorm":
        return nvte.ops.layernorm_fwd(x, gamma, beta, EPS, **options)
    y, rsigma = nvte.ops.rmsnorm_fwd(x, gamma, EPS, **options)
    return y, None, rsigma


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("high", HIGH)
@pytest.mark.parametrize("centered", [False, True])
def test_forward(fw, rng, kind, high, centered):
    for shape in [(1, 1), (5, 7), (33, 256), (4, 1000), (0, 8), (2, 3, 40)]:
        held = rounded(values(rng, shape, special=False) + 1, high)
        hidden = shape[-1]
        gamma = rounded(values(rng, hidden, special=False), HIGH[int(rng.integers(3))])
        beta = rounded(values(rng, hidden, special=False), "float32") if kind == "layernorm" else None
        x = fw.strided(held, 3) if len(shape) == 2 else fw.array(held)
        options = dict(zero_centered_gamma=centered)
        want, mu, rsigma, t = reference(kind, held, gamma, beta, centered)
        g, b = fw.array(gamma), None if beta is None else fw.array(beta)
        y, m, r = forward(kind, x, g, b, **options)
        assert tuple(y.shape) == shape and str(y.dtype).endswith(high)
        assert_near(fw.numpy(y), want, high, t)
        if m is not None:
            assert_near(fw.numpy(m), mu, "float32", np.abs(wide(held)).max(-1, initial=0))
        assert tuple(r.shape) == shape[:-1]
        assert_near(fw.numpy(r), rsigma, "float32", rsigma)


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("out", FP8)
def test_forward_to_fp8(fw, rng, kind, out):
    held = rounded(values(rng, (70, 96), special=False), "bfloat16")
    gamma = values(rng, 96, special=False)
    scale = np.float32(rng.uniform(1, 20))
    amax = fw.array(np.zeros(1, np.float32))
    y, _, _ = forward(kind, fw.array(held), fw.array(gamma), None, dtype=out, scale=float(scale), amax=amax, transpose=True)
    want, _, _, t = reference(kind, held, gamma, None, False)
    assert isinstance(y, nvte.Fp8Tensor) and y.dtype.name == out
    assert_codes_near(codes_of(fw.numpy(y.data)), want, out, scale, t)
    assert np.array_equal(codes_of(fw.numpy(y.data_t)), codes_of(fw.numpy(y.data)).T)
    assert abs(fw.numpy(amax)[0] - np.abs(want).max()) <= 1e-5 * np.abs(want).max()
    assert bits_of(fw.numpy(y.scale_inv)) == bits_of(np.float32(1) / scale)


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("high", HIGH)
@pytest.mark.parametrize("centered", [False, True])
def test_backward(fw, rng, kind, high, centered):
    for shape in [(1, 5), (40, 33), (257, 128), (0, 8), (2, 5, 16)]:
        hidden = shape[-1]
        held, gradient = (rounded(values(rng, shape, special=False), high) for _ in range(2))
        gamma = values(rng, hidden, special=False)
        _, mu, rsigma, _ = reference(kind, held, gamma, None, centered)
        mu, rsigma = mu.astype(np.float32), rsigma.astype(np.float32)
        x, dy, g, r = fw.array(held), fw.array(gradient), fw.array(gamma), fw.array(rsigma)
        if kind == "layernorm":
            dx, dgamma, dbeta = nvte.ops.layernorm_bwd(dy, x, g, fw.array(mu), r, zero_centered_gamma=centered)
        else:
            (dx, dgamma), dbeta = nvte.ops.rmsnorm_bwd(dy, x, g, r, zero_centered_gamma=centered), None
        hat = (wide(held) - (mu[..., None].astype(float) if kind == "layernorm" else 0)) * rsigma[..., None].astype(float)
        inner = wide(gradient) * (wide(gamma) + centered)
        mean = lambda v: v.mean(-1, keepdims=True)  # noqa: E731
        want = (inner - hat * mean(inner * hat) - (mean(inner) if kind == "layernorm" else 0)) * rsigma[..., None].astype(float)
        rows = tuple(range(len(shape) - 1))
        assert tuple(dx.shape) == shape and str(dx.dtype).endswith(high) and tuple(dgamma.shape) == (hidden,)
        assert distance(wide(fw.numpy(dx)), want, GRAIN[high]) <= {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}[high]
        assert distance(fw.numpy(dgamma), (wide(gradient) * hat).sum(rows)) <= 1e-4
        if dbeta is not None:
            assert distance(fw.numpy(dbeta), wide(gradient).sum(rows)) <= 1e-4


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("high", HIGH)
def test_residual(fw, rng, kind, high):
    for shape in [(3, 7), (40, 256), (2, 3, 40), (0, 8)]:
        held, more, gradient, other = (rounded(values(rng, shape, special=False), high) for _ in range(4))
        gamma = values(rng, shape[-1], special=False)
        x, g = fw.array(held), fw.array(gamma)
        y, *others, total = forward_all(kind, x, g, residual=fw.array(more))
        want_total = rounded((wide(held) + wide(more)).astype(np.float32), high)
        assert np.array_equal(wide(fw.numpy(total)), wide(want_total))
        plain = forward_all(kind, fw.array(want_total), g)
        assert len(plain) == 1 + len(others)
        for a, b in zip((y, *others), plain):
            assert np.array_equal(wide(fw.numpy(a)), wide(fw.numpy(b)))
        room = fw.array(np.zeros(shape, np.float32)) if high == "float32" else None
        if room is not None:
            assert forward_all(kind, x, g, residual=fw.array(more), sum_out=room)[-1] is room
        # The gradient of the sum is added in float32, before dx is rounded.
        function = getattr(nvte.ops, f"{kind}_bwd")
        dy = fw.array(gradient)
        dx, *sums = function(dy, total, g, *others, dsum=fw.array(other))
        alone, *alone_sums = function(fw.array(wide(gradient).astype(np.float32)), fw.array(wide(want_total).astype(np.float32)), g, *others)
        assert_near(fw.numpy(dx), wide(fw.numpy(alone)) + wide(other), high, np.abs(wide(fw.numpy(alone))) + np.abs(wide(other)) + 1)
        assert len(sums) == len(alone_sums)
        for a, b in zip(sums, alone_sums):
            assert distance(fw.numpy(a), wide(fw.numpy(b))) <= 1e-5
    with pytest.raises(ValueError, match="goes with a residual"):
        forward_all(kind, x, g, sum_out=x)


def forward_all(kind, x, gamma, **options):
    """What the function returns."""
    return getattr(nvte.ops, f"{kind}_fwd")(x, gamma, eps=EPS, **options)


def test_options(fw, rng):
    held = values(rng, (6, 10), special=False)
    x = fw.array(held)
    y, mu, rsigma = nvte.ops.layernorm_fwd(x, stats=False)
    assert mu is None and rsigma is None
    assert_near(fw.numpy(y), reference("layernorm", held, None, None, False)[0], "float32", np.abs(held))
    _, mu, rsigma = nvte.ops.layernorm_fwd(x)
    dx, dgamma, dbeta = nvte.ops.layernorm_bwd(x, x, None, mu, rsigma)
    assert dgamma is None and dbeta is None
    dx, dgamma, dbeta = nvte.ops.layernorm_bwd(x, x, None, mu, rsigma, dgamma=True, dbeta=fw.array(np.zeros(10, np.float32)), dx=dx)
    assert dgamma is not None and distance(fw.numpy(dbeta), held.sum(0)) < 1e-5
    size = nvte.ops.norm_bwd_workspace("cuda:0" if "cuda" in fw.name else "cpu", 10)
    assert size >= 0
    with pytest.raises(nvte.ArgumentError, match=r"gamma = \[1, 9\]"):
        nvte.ops.layernorm_fwd(x, fw.array(np.ones(9, np.float32)))
    with pytest.raises(ValueError, match="must be a vector"):
        nvte.ops.layernorm_fwd(x, fw.array(np.ones((2, 10), np.float32)))
    with pytest.raises(nvte.ArgumentError, match="eps"):
        nvte.ops.rmsnorm_fwd(x, eps=-1.0)
    with pytest.raises(ValueError, match="row-wise"):
        nvte.ops.rmsnorm_fwd(x, transpose=True)
