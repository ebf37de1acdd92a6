"""Captures made by hand from a few lines: which op runs in which module and reads what which op made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.report.sample import ENVIRONMENT
from torchgauge.facts import (
    COUNTED,
    FREE,
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
    View,
)

X = TensorSpec((2, 8))
FLAT = TensorSpec((16,))
WEIGHT = TensorSpec((8, 8))

CATEGORIES = {"view": "view", "empty": "allocation", "addmm": "matmul", "add": "elementwise", "relu": "activation"}

# An op: its name, its module, what it reads: what an op made, an input of the model by its name, a constant (None).
Line = tuple[str, str, tuple[int | str | None, ...]]


def signature(op: str, reads: int, weights: int) -> Signature:
    category = CATEGORIES[op]
    inputs = (X,) * reads + (WEIGHT,) * weights
    outputs = (FLAT,) if op == "view" else (X,)
    cost = Cost(macs=1024, flops=2048) if op == "addmm" else Cost(flops=16 * (op in ("add", "relu")))
    status = FREE if category in ("view", "allocation") else COUNTED
    return Signature(f"aten::{op}", "default", category, status, (), inputs, outputs, {}, cost, 64)


def operation(index: int, line: Line) -> OpRecord:
    op, module, reads = line
    weights = (f"{module}.weight",) if op == "addmm" else ()
    producers = (*(read if isinstance(read, int) else None for read in reads), *(None for _ in weights))
    return OpRecord(index, signature(op, len(reads), len(weights)), module, 0, weights, producers=producers)


def module(path: str, type: str, calls: int = 1) -> ModuleRecord:
    params = 64 if type == "Linear" else 0
    return ModuleRecord(path, type, (), calls, params, params, 4 * params, (X,), X)


def readers_of(name: str, lines: Sequence[Line]) -> tuple[tuple[int, int], ...]:
    found = (
        (index, place) for index, (_, _, reads) in enumerate(lines) for place, read in enumerate(reads) if read == name
    )
    return tuple(found)


def graph_view(modules: Sequence[ModuleRecord], lines: Sequence[Line], *, inputs: Sequence[str] = ("x",)) -> View:
    linears = [record.path for record in modules if record.type == "Linear"]
    return View(
        Capture(
            target=TargetRecord("graph"),
            environment=ENVIRONMENT,
            created="2026-01-02T03:04:05+00:00",
            version="0.1.0",
            run=RunRecord("fake", None, "cpu", False),
            inputs=tuple(InputRecord(name, X, readers=readers_of(name, lines)) for name in inputs),
            modules=(module("", "Model"), *modules),
            params=tuple(ParamRecord(f"{path}.weight", WEIGHT, trainable=True) for path in linears),
            ops=tuple(operation(index, line) for index, line in enumerate(lines)),
        )
    )


def residual_view(blocks: int = 3) -> View:
    """Equal blocks in a list: relu(fc(x)) + x, with a relu of the model before and a linear layer behind them."""
    modules = [module("relu", "ReLU"), module("blocks", "ModuleList", calls=0)]
    lines: list[Line] = [("relu", "relu", ("x",))]
    for block in range(blocks):
        path, start = f"blocks.{block}", len(lines)
        modules += [module(path, "Block"), module(f"{path}.fc", "Linear"), module(f"{path}.act", "ReLU")]
        lines += [("addmm", f"{path}.fc", (start - 1,)), ("relu", f"{path}.act", (start,))]
        lines += [("add", path, (start + 1, start - 1))]
    modules.append(module("head", "Linear"))
    lines.append(("addmm", "head", (len(lines) - 1,)))
    return graph_view(modules, lines)


def looping_view(turns: int = 4) -> View:
    """One cell called several times, more often than is drawn apart: fc, then an op of the cell itself."""
    modules = [module("cell", "Cell", turns), module("cell.fc", "Linear", turns)]
    lines: list[Line] = []
    for turn in range(turns):
        start = len(lines)
        lines += [("addmm", "cell.fc", (start - 1 if turn else "x",)), ("add", "cell", (start, start))]
    return graph_view(modules, lines)


def shrinking_view() -> View:
    """One module called twice, with an op between: what it makes the second time is smaller."""
    lines: list[Line] = [("relu", "act", ("x",)), ("add", "", (0, 0)), ("relu", "act", (1,))]
    capture = graph_view([module("act", "ReLU", calls=2)], lines).capture
    last = replace(capture.ops[2], signature=replace(capture.ops[2].signature, outputs=(TensorSpec((1, 4)),)))
    return View(replace(capture, ops=(*capture.ops[:2], last), run=replace(capture.run, results=(2,))))
