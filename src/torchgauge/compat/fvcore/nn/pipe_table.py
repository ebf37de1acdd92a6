"""Tables in Markdown, laid out as `tabulate` does it in its format "pipe", which fvcore prints with; and the nesting of
names such as "stem.conv.weight" in their rows. The model is ""."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

MIN_PADDING = 2  # a column is wider than its title by this much


def pipe_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    columns = [_column(title, list(cells)) for title, *cells in zip(headers, *rows, strict=True)]
    return "\n".join(f"|{'|'.join(line)}|" for line in zip(*columns, strict=True))


def _column(title: str, cells: list[str]) -> list[str]:
    """The lines of a column: numbers stand at the right, with their points below each other, all else at the left."""
    given = [cell for cell in cells if cell]
    is_number = bool(given) and all(_is(float, cell) for cell in given)
    if is_number and not all(_is(int, cell) for cell in given):
        numbers = [f"{float(cell):g}" if cell else "" for cell in cells]
        decimals = [len(number.partition(".")[2]) if "." in number else -1 for number in numbers]
        cells = [number + " " * (max(decimals) - places) for number, places in zip(numbers, decimals, strict=True)]
    width = max(len(title) + MIN_PADDING, *map(len, cells))
    rule = "-" * (width + 1)
    lines = [f" {text:>{width}} " if is_number else f" {text:<{width}} " for text in (title, *cells)]
    return [lines[0], f"{rule}:" if is_number else f":{rule}", *lines[1:]]


def _is(kind: Callable[[str], float], text: str) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True


_UNITS = {"P": 1e15, "T": 1e12, "G": 1e9, "M": 1e6, "K": 1e3}


def scaled(count: float, units: str = "PTGMK") -> tuple[float, str]:
    """The count in the largest of the units of which it is more than a tenth; without a unit where there is none."""
    unit = next((unit for unit in units if abs(count) > _UNITS[unit] / 10), "")
    return count / _UNITS.get(unit, 1), unit


def with_owners(name: str) -> list[str]:
    """The model, every owner from the outside in, and the name itself; the model alone for ""."""
    parts = name.split(".") if name else []
    return [".".join(parts[:end]) for end in range(len(parts) + 1)]


def members(owner: str, names: Iterable[str]) -> list[str]:
    """Those of the names that stand right below the owner."""
    prefix = f"{owner}." if owner else ""
    return [name for name in names if name and name.startswith(prefix) and "." not in name[len(prefix) :]]
