"""What needs all tensors of a scan: sums, copies, those that stand apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torchgauge.checkpoint.index import Entry, Index
from torchgauge.weights.potential.recommend import recommendations
from torchgauge.weights.scanning.duplicates import Duplicates
from torchgauge.weights.scanning.tensors import Finished
from torchgauge.weights.stream.plan import same_views
from torchgauge.weights.whole.aggregate import Aggregate
from torchgauge.weights.whole.outliers import outliers

OnRow = Callable[[str, dict[str, Any]], None]


@dataclass(slots=True)
class ScanResult:
    """`rows` by name in the order of the index, without what could not be read; `failures` are (name, reason)."""

    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    failures: list[tuple[str, str]] = field(default_factory=list)
    seconds: float = 0.0
    nbytes: int = 0
    threads: int | None = None
    resumed: int = 0


class Collector:
    """Takes the tensors in the order of the files."""

    def __init__(self, index: Index, duplicates: Duplicates) -> None:
        self._entries = {entry.name: entry for entry in index.entries}
        self._copies = same_views(index)
        self._duplicates = duplicates
        self._aggregate = Aggregate(index.entries)
        self._result = ScanResult()

    def take(self, found: Finished) -> dict[str, Any] | None:
        entry = self._entries[found.name]
        if found.failure is not None:
            self._result.failures.append((found.name, found.failure))
        if entry.shared_with is None:
            if found.tally is None:
                self._aggregate.leave_out(found.name)
            else:
                self._aggregate.add(found.name, found.tally)
        if found.failure is not None:
            return None
        if found.tally is not None:
            found.row["duplicate_of"] = entry.shared_with or self._duplicates.first_like(found)
            found.row["recommendations"] = recommendations(facts(entry) | found.row)
        self._result.rows[found.name] = found.row
        return found.row

    def result(self, on_row: OnRow | None) -> ScanResult:
        rows = self._result.rows
        for name, owner in self._copies.items():
            if owner in rows:
                rows[name] = rows[owner] | {"duplicate_of": owner}
                if on_row is not None:
                    on_row(name, rows[name])
        self._result.rows = {name: rows[name] for name in self._entries if name in rows}
        apart = outliers({name: facts(self._entries[name]) | row for name, row in self._result.rows.items()})
        self._result.summary = self._aggregate.summary() | {"outliers": apart}
        return self._result


def facts(entry: Entry) -> dict[str, Any]:
    """What is known of a tensor without its values, by the keys of the JSON document."""
    spec = entry.spec
    return {
        "name": entry.name,
        "shape": list(spec.shape),
        "dtype": spec.dtype,
        "elements": entry.elements,
        "bytes": entry.nbytes,
        "stride": None if spec.stride is None else list(spec.stride),
        "role": entry.role.value,
        "shared_with": entry.shared_with,
        "logical_elements": entry.logical_elements,
    }
