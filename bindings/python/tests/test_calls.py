"""Errors, contexts, threads, forked children: what is the same for every operation."""

import multiprocessing
import os
import pickle
import signal
import threading

import numpy as np
import pytest
from conftest import BACKEND, NUMPY, codes_of, encode, torch, values

import nvte

DEVICE = "cuda:0" if BACKEND == "cuda" else "cpu"


def test_errors_of_the_library(fw):
    x = fw.array(np.ones((4, 6), np.float32))
    wrong = nvte.Fp8Tensor(fw.array(np.zeros((4, 5), NUMPY["float8_e4m3"])))
    with pytest.raises(nvte.ArgumentError) as caught:
        nvte.ops.cast_to_fp8(x, out=wrong)
    e = caught.value
    assert isinstance(e, nvte.Error) and isinstance(e, ValueError)
    assert (e.status, e.name, e.code) == (102, "NVTE_ERROR_INVALID_SHAPE", 0)
    assert "output = [4, 5]" in str(e) and "[4, 6]" in str(e)
    again = pickle.loads(pickle.dumps(e))
    assert (str(again), again.status, again.name) == (str(e), e.status, e.name)
    overlapping = nvte.Fp8Tensor(x.view(NUMPY["float8_e4m3"])[:, :6] if fw.name == "numpy" else x.view(torch.uint8)[:, :6], dtype="e4m3")
    with pytest.raises(nvte.ArgumentError, match="overlap"):
        nvte.ops.cast_to_fp8(x, out=overlapping)


def test_errors_of_the_arrays(fw):
    x = fw.array(np.ones((4, 6), np.float32))
    with pytest.raises(TypeError, match="numpy array or a torch tensor"):
        nvte.ops.cast_to_fp8([1.0, 2.0])
    with pytest.raises(TypeError, match="element type"):
        nvte.ops.cast_to_fp8(fw.array(np.ones(3)))
    with pytest.raises(TypeError, match="float32, float16 or bfloat16"):
        nvte.ops.cast_to_fp8(fw.array(np.zeros(3, NUMPY["float8_e4m3"])))
    with pytest.raises(TypeError, match="must be an FP8 type"):
        nvte.ops.cast_to_fp8(x, "bfloat16")
    with pytest.raises(TypeError, match="not an element type"):
        nvte.ops.cast_to_fp8(x, "e8m23")
    with pytest.raises(TypeError, match="must be float32"):
        nvte.ops.cast_to_fp8(x, amax=fw.array(np.zeros(1, np.float16)))
    with pytest.raises(ValueError, match="1 are needed"):
        nvte.ops.cast_to_fp8(x, scale=fw.array(np.zeros(2, np.float32)))
    with pytest.raises(ValueError, match="at least one layout"):
        nvte.Fp8Tensor()
    with pytest.raises(TypeError, match="must be an FP8 type"):
        nvte.Fp8Tensor(x)
    table = fw.array(np.ones((4, 3), np.float32))
    for name, call in (
        ("dy", lambda: nvte.ops.softmax_bwd(None, x)),
        ("dy", lambda: nvte.ops.activation_bwd(None, x, "gelu")),
        ("target", lambda: nvte.ops.cross_entropy(x, None)),
        ("gradients", lambda: nvte.ops.grad_norm([x, None])),
        ("tensors", lambda: nvte.ops.multi_cast_to_fp8([x, None])),
        ("sin", lambda: nvte.ops.rope_fwd(fw.array(np.ones((4, 1, 1, 6), np.float32)), table, None)),
    ):
        with pytest.raises(TypeError, match=f"{name} is None"):
            call()


def test_arrays_of_two_kinds():
    if torch is None:
        pytest.skip("needs torch")
    x = np.ones((4, 6), np.float32)
    with pytest.raises(ValueError, match="torch on cpu"):
        nvte.ops.cast_to_fp8(x, scale=torch.ones(1))
    with pytest.raises(ValueError, match="tensors is torch on cpu"):
        nvte.ops.multi_cast_to_fp8([x, torch.ones(4, 6)])
    if BACKEND == "cuda":
        with pytest.raises(ValueError, match="torch on cuda:0"):
            nvte.ops.cast_to_fp8(torch.ones(4, 6), scale=torch.ones(1, device="cuda"))


