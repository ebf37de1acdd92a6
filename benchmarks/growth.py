"""Cost against the number of ops: the same block 6 to 96 times, parameters on the meta device."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch
import transformers
from subjects import ids

import torchgauge as tg

LAYERS = (6, 12, 24, 48, 96)
TURNS = 5


def measure_growth() -> list[dict[str, Any]]:
    return [_measure(layers) for layers in LAYERS]


def _measure(layers: int) -> dict[str, Any]:
    with torch.device("meta"):
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=layers))
    times = []
    for _ in range(TURNS):
        start = perf_counter()
        totals = tg.analyze(model, inputs=ids(128), progress=False).totals
        times.append(perf_counter() - start)
    return {"layers": layers, "ops": totals.ops, "seconds": min(times), "seconds_per_op": min(times) / totals.ops}
