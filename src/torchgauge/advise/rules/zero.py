"""Parameters that are zero: what they multiply has no effect on the output."""

from __future__ import annotations

from collections.abc import Iterator

from torchgauge.advise.evidence import Evidence
from torchgauge.advise.matrices import model_name
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.facts import OpRecord

_SCALING = {"aten::mul", "aten::div"}


@rule("zero-parameters", family="unused")
def zero_parameters(evidence: Evidence) -> Iterator[Advice]:
    """A layer scale, the weight of a norm or of a layer whose values are all zero. Before training that is how many
    residual branches start, after it the branch was never trained or never loaded."""
    rows = {model_name(row): row for row in evidence.weight_rows.values()}
    zero = [
        name
        for name, row in rows.items()
        if row.role == "parameter" and row.get("abs_max") == 0 and row.elements > 1 and row.shared_with is None
    ]
    whole = max(evidence.totals.param_bytes or 0, 1)
    for name in zero:
        users = [op for op in evidence.weight_users.get(name, ()) if _multiplies(evidence, op, name)]
        if not users or len(users) != len(evidence.weight_users[name]):
            continue  # a bias, or a file without code
        # A batch norm without collected statistics is untrained, and ResNets initialise some norms with zeros.
        mean = rows.get(f"{name.rpartition('.')[0]}.running_mean")
        if mean is not None and mean.get("abs_max") == 0:
            continue
        idle = _without_effect(evidence, users)
        names = {name} | {weight for op in idle for weight in op.weights}
        names = {
            each for each in names if {op.index for op in evidence.weight_users[each]} <= {op.index for op in idle}
        }
        nbytes = sum(evidence.params[each].nbytes for each in names if each in evidence.params)
        yield Advice(
            rule="zero-parameters",
            where=Where(
                users[0].module,
                tuple(op.index for op in users),
                str(rows[name].name),
                evidence.model.made_at(name) if evidence.model is not None else None,
            ),
            evidence={"parameters": sorted(names)[:8], "bytes": nbytes, "ops_without_effect": len(idle)},
            recommendation="this parameter is zero, so its branch adds nothing: usual before training; in a trained "
            "model load it, train it or remove the branch",
            change=None,
            expected_gain=Gain("param_bytes", min(nbytes / whole, 1.0), min(nbytes / whole, 1.0), "what it makes idle"),
            risk="none: the output does not depend on these parameters as they are",
            confidence="medium",
        )


def _multiplies(evidence: Evidence, op: OpRecord, name: str) -> bool:
    """Whether what is computed is the same for every input if the parameter is zero: a bias only adds."""
    shape = evidence.params[name].spec.shape if name in evidence.params else ()
    if op.cost.macs:
        return len(shape) > 1
    if op.category == "normalization":
        vectors = [
            weight for weight in op.weights if weight in evidence.params and evidence.params[weight].spec.shape == shape
        ]
        return bool(vectors) and vectors[0] == name and not name.endswith("bias")
    return op.op.rstrip("_") in _SCALING


def _without_effect(evidence: Evidence, users: list[OpRecord]) -> list[OpRecord]:
    """The ops that multiply with zeros, and those before whose results nothing else reads."""
    found = {op.index: op for op in users}
    todo = list(users)
    while todo:
        for source in evidence.flow.sources(todo.pop()):
            readers = evidence.flow.users(source)
            is_read = any(reader.index not in found for reader in readers) or evidence.flow.is_result(source)
            if source.index not in found and not is_read:
                found[source.index] = source
                todo.append(source)
    return list(found.values())
