from __future__ import annotations

import pytest

from tests.advise import zoo_experts, zoo_flow, zoo_order, zoo_runs, zoo_structure
from tests.advise.planted import Planted, places
from torchgauge.advise import RULES

CASES = [*zoo_structure.CASES, *zoo_flow.CASES, *zoo_order.CASES, *zoo_order.BUGS, *zoo_runs.CASES, *zoo_experts.CASES]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_fault_is_found_at_its_place(case: Planted) -> None:
    found = case.in_fault()

    assert found, f"{case.rule} found nothing"
    assert any(case.place in places(advice) for advice in found), [places(advice) for advice in found]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_twin_gets_no_such_advice(case: Planted) -> None:
    assert case.in_twin() == []


def test_there_are_at_least_25_faults_of_rules_that_exist() -> None:
    assert len(CASES) >= 25
    assert {case.rule for case in CASES} <= set(RULES)
