"""Opens an archive after its code was found harmless.

The records are listed and read by torch's own reader: what is scanned is what torch will compile.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from torchgauge.errors import FormatError
from torchgauge.source.allowed_ops import mark_foreign, require_allowed
from torchgauge.source.archive_records import ArchiveRecords, first_line
from torchgauge.source.torchscript.code import require_harmless_reading, scan_code, scan_pickle

SOURCE_LIMIT = 64 << 20
# Up to this size tensors are read, because traces keep numbers in them; of a larger archive only their shapes.
VALUES_LIMIT = 2 << 30

_ZIP = b"PK\x03\x04"


def load_torchscript(path: str | Path, *, values: bool = False) -> torch.jit.ScriptModule:
    """The script module of an archive. Raises `FormatError` where its code is not harmless or cannot be read.

    `values` reads its tensors whatever their size.
    """
    name = str(path)
    _scan(name)
    device = "cpu" if values or Path(path).stat().st_size <= VALUES_LIMIT else "meta"
    with torch.random.fork_rng(devices=[]):
        try:
            module = torch.jit.load(name, map_location=device)
        except (RuntimeError, ValueError) as error:
            raise FormatError(f"'{name}' cannot be read as TorchScript: {first_line(error)}") from error
    _check_graphs(module, name)
    mark_foreign(module)
    return module


def _scan(name: str) -> None:
    records = _open(name)
    # An older layout keeps its code elsewhere.
    if any(record.lower() == "model.json" for record in records.names):
        raise FormatError(f"'{name}' is a TorchScript archive of before torch 1.3, which is not read")
    sources = [record for record in records.names if record.lower().endswith(".py")]
    if not sources:
        raise FormatError(f"'{name}' holds no TorchScript code")
    special: frozenset[str] = frozenset()
    for record in sources:
        special |= scan_code(records.read(record, SOURCE_LIMIT), f"'{name}' ({record})")
    require_harmless_reading(special, f"'{name}'")
    for record in records.names:
        if record.lower().endswith(".pkl") and not record.startswith("extra/"):
            scan_pickle(records.read(record, SOURCE_LIMIT), f"'{name}' ({record})")


def _open(name: str) -> ArchiveRecords:
    try:
        with open(name, "rb") as file:
            head = file.read(8)
    except OSError as error:
        raise FormatError(f"cannot read '{name}': {error.strerror or error}") from error
    # Torch takes a file with this mark for another format, whatever else it is.
    if head[:4] != _ZIP or head[4:] == b"PTMF":
        raise FormatError(f"'{name}' is not a TorchScript archive")
    return ArchiveRecords(name)


def _check_graphs(module: torch.jit.ScriptModule, name: str) -> None:
    """The scan of the source errs on the safe side; the graphs are exact."""
    for path, part in module.named_modules():
        script: Any = getattr(part, "_c", None)
        if script is None:
            continue
        graphs = [(method, script._get_method(method).inlined_graph) for method in script._method_names()]
        hooks = (*script._get_forward_pre_hooks(), *script._get_forward_hooks())
        graphs += [(hook.name, hook.inlined_graph) for hook in hooks]
        for method, graph in graphs:
            for node in _nodes(graph):
                require_allowed(node.kind(), f"'{name}' ({path or 'the model itself'}, {method})")


def _nodes(graph: Any) -> Iterator[Any]:
    """All nodes of a graph, without a call for each level: blocks may be nested thousands deep."""
    waiting = [graph]
    while waiting:
        for node in waiting.pop().nodes():
            yield node
            waiting.extend(node.blocks())
            if node.hasAttribute("Subgraph"):
                waiting.append(node.g("Subgraph"))
