from __future__ import annotations

from collections.abc import Iterator

import pytest

from torchgauge.measure import thread_count


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small models on a busy machine wait for their threads most of the time."""
    with thread_count(1):
        yield
