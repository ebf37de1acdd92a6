"""Norms written out over all positions of a sample: torch's group norm with one group."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.advise.fault_classes import Does, x
from tests.advise.pasting import check_code
from tests.advise.planted import gain_of, on_cuda, said, seen
from tests.advise.trying import advised, apart, bench, changed, lively
from torchgauge import analyze
from torchgauge.advise import Advice


class OneAfterTheOther(nn.Module):
    """Means of one dimension after the other, the difference written twice, the root as a power."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.shift = nn.Parameter(x(1, 32, 1)), nn.Parameter(x(1, 32, 1))

    def forward(self, y: Tensor) -> Tensor:
        mean = y.mean(1, keepdim=True).mean(2, keepdim=True)
        spread = torch.pow(y - mean, 2).mean(1, keepdim=True).mean(2, keepdim=True)
        return self.gain * (y - mean) / torch.pow(spread + 1e-8, 0.5) + self.shift


class ByVariance(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(x(16, 1, 1)), nn.Parameter(x(16, 1, 1))

    def forward(self, y: Tensor) -> Tensor:
        spread = y.var((1, 2, 3), keepdim=True, unbiased=False)
        return (y - y.mean((1, 2, 3), keepdim=True)) * torch.rsqrt(spread + 1e-5) * self.weight + self.bias


class Both(nn.Module):
    """Variance and mean in one op, without parameters."""

    def forward(self, y: Tensor) -> Tensor:
        spread, mean = torch.var_mean(y, dim=[1, 2, 3, 4], keepdim=True, correction=0)
        return (y - mean) / torch.sqrt(spread + 1e-6)


def behind(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Hardtanh(), norm, nn.ReLU())


def norms(model: nn.Module, *given: Tensor) -> list[Advice]:
    return [advice for advice in said(seen(model, inputs=given)) if advice.rule == "norm-by-hand"]


@pytest.mark.parametrize(
    ("norm", "given"),
    [(OneAfterTheOther(), x(4, 32, 500)), (ByVariance(), x(2, 16, 40, 40)), (Both(), x(2, 4, 12, 12, 12))],
    ids=["means of means", "variance", "both in one op"],
)
def test_a_norm_over_all_positions_is_a_group_norm(norm: nn.Module, given: Tensor) -> None:
    model = behind(norm).eval()
    (found,) = norms(model, given)

    assert found.evidence["norm"] == "group"
    assert found.where.module == "1"
    assert gain_of(found).low > 0.2
    assert found.code is not None
    assert "GroupNorm(1, " in found.code
    check_code(found, model, (given,))


def unbiased(_: Any, y: Tensor) -> Tensor:
    return (y - y.mean((1, 2), keepdim=True)) / torch.sqrt(y.var((1, 2), keepdim=True) + 1e-5)


def of_the_batch(_: Any, y: Tensor) -> Tensor:
    spread = y.var((0, 1, 2), keepdim=True, unbiased=False)
    return (y - y.mean((0, 1, 2), keepdim=True)) / torch.sqrt(spread + 1e-5)


def not_about_the_mean(_: Any, y: Tensor) -> Tensor:
    """The square is that of the input, the root scales the difference: not a variance."""
    spread = (y * y).mean((1, 2), keepdim=True)
    return (y - y.mean((1, 2), keepdim=True)) * torch.rsqrt(spread + 1e-5)


@pytest.mark.parametrize("forward", [unbiased, of_the_batch, not_about_the_mean])
def test_other_statistics_stay(forward: Any) -> None:
    assert norms(behind(Does(forward)), x(4, 32, 500)) == []


def test_a_scale_along_another_dimension_is_not_part_of_a_layer_norm() -> None:
    def by_channel(self: Any, y: Tensor) -> Tensor:
        spread, mean = torch.var_mean(y, dim=-1, keepdim=True, correction=0)
        return (y - mean) * torch.rsqrt(spread + 1e-5) * self.weight + self.bias

    found = norms(behind(Does(by_channel, weight=nn.Parameter(x(32, 1)), bias=nn.Parameter(x(32, 1)))), x(4, 32, 500))

    assert [advice.evidence["passes"][-1] for advice in found] == ["aten::mul"]
    assert found[0].evidence["ops"] == 5
    assert found[0].code is None


def test_torchs_group_norm_stays() -> None:
    assert norms(behind(nn.GroupNorm(1, 32)), x(4, 32, 500)) == []


def test_a_weight_that_is_standardised_in_every_call_is_no_norm_of_the_data() -> None:
    def standardised(self: Any, y: Tensor) -> Tensor:
        spread, mean = torch.var_mean(self.weight, dim=[1, 2], keepdim=True, correction=0)
        return nn.functional.conv1d(y, (self.weight - mean) / torch.sqrt(spread + 1e-5))

    model = behind(Does(standardised, weight=nn.Parameter(x(64, 32, 5))))

    assert norms(model, x(1, 32, 20)) == []
    assert "recomputed-weight" in {advice.rule for advice in said(seen(model, inputs=(x(1, 32, 20),)))}


def test_the_difference_to_the_mean_that_is_written_twice_is_part_of_the_norm() -> None:
    found = {advice.rule for advice in said(seen(behind(OneAfterTheOther()), inputs=(x(4, 32, 500),)))}

    assert "norm-by-hand" in found
    assert "repeated-work" not in found


@pytest.mark.usefixtures("one_thread")
def test_verification_uses_torchs_group_norm() -> None:
    model = lively(nn.Sequential(nn.Conv1d(8, 32, 3), OneAfterTheOther()))
    place = bench(model, x(2, 8, 200))

    side = changed(place, advised(model, "norm-by-hand", x(2, 8, 200)))

    assert "group_norm" in side.subject.model[1].forward.__code__.co_names  # type: ignore[index]
    assert apart(place, side) < 1e-5


@pytest.mark.usefixtures("one_thread")
def test_verification_replaces_instance_norms() -> None:
    model = lively(nn.Sequential(nn.Conv1d(8, 32, 3), nn.InstanceNorm1d(32), nn.ReLU(), nn.InstanceNorm1d(32)))
    place = bench(model, x(2, 8, 200))

    side = changed(place, advised(model, "instance-norm", x(2, 8, 200)))

    assert [type(each).__name__ for each in side.subject.model.children()][1::2] == ["GroupNorm", "GroupNorm"]
    assert apart(place, side) < 1e-5


@pytest.mark.usefixtures("one_thread")
def test_verification_merges_layers() -> None:
    model = lively(nn.Sequential(nn.Linear(16, 512), nn.Dropout(), nn.Linear(512, 4), nn.ReLU()))
    place = bench(model, x(64, 16))

    side = changed(place, advised(model, "consecutive-layers", x(64, 16)))

    assert [type(layer).__name__ for layer in side.subject.model] == ["Linear", "Dropout", "Identity", "ReLU"]  # type: ignore[attr-defined]
    assert apart(place, side) < 1e-5


class RowNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.offset = nn.Parameter(x(width)), nn.Parameter(x(width))

    def forward(self, y: Tensor) -> Tensor:
        mean = y.mean(-1, keepdim=True)
        spread = (y - mean).pow(2).mean(-1, keepdim=True)
        return self.scale * ((y - mean) / torch.sqrt(spread + 1e-6)) + self.offset


class OneNormForAllRounds(nn.Module):
    """The layers of a round are called in each of three, as in ALBERT."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.before, self.behind = nn.Linear(48, 48), RowNorm(48), RowNorm(48)

    def forward(self, y: Tensor) -> Tensor:
        for _ in range(3):
            y = self.before(y + torch.relu(self.mix(self.behind(y))))
        return y


def test_a_norm_that_is_called_in_every_round_is_replaced_once() -> None:
    model, given = OneNormForAllRounds().eval(), x(16, 60, 48)
    (found,) = norms(model, given)

    assert found.evidence["count"] == 6
    assert found.code is not None
    assert "covers" not in found.code
    assert "['behind', 'before']" in found.code
    check_code(found, model, (given,))


def test_a_module_whose_calls_differ_in_size_is_not_replaced() -> None:
    class Unscaled(nn.Module):
        def forward(self, y: Tensor) -> Tensor:
            spread, mean = torch.var_mean(y, dim=-1, keepdim=True, correction=0)
            return (y - mean) / torch.sqrt(spread + 1e-6)

    def both(self: Any, y: Tensor) -> Tensor:
        return self.norm(self.up(self.norm(y)))

    (found,) = norms(Does(both, norm=Unscaled(), up=nn.Linear(32, 64)), x(16, 60, 32))

    assert found.evidence["count"] == 2
    assert found.code is None


def test_rows_that_lie_apart_are_normed_with_a_copy() -> None:
    """A part of a wider tensor: torch's norm copies its rows first, and still goes over memory less often."""

    def part(self: Any, y: Tensor) -> Tensor:
        return self.norm(torch.tanh(y)[:, 5:])

    model, given = Does(part, norm=RowNorm(48)), x(16, 60, 48)
    (found,) = norms(model, given)
    (whole,) = norms(Does(lambda self, y: self.norm(torch.tanh(y)), norm=RowNorm(48)), given)

    assert found.where.module == "norm"
    assert 0 < gain_of(found).low < gain_of(whole).low
    check_code(found, model, (given,))


def test_a_norm_whose_statistics_are_needed_elsewhere_stays() -> None:
    """Rescaled by what small layers make of mean and deviation, as in dehazing networks; or given back to undo it."""

    def rescaled(self: Any, y: Tensor) -> Tensor:
        mean = y.mean((1, 2, 3), keepdim=True)
        deviation = torch.sqrt((y - mean).pow(2).mean((1, 2, 3), keepdim=True) + 1e-5)
        out = (y - mean) / deviation * self.weight + self.bias
        return out * self.stretch(deviation) + self.shift(mean)

    def undone(self: Any, y: Tensor) -> Tensor:
        spread, mean = torch.var_mean(y, dim=-1, keepdim=True, correction=0)
        deviation = torch.sqrt(spread + 1e-5)
        return self.up((y - mean) / deviation) * deviation

    small = {"stretch": nn.Conv2d(1, 8, 1), "shift": nn.Conv2d(1, 8, 1)}
    first = Does(rescaled, weight=nn.Parameter(x(1, 8, 1, 1)), bias=nn.Parameter(x(1, 8, 1, 1)), **small)
    assert norms(first, x(2, 8, 40, 40)) == []
    assert norms(Does(undone, up=nn.Linear(32, 32)), x(16, 60, 32)) == []


def instance_norms(model: nn.Module, given: Tensor) -> list[Advice]:
    return [advice for advice in said(seen(model, inputs=(given,))) if advice.rule == "instance-norm"]


@pytest.mark.parametrize(
    ("norm", "given"),
    [
        (nn.InstanceNorm1d(32), x(4, 32, 500)),
        (nn.InstanceNorm2d(16, affine=True), x(1, 16, 40, 40)),
        (nn.InstanceNorm3d(4, eps=0.1), x(2, 4, 12, 12, 12)),
    ],
    ids=["1d", "affine", "3d"],
)
def test_an_instance_norm_is_a_group_norm_with_one_channel_per_group(norm: nn.Module, given: Tensor) -> None:
    model = behind(norm).eval()
    if isinstance(norm, nn.InstanceNorm2d) and norm.affine:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    (found,) = instance_norms(model, given)

    assert found.where.module == "1"
    assert gain_of(found).low > 0.1
    assert found.code is not None
    check_code(found, model, (given,))


@pytest.mark.filterwarnings("ignore:input's size at dim=1")
def test_a_layer_for_another_number_of_channels_is_not_replaced() -> None:
    """Torch only warns of it; the dimension may be the length of a sequence, which changes."""
    model = behind(nn.InstanceNorm1d(500)).eval()
    (row,) = [
        row
        for row in analyze(model, inputs=(x(4, 32, 500),), all_advice=True, progress=False).advice
        if row["rule"] == "instance-norm"
    ]

    assert row["code"] is None


def test_a_function_in_place_of_the_layer_is_named_without_code() -> None:
    def written(_: Any, y: Tensor) -> Tensor:
        return nn.functional.instance_norm(y)

    (found,) = instance_norms(behind(Does(written)), x(4, 32, 500))

    assert found.code is None
    assert found.where.source is not None


@pytest.mark.parametrize(
    ("norm", "given"),
    [
        (nn.InstanceNorm1d(32, track_running_stats=True), x(4, 32, 500)),
        (nn.InstanceNorm1d(32), x(32, 500)),
        (nn.GroupNorm(32, 32), x(4, 32, 500)),
        (nn.BatchNorm2d(16), x(1, 16, 40, 40)),
    ],
    ids=["running statistics", "one sample", "group norm", "batch norm"],
)
def test_norms_that_are_not_slow_stay(norm: nn.Module, given: Tensor) -> None:
    assert instance_norms(behind(norm), given) == []


def test_parameters_that_torch_repeats_inside_an_instance_norm_are_not_reported() -> None:
    model = behind(nn.InstanceNorm1d(512, affine=True))

    assert "recomputed-weight" not in {advice.rule for advice in said(seen(model, inputs=(x(8, 512, 4),)))}


@pytest.mark.parametrize(("samples", "has_bias", "is_said"), [(1, False, False), (1, True, True), (2, False, True)])
def test_a_small_volume_gets_no_bias_from_a_norm(samples: int, has_bias: bool, is_said: bool) -> None:
    """Without oneDNN, which torch calls for larger volumes and batches, a bias costs as much as the norm."""
    model = nn.Sequential(nn.Conv3d(4, 4, 3, padding=1, bias=has_bias), nn.BatchNorm3d(4))
    found = {advice.rule for advice in said(seen(model, inputs=(x(samples, 4, 12, 32, 64),)))}

    assert ("conv-bn-fusion" in found) is is_said


@pytest.mark.parametrize("is_own", [True, False])
@pytest.mark.parametrize("kind", ["variance", "squares", "mean"])
def test_a_tensor_that_takes_mean_or_spread_from_another_is_not_normalised(kind: str, is_own: bool) -> None:
    def forward(m: Any, content: Tensor, style: Tensor) -> Tensor:
        content, style = torch.tanh(content), torch.tanh(style)
        other = content if is_own else style
        if kind == "variance":
            spread = other.var(-1, keepdim=True, correction=0)
            return (content - content.mean(-1, keepdim=True)) / torch.sqrt(spread + 1e-5)
        centred = content - (other if kind == "mean" else content).mean(-1, keepdim=True)
        squares = (centred if is_own or kind == "mean" else style - style.mean(-1, keepdim=True)) ** 2
        return centred * torch.rsqrt(squares.mean(-1, keepdim=True) + 1e-5)

    assert bool(norms(Does(forward), x(8, 200, 64), x(8, 200, 64))) is is_own


@pytest.mark.parametrize(
    ("scale", "keepdim", "is_norm"),
    [
        (lambda y, root: y / root, True, True),
        (lambda y, root: y * root, True, False),
        (lambda y, root: root / y, True, False),
        (lambda y, root: y / root, False, False),
    ],
)
def test_a_norm_divides_by_the_spread_of_each_row(scale: Any, keepdim: bool, is_norm: bool) -> None:
    def forward(m: Any, y: Tensor) -> Tensor:
        y = torch.tanh(y)
        spread = y.var(-1, keepdim=keepdim, correction=0)
        scaled: Tensor = scale(y - y.mean(-1, keepdim=keepdim), torch.sqrt(spread + 1e-5))
        return scaled

    assert bool(norms(Does(forward), x(300, 300))) is is_norm


@pytest.mark.parametrize("is_own", [True, False])
def test_rows_that_are_scaled_by_the_squares_of_others_are_not_normalised(is_own: bool) -> None:
    def forward(m: Any, keys: Tensor, queries: Tensor) -> Tensor:
        keys, queries = torch.tanh(keys), torch.tanh(queries)
        squares = (keys if is_own else queries).float().pow(2).mean(-1, keepdim=True)
        return keys * torch.rsqrt(squares + 1e-6)

    found = said(on_cuda(seen(Does(forward), inputs=(x(4, 200, 64), x(4, 200, 64)))))
    assert ("norm-by-hand" in {advice.rule for advice in found}) is is_own


@pytest.mark.parametrize(
    ("given", "is_faster"),
    [
        (x(4, 16, 12, 12), True),
        (x(4, 16, 12, 12).contiguous(memory_format=torch.channels_last), False),
        (x(4, 16, 2, 2), False),
    ],
    ids=["images", "channels last", "few pixels"],
)
def test_an_instance_norm_that_a_group_norm_would_slow_down_stays(given: Tensor, is_faster: bool) -> None:
    rules = {advice.rule for advice in said(seen(nn.Sequential(nn.InstanceNorm2d(16), nn.Tanh()), inputs=(given,)))}
    assert ("instance-norm" in rules) is is_faster


class Reversible(nn.Module):
    """Mean and deviation are kept to undo the norm later, or not."""

    def __init__(self, is_kept: bool) -> None:
        super().__init__()
        self.is_kept, self.mean, self.spread = is_kept, x(1), x(1)

    def forward(self, series: Tensor) -> Tensor:
        series = torch.tanh(series)
        mean = series.mean(-1, keepdim=True)
        spread = torch.sqrt(series.var(-1, keepdim=True, correction=0) + 1e-5)
        if self.is_kept:
            self.mean, self.spread = mean, spread
        return (series - mean) / spread


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_norm_whose_mean_is_kept_is_not_one_call(is_kept: bool) -> None:
    assert bool(norms(Reversible(is_kept), x(8, 100, 64))) is not is_kept
