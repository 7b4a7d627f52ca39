"""nvte.torch.cross_entropy and softmax against PyTorch's own in float64."""

import itertools
import subprocess
import sys

import pytest
from torch_common import DEVICE, TOLERANCE, distance, seed, te, torch  # noqa: F401

F = torch.nn.functional


def exact(logits, target, **options):
    x = logits.detach().double().requires_grad_()
    loss = F.cross_entropy(x.flatten(0, -2), target.flatten().long(), **options)
    return x, loss.view(target.shape) if options.get("reduction") == "none" else loss


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy(seed, dtype, reduction):  # noqa: F811
    for shape, smoothing, inplace, kind in (
        ((12, 50), 0.0, False, torch.int64), ((3, 5, 301), 0.1, True, torch.int32), ((4, 1000), 0.2, True, torch.int64),
    ):  # fmt: skip
        leaf = (torch.randn(shape, device=DEVICE) * 3).to(dtype).requires_grad_()
        target = torch.randint(0, shape[-1], shape[:-1], device=DEVICE, dtype=kind)
        target.view(-1)[1] = -100
        x, want = exact(leaf, target, reduction=reduction, label_smoothing=smoothing)
        # Not a leaf: its memory may be taken.
        loss = te.cross_entropy(leaf * 1, target, reduction=reduction, label_smoothing=smoothing, inplace_backward=inplace)
        assert loss.dtype == torch.float32 and loss.shape == want.shape
        assert distance(loss, want) < 1e-5
        up = torch.randn_like(loss)
        loss.backward(up)
        want.backward(up.double())
        assert distance(leaf.grad, x.grad) < TOLERANCE[dtype]


def test_gradient_of_one_is_handed_out_as_it_is(seed):  # noqa: F811
    leaf = torch.randn(6, 40, device=DEVICE, requires_grad=True)
    target = torch.randint(0, 40, (6,), device=DEVICE)
    x, want = exact(leaf, target)
    te.cross_entropy(leaf, target).backward()
    want.backward()
    assert distance(leaf.grad, x.grad) < 1e-6
    assert torch.equal(leaf.detach(), x.detach().float())


def test_without_gradients(seed):  # noqa: F811
    x = torch.randn(5, 30, device=DEVICE, requires_grad=True)
    target = torch.randint(0, 30, (5,), device=DEVICE)
    with torch.no_grad():
        loss = te.cross_entropy(x, target)
    assert not loss.requires_grad and distance(loss, F.cross_entropy(x, target)) < 1e-6
    # A slice that is no matrix, and integers of another type.
    wide = torch.randn(2, 4, 30, device=DEVICE)
    target = torch.randint(0, 30, (2, 3), device=DEVICE, dtype=torch.int16)
    assert distance(te.cross_entropy(wide[:, :-1], target), F.cross_entropy(wide[:, :-1].flatten(0, 1), target.flatten().long())) < 1e-6


def test_autocast(seed):  # noqa: F811
    layer = torch.nn.Linear(16, 64, device=DEVICE)
    x, target = torch.randn(7, 16, device=DEVICE), torch.randint(0, 64, (7,), device=DEVICE)
    with torch.autocast(DEVICE, torch.bfloat16):
        loss = te.cross_entropy(layer(x), target, inplace_backward=True)
    assert loss.dtype == torch.float32
    loss.backward()
    mine = layer.weight.grad.clone()
    layer.weight.grad = None
    F.cross_entropy(layer(x), target).backward()
    assert distance(mine, layer.weight.grad) < 3e-2


def test_all_ignored_and_bad_targets():
    x = torch.randn(3, 8, device=DEVICE, requires_grad=True)
    loss = te.cross_entropy(x, torch.full((3,), -100, device=DEVICE))
    loss.backward()
    assert loss.isnan() and (x.grad == 0).all()
    loss = te.cross_entropy(x, torch.tensor([1, 8, -3], device=DEVICE), reduction="none")
    assert loss.isnan().tolist() == [False, True, True]


