"""Equal matrices that are kept twice: in the memory of a model, or in a file."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torchgauge.advise.code import Patch
from torchgauge.advise.evidence import Evidence
from torchgauge.advise.matrices import Matrix, matrices, model_name
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.facts import ParamRecord, Row

_TABLES_AND_LAYERS = ("Embedding", "Linear")


@rule("tied-weights", family="sharing")
def tied_weights(evidence: Evidence) -> Iterator[Advice]:
    """Of a model in memory; for a file there is `duplicate-tensors`."""
    if evidence.capture.stored is not None:
        return
    copies = list(_copies(evidence))
    side_by_side = {
        pair for matrix, original in copies if (pair := _owners(matrix.name, original)) and _read_alike(evidence, *pair)
    }
    for matrix, original in copies:
        # Blocks made as copies of one start out equal, and are meant to differ; side by side they compute the same.
        is_same_layer = re.sub(r"\d+", "#", matrix.name) == re.sub(r"\d+", "#", original)
        if is_same_layer and _owners(matrix.name, original) not in side_by_side:
            continue
        share = matrix.nbytes / max(evidence.totals.param_bytes, 1)
        module, _, name = matrix.name.rpartition(".")
        yield Advice(
            rule="tied-weights",
            where=matrix.where,
            evidence={"same_values_as": original, "bytes": matrix.nbytes},
            recommendation="share one parameter: these hold the same values, bit for bit",
            change=Patch(
                "setattr(model.get_submodule(path), name, model.get_parameter(original))",
                ("path", "name", "original"),
                ((module, name, original),),
            ),
            expected_gain=Gain("param_bytes", share, share, "the bytes of the copy"),
            risk="none for inference; further training keeps them equal",
            confidence="high",
        )


@rule("duplicate-tensors", family="file")
def duplicate_tensors(evidence: Evidence) -> Iterator[Advice]:
    for matrix, original in _copies(evidence) if evidence.capture.stored is not None else ():
        share = min(matrix.nbytes / max(evidence.totals.stored_bytes, 1), 1.0)
        yield Advice(
            rule="duplicate-tensors",
            where=matrix.where,
            evidence={"same_values_as": original, "bytes": matrix.nbytes, "file": matrix.row.file},
            recommendation="store these values once: tie the parameters before saving (safetensors: omit one name)",
            change=None,
            expected_gain=Gain("stored_bytes", share, share, "the bytes of the copy"),
            risk="code that loads the file must know both names",
            confidence="high",
        )


@rule("repeated-buffers", family="sharing")
def repeated_buffers(evidence: Evidence) -> Iterator[Advice]:
    """The same table or mask in a buffer of every layer; not codebooks and the like, which start out equal."""
    rows = [row for row in evidence.weight_rows.values() if row.role == "buffer" and row.shared_with is None]
    copies = [
        (model_name(row), str(row.name), int(row.bytes), str(row.duplicate_of))
        for row in rows
        if row.get("duplicate_of") and row.elements > 1
    ]
    if not rows and evidence.model is not None:  # of a live model whose values were not read
        equal, params = evidence.model.equal_buffers(), evidence.params
        copies = [(name, name, params[name].spec.nbytes, equal[name]) for name in equal if name in params]
    copies = [
        (name, weight, size, original)
        for name, weight, size, original in copies
        if name.rpartition(".")[0] != original.rpartition(".")[0]
        and not (evidence.model is not None and evidence.model.is_written(name))
    ]
    stored = evidence.totals.stored_bytes if evidence.capture.stored is not None else None
    whole = max(stored or (evidence.totals.param_bytes or 0) + (evidence.totals.buffer_bytes or 0), 1)
    nbytes = sum(size for _, _, size, _ in copies)
    if copies:
        name, weight, _, original = max(copies, key=lambda copy: copy[2])
        quantity = "param_bytes" if evidence.capture.stored is None else "stored_bytes"
        share = min(nbytes / whole, 1.0)
        yield Advice(
            rule="repeated-buffers",
            where=Where(
                name.rpartition(".")[0],
                (),
                weight,
                evidence.model.made_at(name) if evidence.model is not None else None,
            ),
            evidence={"buffers": len(copies), "bytes": nbytes, "same_values_as": original},
            recommendation="keep one buffer for all layers and pass it on: each layer holds the same values",
            change=None,
            expected_gain=Gain(
                quantity, share, share, "the bytes of the copies, of parameters and buffers together", amount=nbytes
            ),
            risk="a checkpoint with the old names needs strict=False",
            confidence="high",
        )


def _copies(evidence: Evidence) -> Iterator[tuple[Matrix, str]]:
    """Constant matrices are equal by chance of their initialisation."""
    for matrix in matrices(evidence):
        original = matrix.figure("duplicate_of")
        if original is not None and not matrix.is_constant:
            yield matrix, str(original)
    if evidence.weight_rows or evidence.model is None:
        return
    # Of a live model whose values were not read: a table and a layer are never equal by chance, nor as copies of a
    # module that are meant to differ.
    first: dict[tuple[object, ...], ParamRecord] = {}
    for param in evidence.capture.params:
        owner = evidence.modules.get(param.module)
        if param.is_buffer or owner is None or owner.type not in _TABLES_AND_LAYERS or len(param.spec.shape) != 2:
            continue
        known = first.setdefault((param.spec.shape, param.spec.dtype), param)
        is_other = evidence.modules[known.module].type != owner.type
        if is_other and evidence.model.are_equal([(param.name, known.name)]):
            row = Row(name=param.name, bytes=param.nbytes)
            yield Matrix(row, param.name, tuple(evidence.weight_users.get(param.name, ()))), known.name


def _owners(name: str, other: str) -> tuple[str, str] | None:
    """The paths of the two modules that differ in a number: experts.0 and experts.1 of experts.1.up.weight."""
    parts, others = name.split("."), other.split(".")
    if len(parts) != len(others):
        return None
    at = next((at for at, (part, its) in enumerate(zip(parts, others, strict=True)) if part != its), None)
    return None if at is None else (".".join(parts[: at + 1]), ".".join(others[: at + 1]))


def _read_alike(evidence: Evidence, *owners: str) -> bool:
    """Whether the modules read the same tensor, whole or in part."""
    read: list[set[object]] = []
    for owner in owners:
        ops = [op for op in evidence.flow.steps if op.module == owner or op.module.startswith(f"{owner}.")]
        inside = {op.index for op in ops}
        bases = (evidence.dataflow.base(op, at) for op in ops for at in range(len(op.producers)))
        read.append({base[0] for base in bases if base is not None and base[0] not in inside})
    return bool(read[0] & read[1])
