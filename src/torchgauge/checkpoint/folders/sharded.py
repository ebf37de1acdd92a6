"""A folder with the weights of a model in one or several files, in the Hugging Face layout.

Also a folder of two distributed checkpoints, one for the model and one for its optimizer, as trainers save FSDP.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from torchgauge.checkpoint.byte_source import is_file_name, printable, read_json
from torchgauge.checkpoint.entries import unpack_packed
from torchgauge.checkpoint.folders.distributed import is_distributed, open_distributed
from torchgauge.checkpoint.folders.listing import unrelated_files
from torchgauge.checkpoint.folders.ranked import is_ranked, with_label
from torchgauge.checkpoint.index import Index, Role
from torchgauge.checkpoint.registry import FOLDERS, opens
from torchgauge.checkpoint.single_file import open_file, open_files, sniff_file
from torchgauge.checkpoint.training import merge_training
from torchgauge.errors import FormatError
from torchgauge.progress import Progress
from torchgauge.units import format_names

_INDEX_SUFFIX = ".index.json"
_FAVOURITES = ("model", "pytorch_model", "diffusion_pytorch_model", "adapter_model", "consolidated")
_WEIGHT_SUFFIXES = (
    ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".pth.tar", ".pt2", ".ts", ".jit", ".torchscript",
)  # fmt: skip
_NO_WEIGHTS = ("training_args", "optimizer", "scheduler", "rng_state", "scaler", "trainer_state", "sampler", "dl_state")


def index_files(folder: str) -> list[str]:
    """safetensors before pickles, plain names before variants."""
    names = [name for name in os.listdir(folder) if name.endswith(_INDEX_SUFFIX)]
    return sorted(names, key=lambda name: (".safetensors" not in name, len(name), name))


def weight_files(folder: str) -> list[str]:
    return sorted(
        name for name in os.listdir(folder) if name.endswith(_WEIGHT_SUFFIXES) and not name.startswith(_NO_WEIGHTS)
    )


def is_sharded(folder: str) -> bool:
    return not is_distributed(folder) and bool(index_files(folder))


def is_plain_folder(folder: str) -> bool:
    is_special = is_distributed(folder) or is_ranked(folder) or bool(index_files(folder))
    return not is_special and bool(weight_files(folder))


@opens(FOLDERS, "sharded", is_sharded)
def open_sharded(folder: str, progress: Progress) -> Index:
    name = index_files(folder)[0]
    described = read_json(os.path.join(folder, name))
    places = described.get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(shard, str) for shard in places.values()):
        raise FormatError(f"{name}: the weight_map of tensor names to files is missing")
    for shard in set(places.values()):
        if not is_file_name(shard):
            raise FormatError(f"{name}: the shard {printable(shard)} is not a file name in this folder")
    shards = sorted(set(places.values()))
    missing = [shard for shard in shards if not os.path.isfile(os.path.join(folder, shard))]
    if missing:
        raise FormatError(f"{folder}: {name} lists files that are missing: {format_names(missing, 3)}; download them")
    parts = open_files(folder, shards, progress)
    stored = {entry.name for part in parts for entry in part.entries}
    absent = [tensor for tensor in places if tensor not in stored]
    unlisted = len(stored.difference(places))
    found = []
    if absent:
        found.append(f"{len(absent)} tensors listed in {name} are missing from the files: {printable(absent[0])} …")
    if unlisted:
        found.append(f"{unlisted} tensors in the files are not listed in {name}")
    return _merge(folder, parts, found)


def _merge(folder: str, parts: list[Index], warnings: Iterable[str] = ()) -> Index:
    entries = [entry for part in parts for entry in part.entries]
    seen: dict[str, str] = {}
    for entry in entries:
        if seen.setdefault(entry.name, entry.file) != entry.file:
            raise FormatError(
                f"{folder}: the tensor {printable(entry.name)} is in {os.path.basename(seen[entry.name])} and in "
                f"{os.path.basename(entry.file)}; open one of the files instead of the folder"
            )
    kind = "torch-sharded" if any(part.format.startswith("torch") for part in parts) else "safetensors-sharded"
    prefixes = {part.model_prefix for part in parts}
    return Index(
        path=folder,
        format=kind,
        files=tuple(file for part in parts for file in part.files),
        # Scales may be in another shard than their weight, so packing is determined again over all shards.
        entries=unpack_packed(entries),
        imports=tuple(found for part in parts for found in part.imports),
        modules=tuple(module for part in parts for module in part.modules),
        model_prefix=prefixes.pop() if len(prefixes) == 1 else "",
        warnings=(*warnings, *(warning for part in parts for warning in part.warnings)),
        training=merge_training([part.training for part in parts]),
    )


@opens(FOLDERS, "folder", is_plain_folder)
def open_plain_folder(folder: str, progress: Progress) -> Index:
    """A single weight file is opened; of one model in two formats, the safer one. Files whose names differ only in
    numbers are parts of a model if they share no tensors. Otherwise the user has to choose."""
    names = weight_files(folder)
    chosen = names[0] if len(names) == 1 else None
    is_model = os.path.isfile(os.path.join(folder, "config.json"))
    if chosen is None and (is_model or all(name.partition(".")[0] in _FAVOURITES for name in names)):
        # The others are the same model in another format, or a configuration names it.
        wanted = [f"{stem}{suffix}" for suffix in _WEIGHT_SUFFIXES for stem in _FAVOURITES]
        chosen = next((name for name in wanted if name in names), None)
    if chosen is not None:
        return open_file(os.path.join(folder, chosen), progress)
    models = [name for name in names if sniff_file(os.path.join(folder, name)) is not None]
    if len(models) == 1:
        others = ", ".join(printable(name) for name in names if name not in models)
        index = open_file(os.path.join(folder, models[0]), progress)
        return replace(index, warnings=(*index.warnings, f"files of the folder that are not models: {others}"))
    if len({re.sub(r"\d+", "#", name) for name in names}) == 1:
        parts = open_files(folder, names, progress)
        tensors = Counter(entry.name for part in parts for entry in part.entries)
        if max(tensors.values(), default=0) == 1:
            return _merge(folder, parts)
    raise unrelated_files(folder) or FormatError(f"{folder}: none of its files is a model")


def _parts(folder: str) -> list[str]:
    return sorted(name for name in os.listdir(folder) if is_distributed(os.path.join(folder, name)))


def is_fsdp(folder: str) -> bool:
    """Weights in the folder itself take precedence."""
    is_other = any(matches(folder) for matches in (is_distributed, is_ranked, is_sharded, is_plain_folder))
    return not is_other and bool(_parts(folder))


@opens(FOLDERS, "fsdp", is_fsdp)
def open_fsdp(folder: str, progress: Progress) -> Index:
    names = _parts(folder)
    parts = {name: open_distributed(os.path.join(folder, name), progress) for name in names}
    models = [name for name in names if not _is_optimizer(name)]
    prefix = f"{models[0]}.{parts[models[0]].model_prefix}" if len(models) == 1 else ""
    entries = [
        with_label(replace(entry, role=Role.OPTIMIZER) if _is_optimizer(name) else entry, name)
        for name, part in parts.items()
        for entry in part.entries
    ]
    return Index(
        path=folder,
        format="distributed",
        files=tuple(file for part in parts.values() for file in part.files),
        entries=tuple(entries),
        imports=tuple(found for part in parts.values() for found in part.imports),
        model_prefix=prefix,
        warnings=tuple(warning for part in parts.values() for warning in part.warnings),
    )


def _is_optimizer(name: str) -> bool:
    return "optim" in name.lower()
