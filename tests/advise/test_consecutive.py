"""Products in a row: layers to merge, products in a cheaper order, blocks on a diagonal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.advise.fault_classes import Does, x
from tests.advise.pasting import check_code
from tests.advise.planted import gain_of, said, seen
from torchgauge.advise import Advice
from torchgauge.report.content.advice import place_text


def of_rule(model: nn.Module, rule: str, *inputs: Any) -> list[Advice]:
    return [advice for advice in said(seen(model, inputs=inputs)) if advice.rule == rule]


def classified(self: Any, words: Tensor) -> Tensor:
    """A classifier with a wide layer in front of the labels, and dropout between the two."""
    hidden = torch.relu(self.encode(words)).mean(1)
    return self.labels(self.drop(self.wide(hidden)))


def upsampled(self: Any, image: Tensor) -> tuple[Tensor, Tensor]:
    """Two transposed convolutions, each read by the same 1×1 convolution."""
    features = torch.relu(self.encode(image))
    return self.head(self.up(features)), self.head(self.again(features))


def narrowed(self: Any, sound: Tensor) -> Tensor:
    return torch.tanh(self.head(self.wide(sound)))


MERGED = [
    (
        Does(
            classified,
            encode=nn.Linear(32, 128),
            wide=nn.Linear(128, 1024),
            drop=nn.Dropout(),
            labels=nn.Linear(1024, 5),
        ),
        x(16, 20, 32),
        ["wide", "labels"],
    ),
    (
        Does(
            upsampled,
            encode=nn.Conv2d(3, 32, 3),
            up=nn.ConvTranspose2d(32, 64, 2, stride=2),
            again=nn.ConvTranspose2d(32, 64, 4, stride=4),
            head=nn.Conv2d(64, 2, 1, bias=False),
        ),
        x(1, 3, 34, 34),
        ["again", "head"],
    ),
    (
        Does(narrowed, wide=nn.Conv1d(8, 96, 5, padding=2, dilation=1, bias=False), head=nn.Conv1d(96, 4, 1)),
        x(2, 8, 400),
        ["wide", "head"],
    ),
]


@pytest.mark.parametrize(("model", "given", "layers"), MERGED, ids=["dropout between", "transposed", "a kernel of 5"])
def test_two_layers_without_an_activation_are_merged(model: nn.Module, given: Tensor, layers: list[str]) -> None:
    model.eval()
    (found,) = of_rule(model, "consecutive-layers", given)

    assert found.evidence["layers"] == layers
    assert gain_of(found).low > 0.1
    assert "inference only" in found.risk
    check_code(found, model, (given,))


def over_time_and_electrodes(stride: int, padding: int, *between: nn.Module, behind: int = 0) -> nn.Sequential:
    """A convolution along the last dimension, then one across the other."""
    first = nn.Conv2d(2, 24, (1, 9), (1, stride), (0, padding), bias=not behind)
    return nn.Sequential(first, *between, nn.Conv2d(24, 24, (12, 3), padding=(behind, 0)), nn.ELU())


@pytest.mark.parametrize(("stride", "padding", "behind"), [(1, 0, 0), (2, 3, 0), (1, 4, 2)])
def test_convolutions_along_two_dimensions_are_merged(stride: int, padding: int, behind: int) -> None:
    model, given = over_time_and_electrodes(stride, padding, behind=behind).eval(), x(4, 2, 12, 200)

    (found,) = of_rule(model, "consecutive-layers", given)

    assert found.evidence["layers"] == ["0", "1"]
    assert found.code is not None
    check_code(found, model, (given,))


@pytest.mark.parametrize(
    "model",
    [
        over_time_and_electrodes(1, 0, nn.ELU()),
        # Zeros that the second pads are not what the first makes of zeros: it has a bias.
        nn.Sequential(nn.Conv2d(2, 24, (1, 9)), nn.Conv2d(24, 24, (12, 1), padding=(2, 0))),
        nn.Sequential(nn.Conv2d(16, 16, 3), nn.Conv2d(16, 16, 3)),  # one kernel of 5×5 costs more
    ],
    ids=["an activation between", "padding behind a bias", "two kernels of 3×3"],
)
def test_other_convolutions_in_a_row_stay(model: nn.Module) -> None:
    assert not of_rule(model.eval(), "consecutive-layers", x(4, len(model[0].weight[0]), 12, 200))  # type: ignore[index]


def test_the_merged_layer_gives_the_same_result() -> None:
    model, given, _ = MERGED[2]
    (found,) = of_rule(model.eval(), "consecutive-layers", given)

    assert found.code is not None
    assert "Identity" in found.code
    # A layer that other places call too cannot be changed for one of them.
    assert all(advice.code is None for advice in of_rule(MERGED[1][0].eval(), "consecutive-layers", MERGED[1][1]))


def bottleneck(self: Any, h: Tensor) -> Tensor:
    return self.second(self.first(h))


def with_activation(self: Any, h: Tensor) -> Tensor:
    return self.second(F.gelu(self.first(h)))


def read_twice(self: Any, h: Tensor) -> Tensor:
    wide = self.first(h)
    return self.second(wide) + wide.mean()


def over_positions(self: Any, h: Tensor) -> Tensor:
    """The second layer mixes the positions, of which the first treats each alone."""
    return self.second(self.first(h).flatten(1))


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (Does(bottleneck, first=nn.Linear(256, 8), second=nn.Linear(8, 256)), x(64, 256)),
        (Does(with_activation, first=nn.Linear(64, 512), second=nn.Linear(512, 8)), x(64, 64)),
        (Does(read_twice, first=nn.Linear(64, 512), second=nn.Linear(512, 8)), x(64, 64)),
        (Does(over_positions, first=nn.Linear(64, 32), second=nn.Linear(32 * 16, 8)), x(64, 16, 64)),
        (Does(bottleneck, first=nn.Conv2d(8, 64, 1), second=nn.Conv2d(64, 4, 3, padding=1)), x(1, 8, 32, 32)),
        (Does(bottleneck, first=nn.Conv2d(32, 32, 3, groups=32), second=nn.Conv2d(32, 64, 1)), x(1, 32, 32, 32)),
    ],
    ids=["low rank", "activation", "two readers", "flattened", "bias behind padding", "depthwise"],
)
def test_other_layers_in_a_row_stay(model: nn.Module, given: Tensor) -> None:
    assert of_rule(model.eval(), "consecutive-layers", given) == []


def test_layers_are_not_merged_while_they_are_trained() -> None:
    model, given, _ = MERGED[0]
    evidence = seen(model, inputs=(given,), mode="train")

    assert [advice for advice in said(evidence) if advice.rule == "consecutive-layers"] == []


def graph_layer(self: Any, neighbours: Tensor, h: Tensor) -> Tensor:
    return torch.relu(self.layer(neighbours @ h))


def graph_of_times(self: Any, neighbours: Tensor, h: Tensor) -> Tensor:
    """Over batch, nodes, times and features, by einsum."""
    return torch.relu(torch.einsum("nm,bmtf->bntf", neighbours, h) @ self.weight)


def kernel_smoothing(self: Any, points: Tensor, h: Tensor) -> Tensor:
    near = torch.softmax(-torch.cdist(points, points), -1)
    return self.layer(torch.bmm(near, h))


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (Does(graph_layer, layer=nn.Linear(256, 16)), (x(400, 400), x(400, 256))),
        (Does(graph_of_times, weight=nn.Parameter(x(64, 8))), (x(150, 150), x(4, 150, 12, 64))),
        (Does(kernel_smoothing, layer=nn.Linear(128, 16)), (x(2, 300, 3), x(2, 300, 128))),
    ],
    ids=["graph", "einsum", "batch"],
)
def test_a_weight_that_narrows_comes_before_the_product(model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    (found,) = of_rule(model.eval(), "product-order", *inputs)

    assert gain_of(found).low > 0.05
    assert found.evidence["channels_out"] < found.evidence["channels_in"]


def narrow_first(self: Any, neighbours: Tensor, h: Tensor) -> Tensor:
    return torch.relu(neighbours @ self.layer(h))


def pooled(self: Any, weights: Tensor, h: Tensor) -> Tensor:
    """One row of many: the layer on the mean is far cheaper than on all rows."""
    return self.layer(weights[:1] @ h)


def also_a_result(self: Any, neighbours: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    mixed = neighbours @ h
    return self.layer(mixed), mixed


@pytest.mark.parametrize("forward", [narrow_first, pooled, also_a_result])
def test_products_in_the_cheaper_order_stay(forward: Any) -> None:
    model = Does(forward, layer=nn.Linear(256, 16)).eval()

    assert of_rule(model, "product-order", x(400, 400), x(400, 256)) == []


def test_a_layer_that_widens_stays_behind_the_product() -> None:
    assert of_rule(Does(graph_layer, layer=nn.Linear(16, 256)).eval(), "product-order", x(400, 400), x(400, 16)) == []


def by_block_diag(self: Any, h: Tensor, *blocks: Tensor) -> Tensor:
    return torch.relu(torch.block_diag(*blocks) @ self.layer(h))


def by_writing(self: Any, h: Tensor, *blocks: Tensor) -> Tensor:
    whole, at = torch.zeros(len(h), len(h)), 0
    for block in blocks:
        whole[at : at + len(block), at : at + len(block)] = block
        at += len(block)
    return torch.relu(whole @ self.layer(h))


def mixed_rows(self: Any, h: Tensor, *blocks: Tensor) -> Tensor:
    """From the right, of a matrix that `new_zeros` makes."""
    whole, at = h.new_zeros(len(h), len(h)), 0
    for block in blocks:
        whole[at : at + len(block), at : at + len(block)].copy_(block)
        at += len(block)
    return self.layer(h).t() @ whole


def graphs(count: int) -> tuple[Tensor, ...]:
    return tuple(x(20 + at % 3, 20 + at % 3) for at in range(count))


@pytest.mark.parametrize("forward", [by_block_diag, by_writing, mixed_rows])
def test_blocks_on_a_diagonal_are_multiplied_as_a_batch(forward: Any) -> None:
    blocks = graphs(16)
    model = Does(forward, layer=nn.Linear(64, 64)).eval()
    (found,) = of_rule(model, "block-diagonal", x(sum(map(len, blocks)), 64), *blocks)

    assert found.evidence["blocks"] == 16
    assert found.evidence["zero_share"] > 0.9
    assert gain_of(found).low > 0.2


def by_bmm(self: Any, h: Tensor, *blocks: Tensor) -> Tensor:
    return torch.bmm(torch.stack(blocks), self.layer(h).view(len(blocks), -1, 64))


def rows_replaced(self: Any, h: Tensor, *blocks: Tensor) -> Tensor:
    """Blocks that take the place of parts of a dense matrix."""
    whole = h @ h.t()
    for at, block in enumerate(blocks):
        whole[20 * at : 20 * at + 20, 20 * at : 20 * at + 20] = block
    return whole @ self.layer(h)


@pytest.mark.parametrize("forward", [by_bmm, rows_replaced])
def test_a_batch_of_blocks_and_a_dense_matrix_stay(forward: Any) -> None:
    blocks = tuple(x(20, 20) for _ in range(16))

    assert of_rule(Does(forward, layer=nn.Linear(64, 64)).eval(), "block-diagonal", x(320, 64), *blocks) == []


def sampled(self: Any, sequence: Tensor) -> Tensor:
    """Features at 8 points of each of 40 × 40 proposals, which a convolution joins."""
    points = torch.matmul(sequence, self.mask).reshape(*sequence.shape[:2], 8, 40, 40)
    return torch.relu(self.join(points))


def by_position(self: Any, sequence: Tensor) -> Tensor:
    return torch.relu(self.join(torch.matmul(sequence, self.mask).reshape(*sequence.shape[:2], 80, 40)))


def test_a_convolution_over_what_a_product_samples_comes_first() -> None:
    model = Does(sampled, join=nn.Conv3d(32, 48, (8, 1, 1)), mask=torch.rand(40, 8 * 40 * 40))
    (found,) = of_rule(model, "product-order", x(2, 32, 40))

    assert found.where.module == "join"
    assert found.evidence["macs_saved_share"] > 0.3
    # By 1×1, on four times as many positions.
    (found,) = of_rule(
        Does(by_position, join=nn.Conv2d(64, 16, 1), mask=torch.rand(800, 3200)), "product-order", x(2, 64, 800)
    )
    assert found.where.module == "join"


@pytest.mark.parametrize(
    "model",
    [
        Does(by_position, join=nn.Conv2d(64, 16, 3), mask=torch.rand(800, 3200)),  # it mixes positions too
        Does(by_position, join=nn.Conv2d(64, 256, 1), mask=torch.rand(800, 3200)),  # it makes more channels
    ],
)
def test_a_convolution_that_costs_more_before_the_product_stays(model: nn.Module) -> None:
    assert not of_rule(model, "product-order", x(2, 64, 800))


def scored(self: Any, nodes: Tensor) -> Tensor:
    summary = nodes.mean(1).sigmoid()
    return self.score(nodes, summary.expand_as(nodes))


def of_pairs(self: Any, nodes: Tensor) -> Tensor:
    return self.score(nodes, nodes.roll(1, 1))


def test_a_bilinear_layer_with_one_vector_is_a_product_with_a_vector() -> None:
    (found,) = of_rule(Does(scored, score=nn.Bilinear(64, 64, 1)), "product-order", x(1, 500, 64))

    assert found.where.module == "score"
    assert found.evidence["macs_saved_share"] > 0.9
    assert not of_rule(Does(of_pairs, score=nn.Bilinear(64, 64, 1)), "product-order", x(1, 500, 64))


def polynomials(self: Any, nodes: Tensor, graph: Tensor) -> Tensor:
    """Of Chebyshev, the first of which is the identity."""
    terms = [torch.eye(graph.shape[0]), graph]
    terms.append(2 * graph @ terms[-1] - terms[-2])
    return self.out(torch.cat([torch.einsum("nm,bmc->bnc", term, nodes) for term in terms], -1))


def without_the_first(self: Any, nodes: Tensor, graph: Tensor) -> Tensor:
    second = 2 * graph @ graph - torch.eye(graph.shape[0])
    both = [torch.einsum("nm,bmc->bnc", term, nodes) for term in (graph, second)]
    return self.out(torch.cat([nodes, *both], -1))


def changed(self: Any, nodes: Tensor, graph: Tensor) -> Tensor:
    """No longer the identity, or a part of it: rows that are chosen."""
    weights = torch.eye(graph.shape[0])
    weights[0] = 0.5
    chosen = torch.eye(graph.shape[0])[:20]
    return self.out(torch.cat([weights @ nodes, graph @ nodes, graph @ nodes], -1))[:, :20] + chosen @ nodes


@pytest.mark.parametrize(("forward", "products"), [(polynomials, 1), (without_the_first, 0), (changed, 0)])
def test_a_product_with_the_identity_is_left_out(forward: Any, products: int) -> None:
    found = of_rule(Does(forward, out=nn.Linear(48, 16)), "identity-product", x(4, 100, 16), x(100, 100))
    assert len(found) == products


def squared(self: Any, graph: Tensor) -> Tensor:
    """A matrix times itself is recorded with one input."""
    both = torch.relu(self.out(graph @ graph))
    return both + self.mix((graph @ graph)[None, None]).mean()


def test_a_matrix_times_itself_raises_nothing() -> None:
    model = Does(squared, out=nn.Linear(40, 8), mix=nn.Conv2d(1, 1, 1))
    evidence = seen(model, inputs=(x(40, 40),))

    assert not [advice for advice in said(evidence) if advice.rule == "identity-product"]
    assert not evidence.failures


def test_a_bilinear_layer_takes_the_time_of_the_product_inside() -> None:
    """Its result of one column says nothing about the product with the weight."""
    evidence = seen(Does(of_pairs, score=nn.Bilinear(256, 256, 1)), inputs=(x(1, 1000, 256),))
    plain = seen(nn.Linear(256, 256), inputs=(x(1000, 256),))
    bilinear_s, plain_s = (
        next(each.times.seconds[op.index] for op in each.forward if op.cost.macs) for each in (evidence, plain)
    )
    assert bilinear_s > plain_s / 2


@pytest.mark.parametrize(
    ("layers", "place"),
    [
        (["net.0", "net.1"], "net.0 + 1 and 2 more, model.py:7"),
        (["net.0", "head"], "net.0 + head and 2 more, model.py:7"),
        (["net.0", "net.1", "net.2", "net.3"], "net.0 + 1 + 2 others and 2 more, model.py:7"),
        (["net.0", ""], "net.0 and 2 more, model.py:7"),
    ],
)
def test_layers_that_are_joined_are_named_together(layers: list[str], place: str) -> None:
    row: Any = {
        "where": {"weight": None, "module": "net.0", "source": "model.py:7"},
        "evidence": {"count": 3, "layers": layers},
    }

    assert place_text(row) == place


def over_time_then_electrodes(*between: nn.Module, **changes: Any) -> nn.Sequential:
    """As in EEGNet. `changes`: of the depthwise convolution over the electrodes."""
    time = nn.Conv2d(1, 6, (1, 16), padding=(0, 8), dilation=(1, 2), padding_mode=changes.pop("mode", "zeros"))
    given = {"groups": 6, "bias": False, **changes}
    behind = nn.Conv2d(6, 12, given.pop("kernel", (24, 1)), **given)
    return nn.Sequential(time, *between, behind, nn.ELU())


@pytest.mark.parametrize(
    ("between", "changes"),
    [
        ((), {}),
        ((), {"bias": True, "mode": "circular"}),
        ((nn.BatchNorm2d(6),), {"bias": True}),
        ((nn.BatchNorm2d(6, affine=False),), {"stride": (3, 1)}),
        ((nn.BatchNorm2d(6),), {"kernel": (12, 1), "dilation": (2, 1)}),
    ],
    ids=["two layers", "a circle", "a norm between", "a stride", "holes"],
)
def test_a_depthwise_convolution_comes_before_one_along_another_dimension(between: Any, changes: Any) -> None:
    model, given = over_time_then_electrodes(*between, **changes).eval(), x(4, 1, 24, 300)
    for norm in between:
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)

    (found,) = of_rule(model, "convolution-order", given)

    assert found.evidence["exchanged_macs"] < found.evidence["macs"] / 2
    assert gain_of(found).low > 0.05
    assert found.code is not None
    check_code(found, model, (given,))


@pytest.mark.parametrize(
    "model",
    [
        over_time_then_electrodes(nn.Tanh()),
        over_time_then_electrodes(padding=(4, 0)),
        over_time_then_electrodes(kernel=(24, 3)),
        over_time_then_electrodes(stride=(1, 2)),
        over_time_then_electrodes(groups=1),
        over_time_then_electrodes(nn.BatchNorm2d(6, track_running_stats=False)),
        over_time_then_electrodes(nn.GroupNorm(2, 6)),
    ],
    ids=["an activation", "zeros", "a common dimension", "a common stride", "dense", "statistics of a batch", "groups"],
)
def test_convolutions_whose_order_matters_stay(model: nn.Module) -> None:
    assert of_rule(model.eval(), "convolution-order", x(4, 1, 24, 300)) == []


def test_an_image_of_few_electrodes_is_convolved_as_it_is() -> None:
    """The first of two electrodes costs as much as the second on the results of both."""
    model = nn.Sequential(nn.Conv2d(1, 4, (1, 32)), nn.Conv2d(4, 32, (2, 1), groups=4), nn.ELU())

    assert of_rule(model.eval(), "convolution-order", x(4, 1, 2, 256)) == []
