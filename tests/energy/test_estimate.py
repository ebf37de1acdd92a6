"""Energy without a meter: closed forms of the published figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from torchgauge.energy import (
    NO_POWER,
    NO_TIME,
    PICO,
    Circumstances,
    Range,
    estimate_energy,
    module_shares,
    power_of,
    technology_of,
)
from torchgauge.facts import COUNTED, UNCOUNTED, Cost, ModuleRecord, OpRecord, Signature, TensorSpec

A100 = "NVIDIA A100-SXM4-80GB"
MACS, MOVED = 10**9, 10**6


def op(index: int, module: str = "", *, macs: int = MACS, dtype: str = "float32", status: str = COUNTED) -> OpRecord:
    cost = Cost(macs, 2 * macs, MOVED, MOVED)
    spec = (TensorSpec((4, 4), dtype),)
    return OpRecord(index, Signature("aten::mm", "default", "matmul", status, (), spec, spec, {}, cost, 0), module, 0)


def test_a_float32_mac_at_7_nm_is_at_least_the_published_multiplication_and_addition() -> None:
    mac = technology_of(A100, "cuda").mac_j("float32")
    # Jouppi 2021: 1.31 + 0.38 pJ; Dally 2020: 30 pJ at 16 nm over 8 to 128 operations, two of them a MAC.
    assert mac.low == pytest.approx((1.31 + 0.38 + 2 * 30 / 2.56 / 128) * PICO)
    assert mac.high == pytest.approx((1.31 + 0.38 + 2 * 30 / 1.67 / 8) * PICO)


def test_half_precision_products_are_summed_in_float32() -> None:
    technology = technology_of(A100, "cuda")
    instruction = technology.mac_j("float32").low - (1.31 + 0.38) * PICO
    assert technology.mac_j("bfloat16").low == pytest.approx((0.21 + 0.38) * PICO + instruction)


@pytest.mark.parametrize(("lesser", "greater"), [("int8", "bfloat16"), ("bfloat16", "float32"), ("float32", "float64")])
def test_wider_types_take_more(lesser: str, greater: str) -> None:
    technology = technology_of(A100, "cuda")
    assert technology.mac_j(lesser).low < technology.mac_j(greater).low
    assert technology.mac_j(lesser).high < technology.mac_j(greater).high


def test_tf32_lies_between_float16_and_float32() -> None:
    technology = technology_of(A100, "cuda")
    tf32, half, single = (technology.mac_j(dtype) for dtype in ("tf32", "float16", "float32"))
    assert half.low <= tf32.low < tf32.high == single.high


def test_a_byte_costs_from_the_cache_to_the_devices_memory() -> None:
    assert technology_of(A100, "cuda").byte_j() == pytest.approx((1.0 * PICO, 56 * PICO))
    assert technology_of("Tesla T4", "cuda").byte_j().high == pytest.approx(112 * PICO)


def test_the_longest_prefix_of_a_name_determines_the_technology() -> None:
    assert technology_of("NVIDIA A100-PCIE-40GB", "cuda").nodes == ("7",)
    assert technology_of("NVIDIA A10G", "cuda").nodes == ("10",)


def test_an_unknown_device_spans_the_technologies() -> None:
    unknown = technology_of("Somebody's chip", "cuda")
    assert not unknown.is_known
    for name in (A100, "NVIDIA H200", "Tesla T4"):
        known = technology_of(name, "cuda")
        assert unknown.mac_j("float16").low <= known.mac_j("float16").low
        assert unknown.mac_j("float16").high >= known.mac_j("float16").high
        assert unknown.byte_j().high >= known.byte_j().high


def test_work_without_a_time_is_operations_and_bytes_and_says_what_is_missing() -> None:
    found = estimate_energy([op(0)], Circumstances(A100, "cuda", watts=400))
    technology = technology_of(A100, "cuda")
    expected = technology.mac_j("float32").scaled(MACS).plus(technology.byte_j().scaled(2 * MOVED))
    assert found.joules == pytest.approx(expected)
    assert found.notes == (NO_TIME,)


def test_with_a_time_the_devices_limit_bounds_the_estimate() -> None:
    found = estimate_energy([op(0)], Circumstances(A100, "cuda", watts=400, time_s=0.01))
    assert found.joules == pytest.approx((0.1 * 400 * 0.01, 400 * 0.01))
    assert found.value == pytest.approx(math.sqrt(0.4 * 4.0))
    assert found.notes == ()


def test_work_that_needs_more_than_idling_raises_the_lower_bound() -> None:
    busy = Circumstances(A100, "cuda", watts=400, time_s=0.01)
    found = estimate_energy([op(0, macs=10**12)], busy)
    assert found.joules.low == pytest.approx(found.work.low)
    assert 0.4 < found.joules.low < found.joules.high == pytest.approx(4.0)


def test_the_lower_bound_never_exceeds_the_devices_limit() -> None:
    found = estimate_energy([op(0, macs=10**15)], Circumstances(A100, "cuda", watts=400, time_s=0.01))
    assert found.joules == pytest.approx((4.0, 4.0))


def test_a_processor_is_bounded_by_the_cores_in_use() -> None:
    assert power_of(None, "cpu", 4) == pytest.approx((4.0, 64.0))
    assert power_of(None, "cuda", 4) is None
    assert NO_POWER in estimate_energy([op(0)], Circumstances("A CPU", "cpu")).notes


@pytest.mark.parametrize("times", [{}, {0: 0.001, 1: 0.003}])
@pytest.mark.parametrize("time_s", [None, 0.01])
def test_the_parts_add_up_to_the_value(times: dict[int, float], time_s: float | None) -> None:
    known = Circumstances(A100, "cuda", watts=400, time_s=time_s, op_times=times)
    found = estimate_energy([op(0, macs=10**8), op(1), op(2, macs=0)], known)
    assert sum(found.ops.values()) == pytest.approx(found.value)


def test_unexplained_energy_follows_the_time() -> None:
    ops = [op(0), op(1)]
    found = estimate_energy(ops, Circumstances(A100, "cuda", watts=400, time_s=0.01, op_times={0: 0.001, 1: 0.003}))
    work = estimate_energy(ops, Circumstances(A100, "cuda")).joules.value
    rest = found.value - work
    assert found.ops[1] - found.ops[0] == pytest.approx(rest / 2)


def test_a_module_has_its_own_ops_and_those_below() -> None:
    ops = [op(0, "a.b"), op(1, "a"), op(2, "c"), op(3, "")]
    modules = [ModuleRecord(path, "M") for path in ("", "a", "a.b", "c")]
    assert module_shares(ops, modules, {0: 1.0, 1: 2.0, 2: 4.0, 3: 8.0}) == {"": 15.0, "a": 3.0, "a.b": 1.0, "c": 4.0}


def test_a_row_keeps_the_relative_range_of_the_whole() -> None:
    found = estimate_energy([op(0), op(1)], Circumstances(A100, "cuda", watts=400, time_s=0.01))
    row = found.range_of(found.value / 4)
    assert row["estimated_energy_j"] == pytest.approx(found.value / 4)
    assert row["estimated_energy_low_j"] == pytest.approx(found.joules.low / 4)
    assert row["estimated_energy_high_j"] == pytest.approx(found.joules.high / 4)


def test_the_figures_name_their_sources_and_what_is_missing() -> None:
    figures: Any = estimate_energy([op(0), op(1, status=UNCOUNTED)], Circumstances("Chip", "cuda")).figures(samples=4)
    basis = figures["estimated_from"]
    assert any("Horowitz" in source for source in basis["sources"])
    assert any("Jouppi" in source for source in basis["sources"])
    assert (
        "the technology of 'Chip' is not known: the range spans 5 to 45 nm, hbm or gddr or ddr memory" in basis["notes"]
    )
    assert any("1 ops without a formula" in note for note in basis["notes"])
    assert figures["estimated_joules_per_sample"]["low"] == pytest.approx(figures["estimated_joules"]["low"] / 4)


def test_power_and_efficiency_are_ranges_of_the_same_estimate() -> None:
    figures = estimate_energy([op(0)], Circumstances(A100, "cuda", watts=400, time_s=0.01)).figures()
    assert figures["estimated_watts_mean"] == pytest.approx({"low": 40.0, "high": 400.0, "value": math.sqrt(16000)})
    flops = op(0).cost.flops
    bounds = {"low": flops / 4.0, "high": flops / 0.4, "value": flops / math.sqrt(1.6)}
    assert figures["estimated_flops_per_joule"] == pytest.approx(bounds)
    # Without a time the device takes what it can.
    without_time: Any = estimate_energy([op(0)], Circumstances(A100, "cuda", watts=400)).figures()
    assert without_time["estimated_watts_mean"]["high"] == 400
    assert estimate_energy([], Circumstances("Chip", "cuda")).figures()["estimated_flops_per_joule"] is None


def test_tf32_changes_matrix_work_alone() -> None:
    plain, tf32 = (estimate_energy([op(0)], Circumstances(A100, "cuda", tf32=tf32)).joules for tf32 in (False, True))
    saved = technology_of(A100, "cuda").mac_j("float32").low - technology_of(A100, "cuda").mac_j("tf32").low
    assert plain.low - tf32.low == pytest.approx(saved * MACS)


def test_nothing_run_takes_nothing() -> None:
    none: Sequence[OpRecord] = ()
    assert estimate_energy(none, Circumstances(A100, "cuda")).joules == Range(0.0, 0.0)
