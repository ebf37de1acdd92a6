"""A gain never exceeds the time of the ops that it touches, whatever a rule claims."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.advise.planted import Planted, said, seen, timed
from tests.advise.test_families import ZOO
from torchgauge import analyze
from torchgauge.advise import RULES, Advice, Evidence, Gain, Queues, Where, advise, list_options, rule
from torchgauge.advise.evidence import Share
from torchgauge.advise.op_time import (
    SAVED_PER_REMOVED,
    UNSURE,
    LeastTime,
    OpTimes,
    fresh_memory,
    predicted_times,
)
from torchgauge.advise.processor import pass_rate
from torchgauge.advise.registry import OPTIONS
from torchgauge.capture.recorder import source_line
from torchgauge.hardware import Pace, Peaks
from torchgauge.predict import KernelTable, Rates, write_table

NET = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))


@pytest.mark.parametrize("case", ZOO, ids=lambda case: f"{case.rule} {case.name}")
def test_no_rule_promises_more_than_the_ops_it_touches_take(case: Planted) -> None:
    evidence = case.fault()
    for advice in said(evidence):
        gain = advice.expected_gain
        if gain is None:
            assert advice.kind == "bug"
            continue
        assert 0 <= gain.low <= gain.high <= 1
        if gain.quantity == "time_s" and gain.device is None:
            limit = 1.0 if gain.touched is None else evidence.times.saved_range(gain.touched)[1]
            assert gain.high <= limit + 1e-12
            assert gain.amount == pytest.approx(gain.middle * evidence.times.whole)


@pytest.fixture
def greedy() -> Iterator[str]:
    """Claims all of the time for two ops, one after the other."""

    @rule("greedy", family="mine")
    def find(evidence: Evidence) -> Iterator[Advice]:
        for op in evidence.forward[-2:]:
            gain = Gain("time_s", 0.4, 1.0, "said so", frozenset((op.index,)))
            yield Advice("greedy", Where(op.module, (op.index,)), {}, "do it", None, gain, "none", "high")

    yield "greedy"
    del RULES["greedy"]


def test_a_claim_above_the_time_of_its_ops_is_lowered(greedy: str) -> None:
    evidence = seen(NET, 8, 64)
    [found] = [advice for advice in advise(evidence) if advice.rule == greedy]

    assert found.expected_gain is not None
    share = evidence.share(evidence.forward[-2:]).value
    most = UNSURE * SAVED_PER_REMOVED * share
    assert found.expected_gain.high == pytest.approx(most / (most + 1 - share))
    assert found.expected_gain.low < found.expected_gain.high


def test_seconds_are_those_of_the_measured_run(greedy: str) -> None:
    evidence = seen(NET, 8, 64)
    times = {op.index: {"time_s": 1e-3} for op in evidence.forward}
    whole = timed(evidence, {"latency": {"median_s": 0.5}}, times)
    [found] = [advice for advice in advise(whole) if advice.rule == greedy]
    gain = found.expected_gain

    assert gain is not None
    assert gain.basis == "measured"
    assert gain.amount == pytest.approx(gain.middle * 0.5)
    assert gain.high == pytest.approx(2 / len(evidence.forward))


def test_options_are_apart_from_advice_and_one_for_each_choice() -> None:
    evidence = seen(nn.Sequential(nn.Linear(16, 4096), nn.ReLU()), 4096, 16)

    options = list_options(evidence)
    assert {RULES[option.rule].option for option in options} == {"compile"}
    assert len(options) == 1
    assert set(OPTIONS) >= {entry.option for entry in RULES.values()} - {None}
    assert not {option.rule for option in options} & {advice.rule for advice in advise(evidence, all_advice=True)}


def test_the_line_of_the_models_code_is_told() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)

        def forward(self, x):  # type: ignore[no-untyped-def]
            return self.norm(self.conv(x))

    evidence = seen(Net(), 1, 3, 8, 8)
    [found] = [advice for advice in said(evidence) if advice.rule == "conv-bn-fusion"]
    line = Net.forward.__code__.co_firstlineno + 1

    assert found.where.source == f"test_gains.py:{line}"
    assert replace(found.where, source=None).member()["source"] is None


def test_a_sequence_of_torchs_layers_has_no_line() -> None:
    assert {op.source for op in seen(NET, 8, 64).forward} == {None}


def test_gains_are_predicted_for_the_device_that_is_named() -> None:
    found = analyze(NET, input_size=(8, 64), on="h200", progress=False)
    here = analyze(NET, input_size=(8, 64), progress=False)

    launch = next(row for row in found.advice if row.rule == "launch-bound")
    assert launch["expected_gain"]["device"] == "h200"
    assert launch["expected_gain"]["basis"] == "predicted"
    assert "on h200" in str(found)
    assert all("device" not in row["expected_gain"] for row in here.advice)


class ReturnsItsCache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))

    def forward(self, x: Tensor) -> dict[str, object]:
        return {"state": self.layers(x), "cache": SimpleNamespace(keys=x)}


def test_a_graph_is_shown_as_code_only_where_the_outputs_are_tensors() -> None:
    """A CUDA graph gives back tensors alone; captured with gradients, cuDNN's recurrent layers fail."""
    codes = []
    for model in (NET, ReturnsItsCache()):
        found = analyze(model, input_size=(8, 64), on="h200", progress=False)
        launch = next(row for row in found.advice if row.rule == "launch-bound")
        codes.append((launch.code, "return tensors only" in launch.risk))

    assert codes[0][0] is not None
    assert codes[0][0].startswith("with torch.no_grad():")
    assert codes == [(codes[0][0], False), (None, True)]


