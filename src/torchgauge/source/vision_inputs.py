"""Inputs of timm's and torchvision's models, which know their images."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from torch import nn

from torchgauge.source.candidate import Assignment, Defaults, Guess
from torchgauge.source.layers import entries
from torchgauge.source.signature import ForwardSignature

_FLOW_FRAME = (520, 960)  # Sintel frames padded to a multiple of 8, as RAFT's weights are evaluated
_SEGMENTATION_SIZE = 520  # the crop of torchvision's reference training
_CLIP = (16, 224, 224)


def vision_assignments(
    model: nn.Module, signature: ForwardSignature, defaults: Defaults, given: Collection[str]
) -> Iterator[Assignment]:
    """What torchvision's area or timm's pretrained config says; nothing for models of others."""
    names = [parameter.name for parameter in signature.positional]
    if not names or names[0] in given:
        return
    channels, area = _channels(model), _torchvision_area(model)
    if area == "optical_flow" and len(names) > 1:
        guess = Guess(defaults.floats(defaults.batch, 3, *_FLOW_FRAME), "the frames of torchvision's optical flow")
        yield dict.fromkeys(names[:2], guess)
    elif area == "detection" and hasattr(model, "transform"):
        yield {names[0]: _detection(model.transform, defaults)}
    elif area is not None and channels is not None:
        size, source = _torchvision_size(model, area)
        yield {names[0]: Guess(defaults.floats(defaults.batch, channels, *size), source)}
    elif area is None:
        for guess in _timm(model, channels, defaults):
            yield {names[0]: guess}


def _channels(model: nn.Module) -> int | None:
    """What the first layer takes: a model may be built for other channels than its pretrained weights."""
    first = next(entries(model), None)
    return getattr(first.layer, "in_channels", None) if first else None


def _torchvision_area(model: nn.Module) -> str | None:
    """`detection`, `video`, …; `resnet` and similar for classification; None for models of other packages."""
    for base in type(model).__mro__:
        package, _, rest = base.__module__.partition(".models.")
        if package == "torchvision":
            return rest.partition(".")[0]
    return None


def _detection(transform: Any, defaults: Defaults) -> Guess:
    size = transform.fixed_size or (transform.min_size[-1], transform.min_size[-1])
    images = [defaults.floats(3, *size) for _ in range(defaults.batch)]
    return Guess(images, "a list of images of the size the model's transform makes")


def _torchvision_size(model: nn.Module, area: str) -> tuple[tuple[int, ...], str]:
    bases = {base.__name__ for base in type(model).__mro__}
    if area == "video":
        return (16, 112, 112) if "VideoResNet" in bases else _CLIP, "the clips of torchvision's video models"
    if area == "segmentation":
        return (_SEGMENTATION_SIZE, _SEGMENTATION_SIZE), "the crop of torchvision's segmentation models"
    if "Inception3" in bases:
        return (299, 299), "the crop of Inception v3"
    size = getattr(model, "image_size", None)
    if isinstance(size, int):
        return (size, size), "image_size of the model"
    return (224, 224), "the usual crop of torchvision's models"


# Grey, RGB, RGB and depth, multispectral: more channels than this are not an image.
_MOST_IMAGE_CHANNELS = 16


def _timm(model: Any, channels: int | None, defaults: Defaults) -> Iterator[Guess]:
    config = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None)
    size = config.get("input_size") if isinstance(config, dict) else None
    if not size:
        return
    if channels is not None and channels > _MOST_IMAGE_CHANNELS:
        channels = None  # the first convolution works on patches (space to depth, DCT): the config knows the image
    built_for = getattr(getattr(model, "patch_embed", None), "img_size", None)
    if isinstance(built_for, tuple) and built_for != tuple(size[1:]):
        tensor = defaults.floats(defaults.batch, channels or size[0], *built_for)
        yield Guess(tensor, "img_size of the model's patch embedding")
    yield Guess(defaults.floats(defaults.batch, channels or size[0], *size[1:]), "input_size of the timm model")