def test_second_passes_and_second_derivatives_are_refused(seed):  # noqa: F811
    x = torch.randn(3, 8, device=DEVICE, requires_grad=True)
    target = torch.randint(0, 8, (3,), device=DEVICE)
    loss = te.cross_entropy(x, target)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="second backward pass"):
        loss.backward()
    (g,) = torch.autograd.grad(te.cross_entropy(x, target), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        g.sum().backward()
    (g,) = torch.autograd.grad(te.softmax(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        g.sum().backward()
    with pytest.raises(RuntimeError, match="leaf"):
        te.cross_entropy(x, target, inplace_backward=True)
    # Whoever needs the logits that were written over is told.
    y = (x * 2).exp()
    te.cross_entropy(y, target, inplace_backward=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_arguments():
    x, target = torch.randn(3, 8, device=DEVICE), torch.zeros(3, device=DEVICE, dtype=torch.int64)
    with pytest.raises(TypeError, match="probabilities"):
        te.cross_entropy(x, torch.rand(3, 8, device=DEVICE))
    with pytest.raises(ValueError, match="without the last dimension"):
        te.cross_entropy(x, target[:2])
    with pytest.raises(TypeError, match="float64"):
        te.cross_entropy(x.double(), target)
    with pytest.raises(TypeError, match="booleans or bytes"):
        te.softmax(x, mask=x)
    with pytest.raises(ValueError, match="mask: its shape"):
        te.softmax(x, mask=x[:, :5] > 0)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_softmax(seed, dtype):  # noqa: F811
    shape = (2, 3, 5, 40)
    plain, broadcast = [(None, False), (None, True)], [((5, 40), True), *(((m, False)) for m in ((2, 1, 5, 40), (2, 1, 1, 40), (2, 3, 5, 1)))]
    for mask, causal in plain + broadcast:
        leaf = torch.randn(shape, device=DEVICE).to(dtype).requires_grad_()
        x = leaf.detach().double().requires_grad_()
        hidden = torch.zeros(shape, device=DEVICE, dtype=torch.bool)
        given = None
        if mask is not None:
            given = torch.rand(mask, device=DEVICE) < 0.3
            hidden = hidden | given
        if causal:
            hidden = hidden | torch.ones(5, 40, device=DEVICE, dtype=torch.bool).triu(3)
        y = te.softmax(leaf, 0.5, given, causal, offset=2)
        want = torch.softmax((x * 0.5).masked_fill(hidden, -torch.inf), -1).nan_to_num(0)
        assert y.dtype == dtype and distance(y, want) < TOLERANCE[dtype]
        up = torch.randn_like(y)
        y.backward(up)
        want.backward(up.double())
        assert distance(leaf.grad, x.grad.nan_to_num(0)) < TOLERANCE[dtype]


def test_masks_of_more_batch_dimensions(seed):  # noqa: F811
    x = torch.randn(2, 3, 2, 4, 6, device=DEVICE)
    for sizes in itertools.product(*((1, n) for n in x.shape)):
        mask = torch.rand(sizes, device=DEVICE) < 0.3
        for given in (mask, mask.expand(2, *sizes[1:]), mask.transpose(0, 1).contiguous().transpose(0, 1), mask[0]):
            want = torch.softmax(x.double().masked_fill(given, -torch.inf), -1).nan_to_num(0)
            assert (te.softmax(x, mask=given) - want).abs().max() < 1e-6


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_compiled(seed, reduction):  # noqa: F811
    target = torch.randint(0, 30, (2, 6), device=DEVICE)
    mask = torch.rand(6, 30, device=DEVICE) < 0.2

    def step(x):
        loss = te.cross_entropy(x * 2, target, reduction=reduction, label_smoothing=0.1, inplace_backward=True)
        return loss.sum() * 3 + te.softmax(x, 0.5, mask, causal=True, offset=20).square().sum()

    x = torch.randn(2, 6, 30, device=DEVICE, requires_grad=True)
    want = step(x)
    (g,) = torch.autograd.grad(want, x)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    got = compiled(x)
    (h,) = torch.autograd.grad(got, x)
    assert distance(got, want) < 1e-6 and distance(h, g) < 1e-6
    with torch.no_grad():
        assert distance(compiled(x), want) < 1e-6


def test_operators():
    x = torch.randn(4, 10, device=DEVICE, requires_grad=True)
    target = torch.tensor([1, 2, -100, 9], device=DEVICE)
    which = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.nvte.cross_entropy, (x, target, -100, "mean", 0.1, True), test_utils=which)
    torch.library.opcheck(torch.ops.nvte.cross_entropy, (x.detach(), target, -100, "none", 0.0, False), test_utils=which)
    torch.library.opcheck(torch.ops.nvte.softmax, (x, None, 0.5, True, 3), test_utils=which)
    torch.library.opcheck(torch.ops.nvte.scaled_rows, (x.detach(), torch.ones(4, device=DEVICE)), test_utils=which)


def test_import_takes_no_compiler_along():
    code = "import sys, nvte.torch; print('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "False"
