"""Host time for benches/gpu.py: a C call with and without its launches, the Python round it, and the first use of a kernel."""

import ctypes
import os
import statistics
import sys
import tempfile
import time

import torch
import torch.nn.functional as F
from gpu_timing import BF16, E4M3, fp8_room, normal, one, quantized, scaled_mm

import nvte
from nvte import ops


def host_cost(run, call, count=None):
    """Microseconds of host time per call: the median of batches, each waited for outside the clock."""
    count = count or 200
    for _ in range(30):
        call()
    torch.cuda.synchronize()
    found = []
    for _ in range(9):
        begin = time.perf_counter()
        for _ in range(count):
            call()
        found.append((time.perf_counter() - begin) / count)
        torch.cuda.synchronize()
    return statistics.median(found) * 1e6


def recorded(op):
    """The C calls that a Python call makes: [(function, arguments, what must stay alive)], without queries of sizes."""
    from nvte import _library

    calls, lib = [], _library.lib
    originals = {n: f for n, f in vars(lib).items() if n.startswith("nvte_")}

    def wrap(name, function):
        def called(*arguments):
            # The caller's locals hold the structs and arrays that the arguments point to.
            if not name.endswith("_workspace"):
                calls.append((function, arguments, dict(sys._getframe(1).f_locals)))
            return function(*arguments)

        return called

    try:
        lib.__dict__.update({n: wrap(n, f) for n, f in originals.items()})
        op()
    finally:
        lib.__dict__.update(originals)
    return calls


def host_operations(run):
    """Small calls of each family: (name, Python call, torch's counterpart or None)."""
    rows, cols = 64, 256
    x, gamma, beta = normal(run, rows, cols), normal(run, cols), normal(run, cols)
    q, qt = fp8_room(run, rows, cols), fp8_room(run, rows, cols, transpose=True)
    wide, w = normal(run, rows, 2 * cols), normal(run, 128, cols)
    a, b = quantized(run, rows, cols), quantized(run, 128, cols)
    d, y = torch.empty(rows, 128, device=run.device, dtype=BF16), torch.empty_like(x)
    mu, rsigma = torch.empty(rows, device=run.device), torch.empty(rows, device=run.device)
    work = torch.empty(64 << 20, device=run.device, dtype=torch.uint8)
    live, scale, history = one(), one(), torch.rand(1, 15, device=run.device)
    dx, dg, db = torch.empty_like(x), torch.empty_like(gamma), torch.empty_like(gamma)
    largest = one(448.0)
    return [
        ("cast_to_fp8", lambda **k: ops.cast_to_fp8(x, out=q, **k), lambda: x.to(E4M3)),
        ("cast_to_fp8 both", lambda **k: ops.cast_to_fp8(x, out=qt, **k), None),
        ("cast_to_fp8_current", lambda **k: ops.cast_to_fp8_current(x, out=q, workspace=work, **k), None),
        ("cast_dbias", lambda **k: ops.cast_dbias(x, out=qt, dbias=dg, workspace=work, **k), None),
        ("dequantize", lambda **k: ops.dequantize(q, out=y, **k), None),
        ("fp8_transpose", lambda **k: ops.fp8_transpose(qt, **k), None),
        ("amax", lambda **k: ops.amax(x, out=live, **k), lambda: x.abs().max()),
        ("scaling_update", lambda **k: ops.scaling_update(live, scale, history, largest, **k), None),
        (
            "fp8_gemm",
            lambda **k: ops.fp8_gemm(a, b, accumulate="fast", out=d, workspace=work, **k),
            scaled_mm(a, b, True),
        ),
        ("gemm", lambda **k: ops.gemm(x, w, out=d, workspace=work, **k), lambda: torch.mm(x, w.t(), out=d)),
        (
            "layernorm_fwd",
            lambda **k: ops.layernorm_fwd(x, gamma, beta, 1e-5, out=y, mu=mu, rsigma=rsigma, **k),
            lambda: F.layer_norm(x, (cols,), gamma, beta),
        ),
        (
            "layernorm_bwd",
            lambda **k: ops.layernorm_bwd(x, y, gamma, mu, rsigma, dx=dx, dgamma=dg, dbeta=db, workspace=work, **k),
            None,
        ),
        ("rmsnorm_fwd", lambda **k: ops.rmsnorm_fwd(x, gamma, 1e-5, out=q, rsigma=rsigma, **k), None),
        ("rmsnorm_bwd", lambda **k: ops.rmsnorm_bwd(x, y, gamma, rsigma, dx=dx, dgamma=dg, workspace=work, **k), None),
        ("activation_fwd gelu", lambda **k: ops.activation_fwd(x, "gelu", out=q, **k), lambda: F.gelu(x, approximate="tanh")),
        ("activation_fwd swiglu", lambda **k: ops.activation_fwd(wide, "swiglu", out=q, **k), None),
        ("activation_bwd gelu", lambda **k: ops.activation_bwd(x, y, "gelu", out=q, **k), None),
    ]


def section_host(run):
    # What ctypes itself costs for a call with four pointers: a C function that does nothing with them.
    nothing = ctypes.CFUNCTYPE(ctypes.c_void_p, *[ctypes.c_void_p] * 3, ctypes.c_size_t)(ctypes.cast(ctypes.CDLL(None).memccpy, ctypes.c_void_p).value)
    buffer = ctypes.addressof(ctypes.create_string_buffer(64))
    block = bytes(64)
    base = host_cost(run, lambda: nothing(buffer, block, 0, 0), 2000)
    run.put("ctypes, four arguments", us=base)

    def measured(name, call, peer):
        call()
        calls = recorded(call)
        torch.cuda.synchronize()
        # The stream is the last argument of every operation.
        prepared = [(f, (*a[:-1], nvte.PREPARE), None) for f, a, _ in calls]

        def again(made):
            if len(made) == 1:
                f, a, _ = made[0]
                return lambda: f(*a)
            return lambda: [f(*a) for f, a, _ in made]

        fields = {
            # The C call without its launches, as C sees it.
            "C_us": max(0.0, host_cost(run, again(prepared)) - base * len(prepared)),
            "C_with_launches_us": max(0.0, host_cost(run, again(calls)) - base * len(calls)),
            "python_us": host_cost(run, call),
            "python_without_launches_us": host_cost(run, lambda: call(stream=nvte.PREPARE)),
        }
        if peer is not None:
            fields["torch_us"] = host_cost(run, peer)
        run.put(name, **fields)

    for name, call, peer in host_operations(run):
        run.row(name, lambda: measured(name, call, peer))


def section_first(run):
    """The first use of a kernel: compiled with an empty cache folder, then loaded from it by a new context."""
    for name, call, _ in host_operations(run):

        def measured():
            with tempfile.TemporaryDirectory() as folder:
                times = []
                for _ in range(2):
                    context = nvte.Context("cuda", cache_dir=folder)
                    try:
                        begin = time.perf_counter()
                        call(stream=nvte.PREPARE, context=context)
                        times.append((time.perf_counter() - begin) * 1e3)
                        begin = time.perf_counter()
                        call(stream=nvte.PREPARE, context=context)
                        again = (time.perf_counter() - begin) * 1e3
                    finally:
                        context.close()
                files = [os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder)]
                run.put(name, cold_ms=times[0], disk_ms=times[1], next_ms=again, kernels=len(files), bytes=sum(files))

        run.row(name, measured)
