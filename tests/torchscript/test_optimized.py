"""`torch.jit.optimize_for_inference` moves convolutions to oneDNN; saved, their weights are not in the file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import torchgauge as tg

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.block = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm(self.stem(x)))
        return self.head((y + self.block(y)).mean((2, 3)))


def activations() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Hardswish(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 1), nn.ReLU6(),
                         nn.Conv2d(8, 8, 1), nn.Hardtanh(), nn.AdaptiveAvgPool2d(1), nn.Hardsigmoid())  # fmt: skip


@pytest.mark.parametrize(("build", "norms"), [(Residual, 16), (activations, 0)])
def test_an_optimized_model_has_the_macs_and_weights_of_its_graph(build: type[nn.Module], norms: int) -> None:
    model = build().eval()
    eager = tg.analyze(model, input_size=(1, 3, 16, 16))
    found = tg.analyze(torch.jit.optimize_for_inference(torch.jit.script(model)), input_size=(1, 3, 16, 16))
    assert found.totals.macs == eager.totals.macs
    assert found.totals.params == eager.totals.params - norms  # they are folded into the convolution
    assert found.totals.uncounted_ops == 0


def test_the_weights_keep_their_names() -> None:
    found = tg.analyze(torch.jit.optimize_for_inference(torch.jit.script(Residual().eval())), input_size=(1, 3, 9, 9))
    assert {"stem.weight", "stem.bias", "block.weight", "block.bias"} <= {param.name for param in found.capture.params}


def test_a_saved_one_without_convolutions_is_whole(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10)).eval()
    for parameter in model.parameters():  # equal constants would be shared
        nn.init.normal_(parameter)
    torch.jit.save(torch.jit.optimize_for_inference(torch.jit.script(model)), tmp_path / "model.pt")
    eager, found = (tg.analyze(target, input_size=(1, 4, 32)) for target in (model, tmp_path / "model.pt"))
    assert (found.totals.macs, found.totals.params) == (eager.totals.macs, eager.totals.params)


def test_a_saved_one_with_convolutions_is_said_to_lack_their_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.jit.save(torch.jit.optimize_for_inference(torch.jit.script(Residual().eval())), path)
    with pytest.raises(RuntimeError):
        torch.jit.load(path)
    found = tg.analyze(path)
    assert found.totals.params == 8 * 10 + 10  # what is there
    assert any("4 weights are missing from the file" in warning for warning in found.capture.run.warnings)
    assert not any("which is not an op" in warning for warning in found.capture.run.warnings)
