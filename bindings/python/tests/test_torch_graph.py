"""CUDA graphs: a captured step gives the bits of an eager one, scales included; capturing changes no scaling state."""

import copy
import gc

import pytest
from torch_common import DEVICE, RECIPES, DelayedScaling, Float8CurrentScaling, assert_same, states, te, torch
from torch_common import seed  # noqa: F401

pytestmark = [pytest.mark.usefixtures("seed"), pytest.mark.skipif(DEVICE != "cuda", reason="CUDA graphs need NVTE_TEST_BACKEND=cuda")]

WARM, REPLAYS, TOKENS, WIDTH = 3, 5, 48, 32


@pytest.fixture(autouse=True)
def nothing_waits():
    """Results of other tests that wait for a backward are gone."""
    gc.collect()


class Model(torch.nn.Module):
    def __init__(self, **how):
        super().__init__()
        self.a = te.Linear(WIDTH, 64, device=DEVICE, **how)
        self.norm = te.RMSNorm(64, device=DEVICE)
        self.b = te.LayerNormMLP(64, 80, device=DEVICE, **how)
        self.c = te.LayerNormLinear(64, 16, device=DEVICE, **how)

    def forward(self, x, first=None):
        x = self.norm(self.a(x, is_first_microbatch=first))
        x = x + self.b(x, is_first_microbatch=first)
        return self.c(x, is_first_microbatch=first)


def autocast(recipe):
    return te.autocast(enabled=recipe is not None, recipe=recipe)


def batches(micro):
    """Data whose size changes from step to step, so that scales do."""
    return [[torch.randn(TOKENS, WIDTH, device=DEVICE) * 1.7**i for _ in range(micro)] for i in range(WARM + REPLAYS)]


def step(model, optimizer, xs, recipe):
    """One optimizer step; with several micro-batches the weights are cast once."""
    optimizer.zero_grad(set_to_none=True)
    outs = []
    for i, x in enumerate(xs):
        with autocast(recipe):
            y = model(x, None if len(xs) == 1 else i == 0)
        y.square().mean().backward()
        outs.append(y.detach())
    optimizer.step()
    return outs


def look(model, outs):
    """Copies of all that a step leaves."""
    return [[y.clone() for y in outs], [p.detach().clone() for p in model.parameters()], states(model)]


