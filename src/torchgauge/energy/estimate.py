"""Energy without a meter: operations and bytes at published energies, power over the time the run took.

    low   the arithmetic and every byte at the lowest published figures, or the least power over
          the time, whichever is more
    high  the most power the device can take over the time; without a time, work and bytes at the highest figures

An estimate is a range. Its single value, the geometric mean, only serves to rank parts. The published energies of
arithmetic and data movement, by the technology of a device, are in technology.toml with their sources; a device of
unknown technology spans all of them.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torchgauge.facts import COUNTED, ModuleRecord, OpRecord
from torchgauge.measure.module_times import inclusive_sums

if TYPE_CHECKING:
    from torchgauge.facts.document_types import EstimatedEnergy
    from torchgauge.facts.document_types import Range as RangeRow
    from torchgauge.facts.measurements import RowEnergy

PICO = 1e-12
# A multiplier of 53 bits of significand against 24: at least twice, at most (53 / 24)² as much.
_DOUBLE_OVER_SINGLE = (2.0, (53 / 24) ** 2)
_FLOAT8 = ("int8", "float16")
_SUMMED_IN = {"tf32": "float32", "float16": "float32", "bfloat16": "float32", "float8": "float32", "int8": "int32"}


class Range(NamedTuple):
    """A value that is only known to lie within these bounds."""

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
        plain = _plain(dtype)
        summed = self._spanned("add", _SUMMED_IN.get(plain, plain))
        return self._spanned("multiply", dtype).plus(summed).plus(self._instruction("matrix").scaled(2))

    def operation_j(self, dtype: str | None) -> Range:
        """Any other operation: between an addition and a multiplication."""
        added, multiplied = self._spanned("add", dtype), self._spanned("multiply", dtype)
        return Range(added.low, multiplied.high).plus(self._instruction("vector"))

    def byte_j(self) -> Range:
        """Read or written once: from a byte that stays on the chip to one that goes to memory."""
        table = _table()["memory"]
        far = [table[name]["pj_per_byte"][1] for name in self.memories]
        return Range(table["cache"]["pj_per_byte"][0] * PICO, max(far) * PICO)

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
    """The bounds of the power of the device while it runs: from its published limit, or from the cores in use."""
    power = _table()["power"]
    if watts is not None:
        return Range(*power["busy"]).scaled(watts)
    return Range(*power["watts_per_core"]).scaled(cores) if kind == "cpu" and cores else None


def _plain(dtype: str | None) -> str:
    """The type whose energy was published, or that `_node_j` has a range for; unknown types count as float32."""
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
        low, high = table["float32"] * _DOUBLE_OVER_SINGLE[0], table["float32"] * _DOUBLE_OVER_SINGLE[1]
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


ESTIMATED = "estimated"
NO_TIME = "power over time is not included, because no time was measured: a run takes more energy"
NO_POWER = "power over time is not included, because it is not known for this device: a run takes more energy"


@dataclass(frozen=True, slots=True)
class Circumstances:
    """The conditions of a run: the device's name, torch's type of it and its published power limit in watts; the median
    time, the times of ops, and the cores in use."""

    device: str
    kind: str = "cpu"
    watts: float | None = None
    cores: int | None = None
    time_s: float | None = None
    op_times: Mapping[int, float] = field(default_factory=dict)
    tf32: bool = False


@dataclass(frozen=True, slots=True)
class Estimate:
    """`ops` by index: their shares of the value; those of all ops add up to it."""

    joules: Range
    work: Range
    power: Range | None
    technology: Technology
    ops: Mapping[int, float]
    notes: tuple[str, ...]
    flops: int = 0
    time_s: float | None = None

    @property
    def value(self) -> float:
        return self.joules.value

    def range_of(self, share: float) -> RowEnergy:
        """The members of a row that has this share of the value."""
        scale = share / self.value if self.value else 0.0
        return {
            "estimated_energy_j": share,
            "estimated_energy_low_j": self.joules.low * scale,
            "estimated_energy_high_j": self.joules.high * scale,
        }

    def figures(self, *, samples: int = 1) -> EstimatedEnergy:
        """`energy.estimated_joules` and what it rests on, as plain JSON. Power is that over the time; without a time
        what the device can take."""
        watts = self.joules.scaled(1 / self.time_s) if self.time_s else self.power
        rate = Range(self.flops / self.joules.high, self.flops / self.joules.low) if self.joules.low else None
        return {
            "estimated_joules": spread(self.joules),
            "estimated_joules_per_sample": spread(self.joules.scaled(1 / samples)),
            "estimated_watts_mean": None if watts is None else spread(watts),
            "estimated_flops_per_joule": None if rate is None or not self.flops else spread(rate),
            "estimated_from": {
                "technology": self.technology.name,
                "technology_known": self.technology.is_known,
                "work_joules": spread(self.work),
                "watts": None if self.power is None else spread(self.power),
                "sources": list(self.technology.sources),
                "notes": list(self.notes),
            },
        }


def estimate_energy(ops: Sequence[OpRecord], known: Circumstances) -> Estimate:
    technology = technology_of(known.device, known.kind)
    by_op: dict[int, Range] = {}
    for op in ops:
        cost, dtype = op.cost, op.signature.dtype
        # TF32 is for matrix work only.
        mac_j = technology.mac_j("tf32" if known.tf32 and dtype == "float32" else dtype)
        other_j = technology.operation_j(dtype).scaled(max(cost.flops - 2 * cost.macs, 0))
        moved_j = technology.byte_j().scaled(cost.bytes_moved)
        by_op[op.index] = moved_j.plus(mac_j.scaled(cost.macs)).plus(other_j)
    work = Range(sum(one.low for one in by_op.values()), sum(one.high for one in by_op.values()))
    power = power_of(known.watts, known.kind, known.cores)
    if power is None or not known.time_s:
        joules = work
    else:
        taken = power.scaled(known.time_s)
        # If the work would need more power than the device can take, it cost less than published: the limit applies.
        joules = Range(min(max(work.low, taken.low), taken.high), taken.high)
    # Energy that the work does not explain is spread over the time of the ops; without times, over their work.
    shares = {index: one.value for index, one in by_op.items()}
    worked, timed = sum(shares.values()), sum(known.op_times.get(index, 0.0) for index in shares)
    rest = joules.value - worked
    for index, own in shares.items():
        if rest > 0 and timed:
            shares[index] = own + rest * known.op_times.get(index, 0.0) / timed
        else:
            shares[index] = own * (joules.value / worked if worked else 0.0)
    notes = []
    if not technology.is_known:
        notes.append(f"the technology of '{known.device}' is not known: the range spans {technology.name}")
    if power is None:
        notes.append(NO_POWER)
    elif not known.time_s:
        notes.append(NO_TIME)
    uncounted = sum(op.status not in (COUNTED, "free") for op in ops)
    if uncounted:
        notes.append(f"the arithmetic of {uncounted} ops without a formula is not included")
    flops = sum(op.cost.flops for op in ops)
    return Estimate(joules, work, power, technology, shares, tuple(notes), flops, known.time_s)


def module_shares(
    ops: Sequence[OpRecord], modules: Sequence[ModuleRecord], shares: Mapping[int, float]
) -> dict[str, float]:
    """By module: the shares of its own ops and of those of the modules below."""
    sums = inclusive_sums((op.module, shares[op.index]) for op in ops)
    return {module.path: sums.get(module.path, 0.0) for module in modules}


def spread(joules: Range) -> RangeRow:
    return {"value": joules.value, "low": joules.low, "high": joules.high}
