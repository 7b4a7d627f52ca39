"""Measures nvte.torch on one NVIDIA GPU as a user of PyTorch meets it: host time, layer time, memory, loss curves, each beside torch's own.

    python benches/gpu_layers.py [--sections host,time,memory,curves] [--quick] [--profile] [--json PATH] [--commit ID] [--budget SECONDS]

host: microseconds of host time per call at sizes so small that the GPU waits; sides in turns, medians over the rounds, ratios within a round.
time: one Linear forward and backward, eager, weight cast included, the cache cold before each call as triton's do_bench leaves it; sides
in turns. memory: what a layer keeps between forward and backward, by the library's query and by torch's allocator. curves: gpu_curves.py.

A row with `limit` has something to hold, and `ok` says whether it did; the rows are repeated at the end. A row that fails is reported as
such and the rest goes on. Everything goes to a JSON file (--json, else $OUT/gpu_layers.json), which is written anew after each section.
"""

import argparse
import ctypes
import gc
import json
import os
import platform
import statistics
import sys
import time
import traceback

import torch
import torch.nn.functional as F
from gpu_curves import section_curves
from gpu_timing import BF16, OutOfTime, Run, captured, difference, normal, seconds

import nvte
from nvte import _abi, recipe
from nvte._library import check, lib

#: Written before each measured call: several times the L2 cache.
COLD_BYTES = 256 << 20


def modules():
    """nvte.torch; its absence is an error of the rows that need it, not of the program."""
    import nvte.torch

    return nvte.torch


def held(run, name, value, limit, **fields):
    """A row with a figure that must not exceed its limit."""
    ok = bool(value <= limit)
    run.verdicts.append((run.section, name, value, limit, ok))
    run.put(name, **fields, limit=limit, ok=ok)


def middle(values):
    return statistics.median(values)


def middle_ratio(ours, peer):
    """Median over the rounds of our time / the peer's: below 1, we are faster."""
    return statistics.median(o / p for o, p in zip(ours, peer))


# ------------------------------------------------------------------------------------------------------------------------ host time


def in_turns(run, sides, count, rounds=None):
    """{name: call} -> {name: microseconds of host time per call, one figure a round}; waiting for the GPU is outside the clock."""
    for call in sides.values():
        for _ in range(30):
            call()
    torch.cuda.synchronize()
    found = {name: [] for name in sides}
    for i in range(rounds or (5 if run.options.quick else 15)):
        for name, call in list(sides.items())[:: -1 if i % 2 else 1]:
            begin = time.perf_counter()
            for _ in range(count):
                call()
            found[name].append((time.perf_counter() - begin) / count * 1e6)
            torch.cuda.synchronize()
    return found


def small_sides(run, te):
    """Calls on 16x64 inputs: {name: call}, torch's and ours."""
    rows, hidden, ffn = 16, 64, 256
    kind = {"device": run.device, "dtype": BF16}
    ours = {"device": run.device, "params_dtype": BF16}
    x = normal(run, rows, hidden).requires_grad_()
    dy = normal(run, rows, hidden)
    plain, linear = torch.nn.Linear(hidden, hidden, **kind), te.Linear(hidden, hidden, **ours)
    plain_norm, norm = torch.nn.LayerNorm(hidden, **kind), te.LayerNorm(hidden, **ours)
    norm_linear, mlp = te.LayerNormLinear(hidden, hidden, **ours), te.LayerNormMLP(hidden, ffn, **ours)
    up, down = torch.nn.Linear(hidden, ffn, **kind), torch.nn.Linear(ffn, hidden, **kind)

    def composed():
        return down(F.gelu(up(plain_norm(x)), approximate="tanh"))

    def whole(module):
        inputs = [x, *module.parameters()]
        return lambda: torch.autograd.grad(module(x), inputs, dy)

    composed_inputs = [x, *plain_norm.parameters(), *up.parameters(), *down.parameters()]
    return {
        "nn.Linear forward": lambda: plain(x),
        "Linear forward": lambda: linear(x),
        "nn.Linear forward+backward": whole(plain),
        "Linear forward+backward": whole(linear),
        "nn.LayerNorm forward": lambda: plain_norm(x),
        "LayerNorm forward": lambda: norm(x),
        "nn.LayerNorm forward+backward": whole(plain_norm),
        "LayerNorm forward+backward": whole(norm),
        "LayerNormLinear forward": lambda: norm_linear(x),
        "LayerNormLinear forward+backward": whole(norm_linear),
        "nn norm, MLP forward": composed,
        "LayerNormMLP forward": lambda: mlp(x),
        "nn norm, MLP forward+backward": lambda: torch.autograd.grad(composed(), composed_inputs, dy),
        "LayerNormMLP forward+backward": whole(mlp),
    }


