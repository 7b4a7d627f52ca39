"""nvte.torch.bias_dropout_add: values and gradients in f64, and how it follows torch's generator."""

import pytest
from torch.utils.checkpoint import checkpoint
from torch_common import DEVICE, TOLERANCE, assert_same, distance, te, torch
from torch_common import seed  # noqa: F401

pytestmark = pytest.mark.usefixtures("seed")


def made(shape, dtype=torch.float32):
    return torch.randn(shape, device=DEVICE).to(dtype).requires_grad_()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("parts", ["both", "bias", "residual", "none"])
def test_values_and_gradients(dtype, p, parts):
    for shape in ((6, 40), (3, 5, 13)):
        x, bias, residual = made(shape, dtype), made(shape[-1:]), made(shape, dtype)
        bias, residual = bias if parts in ("both", "bias") else None, residual if parts in ("both", "residual") else None
        inputs = [t for t in (x, bias, residual) if t is not None]
        y = te.bias_dropout_add(x, bias, residual, p)
        dy = torch.randn(shape, device=DEVICE).to(dtype)
        grads = torch.autograd.grad(y, inputs, dy)
        # Ones in the place of x and nothing else, with the same draw: what is kept.
        scale = 1 / (1 - p) if p < 1 else 0.0
        kept = (grads[0].double() / torch.where(dy == 0, 1, dy).double() * (1 - p)).round().clamp(0, 1) if p < 1 else torch.zeros_like(dy)
        want = (x.double() + (0 if bias is None else bias.double())) * kept * scale + (0 if residual is None else residual.double())
        assert y.dtype == dtype and distance(y, want) < TOLERANCE[dtype]
        assert distance(grads[0], dy.double() * kept * scale) < TOLERANCE[dtype]
        if bias is not None:
            assert grads[1].dtype == bias.dtype
            assert distance(grads[1], (dy.double() * kept * scale).flatten(0, -2).sum(0)) < TOLERANCE[dtype]
        if residual is not None:
            assert_same([grads[-1]], [dy])
        assert_same([te.bias_dropout_add(x, bias, residual, 0.5, training=False)], [te.bias_dropout_add(x, bias, residual, 0.0)])
        if p == 0.3:
            assert 0 < kept.mean() < 1


def test_it_follows_the_generator():
    x = torch.ones(100, 80, device=DEVICE)
    torch.manual_seed(3)
    a, b = te.bias_dropout_add(x, None, None, 0.5), te.bias_dropout_add(x, None, None, 0.5)
    torch.manual_seed(3)
    c = te.bias_dropout_add(x, None, None, 0.5)
    assert_same([a], [c])
    assert not torch.equal(a, b)
    assert abs(float((a > 0).float().mean()) - 0.5) < 0.05


def test_recomputation_draws_the_same():
    x, bias, residual = made((8, 24)), made((24,)), made((8, 24))

    def block(x, bias, residual):
        return te.bias_dropout_add(torch.sin(x), bias, residual, 0.4).square()

    seen = []
    for way in (lambda *t: block(*t), lambda *t: checkpoint(block, *t, use_reentrant=False)):
        torch.manual_seed(9)
        y = way(x, bias, residual)
        seen.append([y.detach(), *torch.autograd.grad(y.sum(), (x, bias, residual))])
    assert_same(*seen)


def test_second_derivatives():
    x, bias = made((4, 6)), made((6,))
    torch.manual_seed(1)
    y = te.bias_dropout_add(x, bias, None, 0.5)
    (g,) = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x)
    kept = (y != 0).double()
    assert distance(h, 6 * y.double() * kept * 4) < 1e-5


def test_strides_and_errors():
    wide = torch.randn(5, 20, device=DEVICE)
    x = wide[:, :16]
    torch.manual_seed(2)
    a = te.bias_dropout_add(x, None, wide[:, 2:18], 0.3)
    torch.manual_seed(2)
    assert_same([a], [te.bias_dropout_add(x.contiguous(), None, wide[:, 2:18].contiguous(), 0.3)])
    for wrong, message in (
        ((x, wide[0], None, 0.5), "bias"),
        ((x, None, wide, 0.5), "residual"),
        ((x, None, x.half(), 0.5), "residual"),
        ((x, None, None, 2), "p = 2"),
    ):
        with pytest.raises(ValueError, match=message):
            te.bias_dropout_add(*wrong)
    with pytest.raises(TypeError, match="float64"):
        te.bias_dropout_add(x.double(), None, None, 0.5)


def test_compiled():
    x, bias, residual = made((8, 24)), made((24,)), made((8, 24))

    def step(x, bias, residual):
        return te.bias_dropout_add(x * 2, bias, residual, 0.4)

    torch._dynamo.reset()
    f = torch.compile(step, backend="aot_eager", fullgraph=True)
    seen = []
    for way in (step, f):
        torch.manual_seed(4)
        y = way(x, bias, residual)
        seen.append([y.detach(), *torch.autograd.grad(y.square().sum(), (x, bias, residual))])
    assert_same(*seen)
    rng = torch.tensor([5, 6], device=DEVICE)
    torch.library.opcheck(torch.ops.nvte.dropout, (x, bias, residual, rng, 0.25))
    torch.library.opcheck(torch.ops.nvte.dropout_backward, (x, rng, 0.25, torch.float32))


@pytest.mark.skipif(DEVICE == "cpu", reason="graphs are a GPU's")
def test_replays_draw_anew():
    x = torch.ones(64, 64, device=DEVICE, requires_grad=True)
    te.bias_dropout_add(x, None, None, 0.5).sum().backward()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.autograd.grad(te.bias_dropout_add(x, None, None, 0.5).sum(), x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = te.bias_dropout_add(x, None, None, 0.5)
        (g,) = torch.autograd.grad(y.sum(), x)
    seen = []
    for _ in range(2):
        graph.replay()
        seen.append(y.detach().clone())
        assert_same([y.detach()], [g])
    assert not torch.equal(*seen)
