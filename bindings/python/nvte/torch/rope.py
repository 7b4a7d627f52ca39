"""Rotary position embedding as autograd functions, with the names of NVIDIA's library."""

import torch

from ..ops import rope as ops
from .functions import forward_ad, refuse_tangents
from .layer import default_device

_library = torch.library.Library("nvte", "FRAGMENT")
_places = "Tensor cos, Tensor sin, Tensor? positions, Tensor? starts, Tensor? cu_seqlens, str layout, bool interleaved, int start"
_library.define(f"rope(Tensor x, {_places}, bool backward) -> Tensor")
_library.define(f"rope_split(Tensor qkv, {_places}, str order, int q_heads, int kv_heads) -> (Tensor, Tensor, Tensor)")
_library.define(f"rope_merge(Tensor dq, Tensor dk, Tensor dv, {_places}, str order) -> Tensor")


def _options(positions, starts, cu_seqlens, layout, interleaved, start):
    return dict(
        positions=positions, start_positions=starts, cu_seqlens=cu_seqlens, layout=layout, interleaved=interleaved, start=start
    )


def _rows(x):
    """`x` with the elements of its last dimension side by side."""
    strides = x.stride()
    return x if strides[-1] == 1 and min(strides) >= 0 else x.contiguous()


def _plain(x, cos, sin, positions, starts, cu_seqlens, layout, interleaved, start, backward):
    x = _rows(x)
    function = ops.rope_bwd if backward else ops.rope_fwd
    return function(x, cos, sin, **_options(positions, starts, cu_seqlens, layout, interleaved, start))


def _split(qkv, cos, sin, positions, starts, cu_seqlens, layout, interleaved, start, order, q_heads, kv_heads):
    options = _options(positions, starts, cu_seqlens, layout, interleaved, start)
    return ops.rope_qkv_fwd(_rows(qkv), cos, sin, q_heads, kv_heads, order=order, **options)


def _merge(dq, dk, dv, cos, sin, positions, starts, cu_seqlens, layout, interleaved, start, order):
    dq, dk, dv = (t if t.stride()[-2:] == (t.shape[-1], 1) else t.contiguous() for t in (dq, dk, dv))
    if dk.stride() != dv.stride():
        dk, dv = dk.contiguous(), dv.contiguous()
    return ops.rope_qkv_bwd(dq, dk, dv, cos, sin, order=order, **_options(positions, starts, cu_seqlens, layout, interleaved, start))


def _plain_shape(x, *_):
    return x.new_empty(x.shape)


def _split_shapes(qkv, *rest):
    q_heads, kv_heads = rest[-2:]
    dim = qkv.shape[-1] // (q_heads + 2 * kv_heads)
    return tuple(qkv.new_empty((*qkv.shape[:-1], n, dim)) for n in (q_heads, kv_heads, kv_heads))


def _merge_shape(dq, dk, dv, *_):
    return dq.new_empty((*dq.shape[:-2], (dq.shape[-2] + 2 * dk.shape[-2]) * dq.shape[-1]))


class _Rotate(torch.autograd.Function):
    """A rotation; its derivative is the opposite one. `call`: what computes it, an operator or what is behind one."""

    @staticmethod
    def forward(ctx, call, x, cos, sin, positions, starts, cu_seqlens, layout, interleaved, start, backward):
        ctx.save_for_backward(cos, sin, positions, starts, cu_seqlens)
        ctx.how = (layout, interleaved, start, not backward)
        ctx.again = _rotate if call is _plain else torch.ops.nvte.rope
        return call(x, cos, sin, positions, starts, cu_seqlens, layout, interleaved, start, backward)

    @staticmethod
    def backward(ctx, dy):
        return (None, ctx.again(dy, *ctx.saved_tensors, *ctx.how), *(None,) * 9)


