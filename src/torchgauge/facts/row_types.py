"""The rows of the Python API by the types of their members; `facts/rows.py` makes them.

A row is a JSON object: `row["macs"]` and `row.macs` are the same. Members that may be None need a measurement, a
prediction or a file. Those of the run of a model have the type that they have with code; they are None for weights
alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self


class Row(dict[str, Any]):
    """A JSON object whose keys are attributes too: `row["macs"]`, `row.macs`."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no '{name}'; there are: {', '.join(self)}") from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self]


class TotalsRow(Row):
    """The figures of the whole model."""

    __slots__ = ()
    params: int
    trainable_params: int
    active_params: int
    param_bytes: int
    buffer_bytes: int
    stored_elements: int
    logical_params: int
    bits_per_weight: float | None
    optimizer_elements: int | None
    stored_bytes: int | None
    macs: int
    flops: int
    bytes_read: int
    bytes_written: int
    activation_bytes: int
    peak_activation_bytes: int
    saved_activation_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    total_bytes: int
    ops: int
    uncounted_ops: int
    time_s: float | None
    energy_j: float | None


class ModuleRow(Row):
    """A module with everything below it."""

    __slots__ = ()
    path: str
    aliases: list[str]
    type: str
    depth: int
    calls: int
    params: int
    trainable_params: int
    param_bytes: int
    logical_params: int
    bits_per_weight: float | None
    input_shapes: list[list[int]]
    output_shapes: list[list[int]]
    macs: int
    flops: int
    bytes_read: int
    bytes_written: int
    activation_bytes: int
    ops: int
    time_s: float | None
    self_time_s: float | None
    time_share: float | None
    energy_j: float | None
    estimated_energy_j: float | None
    estimated_energy_low_j: float | None
    estimated_energy_high_j: float | None
    predicted_time_s: float | None
    predicted_low_s: float | None
    predicted_high_s: float | None
    predicted_device_s: float | None
    predicted_energy_j: float | None
    predicted_roof_share: float | None
    predicted_source: str | None
    inputs: object
    outputs: object


class OpRow(Row):
    """A call of an op."""

    __slots__ = ()
    index: int
    op: str
    overload: str
    module: str
    phase: str
    category: str
    status: str
    input_shapes: list[list[int]]
    output_shapes: list[list[int]]
    dtype: str | None
    macs: int
    flops: int
    bytes_read: int
    bytes_written: int
    activation_bytes: int
    arithmetic_intensity: float
    live_bytes: int
    time_s: float | None
    cpu_time_s: float | None
    kernels: object
    flops_per_s: float | None
    bytes_per_s: float | None
    roof_share: float | None
    bound: str | None
    energy_j: float | None
    estimated_energy_j: float | None
    estimated_energy_low_j: float | None
    estimated_energy_high_j: float | None
    predicted_time_s: float | None
    predicted_low_s: float | None
    predicted_high_s: float | None
    predicted_device_s: float | None
    predicted_energy_j: float | None
    predicted_roof_share: float | None
    predicted_bound: str | None
    predicted_source: str | None
    weights: list[str]
    source: str | None
    producers: list[int]
    inputs: object
    outputs: object
    attributes: object
    tags: list[str]


class WhereRow(Row):
    """The place of a piece of advice."""

    __slots__ = ()
    module: str | None
    ops: list[int]
    weight: str | None
    source: str | None
    line: str | None


class GainRow(Row):
    """The expected gain: shares of the time for `quantity` "time_s", otherwise amounts."""

    __slots__ = ()
    quantity: str
    low: float
    high: float
    how: str


class AdviceRow(Row):
    """A recommended change."""

    __slots__ = ()
    rule: str
    kind: str
    where: WhereRow
    evidence: dict[str, Any]
    recommendation: str
    code: str | None
    expected_gain: GainRow | None
    risk: str
    confidence: str
    verified: dict[str, Any] | None

    @classmethod
    def of(cls, member: Mapping[str, Any]) -> Self:
        """The row of a member of the document."""
        kinds = {"where": WhereRow, "expected_gain": GainRow}
        return cls(member, **{key: kind(member[key]) for key, kind in kinds.items() if member.get(key) is not None})
