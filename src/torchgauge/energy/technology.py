"""Published energy of arithmetic and of moving data; the technology of a device by its name.

The figures and their sources are in technology.toml. A device whose technology is not known spans all of them.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

PICO = 1e-12
# A multiplier of 53 bits of significand against 24: at least twice, at most (53 / 24)² as much.
_DOUBLE = (2.0, (53 / 24) ** 2)
_FLOAT8 = ("int8", "float16")
_SUMMED_IN = {"tf32": "float32", "float16": "float32", "bfloat16": "float32", "float8": "float32", "int8": "int32"}


class Range(NamedTuple):
    """A value known only within these bounds."""

    low: float
    high: float

    @property
    def value(self) -> float:
        """The middle of a range of orders of magnitude: the geometric mean."""
        return math.sqrt(self.low * self.high)

    def scaled(self, factor: float) -> Range:
        return Range(self.low * factor, self.high * factor)

    def plus(self, other: Range) -> Range:
        return Range(self.low + other.low, self.high + other.high)


@dataclass(frozen=True, slots=True)
class Technology:
    """Joules by kind of work. `sources` are the publications the figures come from."""

    nodes: tuple[str, ...]
    memories: tuple[str, ...]
    kind: str
    sources: tuple[str, ...]
    is_known: bool

    @property
    def name(self) -> str:
        sizes = f"{self.nodes[0]} nm" if len(self.nodes) == 1 else f"{self.nodes[0]} to {self.nodes[-1]} nm"
        return f"{sizes}, {' or '.join(self.memories)} memory"

    def mac_j(self, dtype: str | None) -> Range:
        """A multiplication and the addition of its product to the sum, with its part of an instruction."""
        return self._spanned("multiply", dtype).plus(self._summing(dtype)).plus(self._instruction("matrix").scaled(2))

    def operation_j(self, dtype: str | None) -> Range:
        """Any other operation: as cheap as an addition, as dear as a multiplication."""
        added, multiplied = self._spanned("add", dtype), self._spanned("multiply", dtype)
        return Range(added.low, multiplied.high).plus(self._instruction("vector"))

    def byte_j(self) -> Range:
        """Read or written once: from what stays on the chip to what goes to memory."""
        table = _table()["memory"]
        far = [table[name]["pj_per_byte"][1] for name in self.memories]
        return Range(table["cache"]["pj_per_byte"][0] * PICO, max(far) * PICO)

    def _summing(self, dtype: str | None) -> Range:
        plain = _plain(dtype)
        return self._spanned("add", _SUMMED_IN.get(plain, plain))

    def _spanned(self, what: str, dtype: str | None) -> Range:
        found = [_node_j(node, what, _plain(dtype)) for node in self.nodes]
        return Range(min(one.low for one in found), max(one.high for one in found))

    def _instruction(self, work: str) -> Range:
        """The energy of an instruction per operation, scaled from the node it was published for."""
        row = _table()["instruction"]["cpu" if self.kind == "cpu" else "accelerator"]
        fewest, most = row[work]
        at, joules = str(row["node"]), row["pj"] * PICO
        # The ratio of energies of two nodes, from a float32 multiplication on each.
        before, low, high = _node_j(at, "multiply", "float32"), math.inf, 0.0
        for node in self.nodes:
            after = _node_j(node, "multiply", "float32")
            low = min(low, 1.0 if node == at else after.low / before.high)
            high = max(high, 1.0 if node == at else after.high / before.low)
        return Range(low * joules / most, high * joules / fewest)


def technology_of(name: str, kind: str) -> Technology:
    """By the name the driver gives; `kind` is torch's type of the device."""
    table = _table()
    matching = [beginning for beginning in table["devices"] if name.startswith(beginning)]
    known = table["devices"][max(matching, key=len)] if matching and kind != "cpu" else None
    nodes = (str(known["node"]),) if known else tuple(table["nodes"])
    memories = (known["memory"],) if known else ("ddr",) if kind == "cpu" else ("hbm", "gddr", "ddr")
    instruction = table["instruction"]["cpu" if kind == "cpu" else "accelerator"]
    rows = [table["arithmetic"][str(table["nodes"][node]["of"])] for node in nodes]
    rows += [*(table["nodes"][node] for node in nodes), *(table["memory"][one] for one in ("cache", *memories))]
    sources = tuple(dict.fromkeys(row["source"] for row in (*rows, instruction)))
    return Technology(nodes, memories, kind, sources, known is not None)


def power_of(watts: float | None, kind: str, cores: int | None) -> Range | None:
    """The bounds of what the device takes while it runs: by its published limit, or by the cores in use."""
    power = _table()["power"]
    if watts is not None:
        return Range(*power["busy"]).scaled(watts)
    return Range(*power["watts_per_core"]).scaled(cores) if kind == "cpu" and cores else None


def _plain(dtype: str | None) -> str:
    """The type whose energy was published, or that has its own range below; unknown types count as float32."""
    if dtype is None or dtype.startswith("complex"):
        return "float64" if dtype == "complex128" else "float32"
    if dtype.startswith("float8") or dtype.startswith("float4"):
        return "float8"
    if dtype in ("uint8", "qint8", "quint8", "bool"):
        return "int8"
    known = _table()["arithmetic"]["7"]["add"]
    return dtype if dtype in known or dtype in ("float64", "tf32") else "int32" if "int" in dtype else "float32"


def _node_j(node: str, what: str, dtype: str) -> Range:
    row = _table()["nodes"][node]
    table = _table()["arithmetic"][str(row["of"])][what]
    if dtype == "float64":
        low, high = table["float32"] * _DOUBLE[0], table["float32"] * _DOUBLE[1]
    elif dtype == "tf32":
        low, high = table["float16"], table["float32"]
    elif dtype == "float8":
        low, high = min(table[name] for name in _FLOAT8), max(table[name] for name in _FLOAT8)
    else:
        low = high = table[dtype]
    return Range(low * row["times"][0] * PICO, high * row["times"][1] * PICO)


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / "technology.toml").read_text(encoding="utf-8"))
