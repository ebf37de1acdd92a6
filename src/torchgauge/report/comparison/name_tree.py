"""The modules of weights without code, from the names of their tensors: a saved scan keeps no tree, and wrappers that
one side has around its model are no difference of the models."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from torchgauge.checkpoint.tensor_names import common_names
from torchgauge.facts import ModuleRecord, ParamRecord, View


def with_common_names(base: View, others: Sequence[View]) -> list[View]:
    """All sides; of those without code the names and the tree are without the wrappers that others lack."""
    base, others = _with_modules(base), [_with_modules(view) for view in others]
    spelled = [common_names(_shapes(base), _shapes(view)) for view in others]
    # The first side has one spelling for all: that of the side with which it has most in common.
    ours, _ = max(spelled, key=lambda pair: len(pair[0].keys() & pair[1].keys()))
    first = _renamed(base, ours)
    return [first, *(_renamed(view, common_names(_shapes(first), _shapes(view))[1]) for view in others)]


def _shapes(view: View) -> dict[str, tuple[int, ...]]:
    return {param.name: param.spec.shape for param in view.capture.params}


def _renamed(view: View, spelling: Mapping[str, str]) -> View:
    """The view with its tensors under the names of the spelling; code has the names that it has."""
    names = {stored: name for name, stored in spelling.items()}
    if view.capture.has_code or all(stored == name for stored, name in names.items()):
        return view
    params = tuple(replace(param, name=names[param.name], aliases=()) for param in view.capture.params)
    leads = {stored.removesuffix(name) for stored, name in names.items() if stored.endswith(name)}
    stored = view.capture.stored
    if stored is not None and len(leads) == 1:
        lead = leads.pop().rstrip(".")
        tensors = tuple(replace(tensor, module=_below(tensor.module, lead)) for tensor in stored.tensors)
        stored = replace(stored, tensors=tensors)
    return _from_names(View(replace(view.capture, params=params, stored=stored)))


def _below(module: str | None, lead: str) -> str | None:
    return module if module is None else "" if module == lead else module.removeprefix(f"{lead}.")


def _with_modules(view: View) -> View:
    """The view as it is, where its tensors' modules are known."""
    known = {record.path for record in view.capture.modules}
    return view if all(param.module in known for param in view.capture.params) else _from_names(view)


def _from_names(view: View) -> View:
    capture = view.capture
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