#: (ours, the peer, the greatest ratio allowed under delayed scaling)
HOST_LIMITS = [
    ("Linear forward", "nn.Linear forward", 1.5),
    ("Linear forward+backward", "nn.Linear forward+backward", 1.25),
    ("LayerNormMLP forward", "nn.Linear forward", 3.0),
]
REGION_LIMIT_US = 15.0


def section_host(run):
    te = modules()

    def measured(mode, scaling):
        sides = small_sides(run, te)
        with te.autocast(enabled=scaling is not None, recipe=scaling):
            found = in_turns(run, sides, 20 if run.options.quick else 100)
        limits = {ours: (peer, limit) for ours, peer, limit in HOST_LIMITS} if mode == "delayed" else {}
        beside = {"LayerNorm": "nn.LayerNorm", "LayerNormLinear": "nn.Linear", "LayerNormMLP": "nn norm, MLP", "Linear": "nn.Linear"}
        for name, times in found.items():
            layer, _, passes = name.rpartition(" ")
            if layer not in beside:
                run.put(f"{name}, in the run of {mode}", us=middle(times))
                continue
            peer, limit = limits.get(name, (f"{beside[layer]} {passes}", None))
            share = middle_ratio(times, found[peer])
            fields = {"us": middle(times), "peer": peer, "peer_us": middle(found[peer]), "ratio": share}
            if limit is None:
                run.put(f"{name}, {mode}", **fields)
            else:
                held(run, f"{name}, {mode}", share, limit, **fields)

    for mode, scaling in (("delayed", recipe.DelayedScaling()), ("current", recipe.Float8CurrentScaling()), ("bf16", None)):
        run.row(mode, lambda: measured(mode, scaling))

    def around(scaling, limit):
        """What a region round a Linear adds to it, in a loop: entry, update, exit."""
        layer, x = te.Linear(64, 64, device=run.device, params_dtype=BF16), normal(run, 16, 64).requires_grad_()

        def entered():
            with te.autocast(recipe=scaling):
                return layer(x)

        found = []
        for _ in range(5 if run.options.quick else 15):
            whole = in_turns(run, {"entered": entered}, 100, 1)["entered"]
            with te.autocast(recipe=scaling):
                inside = in_turns(run, {"inside": lambda: layer(x)}, 100, 1)["inside"]
            found.append(whole[0] - inside[0])
        held(run, "region round each of many calls", middle(found), limit, us=middle(found))

    run.row("region in a loop", lambda: around(recipe.DelayedScaling(), REGION_LIMIT_US))

    def region(count, scaling, limit):
        """Entry and exit of a region by the clock, each after other work, so that code and data are cold; the passes within and after it are
        not counted. Each entry has an update to make."""
        net = torch.nn.Sequential(*[te.Linear(64, 64, device=run.device, params_dtype=BF16) for _ in range(count)])
        x, dy = normal(run, 16, 64).requires_grad_(), normal(run, 16, 64)
        inputs = [x, *net.parameters()]
        found = []
        for i in range(50 if run.options.quick else 300):
            begin = time.perf_counter()
            around = te.autocast(enabled=True, recipe=scaling)
            around.__enter__()
            entered = time.perf_counter()
            y = net(x)
            leaving = time.perf_counter()
            around.__exit__(None, None, None)
            left = time.perf_counter()
            torch.autograd.grad(y, inputs, dy)
            if i >= 20:
                found.append(((entered - begin) * 1e6, (left - leaving) * 1e6))
            if i % 10 == 9:
                torch.cuda.synchronize()
        total = middle([a + b for a, b in found])
        name = f"region of {count} Linear, {'delayed' if scaling.delayed() else 'current'}"
        fields = {"us": total, "entry_us": middle([a for a, _ in found]), "exit_us": middle([b for _, b in found])}
        if limit is None:
            run.put(name, **fields)
        else:
            held(run, name, total, limit, **fields)

    run.row("region, delayed", lambda: region(1, recipe.DelayedScaling(), None))
    run.row("region of many, delayed", lambda: region(100, recipe.DelayedScaling(), None))
    run.row("region, current", lambda: region(1, recipe.Float8CurrentScaling(), None))


