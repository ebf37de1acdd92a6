from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

import pytest
from torch.distributions import Distribution

from torchgauge.measure import thread_count


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small models on a busy machine wait for their threads most of the time."""
    with thread_count(1):
        yield


@pytest.fixture(autouse=True)
def rules_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that raises is a warning for users and a failure here."""

    def failure(rule: str, error: Exception) -> NoReturn:
        raise error

    monkeypatch.setattr("torchgauge.advise.registry.failure", failure)


@pytest.fixture(autouse=True)
def distributions_check_their_arguments() -> None:
    """As in a new process: importing Dynamo turns the checks off for good."""
    Distribution.set_default_validate_args(True)
