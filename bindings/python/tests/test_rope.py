"""Rotary position embedding: the same rounded operations in numpy."""

import numpy as np
import pytest
from conftest import HIGH, rounded, values

import nvte

#: Where sequence, batch and heads stand.
AXES = {"sbhd": (0, 1, 2), "bshd": (1, 0, 2), "bhsd": (2, 0, 1)}


def rotate(x, cos, sin, interleaved):
    """x: [tokens, heads, head_dim]; cos, sin: float32 [tokens, rotary_dim / 2]."""
    half, name = cos.shape[1], x.dtype
    v = x.astype(np.float32)
    a, b = (v[..., 0 : 2 * half : 2], v[..., 1 : 2 * half : 2]) if interleaved else (v[..., :half], v[..., half : 2 * half])
    c, s = cos[:, None], sin[:, None]
    first, second = a * c - b * s, b * c + a * s
    out = x.copy()
    if interleaved:
        out[..., 0 : 2 * half : 2], out[..., 1 : 2 * half : 2] = first.astype(name), second.astype(name)
    else:
        out[..., :half], out[..., half : 2 * half] = first.astype(name), second.astype(name)
    return out


def same(got, want):
    return np.array_equal(np.asarray(got).astype(np.float32), np.asarray(want).astype(np.float32), equal_nan=True)


@pytest.mark.parametrize("high", HIGH)
@pytest.mark.parametrize("layout", AXES)
@pytest.mark.parametrize("interleaved", [False, True])
def test_layouts_and_positions(fw, rng, high, layout, interleaved):
    s, b, h = AXES[layout]
    for dim, rotary in [(64, 64), (128, 32), (10, 6), (16, 0)]:
        seq, batch, heads = (int(n) for n in rng.integers(1, 7, 3))
        cos, sin = nvte.ops.rope_table(12, rotary, 100.0)
        device = [fw.array(t) for t in (cos, sin)]
        plain = rounded(values(rng, (seq, batch, heads, dim), special=False), high)
        shape = [0, 0, 0, dim]
        shape[s], shape[b], shape[h] = seq, batch, heads
        # plain: [seq, batch, heads, dim]; the layout puts these where it has them.
        turned = np.ascontiguousarray(np.moveaxis(plain, (0, 1, 2), (s, b, h)))
        assert list(turned.shape) == shape
        first = np.arange(seq)[:, None] + np.zeros((1, batch), np.int64)
        each = rng.integers(0, 12, (seq, batch))
        for kind in (np.int32, np.int64):
            given = each if layout == "sbhd" else each.T
            starts = rng.integers(0, 4, batch)
            cases = [
                ({}, first),
                ({"start": 3}, first + 3),
                ({"positions": fw.array(given.astype(kind))}, each),
                ({"positions": fw.array(each[:, 0].astype(kind))}, each[:, :1] + 0 * each),
                ({"start_positions": fw.array(starts.astype(np.int32))}, first + starts),
            ]
            for options, rows in cases:
                for backward in (False, True):
                    function = nvte.ops.rope_bwd if backward else nvte.ops.rope_fwd
                    got = function(fw.array(turned), *device, layout=layout, interleaved=interleaved, **options)
                    table = cos[rows.reshape(-1)], (-sin if backward else sin)[rows.reshape(-1)]
                    want = rotate(plain.reshape(-1, heads, dim), *table, interleaved).reshape(plain.shape)
                    assert same(np.moveaxis(fw.numpy(got), (s, b, h), (0, 1, 2)), want)


def test_packed_sequences_and_in_place(fw, rng):
    cos, sin = nvte.ops.rope_table(9, 16)
    x = rounded(values(rng, (20, 3, 24), special=False), "bfloat16")
    cu = np.array([2, 5, 5, 12, 19], np.int32)
    place = [None, None, 0, 1, 2, *range(7), *range(7), None]
    starts = np.array([1, 0, 2, 0], np.int32)
    for shift in (None, starts):
        want = x.copy()
        for t, p in enumerate(place):
            if p is not None:
                p += 0 if shift is None else shift[np.searchsorted(cu, t, side="right") - 1]
                want[t : t + 1] = rotate(x[t : t + 1], cos[p : p + 1], sin[p : p + 1], False)
        t = fw.array(x)
        options = dict(layout="thd", cu_seqlens=fw.array(cu), start_positions=None if shift is None else fw.array(shift))
        tables = fw.array(cos), fw.array(sin)
        assert same(fw.numpy(nvte.ops.rope_fwd(t, *tables, **options)), want)
        assert nvte.ops.rope_fwd(t, *tables, out=t, **options) is t
        assert same(fw.numpy(t), want)


