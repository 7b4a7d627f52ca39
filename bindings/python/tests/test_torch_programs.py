"""What programs do with models beside training them: wrap, copy, send, resize and differentiate in other ways."""

import copy
import gc
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import nvte.torch as te  # noqa: E402
from nvte.recipe import DelayedScaling  # noqa: E402
from nvte.torch import modules, state  # noqa: E402
from nvte.torch.region import local  # noqa: E402
from torch.nn.utils import parametrizations, prune  # noqa: E402
from torch_common import DEVICE, LAYERS, assert_same, states  # noqa: E402


def trained(layer, features, steps=2):
    """The layer after some steps in FP8."""
    for _ in range(steps):
        with te.autocast():
            y = layer(torch.randn(5, features, device=DEVICE, dtype=next(layer.parameters()).dtype))
        y.sum().backward()
    return layer


def run(code, *arguments):
    """Output of a program of its own."""
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_scaling_state_is_f32_whatever_the_default_type(dtype):
    # In a process of its own: slots are made with the first layer.
    out = run(
        f"""
import torch
torch.set_default_dtype(torch.{dtype})
import nvte.torch as te
layer = te.Linear(32, 16, device="{DEVICE}", params_dtype=torch.float32)
x = torch.randn(8, 32, device="{DEVICE}", dtype=torch.float32)
for _ in range(2):
    with te.autocast():
        y = layer(x)
    y.sum().backward()
parts = [layer.fp8_scale, layer.fp8_amax, layer.fp8_amax_history, layer.fp8_state, te.Linear(8, 8, device="meta").fp8_state]
assert all(t.dtype == torch.float32 for t in parts), [t.dtype for t in parts]
assert torch.equal(layer.fp8_amax[:2], torch.stack([x.abs().amax(), layer.weight.detach().abs().amax()]))
assert torch.allclose(layer.fp8_scale[0], 448 / x.abs().amax(), rtol=1e-6), layer.fp8_scale
with te.collect_stats(layer) as found, te.autocast():
    layer(x)
assert found[""]["x"].elements == x.numel()
print("done")
"""
    )
    assert "done" in out


