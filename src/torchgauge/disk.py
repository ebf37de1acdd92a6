"""Where things that can be made again are kept, and files that are replaced whole or not at all."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def cache_folder() -> Path:
    """`TORCHGAUGE_CACHE`, else where the system keeps caches."""
    if chosen := os.environ.get("TORCHGAUGE_CACHE"):
        return Path(chosen)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "torchgauge"


def draft_of(final: Path) -> Path:
    """A file beside it. Its name does not grow with that of the file, which may be as long as a name can be."""
    return final.with_name(f".torchgauge-{secrets.token_hex(8)}")


def replace_file(final: Path, data: bytes | Iterable[bytes]) -> None:
    """A reader sees the old file or the new one, never half of it."""
    draft = draft_of(final)
    try:
        with draft.open("wb") as stream:
            stream.writelines((data,) if isinstance(data, bytes) else data)
        os.replace(draft, final)
    finally:
        # Gone after the rename; a folder that may not be searched has none either.
        with suppress(OSError):
            draft.unlink()
