"""`torchvision:NAME`: models of torchvision, also for detection, segmentation, video and optical flow."""

from __future__ import annotations

import inspect
from functools import partial

from torchgauge.errors import TargetError
from torchgauge.source.building import Recipe
from torchgauge.source.packages import import_optional
from torchgauge.source.spelling import did_you_mean

# No weights are downloaded, none are quantized: left out, a backbone's weights default to the pretrained ones.
_SETTINGS = {"weights": None, "weights_backbone": None, "quantize": False}


def find(name: str) -> Recipe:
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
