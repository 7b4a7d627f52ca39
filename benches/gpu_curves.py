"""Loss curves for benches/gpu_layers.py: the same start and the same data in bf16 and FP8, 500 steps of a residual MLP and of an encoder.

Weights are f32 under torch.autocast(bf16), as users train. Data are drawn anew in each run and never twice within one, from a source
with a known floor, so that losses of equal quality come out equal: the MLP learns the classes that a random network gives with noise,
the encoder fills in masked symbols of a random Markov chain. Compared is the mean loss of the last 50 steps.
"""

import gc
import time

import torch
import torch.nn.functional as F
from torch import nn

from nvte import recipe

HIDDEN, FFN, CLASSES, LAST = 256, 1024, 32, 50
SYMBOLS, LENGTH, HEADS, MASK_SHARE = 48, 64, 4, 0.2


class NormLinear(nn.Module):
    """torch's parts under the names of nvte.torch.LayerNormLinear."""

    def __init__(self, hidden, out):
        super().__init__()
        self.layer_norm_weight, self.layer_norm_bias = nn.Parameter(torch.ones(hidden)), nn.Parameter(torch.zeros(hidden))
        self.weight, self.bias = nn.Parameter(torch.randn(out, hidden) * hidden**-0.5), nn.Parameter(torch.zeros(out))

    def forward(self, x):
        return F.linear(F.layer_norm(x, x.shape[-1:], self.layer_norm_weight, self.layer_norm_bias), self.weight, self.bias)


class NormMLP(nn.Module):
    """torch's parts under the names of nvte.torch.LayerNormMLP."""

    def __init__(self, hidden, ffn):
        super().__init__()
        self.layer_norm_weight, self.layer_norm_bias = nn.Parameter(torch.ones(hidden)), nn.Parameter(torch.zeros(hidden))
        self.fc1_weight, self.fc1_bias = nn.Parameter(torch.randn(ffn, hidden) * hidden**-0.5), nn.Parameter(torch.zeros(ffn))
        self.fc2_weight, self.fc2_bias = nn.Parameter(torch.randn(hidden, ffn) * ffn**-0.5), nn.Parameter(torch.zeros(hidden))

    def forward(self, x):
        x = F.layer_norm(x, x.shape[-1:], self.layer_norm_weight, self.layer_norm_bias)
        return F.linear(F.gelu(F.linear(x, self.fc1_weight, self.fc1_bias), approximate="tanh"), self.fc2_weight, self.fc2_bias)


class ResidualMLP(nn.Module):
    """Blocks of x + MLP(norm(x)), then classes."""

    def __init__(self, mlp, norm_linear, linear, hidden=HIDDEN, ffn=FFN, blocks=4):
        super().__init__()
        self.blocks = nn.ModuleList(mlp(hidden, ffn) for _ in range(blocks))
        self.head = norm_linear(hidden, CLASSES)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class Attention(nn.Module):
    """Self-attention with the norm before it."""

    def __init__(self, norm_linear, linear, hidden):
        super().__init__()
        self.qkv, self.out = norm_linear(hidden, 3 * hidden), linear(hidden, hidden)

    def forward(self, x):
        batch, length, hidden = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, hidden // HEADS).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, hidden))


class Encoder(nn.Module):
    """Symbols in, symbols out."""

    def __init__(self, mlp, norm_linear, linear, hidden=HIDDEN, ffn=FFN, blocks=4):
        super().__init__()
        self.symbols, self.places = nn.Embedding(SYMBOLS + 1, hidden), nn.Embedding(LENGTH, hidden)
        self.attention = nn.ModuleList(Attention(norm_linear, linear, hidden) for _ in range(blocks))
        self.mlps = nn.ModuleList(mlp(hidden, ffn) for _ in range(blocks))
        self.head = norm_linear(hidden, SYMBOLS)

    def forward(self, ids):
        x = self.symbols(ids) + self.places.weight
        for attention, mlp in zip(self.attention, self.mlps):
            x = x + attention(x)
            x = x + mlp(x)
        return self.head(x)


