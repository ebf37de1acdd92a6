"""Stored tensors by the folder of their names, by type and by role."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torchgauge.facts import StoredTensor, View
from torchgauge.report.ranking import path_pattern, share_of


@dataclass(frozen=True, slots=True)
class Group:
    """Tensors that belong together; bytes that several names share count once."""

    name: str
    tensors: int
    elements: int
    nbytes: int
    share: float


def by_folder(view: View) -> list[Group]:
    """Repeated blocks count together: `layers.*.fc`. The largest first."""
    return _grouped(view, lambda tensor: path_pattern(tensor.name.rpartition(".")[0]))


def by_dtype(view: View) -> list[Group]:
    return _grouped(view, lambda tensor: tensor.spec.dtype)


def by_role(view: View) -> list[Group]:
    return _grouped(view, lambda tensor: tensor.role)


def tied(view: View) -> list[tuple[str, str]]:
    """The tensors that share the bytes of another, and whose."""
    return [(tensor.name, tensor.shared_with) for tensor in _tensors(view) if tensor.shared_with is not None]


def _tensors(view: View) -> tuple[StoredTensor, ...]:
    stored = view.capture.stored
    return stored.tensors if stored else ()


def _grouped(view: View, key: Callable[[StoredTensor], str]) -> list[Group]:
    groups: dict[str, list[StoredTensor]] = {}
    for tensor in _tensors(view):
        groups.setdefault(key(tensor), []).append(tensor)
    found = [_group(name, members, view.totals.stored_bytes or 0) for name, members in groups.items()]
    return sorted(found, key=lambda group: -group.nbytes)


def _group(name: str, members: Iterable[StoredTensor], whole: int) -> Group:
    tensors = list(members)
    unique = [tensor for tensor in tensors if tensor.shared_with is None]
    nbytes = sum(tensor.nbytes for tensor in unique)
    elements = sum(tensor.spec.numel for tensor in unique)
    return Group(name, len(tensors), elements, nbytes, share_of(nbytes, whole))
