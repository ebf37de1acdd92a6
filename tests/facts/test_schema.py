from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest

from torchgauge.errors import FormatError
from torchgauge.facts import MAX_DEPTH, MAX_NUMBER, Count, Rule, conform, read_records


class Point(TypedDict):
    x: float
    name: NotRequired[str | None]


class Shape(TypedDict):
    points: list[Point]
    counts: dict[str, Count]
    kind: Literal["open", "closed"]
    pair: Annotated[list[int], Rule(lambda value: len(value) == 2, "a pair")]
    extra: Any


SOUND: dict[str, Any] = {
    "points": [{"x": 1}, {"x": 2.5, "name": None, "more": "is ignored"}],
    "counts": {"a": 0},
    "kind": "open",
    "pair": [1, -2],
    "extra": {"deep": [None, True, "text", 1.5]},
}


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_valid_values_are_returned() -> None:
    assert conform(SOUND, Shape, "it") is SOUND


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"points": None}, "points is None, not a list"),
        ({"points": [{"x": 1}, {"x": "1"}]}, "points[1].x is '1', not a number"),
        ({"points": [{"x": True}]}, "points[0].x is True, not a number"),
        ({"points": [{}]}, "points[0] is an object, not an object with 'x'"),
        ({"points": [{"x": 1, "name": 3}]}, "points[0].name is 3, not a text or null"),
        ({"points": [{"x": float("nan")}]}, "points[0].x is nan, not a number of ordinary size"),
        ({"points": [{"x": float("inf")}]}, "points[0].x is inf, not a number of ordinary size"),
        ({"points": [{"x": 10**400}]}, "points[0].x is inf, not a number of ordinary size"),
        ({"counts": {"a": -1}}, "counts.a is -1, not a non-negative whole number"),
        ({"counts": {"a": 1.5}}, "counts.a is 1.5, not a whole number"),
        ({"kind": "ajar"}, "kind is 'ajar', not one of 'open', 'closed'"),
        ({"kind": []}, "kind is a list, not one of 'open', 'closed'"),
        ({"pair": [1]}, "pair is a list, not a pair"),
        ({"extra": nested(MAX_DEPTH + 1)}, f"is a list, not nested less than {MAX_DEPTH} levels deep"),
        ({"extra": {"a": [MAX_NUMBER + 1]}}, "extra.a[0] is inf, not a number of ordinary size"),
        ({"extra": {"a": [10**25]}}, "extra.a[0] is inf, not a number of ordinary size"),
    ],
)
def test_wrong_values_are_named_with_their_place(change: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError) as caught:
        conform(SOUND | change, Shape, "it")
    assert message in str(caught.value)
    assert str(caught.value).startswith("it: ")


def test_as_deep_as_allowed_is_allowed() -> None:
    conform(SOUND | {"extra": nested(MAX_DEPTH)}, Shape, "it")


def test_a_missing_key_is_named() -> None:
    with pytest.raises(FormatError, match="it is an object, not an object with 'kind'"):
        conform({key: value for key, value in SOUND.items() if key != "kind"}, Shape, "it")


@dataclass(frozen=True)
class Span:
    low: int
    high: int = 9


@dataclass(frozen=True)
class Record:
    name: str
    spans: dict[str, Span]


def test_records_are_read_from_objects() -> None:
    found = read_records([{"name": "a", "spans": {"x": {"low": 1}}}], Record, "it")
    assert found == [Record("a", {"x": Span(1, 9)})]
    with pytest.raises(FormatError, match=r"spans\.x is an object, not an object with 'low'"):
        read_records([{"name": "a", "spans": {"x": {"high": 1}}}], Record, "it")
