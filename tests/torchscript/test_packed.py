"""Quantized scripts keep their weights in objects of C++: they are read from the pickles and counted."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.ao.quantization import quantize_dynamic

import torchgauge as tg
from torchgauge.source.torchscript import scan_code

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


def static_network() -> nn.Module:
    """Quantized by observing one batch, as the tutorials do it."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.quant, self.dequant = torch.ao.quantization.QuantStub(), torch.ao.quantization.DeQuantStub()
            self.conv, self.relu, self.head = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.relu(self.conv(self.quant(x)))
            return self.dequant(self.head(x.mean((2, 3))))

    model = Network().eval()
    model.qconfig = torch.ao.quantization.get_default_qconfig(torch.backends.quantized.engine)
    prepared = torch.ao.quantization.prepare(torch.ao.quantization.fuse_modules(model, [["conv", "relu"]]))
    prepared(torch.linspace(-1, 1, 192).reshape(1, 3, 8, 8))
    converted: nn.Module = torch.ao.quantization.convert(prepared)
    return converted


@pytest.mark.filterwarnings("ignore:Please use quant_min and quant_max")
@pytest.mark.parametrize("make", [script, trace])
def test_a_statically_quantized_convolution_in_a_script_is_read_and_run_when_asked(make: Any, tmp_path: Path) -> None:
    torch.jit.save(make(static_network(), torch.zeros(1, 3, 8, 8)), tmp_path / "model.pt")
    still = tg.analyze(tmp_path / "model.pt", input_size=(1, 3, 8, 8))
    assert (still.totals.params, {"conv", "head"} <= {row.path for row in still.modules}) == (260, True)
    if still.capture.run.mode is None:
        assert "add --inference" in str(still.capture.run.warnings)
    found = tg.analyze(tmp_path / "model.pt", input_size=(1, 3, 8, 8), inference=True)
    assert found.measurements is not None
    assert found.totals.params == 260
    assert any(op.op.startswith("quantized::conv2d") for op in found.ops)


UNPACKING = """
class Packs(Module):
  def __setstate__(self, state: Tuple[int, bool]) -> NoneType:
    {calls}
    return None
  def set_weight_bias(self, w: Tensor) -> NoneType:
    {inside}
    return None
"""


@pytest.mark.parametrize(
    ("calls", "inside", "harmless"),
    [
        ("_0 = (self).set_weight_bias((state)[0])", "_1 = ops.quantized.conv2d_prepack(w)", True),
        ("_0 = (self).set_weight_bias((state)[0])", "_1 = torch.add(w, w)", False),
        ("_0 = (self).set_weight_bias((state)[0])", "_1 = (self).set_weight_bias(w)", False),
        ("_0 = ((self).set_weight_bias(1), (self).set_weight_bias(2))", "pass", False),
        ("_0 = (self).other((state)[0])", "pass", False),
        ("self = state; _0 = (self).set_weight_bias(1)", "pass", False),
        ("_0 = (state).set_weight_bias(1)", "pass", False),
    ],
)
def test_a_method_that_packs_weights_may_do_nothing_else(calls: str, inside: str, harmless: bool) -> None:
    source = UNPACKING.format(calls=calls, inside=inside).encode()
    with nullcontext() if harmless else pytest.raises(tg.FormatError, match="__setstate__"):
        scan_code(source, "model.pt")


def test_a_setstate_without_arguments_is_refused() -> None:
    source = UNPACKING.format(calls="_0 = (self).set_weight_bias(1)", inside="pass").replace(
        "(self, state: Tuple[int, bool])", "()"
    )
    with pytest.raises(tg.FormatError, match="__setstate__"):
        scan_code(source.encode(), "model.pt")


def test_packed_weights_are_read_where_the_code_is_not(tmp_path: Path) -> None:
    """Without an analysis of the code."""
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
