"""Parameters of a model, its modules and tensors; Markdown tables of nested names such as "stem.conv.weight"."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from torch import nn

from torchgauge.facts import enclosing_paths


def parameter_count(model: nn.Module) -> defaultdict[str, int]:
    """Elements by the name of a parameter or a module; those of the whole model under "". A shared parameter counts
    once, under its first name."""
    found: defaultdict[str, int] = defaultdict(int)
    for name, parameter in model.named_parameters():
        for owner in enclosing_paths(name):
            found[owner] += parameter.numel()
    return found


def parameter_count_table(model: nn.Module, max_depth: int = 3) -> str:
    """A table of the elements of modules and the shapes of parameters, down to `max_depth`."""
    counts = parameter_count(model)
    texts = {name: _text(count) for name, count in counts.items()} | parameter_shapes(model)
    rows = [("model", _text(counts[""])), *_rows(texts, "", max_depth)]
    return pipe_table(("name", "#elements or shape"), rows)


def parameter_shapes(model: nn.Module) -> dict[str, str]:
    return {name: str(tuple(parameter.shape)) for name, parameter in model.named_parameters()}


def _rows(texts: Mapping[str, str], owner: str, max_depth: int, level: int = 0) -> Iterator[tuple[str, str]]:
    indent = " " * (level + 1)
    for name in members(owner, texts) if level < max_depth else ():
        yield indent + name, indent + texts[name]
        yield from _rows(texts, name, max_depth, level + 1)


def _text(count: int) -> str:
    number, unit = scaled(count, "GMK")
    return f"{number:.1f}{unit}" if unit else str(count)


MIN_PADDING = 2  # columns are at least this much wider than their titles


def pipe_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table as `tabulate` formats it with "pipe", which fvcore prints: numbers are right-aligned on their
    decimal points, everything else is left-aligned."""
    columns = []
    for title, *cells in zip(headers, *rows, strict=True):
        given = [cell for cell in cells if cell]
        is_number = bool(given) and all(_is(float, cell) for cell in given)
        if is_number and not all(_is(int, cell) for cell in given):
            numbers = [f"{float(cell):g}" if cell else "" for cell in cells]
            decimals = [len(number.partition(".")[2]) if "." in number else -1 for number in numbers]
            cells = [number + " " * (max(decimals) - places) for number, places in zip(numbers, decimals, strict=True)]
        width = max(len(title) + MIN_PADDING, *map(len, cells))
        rule = "-" * (width + 1)
        lines = [f" {text:>{width}} " if is_number else f" {text:<{width}} " for text in (title, *cells)]
        columns.append([lines[0], f"{rule}:" if is_number else f":{rule}", *lines[1:]])
    return "\n".join(f"|{'|'.join(line)}|" for line in zip(*columns, strict=True))


def _is(kind: Callable[[str], float], text: str) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True


_UNITS = {"P": 1e15, "T": 1e12, "G": 1e9, "M": 1e6, "K": 1e3}


def scaled(count: float, units: str = "PTGMK") -> tuple[float, str]:
    """The count in the largest unit of which it is more than a tenth; the unit is "" if there is none."""
    unit = next((unit for unit in units if abs(count) > _UNITS[unit] / 10), "")
    return count / _UNITS.get(unit, 1), unit


def members(owner: str, names: Iterable[str]) -> list[str]:
    """The names directly below the owner."""
    prefix = f"{owner}." if owner else ""
    return [name for name in names if name and name.startswith(prefix) and "." not in name[len(prefix) :]]
