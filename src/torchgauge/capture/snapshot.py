"""What objects hold, noted before a run and put back after it: attributes, slots, items, closures."""

from __future__ import annotations

import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from torchgauge.capture.copier import ATOMS, is_plain, slots, takes_attributes

CONTAINERS = (dict, list, set, deque)
PLAIN_CONTAINERS = frozenset((dict, OrderedDict, defaultdict, list, set, deque))  # others may have a `len` that works
LONGEST_CONTAINER = 10_000
# Of one snapshot: a global may hold a whole program.
_MAX_HOLDERS = 100_000
EMPTY = object()  # what a cell or slot without content holds


class Snapshot:
    """Holders in the order in which they were noted, those inside others too."""

    def __init__(self) -> None:
        # By the id of a holder, which is kept, so that no other object gets its id.
        self._noted: dict[int, tuple[object, Callable[[], None]]] = {}

    def note(self, value: object) -> None:
        """Note what can be changed in a value, and in all that it holds."""
        waiting = [value]
        while waiting and len(self._noted) < _MAX_HOLDERS:
            holder = waiting.pop()
            kind = type(holder)
            if kind in ATOMS or id(holder) in self._noted:
                continue
            if isinstance(holder, tuple):
                waiting += holder
            elif kind in PLAIN_CONTAINERS and isinstance(holder, CONTAINERS):
                if len(holder) <= LONGEST_CONTAINER:
                    self._noted[id(holder)] = (holder, _restore_container(holder))
                    waiting += holder.values() if isinstance(holder, dict) else holder
            elif isinstance(holder, types.CellType):
                self._noted[id(holder)] = (holder, _restore_cell(holder, cell_content(holder)))
                waiting.append(cell_content(holder))
            elif is_plain(kind) or takes_attributes(holder):
                waiting += self.note_attributes(holder)

    def note_attributes(self, holder: Any) -> list[object]:
        """Note the attributes and slots of any object; returns their values."""
        attributes = getattr(holder, "__dict__", None)
        own_slots = {slot: slot_content(slot, holder) for slot in slots(type(holder))}
        restores = [] if attributes is None else [_restore_container(attributes)]
        restores += [_restore_slot(slot, holder, content) for slot, content in own_slots.items()]

        def restore() -> None:
            for each in restores:
                each()

        self._noted[id(holder)] = (holder, restore)
        return [*(attributes or {}).values(), *own_slots.values()]

    def restore(self) -> None:
        for _, restore in self._noted.values():
            restore()


def cell_content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return EMPTY


def slot_content(slot: types.MemberDescriptorType, holder: object) -> object:
    try:
        return slot.__get__(holder)
    except AttributeError:
        return EMPTY


def _restore_container(container: Any) -> Callable[[], None]:
    before = dict(container) if isinstance(container, dict) else list(container)

    def restore() -> None:
        if _is_same(container, before):
            return
        container.clear()
        container.update(before) if isinstance(container, dict | set) else container.extend(before)

    return restore


def _is_same(container: Any, before: Iterable[object]) -> bool:
    """Whether a container has the same items as before, in the same order."""
    if len(container) != len(before):  # type: ignore[arg-type]
        return False
    same = all(now is then for now, then in zip(container, before, strict=True))
    if isinstance(before, dict):
        same = same and all(now is then for now, then in zip(container.values(), before.values(), strict=True))
    return same


def _restore_slot(slot: types.MemberDescriptorType, holder: object, before: object) -> Callable[[], None]:
    def restore() -> None:
        if slot_content(slot, holder) is before:
            return
        with suppress(AttributeError):  # a member of C code, which makes its value anew at every look
            slot.__delete__(holder) if before is EMPTY else slot.__set__(holder, before)

    return restore


def _restore_cell(cell: types.CellType, before: object) -> Callable[[], None]:
    def restore() -> None:
        if cell_content(cell) is before:
            return
        if before is EMPTY:
            del cell.cell_contents
        else:
            cell.cell_contents = before

    return restore
