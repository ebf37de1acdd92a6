"""Quantized scripts keep their weights in objects of C++: they are read from the pickles and counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.ao.quantization import quantize_dynamic

import torchgauge as tg

pytestmark = [
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated"),
    pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions"),
    pytest.mark.skipif(not {"fbgemm", "x86"} & set(torch.backends.quantized.supported_engines), reason="no engine"),
]


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 16, num_layers=2, bidirectional=True)
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0])


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4, bias=False))


def script(model: nn.Module, example: Tensor) -> Any:
    return torch.jit.script(model)


def trace(model: nn.Module, example: Tensor) -> Any:
    return torch.jit.trace(model, example, check_trace=False)


def freeze(model: nn.Module, example: Tensor) -> Any:
    return torch.jit.freeze(torch.jit.script(model.eval()))


@pytest.mark.parametrize("make", [script, trace, freeze])
@pytest.mark.parametrize(("build", "size"), [(mlp, (2, 8)), (Tagger, (5, 2, 8))])
def test_a_dynamically_quantized_script_has_the_parameters_and_macs_of_the_model(
    build: Any, size: tuple[int, ...], make: Any, tmp_path: Path
) -> None:
    model = build().eval()
    matrices = sum(p.numel() for p in model.parameters() if p.dim() == 2)
    params = sum(p.numel() for p in model.parameters())
    quantized = quantize_dynamic(build(), {nn.Linear, nn.LSTM}, dtype=torch.qint8)
    made = make(quantized.eval(), torch.zeros(size))
    torch.jit.save(made, tmp_path / "model.pt")
    expected = tg.analyze(model, input_size=size).totals.macs
    found = tg.analyze(tmp_path / "model.pt", input_size=size)
    assert (found.totals.params, found.totals.logical_params, found.totals.macs) == (params, params, expected)
    assert found.totals.stored_bytes == matrices + 4 * (params - matrices)
    assert found.totals.uncounted_ops == 0
    live = tg.analyze(made, input_size=size)
    assert (live.totals.params, live.totals.macs) == (params, expected)


def test_packed_weights_are_read_where_the_code_is_not(tmp_path: Path) -> None:
    """A convolution packs its weights in code of its own while it is read, which is not run."""
    model = nn.Sequential(torch.ao.nn.quantized.Conv2d(3, 8, 3), torch.ao.nn.quantized.Linear(4, 2))
    torch.jit.save(torch.jit.script(model), tmp_path / "model.pt")
    found = tg.scan_weights(tmp_path / "model.pt", weights=False)
    assert found.totals.params == 8 * 3 * 9 + 8 + 2 * 4 + 2
    assert {tensor.spec.dtype for tensor in found.capture.stored.tensors} == {"qint8", "float32"}  # type: ignore[union-attr]


def test_one_process_analyses_packed_weights_more_than_once() -> None:
    """Torch remembers calls by their arguments, and packed ones cannot be compared."""
    for _ in range(3):
        quantized = quantize_dynamic(mlp(), {nn.Linear}, dtype=torch.qint8)
        assert tg.analyze(quantized, input_size=(2, 8)).totals.macs == 2 * (8 * 16 + 16 * 4)
        assert tg.analyze(torch.jit.script(quantized), input_size=(2, 8)).totals.params == 8 * 16 + 16 + 16 * 4
