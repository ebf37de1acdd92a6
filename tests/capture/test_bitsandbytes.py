"""The layers of bitsandbytes, where it is installed (`test_models_that_run.py` has a stand-in for elsewhere)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torchgauge as tg

bnb = pytest.importorskip("bitsandbytes")


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("Linear8bitLt", {"has_fp16_weights": False}),
        ("Linear8bitLt", {"has_fp16_weights": False, "threshold": 6.0}),
        ("Linear4bit", {"quant_type": "nf4"}),
        ("LinearNF4", {"compute_dtype": torch.bfloat16}),
        ("LinearFP4", {}),
    ],
)
def test_quantized_layers_are_counted(kind: str, options: dict[str, Any]) -> None:
    layer = getattr(bnb.nn, kind)(64, 128, **options)
    model = nn.Sequential(layer, nn.Linear(128, 4)).to("cpu").eval()
    x = torch.ones(2, 3, 64)
    found = tg.analyze(model, inputs=x)
    assert found.totals.macs == 6 * (64 * 128 + 128 * 4)
    assert found.totals.params == sum(tensor.numel() for tensor in model.parameters())
    assert found.totals.uncounted_ops == 0
    assert model(x).shape == (2, 3, 4)
