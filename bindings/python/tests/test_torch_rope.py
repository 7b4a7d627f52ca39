"""nvte.torch's rotary position embedding against the composition in torch, in f64."""

import pytest
from torch_common import DEVICE, TOLERANCE, assert_same, distance, te, torch
from torch_common import seed  # noqa: F401

pytestmark = pytest.mark.usefixtures("seed")


def reference(t, freqs, tensor_format="sbhd", interleaved=False, start=None, cu=None):
    """The usual composition, in f64."""
    t, freqs, dim = t.double(), freqs.double(), freqs.shape[-1]
    if tensor_format == "bshd":
        return reference(t.transpose(0, 1), freqs, "sbhd", interleaved, start).transpose(0, 1)
    if tensor_format == "thd":
        bounds, pieces = cu.tolist(), []
        for i, (a, b) in enumerate(zip(bounds, bounds[1:])):
            pieces.append(reference(t[a:b, None], freqs, "sbhd", interleaved, None if start is None else start[i : i + 1])[:, 0])
        return torch.cat([t[: bounds[0]], *pieces, t[bounds[-1] :]])
    if start is not None:
        one = [reference(t[:, i : i + 1], freqs[s:], "sbhd", interleaved) for i, s in enumerate(start.tolist())]
        return torch.cat(one, 1)
    freqs = freqs[: t.shape[0]]
    x, rest = t[..., :dim], t[..., dim:]
    if interleaved:
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    else:
        a, b = x.chunk(2, -1)
        turned = torch.cat((-b, a), -1)
    return torch.cat((x * freqs.cos() + turned * freqs.sin(), rest), -1)


def graded(f, *inputs):
    """(results, gradients of the inputs) with fresh gradients of the results."""
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    out = f(*inputs)
    out = out if isinstance(out, tuple) else (out,)
    generator = torch.Generator().manual_seed(5)
    loss = sum((y * torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y)).sum() for y in out)
    return [y.detach() for y in out], torch.autograd.grad(loss, inputs)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("tensor_format", ["sbhd", "bshd", "thd"])
def test_against_the_composition(dtype, interleaved, tensor_format):
    for dim, percent in ((64, 1.0), (20, 0.5)):
        freqs = te.RotaryPositionEmbedding(dim, percent, interleaved=interleaved, device=DEVICE)(16)
        assert freqs.shape == (16, 1, 1, int(dim * percent)) and freqs.dtype == torch.float32
        shape = (17, 3, dim) if tensor_format == "thd" else (9, 2, 3, dim)
        cu = torch.tensor([1, 4, 4, 15], device=DEVICE, dtype=torch.int32) if tensor_format == "thd" else None
        t = torch.randn(shape, device=DEVICE).to(dtype)
        sequences = {"sbhd": 2, "bshd": 9, "thd": 3}[tensor_format]
        for start in (None, torch.arange(sequences, dtype=torch.int32, device=DEVICE).flip(0)):
            mine = graded(lambda x: te.apply_rotary_pos_emb(x, freqs, tensor_format, start, interleaved, cu_seqlens=cu), t)  # noqa: B023
            want = graded(lambda x: reference(x, freqs, tensor_format, interleaved, start, cu), t)  # noqa: B023
            for a, b in zip(sum(map(list, mine), []), sum(map(list, want), [])):
                assert a.dtype == dtype and distance(a, b) < TOLERANCE[dtype]


