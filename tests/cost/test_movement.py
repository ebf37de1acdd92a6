from __future__ import annotations

import pytest

from tests.cost.calls import cost, judge, spec
from torchgauge.cost import Call, assess
from torchgauge.facts import FREE, Cost

X = spec(4, 6)


@pytest.mark.parametrize(
    "op", ["aten::_unsafe_view", "aten::detach", "aten::lift_fresh", "aten::t", "aten::unsafe_split"]
)
def test_a_view_is_free(op: str) -> None:
    assert judge(op, X, self=X) == ("view", FREE, Cost())


def test_questions_are_free() -> None:
    assert judge("aten::_local_scalar_dense", self=spec()) == ("other", FREE, Cost())


def test_a_copy_reads_and_writes() -> None:
    assert judge("aten::clone", X, self=X) == ("copy", "counted", Cost(0, 0, 96, 96))
    assert cost("aten::cat", spec(8, 6), tensors=[X, X]) == Cost(0, 0, 192, 192)


def test_a_cast_reads_one_width_and_writes_another() -> None:
    assert cost("aten::_to_copy", spec(4, 6, dtype="bfloat16"), self=X) == Cost(0, 0, 96, 48)


def test_overwritten_elements_are_not_read() -> None:
    assert cost("aten::copy_", X, self=X, src=spec(6)) == Cost(0, 0, 24, 96)
    assert cost("aten::fill_", X, self=X, value=0.0) == Cost(0, 0, 0, 96)
    assert cost("aten::zeros_like", X, self=X) == Cost(0, 0, 0, 96)
    assert cost("aten::normal_", X, self=X, mean=0.0, std=1.0) == Cost(0, 0, 0, 96)


def test_a_copy_that_returned_its_input_moved_nothing() -> None:
    assert assess(Call("aten::contiguous", {"self": X}, (X,), tags=frozenset({"view"}))).cost == Cost()
    assert assess(Call("aten::contiguous", {"self": X}, (X,))).cost == Cost(0, 0, 96, 96)


def test_reserved_memory_is_free_and_filled_memory_is_written() -> None:
    assert judge("aten::empty", X, size=[4, 6]) == ("allocation", FREE, Cost())
    assert judge("aten::zeros", X, size=[4, 6]) == ("allocation", "counted", Cost(0, 0, 0, 96))


def test_collectives_move_bytes() -> None:
    gathered = judge("_c10d_functional::all_gather_into_tensor", spec(8, 6), input=X, group_size=2)
    assert gathered == ("communication", "counted", Cost(0, 0, 96, 192))
    assert judge("_c10d_functional::wait_tensor", X, tensor=X) == ("communication", FREE, Cost())
