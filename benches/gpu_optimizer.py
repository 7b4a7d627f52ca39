"""Optimizer steps and gradient norms over lists of tensors; a section of benches/gpu.py.

A thousand million parameters in 300 tensors: thirty layers of a transformer, matrices and vectors.
"""

import gc
import time

import torch
from gpu_timing import BF16, F32, fp8_room, memory_row, normal, one

from nvte import ops
from nvte.torch import FusedAdam, clip_grad_norm_


def shapes(run):
    """About 10^9 parameters (--quick: 10^8) in 300 tensors."""
    h = 512 if run.options.quick else 1664
    layer = [(3 * h, h), (h, h), (4 * h, h), (h, 4 * h), (3 * h,), (h,), (4 * h,), (h,), (h,), (h,)]
    return layer * 30


def total(tensors):
    return sum(t.numel() for t in tensors)


def section_optimizer(run):
    def adamw(name, weight, master, fp8):
        weights = [normal(run, *s, dtype=weight) * 0.02 for s in shapes(run)]
        gradients = [normal(run, *s, dtype=weight) * 1e-3 for s in shapes(run)]
        masters = [w.float() for w in weights] if master else None
        m, v = ([torch.zeros(w.shape, device=run.device) for w in weights] for _ in range(2))
        copies = [fp8_room(run, *w.shape, transpose=True) if w.dim() == 2 else None for w in weights] if fp8 else None
        tensors = ops.adamw_list(weights, gradients, m, v, masters, copies)
        step, rate = torch.zeros((), device=run.device), one(1e-4)
        n = total(weights)
        # Read and written: master or f32 weight, moments; read: gradient; written beside a master: the weight.
        nbytes = n * (24 + gradients[0].element_size() + (weights[0].element_size() if master else 0))
        if fp8:
            nbytes += 2 * sum(w.numel() for w in weights if w.dim() == 2)
        sides = {"ours": [lambda: ops.adamw(tensors, step, lr=rate, weight_decay=0.1)]}
        kept = []
        if not fp8:
            # The same bytes: f32 weights.
            for peer in ("fused", "foreach"):
                p = [torch.nn.Parameter(normal(run, *s, dtype=F32)) for s in shapes(run)]
                for q in p:
                    q.grad = normal(run, *q.shape, dtype=F32)
                o = torch.optim.AdamW(p, lr=torch.tensor(1e-4, device=run.device), weight_decay=0.1, capturable=True, **{peer: True})
                o.step()
                kept.append(p)
                sides[f"torch_{peer}"] = [o.step]
        memory_row(run, f"adamw {name} {n / 1e9:.2f}e9 in {len(weights)}", nbytes, sides)

    def norm(dtype):
        gradients = [normal(run, *s, dtype=dtype) for s in shapes(run)]
        tensors, out = ops.grad_list(gradients), one()
        n, size = total(gradients), gradients[0].element_size()
        sides = {
            "ours": [lambda: ops.grad_norm(tensors, norm=out)],
            "torch": [lambda: torch.nn.utils.get_total_norm(gradients)],
        }
        ops.grad_norm(tensors, norm=out)
        exact = torch.stack([g.double().square().sum() for g in gradients]).sum().sqrt()
        extra = {"difference": abs(out.double() / exact - 1).item()}
        memory_row(run, f"grad_norm {str(dtype)[6:]} {n / 1e9:.2f}e9", n * size, sides, extra)

        factor = one(0.9999)
        ours = [lambda: ops.grad_scale(tensors, factor)]
        peer = [lambda: torch._foreach_mul_(gradients, 0.9999)]
        memory_row(run, f"grad_scale {str(dtype)[6:]} {n / 1e9:.2f}e9", 2 * n * size, {"ours": ours, "torch": peer})

    def host():
        """Time of a step on the host, 300 small tensors: the device is never waited for."""
        fields = {}
        kinds = {
            "ours": lambda p: FusedAdam(p, lr=1e-3, capturable=True),
            "torch_fused": lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-3, device=run.device), fused=True, capturable=True),
            "torch_foreach": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True),
        }
        clips = {"ours": clip_grad_norm_, "torch_fused": torch.nn.utils.clip_grad_norm_}
        for name, make in kinds.items():
            p = [torch.nn.Parameter(normal(run, 64, dtype=F32)) for _ in range(300)]
            for q in p:
                q.grad = normal(run, 64, dtype=F32)
            o = make(p)
            for what, call in (("step", o.step), ("clip", lambda: clips[name](p, 1.0))):
                if what == "clip" and name not in clips:
                    continue
                times = []
                for _ in range(5):
                    call()
                    torch.cuda.synchronize()
                    begin = time.perf_counter()
                    for _ in range(10):
                        call()
                    times.append((time.perf_counter() - begin) / 10 * 1e6)
                    torch.cuda.synchronize()
                fields[f"{name}_{what}_us"] = sorted(times)[2]
        run.put("host, 300 tensors", **fields)

    rows = {
        "adamw f32": lambda: adamw("f32", F32, False, False),
        "adamw bf16 + master": lambda: adamw("bf16+master", BF16, True, False),
        "adamw bf16 + master + FP8": lambda: adamw("bf16+master->fp8 both", BF16, True, True),
        "grad_norm bf16": lambda: norm(BF16),
        "grad_norm f32": lambda: norm(F32),
        "host": host,
    }
    for name, row in rows.items():
        run.row(name, row)
        # Up to 50 GB each.
        gc.collect()
        torch.cuda.empty_cache()
