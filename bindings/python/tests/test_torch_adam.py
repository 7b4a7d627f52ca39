"""FusedAdam and clip_grad_norm_ against torch's own."""

import copy
import io
import sys
import threading

import pytest

torch = pytest.importorskip("torch")

import nvte  # noqa: E402
import nvte.torch as te  # noqa: E402
from torch_common import DEVICE, seed  # noqa: E402, F401

SHAPES = [(33,), (20, 33), (4, 3, 5, 5), (1,), (130, 140), (0, 3)]


def parameters(dtype=torch.float32):
    return [torch.nn.Parameter(torch.randn(s, device=DEVICE).to(dtype)) for s in SHAPES]


def gradients(*models, scale=1.0, keep=None, least=0.0):
    """The same fresh gradients for all lists of parameters, at new addresses, none smaller than `least`."""
    for i, same in enumerate(zip(*models)):
        g = torch.randn(same[0].shape, device=DEVICE) * scale
        g += least * g.sign()
        for p in same:
            p.grad = None if keep is not None and not keep(i) else g.to(p.dtype, copy=True)


def twins(dtype=torch.float32):
    ours = parameters(dtype)
    return ours, [torch.nn.Parameter(p.detach().clone()) for p in ours]


def apart(a, b):
    """The largest difference, in units of 1 + |b|: a moment whose gradients cancel keeps the rounding errors of gradients near 1."""
    a, b = a.detach().double().cpu(), b.detach().double().cpu()
    return float(((a - b).abs() / (1 + b.abs())).max()) if a.numel() else 0.0


def assert_near(ours, theirs, bound=2e-6):
    for a, b in zip(ours, theirs):
        assert apart(a, b) <= bound


@pytest.mark.parametrize("adam_w_mode", [True, False])
@pytest.mark.parametrize("capturable", [False, True])
def test_fifty_steps(seed, adam_w_mode, capturable):  # noqa: F811
    ours, theirs = twins()
    kind = torch.optim.AdamW if adam_w_mode else torch.optim.Adam
    groups = lambda p: [{"params": p[:3]}, {"params": p[3:], "weight_decay": 0.2, "lr": 0.003}]  # noqa: E731
    a = te.FusedAdam(groups(ours), lr=0.01, weight_decay=0.1, adam_w_mode=adam_w_mode, capturable=capturable)
    b = kind(groups(theirs), lr=0.01, weight_decay=0.1)
    sa, sb = (torch.optim.lr_scheduler.CosineAnnealingLR(o, 50) for o in (a, b))
    for i in range(50):
        # Some have no gradient now and then: their steps are not counted.
        # With L2 decay none that the decay nearly cancels: of those the rounding decides how much of a first step is made.
        gradients(ours, theirs, keep=lambda k: k != 1 or i % 7, least=0.0 if adam_w_mode else 2.0)
        for o, s in ((a, sa), (b, sb)):
            o.step()
            s.step()
            o.zero_grad()
        assert ours[0].grad is None
    assert_near(ours, theirs)
    for p, q in zip(ours, theirs):
        assert float(a.state[p]["step"]) == float(b.state[q]["step"])
        for name in ("exp_avg", "exp_avg_sq"):
            assert apart(a.state[p][name], b.state[q][name]) <= 2e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_masters(seed, dtype):  # noqa: F811
    ours = parameters(dtype)
    theirs = [torch.nn.Parameter(p.detach().float()) for p in ours]
    a = te.FusedAdam(ours, lr=0.01, weight_decay=0.1, master_weights=True)
    b = torch.optim.AdamW(theirs, lr=0.01, weight_decay=0.1)
    for _ in range(50):
        gradients(ours, theirs)
        for p, q in zip(ours, theirs):
            q.grad = p.grad.float()
        a.step()
        b.step()
    for p, q in zip(ours, theirs):
        assert apart(a.state[p]["master_param"], q) <= 2e-6
        assert torch.equal(p, a.state[p]["master_param"].to(dtype))
        assert a.state[p]["exp_avg"].dtype == torch.float32


def test_sixteen_bits_without_master(seed):  # noqa: F811
    ours, theirs = twins(torch.bfloat16)
    a = te.FusedAdam(ours, lr=0.01, exp_avg_dtype=torch.bfloat16, exp_avg_sq_dtype=torch.bfloat16)
    b = torch.optim.AdamW(theirs, lr=0.01, weight_decay=0.0)
    for _ in range(10):
        gradients(ours, theirs)
        a.step()
        b.step()
    assert all(a.state[p]["exp_avg"].dtype == torch.bfloat16 for p in ours)
    assert_near(ours, theirs, 2e-2)


