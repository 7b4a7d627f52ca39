"""torch.compile on models and with all options: the same bits as eager, in every order of passes, under checkpointing, in threads."""

import copy
import functools
import shutil
import threading

import pytest
from torch.utils.checkpoint import checkpoint
from torch_common import DEVICE, LAYERS, RECIPES, DelayedScaling, Float8CurrentScaling, assert_same, gradients, states, te, torch
from torch_common import compiles_under_checkpoint, refusal, seed, share  # noqa: F401

dynamo = pytest.importorskip("torch._dynamo")
pytestmark = pytest.mark.usefixtures("seed", "fresh")


@pytest.fixture
def fresh():
    """Nothing compiled before; what was kept for backward passes is gone afterwards."""
    dynamo.reset()
    yield
    dynamo.reset()


class Counting:
    """The backend aot_eager, and how often it compiled."""

    def __init__(self):
        self.count, self.inner = 0, dynamo.lookup_backend("aot_eager")

    def __call__(self, module, examples):
        self.count += 1
        return self.inner(module, examples)


def backends():
    missing = None
    if DEVICE == "cpu" and not (shutil.which("g++") or shutil.which("clang++")):
        missing = "inductor needs a C++ compiler"
    return ["aot_eager", pytest.param("inductor", marks=pytest.mark.skipif(missing is not None, reason=str(missing)))]


def compiled(f, backend="aot_eager", **options):
    return torch.compile(f, fullgraph=True, backend=backend, **options)


def autocast(recipe):
    return te.autocast(enabled=recipe is not None, recipe=recipe)


def train(layer, call, xs, recipe, dys):
    """Outputs, gradients and scaling state of some steps."""
    seen = []
    for x, dy in zip(xs, dys):
        x = x.clone().requires_grad_()
        layer.zero_grad()
        with autocast(recipe):
            out = call(x)
        outs = out if isinstance(out, tuple) else (out,)
        sum((o * d).sum() for o, d in zip(outs, (dy, x.detach(), dy))).backward()
        seen.append([[o.detach().clone() for o in outs], {n: g.clone() for n, g in gradients(layer, x).items()}, states(layer)])
    return seen


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize("name", ["linear", "gated_mlp"])
def test_layers_equal_eager_with_every_recipe(name, backend):
    make, k = LAYERS[name]
    plain = make()
    layer = copy.deepcopy(plain)
    call = compiled(layer, backend)
    width = plain(torch.zeros(1, k, device=DEVICE)).shape[-1]
    for recipe in (None, *(make() for make in RECIPES.values()), None):
        xs = [torch.randn(2, 5, k, device=DEVICE) * 3**i for i in range(3)]
        dys = [torch.randn(2, 5, width, device=DEVICE) for _ in range(3)]
        assert_same(train(layer, call, xs, recipe, dys), train(plain, plain, xs, recipe, dys))


@pytest.mark.parametrize("name, dtype", [("linear", torch.float16), ("rms_linear", torch.bfloat16), ("mlp", torch.bfloat16)])
def test_torch_autocast_and_parameter_types(name, dtype):
    make, k = LAYERS[name]
    for params in (torch.float32, dtype):
        plain = make(params_dtype=params)
        layer = copy.deepcopy(plain)
        call = compiled(layer)
        xs = [torch.randn(6, k, device=DEVICE) for _ in range(2)]
        for recipe in (None, DelayedScaling()):
            with torch.autocast(DEVICE, dtype):
                y = plain(xs[0])
                dys = [torch.randn_like(y) for _ in xs]
                assert_same(train(layer, call, xs, recipe, dys), train(plain, plain, xs, recipe, dys))


@pytest.mark.parametrize("kind", [te.LayerNorm, te.RMSNorm])
def test_norms(kind):
    plain = kind(24, device=DEVICE)
    layer = copy.deepcopy(plain)
    call = compiled(layer)
    for _ in range(2):
        x, dy = torch.randn(3, 4, 24, device=DEVICE), torch.randn(3, 4, 24, device=DEVICE)
        got, want = x.clone().requires_grad_(), x.clone().requires_grad_()
        y, z = call(got), plain(want)
        y.backward(dy), z.backward(dy)
        assert_same([y, gradients(layer, got)], [z, gradients(plain, want)])
    with torch.no_grad():
        assert_same(call(x), plain(x))