# ----------------------------------------------------------------------------------------------------------------------- layer time

#: FC1 of four models: tokens, hidden, ffn, and what forward + backward may take in milliseconds.
LAYER_SHAPES = {
    "BERT-large": (512 * 24, 1024, 4096, 0.43),
    "ViT-huge": (208 * 64, 1280, 5120, 0.66),
    "GPT-7B": (2048 * 4, 4096, 16384, 3.15),
    "GPT-70B": (4096, 8192, 28672, 5.5),
}


def cold_turns(run, sides, cache):
    """{name: (call, tensors whose gradient is cleared before each call)} -> {name: median milliseconds of each round}.

    Calls are enqueued one behind the other, each with the cache overwritten first and events round it, so the host's time shows where
    the GPU would have to wait for it.
    """
    rounds, budget = (2, 8.0) if run.options.quick else (5, 25.0)
    event = lambda: torch.cuda.Event(enable_timing=True)  # noqa: E731
    counts, found = {}, {name: [] for name in sides}

    def enqueue(call, cleared, count):
        pairs = [(event(), event()) for _ in range(count)]
        for start, end in pairs:
            for t in cleared:
                t.grad = None
            cache.zero_()
            start.record()
            call()
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in pairs]

    for name, (call, cleared) in sides.items():
        enqueue(call, cleared, 3)
        counts[name] = max(5, min(100, round(budget / max(middle(enqueue(call, cleared, 5)), 1e-3))))
    for i in range(rounds):
        for name, (call, cleared) in list(sides.items())[:: -1 if i % 2 else 1]:
            # The first calls of a round find an idle GPU.
            found[name].append(middle(enqueue(call, cleared, counts[name] + 4)[4:]))
    return found


