"""Heads of models that state none: from the shapes of the attention that was run, not from what is usual."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchgauge as tg

WIDTH, HEADS, SIZE = 96, 12, 8  # nothing would guess heads of 8

Mix = Callable[[Tensor, Tensor, Tensor], Tensor]


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.transpose(-1, -2)) / SIZE**0.5 + torch.zeros(q.shape[-2], k.shape[-2])
    return F.dropout(scores.softmax(-1), training=True) @ v


def by_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bhqd,bhkd->bhqk", q * SIZE**-0.5, k).masked_fill(torch.zeros(1, dtype=torch.bool), -1e9)
    return torch.einsum("bhqk,bhkd->bhqd", scores.float().softmax(-1), v)


def with_a_bias(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    first, second, third = (x.flatten(0, 1) for x in (q, k, v))
    bias = torch.zeros(first.shape[0], q.shape[-2], k.shape[-2])
    return torch.bmm(torch.baddbmm(bias, first, second.transpose(1, 2)).softmax(-1), third).view_as(q)


def split(x: Tensor, size: int = SIZE) -> Tensor:
    return x.unflatten(-1, (-1, size)).transpose(1, 2)


class Block(nn.Module):
    """Keeps the number of its heads to itself."""

    def __init__(self, mix: Mix, kv_width: int = WIDTH) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.q_proj, self.o_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.k_proj, self.v_proj = nn.Linear(WIDTH, kv_width), nn.Linear(WIDTH, kv_width)
        self.mix = mix

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        mixed = self.mix(split(self.q_proj(y)), split(self.k_proj(y)), split(self.v_proj(y)))
        return x + self.o_proj(mixed.transpose(1, 2).flatten(2))


def known(model: Any, **options: Any) -> dict[str, Any]:
    found = tg.analyze(model, input_size=(2, 5, WIDTH), advice=False, **options).architecture.hyperparameters
    return {name: found[name] for name in ("heads", "head_size", "kv_heads", "assumed") if name in found}


@pytest.mark.parametrize("mix", [fused, written_out, by_einsum, with_a_bias])
@pytest.mark.parametrize("mode", ["inference", "train"])
def test_heads_are_read_from_the_attention_that_was_run(mix: Mix, mode: str) -> None:
    model = nn.Sequential(Block(mix), Block(mix))
    assert known(model, mode=mode) == {"heads": HEADS, "head_size": SIZE}


def test_fewer_heads_of_keys_are_seen() -> None:
    def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    def repeated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return written_out(q, k.repeat_interleave(4, 1), v.repeat_interleave(4, 1))

    for mix in (grouped, repeated):
        model = nn.Sequential(*[Block(mix, kv_width=WIDTH // 4) for _ in range(2)])
        assert known(model) == {"heads": HEADS, "head_size": SIZE, "kv_heads": HEADS // 4}


class Fused(nn.Module):
    """Queries, keys and values from one matrix, together wider than the model."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(part, 16) for part in self.qkv(self.norm(x)).chunk(3, -1))
        return x + self.proj(fused(q, k, v).transpose(1, 2).flatten(2))


def test_heads_that_are_wider_than_the_model_together_are_those_of_the_op() -> None:
    assert known(nn.Sequential(Fused(), Fused())) == {"heads": 2 * WIDTH // 16, "head_size": 16}


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:enable_nested_tensor:UserWarning")
@pytest.mark.parametrize("kind", ["traced", "fast path"])
def test_a_torchscript_file_shows_its_heads(tmp_path: Path, kind: str) -> None:
    """Like DETR, which has eight heads of 32 and not four of 64."""
    model: nn.Module = nn.Transformer(WIDTH, HEADS, 2, 2, 64, batch_first=True).eval()
    if kind == "fast path":
        model = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, HEADS, 64, batch_first=True), 2).eval()
    given = (torch.zeros(2, 5, WIDTH),) * (2 if kind == "traced" else 1)
    with torch.no_grad():
        torch.jit.trace(model, given, check_trace=False).save(tmp_path / "model.pt")
    sizes = [tuple(x.shape) for x in given]
    found = tg.analyze(tmp_path / "model.pt", input_size=sizes, advice=False).architecture.hyperparameters
    assert (found["heads"], found["head_size"]) == (HEADS, SIZE)
    assert "assumed" not in found


def test_without_a_run_they_stay_assumed(tmp_path: Path) -> None:
    torch.save(nn.Sequential(Block(fused), Block(fused)).state_dict(), tmp_path / "weights.pt")
    found = tg.analyze(tmp_path / "weights.pt", advice=False).architecture.hyperparameters
    assert "heads" in found["assumed"]


def test_a_decoder_of_torch_is_assumed_to_have_its_eight_heads(tmp_path: Path) -> None:
    """Like the weights of DETR, 256 wide."""
    torch.save(nn.Transformer(256, 8, 1, 1, 64, batch_first=True).state_dict(), tmp_path / "weights.pt")
    found = tg.analyze(tmp_path / "weights.pt", advice=False).architecture.hyperparameters
    assert (found["heads"], found["head_size"]) == (8, 32)
    assert {"heads", "head_size"} <= set(found["assumed"])
