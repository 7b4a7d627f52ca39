"""The README's Python programs run as they stand, and its memory table says what is kept."""

import os
import re

import pytest

pytest.importorskip("numpy")
README = os.path.join(os.path.dirname(__file__), "..", "..", "..", "README.md")
pytestmark = pytest.mark.skipif(not os.path.exists(README), reason="a package carried without the README")


def text():
    with open(README, encoding="utf-8") as f:
        return f.read()


def blocks():
    return re.findall(r"```python\n(.*?)```", text(), re.S)


def run(code):
    found = {}
    exec(compile(code, "README.md", "exec"), found)
    return found


def test_operations(capsys):
    (code,) = [b for b in blocks() if "import torch" not in b]
    run(code)
    assert capsys.readouterr().out.startswith("(17, 65)")


def test_modules_of_nvidia():
    pytest.importorskip("torch")
    (code,) = [b for b in blocks() if "transformer_engine" in b]
    mlp = run(code)["mlp"]
    assert all(p.grad is not None for p in mlp.parameters())
    assert (mlp.fp8_amax > 0).all(), "FP8 did not run"


def test_replaced_layers():
    torch = pytest.importorskip("torch")
    (code,) = [b for b in blocks() if "named_children" in b]
    found = run(code)
    layers = [m for m in found["model"] if isinstance(m, found["te"].Linear)]
    assert len(layers) == 2 and not any(isinstance(m, torch.nn.Linear) for m in found["model"] if m not in layers)
    assert all(p.grad is not None for p in found["model"].parameters())
    assert all((m.fp8_amax > 0).all() for m in layers), "FP8 did not run"


def kept(torch, module, call, tokens, hidden):
    """Bytes that wait for backward, parameters not counted."""
    x = torch.randn(tokens, hidden, dtype=torch.bfloat16).requires_grad_() + 0
    seen = {}

    def pack(t):
        seen[t.untyped_storage().data_ptr()] = t
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        call(x)
    own = {p.untyped_storage().data_ptr() for p in module.parameters()}
    return sum(t.untyped_storage().nbytes() for at, t in seen.items() if at not in own)


def test_memory_table():
    torch = pytest.importorskip("torch")
    nn = torch.nn
    import nvte.torch as te
    from nvte import recipe

    ours, plain = dict(device="cpu", params_dtype=torch.bfloat16), dict(device="cpu", dtype=torch.bfloat16)
    rows = re.findall(r"^\| (\w+) (1024 → [^|]*?) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| (\d+) MiB \|$", text(), re.M)
    assert [r[0] for r in rows] == ["Linear", "LayerNormLinear", "LayerNormMLP"]
    for name, sizes, *figures in rows:
        hidden, width = (int(n) for n in sizes.split(" → ")[:2])
        layer = getattr(te, name)(hidden, width, **ours)
        parts = [nn.Linear(hidden, width, **plain)]
        if name != "Linear":
            parts.insert(0, nn.LayerNorm(hidden, **plain))
        if name == "LayerNormMLP":
            parts += [nn.GELU(approximate="tanh"), nn.Linear(width, hidden, **plain)]
        peer = nn.Sequential(*parts)
        told = [int(f.replace(",", "")) for f in figures]
        modes = [(peer, None, told[0]), (layer, None, told[1])]
        modes += [(layer, scaling, told[2]) for scaling in (recipe.DelayedScaling(), recipe.Float8CurrentScaling())]
        for module, scaling, want in modes:

            def call(x):
                with te.autocast(enabled=scaling is not None, recipe=scaling):
                    module(x)

            few, more = (kept(torch, module, call, tokens, hidden) for tokens in (16, 32))
            # torch's LayerNorm keeps its statistics in f32 on CUDA, and in bf16 on the CPU.
            slack = 4 if module is peer and name != "Linear" else 0
            assert abs((more - few) / 16 - want) <= slack, (name, scaling)
        assert round(2 * sum(p.numel() for p in layer.parameters() if p.dim() == 2) / 2**20) == told[3]
