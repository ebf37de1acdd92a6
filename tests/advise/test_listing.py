"""Names of modules as short Python: whatever the form, the names are the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchgauge.advise.listing import LINE, literal


def test_a_run_of_numbers_is_a_comprehension() -> None:
    assert literal([f"h.{n}.attn" for n in range(12)]) == "[f'h.{i}.attn' for i in range(12)]"


def test_stages_of_different_depth_are_one() -> None:
    pairs = [
        (f"layer{stage}.{block}.conv{place}", f"layer{stage}.{block}.bn{place}")
        for stage, depth in enumerate((3, 4, 6, 3), 1)
        for block in range(depth)
        for place in (1, 2, 3)
    ]
    text = literal([("conv1", "bn1"), *pairs])
    assert sorted(eval(text)) == sorted([("conv1", "bn1"), *pairs])
    assert len(text.splitlines()) == 5
    assert all(len(line) <= LINE for line in text.splitlines())


@pytest.mark.parametrize(
    "rows",
    [
        [], ["a"], ["x.1", "x.2", "x.5"], ["x.01", "x.02", "x.03"], ["u{1}", "u{2}", "u{3}"],
        ["it's 1", "it's 2", 'q"3'],
        ["n\n1", "n\n2", "n\n3"], ["\\1", "\\2", "\\3"], [("a.0", 0), ("a.1", 1), ("a.2", 2)],
        ["\u0663", "\u0664", "\u0665"],
    ],
)  # fmt: skip
def test_names_that_are_no_series_stay_as_they_are(rows: list[Any]) -> None:
    assert sorted(eval(literal(rows))) == sorted(rows)


_NAME = st.lists(st.sampled_from(["h", "mlp", "layer", "0", "1", "2", "10", "conv1", "{i}"]), min_size=1, max_size=4)


@given(st.lists(st.tuples(_NAME.map(".".join), _NAME.map(".".join)), unique=True, max_size=30))
def test_every_list_of_names_survives(rows: list[tuple[str, str]]) -> None:
    assert sorted(eval(literal(rows))) == sorted(rows)


def test_numbers_with_gaps_are_listed_once() -> None:
    pairs = [(f"list.{n}.conv_{n}", f"list.{n}.norm_{n}") for n in range(105) if n % 3 and n % 7]
    text = literal(pairs)
    assert sorted(eval(text)) == sorted(pairs)
    assert len(text.splitlines()) <= 8
    assert all(len(line) <= LINE for line in text.splitlines())


def test_pairs_of_many_modules_are_written_by_module() -> None:
    at = [f"net.conv{i}.{block}.conv{j}" for i in range(2, 6) for block in ("block1", "rest.0") for j in (1, 2)]
    at += [*(f"net.conv{i}.block1.down" for i in (3, 4, 5)), "net.conv1"]
    pairs = [(f"{path}.{a}", f"{path}.{b}") for path in at for a, b in (("space", "bn1"), ("time", "bn2"))]
    text = literal(pairs)
    assert sorted(eval(text)) == sorted(pairs)
    assert len(text.splitlines()) <= 10