@pytest.mark.parametrize("order", ["grouped", "concatenated"])
@pytest.mark.parametrize("tensor_format", ["sbhd", "bshd", "thd"])
def test_packed_qkv(order, tensor_format):
    q_heads, kv_heads, dim = 6, 2, 16
    freqs = te.RotaryPositionEmbedding(dim, device=DEVICE)(12)
    lead = (10,) if tensor_format == "thd" else (5, 3)
    cu = torch.tensor([0, 3, 10], device=DEVICE, dtype=torch.int64) if tensor_format == "thd" else None
    qkv = torch.randn(*lead, (q_heads + 2 * kv_heads) * dim, device=DEVICE)

    def composed(x):
        if order == "grouped":
            x = x.unflatten(-1, (kv_heads, -1, dim))
            q, k, v = x[..., :-2, :].flatten(-3, -2), x[..., -2, :], x[..., -1, :]
        else:
            q, k, v = x.unflatten(-1, (-1, dim)).split((q_heads, kv_heads, kv_heads), -2)
        turn = lambda t: reference(t, freqs, tensor_format, cu=cu)  # noqa: E731
        return turn(q), turn(k), v.double()

    mine = graded(lambda x: te.fused_qkv_rope(x, freqs, q_heads, kv_heads, order, tensor_format, cu_seqlens=cu), qkv)
    for a, b in zip(sum(map(list, mine), []), sum(map(list, graded(composed, qkv)), [])):
        assert distance(a, b) < 1e-5
    assert all(y.is_contiguous() for y in mine[0])
    if order == "grouped":
        split = [q_heads // kv_heads * dim, dim, dim]
        x = qkv.unflatten(-1, (kv_heads, -1))
        again = te.apply_fused_qkv_rotary_pos_emb(x, freqs, freqs, split, tensor_format, cu_seqlens=cu)
        assert_same(list(again), mine[0])
        with pytest.raises(ValueError, match="different tensors"):
            te.apply_fused_qkv_rotary_pos_emb(x, freqs, freqs + 1, split, tensor_format, cu_seqlens=cu)
        with pytest.raises(ValueError, match="qkv_split_arg_list"):
            te.apply_fused_qkv_rotary_pos_emb(x, freqs, freqs, [dim, dim, dim], tensor_format, cu_seqlens=cu)


def test_strided_inputs_and_gradients():
    freqs = te.RotaryPositionEmbedding(8, device=DEVICE)(6)
    qkv = torch.randn(6, 2, 3, 24, device=DEVICE, requires_grad=True)
    # Heads inside a packed tensor, and gradients that are expanded or transposed.
    q = te.apply_rotary_pos_emb(qkv[..., 8:16], freqs)
    assert distance(q, reference(qkv[..., 8:16], freqs)) < 1e-5
    (a,) = torch.autograd.grad(q.sum(), qkv, retain_graph=True)
    (b,) = torch.autograd.grad((q * torch.ones_like(q)).sum(), qkv, retain_graph=True)
    (c,) = torch.autograd.grad(q, qkv, torch.ones(8, 3, 2, 6, device=DEVICE).permute(3, 2, 1, 0))
    assert_same([a, a], [b, c])
    x = torch.randn(2, 4, 6, 8, device=DEVICE)
    turned = x.transpose(1, 2)
    assert_same(*([te.apply_rotary_pos_emb(t, freqs, "bshd")] for t in (turned, turned.contiguous())))


def test_second_derivatives():
    freqs = te.RotaryPositionEmbedding(6, device=DEVICE)(4)
    # The rotation is linear: what a gradient depends on is another gradient.
    x = torch.randn(4, 1, 2, 6, device=DEVICE, requires_grad=True)
    y = te.apply_rotary_pos_emb(x, freqs)
    (g,) = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x)
    z = reference(x, freqs)
    (want,) = torch.autograd.grad(z.pow(3).sum(), x, create_graph=True)
    (wanted,) = torch.autograd.grad(want.sum(), x)
    assert distance(g, want) < 1e-5 and distance(h, wanted) < 1e-5


