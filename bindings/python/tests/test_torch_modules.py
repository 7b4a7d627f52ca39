"""The modules in high precision against torch in f64, and what users of torch and of NVIDIA's library do with modules."""

import copy
import gc
import pickle

import pytest
from torch_common import DEVICE, LAYERS, RECIPES, TOLERANCE, DelayedScaling, assert_same, distance, exact, gradients, te, torch
from torch_common import seed  # noqa: F401

pytestmark = pytest.mark.usefixtures("seed")


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_high_precision(name, dtype):
    make, k = LAYERS[name]
    layer = make(params_dtype=dtype, **({} if name == "linear" else {"return_layernorm_output": True}))
    for p in layer.parameters():
        p.data.add_(torch.randn_like(p) * 0.1)
    x = torch.randn(3, 17, k, device=DEVICE, dtype=dtype, requires_grad=True)
    out = layer(x)
    y, normed = out if isinstance(out, tuple) else (out, None)
    reference = copy.deepcopy(layer)
    x64 = x.detach().double().requires_grad_()
    want, want_normed = exact(reference, x64)
    dy = torch.randn_like(y)
    loss, want_loss = (y * dy).sum(), (want * dy.double()).sum()
    assert y.dtype == dtype and y.shape == want.shape and distance(y, want) < TOLERANCE[dtype]
    if normed is not None:
        assert distance(normed, want_normed) < TOLERANCE[dtype]
        dn = torch.randn_like(normed)
        loss, want_loss = loss + (normed * dn).sum(), want_loss + (want_normed * dn.double()).sum()
    loss.backward()
    want_loss.backward()
    got, wanted = gradients(layer, x), gradients(reference, x64)
    assert got.keys() == wanted.keys()
    for n in got:
        assert got[n].dtype == dtype and distance(got[n], wanted[n]) < 2 * TOLERANCE[dtype], n


@pytest.mark.parametrize("name", ["relu", "gelu", "silu", "qgelu", "srelu", "geglu", "reglu", "swiglu", "qgeglu", "sreglu", "gelu_erf"])
def test_activations(name):
    layer = te.LayerNormMLP(16, 24, activation=name, zero_centered_gamma=True, device=DEVICE, bias=name != "relu")
    x = torch.randn(5, 16, device=DEVICE)
    assert distance(layer(x), exact(layer, x.double())[0]) < 1e-5


@pytest.mark.parametrize("zero_centered", [False, True])
@pytest.mark.parametrize("kind", [te.LayerNorm, te.RMSNorm])
def test_norms(kind, zero_centered):
    m = kind((3, 11), eps=1e-3, zero_centered_gamma=zero_centered, device=DEVICE)
    for p in m.parameters():
        p.data.add_(torch.randn_like(p))
    x = torch.randn(5, 7, 3, 11, device=DEVICE, requires_grad=True)
    x64 = x.detach().double().requires_grad_()
    y, gamma = m(x), m.weight.detach().double() + zero_centered
    gamma.requires_grad_()
    if kind is te.LayerNorm:
        want = torch.nn.functional.layer_norm(x64, (3, 11), gamma, m.bias.detach().double(), 1e-3)
    else:
        want = x64 * torch.rsqrt(x64.pow(2).mean((-1, -2), keepdim=True) + 1e-3) * gamma
    dy = torch.randn_like(y)
    y.backward(dy)
    want.backward(dy.double())
    assert distance(y, want) < 1e-5 and distance(x.grad, x64.grad) < 1e-5 and distance(m.weight.grad, gamma.grad) < 1e-5
    if kind is te.LayerNorm:
        assert distance(m.bias.grad, dy.double().sum((0, 1))) < 1e-5
    with torch.no_grad():
        assert torch.equal(m(x), y) and m(x[:0]).shape == (0, 7, 3, 11)


