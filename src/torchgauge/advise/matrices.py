"""The weights whose values were read: what the rules about values look at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torchgauge.advise.evidence import Evidence
from torchgauge.advise.record import Gain, Where
from torchgauge.facts import OpRecord, Row


@dataclass(frozen=True, slots=True)
class Matrix:
    """A floating parameter of two and more dimensions; `name` is the model's name for it, `ops` work on it."""

    row: Row
    name: str
    ops: tuple[OpRecord, ...]
    is_from_file: bool = False

    @property
    def nbytes(self) -> int:
        return int(self.row.bytes)

    @property
    def module(self) -> str:
        return self.name.rpartition(".")[0]

    @property
    def attribute(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def where(self) -> Where:
        return Where(self.module, tuple(op.index for op in self.ops), str(self.row.name))

    def figure(self, *keys: str) -> Any:
        """A nested figure of the row; None where it was not computed."""
        value: Any = self.row
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    @property
    def is_constant(self) -> bool:
        return self.figure("min") == self.figure("max")

    @property
    def is_multiplied(self) -> bool:
        """By the ops that use it; in a file without code by its name."""
        if self.ops:
            return any(op.cost.macs for op in self.ops)
        return self.is_from_file and "weight" in self.attribute and not self.is_table

    @property
    def is_table(self) -> bool:
        """Looked up in, not multiplied with."""
        return any(op.category == "embedding" for op in self.ops) or self.row.module_type == "Embedding"


def matrices(evidence: Evidence) -> Iterator[Matrix]:
    """Without those that are views of another, packed, or were not read."""
    for row in evidence.weight_rows.values():
        is_weight = row.role == "parameter" and row.logical_elements is None and row.shared_with is None
        if is_weight and len(row["shape"]) >= 2 and "float" in row.dtype and row.get("sparsity") is not None:
            name = model_name(row)
            yield Matrix(row, name, tuple(evidence.weight_users.get(name, ())), not evidence.capture.has_code)


def model_name(row: Row) -> str:
    """A file may keep a tensor in a container; `module` is the model's path."""
    module, own = row.module, str(row.name).rpartition(".")[2]
    return str(row.name) if module is None else f"{module}.{own}" if module else own


def whole_gain(evidence: Evidence, low: float, high: float, how: str) -> Gain:
    """Bytes saved as a share of the parameters; of the file, where there is no model."""
    quantity = "param_bytes" if evidence.capture.has_code else "stored_bytes"
    whole = max(int(evidence.totals[quantity] or 0), 1)
    return Gain(quantity, min(low / whole, 1.0), min(high / whole, 1.0), how)
