"""The BERT example: layers are replaced as it says, and training goes the same way as without."""

import importlib.util
import os

import pytest
from conftest import BACKEND

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="the example needs transformers")
if not transformers.is_torch_available():
    pytest.skip("this transformers wants a newer torch", allow_module_level=True)

HERE = os.path.dirname(os.path.abspath(__file__))
# In a checkout, and beside the package where it was carried to another machine.
PLACES = [os.path.join(HERE, *up, "examples", "pytorch", "bert.py") for up in (("..", "..", ".."), ("..", ".."))]


@pytest.fixture(scope="module")
def example():
    path = next((p for p in PLACES if os.path.exists(p)), None)
    if path is None:
        pytest.skip("a package carried without the examples")
    spec = importlib.util.spec_from_file_location("bert_example", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_replaced_layers_share_weights(example):
    from transformers import BertConfig, BertForMaskedLM

    import nvte.torch as te

    model = BertForMaskedLM(BertConfig(vocab_size=258, **example.SIZES["tiny"])).to(BACKEND)
    before = dict(model.named_parameters(remove_duplicate=False))
    layers = [m for m in model.modules() if isinstance(m, (torch.nn.Linear, torch.nn.LayerNorm))]
    assert example.replace_layers(model) == len(layers)
    assert sum(isinstance(m, (te.Linear, te.LayerNorm)) for m in model.modules()) == len(layers)
    assert not any(m in layers for m in model.modules())
    after = dict(model.named_parameters(remove_duplicate=False))
    assert before.keys() == after.keys() and all(after[k] is v for k, v in before.items())
    head = model.cls.predictions.decoder
    assert isinstance(head, te.Linear)
    assert head.weight is model.bert.embeddings.word_embeddings.weight


@pytest.mark.parametrize("fp8", ["none", "delayed", "current"])
def test_losses_agree(example, fp8, capsys):
    steps = 100 if fp8 == "delayed" else 30
    trained = example.run(["--fp8", fp8, "--device", BACKEND, "--steps", str(steps), "--size", "tiny"])
    assert "final losses are" in capsys.readouterr().out
    plain, ours = trained["plain"], trained["nvte"]
    assert plain.final < 0.8 * plain.losses[0], "the unpatched model does not learn"
    assert abs(ours.final / plain.final - 1) < 0.02, (ours.final, plain.final)
    if fp8 != "none":
        assert ours.losses != plain.losses, "FP8 did not run"
