"""Three verdicts: confirmed, refuted, inconclusive with what would settle it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from torch import nn

from tests.advise.planted import seen, timed
from tests.advise.zoo_experts import threaded
from torchgauge.advise import advise
from torchgauge.verify import Difference, Paired, Verdict, confirmed

SAME = Difference(0.0)
NET = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())


def paired(*ratios: float, others: float = 0.0, earlier: Paired | None = None) -> Paired:
    return Paired([math.log(ratio) for ratio in ratios] * 4, others_share=others, earlier=earlier)


def judged(time: Paired, error: Difference = SAME) -> Verdict:
    return Verdict("time_s", time.gain, time.interval, error, 1e-3, time)


@pytest.mark.parametrize(
    ("time", "verdict", "reason", "settled"),
    [
        (paired(0.8, 0.81, 0.79), "confirmed", None, None),
        (paired(1.2, 1.21, 1.19), "refuted", "more time", None),
        (paired(0.9, 1.1, 1.0), "inconclusive", "too noisy", "TORCHGAUGE_VERIFY_BUDGET"),
        (paired(0.99, 1.01, 1.0), "inconclusive", "no time gain above the noise", "idle machine"),
        (paired(0.8, 0.81, others=0.11), "inconclusive", "other processes used 11.0 % of the machine", "idle machine"),
        (paired(1.2, 1.21, others=0.5), "inconclusive", "other processes used 50.0 %", "idle machine"),
        (paired(0.8, 0.81, others=0.09), "confirmed", None, None),
        (
            paired(0.8, 0.81, earlier=paired(1.2, 1.21)),
            "inconclusive",
            "faster in one round, slower in another",
            "idle machine",
        ),
        (paired(0.8, 0.81, earlier=paired(0.7, 0.71, others=0.3)), "inconclusive", "other processes", "idle machine"),
    ],
)
def test_verdict_and_what_would_settle_it(time: Paired, verdict: str, reason: str | None, settled: str | None) -> None:
    found = judged(time).member()

    assert found["verdict"] == verdict
    assert found["kept"] is (verdict == "confirmed")
    assert found["reason"] is None if reason is None else reason in (found["reason"] or "")
    assert found["settled_by"] is None if settled is None else settled in (found["settled_by"] or "")


def test_wrong_outputs_are_refuted_however_busy_the_machine_is() -> None:
    assert judged(paired(0.8, 0.81, others=0.5), Difference(0.5)).verdict == "refuted"


def test_counted_bytes_do_not_depend_on_other_processes() -> None:
    busy = paired(0.8, others=0.9)
    saved = Verdict("param_bytes", 0.5, (0.5, 0.5), SAME, 1e-3, busy)

    assert saved.verdict == "confirmed"
    assert replace(saved, gain=0.0, ci95=(0.0, 0.0)).verdict == "refuted"


def test_rounds_are_judged_as_one() -> None:
    first, again = judged(paired(0.8, 0.81)), judged(paired(1.2, 1.21))
    both = confirmed(first, again)

    assert isinstance(both, Verdict)
    assert both.verdict == "inconclusive"


@pytest.mark.parametrize("rule", ["thread-count", "thread-oversubscription", "idle-cores"])
def test_threads_are_not_advised_on_a_shared_machine(rule: str) -> None:
    scaling = [{"threads": 1, "median_s": 1.0}, {"threads": 2, "median_s": 2.0}]
    said = {False: set[str](), True: set[str]()}
    for is_shared in (False, True):
        others = 0.11 if is_shared else 0.0
        for threads, cores in ((16, 4), (1, 16)):
            said[is_shared] |= {a.rule for a in advise(threaded(threads, cores, others=others), all_advice=True)}
        evidence = threaded(2, 4, others=others)
        evidence.figures["threads"]["scaling"] = scaling
        said[is_shared] |= {a.rule for a in advise(evidence, all_advice=True)}

    assert rule in said[False]
    assert rule not in said[True]


def test_profiling_takes_no_advice_away() -> None:
    static = seen(NET, 1, 3, 16, 16)
    norm = next(op for op in static.forward if "batch_norm" in op.op)
    times = {op.index: {"time_s": 1e-9 if op is norm else 1.0} for op in static.forward}

    assert "conv-bn-fusion" in {advice.rule for advice in advise(static)}
    assert "conv-bn-fusion" in {advice.rule for advice in advise(timed(static, {}, times))}
