"""Dropout: the generator written out in numpy, and the same rounded operations."""

import numpy as np
import pytest
from conftest import HIGH, rounded, values

import nvte


def words(seed, offset, stream, count):
    """Philox4x32-10, words of `count` elements."""
    mask = np.uint64(0xFFFFFFFF)
    with np.errstate(over="ignore"):
        at = np.uint64(offset) + np.arange((count + 3) // 4, dtype=np.uint64)
    c = [at & mask, at >> np.uint64(32), *(np.full_like(at, v) for v in (stream & 0xFFFFFFFF, stream >> 32))]
    k = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(b >> np.uint64(32)) ^ c[1] ^ np.uint64(k[0]), b & mask, (a >> np.uint64(32)) ^ c[3] ^ np.uint64(k[1]), a & mask]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(c, -1).reshape(-1)[:count]


def test_known_answers():
    ones = 2**64 - 1
    assert [hex(w) for w in words(0, 0, 0, 4)] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]
    assert [hex(w) for w in words(ones, ones, ones, 4)] == ["0x408f276d", "0x41c83b0e", "0xa20bc7c6", "0x6d5451fd"]


@pytest.mark.parametrize("high", HIGH)
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
def test_forward_and_backward(fw, rng, high, p):
    for shape in [(5, 64), (3, 4, 24), (7, 13), (1, 5000), (2, 0)]:
        cols, count = shape[-1], int(np.prod(shape))
        x, residual, dy = (rounded(values(rng, shape, special=False), high) for _ in range(3))
        bias = rounded(values(rng, cols, special=False), HIGH[int(rng.integers(3))])
        seed, offset = (int(v) for v in rng.integers(0, 2**63, 2))
        state = fw.array(np.array([seed, offset], np.int64))
        kept = (words(seed, offset, 7, count) >= round(p * 2**32)).reshape(shape)
        scale = np.float32(1 / (1 - p)) if p < 1 else np.float32(0)
        f = np.float32
        want = np.where(kept, (x.astype(f) + bias.astype(f)) * scale, f(0)) + residual.astype(f)
        arrays = [fw.array(a) for a in (x, bias, residual)]
        y, mask = nvte.ops.dropout_fwd(arrays[0], p, state, bias=arrays[1], residual=arrays[2], mask=True, rng_stream=7)
        assert np.array_equal(fw.numpy(y).astype(f), want.astype(x.dtype).astype(f)) and tuple(y.shape) == shape
        bits = np.packbits(kept, axis=-1, bitorder="little") if cols else np.zeros((*shape[:-1], 0), np.uint8)
        assert np.array_equal(fw.numpy(mask), bits)
        plain, none = nvte.ops.dropout_fwd(arrays[0], p, state, rng_stream=7)
        assert none is None
        assert np.array_equal(fw.numpy(plain).astype(f), np.where(kept, x.astype(f) * scale, f(0)).astype(x.dtype).astype(f))
        exact = np.where(kept, dy.astype(f) * scale, f(0))
        for given in (dict(rng=state, rng_stream=7), dict(mask=mask)):
            dx, dbias = nvte.ops.dropout_bwd(fw.array(dy), p, dbias=fw.array(np.ones(cols, f)), accumulate=True, **given)
            assert np.array_equal(fw.numpy(dx).astype(f), exact.astype(x.dtype).astype(f))
            sums = exact.astype(np.float64).reshape(-1, cols).sum(0) + 1 if cols else np.ones(0)
            assert np.allclose(fw.numpy(dbias), sums, rtol=1e-5, atol=1e-5)
        t = fw.array(dy)
        dx, dbias = nvte.ops.dropout_bwd(t, p, state, rng_stream=7, out=t, dbias=True)
        assert dx is t and str(dbias.dtype).endswith(high)
        assert np.array_equal(fw.numpy(dx).astype(f), exact.astype(x.dtype).astype(f))


def test_errors(fw):
    x, state = fw.array(np.zeros((3, 9), np.float32)), fw.array(np.zeros(2, np.int64))
    assert nvte.ops.dropout_bwd_workspace("cuda:0" if "cuda" in fw.name else "cpu", 3, 9) >= 0
    for wrong, message in [
        (dict(rng=state, mask=fw.array(np.zeros((3, 1), np.uint8))), "mask"),
        (dict(rng=fw.array(np.zeros(3, np.int64))), "rng"),
        (dict(rng=state, bias=x), "bias"),
    ]:
        with pytest.raises(ValueError, match=message):
            nvte.ops.dropout_fwd(x, 0.5, **wrong)
    with pytest.raises(TypeError, match="rng"):
        nvte.ops.dropout_fwd(x, 0.5, fw.array(np.zeros(2, np.float32)))
    with pytest.raises(nvte.Error, match="rng"):
        nvte.ops.dropout_fwd(x, 0.5)
    with pytest.raises(nvte.ArgumentError, match="p = 1.5"):
        nvte.ops.dropout_fwd(x, 1.5, state)