@pytest.mark.parametrize("name", [*LAYERS, "layernorm", "rmsnorm"])
def test_gradients_of_gradients_are_refused_where_the_last_layer_is_ours(name):
    # The gradient of a sum has no graph of its own; that of x depends on the parameters all the same.
    if name in LAYERS:
        make, features = LAYERS[name]
        layer = make()
    else:
        features = 12
        layer = (te.LayerNorm if name == "layernorm" else te.RMSNorm)(features, device=DEVICE)
    x = torch.randn(4, features, device=DEVICE, requires_grad=True)
    (g,) = torch.autograd.grad(layer(x.tanh()).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivatives"):
        g.square().sum().backward()


def test_gradients_without_more_derivatives_are_plain():
    layer = te.Linear(8, 4, device=DEVICE).requires_grad_(False)
    x = torch.randn(3, 8, device=DEVICE, requires_grad=True)
    (g,) = torch.autograd.grad(layer(x).sum(), x, create_graph=True)
    assert not g.requires_grad


def test_compiled_gradients_of_gradients_are_refused():
    layer = te.Linear(8, 4, device=DEVICE)
    x = torch.randn(3, 8, device=DEVICE, requires_grad=True)
    with te.autocast():
        y = torch.ops.nvte.layer(x, [layer.weight, layer.bias], layer._scale_view, layer._text, local.text, 3, True, -1, False)[0]
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivatives"):
        g.square().sum().backward()


@pytest.mark.parametrize("name", [*LAYERS, "layernorm"])
def test_forward_mode_is_refused_where_nothing_requires_gradients(name):
    make, features = LAYERS[name] if name in LAYERS else (lambda: te.LayerNorm(12, device=DEVICE), 12)
    layer = make().requires_grad_(False)
    with torch.autograd.forward_ad.dual_level():
        x = torch.randn(2, 3, features, device=DEVICE)
        layer(x[0])
        with pytest.raises(NotImplementedError, match="forward-mode"):
            layer(torch.autograd.forward_ad.make_dual(*x))


def test_forward_mode_is_refused_by_functions():
    forward = torch.autograd.forward_ad
    calls = {
        "cross_entropy": lambda x: te.cross_entropy(x, torch.zeros(4, dtype=torch.int64, device=DEVICE)),
        "bias_dropout_add": lambda x: te.bias_dropout_add(x, None, None, 0.5),
        "rope": lambda x: te.apply_rotary_pos_emb(x.view(4, 1, 1, 8), te.RotaryPositionEmbedding(8)(4).to(DEVICE)),
    }
    for call in calls.values():
        with forward.dual_level(), pytest.raises(NotImplementedError, match="forward-mode"):
            call(forward.make_dual(torch.randn(4, 8, device=DEVICE), torch.randn(4, 8, device=DEVICE)))


@pytest.mark.parametrize("given", [None, torch.ones(()), torch.ones(2)], ids=["none", "scalar", "short"])
def test_functions_of_recipes_must_give_a_number_for_each_slot(given):
    for name, recipe in {
        "amax_compute_algo": DelayedScaling(amax_compute_algo=lambda window: given),
        "scaling_factor_compute_algo": DelayedScaling(scaling_factor_compute_algo=lambda *_: given),
    }.items():
        layer = te.Linear(8, 8, device=DEVICE)
        with te.autocast(recipe=recipe):
            layer(torch.randn(4, 8, device=DEVICE)).sum().backward()
        with pytest.raises(ValueError, match=name):
            te.update_scaling(layer)


@pytest.mark.parametrize("bias", [True, False])
def test_parametrized_weights(bias):
    layer = parametrizations.weight_norm(te.Linear(16, 8, bias=bias, device=DEVICE))
    trained(layer, 16)
    assert layer.parametrizations.weight.original1.grad is not None
    twin = copy.deepcopy(layer)
    assert_same(states(twin), states(layer))
    layer.to(torch.bfloat16)
    trained(layer, 16)
    assert layer.weight.dtype == torch.bfloat16
    assert not layer._due
    stored = {k: v for k, v in twin.state_dict().items() if not k.startswith("fp8")}
    layer.load_state_dict(stored)
    assert layer._due
    torch.nn.utils.parametrize.remove_parametrizations(layer, "weight")
    trained(layer, 16)


def test_the_state_of_a_parametrized_layer_is_read_without_effects():
    layer = parametrizations.spectral_norm(te.Linear(16, 8, bias=False, device=DEVICE))
    u = layer.parametrizations.weight[0]._u.clone()
    layer.state_dict()
    layer.to(DEVICE)
    assert torch.equal(layer.parametrizations.weight[0]._u, u)


def test_pruned_weights():
    layer = te.Linear(16, 8, bias=False, device=DEVICE)
    prune.l1_unstructured(layer, "weight", 0.5)
    trained(layer, 16)
    layer.bfloat16()
    trained(layer, 16)
    prune.remove(layer, "weight")
    assert (trained(layer, 16).weight == 0).sum() == 64


def test_a_weight_of_another_size():
    for kind in (te.Linear, te.LayerNormLinear):
        layer = trained(kind(16, 8, device=DEVICE), 16)
        weight = torch.randn(12, 16, device=DEVICE)
        layer.weight = torch.nn.Parameter(weight)
        with pytest.raises(ValueError, match=r"bias: has shape \(8,\), and must have \(12,\)"):
            layer(torch.randn(3, 16, device=DEVICE))
        layer.bias = torch.nn.Parameter(torch.zeros(12, device=DEVICE))
        assert layer.out_features == 12 and trained(layer, 16).weight.grad.shape == (12, 16)
        compiled = torch.compile(layer, backend="eager")
        assert compiled(torch.randn(3, 16, device=DEVICE)).shape == (3, 12)
    layer = te.LayerNormMLP(16, 24, device=DEVICE)
    layer.fc1_weight = torch.nn.Parameter(torch.randn(20, 16, device=DEVICE))
    with pytest.raises(ValueError, match="fc1_weight"):
        layer(torch.randn(3, 16, device=DEVICE))
    layer = te.Linear(8, 8, device=DEVICE)
    layer(torch.randn(3, 8, device=DEVICE))
    layer.weight.data = torch.empty(0, device=DEVICE)
    with pytest.raises(ValueError, match="taken away"):
        layer(torch.randn(3, 8, device=DEVICE))


def test_norms_without_parameters():
    x = torch.randn(3, 8, device=DEVICE, requires_grad=True)
    layer = te.LayerNorm(8, device=DEVICE)
    layer.weight = layer.bias = None
    torch.testing.assert_close(layer(x), torch.nn.functional.layer_norm(x, (8,)))
    layer(x).square().sum().backward()
    assert x.grad is not None
    layer.reset_parameters()
    zero_centered = te.RMSNorm(8, zero_centered_gamma=True, device=DEVICE)
    zero_centered.weight = None
    torch.testing.assert_close(zero_centered(x), torch.nn.functional.rms_norm(x, (8,), eps=1e-5))
    numpy = pytest.importorskip("numpy")
    assert te.LayerNorm(numpy.int64(8), device=DEVICE).normalized_shape == (8,)


def test_shallow_copies_have_their_own_state():
    layer = trained(te.Linear(16, 8, device=DEVICE), 16)
    twin = copy.copy(layer)
    assert twin.weight is layer.weight
    assert_same(states(twin), states(layer))
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    del twin
    gc.collect()
    with te.autocast():
        compiled(torch.randn(4, 16, device=DEVICE)).sum().backward()


SPAWNED = """
import pickle, sys
import torch
import torch.multiprocessing
import nvte.torch as te
from multiprocessing.reduction import ForkingPickler
from nvte.torch import state

if __name__ == "__main__":
    layer = te.Linear(16, 8, device="cpu")
    for _ in range(2):
        with te.autocast():
            y = layer(torch.randn(4, 16))
        y.sum().backward()
    # As for a process that is spawned: tensors' memory is moved to where the other process can see it.
    sent = ForkingPickler.dumps(layer)
    (chunk,) = state.devices[-1].chunks
    assert chunk.nonfinite.data_ptr() == chunk.nonfinite_at and chunk.counters.data_ptr() == chunk.counters_at
    twin = pickle.loads(sent)
    assert torch.equal(twin.fp8_state, layer.fp8_state) and torch.equal(twin.weight, layer.weight)
    print("done")
"""


def test_layers_sent_to_other_processes_keep_their_state_at_home():
    assert "done" in run(SPAWNED)


def test_states_can_be_assigned():
    # So HuggingFace's from_pretrained loads what a state_dict names.
    source, layer = trained(te.Linear(16, 8, device=DEVICE), 16), te.Linear(16, 8, device=DEVICE)
    for name in ("fp8_state_header", "fp8_state"):
        setattr(layer, name, torch.nn.Parameter(source.state_dict()[name], requires_grad=False))
    assert not list(set(dict(layer.named_parameters())) - {"weight", "bias"})
    assert_same(layer.state_dict()["fp8_state"], source.state_dict()["fp8_state"])
    assert_same(layer.state_dict()["fp8_state_header"], source.state_dict()["fp8_state_header"])
    with pytest.raises(ValueError, match="fp8_state"):
        layer.fp8_state = torch.nn.Parameter(torch.zeros(2, 2, device=DEVICE))


def test_positions_of_arguments_are_nvidias():
    layer = te.LayerNormMLP(8, 16, 1e-6, False, False, None, None, 1, None, False, "RMSNorm", "silu", torch.nn.init.zeros_, device=DEVICE)
    assert layer.normalization == "RMSNorm" and layer.activation == "silu" and layer.fc2_bias is None and (layer.fc2_weight == 0).all()


def test_devices_may_come_while_a_region_is_entered(monkeypatch):
    layer = te.Linear(8, 8, device=DEVICE)
    monkeypatch.setattr(state, "devices", dict(state.devices))
    known = dict(state.devices)
    if not hasattr(torch._C, "_cuda_getCurrentRawStream"):
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", None, raising=False)
    # As another thread would that makes its first layer on another device.
    monkeypatch.setattr(state.Device, "update", lambda device: state.device_of(99 + len(state.devices)))
    with te.autocast():
        layer(torch.randn(2, 8, device=DEVICE)).sum().backward()
    assert len(state.devices) > len(known)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:")
def test_traces_that_would_record_nothing_are_refused():
    for layer in (te.Linear(8, 8, device=DEVICE), te.LayerNorm(8, device=DEVICE)):
        with pytest.raises(RuntimeError, match="torch.jit.trace"):
            torch.jit.trace(layer, torch.randn(2, 8, device=DEVICE), check_trace=False)


def test_a_pass_that_runs_out_of_memory_has_settled_nothing(monkeypatch):
    layers = torch.nn.Sequential(te.Linear(16, 16, device=DEVICE), te.Linear(16, 16, device=DEVICE))
    x = torch.randn(4, 16, device=DEVICE)
    run = modules.linear

    def failing(x, weight, *more):
        if weight is layers[1].weight:
            raise MemoryError
        return run(x, weight, *more)

    monkeypatch.setattr(modules, "linear", failing)
    with pytest.raises(MemoryError), te.autocast():
        layers(x)
    monkeypatch.undo()
    # A program tries again with a smaller batch.
    with te.autocast():
        y = layers(x[:2])
    y.sum().backward()
    for layer in layers:
        assert not layer._due and layer.fp8_scale[1] != 1


def test_parameters_taken_away_and_brought_back_are_not_replaced():
    # What FSDP with use_orig_params does round each pass: the same parameter, with a part of its data, and a tensor in its place.
    layer = te.Linear(16, 8, device=DEVICE)
    twin, x = copy.deepcopy(layer), torch.randn(4, 16, device=DEVICE)
    parameter, whole = layer.weight, layer.weight.data
    for _ in range(3):
        with te.autocast():
            del layer.weight
            layer.weight = layer._parameters["weight"] = parameter.view_as(parameter)
            y = layer(x)
        y.sum().backward()
        parameter.data = whole.flatten()[:50]
        del layer.weight
        layer.weight = parameter
        parameter.data = whole
        with te.autocast():
            z = twin(x)
        z.sum().backward()
        assert torch.equal(y, z) and torch.equal(parameter.grad, twin.weight.grad)
        assert not layer._due
    layer.weight = torch.nn.Parameter(whole.clone())
    assert layer._due


def test_a_new_parameter_where_the_old_one_lay_replaces_it():
    # CPython puts most of them there.
    for _ in range(20):
        layer, weight = trained(te.Linear(16, 8, device=DEVICE), 16), torch.zeros(8, 16, device=DEVICE)
        assert not layer._due
        del layer.weight
        layer.weight = torch.nn.Parameter(weight)
        assert layer._due


SHARDED = """
import copy, sys
import torch
import nvte.torch as te
from torch.distributed import HashStore, destroy_process_group, init_process_group
from torch.distributed.device_mesh import init_device_mesh

init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
model = torch.nn.Sequential(te.Linear(16, 32, device="cpu"), te.LayerNormMLP(32, 64, device="cpu"), te.Linear(32, 8, device="cpu"))
twin, layers = copy.deepcopy(model), list(model)
if sys.argv[1] == "fully_shard":
    from torch.distributed.fsdp import fully_shard
    for part in (*model, model):
        fully_shard(part, mesh=init_device_mesh("cpu", (1,)))
else:
    from torch.distributed.fsdp import FullyShardedDataParallel
    wrap = lambda m: FullyShardedDataParallel(m, use_orig_params=True, device_id=torch.device("cpu"))
    model = wrap(torch.nn.Sequential(*map(wrap, layers)))
plans = []
for _ in range(3):
    x = torch.randn(5, 16)
    with te.autocast():
        y, z = model(x), twin(x)
    (y.square().sum() + z.square().sum()).backward()
    assert torch.equal(y, z) and not any(layer._due for layer in layers)
    with torch.no_grad():
        for p in (*model.parameters(), *twin.parameters()):
            p.sub_(p.grad, alpha=0.1)
            p.grad = None
    plans.append(list(layers[0]._plans.values()))
# What calls prepare is kept.
assert plans[0] == plans[-1] and len(plans[0]) == 1
destroy_process_group()
print("done")
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
@pytest.mark.parametrize("way", ["fully_shard", "use_orig_params"])
def test_sharded_layers_are_those_of_one_process(way):
    if way == "fully_shard" and torch.__version__ < (2, 8):
        pytest.skip("torch 2.6 shards on GPUs alone")
    assert "done" in run(SHARDED, way)


@pytest.mark.parametrize("kind", [te.LayerNorm, te.RMSNorm])
@pytest.mark.parametrize("size", [0, 8, 32])
def test_norms_refuse_parameters_of_another_size(kind, size):
    norm, x = kind(16, device=DEVICE), torch.randn(3, 16, device=DEVICE)
    norm(x)
    norm.weight.data = torch.ones(size, device=DEVICE)
    with pytest.raises(ValueError, match=f"weight, bias: .* has {size} elements, and must have the 16"):
        norm(x)


def test_settings_changed_between_calls_hold_for_the_next():
    mlp, x = te.LayerNormMLP(16, 32, device=DEVICE), torch.randn(5, 16, device=DEVICE) * 1e-2
    mlp(x)
    mlp.eps, mlp.activation = 0.1, "relu"
    twin = te.LayerNormMLP(16, 32, eps=0.1, activation="relu", device=DEVICE)
    twin.load_state_dict(mlp.state_dict())
    assert torch.equal(mlp(x), twin(x))
    with pytest.raises(ValueError, match="activation = 'tanh': must be one of gelu, "):
        mlp.activation = "tanh"
    linear = te.Linear(16, 8, device=DEVICE)
    linear(x)
    # The weight did not follow.
    linear.in_features = 32
    with pytest.raises(ValueError, match=r"weight: has shape \(8, 16\), and must have \(8, 32\)"):
        linear(torch.randn(5, 32, device=DEVICE))
