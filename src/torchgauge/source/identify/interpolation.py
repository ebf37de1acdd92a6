"""Which number of a config makes a size what a file has, from the sizes that other numbers made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt

from torchgauge.source.identify.outline import NAMED, Key
from torchgauge.source.identify.settings import Number

# What a model has and what the file has, by where they differ.
Wrong = Mapping[Key, tuple[int | None, int]]


@dataclass(frozen=True, slots=True)
class Probe:
    """The sizes that a number makes, of those that are wrong."""

    number: Number
    sizes: Mapping[Key, int | None]


def answers(wrong: Wrong, value: Number, probe: Probe) -> Iterator[Number]:
    """The commonest first: of sizes that are the number itself, of those that are a multiple of it and something, of
    how many tensors a pattern names, of tables of its square, and of shares by the number."""
    plain, multiples, named, squares, shares = (Counter[Fraction]() for _ in range(5))
    for key, (has, wants) in wrong.items():
        moved = probe.sizes.get(key)
        if has is None or moved is None or moved == has:
            continue
        votes = named if key[1] == NAMED else plain if (has, moved) == (value, probe.number) else multiples
        way = Fraction(wants - has, moved - has)
        answer = Fraction(value) + way * (Fraction(probe.number) - Fraction(value))
        votes[answer] += 1
        # size = a·value² + b; both points give a, and b cancels.
        square = Fraction(value) ** 2 + way * (Fraction(probe.number) ** 2 - Fraction(value) ** 2)
        root = isqrt(max(int(square), 0))
        squares[Fraction(root)] += root**2 == square
        shares[Fraction(value) * has / max(wants, 1)] += has * value == moved * probe.number
    for found in (plain, multiples, named, squares, shares):
        yield from _possible(found, value)


def curved_answers(wrong: Wrong, value: Number, first: Probe, second: Probe) -> Iterator[Number]:
    """The same where the size is any polynomial of the second degree, such as (2·value − 1)²."""
    found = Counter[Fraction]()
    for key, (has, wants) in wrong.items():
        ys = (has, first.sizes.get(key), second.sizes.get(key))
        if None not in ys and len(set(ys)) == len(ys):
            points = [
                (Fraction(x), Fraction(y or 0)) for x, y in zip((value, first.number, second.number), ys, strict=True)
            ]
            found.update(_roots(points, wants))
    yield from _possible(found, value)


def _roots(points: list[tuple[Fraction, Fraction]], wants: int) -> Iterator[Fraction]:
    (x0, y0), (x1, y1), (x2, y2) = points
    slope = (y1 - y0) / (x1 - x0)
    curve = ((y2 - y0) / (x2 - x0) - slope) / (x2 - x1)
    if not curve:
        return
    # curve·x² + b·x + c = 0, whose roots are whole only where that of its discriminant is.
    b = slope - curve * (x0 + x1)
    c = y0 - slope * x0 + curve * x0 * x1 - wants
    discriminant = b**2 - 4 * curve * c
    if discriminant >= 0:
        root = Fraction(isqrt(discriminant.numerator), isqrt(discriminant.denominator))
        yield from ((sign * root - b) / (2 * curve) for sign in (1, -1) if root**2 == discriminant)


def _possible(found: Counter[Fraction], value: Number) -> Iterator[Number]:
    """The commonest that may be: whole where the number is one, and another than it."""
    for answer, votes in found.most_common():
        number = int(answer) if answer == int(answer) else float(answer)
        if votes and answer >= 0 and answer != value and (isinstance(value, float) or isinstance(number, int)):
            yield float(number) if isinstance(value, float) else number
            return
