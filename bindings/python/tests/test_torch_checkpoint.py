"""Activation checkpointing changes no bit of outputs, gradients and scales; state_dict resumes bit for bit."""

import copy
import functools
import warnings

import pytest
from torch.utils.checkpoint import checkpoint
from torch_common import DEVICE, LAYERS, DelayedScaling, Float8CurrentScaling, assert_same, states, te, torch
from torch_common import seed  # noqa: F401

pytestmark = [pytest.mark.usefixtures("seed"), pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")]


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = te.LayerNormLinear(16, 16, device=DEVICE)
        self.b = te.LayerNormMLP(16, 24, device=DEVICE)

    def forward(self, x, first=None):
        return x + self.b(torch.tanh(self.a(x, is_first_microbatch=first)), is_first_microbatch=first)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.front = te.Linear(16, 16, device=DEVICE)
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.run = lambda f, *a: f(*a)
        self.region_inside = None

    def forward(self, x, first=None):
        x = self.front(x, is_first_microbatch=first)
        for block in self.blocks:
            f = block
            if self.region_inside is not None:

                def f(x, first, block=block):
                    with te.autocast(recipe=self.region_inside):
                        return block(x, first)

            x = self.run(f, x, first)
        return x.mean(-1)


def ways():
    plain = functools.partial
    return {
        "reentrant": plain(checkpoint, use_reentrant=True),
        "plain": plain(checkpoint, use_reentrant=False),
        "ours": te.checkpoint,
        "ours_reentrant": plain(te.checkpoint, use_reentrant=True),
        "contexts": plain(checkpoint, use_reentrant=False, context_fn=te.checkpoint_contexts),
    }


ORDERS = {
    "FBFB": "F0 B0 F1 B1 E F2 B2 F3 B3",
    "FFBB": "F0 F1 B0 B1 E F2 F3 B2 B3",
    "FFBB reversed": "F0 F1 B1 B0 F2 F3 B3 B2",
    "1F1B": "F0 F1 B0 F2 B1 F3 B2 B3 E F4 B4",
}
RECIPES = {"delayed": lambda: DelayedScaling(amax_history_len=3), "current": Float8CurrentScaling}


def follow(model, order, recipe, xs, caching=False, update=None):
    """Runs the steps; returns what must not depend on checkpointing. An optimizer step follows whenever nothing waits."""
    outs, results, waiting, fresh = {}, [], set(), True
    for step in order.split():
        if step == "E":
            with torch.no_grad(), te.autocast(recipe=recipe):
                model(xs[-1] * 1e4)
            continue
        kind, i = step[0], int(step[1:])
        if kind == "F":
            # The region's state inside a compiled, checkpointed or plain pass is the same.
            with te.autocast(recipe=recipe):
                outs[i] = model(xs[i], fresh if caching else None)
            fresh = False
            waiting.add(i)
            results.append(outs[i].detach().clone())
        else:
            outs.pop(i).square().sum().backward()
            waiting.discard(i)
        if not waiting and kind == "B":
            results.append([p.grad.clone() for p in model.parameters()])
            if not caching or i % 2:
                fresh = True
                with torch.no_grad():
                    for p in model.parameters():
                        p.sub_(0.05 * p.grad)
                        p.grad = None
    te.update_scaling(model)
    return results, states(model)


# Where passes overlap, plain reentrant checkpointing cannot know: nvte.torch.checkpoint does.
PAIRS = [(way, order) for way in ways() for order in ORDERS if way != "reentrant" or order == "FBFB"]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("way,order", PAIRS)
def test_checkpoint_is_bit_equal(way, order, recipe):
    base, recipe = Model(), RECIPES[recipe]()
    # Reentrant checkpointing needs an input that requires gradients.
    xs = [(torch.randn(12, 16, device=DEVICE) * (i + 1)).requires_grad_() for i in range(5)]
    other = copy.deepcopy(base)
    other.run = ways()[way]
    assert_same(follow(other, ORDERS[order], recipe, xs), follow(base, ORDERS[order], recipe, xs))


@pytest.mark.parametrize("normalization", ["LayerNorm", "RMSNorm"])
def test_a_pass_without_gradients_makes_the_same_codes(normalization):
    """Which needs one layout of them, where a pass with gradients needs both; enough of them that a few lie where roundings decide."""
    tokens, hidden = (8192, 4096) if DEVICE == "cuda" else (64, 512)
    layer = te.LayerNormLinear(hidden, 32, normalization=normalization, device=DEVICE, params_dtype=torch.bfloat16)
    x = torch.randn(tokens, hidden, device=DEVICE, dtype=torch.bfloat16)
    results = []
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients), te.autocast(recipe=DelayedScaling()):
            results.append(layer(x).detach().clone())
    assert torch.equal(*results)


