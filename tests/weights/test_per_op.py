from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from torchgauge.facts import Cost, OpRecord, ParamRecord, Signature, TensorSpec, weight_ops

LINEAR = Signature("aten::addmm", "", "matmul", "counted", (), (), (), {}, Cost(), 0)


def op(index: int, *weights: str) -> OpRecord:
    return OpRecord(index, LINEAR, "fc", 0, weights)


def row(name: str, shape: list[int], share: float | None, after: int | None, **more: Any) -> dict[str, Any]:
    elements = shape[0] * (shape[1] if len(shape) > 1 else 1)
    return {
        "name": name,
        "shape": shape,
        "elements": elements,
        "bytes": 4 * elements,
        "module": None,
        "logical_elements": None,
        "pruning": {"magnitude": {"0.01": share, "0.05": share}},
        "quantization": {
            "smallest_30db": None if after is None else "int8",
            "smallest_20db": None,
            "bytes_after": {"smallest_30db": after, "smallest_20db": None},
        },
        **more,
    }


def test_an_op_has_the_figures_of_all_its_weights() -> None:
    rows = [row("fc.weight", [10, 3], 0.1, 34), row("fc.bias", [10], 0.5, 14)]
    (found,) = weight_ops([op(4, "fc.weight", "fc.bias"), op(5)], rows)
    assert (found["index"], found["op"], found["module"], found["category"]) == (4, "aten::addmm", "fc", "matmul")
    assert (found["elements"], found["bytes"]) == (40, 160)
    assert found["removable"]["0.01"] == pytest.approx((30 * 0.1 + 10 * 0.5) / 40)
    assert found["smallest_30db"] == "int8"
    # The bias stays as it is; at 20 dB nothing was found to be small enough.
    assert found["bytes_after"] == {"30db": 34 + 40, "20db": 160}


def test_a_view_of_a_weight_is_no_work() -> None:
    view = OpRecord(0, replace(LINEAR, op="aten::t", status="free"), "fc", 0, ("w",))
    assert weight_ops([view], [row("w", [2, 2], 0.1, 8)]) == []


@pytest.mark.parametrize("category", ["normalization", "elementwise"])
def test_a_norm_has_nothing_to_prune_or_to_quantize(category: str) -> None:
    """Frozen, it is an op of its own or a product and a sum; its statistics may all be 0."""
    norm = replace(op(0, "bn.weight", "bn.running_mean"), signature=replace(LINEAR, category=category))
    rows = [row("bn.weight", [8], 1.0, 2), row("bn.running_mean", [8], 1.0, 2)]
    (found,) = weight_ops([norm], rows)
    assert found["removable"] == {"0.01": None, "0.05": None}
    assert (found["smallest_30db"], found["bytes_after"]["30db"]) == (None, found["bytes"])


def test_no_format_makes_a_tensor_larger() -> None:
    (found,) = weight_ops([op(0, "w")], [row("w", [1, 2], None, 10)])
    assert (found["bytes_after"]["30db"], found["removable"]["0.01"]) == (8, None)


def test_rows_in_containers_and_under_tied_names_are_found() -> None:
    rows = [row("state_dict.net.fc.weight", [2, 2], 0.1, 8, module="fc"), row("head.weight", [2, 2], 0.2, 8)]
    params = [ParamRecord("embed.weight", TensorSpec((2, 2)), True, aliases=("head.weight",))]
    found = weight_ops([op(0, "fc.weight"), op(1, "embed.weight")], rows, params)
    assert [entry["weights"] for entry in found] == [["state_dict.net.fc.weight"], ["head.weight"]]


def test_weights_that_were_not_read_have_no_row() -> None:
    assert weight_ops([op(0, "fc.weight")], [{"name": "fc.weight", "shape": [2, 2], "elements": 4, "bytes": 16}]) == []


def test_packed_weights_are_judged_by_their_values_and_are_not_quantized_again() -> None:
    values = {"pruning": {"magnitude": {"0.01": 0.3, "0.05": 0.4}}}
    packed = row("q.qweight", [4, 8], 0.9, 1, dtype="int32", logical_elements=256, dequantized=values)
    (found,) = weight_ops([op(0, "q.qweight")], [packed])
    assert (found["removable"], found["smallest_30db"]) == ({"0.01": 0.3, "0.05": 0.4}, None)
    assert found["bytes_after"]["30db"] == found["bytes"]
