"""`timm:NAME`: models of timm, built without pretrained weights and without the network."""

from __future__ import annotations

from functools import partial

from torchgauge.errors import TargetError
from torchgauge.source.building import Recipe
from torchgauge.source.packages import import_optional
from torchgauge.source.spelling import did_you_mean


def find(name: str) -> Recipe:
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
