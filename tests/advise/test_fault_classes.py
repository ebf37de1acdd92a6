"""Each class of faults is found in every form, with its line of code, and its healthy twins get silence."""

from __future__ import annotations

import pytest

from tests.advise.fault_classes import CLASSES, FaultClass, Form
from tests.advise.planted import said, seen
from tests.advise.unseen_faults import UNSEEN
from torchgauge.advise import RULES, advise

FAULTS = [(group, form) for group in (*CLASSES, *UNSEEN) for form in group.faults]
TWINS = [(group, form) for group in (*CLASSES, *UNSEEN) for form in group.twins]


def name(value: object) -> str:
    return value.name if isinstance(value, FaultClass) else str(value[0]) if isinstance(value, tuple) else str(value)


@pytest.mark.parametrize(("group", "form"), FAULTS, ids=name)
def test_every_form_of_a_fault_is_found(group: FaultClass, form: Form) -> None:
    evidence = seen(form[1], inputs=form[2])
    found = [advice for advice in said(evidence) if advice.rule in group.rules]

    assert found, [advice.rule for advice in said(evidence)]
    assert {advice.kind for advice in found} == {group.kind}


@pytest.mark.parametrize(("group", "form"), TWINS, ids=name)
def test_a_healthy_twin_gets_no_such_advice(group: FaultClass, form: Form) -> None:
    found = [advice for advice in advise(seen(form[1], inputs=form[2])) if advice.rule in group.rules]

    assert found == []


def test_the_rules_of_the_classes_exist() -> None:
    assert {rule for group in CLASSES for rule in group.rules} <= set(RULES)
