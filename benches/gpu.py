"""Measures nvte on one NVIDIA GPU: every operation against its floor and against torch, in the same run.

    python benches/gpu.py [--sections gemm,cast,...] [--quick] [--json PATH] [--commit ID] [--budget SECONDS] [--compile]

How: each side of a comparison is captured in a CUDA graph over as many sets of buffers as it takes to exceed 200 MB (so the L2 cache
is cold), and the graphs are replayed in turns: peer, ours, peer, ours. A figure is the median over the rounds, a ratio the median of
the rounds' ratios (peer time / our time: above 1, we are faster). Bytes are the least traffic possible, each tensor once; the floor is
those bytes at the copy rate measured in this run. Products use normal data quantized to the whole range of the format.

The table goes to standard output, everything to a JSON file (--json, else $OUT/gpu.json, else gpu.json), which is written anew after
each section. A row that fails is reported as such and the rest goes on. --compile adds torch.compile as a peer (minutes).
Needs torch with CUDA; nvte finds its library as always (NVTE_LIBRARY).
"""

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import traceback

# Which kernel served is reported once per plan; it costs nothing per call.
os.environ.setdefault("NVTE_DEBUG", "1")

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from gpu_dropout import section_dropout  # noqa: E402
from gpu_host import section_first, section_host  # noqa: E402
from gpu_norm import section_residual  # noqa: E402
from gpu_softmax import section_cross_entropy, section_softmax  # noqa: E402
from gpu_rope import section_rope  # noqa: E402
from gpu_sizes import section_sizes  # noqa: E402
from gpu_multi_cast import section_multi_cast  # noqa: E402
from gpu_optimizer import section_optimizer  # noqa: E402
from gpu_timing import (  # noqa: E402
    BF16,
    E5M2,
    OutOfTime,
    Run,
    compare,
    difference,
    fp8_room,
    memory_row,
    normal,
    one,
    quantized,
    ratio,
    scaled_mm,
    sets,
    torch_cast,
    with_compiled,
    with_peers,
)

import nvte  # noqa: E402
from nvte import ops  # noqa: E402


# ------------------------------------------------------------------------------------------------------------------------- ceilings


def section_ceil(run):
    """What the memory gives: the floor of all rows that follow."""
    n = 1 << (28 if run.options.quick else 30)
    a, b = normal(run, n), torch.empty(n, device=run.device, dtype=BF16)
    # A kernel: within a graph `copy_` becomes a memcpy node, which reaches two thirds of it.
    found = compare(run, {"copy": [lambda: torch.mul(a, 1.0, out=b)], "read": [lambda: a.sum()], "write": [lambda: b.fill_(1.0)]})
    run.copy_rate = 4.0 * n / found["copy"][0]
    run.put("copy", us=found["copy"][0] * 1e6, TBps=run.copy_rate / 1e12)
    for name in ("read", "write"):
        run.put(name, us=found[name][0] * 1e6, TBps=2.0 * n / found[name][0] / 1e12)

    def small(rows, cols):
        """A copy that ends as soon as a kernel of this size: by torch, and by the library's lightest kernel."""
        nbytes = 4 * rows * cols
        made = sets(nbytes, lambda: (normal(run, rows, cols), torch.empty(rows, cols, device=run.device, dtype=BF16)))
        sides = {"relu": [(lambda x=x, y=y: ops.activation_fwd(x, "relu", out=y)) for x, y in made]}
        sides["torch_copy"] = [(lambda x=x, y=y: torch.mul(x, 1.0, out=y)) for x, y in made]
        memory_row(run, f"copy {rows}x{cols}", nbytes, sides)

    for rows, cols in [(16384, 1024), (12608, 1280), (16384, 4096)]:
        run.row(f"copy {rows}x{cols}", lambda r=rows, c=cols: small(r, c))


# ------------------------------------------------------------------------------------------------------------------------- products

