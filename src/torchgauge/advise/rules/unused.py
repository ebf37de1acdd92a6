"""Parameters that do nothing: no op of the run reads them, or they are zero and what they multiply has no effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torchgauge.advise.code import Patch
from torchgauge.advise.evidence import Evidence
from torchgauge.advise.matrices import model_name
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.facts import OpRecord, ParamRecord, Row, enclosing_paths

_LEAST_SHARE = 0.005
_CONTAINERS = {"ModuleList", "ModuleDict", "ParameterList", "ParameterDict"}
_SCALING = {"aten::mul", "aten::div"}
_SUMS = {"aten::add", "aten::sub"}
_KEEP_ZEROS = _SCALING | {
    f"aten::{name}"
    for name in ("relu", "gelu", "silu", "tanh", "neg", "clone", "_to_copy", "native_dropout", "mean", "sum")
}
# Ops between a product with zeros and the sum that it does not change.
_MOST_BETWEEN = 8


@rule("unused-parameters", family="unused")
def unused_parameters(evidence: Evidence) -> Iterator[Advice]:
    if evidence.is_by_accident:
        return
    used = {weight for op in evidence.capture.ops for weight in op.weights}
    idle = [p for p in evidence.capture.params if not p.is_buffer and not used & {p.name, *p.aliases}] if used else []
    idle = [param for param in idle if not _is_overwritten(evidence, param)]
    # By the largest module around a parameter that is idle as a whole, otherwise by the parameter's name. A module that
    # is called does something without the parameter.
    groups: dict[str, list[ParamRecord]] = {}
    busy = {path for weight in used for path in enclosing_paths(weight)}
    for param in idle:
        place, path = param.name, param.module
        while path and path in evidence.modules and not evidence.modules[path].calls and path not in busy:
            place, path = path, path.rpartition(".")[0]
        groups.setdefault(place, []).append(param)
    for place, params in groups.items():
        nbytes = sum(param.spec.nbytes for param in params)
        share = min(nbytes / max(evidence.totals.param_bytes, 1), 1.0)
        if share < _LEAST_SHARE or _is_routed(evidence, place, used) or _is_looked_up_outside(evidence, place):
            continue
        if evidence.model is not None and evidence.model.is_read_otherwise(place):
            continue  # by `predict`, `generate` or the like, or with other arguments: not idle in every use
        is_module = place in evidence.modules
        thing = "module" if is_module else "parameter"
        if evidence.is_train:
            words = f"remove this {thing}: this training step does not use it"
            risk = "other inputs or another method may use it"
        else:
            words = f"leave this {thing} out for inference: this call does not read it"
            risk = "other inputs, another method or training may use it"
        yield Advice(
            rule="unused-parameters",
            where=Where(
                place if is_module else params[0].module,
                (),
                None if is_module else params[0].name,
                evidence.model.made_at(place) if evidence.model is not None else None,
            ),
            evidence={"parameters": [param.name for param in params], "unused_bytes": nbytes},
            recommendation=words,
            # A list or dictionary is also read by the code that goes through it.
            change=Patch("model.set_submodule(path, torch.nn.Identity())", ("path",), ((place,),))
            if is_module and evidence.modules[place].type not in _CONTAINERS
            else None,
            expected_gain=Gain("param_bytes", share, share, "their bytes over those of all parameters"),
            risk=risk,
            confidence="medium",
        )


@rule("unregistered-layers", family="bugs")
def unregistered_layers(evidence: Evidence) -> Iterator[Advice]:
    """Layers in a plain list or dictionary, which `parameters()` and `state_dict()` do not have."""
    for name, kind in evidence.model.unregistered_layers().items() if evidence.model is not None else ():
        yield Advice(
            rule="unregistered-layers",
            where=Where(name.rpartition(".")[0], (), None, evidence.model.made_at(name) if evidence.model else None),
            evidence={"attribute": name},
            recommendation=f"put these layers in nn.{kind}: they are neither trained, nor saved, nor moved to a device",
            change=None,
            expected_gain=None,
            risk="older checkpoints do not have these layers",
            confidence="high",
            kind="bug",
        )


def _is_overwritten(evidence: Evidence, param: ParamRecord) -> bool:
    """Whether it belongs to a layer of torch's that is called, and must have read it: with values that forward has
    assigned to `weight.data`, which the ops read in its place."""
    record = evidence.modules.get(param.module)
    is_called = record is not None and record.calls > 0 and record.type.startswith(("Linear", "Conv"))
    return is_called and evidence.model is not None and evidence.model.is_torch_layer(param.module)


def _is_routed(evidence: Evidence, place: str, used: set[str]) -> bool:
    """One of several equal modules or parameters among which the data or a setting choose: idle in this run, not in
    all."""
    around = evidence.modules.get(place.rpartition(".")[0])
    if around is None or around.type not in _CONTAINERS:
        return False
    if place not in evidence.modules:
        shape = evidence.params[place].spec.shape
        return any(
            param.name in used and param.spec.shape == shape
            for param in evidence.capture.params
            if param.module == around.path
        )
    kind = evidence.modules[place].type
    siblings = [each.path for each in evidence.capture.modules if each.parent == around.path and each.type == kind]
    return any(name.startswith(tuple(f"{path}." for path in siblings)) for name in used)


def _is_looked_up_outside(evidence: Evidence, place: str) -> bool:
    """The table of a model that was given embeddings in place of tokens, and that hands its table to the caller."""
    if place not in evidence.modules or evidence.modules[place].type != "Embedding" or evidence.model is None:
        return False
    return not evidence.flow.of_category("embedding") and evidence.model.has(place, "get_input_embeddings")


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
        if not all(_is_added(evidence, op) for op in users):
            continue
        added = "nothing" if all(_makes_zeros(rows, op, name) for op in users) else "only its bias"
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
            recommendation=f"load or train this parameter, or remove its branch: it is zero and adds {added}",
            change=None,
            expected_gain=Gain("param_bytes", min(nbytes / whole, 1.0), min(nbytes / whole, 1.0), "the idle parts"),
            risk="none for this output; other code may set the parameter",
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


def _makes_zeros(rows: Mapping[str, Row], op: OpRecord, name: str) -> bool:
    """Whether no bias is added to the product with zeros."""
    others = [rows[weight] for weight in op.weights if weight != name and weight in rows]
    return all(row.get("abs_max") == 0 for row in others if row.role == "parameter" and len(row.shape or ()) == 1)


def _is_added(evidence: Evidence, op: OpRecord) -> bool:
    """Whether zeros stay zeros until they are added to something or given back: of scores, offsets and exponents that
    are zero something is made."""
    for _ in range(_MOST_BETWEEN):
        users = evidence.flow.users(op)
        if not users or evidence.flow.is_result(op) or all(user.op.rstrip("_") in _SUMS for user in users):
            return all(len(user.producers) == 2 for user in users)
        if len(users) > 1 or users[0].op.rstrip("_") not in _KEEP_ZEROS:
            return False
        op = users[0]
    return False


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
