"""Folders with one file per training process: DeepSpeed, Megatron, and weights split over tensor-parallel ranks.

The shards of all ranks are listed, not joined: the files do not say how a tensor was split.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchgauge.checkpoint.byte_source import is_file_name, opened
from torchgauge.checkpoint.index import Entry, Index, Role
from torchgauge.checkpoint.registry import FOLDERS, opens
from torchgauge.checkpoint.single_file import open_files
from torchgauge.checkpoint.training import merge_training
from torchgauge.facts import TrainingRecord
from torchgauge.progress import Progress

if TYPE_CHECKING:
    from torchgauge.facts.files import Optimizer

# Text files with the name of the folder of the last step.
_POINTERS = {"latest": "{}", "latest_checkpointed_iteration.txt": "iter_{:0>7}"}
_POINTER_BYTES = 256
_RANK = r"mp_rank_\d+(?:_\d+)*"
_DEEPSPEED_MODEL = re.compile(rf"(?:zero_pp_rank_\d+_)?{_RANK}_model_states\.pt|layer_\d+-model_(?:\d+-)?.*states\.pt")
_DEEPSPEED_OPTIMIZER = re.compile(rf"(?:bf16_|fp16_)?(?:zero_pp_rank_\d+_)?{_RANK}_optim_states\.pt")
_MEGATRON_RANK = re.compile(_RANK)
_MEGATRON_MODEL = ("model_optim_rng.pt", "model_rng.pt")
_MEGATRON_OPTIMIZER = ("distrib_optim.pt", "optim.pt")
_PARALLEL = re.compile(r"consolidated\.\d+\.pth|.*[._-]rank[_-]?\d+\.(?:bin|pt|pth)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Part:
    """A file of the folder; `label` is the prefix of its tensors' names if there are several files of its kind."""

    path: str
    label: str
    is_optimizer: bool = False


def _deepspeed_parts(folder: str) -> Iterator[_Part]:
    for name in sorted(os.listdir(folder)):
        is_optimizer = _DEEPSPEED_OPTIMIZER.fullmatch(name) is not None
        if is_optimizer or _DEEPSPEED_MODEL.fullmatch(name):
            label = name.removesuffix(".pt").removesuffix("_model_states")
            yield _Part(os.path.join(folder, name), label, is_optimizer)


def _megatron_parts(folder: str) -> Iterator[_Part]:
    for rank in sorted(name for name in os.listdir(folder) if _MEGATRON_RANK.fullmatch(name)):
        for name in (*_MEGATRON_MODEL, *_MEGATRON_OPTIMIZER):
            path, is_optimizer = os.path.join(folder, rank, name), name in _MEGATRON_OPTIMIZER
            if os.path.isfile(path):
                yield _Part(path, f"{rank}.{name.removesuffix('.pt')}" if is_optimizer else rank, is_optimizer)


def _parallel_parts(folder: str) -> Iterator[_Part]:
    names = sorted(name for name in os.listdir(folder) if _PARALLEL.fullmatch(name))
    if len(names) > 1:
        yield from (_Part(os.path.join(folder, name), name.rpartition(".")[0]) for name in names)


_LAYOUTS = {"deepspeed": _deepspeed_parts, "megatron": _megatron_parts, "tensor-parallel": _parallel_parts}


def find_parts(folder: str) -> tuple[str, list[_Part]]:
    """The layout of a folder and its files; no files if it has none of these layouts."""
    steps = []
    for pointer, form in _POINTERS.items():
        # A text file names the folder of the last step.
        path = os.path.join(folder, pointer)
        if os.path.isfile(path) and os.path.getsize(path) <= _POINTER_BYTES:
            with opened(path) as source:
                name = source.read(0, source.size).decode("utf-8", "replace").strip()
            named = [step for step in (form.format(name), name) if is_file_name(step)]
            steps += [step for step in named if os.path.isdir(os.path.join(folder, step))]
    current = os.path.join(folder, steps[0]) if steps else folder
    for layout, parts_of in _LAYOUTS.items():
        parts = list(parts_of(current))
        if any(not part.is_optimizer for part in parts):
            return layout, parts
    return "", []


def is_ranked(folder: str) -> bool:
    """A shard index or distributed metadata takes precedence over file names."""
    names = os.listdir(folder)
    has_index = ".metadata" in names or any(name.endswith(".index.json") for name in names)
    return not has_index and bool(find_parts(folder)[1])


@opens(FOLDERS, "ranked", is_ranked)
def open_ranked(folder: str, progress: Progress) -> Index:
    layout, parts = find_parts(folder)
    indexes = open_files(folder, [os.path.relpath(part.path, folder) for part in parts], progress)
    models = [index for part, index in zip(parts, indexes, strict=True) if not part.is_optimizer]
    is_one = len(models) == 1
    entries: list[Entry] = []
    for part, index in zip(parts, indexes, strict=True):
        if part.is_optimizer:
            entries += [with_label(replace(entry, role=Role.OPTIMIZER), part.label) for entry in index.entries]
        else:
            entries += index.entries if is_one else [with_label(entry, part.label) for entry in index.entries]
    remarks = []
    if len(models) > 1:
        remarks.append(
            f"the model is split over {len(models)} ranks; all shards are listed, so a tensor that every rank has a "
            "copy of is counted once per rank"
        )
    parameters = [entry for entry in entries if entry.role is Role.PARAMETER]
    if parameters and not any(entry.elements for entry in parameters):
        remarks.append(
            "its parameters are empty: ZeRO stage 3 keeps them in the optimizer's files; merge them with the "
            "zero_to_fp32.py script in the checkpoint's folder, then open the merged file"
        )
    return Index(
        path=folder,
        format=layout,
        files=tuple(part.path for part in parts),
        entries=tuple(entries),
        imports=tuple(found for index in indexes for found in index.imports),
        modules=tuple(module for index in models for module in index.modules) if is_one else (),
        model_prefix=models[0].model_prefix if is_one else "",
        warnings=(*remarks, *(warning for index in indexes for warning in index.warnings)),
        training=merge_training([_training_of(part, index) for part, index in zip(parts, indexes, strict=True)]),
    )


def _training_of(part: _Part, index: Index) -> TrainingRecord | None:
    """Every tensor in an optimizer's file counts as its state, master weights included. DeepSpeed may not store
    parameter groups there, but its config names the optimizer."""
    if not part.is_optimizer:
        return index.training
    found = index.training or TrainingRecord()
    stated = found.arguments.get("optimizer")
    config = stated if isinstance(stated, dict) else {}
    kind, settings = config.get("type"), config.get("params")
    optimizer: Optimizer = {
        "name": "optimizer",
        "type": kind if isinstance(kind, str) else None,
        "settings": settings if isinstance(settings, dict) else {},
        "groups": 1,
        "state_bytes": sum(entry.nbytes for entry in index.unique),
        "state_tensors": len(index.unique),
    }
    if found.optimizers:
        known = found.optimizers[0]
        optimizer |= {"type": known["type"], "settings": known["settings"], "groups": known["groups"]}
    return replace(found, optimizers=(optimizer,))


def with_label(entry: Entry, label: str) -> Entry:
    owner = None if entry.shared_with is None else f"{label}.{entry.shared_with}"
    return replace(entry, name=f"{label}.{entry.name}", shared_with=owner)
