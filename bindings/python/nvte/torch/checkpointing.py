"""Scaling state in a state_dict: tensors only, of one size whatever the recipe.

`fp8_state` is f32 [k, 2 + 1024]: scale, live amax, history (newest last). `fp8_state_header` is int32 [4]: version, k, whether a cast
of the weights with a scale of their own is due, updates since the scales last changed.
"""

import io
import warnings

import torch

from . import state

STATE, HEADER, VERSION = "fp8_state", "fp8_state_header", 1
#: What a damaged state reads as.
DAMAGED = object()
_warned = set()


def _warn(what):
    if what not in _warned:
        _warned.add(what)
        warnings.warn(what, stacklevel=6)


def is_ours(key, prefix):
    """Whether a key is about scaling state: ours, of a later version, or of NVIDIA's library."""
    return key.startswith((prefix + "fp8_", prefix + "_extra_state"))


def packed(layer):
    """Scale, live amax and history of a layer."""
    if layer._slots is not None:
        return layer._slots.pack()
    made = torch.zeros(layer._slots_wanted, 2 + state.HISTORY, dtype=torch.float32, device=layer._device())
    made[:, 0] = 1.0
    return made


def header(layer):
    """Version, number of slots, whether weights were replaced, updates since scales changed."""
    device = layer._device()
    head = torch.tensor([VERSION, layer._slots_wanted, layer._due], dtype=torch.int32, device=device)
    if layer._slots is None:
        return torch.cat([head, head.new_zeros(1)])
    return torch.cat([head, layer._slots.counter().to(device)])


def save(layer, destination, prefix):
    """Writes a layer's state."""
    destination[prefix + STATE] = packed(layer)
    destination[prefix + HEADER] = header(layer)


def read(layer, state_dict, prefix, errors):
    """(values, due, counter) of what is stored for a layer; None where nothing is; DAMAGED after a line in `errors`."""
    stored, head = state_dict.get(prefix + STATE), state_dict.get(prefix + HEADER)
    if stored is None:
        return _nvidia(layer, state_dict.get(prefix + "_extra_state"))
    k, wrong, due, counter = layer._slots_wanted, None, True, 0
    if not isinstance(stored, torch.Tensor):
        wrong = f"is {type(stored).__name__}, and must be a tensor"
    elif stored.device.type == "meta":
        return None
    elif stored.dtype != torch.float32 or stored.dim() != 2 or stored.shape[0] != k or stored.shape[1] < 2:
        wrong = f"is {stored.dtype} {tuple(stored.shape)}, and must be float32 [{k}, {2 + state.HISTORY}]"
    if wrong is None and head is not None:
        if not isinstance(head, torch.Tensor) or head.is_floating_point() or head.dim() != 1 or head.numel() < 1:
            wrong = "has a damaged header"
        else:
            values = head.tolist()
            if values[0] > VERSION:
                _warn(f"fp8_state of version {values[0]} was written by a later nvte and is ignored")
                return None
            if values[0] != VERSION or len(values) != 4 or values[1] != k or values[2] not in (0, 1) or values[3] < 0:
                wrong = "has a damaged header"
            else:
                due, counter = bool(values[2]), values[3]
    if wrong is None:
        stored = stored.detach()
        scale, history = stored[:, 0], stored[:, 2:]
        good = torch.isfinite(scale).all() & (scale > 0).all() & torch.isfinite(history).all() & (history >= 0).all()
        if not bool(good & ~(stored[:, 1] < 0).any()):
            wrong = "holds values that no scaling state has"
    if wrong is not None:
        errors.append(f"{prefix}{STATE} {wrong}; the layer is unchanged")
        return DAMAGED
    return _fit(stored), due, counter


def _fit(packed):
    """A history of another length keeps the newest."""
    older = packed.shape[1] - 2
    if older == state.HISTORY:
        return packed
    fitted = packed.new_zeros(packed.shape[0], 2 + state.HISTORY)
    fitted[:, :2] = packed[:, :2]
    n = min(older, state.HISTORY)
    if n:
        fitted[:, 2 + state.HISTORY - n :] = packed[:, 2 + older - n :]
    return fitted


def load(layer, found, state_dict, prefix):
    """Takes over what `read` found; without it the weights count as replaced where they were loaded."""
    if found is not None:
        packed, due, counter = found
        if layer._slots is None:
            layer._take_slots()
        layer._replaced()
        if layer._slots is not None:
            layer._slots.unpack(packed)
            layer._slots.set_counter(counter)
            layer.__dict__["_due"] = due
        return
    if any(prefix + name in state_dict for name, _ in layer.named_parameters()):
        layer._replaced()


def assign(layer, name, value):
    """Takes over one of the two tensors by itself."""
    errors, counter = [], 0 if layer._slots is None else int(layer._slots.counter())
    head = torch.tensor([VERSION, layer._slots_wanted, layer._due, counter], dtype=torch.int32, device="cpu")
    stored = {STATE: packed(layer), HEADER: head, name: value}
    found = read(layer, stored, "", errors)
    if errors:
        raise ValueError(errors[0])
    if found is not None:
        load(layer, found, stored, "")


def _nvidia(layer, extra):
    """State that NVIDIA's library stored, where it can be read without running code."""
    if extra is None:
        return None
    try:
        if isinstance(extra, io.BytesIO):
            extra.seek(0)
            stored = torch.load(extra, map_location="cpu", weights_only=True)
        elif isinstance(extra, torch.Tensor):
            if extra.numel() == 0:
                return None
            raw = bytes(extra.detach().cpu().contiguous().view(torch.uint8).tolist())
            stored = torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True)
        elif isinstance(extra, dict):
            stored = extra
        else:
            stored = None
        if not stored:
            raise ValueError("nothing there")
        forward, backward = ([0, 1], [0]) if layer._slots_wanted == 3 else ([0, 1, 3, 4], [2, 0])
        columns = []
        for which, picked in (("fwd", forward), ("bwd", backward)):
            scale, history = stored[f"scale_{which}"].float(), stored[f"amax_history_{which}"].float()
            # Row 0 is the newest, then from the oldest on.
            live, older = history[0], history[1:]
            for i in picked:
                columns.append(torch.cat([scale[i : i + 1], live[i : i + 1], older[:, i]]))
        packed = _fit(torch.stack(columns))
        if not bool(torch.isfinite(packed).all() & (packed[:, 0] > 0).all() & (packed >= 0).all()):
            raise ValueError("values out of range")
        return packed, False, 0
    except Exception:
        _warn("_extra_state in the checkpoint holds no scaling state that can be read safely: it is ignored, and scales start anew")
        return None
