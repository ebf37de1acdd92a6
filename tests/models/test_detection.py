"""Detectors choose boxes by their scores: run for real with weights, with upper bounds where there are none."""

from __future__ import annotations

import pytest
import torch
import torchvision
from torch import nn

import torchgauge as tg
from tests.models.checked import check_additive, on_meta

PROPOSALS, CLASSES = 6, 5
# The box head sees 7×7 positions of 256 channels and has 1,024 units; a class has a score and four coordinates.
PER_PROPOSAL = 256 * 7 * 7 * 1024 + 1024 * 1024 + 1024 * 5 * CLASSES


def faster_rcnn() -> nn.Module:
    model: nn.Module = torchvision.models.get_model(
        "fasterrcnn_mobilenet_v3_large_320_fpn",
        weights=None,
        weights_backbone=None,
        num_classes=CLASSES,
        min_size=64,
        max_size=96,
        rpn_pre_nms_top_n_test=20,
        rpn_post_nms_top_n_test=PROPOSALS,
    )
    return model


def images() -> tuple[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return ([torch.rand(3, 64, 96, generator=generator)],)


def macs_of(analysis: tg.Analysis, path: str) -> int:
    return next(row.macs for row in analysis.modules if row.path == path)


@pytest.fixture(scope="module")
def on_weights() -> tg.Analysis:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = faster_rcnn()
    return tg.analyze(model, inputs=images())


@pytest.fixture(scope="module")
def without_weights() -> tg.Analysis:
    return tg.analyze(on_meta(faster_rcnn), inputs=images())


def test_with_weights_it_runs_for_real_and_says_why(on_weights: tg.Analysis) -> None:
    run = on_weights.capture.run
    assert run.mode == "real"
    assert run.reason is not None
    assert "reads tensor values" in run.reason
    check_additive(on_weights)


def test_without_weights_it_takes_upper_bounds_and_says_where(without_weights: tg.Analysis) -> None:
    run = without_weights.capture.run
    assert run.mode == "fake"
    assert any("torchvision::nms in 'rpn'" in warning and "upper bound" in warning for warning in run.warnings)
    check_additive(without_weights)


def test_the_upper_bound_is_every_proposal_that_the_model_lets_through(without_weights: tg.Analysis) -> None:
    assert macs_of(without_weights, "roi_heads") == PROPOSALS * PER_PROPOSAL


def test_a_real_run_counts_the_proposals_it_had(on_weights: tg.Analysis) -> None:
    proposals, rest = divmod(macs_of(on_weights, "roi_heads"), PER_PROPOSAL)
    assert rest == 0
    assert 0 < proposals <= PROPOSALS


@pytest.mark.parametrize("path", ["backbone", "rpn"])
def test_modules_that_do_not_depend_on_data_have_the_same_macs(
    path: str, on_weights: tg.Analysis, without_weights: tg.Analysis
) -> None:
    assert macs_of(on_weights, path) == macs_of(without_weights, path) > 0


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("retinanet_resnet50_fpn", 151.540e9),
        pytest.param("fcos_resnet50_fpn", 128.207e9, marks=pytest.mark.slow),
    ],
    ids=["retinanet", "fcos"],
)
def test_dense_detectors_agree_with_the_published_table(name: str, published: float) -> None:
    # Each candidate costs a loop turn after the last MAC.
    model = on_meta(torchvision.models.get_model, name, weights=None, weights_backbone=None, topk_candidates=10)
    analysis = tg.analyze(model, inputs=([torch.zeros(3, 800, 800)],))
    check_additive(analysis)
    assert abs(analysis.totals.macs - published) <= 0.0005e9