class Stack(nn.Module):
    """Six small layers, with arguments and results of all kinds."""

    def __init__(self, returns: Callable[[Tensor], Any] = lambda h: h) -> None:
        super().__init__()
        self.layers, self.returns = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6))), returns

    def forward(self, a: Any, other: Any = None, *, scale: Any = None) -> Any:
        h = self.layers(a[0] if isinstance(a, list) else a)
        return self.returns(h if scale is None else h * scale)


@dataclass
class Result:
    state: Tensor


A = torch.randn(8, 64)


@pytest.mark.parametrize(
    ("model", "settings", "is_code"),
    [
        (Stack(), {"inputs": (A,)}, True),
        (Stack(), {"inputs": (A, A)}, True),
        (Stack(lambda h: (h, (h + 1, h + 2))), {"inputs": (A,)}, True),
        (Stack(), {"inputs": (A, None)}, False),
        (Stack(), {"inputs": (A, True)}, False),
        (Stack(), {"inputs": ([A],)}, False),
        (Stack(), {"inputs": {"a": A, "scale": A}}, False),
        (Stack(lambda h: (h, None)), {"inputs": (A,)}, False),
        (Stack(lambda h: {"state": h}), {"inputs": (A,)}, False),
        (Stack(lambda h: (h, Result(h + 1))), {"inputs": (A,)}, False),
        (Stack(lambda h: (h, 0.5)), {"inputs": (A,)}, False),
    ],
)
def test_graph_code_is_shown_only_for_positional_tensors_and_tuples_of_tensors(
    model: nn.Module, settings: dict[str, Any], is_code: bool
) -> None:
    found = analyze(model.eval(), on="h200", progress=False, **settings)
    launch = next(row for row in found.advice if row.rule == "launch-bound")

    assert (launch.code is not None) == is_code
    assert ("torch.cuda.graph" in launch.risk) != is_code


def test_gains_are_predicted_with_the_host_of_a_calibration(tmp_path: Path) -> None:
    """A host that takes longer for its launches leaves the device idle for longer, which a CUDA graph saves."""
    gains = []
    for forward_s in (1e-3, 4e-3):
        facts = {
            "kind": "cuda",
            "title": "NVIDIA H200",
            "host": {"forward_s": forward_s, "train_s": 1e-2, "plan_s": 0.1, "spread": 0.1},
            "gpu": {"multiprocessors": 132, "major": 9, "minor": 0, "threads": 2048, "bytes": 140_000_000_000},
        }
        path = tmp_path / f"{forward_s}.npz"
        path.write_bytes(
            write_table(KernelTable("NVIDIA H200", Rates({"float32": 60e12}, 4e12, 2e-6), {}, facts=facts))
        )
        found = analyze(NET, input_size=(8, 64), on=str(path), progress=False)
        gains.append(next(row for row in found.advice if row.rule == "launch-bound")["expected_gain"])

    assert gains[0]["device"].endswith(".npz")
    assert gains[1]["low"] > gains[0]["low"]


