"""Code given for stored weights: names and shapes must agree, and the code says what each tensor is."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from torchgauge.checkpoint import Entry, Index, Role
from torchgauge.errors import TargetError
from torchgauge.source.matching import Differences, find_fit
from torchgauge.source.state_names import model_entries, model_shapes


def judge(differences: Differences, stored: int, code: str, file: str) -> tuple[str, ...]:
    """What the report must say about tensors that only one side has.

    A shape that disagrees, or names of which fewer than half agree, mean that the code is not that of the file.
    """
    if not differences:
        return ()
    known = stored - len(differences.unexpected)
    if differences.mismatched or known * 2 < stored or not known:
        raise TargetError(f"'{file}' does not fit '{code}':\n{differences.describe()}")
    return (f"'{file}' and '{code}' differ. {differences.describe()}",)


def join(index: Index, model: nn.Module, code: str, file: str) -> tuple[Index, tuple[str, ...]]:
    """The index with the names and roles of the code, and what the report must say about the differences."""
    shapes = model_shapes(index)
    fit = find_fit(model, shapes)
    warnings = judge(fit.differences, len(shapes), code, file)
    return with_roles_of(model, _with_lead(index, fit.lead)), warnings


def _with_lead(index: Index, lead: str) -> Index:
    """What stands before the model's own names: the container, the wrappers, and what the code does without."""
    name, entry = next(iter(model_entries(index).items()), ("", None))
    own = name.removeprefix(lead)
    if entry is None or not lead or not entry.name.endswith(own):
        return index
    return replace(index, metadata={**index.metadata, "model_prefix": entry.name.removesuffix(own)})


def with_roles_of(model: nn.Module, index: Index) -> Index:
    """The code knows its buffers from its parameters where names cannot tell, as in a frozen batch norm."""
    roles = {name: Role.BUFFER for name, _ in model.named_buffers(remove_duplicate=False)}
    roles |= {name: Role.PARAMETER for name, _ in model.named_parameters(remove_duplicate=False)}
    known = {entry.name: roles[name] for name, entry in model_entries(index).items() if name in roles}
    return replace(index, entries=tuple(_with_role(entry, known.get(entry.name)) for entry in index.entries))


def _with_role(entry: Entry, role: Role | None) -> Entry:
    """What packs or serves a packing has its role from the packing: such a weight may be a buffer to the code."""
    if role is None or entry.role is role or entry.logical_elements is not None:
        return entry
    return replace(entry, role=role)