def test_context_parallel():
    freqs, size = te.RotaryPositionEmbedding(8, device=DEVICE)(16), 2
    x = torch.randn(16, 2, 3, 8, device=DEVICE)
    whole, chunks = te.apply_rotary_pos_emb(x, freqs), x.chunk(2 * size)
    for rank in range(size):
        mine = torch.cat((chunks[rank], chunks[2 * size - 1 - rank]))
        parts = whole.chunk(2 * size)
        want = torch.cat((parts[rank], parts[2 * size - 1 - rank]))
        assert_same([te.apply_rotary_pos_emb(mine, freqs, cp_size=size, cp_rank=rank)], [want])
    with pytest.raises(ValueError, match="cp_rank = 2"):
        te.apply_rotary_pos_emb(mine, freqs, cp_size=size, cp_rank=size)
    # Positions of the last chunk lie behind the table.
    with pytest.raises(ValueError, match=f"the sequence has {x.shape[0]} tokens"):
        te.apply_rotary_pos_emb(mine, freqs[: x.shape[0] - 1], cp_size=size, cp_rank=0)


def test_embedding():
    at = torch.arange(10, dtype=torch.float64)
    for percent, base, interleaved in ((1.0, 10000.0, False), (0.5, 500.0, True)):
        m = te.RotaryPositionEmbedding(16, percent, rotary_base=base, interleaved=interleaved, device=DEVICE)
        dim = int(16 * percent)
        angles = (at[:, None] + 3) / base ** (torch.arange(0, dim, 2).double() / dim)
        want = angles.repeat_interleave(2, 1) if interleaved else torch.cat((angles, angles), 1)
        assert distance(m(10, offset=3)[:, 0, 0], want) < 1e-6
    assert distance(te.RotaryPositionEmbedding(8, seq_len_interpolation_factor=2.0, device=DEVICE)(10)[:, 0, 0, 0], at / 2) < 1e-6
    m = te.RotaryPositionEmbedding(8, seq_len_interpolation_factor=2.0, pretrained_max_position_embeddings=4, device=DEVICE)
    assert distance(m(10)[:, 0, 0, 0], at * 0.4) < 1e-6 and distance(m(8)[:, 0, 0, 0], at[:8] / 2) < 1e-6


def test_tables_follow_their_angles():
    freqs = te.RotaryPositionEmbedding(8, device=DEVICE)(5)
    x = torch.randn(5, 1, 1, 8, device=DEVICE)
    a = te.apply_rotary_pos_emb(x, freqs)
    with torch.inference_mode():
        assert_same([te.apply_rotary_pos_emb(x, freqs)], [a])
        te.apply_rotary_pos_emb(x, te.RotaryPositionEmbedding(8, device=DEVICE)(5))
    freqs.mul_(2)
    assert distance(te.apply_rotary_pos_emb(x, freqs), reference(x, freqs)) < 1e-5
    for wrong, message in (((x, freqs[:3]), "holds 3 positions"), ((x, freqs, "hsbd"), "tensor_format"), ((x, freqs, "thd"), "cu_seqlens")):
        with pytest.raises(ValueError, match=message):
            te.apply_rotary_pos_emb(*wrong)
    with pytest.raises(TypeError, match="float32"):
        te.apply_rotary_pos_emb(x, freqs.double())


def test_compiled():
    freqs = te.RotaryPositionEmbedding(8, device=DEVICE)(6)

    def step(x):
        q, k, v = te.fused_qkv_rope(x, freqs, 4, 2)
        return te.apply_rotary_pos_emb(q, freqs) @ k.transpose(-1, -2) * v.sum()

    torch._dynamo.reset()
    x = torch.randn(6, 2, 64, device=DEVICE)
    a, b = graded(step, x), graded(torch.compile(step, backend="aot_eager", fullgraph=True), x)
    assert_same([*a[0], *a[1]], [*b[0], *b[1]])
    y = torch.randn(6, 2, 3, 8, device=DEVICE, requires_grad=True)
    tables = (freqs[:, 0, 0, :4].cos(), freqs[:, 0, 0, :4].sin(), None, None, None, "sbhd", False, 0)
    torch.library.opcheck(torch.ops.nvte.rope, (y, *tables, False))
    torch.library.opcheck(torch.ops.nvte.rope_split, (x.detach().requires_grad_(), *tables, "grouped", 4, 2))
