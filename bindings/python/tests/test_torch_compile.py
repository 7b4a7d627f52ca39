"""torch.compile: one graph, the bits of eager layers, few compilations; the operators by torch's own checks."""

import copy
import gc

import pytest
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint
from torch_common import DEVICE, LAYERS, RECIPES, DelayedScaling, assert_same, gradients, states, te, torch
from torch_common import compiles_under_checkpoint, refusal, seed, share  # noqa: F401

pytestmark = pytest.mark.usefixtures("seed")
# The graph as it is, without inductor: what is tested is what dynamo and AOTAutograd make of the layers.
BACKEND = "aot_eager"


@pytest.fixture(autouse=True)
def fresh():
    # Results of other tests that wait for a backward are gone.
    gc.collect()
    torch._dynamo.reset()


def compiled(f, **options):
    counter = CompileCounterWithBackend(BACKEND)
    return torch.compile(f, backend=counter, fullgraph=True, **options), counter


@pytest.mark.parametrize("recipe", [None, *RECIPES])
@pytest.mark.parametrize("name", LAYERS)
def test_eager_and_compiled_are_equal(name, recipe):
    make, k = LAYERS[name]
    a, results = make(), []
    recipe = RECIPES[recipe]() if recipe else None
    for m in (a, copy.deepcopy(a)):
        torch.manual_seed(1)
        f, counter = compiled(m) if m is a else (m, None)
        seen = []
        for _ in range(3):
            x = torch.randn(17, k, device=DEVICE, requires_grad=True)
            m.zero_grad()
            with te.autocast(enabled=recipe is not None, recipe=recipe):
                y = f(x)
            y.square().sum().backward()
            seen += [y.detach(), *gradients(m, x).values(), *states(m)]
        with torch.no_grad(), te.autocast(enabled=recipe is not None, recipe=recipe):
            seen.append(f(x.detach() * 100))
        results.append(seen + states(m))
        if m is a:
            # With gradients, and without.
            assert counter.frame_count == 2
    assert_same(*results)


def test_norms_and_autocast():
    for m in (te.LayerNorm(16, device=DEVICE), te.RMSNorm(16, device=DEVICE), te.LayerNormMLP(16, 24, device=DEVICE)):
        f, _ = compiled(m)
        x = torch.randn(5, 16, device=DEVICE, requires_grad=True)
        with torch.autocast(DEVICE, dtype=torch.bfloat16), te.autocast():
            y, z = f(x), m(x)
        assert torch.equal(y, z) and y.dtype == torch.bfloat16
        dy = torch.randn_like(y)
        assert_same(torch.autograd.grad(y, [x, *m.parameters()], dy), torch.autograd.grad(z, [x, *m.parameters()], dy))


@pytest.mark.usefixtures("share")
def test_equal_layers_share_what_was_compiled():
    layers = torch.nn.ModuleList([te.Linear(16, 16, device=DEVICE) for _ in range(24)])
    counter = CompileCounterWithBackend(BACKEND)
    fs = [torch.compile(m, backend=counter, fullgraph=True) for m in layers]
    for _ in range(2):
        x = torch.randn(8, 16, device=DEVICE, requires_grad=True)
        with te.autocast(recipe=DelayedScaling(amax_history_len=4)):
            for f in fs:
                x = f(x)
        x.sum().backward()
    assert counter.frame_count <= 2
    assert all((m.fp8_amax[:2] > 0).all() for m in layers)


def test_many_token_counts():
    m = te.LayerNormMLP(16, 24, device=DEVICE)
    f, counter = compiled(m, dynamic=True)
    for tokens in (17, 3, 64, 5, 33, 48, 100, 9, 21, 2, 80, 31):
        x = torch.randn(tokens, 16, device=DEVICE, requires_grad=True)
        with te.autocast():
            f(x).sum().backward()
    assert counter.frame_count <= 2


def test_scales_wait_for_compiled_layers_too():
    """F F B B with compiled layers: no scale changes in between."""
    m, recipe = te.Linear(16, 16, device=DEVICE), DelayedScaling(amax_history_len=4)
    f, _ = compiled(m)
    for _ in range(2):
        with te.autocast(recipe=recipe):
            f(torch.randn(8, 16, device=DEVICE)).sum().backward()
    with te.autocast(recipe=recipe):
        a = f(torch.randn(8, 16, device=DEVICE))
        scale = m.fp8_scale.clone()
    with te.autocast(recipe=recipe):
        b = f(torch.randn(8, 16, device=DEVICE) * 100)
    assert torch.equal(m.fp8_scale, scale)
    a.sum().backward()
    b.sum().backward()
    with te.autocast(recipe=recipe):
        assert not torch.equal(m.fp8_scale, scale)


