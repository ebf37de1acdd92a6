"""The heat map's grid: rows are places of repeated blocks, columns their layers; a cell is a tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from torchgauge.facts import Row
from torchgauge.facts.siblings import Stem, by_pattern, layer_of, stem_of

MIN_LAYERS = 3

Grid = dict[str, Any]


def weight_map(rows: Sequence[Row]) -> list[Grid]:
    """One grid for each list of repeated blocks, the largest first; the tensors in none come last, in a grid with one
    row. A cell holds the places of its tensors among `rows`: several where experts share a layer."""
    shown = {row["name"]: place for place, row in enumerate(rows) if _is_shown(row)}
    sizes = {name: rows[place]["bytes"] for name, place in shown.items()}
    grids = [_grid(stem, patterns, shown) for stem, patterns in _by_stem(sizes).items()]
    kept = [grid for grid in grids if len(grid["columns"]) >= MIN_LAYERS]
    placed = {place for grid in kept for row in grid["rows"] for cell in row["cells"] for place in cell}
    left = {name: place for name, place in shown.items() if place not in placed}
    return [*kept, *([_others(left)] if left else [])]


def _is_shown(row: Row) -> bool:
    return row["role"] == "parameter" and row["shared_with"] is None and row.get("mean") is not None


def _by_stem(sizes: Mapping[str, int]) -> dict[Stem, dict[str, list[str]]]:
    """Each pattern with the largest stem that it begins with: what a few layers have goes with what all have."""
    patterns = by_pattern(sizes)
    own = {pattern: stem_of(pattern, names) for pattern, names in patterns.items()}
    weight: Counter[Stem] = Counter()
    for pattern, names in patterns.items():
        weight[own[pattern]] += sum(sizes[name] for name in names)
    ranked = [stem for stem, _ in weight.most_common()]
    groups: dict[Stem, dict[str, list[str]]] = {stem: {} for stem in ranked}
    for pattern, names in patterns.items():
        fitting = next(stem for stem in ranked if f"{pattern}.".startswith(f"{stem.path}."))
        groups[fitting][pattern] = names
    return {stem: found for stem, found in groups.items() if found}


def _grid(stem: Stem, patterns: Mapping[str, Sequence[str]], places: Mapping[str, int]) -> Grid:
    layers = sorted({_layer(name, stem) for names in patterns.values() for name in names})
    rows = []
    for pattern, names in patterns.items():
        cells: dict[tuple[int, ...], list[int]] = {}
        for name in names:
            cells.setdefault(_layer(name, stem), []).append(places[name])
        label = pattern.removeprefix(stem.path).removesuffix(".weight").strip(".") or pattern
        rows.append({"label": label, "cells": [cells.get(layer, []) for layer in layers]})
    return {"stem": stem.path, "columns": [".".join(map(str, layer)) for layer in layers], "rows": rows}


def _layer(name: str, stem: Stem) -> tuple[int, ...]:
    return layer_of(name)[: stem.depth]


def _others(left: Mapping[str, int]) -> Grid:
    return {"stem": None, "columns": list(left), "rows": [{"label": "", "cells": [[place] for place in left.values()]}]}
