"""What the host waits for gets a remedy that fits what the value is for, or none."""

from __future__ import annotations

import pytest

from tests.advise.planted import said, seen
from tests.advise.waiting_models import WAITING, Waiting
from torchgauge.advise import advise


@pytest.mark.parametrize("case", WAITING, ids=lambda case: case.name)
def test_the_remedy_fits_what_the_value_is_for(case: Waiting) -> None:
    evidence = seen(case.fault, inputs=case.inputs)
    found = [advice for advice in said(evidence) if advice.rule == "host-wait"]
    shown = [advice for advice in advise(evidence) if advice.rule == "host-wait"]

    assert [case.remedy in advice.recommendation for advice in found] == [True]
    assert bool(shown) == case.is_shown


@pytest.mark.parametrize("case", WAITING, ids=lambda case: case.name)
def test_a_value_that_stays_on_the_device_is_not_waited_for(case: Waiting) -> None:
    assert [advice for advice in said(seen(case.twin, inputs=case.inputs)) if advice.rule == "host-wait"] == []
