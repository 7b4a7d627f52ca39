"""Scaling state: where the slots of all layers lie, and the update that ends a period.

A device holds its slots in chunks of 1,024 that never move or shrink. Each layer takes as many free consecutive slots as it has casts and
keeps their addresses; chunks are read and written by the library, whole, in one launch. What a chunk holds per slot is described in
`nvte_scaling_update_args_t`.
"""

import ctypes
import threading
import weakref

import torch

from .. import _abi
from .._library import check, lib, packer
from ..context import shared

#: Whether there are ranks to agree with.
distributed = torch.distributed.is_initialized if torch.distributed.is_available() else lambda: False
#: Slots of a chunk.
SLOTS = 1024
#: Older amaxes kept per slot; a window is at most that and the live one.
HISTORY = 1024
#: Chunks whose live amaxes lie one after the other, so that ranks are reduced in one call.
CHUNKS_PER_BANK = 64
#: A region whose backward has not started after that many later ones is given up.
PATIENCE = 64
LARGEST = {"E4M3": (448.0, 448.0), "HYBRID": (448.0, 57344.0)}

_pack_update = packer(
    _abi.nvte_scaling_update_args_t,
    "algo slots history_len live scale history slot_stride step_stride format_max nonfinite scale_inv counter interval margin epsilon "
    "power_of_two",
)
_ALGORITHMS = {"max": _abi.NVTE_AMAX_MAX, "most_recent": _abi.NVTE_AMAX_MOST_RECENT}

_lock = threading.RLock()
devices = {}
#: Slots by the address of their scales, as operators of compiled code find them.
by_address = weakref.WeakValueDictionary()


def device_of(index):
    """The slots of a device; -1 is the CPU."""
    global devices
    found = devices.get(index)
    if found is None:
        with _lock:
            found = devices.get(index)
            if found is None:
                found = Device(index)
                # A new one: regions of other threads may be going through the old one.
                devices = {**devices, index: found}
    return found


def index_of(device):
    """Number of a torch.device; -1 is the CPU, None one without slots (meta)."""
    if device.type == "cpu":
        return -1
    if device.type != "cuda":
        return None
    return torch.cuda.current_device() if device.index is None else device.index


def capturing(index):
    """Whether the device's current stream records a CUDA graph."""
    return index >= 0 and torch.cuda.is_current_stream_capturing()


