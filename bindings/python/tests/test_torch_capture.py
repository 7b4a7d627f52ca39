"""CUDA graphs: a whole step, torch's graphed callables inside a region, and those of nvte.torch, against eager twins bit for bit."""

import copy

import pytest
from torch_common import DEVICE, RECIPES, DelayedScaling, assert_same, states, te, torch
from torch_common import seed  # noqa: F401

pytestmark = [pytest.mark.usefixtures("seed"), pytest.mark.skipif(DEVICE != "cuda", reason="CUDA graphs need CUDA")]


def model_of():
    return torch.nn.Sequential(
        te.Linear(32, 32, device=DEVICE), te.LayerNormLinear(32, 32, device=DEVICE), te.LayerNormMLP(32, 64, device=DEVICE)
    )


def batch(scale=1.0):
    return torch.randn(24, 32, device=DEVICE) * scale


def eager_step(model, x, recipe):
    for p in model.parameters():
        p.grad = None
    with te.autocast(recipe=recipe):
        y = model(x)
    y.square().sum().backward()
    return y.detach().clone(), [p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_whole_step(recipe):
    model, recipe = model_of(), RECIPES[recipe]()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            eager_step(model, batch(), recipe)
    torch.cuda.current_stream().wait_stream(side)
    for p in model.parameters():
        p.grad = None
    twin, x = copy.deepcopy(model), batch()
    before = states(model)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with te.autocast(recipe=recipe):
            y = model(x)
        y.square().sum().backward()
    assert_same(states(model), before)
    given, got = [], []
    for i in range(4):
        x.copy_(batch(1.0 + i))
        graph.replay()
        got.append((y.detach().clone(), [p.grad.clone() for p in model.parameters()], states(model)))
        given.append(x.clone())
    # The twin's regions end the periods of both, so it runs afterwards.
    for x, (out, grads, seen) in zip(given, got):
        assert_same(eager_step(twin, x, recipe), (out, grads))
        assert_same(states(twin), seen)


@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize("recipe", RECIPES)
def test_graphed_callables(recipe, ours):
    model, recipe = model_of(), RECIPES[recipe]()
    # Weights are cast with scales of their own the first time.
    eager_step(model, batch(), recipe)
    te.update_scaling(model)
    for p in model.parameters():
        p.grad = None
    twin, before = copy.deepcopy(model), states(model)
    sample = batch().requires_grad_()
    if ours:
        graphed = te.make_graphed_callables(model, (sample,), fp8_enabled=True, fp8_recipe=recipe)
        assert_same(states(model), before)
    else:
        with te.autocast(recipe=recipe):
            graphed = torch.cuda.make_graphed_callables(model, (sample,))
        # Warm-up passes were recorded: both go on from here.
        for a, b in zip(model, twin):
            b.load_state_dict(a.state_dict())
    xs = [batch(1.0 + i).requires_grad_() for i in range(4)]
    results = []
    for m in (graphed, twin):
        seen = []
        for x in xs:
            for p in m.parameters():
                p.grad = None
            x.grad = None
            with te.autocast(recipe=recipe):
                y = m(x)
            y.square().sum().backward()
            seen.append((y.detach().clone(), x.grad.clone(), [p.grad.clone() for p in m.parameters()]))
        te.update_scaling(m)
        results.append((seen, states(m)))
    assert_same(*results)


def test_scales_wait_for_graphed_callables():
    model, recipe = model_of(), DelayedScaling(amax_history_len=4)
    graphed = te.make_graphed_callables(model, (batch().requires_grad_(),), enabled=True, recipe=recipe)
    for _ in range(2):
        with te.autocast(recipe=recipe):
            y = graphed(batch())
        y.sum().backward()
    with te.autocast(recipe=recipe):
        a = graphed(batch())
        scale = states(model)[0]
    with te.autocast(recipe=recipe):
        assert torch.equal(states(model)[0], scale)
    a.sum().backward()
    # Gradients off: uncaptured, and nothing is recorded.
    before = states(model)
    with torch.no_grad(), te.autocast(recipe=recipe):
        graphed(batch(1000.0))
    assert_same(states(model), before)


def test_loading_into_captured_layers():
    model, recipe = model_of(), DelayedScaling(amax_history_len=4)
    graphed = te.make_graphed_callables(model, (batch().requires_grad_(),), fp8_enabled=True, fp8_recipe=recipe)
    other = model_of()
    weights = {k: v * 50 if v.dim() == 2 else v for k, v in other.state_dict().items() if "fp8" not in k}
    model.load_state_dict(weights)
    other.load_state_dict(weights)
    te.reset_scaling(model)
    x, results = batch(), []
    for m in (graphed, other):
        with te.autocast(recipe=recipe):
            y = m(x)
        y.sum().backward()
        te.update_scaling(m)
        results.append((y.detach().clone(), states(m)))
    assert_same(*results)


def test_graphed_callables_with_cached_weights():
    model, recipe = model_of(), DelayedScaling(amax_history_len=4)
    sequence = [te.make_graphed_callables(m, (batch().requires_grad_(),), fp8_enabled=True, fp8_recipe=recipe, fp8_weight_caching=True)
                for m in copy.deepcopy(model)]  # fmt: skip
    results = []
    for layers in (sequence, list(model)):
        torch.manual_seed(5)
        seen = []
        for step in range(2):
            for first in (True, False):
                x = batch()
                with te.autocast(recipe=recipe):
                    for m in layers:
                        x = m(x, is_first_microbatch=first)
                x.square().sum().backward()
                seen.append(x.detach().clone())
            with torch.no_grad():
                for m in layers:
                    for p in m.parameters():
                        p.sub_(0.01 * p.grad)
                        p.grad.zero_()
        for m in layers:
            te.update_scaling(m)
        results.append((seen, [states(m) for m in layers]))
    assert_same(*results)


def test_functions_cannot_be_captured():
    layer = te.Linear(32, 32, device=DEVICE)
    recipe = DelayedScaling(amax_compute_algo=lambda history: history.amax(0))
    for _ in range(2):
        eager_step(layer, batch(), recipe)
    with pytest.raises(RuntimeError, match="cannot be captured"):
        te.make_graphed_callables(layer, (batch().requires_grad_(),), fp8_enabled=True, fp8_recipe=recipe)
    with pytest.raises(RuntimeError, match="cannot be captured"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            eager_step(layer, batch(), recipe)