GEMM_SHAPES = [
    (4096, 4096, 4096), (8192, 8192, 8192), (16384, 8192, 8192), (8192, 28672, 8192), (8192, 8192, 28672), (8192, 10240, 8192),
    (4096, 14336, 4096), (4096, 4096, 14336), (4096, 4096, 7168), (4096, 7168, 16384), (4096, 7168, 2048), (4096, 24576, 1536),
    (12288, 3072, 1024), (12288, 4096, 1024), (12288, 1024, 4096), (12608, 5120, 1280), (12608, 1280, 5120),
    (2048, 2048, 2048), (1024, 1024, 1024), (128, 7168, 4096), (64, 7168, 4096), (64, 24576, 1536),
]  # fmt: skip
QUICK_GEMM = [(4096, 4096, 4096), (12288, 4096, 1024), (1024, 1024, 1024)]
ODD_SHAPES = [((12288, 28996, 1024), (12288, 29008, 1024)), ((4097, 4095, 4099), (4112, 4096, 4112))]


def fp8_sides(run, m, n, k, peer=True):
    """Closures for the two accumulation modes, ours and torch's, over sets of operands; and the first set."""
    made = sets(m * k + n * k + 2 * m * n, lambda: (quantized(run, m, k), quantized(run, n, k), torch.empty(m, n, device=run.device, dtype=BF16)))
    sides = {}
    for mode in ("fast", "precise"):
        sides[mode] = [fp8_call(a, b, d, mode) for a, b, d in made]
        if peer:
            sides[f"torch_{mode}"] = [scaled_mm(a, b, mode == "fast") for a, b, _ in made]
    return sides, made[0]


def fp8_call(a, b, d, mode):
    work = ops.gemm_workspace(a, b, accumulate=mode, out=d)
    work = torch.empty(work, device=d.device, dtype=torch.uint8) if work else None
    return lambda: ops.fp8_gemm(a, b, accumulate=mode, out=d, workspace=work)


def bf16_call(x, w, d):
    work = ops.gemm_workspace(x, w, out=d)
    work = torch.empty(work, device=d.device, dtype=torch.uint8) if work else None
    return lambda: ops.gemm(x, w, out=d, workspace=work)


def bf16_sides(run, m, n, k, peer=True):
    make = lambda: (normal(run, m, k), normal(run, n, k), torch.empty(m, n, device=run.device, dtype=BF16), torch.empty(m, n, device=run.device, dtype=BF16))  # noqa: E731
    made = sets(2 * (m * k + n * k + m * n), make)
    sides = {"bf16": [bf16_call(x, w, d) for x, w, d, _ in made]}
    if peer:
        sides["torch_bf16"] = [(lambda x=x, w=w, o=o: torch.mm(x, w.t(), out=o)) for x, w, _, o in made]
    return sides, made[0]


def exact(a, b):
    """The product by torch in bf16: FP8 values are exact there."""
    if isinstance(a, nvte.Fp8Tensor):
        return torch.mm(a.data.to(BF16), b.data.to(BF16).t()).float() * (a.scale_inv * b.scale_inv)
    return torch.mm(a, b.t())


def warm_up(run, duration):
    """Keeps the tensor cores busy until clocks and temperature are those of work under way."""
    x = normal(run, 8192, 8192)
    out = torch.empty_like(x)
    until = time.monotonic() + duration
    while time.monotonic() < until:
        for _ in range(20):
            torch.mm(x, x, out=out)
        torch.cuda.synchronize()


