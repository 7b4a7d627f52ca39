"""Activation checkpointing that carries the region along."""

import contextlib
import inspect

import torch
from torch.utils import checkpoint as _torch

from .region import local, restored

#: Whether torch's function takes early_stop; before, there was only a context for it.
_TAKES_EARLY_STOP = "early_stop" in inspect.signature(_torch.checkpoint).parameters


def _outside():
    if torch.compiler.is_compiling():
        raise RuntimeError("nvte.torch.checkpoint cannot be called inside a compiled function: put it round the call of it")


def _captured():
    region = local.region
    if region is None:
        return restored(None, None, torch.is_grad_enabled())
    return restored(region.mode, region.token, region.trains)


def checkpoint_contexts():
    """For torch.utils.checkpoint's `context_fn`: the recomputation runs in the region of the first pass.

    Also through HuggingFace: gradient_checkpointing_kwargs={"use_reentrant": False, "context_fn": nvte.torch.checkpoint_contexts}.
    """
    _outside()
    return contextlib.nullcontext(), _captured()


def checkpoint(
    function, *args, use_reentrant=None, distribute_saved_activations=False, get_rng_state_tracker=None, tp_group=None, **kwargs
):
    """torch.utils.checkpoint.checkpoint whose recomputation runs in the region of the first pass, and for which scales wait.

    use_reentrant: None is False. preserve_rng_state, determinism_check, debug, early_stop: as in torch. Others go to the function.
    """
    _outside()
    for name, value in dict(
        distribute_saved_activations=distribute_saved_activations, get_rng_state_tracker=get_rng_state_tracker, tp_group=tp_group
    ).items():
        if value:
            raise NotImplementedError(f"checkpoint: {name} is not supported yet")
    options = {k: kwargs.pop(k) for k in ("preserve_rng_state", "determinism_check", "debug", "early_stop") if k in kwargs}
    stops = contextlib.nullcontext()
    if "early_stop" in options and not _TAKES_EARLY_STOP:
        stops = _torch.set_checkpoint_early_stop(options.pop("early_stop"))
    if not use_reentrant:
        with stops:
            return _torch.checkpoint(function, *args, use_reentrant=False, context_fn=checkpoint_contexts, **options, **kwargs)
    again = _captured()
    first = [True]

    # Held by the node of the checkpoint, and with it the region's token.
    def run(*given):
        if first[0]:
            first[0] = False
            return function(*given, **kwargs)
        with again:
            return function(*given, **kwargs)

    return _torch.checkpoint(run, *args, use_reentrant=True, **options)