@pytest.mark.parametrize("direction", ["ours to ours", "ours to theirs", "theirs to ours"])
def test_state_dict(seed, direction):  # noqa: F811
    dtype = torch.bfloat16 if direction == "ours to ours" else torch.float32
    first, second = twins(dtype)
    ours = lambda p: te.FusedAdam(p, lr=0.02, weight_decay=0.1, master_weights=True)  # noqa: E731
    theirs = lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.1)  # noqa: E731
    source, target = (theirs if direction.startswith("theirs") else ours), (theirs if direction.endswith("theirs") else ours)
    a = source(first)
    for i in range(3):
        gradients(first, keep=lambda k: k != 2 or i)
        a.step()
    saved = io.BytesIO()
    torch.save(a.state_dict(), saved)
    saved.seek(0)
    for p, q in zip(first, second):
        q.data.copy_(p.data)
    b = target(second)
    b.load_state_dict(torch.load(saved))
    for _ in range(3):
        gradients(first, second)
        a.step()
        b.step()
    assert_near(first, second, 0 if direction == "ours to ours" else 1e-6)
    for p, q in zip(first, second):
        assert float(a.state[p]["step"]) == float(b.state[q]["step"])
        assert a.state[p]["exp_avg"].dtype == torch.float32
    if direction == "ours to ours":
        assert all(torch.equal(a.state[p]["master_param"], b.state[q]["master_param"]) for p, q in zip(first, second))
        # Counters are shared again: one launch for those that step together.
        assert len({id(s["step"]) for s in b.state.values()}) == 2
    copy.deepcopy(b).step()


def test_grad_scaler(seed):  # noqa: F811
    ours, theirs = twins()
    a, b = te.FusedAdam(ours, lr=0.01, weight_decay=0.1), torch.optim.AdamW(theirs, lr=0.01, weight_decay=0.1)
    scalers = [torch.amp.GradScaler(DEVICE, init_scale=1024.0, growth_interval=3) for _ in range(2)]
    for i in range(12):
        gradients(ours, theirs, scale=scalers[0].get_scale())
        if i in (0, 5):
            for p in (ours[1], theirs[1]):
                p.grad[3, 4] = float("nan") if i else float("inf")
        for o, s, p in ((a, scalers[0], ours), (b, scalers[1], theirs)):
            # Scaling something is what makes a scaler's tensors.
            s.scale(torch.ones((), device=DEVICE))
            if i % 2:
                s.unscale_(o)
                (te.clip_grad_norm_ if o is a else torch.nn.utils.clip_grad_norm_)(p, 1.5)
            s.step(o)
            s.update()
        assert scalers[0].get_scale() == scalers[1].get_scale()
    assert_near(ours, theirs)
    assert float(a.state[ours[0]]["step"]) == 10
    assert not hasattr(a, "found_inf")


def test_layouts(seed):  # noqa: F811
    ours, theirs = ([torch.nn.Parameter(torch.ones(8, 4, 3, 3, device=DEVICE).to(memory_format=torch.channels_last))] for _ in range(2))
    a, b = te.FusedAdam(ours, lr=0.01), torch.optim.AdamW(theirs, lr=0.01, weight_decay=0)
    for last in (True, False, True):
        g = torch.randn(8, 4, 3, 3, device=DEVICE)
        for p in (ours[0], theirs[0]):
            p.grad = g.to(memory_format=torch.channels_last) if last else g.clone()
        a.step()
        b.step()
    assert_near(ours, theirs)
    with pytest.raises(ValueError, match="one stretch"):
        p = torch.nn.Parameter(torch.ones(4, 6, device=DEVICE)[:, ::2])
        p.grad = torch.ones_like(p)
        te.FusedAdam([p]).step()


def test_fp8_copies(seed):  # noqa: F811
    w = torch.nn.Parameter(torch.randn(130, 64, device=DEVICE, dtype=torch.bfloat16))
    copied = nvte.ops.cast_to_fp8(w.detach(), scale=3.0, transpose=True, amax=torch.zeros(1, device=DEVICE))
    a = te.FusedAdam([w], lr=0.1, master_weights=True, fp8_copies={w: copied})
    w.grad = torch.randn_like(w)
    a.step()
    want = nvte.ops.cast_to_fp8(w.detach(), scale=3.0, transpose=True)
    assert torch.equal(copied.data.view(torch.uint8), want.data.view(torch.uint8))
    assert torch.equal(copied.data_t.view(torch.uint8), want.data_t.view(torch.uint8))
    assert float(copied.amax) >= float(w.detach().abs().max())


def test_arguments(seed):  # noqa: F811
    p = parameters()
    with pytest.raises(NotImplementedError, match="amsgrad"):
        te.FusedAdam(p, amsgrad=True)
    for bad in (dict(lr=-1.0), dict(betas=(1.0, 0.9)), dict(eps=-1.0), dict(weight_decay=-0.1), dict(exp_avg_dtype=torch.float16)):
        with pytest.raises(ValueError):
            te.FusedAdam(p, **bad)
    a = te.FusedAdam(p, set_grad_none=False)
    gradients(p)
    assert float(a.step(lambda: torch.ones(()))) == 1
    a.zero_grad()
    assert p[0].grad is not None and not p[0].grad.any()
    a.add_param_group({"params": [torch.nn.Parameter(torch.ones(3, device=DEVICE))]})
    a.step()
    te.FusedAdam(p).step(lambda: None)
    with pytest.raises(TypeError, match="float64"):
        q = torch.nn.Parameter(torch.ones(3, device=DEVICE, dtype=torch.float64))
        q.grad = torch.ones_like(q)
        te.FusedAdam([q]).step()