@pytest.mark.parametrize("first", [None, True])
def test_copies_of_what_forward_saved(first):
    m = te.Linear(48, 32, device=DEVICE)
    twin, more = copy.deepcopy(m), {} if first is None else {"is_first_microbatch": first}
    f, _ = compiled(m)
    x = torch.randn(5, 48, device=DEVICE, requires_grad=True)
    with te.autocast():
        want = twin(x, **more)
    with te.autocast(), torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda t: t):
        y = f(x, **more)
    assert torch.equal(y, want)
    if first is None:
        assert_same(torch.autograd.grad(y.sum(), (x, m.weight)), torch.autograd.grad(want.sum(), (x, twin.weight)))
    else:
        # The FP8 weights lie where the copy does not say.
        with pytest.raises(RuntimeError, match="is_first_microbatch"):
            torch.autograd.grad(y.sum(), x)


@pytest.mark.parametrize("reentrant", [pytest.param(False, marks=compiles_under_checkpoint), True])
def test_checkpointing_round_a_compiled_block(reentrant):
    m = te.LayerNormLinear(16, 16, device=DEVICE)
    twin = copy.deepcopy(m)
    f, _ = compiled(m)
    x = torch.randn(8, 16, device=DEVICE, requires_grad=True)
    with te.autocast():
        y = checkpoint(f, x, use_reentrant=reentrant)
    with pytest.raises(RuntimeError, match="nvte.torch.checkpoint"):
        y.sum().backward()
    te.reset_scaling(m)
    m.zero_grad()
    x.grad = None
    with te.autocast():
        y = te.checkpoint(f, x, use_reentrant=reentrant)
    y.sum().backward()
    (got, seen), x.grad = (gradients(m, x), states(m)), None
    with te.autocast():
        twin(x).sum().backward()
    assert_same(got, gradients(twin, x))
    assert_same(seen, states(twin))


def test_a_region_inside():
    m = te.Linear(16, 16, device=DEVICE)

    def f(x):
        with te.autocast():
            return m(x)

    x = torch.randn(8, 16, device=DEVICE)
    with te.autocast():
        want = m(x)
    with pytest.raises(Exception, match=refusal("put the region round the call", "with te.autocast")):
        compiled(f)[0](x)
    torch._dynamo.reset()
    assert torch.equal(torch.compile(f, backend=BACKEND)(x), want)


@pytest.fixture
def filled():
    """New memory is filled: between the parts of `saved` lie bytes that nobody writes."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("name", ["linear", "norm_linear", "gated_mlp"])
def test_operators(name):
    make, k = LAYERS[name]
    m = make()
    x = torch.randn(17, k, device=DEVICE, requires_grad=True)
    if name == "linear":
        parameters, flags = [m.weight, m.bias], 3
    elif "linear" in name:
        parameters, flags = [m.layer_norm_weight, m.layer_norm_bias, m.weight, m.bias], 11
    else:
        parameters, flags = [m.layer_norm_weight, m.layer_norm_bias, m.fc1_weight, m.fc1_bias, m.fc2_weight, m.fc2_bias], 15
    for recipe in (None, *RECIPES):
        with te.autocast(enabled=recipe is not None, recipe=RECIPES[recipe]() if recipe else None):
            mode = te.region.local.text
        scale = torch.ones(6, device=DEVICE) * 0.5
        arguments = (x, parameters, scale, m._text, mode, flags, False, -1, name != "linear")
        torch.library.opcheck(torch.ops.nvte.layer.default, arguments)
        y, normed, saved = (t.detach() for t in torch.ops.nvte.layer(*arguments))
        given = [p if p is None else p.detach() for p in parameters]
        needs = [True, *[p is not None for p in parameters]]
        arguments = (y, normed if name != "linear" else None, x.detach(), given, saved, scale, m._text, mode, flags, False, -1, needs)
        torch.library.opcheck(torch.ops.nvte.layer_backward.default, arguments)


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("rms", [False, True])
def test_operators_of_norms(rms):
    x, gamma = torch.randn(5, 16, device=DEVICE, requires_grad=True), torch.randn(16, device=DEVICE, requires_grad=True)
    beta = None if rms else torch.randn(16, device=DEVICE, requires_grad=True)
    torch.library.opcheck(torch.ops.nvte.norm.default, (x, gamma, beta, 1e-5, True, rms, torch.float32))
    y, statistics = torch.ops.nvte.norm(x.detach(), gamma.detach(), None if rms else beta.detach(), 1e-5, True, rms, torch.float32)
    arguments = (y, x.detach(), gamma.detach(), statistics, 1e-5, True, rms, [True, True, not rms])
    torch.library.opcheck(torch.ops.nvte.norm_backward.default, arguments)
