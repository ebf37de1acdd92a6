"""Bare state dicts recognised as models of timm and torchvision."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import nn

from torchgauge.source import Recipe, Shape, state_shapes
from torchgauge.source.identify import Match, candidates, identify

TIMM = (
    "maxvit_tiny_tf_224", "mobilenetv3_small_050", "test_byobnet", "test_convnext", "test_efficientnet", "test_nfnet",
    "test_resnet", "test_vit", "tf_efficientnet_b0", "vit_base_patch16_clip_224",
)  # fmt: skip
MORE_TIMM = (
    "beit_base_patch16_224", "convnext_atto", "deit_tiny_distilled_patch16_224", "efficientnet_lite0",
    "eva02_tiny_patch14_224", "fbnetc_100", "ghostnet_050", "lcnet_050", "mixer_s32_224", "regnetx_002", "resnet18d",
    "vit_tiny_patch16_224",
)  # fmt: skip
TORCHVISION = ("fcn_resnet50", "lraspp_mobilenet_v3_large", "resnet18", "swin_t", "vit_b_16")
MORE_TORCHVISION = (
    "convnext_tiny", "deeplabv3_resnet50", "efficientnet_b0", "raft_small", "shufflenet_v2_x0_5", "squeezenet1_1",
    "vgg11",
)  # fmt: skip
# Built for real, as they look at values when they run.
DETECTION = ("fasterrcnn_mobilenet_v3_large_fpn", "ssdlite320_mobilenet_v3_large")


def with_slow(fast: tuple[str, ...], slow: tuple[str, ...]) -> list[Any]:
    return [*fast, *(pytest.param(name, marks=pytest.mark.slow) for name in slow)]


def on_meta(build: Any, *args: Any, **kwargs: Any) -> nn.Module:
    with torch.device("meta"):
        model = build(*args, **kwargs)
    assert isinstance(model, nn.Module)
    return model


def timm_shapes(name: str, **settings: Any) -> dict[str, Shape]:
    return state_shapes(on_meta(timm.create_model, name, **settings))


def torchvision_shapes(name: str, **settings: Any) -> dict[str, Shape]:
    builder = torchvision.models.get_model_builder(name)
    backbone = {"weights_backbone": None} if name in DETECTION or "_resnet50" in name or "lraspp" in name else {}
    return state_shapes(on_meta(builder, **settings, **backbone))


def found(shapes: dict[str, Shape], file: str = "") -> Match:
    match = identify(shapes, file)
    assert match is not None
    return match


@pytest.mark.parametrize("name", with_slow(TIMM, MORE_TIMM))
def test_a_timm_model_is_found(name: str) -> None:
    shapes = timm_shapes(name)
    match = found(shapes)
    assert f"timm:{name}" in (match.target, *match.twins)
    assert state_shapes(match.model) == shapes
    assert match.remarks == ()


@pytest.mark.parametrize("name", with_slow(TORCHVISION, (*MORE_TORCHVISION, *DETECTION)))
def test_a_torchvision_model_is_found(name: str) -> None:
    shapes = torchvision_shapes(name)
    match = found(shapes)
    assert match.target == f"torchvision:{name}"
    assert state_shapes(match.model) == shapes


def test_all_registries_that_hold_the_model_are_named() -> None:
    match = found(torchvision_shapes("resnet18"))
    assert match.target == "torchvision:resnet18"
    assert "timm:resnet18" in match.twins
    assert "may compute something else: timm:resnet18" in match.describe()


def test_the_name_of_the_file_chooses_between_twins() -> None:
    shapes = timm_shapes("tf_efficientnet_b0")
    plain = found(shapes)
    assert (plain.target, "timm:tf_efficientnet_b0" in plain.twins) == ("timm:efficientnet_b0", True)
    named = found(shapes, "models--timm--tf_efficientnet_b0.ns_jft_in1k/model.safetensors")
    assert (named.target, "timm:efficientnet_b0" in named.twins) == ("timm:tf_efficientnet_b0", True)


@pytest.mark.parametrize(
    "target",
    [
        "timm:test_vit",
        "timm:mobilenetv3_small_050",
        "torchvision:resnet18",
        "torchvision:fcn_resnet50",
        pytest.param("timm:deit_tiny_distilled_patch16_224", marks=pytest.mark.slow),
        pytest.param("timm:vit_small_patch14_dinov2", marks=pytest.mark.slow),
        pytest.param("torchvision:ssdlite320_mobilenet_v3_large", marks=pytest.mark.slow),
    ],
)
def test_another_number_of_classes_is_the_same_model(target: str) -> None:
    registry, _, name = target.partition(":")
    shapes = (timm_shapes if registry == "timm" else torchvision_shapes)(name, num_classes=7)
    match = found(shapes)
    assert match.target == target
    assert "built with num_classes=7" in match.remarks
    assert state_shapes(match.recipe.build()) == shapes


def test_other_channels_and_image_sizes_are_the_same_model() -> None:
    shapes = timm_shapes("vit_tiny_patch16_224", in_chans=1, img_size=320, num_classes=10)
    match = found(shapes)
    assert match.target == "timm:vit_tiny_patch16_224"
    expected = {"built with img_size=320", "built with num_classes=10", "'patch_embed.proj' built for 1 channels"}
    assert set(match.remarks) == expected
    assert state_shapes(match.recipe.build()) == shapes


def test_an_auxiliary_classifier_is_built_where_the_file_has_one() -> None:
    shapes = torchvision_shapes("fcn_resnet50", aux_loss=True)
    match = found(shapes)
    assert (match.target, match.remarks) == ("torchvision:fcn_resnet50", ("built with aux_loss=True",))
    assert state_shapes(match.model) == shapes


def test_a_head_of_the_users_own_is_left_out_and_said_so() -> None:
    model = on_meta(torchvision.models.resnet18)
    own = on_meta(lambda: nn.Sequential(nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 3)))
    model.fc = own
    match = found(state_shapes(model))
    assert (match.target, match.is_headless) == ("torchvision:resnet18", True)
    assert "all tensors except the head's" in match.describe()
    body = {name: shape for name, shape in state_shapes(model).items() if not name.startswith("fc.")}
    assert state_shapes(match.model) == body == state_shapes(found(body).model)


@pytest.mark.parametrize("lead", ["module.", "model.", "state_dict.", "model.module.", "net.encoder.backbone."])
def test_a_common_prefix_is_ignored(lead: str) -> None:
    shapes = {lead + name: shape for name, shape in timm_shapes("test_vit").items()}
    assert found(shapes).target == "timm:test_vit"


@pytest.mark.parametrize(("own", "copy"), [("model.", "model_ema."), ("", "ema."), ("module.", "ema.module.")])
def test_a_moving_average_next_to_the_model_is_ignored(own: str, copy: str) -> None:
    plain = timm_shapes("test_vit")
    shapes = {lead + name: shape for lead in (copy, own) for name, shape in plain.items()} | {"n_averaged": ()}
    assert found(shapes).target == "timm:test_vit"


def test_the_figures_of_a_moving_average_alone_are_those_of_the_model() -> None:
    assert found({f"ema.{name}": shape for name, shape in timm_shapes("test_vit").items()}).target == "timm:test_vit"


@pytest.mark.parametrize("every", [60, pytest.param(1, marks=pytest.mark.slow)])
def test_one_tensor_more_less_or_of_another_shape_or_name_does_not_match(every: int) -> None:
    shapes = timm_shapes("test_vit")
    for name, shape in list(shapes.items())[::every]:
        if name.startswith("head.") or name in ("patch_embed.proj.weight", "pos_embed"):
            continue
        rest = {other: size for other, size in shapes.items() if other != name}
        assert identify(rest) is None
        assert identify(rest | {f"{name}_": shape}) is None
        assert identify(rest | {name: (*shape[:-1], shape[-1] + 1)}) is None
        assert identify(shapes | {f"{name}_": shape}) is None


@pytest.mark.parametrize("shape", [(64, 3, 8, 8), (48, 3, 16, 16), (64, 3, 16)])
def test_a_stem_of_another_kernel_or_width_does_not_match(shape: Shape) -> None:
    shapes = timm_shapes("test_vit")
    assert shapes["patch_embed.proj.weight"] == (64, 3, 16, 16)
    assert identify(shapes | {"patch_embed.proj.weight": shape}) is None


def test_nothing_is_built_for_an_unknown_state_dict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recipe, "build", lambda recipe: pytest.fail(f"{recipe.name} was built"))
    layers = {f"encoder.block{i}.conv{j}.weight": (8 * i, 8 * j, 3, 3) for i in range(1, 9) for j in range(1, 5)}
    assert identify(layers) is None
    assert candidates(layers) == []


def test_layers_of_a_users_own_match_nothing() -> None:
    assert identify(state_shapes(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)))) is None
    assert identify({}) is None