@pytest.mark.parametrize("kind", [te.LayerNorm, te.RMSNorm])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norm_with_a_residual(kind, dtype):
    m = kind(24, device=DEVICE)
    x, r = (torch.randn(5, 3, 24, device=DEVICE, dtype=dtype).requires_grad_() for _ in range(2))
    y, total = m(x, residual=r)
    assert torch.equal(total, x + r) and torch.equal(y, m((x + r).detach())) and y.dtype == total.dtype == dtype
    dy, dtotal = torch.randn_like(y), torch.randn_like(total)
    torch.autograd.backward((y, total), (dy, dtotal))
    s = (x + r).detach().double().requires_grad_()
    if kind is te.LayerNorm:
        want = torch.nn.functional.layer_norm(s, (24,), m.weight.detach().double(), m.bias.detach().double(), m.eps)
    else:
        want = torch.nn.functional.rms_norm(s, (24,), m.weight.detach().double(), m.eps)
    torch.autograd.backward((want, s), (dy.double(), dtotal.double()))
    limit = 1e-5 if dtype == torch.float32 else 4e-3
    assert distance(x.grad, s.grad) < limit and torch.equal(x.grad, r.grad) and m.weight.grad is not None
    # One of the two results alone; a sum of two types; no gradients.
    x.grad = r.grad = None
    m(x, residual=r)[1].backward(dtotal)
    assert torch.equal(x.grad, dtotal) and torch.equal(r.grad, dtotal)
    m(x, residual=r)[0].sum().backward()
    assert m(x, residual=r.float())[1].dtype == torch.float32
    with torch.no_grad():
        assert torch.equal(m(x, r)[0], y) and torch.equal(m(x, r)[1], total)


def test_initialisation_is_that_of_torch():
    torch.manual_seed(1)
    a = torch.nn.Linear(24, 12, device=DEVICE)
    torch.manual_seed(1)
    b = te.Linear(24, 12, device=DEVICE)
    assert torch.equal(a.weight, b.weight) and torch.equal(a.bias, b.bias)
    c = te.Linear(24, 12, device=DEVICE, init_method=lambda w: torch.nn.init.constant_(w, 3.0))
    assert (c.weight == 3).all() and (c.bias == 0).all()
    assert te.Linear(4, 4, bias=False, device=DEVICE).bias is None and te.LayerNorm(4).weight.device.type == (
        "cuda" if torch.cuda.is_available() else "cpu"
    )
    assert [n for n, _ in te.LayerNormMLP(8, 8, device=DEVICE).named_parameters()] == [
        "layer_norm_weight", "layer_norm_bias", "fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias",
    ]  # fmt: skip
    assert te.LayerNormMLP(8, 12, activation="geglu", device=DEVICE).fc1_weight.shape == (24, 8)


@pytest.mark.parametrize(
    "bad", [dict(tp_size=2), dict(sequence_parallel=True), dict(parallel_mode="column"), dict(ub_overlap_ag=True), dict(tp_group=object()),
            dict(parameters_split={"q": 1}), dict(delay_wgrad_compute=True)], ids=str
)  # fmt: skip
def test_parallel_arguments_are_named(bad):
    (name,) = bad
    for make in (lambda **k: te.Linear(8, 8, **k), lambda **k: te.LayerNormLinear(8, 8, **k)):
        with pytest.raises(NotImplementedError, match=name):
            make(device=DEVICE, **bad)
    te.Linear(8, 8, device=DEVICE, tp_size=1, sequence_parallel=False, parallel_mode=None, ub_bulk_dgrad=False)
    with pytest.raises(TypeError, match="colour"):
        te.Linear(8, 8, colour=1)


def test_what_forward_returns():
    x = torch.randn(4, 8, device=DEVICE)
    m = te.Linear(8, 6, return_bias=True, device=DEVICE)
    y, b = m(x)
    assert b is not None and distance(y + b, torch.nn.functional.linear(x, m.weight, m.bias)) < 1e-5
    m = te.LayerNormLinear(8, 6, return_bias=True, return_layernorm_output=True, device=DEVICE)
    y, b, n = m(x)
    want, normed = exact(m, x.double())
    assert distance(y + b, want) < 1e-5 and distance(n, normed) < 1e-5
    with pytest.raises(NotImplementedError, match="fp8_output"):
        te.Linear(8, 8, device=DEVICE)(x, fp8_output=True)
    with pytest.raises(ValueError, match="in_features = 8"):
        te.Linear(8, 8, device=DEVICE)(x[:, :7])
    with pytest.raises(TypeError, match="float64"):
        te.Linear(8, 8, device=DEVICE)(x.double())