def test_up_to_the_last_wait_the_host_takes_the_time_and_then_the_device() -> None:
    """Ops by index: (host, device). The device waits for the host until op 2, and is never idle from there on."""
    queues = Queues({0: (4.0, 1.0), 1: (4.0, 1.0), 2: (2.0, 9.0), 3: (2.0, 5.0), 4: (2.0, 0.0)})
    times = OpTimes(queues.critical, "predicted", queues=queues)

    assert queues.critical == {0: 4.0, 1: 4.0, 2: 11.0, 3: 5.0, 4: 0.0}
    assert times.total == queues.run_seconds() == 24.0
    assert times.saved([3]) == pytest.approx(times.share([3])) == pytest.approx(5 / 24)
    # Without op 2 the next waits for the host: less goes away than its share.
    assert times.saved([2]) == pytest.approx(9 / 24)
    assert times.saved([2]) < times.share([2])


def test_fewer_calls_are_what_a_device_gains_that_waits_for_its_host() -> None:
    """Eight ops become one: 7 of 8 launches go away, whatever the bytes."""
    waiting = Share(0.5, frozenset(range(8)), calls=1.0).one_pass(0.1, passes=8)
    working = Share(0.5, frozenset(range(8)), calls=0.0).one_pass(0.1, passes=8)

    assert waiting.high == pytest.approx(0.5 * 7 / 8)
    assert working.high == pytest.approx(0.5 * 0.1)


