"""Image models: the figures do not depend on whether the parameters are real, nor on the modes they were left in."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import timm
import torch
import torchvision
from torch import nn

from tests.models.checked import analyze_checked, assert_same_figures, on_meta

TORCHVISION = ("mobilenet_v3_small", "resnet18", "shufflenet_v2_x0_5", "squeezenet1_1")
TIMM = ("test_byobnet", "test_convnext", "test_efficientnet", "test_nfnet", "test_vit")

Build = Callable[[str], nn.Module]
models = pytest.mark.parametrize(
    ("build", "name"),
    [(torchvision.models.get_model, name) for name in TORCHVISION] + [(timm.create_model, name) for name in TIMM],
    ids=[*TORCHVISION, *TIMM],
)


def input_size(model: nn.Module) -> tuple[int, ...]:
    return (2, *getattr(model, "default_cfg", {"input_size": (3, 64, 64)})["input_size"])


@models
def test_real_and_meta_parameters_give_the_same_figures(build: Build, name: str) -> None:
    real, meta = build(name), on_meta(build, name)
    size = input_size(real)
    assert_same_figures(analyze_checked(real, input_size=size), analyze_checked(meta, input_size=size))


@models
def test_grad_and_training_mode_change_nothing(build: Build, name: str) -> None:
    model = on_meta(build, name)
    size = input_size(model)
    with torch.no_grad():
        evaluated = analyze_checked(model.eval(), input_size=size)
    assert_same_figures(evaluated, analyze_checked(model.train(), input_size=size))
    with torch.inference_mode():
        assert_same_figures(evaluated, analyze_checked(model, input_size=size))
