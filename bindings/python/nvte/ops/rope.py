"""Rotary position embedding, alone and fused with the split of packed QKV."""

from .. import _abi
from .._library import check, lib, packer
from ..dtypes import float32
from ._common import first_space, in_memory, whole

_angles = packer(
    _abi.nvte_rope_angles_t,
    "interleaved rotary_dim cos sin table_rows table_ld start positions positions_i64 reserved positions_seq_stride "
    "positions_batch_stride start_positions cu_seqlens sequences",
)
_plain = packer(
    _abi.nvte_rope_args_t,
    "dtype seq batch heads head_dim x x_seq_stride x_batch_stride x_head_stride y y_seq_stride y_batch_stride y_head_stride angles",
)
_packed = packer(
    _abi.nvte_rope_qkv_args_t,
    "dtype order reserved seq batch q_heads kv_heads head_dim qkv qkv_seq_stride qkv_batch_stride q q_seq_stride q_batch_stride k v "
    "kv_seq_stride kv_batch_stride angles",
)

#: Where sequence, batch and heads stand among the dimensions; the last one is the head's own.
LAYOUTS = {"sbhd": (0, 1, 2), "bshd": (1, 0, 2), "bhsd": (2, 0, 1), "thd": (0, None, 1)}
_ORDERS = {"concatenated": _abi.NVTE_QKV_CONCATENATED, "grouped": _abi.NVTE_QKV_GROUPED}


