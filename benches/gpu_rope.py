"""The section of benches/gpu.py for the rotary position embedding."""

import torch
from gpu_timing import BF16, difference, memory_row, normal, sets, with_peers

from nvte import ops

#: batch, sequence, heads, elements of a head.
SHAPE = (4, 2048, 32, 128)
#: tokens, query heads, key heads, elements of a head.
PACKED = (8192, 32, 8, 128)


def turn(x, cos, sin):
    """The usual composition in torch; cos and sin broadcast against [..., heads, rotary_dim / 2]."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def split(qkv, cos, sin, q_heads, kv_heads):
    q, k, v = qkv.unflatten(-1, (q_heads + 2 * kv_heads, -1)).split((q_heads, kv_heads, kv_heads), -2)
    return turn(q, cos, sin), turn(k, cos, sin), v.contiguous()


def section_rope(run):
    def plain(layout, interleaved, backward):
        b, s, h, d = SHAPE
        shape = (s, b, h, d) if layout == "sbhd" else (b, s, h, d)
        n = b * s * h * d
        cos, sin = ops.rope_table(s, d, like=torch.empty(0, device=run.device))
        made = sets(4.0 * n, lambda: (normal(run, *shape), torch.empty(shape, device=run.device, dtype=BF16)))
        call = ops.rope_bwd if backward else ops.rope_fwd
        sides = {"ours": [(lambda x=x, y=y: call(x, cos, sin, layout=layout, interleaved=interleaved, out=y)) for x, y in made]}
        extra = {}
        if not interleaved:
            at = (slice(None), None, None) if layout == "sbhd" else (None, slice(None), None)
            c, s_ = cos[at].to(BF16), (-sin if backward else sin)[at].to(BF16)
            with_peers(run, sides, lambda x: turn(x, c, s_), [(x,) for x, _ in made])
            x, y = made[0]
            sides["ours"][0]()
            extra["difference"] = difference(y.flatten(0, 2), turn(x, c, s_).flatten(0, 2))
        kind = f"{layout}{' interleaved' if interleaved else ''}"
        memory_row(run, f"rope {'bwd' if backward else 'fwd'} {kind} {'x'.join(map(str, SHAPE))}", 4.0 * n, sides, extra)

    def packed(order, backward):
        t, q_heads, kv_heads, d = PACKED
        heads = q_heads + 2 * kv_heads
        n = t * heads * d
        cos, sin = ops.rope_table(t, d, like=torch.empty(0, device=run.device))
        c, s = cos[:, None].to(BF16), sin[:, None].to(BF16)

        def make():
            parts = [torch.empty(t, m, d, device=run.device, dtype=BF16).normal_() for m in (q_heads, kv_heads, kv_heads)]
            return normal(run, t, heads * d), parts

        made = sets(4.0 * n, make)
        options = dict(order=order, layout="thd")
        if backward:
            ours = [(lambda x=x, p=p: ops.rope_qkv_bwd(*p, cos, sin, out=x, **options)) for x, p in made]
        else:
            ours = [(lambda x=x, p=p: ops.rope_qkv_fwd(x, cos, sin, q_heads, kv_heads, out=p, **options)) for x, p in made]
        sides, extra = {"ours": ours}, {}
        if order == "concatenated" and not backward:
            with_peers(run, sides, lambda x: split(x, c, s, q_heads, kv_heads), [(x,) for x, _ in made])
            ours[0]()
            want = split(made[0][0], c, s, q_heads, kv_heads)
            extra["difference"] = max(difference(a.flatten(0, 1), b.flatten(0, 1)) for a, b in zip(made[0][1], want))
        elif order == "concatenated":
            together = lambda p: torch.cat((turn(p[0], c, -s), turn(p[1], c, -s), p[2]), -2).flatten(-2)  # noqa: E731
            with_peers(run, sides, together, [(p,) for _, p in made])
            ours[0]()
            extra["difference"] = difference(made[0][0], together(made[0][1]))
        memory_row(run, f"rope qkv {'bwd' if backward else 'fwd'} {order} {t}x{q_heads}+2*{kv_heads}x{d}", 4.0 * n, sides, extra)

    for backward in (False, True):
        way = "bwd" if backward else "fwd"
        for layout, interleaved in (("sbhd", False), ("bshd", False), ("sbhd", True)):
            run.row(f"rope {way} {layout} {interleaved}", lambda: plain(layout, interleaved, backward))  # noqa: B023
        for order in ("concatenated", "grouped"):
            run.row(f"rope qkv {way} {order}", lambda: packed(order, backward))  # noqa: B023