@pytest.mark.parametrize("order", ["grouped", "concatenated"])
@pytest.mark.parametrize("high", HIGH)
def test_packed_qkv(fw, rng, order, high):
    for layout, lead in (("sbhd", (5, 2)), ("bshd", (2, 5)), ("thd", (7,))):
        for q_heads, kv_heads, dim in ((4, 2, 32), (3, 3, 6), (6, 1, 16)):
            cos, sin = nvte.ops.rope_table(8, dim)
            heads = q_heads + 2 * kv_heads
            packed = rounded(values(rng, (*lead, heads * dim), special=False), high)
            if order == "grouped":
                groups = packed.reshape(*lead, kv_heads, -1, dim)
                parts = [groups[..., :-2, :].reshape(*lead, q_heads, dim), groups[..., -2, :], groups[..., -1, :]]
            else:
                parts = np.split(packed.reshape(*lead, heads, dim), [q_heads, q_heads + kv_heads], axis=-2)
            rows = np.arange(lead[0] if layout != "bshd" else 5)
            rows = np.broadcast_to(rows if layout == "thd" else rows[:, None] if layout == "sbhd" else rows[None], lead).reshape(-1)
            tables = fw.array(cos), fw.array(sin)
            turned = [
                rotate(p.reshape(-1, *p.shape[-2:]), cos[rows], sin[rows], True).reshape(p.shape) for p in parts[:2]
            ] + [parts[2]]
            options = dict(order=order, layout=layout, interleaved=True)
            got = nvte.ops.rope_qkv_fwd(fw.array(packed), *tables, q_heads, kv_heads, **options)
            for g, w in zip(got, turned):
                assert same(fw.numpy(g), w)
            # Backward of random gradients: rotated back and put together.
            grads = [rounded(values(rng, p.shape, special=False), high) for p in parts]
            back = [
                rotate(g.reshape(-1, *g.shape[-2:]), cos[rows], -sin[rows], True).reshape(g.shape) for g in grads[:2]
            ] + [grads[2]]
            if order == "grouped":
                shared = back[0].reshape(*lead, kv_heads, -1, dim)
                want = np.concatenate([shared, back[1][..., None, :], back[2][..., None, :]], axis=-2).reshape(*lead, -1)
            else:
                want = np.concatenate(back, axis=-2).reshape(*lead, -1)
            dqkv = nvte.ops.rope_qkv_bwd(*(fw.array(g) for g in grads), *tables, **options)
            assert same(fw.numpy(dqkv), want)


def test_nothing_to_rotate(fw):
    cos, sin = (fw.array(t) for t in nvte.ops.rope_table(4, 8))
    for shape in ((0, 2, 3, 8), (5, 0, 3, 8), (5, 2, 0, 8)):
        for layout in ("sbhd", "bshd", "bhsd"):
            for function in (nvte.ops.rope_fwd, nvte.ops.rope_bwd):
                assert tuple(function(fw.array(np.ones(shape, np.float32)), cos, sin, layout=layout).shape) == shape
    q, k, v = nvte.ops.rope_qkv_fwd(fw.array(np.ones((0, 2, 64), np.float32)), cos, sin, 4, 2)
    assert [tuple(t.shape) for t in (q, k, v)] == [(0, 2, 4, 8), (0, 2, 2, 8), (0, 2, 2, 8)]
    assert tuple(nvte.ops.rope_qkv_bwd(q, k, v, cos, sin).shape) == (0, 2, 64)
    # A table of no positions: every token lies outside.
    none = fw.array(np.zeros((0, 4), np.float32))
    assert np.isnan(fw.numpy(nvte.ops.rope_fwd(fw.array(np.ones((3, 1, 1, 8), np.float32)), none, none))).all()


def test_errors(fw):
    cos, sin = (fw.array(t) for t in nvte.ops.rope_table(4, 8))
    x = fw.array(np.zeros((3, 2, 2, 8), np.float32))
    assert not np.isfinite(fw.numpy(nvte.ops.rope_fwd(x, cos, sin, start=100))).any()
    for wrong, message in [
        (dict(layout="hdsb"), "layout"),
        (dict(layout="thd"), "dimensions"),
        (dict(cu_seqlens=fw.array(np.zeros(3, np.int32))), "thd"),
        (dict(positions=fw.array(np.zeros(4, np.int32))), "positions"),
        (dict(start_positions=fw.array(np.zeros(5, np.int32))), "start_positions"),
        (dict(out=fw.array(np.zeros((3, 2, 2, 6), np.float32))), "out"),
    ]:
        with pytest.raises(ValueError, match=message):
            nvte.ops.rope_fwd(x, cos, sin, **wrong)
    with pytest.raises(TypeError, match="positions"):
        nvte.ops.rope_fwd(x, cos, sin, positions=fw.array(np.zeros(3, np.float32)))
    with pytest.raises(TypeError, match="cos"):
        nvte.ops.rope_fwd(x, x, sin)
    with pytest.raises(nvte.ArgumentError, match="rotary_dim"):
        nvte.ops.rope_fwd(fw.array(np.zeros((3, 2, 2, 6), np.float32)), cos, sin)
    with pytest.raises(ValueError, match="cu_seqlens"):
        nvte.ops.rope_fwd(fw.array(np.zeros((3, 2, 8), np.float32)), cos, sin, layout="thd", cu_seqlens=fw.array(np.zeros((2, 2), np.int32)))
    with pytest.raises(ValueError, match="q, k and v"):
        nvte.ops.rope_qkv_fwd(fw.array(np.zeros((3, 2, 32), np.float32)), cos, sin, 2, 1, out=(x,))
    with pytest.raises(ValueError, match="does not hold"):
        nvte.ops.rope_qkv_fwd(fw.array(np.zeros((3, 2, 9), np.float32)), cos, sin, 2, 1)
    with pytest.raises(ValueError, match="order"):
        nvte.ops.rope_qkv_fwd(fw.array(np.zeros((3, 2, 32), np.float32)), cos, sin, 2, 1, order="mixed")
    with pytest.raises(ValueError, match="even"):
        nvte.ops.rope_table(3, 5)
