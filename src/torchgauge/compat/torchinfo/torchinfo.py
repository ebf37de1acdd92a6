"""`summary`: the layers of a model as a table."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from torchgauge.compat.surroundings import require_module
from torchgauge.compat.torchinfo.enums import ColumnSettings, Mode, RowSettings, Verbosity
from torchgauge.compat.torchinfo.formatting import FormattingOptions
from torchgauge.compat.torchinfo.inputs import Inputs, from_data, from_size
from torchgauge.compat.torchinfo.layer_info import LayerInfo
from torchgauge.compat.torchinfo.layers import LayerCalls, called_layers, static_layers
from torchgauge.compat.torchinfo.model_statistics import ModelStatistics
from torchgauge.errors import TorchgaugeError

REQUIRES_INPUT = {ColumnSettings.INPUT_SIZE, ColumnSettings.OUTPUT_SIZE, ColumnSettings.MULT_ADDS}

# What `cache_forward_pass` keeps: by the model itself and all that decides what its layers show.
_cached: dict[tuple[Any, ...], tuple[nn.Module, list[LayerInfo]]] = {}


def summary(
    model: nn.Module,
    input_size: Sequence[Any] | None = None,
    input_data: torch.Tensor | np.ndarray[Any, Any] | Sequence[Any] | Mapping[str, Any] | None = None,
    batch_dim: int | None = None,
    cache_forward_pass: bool | None = None,
    col_names: Iterable[str] | None = None,
    col_width: int = 25,
    depth: int = 3,
    device: torch.device | str | None = None,
    dtypes: Sequence[Any] | None = None,
    mode: str | None = None,
    row_settings: Iterable[str] | None = None,
    verbose: int | None = None,
    **kwargs: Any,
) -> ModelStatistics:
    """The layers of a model: names, shapes, parameters, mult-adds. Printed unless `verbose` is 0.

    The forward pass is made on tensors without values; the model stays where and as it is. `input_size` holds the batch
    unless `batch_dim` says where it goes; without any input there are names and parameters only. `kwargs` go to the
    model's forward.
    """
    require_module(model)
    has_input = input_size is not None or input_data is not None
    columns = _columns(col_names, has_input)
    rows = {RowSettings.DEPTH} if row_settings is None else {RowSettings(name) for name in row_settings}
    chosen = Mode(mode or Mode.EVAL)
    train = None if chosen == Mode.SAME else chosen == Mode.TRAIN
    if verbose is None:
        verbose = Verbosity.QUIET if getattr(sys, "ps1", None) else Verbosity.DEFAULT
    where = None if device is None else torch.device(device)
    _check(input_size, input_data, columns, col_width, verbose)
    if not has_input:
        inputs, layers = Inputs(), static_layers(model)
    else:
        inputs = from_data(input_data) if input_size is None else from_size(input_size, dtypes, batch_dim)
        layers = _layers(model, inputs, kwargs, batch_dim, train, where, keep=bool(cache_forward_pass))
    formatting = FormattingOptions(depth, verbose, columns, col_width, rows)
    results = ModelStatistics(layers, inputs.sizes, inputs.nbytes, formatting)
    if verbose > Verbosity.QUIET:
        print(results)
    return results


def clear_cached_forward_pass() -> None:
    _cached.clear()


def _columns(names: Iterable[str] | None, has_input: bool) -> tuple[ColumnSettings, ...]:
    if names is not None:
        return tuple(ColumnSettings(name) for name in names)
    shown = (ColumnSettings.OUTPUT_SIZE, ColumnSettings.NUM_PARAMS)
    return shown if has_input else shown[1:]


def _check(size: Any, data: Any, columns: tuple[ColumnSettings, ...], col_width: int, verbose: int) -> None:
    if col_width <= 0:
        raise ValueError(f"col_width must be greater than 0, not {col_width}")
    if verbose not in tuple(Verbosity):
        raise ValueError(f"verbose is 0 (quiet), 1 (the default) or 2 (weights and biases too), not {verbose}")
    if size is not None and data is not None:
        raise RuntimeError("give input_data or input_size, not both")
    missing = REQUIRES_INPUT.intersection(columns) if size is None and data is None else ()
    if missing:
        names = ", ".join(sorted(column.value for column in missing))
        raise ValueError(f"without input_data or input_size there are no columns {names}")


def _layers(
    model: nn.Module,
    inputs: Inputs,
    kwargs: dict[str, Any],
    batch_dim: int | None,
    train: bool | None,
    device: torch.device | None,
    *,
    keep: bool,
) -> list[LayerInfo]:
    modes = [module.training for module in model.modules()] if train is None else train
    key = (id(model), str(inputs.sizes), inputs.nbytes, str(from_data(kwargs).sizes), batch_dim, str(modes))
    if keep and key in _cached:
        return _cached[key][1]
    calls = LayerCalls(batch_dim)
    keywords = inputs.kwargs | kwargs
    try:
        layers = called_layers(model, inputs.args, keywords, calls, train=train, device=device)
    except TorchgaugeError as error:
        executed = [layer for layer in calls.layers if layer.executed]
        raise RuntimeError(f"{error}. Executed layers up to: {executed}") from error
    if keep:
        _cached[key] = (model, layers)
    return layers
