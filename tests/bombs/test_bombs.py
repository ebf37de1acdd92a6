"""Small files that would take the machine's memory or never end: each is refused, or read, within little of both.

A bomb that reaches 3 GiB of memory ends its process or is reported as an error of torch; an endless one ends all tests
here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.bombs import checkpoints, configs, exported, scripts, unseen
from tests.bombs.running import Outcome, run_bombs

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no limits of resources")

FAMILIES = (scripts, exported, configs, checkpoints)
CASES = [pytest.param(family, name, id=name) for family in FAMILIES for name in family.BOMBS]
# Written after the code and first run then: all 47 ended with one sentence or a result.
UNSEEN = [pytest.param(unseen, name, id=f"unseen-{name}") for name in unseen.BOMBS]
Outcomes = Callable[[ModuleType], dict[str, Outcome]]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """One process for each family of bombs, when it is first asked for."""
    known: dict[str, dict[str, Outcome]] = {}

    def find(family: ModuleType) -> dict[str, Outcome]:
        if family.__name__ not in known:
            known[family.__name__] = run_bombs(family.__name__, tmp_path_factory.mktemp("bombs"))
        return known[family.__name__]

    return find


def check(outcome: Outcome) -> None:
    assert outcome.status in (0, 1), outcome.said
    assert "Traceback" not in outcome.said
    assert "bad_alloc" not in outcome.said
    assert "memory: you tried to allocate" not in outcome.said
    assert "MemoryError" not in outcome.said
    if outcome.status:
        assert len(outcome.said.strip().splitlines()) == 1, "one sentence"


@pytest.mark.parametrize(("family", "name"), CASES)
def test_a_bomb_ends(family: ModuleType, name: str, outcomes: Outcomes) -> None:
    check(outcomes(family)[name])


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name"), [*CASES, *UNSEEN])
def test_a_bomb_ends_with_the_limits_that_users_have(family: ModuleType, name: str, tmp_path: Path) -> None:
    check(run_bombs(family.__name__, tmp_path, [name])[name])
