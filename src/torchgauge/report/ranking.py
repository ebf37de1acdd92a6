"""The modules and ops that cost the most FLOPs, time or energy. Repeated ones count together: twelve equal layers cost
as much as twelve."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from torchgauge.facts import UNCOUNTED, Node, OpRecord, Sums, View
from torchgauge.facts.figures import ESTIMATED
from torchgauge.facts.measurements import energy_of, measurements_of
from torchgauge.facts.module import index_of, without_stars
from torchgauge.facts.plausibility import ranking_doubt, whole_time_s
from torchgauge.registry import grouped, summed

if TYPE_CHECKING:
    from torchgauge.facts.measurements import MeasuredOp, RowEnergy


def is_estimated(view: View) -> bool:
    energy = energy_of(view)
    return energy is not None and energy["origin"] == ESTIMATED


def energy_key(view: View) -> Literal["estimated_energy_j", "energy_j"]:
    return "estimated_energy_j" if is_estimated(view) else "energy_j"


def own_energy(node: Node, rows: Mapping[str, RowEnergy], key: Literal["estimated_energy_j", "energy_j"]) -> float:
    """The joules of a module without those of the modules below it."""
    below = sum(rows.get(child.path, {}).get(key) or 0.0 for child in node.children)
    return (rows.get(node.path, {}).get(key) or 0.0) - below


# The root in a list of places: its path is empty.
THE_MODEL = "(the model itself)"
BY_FLOPS, BY_TIME, BY_ENERGY = "flops", "time", "energy"
# A difference of sums may leave this much.
_ROUNDING_ERROR = 1e-9


@dataclass(frozen=True, slots=True)
class TopModules:
    """Modules at one place of repeated blocks (`layers.0–11.fc`). All figures are theirs without the modules below;
    `value` is the FLOPs, seconds or joules that they are ranked by, `share` is of the whole run's; None where the parts
    exceed the whole."""

    paths: str
    kind: str
    count: int
    value: float
    share: float | None
    macs: int
    flops: int
    bytes_moved: int


@dataclass(frozen=True, slots=True)
class TopOps:
    """All calls of one op with equal shapes. The work of an uncounted op is unknown, not 0. `roof_share` and `bound`
    are of timed calls, None where the device's limits are not known."""

    op: str
    input_shapes: tuple[tuple[int, ...], ...]
    output_shapes: tuple[tuple[int, ...], ...]
    calls: int
    value: float
    share: float | None
    is_counted: bool
    macs: int
    flops: int
    bytes_moved: int
    roof_share: float | None = None
    bound: str | None = None


def rate(entry: TopModules | TopOps, amount: int) -> float | None:
    """An amount per second or joule; None where there is none of it."""
    return amount / entry.value if amount else None


def withheld(view: View, by: str) -> str | None:
    """Why there is no ranking by measured time or energy, which is attributed by time; None if there may be one."""
    is_measured = by == BY_TIME or (by == BY_ENERGY and not is_estimated(view))
    return ranking_doubt(view.capture) if is_measured else None


def top_modules(view: View, by: str, limit: int) -> list[TopModules]:
    """Empty where the ranking is withheld."""
    if withheld(view, by):
        return []
    measured, energy = view.capture.measured, view.capture.energy
    times = measured.modules if measured else {}
    total = _whole(view, by, [row.get("self_time_s") or 0.0 for row in times.values()])
    joules = energy.modules if energy else {}
    groups: dict[Hashable, list[tuple[Node, float]]] = {}
    for node in view.tree.walk():
        if by == BY_FLOPS:
            value: float = node.own.flops
        elif by == BY_TIME:
            value = times.get(node.path, {}).get("self_time_s") or 0.0
        else:
            value = own_energy(node, joules, energy_key(view))
        if value > (_ROUNDING_ERROR * (total or 0) if by == BY_ENERGY else 0):
            # Counts are equal or not; measured values never quite are.
            likeness = (node.own.flops, node.own.macs) if by == BY_FLOPS else None
            groups.setdefault((path_pattern(node.path), node.record.type, likeness), []).append((node, value))
    ranked = []
    for members in groups.values():
        own, value = Sums(), sum(value for _, value in members)
        for node, _ in members:
            own.add(node.own)
        ranked.append(
            TopModules(
                paths=join_paths([node.path for node, _ in members]),
                kind=members[0][0].record.type,
                count=len(members),
                value=value,
                share=None if total is None else share_of(value, total),
                macs=own.macs,
                flops=own.flops,
                bytes_moved=own.bytes_moved,
            )
        )
    return _largest(ranked, by, limit)


