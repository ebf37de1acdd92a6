"""A fault planted in a small model, and the same model without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast

from torch import nn

from torchgauge import analyze
from torchgauge.advise import Advice, Evidence, Gain, Machine, advise, list_options
from torchgauge.analysis import ModelInMemory
from torchgauge.facts import Measured


@dataclass(frozen=True)
class Planted:
    """`place` is the path of the module or the name of the weight where `rule` must find the fault."""

    name: str
    rule: str
    place: str
    fault: Callable[[], Evidence]
    twin: Callable[[], Evidence]

    @cache  # noqa: B019 -- as many as there are cases, for as long as the tests run
    def evidence(self) -> Evidence:
        return self.fault()

    @cache  # noqa: B019
    def in_fault(self) -> list[Advice]:
        return self._said(self.evidence())

    def in_twin(self) -> list[Advice]:
        """What a report shows."""
        evidence = self.twin()
        shown = [*advise(evidence), *list_options(evidence)]
        return [advice for advice in shown if advice.rule == self.rule]

    def _said(self, evidence: Evidence) -> list[Advice]:
        return [advice for advice in said(evidence) if advice.rule == self.rule]


def said(evidence: Evidence) -> list[Advice]:
    """All advice and options, small ones too."""
    return [*advise(evidence, all_advice=True), *list_options(evidence, all_advice=True)]


def gain_of(advice: Advice) -> Gain:
    assert advice.expected_gain is not None
    return advice.expected_gain


def places(advice: Advice) -> set[str | None]:
    """Every module and weight that a piece of advice names."""
    rows = [advice.where.member(), *advice.evidence.get("places", ())]
    return {row[key] for row in rows for key in ("module", "weight")} - {None}


def seen(model: Any, *shape: int, **settings: Any) -> Evidence:
    model = model.eval() if isinstance(model, nn.Module) else model
    found = analyze(model, input_size=shape or None, advice=False, progress=False, **settings)
    live = ModelInMemory(model) if isinstance(model, nn.Module) else None
    return Evidence(found.capture, found, model=live)


def on_cuda(evidence: Evidence, machine: Machine | None = None) -> Evidence:
    """As if the tensors had been on a CUDA device: a build of torch without CUDA cannot pretend that."""
    capture = evidence.capture
    there = replace(capture, run=replace(capture.run, device="cuda:0"))
    return Evidence(there, machine=machine, model=evidence.model)


def timed(evidence: Evidence, figures: dict[str, Any], ops: dict[int, Any] | None = None) -> Evidence:
    """With measured figures."""
    capture = replace(evidence.capture, measured=Measured(cast(Any, {"latency": None} | figures), ops=ops or {}))
    return Evidence(capture, machine=evidence.machine, model=evidence.model)
