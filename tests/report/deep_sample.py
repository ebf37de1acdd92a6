"""A capture made by hand whose modules are nested as deep as one likes, each holding nothing but the next."""

from __future__ import annotations

from tests.report.sample import ENVIRONMENT
from torchgauge.facts import (
    COUNTED,
    Capture,
    Cost,
    InputRecord,
    ModuleRecord,
    OpRecord,
    ParamRecord,
    RunRecord,
    Signature,
    TargetRecord,
    TensorSpec,
)

X, WEIGHT = TensorSpec((2, 8)), TensorSpec((8, 8))
LEVELS = 3000


def deep_capture(levels: int = LEVELS) -> Capture:
    """One matrix product, in the innermost module."""
    paths = [".".join(["0"] * depth) for depth in range(levels + 1)]
    kinds = ["Sequential"] * levels + ["Linear"]
    cost = Cost(macs=128, flops=256)
    signature = Signature("aten::mm", "default", "matmul", COUNTED, (), (X, WEIGHT), (X,), {}, cost, X.nbytes)
    weight = f"{paths[-1]}.weight"
    return Capture(
        target=TargetRecord("deep"),
        environment=ENVIRONMENT,
        created="2026-01-02T03:04:05+00:00",
        version="0.1.0",
        run=RunRecord("fake", None, "cpu", False, results=(0,)),
        inputs=(InputRecord("x", X, readers=((0, 0),)),),
        modules=tuple(
            ModuleRecord(path, kind, (), 1, 64, 64, 256, [X], X) for path, kind in zip(paths, kinds, strict=True)
        ),
        params=(ParamRecord(weight, WEIGHT, trainable=True),),
        ops=(OpRecord(0, signature, paths[-1], 64, (weight,), producers=(None, None)),),
    )
