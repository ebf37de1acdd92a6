"""The models that are timed, with real parameters and the positional arguments of one call."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchgauge.source.packages import torchvision_importable

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    with torchvision_importable():
        import timm
        import torchvision
        import transformers

SEQUENCE = 128


class Subject(NamedTuple):
    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]

    def ready(self) -> tuple[nn.Module, tuple[Tensor, ...]]:
        torch.manual_seed(0)
        return self.build().eval(), self.inputs()


def image(side: int) -> tuple[Tensor, ...]:
    return (torch.randn(1, 3, side, side),)


def ids(length: int) -> tuple[Tensor, ...]:
    return (torch.randint(0, 1000, (1, length)),)


def of_torchvision(name: str, side: int = 224) -> Subject:
    options: dict[str, Any] = {"init_weights": False} if name == "inception_v3" else {}
    return Subject(name, partial(torchvision.models.get_model, name, **options), partial(image, side))


def of_timm(name: str) -> Subject:
    """Its side is looked up when it is needed: another version of timm may not have the model."""
    return Subject(name, partial(timm.create_model, name), lambda: image(timm.get_pretrained_cfg(name).input_size[-1]))


class FirstOutput(nn.Module):
    """A model of transformers that returns a tensor: the tracers among the peers cannot return its dict or cache."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor) -> Tensor:
        output: Tensor = self.model(input_ids, use_cache=False)[0]
        return output


def of_transformers(name: str, model: Any, config: Any) -> Subject:
    return Subject(f"{name} s{SEQUENCE}", lambda: FirstOutput(model(config())), partial(ids, SEQUENCE))


HEADLINE = (
    of_torchvision("resnet50"),
    of_torchvision("vit_b_16"),
    of_torchvision("swin_t"),
    of_torchvision("convnext_tiny"),
    of_transformers("gpt2", transformers.GPT2LMHeadModel, transformers.GPT2Config),
    of_transformers("bert", transformers.BertModel, transformers.BertConfig),
)

# Models of 1 GMAC and more with many ops for their arithmetic, one or two of a family: the least time per op.
SWEEP = (
    of_torchvision("densenet121"),
    of_torchvision("efficientnet_b3", 300),
    of_torchvision("regnet_y_1_6gf"),
    of_timm("cait_xxs24_224"),
    of_timm("coat_lite_tiny"),
    of_timm("convit_tiny"),
    of_timm("crossvit_tiny_240"),
    of_timm("efficientformerv2_s2"),
    of_timm("efficientvim_m4"),
    of_timm("halonet_h1"),
    of_timm("hrnet_w18"),
    of_timm("levit_256d"),
    of_timm("levit_conv_256"),
    of_timm("maxvit_rmlp_pico_rw_256"),
    of_timm("mobilenetv4_hybrid_medium"),
    of_timm("mobileone_s0"),
    of_timm("mobilevit_s"),
    of_timm("mvitv2_tiny"),
    of_timm("regnetz_b16_evos"),
    of_timm("repvit_m1_0"),
    of_timm("tiny_vit_5m_224"),
    of_timm("xcit_tiny_12_p16_224"),
)
