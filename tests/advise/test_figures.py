"""Closed forms behind what rules say of strides, least times, loads and passes."""

from __future__ import annotations

import pytest
from torch import nn

from tests.advise import zoo_experts, zoo_memory
from tests.advise.faulty_models import Mixing, Wrapped
from tests.advise.planted import gain_of, on_cuda, said, seen, timed
from tests.advise.zoo_runs import precise
from torchgauge.advise import Advice, Evidence, Machine
from torchgauge.advise.op_time import LeastTime, combined
from torchgauge.advise.rules.layout import innermost, step
from torchgauge.facts import TensorSpec
from torchgauge.hardware import Peaks

# One operation and one byte a second, so that times are counts.
UNIT = Peaks("a device", {"float32": 1.0, "tf32": 4.0, "bfloat16": 8.0}, 1.0)


def only(evidence: Evidence, rule: str) -> Advice:
    (found,) = (advice for advice in said(evidence) if advice.rule == rule)
    return found


@pytest.mark.parametrize(
    ("spec", "apart", "inner"),
    [
        (TensorSpec((4, 8)), 1, 1),
        (TensorSpec((4, 8), stride=(1, 4)), 1, 0),
        (TensorSpec((4, 4), stride=(8, 2)), 2, 1),
        (TensorSpec((4, 1), stride=(3, 1)), 3, 0),
        (TensorSpec((1, 1)), 1, None),
    ],
)
def test_how_far_elements_lie_apart_and_along_which_dimension(spec: TensorSpec, apart: int, inner: int | None) -> None:
    assert (step(spec), innermost(spec)) == (apart, inner)


def test_the_least_time_is_that_of_the_slower_of_arithmetic_and_memory() -> None:
    evidence = seen(nn.Linear(64, 64, bias=False), 64, 64)
    (product,) = (op for op in evidence.forward if op.cost.macs)
    flops, nbytes = 2 * 64**3, 3 * 64 * 64 * 4

    assert LeastTime(UNIT).of(product) == max(flops, nbytes)
    assert LeastTime(UNIT, matmul_tf32=True).of(product) == max(flops / 4, nbytes)
    assert LeastTime(UNIT).in_bfloat16(product) == max(flops / 8, nbytes / 2)


def test_tf32_of_convolutions_is_another_switch_than_that_of_matmuls() -> None:
    evidence = seen(nn.Conv2d(64, 64, 1, bias=False), 1, 64, 16, 16)
    (product,) = (op for op in evidence.forward if op.cost.macs)

    assert LeastTime(UNIT, matmul_tf32=True, convolution_tf32=False).of(product) == 2 * 64 * 64 * 256


def test_tf32_saves_the_time_of_matmuls_and_no_bytes() -> None:
    evidence = on_cuda(seen(nn.Linear(64, 64, bias=False), 64, 64), Machine(UNIT, matmul_tf32=False))

    gain = gain_of(only(evidence, "tf32-off"))

    assert gain.quantity == "time_s"
    assert gain.high == pytest.approx(0.75)


def test_a_batch_norm_behind_a_convolution_in_16_bits_is_in_16_bits_too() -> None:
    peaks = Peaks("a device", {"float32": 1e9, "tf32": 1e9, "bfloat16": 1e9}, 1.0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())

    gain = gain_of(only(on_cuda(seen(model, 1, 3, 16, 16), Machine(peaks)), "autocast-bf16"))

    assert gain.high == pytest.approx(0.5, abs=0.01)  # memory alone counts, and all of it halves


def test_a_chain_in_one_kernel_reads_its_input_and_writes_its_output() -> None:
    evidence = seen(Wrapped(Mixing()), 2, 64, 64)
    chain = only(evidence, "pointwise-chain")
    nbytes = 2 * 64 * 64 * 4

    ops = [op for op in evidence.forward if op.index in chain.where.ops]
    work = [evidence.share([op]).value * (1 - evidence.share([op]).calls) for op in ops]
    # The longest function is still computed.
    spared = 1 - max(2 * nbytes / chain.evidence["bytes_moved"], max(work) / sum(work))
    share, saved = evidence.share(ops), evidence.times.saved_range(chain.where.ops)
    fewer = share.calls * (1 - 1 / len(ops))
    parts = (0.8 * fewer + (1 - share.calls) * 0.7 * spared, fewer + (1 - share.calls) * spared)
    assert gain_of(chain).high == pytest.approx(min(combined(parts, saved)[1], parts[1] * saved[1]))