class Device:
    """All slots of one device, and the regions that wait for their backward on it."""

    def __init__(self, index):
        self.index = index
        self.where = torch.device("cpu") if index < 0 else torch.device("cuda", index)
        self.chunks = []
        self.banks = []
        self.tokens = []
        self.stream = torch._C._cuda_getCurrentRawStream if index >= 0 else None
        self.context = None
        #: What an update does: (chunks with slots in use, arguments of the library's updates, (run, chunk) with functions of their own).
        #: None: to be found anew.
        self.work = None

    def take(self, k):
        """k free consecutive slots with their initial values."""
        with _lock, torch.inference_mode(False), torch.no_grad():
            for chunk in self.chunks:
                start = chunk.used.find(bytes(k))
                if start >= 0:
                    break
            else:
                chunk, start = self.grow(), 0
            chunk.used[start : start + k] = b"\1" * k
            slots = Slots(self, chunk, start, k)
            if any(chunk.stale[start : start + k]):
                slots.clear()
            chunk.owners[start] = weakref.ref(slots)
            weakref.finalize(slots, chunk.free, start, k)
            return slots

    def grow(self):
        """One more chunk."""
        number = len(self.chunks)
        if number % CHUNKS_PER_BANK == 0:
            self.banks.append(torch.zeros(CHUNKS_PER_BANK * SLOTS, dtype=torch.float32, device=self.where))
        first = number % CHUNKS_PER_BANK * SLOTS
        chunk = Chunk(self, self.banks[-1], first)
        self.chunks.append(chunk)
        if self.index >= 0 and not capturing(self.index):
            # Other streams use it from now on.
            torch.cuda.current_stream(self.index).synchronize()
        return chunk

    def watch(self, token):
        """A region has run a layer here: its backward is waited for."""
        if self.index not in token.devices:
            token.devices.add(self.index)
            self.tokens.append(weakref.ref(token))

    def waits(self, number):
        """Whether a region older than number `number` still waits for its backward."""
        tokens = self.tokens
        if not tokens:
            return False
        if len(tokens) == 1:
            token = tokens[0]()
            if token is None or token.started:
                # The frequent case; another thread may be adding one behind it.
                del tokens[0]
                return bool(tokens)
        alive, given_up = [], 0
        for reference in list(self.tokens):
            token = reference()
            if token is None or token.started:
                continue
            if number - token.number > PATIENCE:
                token.started = True
                given_up += 1
                continue
            alive.append(reference)
        self.tokens = alive
        if given_up:
            _warn_given_up()
        return bool(alive)

    def update(self):
        """Ends the period of all slots: at most one reduction over the ranks for each group, one launch for each chunk."""
        chunks, updates, by_functions = self.work or self.plan()
        if not chunks:
            return
        if distributed():
            self.reduce(chunks)
        stream = 0 if self.stream is None else self.stream(self.index)
        for arguments in updates:
            status = lib.nvte_scaling_update(self.handle(), arguments, stream)
            if status:
                check(status)
        for run, chunk in by_functions:
            run.by_functions(chunk)

    def plan(self):
        """Finds `work`."""
        with _lock:
            for chunk in self.chunks:
                if chunk.dirty:
                    chunk.plan()
            chunks = [c for c in self.chunks if c.runs]
            runs = [(r, c) for c in chunks for r in c.runs]
            work = chunks, [r.arguments for r, _ in runs if r.arguments is not None], [r for r in runs if r[0].arguments is None]
            self.work = work
            if any(c.dirty for c in self.chunks):
                # A layer was freed meanwhile: it may have found nothing to take back yet.
                self.work = None
            return work

    def handle(self):
        """The library's context of this device."""
        if self.context is None:
            self.context = shared(self.index)
        return self.context.handle

    def reduce(self, chunks):
        """The live amaxes become the largest of all ranks. As int32: NaN stays on top, whatever the order of the ranks."""
        groups = {}
        for chunk in chunks:
            for run in chunk.runs:
                for group, start, count in run.groups:
                    groups.setdefault(group, []).append(chunk.live[start : start + count])
        if len(groups) == 1 and len(self.banks) == 1:
            # Chunks lie one after the other.
            groups = {group: [self.banks[0][: len(self.chunks) * SLOTS]] for group in groups}
        _reduce(groups)


def _reduce(groups):
    """{group: parts of live amaxes}: each group's become the largest of its ranks."""
    for group, parts in groups.items():
        if group is NO_GROUP or torch.distributed.get_world_size(group.group) <= 1:
            continue
        bits = (parts[0] if len(parts) == 1 else torch.cat(parts)).view(torch.int32)
        torch.distributed.all_reduce(bits, torch.distributed.ReduceOp.MAX, group=group.group)
        if len(parts) > 1:
            for part, new in zip(parts, bits.view(torch.float32).split([p.numel() for p in parts])):
                part.copy_(new)


def update_of(all_slots):
    """Ends the period of these slots alone."""
    used = [s for s in all_slots if s is not None and s.spec is not None]
    if distributed():
        groups = {}
        for slots in used:
            groups.setdefault((slots.group, slots.index), []).append(slots.live)
        for (group, _), parts in groups.items():
            _reduce({group: parts})
    for slots in used:
        slots.update()


class Group:
    """A process group by identity."""

    def __init__(self, group):
        self.group = group


#: The amaxes of these slots are reduced over all ranks, or not at all.
WORLD, NO_GROUP = Group(None), Group(None)
_groups = {}


def group_of(group, reduces):
    """What stands for a process group of torch (None: all ranks) in this module."""
    if not reduces:
        return NO_GROUP
    if group is None:
        return WORLD
    with _lock:
        found = _groups.get(id(group))
        if found is None:
            found = _groups[id(group)] = Group(group)
        return found


_warned = False


