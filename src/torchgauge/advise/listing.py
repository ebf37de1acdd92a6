"""Names of a model's modules as short Python: `[f'layer{i}.conv' for i in range(12)]` where their numbers allow it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from math import prod

LINE = 96  # with the indent of the report's advice it fits 100 columns
_QUOTED = re.compile(r"'[^']*'")
# Not taken apart: quotes within quotes, escapes, braces.
_SPECIAL = re.compile(r'["\\{]')
_NUMBER = re.compile(r"\d+")
_LETTERS = "ijklmnpq"
# Longer lists are written by module, and more rows that differ in their numbers alone as a list of these.
_MOST_LINES, _MOST_ALONE = 8, 5

# The numbers within a row's quoted names.
Vector = tuple[int, ...]


def literal(rows: Sequence[object]) -> str:
    """A list of names, or of tuples of names, as an expression in lines of a readable length. Rows whose numbers make a
    grid are written as a comprehension, and so are pairs in many modules of one kind; their order may change."""
    listed = _listed(rows)
    pairs = [row for row in rows if isinstance(row, tuple) and len(row) == 2 and all(isinstance(e, str) for e in row)]
    if listed.count("\n") <= _MOST_LINES or len(pairs) < len(rows):
        return listed
    return min(listed, _by_module(pairs), key=lambda text: text.count("\n"))


def _by_module(pairs: Sequence[tuple[str, str]]) -> str:
    """`(f'{at}.{a}', f'{at}.{b}') for at in [...] for a, b in [('conv1', 'bn1'), ('conv2', 'bn2')]`."""
    inside: dict[str, list[tuple[str, str]]] = {}
    for first, second in pairs:
        both = zip(first.split("."), second.split("."), strict=False)
        path = ".".join(one for one, _ in takewhile(lambda each: each[0] == each[1], both))
        if not path or _SPECIAL.search(first + second) or path in (first, second):
            return _listed(pairs)
        inside.setdefault(path, []).append((first[len(path) + 1 :], second[len(path) + 1 :]))
    paths: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for path, names in inside.items():
        paths.setdefault(tuple(names), []).append(path)
    parts = []
    for own, modules in paths.items():
        if len(modules) < 3:
            parts += [f"    {(f'{at}.{a}', f'{at}.{b}')!r},\n" for at in modules for a, b in own]
            continue
        lines = _listed(modules).replace("\n", "\n    ")
        loops = f"for a, b in {_listed(own)}"
        parts.append(f"    *((f'{{at}}.{{a}}', f'{{at}}.{{b}}') {loops}\n      for at in {lines}),\n")
    return "[\n" + "".join(parts) + "]"


def _listed(rows: Sequence[object]) -> str:
    texts = [repr(row) for row in rows]
    groups: dict[str, list[Vector]] = {}
    items: list[str] = []
    for text in dict.fromkeys(texts):
        numbers = _NUMBER.findall(text)
        is_plain = all(number == str(int(number)) for number in numbers) and len(numbers) <= len(_LETTERS)
        if not is_plain or _SPECIAL.search(text) or _NUMBER.search(_QUOTED.sub("", text)):
            items.append(text)
        else:
            groups.setdefault(_NUMBER.sub("{}", text), []).append(tuple(map(int, numbers)))
    for pattern, vectors in groups.items():
        items += _grids(pattern, vectors)
    if len(items) == 1 and items[0].startswith("*("):
        return f"[{items[0][2:-1]}]"
    whole = f"[{', '.join(items)}]"
    if len(whole) <= LINE:
        return whole
    return f"[\n{_wrapped(items, ' ' * 4)}]"


def _wrapped(items: Sequence[str], margin: str) -> str:
    lines = [""]
    for item in items:
        if lines[-1] and len(lines[-1]) + len(item) + 2 > LINE - len(margin):
            lines.append("")
        lines[-1] += f"{' ' if lines[-1] else ''}{item},"
    return "".join(f"{margin}{line}\n" for line in lines)


def _grids(pattern: str, vectors: list[Vector]) -> Iterator[str]:
    """Rows of one pattern as few comprehensions as a split by one number after the other finds."""
    columns = list(zip(*vectors, strict=True))
    varying = [column for column in dict.fromkeys(columns) if len(set(column)) > 1]
    if len(vectors) < 3 or not varying:
        yield from (_filled_pattern(pattern, vector) for vector in vectors)
        return
    if (loops := _loops(varying, len(set(vectors)))) is not None:
        letters = dict(zip(varying, _LETTERS, strict=False))
        slots = [f"{{{letters[column]}}}" if column in letters else str(column[0]) for column in columns]
        row = _filled_pattern(re.sub(r"'([^']*\{\}[^']*)'", r"f'\1'", pattern), slots)
        # Broken between the row and its loops where it is long.
        yield f"*({row} {loops})" if len(row) + len(loops) < LINE - 10 else f"*({row}\n      {loops})"
        return
    split = min(varying, key=lambda column: len(set(column)))
    if len(set(split)) == len(vectors):  # each alone
        in_order = [vector for _, vector in sorted(zip(split, vectors, strict=True))]
        if len(vectors) < _MOST_ALONE:
            yield from (_filled_pattern(pattern, vector) for vector in in_order)
            return
        letters = dict(zip(varying, _LETTERS, strict=False))
        slots = [f"{{{letters[column]}}}" if column in letters else str(column[0]) for column in columns]
        row = _filled_pattern(re.sub(r"'([^']*\{\}[^']*)'", r"f'\1'", pattern), slots)
        points = sorted(zip(*varying, strict=True))
        numbers = [str(point[0]) if len(point) == 1 else repr(point) for point in points]
        yield f"*({row}\n      for {', '.join(letters.values())} in [\n{_wrapped(numbers, ' ' * 10)}      ])"
        return
    for value in sorted(set(split)):
        yield from _grids(pattern, [vector for vector, own in zip(vectors, split, strict=True) if own == value])


def _loops(varying: list[tuple[int, ...]], rows: int) -> str | None:
    """`for i in range(3) for j in range(1, 4)`, where the rows are all of these; or, where the second number ends
    elsewhere for each first one (stages of different depth), `for i, end in [(1, 3), (2, 4)] for j in range(end)`."""
    points = set(zip(*varying, strict=True))
    ranges = [sorted(set(column)) for column in varying]
    if all(_is_run(values) for values in ranges) and prod(map(len, ranges)) == rows == len(points):
        return " ".join(f"for {_LETTERS[n]} in {_range(values)}" for n, values in enumerate(ranges))
    if len(varying) < 2 or len(points) != rows:
        return None
    inner: dict[int, list[list[int]]] = {}
    for first in ranges[0]:
        own = [point[1:] for point in points if point[0] == first]
        parts = [sorted(set(column)) for column in zip(*own, strict=True)]
        if not all(map(_is_run, parts)) or prod(map(len, parts)) != len(own):
            return None
        inner[first] = parts
    start, same = inner[ranges[0][0]][0][0], inner[ranges[0][0]][1:]
    if any(parts[0][0] != start or parts[1:] != same for parts in inner.values()):
        return None
    ends = ", ".join(f"({first}, {parts[0][-1] + 1})" for first, parts in inner.items())
    rest = "".join(f" for {_LETTERS[n + 2]} in {_range(part)}" for n, part in enumerate(same))
    span = f"range({start}, end)" if start else "range(end)"
    return f"for {_LETTERS[0]}, end in [{ends}] for {_LETTERS[1]} in {span}{rest}"


def _is_run(values: list[int]) -> bool:
    return values[-1] - values[0] + 1 == len(values)


def _range(values: list[int]) -> str:
    if len(values) == 1:
        return f"[{values[0]}]"
    return f"range({values[0]}, {values[-1] + 1})" if values[0] else f"range({values[-1] + 1})"


def _filled_pattern(pattern: str, values: Sequence[object]) -> str:
    parts = pattern.split("{}")
    return "".join(f"{part}{value}" for part, value in zip(parts, [*values, ""], strict=True))
