"""The training run of a checkpoint, from the literal values of its pickle, which is not executed.

Trainers differ, so values are recognised by structure if possible (an optimizer state has `param_groups`, a scheduler
`last_epoch`), otherwise by common names (epochs, metrics, arguments).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeGuard

from torchgauge.checkpoint.byte_source import printable
from torchgauge.checkpoint.index import Entry
from torchgauge.checkpoint.pickle.plain_values import number_of, plain_value
from torchgauge.checkpoint.pickle.values import Instance, Tensor
from torchgauge.checkpoint.pickle.walk import Path, attributes, is_module, key_text
from torchgauge.checkpoint.tensor_names import COPIES
from torchgauge.facts import TrainingRecord

if TYPE_CHECKING:
    from torchgauge.facts.files import Average, BestMetric, Optimizer, RandomState, Scheduler

_EPOCH = ("epoch", "current_epoch", "epochs", "last_epoch", "epoch_num", "n_epoch", "start_epoch")
_STEP = (
    "global_step", "step", "global_steps", "iteration", "iter", "iterations", "num_updates", "steps", "train_step",
    "current_step", "n_iter", "it", "update",
)  # fmt: skip
_ARGUMENTS = (
    "hyper_parameters", "hparams", "args", "train_args", "training_args", "arguments", "config", "cfg", "conf", "opt",
    "options", "hyperparameters", "hyperparams", "opts", "settings", "model_args", "ds_config",
)  # fmt: skip
_MODEL = ("arch", "model_name", "architecture", "model_type", "arch_name")
# Containers in which trainers keep their progress.
_FOLDERS = ("meta", "extra_state", "train_iterator", "train_state", "trainer", "trainer_state", "progress", "info")
_METRIC = re.compile(
    r"(^|_|\b)(loss|acc|acc1|top1|accuracy|metric|score|error|err|iou|miou|map|f1|bleu|ppl|perplexity|wer|cer|auc|fitness"
    r"|psnr|ssim|fid|rmse|mse|mae|dice|reward|return)(\d*)($|_|\b)",
    re.IGNORECASE,
)
_BEST = re.compile(r"^best($|_)(?!.*(epoch|step|iter|path|model_checkpoint))", re.IGNORECASE)
_SCHEDULED = re.compile(r"sched", re.IGNORECASE)
_GENERATORS = {
    "python": ("python", "random_state", "python_rng_state", "random_rng_state", "py_rng_state", "python_random_state"),
    "numpy": ("numpy", "numpy_random_seed", "numpy_rng_state", "np_rng_state", "numpy_random_state"),
    "torch": ("cpu", "torch", "torch_manual_seed", "torch_rng_state", "rng_state", "cpu_rng_state", "rng"),
    "cuda": ("cuda", "torch_cuda_manual_seed", "cuda_rng_state", "cuda_rng_state_all", "cuda_rng_states", "cuda_rng"),
}  # fmt: skip
# Further names of averaged copies: `ema_state`, `model_ema_state_dict`, `swa_weights`.
_COPY = re.compile(r"(^|_)(ema|swa|shadow|averaged)($|_)", re.IGNORECASE)
_RNG = re.compile(r"rng|random_state|random_seed|manual_seed", re.IGNORECASE)
_VISITED, _DEEPEST, _LONG_LIST = 20_000, 5, 64

# Type, settings that all its groups have, settings that none has; the first match counts.
_OPTIMIZERS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("LBFGS", ("max_iter", "history_size"), ()),
    ("Rprop", ("etas", "step_sizes"), ()),
    ("ASGD", ("lambd", "t0"), ()),
    ("Adadelta", ("rho",), ()),
    ("Adagrad", ("lr_decay", "initial_accumulator_value"), ()),
    ("RMSprop", ("alpha", "centered"), ()),
    ("Adafactor", ("beta2_decay",), ()),
    ("Adafactor", ("clip_threshold", "scale_parameter"), ()),
    ("Muon", ("ns_steps",), ()),
    ("LAMB", ("betas", "max_grad_norm"), ()),
    ("NAdam", ("betas", "momentum_decay"), ()),
    ("Adam", ("betas", "amsgrad"), ()),
    ("RAdam", ("betas", "eps", "decoupled_weight_decay"), ("amsgrad",)),
    ("Adamax", ("betas", "eps", "weight_decay", "maximize"), ("amsgrad",)),
    ("SparseAdam", ("betas", "eps"), ("weight_decay",)),
    ("AdamW", ("betas", "eps", "correct_bias"), ()),
    ("Lion", ("betas", "weight_decay"), ("eps",)),
    ("SGD", ("momentum", "nesterov"), ()),
)  # fmt: skip
_SCHEDULERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("ReduceLROnPlateau", ("patience", "num_bad_epochs")),
    ("CosineAnnealingWarmRestarts", ("T_0", "T_mult")),
    ("CosineAnnealingLR", ("T_max",)),
    ("OneCycleLR", ("total_steps",)),
    ("CyclicLR", ("total_size", "step_ratio")),
    ("MultiStepLR", ("milestones", "gamma")),
    ("StepLR", ("step_size", "gamma")),
    ("LinearLR", ("start_factor", "end_factor")),
    ("PolynomialLR", ("power", "total_iters")),
    ("ConstantLR", ("factor", "total_iters")),
    ("SequentialLR", ("_schedulers", "_milestones")),
    ("ChainedScheduler", ("_schedulers",)),
    ("LambdaLR", ("lr_lambdas",)),
    ("ExponentialLR", ("gamma", "base_lrs")),
    ("timm CosineLRScheduler", ("base_values", "t_initial", "lr_min", "cycle_mul")),
    ("timm MultiStepLRScheduler", ("base_values", "decay_t", "decay_rate")),
    ("timm Scheduler", ("base_values", "param_group_field")),
)  # fmt: skip


def describe_training(value: object, entries: Sequence[Entry]) -> TrainingRecord | None:
    """The training run described by the value of a pickle; None if it contains only a model."""
    if isinstance(value, Instance):
        is_settings = not is_module(value) and (attributes(value) or value.mapping)
        found = TrainingRecord(arguments=_mapping(value)) if is_settings else TrainingRecord()
        return None if found.is_empty else found
    if not isinstance(value, dict):
        return None
    found = _Reading(value, entries).record()
    return None if found.is_empty else found


class _Reading:
    def __init__(self, root: dict[object, object], entries: Sequence[Entry]) -> None:
        self.root = root
        self.entries = {entry.name: entry for entry in entries}
        self.nodes = list(_nodes(root))

    def record(self) -> TrainingRecord:
        arguments = self._arguments()
        hint = next((str(arguments[key]).lower() for key in ("opt", "optim", "optimizer") if key in arguments), "")
        optimizers = [self._optimizer(path, value, hint) for path, value in self.nodes if _is_optimizer(value)]
        schedulers: list[Scheduler] = []
        for path, value in self._schedulers():
            kind = next((name for name, has in _SCHEDULERS if all(key in value for key in has)), None)
            kept = {key.removeprefix("_") if key == "_last_lr" else key: item for key, item in value.items()
                    if isinstance(key, str) and (not key.startswith("_") or key == "_last_lr")}  # fmt: skip
            name = printable(".".join(path)) or None
            schedulers.append({"name": name, "type": kind, "settings": _mapping(kept)})
        metrics = {name: number for name, number in self._scalars() if _METRIC.search(name) and not _BEST.search(name)}
        states = (value for _, value in self.nodes if isinstance(value, dict))
        scalers = (state for state in states if "scale" in state and "growth_factor" in state)
        return TrainingRecord(
            made_by=_made_by(self.root),
            model=next((printable(text) for key in _MODEL if isinstance(text := self.root.get(key), str)), None),
            epoch=self._number(_EPOCH),
            step=self._number(_STEP),
            best_metric=self._best(),
            metrics=metrics,
            arguments=arguments,
            optimizers=tuple(optimizers),
            schedulers=tuple(schedulers),
            ema=self._copy(),
            rng=self._rng(),
            scaler=next(map(_mapping, scalers), None),
        )

    def _places(self) -> Iterator[tuple[Path, Mapping[object, object]]]:
        """The containers of a trainer's values: the top level and those it may nest them in."""
        if not (_is_optimizer(self.root) or _is_scheduler(self.root, ())):
            yield (), self.root
        for path, value in self.nodes:
            if path and path[-1] in _FOLDERS and len(path) <= 2 and isinstance(value, dict):
                yield path, value

    def _number_at(self, path: Path, value: object) -> float | None:
        return number_of(value, self.entries.get(".".join(path)))

    def _number(self, keys: Sequence[str]) -> float | None:
        for path, place in self._places():
            for key in keys:
                number = self._number_at((*path, key), place[key]) if key in place else None
                if number is not None:
                    return number
        return None

    def _scalars(self) -> Iterator[tuple[str, float]]:
        """Numbers with the names of metrics; a dotted name is that of a parameter."""
        for path, place in self._places():
            for key, value in place.items():
                if isinstance(key, str) and "." not in key and (_METRIC.search(key) or _BEST.search(key)):
                    number = self._number_at((*path, key), value)
                    if number is not None:
                        yield printable(key), number

    def _best(self) -> BestMetric | None:
        for path, value in self.nodes:  # of a Lightning callback
            if isinstance(value, dict) and "best_model_score" in value:
                number = self._number_at((*path, "best_model_score"), value["best_model_score"])
                monitor = value.get("monitor")
                if number is not None:
                    return {"name": printable(monitor) if isinstance(monitor, str) else "best score", "value": number}
        named = dict(self._scalars())
        best = next((name for name in named if _BEST.search(name)), "metric" if "metric" in named else None)
        return None if best is None else {"name": best, "value": named[best]}

    def _arguments(self) -> dict[str, object]:
        for _, place in self._places():
            for key in _ARGUMENTS:
                held = place.get(key)
                if not isinstance(held, dict | Instance) or (isinstance(held, Instance) and is_module(held)):
                    continue
                inner = held if isinstance(held, dict) else {**held.mapping, **attributes(held)}
                holds_tensors = any(isinstance(item, Tensor) for item in inner.values())
                if not holds_tensors and (found := _mapping(held)):
                    return found
        return {}

    def _optimizer(self, path: Path, value: Mapping[str, list[object]], hint: str) -> Optimizer:
        """`hint` is the name of the optimizer in the arguments of the run."""
        groups = [group for group in value["param_groups"] if isinstance(group, dict)]
        shown = [{key: item for key, item in group.items() if key not in ("params", "param_names")} for group in groups]
        settings = _mapping(shown[0]) if shown else {}
        rates = list(dict.fromkeys(number for group in shown if (number := number_of(group.get("lr"))) is not None))
        if len(rates) > 1:
            settings["lr"] = rates
        # The settings show the type, because a state dict does not name its class.
        keys = {key for group in groups[:1] for key in group if isinstance(key, str)}
        fitting = (name for name, has, lacks in _OPTIMIZERS if keys.issuperset(has) and not keys.intersection(lacks))
        kind = next(fitting, None)
        if kind == "Adam" and "decoupled_weight_decay" in groups[0]:
            kind = "AdamW" if groups[0]["decoupled_weight_decay"] is True else "Adam"
        elif kind == "Adam":  # before torch 2.7 the two had the same settings
            kind = "AdamW" if "adamw" in hint else "Adam" if "adam" in hint else "Adam or AdamW"
        own = [entry for entry in self._below((*path, "state")) if entry.shared_with is None]
        return {
            "name": printable(".".join(path)) or None,
            "type": kind,
            "settings": settings,
            "groups": len(groups),
            "state_bytes": sum(entry.nbytes for entry in own),
            "state_tensors": len(own),
        }

    def _below(self, path: Path) -> Iterator[Entry]:
        lead = ".".join((*path, ""))
        return (entry for name, entry in self.entries.items() if name.startswith(lead))

    def _schedulers(self) -> Iterator[tuple[Path, Mapping[object, object]]]:
        taken: list[Path] = []
        for path, value in self.nodes:
            # The parts of a chained scheduler are not listed separately.
            if _is_scheduler(value, path) and not any(path[: len(above)] == above for above in taken):
                taken.append(path)
                yield path, value

    def _copy(self) -> Average | None:
        for key in self.root:
            if not isinstance(key, str) or not (key.lower() in COPIES or _COPY.search(key)):
                continue
            own = list(self._below((key,)))
            if own:
                size = sum(entry.nbytes for entry in own if entry.shared_with is None)
                decay = next((number_of(self.root[name]) for name in ("ema_decay", "decay") if name in self.root), None)
                return {
                    "name": key,
                    "elements": sum(entry.elements for entry in own),
                    "bytes": size,
                    "decay": decay,
                    "updates": number_of(self.root.get("updates")),
                }
        return None

    def _rng(self) -> RandomState | None:
        held: dict[str, list[Path]] = {}
        for path, value in self.nodes:
            if not isinstance(value, dict) or len(path) > 2:
                continue
            keys = {key_text(key) for key in value}
            # Short names such as `cpu` mean generators only next to others of their kind.
            are_short = (path and _RNG.search(path[-1])) or {"cpu", "numpy", "python"} <= keys
            for generator, names in _GENERATORS.items():
                for name in names:
                    if name in keys and (are_short or _RNG.search(name)):
                        held.setdefault(generator, []).append((*path, name))
        if not held:
            return None
        own: dict[str, int] = {}
        for path in (path for paths in held.values() for path in paths):
            own |= {entry.name: entry.nbytes for entry in self._below(path)}
            if (whole := self.entries.get(".".join(path))) is not None:
                own[whole.name] = whole.nbytes
        return {"generators": list(held), "bytes": sum(own.values())}