def _warn_given_up():
    global _warned
    if not _warned:
        _warned = True
        import warnings

        warnings.warn(
            f"the backward pass of an autocast region has not run within {PATIENCE} later regions: FP8 scales no longer wait for it. "
            "Run such passes under torch.no_grad(), or drop their results.",
            stacklevel=4,
        )


class Run:
    """Consecutive slots of a chunk that one recipe updates."""

    __slots__ = ("start", "count", "spec", "arguments", "groups")

    def __init__(self, start, count, spec, arguments, groups):
        self.start, self.count, self.spec, self.arguments, self.groups = start, count, spec, arguments, groups

    def by_functions(self, chunk):
        """The update of layers whose recipe brings functions of its own."""
        for start in range(self.start, self.start + self.count):
            slots = chunk.owners.get(start)
            slots = slots() if slots is not None else None
            if slots is not None:
                slots.update_by_functions()


class Chunk:
    """1,024 slots."""

    def __init__(self, device, bank, first):
        where = device.where
        self.device = device
        self.bank, self.first = bank, first
        self.live = bank[first : first + SLOTS]
        # The types are the library's, whatever torch's default one is when the first layer is made.
        kind = dict(dtype=torch.float32, device=where)
        self.scale = torch.ones(SLOTS, **kind)
        self.history = torch.zeros(SLOTS, HISTORY, **kind)
        self.format_max = torch.full((SLOTS,), 448.0, **kind)
        self.nonfinite = torch.zeros(SLOTS, dtype=torch.int32, device=where)
        self.counters = torch.zeros(SLOTS, dtype=torch.int32, device=where)
        self.live_at, self.scale_at, self.history_at = self.live.data_ptr(), self.scale.data_ptr(), self.history.data_ptr()
        self.format_max_at, self.nonfinite_at = self.format_max.data_ptr(), self.nonfinite.data_ptr()
        self.counters_at = self.counters.data_ptr()
        self.used, self.stale = bytearray(SLOTS), bytearray(SLOTS)
        self.owners = {}
        self.specs = [None] * SLOTS
        self.group = [None] * SLOTS
        self.runs, self.dirty = [], False

    def free(self, start, k):
        """Gives slots back; their values are reset when they are taken again."""
        self.used[start : start + k] = bytes(k)
        self.stale[start : start + k] = b"\1" * k
        self.specs[start : start + k] = [None] * k
        self.group[start : start + k] = [None] * k
        self.owners.pop(start, None)
        self.dirty, self.device.work = True, None

    def plan(self):
        """Groups the slots in use by recipe."""
        self.dirty = False
        old, spans = {r.start: r for r in self.runs}, []
        for slot, spec in enumerate(self.specs):
            if spec is None:
                continue
            if spans and spans[-1][2] is spec:
                # Free slots between lie still: nothing is recorded in them.
                spans[-1][1] = slot + 1 - spans[-1][0]
            else:
                spans.append([slot, 1, spec])
        runs = []
        for start, count, spec in spans:
            if spec.interval > 1 and start not in old:
                before = [r for r in self.runs if r.spec is spec and r.start < start + count and start < r.start + r.count]
                if before:
                    self.counters[start].copy_(self.counters[before[0].start])
            arguments = None if spec.functions else self.arguments(start, count, spec)
            runs.append(Run(start, count, spec, arguments, self.groups(start, count)))
        self.runs = runs

    def arguments(self, start, count, spec):
        """The update of some slots, as the library takes it."""
        window = spec.history_len
        return _pack_update(
            _ALGORITHMS[spec.algo],
            count,
            window,
            self.live_at + 4 * start,
            self.scale_at + 4 * start,
            self.history_at + 4 * (start * HISTORY + HISTORY - (window - 1)),
            HISTORY,
            1,
            self.format_max_at + 4 * start,
            self.nonfinite_at + 4 * start,
            0,
            self.counters_at + 4 * start,
            spec.interval,
            spec.margin,
            spec.epsilon,
            spec.power_of_two,
        )

    def groups(self, start, count):
        """(group, first slot, slots) of consecutive slots whose ranks are reduced together."""
        parts = []
        for slot in range(start, start + count):
            group = self.group[slot]
            if group is None:
                continue
            if parts and parts[-1][0] is group and parts[-1][1] + parts[-1][2] == slot:
                parts[-1][2] += 1
            else:
                parts.append([group, slot, 1])
        return parts


