"""Names of tensors at the same place of repeated blocks."""

from __future__ import annotations

import pytest

from torchgauge.facts.weights import by_pattern, by_stem, indexed_name, layer_of
from torchgauge.report.ranking import join_paths, path_pattern

STARRED = ["layers.0.*.w", "a.0.*", "layers.0.a*.w", "*.0.w", r"x\.0.w", r"layers.0.\*", "layers.*.w", "**.1.*.2"]


def test_a_star_in_a_name_is_no_index() -> None:
    assert indexed_name("layers.3.*.w") == (r"layers.*.\*.w", (3,))
    assert [layer_of(name) for name in STARRED] == [(0,), (0,), (0,), (0,), (0,), (0,), (), (1, 2)]


@pytest.mark.parametrize("name", STARRED)
def test_names_with_stars_have_a_place_among_others(name: str) -> None:
    names = [name, *(f"layers.{layer}.1.w" for layer in range(3)), "layers.0.0.w"]
    stems = by_stem(dict.fromkeys(names, 1))
    placed = [member for patterns in stems.values() for members in patterns.values() for member in members]
    assert sorted(placed) == sorted(one for one in names if layer_of(one))


def test_a_name_with_a_star_and_one_with_an_index_have_two_patterns() -> None:
    assert len(by_pattern(["layers.0.*.w", "layers.0.1.w", r"layers.0.\*.w", r"layers.0.\1.w"])) == 4
    assert len({path_pattern(path) for path in ("a.*", "a.0", r"a.\*")}) == 3
    assert path_pattern("a.0") == path_pattern("a.1") == "a.*"


@pytest.mark.parametrize("part", ["9" * 5000, "²", "①"])
def test_digits_that_are_no_number_are_part_of_the_name(part: str) -> None:
    paths = [f"layers.{part}.w", "layers.1.w"]
    assert len({path_pattern(path) for path in paths}) == 2
    assert join_paths(["layers.1.w", "layers.2.w"]) == "layers.1–2.w"
    assert by_stem(dict.fromkeys(paths, 1))