def host_of(call, count=20):
    """Milliseconds of host time per call while the GPU has enough to do, or does not."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    spent = (time.perf_counter() - begin) / count * 1e3
    torch.cuda.synchronize()
    return spent


def kernels_of(call, count=5):
    """[(kernel, microseconds a call, launches a call)], the longest first."""
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(count):
            call()
        torch.cuda.synchronize()
    rows = []
    for e in seen.key_averages():
        us = getattr(e, "self_device_time_total", None) or getattr(e, "self_cuda_time_total", 0)
        if us:
            rows.append((e.key[:90], us / count, e.count / count))
    return sorted(rows, key=lambda r: -r[1])


def section_time(run):
    te = modules()
    cache = torch.empty(COLD_BYTES, device=run.device, dtype=torch.int8)

    def step(layer, x, dy, scaling):
        if scaling is None:
            return lambda: layer(x).backward(dy)

        def call():
            with te.autocast(enabled=True, recipe=scaling):
                y = layer(x)
            y.backward(dy)

        return call

    def shape(name, tokens, hidden, ffn, limit):
        dy = normal(run, tokens, ffn)
        source = normal(run, tokens, hidden)
        first = torch.nn.Linear(hidden, ffn, device=run.device, dtype=BF16)
        recipes = {"nn": None, "bf16": None, "delayed": recipe.DelayedScaling(), "current": recipe.Float8CurrentScaling()}
        calls, leaves = {}, {}
        for kind in ("nn", "delayed", "current", "bf16", "nn cleared", "delayed cleared"):
            base = kind.split()[0]
            if base == "nn":
                layer = torch.nn.Linear(hidden, ffn, device=run.device, dtype=BF16)
            else:
                layer = te.Linear(hidden, ffn, device=run.device, params_dtype=BF16)
            with torch.no_grad():
                layer.weight.copy_(first.weight)
                layer.bias.copy_(first.bias)
            x = source.clone().requires_grad_()
            calls[kind], leaves[kind] = step(layer, x, dy, recipes[base]), [x, layer.weight, layer.bias]
        # One step on cleared gradients before anything accumulates: what FP8 makes of them.
        calls["nn"]()
        calls["delayed"]()
        apart = {}
        for which, ours, theirs in zip("xwb", leaves["delayed"], leaves["nn"]):
            apart[f"d{which}_difference"] = difference(ours.grad.reshape(-1, ours.shape[-1]), theirs.grad.reshape(-1, ours.shape[-1]))
        found = cold_turns(run, {k: (c, leaves[k] if "cleared" in k else []) for k, c in calls.items()}, cache)
        flops = 6.0 * tokens * hidden * ffn
        ms = {k: middle(v) for k, v in found.items()}
        fields = {f"{k.replace(' ', '_')}_ms": v for k, v in ms.items()}
        fields["delayed_vs_nn"] = middle_ratio(found["delayed"], found["nn"])
        fields.update(TFLOPS=flops / ms["delayed"] / 1e9, host_ms=host_of(calls["delayed"]), **apart)
        held(run, f"{name} {tokens}x{ffn}x{hidden}", ms["delayed"], limit, **fields)

        def graphed():
            """The same without the host: one step in a graph, replayed."""
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            times = {}
            for kind in ("nn", "delayed"):
                graph = captured([calls[kind]], run.stream)
                seconds(graph, 3, start, end)
                times[f"{kind}_ms"] = middle([seconds(graph, 3, start, end) * 1e3 for _ in range(5)])
                del graph
            run.put(f"{name} in a graph, cache warm", **times)

        def graphed_callable():
            """As torch's users capture it: the module's two passes, called inside a region."""
            layer = te.Linear(hidden, ffn, device=run.device, params_dtype=BF16)
            x = source.clone().requires_grad_()
            made = te.make_graphed_callables(layer, (x,), enabled=True, recipe=recipes["delayed"])
            call = step(made, x, dy, recipes["delayed"])
            found = cold_turns(run, {"delayed": (call, [])}, cache)
            run.put(f"{name} as a graphed callable", delayed_ms=middle(found["delayed"]), host_ms=host_of(call))

        run.row(f"{name} in a graph", graphed)
        run.row(f"{name} as a graphed callable", graphed_callable)
        if run.options.profile:
            run.row(f"{name} kernels", lambda: run.put(f"{name} kernels", of=kernels_of(calls["delayed"]), nn=kernels_of(calls["nn"])))

    for name, sizes in list(LAYER_SHAPES.items())[: 1 if run.options.quick else None]:
        run.row(name, lambda: shape(name, *sizes))
        gc.collect()
        torch.cuda.empty_cache()


# --------------------------------------------------------------------------------------------------------------------------- memory

MEMORY_SIZES = (12288, 1024, 4096)  # BERT-large: tokens, hidden, ffn
MODES = {"bf16": _abi.NVTE_RECIPE_NONE, "delayed": _abi.NVTE_RECIPE_DELAYED, "current": _abi.NVTE_RECIPE_CURRENT}
NEEDS = {
    "linear": _abi.NVTE_LAYER_NEEDS_DX | _abi.NVTE_LAYER_NEEDS_DW,
    "layernorm_linear": _abi.NVTE_LAYER_NEEDS_DX | _abi.NVTE_LAYER_NEEDS_DW | _abi.NVTE_LAYER_NEEDS_DNORM,
    "layernorm_mlp": _abi.NVTE_LAYER_NEEDS_DX | _abi.NVTE_LAYER_NEEDS_DW | _abi.NVTE_LAYER_NEEDS_DW2 | _abi.NVTE_LAYER_NEEDS_DNORM,
}


def layer_sizes(device, kind, mode, hidden, out, ffn=0):
    """What the library says a layer needs, in bytes: nvte_layer_sizes_t."""
    bf16 = _abi.NVTE_BF16
    config = _abi.nvte_layer_config_t(dtype=bf16, param_dtype=bf16, recipe=MODES[mode], in_features=hidden, out_features=out, ffn_features=ffn)
    config.struct_size = ctypes.sizeof(config)
    config.eps = 0.0 if kind == "linear" else 1e-5
    handle = ctypes.c_void_p()
    check(getattr(lib, f"nvte_{kind}_create")(nvte.shared_context(device).handle, ctypes.addressof(config), ctypes.addressof(handle)))
    try:
        sizes = _abi.nvte_layer_sizes_t(struct_size=ctypes.sizeof(_abi.nvte_layer_sizes_t))
        check(lib.nvte_layer_sizes(handle, NEEDS[kind], ctypes.addressof(sizes)))
        return sizes
    finally:
        check(lib.nvte_layer_destroy(handle))


def section_memory(run):
    tokens, hidden, ffn = MEMORY_SIZES
    # kind -> (class, arguments, sizes for the query, bytes a token that FP8 may keep, torch's composition)
    kinds = {
        "linear": ("Linear", (hidden, ffn), (hidden, ffn), hidden),
        "layernorm_linear": ("LayerNormLinear", (hidden, 3 * hidden), (hidden, 3 * hidden), hidden + 8),
        "layernorm_mlp": ("LayerNormMLP", (hidden, ffn), (hidden, hidden, ffn), hidden + 3 * ffn + 8),
    }

    def queried(kind, mode):
        _, _, sizes, promised = kinds[kind]
        s = layer_sizes(run.device, kind, mode, *sizes)
        fields = {
            "saved_a_token": s.saved_per_token,
            "saved_fixed": s.saved_fixed,
            "weight_cache": s.weight_cache,
            "forward_workspace": s.forward_workspace_per_token * tokens + s.forward_workspace_fixed,
            "backward_workspace": s.backward_workspace_per_token * tokens + s.backward_workspace_fixed,
            "slots": s.slots,
        }
        if mode == "bf16":
            run.put(f"{kind} {mode}, query", **fields)
        else:
            share = (s.saved_per_token * tokens + s.saved_fixed) / (promised * tokens)
            held(run, f"{kind} {mode}, query", share, 1.01, **fields, of_promised=share)

    def allocated(name, call, x0, dy, parameters):
        """By torch's allocator: what lives between forward and backward beside y, and the peaks of the two passes above it."""
        for _ in range(3):
            call(x0).backward(dy)
        for t in (x0, *parameters):
            t.grad = None
        gc.collect()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        # Nothing but the layer holds this x.
        x = x0 + 0
        torch.cuda.reset_peak_memory_stats()
        y = call(x)
        peak = torch.cuda.max_memory_allocated()
        del x
        kept = torch.cuda.memory_allocated() - before - y.untyped_storage().nbytes()
        torch.cuda.reset_peak_memory_stats()
        begin = torch.cuda.memory_allocated()
        torch.autograd.grad(y, [x0, *parameters], dy)
        peaks = {"forward_peak_MiB": (peak - before) / 2**20, "backward_peak_MiB": (torch.cuda.max_memory_allocated() - begin) / 2**20}
        run.put(f"{name}, allocated", kept_a_token=kept / tokens, **peaks)

    def measured(kind, mode):
        te = modules()
        name, arguments, _, _ = kinds[kind]
        layer = getattr(te, name)(*arguments, device=run.device, params_dtype=BF16)
        scaling = {"bf16": None, "delayed": recipe.DelayedScaling(), "current": recipe.Float8CurrentScaling()}[mode]

        def call(x, **more):
            with te.autocast(enabled=scaling is not None, recipe=scaling):
                return layer(x, **more)

        x0 = normal(run, tokens, hidden).requires_grad_()
        with torch.no_grad():
            dy = torch.randn_like(layer(x0))
        allocated(f"{kind} {mode}", call, x0, dy, list(layer.parameters()))
        if scaling is not None:
            # Copies of the weights kept over microbatches, both layouts.
            before = torch.cuda.memory_allocated()
            call(x0, is_first_microbatch=True).backward(dy)
            x0.grad = None
            for p in layer.parameters():
                p.grad = None
            run.put(f"{kind} {mode}, cached weights", MiB=(torch.cuda.memory_allocated() - before) / 2**20)

    def plain(kind):
        norm = torch.nn.LayerNorm(hidden, device=run.device, dtype=BF16)
        out = kinds[kind][1][1]
        parts = [torch.nn.Linear(hidden, out, device=run.device, dtype=BF16)]
        if kind != "linear":
            parts.insert(0, norm)
        if kind == "layernorm_mlp":
            parts += [torch.nn.GELU(approximate="tanh"), torch.nn.Linear(ffn, hidden, device=run.device, dtype=BF16)]
        net = torch.nn.Sequential(*parts)
        x0 = normal(run, tokens, hidden).requires_grad_()
        with torch.no_grad():
            dy = torch.randn_like(net(x0))
        allocated(f"{kind} nn", net, x0, dy, list(net.parameters()))

    for kind in kinds:
        for mode in MODES:
            run.row(f"{kind} {mode}, query", lambda: queried(kind, mode))
        run.row(f"{kind} nn", lambda: plain(kind))
        for mode in MODES:
            run.row(f"{kind} {mode}", lambda: measured(kind, mode))


