"""Work that gives the same result at every call."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

from torchgauge.advise.evidence import Evidence, moved
from torchgauge.advise.record import Advice, Where
from torchgauge.advise.registry import rule
from torchgauge.facts import OpRecord

_MAKERS = {
    "aten::arange", "aten::linspace", "aten::eye", "aten::ones", "aten::zeros", "aten::full", "aten::tril_indices",
    "aten::triu_indices", "aten::scalar_tensor", "aten::logspace",
}  # fmt: skip
# Alone these are a place to write to, as often as a constant.
_PLAIN = {"aten::ones", "aten::zeros", "aten::full", "aten::scalar_tensor"}


@rule("recomputed-constant", family="constants")
def recomputed_constant(evidence: Evidence) -> Iterator[Advice]:
    """Positions, masks and tables that depend on shapes alone."""
    groups = _by_module(_closure(evidence, lambda op, held: op.op in _MAKERS))
    found = {module: ops for module, ops in groups.items() if not all(op.op in _PLAIN for op in ops)}
    for module, ops in found.items():
        yield Advice(
            rule="recomputed-constant",
            where=Where(module, tuple(op.index for op in ops)),
            evidence={"ops": len(ops), "made_by": sorted({op.op for op in ops}), "bytes_moved": sum(map(moved, ops))},
            recommendation="make the constant once, in __init__, and keep it as a buffer: it depends on shapes alone",
            code="self.register_buffer('constant', constant, persistent=False)  # in __init__",
            expected_gain=evidence.share(ops).gain(0.8, 1.0, "these ops go away"),
            risk="a buffer has a fixed size: make it for the largest shape and slice it",
            confidence="high",
        )


@rule("recomputed-weight", family="constants")
def recomputed_weight(evidence: Evidence) -> Iterator[Advice]:
    """In inference what is computed from parameters alone does not change."""
    if evidence.is_train:
        return
    groups = _by_module(_closure(evidence, _reads_weights_alone))
    # A cast alone has a rule of its own.
    found = {module: ops for module, ops in groups.items() if not all(op.op == "aten::_to_copy" for op in ops)}
    for module, ops in found.items():
        weights = sorted({weight for op in ops for weight in op.weights})
        yield Advice(
            rule="recomputed-weight",
            where=Where(module, tuple(op.index for op in ops), weights[0] if len(weights) == 1 else None),
            evidence={"ops": len(ops), "weights": weights, "bytes_moved": sum(map(moved, ops))},
            recommendation="compute it from the parameters once before inference: no input has a part in it",
            code=_settle_code(module),
            expected_gain=evidence.share(ops).gain(0.8, 1.0, "these ops go away"),
            # One pass does not tell what the model keeps for the next.
            risk="for inference only; nothing is gained where the model keeps it after its first call",
            confidence="medium",
        )


def _settle_code(module: str) -> str | None:
    """Of torch's parametrizations (weight norm, spectral norm); what a forward computes only its author can move."""
    owner, found, rest = module.partition(".parametrizations.")
    if not found:
        return None
    name = rest.partition(".")[0]
    return f"torch.nn.utils.parametrize.remove_parametrizations(model.get_submodule({owner!r}), {name!r})"


def _closure(evidence: Evidence, is_root: Callable[[OpRecord, Container[int | None]], bool]) -> list[OpRecord]:
    """The roots and what is made from them alone, without what others write into."""
    held: dict[int | None, OpRecord] = {}
    for op in evidence.flow.steps:
        sources = op.producers
        # Most ops end here.
        derived = bool(sources) and sources[0] in held and not op.weights and all(source in held for source in sources)
        if derived or is_root(op, held):
            held[op.index] = op
        elif op.op.endswith("_") and sources and sources[0] is not None:
            held.pop(sources[0], None)
    return list(held.values())


def _reads_weights_alone(op: OpRecord, held: Container[int | None]) -> bool:
    """Every input is a parameter or made from some; the indices of a lookup are not."""
    if not op.weights or op.op.endswith("_"):
        return False
    made = [source for source in op.producers if source is not None]
    return len(op.producers) - len(made) <= len(set(op.weights)) and all(source in held for source in made)


def _by_module(ops: list[OpRecord]) -> dict[str, list[OpRecord]]:
    found: dict[str, list[OpRecord]] = {}
    for op in ops:
        found.setdefault(op.module, []).append(op)
    return found
