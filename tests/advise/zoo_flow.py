"""Faults and twins that only the exact flow of the data tells apart: equal shapes, results, readers elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.advise import faulty_models, flow_models
from tests.advise.fault_classes import Does
from tests.advise.faulty_models import ConvNet, Wrapped
from tests.advise.planted import Planted, seen

IMAGE, ROWS, TOKENS, FLAT = (2, 3, 32, 32), (4096, 16), (2, 64, 64), (256, 64)


def case(name: str, rule: str, place: str, fault: nn.Module, twin: nn.Module, shape: tuple[int, ...]) -> Planted:
    return Planted(name, rule, place, lambda: seen(fault, *shape), lambda: seen(twin, *shape))


def conv() -> nn.Module:
    return ConvNet(nn.BatchNorm2d)


def linear(turned: bool) -> nn.Module:
    return flow_models.LinearNorm(nn.BatchNorm1d(64), turned)


def with_mean(self: Any, h: Tensor) -> Tensor:
    return self.mix(torch.cat([h, h.mean(1, keepdim=True).expand_as(h)], -1))


def with_neighbour(self: Any, h: Tensor) -> Tensor:
    return self.mix(torch.cat([h, h.roll(1, 1)], -1))


def hops(self: Any, h: Tensor) -> Tensor:
    state = h
    for _ in range(6):
        state = torch.relu(self.mix(torch.cat([state, h], -1)))
    return state


def hops_apart(self: Any, h: Tensor) -> Tensor:
    state = h
    for _ in range(6):
        state = torch.relu(self.mix(torch.cat([state, state.roll(1, 1)], -1)))
    return state


def pairs(_: Any, h: Tensor) -> Tensor:
    return (h[:, :, None] * h[:, None]).sum(-1)


def pairs_at_once(_: Any, h: Tensor) -> Tensor:
    return h @ h.transpose(1, 2)


def by_token(self: Any, h: Tensor) -> Tensor:
    return torch.matmul(self.weight, h[..., None]).squeeze(-1)


def by_token_at_once(self: Any, h: Tensor) -> Tensor:
    return torch.einsum("toi,bti->bto", self.weight, h)


def counting(filters: int) -> nn.Module:
    layer = nn.Conv2d(3, filters, 3, bias=False)
    nn.init.ones_(layer.weight)
    return Wrapped(layer.requires_grad_(False))


def mixing(forward: Callable[..., Tensor]) -> nn.Module:
    return Does(forward, mix=nn.Linear(128, 64))


def of_tokens(forward: Callable[..., Tensor]) -> nn.Module:
    return Does(forward, weight=nn.Parameter(torch.randn(64, 64, 64)))


class Swish(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h * torch.sigmoid(h)


def pooled_late(self: Any, h: Tensor) -> Tensor:
    return nn.functional.avg_pool2d(self.layer(h), 2)


def pooled_first(self: Any, h: Tensor) -> Tensor:
    out: Tensor = self.layer(nn.functional.avg_pool2d(h, 2))
    return out


def new_order(_: Any, h: Tensor) -> Tensor:
    h = h.relu()
    return torch.stack([h[:, 63 - at] for at in range(64)], 1)


def new_order_at_once(_: Any, h: Tensor) -> Tensor:
    return h.relu().flip(1)


def table() -> nn.Parameter:
    return nn.Parameter(torch.randn(512, 64))


def three_heads(self: Any, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    first, second = self.heads[0](h), self.heads[1](h)
    return first, second, self.heads[2](h)


def one_head(self: Any, h: Tensor) -> Tensor:
    out: Tensor = self.heads[0](h)
    return out


def two_layers(self: Any, h: Tensor) -> Tensor:
    return self.second(self.first(h)).relu()


def with_activation(self: Any, h: Tensor) -> Tensor:
    return self.second(self.first(h).relu()).relu()


def two() -> dict[str, nn.Module]:
    return {"first": nn.Linear(64, 512), "second": nn.Linear(512, 16)}


class HardSwish(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h * torch.clamp(h + 3, 0, 6) / 6


def padded(self: Any, image: Tensor) -> Tensor:
    return torch.relu(self.layer(nn.functional.pad(image, (2, 2, 2, 2))))


def padding_itself(self: Any, image: Tensor) -> Tensor:
    return torch.relu(self.layer(image))


def overwritten(self: Any, h: Tensor) -> Tensor:
    y = self.first(h)
    y = self.second(h)
    return y


def both_read(self: Any, h: Tensor) -> Tensor:
    return self.first(h) + self.second(h)


def in_order(self: Any, h: Tensor) -> Tensor:
    return torch.relu(self.layer(h.permute(0, 3, 1, 2))).permute(0, 2, 3, 1)


def copied(self: Any, h: Tensor) -> Tensor:
    images = torch.relu(self.layer(h.permute(0, 3, 1, 2).contiguous()))
    return torch.tanh(images.permute(0, 2, 3, 1).contiguous())


CASES = [
    case(
        "zeros around an image",
        "padding-before-convolution",
        "",
        Does(padded, layer=nn.Conv2d(4, 2, 5)),
        Does(padding_itself, layer=nn.Conv2d(4, 2, 5, padding=2)),
        (1, 4, 64, 64),
    ),
    case(
        "a result that is overwritten",
        "unread-result",
        "first",
        Does(overwritten, first=nn.Linear(64, 64), second=nn.Linear(64, 64)),
        Does(both_read, first=nn.Linear(64, 64), second=nn.Linear(64, 64)),
        TOKENS,
    ),
    case("a mean at every token", "repeated-input", "mix", mixing(with_mean), mixing(with_neighbour), TOKENS),
    case("a state beside its input", "repeated-part", "mix", mixing(hops), mixing(hops_apart), TOKENS),
    case("all pairs", "product-then-sum", "", Does(pairs), Does(pairs_at_once), TOKENS),
    case("a matrix by token", "broadcast-matmul", "", of_tokens(by_token), of_tokens(by_token_at_once), (8, 64, 64)),
    case(
        "two layers", "consecutive-layers", "first", Does(two_layers, **two()), Does(with_activation, **two()), TOKENS
    ),
    case(
        "a pooling behind a layer",
        "pointwise-before-pooling",
        "layer",
        Does(pooled_late, layer=nn.Conv2d(3, 64, 1)),
        Does(pooled_first, layer=nn.Conv2d(3, 64, 1)),
        IMAGE,
    ),
    case("a new order", "joined-parts", "", Does(new_order), Does(new_order_at_once), TOKENS),
    case(
        "three heads",
        "narrow-heads",
        "heads.0",
        Does(three_heads, heads=nn.ModuleList(nn.Linear(64, 4) for _ in range(3))),
        Does(one_head, heads=nn.ModuleList(nn.Linear(64, 12) for _ in range(1))),
        TOKENS,
    ),
    case("hard swish", "activation-by-hand", "block", Wrapped(HardSwish()), Wrapped(nn.Hardswish()), TOKENS),
    case("swish", "silu-by-hand", "block", Wrapped(Swish()), Wrapped(nn.SiLU()), TOKENS),
    case(
        "equal convolutions",
        "conv-bn-fusion",
        "norm",
        flow_models.TwoConvolutions(),
        flow_models.GivesBoth(),
        IMAGE,
    ),
    case("linear-bn", "linear-bn-fusion", "norm", linear(False), linear(True), TOKENS),
    case(
        "linear-bn, layer norm",
        "linear-bn-fusion",
        "norm",
        linear(False),
        flow_models.LinearNorm(nn.LayerNorm(64)),
        TOKENS,
    ),
    case(
        "bn-linear",
        "norm-linear-fusion",
        "norm",
        flow_models.NormLinear(nn.Identity()),
        flow_models.NormLinear(nn.ReLU()),
        FLAT,
    ),
    case(
        "bn-conv", "norm-linear-fusion", "norm", flow_models.NormConvolution(0), flow_models.NormConvolution(1), IMAGE
    ),
    case(
        "conv-bn, both sides",
        "norm-linear-fusion",
        "norm",
        flow_models.NormConvolution(0),
        nn.Sequential(conv(), nn.Conv2d(16, 4, 1)),
        IMAGE,
    ),
    case("transposed keys", "needless-copy", "", flow_models.TransposedKeys(1), flow_models.TransposedKeys(4), TOKENS),
    case("conv-bn-relu", "conv-bn-activation", "", conv(), faulty_models.PreActivation(), IMAGE),
    case(
        "conv-bn-relu, norm read twice",
        "conv-bn-activation",
        "",
        conv(),
        faulty_models.ReadTwice(nn.BatchNorm2d),
        IMAGE,
    ),
    case(
        "norm, ops beside",
        "norm-by-hand",
        "block",
        Wrapped(faulty_models.LayerNorm()),
        Wrapped(flow_models.EpsAlone()),
        TOKENS,
    ),
    case(
        "weights wanted",
        "attention-by-hand",
        "block",
        Wrapped(faulty_models.Attention(False)),
        Wrapped(flow_models.WeightsWanted()),
        (2, 64, 32),
    ),
    case(
        "weights thrown away",
        "attention-by-hand",
        "block.inner",
        Wrapped(flow_models.Scores()),
        Wrapped(faulty_models.Attention(True)),
        (8, 512, 32),
    ),
    case(
        "long sequence on the fast path",
        "attention-fast-path",
        "block",
        Wrapped(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)),
        Wrapped(faulty_models.Attention(True)),
        (1, 1024, 32),
    ),
    case(
        "chain around a product",
        "pointwise-chain",
        "block",
        Wrapped(faulty_models.Mixing()),
        Wrapped(flow_models.OneBranch()),
        TOKENS,
    ),
    case(
        "copy given back",
        "needless-copy",
        "block",
        Wrapped(faulty_models.Copies("clone")),
        Wrapped(flow_models.Takes()),
        TOKENS,
    ),
    case(
        "weight and input",
        "recomputed-weight",
        "weight",
        faulty_models.StandardisedWeight(False),
        flow_models.Mixes(),
        TOKENS,
    ),
    case(
        "round trip, type read",
        "cast-round-trip",
        "block",
        Wrapped(flow_models.CastForTwo()),
        Wrapped(faulty_models.Casts(None)),
        TOKENS,
    ),
    case(
        "chain, half",
        "pointwise-chain",
        "block",
        Wrapped(faulty_models.Mixing()),
        Wrapped(faulty_models.Casts(torch.float16)),
        TOKENS,
    ),
]
