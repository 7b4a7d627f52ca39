"""FP8 layers for PyTorch: the modules that users of NVIDIA's library know, on nvte.

    import nvte.torch as te
    from nvte import recipe
    layer = te.Linear(1024, 4096)
    with te.autocast(recipe=recipe.DelayedScaling()):
        y = layer(x)
    y.sum().backward()
"""

import torch as _torch  # noqa: F401

from .. import recipe
from ..recipe import DelayedScaling, Float8CurrentScaling, Format
from ..worthwhile import fp8_worthwhile
from .checkpoint import checkpoint, checkpoint_contexts
from .clip import clip_grad_norm_
from .dropout import bias_dropout_add
from .graphs import make_graphed_callables
from .info import get_default_recipe, is_bf16_available, is_fp8_available
from .modules import LayerNorm, LayerNormLinear, LayerNormMLP, Linear, RMSNorm
from .rope import RotaryPositionEmbedding, apply_fused_qkv_rotary_pos_emb, apply_rotary_pos_emb, fused_qkv_rope
from .optimizer import FusedAdam
from .region import autocast, fp8_autocast, is_fp8_enabled, reset_scaling, update_scaling
from .rowwise import cross_entropy, softmax
from .stats import collect_stats

__all__ = [
    "DelayedScaling",
    "Float8CurrentScaling",
    "Format",
    "FusedAdam",
    "LayerNorm",
    "LayerNormLinear",
    "LayerNormMLP",
    "Linear",
    "RMSNorm",
    "RotaryPositionEmbedding",
    "apply_fused_qkv_rotary_pos_emb",
    "apply_rotary_pos_emb",
    "autocast",
    "bias_dropout_add",
    "checkpoint",
    "checkpoint_contexts",
    "clip_grad_norm_",
    "collect_stats",
    "cross_entropy",
    "fp8_autocast",
    "fp8_worthwhile",
    "fused_qkv_rope",
    "get_default_recipe",
    "is_bf16_available",
    "is_fp8_available",
    "is_fp8_enabled",
    "make_graphed_callables",
    "recipe",
    "reset_scaling",
    "softmax",
    "update_scaling",
]