def top_ops(view: View, by: str, limit: int) -> list[TopOps]:
    """Ops that do nothing are left out; by time or energy those without a figure. Empty where the ranking is
    withheld."""
    if withheld(view, by):
        return []
    ops, key = view.capture.ops, energy_key(view)
    times: Mapping[int, MeasuredOp] = {}
    if by == BY_FLOPS:
        ranked_ops = [op for op in ops if op.cost.flops or op.cost.bytes_read or op.cost.bytes_written]
        values: dict[int, float] = {op.index: op.cost.flops for op in ranked_ops}
    else:
        if by == BY_TIME:
            times = view.capture.measured.ops if view.capture.measured else {}
            values = {index: row.get("time_s") or 0.0 for index, row in times.items()}
        else:
            joules = view.capture.energy.ops if view.capture.energy else {}
            values = {index: row.get(key) or 0.0 for index, row in joules.items()}
        ranked_ops = [op for op in ops if values.get(op.index)]
    total = _whole(view, by, values.values())
    ranked = []
    for calls in equal_calls(ranked_ops):
        signature, sums, value = calls[0].signature, Sums.over(calls), sum(values[op.index] for op in calls)
        timed = [times[op.index] for op in calls] if times else []
        # The least time the device needs for all calls over the time they took.
        known = [
            (share * row["time_s"], row["time_s"]) for row in timed if (share := row.get("roof_share")) is not None
        ]
        # The bound of the calls that together take the most time.
        bounds = summed((row.get("bound"), row["time_s"]) for row in timed)
        ranked.append(
            TopOps(
                op=signature.op,
                input_shapes=tuple(spec.shape for spec in signature.inputs),
                output_shapes=tuple(spec.shape for spec in signature.outputs),
                calls=len(calls),
                value=value,
                share=None if total is None else share_of(value, total),
                is_counted=signature.status != UNCOUNTED,
                macs=sums.macs,
                flops=sums.flops,
                bytes_moved=sums.bytes_moved,
                roof_share=sum(least for least, _ in known) / sum(taken for _, taken in known) if known else None,
                bound=max(bounds, key=lambda bound: bounds[bound], default=None),
            )
        )
    return _largest(ranked, by, limit)


def _whole(view: View, by: str, parts: Iterable[float]) -> float | None:
    """The FLOPs, seconds or joules that `parts` are shares of; joules are measured, or the middle of the estimate."""
    energy = energy_of(view) if by == BY_ENERGY else None
    if by == BY_FLOPS:
        found: float | None = view.totals.flops
    elif by == BY_TIME:
        return whole_time_s(view.capture, parts)
    elif energy is not None and energy["origin"] == ESTIMATED:
        guess = energy.get("estimated_joules")
        found = guess and guess["value"]
    else:
        found = energy and energy["joules"]
    return found or 0.0


Entry = TypeVar("Entry", TopModules, TopOps)


def _largest(ranked: list[Entry], by: str, limit: int) -> list[Entry]:
    # Ops without arithmetic are ranked by the bytes they move.
    ranked.sort(key=lambda entry: (entry.value, entry.bytes_moved if by == BY_FLOPS else 0), reverse=True)
    return ranked[:limit]


@dataclass(frozen=True, slots=True)
class TopPhases:
    """Modules at one place of repeated blocks: their own seconds in each phase of a training step."""

    paths: str
    count: int
    seconds: dict[str, float]


def top_phases(view: View, limit: int) -> list[TopPhases]:
    """Sorted by the time of all phases together; empty unless a training step was measured, and where the ranking is
    withheld."""
    phases = {} if withheld(view, BY_TIME) else measurements_of(view).get("module_phases") or {}
    ranked = []
    for paths in grouped((path_pattern(path), path) for path in phases).values():
        seconds: Counter[str] = Counter()
        for path in paths:
            seconds.update(phases[path])
        ranked.append(TopPhases(join_paths(paths), len(paths), dict(seconds)))
    return sorted(ranked, key=lambda entry: sum(entry.seconds.values()), reverse=True)[:limit]


def equal_calls(ops: Iterable[OpRecord]) -> list[list[OpRecord]]:
    """The calls of one op with equal shapes and types, together."""
    groups: dict[Hashable, list[OpRecord]] = {}
    for op in ops:
        signature = op.signature
        shapes = tuple(spec.shape for spec in signature.inputs), tuple(spec.shape for spec in signature.outputs)
        groups.setdefault((signature.op, shapes, signature.dtype), []).append(op)
    return list(groups.values())


def path_pattern(path: str) -> str:
    """`layers.3.fc` is one of `layers.*.fc`; a star of a name itself is escaped."""
    return ".".join(without_stars(part) if index_of(part) is None else "*" for part in path.split("."))


def join_paths(paths: list[str]) -> str:
    """Paths that differ in indices as one: `layers.0–11.fc`; an index with scattered values is a star."""
    joined = []
    for parts in zip(*(path.split(".") for path in paths), strict=True):
        distinct = sorted(set(parts), key=lambda part: (len(part), part))
        if len(distinct) == 1:
            joined.append(distinct[0])
            continue
        first, last = int(distinct[0]), int(distinct[-1])
        scattered = f"{{{','.join(distinct)}}}" if len(distinct) <= 3 else "*"
        joined.append(f"{first}–{last}" if last - first == len(distinct) - 1 else scattered)
    return ".".join(joined)


def share_of(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
