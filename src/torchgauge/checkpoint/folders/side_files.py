"""The files next to the weights in a folder: the configuration of an adapter (LoRA and other PEFT methods), and a
trainer's state and arguments, optimizer, scheduler, random generators.

Written by the Trainer of transformers and by accelerate's `save_state`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from torchgauge.checkpoint.byte_source import printable, read_json
from torchgauge.checkpoint.index import Entry, Index, Role
from torchgauge.checkpoint.pickle.plain_values import number_of, plain_value
from torchgauge.checkpoint.registry import silent
from torchgauge.checkpoint.single_file import open_file
from torchgauge.checkpoint.training import merge_training
from torchgauge.errors import FormatError
from torchgauge.facts import AdapterRecord, TrainingRecord

if TYPE_CHECKING:
    from torchgauge.facts.files import Optimizer, Scheduler


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
    state = read_json(path)
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


CONFIG = "adapter_config.json"
# The two factors of an update, (rank × in) and (out × rank), in PEFT, diffusers and kohya's scripts.
_DOWN = re.compile(r"(.*?)[._](lora_A|lora_down|lora\.down|lora_embedding_A)(?:\.\w+)?(?:\.weight)?")
_UP = re.compile(r"(.*?)[._](lora_B|lora_up|lora\.up|lora_embedding_B)(?:\.\w+)?(?:\.weight)?")
_MARKS = {
    "LORA": re.compile(r"lora_(A|B|down|up|magnitude_vector|embedding_[AB])|\.lora\.(down|up)\."),
    "IA3": re.compile(r"ia3_l"),
    "PROMPT_TUNING": re.compile(r"^prompt_embeddings$|prompt_encoder"),
    "ADALORA": re.compile(r"lora_E"),
    "LOHA": re.compile(r"hada_w1"),
    "LOKR": re.compile(r"lokr_w1"),
    "OFT": re.compile(r"\boft_r\b"),
    "VERA": re.compile(r"vera_lambda"),
}
_MARKED = re.compile("|".join(mark.pattern for mark in _MARKS.values()))
_TITLES = {"LORA": "LoRA", "ADALORA": "AdaLoRA", "LOHA": "LoHa", "LOKR": "LoKr", "VERA": "VeRA", "IA3": "IA3"}
_OWN = (
    "peft_type", "base_model_name_or_path", "r", "lora_alpha", "target_modules", "auto_mapping", "revision",
    "inference_mode",
)  # fmt: skip


def with_adapter(index: Index, folder: str, open_base: Callable[[str], Index]) -> Index:
    """Add an adapter record to the index if there is an adapter configuration or its tensors have adapter names."""
    path = os.path.join(folder, CONFIG)
    config: dict[str, object] = {}
    warnings = index.warnings
    own = [entry for entry in index.entries if entry.role in (Role.PARAMETER, Role.OTHER)]
    if os.path.isfile(path):
        try:
            config = read_json(path)
        except FormatError as error:
            warnings = (*warnings, f"{CONFIG} was not used: {error}")
    named = [entry.name for entry in own if _MARKED.search(entry.name)]
    marked = {kind: sum(bool(mark.search(name)) for name in named) for kind, mark in _MARKS.items()}
    likely = max(marked, key=lambda kind: marked[kind])
    # With a configuration every tensor belongs to the adapter; without one, nearly all must have adapter names.
    stated = config.get("peft_type")
    if not isinstance(stated, str) and (not own or 2 * marked[likely] < len(own)):
        return replace(index, warnings=warnings)
    kind = stated if isinstance(stated, str) else likely
    if config.get("use_dora") is True or any("lora_magnitude_vector" in entry.name for entry in own):
        method = "DoRA"
    else:
        method = _TITLES.get(kind.upper()) or printable(kind).replace("_", " ").lower()
    record = _described(method, config, own)
    base = config.get("base_model_name_or_path")
    # A base model on a local disk is counted; hub names are not looked up, network paths not followed.
    if isinstance(base, str) and not (base.startswith(("//", "\\\\")) or "\0" in base) and os.path.exists(base):
        with suppress(FormatError):
            record = replace(record, base_params=open_base(base).logical_params or None)
    return replace(index, adapter=record, warnings=warnings)


def _described(method: str, config: Mapping[str, object], entries: list[Entry]) -> AdapterRecord:
    downs = {match[1]: entry for entry in entries if (match := _DOWN.fullmatch(entry.name))}
    ups = {match[1]: entry for entry in entries if (match := _UP.fullmatch(entry.name))}
    adapted = 0
    for place in downs.keys() & ups.keys():
        # The elements of the product of the two factors: a matrix or a convolution kernel.
        inner, outer = downs[place].spec.shape, ups[place].spec.shape
        rank = min(inner[0], outer[1] if len(outer) > 1 else inner[0]) if inner else 0
        adapted += downs[place].elements * ups[place].elements // (rank * rank) if rank else 0
    ranks = {min(entry.spec.shape) for entry in downs.values() if len(entry.spec.shape) == 2}
    stated, alpha = number_of(config.get("r")), number_of(config.get("lora_alpha"))
    places = downs or dict.fromkeys(entry.name.rpartition(".")[0] for entry in entries)
    targets = config.get("target_modules")
    named = targets if isinstance(targets, list) else [targets] if isinstance(targets, str) else []
    base = config.get("base_model_name_or_path")
    plain = plain_value(dict(config))
    assert isinstance(plain, dict)
    settings = {key: value for key, value in plain.items() if key not in _OWN and value not in (None, {}, [], False)}
    return AdapterRecord(
        method=method,
        base_model=printable(base) if isinstance(base, str) else None,
        rank=int(stated) if stated is not None else ranks.pop() if len(ranks) == 1 else None,
        alpha=alpha,
        targets=tuple(sorted(printable(name) for name in named if isinstance(name, str))),
        modules=len(places),
        trainable_params=sum(entry.elements for entry in entries if entry.shared_with is None),
        adapted_params=adapted or None,
        settings=settings,
    )
