"""FusedAdam: AdamW over all parameters of a group in one launch, with the arguments that users of NVIDIA's libraries know."""

import torch

from .. import ops
from .plans import NUMBERS
from .state import capturing

_MOMENTS = ("exp_avg", "exp_avg_sq")


class _Plan:
    """A list of tensors that step together, and what it was made for."""

    __slots__ = ("tensors", "step", "gradients", "layouts")


def _dense(t):
    """Whether a tensor is one stretch of memory, in whatever order of dimensions."""
    return t.is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense.default(t)


def _flat(t):
    """The memory of a dense tensor as a vector; a matrix stays one, for its FP8 copy."""
    return t if t.is_contiguous() else t.as_strided((t.numel(),), (1,))


class FusedAdam(torch.optim.Optimizer):
    """Adam and AdamW; each step is one launch per parameter group, on the CPU and on CUDA, with the same bits on both.

    Arguments are those of FusedAdam in NVIDIA's libraries: adam_w_mode: the decay acts on the weights (AdamW); False: on the gradients
    (L2). master_weights: parameters of 16 bits get a float32 master (state "master_param"), of which they are the rounded copies.
    capturable: the learning rate becomes a tensor on the device, which schedulers fill in place, so that a captured step follows
    them; steps are always counted on the device. set_grad_none: what zero_grad does unless told otherwise. amsgrad is not supported.
    exp_avg_dtype, exp_avg_sq_dtype: float32 or bfloat16, both the same. fp8_copies: a mapping from parameters to nvte.Fp8Tensor that
    each step fills with the new weights, row-wise, transposed or both, as cast_to_fp8 would.

    State has the names of torch.optim.AdamW (exp_avg, exp_avg_sq, step) and loads from it. Works with torch.amp.GradScaler without a
    synchronisation: the gradients are unscaled in the step, and a step with an infinite one is skipped on the device, which counts no step.
    """

    def __init__(
        self, params, lr=1e-3, bias_correction=True, betas=(0.9, 0.999), eps=1e-8, adam_w_mode=True, weight_decay=0.0, amsgrad=False,
        *, set_grad_none=True, capturable=False, master_weights=False, exp_avg_dtype=torch.float32, exp_avg_sq_dtype=torch.float32,
        fp8_copies=None,
    ):  # fmt: skip
        if amsgrad:
            raise NotImplementedError("amsgrad = True: FusedAdam has no AMSGrad")
        if exp_avg_dtype != exp_avg_sq_dtype or exp_avg_dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(f"exp_avg_dtype = {exp_avg_dtype}, exp_avg_sq_dtype = {exp_avg_sq_dtype}: float32 or bfloat16, both the same")
        for name, value, good in (
            ("lr", lr, lambda v: v >= 0),
            ("betas", betas[0], lambda v: 0 <= v < 1),
            ("betas", betas[1], lambda v: 0 <= v < 1),
            ("eps", eps, lambda v: v >= 0),
            ("weight_decay", weight_decay, lambda v: v >= 0),
        ):
            if not good(value):
                raise ValueError(f"{name} = {value}: outside its range")
        self.adam_w_mode, self.capturable, self.master_weights = bool(adam_w_mode), bool(capturable), bool(master_weights)
        self.set_grad_none, self.moment_dtype = set_grad_none, exp_avg_dtype
        self.fp8_copies = {} if fp8_copies is None else dict(fp8_copies)
        self._plans, self._captured = {}, []
        # GradScaler then leaves unscaling and skipping to the step: it sets grad_scale and found_inf.
        self._step_supports_amp_scaling = True
        defaults = dict(
            lr=lr, bias_correction=bool(bias_correction), betas=tuple(betas), eps=eps, weight_decay=weight_decay, capturable=bool(capturable)
        )
        super().__init__(params, defaults)

    def add_param_group(self, param_group):
        super().add_param_group(param_group)
        self._plans.clear()
        if self.capturable:
            group = self.param_groups[-1]
            if group["params"]:
                group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32).to(group["params"][0].device)

    def zero_grad(self, set_to_none=None):
        """As torch's; without an argument the constructor's set_grad_none holds."""
        super().zero_grad(set_to_none=self.set_grad_none if set_to_none is None else set_to_none)

    # ------------------------------------------------------------------------------------------------------------------- state

    def _fresh(self, p, step):
        """The state of a parameter before its first step."""
        if p.dtype not in NUMBERS:
            raise TypeError(f"FusedAdam: parameters are float32, float16 or bfloat16, not {p.dtype}")
        if not _dense(p):
            raise ValueError(f"FusedAdam: a parameter of strides {p.stride()} is not one stretch of memory")
        state = self.state[p]
        state["step"] = step
        for name in _MOMENTS:
            state[name] = torch.zeros_like(p, dtype=self.moment_dtype, memory_format=torch.preserve_format)
        return state

    def _state_of(self, p, steps):
        """The state of a parameter with a gradient, made where it is missing. steps: new counters by device."""
        state = self.state[p]
        if "step" not in state:
            if capturing(p.get_device()):
                raise RuntimeError("FusedAdam: run one step before the capture: it makes the moments, which a replay must not do again")
            step = steps.get(p.device)
            if step is None:
                step = steps[p.device] = torch.zeros((), dtype=torch.float32, device=p.device)
            state = self._fresh(p, step)
        if self.master_weights and p.dtype != torch.float32 and "master_param" not in state:
            state["master_param"] = p.detach().to(torch.float32, memory_format=torch.preserve_format)
        return state

    def state_dict(self):
        """As torch's; every parameter has a step counter of its own there, as torch's optimizers expect."""
        made = super().state_dict()
        sharing = {}
        for i, state in made["state"].items():
            if "step" in state:
                sharing.setdefault(id(state["step"]), (state["step"], []))[1].append(i)
        made["state"] = {i: dict(state) for i, state in made["state"].items()}
        for step, ids in sharing.values():
            for i, own in zip(ids, step.repeat(len(ids)).unbind()):
                made["state"][i]["step"] = own
        return made

    def load_state_dict(self, state_dict):
        """Also of torch.optim.Adam and AdamW. Moments and masters keep their precision whatever the parameters' type is."""
        super().load_state_dict(state_dict)
        self._plans.clear()
        # torch casts moments to the parameter's type: take them from where they came.
        saved = state_dict["state"]
        ids = [i for group in state_dict["param_groups"] for i in group["params"]]
        mine = [p for group in self.param_groups for p in group["params"]]
        for i, p in zip(ids, mine):
            if i not in saved:
                continue
            state, old = self.state[p], saved[i]
            for name, dtype in (*((n, self.moment_dtype) for n in _MOMENTS), ("master_param", torch.float32)):
                if torch.is_tensor(old.get(name)):
                    made = torch.empty_like(p, dtype=dtype, memory_format=torch.preserve_format)
                    state[name] = made.copy_(old[name])
        for group in self.param_groups:
            for name in ("bias_correction", "capturable"):
                group.setdefault(name, self.defaults[name])
            if self.capturable and group["params"]:
                group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32).to(group["params"][0].device)
        self._share_steps(mine)

    def _share_steps(self, parameters):
        """Equal step counts become one counter per device."""
        held = [(p, self.state[p]["step"]) for p in parameters if p in self.state and "step" in self.state[p]]
        counts = torch.stack([torch.as_tensor(s, dtype=torch.float32, device="cpu").reshape(()) for _, s in held]).tolist() if held else []
        shared = {}
        for (p, _), count in zip(held, counts):
            key = (p.device, count)
            if key not in shared:
                shared[key] = torch.full((), count, dtype=torch.float32, device=p.device)
            self.state[p]["step"] = shared[key]

    def __setstate__(self, state):
        super().__setstate__(state)
        self._plans, self._captured = {}, []

    def __getstate__(self):
        state = super().__getstate__()
        # What pickling a plain torch optimizer keeps, and what this one was made with.
        for name in ("adam_w_mode", "capturable", "master_weights", "set_grad_none", "moment_dtype", "_step_supports_amp_scaling"):
            state[name] = getattr(self, name)
        state["fp8_copies"] = {}
        return state

    # -------------------------------------------------------------------------------------------------------------------- step

    @torch.no_grad()
    def step(self, closure=None):
        """One step for every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        scale, found = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        for number, group in enumerate(self.param_groups):
            self._step_group(number, group, scale, found)
        return loss

    def _step_group(self, number, group, scale, found):
        live = [p for p in group["params"] if p.grad is not None]
        if not live:
            return
        gradients = [p.grad for p in live]
        kinds = [(g.dtype, g.stride()) for g in gradients]
        # The frequent case: the parameters of last time, with the same state.
        plans = self._plans.get(number)
        state = self.state
        if (
            plans is None
            or plans[0] != [p.data_ptr() for p in live]
            or plans[1] != kinds
            or _replaced(state, live, plans[2])
            or capturing(live[0].get_device())
        ):
            plans = self._plan(live, gradients, kinds)
            if capturing(live[0].get_device()):
                # Its tables are written by the graph: nobody else may count on them, and they must live as long.
                self._captured.append(plans)
            else:
                self._plans[number] = plans
        betas, lr = group["betas"], group["lr"]
        for plan, where in plans[3]:
            part = gradients if where is None else [gradients[i] for i in where]
            part = [g if s is None else _as_laid_out(g, s) for g, s in zip(part, plan.layouts)] if plan.layouts else part
            at = [g.data_ptr() for g in part]
            if at != plan.gradients:
                # Tensors without elements have no address.
                plan.tensors.set_gradients(at)
                plan.gradients = at
            device = plan.step.device
            rate = lr
            if torch.is_tensor(lr):
                rate = lr.to(device=device, dtype=torch.float32) if lr.device.type != "cpu" or device.type == "cpu" else float(lr)
            ops.adamw(
                plan.tensors, plan.step, lr=rate, betas=betas, eps=group["eps"], weight_decay=group["weight_decay"],
                decoupled=self.adam_w_mode, bias_correction=group["bias_correction"],
                found_inf=_scalar(found, device), grad_scale=_scalar(scale, device),
            )  # fmt: skip

    def _plan(self, live, gradients, kinds):
        """(addresses of the weights, kinds of gradients, moments and steps, [(plan, which of them or None for all)])."""
        steps, buckets = {}, {}
        for i, (p, g) in enumerate(zip(live, gradients)):
            if g.is_sparse:
                raise RuntimeError("FusedAdam: sparse gradients are not supported")
            if g.dtype not in NUMBERS:
                raise TypeError(f"FusedAdam: gradients are float32, float16 or bfloat16, not {g.dtype}")
            state = self._state_of(p, steps)
            buckets.setdefault(id(state["step"]), []).append(i)
        made = []
        for where in buckets.values():
            step = self.state[live[where[0]]]["step"]
            mine = {id(live[i]) for i in where}
            if any(s.get("step") is step and id(p) not in mine for p, s in self.state.items()):
                # Others that share the counter do not step now.
                step = step.clone()
                for i in where:
                    self.state[live[i]]["step"] = step
            made.append((self._list([live[i] for i in where], [gradients[i] for i in where], step), None if len(buckets) == 1 else where))
        held = [(s["exp_avg"], s["exp_avg_sq"], s["step"]) for s in (self.state[p] for p in live)]
        return [p.data_ptr() for p in live], kinds, held, made

    def _list(self, parameters, gradients, step):
        states = [self.state[p] for p in parameters]
        plan = _Plan()
        plan.step = step
        # Gradients that do not lie as their parameter does are copied in every step.
        strides = [None if g.stride() == p.stride() or g.is_contiguous() and p.is_contiguous() else p for p, g in zip(parameters, gradients)]
        plan.layouts = strides if any(s is not None for s in strides) else None
        laid_out = [g if s is None else _as_laid_out(g, s) for g, s in zip(gradients, strides)]
        plan.gradients = [g.data_ptr() for g in laid_out]
        masters = [s.get("master_param") if p.dtype != torch.float32 else None for p, s in zip(parameters, states)]
        copies = [self.fp8_copies.get(p) for p in parameters]
        plan.tensors = ops.adamw_list(
            [_flat(p.detach()) for p in parameters],
            [_flat(g.detach()) for g in laid_out],
            *([_flat(s[name]) for s in states] for name in _MOMENTS),
            [None if m is None else _flat(m) for m in masters] if any(m is not None for m in masters) else None,
            copies if any(c is not None for c in copies) else None,
        )
        # Gradients go with zero_grad.
        plan.tensors.gradients = None
        return plan


def _replaced(state, parameters, held):
    """Whether a parameter's moments or step are other tensors than those of a plan: others may write to the state."""
    for p, (m, v, step) in zip(parameters, held):
        s = state[p]
        if s.get("exp_avg") is not m or s.get("exp_avg_sq") is not v or s.get("step") is not step:
            return True
    return False


def _as_laid_out(g, p):
    """The gradient in the parameter's order of elements."""
    return torch.empty_like(p, dtype=g.dtype, memory_format=torch.preserve_format).copy_(g)


def _scalar(t, device):
    """A scalar of torch's GradScaler as one float32 on the device."""
    if t is None:
        return None
    return t if t.device == device and t.dtype == torch.float32 else t.to(device=device, dtype=torch.float32)
