"""What a run takes of the host: parts of the sample's time, calibration, plans of cuDNN's attention."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchgauge.predict import CUDNN_ATTENTION, Host, HostSample, RunTime, Trace, host_speed, predict_ops
from torchgauge.source import candidate_inputs

FAST = Host(2e-3, 8e-3, 25e-3, 0.1, "a test")
SLOW = Host(4e-3, 16e-3, 50e-3, 0.1, "a test")


def traced(model: nn.Module, *inputs: torch.Tensor, train: bool = False) -> Trace:
    from torchgauge.predict import Library, find_device, make_optimizer, steps

    setting = steps.Setting(
        Library(find_device("h200").chip), train=train, optimizer=make_optimizer("adamw") if train else None
    )
    return steps.trace(model, next(iter(candidate_inputs(model, inputs=inputs))), setting)


def predicted(trace: Trace, host: Host, **options: object) -> RunTime:
    return predict_ops(trace.step_ops, "h200", module_calls=trace.module_calls, host=host, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("train", [False, True])
def test_the_sample_is_predicted_to_take_what_it_takes(train: bool) -> None:
    # The unit of the costs is its own time, so they have to give that back; it was not among the fitted models.
    with torch.device("meta"):
        model = HostSample()
    trace = traced(model, torch.empty(2, 16, 4, 4, device="meta"), train=train)
    found = predicted(trace, FAST)
    assert found.bound == "host"
    assert found.time_s == pytest.approx(FAST.train_s if train else FAST.forward_s, rel=0.25)
    assert predicted(trace, SLOW).time_s == pytest.approx(2 * found.time_s, rel=0.02)
    assert found.low_s < found.time_s < found.high_s


def test_a_new_length_costs_a_plan_of_cudnn_once_in_a_run() -> None:
    class Attention(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            for _ in range(3):
                q = nn.functional.scaled_dot_product_attention(q, k, k)
            return q

    q, k = (torch.empty(1, 8, length, 64, device="meta", dtype=torch.bfloat16) for length in (1, 700))
    trace = traced(Attention(), q, k)
    assert sum(op.op == CUDNN_ATTENTION for op in trace.step_ops) == 3
    again, new = predicted(trace, FAST), predicted(trace, FAST, new_lengths={700})
    assert new.time_s - again.time_s == pytest.approx(FAST.plan_s, rel=0.05)
    assert predicted(trace, FAST, new_lengths={701}).time_s == again.time_s
    assert predicted(trace, FAST, new_lengths={700}, execution="graph").time_s < again.time_s


def test_calibration_measures_the_sample() -> None:
    clock = iter(range(100_000))
    found = host_speed("cpu", clock=lambda: float(next(clock)), rounds=3)
    assert found == {"forward_s": 1.0, "train_s": 1.0, "plan_s": 0.0, "spread": 0.0}
    host = Host.of(found | {"spread": 0.3})
    assert host.source == "as calibration measured it"
    assert host.plan_s == pytest.approx(12.0)  # not measured: in proportion to the sample
    assert host.high == pytest.approx(1 / host.low)
    assert host.high > 1.2
    # A file of an earlier version has no sample.
    assert Host.of({"launch_s": 6e-6, "view_s": 1e-6, "module_s": 1e-6}) == Host.of(None)


class Remembers(nn.Module):
    """Makes a mask in its first run."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.mask: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.mask is None:
            self.mask = torch.ones(64, 64, device=x.device).tril()
        out: torch.Tensor = self.layer(x) @ self.mask
        return out


def test_a_model_without_state_is_traced_once_and_its_second_run_is_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchgauge.predict import AllocatorSettings, CudaRun, Prediction, find_device

    with torch.device("meta"):
        models: list[tuple[nn.Module, torch.Tensor]] = [
            (nn.Sequential(nn.Conv2d(3, 64, 7), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3)),
             torch.empty(8, 3, 96, 96)),
            (nn.TransformerEncoderLayer(64, 4, batch_first=True), torch.empty(4, 32, 64)),
            (nn.LSTM(64, 64), torch.empty(16, 4, 64)),
        ]  # fmt: skip
    for model, given in models:
        once = traced(model, given)
        with monkeypatch.context() as patch:
            patch.setattr(CudaRun, "keeps_nothing", False)
            twice = traced(model, given)
        assert [op.op for op in once.step_ops] == [op.op for op in twice.step_ops]
        assert once.module_calls == twice.module_calls
        assert len(once.ops) < len(twice.ops)
        bounds = [Prediction.of(trace, find_device("h200"), AllocatorSettings()).bounds for trace in (once, twice)]
        assert bounds[0] == bounds[1]
    kept = traced(Remembers(), torch.empty(4, 64, device="meta"))
    assert len(kept.step_ops) < len(kept.ops) - len(kept.step_ops)
