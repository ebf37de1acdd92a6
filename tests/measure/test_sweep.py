from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torchgauge as tg
from torchgauge.errors import InputError, UsageError
from torchgauge.measure import Sweep, batch_size, parse_sweeps, rebatched
from torchgauge.source import Candidate

QUICK: dict[str, Any] = {"budget_s": 0.05, "profile_level": "latency", "threads": 1}


def given(*args: Any, **kwargs: Any) -> Candidate:
    return Candidate(args, kwargs, None)


def rows(model: nn.Module, sweep: Any, **arguments: Any) -> list[dict[str, Any]]:
    found: Any = tg.analyze(model, sweep=sweep, **QUICK, **arguments).measurements
    assert found["failure"] is None
    points: list[dict[str, Any]] = found["sweep"]
    return points


@pytest.mark.parametrize(
    ("text", "sweeps"),
    [
        ("batch=1,2,4", (Sweep("batch", (1, 2, 4)),)),
        (" seq = 8 ,16 ", (Sweep("seq", (8, 16)),)),
        (["dtype=float32,bf16", "threads=1"], (Sweep("dtype", ("float32", "bf16")), Sweep("threads", (1,)))),
        ({"batch": [1, 2], "dtype": [torch.float64]}, (Sweep("batch", (1, 2)), Sweep("dtype", ("float64",)))),
        (None, ()),
    ],
)
def test_a_sweep_is_a_text_or_a_mapping(text: Any, sweeps: tuple[Sweep, ...]) -> None:
    assert parse_sweeps(text) == sweeps


@pytest.mark.parametrize(
    "text", ["batch", "batch=", "size=1,2", "batch=0", "batch=1.5", "batch=two", "dtype=float33", "dtype=int64",
     "threads=100000", {"batch": 8}, {"batch": "1,2"}, 5]
)  # fmt: skip
def test_a_wrong_sweep_is_refused(text: Any) -> None:
    with pytest.raises(UsageError):
        parse_sweeps(text)


def test_inferred_inputs_take_the_batch_of_each_point() -> None:
    found = rows(nn.Linear(16, 4), "batch=1,3")
    assert [(row["key"], row["value"], row["failure"]) for row in found] == [("batch", 1, None), ("batch", 3, None)]
    for row in found:
        seconds = row["latency"]["median_s"]
        assert row["throughput_per_s"] == pytest.approx(row["value"] / seconds)
        assert row["time_per_sample_s"] == pytest.approx(seconds / row["value"])
        assert row["memory"]["allocated_peak_bytes"] == row["value"] * 4 * 4


def test_inferred_inputs_take_the_length_of_each_point() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 4)

        def forward(self, input_ids: torch.Tensor) -> Any:
            return self.table(input_ids)

    found = rows(Tokens(), {"seq": [8, 32]})
    assert [row["memory"]["allocated_peak_bytes"] for row in found] == [8 * 16, 32 * 16]


def test_given_inputs_are_repeated_for_a_larger_batch() -> None:
    found = rows(nn.Linear(16, 4), "batch=1,5", inputs=torch.randn(2, 16))
    assert [row["memory"]["allocated_peak_bytes"] for row in found] == [16, 5 * 16]


def test_every_type_and_number_of_threads_gets_its_own_row() -> None:
    model = nn.Linear(16, 4)
    before = torch.get_num_threads()
    found = rows(model, ["dtype=float32,float64", "threads=1,2"], input_size=(2, 16))
    assert [row["memory"]["allocated_peak_bytes"] for row in found] == [32, 64, 32, 32]
    assert model.weight.dtype == torch.float32
    assert torch.get_num_threads() == before


def test_a_point_that_fails_is_kept_and_the_others_go_on() -> None:
    class AtMostTwo(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] > 2 and type(x) is torch.Tensor:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            return x + 1

    found = rows(AtMostTwo(), "batch=4,2", inputs=torch.ones(1, 3))
    assert found[0]["failure"] == "the device ran out of memory: try a smaller batch or a narrower dtype"
    assert found[0]["latency"] is None
    assert found[1]["failure"] is None


def test_an_interruption_ends_the_sweep_and_keeps_its_rows() -> None:
    class Interrupted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] == 2 and type(x) is torch.Tensor:
                raise KeyboardInterrupt
            return x + 1

    found: Any = tg.analyze(Interrupted(), inputs=torch.ones(1, 3), sweep="batch=1,2,3", **QUICK).measurements
    assert found["failure"] == "interrupted"
    assert [row["failure"] for row in found["sweep"]] == [None, "interrupted"]
    assert found["latency"]["runs"] > 1


def test_values_repeat_and_inputs_without_a_batch_stay() -> None:
    x, scale = torch.tensor([[1], [2]]), torch.tensor([7.0])
    args = rebatched(given(x, scale, torch.tensor(3), "text"), 5).args
    assert args[0].flatten().tolist() == [1, 2, 1, 2, 1]
    assert args[1].tolist() == [7.0]
    assert args[2:] == (torch.tensor(3), "text")


def test_tensors_without_values_take_the_new_size() -> None:
    changed = rebatched(given(x=torch.empty(2, 3, device="meta")), 4).kwargs["x"]
    assert changed.is_meta
    assert changed.shape == (4, 3)


@pytest.mark.parametrize(
    ("candidate", "size"),
    [
        (given(torch.ones(4, 2), torch.ones(4)), 4),
        (given(torch.ones(4, 2), torch.ones(1, 2)), 4),
        (given(torch.ones(1, 2)), 1),
        (given([{"image": torch.ones(3, 8)}]), 3),
    ],
)
def test_the_batch_is_the_first_dimension_that_all_share(candidate: Candidate, size: int) -> None:
    assert batch_size(candidate) == size


@pytest.mark.parametrize("candidate", [given(torch.ones(4, 2), torch.ones(8, 8)), given(torch.tensor(1.0)), given(2)])
def test_an_ambiguous_batch_is_refused(candidate: Candidate) -> None:
    with pytest.raises(InputError, match="batch"):
        batch_size(candidate)


def test_a_sweep_that_cannot_be_made_is_refused_before_anything_runs() -> None:
    model = nn.Bilinear(2, 3, 4)
    with pytest.raises(InputError, match="first dimension"):
        tg.analyze(nn.MultiheadAttention(4, 1), inputs=(torch.ones(6, 4), *[torch.ones(5, 4)] * 2), sweep="batch=1")
    with pytest.raises(UsageError, match="seq"):
        tg.analyze(model, inputs=(torch.ones(1, 2), torch.ones(1, 3)), sweep="seq=1,2")
