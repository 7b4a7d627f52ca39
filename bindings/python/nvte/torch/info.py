"""What the device can do, and where FP8 pays."""

import torch

from .. import recipe as recipes
from .._errors import Error
from ..context import shared


def _index():
    return torch.cuda.current_device() if torch.cuda.is_available() else -1


def is_fp8_available(return_reason=False):
    """Whether layers can run in FP8 here; with return_reason (available, why not).

    FP8 runs on every device that nvte runs on; where the device has no FP8 tensor cores it is emulated (see fp8_worthwhile).
    """
    try:
        shared(_index())
        answer = True, ""
    except Error as e:
        answer = False, str(e)
    return answer if return_reason else answer[0]


def is_bf16_available(return_reason=False):
    """Whether bfloat16 can be used; with return_reason (available, why not)."""
    return (True, "") if return_reason else True


def get_default_recipe():
    """The recipe of regions that name none."""
    return recipes.DelayedScaling()


def fp8_worthwhile(m, n, k, device=None):
    """Whether a Linear of m tokens, n outputs and k inputs is expected to be faster in FP8 than in bfloat16, forward and backward.

    An estimate from the device's rates: products at half the time, against the casts' memory traffic and launches. False where the
    device has no FP8 tensor cores.
    """
    index = _index() if device is None else torch.device(device).index
    if index is None or index < 0:
        return False
    if not shared(index).capability().fp8_gemm_hardware:
        return False
    # Measured on one H200: products near 700 and 1200 TFLOP/s, casts near 3.5 TB/s, 2 µs for each more launch (four of them).
    products = 6.0 * m * n * k
    saved = products / 700e12 - products / 1200e12
    traffic = 4.0 * (m * k + n * k + m * n)
    return saved > traffic / 3.5e12 + 8e-6
