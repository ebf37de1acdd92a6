"""`timm:NAME` and `torchvision:NAME`: models of these packages, built without pretrained weights or the network."""

from __future__ import annotations

import inspect
from functools import partial

from torchgauge.errors import TargetError
from torchgauge.source.building import Recipe
from torchgauge.source.packages import import_optional
from torchgauge.source.spelling import did_you_mean

# No weights are downloaded, none are quantized: left out, a backbone's weights default to the pretrained ones.
_SETTINGS = {"weights": None, "weights_backbone": None, "quantize": False}


def find_timm(name: str) -> Recipe:
    """The model of that name, with or without the tag of its weights (`resnet50`, `resnet50.a1_in1k`)."""
    timm = import_optional("timm", "a timm: target")
    architecture, _, tag = name.partition(".")
    known = timm.list_models()
    if architecture not in known:
        raise TargetError(f"timm has no model '{name}'.{did_you_mean(architecture, known)}")
    tags = [entry.partition(".")[2] for entry in timm.list_pretrained(f"{architecture}.*")] if tag else []
    if tag and tag not in tags:
        raise TargetError(f"timm's model '{architecture}' has no weights '{tag}'.{did_you_mean(tag, tags)}")
    return Recipe(f"timm's model '{name}'", partial(timm.create_model, name, pretrained=False))


def find_torchvision(name: str) -> Recipe:
    """Also models for detection, segmentation, video and optical flow."""
    models = import_optional("torchvision.models", "a torchvision: target")
    known = models.list_models()
    if name.lower() not in known:
        raise TargetError(f"torchvision has no model '{name}'.{did_you_mean(name, known)}")
    builder = models.get_model_builder(name)
    taken = inspect.signature(builder).parameters
    settings = {key: value for key, value in _SETTINGS.items() if key in taken}
    # Detection models sort and drop boxes by their scores.
    looks_at_values = builder.__module__.startswith("torchvision.models.detection.")
    return Recipe(f"torchvision's model '{name}'", partial(builder, **settings), looks_at_values)
