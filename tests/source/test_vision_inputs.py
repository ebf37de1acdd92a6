from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from torchgauge.errors import TargetError
from torchgauge.source import Candidate, candidate_inputs, resolve

pytestmark = pytest.mark.usefixtures("random_state_is_left_alone")


def first(model: nn.Module, **options: Any) -> Candidate:
    return next(candidate_inputs(model, **options))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("resnet18", (1, 3, 224, 224)),
        ("inception_v3", (1, 3, 299, 299)),
        ("vit_b_32", (1, 3, 224, 224)),
        ("regnet_y_400mf", (1, 3, 224, 224)),
        ("quantized_mobilenet_v2", (1, 3, 224, 224)),
        ("lraspp_mobilenet_v3_large", (1, 3, 520, 520)),
        ("r3d_18", (1, 3, 16, 112, 112)),
        ("s3d", (1, 3, 16, 224, 224)),
        ("swin3d_t", (1, 3, 16, 224, 224)),
    ],
)
def test_a_torchvision_model_is_built_on_meta_and_runs_on_its_own_images(name: str, shape: tuple[int, ...]) -> None:
    source = resolve(f"torchvision:{name}")
    assert {parameter.device.type for parameter in source.runnable.parameters()} == {"meta"}
    assert not any(module.training for module in source.runnable.modules())
    assert (source.record.kind, source.record.format) == ("registry", "torchvision")
    candidate = first(source.runnable)
    assert candidate.args[0].shape == shape
    with torch.no_grad():
        source.runnable.to("meta")(*candidate.args)


def test_optical_flow_takes_two_frames() -> None:
    left, right = first(resolve("torchvision:raft_small").runnable).args
    assert left.shape == right.shape == (1, 3, 520, 960)


def test_detection_models_are_real_and_take_a_list_of_images(run: Callable[..., Any]) -> None:
    model = resolve("torchvision:ssdlite320_mobilenet_v3_large").runnable
    assert [tuple(image.shape) for image in first(model, batch=2).args[0]] == [(3, 320, 320)] * 2
    (output,) = run(model, first(model))
    assert sorted(output) == ["boxes", "labels", "scores"]


def test_a_changed_first_layer_changes_the_channels() -> None:
    model = resolve("torchvision:resnet18").runnable
    model.conv1 = nn.Conv2d(1, 64, 7, device="meta")
    assert first(model).args[0].shape == (1, 1, 224, 224)


def test_a_registry_model_can_be_built_again_with_real_weights() -> None:
    source = resolve("torchvision:squeezenet1_0")
    assert source.build_real is not None
    model = source.build_real()
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
    assert not model.training


@pytest.mark.parametrize(("name", "size"), [("resnet10t", 176), ("test_vit", 160), ("vit_tiny_patch16_384", 384)])
def test_a_timm_model_says_its_input_size(name: str, size: int) -> None:
    source = resolve(f"timm:{name}")
    assert {parameter.device.type for parameter in source.runnable.parameters()} == {"meta"}
    assert (source.record.kind, source.record.format) == ("registry", "timm")
    candidate = first(source.runnable, batch=2)
    assert candidate.args[0].shape == (2, 3, size, size)
    assert candidate.reason == f"x 2×3×{size}×{size}: input_size of the timm model"
    with torch.no_grad():
        source.runnable(*candidate.args)


def test_a_timm_model_built_for_another_size_and_channels_gets_those() -> None:
    timm = pytest.importorskip("timm")
    with torch.device("meta"):
        model = timm.create_model("test_vit", img_size=64, in_chans=1)
    assert first(model).args[0].shape == (1, 1, 64, 64)


def test_a_tag_of_timms_weights_is_part_of_a_name() -> None:
    assert resolve("timm:test_vit.r160_in1k").runnable.num_classes == 1000


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("timm:test_vitt", "timm has no model 'test_vitt'. Did you mean 'test_vit"),
        ("timm:test_vit.r160_in2k", "has no weights 'r160_in2k'. Did you mean 'r160_in1k'"),
        ("timm:hf_hub:someone/model", "timm has no model 'hf_hub:someone/model'"),
        ("torchvision:resnet17", "torchvision has no model 'resnet17'. Did you mean 'resnet1"),
    ],
)
def test_an_unknown_name_is_a_target_error_with_the_closest_ones(target: str, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        resolve(target)
