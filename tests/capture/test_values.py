from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchgauge as tg
from tests import zoo


class Runs(nn.Module):
    """A model whose forward is a function."""

    def __init__(self, forward: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def analyze(forward: Callable[[Tensor], Tensor], x: Tensor) -> tg.Analysis:
    return tg.analyze(Runs(forward), inputs=(x,))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_masks_and_positions_are_computed_for_real(device: str) -> None:
    model = zoo.BranchesOnMask().to(device)
    full = tg.analyze(model, inputs=torch.ones(2, 8, dtype=torch.int64))
    padded = tg.analyze(model, inputs=torch.tensor([[1, 0, 2], [0, 0, 1]]))
    assert (full.totals.macs, padded.totals.macs) == (16 * 64, 3 * 8 * 64)
    assert full.capture.run.mode == padded.capture.run.mode == "fake"


def test_a_written_mask_is_seen_through_its_views() -> None:
    def forward(ids: Tensor) -> Tensor:
        mask = torch.zeros(2, 6, dtype=torch.bool)
        mask[:, :4] = True
        mask[0].logical_not_()
        return ids[mask].float()

    assert analyze(forward, torch.ones(2, 6, dtype=torch.int64)).ops[-1]["output_shapes"] == [[6]]


def test_what_was_overwritten_with_data_is_no_longer_known() -> None:
    def forward(x: Tensor) -> Tensor:
        counts = torch.zeros(4, dtype=torch.int64)
        view = counts[:2]
        counts.copy_(x.round().long())
        return x if int(view[0]) > 0 else x * 2

    assert analyze(forward, torch.full((4,), 3.0)).capture.run.mode == "real"


def test_float_constants_are_known_and_float_inputs_are_not() -> None:
    def constant(x: Tensor) -> Tensor:
        return x * 2 if float(torch.linspace(0, 1, 3)[1] + torch.tensor(0.25)) == 0.75 else x

    assert analyze(constant, torch.ones(3)).capture.run.mode == "fake"
    assert analyze(lambda x: x * float(x.sum()), torch.ones(3)).capture.run.mode == "real"


def test_counts_lists_and_arrays_of_known_integers_can_be_read() -> None:
    def forward(lengths: Tensor) -> Tensor:
        parts = torch.zeros(int(lengths.sum())).split(lengths.tolist())
        assert lengths.numpy().max() == 3
        return torch.stack([part.sum() for part in parts])

    assert analyze(forward, torch.tensor([3, 1, 2])).ops[-1]["output_shapes"] == [[3]]


def test_a_user_s_integer_input_and_buffers_are_not_written_to() -> None:
    ids = torch.arange(4)
    analyze(lambda x: x.add_(1).float(), ids)
    assert ids.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_routing_is_assumed_balanced_and_said_so(device: str) -> None:
    found = tg.analyze(zoo.Router(width=16, experts=4, chosen=2).to(device), input_size=(2, 8, 16))
    calls = {row.path: (row.calls, row.macs) for row in found.modules if row.path.startswith("experts.")}
    assert calls == {f"experts.{i}": (1, 8 * 16 * 16) for i in range(4)}
    assert "assumed balanced" in found.capture.run.warnings[0]
    assert found.totals.active_params == found.totals.params - 2 * (16 * 16 + 16)


def test_the_strongest_frequencies_of_a_signal_are_not_a_choice_of_experts() -> None:
    def folded(x: Tensor) -> Tensor:
        strength = torch.fft.rfft(x).abs().mean(0)
        period = x.shape[1] // int(strength.topk(2).indices.detach().cpu().numpy()[0])
        return x.reshape(x.shape[0], -1, period)

    signal = torch.sin(torch.arange(32) * (2 * torch.pi * 4 / 32)).repeat(3, 1)
    found = analyze(folded, signal)
    assert (found.capture.run.mode, found.ops[-1]["output_shapes"]) == ("real", [[3, 4, 8]])


@pytest.mark.parametrize("read", [lambda choice: choice.numpy(), lambda choice: choice.tolist()])
def test_a_choice_that_is_read_outside_torch_is_said_to_be_assumed(read: Callable[[Tensor], Any]) -> None:
    found = analyze(lambda x: x * float(read(x.argmax(-1))[1]), torch.ones(4, 8))
    assert found.capture.run.mode == "fake"
    assert "assumed balanced" in found.capture.run.warnings[0]


def test_a_forward_that_fails_with_an_assumed_choice_is_run_for_real() -> None:
    def forward(x: Tensor) -> Tensor:
        sizes = x.argmax(-1).tolist()  # assumed: 0, 1, 2, 3; really 2, 2, 2, 2
        return torch.cat(x.flatten().split([8 * sizes[0], 16]))

    scores = torch.zeros(4, 8)
    scores[:, 2] = 1
    found = analyze(forward, scores)
    assert found.capture.run.mode == "real"


def test_no_choice_of_a_router_is_looked_at_no_warning() -> None:
    found = analyze(lambda x: torch.topk(x, 2).values, torch.ones(4, 8))
    assert found.capture.run.warnings == ()


def test_sizes_that_depend_on_unknown_data_take_their_upper_bound_on_meta() -> None:
    class Selects(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x[x.sum(1) > 0])

    real = tg.analyze(Selects(), inputs=torch.tensor([[1.0] * 4, [-1.0] * 4, [2.0] * 4]))
    assert (real.capture.run.mode, real.totals.macs) == ("real", 2 * 32)
    bound = tg.analyze(Selects().to("meta"), input_size=(3, 4))
    assert (bound.capture.run.mode, bound.totals.macs) == ("fake", 3 * 32)
    assert "upper bound" in bound.capture.run.warnings[0]


def test_only_what_an_op_writes_becomes_unknown() -> None:
    def forward(x: Tensor) -> Tensor:
        steps, sink = torch.arange(3), torch.zeros(3, dtype=torch.int64)
        torch.add(x.long(), steps, out=sink)
        return x if int(steps[1]) == 1 else x * 2

    assert analyze(forward, torch.ones(3)).capture.run.mode == "fake"
    assert analyze(lambda x: x * int(_written_by_a_list(x)), torch.ones(3)).capture.run.mode == "real"


def _written_by_a_list(x: Tensor) -> Tensor:
    first, second = torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
    torch._foreach_add_([first, second], [x.long(), x.long()])
    return second[0]


def test_a_choice_along_another_dimension_stays_unknown() -> None:
    assert analyze(lambda x: x * int(x.argmax(0)[1]), torch.ones(2, 50)).capture.run.mode == "real"


def test_an_index_in_the_name_of_a_module_is_its_number() -> None:
    class Chosen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleDict({f"expert_{index}": nn.Linear(2, 2) for index in range(3)})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for index in torch.arange(3):
                x = self.experts[f"expert_{index}"](x)
            return x

    analysis = tg.analyze(Chosen(), input_size=(1, 2))
    assert analysis.capture.run.mode == "fake"
    assert analysis.totals.macs == 3 * 4


def test_results_are_found_inside_returned_objects() -> None:
    class Layer:
        def __init__(self, keys: Tensor) -> None:
            self.keys = keys

    class Cache:
        def __init__(self, layers: list[Layer]) -> None:
            self.layers, self.owner = layers, nn.Identity()

    class Caching(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Any]:
            kept, passing = x + 1, x + 2
            return {"cache": Cache([Layer(kept)]), "y": passing * 3}

    run = tg.analyze(Caching(), input_size=(1, 2)).capture.run
    assert run.results == (0, 2)


class ChecksItsValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        if not torch.isfinite(y).all() or torch.isnan(y).any() or torch.isinf(y).any():
            y = y.clamp(-1, 1)
        return y


def test_a_model_without_weights_that_checks_its_values_is_assumed_to_have_finite_ones() -> None:
    found = tg.analyze(ChecksItsValues().to("meta"), input_size=(4, 8))
    assert "aten::clamp" not in [op["op"] for op in found.ops]
    assert [warning for warning in found.capture.run.warnings if "finite" in warning] == list(
        found.capture.run.warnings
    )


def test_a_comparison_with_a_threshold_is_not_assumed() -> None:
    class Compares(ChecksItsValues):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.layer(x)
            return y if (y.abs() > 1.0).any() else 2 * y

    with pytest.raises(tg.ForwardError, match="reads tensor values"):
        tg.analyze(Compares().to("meta"), input_size=(4, 8))


def test_a_model_that_compares_types_of_tensors_runs_for_real() -> None:
    class Checks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, h: Tensor) -> Tensor:
            assert type(h) == torch.Tensor, "one tensor must be provided"  # noqa: E721
            result: Tensor = self.layer(h)
            return result

    found = tg.analyze(Checks(), inputs=torch.ones(3, 4))
    assert found.totals.macs == 3 * 4 * 2
    assert "the model compares types of tensors (one tensor must be provided)" in " ".join(str(found).split())
    with pytest.raises(tg.ForwardError, match="one tensor must be provided"):
        tg.analyze(Checks(), inputs=([torch.ones(3, 4)],))
