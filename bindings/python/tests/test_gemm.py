"""Products against float64."""

import itertools

import numpy as np
import pytest
from conftest import BACKEND, FP8, HALF_ULP, HIGH, NUMPY, assert_codes_near, bits_of, codes_of, decode, distance, rounded, values, wide

import nvte


def operand(fw, rng, name, rows, cols, transposed, pad=0):
    """An FP8 operand as it is passed, and its float64 values [rows, cols] as the product reads them."""
    codes = nvte_codes(rng, name, (cols, rows) if transposed else (rows, cols))
    inverse = np.float32(rng.uniform(0.1, 2))
    q = nvte.Fp8Tensor(fw.strided(codes.view(NUMPY[name]), pad), fw.array(np.full(1, inverse)))
    held = decode(codes, name).astype(np.float64) * np.float64(inverse)
    return q, held.T if transposed else held


def nvte_codes(rng, name, shape):
    """Codes of normal values."""
    from conftest import encode

    return encode(values(rng, shape, special=False), name)


def bound(k, mode, fp8):
    """Relative Frobenius error that NUMERICS 9 allows before the output is rounded."""
    if not fp8 or BACKEND == "cpu":
        return 2.0**-20 * np.sqrt(max(k, 1))
    return 2.0**-12 if mode == "precise" else max(2.0**-14 * np.sqrt(max(k, 1)), 2.0**-12)


@pytest.mark.parametrize("formats", list(itertools.product(FP8, FP8)), ids=lambda f: f"{f[0][7:]}-{f[1][7:]}")
@pytest.mark.parametrize("mode", ["fast", "precise"])
def test_fp8_gemm(fw, rng, formats, mode):
    for m, n, k in [(1, 1, 1), (16, 32, 48), (33, 17, 65), (128, 64, 256), (5, 7, 0), (0, 4, 8)]:
        for ta, tb in itertools.product([False, True], repeat=2):
            pad = int(rng.integers(0, 3))
            a, left = operand(fw, rng, formats[0], m, k, ta, pad)
            b, right = operand(fw, rng, formats[1], n, k, tb, pad)
            bias = values(rng, n, special=False)
            d = nvte.ops.fp8_gemm(a, b, accumulate=mode, transpose_a=ta, transpose_b=tb, alpha=0.5, bias=fw.array(bias), dtype="float32")
            want = 0.5 * (left @ right.T) + wide(bias)
            assert tuple(d.shape) == (m, n)
            size = np.linalg.norm(0.5 * np.abs(left) @ np.abs(right).T) / max(np.linalg.norm(want), 1e-30)
            assert distance(fw.numpy(d), want) <= bound(k, mode, True) * max(1, size) + HALF_ULP["float32"]


@pytest.mark.parametrize("high", HIGH)
def test_gemm(fw, rng, high):
    for m, n, k in [(1, 1, 1), (16, 32, 48), (33, 17, 65), (5, 7, 0), (0, 4, 8)]:
        for ta, tb in itertools.product([False, True], repeat=2):
            left, right = (rounded(values(rng, s, special=False), high) for s in ((m, k), (n, k)))
            a = fw.strided(np.ascontiguousarray(left.T) if ta else left, 1)
            b = fw.strided(np.ascontiguousarray(right.T) if tb else right, 2)
            d = nvte.ops.gemm(a, b, transpose_a=ta, transpose_b=tb)
            want = wide(left) @ wide(right).T
            assert tuple(d.shape) == (m, n) and str(d.dtype).endswith(high)
            # Half a subnormal of f16, where a single product is as small.
            grain = 2.0**-25 if high == "float16" else 0
            assert distance(wide(fw.numpy(d)), want, grain) <= 4 * bound(k, "precise", False) + HALF_ULP[high]


def test_accumulates_in_place(fw, rng):
    left, right = (rounded(values(rng, s, special=False), "bfloat16") for s in ((40, 24), (56, 24)))
    before = values(rng, (40, 56), special=False)
    main = fw.array(before)
    d = nvte.ops.gemm(fw.array(left), fw.array(right), c=main, beta=1.0, out=main)
    assert d is main
    assert distance(fw.numpy(main), wide(left) @ wide(right).T + before) <= 1e-5
    other = nvte.ops.gemm(fw.array(left), fw.array(right), c=fw.array(before), beta=-2.0, dtype="float32")
    assert distance(fw.numpy(other), wide(left) @ wide(right).T - 2.0 * before) <= 1e-5
    # With beta 0 what C and D hold does not matter.
    poisoned = fw.array(np.full((40, 56), np.nan, np.float32))
    nvte.ops.gemm(fw.array(left), fw.array(right), out=poisoned)
    assert distance(fw.numpy(poisoned), wide(left) @ wide(right).T) <= 1e-5