@pytest.mark.parametrize("recipe", [None, *RECIPES])
@pytest.mark.parametrize("name", LAYERS)
def test_shapes_and_strides(name, recipe):
    gc.collect()
    make, k = LAYERS[name]
    layer = make()
    base = torch.randn(17, k, device=DEVICE)

    def run(x):
        layer.zero_grad()
        te.reset_scaling(layer)
        x = x.detach().requires_grad_()
        with te.autocast(enabled=recipe is not None, recipe=RECIPES[recipe]() if recipe else None):
            y = layer(x)
        # A sum's gradient is an expanded scalar.
        y.sum().backward()
        return y, x.grad, *[p.grad for p in layer.parameters()]

    def alike(a, b):
        """The CPU gives the same bits. Kernels of a GPU for other alignments add up in another order: a code may be its neighbour."""
        if DEVICE == "cpu":
            return assert_same(a, b)
        for p, q in zip(*[(t,) if torch.is_tensor(t) else t for t in (a, b)]):
            assert distance(p, q) < (1e-5 if recipe is None else 2e-2)

    plain = run(base)
    wide = torch.zeros(17, 2 * k + 3, device=DEVICE)
    wide[:, 2 : k + 2] = base
    alike(run(wide[:, 2 : k + 2]), plain)
    alike(run(base.t().contiguous().t()), plain)
    odd = torch.empty(17 * k + 1, device=DEVICE)[1:].view(17, k).copy_(base)
    alike(run(odd), plain)
    alike(run(base[:1].expand(17, k)), run(base[:1].repeat(17, 1)))
    alike(run(base.view(1, 17, 1, k))[0].flatten(0, 2), plain[0])
    y, dx, *grads = run(base[:0])
    assert y.shape == (0, plain[0].shape[1]) and dx.shape == (0, k)
    assert all((g == 0).all() for g in grads)
    assert run(base[0])[0].shape == plain[0].shape[1:]


@pytest.mark.parametrize("name", LAYERS)
def test_frozen_parts(name):
    make, k = LAYERS[name]
    layer, whole = make(), {}
    x = torch.randn(9, k, device=DEVICE, requires_grad=True)
    names = [n for n, _ in layer.named_parameters()]

    def run(wanted, dx):
        te.reset_scaling(layer)
        for n, p in layer.named_parameters():
            p.requires_grad_(n in wanted)
            p.grad = None
        inp = x.detach().requires_grad_(dx)
        with te.autocast(recipe=DelayedScaling()):
            y = layer(inp)
        if wanted or dx:
            y.backward(torch.linspace(-1, 1, y.numel(), device=DEVICE).view(y.shape))
        return gradients(layer, inp)

    whole = run(names, True)
    assert run([], False) == {}
    for wanted in [[n] for n in names] + [[]]:
        for dx in (False, True):
            if wanted or dx:
                got = run(wanted, dx)
                assert set(got) == {*wanted, *(["x"] if dx else [])}
                assert_same(got, {n: whole[n] for n in got})


@pytest.mark.parametrize("name", LAYERS)
def test_torch_autocast(name):
    make, k = LAYERS[name]
    layer = make()
    x = torch.randn(16, k, device=DEVICE, requires_grad=True)
    for recipe in (None, *RECIPES):
        layer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            with te.autocast(enabled=recipe is not None, recipe=RECIPES[recipe]() if recipe else None):
                y = layer(x)
        assert y.dtype == torch.bfloat16
        y.float().sum().backward()
        assert all(p.grad.dtype == torch.float32 for p in layer.parameters()) and x.grad.dtype == torch.float32
        assert distance(y, exact(layer, x.double())[0]) < (0.02 if recipe is None else 0.12)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        assert te.LayerNorm(k, device=DEVICE)(x).dtype == torch.bfloat16 and te.RMSNorm(k, device=DEVICE)(x).dtype == torch.bfloat16