class Slots:
    """A layer's consecutive slots: x, w, dy; of an MLP x1, w1, x2, w2, dy2, dy1."""

    def __init__(self, device, chunk, start, k):
        self.device, self.index, self.chunk, self.start, self.k = device, device.index, chunk, start, k
        self.live_at, self.scale_at = chunk.live_at + 4 * start, chunk.scale_at + 4 * start
        self.spec = self.group = None
        # The layer, weakly.
        self.owner = None
        by_address[self.scale_at] = self
        # Values were loaded before any recipe was known: the period that they hold has not ended yet.
        self.loaded = False

    def part(self, whole):
        """This layer's part of an array of the chunk."""
        return whole[self.start : self.start + self.k]

    @property
    def live(self):
        """Amaxes recorded in this period."""
        return self.part(self.chunk.live)

    @property
    def scale(self):
        """Scales."""
        return self.part(self.chunk.scale)

    @property
    def history(self):
        """Older amaxes [k, 1024], newest last."""
        return self.part(self.chunk.history)

    @property
    def nonfinite(self):
        """Periods dropped because their amax was not finite."""
        return self.part(self.chunk.nonfinite)

    def clear(self):
        """Initial values."""
        with torch.inference_mode(False), torch.no_grad():
            self.live.zero_()
            self.scale.fill_(1.0)
            self.history.zero_()
            self.nonfinite.zero_()
            self.part(self.chunk.counters).zero_()
            self.set_format()

    def set_format(self):
        """Largest values of the formats of the recipe in use."""
        if self.spec is not None:
            forward, backward = LARGEST[self.spec.format]
            first = self.k * 2 // 3
            self.part(self.chunk.format_max)[:first].fill_(forward)
            self.part(self.chunk.format_max)[first:].fill_(backward)

    def assign(self, spec, group, trains=False):
        """From now on this recipe updates them. `trains`: for the first pass of a training region."""
        with _lock, torch.inference_mode(False), torch.no_grad():
            old, self.spec, self.group = self.spec, spec, group
            chunk, span = self.chunk, slice(self.start, self.start + self.k)
            chunk.specs[span] = [spec] * self.k
            chunk.group[span] = [group] * self.k
            chunk.dirty, chunk.device.work = True, None
            if old is None or old.format != spec.format:
                self.set_format()
            if old is not None and old.history_len < spec.history_len:
                # What lies beyond the shorter window was not kept up.
                self.history[:, : HISTORY - (old.history_len - 1)].zero_()
        if self.loaded:
            self.loaded = False
            if trains:
                # The region's entry could not do it.
                update_of([self])

    def pack(self):
        """Everything that a checkpoint keeps, f32 [k, 2 + 1024]: scale, live, history."""
        with torch.no_grad():
            return torch.cat([self.scale[:, None], self.live[:, None], self.history], 1)

    def unpack(self, packed):
        """Takes over what `pack` gave, in place."""
        self.loaded = self.spec is None
        with torch.inference_mode(False), torch.no_grad():
            self.scale.copy_(packed[:, 0])
            self.live.copy_(packed[:, 1])
            self.history.copy_(packed[:, 2:])

    def copy_to(self, index):
        """New slots with the same values on a device."""
        new = device_of(index).take(self.k)
        if self.spec is not None:
            new.assign(self.spec, self.group)
        new.unpack(self.pack())
        with torch.inference_mode(False), torch.no_grad():
            new.nonfinite.copy_(self.nonfinite)
            new.part(new.chunk.counters).copy_(self.counter().expand(self.k))
        return new

    def counter(self):
        """Updates since scales last changed, one element."""
        chunk = self.chunk
        for run in chunk.runs:
            if run.start <= self.start < run.start + run.count:
                return chunk.counters[run.start : run.start + 1]
        return chunk.counters[self.start : self.start + 1]

    def set_counter(self, value):
        """Sets that number."""
        with torch.inference_mode(False), torch.no_grad():
            self.counter().fill_(value)
            self.part(self.chunk.counters).fill_(value)

    def update(self):
        """Ends the period of these slots; ranks have been reduced."""
        if self.chunk.dirty:
            self.chunk.plan()
        if self.spec.functions:
            self.update_by_functions()
            return
        arguments = self.chunk.arguments(self.start, self.k, self.spec)
        stream = 0 if self.device.stream is None else self.device.stream(self.index)
        check(lib.nvte_scaling_update(self.device.handle(), arguments, stream))

    def update_by_functions(self):
        """The update with the recipe's own functions, as torch operations."""
        spec = self.spec
        if capturing(self.index):
            raise RuntimeError("a recipe with functions of its own (amax_compute_algo, scaling_factor_compute_algo) cannot be captured")
        with torch.inference_mode(False), torch.no_grad():
            live, older = self.live, self.history[:, HISTORY - (spec.history_len - 1) :]
            recorded, finite = live != 0, torch.isfinite(live)
            taken = recorded & finite
            # The newest first, as users of NVIDIA's library write their functions.
            window = torch.cat([live[None], older.t().flip(0)])
            largest = self.part(self.chunk.format_max)
            if callable(spec.algo):
                amax = self._given("amax_compute_algo", spec.algo(window.clone()))
            else:
                amax = window[0] if spec.algo == "most_recent" else window.amax(0)
            if spec.scaling_algo is not None:
                found = spec.scaling_algo(amax, self.scale.clone(), largest.clone(), spec.recipe)
                scale = self._given("scaling_factor_compute_algo", found)
            else:
                scale = scale_from_amax(amax, largest, spec, self.scale)
            good = torch.isfinite(scale) & (scale > 0)
            counter = self.part(self.chunk.counters)
            counter.add_(1)
            due = counter >= spec.interval
            counter.masked_fill_(due, 0)
            self.scale.copy_(torch.where(taken & good & due, scale, self.scale))
            if spec.history_len > 1:
                rolled = torch.cat([older[:, 1:], live[:, None]], 1)
                older.copy_(torch.where(taken[:, None], rolled, older))
            self.nonfinite.add_((recorded & ~finite).to(torch.int32))
            live.zero_()

    def _given(self, name, value):
        """What a recipe's function gave, as f32 [k]."""
        if not isinstance(value, torch.Tensor) or value.shape != (self.k,):
            what = f"a tensor {list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
            raise ValueError(f"{name}: returned {what}, and must return a tensor [{self.k}], a number for each slot of the layer")
        return value.to(device=self.scale.device, dtype=torch.float32)

    def __deepcopy__(self, memo):
        return memo.setdefault(id(self), self.copy_to(self.index))

    def __reduce__(self):
        # Not as tensors: sent to another process, a view takes the chunk's memory along, and a temporary one is gone when it is to start.
        packed = bytes(self.pack().cpu().view(torch.uint8).flatten().tolist())
        return _rebuild, (self.index, self.k, packed, self.nonfinite.tolist(), int(self.counter()))


def _rebuild(index, k, packed, nonfinite, counter):
    if index >= 0 and index >= torch.cuda.device_count():
        index = -1
    slots = device_of(index).take(k)
    slots.unpack(torch.frombuffer(bytearray(packed), dtype=torch.float32).view(k, -1))
    slots.set_counter(counter)
    slots.nonfinite.copy_(torch.tensor(nonfinite, dtype=torch.int32, device="cpu"))
    return slots


def scale_from_amax(amax, largest, spec, previous):
    """The rule of the update in torch: the scale for an amax."""
    a = torch.where(torch.isnan(amax), amax, amax.clamp(min=spec.epsilon))
    s = (largest * 2.0**-spec.margin) / a
    s = s.clamp(max=torch.finfo(torch.float32).max)
    if spec.power_of_two:
        s = (s.view(torch.int32) & 0x7F800000).view(torch.float32)
    return torch.where(torch.isfinite(a) & (a > 0), s, previous)


def struct(kind, **values):
    """A C struct with its size set."""
    return kind(struct_size=ctypes.sizeof(kind), **values)