class Keeps(nn.Module):
    """Results that live at once."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        parts = [h * float(at) for at in range(self.count)]
        return torch.stack([part.sum() for part in parts])


def test_memory_that_no_run_keeps_is_part_of_what_a_copy_may_cost() -> None:
    """glibc gives blocks above 32 MiB back at once, so each run pays for them; it also gives back the unused end of its
    heap, so a run may have to pay for that."""

    class Clones(nn.Module):
        def forward(self, h: torch.Tensor) -> torch.Tensor:
            return torch.relu(h.clone()).sum()

    small, large, some = (
        seen(model, 1024, width) for model, width in ((Clones(), 64), (Clones(), 12288), (Keeps(13), 256))
    )

    assert fresh_memory(small.forward) == ({}, {})
    clone = next(op.index for op in large.forward if op.op == "aten::clone")
    assert fresh_memory(large.forward)[0][clone] > 0.01  # 48 MiB
    assert large.times.seconds[clone] > fresh_memory(large.forward)[0][clone]
    made = [op.index for op in some.forward if op.op == "aten::mul"]
    assert some.times.fresh_share(made) > 0.5
    kept = OpTimes(some.times.seconds, "predicted").saved_range(made[:4])
    assert some.times.saved_range(made[:4])[1] > kept[1]


def test_a_block_of_exactly_32_mib_is_not_kept() -> None:
    large = seen(nn.Sequential(nn.ReLU(), nn.Linear(2048, 4)), 4096, 2048)
    relu = next(op for op in large.forward if op.op == "aten::relu")
    assert relu.signature.activation_bytes == 32 << 20
    assert fresh_memory(large.forward)[0][relu.index] > 0.01


class OneByOne(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Sigmoid())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.body(row) for row in x])


def test_all_layers_of_a_sequential_are_of_the_loop_that_calls_it() -> None:
    found = next(advice for advice in said(seen(OneByOne(), 24, 4, 16)) if advice.rule == "loop-over-samples")
    assert found.evidence["ops"] >= 4 * 24
    assert found.expected_gain is not None
    assert found.expected_gain.high > 0.8


class WrittenGelu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 2048)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.fc(x)
        return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def test_the_function_of_a_gelu_is_still_computed() -> None:
    evidence = seen(WrittenGelu(), 256, 64)
    found = next(advice for advice in said(evidence) if advice.rule == "gelu-by-hand")
    tanh = next(op for op in evidence.forward if op.op == "aten::tanh")
    assert found.expected_gain is not None
    assert found.expected_gain.touched is not None
    rest = found.expected_gain.touched - {tanh.index}
    assert found.expected_gain.high < evidence.times.saved_range(rest)[1]


class HandFrozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.var = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (self.weight * (self.var + 1e-5).rsqrt()).view(1, -1, 1, 1)


def test_what_makes_a_folded_scale_goes_away_with_it() -> None:
    evidence = seen(nn.Sequential(nn.Conv2d(3, 8, 1), HandFrozen()), 1, 3, 8, 8)
    found = next(advice for advice in said(evidence) if advice.rule == "affine-after-layer")
    root = next(op for op in evidence.forward if op.op == "aten::rsqrt")
    assert found.expected_gain is not None
    assert found.expected_gain.touched is not None
    assert root.index in found.expected_gain.touched


class Turns(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).contiguous() + 1


class Masks(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x > 0).to(torch.float32)


def longest_copy_s(model: nn.Module, *size: int) -> float:
    evidence = seen(model, *size)
    seconds = predicted_times(evidence.forward, None, "cpu", 1, None)
    return max(seconds[op.index] for op in evidence.forward if op.category == "copy")


def test_copies_of_masks_and_of_elements_4_kib_apart_take_longer_than_their_bytes() -> None:
    assert longest_copy_s(Turns(), 1, 512, 1024) > 2 * longest_copy_s(Turns(), 1, 512, 1000)
    assert longest_copy_s(Masks(), 1, 512, 1024) > 2 * (1 + 4) * 512 * 1024 / 20e9


def test_a_heap_that_shrinks_between_runs_grows_again() -> None:
    """Thirteen results of 1 MiB that live at once: more than glibc leaves unused at the end of the heap."""

    assert not fresh_memory(seen(Keeps(1), 512, 512).forward)[1]
    assert sum(fresh_memory(seen(Keeps(13), 512, 512).forward)[1].values()) > 5e-3


def test_one_thread_has_its_part_of_the_processors_rate() -> None:
    evidence = seen(nn.Linear(512, 512), 512, 512)
    peaks = Peaks("a processor", {"float32": 1.6e11}, 2e10)
    machine = replace(evidence.machine, peaks=peaks)
    least = Evidence(evidence.capture, machine=machine).least_time
    one, two = (
        sum(predicted_times(evidence.forward, peaks, "cpu", threads, least, cores=2).values()) for threads in (1, 2)
    )

    assert one == pytest.approx(2 * two, rel=0.1)


def test_rates_that_were_measured_with_one_thread_are_those_of_one_thread() -> None:
    evidence = seen(nn.Linear(512, 512), 512, 512)
    # As `calibrate` writes it: one thread, two threads.
    peaks = Peaks("a processor", {"float32": 8e10}, 2e10, source="measured today with torch 2.13.0, 1 thread")
    least = Evidence(evidence.capture, machine=replace(evidence.machine, peaks=peaks)).least_time
    measured, assumed = (
        sum(predicted_times(evidence.forward, known, "cpu", 1, least and replace(least, peaks=known), cores).values())
        for known, cores in ((peaks, 16), (replace(peaks, source=""), 1))
    )

    assert peaks.threads == 1
    assert measured == pytest.approx(assumed)
    assert replace(peaks, source="measured today with torch 2.13.0, 16 threads").threads == 16


def test_rates_of_one_thread_count_for_each_of_several() -> None:
    evidence = seen(nn.Linear(512, 512), 512, 512)
    peaks = Peaks("a processor", {"float32": 8e10}, 2e10, source="measured today with torch 2.13.0, 1 thread")
    least = Evidence(evidence.capture, machine=replace(evidence.machine, peaks=peaks)).least_time
    one, two, three = (
        sum(predicted_times(evidence.forward, peaks, "cpu", threads, least, cores=2).values()) for threads in (1, 2, 3)
    )

    assert one == pytest.approx(2 * two, rel=0.1)
    assert three == two  # on two cores


def test_statistics_of_a_batch_take_longer_than_a_norm_by_those_in_store() -> None:
    class Standardized(nn.Module):
        def forward(self, h: torch.Tensor) -> torch.Tensor:
            return nn.functional.batch_norm(h, None, None, training=True)

    kept, computed = (
        sum(predicted_times(seen(norm, 2, 64, 4096).forward, None, "cpu", 1, None).values())
        for norm in (nn.BatchNorm1d(64), Standardized())
    )

    assert computed > 4 * kept


def test_fewer_calls_of_linear_layers_save_the_python_of_each() -> None:
    class Heads(nn.Module):
        def __init__(self, has_modules: bool) -> None:
            super().__init__()
            self.each = nn.ModuleList(nn.Linear(8, 8) for _ in range(4 if has_modules else 0))

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            return torch.stack([layer(h) for layer in self.each] or [h @ h for _ in range(4)])

    layers, products = (
        sum(predicted_times(seen(Heads(kind), 8, 8).forward, None, "cpu", 1, None).values()) for kind in (True, False)
    )

    assert layers > products + 4 * 2e-6


def test_a_recurrent_layer_on_a_processor_saves_calls_and_not_the_work_of_its_steps() -> None:
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(64, 64)

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            state = h.new_zeros(h.shape[0], 64)
            for frame in h.unbind(1):
                state = self.cell(frame, state)
            return state

    few, many = (
        next(advice.expected_gain for advice in said(seen(Steps(), batch, 16, 64)) if advice.rule == "loop-over-steps")
        for batch in (2, 2048)
    )

    assert few is not None
    assert many is not None
    assert few.low > 0.25 > many.low
    assert few.high > many.high


def test_a_norm_of_a_permuted_tensor_is_left_alone_on_a_processor() -> None:
    """torch's layer norm would copy the tensor first, which takes as long as the ops that it replaces."""

    class Normed(nn.Module):
        def __init__(self, *, is_permuted: bool) -> None:
            super().__init__()
            self.conv, self.is_permuted = nn.Conv2d(24, 24, 3, padding=1), is_permuted

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            h = self.conv(h)
            h = h.permute(0, 2, 3, 1) if self.is_permuted else h
            centred = h - h.mean(-1, keepdim=True)
            return centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5)

    plain, permuted = (
        {advice.rule for advice in said(seen(Normed(is_permuted=is_permuted), 1, 24, 64, 64))}
        for is_permuted in (False, True)
    )

    assert "norm-by-hand" in plain
    assert "norm-by-hand" not in permuted


