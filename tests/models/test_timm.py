"""80 models of timm at their default input, batch 1: equal to the unit to counts made without torchgauge."""

from __future__ import annotations

import pytest

import torchgauge as tg
from tests.models.checked import check_static
from tests.models.tables import read_table

FAST = ("coat_lite_tiny", "crossvit_15_240", "efficientvit_m0", "halonet_h1", "levit_conv_256", "mobilenetv3_large_100",
        "mobilevit_s", "resnetblur50", "test_efficientnet", "xcit_tiny_24_p16_384")  # fmt: skip

TABLE = {row["model"]: row for row in read_table("timm.csv")}


def check(model: str) -> None:
    analysis = tg.analyze(f"timm:{model}", batch=1)
    check_static(analysis)
    row = TABLE[model]
    assert [list(record.spec.shape) for record in analysis.capture.inputs] == [[1, *map(int, row["input"].split("x"))]]
    assert analysis.totals.params == int(row["params"])
    assert analysis.totals.macs == int(row["macs"])


@pytest.mark.parametrize("model", FAST)
def test_a_selection_is_equal_to_the_unit(model: str) -> None:
    check(model)


@pytest.mark.slow
@pytest.mark.parametrize("model", [model for model in TABLE if model not in FAST])
def test_the_rest_is_equal_to_the_unit(model: str) -> None:
    check(model)


def test_the_table_is_whole() -> None:
    assert len(TABLE) == 80
    assert set(FAST) < set(TABLE)
