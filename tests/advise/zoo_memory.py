"""Faults in what a run keeps, reads and computes; devices and times are given, not measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.advise.planted import Planted, on_cuda, seen, timed
from torchgauge.advise import Evidence, Machine
from torchgauge.hardware import Peaks

DEVICE = Machine(Peaks("a device", {"float32": 60e12, "tf32": 480e12, "bfloat16": 960e12}, 4e12))


class Lookup(nn.Module):
    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, width)
        self.layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(4)))

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.layers(self.table(tokens))
        return out


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(functional.gelu(self.up(x)))


class Blocks(nn.Module):
    def __init__(self, *, recomputes: bool = False, width: int = 64) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(6))
        self.recomputes = recomputes

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recomputes else block(x)
        return x


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.num_heads = 4
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """With the keys and values."""
        parts = self.c_attn(x).unflatten(-1, (3, self.num_heads, -1)).movedim(-3, 0).transpose(-3, -2)
        out = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        return self.c_proj(out.transpose(-3, -2).flatten(-2)), parts[1:]


class DecoderBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), Attention(width)
        self.ln_2, self.mlp = nn.LayerNorm(width), Block(width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mixed, kept = self.attn(self.ln_1(x))
        return self.mlp(self.ln_2(x + mixed)), kept


class Decoder(nn.Module):
    """A language model; with a cache it gives back what the next token needs of this one."""

    def __init__(self, positions: int, width: int = 64, *, has_cache: bool = True) -> None:
        super().__init__()
        self.has_cache = has_cache
        self.wte, self.wpe = nn.Embedding(500, width), nn.Embedding(positions, width)
        self.h = nn.ModuleList(DecoderBlock(width) for _ in range(3))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, 500, bias=False)

    def forward(self, tokens: Tensor) -> Tensor | dict[str, Any]:
        x, kept = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1])), []
        for block in self.h:
            x, parts = block(x)
            kept.append(parts)
        logits: Tensor = self.lm_head(self.ln_f(x))
        return {"logits": logits, "past_key_values": kept} if self.has_cache else logits


class Experts(nn.Module):
    """Each token's `chosen` experts; all of them computed, or only as many tokens each as it has room for."""

    def __init__(self, *, experts: int = 8, chosen: int = 1, room: bool = False, width: int = 32) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(experts))
        self.count, self.chosen, self.room = experts, chosen, room

    def forward(self, x: Tensor) -> Tensor:
        scores = self.gate(x).softmax(-1)
        gates, choice = scores.topk(self.chosen, dim=-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            weight = (gates * (choice == number)).sum(-1, keepdim=True)
            if self.room:
                rows = weight[:, 0].argsort(descending=True)[: len(x) * self.chosen // self.count]
                out = out.index_add(0, rows, weight[rows] * expert(x[rows]))
            else:
                out = out + weight * expert(x)
        return out


def lookup(rows: int, width: int) -> Evidence:
    return seen(Lookup(rows, width), inputs=torch.zeros(2, 16, dtype=torch.int64))


def decoded(positions: int, batch: int, **settings: bool) -> Evidence:
    return seen(Decoder(positions, **settings), inputs=torch.zeros(batch, 16, dtype=torch.int64))


def trained(model: nn.Module, *shape: int) -> Evidence:
    return seen(model, *shape, mode="train")


def routed(**settings: int | bool) -> Evidence:
    return seen(Experts(**settings), 4096, 32)  # type: ignore[arg-type]


def batched(batch: int) -> Evidence:
    return on_cuda(seen(Blocks(width=256), batch, 256), DEVICE)


def precise(dtype: torch.dtype) -> Evidence:
    return on_cuda(seen(Blocks(width=256).to(dtype), 4096, 256, dtype=dtype), DEVICE)


def waiting(bound: str) -> Evidence:
    evidence = on_cuda(seen(Blocks(), 64, 64), DEVICE)
    row = {"time_s": 1e-4, "bound": bound, "roof_share": 0.8}
    return timed(evidence, {"latency": {"median_s": 1e-3}}, {op.index: row for op in evidence.forward})


def launched(host_share: float) -> Evidence:
    """The device is never idle, and the host takes a share of the time for its launches."""
    evidence = precise(torch.float32)
    products = [op for op in evidence.forward if op.category == "matmul"]
    ops = {op.index: {"time_s": 1e-3 / len(products)} for op in products}
    return timed(evidence, {"latency": {"median_s": 1e-3, "host_s": host_share * 1e-3}}, ops)


class Frozen(nn.Module):
    """A frozen body between a stem that may be trained and a head that is."""

    def __init__(self, *, stem: bool = True, adapters: bool = False) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(8, 64), nn.Linear(64, 200)
        self.body = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))
        self.stem.requires_grad_(stem)
        self.body.requires_grad_(False)
        for layer in self.body:
            layer.bias.requires_grad_(adapters)

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.stem(a))).sum()


