"""Small checkpoints that hold a bit of everything, and ways to compare scans."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from torchgauge.weights import ScanResult


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
    return json.dumps(facts(result))


def facts(result: ScanResult) -> dict[str, Any]:
    return {"rows": result.rows, "summary": result.summary, "failures": result.failures}


def assert_same(found: Any, expected: Any, place: str = "") -> None:
    """Equal to the last integer, and numbers with fractions to 1e-12 of their size: the process that compiles a kernel
    may run other instructions than one that finds it compiled."""
    if isinstance(expected, dict):
        assert list(found) == list(expected), place
        for key, value in expected.items():
            assert_same(found[key], value, f"{place}.{key}")
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), place
        for index, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_same(one, other, f"{place}[{index}]")
    elif isinstance(expected, float) and isinstance(found, float):
        assert math.isclose(found, expected, rel_tol=1e-12, abs_tol=1e-300), (place, found, expected)
    else:
        assert found == expected, place
