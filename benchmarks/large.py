"""Models of 70 and 175 billion parameters on the meta device: time over their own bare forward, and memory added.

Each model runs in a separate process, which uses memory for nothing else. The bare call is given a ready 4-D mask and
no cache: otherwise transformers may look at values that a meta tensor does not have. The analysis is timed on the same
call and on the plain `model(input_ids)`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil
import torch
import transformers
from subjects import ids
from torch import nn

SEQUENCE = 2048
TURNS = 5
MODELS = {
    "llama-70b": (
        transformers.LlamaForCausalLM,
        transformers.LlamaConfig,
        {
            "hidden_size": 8192,
            "intermediate_size": 28672,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
        },
    ),
    "gpt-175b": (
        transformers.GPT2LMHeadModel,
        transformers.GPT2Config,
        {"n_layer": 96, "n_embd": 12288, "n_head": 96, "n_positions": SEQUENCE},
    ),
}


class PeakMemory:
    """The most memory the process held while the block ran, sampled, over what it held before."""

    def __enter__(self) -> PeakMemory:
        self._process = psutil.Process()
        self._before = self._most = self._process.memory_info().rss
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def _sample(self) -> None:
        while not self._over.wait(0.002):
            self._most = max(self._most, self._process.memory_info().rss)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.added_bytes = max(self._most, self._process.memory_info().rss) - self._before


def build(name: str) -> nn.Module:
    model, config, options = MODELS[name]
    with torch.device("meta"):
        return model(config(**options)).eval()


def call_arguments() -> dict[str, Any]:
    return {
        "input_ids": torch.ones(1, SEQUENCE, dtype=torch.int64, device="meta"),
        "attention_mask": torch.zeros(1, 1, SEQUENCE, SEQUENCE, device="meta"),
        "use_cache": False,
    }


def seconds_of(function: Any, *args: Any, **kwargs: Any) -> float:
    start = perf_counter()
    function(*args, **kwargs)
    return perf_counter() - start


def measure(name: str) -> dict[str, Any]:
    """Memory first, in the first analysis of the process; the time after that, in turns with the bare forward."""
    torch.set_num_threads(1)
    model, arguments = build(name), call_arguments()
    plain = ids(SEQUENCE)
    with torch.no_grad():
        model(**arguments)
        with PeakMemory() as memory:
            import torchgauge as tg

            totals = tg.analyze(model, inputs=plain, progress=False).totals
        bare, same, other = [], [], []
        for _ in range(TURNS):
            bare.append(seconds_of(model, **arguments))
            same.append(seconds_of(tg.analyze, model, inputs=arguments, progress=False))
            other.append(seconds_of(tg.analyze, model, inputs=plain, progress=False))
    return {
        "name": name,
        "params": totals.params,
        "macs": totals.macs,
        "ops": totals.ops,
        "bare_s": min(bare),
        "analysis_s": min(same),
        "plain_call_s": min(other),
        "ratio": min(same) / min(bare),
        "plain_call_ratio": min(other) / min(bare),
        "added_bytes": memory.added_bytes,
    }


def measure_apart(name: str) -> dict[str, Any]:
    """`measure` in a fresh process."""
    done = subprocess.run([sys.executable, str(Path(__file__)), name], capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
