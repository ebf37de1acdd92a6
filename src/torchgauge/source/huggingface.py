"""`hf:PATH_OR_CLASS`: transformers models, built from their config. No remote code is run, nothing is downloaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypedDict

from torch import nn

from torchgauge.errors import TargetError
from torchgauge.facts.schema import conform
from torchgauge.registry import collector_paused
from torchgauge.source.building import Recipe
from torchgauge.source.config_limits import require_possible_numbers
from torchgauge.source.offline import offline
from torchgauge.source.packages import import_optional, torchvision_importable
from torchgauge.source.target_check import did_you_mean

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_UNKNOWN = (
    "is not known to transformers: it needs custom code, which is never run from a config. "
    "Write a function that builds the model and give that, as path/to/file.py:Name"
)


_PURPOSE = "an hf: target"


class _Names(TypedDict, total=False):
    """The members that torchgauge reads; the config classes of transformers check the rest."""

    model_type: str | None
    architectures: list[str] | None


def is_config(path: Path) -> bool:
    """Whether a path is a Hugging Face folder or its config."""
    return (path / "config.json").is_file() or (path.name == "config.json" and path.is_file())


def config_file(entry: str) -> Path | None:
    """The config.json that `entry` names as a file or folder; None if it is not a path."""
    path = Path(entry)
    if path.is_dir():
        path = path / "config.json"
        if not path.is_file():
            raise TargetError(f"the folder '{entry}' has no config.json")
    elif path.suffix == ".json" and not path.is_file():
        raise TargetError(f"there is no file '{entry}'")
    return path if path.is_file() else None


def read(path: Path) -> Recipe:
    """The model of a config.json: its first architecture, or the base model of its type."""

    def without_files(pairs: list[tuple[str, Any]]) -> object:
        """Called for every JSON object: remove the settings that name files. Transformers writes an infinite number as
        an object."""
        if len(pairs) == 1 and pairs[0][0] == "__float__" and pairs[0][1] in ("Infinity", "-Infinity", "NaN"):
            return float(pairs[0][1])
        kept = ((key, value) for key, value in pairs if key not in _OF_FILES)
        return {key: False if key == "use_pretrained_backbone" else value for key, value in kept}

    transformers = import_optional("transformers", _PURPOSE)
    try:
        settings = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=without_files)
    except (OSError, ValueError, RecursionError) as error:
        raise TargetError(f"'{path}' could not be read as JSON: {error}") from error
    named = conform(settings, _Names, f"'{path}' is not a config of a transformers model", TargetError)
    types, model_type = transformers.CONFIG_MAPPING, named.get("model_type")
    architecture = next(iter(named.get("architectures") or ()), None)
    if model_type not in types:
        if model_type is None:
            raise TargetError(f"'{path}' has no model_type: it is not a transformers config")
        unknown = f"this transformers does not know.{did_you_mean(model_type, types)}"
        which = _UNKNOWN if "auto_map" in settings else unknown
        raise TargetError(f"'{path}' has the model type '{model_type}', which {which}")
    if architecture is not None and _model_class(transformers, architecture) is None:
        raise TargetError(f"'{path}' names the architecture '{architecture}', which {_UNKNOWN}")
    require_possible_numbers(settings, f"'{path}'")
    try:
        with offline(f"'{path}'"):
            config = types[model_type].from_dict(settings)
    except TargetError:
        raise
    # Each config checks its own values, with errors of any kind.
    except Exception as error:
        reason = " ".join(str(error).split())  # transformers breaks its lines
        raise TargetError(f"'{path}' is not a valid '{model_type}' config: {reason}") from error
    if architecture is None:
        return _base_model(transformers, config, f"'{path}'")
    return recipe_of(f"{architecture} of '{path}'", _model_class(transformers, architecture)._from_config, config)


def find(entry: str) -> Recipe:
    """The default model of a model class, a config class or a model type (`GPT2LMHeadModel`, `GPT2Config`, `gpt2`)."""
    transformers = import_optional("transformers", _PURPOSE)
    if entry in transformers.CONFIG_MAPPING:
        return _base_model(transformers, transformers.CONFIG_MAPPING[entry](), f"the model type '{entry}'")
    found = _public(transformers, entry)
    if isinstance(found, type) and issubclass(found, transformers.PretrainedConfig):
        return _base_model(transformers, found(), entry)
    model_class = _model_class(transformers, entry)
    if model_class is None:
        backends = getattr(found, "_backends", None)
        if backends:
            needed = ", ".join(backends)
            raise TargetError(f"transformers' {entry} needs packages that are not installed: {needed}")
        known = (*transformers.CONFIG_MAPPING, *(name for name in dir(transformers) if name[:1].isupper()))
        raise TargetError(
            f"'{entry}' is neither a folder with a config.json nor a model class, config class or type of transformers."
            f"{did_you_mean(entry, known)} Nothing is downloaded: for a model of the hub, download its config.json "
            "first."
        )
    return recipe_of(entry, model_class._from_config, model_class.config_class())


# Settings that would make a library read weights or download kernels. A model is built only for its shapes.
_OF_FILES = frozenset(
    (
        "attn_implementation", "_attn_implementation", "_attn_implementation_internal", "_experts_implementation",
        "_experts_implementation_internal", "cache_dir", "checkpoint_path", "experts_implementation", "file",
        "hf_hub_id", "pretrained", "pretrained_strict", "state_dict", "url",
    )
)  # fmt: skip


def _public(transformers: ModuleType, name: str) -> Any:
    """The public object of transformers with this name, which may come from a file."""
    # A lazy attribute: it imports the module of the model, which may import torchvision.
    with torchvision_importable(), collector_paused():
        return getattr(transformers, name, None) if name in transformers.__all__ else None


def _model_class(transformers: ModuleType, name: str) -> Any:
    """A model class of transformers, or None. Auto classes have no config, `…PreTrainedModel` classes no forward."""
    found = _public(transformers, name)
    is_model = isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)
    return found if is_model and found.config_class is not None and not name.endswith("PreTrainedModel") else None


def _base_model(transformers: ModuleType, config: PretrainedConfig, what: str) -> Recipe:
    if type(config) not in transformers.MODEL_MAPPING:
        raise TargetError(f"{what} has no base model: give a model class, like hf:GPT2LMHeadModel")
    return recipe_of(f"the base model of {what}", transformers.AutoModel.from_config, config)


def model_class(name: str) -> type[PreTrainedModel]:
    """The model class of transformers with this name, or None."""
    return _model_class(import_optional("transformers", _PURPOSE), name)


def recipe_of(name: str, constructor: Callable[[PretrainedConfig], nn.Module], config: PretrainedConfig) -> Recipe:
    def build() -> nn.Module:
        with torchvision_importable():
            # A constructor modifies its config, so each build gets a copy.
            return constructor(deepcopy(config))

    return Recipe(name, build)
