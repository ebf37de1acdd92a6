"""`torchgauge model.pt` and nothing else: the input is inferred, the figures are those of the eager model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import resnet18, resnet50
from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

import torchgauge as tg
from tests.torchscript.models import Hybrid, macs, small_resnet
from tests.torchscript.test_traced import Logits

pytestmark = [
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore:'norm' was found in ScriptModule constants"),
]
IMAGE = torch.zeros(1, 3, 64, 64)


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        backbone = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1],
                                layer_type="basic", out_features=["stage4"])  # fmt: skip
        config = DetrConfig(use_timm_backbone=False, use_pretrained_backbone=False, backbone_config=backbone,
                            d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
                            decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64,
                            num_queries=5)  # fmt: skip
        self.detr = DetrForObjectDetection(config)

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        found = self.detr(pixel_values)
        return found.logits, found.pred_boxes


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 100)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.encoder(self.table(ids)))


def distinct(model: nn.Module) -> nn.Module:
    """Equal constants would be shared by freezing."""
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return model


def script(model: nn.Module, example: Tensor) -> Any:
    return torch.jit.script(model)


def trace(model: nn.Module, example: Tensor) -> Any:
    return torch.jit.trace(model, example, check_trace=False, strict=False)


def command(made: Any, folder: Path) -> tg.Analysis:
    torch.jit.save(made, folder / "model.pt")
    return tg.analyze(folder / "model.pt")


def eager(model: nn.Module, like: tg.Analysis) -> tg.Analysis:
    """The eager model given the input that was inferred."""
    spec = like.capture.inputs[0].spec
    return tg.analyze(model, inputs=torch.ones(spec.shape, dtype=getattr(torch, spec.dtype)))


CASES: list[Any] = [
    pytest.param(small_resnet, script, IMAGE, id="scripted-resnet"),
    pytest.param(small_resnet, trace, IMAGE, id="traced-resnet"),
    pytest.param(Hybrid, script, IMAGE, id="scripted-hybrid"),
    pytest.param(Hybrid, trace, IMAGE, id="traced-hybrid"),
    pytest.param(Detector, trace, IMAGE, id="traced-detr"),
    pytest.param(Logits, trace, torch.ones(1, 8, dtype=torch.int64), id="traced-gpt2"),
    pytest.param(resnet18, script, IMAGE, id="scripted-resnet18", marks=pytest.mark.slow),
    pytest.param(resnet18, trace, IMAGE, id="traced-resnet18", marks=pytest.mark.slow),
    pytest.param(resnet50, script, IMAGE, id="scripted-resnet50", marks=pytest.mark.slow),
    pytest.param(resnet50, trace, IMAGE, id="traced-resnet50", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("build", "make", "example"), CASES)
def test_a_saved_model_has_the_macs_parameters_and_paths_of_the_eager_one(
    build: Any, make: Any, example: Tensor, tmp_path: Path
) -> None:
    model = build().eval()
    found = command(make(model, example), tmp_path)
    expected = eager(model, found)
    assert (found.totals.macs, found.totals.params) == (expected.totals.macs, expected.totals.params)
    assert macs(found).keys() == macs(expected).keys()
    assert found.capture.run.mode == "fake"


@pytest.mark.parametrize("make", [script, trace])
@pytest.mark.parametrize("build", [pytest.param(resnet18, marks=pytest.mark.slow), small_resnet])
def test_a_frozen_resnet_that_was_saved_needs_no_input_given(build: Any, make: Any, tmp_path: Path) -> None:
    model = distinct(build()).eval()
    found = command(torch.jit.freeze(make(model, IMAGE)), tmp_path)
    assert found.capture.inputs[0].spec.shape == (1, 3, 224, 224)
    assert found.totals.macs == eager(model, found).totals.macs
    folded = sum(part.num_features for part in model.modules() if isinstance(part, nn.BatchNorm2d))
    assert found.totals.params == sum(p.numel() for p in model.parameters()) - folded


@pytest.mark.parametrize("make", [script, trace])
def test_a_frozen_transformer_that_was_saved_is_given_token_ids(make: Any, tmp_path: Path) -> None:
    model = distinct(Encoder()).eval()
    frozen = torch.jit.freeze(make(model, torch.ones(1, 16, dtype=torch.int64)))
    found = command(frozen, tmp_path)
    assert [(i.name, i.spec.dtype) for i in found.capture.inputs] == [("ids", "int64")]
    expected = eager(model, found)
    assert (found.totals.macs, found.totals.params) == (expected.totals.macs, expected.totals.params)
    # Live, some of its parameters are in modules that Python is not shown.
    assert tg.analyze(frozen).totals.params == expected.totals.params
