"""Names of modules as short Python: whatever the form, the names are the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchgauge.advise.listing import LINE, literal, merged_code


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


def test_code_that_differs_in_names_and_numbers_becomes_a_loop() -> None:
    codes = [f"prune(model.get_submodule('h.{n}'), 'weight', 0.{n + 1})" for n in range(4)]
    seen: list[Any] = []
    model = type("Model", (), {"get_submodule": lambda self, name: name})()
    scope = {"model": model, "prune": lambda *arguments: seen.append(arguments)}
    code = merged_code(codes)
    assert code is not None
    exec(code, scope)
    assert seen == [("h.0", "weight", 0.1), ("h.1", "weight", 0.2), ("h.2", "weight", 0.3), ("h.3", "weight", 0.4)]
    assert code.startswith("for name_1, name_2 in")


def test_names_with_quotes_in_them_are_not_taken_apart() -> None:
    codes = [f"use({name!r}, 'weight')" for name in ("a '", "b '", "c ', evil(), '")]
    assert merged_code(codes) == "\n".join(codes)


def test_other_code_stands_line_by_line_and_equal_code_once() -> None:
    assert merged_code(["a = 1", "b = f(x)", "a = 1"]) == "a = 1\nb = f(x)"
    assert merged_code([]) is None
