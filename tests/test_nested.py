"""Leaves of nested containers: found in order, named by their paths, replaced with the containers kept."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from types import MappingProxyType

import pytest

from torchgauge.nested import find_all, find_named, items_of, leaves, match_up, replace_all

Pair = namedtuple("Pair", "first second")


@dataclass(frozen=True)
class Output:
    logits: int
    states: tuple[int, ...]


def test_leaves_come_in_order_from_any_depth() -> None:
    value = [1, (2, {"a": "three", "b": [4.0]}), Pair(None, 6), MappingProxyType({"c": 7})]
    assert list(leaves(value)) == [1, 2, "three", 4.0, None, 6, 7]
    assert list(find_all(value, str)) == ["three"]
    assert list(leaves("text")) == ["text"]


def test_a_dataclass_is_a_leaf_unless_its_fields_are_asked_for() -> None:
    output = Output(1, (2, 3))
    assert list(find_all([output], int)) == []
    assert list(find_all([output], Output)) == [output]
    assert list(find_named({"out": output}, int)) == [
        (("out", "logits"), 1), (("out", "states", 0), 2), (("out", "states", 1), 3),
    ]  # fmt: skip


def test_one_level_has_keys_where_the_container_has_them() -> None:
    assert items_of({1: "a"}) == [(1, "a")]
    assert items_of(("a", "b")) == [(None, "a"), (None, "b")]
    assert items_of(Output(1, ())) == [("logits", 1), ("states", ())]
    assert list(find_named({1: ["a"]}, str)) == [(("1", 0), "a")]
    assert items_of("ab") is None
    assert items_of(Output) is None


def test_replacing_keeps_the_types_of_containers() -> None:
    value = {"a": Pair(1, [2, "x"]), "b": OrderedDict(c=3)}
    changed = replace_all(value, int, lambda number: number * 10)
    assert changed == {"a": Pair(10, [20, "x"]), "b": OrderedDict(c=30)}
    assert type(changed["a"]) is Pair
    assert type(changed["b"]) is OrderedDict
    assert value["b"] == {"c": 3}


def test_fields_of_dataclasses_are_replaced_on_request() -> None:
    output = Output(1, (2,))
    assert replace_all([output], int, str) == [output]
    assert replace_all([output], int, lambda number: -number, in_dataclasses=True) == [Output(-1, (-2,))]
    assert output == Output(1, (2,))


def test_a_result_is_matched_with_a_structure_of_names() -> None:
    assert dict(match_up(["a", ("b", "c")], (1, [2, 3]))) == {"a": 1, "b": 2, "c": 3}
    assert dict(match_up("a", [1, 2])) == {"a": [1, 2]}
    assert list(match_up([], None)) == []
    with pytest.raises(ValueError, match="argument"):
        list(match_up(["a", "b"], [1]))
