"""The figures of whole modules, kinds of layers and the model: counts added up, never means of means.

A module is finished as soon as its last tensor has been added, so that only the modules that are open at a time hold
counts: in the order of a file that is about the depth of the tree. Modules are given down to the depth at which there
are no more than `MAX_MODULES` of them; one with a single tensor is that tensor's row, and left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np

from torchgauge.checkpoint.index import Entry, Role
from torchgauge.facts.weight_values import holds_codes
from torchgauge.source.state_names import shallow
from torchgauge.weights import pruning, quantization, statistics, tally
from torchgauge.weights.layer_kinds import KINDS, kinds_of
from torchgauge.weights.symbols import FLOAT32, SYMBOLS
from torchgauge.weights.tally import Tally

MAX_MODULES = 500
# Up to this many bits there is a counter for every code, half a megabyte: adding to it is much faster than merging.
_DENSE_BITS = 16
_OF_STORAGE = ("entropy_bits", "entropy_symbol_bits", "compressibility")
_NO_CODES, _NO_COUNTS = np.empty(0, np.uint32), np.empty(0, np.int64)


class _Sum:
    """Tallies of one kind of symbol, added up."""

    def __init__(self, symbol: str) -> None:
        self._symbol = SYMBOLS[symbol]
        self._whole = tally.empty(symbol)
        is_dense = self._symbol.code_bits <= _DENSE_BITS
        self._counts = np.zeros(1 << self._symbol.code_bits, np.int64) if is_dense else None

    def add(self, found: Tally) -> None:
        if self._counts is None:
            self._whole = tally.merge(self._whole, found)
            return
        self._counts[found.codes] += found.counts
        if self._symbol.pattern is None:
            self._whole = tally.merge(self._whole, replace(found, codes=_NO_CODES, counts=_NO_COUNTS))

    @property
    def tally(self) -> Tally:
        if self._counts is None:
            return self._whole
        codes = np.flatnonzero(self._counts).astype(np.uint32)
        counts = self._counts[codes]
        if self._symbol.pattern is not None:
            return tally.of_patterns(self._symbol, codes, counts)
        return replace(self._whole, codes=codes, counts=counts)


@dataclass(slots=True)
class _Group:
    """What has been added so far, by kind of symbol: those of different types do not add up."""

    tensors: int = 0
    elements: int = 0
    nbytes: int = 0
    dtypes: dict[str, None] = field(default_factory=dict)
    is_unpacked: bool = False
    sums: dict[str, _Sum] = field(default_factory=dict)

    def add(self, entry: Entry, found: Tally) -> None:
        if found.symbol not in self.sums:
            self.sums[found.symbol] = _Sum(found.symbol)
        self.sums[found.symbol].add(found)
        self.tensors += 1
        self.elements += entry.elements if not entry.logical_elements else entry.logical_elements
        self.nbytes += entry.nbytes
        self.dtypes[entry.spec.dtype] = None
        self.is_unpacked |= holds_codes(entry.spec.dtype, entry.logical_elements)

    def figures(self) -> dict[str, Any]:
        return {
            "tensors": self.tensors,
            "elements": self.elements,
            "bytes": self.nbytes,
            "dtypes": list(self.dtypes),
            **(_figures([part.tally for part in self.sums.values()]) if self.sums else {}),
            # Values that were unpacked are not stored: there are no symbols to take an entropy of.
            **(dict.fromkeys(_OF_STORAGE) if self.is_unpacked else {}),
        }


class Aggregate:
    """Takes the tensors of a checkpoint in the order of the file: the same result whoever counted them.

    The model's parameters make up the total and the modules; buffers, optimizer state and what only serves a packing
    are kinds of their own. Packed tensors whose layout is not known are left out: `not_unpacked` says how many.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        listed = [entry for entry in entries if entry.shared_with is None]
        self._entries = {entry.name: entry for entry in listed}
        self._kinds = kinds_of(listed)
        self._pending = _module_sizes([name for name, entry in self._entries.items() if _is_parameter(entry)])
        self._open: dict[str, _Group] = {}
        self._modules: dict[str, dict[str, Any]] = {}
        self._by_kind: dict[str, _Group] = {}
        self._total = _Group()
        self._not_unpacked = 0

    def add(self, name: str, found: Tally) -> None:
        """Count a tensor in; `found` is the tally of its values, unpacked where they were packed."""
        entry = self._entries[name]
        if holds_codes(entry.spec.dtype, entry.logical_elements) and found.symbol != FLOAT32.name:
            self._not_unpacked += 1
            self.leave_out(name)
            return
        self._by_kind.setdefault(self._kinds[name], _Group()).add(entry, found)
        if _is_parameter(entry):
            self._total.add(entry, found)
            for module in _ancestors(name):
                if module in self._pending:
                    self._add_to_module(module, entry, found)

    def leave_out(self, name: str) -> None:
        """A tensor that could not be read: its modules do not wait for it."""
        if _is_parameter(self._entries[name]):
            for module in _ancestors(name):
                if module in self._pending:
                    self._expect_one_less(module)

    def summary(self) -> dict[str, Any]:
        """`total`, `by_module` and `by_kind`; the figures are those of a tensor's row."""
        for module in list(self._open):
            self._finish(module)
        modules = [{"path": path, **self._modules[path]} for path in sorted(self._modules, key=_tree_order)]
        kinds = [{"kind": kind, **self._by_kind[kind].figures()} for kind in KINDS if kind in self._by_kind]
        total = self._total.figures() | {"not_unpacked": self._not_unpacked}
        return {"total": total, "by_module": modules, "by_kind": kinds}

    def _add_to_module(self, module: str, entry: Entry, found: Tally) -> None:
        self._open.setdefault(module, _Group()).add(entry, found)
        self._expect_one_less(module)

    def _expect_one_less(self, module: str) -> None:
        self._pending[module] -= 1
        if not self._pending[module]:
            self._finish(module)

    def _finish(self, module: str) -> None:
        group = self._open.pop(module, None)
        if group is not None and group.tensors > 1:
            self._modules[module] = group.figures()