def section_gemm(run):
    warm_up(run, 0.5 if run.options.quick else 2.0)
    ratios = {"fast": [], "precise": [], "bf16": []}

    def shape(m, n, k):
        flops = 2.0 * m * n * k
        fields = {}
        sides, (a, b, d) = fp8_sides(run, m, n, k)
        found = compare(run, sides)
        for mode in ("fast", "precise"):
            fields[mode] = flops / found[mode][0] / 1e12
            fields[f"torch_{mode}"] = flops / found[f"torch_{mode}"][0] / 1e12
            fields[f"vs_{mode}"] = ratio(found, f"torch_{mode}", mode)
            ratios[mode].append(fields[f"vs_{mode}"])
        sides["fast"][0]()
        fields["difference"] = difference(d, scaled_mm(a, b, True)())
        del sides, a, b, d
        sides, (x, w, d, o) = bf16_sides(run, m, n, k)
        found = compare(run, sides)
        fields["bf16"], fields["torch_bf16"] = (flops / found[s][0] / 1e12 for s in ("bf16", "torch_bf16"))
        fields["vs_bf16"] = ratio(found, "torch_bf16", "bf16")
        ratios["bf16"].append(fields["vs_bf16"])
        sides["bf16"][0]()
        sides["torch_bf16"][0]()
        fields["bf16_difference"] = difference(d, o)
        run.put(f"{m}x{n}x{k} TFLOPS", **fields)

    def odd(ours, padded):
        """Shapes that cuBLASLt refuses: our kernel's rate against cuBLASLt's on the padded shape."""
        fields = {}
        flops, peer_flops = (2.0 * m * n * k for m, n, k in (ours, padded))
        for kind, make, names in (("fp8", fp8_sides, ("fast", "precise")), ("bf16", bf16_sides, ("bf16",))):
            sides, first = make(run, *ours, peer=False)
            sides[names[-1]][0]()
            fields[f"difference_{kind}"] = difference(first[2], exact(*first[:2]))
            peer_sides, _ = make(run, *padded)
            sides.update({name: peer_sides[name] for name in peer_sides if name.startswith("torch")})
            found = compare(run, sides)
            for name in names:
                rate, peer = flops / found[name][0], peer_flops / found[f"torch_{name}"][0]
                fields[name], fields[f"torch_{name}_padded"], fields[f"share_{name}"] = rate / 1e12, peer / 1e12, rate / peer
            del sides, peer_sides, found
        run.put(f"odd {'x'.join(map(str, ours))} TFLOPS", **fields)

    try:
        for ours, padded in ODD_SHAPES:
            run.row(f"odd {'x'.join(map(str, ours))}", lambda: odd(ours, padded))
        for m, n, k in QUICK_GEMM if run.options.quick else GEMM_SHAPES:
            run.row(f"{m}x{n}x{k}", lambda: shape(m, n, k))
    finally:
        for mode, all_of in ratios.items():
            if all_of:
                run.put(f"geomean {mode}", ratio=statistics.geometric_mean(all_of), least=min(all_of), shapes=len(all_of))


# --------------------------------------------------------------------------------------------------------------------------- casts

CAST_SHAPES = [(4096, 4096), (16384, 4096), (16384, 16384), (12608, 5120)]
#: Of these current scaling holds x on the chip and reads it once.
SMALL_SHAPES = [(12288, 1024), (3152, 4096)]
CURRENT_SHAPES = [*SMALL_SHAPES, *CAST_SHAPES]


def cast_sides(run, rows, cols, both, op):
    per = (4 if both else 3) * rows * cols
    made = sets(per, lambda: (normal(run, rows, cols), fp8_room(run, rows, cols, transpose=both)))
    scale = one()
    sides = {"ours": [(lambda x=x, q=q: op(x, q)) for x, q in made]}
    return per, with_peers(run, sides, torch_cast, [(x, scale, both) for x, _ in made]), made[0]


def cast_section(run, name, op, scale_of, shapes=CAST_SHAPES):
    def shape(rows, cols, both):
        per, sides, (x, q) = cast_sides(run, rows, cols, both, op)
        op(x, q)
        scale = scale_of(x)
        want = torch_cast(x, scale, both)
        same = torch.equal(q.data.view(torch.uint8), want[0].view(torch.uint8))
        if both:
            same = same and torch.equal(q.data_t.view(torch.uint8), want[1])
        del want
        memory_row(run, f"{name}{' both' if both else ' row'} {rows}x{cols}", per, sides, {"equal": same})

    for rows, cols in shapes[:2] if run.options.quick else shapes:
        for both in (False, True):
            run.row(f"{name} {rows}x{cols} both={both}", lambda: shape(rows, cols, both))


def section_cast(run):
    # What norms of these rows and current scaling do besides, a cast does not: the least time that they could take.
    shapes = [*CAST_SHAPES, *SMALL_SHAPES, (16384, 1024), (12608, 1280)]
    cast_section(run, "cast", lambda x, q: ops.cast_to_fp8(x, out=q), lambda x: one(), shapes)


