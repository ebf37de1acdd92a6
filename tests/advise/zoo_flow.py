"""Faults and twins that only the exact flow of the data tells apart: equal shapes, results, readers elsewhere."""

from __future__ import annotations

import torch
from torch import nn

from tests.advise import faulty_models, flow_models
from tests.advise.faulty_models import ConvNet, Wrapped
from tests.advise.planted import Planted, seen

IMAGE, ROWS, TOKENS, FLAT = (2, 3, 32, 32), (4096, 16), (2, 64, 64), (256, 64)


def case(name: str, rule: str, place: str, fault: nn.Module, twin: nn.Module, shape: tuple[int, ...]) -> Planted:
    return Planted(name, rule, place, lambda: seen(fault, *shape), lambda: seen(twin, *shape))


def conv() -> nn.Module:
    return ConvNet(nn.BatchNorm2d)


def linear(turned: bool) -> nn.Module:
    return flow_models.LinearNorm(nn.BatchNorm1d(64), turned)


CASES = [
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
        "turned rows",
        "strided-access",
        "norm",
        flow_models.TurnedRows(False),
        flow_models.TurnedRows(True),
        (8, 16, 16, 16),
    ),
    case(
        "turned operand",
        "strided-access",
        "block",
        Wrapped(flow_models.TurnedSum(False)),
        Wrapped(flow_models.TurnedSum(True)),
        (2, 4096),
    ),
    case(
        "every second", "strided-access", "block", Wrapped(flow_models.Skips(2)), Wrapped(flow_models.Skips(1)), TOKENS
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
        (2, 64, 32),
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