def test_fp8_output(fw, rng):
    a, left = operand(fw, rng, "float8_e4m3", 48, 64, False)
    b, right = operand(fw, rng, "float8_e4m3", 32, 64, False)
    amax, scale = fw.array(np.zeros(1, np.float32)), np.float32(3)
    d = nvte.ops.fp8_gemm(a, b, accumulate="precise", dtype="e5m2", scale=3.0, amax=amax)
    want = left @ right.T
    assert isinstance(d, nvte.Fp8Tensor) and d.dtype is nvte.float8_e5m2
    slack = bound(64, "precise", True) * (np.abs(left) @ np.abs(right).T)
    assert_codes_near(codes_of(fw.numpy(d.data)), want, "float8_e5m2", scale, slack * 2.0**20)
    assert bits_of(fw.numpy(d.scale_inv)) == bits_of(np.float32(1) / scale)
    assert abs(fw.numpy(amax)[0] - np.abs(want).max()) <= slack.max() + 1e-6


def test_shapes_and_layouts(fw, rng):
    held = values(rng, (2, 3, 24), special=False)
    weight = values(rng, (10, 24), special=False)
    y = nvte.ops.gemm(fw.array(held), fw.array(weight))
    assert tuple(y.shape) == (2, 3, 10) and distance(fw.numpy(y), held.astype(float) @ weight.T.astype(float)) <= 1e-5
    # The default of an FP8 product is bfloat16; the layout along K is read, be it the transposed copy.
    q = nvte.ops.cast_to_fp8(fw.array(weight), transpose=True)
    x = nvte.ops.cast_to_fp8(fw.array(values(rng, (16, 10), special=False)))
    dx = nvte.ops.fp8_gemm(x, q, accumulate="fast", transpose_b=True)
    only = nvte.Fp8Tensor(None, q.scale_inv, q.data_t)
    again = nvte.ops.fp8_gemm(x, only, accumulate="fast", transpose_b=True)
    want = decode(codes_of(fw.numpy(x.data)), "float8_e4m3").astype(float) @ decode(codes_of(fw.numpy(q.data)), "float8_e4m3")
    for d in (dx, again):
        assert str(d.dtype).endswith("bfloat16") and distance(wide(fw.numpy(d)), want) <= 2.0**-8


def test_workspace_and_plans(fw, rng):
    a, left = operand(fw, rng, "float8_e4m3", 33, 65, False)
    b, right = operand(fw, rng, "float8_e4m3", 31, 65, False)
    size = nvte.ops.gemm_workspace(a, b, accumulate="precise")
    room = fw.array(np.zeros((33, 31), np.float32))
    assert size >= 0
    # With the output at hand the answer holds for its very address.
    work = fw.array(np.zeros(max(16, nvte.ops.gemm_workspace(a, b, accumulate="precise", out=room)), np.uint8))
    d = nvte.ops.fp8_gemm(a, b, accumulate="precise", out=room, workspace=work)
    assert d is room and distance(fw.numpy(room), left @ right.T) <= bound(65, "precise", True) * 8
    nvte.ops.gemm_prepare(a, b, out=room, accumulate="precise", candidates=4)
    device = "cuda:0" if BACKEND == "cuda" else "cpu"
    text = nvte.ops.gemm_plans_export(device)
    nvte.ops.gemm_plans_import(device, text)
    with pytest.raises(nvte.Error):
        nvte.ops.gemm_plans_import(device, "no plan\n")


def test_errors(fw):
    x = fw.array(np.ones((4, 6), np.float32))
    q = nvte.ops.cast_to_fp8(x)
    with pytest.raises(TypeError, match="accumulate"):
        nvte.ops.fp8_gemm(q, q)
    with pytest.raises(ValueError, match="'fast' or 'precise'"):
        nvte.ops.fp8_gemm(q, q, accumulate="slow")
    with pytest.raises(TypeError, match="Fp8Tensor"):
        nvte.ops.fp8_gemm(x, q, accumulate="fast")
    with pytest.raises(nvte.ArgumentError, match="must be K = 6"):
        nvte.ops.gemm(x, fw.array(np.ones((4, 5), np.float32)))
    with pytest.raises(nvte.ArgumentError, match="b.dtype"):
        nvte.ops.gemm(x, fw.array(np.ones((4, 6), np.float16)))
    with pytest.raises(nvte.ArgumentError, match="c = NULL"):
        nvte.ops.gemm(x, x, beta=1.0)
    with pytest.raises(ValueError, match="bias"):
        nvte.ops.gemm(x, x, bias=fw.array(np.ones(5, np.float32)))