def section_current(run):
    def scale_of(x):
        amax = x.abs().max().float()
        # A number over a tensor would be the rounded reciprocal times the number.
        return torch.full_like(amax, 448.0) / amax

    work = torch.empty(max(16, ops.cast_to_fp8_current_workspace("cuda")), device=run.device, dtype=torch.uint8)
    cast_section(run, "current", lambda x, q: ops.cast_to_fp8_current(x, out=q, workspace=work), scale_of, CURRENT_SHAPES)


# --------------------------------------------------------------------------------------------------------------------------- norms

NORM_SHAPES = [(16384, 1024), (16384, 4096), (16384, 8192), (12608, 1280), (8192, 12288)]


def section_norm(run):
    eps = 1e-5

    def forward(kind, rows, hidden):
        gamma, beta = normal(run, hidden), normal(run, hidden) if kind == "layernorm" else None
        stats = lambda: torch.empty(rows, device=run.device)  # noqa: E731
        if kind == "layernorm":
            ours = lambda x, y, s: ops.layernorm_fwd(x, gamma, beta, eps, out=y, mu=s[0], rsigma=s[1])  # noqa: E731
            peer = lambda x: torch.ops.aten.native_layer_norm(x, [hidden], gamma, beta, eps)  # noqa: E731
        else:
            ours = lambda x, y, s: ops.rmsnorm_fwd(x, gamma, eps, out=y, rsigma=s[1])  # noqa: E731
            peer = lambda x: F.rms_norm(x, (hidden,), gamma, eps)  # noqa: E731
        n, scale = rows * hidden, one()

        def measured(name, per, room, both=None):
            made = sets(per * n, lambda: (normal(run, rows, hidden), room(), (stats(), stats())))
            sides = {"ours": [(lambda x=x, y=y, s=s: ours(x, y, s)) for x, y, s in made]}
            extra = {}
            inputs = [(x,) for x, _, _ in made]
            if both is not None:
                with_peers(run, sides, lambda x: torch_cast(peer(x)[0] if kind == "layernorm" else peer(x), scale, both), inputs)
            else:
                sides["torch"] = [(lambda x=x: peer(x)) for x, _, _ in made]
                with_compiled(run, sides, peer, inputs)
                x, y, s = made[0]
                ours(x, y, s)
                want = peer(x)
                extra["difference"] = difference(y, want[0] if isinstance(want, tuple) else want)
                del want
            memory_row(run, f"{kind} {name} {rows}x{hidden}", per * n, sides, extra)

        measured("fwd", 4, lambda: torch.empty(rows, hidden, device=run.device, dtype=BF16))
        measured("fwd->fp8", 3, lambda: fp8_room(run, rows, hidden), False)
        measured("fwd->fp8 both", 4, lambda: fp8_room(run, rows, hidden, transpose=True), True)

    def backward(kind, rows, hidden):
        gamma = normal(run, hidden)
        n = rows * hidden
        work = torch.empty(max(16, ops.norm_bwd_workspace("cuda", hidden)), device=run.device, dtype=torch.uint8)

        def make():
            x, dy = normal(run, rows, hidden), normal(run, rows, hidden)
            f = x.float()
            if kind == "layernorm":
                mu = f.mean(1)
                rsigma = (f.var(1, unbiased=False) + eps).rsqrt()
            else:
                mu, rsigma = None, (f.square().mean(1) + eps).rsqrt()
            return x, dy, mu, rsigma, torch.empty_like(x), torch.empty_like(gamma), torch.empty_like(gamma)

        made = sets(6 * n, make)
        if kind == "layernorm":
            ours = lambda x, dy, mu, rs, dx, dg, db: ops.layernorm_bwd(dy, x, gamma, mu, rs, dx=dx, dgamma=dg, dbeta=db, workspace=work)  # noqa: E731
            beta = torch.zeros_like(gamma)
            peer = lambda x, dy, mu, rs, *_: torch.ops.aten.native_layer_norm_backward(  # noqa: E731
                dy, x, [hidden], mu[:, None], rs[:, None], gamma, beta, [True, True, True]
            )
        else:
            ours = lambda x, dy, mu, rs, dx, dg, db: ops.rmsnorm_bwd(dy, x, gamma, rs, dx=dx, dgamma=dg, workspace=work)  # noqa: E731
            fused = getattr(torch.ops.aten, "_fused_rms_norm_backward", None)
            peer = None
            if fused is not None:
                peer = lambda x, dy, mu, rs, *_: fused(dy, x, [hidden], rs[:, None], gamma, [True, True])  # noqa: E731
        sides = {"ours": [(lambda m=m: ours(*m)) for m in made]}
        extra = {}
        if peer is not None:
            try:
                want = peer(*made[0])
                ours(*made[0])
                extra = {"difference": difference(made[0][4], want[0])}
                extra["dgamma_difference"] = difference(made[0][5][None], want[1].reshape(1, -1))
                sides["torch"] = [(lambda m=m: peer(*m)) for m in made]
            except (RuntimeError, TypeError, NotImplementedError) as e:
                extra = {"torch_error": str(e)[:100]}
        memory_row(run, f"{kind} bwd {rows}x{hidden}", 6 * n, sides, extra)

    for rows, hidden in NORM_SHAPES[:2] if run.options.quick else NORM_SHAPES:
        for kind in ("layernorm", "rmsnorm"):
            run.row(f"{kind} fwd {rows}x{hidden}", lambda: forward(kind, rows, hidden))
            run.row(f"{kind} bwd {rows}x{hidden}", lambda: backward(kind, rows, hidden))


