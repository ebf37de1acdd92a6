"""Advice applied to copies of the model and measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from torchgauge.analysis.measurement import nothing_to_run
from torchgauge.errors import UsageError
from torchgauge.facts import Capture
from torchgauge.progress import Tell, steps

if TYPE_CHECKING:
    from torch import nn

    from torchgauge.capture import Request, Trace
    from torchgauge.measure.settings import Settings
    from torchgauge.source import Source

Verified = tuple[list[Mapping[str, Any]], Mapping[str, Any] | None]


class Opened(NamedTuple):
    """What the user gave: a second process opens it once more."""

    target: str | nn.Module
    code: str | nn.Module | None
    allow_pickle: bool


def check_verify(advice: bool) -> None:
    """Before the analysis, which may take long."""
    from torchgauge.verify.verifying import read_budget

    if not advice:
        raise UsageError("there is no advice to verify: leave out advice=False (--no-advice) or verify=True (--verify)")
    read_budget()


def verify_advice(
    capture: Capture,
    source: Source,
    traced: Trace | None,
    request: Mapping[str, Any],
    settings: Mapping[str, Any],
    progress: bool | None,
    opened: Opened,
) -> Verified:
    """The rows of the advice and of the options with what was measured, and the plan. What fails as a whole is the
    reason of every row and of there being no plan; the analysis stands."""
    from torchgauge.capture import Request
    from torchgauge.measure.measuring import INTERRUPTED
    from torchgauge.measure.settings import read_settings

    rows, measured = [dict(row) for row in (*capture.advice, *capture.options)], capture.measured
    if traced is None:
        return _failed(rows, nothing_to_run(source))
    if measured is not None and measured.figures["failure"] == INTERRUPTED:
        return _failed(rows, INTERRUPTED)
    wanted = Request(**request, build_real=source.build_real)
    with steps("verifying", shown=progress) as tell:
        return _verified(capture, source, traced, wanted, read_settings(**settings), rows, tell, opened)


def _verified(
    capture: Capture,
    source: Source,
    traced: Trace,
    request: Request,
    settings: Settings,
    rows: list[dict[str, Any]],
    tell: Tell,
    opened: Opened,
) -> Verified:
    from torchgauge.measure.measuring import failure_text, let_go
    from torchgauge.measure.settings import applied
    from torchgauge.measure.subject import ready, require_device
    from torchgauge.source.real_model import real_model
    from torchgauge.verify.second_process import Setup
    from torchgauge.verify.sides import Bench
    from torchgauge.verify.verifying import read_budget, verify

    try:
        require_device(request.device)
        if not rows:
            return [], None
        real = real_model(source)
        how: dict[str, Any] = {"device": request.device, "dtype": request.dtype, "train": request.train}
        seconds = read_budget()
        setup = Setup(*opened, traced.candidate, **how, settings=settings, seconds=seconds)
        with (
            applied(settings, request.device),
            ready(real.model, traced.candidate, **how, is_owned=real.is_owned) as subject,
        ):
            return verify(Bench(subject, capture, request.train, seconds), rows, tell, setup)
    # Building the model is the code of others, which may raise anything.
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        reason = failure_text(error)
        let_go(error)
        return _failed(rows, reason)


def _failed(rows: list[dict[str, Any]], reason: str) -> Verified:
    from torchgauge.verify.planning import no_plan
    from torchgauge.verify.verifying import unverified

    return [unverified(row, reason) for row in rows], no_plan(reason)
