"""Reports to files: written whole or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from torchgauge.errors import TorchgaugeError, UsageError
from torchgauge.report.options import Options
from torchgauge.report.registry import find_format, render
from torchgauge.view import View


def save(view: View, path: str | Path, options: Options | None = None) -> None:
    """Write the report in the format that the suffix names."""
    write_whole(Path(path), find_format(path).render(view, options or Options()))


# The list of a checkpoint's tensors: the suffix -> the format.
WEIGHT_FORMATS = {
    ".against.csv": "against.csv",
    ".weights.csv": "weights.csv",
    ".csv": "weights.csv",
    ".json": "json",
    ".jsonl": "weights.jsonl",
    ".txt": "weights",
}


# What an analysis has and a checkpoint has not, though the suffix ends like one of those above.
_OF_ANALYSES = (".ops.csv", ".trace.json")


def weight_format(path: str | Path) -> str:
    name = Path(path).name.lower()
    found = next((format for suffix, format in WEIGHT_FORMATS.items() if name.endswith(suffix)), None)
    if found is None or name.endswith(_OF_ANALYSES):
        raise UsageError(f"'{path}': the name must end in one of: {', '.join(sorted(WEIGHT_FORMATS))}")
    return found


def save_weights(view: View, path: str | Path, options: Options | None = None) -> None:
    """Write the list of tensors in the format that the suffix names."""
    write_whole(Path(path), render(view, weight_format(path), options))


def write_whole(path: Path, text: str) -> None:
    """Write beside the file and rename: a reader sees the old file or the new one, never half of it."""
    # A link stays a link: the file it points to is replaced.
    final = path.resolve()
    draft = final.with_name(f".{final.name}.{secrets.token_hex(4)}")
    try:
        draft.write_bytes(text.encode())
        os.replace(draft, final)
    except OSError as error:
        raise TorchgaugeError(f"cannot write '{path}': {error.strerror or error}") from error
    finally:
        if draft.exists():
            draft.unlink()