def warm_up(run):
    """Some steps on a stream of their own, as captures want them."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        seen = [run(i) for i in range(WARM)]
    torch.cuda.current_stream().wait_stream(side)
    return seen


def captured(run):
    """(graph, what `run` returned while it was captured)."""
    gc.collect()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    return graph, out


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), 0.05)


@pytest.mark.parametrize("micro", [1, 2])
@pytest.mark.parametrize("recipe", [None, *RECIPES, "most_recent", "interval"])
def test_a_captured_step_equals_an_eager_one(recipe, micro):
    special = {"most_recent": dict(amax_compute_algo="most_recent"), "interval": dict(interval=2, amax_history_len=3)}
    if recipe in special:
        recipe = DelayedScaling(**special[recipe])
    else:
        recipe = RECIPES[recipe]() if recipe else None
    model, data = Model(), batches(micro)
    eager = copy.deepcopy(model)
    # One after the other: entering a region ends the period of all layers.
    optimizer = optimizer_of(eager)
    want = [look(eager, step(eager, optimizer, xs, recipe)) for xs in data]
    optimizer = optimizer_of(model)
    assert_same(warm_up(lambda i: look(model, step(model, optimizer, data[i], recipe))), want[:WARM])
    static = [x.clone() for x in data[0]]
    optimizer.zero_grad(set_to_none=True)
    before = look(model, [])
    graph, outs = captured(lambda: step(model, optimizer, static, recipe))
    assert_same(look(model, []), before)
    for i in range(WARM, WARM + REPLAYS):
        for x, new in zip(static, data[i]):
            x.copy_(new)
        graph.replay()
        assert_same(look(model, outs), want[i])
    if recipe is not None and recipe.delayed():
        # Scales did move while the graph ran.
        assert not torch.equal(want[-1][2][0], want[WARM][2][0])


def test_eager_steps_between_replays():
    """Nothing of the scaling state is kept in Python beside what a graph changes on the device."""
    recipe, model, data = DelayedScaling(amax_history_len=3), Model(), batches(1)
    eager = copy.deepcopy(model)
    optimizer = optimizer_of(eager)
    want = [look(eager, step(eager, optimizer, xs, recipe)) for xs in data]
    # Gradients of eager steps and of the graph lie apart: this optimizer forgets nothing between them.
    optimizer = optimizer_of(model)
    warm_up(lambda i: step(model, optimizer, data[i], recipe))
    static = [data[0][0].clone()]
    optimizer.zero_grad(set_to_none=True)
    graph, outs = captured(lambda: step(model, optimizer, static, recipe))
    for i in range(WARM, WARM + REPLAYS):
        if i % 2:
            static[0].copy_(data[i][0])
            graph.replay()
            assert_same(look(model, outs), want[i])
        else:
            assert_same(look(model, step(model, optimizer, data[i], recipe)), want[i])


def test_a_nan_in_a_replay_drops_one_period():
    recipe, model, x = DelayedScaling(amax_history_len=3), Model(), torch.randn(TOKENS, WIDTH, device=DEVICE)
    static = [x.clone()]

    def run():
        for p in model.parameters():
            p.grad = None
        with te.autocast(recipe=recipe):
            y = model(static[0])
        y.square().mean().backward()

    warm_up(lambda i: run())
    for p in model.parameters():
        p.grad = None
    graph, _ = captured(run)
    graph.replay()
    static[0][1, 1] = float("nan")
    graph.replay()
    static[0].copy_(x)
    scale = model.a.fp8_scale.clone()
    graph.replay()
    assert_same(model.a.fp8_nonfinite, torch.tensor([1, 0, 1], dtype=torch.int32, device=DEVICE))
    assert torch.isfinite(model.a.fp8_scale).all() and torch.isfinite(model.a.fp8_amax_history).all()
    assert_same(model.a.fp8_scale[0], scale[0])
    graph.replay()
    assert model.a.fp8_nonfinite[0] == 1


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("caching", [False, True])
def test_graphed_callables(caching, recipe):
    """State after the capture equals state before; calls give the bits of eager layers, gradients and scales too."""
    recipe = RECIPES[recipe]()
    layer, data = te.LayerNormMLP(WIDTH, 64, device=DEVICE), batches(2)
    eager = copy.deepcopy(layer)

    def run(call, i):
        seen, owner = [], eager if call is eager else layer
        for first, x in zip((True, False), data[i]):
            x = x.clone().requires_grad_()
            with te.autocast(recipe=recipe):
                y = call(x, is_first_microbatch=first) if caching else call(x)
            y.square().sum().backward()
            seen += [y.detach().clone(), x.grad.clone()] + [p.grad.clone() for p in owner.parameters()]
            # Gradients of torch's graphed callables lie in the graph's memory: the next replay writes there.
            for p in owner.parameters():
                p.grad = None
        return seen + states(owner)

    want = [run(eager, i) for i in range(REPLAYS)]
    before = [p.detach().clone() for p in layer.parameters()] + states(layer)
    sample = torch.randn(TOKENS, WIDTH, device=DEVICE, requires_grad=True)
    graphed = te.make_graphed_callables(layer, (sample,), enabled=True, recipe=recipe, cache_quantized_params=caching)
    assert_same([p.detach().clone() for p in layer.parameters()] + states(layer), before)
    for i in range(REPLAYS):
        assert_same(run(graphed, i), want[i])
    # Without gradients, and in evaluation, the layer runs as it is.
    with torch.no_grad(), te.autocast(recipe=recipe):
        assert_same(graphed(data[0][0]), layer(data[0][0]))


def test_graphed_callables_keep_main_grads():
    layer = te.Linear(WIDTH, 48, fuse_wgrad_accumulation=True, device=DEVICE)
    layer.weight.main_grad = torch.randn(48, WIDTH, device=DEVICE)
    before, x = layer.weight.main_grad.clone(), torch.randn(TOKENS, WIDTH, device=DEVICE, requires_grad=True)
    graphed = te.make_graphed_callables(layer, (x,), enabled=True, recipe=Float8CurrentScaling(), allow_unused_input=True)
    assert_same(layer.weight.main_grad, before)
    with te.autocast(recipe=Float8CurrentScaling()):
        graphed(x.detach().requires_grad_()).sum().backward()
    assert not torch.equal(layer.weight.main_grad, before)


def test_recipes_with_functions_are_refused():
    layer, x = te.Linear(WIDTH, 48, device=DEVICE), torch.randn(TOKENS, WIDTH, device=DEVICE, requires_grad=True)
    recipe = DelayedScaling(amax_compute_algo=lambda window: window.amax(0))
    before = states(layer)
    with pytest.raises(RuntimeError, match="cannot be captured"):
        te.make_graphed_callables(layer, (x,), enabled=True, recipe=recipe)
    assert_same(states(layer), before)


def test_torch_graphs_a_layer_inside_a_region():
    """torch's own make_graphed_callables: replays record amaxes and give the bits of an eager layer with the same scales."""
    recipe, layer = DelayedScaling(amax_history_len=3), te.Linear(WIDTH, 48, device=DEVICE)
    twin = te.Linear(WIDTH, 48, device=DEVICE)
    sample = torch.randn(TOKENS, WIDTH, device=DEVICE, requires_grad=True)
    with te.autocast(recipe=recipe):
        graphed = torch.cuda.make_graphed_callables(layer, (sample,))
    te.update_scaling(layer)
    twin.load_state_dict(layer.state_dict())
    for i in range(3):
        x, dy = torch.randn(TOKENS, WIDTH, device=DEVICE) * 2.0**i, torch.randn(TOKENS, 48, device=DEVICE)
        found = []
        with te.autocast(recipe=recipe):
            inputs = [x.clone().requires_grad_() for _ in range(2)]
            ys = [graphed(inputs[0]), twin(inputs[1])]
        for call, y, given in zip((layer, twin), ys, inputs):
            call.zero_grad()
            y.backward(dy)
            found.append([y.detach(), given.grad, call.weight.grad, call.bias.grad])
        assert_same(*found)
        assert_same(states(layer), states(twin))
        assert_same(layer.fp8_amax[0], x.abs().max())
