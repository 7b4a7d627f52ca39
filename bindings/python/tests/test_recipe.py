"""Recipes."""

import pickle

import numpy as np
import pytest

import nvte
from nvte.recipe import DelayedScaling, Float8CurrentScaling, Format


def test_defaults_are_the_contract():
    r = DelayedScaling()
    assert (r.margin, r.interval, r.fp8_format, r.amax_history_len) == (0, 1, Format.HYBRID, 1024)
    assert (r.amax_compute_algo, r.reduce_amax, r.power_of_two, r.epsilon) == ("max", True, False, 0.0)
    c = Float8CurrentScaling()
    assert (c.fp8_format, c.margin, c.power_of_two, c.epsilon) == (Format.HYBRID, 0, False, 0.0)
    assert r.delayed() and not r.float8_current_scaling() and c.float8_current_scaling()


def test_formats():
    assert Format.HYBRID.forward is nvte.float8_e4m3 and Format.HYBRID.backward is nvte.float8_e5m2
    assert Format.E4M3.backward is nvte.float8_e4m3
    assert DelayedScaling(fp8_format="e4m3").fp8_format is Format.E4M3
    assert pickle.loads(pickle.dumps(Format.HYBRID)) is Format.HYBRID and repr(Format.E4M3) == "Format.E4M3"
    with pytest.raises(ValueError, match="too coarse"):
        DelayedScaling(fp8_format="E5M2")


@pytest.mark.parametrize(
    "bad",
    [dict(margin=65), dict(margin=0.5), dict(interval=0), dict(amax_history_len=0), dict(amax_compute_algo="mean"), dict(epsilon=-1.0),
     dict(epsilon=float("nan")), dict(fp8_format="fp4"), dict(amax_history_len="16"), dict(interval=None), dict(margin=float("inf")),
     dict(epsilon="small")],
    ids=str,
)
def test_bad_parameters(bad):
    (name,) = bad
    with pytest.raises(ValueError, match=name):
        DelayedScaling(**bad)


def test_they_are_values():
    assert DelayedScaling(margin=1) == DelayedScaling(margin=1) != DelayedScaling()
    assert DelayedScaling() != Float8CurrentScaling()
    assert len({DelayedScaling(), DelayedScaling(), Float8CurrentScaling()}) == 2
    assert pickle.loads(pickle.dumps(DelayedScaling(interval=3))) == DelayedScaling(interval=3)
    assert "amax_history_len=1024" in repr(DelayedScaling())
    assert DelayedScaling(amax_compute_algo=len).amax_compute_algo is len


def test_types():
    assert nvte.as_dtype("bf16") is nvte.bfloat16 is nvte.as_dtype("bfloat16")
    assert nvte.as_dtype(np.float16) is nvte.float16 is nvte.as_dtype(np.dtype("float16"))
    assert nvte.as_dtype("float8_e4m3fn") is nvte.float8_e4m3 and nvte.float8_e4m3.max == 448
    assert pickle.loads(pickle.dumps(nvte.float8_e5m2)) is nvte.float8_e5m2
    for bad in ("float64", None, 7, np.float64):
        with pytest.raises(TypeError):
            nvte.as_dtype(bad)
