"""Files as people make them: several methods, dicts, shared and tied parts, half precision, masks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchgauge as tg

pytestmark = pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(8, 16)
        self.decoder = nn.Linear(16, 8)
        self.head = nn.Linear(16, 2)

    @torch.jit.export
    def encode(self, x: Tensor) -> Tensor:
        return torch.relu(self.encoder(x))

    @torch.jit.export
    def decode(self, z: Tensor) -> Tensor:
        return self.decoder(z)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        z = self.encode(x)
        return {"out": self.decode(z), "classes": self.head(z)}


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        block = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.first = block
        self.second = block
        self.blocks = nn.ModuleList([block, nn.Linear(8, 8), block])

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x))
        for block in self.blocks:
            x = block(x)
        return x


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.table(ids))


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tril(torch.ones(6, 6)).bool())
        self.query = nn.Linear(8, 8).to(torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        q = self.query(x)
        mask = self.mask[: x.size(1), : x.size(1)]  # type: ignore[index]
        return (q @ q.transpose(-1, -2)).masked_fill(~mask, -1e9).softmax(-1) @ q


MAKERS: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "scripted": lambda model, example: torch.jit.script(model),
    "traced": lambda model, example: torch.jit.trace(model, example, strict=False, check_trace=False),
    "frozen": lambda model, example: torch.jit.freeze(torch.jit.script(model)),
    "frozen trace": lambda model, example: torch.jit.freeze(
        torch.jit.trace(model, example, strict=False, check_trace=False)
    ),
}
MODELS: list[Any] = [
    pytest.param(Autoencoder, torch.ones(2, 8), id="several methods, dict out"),
    pytest.param(Shared, torch.ones(2, 8), id="shared parts"),
    pytest.param(Tied, torch.ones(2, 5, dtype=torch.int64), id="tied"),
    pytest.param(Masked, torch.ones(2, 5, 8, dtype=torch.bfloat16), id="bfloat16 and a mask"),
]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(("build", "example"), MODELS)
def test_the_file_has_the_figures_of_the_eager_model(build: Any, example: Tensor, make: str, tmp_path: Path) -> None:
    model = build().eval()
    torch.jit.save(MAKERS[make](model, example), tmp_path / "model.pt")
    eager, found = (tg.analyze(target, inputs=example).totals for target in (model, tmp_path / "model.pt"))
    assert (found.params, found.param_bytes, found.macs) == (eager.params, eager.param_bytes, eager.macs)
    assert found.logical_params == eager.params


class WeightedPixels(nn.Module):
    """The size of its mask depends on that of its image, which no one can guess from its name."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=8)

    def forward(self, image: Tensor, weights_of_pixels: Tensor) -> Tensor:
        return self.conv(image) * nn.functional.interpolate(weights_of_pixels[:, None], (4, 4))


def test_a_file_whose_inputs_cannot_be_guessed_shows_its_weights(tmp_path: Path) -> None:
    example = torch.ones(1, 3, 32, 32), torch.ones(1, 32, 32)
    torch.jit.trace(WeightedPixels(), example).save(tmp_path / "model.pt")
    found = tg.analyze(tmp_path / "model.pt")
    assert (found.totals.params, found.capture.run.mode) == (112, None)
    assert "its code was not traced" in str(found.capture.run.warnings)
    assert tg.analyze(tmp_path / "model.pt", inputs=example).totals.macs == 4 * 27 * 16
    with pytest.raises(tg.ForwardError):
        tg.analyze(tmp_path / "model.pt", input_size=[(1, 3, 32, 32), (1, 8)])