# --------------------------------------------------------------------------------------------------------------------- activations

ACTIVATION_SHAPES = [(8192, 16384), (4096, 28672), (12288, 4096), (16384, 4096)]


def section_activation(run):
    def shape(rows, cols):
        n, scale = rows * cols, one()
        bf16 = lambda c=cols: torch.empty(rows, c, device=run.device, dtype=BF16)  # noqa: E731
        fp8 = lambda c=cols: fp8_room(run, rows, c, transpose=True)  # noqa: E731

        def forward(kind, name, width, per, room, peer):
            """`per`: bytes per output element."""
            made = sets(per * n, lambda: (normal(run, rows, width * cols), room()))
            sides = {"ours": [(lambda x=x, y=y: ops.activation_fwd(x, kind, out=y)) for x, y in made]}
            extra = {}
            inputs = [(x,) for x, _ in made]
            if room is fp8:
                with_peers(run, sides, lambda x: torch_cast(peer(x), scale, True), inputs)
            else:
                sides["torch"] = [(lambda x=x: peer(x)) for x, _ in made]
                with_compiled(run, sides, peer, inputs)
                x, y = made[0]
                ops.activation_fwd(x, kind, out=y)
                extra["difference"] = difference(y, peer(x))
            memory_row(run, f"{name} {rows}x{cols}", per * n, sides, extra)

        def backward(kind, name, width, per, room, peer):
            made = sets(per * n, lambda: (normal(run, rows, cols), normal(run, rows, width * cols), room()))
            sides = {"ours": [(lambda dy=dy, x=x, o=o: ops.activation_bwd(dy, x, kind, out=o)) for dy, x, o in made]}
            extra = {}
            inputs = [(dy, x) for dy, x, _ in made]
            if peer is not None and room is fp8:
                with_peers(run, sides, lambda dy, x: torch_cast(peer(dy, x), scale, True), inputs)
            elif peer is not None:
                sides["torch"] = [(lambda dy=dy, x=x: peer(dy, x)) for dy, x, _ in made]
                with_compiled(run, sides, peer, inputs)
                dy, x, o = made[0]
                ops.activation_bwd(dy, x, kind, out=o)
                extra["difference"] = difference(o, peer(dy, x))
            memory_row(run, f"{name} {rows}x{cols}", per * n, sides, extra)

        gelu = lambda x: F.gelu(x, approximate="tanh")  # noqa: E731
        swiglu = lambda x: F.silu(x[:, :cols]) * x[:, cols:]  # noqa: E731
        forward("gelu", "gelu", 1, 4, bf16, gelu)
        forward("gelu", "gelu->fp8 both", 1, 4, fp8, gelu)
        forward("swiglu", "swiglu", 2, 6, bf16, swiglu)
        forward("swiglu", "swiglu->fp8 both", 2, 6, fp8, swiglu)
        dgelu = lambda dy, x: torch.ops.aten.gelu_backward(dy, x, approximate="tanh")  # noqa: E731
        backward("gelu", "dgelu", 1, 6, bf16, dgelu)
        backward("gelu", "dgelu->fp8 both", 1, 6, fp8, dgelu)
        backward("swiglu", "dswiglu->fp8 both", 2, 10, lambda: fp8(2 * cols), None)

        def with_dbias():
            work = torch.empty(max(16, ops.activation_bwd_workspace("cuda", "gelu", rows, cols)), device=run.device, dtype=torch.uint8)
            dbias = torch.empty(cols, device=run.device, dtype=BF16)
            made = sets(6 * n, lambda: (normal(run, rows, cols), normal(run, rows, cols), fp8()))
            calls = [(lambda dy=dy, x=x, o=o: ops.activation_bwd(dy, x, "gelu", out=o, dbias=dbias, workspace=work)) for dy, x, o in made]
            memory_row(run, f"dgelu+dbias->fp8 both {rows}x{cols}", 6 * n, {"ours": calls})

        with_dbias()

    for rows, cols in ACTIVATION_SHAPES[2:3] if run.options.quick else ACTIVATION_SHAPES:
        run.row(f"{rows}x{cols}", lambda: shape(rows, cols))


