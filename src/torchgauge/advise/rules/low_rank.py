"""A matrix as the product of two thin ones, where its spectrum allows it."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from torchgauge.advise.code import Patch
from torchgauge.advise.evidence import Evidence
from torchgauge.advise.matrices import matrices, whole_gain
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
        if not found or not found["rank"] or not matrix.is_multiplied:
            continue
        rank, elements, saved_params = found["rank"], matrix.row.elements, found["params_saved"]
        if saved_params < LEAST_SAVING * elements:
            continue
        full_rank = min(matrix.row.shape[0], prod(matrix.row.shape[1:]))
        saved = matrix.nbytes * saved_params / elements
        record = evidence.modules.get(matrix.module)
        is_linear = record is not None and record.type == "Linear" and bool(matrix.module)
        yield Advice(
            rule="low-rank",
            where=matrix.where,
            evidence={
                "rank": rank,
                "full_rank": full_rank,
                "relative_error": float(ERROR),
                "params_saved": saved_params,
                "params": elements,
            },
            recommendation="replace this layer by two: its weight is close to the product of two thin matrices",
            change=Patch(_FACTORS, ("path", "rank"), ((matrix.module, rank),)) if is_linear else None,
            expected_gain=whole_gain(
                evidence, saved, saved, "two factors instead of one matrix; multiplications decrease in proportion"
            ),
            risk="evaluate the outputs: only the error of the weight is measured",
            confidence="high" if rank * 4 <= full_rank else "medium",
        )