def test_main_grad():
    for layer, names in (
        (te.Linear(16, 8, fuse_wgrad_accumulation=True, device=DEVICE), ["weight"]),
        (te.LayerNormMLP(16, 24, fuse_wgrad_accumulation=True, device=DEVICE), ["fc1_weight", "fc2_weight"]),
    ):
        x = torch.randn(12, 16, device=DEVICE)
        plain = copy.deepcopy(layer)
        plain.fuse_wgrad_accumulation = False
        for n in names:
            w = getattr(layer, n)
            w.main_grad = torch.full(w.shape, 0.5, device=DEVICE)
            w.grad_added_to_main_grad = False
        with te.autocast():
            a = layer(x)
        with te.autocast():
            b = plain(x)
        a.sum().backward()
        b.sum().backward()
        for n in names:
            w = getattr(layer, n)
            assert w.grad is None and w.grad_added_to_main_grad
            assert distance(w.main_grad - 0.5, getattr(plain, n).grad) < 1e-5
    with pytest.raises(RuntimeError, match="main_grad"):
        m = te.Linear(16, 8, fuse_wgrad_accumulation=True, device=DEVICE)
        m(x).sum().backward()


def test_second_derivatives_are_refused():
    for layer in (te.Linear(8, 8, device=DEVICE), te.LayerNorm(8, device=DEVICE), te.LayerNormMLP(8, 8, device=DEVICE)):
        x = torch.randn(4, 8, device=DEVICE, requires_grad=True)
        (g,) = torch.autograd.grad(layer(x).pow(2).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="second derivatives"):
            g.sum().backward()
        # Without a second pass create_graph is harmless.
        torch.autograd.grad(layer(x).sum(), x, create_graph=True)


def test_a_changed_weight_is_noticed():
    layer = te.Linear(8, 8, device=DEVICE)
    x = torch.randn(4, 8, device=DEVICE, requires_grad=True)
    with te.autocast():
        y = layer(x)
    with torch.no_grad():
        layer.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    y = layer(x).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_moves_copies_and_pickles():
    layer = te.LayerNormMLP(16, 24, device=DEVICE)
    x = torch.randn(12, 16, device=DEVICE)
    for _ in range(3):
        with te.autocast(recipe=DelayedScaling(amax_history_len=3)):
            layer(x).sum().backward()
    before = [layer.fp8_scale.clone(), layer.fp8_amax.clone(), layer.fp8_amax_history.clone()]
    assert (before[0] != 1).all() and (before[1] > 0).all()
    twins = [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))]
    for twin in twins:
        assert twin.fp8_scale.data_ptr() != layer.fp8_scale.data_ptr()
        assert_same([twin.fp8_scale, twin.fp8_amax, twin.fp8_amax_history], before)
        for m in (layer, twin):
            m.zero_grad()
        outs = []
        for m in (layer, twin):
            saved = m.state_dict()
            with te.autocast(recipe=DelayedScaling(amax_history_len=3)):
                outs.append(m(x))
            m.load_state_dict(saved)
        assert torch.equal(*outs)
    layer.half()
    assert layer.fp8_scale.dtype == torch.float32 and layer.fc1_weight.dtype == torch.float16
    with te.autocast():
        assert layer(x.half()).dtype == torch.float16
    # Nothing of the state is a buffer.
    assert not list(layer.buffers())
    slots, chunk = layer._slots, layer._slots.chunk
    start = slots.start
    assert chunk.used[start]
    del layer, slots, outs, m
    gc.collect()
    assert not chunk.used[start]


def test_meta_device():
    layer = te.LayerNormLinear(16, 8, device="meta")
    assert layer.state_dict()["fp8_state"].device.type == "meta"
    source = te.LayerNormLinear(16, 8, device=DEVICE)
    layer.to_empty(device=DEVICE)
    layer.reset_parameters()
    assert (layer.layer_norm_weight == 1).all()
    other = te.LayerNormLinear(16, 8, device="meta")
    other.load_state_dict(source.state_dict(), assign=True)
    x = torch.randn(4, 16, device=DEVICE)
    with te.autocast():
        a = other(x)
    with te.autocast():
        assert torch.equal(a, source(x))


def test_shared_weights():
    model = torch.nn.ModuleDict({"a": torch.nn.Embedding(10, 16, device=DEVICE), "b": torch.nn.Linear(16, 10, bias=False, device=DEVICE)})
    model["b"].weight = model["a"].weight
    new = te.Linear(16, 10, bias=False, device=DEVICE)
    new.weight = model["b"].weight
    model["b"] = new
    assert model["b"].weight is model["a"].weight and len(list(model.parameters())) == 1
    loss = model["b"](model["a"](torch.arange(10, device=DEVICE))).sum()
    loss.backward()
    assert model["a"].weight.grad.abs().sum() > 0