def _nodes(root: object) -> Iterator[tuple[Path, object]]:
    """Containers by path, outer before inner; modules and long lists are skipped."""
    waiting: deque[tuple[Path, object]] = deque([((), root)])
    for _ in range(_VISITED):
        if not waiting:
            return
        path, value = waiting.popleft()
        yield path, value
        if len(path) >= _DEEPEST:
            continue
        if isinstance(value, Instance) and not is_module(value):
            value = {**value.mapping, **attributes(value)}
        if isinstance(value, list | tuple):
            value = dict(enumerate(value)) if len(value) <= _LONG_LIST else {}
        if isinstance(value, dict):
            inner = ((key_text(key), item) for key, item in value.items())
            waiting += [((*path, key), item) for key, item in inner if isinstance(item, dict | list | tuple | Instance)]


def _mapping(value: object) -> dict[str, object]:
    found = plain_value(value)
    return found if isinstance(found, dict) else {}


def _is_optimizer(value: object) -> TypeGuard[dict[str, list[object]]]:
    return isinstance(value, dict) and "state" in value and isinstance(value.get("param_groups"), list)


def _is_scheduler(value: object, path: Path) -> TypeGuard[dict[object, object]]:
    if not isinstance(value, dict) or not value or _is_optimizer(value):
        return False
    if "last_epoch" in value and any(key in value for key in ("base_lrs", "_last_lr", "_step_count", "lr_lambdas")):
        return True
    is_named = bool(path) and _SCHEDULED.search(path[-1]) is not None
    is_timm = "base_values" in value and "param_group_field" in value
    return is_timm or (is_named and any(number_of(item) is not None for item in value.values()))