def test_a_size_of_memory_has_no_speed() -> None:
    found = analyze(NET, input_size=(8, 64), on="24GiB", progress=False)

    assert all("device" not in row["expected_gain"] for row in found.advice)


def test_packages_whose_names_begin_alike_are_told_apart() -> None:
    folder = Path(torch.__file__).parent

    assert source_line(str(folder / "nn" / "modules" / "linear.py"), 1) is None
    assert source_line(f"{folder}vision/models/resnet.py", 1) in ("torchvision/models/resnet.py:1", "resnet.py:1")


def test_code_for_a_script_says_where_it_belongs() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.conv(x))

    model = Net().eval()
    own, script = (analyze(each, input_size=(1, 3, 8, 8), progress=False) for each in (model, torch.jit.script(model)))
    codes = [next(row.code for row in found.advice if row.rule == "conv-bn-fusion") for found in (own, script)]

    assert codes[1] == f"# model: the nn.Module, before torch.jit.script or trace\n{codes[0]}"


def test_what_a_run_takes_beside_its_ops_stays() -> None:
    queues = Queues({0: (4.0, 1.0), 1: (4.0, 1.0)}, fixed_s=2.0)
    times = OpTimes(queues.critical, "predicted", queues=queues)

    assert queues.run_seconds() == times.whole == 11.0
    assert times.saved({0}) == pytest.approx(4 / 11)
    assert times.saved({0, 1}) == pytest.approx(9 / 11)