def _is_parameter(entry: Entry) -> bool:
    return entry.role is Role.PARAMETER and entry.logical_elements != 0


def _ancestors(name: str) -> Iterator[str]:
    """The modules above a tensor, the innermost first; without the root, which is the total."""
    module = shallow(name).rpartition(".")[0]
    while module:
        yield module
        module = module.rpartition(".")[0]


def _module_sizes(names: Sequence[str]) -> Counter[str]:
    """How many tensors each module waits for, down to the depth at which there are few enough."""
    sizes = Counter(module for name in names for module in _ancestors(name))
    depths = Counter(module.count(".") for module, size in sizes.items() if size > 1)
    kept, deepest = 0, -1
    for depth in sorted(depths):
        kept += depths[depth]
        if kept > MAX_MODULES:
            break
        deepest = depth
    return Counter({module: size for module, size in sizes.items() if size > 1 and module.count(".") <= deepest})


def _tree_order(path: str) -> list[tuple[int, int, str]]:
    """Parents before children, numbers by value."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in path.split(".")]


def _figures(tallies: list[Tally]) -> dict[str, Any]:
    whole = tallies[0] if len(tallies) == 1 else reduce(tally.merge, map(tally.regrid, tallies))
    found = statistics.figures(whole)
    if len(tallies) > 1:
        found |= _stored_entropy(tallies)
    return {**found, "quantization": quantization.per_tensor(whole), "pruning": pruning.unstructured(whole)}


def _stored_entropy(tallies: list[Tally]) -> dict[str, Any]:
    """Of several types: the bits of all symbols as they are stored, each type with its own code."""
    parts = [(statistics.figures(part), part.count) for part in tallies if part.count]
    count = sum(size for _, size in parts)
    if not count:
        return dict.fromkeys(_OF_STORAGE)
    stored = sum(part["entropy_symbol_bits"] * size for part, size in parts)
    needed = sum(part["entropy_bits"] * size for part, size in parts)
    return {
        "entropy_bits": needed / count,
        "entropy_symbol_bits": stored / count,
        "compressibility": 1 - needed / stored,
    }
