"""Texts, colours and line widths of a scene. Names come from models: they are data, shown as they are and shortened.
A kind of op has the same colour as on the page; light, dark and in print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import log2

from torchgauge.facts import TensorSpec, tensor_specs
from torchgauge.report.graph.places import Graph, Runs
from torchgauge.report.graph.scene import INPUT, MORE, OUTPUT, STEP, Edge, Item
from torchgauge.report.layout import shorten
from torchgauge.units import format_bytes, format_count, format_shape, visible

# Longer names are cut in the middle: a box should not be wider than a column of text.
NAME_WIDTH = 30


@dataclass(frozen=True, slots=True)
class Label:
    """Name, kind and cost of a box; `path` is the module it belongs to."""

    title: str
    kind: str = ""
    cost: str = ""
    path: str = ""

    @property
    def detail(self) -> str:
        return " · ".join(text for text in (self.kind, self.cost) if text)


class Labels:
    def __init__(self, graph: Graph, runs: Runs) -> None:
        self.graph, self.runs = graph, runs

    def label(self, item: Item) -> Label:
        if item.kind == STEP:
            op = self.graph.flow.steps[item.number]
            return Label(_name(op.op.removeprefix("aten::")), path=visible(op.op))
        if item.kind == INPUT:
            given = self.graph.flow.inputs[item.number]
            return Label(_name(given.name), "input", path=visible(given.name))
        if item.kind in (OUTPUT, MORE):
            return Label("output" if item.kind == OUTPUT else f"… {item.count} more")
        place = self.graph.places[item.number]
        node = self.graph.nodes[place.row]
        record = node.record
        name = self.runs.name(item.number) or record.type
        times = f" ×{item.count}" if item.count > 1 else ""
        kind = record.type if name != record.type else ""
        if place.calls > 1:
            # The figures are of the whole module: at one of several places of its calls they would be wrong.
            cost = f"call {place.call + 1} of {place.calls}"
        else:
            around = self.graph.places[place.parent].turns if place.parent >= 0 else 1
            turns = f"{place.turns} calls" if place.turns > around else ""
            # Equal blocks cost the same: inside and outside of a run the figures are those of one block.
            figure, noun = (node.total.macs, "MACs") if self.graph.flow.steps else (record.params, "params")
            work = f"{format_count(figure)} {noun}{' each' if item.count > 1 else ''}" if figure else ""
            cost = " · ".join(text for text in (turns, work) if text)
        return Label(_name(name) + times, _name(kind), cost, visible(record.path))

    def made(self, item: Item) -> str:
        """The shape of an item's result."""
        specs: list[TensorSpec] = []
        steps, places = self.graph.flow.steps, self.graph.places
        if item.kind == STEP:
            specs = list(steps[item.number].signature.outputs[:1])
        elif item.kind == INPUT:
            specs = [self.graph.flow.inputs[item.number].spec]
        elif item.kind not in (OUTPUT, MORE):
            # The record of a module is that of its first call: other calls may take and return other shapes.
            row = places[item.number].row
            specs = list(tensor_specs(self.graph.nodes[row].record.outputs))
            if steps:
                here, first = (
                    list(steps[places[number].last].signature.outputs[:1])
                    for number in (item.number, self._first_places[row])
                )
                specs = specs if here == first else here
        more = f" +{len(specs) - 1}" if len(specs) > 1 else ""
        return format_shape(specs[0].shape) + more if specs else ""

    @cached_property
    def _first_places(self) -> dict[int, int]:
        return {place.row: number for number, place in reversed(list(enumerate(self.graph.places)))}

    def shape(self, edge: Edge) -> str:
        """The shape in which the first reader sees what flows."""
        specs = list(dict.fromkeys(spec for _, spec in edge.tensors))
        return format_shape(specs[0].shape) + (f" +{len(specs) - 1}" if len(specs) > 1 else "")

    def flowing(self, edge: Edge) -> str:
        """`1×64×56×56 float32, 784 KiB`: what flows along an edge."""
        specs = dict.fromkeys(spec for _, spec in edge.tensors)
        shapes = ", ".join(f"{format_shape(spec.shape)} {visible(spec.dtype)}" for spec in list(specs)[:4])
        more = f", +{len(specs) - 4}" if len(specs) > 4 else ""
        return f"{shapes}{more}, {format_bytes(edge.nbytes)}"

    def shares(self, item: Item) -> list[tuple[str, float]]:
        """The categories of the ops in an item, by FLOPs; by number where none has any. The largest first."""
        if item.kind == STEP:
            return [(self.graph.flow.steps[item.number].category, 1.0)]
        counts = self._categories.get(item.number, Counter()) if item.kind not in (INPUT, OUTPUT, MORE) else Counter()
        total = sum(counts.values())
        return [(category, count / total) for category, count in counts.most_common()]

    @cached_property
    def _categories(self) -> dict[int, Counter[str]]:
        flops: list[Counter[str]] = [Counter() for _ in self.graph.places]
        numbers: list[Counter[str]] = [Counter() for _ in self.graph.places]
        for op, place in zip(self.graph.flow.steps, self.graph.place_of, strict=True):
            numbers[place][op.category] += 1
            flops[place][op.category] += op.cost.flops
        for number in reversed(range(1, len(self.graph.places))):
            parent = self.graph.places[number].parent
            flops[parent].update(flops[number])
            numbers[parent].update(numbers[number])
        return {place: +work or numbers[place] for place, work in enumerate(flops)}


def _name(text: str) -> str:
    return shorten(visible(text), NAME_WIDTH)


CATEGORY_COLORS: Mapping[str, int] = {
    "matmul": 0, "convolution": 1, "attention": 2, "normalization": 3, "activation": 4, "elementwise": 5, "softmax": 6,
    "pooling": 7, "embedding": 8, "recurrent": 2, "reduction": 6, "loss": 8, "indexing": 8, "resize": 7, "fft": 2,
    "sort": 6,
}  # fmt: skip
OTHER = 9

LIGHT: Mapping[str, str] = {
    "ink": "#1b1e23", "faint": "#626a75", "paper": "#ffffff", "panel": "#f6f7f8", "line": "#c9ced5", "wire": "#8b939d",
    "c0": "#4477aa", "c1": "#e08b5f", "c2": "#33884a", "c3": "#a5539a", "c4": "#46b3a0", "c5": "#c9b23f",
    "c6": "#c65c6e", "c7": "#6cc0de", "c8": "#8f8f3d", "c9": "#9aa0a8",
}  # fmt: skip
DARK: Mapping[str, str] = {
    "ink": "#e4e7eb", "faint": "#98a1ad", "paper": "#14171b", "panel": "#1c2025", "line": "#3d444d", "wire": "#7d8590",
    "c0": "#6b9fd4", "c1": "#e59c73", "c2": "#5cb374", "c3": "#c17fb8", "c4": "#5cc4b1", "c5": "#d6c25a",
    "c6": "#da7f8f", "c7": "#7fcbe6", "c8": "#b0b05a", "c9": "#868d96",
}  # fmt: skip


def color_of(category: str) -> str:
    return f"c{CATEGORY_COLORS.get(category, OTHER)}"


def wire_width(nbytes: int) -> float:
    """1 for a kibibyte to 5 for a gibibyte, on a logarithmic scale: sizes differ by orders of magnitude."""
    return min(max(log2(max(nbytes, 1)) / 5 - 1, 1.0), 5.0)
