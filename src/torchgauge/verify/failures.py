"""What goes wrong while advice is tried is part of the result."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from torchgauge.measure.measuring import failure_text, let_go
from torchgauge.verify.trial import NotApplicableError

T = TypeVar("T")

_LOGGERS = ("torch._dynamo", "torch._inductor", "torch._functorch")


def attempted(work: Callable[[], T]) -> T | str:
    """What `work` gives back, or in words what it raised. `NotApplicableError` passes: nothing was tried then."""
    try:
        with silenced():
            return work()
    except NotApplicableError:
        raise
    # Compilers, capture of graphs and the model's own code may raise anything, and the model is fine without them.
    except Exception as error:
        text = f"applied, it fails: {failure_text(error)}"
        let_go(error)
        return text


@contextmanager
def silenced() -> Iterator[None]:
    """Compilers warn and log on the way; what matters of it is the result."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