def options():
    return [
        ("linear", dict(return_bias=True), {}),
        ("linear", dict(bias=False), {}),
        ("norm_linear", dict(return_layernorm_output=True), {}),
        ("norm_linear", dict(return_layernorm_output=True, return_bias=True, zero_centered_gamma=True), {}),
        ("mlp", dict(return_layernorm_output=True, return_bias=True), {}),
        ("mlp", dict(bias=False), dict(fc1_weight=False)),
        ("linear", {}, dict(weight=False)),
        ("norm_linear", {}, dict(layer_norm_weight=False, layer_norm_bias=False)),
    ]


def matrices(module):
    """A module's outputs without the bias that it hands out."""

    def run(x):
        out = module(x)
        return tuple(t for t in (out if isinstance(out, tuple) else (out,)) if t is not None and t.dim() > 1)

    return run


@pytest.mark.parametrize("case", range(len(options())))
def test_options_and_frozen_parameters(case):
    name, how, wanted = options()[case]
    make, k = LAYERS[name]
    plain = make(**how)
    for parameter, value in wanted.items():
        getattr(plain, parameter).requires_grad_(value)
    layer = copy.deepcopy(plain)
    call = compiled(layer)
    for recipe in (None, DelayedScaling()):
        xs = [torch.randn(7, k, device=DEVICE) for _ in range(2)]
        y = plain(xs[0])
        dys = [torch.randn_like(y[0] if isinstance(y, tuple) else y) for _ in xs]

        assert_same(train(layer, matrices(call), xs, recipe, dys), train(plain, matrices(plain), xs, recipe, dys))


def test_weights_are_cached_and_caches_noticed():
    plain = te.Linear(16, 24, device=DEVICE)
    layer = copy.deepcopy(plain)
    call = compiled(layer)
    for step in range(3):
        for first in (True, False, False):
            x = torch.randn(8, 16, device=DEVICE)
            with te.autocast(recipe=DelayedScaling()):
                y, z = call(x, is_first_microbatch=first), plain(x, is_first_microbatch=first)
            y.sum().backward(), z.sum().backward()
            assert_same(y, z)
        assert_same([p.grad for p in layer.parameters()], [p.grad for p in plain.parameters()])
        with torch.no_grad():
            for p, q in zip(layer.parameters(), plain.parameters()):
                p.mul_(1.5), q.mul_(1.5)
    assert_same(states(layer), states(plain))


def test_no_grad_and_evaluation_change_no_state():
    layer = te.LayerNormMLP(16, 24, device=DEVICE)
    call, x = compiled(layer), torch.randn(8, 16, device=DEVICE)
    with te.autocast(recipe=DelayedScaling()):
        call(x).sum().backward()
    before = states(layer)
    with torch.no_grad(), te.autocast(recipe=DelayedScaling()):
        y = call(x * 1e4)
        assert_same(y, layer(x * 1e4))
    assert_same(states(layer), before)
    with torch.no_grad(), te.autocast(enabled=False, calibrating=True, recipe=DelayedScaling()):
        call(x * 10)
    assert layer.fp8_amax_history[0, -1] > 0


# --- how often is compiled ---


@pytest.mark.usefixtures("share")
def test_equal_layers_share_what_was_compiled():
    counting = Counting()
    plain = [te.LayerNormMLP(8, 16, device=DEVICE) for _ in range(24)]
    layers = copy.deepcopy(plain)
    calls = [compiled(layer, counting) for layer in layers]
    for _ in range(2):
        y = z = torch.randn(4, 8, device=DEVICE)
        with te.autocast(recipe=DelayedScaling()):
            for call, layer in zip(calls, plain):
                y, z = call(y), layer(z)
        y.sum().backward(), z.sum().backward()
        assert_same(y, z)
    assert_same([states(layer) for layer in layers], [states(layer) for layer in plain])
    # Once where x needs a gradient and once where it does not.
    assert counting.count <= 2


@pytest.mark.parametrize("name, dynamic", [("linear", None), ("gated_mlp", True), ("layernorm", True)])
def test_token_counts_share_what_was_compiled(name, dynamic):
    counting = Counting()
    make, k = LAYERS[name] if name in LAYERS else (lambda: te.LayerNorm(16, device=DEVICE), 16)
    layer = make()
    call = compiled(layer, counting, dynamic=dynamic)
    for tokens in range(3, 15):
        x = torch.randn(tokens, k, device=DEVICE)
        with te.autocast(recipe=Float8CurrentScaling()):
            y = call(x)
            assert_same(y, layer(x))
        y.sum().backward()
    assert counting.count <= 2


