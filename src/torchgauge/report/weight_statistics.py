"""Statistics of the weights, as data: places of repeated blocks, the hardest to quantize, what to do; and a figure by
layer as shades: a row for each place in the repeated block, a column for each layer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from statistics import median
from typing import TYPE_CHECKING, NamedTuple, cast

from torchgauge.facts import Row, View
from torchgauge.facts.figures import Members
from torchgauge.facts.weights import (
    by_stem,
    indexed_name,
    layer_of,
    quantization_of,
    removable,
    value_figures,
    weight_ops,
)
from torchgauge.registry import grouped
from torchgauge.report.ranking import path_pattern

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Summary

_NUMBER = re.compile(r"[\d.,]+")
STRUCTURES = ("rows", "columns", "channels", "heads")


@dataclass(frozen=True, slots=True)
class Siblings:
    """Siblings together: the typical spread, the largest magnitude, the worst signal-to-noise ratio."""

    pattern: str
    count: int
    elements: int
    nbytes: int
    std: float | None
    abs_max: float | None
    sparsity: float | None
    removable: float | None
    int8_db: float | None
    smallest_30db: str


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A recommendation for a tensor, and how many of its siblings have the same one."""

    name: str
    text: str
    siblings: int


@dataclass(frozen=True, slots=True)
class OpShare:
    """Equal ops at one place of repeated blocks."""

    op: str
    module: str
    calls: int
    nbytes: int
    removable: float | None
    smallest_30db: str
    bytes_after: int


def summary_of(view: View) -> Summary | None:
    """The figures of all weights together; None where no values were read."""
    return cast("Summary | None", view.weight_summary)


def examined(view: View) -> list[Row]:
    """The model's parameters whose values were read; bytes that several names share count once."""
    return [
        Row(value_figures(row))
        for row in view.weights
        if row["role"] == "parameter" and row["shared_with"] is None and row.get("quantization") is not None
    ]


def places(view: View) -> list[Siblings]:
    """The largest first; matrices alone, where there are any."""
    rows = examined(view)
    largest = [row for row in rows if len(row["shape"]) > 1] or rows
    groups = grouped((indexed_name(row["name"]).pattern, row) for row in largest)
    found = []
    for pattern, members in groups.items():
        spreads = _known(row["std"] for row in members)
        place = Siblings(
            pattern=pattern if len(members) > 1 else members[0]["name"],
            count=len(members),
            elements=sum(row["elements"] for row in members),
            nbytes=sum(row["bytes"] for row in members),
            std=median(spreads) if spreads else None,
            abs_max=max(_known(row["abs_max"] for row in members), default=None),
            sparsity=weighted((row["sparsity"], row["elements"]) for row in members),
            removable=weighted((removable(row), row["elements"]) for row in members),
            int8_db=min(_known(sqnr_db(row, "int8") for row in members), default=None),
            smallest_30db=formats_text(quantization_of(row).get("smallest_30db") for row in members),
        )
        found.append(place)
    return sorted(found, key=lambda place: -place.nbytes)


def sqnr_db(row: Members, format: str, granularity: str = "per_tensor") -> float | None:
    """None where nothing is lost, and where it was not computed."""
    figure = (quantization_of(row).get(format) or {}).get(granularity) or {}
    found: float | None = figure.get("sqnr_db")
    return found


def formats_text(formats: Iterable[str | None]) -> str:
    """`int8`, or `int8, int4` where siblings differ, the most common first; a dash where none is small enough."""
    names = [name or "-" for name, _ in Counter(formats).most_common(2)]
    return ", ".join(names) or "-"


def weighted(pairs: Iterable[tuple[float | None, int]]) -> float | None:
    """The share of all elements together."""
    known = [(share, count) for share, count in pairs if share is not None]
    total = sum(count for _, count in known)
    return sum(share * count for share, count in known) / total if total else None


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def hardest(view: View, limit: int) -> list[Row]:
    """The matrices that int8 with one scale hurts most."""
    matrices = [row for row in examined(view) if len(row["shape"]) > 1 and sqnr_db(row, "int8") is not None]
    return sorted(matrices, key=lambda row: sqnr_db(row, "int8") or 0.0)[:limit]


def structured(row: Members) -> dict[str, float]:
    """The shares of rows, columns, channels and heads that can be removed at 1 % error, where examined."""
    pruning = value_figures(row).get("pruning") or {}
    shares = {structure: (pruning.get(structure) or {}).get("0.01") for structure in STRUCTURES}
    return {structure: share for structure, share in shares.items() if share is not None}


def structured_in_all(view: View) -> dict[str, float]:
    """The shares of all matrices together, weighted by elements; `two_four` is the share of the energy that 2:4
    sparsity keeps."""
    rows = [row for row in examined(view) if structured(row)]
    found: dict[str, float] = {}
    for structure in STRUCTURES:
        shares = [(row["elements"], structured(row)[structure]) for row in rows if structure in structured(row)]
        elements = sum(count for count, _ in shares)
        if elements:
            found[structure] = sum(count * share for count, share in shares) / elements
    # Relative to the largest norm: the square of a norm above 1e154 is not a float64.
    largest = max((row["l2"] for row in rows if row.get("l2")), default=1.0)
    kept = [((row["l2"] / largest) ** 2, row["pruning"].get("two_four_energy")) for row in rows if row.get("l2")]
    energy = sum(whole for whole, share in kept if share is not None)
    return found | (
        {"two_four": sum(whole * share for whole, share in kept if share is not None) / energy} if energy else {}
    )


