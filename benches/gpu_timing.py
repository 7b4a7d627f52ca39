"""How benches/gpu.py measures: graphs replayed in turns, rows of results, buffers."""

import os
import statistics
import time
import traceback

import torch

import nvte

E4M3, E5M2, BF16, F32 = torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.float32
#: Sets of buffers together exceed this: several times the L2 cache.
COLD_BYTES = 200e6


class OutOfTime(Exception):
    """The budget is spent."""


class Run:
    """Options, results, and the clock."""

    def __init__(self, options):
        self.options = options
        self.started = time.monotonic()
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.rounds = 3 if options.quick else 7
        self.segment = 4e-3 if options.quick else 10e-3
        self.copy_rate = None
        self.stream = torch.cuda.Stream()
        self.lines = []
        self.results = {}
        self.section = None
        self.failed = 0

    def elapsed(self):
        return time.monotonic() - self.started

    def check_time(self):
        if self.elapsed() > self.options.budget:
            raise OutOfTime(f"{self.elapsed():.0f} s of {self.options.budget:.0f} s spent")

    def put(self, name, **fields):
        """One row."""
        if self.lines:
            fields["log"], self.lines = self.lines[:8], []
        self.results.setdefault(self.section, {})[name] = fields
        shown = [f"{k}={text(v)}" for k, v in fields.items() if k != "log" and not isinstance(v, (list, dict))]
        print(f"{self.section:<10} {name:<44} {'  '.join(shown)}", flush=True)

    def row(self, name, function):
        """Runs `function`, which puts rows; an error becomes a row."""
        self.check_time()
        try:
            function()
        except OutOfTime:
            raise
        except Exception as e:
            self.failed += 1
            where = traceback.extract_tb(e.__traceback__)[-1]
            self.put(name, error=f"{type(e).__name__}: {str(e)[:300]}", where=f"{os.path.basename(where.filename)}:{where.lineno}")
            torch.cuda.synchronize()


def text(v):
    if isinstance(v, float):
        return f"{v:.3g}" if abs(v) < 1000 else f"{v:.0f}"
    return str(v)


def captured(closures, stream):
    """A graph of one call of each closure. Results of the calls are kept, so that no two calls share an output."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        # Twice: plans are made and kernels loaded, which a capture does not allow, and lazily loaded ones have run.
        for _ in range(2):
            closures[0]()
        for f in closures[1:]:
            f()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        kept = []
        graph.capture_begin()
        try:
            # Few large sets: several passes, so that the gap between two replays does not count.
            for _ in range(max(1, 8 // len(closures))):
                kept = [f() for f in closures]
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    graph.kept = kept
    graph.calls = len(closures) * max(1, 8 // len(closures))
    return graph


def seconds(graph, replays, start, end):
    """Time of one call inside `replays` replays."""
    start.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3 / (replays * graph.calls)


def compare(run, sides):
    """{name: list of closures, one per set of buffers} -> {name: (median seconds, seconds per round)}."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    graphs, replays, times = {}, {}, {}
    for name, closures in sides.items():
        graphs[name] = captured(closures, run.stream)
        seconds(graphs[name], 2, start, end)
        once = seconds(graphs[name], 3, start, end) * graphs[name].calls
        replays[name] = max(1, min(2000, round(run.segment / once)))
        times[name] = []
    for i in range(run.rounds):
        # Each side goes first in turn: neither profits from what the other did to the clocks.
        for name, graph in list(graphs.items())[:: -1 if i % 2 else 1]:
            times[name].append(seconds(graph, replays[name], start, end))
    return {name: (statistics.median(t), t) for name, t in times.items()}


def with_compiled(run, sides, peer, inputs):
    """Adds torch.compile of `peer` where it is asked for; inputs: arguments of each call."""
    if run.options.compile:
        compiled = torch.compile(peer, dynamic=False)
        sides["compile"] = [(lambda i=i: compiled(*i)) for i in inputs]
    return sides


def with_peers(run, sides, peer, inputs):
    """Adds torch, eager and (where asked for) compiled."""
    sides["eager"] = [(lambda i=i: peer(*i)) for i in inputs]
    return with_compiled(run, sides, peer, inputs)


def torch_cast(y, scale, both=False):
    """The cast to FP8 as a torch program, with its amax: for eager mode, and for torch.compile."""
    q = (y.float() * scale).clamp(-448, 448).to(E4M3)
    amax = y.abs().max()
    return (q, q.view(torch.uint8).t().contiguous(), amax) if both else (q, amax)


def ratio(found, peer, ours):
    """Median over the rounds of peer time / our time."""
    return statistics.median(p / o for p, o in zip(found[peer][1], found[ours][1]))


def sets(bytes_per_set, make, limit=64):
    """As many sets of buffers as exceed the cache."""
    return [make() for _ in range(max(1, min(limit, -int(-COLD_BYTES // max(bytes_per_set, 1)))))]


def memory_row(run, name, nbytes, sides, extra=None):
    """A row for an operation that moves `nbytes`: its time, rate, share of the copy rate, and peers. `sides`: ours first."""
    found = compare(run, sides)
    ours = next(iter(sides))
    us = found[ours][0]
    fields = {"us": us * 1e6, "TBps": nbytes / us / 1e12, "of_copy": nbytes / us / run.copy_rate}
    for peer in list(sides)[1:]:
        fields[f"{peer}_us"] = found[peer][0] * 1e6
        fields[f"vs_{peer}"] = ratio(found, peer, ours)
    fields.update(extra or {})
    run.put(name, **fields)


def one(value=1.0, device="cuda"):
    return torch.full((1,), value, device=device, dtype=F32)


def normal(run, *shape, dtype=BF16):
    return torch.randn(*shape, device=run.device, dtype=dtype)


def fp8_room(run, rows, cols, dtype=E4M3, rowwise=True, transpose=False, slots=True):
    """Memory for a quantized result, with its slots."""
    return nvte.Fp8Tensor(
        torch.empty(rows, cols, device=run.device, dtype=dtype) if rowwise else None,
        one(),
        torch.empty(cols, rows, device=run.device, dtype=dtype) if transpose else None,
        scale=one() if slots else None,
        amax=torch.zeros(1, device=run.device) if slots else None,
    )


def quantized(run, rows, cols):
    """Normal data in E4M3 with the scale of current scaling, by torch alone."""
    x = normal(run, rows, cols)
    scale = 448.0 / x.abs().max().float()
    q = torch.empty(rows, cols, device=run.device, dtype=E4M3)
    step = max(1, (1 << 27) // max(cols, 1))
    for at in range(0, rows, step):
        q[at : at + step] = (x[at : at + step].float() * scale).clamp_(-448, 448).to(E4M3)
    return nvte.Fp8Tensor(q, (1 / scale).reshape(1))


def difference(a, b):
    """Relative Frobenius distance of two results, by rows so that large ones fit."""
    d = n = 0.0
    for x, y in zip(a.split(1024), b.split(1024)):
        x, y = x.float(), y.float()
        d += (x - y).square().sum().item()
        n += y.square().sum().item()
    return (d / n) ** 0.5 if n else d**0.5


def scaled_mm(a, b, fast):
    """torch's FP8 product, cuBLASLt underneath."""
    return lambda: torch._scaled_mm(a.data, b.data.t(), a.scale_inv, b.scale_inv, out_dtype=BF16, use_fast_accum=fast)
