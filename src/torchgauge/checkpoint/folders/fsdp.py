"""A folder of distributed checkpoints, one for the model and one for its optimizer, as trainers save FSDP."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

from torchgauge.checkpoint.folders.distributed import is_distributed, open_distributed
from torchgauge.checkpoint.folders.ranked import is_ranked, with_label
from torchgauge.checkpoint.folders.sharded import is_plain_folder, is_sharded
from torchgauge.checkpoint.index import Entry, Index, Role
from torchgauge.checkpoint.registry import FOLDERS, Progress, opens


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
    prefix = f"{models[0]}.{parts[models[0]].metadata['model_prefix']}" if len(models) == 1 else ""
    return Index(
        path=folder,
        format="distributed",
        files=tuple(file for part in parts.values() for file in part.files),
        entries=tuple(entry for name, part in parts.items() for entry in _labelled(name, part)),
        imports=tuple(found for part in parts.values() for found in part.imports),
        metadata={"model_prefix": prefix},
        warnings=tuple(warning for part in parts.values() for warning in part.warnings),
    )


def _is_optimizer(name: str) -> bool:
    return "optim" in name.lower()


def _labelled(name: str, part: Index) -> Iterator[Entry]:
    for entry in part.entries:
        role = Role.OPTIMIZER if _is_optimizer(name) else entry.role
        yield with_label(replace(entry, role=role), name)