@pytest.mark.skipif(BACKEND != "cpu", reason="numpy arrays live on the CPU")
def test_numpy_arrays_that_do_not_fit():
    x = np.ones((4, 6), np.float32)
    room = np.zeros((4, 6), NUMPY["float8_e4m3"])
    room.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        nvte.ops.cast_to_fp8(x, out=room)
    with pytest.raises(ValueError, match="side by side"):
        nvte.ops.cast_to_fp8(np.ones((6, 4), np.float32).T)
    with pytest.raises(ValueError, match="row stride"):
        nvte.ops.cast_to_fp8(np.broadcast_to(np.ones(6, np.float32), (4, 6)))
    with pytest.raises(ValueError, match="row stride"):
        nvte.ops.cast_to_fp8(x[::-1])
    with pytest.raises(TypeError, match="element type"):
        nvte.ops.cast_to_fp8(x.astype(">f4"))
    unaligned = np.frombuffer(bytearray(4 * 24 + 1), np.uint8)[1:].view(np.float32).reshape(4, 6)
    with pytest.raises(nvte.ArgumentError, match="multiple of 4"):
        nvte.ops.cast_to_fp8(unaligned)
    # A scale may be a number, an array scalar or an array.
    for scale in (2, 2.0, np.float32(2), np.array(2, np.float32)):
        assert nvte.ops.cast_to_fp8(x, scale=scale).scale_inv[0] == 0.5


@pytest.mark.skipif(BACKEND != "cpu", reason="numpy arrays live on the CPU")
def test_numpy_arrays_that_are_only_to_be_read():
    x, row = np.ones((4, 6), np.float32), np.ones(4, np.float32)

    def locked(n=1, dtype=np.float32):
        made = np.zeros(n, dtype)
        made.flags.writeable = False
        return made

    def fp8(**slots):
        return nvte.Fp8Tensor(np.zeros((4, 6), np.uint8), **{"scale_inv": np.zeros(1, np.float32), **slots}, dtype="e4m3")

    scales = [np.ones(1, np.float32) for _ in range(3)]
    work = nvte.ops.cast_dbias_workspace("cpu", 4, 6) + 16
    for name, call in (
        ("amax", lambda a: nvte.ops.cast_to_fp8(x, amax=a)),
        ("amax", lambda a: nvte.ops.activation_fwd(x, "gelu", amax=a)),
        ("amax", lambda a: nvte.ops.multi_cast_to_fp8(nvte.ops.cast_list([x], [fp8(amax=a)]))),
        ("scale_inv", lambda a: nvte.ops.cast_to_fp8(x, out=fp8(scale_inv=a))),
        ("scale", lambda a: nvte.ops.cast_to_fp8_current(x, out=fp8(scale=a))),
        ("scale_inv", lambda a: nvte.ops.scaling_update(scales[0], scales[1], None, scales[2], scale_inv=a)),
        ("mu", lambda a: nvte.ops.layernorm_fwd(x[:1], mu=a)),
        ("rsigma", lambda a: nvte.ops.rmsnorm_fwd(x[:1], rsigma=a)),
        ("gradients", lambda a: nvte.ops.grad_list([row[:1]]).set_gradients([a])),
    ):
        only_read = locked()
        with pytest.raises(ValueError, match=f"{name} is read-only"):
            call(only_read)
        assert only_read[0] == 0
    with pytest.raises(ValueError, match="workspace is read-only"):
        nvte.ops.cast_dbias(x, workspace=locked(work, np.uint8))
    # A scale that is given is read.
    assert nvte.ops.cast_to_fp8(x, scale=np.broadcast_to(np.float32(2), (1,))).scale_inv[0] == 0.5


def test_workspace_with_gaps(fw):
    x = fw.array(np.ones((40, 60), np.float32))
    with pytest.raises(ValueError, match="workspace: must be without gaps"):
        nvte.ops.cast_to_fp8_current(x, workspace=fw.array(np.zeros(4096, np.uint8))[::2])


