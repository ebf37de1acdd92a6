"""A capture of any size made by hand: blocks of equal modules, and a few ops in each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torchgauge.facts import (
    COUNTED,
    MEASURED,
    Capture,
    Cost,
    EnergyFacts,
    Environment,
    InputRecord,
    Measured,
    ModuleRecord,
    OpRecord,
    RunRecord,
    Signature,
    TargetRecord,
    TensorSpec,
    View,
    blank_measurements,
)

KINDS = (("fc", "Linear", "aten::addmm", "matmul"), ("norm", "LayerNorm", "aten::native_layer_norm", "normalization"))
OPS_PER_BLOCK = 2 * len(KINDS)
LARGE_BLOCKS = 5_000
ENVIRONMENT = Environment("3.11.7", "2.13.0", "Linux-x86_64", "A CPU", 8, 2**34, 4, {})


def large_view(blocks: int) -> View:
    """1 + 3·blocks modules, 4·blocks ops; block b has b + 1 times the parameters and MACs of block 0."""
    return View(
        Capture(
            target=TargetRecord("large"),
            environment=ENVIRONMENT,
            created="2026-01-02T03:04:05+00:00",
            version="0.1.0",
            run=RunRecord("fake", None, "cpu", False),
            inputs=(InputRecord("x", TensorSpec((1, 8))),),
            modules=_modules(blocks),
            params=(),
            ops=tuple(_op(index) for index in range(OPS_PER_BLOCK * blocks)),
        )
    )


def measured_large_view(blocks: int) -> View:
    """The same with a different time and energy for every module and op, none with few digits."""
    capture = large_view(blocks).capture
    joules: Any = {"origin": MEASURED, "joules": 1 / 3, "reason": None, "meters": [], "notes": []}
    ops: Any = {op.index: _op_times(op.index) for op in capture.ops}
    modules: Any = {record.path: _module_times(place) for place, record in enumerate(capture.modules)}
    energy = EnergyFacts(
        joules,
        {path: {"energy_j": times["time_s"] * 7} for path, times in modules.items()},
        {index: {"energy_j": times["time_s"] * 7} for index, times in ops.items()},
    )
    return View(replace(capture, measured=Measured(blank_measurements(), modules, ops), energy=energy))


def _op_times(index: int) -> dict[str, Any]:
    time_s = 1e-6 / (3 + index % 7919)
    names = ("cpu_time_s", "flops_per_s", "bytes_per_s", "roof_share")
    return {"time_s": time_s, "bound": "launch", **{name: time_s * (place + 2) / 3 for place, name in enumerate(names)}}


def _module_times(place: int) -> dict[str, Any]:
    time_s = 1e-5 / (3 + place)
    return {"time_s": time_s, "self_time_s": time_s / 3, "time_share": time_s * 11 / 3}


def _modules(blocks: int) -> tuple[ModuleRecord, ...]:
    total = sum(2 * (block + 1) for block in range(blocks))
    records = [ModuleRecord("", "Large", calls=1, params=total, param_bytes=4 * total)]
    for block in range(blocks):
        size = block + 1
        records.append(ModuleRecord(f"{block}", "Block", calls=1, params=2 * size, param_bytes=8 * size))
        records += [
            ModuleRecord(f"{block}.{name}", kind, calls=1, params=size, param_bytes=4 * size)
            for name, kind, _, _ in KINDS
        ]
    return tuple(records)


def _op(index: int) -> OpRecord:
    block, place = divmod(index, OPS_PER_BLOCK)
    name, _, op, category = KINDS[place // 2]
    spec, size = TensorSpec((1, 8, block + 1)), block + 1
    cost = Cost(macs=size, flops=2 * size, bytes_read=4 * size, bytes_written=4 * size)
    signature = Signature(op, "default", category, COUNTED, (), (spec,), (spec,), {}, cost, 4 * size)
    return OpRecord(index, signature, f"{block}.{name}", live_bytes=100 * size)
