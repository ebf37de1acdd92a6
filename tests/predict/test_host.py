"""Host time of a run: parts of the sample's time, calibration, plans of cuDNN's attention."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchgauge as tg
from torchgauge.predict import CUDNN_ATTENTION, Host, HostSample, RunTime, Trace, host_speed, predict_ops
from torchgauge.source import candidate_inputs

FAST = Host(2e-3, 8e-3, 25e-3, 0.1, "a test")
SLOW = Host(4e-3, 16e-3, 50e-3, 0.1, "a test")


def traced(model: nn.Module, *inputs: torch.Tensor, train: bool = False) -> Trace:
    from torchgauge.predict import Library, Setting, find_device, make_optimizer, trace

    setting = Setting(
        Library(find_device("h200").chip), train=train, optimizer=make_optimizer("adamw") if train else None
    )
    return trace(model, next(iter(candidate_inputs(model, inputs=inputs))), setting)


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


def host_seconds(model: nn.Module, *inputs: torch.Tensor, train: bool = False) -> float:
    return predicted(traced(model, *inputs, train=train), FAST).host_s


def test_a_recurrent_layer_costs_the_host_a_call_of_cudnn_and_the_launches_of_its_steps() -> None:
    with torch.device("meta"):
        few, many = nn.LSTM(64, 64, batch_first=True), nn.LSTM(64, 512, batch_first=True)
        short, long = torch.empty(8, 20, 64), torch.empty(8, 220, 64)
    # A layer of few units is one kernel, whatever its steps; of the H200's hosts it takes as long as ten other ops.
    assert host_seconds(few, long) == pytest.approx(host_seconds(few, short))
    assert 50e-6 < host_seconds(few, short) < 300e-6
    # A larger one is launched step by step, two kernels each: about 4 µs a launch on a host this fast.
    steps = host_seconds(many, long) - host_seconds(many, short)
    assert 2e-6 < steps / 400 < 8e-6
    assert host_seconds(many, long, train=True) > 2 * host_seconds(many, long)
    # The device works at the same time: the run takes about as long as the host, not the sum.
    run = predicted(traced(many, long), FAST)
    assert run.time_s < 1.05 * run.host_s < run.host_s + run.device_s


def test_bfloat16_gathers_the_weights_of_a_recurrent_layer_in_every_call() -> None:
    with torch.device("meta"):
        layers = {dtype: nn.LSTM(64, 512, 3, dtype=dtype) for dtype in (torch.float16, torch.bfloat16)}
    half, brain = (host_seconds(layer, torch.empty(20, 8, 64, dtype=dtype)) for dtype, layer in layers.items())
    assert brain > half + 200e-6


def test_a_kernel_per_group_where_a_half_convolution_has_several_filters_per_channel() -> None:
    with torch.device("meta"):
        layer = nn.Conv2d(128, 256, 3, groups=128, dtype=torch.bfloat16)
        plain = torch.empty(4, 128, 14, 14, dtype=torch.bfloat16)
    channels_last = plain.to(memory_format=torch.channels_last)
    assert host_seconds(layer, channels_last) > host_seconds(layer, plain) + 128 * 2e-6
    assert host_seconds(layer.float(), channels_last.float()) < host_seconds(layer.bfloat16(), channels_last) / 3


def test_a_captured_run_hears_that_it_is_captured() -> None:
    class Asks(nn.Module):
        """Makes a mask where it cannot look at the padding, as transformers does."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            try:
                is_captured = torch.cuda.is_current_stream_capturing()
            except RuntimeError:  # a torch without CUDA
                is_captured = False
            return x.tril() if is_captured else x.relu()

    with torch.device("meta"):
        model, given = Asks(), torch.empty(4, 4)
    before = torch.cuda.is_current_stream_capturing
    for way, expected in (("eager", "aten::relu"), ("graph", "aten::tril")):
        found = tg.forecast(model, inputs=given, execution=way)
        assert isinstance(found, tg.Forecast)
        assert [op["op"] for op in found.ops] == [expected]
    assert torch.cuda.is_current_stream_capturing is before


def test_calibration_measures_the_sample() -> None:
    clock = iter(range(100_000))
    found = host_speed("cpu", clock=lambda: float(next(clock)), rounds=2)
    assert found == {"forward_s": 1.0, "train_s": 1.0, "plan_s": 0.0, "spread": 0.0}
    host = Host.of(found | {"spread": 0.3})
    assert host.source == "as calibrated"
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
        bounds = [Prediction.of(one, find_device("h200"), AllocatorSettings()).bounds for one in (once, twice)]
        assert bounds[0] == bounds[1]
    kept = traced(Remembers(), torch.empty(4, 64, device="meta"))
    assert len(kept.step_ops) < len(kept.ops) - len(kept.step_ops)


class Grows(nn.Module):
    """Keeps what it computed in its first step."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.seen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        self.seen.append(out.detach() * 2)
        return out


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "adagrad"])
def test_a_training_step_is_traced_once_with_two_updates(monkeypatch: pytest.MonkeyPatch, optimizer: str) -> None:
    from torchgauge.predict import AllocatorSettings, Library, Prediction, Setting, find_device, make_optimizer, trace

    with torch.device("meta"):
        models: list[tuple[nn.Module, torch.Tensor]] = [
            (nn.Sequential(nn.Conv2d(3, 64, 7), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3)),
             torch.empty(8, 3, 96, 96)),
            (nn.TransformerEncoderLayer(64, 4, batch_first=True), torch.empty(4, 32, 64)),
            (nn.LSTM(64, 64), torch.empty(16, 4, 64)),
        ]  # fmt: skip
    for model, given in models:
        setting = Setting(Library(find_device("h200").chip), train=True, optimizer=make_optimizer(optimizer))
        candidate = next(iter(candidate_inputs(model, inputs=(given,))))
        once = trace(model, candidate, setting)
        with monkeypatch.context() as patch:
            patch.setattr("torchgauge.predict.steps.Loop.repeats", False)
            twice = trace(model, candidate, setting)
        assert [op.op for op in once.step_ops] == [op.op for op in twice.step_ops]
        assert len(once.ops) < len(twice.ops)
        found = [Prediction.of(one, find_device("h200"), AllocatorSettings()) for one in (once, twice)]
        assert found[0].bounds == found[1].bounds
        assert found[0].replay.by_class == found[1].replay.by_class
        times = [
            [(row["op"], row["time_s"], row["energy_j"]) for row in predicted(one, FAST).ops] for one in (once, twice)
        ]
        assert times[0] == times[1]


def test_a_model_that_keeps_tensors_is_trained_twice() -> None:
    model = Grows()
    kept = traced(model, torch.empty(4, 64), train=True)
    assert sum(op.op == "aten::addmm" and op.phase == "forward" for op in kept.ops) == 2
