"""A config of transformers with given settings, also with such as it refuses on the way to those that it takes."""

from __future__ import annotations

from typing import Any

from torchgauge.source.identify.settings import Settings

# A file may claim any size, and constructors go over positions one by one, configs over labels.
_LARGEST, _MOST_LABELS = 1 << 24, 200_000


def configure(config_class: Any, settings: Settings) -> Any | None:
    """None where there is no such config, or none that could be built.

    Two numbers that must agree cannot be found one by one: what the config refuses is set on it all the same, and
    `is_accepted` tells.
    """
    if _largest(settings) > _LARGEST or settings.get("num_labels", 0) > _MOST_LABELS:
        return None
    for make in (_made, _forced):
        # Each config checks its own values, with errors of any kind.
        try:
            config = make(config_class, settings)
        except Exception:
            continue
        fit_tokens(config)
        return config
    return None


def _largest(settings: Any) -> int:
    values = settings.values() if isinstance(settings, dict) else settings if isinstance(settings, list) else ()
    return max((value if isinstance(value, int) else _largest(value) for value in values), default=0)


def _made(config_class: Any, settings: Settings) -> Any:
    return config_class(**settings)


def _forced(config_class: Any, settings: Settings) -> Any:
    config = config_class()
    _set_all(config, settings)
    return config


def _set_all(config: Any, settings: Settings) -> None:
    by_layer = [name for name, value in vars(config).items() if _is_list_of(value, _depth(config))]
    for name, value in settings.items():
        if isinstance(value, dict) and hasattr(getattr(config, name, None), "to_diff_dict"):
            _set_all(getattr(config, name), {key: item for key, item in value.items() if key != "model_type"})
        else:
            setattr(config, name, value)
    for name in by_layer:
        _fit_list(config, name, _depth(config))


def _depth(config: Any) -> int:
    depth = getattr(config, "num_hidden_layers", 0)
    return depth if isinstance(depth, int) else 0


def _is_list_of(value: Any, length: int) -> bool:
    return isinstance(value, list | tuple) and len(value) == length > 0


def _fit_list(config: Any, name: str, depth: int) -> None:
    """A list with an entry for each layer goes on as it began."""
    value = getattr(config, name)
    if not _is_list_of(value, depth) and value:
        setattr(config, name, [value[index % len(value)] for index in range(depth)])


def is_accepted(config: Any) -> bool:
    """Whether the config, as it is now, is one that it would take."""
    check = getattr(config, "validate_architecture", None)
    try:
        if check is not None:
            check()
    except Exception:
        return False
    return True


def fit_tokens(config: Any) -> None:
    """Special tokens beyond a smaller vocabulary would keep the model from being built; no shape follows them."""
    words = getattr(config, "vocab_size", None)
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_diff_dict"):
            fit_tokens(value)
        elif type(words) is int and name.endswith("_token_id") and type(value) is int and value >= words:
            setattr(config, name, words - 1)
