from __future__ import annotations

from tests.cost.calls import cost, judge, spec
from torchgauge.facts import Cost

X = spec(4, 6)
NONE, MEAN, SUM = 0, 1, 2


def test_a_reduction_adds_one_flop_per_element_and_a_mean_one_more() -> None:
    assert cost("aten::mse_loss", X, self=X, target=X, reduction=NONE).flops == 2 * 24
    assert cost("aten::mse_loss", spec(), self=X, target=X, reduction=SUM).flops == 3 * 24
    assert cost("aten::mse_loss", spec(), self=X, target=X, reduction=MEAN).flops == 3 * 24 + 1


def test_a_weight_is_one_product_more() -> None:
    bare = cost("aten::binary_cross_entropy", X, self=X, target=X, reduction=NONE)
    weighted = cost("aten::binary_cross_entropy", X, self=X, target=X, weight=X, reduction=NONE)
    assert (bare.flops, weighted.flops) == (8 * 24, 9 * 24)


def test_nll_loss_reads_one_score_per_target() -> None:
    scores, target = spec(4, 1000), spec(4, dtype="int64")
    found = judge("aten::nll_loss_forward", spec(), spec(), self=scores, target=target, reduction=MEAN)
    assert found == ("loss", "counted", Cost(0, 2 * 4 + 1, 32 + 16, 8))


def test_ctc_walks_over_labels_with_blanks_between() -> None:
    arguments = {"log_probs": spec(50, 2, 30), "targets": spec(2, 10, dtype="int64")}
    by_shape = cost("aten::_ctc_loss", spec(2), spec(2, 50, 21), **arguments)
    by_length = cost("aten::_ctc_loss", spec(2), spec(2, 50, 21), **arguments, target_lengths=[10, 4])
    assert by_shape.flops == 13 * 50 * (21 + 21)
    assert by_length.flops == 13 * 50 * (21 + 9)


def test_a_linear_layer_fused_with_its_loss_has_its_macs() -> None:
    done = cost(
        "torch_nn::_linear_cross_entropy_batch_chunked",
        spec(),
        input=spec(8, 16),
        linear_weight=spec(100, 16),
        target=spec(8, dtype="int64"),
        compute_input_grad=True,
        compute_linear_weight_grad=True,
    )
    assert (done.macs, done.flops) == (3 * 8 * 16 * 100, 6 * 8 * 16 * 100 + 7 * 800 + 16)