@pytest.mark.parametrize("way", ways())
def test_checkpoint_with_weight_caching(way):
    base, recipe = Model(), DelayedScaling(amax_history_len=3)
    xs = [(torch.randn(12, 16, device=DEVICE) * (i + 1)).requires_grad_() for i in range(5)]
    other = copy.deepcopy(base)
    other.run = ways()[way]
    order = ORDERS["FBFB"]
    assert_same(follow(other, order, recipe, xs, True), follow(base, order, recipe, xs, True))


@pytest.mark.parametrize("way", ways())
def test_regions_inside_the_checkpointed_function(way):
    recipe = DelayedScaling(amax_history_len=3)
    base = Model()
    base.region_inside = recipe
    xs = [(torch.randn(12, 16, device=DEVICE) * (i + 1)).requires_grad_() for i in range(5)]
    other = copy.deepcopy(base)
    other.run = ways()[way]
    assert_same(follow(other, ORDERS["FBFB"], DelayedScaling(margin=1), xs), follow(base, ORDERS["FBFB"], DelayedScaling(margin=1), xs))


@pytest.mark.parametrize("reentrant, early, ends", [(False, True, 1), (False, False, 2), (True, True, 2), (True, False, 2)])
def test_where_recomputation_stops(reentrant, early, ends):
    """As torch's argument says, also where torch has none yet."""
    layer, reached = te.Linear(16, 8, device=DEVICE), []

    def run(x):
        y = layer(x)
        reached.append(y)
        return y

    x = torch.randn(4, 16, device=DEVICE, requires_grad=True)
    with te.autocast():
        te.checkpoint(run, x, use_reentrant=reentrant, early_stop=early).sum().backward()
    assert len(reached) == ends


def test_checkpoint_saves_memory():
    base, held = Model(), []
    x = torch.randn(64, 16, device=DEVICE, requires_grad=True)
    for run in (base.run, ways()["plain"], ways()["ours"]):
        base.run = run
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
            with te.autocast():
                loss = base(x).sum()
        held.append(sum(sizes))
        loss.backward()
    assert held[1] < held[0] and held[2] < held[0]


def test_after_an_exception():
    x = torch.randn(12, 16, device=DEVICE, requires_grad=True)
    first = Model()
    results = []
    for way in (None, *ways()):
        model = copy.deepcopy(first)
        if way:
            model.run = ways()[way]
        with te.autocast():
            model(x).sum().backward()
        with pytest.raises(ZeroDivisionError):
            with te.autocast():
                model.front(x)
                raise ZeroDivisionError
        with te.autocast():
            model(x).sum().backward()
        te.update_scaling(model)
        results.append(states(model))
    for other in results[1:]:
        assert_same(other, results[0])


def test_high_precision_stays_so():
    """A recomputation outside any region runs as its first pass, whatever the layer did before."""
    model = Model()
    x = torch.randn(12, 16, device=DEVICE, requires_grad=True)
    model.run = ways()["reentrant"]
    with te.autocast():
        model(x).sum().backward()
    before = states(model)
    x.grad = None
    model(x).sum().backward()
    got, x.grad = x.grad, None
    model.run = lambda f, *a: f(*a)
    model(x).sum().backward()
    assert torch.equal(got, x.grad)
    assert_same(states(model), before)


