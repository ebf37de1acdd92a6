"""Equal matrices that are kept twice: in the memory of a model, or in a file."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torchgauge.advise.evidence import Evidence
from torchgauge.advise.matrices import Matrix, matrices
from torchgauge.advise.record import Advice, Gain
from torchgauge.advise.registry import rule


@rule("tied-weights", family="sharing")
def tied_weights(evidence: Evidence) -> Iterator[Advice]:
    """Of a model in memory; a file's duplicates are told as such."""
    if evidence.capture.stored is None:
        for matrix, original in _copies(evidence):
            if not _is_same_layer(matrix.name, original):
                yield _tie(evidence, matrix, original)


@rule("duplicate-tensors", family="file")
def duplicate_tensors(evidence: Evidence) -> Iterator[Advice]:
    if evidence.capture.stored is not None:
        for matrix, original in _copies(evidence):
            yield _store_once(evidence, matrix, original)


def _copies(evidence: Evidence) -> Iterator[tuple[Matrix, str]]:
    """Constant matrices are equal by chance of their initialisation."""
    for matrix in matrices(evidence):
        original = matrix.figure("duplicate_of")
        if original is not None and not matrix.is_constant:
            yield matrix, str(original)


def _is_same_layer(name: str, other: str) -> bool:
    """Blocks made as copies of one start out equal, and are meant to differ."""
    return re.sub(r"\d+", "#", name) == re.sub(r"\d+", "#", other)


def _tie(evidence: Evidence, matrix: Matrix, original: str) -> Advice:
    share = matrix.nbytes / max(evidence.totals.param_bytes, 1)
    module, _, name = matrix.name.rpartition(".")
    return Advice(
        rule="tied-weights",
        where=matrix.where,
        evidence={"same_values_as": original, "bytes": matrix.nbytes},
        recommendation="share one parameter: these hold the same values, bit for bit",
        code=f"setattr(model.get_submodule({module!r}), {name!r}, model.get_parameter({original!r}))",
        expected_gain=Gain("param_bytes", share, share, "the bytes of the copy"),
        risk="none for inference; trained on, they stay equal, which they did not have to before",
        confidence="high",
    )


def _store_once(evidence: Evidence, matrix: Matrix, original: str) -> Advice:
    share = matrix.nbytes / max(evidence.totals.stored_bytes, 1)
    return Advice(
        rule="duplicate-tensors",
        where=matrix.where,
        evidence={"same_values_as": original, "bytes": matrix.nbytes, "file": matrix.row.file},
        recommendation="store these values once: tie the parameters before saving (safetensors: leave one name out)",
        code=f"state[{matrix.row.name!r}] = state[{original!r}]; torch.save(state, path)",
        expected_gain=Gain("stored_bytes", min(share, 1.0), min(share, 1.0), "the bytes of the copy"),
        risk="code that loads the file must know both names",
        confidence="high",
    )
