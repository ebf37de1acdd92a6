"""Small checkpoints that hold a bit of everything, and ways to compare scans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from torchgauge.weights.collecting import ScanResult


def varied_tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    return {
        "embed.weight": normal(500, 64).bfloat16(),
        "layers.0.fc.weight": normal(96, 64),
        "layers.0.fc.bias": torch.zeros(96),
        "layers.1.fc.weight": normal(96, 64) * 3,
        "layers.1.fc.bias": normal(96),
        "layers.2.conv.weight": normal(16, 8, 3, 3).half(),
        "norm.weight": torch.ones(64),
        "norm.steps": torch.tensor(7),
        "empty": torch.empty(0, 4),
        "wide": normal(40_000).double(),
        "broken": torch.tensor([1.0, float("nan"), float("inf"), -2.0]),
    }


def write_varied(path: Path, seed: int = 0) -> Path:
    save_file(varied_tensors(seed), path)
    return path


def exact(result: ScanResult) -> str:
    """The result to the last bit, apart from the time it took."""
    facts: dict[str, Any] = {"rows": result.rows, "summary": result.summary, "failures": result.failures}
    return json.dumps(facts)