# --- state_dict ---


@pytest.mark.parametrize("interval", [1, 3])
def test_resume_is_bit_for_bit(interval, tmp_path):
    recipe = DelayedScaling(amax_history_len=5, interval=interval)
    model = Model()
    xs = [torch.randn(12, 16, device=DEVICE) * (i + 1) for i in range(5)]
    order = "F0 B0 F1 B1"
    follow(model, order, recipe, xs)
    with te.autocast(recipe=recipe):
        model(xs[4]).sum().backward()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    stored = torch.load(tmp_path / "model.pt", weights_only=True)
    assert stored["front.fp8_state"].shape == (3, 1026) and stored["blocks.0.b.fp8_state"].shape == (6, 1026)
    grads = [p.grad.clone() for p in model.parameters()]
    again = Model()
    assert {k: (v.shape, v.dtype) for k, v in again.state_dict().items()} == {k: (v.shape, v.dtype) for k, v in stored.items()}
    again.load_state_dict(stored)
    for p, g in zip(again.parameters(), grads):
        p.grad = g.clone()
    assert_same(again.state_dict(), model.state_dict())
    results = []
    for m in (again, model, model):
        # Counters of updates are shared by the layers of a device: each starts from the same.
        m.load_state_dict(stored)
        for p, g in zip(m.parameters(), grads):
            p.grad = g.clone()
        results.append(follow(m, "F2 B2 F3 B3", recipe, xs))
        if m is not model and interval > 1:
            results.clear()
    assert_same(results[1:], results[:-1])


def test_resume_in_the_same_module_and_other_lengths():
    layer, x = te.Linear(16, 8, device=DEVICE), torch.randn(12, 16, device=DEVICE)
    recipe = DelayedScaling(amax_history_len=4)
    for i in range(3):
        with te.autocast(recipe=recipe):
            layer(x * (i + 1)).sum().backward()
    stored = copy.deepcopy(layer.state_dict())
    assert torch.equal(stored["fp8_state"][:, 0], layer.fp8_scale) and torch.equal(stored["fp8_state"][:, 1], layer.fp8_amax)
    assert torch.equal(stored["fp8_state"][:, 2:], layer.fp8_amax_history)
    where = layer.fp8_scale.data_ptr()
    te.reset_scaling(layer)
    assert (layer.fp8_scale == 1).all() and (layer.fp8_amax_history == 0).all() and layer._due
    layer.load_state_dict(stored)
    assert layer.fp8_scale.data_ptr() == where and not layer._due
    assert_same(dict(layer.state_dict()), dict(stored))
    short = {**stored, "fp8_state": torch.cat([stored["fp8_state"][:, :2], stored["fp8_state"][:, -1:]], 1)}
    layer.load_state_dict(short)
    assert torch.equal(layer.fp8_amax_history[:, -1], stored["fp8_state"][:, -1]) and (layer.fp8_amax_history[:, :-1] == 0).all()


def damage(stored):
    good = stored["fp8_state"]
    yield good[:2]
    yield good.half()
    yield good.flatten()
    yield "text"
    for value, column in ((float("nan"), 0), (0.0, 0), (-1.0, 5), (float("inf"), 9), (-1.0, 1)):
        bad = good.clone()
        bad[0, column] = value
        yield bad


def test_damaged_state_is_refused():
    layer, x = te.Linear(16, 8, device=DEVICE), torch.randn(12, 16, device=DEVICE)
    with te.autocast():
        layer(x).sum().backward()
    before, weight = states(layer), layer.weight.detach().clone()
    stored = {k: v.clone() for k, v in te.Linear(16, 8, device=DEVICE).state_dict().items()}
    for bad in damage(stored):
        with pytest.raises(RuntimeError, match="fp8_state"):
            layer.load_state_dict({**stored, "fp8_state": bad})
        assert_same(states(layer), before)
        assert torch.equal(layer.weight, weight)
    with pytest.raises(RuntimeError, match="header"):
        layer.load_state_dict({**stored, "fp8_state_header": torch.tensor([1, 5, 0, 0], dtype=torch.int32)})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        layer.load_state_dict({**stored, "fp8_state_header": torch.tensor([9, 5, 0, 0, 7], dtype=torch.int32)})
    assert "later nvte" in str(caught[0].message) and layer._due


