"""How a run speeds up with threads: closed forms, and one real run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torchgauge as tg
from torchgauge.measure import OpTime, serial_share, serial_shares, thread_count, thread_counts


@pytest.mark.parametrize(("most", "counts"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_threads_double_up_to_all_of_them(most: int, counts: list[int]) -> None:
    assert thread_counts(most) == counts


@pytest.mark.parametrize(("many", "share"), [(1.0, 1.0), (0.25, 0.0), (0.625, 0.5), (2.0, 1.0), (0.1, 0.0)])
def test_the_serial_share_follows_from_two_times(many: float, share: float) -> None:
    assert serial_share(1.0, many, threads=4) == pytest.approx(share)


def test_one_thread_gives_no_serial_share() -> None:
    assert serial_share(1.0, 1.0, threads=1) is None


def test_serial_shares_go_by_kind_of_op_and_leave_out_what_takes_no_time() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Flatten(), nn.Linear(8, 8))
    ops = tg.analyze(model, input_size=(2, 8)).capture.ops
    seconds = {"matmul": (1.0, 0.5), "activation": (1.0, 1.0)}

    def times(place: int) -> dict[int, OpTime]:
        return {op.index: OpTime(seconds.get(op.category, (0.0, 0.0))[place], 0.0, 0.0, ()) for op in ops}

    assert serial_shares(ops, times(0), times(1), threads=2) == {"matmul": 0.0, "activation": 1.0}


def test_an_op_that_only_one_of_the_runs_had_counts_for_neither() -> None:
    ops = tg.analyze(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), input_size=(2, 8)).capture.ops
    linear = next(op.index for op in ops if op.category == "matmul")
    one = {op.index: OpTime(1.0, 0.0, 0.0, ()) for op in ops}
    assert serial_shares(ops, one, {linear: one[linear]}, threads=2) == {"matmul": 1.0}


def test_a_profile_has_the_scaling_and_leaves_the_threads_unchanged() -> None:
    before = torch.get_num_threads()
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    found: Any = tg.analyze(model, input_size=(2, 8), profile=True, budget_s=0.1, threads=1).measurements
    assert found["failure"] is None
    assert [row["threads"] for row in found["threads"]["scaling"]] == [1]
    assert found["threads"]["scaling"][0]["speedup"] == found["threads"]["scaling"][0]["efficiency"] == 1.0
    assert found["threads"]["intra_op"] == 1
    assert set(found["threads"]["serial_share"].values()) == {None}
    assert found["threads"]["utilisation"] > 0
    assert torch.get_num_threads() == before


def test_none_leaves_the_threads() -> None:
    before = torch.get_num_threads()
    with thread_count(None):
        assert torch.get_num_threads() == before