@pytest.mark.skipif(torch is None, reason="needs torch")
def test_tensors_without_memory():
    made = {"device": DEVICE}
    x, t, table = torch.ones(6, 8, **made), torch.zeros(6, dtype=torch.int64, **made), torch.ones(6, 4, **made)
    nvte.ops.cast_to_fp8(x)
    # Views have an address that is not 0, and nothing there.
    meta = lambda like: torch.empty((like.shape[0] + 1, *like.shape[1:]), dtype=like.dtype, device="meta")[1:]  # noqa: E731
    heads = x.view(6, 1, 1, 8)
    for name, call in (
        ("x", lambda: nvte.ops.cast_to_fp8(meta(x))),
        ("amax", lambda: nvte.ops.cast_to_fp8(x, amax=meta(table[0, :1]))),
        ("gamma", lambda: nvte.ops.layernorm_fwd(x, meta(x[0]))),
        ("mask", lambda: nvte.ops.softmax_fwd(x, mask=meta(x > 0))),
        ("target", lambda: nvte.ops.cross_entropy(x, meta(t))),
        ("rng", lambda: nvte.ops.dropout_fwd(x, 0.5, meta(t[:2]))),
        ("sin", lambda: nvte.ops.rope_fwd(heads, table, meta(table))),
        ("positions", lambda: nvte.ops.rope_fwd(heads, table, table, positions=meta(t))),
        ("gradients", lambda: nvte.ops.grad_norm([x, meta(x)])),
    ):
        with pytest.raises(ValueError, match="meta are not supported" if name == "x" else f"{name}: tensors on meta"):
            call()


def test_numbers_that_do_not_fit(fw):
    x, t, z = fw.array(np.ones((4, 6), np.float32)), fw.array(np.zeros(4, np.int64)), fw.array(np.ones(1, np.float32))
    rng = fw.array(np.arange(2))
    for kind, message, call in (
        (ValueError, "rng_stream = -1: must be from 0", lambda: nvte.ops.dropout_fwd(x, 0.5, rng, rng_stream=-1)),
        (ValueError, f"ignore_index = {2**63}: must be from", lambda: nvte.ops.cross_entropy(x, t, ignore_index=2**63)),
        (ValueError, f"offset = {-(2**64)}: must be from", lambda: nvte.ops.softmax_fwd(x, causal=True, offset=-(2**64))),
        (ValueError, f"margin = {2**31}: must be from", lambda: nvte.ops.cast_to_fp8_current(x, margin=2**31)),
        (ValueError, "interval = -1: must be from 0", lambda: nvte.ops.scaling_update(z, z, None, z, interval=-1)),
        (TypeError, "margin = 1.5: must be an integer", lambda: nvte.ops.cast_to_fp8_current(x, margin=1.5)),
        (TypeError, "scale = 'a': must be a number", lambda: nvte.ops.softmax_fwd(x, scale="a")),
        (TypeError, "max_norm = None: must be a number", lambda: nvte.ops.grad_norm([x], max_norm=None)),
    ):
        with pytest.raises(kind, match=message):
            call()
    for name, ask in (
        ("rows", lambda n: nvte.ops.cast_dbias_workspace(DEVICE, n, 1)),
        ("rows", lambda n: nvte.ops.dropout_bwd_workspace(DEVICE, n, 1)),
        ("hidden", lambda n: nvte.ops.activation_bwd_workspace(DEVICE, "gelu", 1, n)),
        ("hidden", lambda n: nvte.ops.norm_bwd_workspace(DEVICE, n)),
        ("tokens", lambda n: nvte.ops.cross_entropy_workspace(DEVICE, n)),
        ("start", lambda n: nvte.ops.rope_table(4, 4, start=n)),
    ):
        with pytest.raises(ValueError, match=f"{name} = {2**64}: must fit 64 bits"):
            ask(2**64)
        with pytest.raises(TypeError, match=f"{name} = 1.5: must be an integer"):
            ask(1.5)
    with pytest.raises(ValueError, match="scale: has 3 elements"):
        nvte.ops.scale_rows(x, fw.array(np.ones(3, np.float32)))
    with pytest.raises(TypeError, match="amax: .*must be a numpy array or a torch tensor"):
        nvte.ops.cast_to_fp8(x, amax=1.0)