def test_info():
    assert te.is_fp8_available() is True and te.is_fp8_available(return_reason=True) == (True, "")
    assert te.get_default_recipe() == DelayedScaling()
    assert isinstance(te.fp8_worthwhile(16384, 4096, 4096), bool) and not te.fp8_worthwhile(1, 1, 1)
    assert "in_features=8" in repr(te.Linear(8, 4, device=DEVICE))


@pytest.mark.parametrize("name", LAYERS)
def test_hooks_that_move_saved_tensors(name):
    make, k = LAYERS[name]
    layer = make()
    x = torch.randn(9, k, device=DEVICE, requires_grad=True)

    def copied(t):
        # To an address of another alignment.
        wide = torch.empty(t.numel() + 1, dtype=t.dtype, device=t.device)
        return wide[1:].view(t.shape).copy_(t)

    results = []
    for pack in (lambda t: t, copied):
        layer.zero_grad()
        x.grad = None
        te.reset_scaling(layer)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), te.autocast():
            y = layer(x)
        y.square().sum().backward()
        results.append(gradients(layer, x))
    if DEVICE == "cpu":
        return assert_same(*results)
    # Kernels for another alignment add up in another order.
    for n, g in results[0].items():
        assert distance(results[1][n], g) < 1e-5, n


def test_tensors_without_data_are_refused():
    for layer in (te.Linear(8, 8, device="meta"), te.LayerNormMLP(8, 8, device="meta"), te.LayerNorm(8, device="meta")):
        with pytest.raises(RuntimeError, match="meta"):
            layer(torch.randn(4, 8, device=DEVICE))
    with pytest.raises(RuntimeError, match="meta"):
        te.Linear(8, 8, device=DEVICE)(torch.randn(4, 8, device="meta"))


def _saved_bytes(call, x):
    """(output, bytes that the library saved for backward) of a call."""
    sizes = [0]
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (sizes.append(t.numel() * (t.dtype == torch.uint8)), t)[1], lambda t: t):
        with te.autocast(recipe=DelayedScaling()):
            y = call(x)
    return y, max(sizes)


def _steps(layer, x, choice, first=None, compiled=False):
    """What two steps leave, outputs and gradients, and the bytes that the last of them saved."""
    layer = copy.deepcopy(layer)
    layer.keep_fp8_weight_transpose_cache = choice
    module = torch.compile(layer, backend="aot_eager") if compiled else layer
    found, saved = [], 0
    for _ in range(2):
        x = x.detach().requires_grad_()
        y, saved = _saved_bytes(module if first is None else lambda x: module(x, is_first_microbatch=first), x)
        y.float().square().mean().backward()
        found += [y, x.grad] + [p.grad for p in layer.parameters()]
    return found, saved


@pytest.mark.parametrize("kind", ["linear", "norm_linear", "mlp"])
def test_weights_saved_for_backward_change_no_bits(kind, seed, monkeypatch):
    made = {
        "linear": lambda: te.Linear(1024, 1040, device=DEVICE),
        "norm_linear": lambda: te.LayerNormLinear(1024, 1040, device=DEVICE),
        "mlp": lambda: te.LayerNormMLP(1024, 1040, device=DEVICE),
    }
    layer, x = made[kind](), torch.randn(7, 1024, device=DEVICE)
    codes = 1024 * 1040 * (2 if kind == "mlp" else 1)
    want, least = _steps(layer, x, False)
    # By itself a layer keeps them, unless there are several processes, or something else is in the parameter's place.
    for choice, compiled in [(True, False), (None, False), (True, True), (None, True)]:
        got, most = _steps(layer, x, choice, compiled=compiled)
        assert all(torch.equal(a, b) for a, b in zip(want, got)), (choice, compiled)
        assert codes <= most - least <= codes + 4096, (choice, compiled)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    assert _steps(layer, x, None)[1] == least and _steps(layer, x, True)[1] > least + codes
    monkeypatch.undo()
    # Copies that live on hold them already.
    got, bytes_of_caching = _steps(layer, x, True, first=True)
    assert all(torch.equal(a, b) for a, b in zip(want, got)) and bytes_of_caching == least
    for name in layer._shapes():
        if "weight" in name and "norm" not in name:
            layer._parameters[name] = getattr(layer, name).view_as(getattr(layer, name))
    assert _saved_bytes(layer, x.requires_grad_())[1] == least
