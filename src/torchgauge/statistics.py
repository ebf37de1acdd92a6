"""Figures of the weights' values: joined to the rows of the tensors, and their form in the JSON document and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torchgauge.records import Capture, ParamRecord, StoredTensor, TensorSpec, WeightStatistics
from torchgauge.stored import weight_row

# What a row says of a tensor without its values; `duplicate_of` is a figure, since only the values tell all copies.
_PLACE = weight_row(StoredTensor("", TensorSpec((), "float32"), 0, "", None)).keys() - {"duplicate_of"}


def weight_rows(capture: Capture) -> Iterator[dict[str, Any]]:
    """One row per tensor of the files; for a live module one per parameter and buffer whose values were read."""
    figures = capture.statistics.tensors if capture.statistics else {}
    tensors = capture.stored.tensors if capture.stored else map(_in_memory, capture.params if figures else ())
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
