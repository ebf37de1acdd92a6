"""A residual network of bottlenecks, by its transformers config."""

from __future__ import annotations

from typing import Any

from tests.models.closed_forms import convolution, convolved

REDUCTION = 4


def resnet_macs(config: Any, batch: int, side: int) -> int:
    side = convolved(side, 7, stride=2, padding=3)
    macs = convolution(batch * side * side, config.num_channels, config.embedding_size, (7, 7))
    side = convolved(side, 3, stride=2, padding=1)
    inputs = config.embedding_size
    for stage, (outputs, depth) in enumerate(zip(config.hidden_sizes, config.depths, strict=True)):
        for block in range(depth):
            stride = 2 if block == 0 and stage > 0 else 1
            macs += batch * bottleneck(inputs, outputs, side, stride)
            side, inputs = convolved(side, 3, stride, padding=1), outputs
    return macs


def bottleneck(inputs: int, outputs: int, side: int, stride: int) -> int:
    """Reduce, convolve (with the stride), expand; a 1×1 convolution where input and output differ."""
    inner, after = outputs // REDUCTION, convolved(side, 3, stride, padding=1)
    macs = convolution(side * side, inputs, inner, (1, 1)) + convolution(after * after, inner, inner, (3, 3))
    macs += convolution(after * after, inner, outputs, (1, 1))
    if inputs != outputs or stride != 1:
        macs += convolution(after * after, inputs, outputs, (1, 1))
    return macs
