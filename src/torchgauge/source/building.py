"""Build a model without changing the random generators and, if its constructor allows it, without its weights."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from torchgauge.errors import TargetError
from torchgauge.source.config_limits import MAX_REAL_BYTES, bounded_building
from torchgauge.source.offline import offline
from torchgauge.source.packages import import_optional
from torchgauge.source.process_state import rng_untouched
from torchgauge.source.target_check import did_you_mean


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to build a registry model. `looks_at_values`: its forward needs parameters with values."""

    name: str
    factory: Callable[[], nn.Module]
    looks_at_values: bool = False

    def build(self) -> nn.Module:
        """The model in eval mode, on the meta device unless its forward needs values."""
        return self._build(build_for_real if self.looks_at_values else build_without_weights, MAX_REAL_BYTES)

    def build_real(self) -> nn.Module:
        """The model in eval mode with initial weights."""
        return self._build(build_for_real, inf)

    def _build(self, builder: Callable[[Callable[[], nn.Module]], nn.Module], real_bytes: float) -> nn.Module:
        try:
            # Entered first, so that only tensors that end up on a real device count.
            with bounded_building(self.name, real_bytes), offline(self.name):
                return builder(self.factory)
        except TargetError:
            raise
        # The constructor is third-party code, given an arbitrary config: it may raise anything.
        except Exception as error:
            raise TargetError(f"{self.name} could not be built: {type(error).__name__}: {error}") from error


def build_without_weights(factory: Callable[[], nn.Module]) -> nn.Module:
    """The model in eval mode with its parameters on the meta device: a hundred billion of them cost nothing.

    If the constructor reads values, only uninitialised tensors (the weights of layers) are put on the meta device; if
    it reads those too, all tensors are real.
    """
    for placement in (torch.device("meta"), _UninitialisedOnMeta()):
        try:
            return build_for_real(factory, placement)
        except (RuntimeError, TypeError, ValueError) as error:
            # Errors of reading a meta tensor name it. Any other error would recur after gigabytes of real weights.
            if "meta" not in str(error).lower():
                raise
    return build_for_real(factory)


def build_for_real(
    factory: Callable[[], nn.Module], placement: AbstractContextManager[object] | None = None
) -> nn.Module:
    """The model in eval mode, as its constructor builds it."""
    with rng_untouched(), warnings.catch_warnings():
        # About the initial weights, which are never used.
        warnings.simplefilter("ignore", FutureWarning)
        with placement or torch.device("cpu"):
            return factory().eval()


class _UninitialisedOnMeta(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.empty and kwargs.get("device") is None:
            kwargs = kwargs | {"device": "meta"}
        return func(*args, **kwargs)


# Arguments of torchvision's builders. Nothing is downloaded: without them, a backbone has pretrained weights.
_SETTINGS = {"weights": None, "weights_backbone": None, "quantize": False}


def find_timm(name: str) -> Recipe:
    """The model of that name, with or without the tag of its weights (`resnet50`, `resnet50.a1_in1k`)."""
    timm = import_optional("timm", "a timm: target")
    architecture, _, tag = name.partition(".")
    known = timm.list_models()
    if architecture not in known:
        hint = did_you_mean(architecture, known) or " timm.list_models() lists them."
        raise TargetError(f"timm has no model '{name}'.{hint}")
    tags = [entry.partition(".")[2] for entry in timm.list_pretrained(f"{architecture}.*")] if tag else []
    if tag and tag not in tags:
        raise TargetError(f"timm's model '{architecture}' has no weights '{tag}'.{did_you_mean(tag, tags)}")
    return Recipe(f"timm's model '{name}'", partial(timm.create_model, name, pretrained=False))


def find_torchvision(name: str) -> Recipe:
    """Also models for detection, segmentation, video and optical flow."""
    models = import_optional("torchvision.models", "a torchvision: target")
    known = models.list_models()
    if name.lower() not in known:
        hint = did_you_mean(name, known) or " torchvision.models.list_models() lists them."
        raise TargetError(f"torchvision has no model '{name}'.{hint}")
    builder = models.get_model_builder(name)
    taken = inspect.signature(builder).parameters
    settings = {key: value for key, value in _SETTINGS.items() if key in taken}
    # Detection models sort and drop boxes by their scores.
    looks_at_values = builder.__module__.startswith("torchvision.models.detection.")
    return Recipe(f"torchvision's model '{name}'", partial(builder, **settings), looks_at_values)
