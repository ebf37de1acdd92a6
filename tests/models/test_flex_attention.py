"""FlexAttention against a count of its mask, element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

import torchgauge as tg
from tests.models.checked import analyze_checked

Mask = Callable[[Any, Any, Any, Any], Any]
BATCH, HEADS, SIZE = 2, 4, 16
DOCUMENTS = torch.tensor([0] * 130 + [1] * 250 + [2] * 132)
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])


def full(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= 0


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def window(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q >= k) & (q - k <= 100)


def document(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (DOCUMENTS[q] == DOCUMENTS[k]) & (q >= k)


def prefix(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (k < 200) | (q >= k)


MASKS = {"full": full, "causal": causal, "window": window, "document": document, "prefix": prefix}


def count_scores(mask: Mask, queries: int, keys: int, block: tuple[int, int], batch: int = 1, heads: int = 1) -> int:
    """Elements of blocks with at least one true element, by looking at every element."""
    total = 0
    for b in range(batch):
        for h in range(heads):
            q, k = torch.arange(queries).unsqueeze(1), torch.arange(keys).unsqueeze(0)
            allowed = torch.as_tensor(mask(torch.tensor(b), torch.tensor(h), q, k)).expand(queries, keys)
            for top in range(0, queries, block[0]):
                for left in range(0, keys, block[1]):
                    part = allowed[top : top + block[0], left : left + block[1]]
                    total += part.numel() if bool(part.any()) else 0
    return total * (BATCH // batch) * (HEADS // heads)


class Attends(nn.Module):
    """With a mask that it holds, or that its forward makes."""

    def __init__(self, mask: Mask | None = None, held: BlockMask | None = None, score_mod: Any = None) -> None:
        super().__init__()
        self.mask, self.held, self.score_mod = mask, held, score_mod

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        made = self.held
        if self.mask is not None:
            made = create_block_mask(self.mask, None, None, q.shape[2], k.shape[2], device="cpu")
        out = flex_attention(q, k, v, score_mod=self.score_mod, block_mask=made, enable_gqa=q.shape[1] != k.shape[1])
        assert isinstance(out, Tensor)
        return out


def heads(length: int, count: int = HEADS) -> Tensor:
    return torch.zeros(BATCH, count, length, SIZE)


def macs(analysis: tg.Analysis) -> int:
    return sum(op.macs for op in analysis.ops if "flex_attention" in op.op)


@pytest.mark.parametrize("name", MASKS)
def test_blocks_of_a_mask_that_the_forward_makes_are_counted(name: str) -> None:
    found = analyze_checked(Attends(MASKS[name]), inputs=(heads(512), heads(512), heads(512)))
    assert macs(found) == count_scores(MASKS[name], 512, 512, (128, 128)) * 2 * SIZE
    assert found.capture.run.mode == "fake"
    assert not found.capture.run.warnings


@pytest.mark.parametrize("name", MASKS)
def test_blocks_of_a_mask_that_the_model_holds_are_counted(name: str) -> None:
    """Other block sizes, lengths that no block divides, more keys than queries, fewer heads of keys."""
    held = create_block_mask(MASKS[name], None, None, 300, 450, device="cpu", BLOCK_SIZE=(64, 32))
    found = tg.analyze(Attends(held=held), inputs=(heads(300), heads(450, 2), heads(450, 2)))
    assert macs(found) == count_scores(MASKS[name], 300, 450, (64, 32)) * 2 * SIZE


def test_heads_with_separate_masks_are_counted_separately() -> None:
    def by_head(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q >= k) & ((h > 1) | (q - k < 130)) & (k + 128 * b >= 0)

    held = create_block_mask(by_head, BATCH, HEADS, 512, 512, device="cpu")
    found = tg.analyze(Attends(held=held), inputs=(heads(512),) * 3)
    assert macs(found) == count_scores(by_head, 512, 512, (128, 128), BATCH, HEADS) * 2 * SIZE


def test_layers_with_masks_of_one_shape_are_distinguished() -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.held = [create_block_mask(mask, None, None, 512, 512, device="cpu") for mask in (causal, window, full)]

        def forward(self, x: Tensor) -> Tensor:
            for held in self.held:
                made = flex_attention(x, x, x, block_mask=held)
                assert isinstance(made, Tensor)
                x = made
            return x

    found = tg.analyze(Layers(), inputs=heads(512))
    counted = [op.macs for op in found.ops if op.op == "higher_order::flex_attention"]
    assert counted == [count_scores(mask, 512, 512, (128, 128)) * 2 * SIZE for mask in (causal, window, full)]


def test_a_mask_of_more_elements_than_are_known_is_evaluated_in_strips() -> None:
    found = tg.analyze(Attends(window), inputs=(heads(4096),) * 3)
    assert macs(found) == count_scores(window, 4096, 4096, (128, 128)) * 2 * SIZE
    assert found.capture.run.mode == "fake"
    assert not found.capture.run.warnings


def test_a_mask_that_depends_on_data_is_counted_in_full_and_named() -> None:
    class Gated(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            keep = x.sum((0, 1, 3)) > 0
            held = create_block_mask(lambda b, h, q, k: keep[k], None, None, 256, 256, device="cpu")
            made = flex_attention(x, x, x, block_mask=held)
            assert isinstance(made, Tensor)
            return made

    found = tg.analyze(Gated(), inputs=heads(256))
    assert macs(found) == BATCH * HEADS * 256 * 256 * 2 * SIZE
    assert any("block mask of flex_attention" in warning for warning in found.capture.run.warnings)


def test_training_counts_the_blocks_of_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    # Torch trains it on GPUs alone; fake tensors of a build without CUDA are on the processor.
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *tensors: None)
    model = nn.Sequential(nn.Linear(SIZE, SIZE))

    class Trained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = model
            self.attend = Attends(held=create_block_mask(causal, None, None, 256, 256, device="cpu"))

        def forward(self, x: Tensor) -> Tensor:
            x = self.layer(x)
            return self.attend(x, x, x)

    found = tg.analyze(Trained(), inputs=heads(256), mode="train")
    scores = count_scores(causal, 256, 256, (128, 128))
    by_op = {op.op: op.macs for op in found.ops if "flex_attention" in op.op}
    assert by_op == {
        "higher_order::flex_attention": scores * 2 * SIZE,
        "higher_order::flex_attention_backward": 2 * scores * 2 * SIZE,
    }


def test_alibi_changes_scores_and_no_blocks() -> None:
    def alibi(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return score + SLOPES[h] * (k - q)

    held = create_block_mask(causal, None, None, 512, 512, device="cpu")
    plain = tg.analyze(Attends(held=held), inputs=(heads(512),) * 3)
    shifted = tg.analyze(Attends(held=held, score_mod=alibi), inputs=(heads(512),) * 3)
    assert macs(shifted) == macs(plain) == count_scores(causal, 512, 512, (128, 128)) * 2 * SIZE


ROTATED = torch.tensor([2] * 40 + [0] * 200 + [1] * 60 + [2] * 84)
LENGTHS = torch.tensor([90, 300])


def dilated(b: Any, h: Any, q: Any, k: Any) -> Any:
    return ((q - k).abs() <= 16) | ((k % 192) < 8)


def rotated_documents(b: Any, h: Any, q: Any, k: Any) -> Any:
    return ROTATED[q] == ROTATED[k]


def by_sample(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (k < LENGTHS[b]) & (q >= k)


@pytest.mark.parametrize(
    ("mask", "length", "block", "batch"),
    [(dilated, 640, (128, 128), 1), (rotated_documents, 384, (32, 64), 1), (by_sample, 512, (128, 64), BATCH)],
    ids=["dilated", "rotated documents", "by sample"],
)
def test_masks_written_after_the_count_was_finished(
    mask: Mask, length: int, block: tuple[int, int], batch: int
) -> None:
    held = create_block_mask(mask, batch if batch > 1 else None, None, length, length, device="cpu", BLOCK_SIZE=block)
    found = tg.analyze(Attends(held=held), inputs=(heads(length),) * 3)
    assert macs(found) == count_scores(mask, length, length, block, batch) * 2 * SIZE
