"""When scales change: periods of delayed scaling, evaluation, failures, several regions, calibration, weight caching."""

import copy
import warnings

import pytest
from torch_common import DEVICE, LAYERS, RECIPES, DelayedScaling, Float8CurrentScaling
from torch_common import activation, assert_same, distance, exact, states, te, torch
from torch_common import seed  # noqa: F401

import nvte

pytestmark = pytest.mark.usefixtures("seed")


def model_of():
    """One layer of each kind, one after the other."""
    torch.manual_seed(3)
    return torch.nn.Sequential(
        te.Linear(16, 24, device=DEVICE), torch.nn.ReLU(), te.LayerNormLinear(24, 16, device=DEVICE), te.LayerNormMLP(16, 32, device=DEVICE)
    )


def batch(scale=1.0):
    return torch.randn(20, 16, device=DEVICE) * scale


def expected_scale(amax, largest=448.0):
    return torch.tensor(largest, device=amax.device) / amax


def test_one_linear_step_by_step():
    """FP8 forward and backward equal the composition of casts and an f64 product, and the scales follow the contract."""
    layer = te.Linear(40, 24, device=DEVICE)
    recipe, history = DelayedScaling(amax_history_len=3), []
    scale = torch.ones(3, device=DEVICE)
    scale[1] = 448.0 / layer.weight.detach().abs().max()
    for step in range(6):
        x = (torch.randn(12, 40, device=DEVICE) * (step + 1)).requires_grad_()
        dy = torch.randn(12, 24, device=DEVICE) * 10.0**-step
        with te.autocast(recipe=recipe):
            y = layer(x)
        if step:
            assert_same(layer.fp8_scale, scale)
        q = [
            nvte.ops.dequantize(nvte.ops.cast_to_fp8(t.detach(), f, scale=scale[i : i + 1].clone()), dtype="float32").double()
            for i, (t, f) in enumerate(((x, "e4m3"), (layer.weight, "e4m3"), (dy, "e5m2")))
        ]
        layer.zero_grad()
        y.backward(dy)
        assert distance(y, q[0] @ q[1].t() + layer.bias.double()) < 1e-3
        # Tensor cores keep some 14 bits.
        most = 1e-5 if DEVICE == "cpu" else 2.0**-12
        assert distance(x.grad, q[2] @ q[1]) < most and distance(layer.weight.grad, q[2].t() @ q[0]) < most
        assert distance(layer.bias.grad, dy.sum(0)) < 1e-5
        amax = torch.stack([x.detach().abs().max(), layer.weight.detach().abs().max(), dy.abs().max()])
        assert_same(layer.fp8_amax, amax)
        history = (history + [amax])[-3:]
        top = torch.stack(history).amax(0)
        scale = torch.tensor([448.0, 448.0, 57344.0], device=DEVICE) / top
    te.update_scaling(layer)
    assert_same(layer.fp8_scale, scale)
    assert (layer.fp8_amax == 0).all() and torch.equal(layer.fp8_amax_history[:, -1], history[-1])


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", LAYERS)
def test_fp8_is_near_and_representable_inputs_are_exact(name, recipe):
    make, k = LAYERS[name]
    layer = make()
    x = torch.randn(64, k, device=DEVICE)
    for _ in range(2):
        with te.autocast(recipe=RECIPES[recipe]()):
            y = layer(x)
        y.sum().backward()
    want = exact(layer, x.double())[0]
    assert 1e-3 < distance(y, want) < 0.1
    if name == "linear":
        with torch.no_grad():
            for t in (x, layer.weight):
                t.copy_(torch.randint(-7, 8, t.shape, device=DEVICE) / 8)
                # The largest is the format's largest, so that the scale is a power of two.
                t.view(-1)[0] = 0.875
            te.reset_scaling(layer)
            layer.bias.zero_()
        for _ in range(2):
            with te.autocast(recipe=RECIPES[recipe]()):
                y = layer(x)
            y.sum().backward()
        want = exact(layer, x.double())[0]
        assert (y.double() - want).abs().max() < 1e-3 * want.abs().max()