def easiest_to_prune(view: View, limit: int) -> list[Row]:
    """The matrices with the largest share of rows, columns, channels or heads that can go; those with none left out."""
    rows = [row for row in examined(view) if any(structured(row).values())]
    return sorted(rows, key=lambda row: -max(structured(row).values()))[:limit]


def advice(view: View) -> list[Recommendation]:
    """Unusable values first, then the largest tensors; siblings with the same recommendation are listed once."""
    # Shared tensors count under their first name; scales and zero points of a packing are left out.
    rows = [
        row
        for row in view.weights
        if row.get("recommendations") and (row["shared_with"] is None and row["logical_elements"] != 0)
    ]
    rows.sort(key=lambda row: (not (row.get("nan") or row.get("inf")), -row["bytes"]))
    groups: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for row in rows:
        for text in row["recommendations"]:
            key = indexed_name(row["name"]).pattern, _NUMBER.sub("#", text)
            groups.setdefault(key, []).append((row["name"], text))
    return [Recommendation(*members[0], len(members) - 1) for members in groups.values()]


def by_operation(view: View) -> list[OpShare]:
    """The ops that use the most weight bytes come first; a weight used twice counts for both."""
    used = weight_ops(view.capture.ops, view.weights, view.capture.params)
    groups = grouped(((row["op"], path_pattern(row["module"])), row) for row in used)
    shares = [
        OpShare(
            op=op,
            module=module if len(rows) > 1 else rows[0]["module"],
            calls=len(rows),
            nbytes=sum(row["bytes"] for row in rows),
            removable=weighted((row["removable"]["0.01"], row["elements"]) for row in rows),
            smallest_30db=formats_text(row["smallest_30db"] for row in rows),
            bytes_after=sum(row["bytes_after"]["30db"] for row in rows),
        )
        for (op, module), rows in groups.items()
    ]
    return sorted(shares, key=lambda share: -share.nbytes)


# Up to this many times the row's median; above the last it is solid.
SHADES = ((0.5, "·"), (0.8, "░"), (1.25, "▒"), (2.0, "▓"))
SOLID, UNKNOWN, ABSENT = "█", "?", " "
LEGEND = "· to 0.5, ░ to 0.8, ▒ to 1.25, ▓ to 2, █ above 2 times the row's median; ? no finite value"
MIN_LAYERS = 3


@dataclass(frozen=True, slots=True)
class HeatRow:
    """`cells` has a value for each column: None where the layer has no such weight, NaN where the value is unknown."""

    label: str
    nbytes: int
    cells: tuple[float | None, ...]
    median: float
    largest: float


@dataclass(frozen=True, slots=True)
class HeatMap:
    """The layers of one `stem`, such as `blocks.*`; `columns` are their indices."""

    figure: str
    stem: str
    columns: tuple[tuple[int, ...], ...]
    rows: tuple[HeatRow, ...]

    @property
    def nbytes(self) -> int:
        return sum(row.nbytes for row in self.rows)


class LayerGrid(NamedTuple):
    """The weights of repeated blocks: by the label of each place in the block, names by the index of the layer."""

    stem: str
    layers: tuple[tuple[int, ...], ...]
    rows: list[tuple[str, dict[tuple[int, ...], list[str]]]]


def layer_grids(sizes: Mapping[str, int]) -> Iterator[LayerGrid]:
    """The grids of blocks that repeat often enough, the largest first; `sizes` are the bytes of tensors by name."""
    for stem, patterns in by_stem(sizes).items():
        layers = tuple(sorted({layer_of(name)[: stem.depth] for names in patterns.values() for name in names}))
        rows = []
        for pattern, names in patterns.items():
            by_layer = grouped((layer_of(name)[: stem.depth], name) for name in names)
            rows.append((pattern.removeprefix(stem.path).removesuffix(".weight").strip(".") or pattern, by_layer))
        if len(layers) >= MIN_LAYERS:
            yield LayerGrid(stem.path, layers, rows)


def heat_maps(view: View, figure: str = "std") -> list[HeatMap]:
    """One map for each list of repeated blocks, the largest first; matrices alone, and only where layers are many."""
    rows = {
        row["name"]: Row(value_figures(row))
        for row in view.weights
        if (figure in row and row["role"] == "parameter" and row["shared_with"] is None and len(row["shape"]) > 1)
    }
    maps = []
    for grid in layer_grids({name: row["bytes"] for name, row in rows.items()}):
        found = []
        for label, names in grid.rows:
            by_layer = {
                layer: [float("nan") if (value := rows[name][figure]) is None else float(value) for name in members]
                for layer, members in names.items()
            }
            values = [value for members in by_layer.values() for value in members if isfinite(value)]
            if values:
                middle = median(values)
                cells = tuple(most_deviating(by_layer.get(layer, ()), middle) for layer in grid.layers)
                nbytes = sum(rows[name]["bytes"] for members in names.values() for name in members)
                found.append(HeatRow(label, nbytes, cells, middle, max(values)))
        found.sort(key=lambda row: -row.nbytes)
        maps.append(HeatMap(figure, grid.stem, grid.layers, tuple(found)))
    return sorted(maps, key=lambda found: -found.nbytes)


def most_deviating(values: Iterable[float | None], middle: float) -> float | None:
    """The value that deviates most, so that outliers stay visible: NaN or inf if there is one, None without values."""
    present = [value for value in values if value is not None]
    unknown = [value for value in present if not isfinite(value)]
    return unknown[0] if unknown else max(present, key=lambda value: abs(value - middle), default=None)


def shade(value: float | None, middle: float) -> str:
    if value is None:
        return ABSENT
    if not isfinite(value):
        return UNKNOWN
    if not middle:
        return SHADES[2][1] if not value else SOLID
    return next((mark for limit, mark in SHADES if value / middle <= limit), SOLID)