def section_dbias(run):
    """The cast of a gradient with the bias gradient beside it."""

    def shape(rows, cols):
        n = rows * cols
        work = torch.empty(max(16, ops.cast_dbias_workspace("cuda", rows, cols)), device=run.device, dtype=torch.uint8)
        dbias = torch.empty(cols, device=run.device, dtype=BF16)
        made = sets(4 * n, lambda: (normal(run, rows, cols), fp8_room(run, rows, cols, E5M2, transpose=True)))
        calls = [(lambda x=x, q=q: ops.cast_dbias(x, out=q, dbias=dbias, workspace=work)) for x, q in made]
        calls[0]()
        extra = {"difference": difference(dbias[None], made[0][0].float().sum(0)[None])}
        memory_row(run, f"cast+dbias both {rows}x{cols}", 4 * n, {"ours": calls}, extra)

    for rows, cols in CAST_SHAPES[:2] if run.options.quick else CAST_SHAPES:
        run.row(f"cast+dbias {rows}x{cols}", lambda: shape(rows, cols))


# ------------------------------------------------------------------------------------------------------------------------- scaling


def section_scaling(run):
    slots, length = 2000, 1024

    def measured():
        def make():
            f = lambda *s: torch.rand(*s, device=run.device)  # noqa: E731
            return f(slots), f(slots), f(slots, length - 1), torch.full((slots,), 448.0, device=run.device), f(slots)

        # live, scale and history are read and written.
        nbytes = 4.0 * slots * (2 * (length - 1) + 5)
        made = sets(nbytes, make)

        def ours(live, scale, history, largest, recorded):
            # An update takes what was recorded; a slot with nothing is left alone.
            live.copy_(recorded)
            return ops.scaling_update(live, scale, history, largest)

        def eager(live, scale, history, largest, recorded):
            live.copy_(recorded)
            amax = torch.maximum(live, history.amax(1))
            history[:, :-1] = history[:, 1:].clone()
            history[:, -1] = live
            good = torch.isfinite(amax) & (amax > 0)
            scale.copy_(torch.where(good, largest / amax, scale))
            live.zero_()

        sides = {"ours": [(lambda m=m: ours(*m)) for m in made], "eager": [(lambda m=m: eager(*m)) for m in made]}
        # What refilling `live` costs: it belongs to the measurement, not to the operation.
        sides["refill"] = [(lambda m=m: m[0].copy_(m[4])) for m in made]
        found = compare(run, sides)
        refill, us = found["refill"][0], found["ours"][0] - found["refill"][0]
        fields = {"us": us * 1e6, "TBps": nbytes / us / 1e12, "of_copy": nbytes / us / run.copy_rate, "refill_us": refill * 1e6}
        peer = found["eager"][0] - refill
        run.put(f"scaling_update {slots}x{length}", **fields, eager_us=peer * 1e6, vs_eager=peer / us)

    run.row("scaling_update", measured)