class _Split(torch.autograd.Function):
    """Packed QKV to rotated q and k, and v."""

    @staticmethod
    def forward(ctx, call, qkv, cos, sin, positions, starts, cu_seqlens, layout, interleaved, start, order, q_heads, kv_heads):
        ctx.save_for_backward(cos, sin, positions, starts, cu_seqlens)
        ctx.how = (layout, interleaved, start, order)
        ctx.again = _put_together if call is _split else torch.ops.nvte.rope_merge
        return call(qkv, cos, sin, positions, starts, cu_seqlens, layout, interleaved, start, order, q_heads, kv_heads)

    @staticmethod
    def backward(ctx, dq, dk, dv):
        return (None, ctx.again(dq, dk, dv, *ctx.saved_tensors, *ctx.how), *(None,) * 11)


class _Merge(torch.autograd.Function):
    """The derivative of `_Split`, and the other way round."""

    @staticmethod
    def forward(ctx, call, dq, dk, dv, cos, sin, positions, starts, cu_seqlens, layout, interleaved, start, order):
        ctx.save_for_backward(cos, sin, positions, starts, cu_seqlens)
        ctx.how = (layout, interleaved, start, order, dq.shape[-2], dk.shape[-2])
        ctx.again = _taken_apart if call is _merge else torch.ops.nvte.rope_split
        return call(dq, dk, dv, cos, sin, positions, starts, cu_seqlens, layout, interleaved, start, order)

    @staticmethod
    def backward(ctx, g):
        return (None, *ctx.again(g, *ctx.saved_tensors, *ctx.how), *(None,) * 9)


def _wanted(*tensors):
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return True
    if forward_ad._current_level >= 0:
        refuse_tangents(*tensors)
    return False


def _register(name, real, shapes, function, inputs):
    """The operator, used while a compiler traces; returns what eager code calls. `inputs`: how many arguments have a gradient."""
    _library.impl(name, real, "CPU")
    _library.impl(name, real, "CUDA")
    torch.library.register_fake(f"nvte::{name}", shapes, lib=_library)
    operator = getattr(torch.ops.nvte, name)

    def below(*given):
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*given)

    _library.impl(name, lambda *given: function.apply(below, *given) if _wanted(*given[:inputs]) else below(*given), "Autograd")

    def run(*given):
        if torch.compiler.is_compiling():
            return operator(*given)
        return function.apply(real, *given) if _wanted(*given[:inputs]) else real(*given)

    return run


_rotate = _register("rope", _plain, _plain_shape, _Rotate, 1)
_taken_apart = _register("rope_split", _split, _split_shapes, _Split, 1)
_put_together = _register("rope_merge", _merge, _merge_shape, _Merge, 3)


