"""What the device can do."""

import torch

from .. import recipe as recipes
from .._errors import Error
from ..context import shared


def _index():
    return torch.cuda.current_device() if torch.cuda.is_available() else -1


def is_fp8_available(return_reason=False):
    """Whether layers can run in FP8 here; with return_reason (available, why not).

    FP8 runs on every device that nvte runs on; where the device has no FP8 tensor cores it is emulated (see nvte.fp8_worthwhile).
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
