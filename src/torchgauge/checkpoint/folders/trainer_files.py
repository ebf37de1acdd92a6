"""The other files in a trainer's folder: its state and arguments, optimizer, scheduler, random generators.

Written by the Trainer of transformers and by accelerate's `save_state`.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from torchgauge.checkpoint.byte_source import opened
from torchgauge.checkpoint.file_text import parse_json, printable
from torchgauge.checkpoint.index import Index
from torchgauge.checkpoint.limits import JSON_BYTES
from torchgauge.checkpoint.pickle.plain_values import number_of
from torchgauge.checkpoint.registry import silent
from torchgauge.checkpoint.single_file import open_file
from torchgauge.checkpoint.training import merge_training
from torchgauge.errors import FormatError
from torchgauge.facts import TrainingRecord

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Optimizer, Scheduler

_STATE = "trainer_state.json"
_PARTS = re.compile(
    r"training_args\.bin|optimizer(_\d+)?\.(pt|bin)|scheduler(_\d+)?\.(pt|bin)|scaler\.(pt|bin)"
    r"|rng_state(_\d+)?\.pth|random_states_\d+\.pkl|custom_checkpoint_\d+\.pkl"
)


def with_trainer_files(index: Index, folder: str) -> Index:
    """Add the files of a trainer to the index of its folder; unreadable files become warnings."""
    names = sorted(name for name in os.listdir(folder) if _PARTS.fullmatch(name))
    found: list[TrainingRecord | None] = [index.training]
    imports, warnings = list(index.imports), list(index.warnings)
    if os.path.isfile(os.path.join(folder, _STATE)):
        try:
            found.append(_trainer_state(os.path.join(folder, _STATE)))
        except FormatError as error:
            warnings.append(f"{_STATE} was not used: {error}")
    for name in names:
        path = os.path.join(folder, name)
        if path in index.files:
            continue
        try:
            part = open_file(path, silent)
        except FormatError as error:
            imports += error.imports
            warnings.append(f"{printable(name)} was not used: {error}")
            continue
        imports += part.imports
        if part.training is not None:
            # A file that is a single value is named after the file.
            optimizers: list[Optimizer] = [{**one, "name": one["name"] or name} for one in part.training.optimizers]
            schedulers: list[Scheduler] = [{**one, "name": one["name"] or name} for one in part.training.schedulers]
            found.append(replace(part.training, optimizers=tuple(optimizers), schedulers=tuple(schedulers)))
    training = merge_training(found)
    if training is not None and training.best_metric is not None and training.best_metric["name"] == "best_metric":
        metric = training.arguments.get("metric_for_best_model")
        if isinstance(metric, str):
            training = replace(training, best_metric={**training.best_metric, "name": metric})
    return replace(index, training=training, imports=tuple(imports), warnings=tuple(warnings))


def _trainer_state(path: str) -> TrainingRecord:
    with opened(path) as source:
        if source.size > JSON_BYTES:
            raise FormatError(f"{_STATE}: too large for a trainer's state")
        state = parse_json(source.read(0, source.size), _STATE)
    best, history = number_of(state.get("best_metric")), state.get("log_history")
    metrics: dict[str, float] = {}
    for row in history if isinstance(history, list) else ():
        for key, value in row.items() if isinstance(row, dict) else ():
            number = number_of(value)
            if number is not None and key not in ("epoch", "step") and not key.endswith(("_runtime", "_per_second")):
                metrics[printable(key)] = number  # the last logged value
    return TrainingRecord(
        made_by="transformers Trainer",
        epoch=number_of(state.get("epoch")),
        step=number_of(state.get("global_step")),
        best_metric=None if best is None else {"name": "best_metric", "value": best},
        metrics=metrics,
    )
