"""Statistics of weight values: columns for tensor rows, JSON round trip."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchgauge.facts.files import StoredRecord, StoredTensor, weight_row
from torchgauge.facts.module import ParamRecord
from torchgauge.facts.tensor import TensorSpec


@dataclass(frozen=True, slots=True)
class WeightStatistics:
    """What the values of the weights tell: by tensor name the figures of its row, and figures of the whole.

    `failures` are tensors that could not be read, with the reason; `scan` says how the values were read; `against` is
    the comparison with another checkpoint."""

    tensors: Mapping[str, Mapping[str, Any]]
    summary: Mapping[str, Any] = field(default_factory=dict)
    failures: tuple[tuple[str, str], ...] = ()
    scan: Mapping[str, Any] = field(default_factory=dict)
    against: Mapping[str, Any] | None = None


# What a row says of a tensor without its values; `duplicate_of` is a figure, since only the values tell all copies.
_PLACE = weight_row(StoredTensor("", TensorSpec((), "float32"), 0, "", None)).keys() - {"duplicate_of"}


def weight_rows(
    stored: StoredRecord | None, params: tuple[ParamRecord, ...], statistics: WeightStatistics | None
) -> Iterator[dict[str, Any]]:
    """One row per tensor of the files; for a live module one per parameter and buffer whose values were read."""
    figures = statistics.tensors if statistics else {}
    tensors = stored.tensors if stored else map(_in_memory, params if figures else ())
    for tensor in tensors:
        row = weight_row(tensor)
        found = figures.get(tensor.name)
        yield row if found is None else row | dict(found)


def _in_memory(param: ParamRecord) -> StoredTensor:
    role = "buffer" if param.is_buffer else "parameter"
    return StoredTensor(param.name, param.spec, param.spec.nbytes, file="", offset=None, role=role)


def summary_member(statistics: WeightStatistics | None) -> dict[str, Any] | None:
    if statistics is None:
        return None
    failures = [{"name": name, "reason": reason} for name, reason in statistics.failures]
    return {**statistics.summary, "failures": failures, "scan": dict(statistics.scan)}


def against_member(statistics: WeightStatistics | None) -> dict[str, Any] | None:
    return None if statistics is None or statistics.against is None else dict(statistics.against)


def statistics_from_document(document: Mapping[str, Any]) -> WeightStatistics | None:
    """None where no values were read."""
    summary = document.get("weight_summary")
    if summary is None:
        return None
    return WeightStatistics(
        tensors={row["name"]: figures for row in document["weights"] if (figures := _figures(row))},
        summary={key: value for key, value in summary.items() if key not in ("failures", "scan")},
        failures=tuple((row["name"], row["reason"]) for row in summary["failures"]),
        scan=summary["scan"],
        against=document.get("against"),
    )


def _figures(row: Mapping[str, Any]) -> dict[str, Any]:
    figures = {key: value for key, value in row.items() if key not in _PLACE}
    return figures if figures.keys() != {"duplicate_of"} else {}
