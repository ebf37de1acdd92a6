"""Norms and scales are folded into a layer only where the layer has their channels, and its weight for itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.advise.fault_classes import Does, ids, x
from tests.advise.planted import said, seen

_FOLDING = {"conv-bn-fusion", "linear-bn-fusion", "norm-linear-fusion", "consecutive-layers", "affine-after-layer"}


def folded(forward: Any, *given: Tensor, **parts: Any) -> set[str]:
    found = {advice.rule for advice in said(seen(Does(forward, **parts), inputs=given))}
    return found & _FOLDING


@pytest.mark.parametrize(("channels", "is_folded"), [(64, True), (16, False)])
def test_a_norm_of_channels_that_a_view_has_split_stays(channels: int, is_folded: bool) -> None:
    def forward(m: Any, clip: Tensor) -> Tensor:
        made = m.conv(clip)
        frames = made.view(made.shape[0], channels, -1, *made.shape[2:])
        return torch.relu(m.norm(frames))

    parts = {"conv": nn.Conv2d(8, 64, 3), "norm": nn.BatchNorm3d(channels)}
    assert ("conv-bn-fusion" in folded(forward, x(2, 8, 20, 20), **parts)) is is_folded


def test_a_norm_of_joints_and_coordinates_is_not_folded_into_a_convolution_over_coordinates() -> None:
    def forward(m: Any, poses: Tensor) -> Tensor:
        samples, coordinates, frames, joints = poses.shape
        rows = poses.permute(0, 3, 1, 2).reshape(samples, joints * coordinates, frames)
        normed = m.norm(rows).view(samples, joints, coordinates, frames).permute(0, 2, 3, 1)
        return torch.relu(m.conv(normed))

    parts = {"norm": nn.BatchNorm1d(51), "conv": nn.Conv2d(3, 8, 1)}
    assert folded(forward, x(4, 3, 60, 17), **parts) == set()


def test_a_norm_of_pixels_in_a_row_is_folded_into_the_convolution_behind_it() -> None:
    def forward(m: Any, image: Tensor) -> Tensor:
        return torch.relu(m.conv(m.norm(image).flatten(2)))

    parts = {"norm": nn.BatchNorm2d(16), "conv": nn.Conv1d(16, 8, 1)}
    assert folded(forward, x(2, 16, 30, 30), **parts) == {"norm-linear-fusion"}


@pytest.mark.parametrize(("is_tied", "found"), [(False, {"linear-bn-fusion"}), (True, set())])
def test_the_weight_that_a_decoder_shares_with_its_encoder_is_not_changed(is_tied: bool, found: set[str]) -> None:
    def forward(m: Any, spectrum: Tensor) -> Tensor:
        code = torch.relu(m.norm(m.encoder(spectrum)))
        return functional.linear(code, m.encoder.weight.t() if is_tied else m.decoder.t())

    parts = {"encoder": nn.Linear(300, 80), "norm": nn.BatchNorm1d(80), "decoder": nn.Parameter(x(80, 300))}
    assert folded(forward, x(256, 300), **parts) == found


@pytest.mark.parametrize("is_tied", [False, True])
def test_layers_whose_weights_another_op_reads_are_not_merged(is_tied: bool) -> None:
    def forward(m: Any, rows: Tensor) -> Tensor:
        code = torch.tanh(m.down(m.up(rows)))
        return code @ (m.down.weight if is_tied else m.other)

    parts = {"up": nn.Linear(64, 256), "down": nn.Linear(256, 32), "other": nn.Parameter(x(32, 256))}
    assert ("consecutive-layers" in folded(forward, x(128, 64), **parts)) is not is_tied


@pytest.mark.parametrize("is_tied", [False, True])
def test_a_scale_is_not_folded_into_a_table_that_words_are_looked_up_in(is_tied: bool) -> None:
    class Temperature(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.rand(400))

        def forward(self, logits: Tensor) -> Tensor:
            return logits * self.scale

    words, head = nn.Embedding(400, 32), nn.Linear(32, 400, bias=False)
    if is_tied:
        head.weight = words.weight

    def forward(m: Any, tokens: Tensor) -> Tensor:
        logits: Tensor = m.scale(m.head(torch.tanh(m.words(tokens))))
        return logits

    found = folded(forward, ids(4, 50), words=words, head=head, scale=Temperature())
    assert ("affine-after-layer" in found) is not is_tied


@pytest.mark.parametrize("is_resized", [True, False])
def test_samples_beside_an_image_are_taken_before_the_bias_is_added(is_resized: bool) -> None:
    def forward(m: Any, image: Tensor, grid: Tensor) -> Tensor:
        image = torch.relu(image)
        sampled = functional.grid_sample(image, grid, align_corners=False)
        large = functional.interpolate(image, scale_factor=4) if is_resized else sampled
        return torch.relu(m.narrow(large))

    given = x(1, 32, 12, 12), x(1, 48, 48, 2)
    found = {advice.rule for advice in said(seen(Does(forward, narrow=nn.Conv2d(32, 4, 1)), inputs=given))}
    assert ("resample-before-pointwise" in found) is is_resized


@pytest.mark.parametrize(("is_turned", "is_by_channel"), [(False, True), (True, False)])
def test_a_scale_by_position_is_not_one_by_channel(is_turned: bool, is_by_channel: bool) -> None:
    def forward(m: Any, rows: Tensor) -> Tensor:
        made = m.layer(rows)
        return torch.relu((made.transpose(1, 2) if is_turned else made) * m.scale)

    parts = {"layer": nn.Linear(24, 40), "scale": nn.Parameter(x(40))}
    assert ("affine-after-layer" in folded(forward, x(16, 40, 24), **parts)) is is_by_channel


class Features(nn.Module):
    """What a convolution makes is kept for others to look at, or not."""

    def __init__(self, is_kept: bool) -> None:
        super().__init__()
        self.is_kept, self.features = is_kept, x(1)
        self.conv, self.norm = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16)

    def forward(self, image: Tensor) -> Tensor:
        made = self.conv(image)
        if self.is_kept:
            self.features = made
        return torch.relu(self.norm(made))


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_result_that_the_model_keeps_is_not_folded_away(is_kept: bool) -> None:
    found = {advice.rule for advice in said(seen(Features(is_kept), inputs=(x(2, 3, 20, 20),)))}
    assert ("conv-bn-fusion" in found) is not is_kept


class Standardised(nn.Conv2d):
    """Divides its weight by its deviation: a scale that is folded into it would be lost."""

    def forward(self, a: Tensor) -> Tensor:
        weight = self.weight / self.weight.std((1, 2, 3), keepdim=True)
        return nn.functional.conv2d(a, weight, self.bias)


@pytest.mark.parametrize(("kind", "is_said"), [(Standardised, False), (nn.Conv2d, True)])
def test_a_weight_that_is_computed_holds_no_norm(kind: type[nn.Conv2d], is_said: bool) -> None:
    model = nn.Sequential(kind(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU())

    assert any(each.rule == "conv-bn-fusion" for each in said(seen(model, 2, 8, 32, 32))) is is_said
