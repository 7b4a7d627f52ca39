"""One of two ranks of test_torch_ddp.py: trains small models under DDP and stores what it saw.

    python ddp_worker.py RANK DIRECTORY DEVICE SEED
"""

import copy
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import nvte.torch as te
from nvte.recipe import DelayedScaling, Float8CurrentScaling
from nvte.torch.layer import Layer

RANK, DIRECTORY, DEVICE, SEED = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
STEPS = 4


def model_of():
    """The same on each rank."""
    torch.manual_seed(SEED)
    return torch.nn.Sequential(
        te.Linear(16, 24, device=DEVICE), torch.nn.ReLU(), te.LayerNormLinear(24, 16, device=DEVICE), te.LayerNormMLP(16, 16, device=DEVICE)
    )


def state_of(model):
    layers = [m for m in model.modules() if isinstance(m, Layer)]
    return [[t.clone().cpu() for t in (m.fp8_scale, m.fp8_amax, m.fp8_nonfinite, m.fp8_amax_history[:, -4:])] for m in layers]


def train(model, wrapped, recipe, nan_at=None, group=None):
    """Scaling state as it is at each step's end, x's amaxes, and the parameters afterwards."""
    torch.manual_seed(SEED + 1 + RANK)
    seen, amaxes = [], []
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step in range(STEPS):
        # The ranks' data differs in size too, and each is once the larger one.
        x = torch.randn(10, 16, device=DEVICE) * 3.0 ** (step if RANK == step % 2 else 0)
        amaxes.append(x.abs().max().cpu())
        if step == nan_at and RANK == 1:
            x[3, 5] = float("nan")
        with te.autocast(recipe=recipe, amax_reduction_group=group):
            y = wrapped(x)
        y.square().mean().backward()
        if step != nan_at:
            optimizer.step()
        # Kept in place: with gradient_as_bucket_view gradients are views of the buckets.
        optimizer.zero_grad(set_to_none=False)
        seen.append(state_of(model))
    return {"states": seen, "amaxes": torch.stack(amaxes), "parameters": [p.detach().clone().cpu() for p in model.parameters()]}


def main():
    dist.init_process_group("gloo", init_method=f"file://{DIRECTORY}/store", rank=RANK, world_size=2)
    own = [dist.new_group([r]) for r in range(2)][RANK]
    delayed = DelayedScaling(amax_history_len=3)
    cases = {
        "delayed": (delayed, {}, {}),
        "bucket_view": (delayed, {}, dict(gradient_as_bucket_view=True)),
        "compiled": (delayed, {}, {}),
        "nan": (delayed, dict(nan_at=1), {}),
        "current": (Float8CurrentScaling(), {}, {}),
        "not_reduced": (DelayedScaling(amax_history_len=3, reduce_amax=False), {}, {}),
        "own_group": (delayed, dict(group=own), {}),
    }
    results = {}
    for name, (recipe, how, options) in cases.items():
        model = model_of()
        inner = torch.compile(model, backend="aot_eager", fullgraph=True) if name == "compiled" else model
        results[name] = train(model, DDP(inner, **options), recipe, **how)
        # Its slots are free: what is recorded there does not take part in later reductions.
        del model, inner
    # A period that ends by hand: one reduction for each layer.
    model = model_of()
    x = torch.randn(10, 16, device=DEVICE) * (1 + RANK)
    with te.autocast(recipe=delayed):
        copy.copy(model)(x).sum().backward()
    before = state_of(model)
    te.update_scaling(model)
    results["by_hand"] = {"before": before, "after": state_of(model)}
    torch.save(results, f"{DIRECTORY}/rank{RANK}")
    dist.barrier()
    dist.destroy_process_group()


main()
