from __future__ import annotations

from typing import Any

import pytest

from torchgauge.facts import by_pattern, indexed_name, layer_of, stem_of
from torchgauge.weights import find_outliers


@pytest.mark.parametrize(
    ("name", "pattern", "indices"),
    [
        ("model.layers.3.mlp.up.weight", "model.layers.*.mlp.up.weight", (3,)),
        ("layer1.0.conv1.weight", "layer*.*.conv1.weight", (1, 0)),
        ("features.denseblock2.denselayer13.conv2.weight", "features.denseblock*.denselayer*.conv2.weight", (2, 13)),
        ("fc1.weight", "fc1.weight", ()),
        ("0.weight", "*.weight", (0,)),
        ("lstm.weight_ih_l0", "lstm.weight_ih_l0", ()),
    ],
)
def test_a_place_has_a_star_for_each_block_but_not_for_the_layer_itself(
    name: str, pattern: str, indices: tuple[int, ...]
) -> None:
    assert indexed_name(name) == (pattern, indices)


def test_experts_of_a_layer_are_not_layers() -> None:
    assert layer_of("layers.4.experts.17.w1.weight") == (4,)
    assert layer_of("layers.4.attn.q.weight") == (4,)


@pytest.mark.parametrize(
    ("names", "stem"),
    [
        (["blocks.0.fc.weight", "blocks.1.fc.weight"], ("blocks.*", 1)),
        (["layer1.0.conv1.weight", "layer1.1.conv1.weight", "layer2.0.conv1.weight"], ("layer*.*", 2)),
        (["layer2.0.downsample.0.weight", "layer3.0.downsample.0.weight"], ("layer*", 1)),
        (["enc.block.0.layer.1.wi.weight", "enc.block.1.layer.1.wi.weight"], ("enc.block.*", 1)),
        (["layers.0.blocks.0.fc.weight", "layers.0.blocks.1.fc.weight"], ("layers.*.blocks.*", 2)),
        (["h.0.experts.0.w.weight", "h.0.experts.1.w.weight", "h.1.experts.0.w.weight"], ("h.*", 1)),
        (["experts.0.w.weight", "experts.1.w.weight"], ("experts.*", 1)),
    ],
)
def test_a_stem_ends_where_layers_no_longer_differ(names: list[str], stem: tuple[str, int]) -> None:
    assert stem_of(indexed_name(names[0]).pattern, names) == stem


def test_names_without_an_index_have_no_siblings() -> None:
    assert by_pattern(["head.weight", "h.0.w", "h.1.w"]) == {"h.*.w": ["h.0.w", "h.1.w"]}


def rows(values: list[float], figure: str = "std", **more: Any) -> dict[str, dict[str, Any]]:
    common = {"shape": [4, 4], "dtype": "float32", "duplicate_of": None} | more
    return {f"layers.{index}.fc.weight": {**common, figure: value} for index, value in enumerate(values)}


STEADY = [1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.01]


def test_a_layer_that_stands_apart_is_found_with_its_score() -> None:
    """The median is 1 and the median distance to it 0.01: a robust deviation of 0.014826."""
    found: Any = find_outliers(rows([*STEADY, 3.0]))[0]
    assert found["name"] == "layers.7.fc.weight"
    assert (found["figure"], found["value"], found["median"]) == ("std", 3.0, pytest.approx(1.005))
    assert found["score"] == pytest.approx((3 - 1.005) / (1.4826 * 0.01), rel=1e-6)
    assert (found["siblings"], found["of"]) == ("layers.*.fc.weight", 8)


def test_a_score_has_the_sign_of_the_difference() -> None:
    found: Any = find_outliers(rows([*STEADY, 0.1]))[0]
    assert found["score"] < -6


def test_a_difference_too_small_to_matter_is_not_told() -> None:
    assert find_outliers(rows([*STEADY, 1.3])) == []


def test_few_siblings_tell_nothing() -> None:
    assert find_outliers(rows([1.0, 1.0, 1.0, 9.0])) == []


def test_siblings_have_the_same_shape_and_type() -> None:
    mixed = rows([1.0, 1.0, 1.0, 9.0]) | {f"x{name}": row for name, row in rows([9.0] * 5).items()}
    assert find_outliers(mixed) == []
    stages = rows([*STEADY, 3.0])
    stages["layers.7.fc.weight"]["shape"] = [8, 8]
    assert find_outliers(stages) == []


def test_where_all_others_agree_there_is_no_score_and_it_comes_first() -> None:
    found: Any = find_outliers(
        rows([0.0] * 6 + [0.9], "sparsity") | {f"m.{k}": row for k, row in rows([*STEADY, 3.0]).items()}
    )
    assert [(row["figure"], row["score"] is None) for row in found] == [("sparsity", True), ("std", False)]


def test_means_near_zero_are_judged_by_the_spread() -> None:
    means = [1e-9, -1e-9, 2e-9, -2e-9, 1e-9, -1e-9, 1e-6]
    assert find_outliers(rows(means, "mean", std=0.1)) == []
    assert [row["figure"] for row in find_outliers(rows(means, "mean", std=1e-7))] == ["mean"]


def test_missing_and_infinite_figures_are_passed_over() -> None:
    values: list[Any] = [*STEADY, None, float("inf"), float("nan")]
    assert find_outliers(rows(values)) == []


def test_a_tensor_that_is_another_s_twin_is_not_told_twice() -> None:
    twins = rows([*STEADY, 3.0])
    twins["layers.8.fc.weight"] = twins["layers.7.fc.weight"] | {"duplicate_of": "layers.7.fc.weight"}
    assert len(find_outliers(twins)) == 1