def classes_of_noise(device, steps, batch=1024):
    """A function step -> (inputs, classes): drawn from the logits of a random network."""
    make = lambda *s: torch.randn(*s, device=device) / s[0] ** 0.5  # noqa: E731
    first, second = make(HIDDEN, 64), make(64, CLASSES) * 8

    def batch_of(step):
        generator = torch.Generator(device).manual_seed(seed + step)
        x = torch.randn(batch, HIDDEN, device=device, generator=generator)
        logits = torch.relu(x @ first) @ second
        noise = torch.rand(batch, CLASSES, device=device, generator=generator)
        # The largest of logits with Gumbel noise is a draw from their softmax.
        return x, (logits - (-noise.clamp_min(1e-20).log()).log()).argmax(1)

    seed = time.time_ns() % (1 << 40)
    return batch_of


def masked_chains(device, steps, batch=64):
    """A function step -> (symbols with masks, symbols, where to look): chains in which a symbol has few likely followers."""
    follow = torch.softmax(torch.randn(SYMBOLS, SYMBOLS, device=device) * 2.5, 1)
    now = torch.randint(SYMBOLS, (steps * batch,), device=device)
    chain = [now]
    for _ in range(LENGTH - 1):
        now = torch.multinomial(follow[now], 1).squeeze(1)
        chain.append(now)
    chain = torch.stack(chain, 1).view(steps, batch, LENGTH)
    masked = torch.rand(chain.shape, device=device) < MASK_SHARE
    seen = chain.masked_fill(masked, SYMBOLS)
    # Where nothing is masked the target is ignored.
    wanted = chain.masked_fill(~masked, -100)
    return lambda step: (seen[step], wanted[step])


def train(run, net, batch_of, steps, around):
    """The losses of all steps, on the device, and seconds a step."""
    parameters = list(net.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01, fused=run.device.type == "cuda")
    losses = torch.empty(steps, device=run.device)
    begin = time.perf_counter()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, (step + 1) / 50, 1.05 - step / steps)
        x, wanted = batch_of(step)
        with torch.autocast(run.device.type, dtype=torch.bfloat16), around():
            y = net(x)
        loss = F.cross_entropy(y.float().flatten(0, -2), wanted.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses[step] = loss.detach()
    found = losses.tolist()
    return found, (time.perf_counter() - begin) / steps


def section_curves(run, modules, held):
    te = modules()
    steps = 60 if run.options.quick else 500
    parts = {"torch": (NormMLP, NormLinear, nn.Linear), "nvte": (te.LayerNormMLP, te.LayerNormLinear, te.Linear)}
    modes = {
        "torch bf16": ("torch", None),
        "nvte bf16": ("nvte", None),
        "delayed": ("nvte", recipe.DelayedScaling()),
        "current": ("nvte", recipe.Float8CurrentScaling()),
    }

    def curves(name, kind, source):
        batch_of = source(run.device, steps)
        start = {k: v.clone() for k, v in kind(*parts["torch"]).named_parameters()}
        finals = {}
        for mode, (whose, scaling) in modes.items():

            def measured():
                with torch.device(run.device):
                    net = kind(*parts[whose])
                found = dict(net.named_parameters())
                if found.keys() != start.keys():
                    raise RuntimeError(f"parameters differ: {sorted(found.keys() ^ start.keys())}")
                with torch.no_grad():
                    for key, value in start.items():
                        found[key].copy_(value)
                losses, spent = train(run, net, batch_of, steps, lambda: te.autocast(enabled=scaling is not None, recipe=scaling))
                final = sum(losses[-LAST:]) / LAST
                finals[mode] = final
                fields = {"first": losses[0], "final": final, "ms_a_step": spent * 1e3, "losses": losses}
                if mode == "torch bf16":
                    run.put(f"{name}, {mode}", **fields)
                else:
                    apart = abs(final / finals["torch bf16"] - 1)
                    held(run, f"{name}, {mode}", apart, 0.01, **fields, apart=apart)

            run.row(f"{name}, {mode}", measured)
            gc.collect()

    run.row("residual MLP", lambda: curves("residual MLP", ResidualMLP, classes_of_noise))
    run.row("encoder", lambda: curves("encoder", Encoder, masked_chains))
