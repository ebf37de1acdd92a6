"""Types that a processor may lack instructions for."""

from __future__ import annotations

import torch

from torchgauge.measure.absence import Absent
from torchgauge.measure.supported import _probe, missing_arithmetic

CPU = torch.device("cpu")


def test_types_that_every_processor_has_are_not_probed() -> None:
    _probe.cache_clear()
    assert missing_arithmetic(torch.float32, CPU) is None
    assert missing_arithmetic(None, CPU) is None
    assert missing_arithmetic(torch.bfloat16, torch.device("cuda", 0)) is None
    assert _probe.cache_info().misses == 0


def test_a_process_that_fails_is_told_and_asked_once() -> None:
    _probe.cache_clear()
    found = _probe("no_such_type")
    assert isinstance(found, Absent)
    assert "no_such_type cannot run on this processor" in found.reason
    assert _probe("no_such_type") is found
    assert _probe.cache_info().misses == 1


def test_a_type_that_runs_is_not_missing() -> None:
    assert _probe("float32") is None