# ---------------------------------------------------------------------------------------------------------------------------- main

SECTIONS = {
    "ceil": section_ceil,
    "gemm": section_gemm,
    "cast": section_cast,
    "current": section_current,
    "norm": section_norm,
    "residual": section_residual,
    "activation": section_activation,
    "host": section_host,
    "first": section_first,
    "dbias": section_dbias,
    "scaling": section_scaling,
    "softmax": section_softmax,
    "rope": section_rope,
    "optimizer": section_optimizer,
    "cross_entropy": section_cross_entropy,
    "dropout": section_dropout,
    "multi_cast": section_multi_cast,
    "sizes": section_sizes,
}


def smi():
    """Clock, power and temperature now, as nvidia-smi tells."""
    fields = "name,driver_version,clocks.sm,power.draw,temperature.gpu"
    try:
        done = subprocess.run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"], capture_output=True, text=True, timeout=10)
        return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else None
    except (OSError, subprocess.SubprocessError):
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sections", help=f"comma-separated: {','.join(SECTIONS)} (default: all; ceil always runs first)")
    parser.add_argument("--quick", action="store_true", help="few shapes, short runs")
    parser.add_argument("--json", default=os.path.join(os.environ.get("OUT", "."), "gpu.json"), help="where the results go")
    parser.add_argument("--commit", default=os.environ.get("NVTE_COMMIT", "unknown"), help="recorded in the results")
    parser.add_argument("--budget", type=float, default=140.0, help="seconds after which no further row is begun")
    parser.add_argument("--compile", action="store_true", help="torch.compile as a further peer of memory-bound rows")
    options = parser.parse_args()
    wanted = options.sections.split(",") if options.sections else list(SECTIONS)
    unknown = [s for s in wanted if s not in SECTIONS]
    if unknown:
        parser.error(f"no section {', '.join(unknown)}")
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device")
    gc.disable()
    torch.manual_seed(time.time_ns() & 0xFFFFFFFF)
    if options.compile:
        # Each shape is compiled for itself.
        torch._dynamo.config.cache_size_limit = torch._dynamo.config.accumulated_cache_size_limit = 10_000
    run = Run(options)
    nvte.set_log(lambda line: run.lines.append(line))
    capability = nvte.shared_context("cuda").capability()
    about = {
        "commit": options.commit,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "device": torch.cuda.get_device_name(),
        "arch": capability.arch,
        "smi_before": smi(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nvte": nvte.library_version(),
        "python": platform.python_version(),
        "quick": options.quick,
        "rounds": run.rounds,
    }
    print(f"{about['device']}  torch {about['torch']}  nvte {about['nvte']}  commit {about['commit']}", flush=True)

    def write():
        made = {**about, "seconds": run.elapsed(), "failed_rows": run.failed, "sections": run.results}
        folder = os.path.dirname(os.path.abspath(options.json))
        os.makedirs(folder, exist_ok=True)
        temporary = options.json + ".new"
        with open(temporary, "w") as f:
            json.dump(made, f, indent=1)
        os.replace(temporary, options.json)

    for section in ["ceil"] + [s for s in SECTIONS if s in wanted and s != "ceil"]:
        run.section, run.lines, begin = section, [], run.elapsed()
        run.results.setdefault(section, {})
        try:
            SECTIONS[section](run)
        except OutOfTime as e:
            run.put("stopped", reason=str(e))
        except Exception as e:
            run.failed += 1
            run.put("failed", error=f"{type(e).__name__}: {str(e)[:300]}")
            traceback.print_exc()
        gc.collect()
        torch.cuda.empty_cache()
        print(f"-- {section}: {run.elapsed() - begin:.1f} s", flush=True)
        write()
    about["smi_after"] = smi()
    write()
    print(f"{options.json}: {run.failed} failed rows, {run.elapsed():.0f} s", flush=True)
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
