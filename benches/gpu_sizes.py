"""benches/gpu.py: sizes that are not powers of two, rows that lie apart by an odd number of elements, and tensors below 1 MB."""

import torch
from gpu_timing import BF16, fp8_room, memory_row, normal, sets

from nvte import ops

#: Hidden sizes whose rows begin at multiples of 16 bytes, and others.
EVEN = [2560, 5120, 7168, 1000, 18432, 65536]
ODD = [1001, 4099]
SMALL = [(64, 1024), (256, 1024), (480, 1024), (16, 4096), (120, 4096)]


def _operations(run, hidden):
    """{name: (bytes an element, what makes a set of operands for so many rows and such an input, the call)}"""
    eps = 1e-5
    gamma, beta = normal(run, hidden), normal(run, hidden)
    work = torch.empty(max(16, ops.norm_bwd_workspace("cuda", hidden)), device=run.device, dtype=torch.uint8)

    def like(x):
        return torch.empty(x.shape, device=run.device, dtype=BF16)

    def both(x):
        return fp8_room(run, *x.shape, transpose=True)

    def stats(x):
        return torch.zeros(x.shape[0], device=run.device), torch.ones(x.shape[0], device=run.device)

    return {
        "cast row": (3, lambda x: (x, fp8_room(run, *x.shape)), lambda x, q: ops.cast_to_fp8(x, out=q)),
        "cast both": (4, lambda x: (x, both(x)), lambda x, q: ops.cast_to_fp8(x, out=q)),
        "gelu": (4, lambda x: (x, like(x)), lambda x, y: ops.activation_fwd(x, "gelu", out=y)),
        "gelu->fp8 both": (4, lambda x: (x, both(x)), lambda x, q: ops.activation_fwd(x, "gelu", out=q)),
        "softmax": (4, lambda x: (x, like(x)), lambda x, y: ops.softmax_fwd(x, out=y)),
        "layernorm": (4, lambda x: (x, like(x), stats(x)), lambda x, y, s: ops.layernorm_fwd(x, gamma, beta, eps, out=y, mu=s[0], rsigma=s[1])),
        "layernorm->fp8": (
            3,
            lambda x: (x, fp8_room(run, *x.shape), stats(x)),
            lambda x, q, s: ops.layernorm_fwd(x, gamma, beta, eps, out=q, mu=s[0], rsigma=s[1]),
        ),
        "layernorm->fp8 both": (
            4,
            lambda x: (x, both(x), stats(x)),
            lambda x, q, s: ops.layernorm_fwd(x, gamma, beta, eps, out=q, mu=s[0], rsigma=s[1]),
        ),
        "layernorm bwd": (
            6,
            lambda x: (x, normal(run, *x.shape), stats(x), like(x), torch.empty_like(gamma), torch.empty_like(gamma)),
            lambda x, dy, s, dx, dg, db: ops.layernorm_bwd(dy, x, gamma, s[0], s[1], dx=dx, dgamma=dg, dbeta=db, workspace=work),
        ),
    }


def section_sizes(run):
    def shape(rows, hidden, apart, wanted):
        def tensor():
            x = normal(run, rows, hidden + apart)
            return x[:, :hidden] if apart else x

        for name, (per, room, call) in _operations(run, hidden).items():
            if wanted and name not in wanted:
                continue
            title = f"{name} {rows}x{hidden}" + (f" rows {hidden + apart} apart" if apart else "")

            def measured():
                made = sets(per * rows * hidden, lambda: room(tensor()))
                memory_row(run, title, per * rows * hidden, {"ours": [(lambda m=m: call(*m)) for m in made]}, {})

            run.row(title, measured)

    for hidden in EVEN[:2] if run.options.quick else EVEN:
        shape((48 << 20) // hidden, hidden, 0, None)
    for hidden in ODD:
        shape((24 << 20) // hidden, hidden, 0, None)
    shape(6144, 4096, 1, None)
    for rows, hidden in SMALL[:2] if run.options.quick else SMALL:
        shape(rows, hidden, 0, ("cast row", "cast both", "gelu", "softmax", "layernorm", "layernorm->fp8"))