def frozen(**settings: bool) -> Evidence:
    return trained(Frozen(**settings), 64, 8)


def case(name: str, rule: str, place: str, fault: Callable[[], Evidence], twin: Callable[[], Evidence]) -> Planted:
    return Planted(name, rule, place, fault, twin)


def large() -> Evidence:
    """Many parameters, few samples."""
    return trained(Blocks(width=128), 2, 128)


def long() -> Evidence:
    """Few parameters, many samples."""
    return trained(Blocks(), 4096, 64)


def mapped(faults: float | None, platform: str = "Linux-6.1-x86_64-with-glibc2.36", **settings: object) -> Evidence:
    """A run of 10 ms on a processor in which so many page faults were counted, with another C library or other settings
    of it."""
    counters = None if faults is None else {"page_faults": faults}
    evidence = timed(seen(Blocks(), 4096, 64), {"latency": {"median_s": 1e-2}, "counters": counters})
    there = replace(evidence.capture.environment, platform=platform, settings=settings)
    return Evidence(replace(evidence.capture, environment=there))


CASES = [
    case("fresh pages", "freed-memory", "", lambda: mapped(4096), lambda: mapped(26)),
    case("fresh pages were not counted", "freed-memory", "", lambda: mapped(4096), lambda: mapped(None)),
    case(
        "kept pages",
        "freed-memory",
        "",
        lambda: mapped(4096),
        lambda: mapped(4096, MALLOC_TRIM_THRESHOLD_="2147483647"),
    ),
    case("jemalloc", "freed-memory", "", lambda: mapped(4096), lambda: mapped(4096, LD_PRELOAD="libjemalloc.so.2")),
    case("another system", "freed-memory", "", lambda: mapped(4096), lambda: mapped(4096, "macOS-15.1-arm64")),
    case("vocabulary", "embedding-dominated", "table.weight", lambda: lookup(20_000, 32), lambda: lookup(100, 128)),
    case("activations", "activation-checkpointing", "blocks", long, lambda: trained(Blocks(recomputes=True), 4096, 64)),
    case("few activations", "activation-checkpointing", "blocks", long, large),
    case("a stem", "frozen-in-graph", "body.0", frozen, lambda: frozen(stem=False)),
    case("adapters", "frozen-in-graph", "body.0", frozen, lambda: frozen(adapters=True)),
    case("adam", "optimizer-state", "", large, long),
    case("gradients", "gradient-memory", "", large, long),
    case("long context", "kv-cache", "", lambda: decoded(2048, 8), lambda: decoded(64, 1)),
    case("all experts", "dense-experts", "", routed, lambda: routed(room=True)),
    case("idle experts", "idle-experts", "", lambda: routed(room=True), lambda: routed(experts=4, chosen=3)),
    case("single sample", "batch-at-knee", "", lambda: batched(1), lambda: batched(8192)),
    case("float32", "autocast-bf16", "", lambda: precise(torch.float32), lambda: precise(torch.bfloat16)),
    case("held up", "launch-limit", "", lambda: launched(0.6), lambda: launched(0.1)),
    case("busy host", "bfloat16-weights", "", lambda: launched(0.6), lambda: launched(0.1)),
    case("bandwidth", "memory-bound-layers", "blocks.0.up", lambda: waiting("memory"), lambda: waiting("compute")),
]
