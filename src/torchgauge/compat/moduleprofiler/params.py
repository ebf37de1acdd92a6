"""Parameters of a module and all below it, apart by whether they are trained."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn


def param_spec(module: nn.Module, *, size: bool, dtype: bool) -> dict[str, Any]:
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    frozen = [parameter for parameter in module.parameters() if not parameter.requires_grad]
    return _figures("trainable", trained, size, dtype) | _figures("nontrainable", frozen, size, dtype)


def shares(spec: dict[str, Any], total: int) -> dict[str, float]:
    """Of the parameters of the whole model; none of a model that has none."""
    keys = ("trainable_params", "nontrainable_params")
    return {f"{key}_percent": spec[key] / total if total else 0.0 for key in keys}


def _figures(prefix: str, parameters: Iterable[nn.Parameter], size: bool, dtype: bool) -> dict[str, Any]:
    found = list(parameters)
    bits = sum(parameter.numel() * parameter.element_size() * 8 for parameter in found)
    return {
        f"{prefix}_params": sum(parameter.numel() for parameter in found),
        f"{prefix}_params_dtype": found[-1].dtype if found and dtype else None,
        f"{prefix}_params_size_bits": bits if size else 0,
    }
