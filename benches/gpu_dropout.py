"""The section of benches/gpu.py for dropout with bias and residual."""

import torch
import torch.nn.functional as F
from gpu_timing import BF16, memory_row, normal, sets, with_peers

from nvte import ops

SHAPES = [(16384, 1024), (16384, 4096)]
P = 0.1


def section_dropout(run):
    def forward(rows, cols, masked):
        n = rows * cols
        bias, rng = normal(run, cols), torch.tensor([1234, 0], device=run.device)

        def make():
            mask = torch.empty(rows, cols // 8, device=run.device, dtype=torch.uint8) if masked else None
            return normal(run, rows, cols), normal(run, rows, cols), torch.empty(rows, cols, device=run.device, dtype=BF16), mask

        made = sets(6 * n, make)
        sides = {
            "ours": [(lambda x=x, r=r, y=y, m=m: ops.dropout_fwd(x, P, rng, bias=bias, residual=r, mask=m, out=y)) for x, r, y, m in made]
        }
        nbytes = 6 * n + (n // 8 if masked else 0)
        if not masked:
            peer = lambda x, r: F.dropout(x + bias, P) + r  # noqa: E731
            with_peers(run, sides, peer, [m[:2] for m in made])
        x, r, y, _ = made[0]
        sides["ours"][0]()
        # What is not kept is the residual.
        extra = {"dropped": ((y == r).float().mean().item())}
        memory_row(run, f"bias+dropout+residual fwd{' mask' if masked else ''} {rows}x{cols}", nbytes, sides, extra)

    def backward(rows, cols, masked, sums):
        n = rows * cols
        rng = torch.tensor([1234, 0], device=run.device)
        dbias = torch.empty(cols, device=run.device, dtype=BF16) if sums else None
        work = torch.empty(max(16, ops.dropout_bwd_workspace("cuda", rows, cols)), device=run.device, dtype=torch.uint8)

        def make():
            dy = normal(run, rows, cols)
            _, mask = ops.dropout_fwd(dy, P, rng, mask=True)
            kept = torch.rand(rows, cols, device=run.device) >= P
            return dy, torch.empty_like(dy), mask, kept

        made = sets(5 * n, make)
        given = (lambda m: dict(mask=m)) if masked else (lambda m: dict(rng=rng))
        sides = {
            "ours": [(lambda dy=dy, o=o, m=m: ops.dropout_bwd(dy, P, **given(m), out=o, dbias=dbias, workspace=work)) for dy, o, m, _ in made]
        }
        # The mask of torch holds a byte for each element.
        def peer(dy, kept):
            dx = torch.ops.aten.native_dropout_backward(dy, kept, 1 / (1 - P))
            return (dx, dx.sum(0)) if sums else dx

        with_peers(run, sides, peer, [(dy, k) for dy, _, _, k in made])
        name = f"dropout bwd{' dbias' if sums else ''} {'mask' if masked else 'redrawn'} {rows}x{cols}"
        memory_row(run, name, 4 * n + (n // 8 if masked else 0), sides)

    for rows, cols in SHAPES[1:] if run.options.quick else SHAPES:
        for masked in (False, True):
            run.row(f"dropout fwd {rows}x{cols}", lambda: forward(rows, cols, masked))  # noqa: B023
            for sums in (False, True):
                run.row(f"dropout bwd {rows}x{cols}", lambda: backward(rows, cols, masked, sums))  # noqa: B023
