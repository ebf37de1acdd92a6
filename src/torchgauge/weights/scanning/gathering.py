"""A scan as the record that an analysis holds."""

from __future__ import annotations

from typing import Any

from torchgauge.checkpoint.index import Index
from torchgauge.facts import WeightStatistics
from torchgauge.weights.scanning.collecting import OnRow, ScanResult
from torchgauge.weights.scanning.scan import ScanRequest, Tell, scan
from torchgauge.weights.stream.reading import Reader


def weight_statistics(
    index: Index,
    request: ScanRequest,
    *,
    tell: Tell | None = None,
    on_row: OnRow | None = None,
    reader: Reader | None = None,
) -> WeightStatistics:
    found = scan(index, request, tell=tell, on_row=on_row, reader=reader)
    return WeightStatistics(found.rows, found.summary, tuple(found.failures), _circumstances(found, request))


def _circumstances(found: ScanResult, request: ScanRequest) -> dict[str, Any]:
    return {
        "bytes": found.nbytes,
        "seconds": found.seconds,
        "deep": request.deep,
        "spectrum": request.spectrum,
        "threads": found.threads,
        "dask": request.dask,
        "resumed_tensors": found.resumed,
    }
