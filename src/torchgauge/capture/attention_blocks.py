"""FlexAttention by the blocks that it computes: its block mask lists them for each block of queries.

A block at the end of a sequence counts as far as the sequence goes. Where the lists are not known, because the mask has
too many elements to be computed, the mask function is evaluated one row of blocks at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from torchgauge.capture.copier import Copier
from torchgauge.capture.op_call import OpCall, SomeTensor

FLEX_OPS = ("higher_order::flex_attention", "higher_order::flex_attention_backward")
# Elements of a mask that is evaluated here, which takes a few seconds.
_MAX_MASK_ELEMENTS = 1 << 30

# The content of a tensor, None where it is not known.
ContentOf = Callable[[Tensor], Tensor | None]


class _Unknown(Exception):  # noqa: N818 - a signal
    """The mask depends on values that are not known."""


@dataclass(frozen=True, slots=True)
class BlockMask:
    """The part of torch's block mask that says what is computed. Torch 2.6 has no sequence lengths in front."""

    counts: Tensor
    indices: Tensor
    full_counts: Tensor | None
    full_indices: Tensor | None
    block: tuple[int, int]
    mask_mod: Callable[..., Tensor]

    @classmethod
    def of(cls, given: Sequence[Any]) -> BlockMask:
        first = next(index for index, item in enumerate(given) if isinstance(item, Tensor))
        counts, indices, full_counts, full_indices = given[first : first + 4]
        return cls(counts, indices, full_counts, full_indices, (int(given[-3]), int(given[-2])), given[-1])


def computed_scores(call: OpCall[SomeTensor], content_of: ContentOf) -> int | None:
    """How many scores (query, key and head) the blocks of a call have; None where the mask depends on data."""
    arguments = call.bind()
    mask, query, key = BlockMask.of(arguments["block_mask"]), arguments["query"], arguments["key"]
    lengths = query.shape[-2], key.shape[-2]
    batch, heads = mask.counts.shape[:2]
    with _disable_current_modes():
        scores = _listed(mask, lengths, content_of)
        if scores is None:
            scores = _evaluated(mask, lengths, content_of)
    # One mask serves all samples or heads where it has a single one.
    return None if scores is None else scores * (query.shape[0] // batch) * (query.shape[1] // heads)


def _listed(mask: BlockMask, lengths: tuple[int, int], content_of: ContentOf) -> int | None:
    total = 0
    for counts, indices in ((mask.counts, mask.indices), (mask.full_counts, mask.full_indices)):
        if counts is None or indices is None:
            continue
        count, columns = content_of(counts), content_of(indices)
        if count is None or columns is None:
            return None
        listed = torch.arange(columns.shape[-1]) < count.cpu().unsqueeze(-1)
        widths = (lengths[1] - columns.cpu().long() * mask.block[1]).clamp(0, mask.block[1])
        rows = torch.arange(count.shape[-1])
        heights = (lengths[0] - rows * mask.block[0]).clamp(0, mask.block[0])
        total += int(((widths * listed).sum(-1) * heights).sum())
    return total


def _evaluated(mask: BlockMask, lengths: tuple[int, int], content_of: ContentOf) -> int | None:
    (queries, keys), (height, width) = lengths, mask.block
    batch, heads = mask.counts.shape[:2]
    if batch * heads * queries * keys > _MAX_MASK_ELEMENTS:
        return None
    from torch.nn.attention.flex_attention import create_mask  # loaded already: the mask was made with it

    def content(tensor: Tensor) -> Tensor:
        known = content_of(tensor)
        if known is None:
            raise _Unknown
        return known

    total = 0
    try:
        function = Copier(content).copy(mask.mask_mod)
        for start in range(0, queries, height):
            rows = min(height, queries - start)

            def shifted(b: Tensor, h: Tensor, q: Tensor, k: Tensor, start: int = start) -> Tensor:
                return function(b, h, q + start, k)

            for strip in create_mask(shifted, batch, heads, rows, keys, device="cpu").any(-2).flatten(0, 1):
                blocks = [int(part.any()) * len(part) for part in strip.split(width)]
                total += rows * sum(blocks)
    except _Unknown:
        return None
    return total
