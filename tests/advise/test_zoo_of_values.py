from __future__ import annotations

import pytest

from tests.advise import zoo_memory, zoo_weights
from tests.advise.planted import Planted, places

CASES = [*zoo_weights.CASES, *zoo_memory.CASES]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_fault_is_found_at_its_place(case: Planted) -> None:
    found = case.in_fault()

    assert any(case.place in places(advice) for advice in found), [places(advice) for advice in found]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_twin_gets_no_such_advice(case: Planted) -> None:
    assert case.in_twin() == []
