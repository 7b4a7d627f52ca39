"""Masked-language-model training of a HuggingFace BERT: as it comes, and with nvte's modules in place of nn.Linear and nn.LayerNorm.

    python examples/pytorch/bert.py [--fp8 none|delayed|current] [--size tiny|large] [--device cpu|cuda] [--steps 100]
                                    [--text FILE] [--batch N] [--length N] [--seed N] [--only nvte|plain]

Both models start from the same random weights (nothing is downloaded), see the same batches and draw the same dropout masks, step by
step side by side. The text is read byte by byte; 15 % of the bytes are masked, and the loss counts these alone. At the end stand the
mean losses of the last 10 steps, how far they are apart, the median time of a step and, on a GPU, the most memory a step took.
Needs torch and transformers.
"""

import argparse
import contextlib
import os
import statistics
import sys
import time

import torch
from transformers import BertConfig, BertForMaskedLM

import nvte.torch as te
from nvte import recipe

MASK, START = 256, 257  # beside the 256 bytes
SIZES = {
    "tiny": dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=192),
    "large": dict(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096),
}
#: size -> batch, length, learning rate
HABITS = {"tiny": (8, 48, 3e-3), "large": (24, 512, 1e-4)}
RECIPES = {"delayed": recipe.DelayedScaling, "current": recipe.Float8CurrentScaling}
LAST = 10


def replace_layers(module):
    """Puts nvte's modules in place of nn.Linear and nn.LayerNorm below `module`; returns how many. Weights are shared with what was
    there, not copied: whatever was tied stays tied, and an optimizer made before goes on working."""
    count = 0
    for name, child in module.named_children():
        if not isinstance(child, (torch.nn.Linear, torch.nn.LayerNorm)):
            count += replace_layers(child)
            continue
        kind = dict(params_dtype=child.weight.dtype, device=child.weight.device)
        if isinstance(child, torch.nn.Linear):
            new = te.Linear(child.in_features, child.out_features, bias=child.bias is not None, **kind)
        else:
            new = te.LayerNorm(child.normalized_shape[0], eps=child.eps, **kind)
        new.weight = child.weight
        if child.bias is not None:
            new.bias = child.bias
        new.train(child.training)
        setattr(module, name, new)
        count += 1
    return count


class Batches:
    """Masked windows of a text: equal seeds give equal batches."""

    def __init__(self, path, batch, length, seed, device):
        with open(path, "rb") as f:
            self.text = torch.tensor(list(f.read()))
        if len(self.text) < length:
            raise SystemExit(f"{path} has {len(self.text)} bytes, and a line of a batch takes {length}")
        self.batch, self.length, self.device = batch, length, device
        self.generator = torch.Generator().manual_seed(seed)

    def next(self):
        """(bytes with masks, labels): -100 where nothing is masked."""
        starts = torch.randint(len(self.text) - self.length + 1, (self.batch, 1), generator=self.generator)
        ids = self.text[starts + torch.arange(self.length)]
        ids[:, 0] = START
        masked = torch.rand(ids.shape, generator=self.generator) < 0.15
        masked[:, 0] = False
        labels = ids.masked_fill(~masked, -100)
        return ids.masked_fill(masked, MASK).to(self.device), labels.to(self.device)


class Trainer:
    """One model, its optimizer and what it measured."""

    def __init__(self, model, region, steps, rate, device):
        self.model, self.region, self.steps, self.device = model, region, steps, torch.device(device)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=rate, fused=self.device.type == "cuda")
        # A tenth of the way up, then down to nothing.
        shape = lambda i: min((i + 1) / max(1, steps // 10), (steps - i) / steps)  # noqa: E731
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, shape)
        self.losses, self.times, self.peak = [], [], 0

    def step(self, ids, labels, seed):
        cuda = self.device.type == "cuda"
        torch.manual_seed(seed)  # dropout
        if cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        with torch.autocast("cuda", dtype=torch.bfloat16) if cuda else contextlib.nullcontext(), self.region():
            loss = self.model(input_ids=ids, labels=labels).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.schedule.step()
        self.losses.append(loss.item())
        self.times.append(time.perf_counter() - begin)
        if cuda:
            self.peak = max(self.peak, torch.cuda.max_memory_allocated())

    @property
    def final(self):
        """Mean loss of the last steps."""
        last = self.losses[-LAST:]
        return sum(last) / len(last)


def progress(step, steps, trainers):
    done = round(20 * step / steps)
    losses = "  ".join(f"{name} {t.losses[-1]:.4f}" for name, t in trainers.items())
    line = f"[{'#' * done}{'.' * (20 - done)}] {step:>{len(str(steps))}}/{steps}  loss: {losses}"
    if sys.stdout.isatty():
        print(f"\r{line}", end="" if step < steps else "\n", flush=True)
    elif step % max(1, steps // 10) == 0 or step == 1:
        print(line, flush=True)


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fp8", choices=["none", *RECIPES], default="delayed")
    parser.add_argument("--size", choices=list(SIZES), default="tiny")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--text", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "text.txt"))
    parser.add_argument("--batch", type=int, help="lines of a batch")
    parser.add_argument("--length", type=int, help="bytes of a line")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=["nvte", "plain"], help="trains one of the two models")
    return parser.parse_args(arguments)


def run(arguments=None):
    """Trains; returns {"plain": Trainer, "nvte": Trainer}."""
    options = parse(arguments)
    batch, length, rate = HABITS[options.size]
    batch, length = options.batch or batch, options.length or length
    config = BertConfig(vocab_size=258, max_position_embeddings=max(length, 64), **SIZES[options.size])

    def model():
        torch.manual_seed(options.seed)
        return BertForMaskedLM(config).to(options.device).train()

    trainers = {}
    if options.only != "nvte":
        trainers["plain"] = Trainer(model(), contextlib.nullcontext, options.steps, rate, options.device)
    if options.only != "plain":
        net = model()
        count = replace_layers(net)
        scaling = RECIPES[options.fp8]() if options.fp8 != "none" else None
        region = lambda: te.autocast(enabled=scaling is not None, recipe=scaling)  # noqa: E731
        trainers["nvte"] = Trainer(net, region, options.steps, rate, options.device)
        print(f"{count} layers replaced; FP8: {options.fp8}; {sum(p.numel() for p in net.parameters()):,} parameters on {options.device}")

    batches = Batches(options.text, batch, length, options.seed, options.device)
    for step in range(1, options.steps + 1):
        ids, labels = batches.next()
        for trainer in trainers.values():
            trainer.step(ids, labels, options.seed + step)
        progress(step, options.steps, trainers)

    print(f"{'model':<8}{'first loss':>12}{'final loss':>12}{'ms a step':>12}{'peak MiB':>12}")
    for name, t in trainers.items():
        peak = f"{t.peak / 2**20:.0f}" if t.peak else "-"
        print(f"{name:<8}{t.losses[0]:>12.4f}{t.final:>12.4f}{statistics.median(t.times) * 1e3:>12.1f}{peak:>12}")
    if len(trainers) == 2:
        print(f"final losses are {abs(trainers['nvte'].final / trainers['plain'].final - 1):.2%} apart")
    return trainers


if __name__ == "__main__":
    run()