# --- models ---


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.front = te.Linear(16, 16, device=DEVICE)
        self.twice = te.LayerNormLinear(16, 16, device=DEVICE)
        self.norm = te.LayerNorm(16, device=DEVICE)
        self.mlp = te.LayerNormMLP(16, 24, device=DEVICE)
        self.tail = te.Linear(16, 16, device=DEVICE)
        self.tail.weight = self.front.weight

    def forward(self, x):
        x = self.front(x)
        x = x + self.twice(self.twice(x).relu())
        return self.tail(self.norm(self.mlp(x.t().contiguous().t()))).float().mean(-1)


ORDERS = ["F0 B0 F1 B1 E F2 B2", "F0 F1 B0 B1 E F2 F3 B2 B3", "F0 F1 B1 B0 F2 F3 B3 B2", "F0 B0 F1 F2 B1 F3 B2 B3"]


def follow(model, call, order, recipe, xs):
    """Runs forward and backward passes in an order, and optimizer steps where nothing waits."""
    outs, seen = {}, []
    for step in order.split():
        kind, i = step[0], int(step[1:] or 0)
        if kind == "E":
            with torch.no_grad(), te.autocast(recipe=recipe):
                seen.append(call(xs[0] * 1e4))
        elif kind == "F":
            with te.autocast(recipe=recipe):
                outs[i] = call(xs[i])
            seen.append(outs[i].detach().clone())
        else:
            outs.pop(i).square().sum().backward()
            if not outs:
                seen.append([p.grad.clone() for p in model.parameters()])
                with torch.no_grad():
                    for p in model.parameters():
                        p.sub_(0.05 * p.grad)
                        p.grad = None
    te.update_scaling(model)
    return seen, states(model)


@pytest.mark.parametrize("order", ORDERS[1:])
def test_periods_of_delayed_scaling(order):
    base, recipe = Model(), DelayedScaling(amax_history_len=3)
    other = copy.deepcopy(base)
    xs = [torch.randn(12, 16, device=DEVICE) * (i + 1) for i in range(4)]
    assert_same(follow(other, compiled(other), order, recipe, xs), follow(base, base, order, recipe, xs))


@pytest.mark.parametrize("before", ["a backward", "no gradients"])
def test_passes_that_begin_late_in_a_region(before):
    """Scales wait for the backward of a pass that ran after another's backward, or in a region entered without gradients."""
    recipe, base = DelayedScaling(amax_history_len=3), te.Linear(16, 24, device=DEVICE)
    other = copy.deepcopy(base)
    found = []
    xs = [torch.randn(8, 16, device=DEVICE) * 3**i for i in range(4)]
    for model, call in ((other, compiled(other)), (base, base)):
        with te.autocast(recipe=recipe):
            call(xs[0]).sum().backward()
            if before == "a backward":
                y = call(xs[1])
        if before == "no gradients":
            with torch.no_grad(), te.autocast(recipe=recipe), torch.enable_grad():
                y = call(xs[1])
        with te.autocast(recipe=recipe):
            z = call(xs[2])
        scale = model.fp8_scale.clone()
        y.square().sum().backward(), z.sum().backward()
        with te.autocast(recipe=recipe):
            last = call(xs[3])
        assert not torch.equal(model.fp8_scale, scale)
        last.sum().backward()
        found.append([[t.detach() for t in (y, z, last)], [p.grad for p in model.parameters()], scale])
        te.update_scaling(model)
    assert_same(*found)
    assert_same(states(other), states(base))


def test_recipes_change_between_steps():
    base = te.LayerNormMLP(16, 24, device=DEVICE)
    other, counting = copy.deepcopy(base), Counting()
    call = compiled(other, counting)
    for recipe in (None, DelayedScaling(), Float8CurrentScaling(), None, DelayedScaling(fp8_format="E4M3")):
        x = torch.randn(12, 16, device=DEVICE)
        got = []
        for model, f in ((other, call), (base, base)):
            model.zero_grad()
            with autocast(recipe):
                y = f(x)
            y.sum().backward()
            got.append([y, [p.grad for p in model.parameters()], states(model)])
        assert_same(*got)
    assert counting.count <= 4