def test_clip_grad_norm(seed):  # noqa: F811
    for dtype in (torch.float32, torch.bfloat16):
        ours, theirs = twins(dtype)
        for scale in (1.0, 1e-3):
            gradients(ours, theirs, scale=scale)
            a, b = te.clip_grad_norm_(ours, 3.0), torch.nn.utils.clip_grad_norm_(theirs, 3.0)
            assert a.shape == b.shape and a.device == b.device
            # torch rounds norm and factor to the gradients' type.
            bound = 1e-5 if dtype == torch.float32 else 1e-2
            assert abs(float(a) - float(b)) <= bound * float(b)
            assert_near([p.grad for p in ours], [p.grad for p in theirs], bound)
    ours[0].grad[0] = float("inf")
    assert te.clip_grad_norm_(ours[0], 1.0).isinf()
    ours[0].grad[0] = float("inf")
    with pytest.raises(RuntimeError, match="non-finite"):
        te.clip_grad_norm_(ours, 1.0, error_if_nonfinite=True)
    assert float(te.clip_grad_norm_([], 1.0)) == 0
    gradients(ours, theirs)
    assert torch.equal(te.clip_grad_norm_(ours, 1.0, 1.0), torch.nn.utils.clip_grad_norm_(theirs, 1.0, 1.0))


def test_replaced_state(seed):  # noqa: F811
    ours, theirs = twins()
    a, b = te.FusedAdam(ours, lr=0.01), torch.optim.AdamW(theirs, lr=0.01, weight_decay=0)
    for name in ("step", "exp_avg", "exp_avg_sq"):
        for _ in range(2):
            gradients(ours, theirs)
            a.step()
            b.step()
        for o, p in ((a, ours[1]), (b, theirs[1])):
            o.state[p][name] = torch.zeros_like(o.state[p][name])
        gradients(ours, theirs)
        a.step()
        b.step()
        assert_near(ours, theirs)
        assert float(a.state[ours[1]]["step"]) == float(b.state[theirs[1]]["step"])
        assert apart(a.state[ours[1]]["exp_avg_sq"], b.state[theirs[1]]["exp_avg_sq"]) < 1e-5


def test_clipping_in_threads(seed):  # noqa: F811
    # Models of equal shapes: no thread may see the gradients of another.
    wrong = []

    def work(k):
        for _ in range(200):
            ours = [torch.nn.Parameter(torch.zeros(100, device=DEVICE)) for _ in range(3)]
            before = [torch.full((100,), 10.0**k + i, device=DEVICE) for i in range(3)]
            for p, g in zip(ours, before):
                p.grad = g.clone()
            want = torch.stack(before).norm()
            norm = te.clip_grad_norm_(ours, 0.5)
            good = all(torch.allclose(p.grad, g * (0.5 / want), rtol=1e-4) for p, g in zip(ours, before))
            if not good or abs(float(norm / want) - 1) > 1e-4:
                wrong.append(k)

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(120)
    finally:
        sys.setswitchinterval(switch)
    assert not wrong


@pytest.mark.skipif(DEVICE != "cuda", reason="graphs are CUDA's")
def test_captured(seed):  # noqa: F811
    ours, theirs = twins()
    a, b = te.FusedAdam(ours, lr=0.01, capturable=True), torch.optim.AdamW(theirs, lr=0.01, weight_decay=0)
    gradients(ours, theirs)
    te.clip_grad_norm_(ours, 2.0)
    torch.nn.utils.clip_grad_norm_(theirs, 2.0)
    a.step()
    b.step()
    static = [p.grad for p in ours]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        te.clip_grad_norm_(ours, 2.0)
        a.step()
    for i in range(5):
        gradients(theirs)
        for s, q in zip(static, theirs):
            s.copy_(q.grad)
        torch.nn.utils.clip_grad_norm_(theirs, 2.0)
        for group in (*a.param_groups, *b.param_groups):
            group["lr"] = group["lr"].fill_(0.01 / (i + 1)) if torch.is_tensor(group["lr"]) else 0.01 / (i + 1)
        graph.replay()
        b.step()
    assert_near(ours, theirs, 1e-5)
    assert float(a.state[ours[0]]["step"]) == 6
    # Eager steps go on from there.
    gradients(ours, theirs)
    a.step()
    b.step()
    assert_near(ours, theirs, 1e-5)
