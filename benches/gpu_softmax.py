"""benches/gpu.py: softmax and cross-entropy."""

import torch
import torch.nn.functional as F
from gpu_timing import difference, memory_row, normal, sets, with_peers

from nvte import ops

#: (rows or [batches, heads, queries], keys)
SOFTMAX_SHAPES = [((16384,), 1024), ((16384,), 4096)]
ATTENTION = (8, 16, 512, 512)


def section_softmax(run):
    def forward(name, shape, nbytes, peer, **options):
        n = 1
        for s in shape:
            n *= s
        made = sets(4 * n, lambda: (normal(run, *shape), torch.empty(*shape, device=run.device, dtype=torch.bfloat16)))
        sides = {"ours": [(lambda x=x, y=y: ops.softmax_fwd(x, out=y, **options)) for x, y in made]}
        with_peers(run, sides, peer, [(x,) for x, _ in made])
        x, y = made[0]
        ops.softmax_fwd(x, out=y, **options)
        extra = {"difference": difference(y.flatten(0, -2), peer(x).flatten(0, -2))}
        memory_row(run, f"softmax fwd {name}", nbytes, sides, extra)

    def backward(name, shape, nbytes, **options):
        n = 1
        for s in shape:
            n *= s

        def make():
            y = torch.softmax(normal(run, *shape), -1)
            if options.get("causal"):
                y = y.tril()
            return normal(run, *shape), y, torch.empty_like(y)

        made = sets(6 * n, make)
        peer = lambda dy, y: torch.ops.aten._softmax_backward_data(dy, y, -1, torch.bfloat16)  # noqa: E731
        sides = {"ours": [(lambda dy=dy, y=y, dx=dx: ops.softmax_bwd(dy, y, dx=dx, **options)) for dy, y, dx in made]}
        with_peers(run, sides, peer, [(dy, y) for dy, y, _ in made])
        dy, y, dx = made[0]
        ops.softmax_bwd(dy, y, dx=dx, **options)
        extra = {"difference": difference(dx.flatten(0, -2), peer(dy, y).flatten(0, -2))}
        memory_row(run, f"softmax bwd {name}", nbytes, sides, extra)

    for rows, keys in SOFTMAX_SHAPES[:1] if run.options.quick else SOFTMAX_SHAPES:
        shape, n = (*rows, keys), rows[0] * keys
        name = "x".join(map(str, shape))
        run.row(f"fwd {name}", lambda: forward(name, shape, 4 * n, lambda x: torch.softmax(x, -1)))
        run.row(f"bwd {name}", lambda: backward(name, shape, 6 * n))
    b, h, q, k = ATTENTION
    matrices, name = b * h, "x".join(map(str, ATTENTION))
    n, seen = matrices * q * k, matrices * q * (k + 1) // 2
    hidden = torch.ones(q, k, device=run.device, dtype=torch.bool).triu(1)
    mask = torch.rand(b, 1, q, k, device=run.device) < 0.2

    def causal():
        forward(f"causal {name}", ATTENTION, 2 * (n + seen), lambda x: torch.softmax(x.masked_fill(hidden, -torch.inf), -1), causal=True)
        backward(f"causal {name}", ATTENTION, 2 * (n + 2 * seen), causal=True)

    def masked():
        peer = lambda x: torch.softmax(x.masked_fill(mask, -torch.inf), -1)  # noqa: E731
        forward(f"masked {name}", ATTENTION, 4 * n + mask.numel(), peer, mask=mask)

    run.row(f"causal {name}", causal)
    run.row(f"masked {name}", masked)


CROSS_ENTROPY_SHAPES = [(12288, 30522), (8192, 131072), (4096, 262144)]


def section_cross_entropy(run):
    def row(tokens, vocabulary, smoothing):
        n = tokens * vocabulary
        target = torch.randint(0, vocabulary, (tokens,), device=run.device)
        work = torch.empty(max(16, ops.cross_entropy_workspace("cuda", tokens)), device=run.device, dtype=torch.uint8)
        total, loss = torch.empty((), device=run.device), torch.empty(tokens, device=run.device)
        room = lambda: torch.empty(tokens, vocabulary, device=run.device, dtype=torch.bfloat16)  # noqa: E731
        made = sets(4 * n, lambda: (normal(run, tokens, vocabulary), room()))

        def ours(x, dx):
            return ops.cross_entropy(x, target, label_smoothing=smoothing, dlogits=dx, loss=loss, total=total, workspace=work)

        def peer(x):
            x = x.detach().requires_grad_()
            (dx,) = torch.autograd.grad(F.cross_entropy(x, target, label_smoothing=smoothing), x)
            return dx

        def loss_of(x):
            return F.cross_entropy(x, target, label_smoothing=smoothing)

        x, dx = made[0]
        ours(x, dx)
        # By its definition, for some of the rows: in bf16 PyTorch's own is off by more.
        some = x[:256].double().requires_grad_()
        F.cross_entropy(some, target[:256], label_smoothing=smoothing, reduction="sum").backward()
        extra = {"difference": difference(dx[:256].float(), (some.grad / tokens).float())}
        del some
        sides = {"ours": [(lambda x=x, dx=dx: ours(x, dx)) for x, dx in made], "eager": [(lambda x=x: peer(x)) for x, _ in made]}
        if run.options.compile:
            compiled = torch.compile(loss_of, dynamic=False)

            def compiled_peer(x):
                x = x.detach().requires_grad_()
                return torch.autograd.grad(compiled(x), x)[0]

            sides["compile"] = [(lambda x=x: compiled_peer(x)) for x, _ in made]
        name = f"{tokens}x{vocabulary}" + (" smoothed" if smoothing else "")
        memory_row(run, f"cross-entropy {name}", 4 * n, sides, extra)
        alone = lambda x: ops.cross_entropy(x, target, label_smoothing=smoothing, loss=loss, workspace=work)  # noqa: E731
        memory_row(run, f"cross-entropy, loss alone {name}", 2 * n, {"ours": [(lambda x=x: alone(x)) for x, _ in made]})
        one = torch.ones(1, device=run.device)
        memory_row(run, f"cross-entropy backward of 1 {name}", 1, {"ours": [(lambda dx=dx: ops.scale_rows(dx, one)) for _, dx in made]})

    for tokens, vocabulary in CROSS_ENTROPY_SHAPES[:1] if run.options.quick else CROSS_ENTROPY_SHAPES:
        run.row(f"{tokens}x{vocabulary}", lambda: row(tokens, vocabulary, 0.0))
    run.row("smoothed", lambda: row(*CROSS_ENTROPY_SHAPES[0], 0.1))