def test_backward_in_another_thread():
    base = Model()
    other = copy.deepcopy(base)
    call, x = compiled(other), torch.randn(12, 16, device=DEVICE)
    ys = []
    for f in (call, base):
        with te.autocast(recipe=DelayedScaling()):
            ys.append(f(x))
    for y in ys:
        thread = threading.Thread(target=y.sum().backward)
        thread.start()
        thread.join()
    assert_same([p.grad for p in other.parameters()], [p.grad for p in base.parameters()])
    assert_same(states(other), states(base))


def test_retained_graph_and_dropped_results():
    layer = te.Linear(16, 24, device=DEVICE)
    call, x = compiled(layer), torch.randn(8, 16, device=DEVICE, requires_grad=True)
    with te.autocast():
        y = call(x)
    (first,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    (second,) = torch.autograd.grad(y.sum(), x)
    assert_same(first, second)
    with te.autocast():
        y = call(x)
    del y


def test_copies_moves_and_saved_state():
    layer = te.Linear(16, 24, device=DEVICE)
    call, x = compiled(layer), torch.randn(8, 16, device=DEVICE)
    with te.autocast():
        call(x).sum().backward()
    twin = copy.deepcopy(layer)
    other = te.Linear(16, 24, device=DEVICE)
    other.load_state_dict(layer.state_dict())
    for made in (twin, other, copy.deepcopy(layer).to(torch.float32)):
        again = compiled(made)
        with te.autocast():
            before = states(layer)
            y = again(x * 4)
        y.sum().backward()
        assert made.fp8_amax[0] == (x * 4).abs().max()
        assert_same(states(layer), before)
        with torch.no_grad(), te.autocast():
            assert_same(call(x), layer(x))


def test_other_layers_change_between_a_pass_and_its_backward():
    """Scales of many layers lie in one array; only the layer's own pass counts for autograd."""
    base = te.Linear(16, 24, device=DEVICE)
    layer = copy.deepcopy(base)
    call, x = compiled(layer), torch.randn(8, 16, device=DEVICE)
    stored = te.Linear(16, 24, device=DEVICE).state_dict()
    other = te.Linear(16, 24, device=DEVICE)
    with te.autocast(recipe=DelayedScaling()):
        y, z = call(x), base(x)
    kept = [copy.deepcopy(layer), te.LayerNormMLP(16, 24, device=DEVICE)]
    other.load_state_dict(stored)
    te.reset_scaling(other)
    y.sum().backward(), z.sum().backward()
    assert_same([p.grad for p in layer.parameters()], [p.grad for p in base.parameters()])
    assert_same(states(layer), states(base))
    assert len(kept) == 2


def test_each_thread_has_its_own_region():
    layer, x, got = te.Linear(16, 24, device=DEVICE), torch.randn(8, 16, device=DEVICE), []
    call = compiled(layer)
    with te.autocast(recipe=Float8CurrentScaling()):
        inside = call(x)
        assert_same(inside, layer(x))
        thread = threading.Thread(target=lambda: got.append(call(x)))
        thread.start()
        thread.join()
        assert_same(call(x), inside)
    assert_same(got[0], layer(x))
    assert not torch.equal(got[0], inside)


def test_whether_fp8_is_on_can_be_asked_inside():
    call, x = compiled(lambda x: x + 1 if te.is_fp8_enabled() else x - 1), torch.zeros(3, device=DEVICE)
    with te.autocast():
        assert (call(x) == 1).all()
        with te.autocast(enabled=False):
            assert (call(x) == -1).all()
    assert (call(x) == -1).all()


@compiles_under_checkpoint
def test_checkpoint_with_cached_weights():
    """What the backward pass reads of the cache is found again, whatever hands the saved tensors on."""
    base = te.LayerNormMLP(16, 24, device=DEVICE)
    other = copy.deepcopy(base)
    call = compiled(other)
    run = functools.partial(te.checkpoint, call)
    for step in range(3):
        for first in (True, False):
            x = torch.randn(8, 16, device=DEVICE) * 3**step
            with te.autocast(recipe=DelayedScaling()):
                y, z = run(x, is_first_microbatch=first), base(x, is_first_microbatch=first)
            y.sum().backward(), z.sum().backward()
            assert_same(y, z)
            assert_same([p.grad for p in other.parameters()], [p.grad for p in base.parameters()])
        with torch.no_grad():
            for p, q in zip(other.parameters(), base.parameters()):
                p.mul_(1.5), q.mul_(1.5)
    assert_same(states(other), states(base))


# --- what is refused ---


def inside(recipe, layer):
    def f(x):
        with te.autocast(recipe=recipe):
            return layer(x)

    def g(x):
        with te.fp8_autocast(True, fp8_recipe=DelayedScaling()):
            return layer(x)

    return f, g


@pytest.mark.parametrize("which", [0, 1])
def test_region_inside_a_compiled_function(which):
    recipe, layer = DelayedScaling(), te.Linear(16, 24, device=DEVICE)
    f = inside(recipe, layer)[which]
    x = torch.randn(4, 16, device=DEVICE)
    with pytest.raises(Exception, match=refusal("autocast cannot be entered inside a compiled function", "with te.(fp8_)?autocast")):
        compiled(f)(x)
    dynamo.reset()
    # Where it may, the compiler leaves the region to Python.
    y = torch.compile(f, backend="aot_eager")(x)
    y.sum().backward()
    assert_same(layer.fp8_amax[0], x.abs().max())


def test_what_compiled_functions_refuse():
    layer, x = te.Linear(16, 16, device=DEVICE), torch.randn(4, 16, device=DEVICE)
    with pytest.raises(Exception, match=refusal("checkpoint cannot be called inside a compiled function", "te.checkpoint")):
        compiled(lambda x: te.checkpoint(layer, x))(x)
    fused = te.Linear(16, 16, fuse_wgrad_accumulation=True, device=DEVICE)
    with pytest.raises(Exception, match=refusal("fuse_wgrad_accumulation is not supported under torch.compile", "traced.call")):
        compiled(fused)(x)


def test_second_derivatives_are_refused():
    layer, x = te.Linear(16, 16, device=DEVICE), torch.randn(4, 16, device=DEVICE, requires_grad=True)
    y = compiled(layer)(x)
    (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        g.sum().backward()


# --- checkpointing ---


@pytest.mark.parametrize("reentrant", [True, pytest.param(False, marks=compiles_under_checkpoint)])
def test_plain_checkpoint_round_a_compiled_block_raises(reentrant):
    model = te.LayerNormLinear(16, 24, device=DEVICE)
    call, x = compiled(model), torch.randn(12, 16, device=DEVICE, requires_grad=True)
    with te.autocast(recipe=DelayedScaling()):
        y = checkpoint(call, x, use_reentrant=reentrant)
    with pytest.raises(RuntimeError, match="nvte.torch.checkpoint"):
        y.sum().backward()


@pytest.mark.parametrize("recipe", RECIPES)
def test_plain_checkpoint_inside_a_compiled_function(recipe):
    """Passes one after the other: the compiler recomputes within the backward pass."""
    base, recipe = te.LayerNormMLP(16, 24, device=DEVICE), RECIPES[recipe]()
    other = copy.deepcopy(base)
    call = compiled(lambda x: checkpoint(other, x, use_reentrant=False))
    xs = [(torch.randn(12, 16, device=DEVICE) * (i + 1)).requires_grad_() for i in range(3)]
    assert_same(follow(other, call, ORDERS[0], recipe, xs), follow(base, base, ORDERS[0], recipe, xs))


@compiles_under_checkpoint
def test_plain_checkpoint_without_a_recipe():
    base = te.LayerNormLinear(16, 24, device=DEVICE)
    other = copy.deepcopy(base)
    call, x = compiled(other), torch.randn(12, 16, device=DEVICE, requires_grad=True)
    checkpoint(call, x, use_reentrant=False).sum().backward()
    base(x).sum().backward()
    assert_same([p.grad for p in other.parameters()], [p.grad for p in base.parameters()])


@pytest.mark.parametrize(
    "way, order",
    [
        *(pytest.param(*case, marks=compiles_under_checkpoint) for case in (("ours", ORDERS[1]), ("ours", ORDERS[3]), ("contexts", ORDERS[2]))),
        ("reentrant", ORDERS[1]),
    ],
)
def test_checkpoint_round_a_compiled_block(way, order):
    base, recipe = Model(), DelayedScaling(amax_history_len=3)
    other = copy.deepcopy(base)
    call = compiled(other)
    run = {
        "ours": lambda x: te.checkpoint(call, x),
        "reentrant": lambda x: te.checkpoint(call, x, use_reentrant=True),
        "contexts": lambda x: checkpoint(call, x, use_reentrant=False, context_fn=te.checkpoint_contexts),
    }[way]
    xs = [(torch.randn(12, 16, device=DEVICE) * (i + 1)).requires_grad_() for i in range(4)]
    assert_same(follow(other, run, order, recipe, xs), follow(base, base, order, recipe, xs))
