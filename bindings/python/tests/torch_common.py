"""What the tests of nvte.torch share."""

import time

import pytest

torch = pytest.importorskip("torch")

import nvte.torch as te  # noqa: E402
from conftest import BACKEND  # noqa: E402
from nvte.recipe import DelayedScaling, Float8CurrentScaling  # noqa: E402
from nvte.torch.layer import Layer  # noqa: E402

DEVICE = "cuda" if BACKEND == "cuda" else "cpu"
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
#: name: (constructor, features of x).
LAYERS = {
    "linear": (lambda **k: te.Linear(33, 20, device=DEVICE, **k), 33),
    "norm_linear": (lambda **k: te.LayerNormLinear(33, 20, device=DEVICE, **k), 33),
    "rms_linear": (lambda **k: te.LayerNormLinear(32, 48, normalization="RMSNorm", device=DEVICE, **k), 32),
    "mlp": (lambda **k: te.LayerNormMLP(24, 40, device=DEVICE, **k), 24),
    "gated_mlp": (lambda **k: te.LayerNormMLP(24, 18, activation="swiglu", normalization="RMSNorm", device=DEVICE, **k), 24),
}
RECIPES = {
    "delayed": lambda: DelayedScaling(amax_history_len=4),
    "current": Float8CurrentScaling,
}


#: torch 2.4 fails to compile anything, nn.Linear too, while its checkpoint (not reentrant) records a first pass.
compiles_under_checkpoint = pytest.mark.skipif(torch.__version__ < (2, 5), reason="torch 2.4 compiles nothing under torch.utils.checkpoint")


def refusal(sentence, line):
    """What an error while compiling must say: our sentence. Older versions of torch drop it, and quote the user's line alone."""
    return sentence if torch.__version__ >= (2, 10) else line


@pytest.fixture
def share():
    """Equal layers share what was compiled: in torch 2.4 an option, later the default."""
    if torch.__version__ >= (2, 5):
        yield
    else:
        with torch._dynamo.config.patch(inline_inbuilt_nn_modules=True):
            yield


@pytest.fixture
def seed():
    """Fresh random numbers; the seed is shown where a test fails."""
    value = time.time_ns() % 2**32
    print("seed", value)
    torch.manual_seed(value)
    return value


def distance(a, b):
    """Relative Frobenius distance."""
    a, b = a.detach().double().cpu(), b.detach().double().cpu()
    assert a.shape == b.shape
    norm = b.norm()
    return float((a - b).norm() / norm) if norm else float((a - b).norm())


def exact(layer, x):
    """The layer in f64 by torch's own operations: (y, norm's output)."""
    p = {n: q.double() for n, q in layer.named_parameters()}
    f, normed = torch.nn.functional, None
    if not isinstance(layer, te.Linear):
        gamma = p["layer_norm_weight"] + (1 if layer.zero_centered_gamma else 0)
        if layer.normalization == "LayerNorm":
            normed = f.layer_norm(x, x.shape[-1:], gamma, p.get("layer_norm_bias"), layer.eps)
        else:
            normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + layer.eps) * gamma
        x = normed
    if not isinstance(layer, te.LayerNormMLP):
        return f.linear(x, p["weight"], p.get("bias")), normed
    h = f.linear(x, p["fc1_weight"], p.get("fc1_bias"))
    h = activation(layer.activation, h)
    return f.linear(h, p["fc2_weight"], p.get("fc2_bias")), normed


def activation(name, h):
    """An activation of torch by its name."""
    f = torch.nn.functional
    plain = {
        "gelu": lambda v: f.gelu(v, approximate="tanh"),
        "gelu_erf": f.gelu,
        "silu": f.silu,
        "relu": f.relu,
        "qgelu": lambda v: v * torch.sigmoid(1.702 * v),
        "srelu": lambda v: f.relu(v) ** 2,
    }
    gated = {"geglu": "gelu", "geglu_erf": "gelu_erf", "swiglu": "silu", "reglu": "relu", "qgeglu": "qgelu", "sreglu": "srelu"}
    if name in plain:
        return plain[name](h)
    a, b = h.chunk(2, -1)
    return plain[gated[name]](a) * b


def gradients(layer, x):
    """Gradients by name, x's too."""
    found = {n: p.grad for n, p in layer.named_parameters() if p.grad is not None}
    if x.grad is not None:
        found["x"] = x.grad
    return found


def states(model):
    """Copies of the scaling state of all layers."""
    return [
        t.clone()
        for m in model.modules()
        if isinstance(m, Layer)
        for t in (m.fp8_scale, m.fp8_amax, m.fp8_amax_history, m.fp8_nonfinite)
    ]


def assert_same(a, b):
    """Bit for bit, structures of tensors."""
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for k in a:
            assert_same(a[k], b[k])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for p, q in zip(a, b):
            assert_same(p, q)
    else:
        assert a.dtype == b.dtype and a.shape == b.shape
        assert torch.equal(a.nan_to_num(), b.nan_to_num()), (a, b)
