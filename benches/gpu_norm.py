"""benches/gpu.py: norms with a residual, forward and backward."""

import torch
import torch.nn.functional as F
from gpu_timing import BF16, difference, fp8_room, memory_row, normal, sets, with_peers

from nvte import ops

SHAPES = [(16384, 1024), (16384, 4096), (16384, 8192), (12608, 1280), (8192, 12288)]


def section_residual(run):
    eps = 1e-5

    def peer_of(kind, hidden, gamma, beta):
        def peer(x, r):
            total = x + r
            if kind == "layernorm":
                return F.layer_norm(total, (hidden,), gamma, beta, eps), total
            return F.rms_norm(total, (hidden,), gamma, eps), total

        return peer

    def forward(kind, rows, hidden):
        gamma, beta = normal(run, hidden), normal(run, hidden) if kind == "layernorm" else None
        stats = lambda: torch.empty(rows, device=run.device)  # noqa: E731
        room = lambda: torch.empty(rows, hidden, device=run.device, dtype=BF16)  # noqa: E731
        n = rows * hidden
        peer = peer_of(kind, hidden, gamma, beta)

        def ours(x, r, y, total, s):
            if kind == "layernorm":
                return ops.layernorm_fwd(x, gamma, beta, eps, out=y, mu=s[0], rsigma=s[1], residual=r, sum_out=total)
            return ops.rmsnorm_fwd(x, gamma, eps, out=y, rsigma=s[1], residual=r, sum_out=total)

        def measured(name, per, output, against):
            made = sets(per * n, lambda: (normal(run, rows, hidden), normal(run, rows, hidden), output(), room(), (stats(), stats())))
            sides, extra = {"ours": [(lambda m=m: ours(*m)) for m in made]}, {}
            if against:
                with_peers(run, sides, peer, [m[:2] for m in made])
                ours(*made[0])
                extra["difference"] = difference(made[0][2], peer(*made[0][:2])[0])
            memory_row(run, f"{kind} residual {name} {rows}x{hidden}", per * n, sides, extra)

        # x and the residual in, the sum and y out.
        measured("fwd", 8, room, True)
        measured("fwd->fp8", 7, lambda: fp8_room(run, rows, hidden), False)
        measured("fwd->fp8 both", 8, lambda: fp8_room(run, rows, hidden, transpose=True), False)

    def backward(kind, rows, hidden):
        gamma, beta = normal(run, hidden), torch.zeros(hidden, device=run.device, dtype=BF16)
        n = rows * hidden
        work = torch.empty(max(16, ops.norm_bwd_workspace("cuda", hidden)), device=run.device, dtype=torch.uint8)

        def make():
            x, dy, dsum = normal(run, rows, hidden), normal(run, rows, hidden), normal(run, rows, hidden)
            f = x.float()
            mu = f.mean(1) if kind == "layernorm" else None
            rsigma = ((f.var(1, unbiased=False) if kind == "layernorm" else f.square().mean(1)) + eps).rsqrt()
            return x, dy, dsum, mu, rsigma, torch.empty_like(x), torch.empty_like(gamma), torch.empty_like(gamma)

        def ours(x, dy, dsum, mu, rs, dx, dg, db):
            if kind == "layernorm":
                return ops.layernorm_bwd(dy, x, gamma, mu, rs, dx=dx, dgamma=dg, dbeta=db, dsum=dsum, workspace=work)
            return ops.rmsnorm_bwd(dy, x, gamma, rs, dx=dx, dgamma=dg, dsum=dsum, workspace=work)

        def peer(x, dy, dsum, mu, rs):
            dx, dg, db = torch.ops.aten.native_layer_norm_backward(
                dy, x, [hidden], mu[:, None], rs[:, None], gamma, beta, [True, True, True]
            )
            return dx + dsum, dg, db

        made = sets(8 * n, make)
        sides, extra = {"ours": [(lambda m=m: ours(*m)) for m in made]}, {}
        if kind == "layernorm":
            with_peers(run, sides, peer, [m[:5] for m in made])
            ours(*made[0])
            extra["difference"] = difference(made[0][5], peer(*made[0][:5])[0])
        memory_row(run, f"{kind} residual bwd {rows}x{hidden}", 8 * n, sides, extra)

    for rows, hidden in SHAPES[:2] if run.options.quick else SHAPES:
        for kind in ("layernorm", "rmsnorm"):
            run.row(f"{kind} residual fwd {rows}x{hidden}", lambda: forward(kind, rows, hidden))
            run.row(f"{kind} residual bwd {rows}x{hidden}", lambda: backward(kind, rows, hidden))
