"""Faults in what the ops do: chains that could be one op, copies, casts, constants, parameters that nothing reads."""

from __future__ import annotations

import torch
from torch import nn

from tests.advise.faulty_models import (
    Accumulates,
    Attention,
    Casts,
    CastWeight,
    Classifier,
    ConvNet,
    Copies,
    ErfGelu,
    Experts,
    Flattened,
    Guarded,
    Head,
    LayerNorm,
    Mixing,
    Mlp,
    Positions,
    PreActivation,
    Promotes,
    ReadTwice,
    RestoredWeight,
    ReusedNorm,
    RmsNorm,
    Single,
    StandardisedWeight,
    TanhGelu,
    WorkBetween,
    Wrapped,
)
from tests.advise.planted import Planted, on_cuda, seen

IMAGE, ROWS, TOKENS = (2, 3, 32, 32), (4096, 16), (2, 64, 64)


def case(name: str, rule: str, place: str, fault: nn.Module, twin: nn.Module, shape: tuple[int, ...]) -> Planted:
    return Planted(name, rule, place, lambda: seen(fault, *shape), lambda: seen(twin, *shape))


def tall(act: nn.Module) -> nn.Module:
    return Mlp(16, act)


def pooled(size: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.MaxPool2d(size, 1, size // 2))


CASES = [
    case("conv-bn", "conv-bn-fusion", "norm", ConvNet(nn.BatchNorm2d), ConvNet(nn.Identity), IMAGE),
    case("conv-bn, norm first", "conv-bn-fusion", "norm", ConvNet(nn.BatchNorm2d), PreActivation(), IMAGE),
    case("conv-bn, norm reused", "conv-bn-fusion", "norm", ConvNet(nn.BatchNorm2d), ReusedNorm(), IMAGE),
    case("linear-relu", "linear-activation", "act", tall(nn.ReLU()), tall(nn.Identity()), ROWS),
    case("tanh gelu", "gelu-by-hand", "act", tall(TanhGelu()), tall(nn.GELU(approximate="tanh")), ROWS),
    case("erf gelu", "gelu-by-hand", "act", tall(ErfGelu()), tall(nn.GELU()), ROWS),
    case("chain", "pointwise-chain", "block", Wrapped(Mixing()), Wrapped(Single()), TOKENS),
    case("chain, but gelu", "pointwise-chain", "act", tall(Mixing()), tall(TanhGelu()), ROWS),
    Planted(
        "rms norm",
        "norm-by-hand",
        "block",
        lambda: on_cuda(seen(Wrapped(RmsNorm()), *TOKENS)),
        lambda: seen(Wrapped(RmsNorm()), *TOKENS),
    ),
    case("conv-bn, read twice", "conv-bn-fusion", "norm", ConvNet(nn.BatchNorm2d), ReadTwice(nn.BatchNorm2d), IMAGE),
    case("layer norm", "norm-by-hand", "block", Wrapped(LayerNorm()), Wrapped(nn.LayerNorm(64)), TOKENS),
    case("large pool", "large-max-pool", "1", pooled(7), pooled(3), IMAGE),
    case("instance norm", "instance-norm", "norm", ConvNet(nn.InstanceNorm2d), ConvNet(nn.BatchNorm2d), IMAGE),
    case("attention", "attention-by-hand", "block", Wrapped(Attention(False)), Wrapped(Attention(True)), (2, 64, 32)),
    case("masked", "attention-by-hand", "block", Wrapped(Attention(False, True)), Wrapped(Classifier()), (2, 64, 32)),
    case("round trip", "cast-round-trip", "block", Wrapped(Casts(torch.float16)), Wrapped(Casts(None)), TOKENS),
    case("round trip, work", "cast-round-trip", "block", Wrapped(Casts(torch.float64)), Wrapped(WorkBetween()), TOKENS),
    Planted(
        "weight cast",
        "weight-cast",
        "weight",
        lambda: seen(CastWeight(torch.float16), inputs=torch.zeros(TOKENS)),
        lambda: seen(CastWeight(torch.float32), inputs=torch.zeros(TOKENS)),
    ),
    Planted(
        "promotion",
        "type-promotion",
        "",
        lambda: seen(Promotes(torch.float32), inputs=torch.zeros(TOKENS, dtype=torch.bfloat16)),
        lambda: seen(Promotes(torch.bfloat16), inputs=torch.zeros(TOKENS, dtype=torch.bfloat16)),
    ),
    case("clone", "needless-copy", "block", Wrapped(Copies("clone")), Wrapped(Copies("none")), TOKENS),
    case("clone, written to", "needless-copy", "block", Wrapped(Copies("clone")), Wrapped(Guarded()), TOKENS),
    case("contiguous", "needless-copy", "block", Wrapped(Copies("strided")), Wrapped(Flattened()), TOKENS),
    case("copied twice", "needless-copy", "block", Wrapped(Copies("twice")), Wrapped(Flattened()), TOKENS),
    case("positions", "recomputed-constant", "block", Wrapped(Positions(False)), Wrapped(Positions(True)), TOKENS),
    case("zeros", "recomputed-constant", "block", Wrapped(Positions(False)), Wrapped(Accumulates()), TOKENS),
    case("weight", "recomputed-weight", "weight", StandardisedWeight(False), StandardisedWeight(True), TOKENS),
    case("idle module", "unused-parameters", "aux", Head("module"), Head(None), (4, 8)),
    case("idle parameter", "unused-parameters", "scale", Head("parameter"), Experts(), (4, 8)),
    case(
        "restored",
        "dequantized-each-call",
        "block",
        Wrapped(RestoredWeight()),
        Wrapped(RestoredWeight(fused=True)),
        TOKENS,
    ),
    case(
        "small groups", "quantized-but-larger", "block", Wrapped(RestoredWeight(2)), Wrapped(RestoredWeight()), TOKENS
    ),
]
