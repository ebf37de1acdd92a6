"""The modules of a saved scan of weights, from the names of its tensors: the scan keeps no tree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from torchgauge.records import ModuleRecord, ParamRecord
from torchgauge.view import View


def with_modules(view: View) -> View:
    """The view as it is, where its tensors' modules are known."""
    capture = view.capture
    known = {record.path for record in capture.modules}
    if all(param.module in known for param in capture.params):
        return view
    held: defaultdict[str, list[ParamRecord]] = defaultdict(list)
    for param in capture.params:
        for path in _ancestors(param.module):
            held[path].append(param)
    root = next(record for record in capture.modules if record.path == "")
    below = (_record(path, params) for path, params in held.items() if path)
    return View(replace(capture, modules=(root, *below)))


def _record(path: str, params: list[ParamRecord]) -> ModuleRecord:
    own = [param.spec for param in params if not param.is_buffer]
    size = sum(spec.nbytes for spec in own)
    return ModuleRecord(path, "", params=sum(spec.numel for spec in own), param_bytes=size)


def _ancestors(path: str) -> Iterator[str]:
    """From the root down, so that a module comes after the one it is in."""
    parts = path.split(".") if path else []
    yield from (".".join(parts[:count]) for count in range(len(parts) + 1))