def test_contexts(fw):
    x = fw.array(np.ones((4, 6), np.float32))
    with nvte.Context(DEVICE, num_threads=1) as context:
        assert context.device == DEVICE
        capability = context.capability()
        assert capability.multiprocessors > 0 and isinstance(capability.fp8_gemm_hardware, bool)
        q = nvte.ops.cast_to_fp8(x, context=context)
        context.synchronize()
        context.trim()
        assert (codes_of(fw.numpy(q.data)) == 0x38).all()
    with pytest.raises(nvte.ArgumentError, match="context"):
        nvte.ops.cast_to_fp8(x, context=context)
    context.close()
    assert nvte.shared_context(DEVICE) is nvte.shared_context(DEVICE)
    with pytest.raises(ValueError, match="device"):
        nvte.Context("tpu")
    with pytest.raises(nvte.CudaError):
        nvte.Context(4096)


def test_prepare_enqueues_nothing(fw):
    x = fw.array(np.ones((4, 6), np.float32))
    room = fw.array(np.zeros((4, 6), NUMPY["float8_e4m3"]))
    nvte.ops.cast_to_fp8(x, out=room, stream=nvte.PREPARE)
    assert (codes_of(fw.numpy(room)) == 0).all()


def test_threads(fw, rng):
    held = [values(rng, (64, 96), special=False) for _ in range(8)]
    inputs = [fw.array(h) for h in held]
    outcomes = [None] * len(held)

    def work(i):
        try:
            for n in range(20):
                scale = np.float32(1 + i + n)
                q = nvte.ops.cast_to_fp8(inputs[i], scale=float(scale))
                assert np.array_equal(codes_of(fw.numpy(q.data)), encode(held[i] * scale, "float8_e4m3"))
                # Errors belong to the thread that made them.
                with pytest.raises(nvte.ArgumentError, match=rf"\[64, {i + 1}\]"):
                    nvte.ops.cast_to_fp8(inputs[i], out=q.data[:, : i + 1])
            outcomes[i] = "ok"
        except BaseException as e:
            outcomes[i] = repr(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(held))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert outcomes == ["ok"] * len(held)


def _large():
    x = np.arange(512 * 512, dtype=np.float32).reshape(512, 512) % 449
    return x, encode(x, "float8_e4m3")


def _in_child(queue):
    x, want = _large()
    queue.put(bool(np.array_equal(codes_of(nvte.ops.cast_to_fp8(x).data), want)))


@pytest.mark.skipif(BACKEND != "cpu", reason="a CUDA context does not survive a fork")
def test_a_forked_child_computes():
    x, want = _large()
    nvte.ops.cast_to_fp8(x)
    with nvte.Context("cpu", num_threads=4) as context:
        nvte.ops.cast_to_fp8(x, context=context)
        child = os.fork()
        if child == 0:
            # Nothing of pytest may run here: only the answer leaves.
            status = 1
            try:
                signal.alarm(60)
                good = np.array_equal(codes_of(nvte.ops.cast_to_fp8(x).data), want)
                good &= np.array_equal(codes_of(nvte.ops.cast_to_fp8(x, context=context).data), want)
                with nvte.Context("cpu", num_threads=2) as own:
                    good &= np.array_equal(codes_of(nvte.ops.cast_to_fp8(x, context=own).data), want)
                status = 0 if good else 2
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
    assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0


@pytest.mark.skipif(BACKEND != "cpu", reason="a CUDA context does not survive a fork")
def test_a_child_of_multiprocessing_computes():
    x, _ = _large()
    nvte.ops.cast_to_fp8(x)
    methods = multiprocessing.get_context("fork")
    queue = methods.Queue()
    children = [methods.Process(target=_in_child, args=(queue,)) for _ in range(2)]
    for c in children:
        c.start()
    try:
        assert [queue.get(timeout=60) for _ in children] == [True, True]
    finally:
        for c in children:
            c.join(20)
            if c.is_alive():
                c.kill()
    assert [c.exitcode for c in children] == [0, 0]