def _made_by(root: Mapping[object, object]) -> str | None:
    def version(key: str) -> str:
        text = root.get(key)
        return f" {printable(text)}" if isinstance(text, str) else ""

    if "pytorch-lightning_version" in root:
        return f"Lightning{version('pytorch-lightning_version')}"
    if "ds_version" in root or "ds_config" in root:
        return f"DeepSpeed{version('ds_version')}"
    if "train_args" in root and ("best_fitness" in root or "ema" in root):
        return f"Ultralytics{version('version')}"
    if {"arch", "state_dict", "version", "args"} <= root.keys():
        return "timm"
    meta = root.get("meta")
    if isinstance(meta, dict):
        known = {"mmengine_version": "MMEngine", "mmcv_version": "MMCV"}
        found = next(((key, name) for key, name in known.items() if isinstance(meta.get(key), str)), None)
        return None if found is None else f"{found[1]} {printable(meta[found[0]])}"
    return None


def merge_training(records: Sequence[TrainingRecord | None]) -> TrainingRecord | None:
    """Combine the records of the files of one checkpoint; the first takes precedence. Equal optimizers are parts of
    one."""
    known = [record for record in records if record is not None]
    if not known:
        return None
    merged = known[0]
    for record in known[1:]:
        for name in TrainingRecord.__slots__:
            mine, theirs = getattr(merged, name), getattr(record, name)
            if name == "optimizers":
                optimizers: tuple[Optimizer, ...] = (*mine, *theirs)
                totals: dict[str, Optimizer] = {}
                for one in optimizers:
                    key = repr((one["name"], one["type"], one["settings"], one["groups"]))
                    total = totals.setdefault(key, {**one, "state_bytes": 0, "state_tensors": 0})
                    total["state_bytes"] += one["state_bytes"]
                    total["state_tensors"] += one["state_tensors"]
                merged = replace(merged, optimizers=tuple(totals.values()))
            elif name == "schedulers":
                merged = replace(merged, schedulers=(*mine, *(one for one in theirs if one not in mine)))
            elif mine is None or mine in ({}, ()):
                merged = replace(merged, **{name: theirs})
    return merged
