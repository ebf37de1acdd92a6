"""A matrix as the product of two thin ones, where its spectrum allows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from torchgauge.advise.code import Patch
from torchgauge.advise.evidence import Evidence
from torchgauge.advise.matrices import Matrix, matrices, whole_gain
from torchgauge.advise.record import Advice
from torchgauge.advise.registry import rule

ERROR = "0.01"
# Two factors cost a second kernel: less than a quarter saved is not worth that.
LEAST_SAVING = 0.25


_FACTORS = """\
layer = model.get_submodule(path)
u, s, v = torch.linalg.svd(layer.weight.detach(), full_matrices=False)
first = torch.nn.Linear(layer.in_features, rank, bias=False)
second = torch.nn.Linear(rank, layer.out_features)
first.weight = torch.nn.Parameter(s[:rank, None] * v[:rank])
second.weight, second.bias = torch.nn.Parameter(u[:, :rank].contiguous()), layer.bias
model.set_submodule(path, torch.nn.Sequential(first, second))
"""


@rule("low-rank", family="factorisation")
def low_rank(evidence: Evidence) -> Iterator[Advice]:
    for matrix in matrices(evidence):
        found = matrix.figure("spectrum", "low_rank", ERROR)
        if (
            found
            and found["rank"]
            and matrix.is_multiplied
            and found["params_saved"] >= LEAST_SAVING * matrix.row.elements
        ):
            yield _advice(evidence, matrix, found)


def _advice(evidence: Evidence, matrix: Matrix, found: Mapping[str, Any]) -> Advice:
    rank, rows, columns = found["rank"], matrix.row.shape[0], prod(matrix.row.shape[1:])
    saved = matrix.nbytes * found["params_saved"] / matrix.row.elements
    return Advice(
        rule="low-rank",
        where=matrix.where,
        evidence={
            "rank": rank,
            "full_rank": min(rows, columns),
            "relative_error": float(ERROR),
            "params_saved": found["params_saved"],
            "params": matrix.row.elements,
        },
        recommendation="replace this layer by two: its weight is close to the product of two thin matrices",
        change=_two_layers(evidence, matrix, rank),
        expected_gain=whole_gain(
            evidence, saved, saved, "two factors instead of one matrix; multiplications fall alike"
        ),
        risk="one kernel more: small layers may get slower; the error of the outputs is not measured: evaluate",
        confidence="high" if rank * 4 <= min(rows, columns) else "medium",
    )


def _two_layers(evidence: Evidence, matrix: Matrix, rank: int) -> Patch | None:
    record = evidence.modules.get(matrix.module)
    is_linear = record is not None and record.type == "Linear" and bool(matrix.module)
    return Patch(_FACTORS, ("path", "rank"), ((matrix.module, rank),)) if is_linear else None
