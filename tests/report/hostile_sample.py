"""A run in which every text that can come from a model or a file is hostile to some format."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from tests.report.energy_sample import estimated_energy
from tests.report.measured_sample import figures as measured_figures
from tests.report.sample import HIDDEN, sample_capture
from tests.report.weights_sample import figures as weight_figures
from torchgauge.facts import (
    ArchitectureRecord,
    Capture,
    Environment,
    InputRecord,
    Measured,
    ModuleRecord,
    OpRecord,
    ParamRecord,
    PickleImport,
    RunRecord,
    StoredRecord,
    StoredTensor,
    TargetRecord,
    TensorSpec,
    View,
    WeightStatistics,
)

LONG = "x" * 10_000
# No points: in a path they part a module from its parent.
NAMES = (
    "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<!-- -->", "]]>", "&lt;&#60;&amp",
    "a\"b'c`d`", "\u202eevil\u202c\u200f", "back\\slash\\", "100%", "\\input{/etc/passwd}", "\\end{tabular}", "{braces",
    "^^M $x^2$ #1 & _y_ ~z", "=cmd()", "=cmd|' /C calc'!A0", "+1;=2", "-3", "@SUM(A1)", "\uff1d1", "\t=1", "\r=1",
    " =1", "| a | b |", "a\\|b", "*bold* __x__", "[b](http://x)", "[b]", "*", "line\nbreak\r\nnul\x00", "\ud800",
    "\ufffe\ufdd0", "\x1b[31mred", "名前 é ß 💥", ":smile: @user #1", "digraph { a -> b }", "\\N\\l", LONG,
)  # fmt: skip


def hostile_capture() -> Capture:
    capture = sample_capture()
    every = " ".join(NAMES[:-1])
    evil = ParamRecord("a", TensorSpec((2, 2)), trainable=True)
    operation = capture.ops[3]
    ops = tuple(
        OpRecord(
            index,
            replace(operation.signature, op=f"my::{name}", overload=name, attributes={name: [name]}, tags=(name,)),
            name,
            64,
            (f"{name}.weight",),
            source=name,
        )
        for index, name in enumerate(NAMES)
    )
    return replace(
        capture,
        target=TargetRecord(every, "module", every, NAMES, {name: name for name in NAMES}),
        environment=Environment(every, every, every, every, 1, 1, 1, {name: name for name in NAMES}),
        created=every,
        version=every,
        run=RunRecord("real", every, every, False, NAMES),
        inputs=tuple(InputRecord(name, HIDDEN, name) for name in NAMES),
        modules=(ModuleRecord("", every, params=len(NAMES) * 4), *map(_module, NAMES)),
        params=tuple(replace(evil, name=f"{name}.weight", aliases=(name,)) for name in NAMES),
        ops=ops,
        stored=_stored(),
        statistics=WeightStatistics({f"{name}.weight": _figures(name) for name in NAMES}, {}, ((every, every),)),
        architecture=ArchitectureRecord(every, dict.fromkeys(NAMES, 1), {name: name for name in NAMES}),
        measured=Measured(
            cast(Any, measured_figures(replace(capture, ops=ops)) | {"device": every, "notes": list(NAMES)})
        ),
        energy=estimated_energy().capture.energy,
        advice=tuple(map(_advice, NAMES)),
    )


def _module(name: str) -> ModuleRecord:
    return ModuleRecord(name, name, (name,), 1, 4, 4, 16, {name: HIDDEN}, [name])


def _stored() -> StoredRecord:
    spec = TensorSpec((2, 2))
    tensors = tuple(StoredTensor(f"{name}.weight", spec, 16, name, 0, module=name, module_type=name) for name in NAMES)
    imports = tuple(PickleImport(name, "dangerous", True) for name in NAMES)
    return StoredRecord(tensors, imports, tuple((name, name) for name in NAMES))


def _figures(name: str) -> Any:
    return weight_figures(recommendations=[name]) | {name: 1}


def _advice(name: str) -> Any:
    return {
        "rule": name,
        "where": {"module": name, "ops": [0], "weight": name},
        "evidence": {name: name, "count": 2, "texts": [name]},
        "recommendation": name,
        "code": f"{name}\n{name}",
        "expected_gain": {"quantity": name, "low": 0.1, "high": 0.2},
        "risk": name,
        "confidence": name,
        "verified": None,
    }


def hostile_view() -> View:
    return View(hostile_capture())