def test_errors_that_are_independent_add_up_by_their_squares() -> None:
    assert combined((0.2, 0.8), (0.5, 0.5)) == pytest.approx((0.1, 0.4))  # one of them is known
    low, high = combined((0.2, 0.8), (0.1, 0.4))
    assert low * high == pytest.approx(0.16 * 0.04)
    assert high / low == pytest.approx(4**2**0.5)
    assert combined((0.0, 0.8), (0.1, 0.4)) == pytest.approx((0.0, 0.32))


def test_backward_products_are_cast_too() -> None:
    evidence = on_cuda(zoo_memory.trained(zoo_memory.Blocks(width=256), 4096, 256), zoo_memory.DEVICE)

    assert only(evidence, "autocast-bf16").evidence["float32_macs_share"] == pytest.approx(1.0)


def test_fewer_threads_are_told_once() -> None:
    evidence = zoo_experts.threaded(16, 4)
    rows = [{"threads": 2**at, "median_s": seconds} for at, seconds in enumerate((1.0, 0.8, 1.2))]
    evidence.figures["threads"]["scaling"] = rows

    assert {"thread-count", "thread-oversubscription"} & {a.rule for a in said(evidence)} == {"thread-count"}


def measured(kernels_s: float, host_s: float | None = None) -> Evidence:
    """One second on a device, of which its kernels take a part."""
    evidence = precise(False)
    products = [op for op in evidence.forward if op.category == "matmul"]
    each = {op.index: {"time_s": kernels_s / len(products)} for op in products}
    return timed(evidence, {"latency": {"median_s": 1.0, "host_s": host_s}}, each)


@pytest.mark.parametrize(("busy", "idle"), [("tf32-off", "tf32-off"), ("autocast-bf16", "bfloat16-weights")])
def test_shorter_kernels_may_save_nothing_where_the_device_waits_for_the_host(busy: str, idle: str) -> None:
    kept_busy, waiting = only(measured(1.0), busy), only(measured(0.2), idle)

    assert gain_of(kept_busy).low > 0
    assert kept_busy.confidence != "low"
    assert gain_of(waiting).low == 0
    assert gain_of(waiting).high == pytest.approx(0.2 * gain_of(kept_busy).high)
    assert "waits for the host for 80 % of a run" in gain_of(waiting).how
    assert waiting.confidence == "low"


def test_no_kernel_makes_a_run_shorter_than_the_host_takes_for_its_launches() -> None:
    free, held_up = (gain_of(only(measured(1.0, host_s), "tf32-off")) for host_s in (0.0, 0.98))

    assert free.high > 0.02
    assert held_up.high == pytest.approx(0.02)
    assert held_up.low <= held_up.high
    assert "no more than 2 %" in held_up.how


def test_casts_are_counted_among_the_launches_that_the_host_has_no_time_for() -> None:
    """A transposed weight and its product, which is given a bias, a weight and an input in 32 bits."""
    launches = 1 + 3 / 2
    assert [op.op for op in precise(False).forward] == ["aten::t", "aten::addmm"]

    rules = {advice.rule for advice in said(measured(1.0, 0.79 / launches))}
    assert {"autocast-bf16", "bfloat16-weights"} & rules == {"autocast-bf16"}
    (advice,) = (found for found in said(measured(1.0, 0.81 / launches)) if found.rule == "bfloat16-weights")
    assert advice.evidence["autocast_launches"] == pytest.approx(launches)


def test_a_training_keeps_its_weights_in_32_bits() -> None:
    evidence = on_cuda(zoo_memory.trained(zoo_memory.Blocks(width=256), 4096, 256), zoo_memory.DEVICE)
    ops = {op.index: {"time_s": 1e-6} for op in evidence.capture.ops}
    rules = {advice.rule for advice in said(timed(evidence, {"latency": {"median_s": 1.0}}, ops))}

    assert {"autocast-bf16", "bfloat16-weights"} & rules == {"autocast-bf16"}