def _tables(freqs, interleaved):
    """Cosines and sines of angles [s, 1, 1, d], in which both elements of a pair have the same one. Kept with the tensor."""
    if freqs.dtype is not torch.float32:
        raise TypeError(f"freqs: must be float32, and is {freqs.dtype}")
    if freqs.dim() != 4 or freqs.shape[1] != 1 or freqs.shape[2] != 1 or freqs.shape[3] % 2:
        raise ValueError(f"freqs: must be [positions, 1, 1, rotary_dim], and has the shape {tuple(freqs.shape)}")
    tracing = torch.compiler.is_compiling()
    key = (interleaved, None if tracing or freqs.is_inference() else freqs._version)
    if not tracing:
        kept = getattr(freqs, "_nvte_tables", None)
        if kept is not None and kept[0] == key:
            return kept[1]
    angles = freqs.detach()[:, 0, 0]
    angles = angles[:, ::2] if interleaved else angles[:, : freqs.shape[3] // 2]
    made = (angles.cos(), angles.sin())
    # What a capture makes holds nothing until the graph runs; what is made in inference mode is of no use to autograd.
    if not tracing and key[1] is not None and not torch.is_inference_mode_enabled():
        if not (freqs.is_cuda and torch.cuda.is_current_stream_capturing()):
            freqs._nvte_tables = (key, made)
    return made


def _positions(seq, cp_size, cp_rank, tensor_format, device):
    """Of the tokens that a rank of a context-parallel group holds: two chunks of 2 * cp_size."""
    if cp_size == 1:
        return None
    if tensor_format == "thd":
        raise NotImplementedError("cp_size above 1 is not supported with thd: pass positions to nvte.ops.rope_fwd")
    if seq % 2:
        raise ValueError(f"a sequence of {seq} tokens does not fall into two chunks")
    at = torch.arange(seq, device=device, dtype=torch.int32)
    return torch.where(at < seq // 2, at + cp_rank * (seq // 2), at + (2 * cp_size - 2 - cp_rank) * (seq // 2))


def _int32(t):
    return t if t is None or t.dtype is torch.int32 else t.to(torch.int32)


def _sequence(shape, tensor_format, cu_seqlens, rows, start_positions, cp_size, cp_rank):
    if tensor_format not in ("sbhd", "bshd", "thd"):
        raise ValueError(f"tensor_format = {tensor_format!r}: must be 'sbhd', 'bshd' or 'thd'")
    if (tensor_format == "thd") != (cu_seqlens is not None):
        raise ValueError("cu_seqlens is needed for thd, and only there")
    if not 0 <= cp_rank < cp_size:
        raise ValueError(f"cp_rank = {cp_rank}: must be from 0 to below cp_size = {cp_size}")
    seq = shape[1 if tensor_format == "bshd" else 0]
    if tensor_format != "thd" and start_positions is None and seq * cp_size > rows:
        raise ValueError(f"freqs holds {rows} positions, and the sequence has {seq * cp_size} tokens")
    return seq


def apply_rotary_pos_emb(
    t, freqs, tensor_format="sbhd", start_positions=None, interleaved=False, fused=False, cu_seqlens=None, cp_size=1, cp_rank=0
):
    """Rotates the first freqs.shape[-1] elements of each head of `t` by the angles of its position, in one pass forward and backward.

    t: [s, b, h, d], [b, s, h, d] or packed [t, h, d] (tensor_format). freqs: float32 angles [positions, 1, 1, rotary_dim], as
    RotaryPositionEmbedding makes them: both elements of a pair have the same angle. start_positions: 32-bit integers, one per sequence,
    added to its positions. interleaved: pairs are neighbours. fused changes nothing: there is one implementation. cu_seqlens: 32-bit
    integers [sequences + 1] for thd; tokens of no sequence are left as they are. cp_size, cp_rank: `t` holds two of 2 * cp_size chunks.
    """
    seq = _sequence(t.shape, tensor_format, cu_seqlens, freqs.shape[0], start_positions, cp_size, cp_rank)
    cos, sin = _tables(freqs, interleaved)
    positions = _positions(seq, cp_size, cp_rank, tensor_format, t.device)
    return _rotate(t, cos, sin, positions, _int32(start_positions), _int32(cu_seqlens), tensor_format, interleaved, 0, False)


def apply_fused_qkv_rotary_pos_emb(
    qkv, q_freqs, k_freqs, qkv_split_arg_list, tensor_format="sbhd", start_positions=None, interleaved=False, cu_seqlens=None, cp_size=1,
    cp_rank=0,
):  # fmt: skip
    """Splits packed QKV into q, k and v and rotates q and k, in one pass forward and backward.

    qkv: [s, b, groups, n] or [b, s, groups, n], or packed [t, groups, n]: for each group its query heads, a key head and a value head side
    by side. qkv_split_arg_list: how many of the n elements are queries, keys and values: [heads * d, d, d]. q_freqs and k_freqs must be
    the same angles. Otherwise as apply_rotary_pos_emb. Returns q [..., heads * groups, d], k and v [..., groups, d].
    """
    if k_freqs is not None and k_freqs is not q_freqs and (k_freqs.data_ptr() != q_freqs.data_ptr() or k_freqs.shape != q_freqs.shape):
        raise ValueError("q_freqs and k_freqs are different tensors: queries and keys of one token have the same position")
    q, k, v = qkv_split_arg_list
    if k != v or k == 0 or q % k or qkv.shape[-1] != q + k + v:
        raise ValueError(f"qkv_split_arg_list = {list(qkv_split_arg_list)}: must be [heads * d, d, d], of sum {qkv.shape[-1]}")
    groups = qkv.shape[-2]
    heads = groups * (q // k)
    return fused_qkv_rope(
        qkv.flatten(-2), q_freqs, heads, groups, "grouped", tensor_format, start_positions, interleaved, cu_seqlens, cp_size, cp_rank
    )


def fused_qkv_rope(
    qkv, freqs, q_heads, kv_heads, order="grouped", tensor_format="sbhd", start_positions=None, interleaved=False, cu_seqlens=None,
    cp_size=1, cp_rank=0,
):  # fmt: skip
    """Splits packed QKV, the output of one Linear, into q, k and v, of which q and k are rotated: one pass forward and backward.

    qkv: [s, b, n], [b, s, n] or packed [t, n], n = (q_heads + 2 * kv_heads) * d. order: of a token: "grouped" (for each key head the query
    heads that share it, it, and its value head) or "concatenated" (queries, keys, values). Otherwise as apply_rotary_pos_emb. Returns
    q [..., q_heads, d], k and v [..., kv_heads, d], each without gaps.
    """
    seq = _sequence(qkv.shape, tensor_format, cu_seqlens, freqs.shape[0], start_positions, cp_size, cp_rank)
    cos, sin = _tables(freqs, interleaved)
    positions = _positions(seq, cp_size, cp_rank, tensor_format, qkv.device)
    starts, cu_seqlens = _int32(start_positions), _int32(cu_seqlens)
    return _taken_apart(qkv, cos, sin, positions, starts, cu_seqlens, tensor_format, interleaved, 0, order, q_heads, kv_heads)


class RotaryPositionEmbedding(torch.nn.Module):
    """The angles of a rotary position embedding.

    dim: elements of a head, of which rotary_percent are rotated. seq_len_interpolation_factor: positions are divided by it; with
    pretrained_max_position_embeddings by what brings a longer sequence back into the pretrained range, if that is more.
    """

    def __init__(
        self, dim, rotary_percent=1.0, seq_len_interpolation_factor=None, pretrained_max_position_embeddings=None, rotary_base=10000.0,
        interleaved=False, device=None,
    ):  # fmt: skip
        super().__init__()
        if rotary_percent < 1.0:
            dim = int(dim * rotary_percent)
        self.seq_len_interpolation_factor = seq_len_interpolation_factor
        self.pretrained_max_position_embeddings = pretrained_max_position_embeddings
        self.rotary_base, self.interleaved = rotary_base, interleaved
        steps = torch.arange(0, dim, 2, dtype=torch.float32, device=default_device(device))
        self.register_buffer("inv_freq", 1.0 / (rotary_base ** (steps / dim)))

    def forward(self, max_seq_len, offset=0):
        """Float32 angles [max_seq_len, 1, 1, dim] of the positions from `offset` on."""
        with torch.autocast(self.inv_freq.device.type, enabled=False):
            at = torch.arange(max_seq_len, device=self.inv_freq.device, dtype=torch.float32) + offset
            factor, pretrained = self.seq_len_interpolation_factor, self.pretrained_max_position_embeddings
            if factor is not None and pretrained is not None and max_seq_len > pretrained * factor:
                at = at * (pretrained / max_seq_len)
            elif factor is not None:
                at = at / factor
            angles = torch.outer(at, self.inv_freq.float())
            both = angles.repeat_interleave(2, dim=-1) if self.interleaved else torch.cat((angles, angles), dim=-1)
        return both[:, None, None]