# ----------------------------------------------------------------------------------------------------------------------------- main

SECTIONS = {"host": section_host, "time": section_time, "memory": section_memory, "curves": lambda run: section_curves(run, modules, held)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sections", help=f"comma-separated: {','.join(SECTIONS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="few shapes, short runs")
    parser.add_argument("--profile", action="store_true", help="kernels of a step, by torch's profiler, into the JSON file")
    parser.add_argument("--json", default=os.path.join(os.environ.get("OUT", "."), "gpu_layers.json"), help="where the results go")
    parser.add_argument("--commit", default=os.environ.get("NVTE_COMMIT", "unknown"), help="recorded in the results")
    parser.add_argument("--budget", type=float, default=150.0, help="seconds after which no further row is begun")
    options = parser.parse_args()
    wanted = options.sections.split(",") if options.sections else list(SECTIONS)
    unknown = [s for s in wanted if s not in SECTIONS]
    if unknown:
        parser.error(f"no section {', '.join(unknown)}")
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device")
    gc.disable()
    torch.manual_seed(time.time_ns() & 0xFFFFFFFF)
    run = Run(options)
    run.verdicts = []
    about = {
        "commit": options.commit,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nvte": nvte.library_version(),
        "python": platform.python_version(),
        "quick": options.quick,
    }
    print(f"{about['device']}  torch {about['torch']}  nvte {about['nvte']}  commit {about['commit']}", flush=True)

    def write():
        verdicts = [dict(zip(("section", "name", "value", "limit", "ok"), v)) for v in run.verdicts]
        made = {**about, "seconds": run.elapsed(), "failed_rows": run.failed, "verdicts": verdicts, "sections": run.results}
        os.makedirs(os.path.dirname(os.path.abspath(options.json)), exist_ok=True)
        with open(options.json + ".new", "w") as f:
            json.dump(made, f, indent=1)
        os.replace(options.json + ".new", options.json)

    for section in [s for s in SECTIONS if s in wanted]:
        run.section, begin = section, run.elapsed()
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
    for section, name, value, limit, ok in run.verdicts:
        print(f"{'ok  ' if ok else 'OVER'} {section:<8} {name:<44} {value:.4g} (limit {limit:.4g})")
    print(f"{options.json}: {run.failed} failed rows, {sum(not v[-1] for v in run.verdicts)} over their limits, {run.elapsed():.0f} s", flush=True)
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