@pytest.mark.parametrize("name", LAYERS)
def test_missing_and_unknown_keys(name):
    layer = LAYERS[name][0]()
    weights = {k: v for k, v in layer.state_dict().items() if not k.startswith("fp8")}
    layer.load_state_dict(weights)
    layer.load_state_dict({**weights, "fp8_state_of_tomorrow": torch.ones(3)})
    with pytest.raises(RuntimeError, match="Unexpected"):
        layer.load_state_dict({**weights, "colour": torch.ones(3)})
    with pytest.raises(RuntimeError, match="Missing"):
        layer.load_state_dict({k: v for k, v in weights.items() if "weight" not in k})


def test_from_and_to_torch():
    ours, theirs = te.Linear(16, 8, device=DEVICE), torch.nn.Linear(16, 8, device=DEVICE)
    ours.load_state_dict(theirs.state_dict())
    assert torch.equal(ours.weight, theirs.weight)
    assert theirs.load_state_dict(ours.state_dict(), strict=False).missing_keys == []
    norm = te.LayerNorm(16, device=DEVICE)
    norm.load_state_dict(torch.nn.LayerNorm(16).state_dict())
    torch.nn.LayerNorm(16, device=DEVICE).load_state_dict(norm.state_dict())


def test_state_of_nvidias_library():
    import io
    import pickle

    layer = te.LayerNormMLP(16, 24, device=DEVICE)
    weights = {k: v for k, v in layer.state_dict().items() if not k.startswith("fp8")}
    history = torch.arange(4.0)[:, None] * 10 + torch.arange(6.0)
    state = {
        "scale_fwd": torch.arange(1.0, 7.0), "scale_bwd": torch.arange(11.0, 15.0),
        "amax_history_fwd": history, "amax_history_bwd": history[:, :4] + 100, "extra_fp8_variables": {"fp8_checkpoint": True},
    }  # fmt: skip
    stream = io.BytesIO()
    torch.save(state, stream)
    packed = torch.frombuffer(bytearray(stream.getvalue()), dtype=torch.uint8)
    layer.load_state_dict({**weights, "_extra_state": packed})
    assert layer.fp8_scale.tolist() == [1, 2, 4, 5, 13, 11]
    assert layer.fp8_amax.tolist() == [0, 1, 3, 4, 102, 100]
    assert layer.fp8_amax_history[:, -3:].tolist() == [[10 * r + c for r in (1, 2, 3)] for c in (0, 1, 3, 4, 102, 100)]
    te.checkpointing._warned.clear()
    evil = torch.frombuffer(bytearray(pickle.dumps(print)), dtype=torch.uint8)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for other in (evil, torch.zeros(0, dtype=torch.uint8), torch.ones(7, dtype=torch.uint8)):
            layer.load_state_dict({**weights, "_extra_state": other})
    ours = [w for w in caught if "holds no scaling state" in str(w.message)]
    assert len(ours) == 1, [str(w.message) for w in caught]


def test_distributed_checkpoints_find_the_state(tmp_path):
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

    model = torch.nn.Sequential(te.Linear(16, 8, device=DEVICE), te.LayerNorm(8, device=DEVICE))
    with te.autocast():
        model(torch.randn(4, 16, device=DEVICE)).sum().backward()
    stored = get_model_state_dict(model)
    assert torch.equal(stored["0.fp8_state"][:, 1], model[0].fp8_amax)
    stored = copy.deepcopy(stored)
    te.reset_scaling(model)
    set_model_state_dict(model, stored)
    assert torch.equal(stored["0.fp8_state"], model[0].fp8_state) and torch.equal(stored["0.fp8_state_header"], model[0].fp8_state_header)