def test_period_ends_when_no_backward_is_due():
    model, recipe = model_of(), DelayedScaling(amax_history_len=4)

    def forward(scale=1.0):
        with te.autocast(recipe=recipe):
            return model(batch(scale))

    forward().sum().backward()
    first = states(model)
    a = forward()
    second = states(model)
    assert not torch.equal(first[0], second[0])
    # a waits: nothing changes.
    b = forward(100.0)
    assert_same(states(model)[0], second[0])
    a.sum().backward()
    c = forward()
    assert_same(states(model)[0], second[0])
    b.sum().backward()
    c.sum().backward()
    assert_same(states(model)[0], second[0])
    forward()
    assert not torch.equal(states(model)[0], second[0])


def test_micro_batches_that_overlap_share_a_period():
    """F F B B gives the same outputs as one period: the scales of both forwards are the same."""
    model, recipe = model_of(), DelayedScaling(amax_history_len=4)
    x1, x2 = batch(), batch(3.0)
    with te.autocast(recipe=recipe):
        model(x1).sum().backward()
    te.update_scaling(model)
    twin = copy.deepcopy(model)
    with te.autocast(recipe=recipe):
        a = model(x1)
    with te.autocast(recipe=recipe):
        b = model(x2)
    with te.autocast(recipe=recipe):
        c, d = twin(x1), twin(x2)
    assert torch.equal(a, c) and torch.equal(b, d)
    (a.sum() + b.sum()).backward()
    (c.sum() + d.sum()).backward()
    assert_same(states(model), states(twin))


def test_evaluation_touches_nothing():
    model, recipe = model_of(), DelayedScaling(amax_history_len=4)
    with te.autocast(recipe=recipe):
        model(batch()).sum().backward()
    before = states(model)
    with torch.no_grad(), te.autocast(recipe=recipe):
        model(batch(1000.0))
    assert_same(states(model), before)
    with te.autocast(recipe=recipe), torch.no_grad():
        pass
    before = states(model)
    with torch.no_grad():
        with te.autocast(recipe=recipe):
            model(batch(1000.0))
        model(batch(1000.0))
    model.eval()
    with torch.inference_mode(), te.autocast(recipe=recipe):
        model(batch(1000.0))
    assert_same(states(model), before)


def test_dropped_results_do_not_wait():
    model, recipe = model_of(), DelayedScaling(amax_history_len=4)
    with te.autocast(recipe=recipe):
        model(batch())
    before = states(model)
    with te.autocast(recipe=recipe):
        pass
    assert not torch.equal(states(model)[0], before[0])


