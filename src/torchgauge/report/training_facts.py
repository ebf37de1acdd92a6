"""What a checkpoint is of, in words: the training that wrote it, the model that an adapter changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchgauge.facts import AdapterRecord, TrainingRecord
from torchgauge.report.escape import visible
from torchgauge.units import format_bytes, format_count, format_exact, format_percent, format_value

# Name, value, remark.
Fact = tuple[str, str, str]

_LONGEST = 60  # of one value
_SHOWN = 16  # arguments; JSON has all
# What a reader looks for first among a hundred arguments.
_FIRST = (
    "model", "arch", "model_name", "dataset", "data", "lr", "learning_rate", "batch_size",
    "per_device_train_batch_size", "gradient_accumulation_steps", "epochs", "num_train_epochs", "max_steps", "opt",
    "optim", "optimizer", "weight_decay", "momentum", "sched", "lr_scheduler_type", "warmup_steps", "warmup_ratio",
    "imgsz", "img_size", "seed", "bf16", "fp16", "amp",
)  # fmt: skip
# Settings of torch's optimizers that choose an implementation, not a method.
_IMPLEMENTATION = ("maximize", "foreach", "differentiable", "fused", "capturable", "decoupled_weight_decay")


def training_facts(found: TrainingRecord | None) -> list[Fact]:
    if found is None:
        return []
    facts: list[Fact] = []
    progress = [
        f"{name} {format_exact(int(value)) if float(value).is_integer() else format_value(value)}"
        for name, value in (("epoch", found.epoch), ("step", found.step))
        if value is not None
    ]
    by = ", ".join(filter(None, (found.model, found.made_by and f"saved by {found.made_by}")))
    facts.append(("Training", ", ".join(progress) or "state of a run", visible(by)))
    if found.best_metric is not None:
        best = found.best_metric
        facts.append(("Best metric", _text(best["value"]), visible(str(best["name"]))))
    if found.metrics:
        facts.append(("Metrics", "", _settings(found.metrics)))
    for one in found.optimizers:
        groups = f"{one['groups']} parameter groups" if one["groups"] != 1 else ""
        state = f"state {format_bytes(one['state_bytes'])} in {format_exact(one['state_tensors'])} tensors"
        shown = {key: value for key, value in one["settings"].items() if key not in _IMPLEMENTATION}
        facts.append(("Optimizer", _type(one), "; ".join(filter(None, (state, groups, _settings(shown))))))
    facts += [("LR scheduler", _type(one), _settings(one["settings"])) for one in found.schedulers]
    if found.ema is not None:
        size = f"{format_count(found.ema['elements'])} elements, {format_bytes(found.ema['bytes'])}"
        more = {key: found.ema[key] for key in ("decay", "updates") if found.ema[key] is not None}
        facts.append(("EMA copy", visible(str(found.ema["name"])), ", ".join(filter(None, (size, _settings(more))))))
    if found.rng is not None:
        facts.append(("Random state", visible(", ".join(found.rng["generators"])), format_bytes(found.rng["bytes"])))
    if found.scaler is not None:
        facts.append(("Grad scaler", "", _settings(found.scaler)))
    if found.arguments:
        first = [key for key in _FIRST if key in found.arguments]
        known = {key: found.arguments[key] for key in (*first, *found.arguments) if found.arguments[key] is not None}
        shown = dict(list(known.items())[:_SHOWN])
        others = f", and {len(known) - _SHOWN:,} more" if len(known) > _SHOWN else ""
        facts.append(("Arguments", "", _settings(shown) + others))
    return facts


def adapter_facts(found: AdapterRecord | None) -> list[Fact]:
    if found is None:
        return []
    of = f"of {found.base_model}" if found.base_model else "of a base model that its files do not name"
    facts: list[Fact] = [("Adapter", visible(found.method), visible(of))]
    scale = {"rank": found.rank, "alpha": found.alpha}
    known = ", ".join(f"{name} {_text(value)}" for name, value in scale.items() if value is not None)
    targets = f"targets {', '.join(found.targets)}; " if found.targets else ""
    modules = f"{format_exact(found.modules)} modules have tensors of it"
    facts.append(("Adapts", visible(known), visible(f"{targets}{modules}")))
    shares = []
    if found.trainable_share is not None:
        whole = format_exact((found.base_params or 0) + found.trainable_params)
        shares.append(f"{format_percent(found.trainable_share)} of {whole} with the base")
    if found.share_of_adapted is not None:
        shares.append(f"{format_percent(found.share_of_adapted)} of the matrices that it adapts")
    facts.append(("Trainable", format_exact(found.trainable_params), ", ".join(shares)))
    if found.settings:
        facts.append(("Adapter config", "", _settings(found.settings)))
    return facts


def _type(one: Mapping[str, Any]) -> str:
    return visible(one["type"] or f"{one['name'] or 'of'} unknown type")


def _settings(values: Mapping[str, Any]) -> str:
    """`lr 0.001, betas 0.9 0.999`: what is set; nested ones by their keys."""
    parts = [f"{name.replace('_', ' ').strip()} {_text(value)}" for name, value in values.items() if value is not None]
    return visible(", ".join(parts))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        value = "{" + ", ".join(f"{key} {_text(item)}" for key, item in value.items()) + "}"
    elif isinstance(value, list | tuple):
        value = " ".join(map(_text, value)) or "none"
    text = visible(str(value))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