class _Blocks(nn.Module):
    """Small convolutions, each with `last` behind it."""

    def __init__(self, last: type[nn.Module]) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(16, 16, 3) for _ in range(4))
        self.last = nn.ModuleList(last(16) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv, last in zip(self.convs, self.last, strict=True):
            x = last(conv(x))
        return x


class BatchNormAct2d(nn.BatchNorm2d):
    """Named as timm's, which does more in Python."""


def test_a_batch_norm_costs_the_host_more_than_its_kernel_says() -> None:
    gains = []
    for kind in (nn.BatchNorm2d, BatchNormAct2d):
        rows = analyze(_Blocks(kind).eval(), input_size=(8, 16, 32, 32), on="h200").advice
        [gain] = [row.expected_gain for row in rows if row.rule == "conv-bn-fusion"]
        assert gain is not None
        gains.append(gain)

    plain, with_activation = gains
    assert plain["low"] > 0.1
    assert with_activation["low"] > 1.2 * plain["low"]


@pytest.mark.parametrize(("tokens", "least", "most"), [(256, 0.0, 0.2), (1024, 0.2, 1.0)])
def test_on_a_processor_only_blocks_of_512_keys_are_skipped(tokens: int, least: float, most: float) -> None:
    class Masked(nn.Module):
        def forward(self, q: torch.Tensor) -> torch.Tensor:
            mask = torch.full((tokens, tokens), float("-inf")).triu(1)
            return nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    rows = analyze(Masked(), input_size=(1, 4, tokens, 32), all_advice=True).advice
    [gain] = [row.expected_gain for row in rows if row.rule == "causal-mask"]

    assert gain is not None
    assert least < gain["high"] < most


def test_joining_the_results_of_a_loop_goes_away_with_it() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.ModuleList(nn.Linear(32, 8) for _ in range(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([head(x) for head in self.heads], dim=1)

    evidence = seen(Heads(), 16, 32)
    [found] = [advice for advice in said(evidence) if advice.rule == "parallel-linears"]

    assert found.expected_gain is not None
    assert found.expected_gain.touched is not None
    [join] = [op.index for op in evidence.forward if op.op == "aten::cat"]
    assert join in found.expected_gain.touched


def paced(quicker: str = "", times: float = 1.0) -> Peaks:
    """A processor that takes `1 / times` of the reference's time in one respect."""
    seconds = {"call_s": 1.25e-6, "depthwise_s": 85e-6, "tanh_s": 3.3e-9, "gelu_s": 3.5e-9, "std_s": 7e-9}
    if quicker:
        seconds[quicker] /= times
    pace = Pace(**seconds, bytes_per_s={1 << 17: 4e10, 1 << 21: 4e10, 1 << 25: 1e10})
    return Peaks("a processor", {"float32": 8e10}, 1e10, source="1 threads", pace=pace)


def whole_s(model: nn.Module, peaks: Peaks, *size: int) -> float:
    evidence = seen(model, *size)
    return sum(predicted_times(evidence.forward, peaks, "cpu", 1, LeastTime(peaks)).values())


def test_a_pass_over_what_fits_into_a_cache_is_faster_than_one_over_memory() -> None:
    peaks, (small, large) = paced(), (1 << 15, 1 << 24)  # elements of a tensor that is read and written
    pace = peaks.pace
    assert pace is not None
    assert pass_rate(pace, 8 * small) == 4e10
    assert 1e10 < pass_rate(pace, 8 << 20) < 4e10
    assert whole_s(nn.ReLU(), peaks, large) / whole_s(nn.ReLU(), peaks, small) > 1.5 * large / small / 4


@pytest.mark.parametrize(
    ("model", "size", "quicker", "times"),
    [
        (nn.Tanh(), (512, 512), "tanh_s", 2),
        (nn.GELU("tanh"), (512, 512), "gelu_s", 4),  # half of it, as a power, shows in models
        (nn.ReLU(), (2, 2), "call_s", 2),
        (nn.Conv2d(16, 16, 3, groups=16), (1, 16, 8, 8), "depthwise_s", 2),
        (nn.MaxPool2d(3), (1, 8, 64, 64), "std_s", 2),
    ],
)
def test_ops_take_half_where_the_processor_was_measured_to_be_faster(
    model: nn.Module, size: tuple[int, ...], quicker: str, times: int
) -> None:
    assert whole_s(model, paced(quicker, times), *size) == pytest.approx(whole_s(model, paced(), *size) / 2, rel=0.2)


def test_a_convolution_in_few_groups_is_not_priced_as_a_depthwise_one() -> None:
    two, one = (whole_s(nn.Conv2d(64, 64 * groups, 3, groups=groups), paced(), 1, 64, 56, 56) for groups in (2, 1))
    assert two == pytest.approx(one, rel=0.1)  # as many multiplications


def test_a_function_of_complex_numbers_takes_many_times_that_of_real_ones() -> None:
    class Rotates(nn.Module):
        def forward(self, h: torch.Tensor) -> torch.Tensor:
            return torch.exp(torch.complex(h, h)).real

    class Grows(nn.Module):
        def forward(self, h: torch.Tensor) -> torch.Tensor:
            return torch.exp(h)

    assert whole_s(Rotates(), paced(), 512, 512) > 10 * whole_s(Grows(), paced(), 512, 512)


class TanhGelu(nn.Module):
    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return 0.5 * h * (1.0 + torch.tanh(0.7978845608 * (h + 0.044715 * h**3)))


def test_a_gelu_written_out_gains_little_where_tanh_alone_is_faster_than_the_fused_kernel() -> None:
    evidence = seen(nn.Sequential(nn.Linear(512, 512), TanhGelu()), 256, 512)
    gains = []
    for times in (1.0, 8.0):
        machine = replace(evidence.machine, peaks=paced("tanh_s", times))
        found = advise(Evidence(evidence.capture, machine=machine), all_advice=True)
        gains += [each.expected_gain.high for each in found if each.rule == "gelu-by-hand" and each.expected_gain]
    assert len(gains) == 2
    assert gains[1] < gains[0]


def test_a_recurrent_layer_is_one_call_on_a_device_whatever_this_machine_runs() -> None:
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(64, 128, batch_first=True)

        def forward(self, h: Tensor) -> Tensor:
            out: Tensor = self.layer(h)[0]
            return out

    found = analyze(Steps().eval(), inputs=(torch.randn(1, 300, 64),), on="h200", progress=False)
    (row,) = [row for row in found.advice if row["rule"] == "launch-bound"]
    predicted = found.capture.predicted

    assert predicted is not None
    kernels_s = sum(each["predicted_device_s"] for each in predicted.ops.values())
    assert row["evidence"]["kernels_s"] == pytest.approx(kernels_s, rel=0.15)
    assert "GRU layer " in str(found)


def test_memory_that_a_convolution_takes_for_itself_may_be_fresh() -> None:
    """Image, weights and result of 9 MiB each are copied: more than glibc leaves unused behind it. A product of 1 × 1
    copies nothing."""
    fresh = []
    for kernel_size in (3, 1):
        model = nn.Sequential(*(nn.Conv2d(512, 512, kernel_size, padding="same") for _ in range(3)))
        evidence = seen(model, inputs=(torch.zeros(8, 512, 24, 24),))
        fresh.append(sum(fresh_memory(evidence.forward)[1].values()))

    assert fresh[0] > 3 * 10e-3
    assert fresh[1] < 0.3 * fresh[0]


def test_fresh_memory_of_the_other_ops_lowers_the_share_of_work_whose_result_is_kept() -> None:
    evidence = seen(NET, 64, 64)
    first, *others = [op.index for op in evidence.flow.steps]
    kept = replace(evidence.times, fresh_s={}).saved_range([first], keeps_results=True)
    fresh = replace(evidence.times, fresh_s=dict.fromkeys(others, 1e-3)).saved_range([first], keeps_results=True)

    assert fresh[0] < 0.5 * kept[0]
    assert fresh[1] <= kept[1] * 1.5