def test_a_result_kept_for_long_is_given_up(monkeypatch):
    monkeypatch.setattr(te.state, "_warned", False)
    model = te.Linear(16, 16, device=DEVICE)
    with te.autocast():
        kept = model(batch())
    before = states(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(70):
            with te.autocast():
                pass
    assert len([w for w in caught if "64 later regions" in str(w.message)]) == 1
    assert not torch.equal(states(model)[0], before[0])
    kept.sum().backward()


def test_an_exception_rolls_nothing():
    model, recipe = model_of(), DelayedScaling(amax_history_len=4)
    x = batch()
    with te.autocast(recipe=recipe):
        model(x).sum().backward()
    twin = copy.deepcopy(model)
    with pytest.raises(ZeroDivisionError):
        with te.autocast(recipe=recipe):
            model[0](x)
            raise ZeroDivisionError
    for m in (model, twin):
        with te.autocast(recipe=recipe):
            if m is model:
                m(x).sum().backward()
            else:
                m(x).sum().backward()
        te.update_scaling(m)
    assert_same(states(model)[0], states(twin)[0])


def test_nested_regions():
    a, b, c = (te.Linear(16, 16, device=DEVICE) for _ in range(3))
    x = batch()
    with te.autocast(recipe=DelayedScaling(margin=1, amax_history_len=2)):
        ya = a(x)
        with te.autocast(enabled=False):
            yb = b(x)
        with te.autocast(recipe=Float8CurrentScaling()):
            yc = c(x)
        assert te.is_fp8_enabled()
    assert not te.is_fp8_enabled()
    (ya + yb + yc).sum().backward()
    assert distance(yb, exact(b, x.double())[0]) < 1e-5 < distance(ya, exact(a, x.double())[0])
    assert (b.fp8_amax == 0).all() and (c.fp8_amax == 0).all() and (a.fp8_amax > 0).all()
    te.update_scaling(a)
    assert torch.allclose(a.fp8_scale[0], 224.0 / x.abs().max())


def test_recipes_side_by_side():
    """Layers with windows, formats and intervals of their own in one chunk."""
    layers = [te.Linear(16, 16, device=DEVICE) for _ in range(4)]
    recipes = [
        DelayedScaling(amax_history_len=2), DelayedScaling(amax_compute_algo="most_recent", fp8_format="E4M3"), DelayedScaling(interval=2),
        DelayedScaling(amax_history_len=2, power_of_two=True),
    ]  # fmt: skip
    tops, seen = [], [[] for _ in layers]
    for step in range(5):
        x = batch(2.0 ** (3 - step))
        tops.append(float(x.abs().max()))
        outs = []
        with te.autocast():
            for m, r, s in zip(layers, recipes, seen):
                with te.autocast(recipe=r):
                    outs.append(m(x))
                s.append(float(m.fp8_scale[0]))
        sum(o.sum() for o in outs).backward()
    close = pytest.approx
    assert seen[0][1:] == close([448 / max(tops[max(0, i - 1) : i + 1]) for i in range(4)], rel=1e-6)
    assert seen[1][1:] == close([448 / t for t in tops[:4]], rel=1e-6)
    assert seen[2] == close([1, 1, 448 / max(tops[:2]), 448 / max(tops[:2]), 448 / max(tops[:4])], rel=1e-6)
    assert all(torch.tensor(v).frexp()[0] == 0.5 for v in seen[3])
    assert layers[1]._slots.part(layers[1]._slots.chunk.format_max).tolist() == [448.0] * 3


def test_functions_as_algorithms():
    calls = []

    def largest(history):
        calls.append(tuple(history.shape))
        return history.max(0).values

    def scaling(amax, scale, fp8_max, recipe):
        calls.append((tuple(amax.shape), recipe.margin))
        return torch.where(amax > 0, fp8_max / amax, scale)

    mine = DelayedScaling(amax_history_len=3, amax_compute_algo=largest, scaling_factor_compute_algo=scaling)
    a = model_of()
    b = copy.deepcopy(a)
    for step in range(5):
        x = batch(1.0 + step)
        for m, r in ((a, mine), (b, DelayedScaling(amax_history_len=3))):
            with te.autocast(recipe=r):
                y = m(x)
            y.sum().backward()
    te.update_scaling(b)
    assert_same(states(a), states(b))
    assert (3, 3) in calls and (3, 6) in calls and ((6,), 0) in calls


def test_calibration():
    layer = te.LayerNormMLP(16, 24, device=DEVICE)
    x = batch(5.0)
    for grads in (True, False):
        te.reset_scaling(layer)
        with torch.set_grad_enabled(grads):
            with te.autocast(enabled=False, calibrating=True, recipe=DelayedScaling(amax_history_len=2)):
                y = layer(x)
        assert distance(y, exact(layer, x.double())[0]) < 1e-5
        if grads:
            assert (layer.fp8_scale == 1).all()
            y.sum().backward()
            with te.autocast():
                pass
            assert (layer.fp8_scale != 1).all()
        else:
            # Updated at the region's end; gradients were not seen.
            assert (layer.fp8_scale[:4] != 1).all() and (layer.fp8_scale[4:] == 1).all() and (layer.fp8_amax == 0).all()


def test_replaced_weights():
    layer = te.Linear(16, 8, device=DEVICE)
    recipe, x = DelayedScaling(amax_history_len=2), batch()
    with torch.no_grad(), te.autocast(recipe=recipe):
        a = layer(x)
    assert (layer.fp8_scale == 1).all()
    with te.autocast(recipe=recipe):
        b = layer(x)
        assert torch.equal(a, b)
        assert torch.equal(layer.fp8_scale[1], expected_scale(layer.weight.detach().abs().max()))
        assert layer.fp8_amax[1] == layer.weight.detach().abs().max()
        assert torch.equal(layer(x), b)
    b.sum().backward()
    # An optimizer's step is no replacement, loading is.
    layer.load_state_dict({k: v * 1000 for k, v in layer.state_dict().items() if not k.startswith("fp8")})
    with te.autocast(recipe=recipe):
        y = layer(x)
    assert distance(y, exact(layer, x.double())[0]) < 0.1
    layer.weight = torch.nn.Parameter(layer.weight.detach() * 1000)
    with te.autocast(recipe=recipe):
        y = layer(x)
    assert distance(y, exact(layer, x.double())[0]) < 0.1


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", LAYERS)
def test_weight_caching(name, recipe):
    make, k = LAYERS[name]
    a = make()
    b, recipe = copy.deepcopy(a), RECIPES[recipe]()
    for _ in range(2):
        for first in (True, False, False):
            x = torch.randn(8, k, device=DEVICE)
            with te.autocast(recipe=recipe):
                ya = a(x, is_first_microbatch=first)
            with te.autocast(recipe=recipe):
                yb = b(x)
            if first:
                assert torch.equal(ya, yb)
            # Without caching the weight is recorded and scaled anew for each: equal here as it does not change.
            dy = torch.randn_like(ya)
            ya.backward(dy)
            yb.backward(dy)
        for m in (a, b):
            with torch.no_grad():
                for p in m.parameters():
                    p.add_(0.01 * p.grad)
                m.zero_grad()
    used = a._cache.memory.clone()
    with torch.no_grad(), te.autocast(recipe=recipe):
        a(torch.randn(8, k, device=DEVICE), is_first_microbatch=False)
    assert torch.equal(a._cache.memory, used)


def test_nan_is_counted_and_dropped():
    layer = te.Linear(16, 8, device=DEVICE)
    recipe, x = DelayedScaling(amax_history_len=2), batch()
    with te.autocast(recipe=recipe):
        layer(x).sum().backward()
    te.update_scaling(layer)
    scale = layer.fp8_scale.clone()
    x[0, 0] = float("nan")
    with te.autocast(recipe=recipe):
        layer(x).sum().backward()
    te.update_scaling(layer)
    assert layer.fp8_nonfinite.tolist() == [1, 0, 0] and torch.equal(layer.fp8_scale, scale)


def test_decorator_and_older_name():
    layer, x = te.Linear(16, 8, device=DEVICE), batch()

    @te.fp8_autocast(enabled=True, fp8_recipe=DelayedScaling())
    def run():
        return te.is_fp8_enabled(), layer(x)

    assert run()[0] and run()[0] and not te.is_fp8_enabled()
    with pytest.raises(TypeError, match="recipe"):
        te.autocast(recipe="delayed")
    with pytest.raises(ValueError, match="1024"):
        with te.autocast(recipe=DelayedScaling(amax_history_len=2000)):
            pass


@pytest.mark.parametrize("recipe", RECIPES)
def test_shares_that_saturate_or_vanish(recipe):
    model, recipe = model_of(), RECIPES[recipe]()
    x = batch().requires_grad_()
    with te.autocast(recipe=recipe):
        model(x).sum().backward()
    # Far above the scales in use, and far below.
    x = batch()
    x[0], x[1] = x[0] * 1e3, x[1] * 1e-6
    x.requires_grad_()
    with te.collect_stats(model) as s:
        with te.autocast(recipe=recipe):
            y = model(x)
        scale = model[0].fp8_scale.clone()
        y.backward(torch.randn_like(y))
    assert list(s) == ["0", "2", "3"] and list(s["0"]) == ["x", "weight", "dy"] and sorted(s["3"]) == ["dy1", "dy2", "w1", "w2", "x1", "x2"]
    got = s["0"]["x"]
    if recipe.delayed():
        v = x.detach() * scale[0]
        assert got.saturated == (v.abs() > 464).sum().item() / x.numel() > 0
        assert got.flushed == ((v.abs() <= 2.0**-10) & (v != 0)).sum().item() / x.numel() > 0
    else:
        assert got.saturated == 0 and got.flushed > 0
    assert got.elements == x.numel() and s["3"]["x2"].elements == 20 * 32 and s["3"]["dy1"].elements == 20 * 32
    assert "saturated" in repr(s) and repr(s).startswith("0.x: ")
    before = got.elements
    with te.autocast(recipe=recipe):
        model(x).sum().backward()
    assert got.elements == before


def test_shares_of_a_model_that_is_one_layer():
    layer = te.Linear(16, 8, device=DEVICE)
    with te.collect_stats(layer) as s, te.autocast():
        layer(batch())
    assert list(s) == [""] and [line.split(":")[0] for line in repr(s).splitlines()] == ["x", "weight"]


def test_backward_inside_the_region():
    """A pass after a backward in the same region: scales wait for its own backward."""
    layer, recipe = te.Linear(16, 8, device=DEVICE), DelayedScaling(amax_history_len=4)
    with te.autocast(recipe=recipe):
        layer(batch()).sum().backward()
        y = layer(batch())
    scale = layer.fp8_scale.clone()
    with te.autocast(recipe=recipe):
        assert torch.equal(layer.fp8_scale, scale)
        layer(batch(100.0)).sum().backward()
    y.sum().backward()
    with te.autocast(recipe=recipe):
        assert not torch.equal(layer.fp8_scale, scale)


class Cast(torch.autograd.Function):
    """The values after a cast to FP8; gradients pass. With `back` the other way round."""

    @staticmethod
    def forward(ctx, t, scale, fmt, back):
        ctx.how = (scale, fmt, back)
        return t.clone() if back else Cast.cast(t, scale, fmt)

    @staticmethod
    def backward(ctx, g):
        scale, fmt, back = ctx.how
        return (Cast.cast(g, scale, fmt) if back else g), None, None, None

    @staticmethod
    def cast(t, scale, fmt):
        q = nvte.ops.cast_to_fp8(t.float().contiguous(), fmt, scale=scale.reshape(1))
        return nvte.ops.dequantize(q, dtype="float32").double()


def composed(layer, x, scale, gradient_format):
    """The layer in f64, with its casts to FP8 where they are."""
    n = len(scale) // 3
    p = {name: q.detach().double().requires_grad_() for name, q in layer.named_parameters()}
    f = torch.nn.functional

    def product(t, i, weight, bias):
        t = Cast.apply(t, scale[2 * i], "e4m3", False)
        w = Cast.apply(p[weight], scale[2 * i + 1], "e4m3", False)
        y = Cast.apply(t @ w.t(), scale[2 * n + n - 1 - i], gradient_format, True)
        return y if bias not in p else y + p[bias]

    if not isinstance(layer, te.Linear):
        gamma = p["layer_norm_weight"]
        if layer.normalization == "LayerNorm":
            x = f.layer_norm(x, x.shape[-1:], gamma, p["layer_norm_bias"], layer.eps)
        else:
            x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + layer.eps) * gamma
    if n == 1:
        return product(x, 0, "weight", "bias"), p
    return product(activation(layer.activation, product(x, 0, "fc1_weight", "fc1_bias")), 1, "fc2_weight", "fc2_bias"), p


@pytest.mark.parametrize("fp8_format", ["HYBRID", "E4M3"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_the_composition_of_their_casts(name, fp8_format):
    make, k = LAYERS[name]
    layer, recipe = make(), DelayedScaling(amax_history_len=4, fp8_format=fp8_format)
    for p in layer.parameters():
        p.data.add_(torch.randn_like(p) * 0.1)
    for _ in range(3):
        x = torch.randn(32, k, device=DEVICE, requires_grad=True)
        layer.zero_grad()
        with te.autocast(recipe=recipe):
            y = layer(x)
        scale, dy = layer.fp8_scale.clone(), torch.randn_like(y)
        y.backward(dy)
    x64 = x.detach().double().requires_grad_()
    want, p = composed(layer, x64, scale, "e5m2" if fp8_format == "HYBRID" else "e4m3")
    want.backward(dy.double())
    # Codes of what the layer makes inside may fall to the other side of a tie.
    # On a GPU more codes are the neighbours of those that f64 gives.
    most = 5e-3 if DEVICE == "cpu" else 2e-2
    assert distance(y, want) < most and distance(x.grad, x64.grad) < 2 * most
    for n, q in layer.named_parameters():
        assert distance(q.grad, p[n].grad) < 2 * most, n
