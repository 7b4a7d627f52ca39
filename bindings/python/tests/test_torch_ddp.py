"""Two gloo ranks under DDP on the CPU: scales and parameters stay equal, also where one rank sees a NaN."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch_common import assert_same, torch

if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("this torch has no gloo", allow_module_level=True)

X = 0


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What both ranks saw; they run once."""
    directory = tmp_path_factory.mktemp("ranks")
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([p for p in sys.path if p]), "OMP_NUM_THREADS": "1"}
    seed = time.time_ns() % 2**31
    print("seed", seed)
    command = [str(directory), "cpu", str(seed)]
    running = [
        subprocess.Popen(
            [sys.executable, str(here / "ddp_worker.py"), str(rank), *command],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=240)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], "\n".join(said)
    return [torch.load(directory / f"rank{rank}") for rank in range(2)]


def scale_of(states, layer=0, slot=X):
    return [step[layer][0][slot] for step in states]


@pytest.mark.parametrize("name", ["delayed", "bucket_view", "compiled", "nan"])
def test_ranks_agree(ranks, name):
    a, b = (r[name] for r in ranks)
    assert_same(a["parameters"], b["parameters"])
    # Scales, counts and histories; the amaxes of the period that runs are each rank's own.
    assert_same([[[s[0], s[2], s[3]] for s in step] for step in a["states"]], [[[s[0], s[2], s[3]] for s in step] for step in b["states"]])
    assert any(not torch.equal(s[1], t[1]) for s, t in zip(a["states"][-1], b["states"][-1]))


def test_scales_come_from_the_largest_of_both_ranks(ranks):
    top = torch.maximum(*(r["delayed"]["amaxes"] for r in ranks))
    assert (ranks[0]["delayed"]["amaxes"] > ranks[1]["delayed"]["amaxes"]).any()
    assert (ranks[0]["delayed"]["amaxes"] < ranks[1]["delayed"]["amaxes"]).any()
    for rank in ranks:
        scales = scale_of(rank["delayed"]["states"])
        assert scales[0] == 1
        for step in range(1, len(scales)):
            assert_same(scales[step], torch.tensor(448.0) / top[max(0, step - 3) : step].max())


@pytest.mark.parametrize("name", ["bucket_view", "compiled"])
def test_variants_give_the_same_bits(ranks, name):
    for rank in ranks:
        assert_same(rank[name], rank["delayed"])


def test_a_nan_on_one_rank_drops_the_period_on_both(ranks):
    for rank in ranks:
        states, plain = rank["nan"]["states"], rank["delayed"]["states"]
        # The period with the NaN ends at step 2.
        assert_same(states[1][0][0], plain[1][0][0])
        assert not states[1][0][2].any()
        for layer in range(3):
            scale, _, nonfinite, _ = states[2][layer]
            forward = [0] if layer < 2 else [0, 2]
            assert (nonfinite[forward] == 1).all() and (nonfinite <= 1).all()
            assert_same(scale[forward], states[1][layer][0][forward])
            assert all(torch.isfinite(s[layer][t]).all() for s in states for t in (0, 3))
        # The weights were fine, and the next period counts again.
        assert states[2][0][2][1] == 0
        assert_same(states[3][0][2], states[2][0][2])
        assert_same(states[3][0][0][X], torch.tensor(448.0) / torch.stack([r["nan"]["amaxes"] for r in ranks]).amax(0)[[0, 2]].max())
        assert all(torch.isfinite(p).all() for p in rank["nan"]["parameters"])
    assert not torch.isfinite(ranks[1]["nan"]["states"][1][0][1][X]) and torch.isfinite(ranks[0]["nan"]["states"][1][0][1][X])


@pytest.mark.parametrize("name", ["not_reduced", "own_group"])
def test_scales_of_ranks_that_share_nothing(ranks, name):
    for rank in ranks:
        found = rank[name]
        for step, scale in enumerate(scale_of(found["states"])[1:], 1):
            assert_same(scale, torch.tensor(448.0) / found["amaxes"][max(0, step - 3) : step].max())
    assert_same(ranks[0][name]["parameters"], ranks[1][name]["parameters"])


def test_current_scaling(ranks):
    assert_same(ranks[0]["current"]["parameters"], ranks[1]["current"]["parameters"])
    assert all((s[0] == 1).all() and not s[1].any() for rank in ranks for step in rank["current"]["states"] for s in step)


def test_periods_that_end_by_hand(ranks):
    a, b = (r["by_hand"] for r in ranks)
    assert_same(a["after"], b["after"])
    for layer in range(3):
        top = torch.maximum(a["before"][layer][1], b["before"][layer][1])
        assert_same(a["after"][layer][3][:, -1], top)
