"""Casts of all weights of a layer, or of a model, in one launch; a section of benches/gpu.py."""

import torch
from gpu_timing import BF16, F32, fp8_room, memory_row, normal, sets

from nvte import ops

#: The matrices of a layer of BERT-large.
LAYER = [(1024, 1024)] * 4 + [(4096, 1024), (1024, 4096)]


def section_multi_cast(run):
    def measured(layers, dtype, current):
        shapes = LAYER * layers
        n = sum(r * c for r, c in shapes)

        def make():
            inputs = [normal(run, *s, dtype=dtype) for s in shapes]
            outputs = [fp8_room(run, *s, transpose=True) for s in shapes]
            return inputs, outputs, ops.cast_list(inputs, outputs)

        size = 2 if dtype == BF16 else 4
        made = sets((size + 2) * n, make)
        work = torch.empty(max(16, ops.cast_to_fp8_current_workspace("cuda")), device=run.device, dtype=torch.uint8)

        def loop(inputs, outputs):
            for x, q in zip(inputs, outputs):
                if current:
                    ops.cast_to_fp8_current(x, out=q, workspace=work)
                else:
                    ops.cast_to_fp8(x, out=q)

        sides = {
            "ours": [(lambda t=t: ops.multi_cast_to_fp8(t, current=current)) for _, _, t in made],
            "loop": [(lambda x=x, q=q: loop(x, q)) for x, q, _ in made],
        }
        inputs, outputs, tensors = made[0]
        loop(inputs, outputs)
        want = [(q.data.clone(), q.data_t.clone()) for q in outputs]
        for q in outputs:
            q.data.fill_(0), q.data_t.fill_(0)
        ops.multi_cast_to_fp8(tensors, current=current)
        same = all(
            torch.equal(q.data.view(torch.uint8), a.view(torch.uint8)) and torch.equal(q.data_t.view(torch.uint8), b.view(torch.uint8))
            for q, (a, b) in zip(outputs, want)
        )
        kind = "current" if current else "delayed"
        # Current scaling is counted with one read of the weights; it takes two, of which the cache serves what it holds.
        memory_row(run, f"{kind} {str(dtype)[6:]} {layers} layers of BERT-large", (size + 2) * n, sides, {"equal": same})

    for layers in (1, 24):
        for dtype in (BF16, F32):
            for current in (False, True):
                run.row(f"{layers} layers {dtype} {current}", lambda: measured(layers, dtype, current))
