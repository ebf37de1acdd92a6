"""Which code a pyproject.toml may run: it may have come with a downloaded folder, and so may the code that it names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from torchgauge.cache import cache_folder, is_private, replace_file
from torchgauge.errors import TorchgaugeError, UsageError
from torchgauge.source.target_check import python_target

# In the cache folder: the code that the user has allowed each file to run.
_RECORD = "trusted.json"


def require_trust(config: Path, code: Iterable[str], *, is_named: bool, remember: bool = False) -> None:
    """Raise unless the code that a configuration names may run: the files belong to the user, and the command line
    names the configuration (`is_named`), or it was trusted for this code before. `remember`: trust it from now on."""
    config, names = config.resolve(), sorted(set(code))
    listed = ", ".join(names)
    places = [config, *(Path(found[0] if (found := python_target(name)) else ".") for name in names)]
    if foreign := [place for place in places if place.exists() and not is_private(place)]:
        raise UsageError(
            f"'{config}' would run {listed}, but '{foreign[0].resolve()}' belongs to another user, or others may "
            "change it. If you trust this code, name it on the command line, as TARGET or with --as"
        )
    if remember:
        _save({**_read(), str(config): names})
    elif not is_named and not set(names) <= set(_read().get(str(config), ())):
        raise UsageError(
            f"'{config}' would run {listed}. If you trust this code, give --config {config.name} to run it, or "
            "--trust-config to run it also in future"
        )


def _read() -> dict[str, Sequence[str]]:
    """Nothing is trusted if the record is missing or corrupt, or if another user may have written it."""
    path = cache_folder() / _RECORD
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if is_private(path) else None
    except (OSError, ValueError):
        found = None
    known = found.items() if isinstance(found, dict) else ()
    return {name: code for name, code in known if isinstance(code, list)}


def _save(record: dict[str, Sequence[str]]) -> None:
    path = cache_folder() / _RECORD
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(record, indent=1).encode())
    except OSError as error:
        raise TorchgaugeError(f"cannot save '{path}': {error.strerror or error}") from error