def rope_table(rows, rotary_dim, base=10000.0, *, start=0, like=None):
    """Cosines and sines, float32 [rows, rotary_dim / 2], of the angles t * base^(-2i / rotary_dim) for positions t from `start` on.

    like: an array of the framework and on the device where they are wanted; None: numpy.
    """
    if rows < 0 or rotary_dim < 0 or rotary_dim % 2:
        raise ValueError(f"rows = {rows} and rotary_dim = {rotary_dim}: must not be negative, and rotary_dim even")
    space, shape = None, (rows, rotary_dim // 2)
    if like is not None:
        space = first_space(like)
    if space is None or space.framework == "numpy":
        import numpy

        cos, sin = numpy.empty(shape, numpy.float32), numpy.empty(shape, numpy.float32)
        at = [a.__array_interface__["data"][0] for a in (cos, sin)]
    else:
        cos, sin = (space.torch.empty(shape, dtype=space.torch.float32) for _ in range(2))
        at = [cos.data_ptr(), sin.data_ptr()]
    check(lib.nvte_rope_table(whole("start", start), rows, rotary_dim, base, *at))
    return (cos, sin) if space is None or space.framework == "numpy" else (cos.to(space.where), sin.to(space.where))


def _order_of(layout):
    try:
        return LAYOUTS[layout]
    except (KeyError, TypeError):
        raise ValueError(f"layout = {layout!r}: must be one of {', '.join(LAYOUTS)}") from None


def _heads(space, name, x, layout):
    """(type number, address, (seq, batch, heads, head_dim), their strides but the last) of a tensor."""
    number, address, shape, strides = space.strided(name, space.given(name, x))
    if number > 2 or number < 0:
        raise TypeError(f"{name}: must be float32, float16 or bfloat16, and is {x.dtype}")
    s, b, h = _order_of(layout)
    if len(shape) != len(layout):
        raise ValueError(f"{name}: must have the {len(layout)} dimensions {layout}, and has the shape {tuple(shape)}")
    if shape[-1] > 1 and strides[-1] != 1:
        raise ValueError(f"{name}: the elements of a head must lie side by side: make it contiguous")
    batch, batch_stride = (1, 0) if b is None else (shape[b], strides[b])
    return number, address, (shape[s], batch, shape[h], shape[-1]), (strides[s], batch_stride, strides[h])


def _tokens(space, name, x, layout, heads):
    """The same for a packed row, whose last dimension holds `heads` heads."""
    number, address, shape, strides = space.strided(name, space.given(name, x))
    s, b, _ = _order_of(layout)
    dims = 2 if b is None else 3
    if layout == "bhsd" or len(shape) != dims:
        raise ValueError(f"{name}: must have {dims} dimensions for {layout}, the last one a token's, and has the shape {tuple(shape)}")
    width = shape[-1]
    if heads <= 0 or width % heads:
        raise ValueError(f"{name}: a token of {width} elements does not hold {heads} heads")
    if width > 1 and strides[-1] != 1:
        raise ValueError(f"{name}: the elements of a token must lie side by side: make it contiguous")
    batch, batch_stride = (1, 0) if b is None else (shape[b], strides[b])
    return number, address, (shape[s], batch, heads, width // heads), (strides[s], batch_stride)


def _tables(space, cos, sin, layout, seq, batch, interleaved, start, positions, start_positions, cu_seqlens):
    """The C struct of the angles."""
    tables = []
    for name, t in (("cos", cos), ("sin", sin)):
        number, address, shape, strides = space.strided(name, space.given(name, t))
        if number != float32.number or len(shape) != 2 or (shape[1] > 1 and strides[1] != 1):
            raise TypeError(f"{name}: must be float32 [positions, rotary_dim / 2], its rows without gaps, and is {t.dtype} {tuple(shape)}")
        tables.append((address, tuple(shape), max(strides[0], shape[1]) if shape[0] < 2 else strides[0]))
    if tables[0][1:] != tables[1][1:]:
        raise ValueError(f"sin: has the shape and strides {tables[1][1:]}, and cos {tables[0][1:]}")
    (cos_at, (rows, half), ld), sin_at = tables[0], tables[1][0]
    places = wide = seq_stride = batch_stride = sequences = 0
    if cu_seqlens is not None:
        if layout != "thd":
            raise ValueError(f"cu_seqlens goes with the layout thd, not with {layout}")
        if len(cu_seqlens.shape) != 1:
            raise ValueError(f"cu_seqlens: must be [sequences + 1], and has the shape {tuple(cu_seqlens.shape)}")
        sequences = cu_seqlens.shape[0] - 1
    if positions is not None:
        places, wide, shape, strides = space.indices("positions", positions)
        many = (seq,) if layout == "thd" or len(shape) == 1 else (seq, batch) if layout == "sbhd" else (batch, seq)
        if tuple(shape) != many:
            raise ValueError(f"positions: has the shape {tuple(shape)}, and {many} is needed")
        if len(many) == 1:
            (seq_stride,) = strides
        else:
            seq_stride, batch_stride = strides if layout == "sbhd" else strides[::-1]
    starts = space.words_read("start_positions", start_positions, sequences if cu_seqlens is not None else batch)
    cu = space.words_read("cu_seqlens", cu_seqlens, sequences + 1)
    return _angles(
        bool(interleaved), 2 * half, cos_at, sin_at, rows, ld, start, places, wide, 0, seq_stride, batch_stride, starts, cu, sequences
    )


def _run(function, x, cos, sin, layout, interleaved, start, positions, start_positions, cu_seqlens, out, stream, context):
    space = first_space(x)
    number, x_at, dims, x_strides = _heads(space, "x", x, layout)
    if out is None:
        out = space.empty_as(x, tuple(x.shape))
    else:
        space.writable("out", space.require("out", out))
    held, y_at, other, y_strides = _heads(space, "out", out, layout)
    if held != number or other != dims:
        raise ValueError(f"out: must be {x.dtype} {tuple(x.shape)}, and is {out.dtype} {tuple(out.shape)}")
    angles = _tables(space, cos, sin, layout, *dims[:2], interleaved, start, positions, start_positions, cu_seqlens)
    keep, (at,) = in_memory(angles)
    arguments = _plain(number, *dims, x_at, *x_strides, y_at, *y_strides, at)
    check(function(space.context(context), arguments, space.stream(stream)))
    return out


def rope_fwd(
    x, cos, sin, *, layout="sbhd", interleaved=False, start=0, positions=None, start_positions=None, cu_seqlens=None, out=None,
    stream=None, context=None,
):  # fmt: skip
    """Rotates the first rotary_dim = 2 * cos.shape[1] elements of each head by the angles of its token's position; copies the rest.

    x: float32, float16 or bfloat16, of any strides but the last, which is 1. layout: "sbhd", "bshd", "bhsd", or "thd" (sequences packed,
    with cu_seqlens, 32-bit integers [sequences + 1]; tokens of no sequence are copied). cos, sin: float32 [positions, rotary_dim / 2], as
    rope_table makes them. interleaved: pairs are neighbours (GPT-J), not halves (GPT-NeoX). A token's position is start + its place in its
    sequence (or positions, 32- or 64-bit integers [seq], or [seq, batch] for sbhd, [batch, seq] otherwise) + start_positions[sequence]
    (32-bit integers); outside the table it gives NaN. out: memory for the result, which may be x. Returns the result.
    """
    function = lib.nvte_rope_fwd
    return _run(function, x, cos, sin, layout, interleaved, start, positions, start_positions, cu_seqlens, out, stream, context)


def rope_bwd(
    dy, cos, sin, *, layout="sbhd", interleaved=False, start=0, positions=None, start_positions=None, cu_seqlens=None, out=None,
    stream=None, context=None,
):  # fmt: skip
    """The gradient of rope_fwd: dy rotated by the opposite angles. Arguments as there."""
    function = lib.nvte_rope_bwd
    return _run(function, dy, cos, sin, layout, interleaved, start, positions, start_positions, cu_seqlens, out, stream, context)


def _split(function, packed, parts, order, dims, kv_heads, angles, space, stream, context):
    """Calls; packed and parts as _heads and _tokens describe them."""
    (number, at, _, strides), (q, k, v) = packed, parts
    if order not in _ORDERS:
        raise ValueError(f"order = {order!r}: must be 'concatenated' or 'grouped'")
    for name, t, many in (("q", q, dims[2]), ("k", k, kv_heads), ("v", v, kv_heads)):
        if t[0] != number or t[2] != (*dims[:2], many, dims[3]):
            raise ValueError(f"{name}: its type or shape does not fit qkv's")
        if many > 1 and t[3][2] != dims[3]:
            raise ValueError(f"{name}: heads must lie side by side: make it contiguous")
    if k[3][:2] != v[3][:2]:
        raise ValueError(f"v: must have the strides of k, {k[3]}, and has {v[3]}")
    keep, (angles_at,) = in_memory(angles)
    arguments = _packed(
        number, _ORDERS[order], 0, *dims[:3], kv_heads, dims[3], at, *strides, q[1], *q[3][:2], k[1], v[1], *k[3][:2], angles_at
    )
    check(function(space.context(context), arguments, space.stream(stream)))


def rope_qkv_fwd(
    qkv, cos, sin, q_heads, kv_heads, *, order="grouped", layout="sbhd", interleaved=False, start=0, positions=None, start_positions=None,
    cu_seqlens=None, out=None, stream=None, context=None,
):  # fmt: skip
    """Splits packed QKV and rotates q and k. Returns (q, k, v), each [..., heads, head_dim].

    qkv: [seq, batch, (q_heads + 2 * kv_heads) * head_dim] for the layout "sbhd", [batch, seq, ...] for "bshd", [tokens, ...] for "thd".
    order: of a token: "grouped" (for each key head the query heads that share it, it, and its value head) or "concatenated" (all query
    heads, all key heads, all value heads). out: memory for q, k and v. Otherwise as rope_fwd.
    """
    space = first_space(qkv)
    packed = _tokens(space, "qkv", qkv, layout, q_heads + 2 * kv_heads)
    seq, batch, _, head_dim = packed[2]
    shape = tuple(qkv.shape[:-1])
    if out is None:
        out = tuple(space.empty_as(qkv, (*shape, n, head_dim)) for n in (q_heads, kv_heads, kv_heads))
    elif len(out) != 3:
        raise ValueError(f"out: has {len(out)} arrays, and q, k and v are three")
    parts = [_heads(space, name, space.writable(name, t), layout) for name, t in zip("qkv", out)]
    angles = _tables(space, cos, sin, layout, seq, batch, interleaved, start, positions, start_positions, cu_seqlens)
    _split(lib.nvte_rope_qkv_fwd, packed, parts, order, (seq, batch, q_heads, head_dim), kv_heads, angles, space, stream, context)
    return tuple(out)


def rope_qkv_bwd(
    dq, dk, dv, cos, sin, *, order="grouped", layout="sbhd", interleaved=False, start=0, positions=None, start_positions=None,
    cu_seqlens=None, out=None, stream=None, context=None,
):  # fmt: skip
    """The gradient of rope_qkv_fwd: packed dqkv from those of q, k and v (of equal strides for k and v). Arguments as there."""
    space = first_space(dq)
    parts = [_heads(space, name, t, layout) for name, t in zip("qkv", (dq, dk, dv))]
    (seq, batch, q_heads, head_dim), kv_heads = parts[0][2], parts[1][2][2]
    heads = q_heads + 2 * kv_heads
    if out is None:
        out = space.empty_as(dq, (*dq.shape[:-2], heads * head_dim))
    packed = _tokens(space, "qkv", space.writable("out", out), layout, heads)
    if packed[2] != (seq, batch, heads, head_dim):
        raise ValueError(f"out: its shape {tuple(out.shape)} does not fit the parts")
    angles = _tables(space, cos, sin, layout, seq, batch, interleaved, start, positions, start_positions, cu_seqlens)
    _split(lib.nvte_rope_qkv_bwd, packed, parts, order, (seq, batch, q_heads, head_dim), kv_heads, angles, space, stream, context)
    return out
