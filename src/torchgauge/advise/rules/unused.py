"""Parameters that no op of the run reads."""

from __future__ import annotations

from collections.abc import Iterator

from torchgauge.advise.code import Patch
from torchgauge.advise.evidence import Evidence
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.facts import ParamRecord

_LEAST_SHARE = 0.005
_CONTAINERS = {"ModuleList", "ModuleDict"}


@rule("unused-parameters", family="unused")
def unused_parameters(evidence: Evidence) -> Iterator[Advice]:
    used = {weight for op in evidence.capture.ops for weight in op.weights}
    if not used:
        return
    idle = [p for p in evidence.capture.params if not p.is_buffer and not used & {p.name, *p.aliases}]
    groups: dict[str, list[ParamRecord]] = {}
    for param in idle:
        groups.setdefault(_topmost(evidence, param, used), []).append(param)
    for place, params in groups.items():
        share = sum(param.spec.nbytes for param in params) / max(evidence.totals.param_bytes, 1)
        if share >= _LEAST_SHARE and not _is_routed(evidence, place):
            yield _advice(evidence, place, params)


def _advice(evidence: Evidence, place: str, params: list[ParamRecord]) -> Advice:
    nbytes = sum(param.spec.nbytes for param in params)
    share = min(nbytes / max(evidence.totals.param_bytes, 1), 1.0)
    is_module = place in evidence.modules
    thing = "module" if is_module else "parameter"
    words = (
        f"remove the {thing}: this training step does not use it"
        if evidence.is_train
        else f"leave the {thing} out of what is deployed: inference does not read it"
    )
    return Advice(
        rule="unused-parameters",
        where=Where(
            place if is_module else params[0].module,
            (),
            None if is_module else params[0].name,
            evidence.model.made_at(place) if evidence.model is not None else None,
        ),
        evidence={"parameters": [param.name for param in params], "unused_bytes": nbytes},
        recommendation=words,
        change=Patch("model.set_submodule(path, torch.nn.Identity())", ("path",), ((place,),)) if is_module else None,
        expected_gain=Gain("param_bytes", share, share, "their bytes over those of all parameters"),
        risk="other inputs, another method or, after inference, training may use it"
        if not evidence.is_train
        else "other inputs or another method may use it",
        confidence="medium",
    )


def _topmost(evidence: Evidence, param: ParamRecord, used: set[str]) -> str:
    """The path of the largest module around it that is idle as a whole, else the parameter's name."""
    place, path = param.name, param.module
    while path and path in evidence.modules and not _is_used(path, used):
        place, path = path, path.rpartition(".")[0]
    return place


def _is_used(path: str, used: set[str]) -> bool:
    return any(weight.startswith(f"{path}.") for weight in used)


def _is_routed(evidence: Evidence, place: str) -> bool:
    """One of several equal modules of which data choose: idle in this run, not in all."""
    parent = evidence.modules.get(place.rpartition(".")[0]) if place in evidence.modules else None
    if parent is None or parent.type not in _CONTAINERS:
        return False
    kind = evidence.modules[place].type
    siblings = (record for record in evidence.capture.modules if record.parent == parent.path)
    return any(record.calls and record.type == kind for record in siblings)
