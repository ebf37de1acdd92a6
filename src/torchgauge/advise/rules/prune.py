"""Weights that could go: single ones, two of four, whole rows and columns; and what the hardware makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from torchgauge.advise.code import Patch
from torchgauge.advise.evidence import Evidence
from torchgauge.advise.matrices import Matrix, matrices, whole_gain
from torchgauge.advise.record import Advice
from torchgauge.advise.registry import rule
from torchgauge.facts import TensorSpec

# The relative error (L2) that removing may leave.
ERROR = "0.01"
# A format for sparse matrices stores a column index of 4 bytes for each value, and 8 bytes for each row.
INDEX_BYTES, ROW_BYTES = 4, 8
# Sparse kernels and formats are a burden: less than half saved does not carry it.
SPARSE_SAVING = 0.5
# Half of normally distributed values, the larger ones of each four, hold about 87 % of the energy.
TWO_FOUR_ENERGY = 0.99
# Of the rows of a dense tensor hardly any are removable; of a few rows one is chance.
REMOVABLE_ROWS, LEAST_ROWS = 0.05, 16
_SIDES = {"rows": "outputs", "columns": "inputs", "channels": "input channels", "heads": "attention heads"}


_IMPORT = "from torch.nn.utils import prune\n"
_TWO_FOUR = """\
layer = model.get_submodule(path)
weight = getattr(layer, name).detach()
fours = weight.reshape(-1, 4)
small = fours.abs().topk(2, largest=False).indices
weight = fours.scatter(1, small, 0.0).view_as(weight)
sparse = torch.sparse.to_sparse_semi_structured(weight.half().cuda())
setattr(layer, name, torch.nn.Parameter(sparse))
"""


@rule("unstructured-pruning", family="pruning")
def unstructured_pruning(evidence: Evidence) -> Iterator[Advice]:
    for matrix in matrices(evidence):
        removable = matrix.figure("pruning", "magnitude", ERROR) or 0.0
        share = max(removable, matrix.row.sparsity)
        after = _sparse_bytes(matrix, share)
        if share < 1 and matrix.is_multiplied and after <= (1 - SPARSE_SAVING) * matrix.nbytes:
            yield _unstructured(evidence, matrix, share, after)


@rule("two-four-sparsity", family="pruning")
def two_four_sparsity(evidence: Evidence) -> Iterator[Advice]:
    for matrix in matrices(evidence):
        energy = matrix.figure("pruning", "two_four_energy")
        if energy is not None and energy >= TWO_FOUR_ENERGY and _is_linear(matrix):
            yield _two_four(evidence, matrix, energy)


@rule("structured-pruning", family="pruning")
def structured_pruning(evidence: Evidence) -> Iterator[Advice]:
    for matrix in matrices(evidence):
        for side in _SIDES:
            share = matrix.figure("pruning", side, ERROR)
            if share is not None and _is_worthwhile(matrix, side, share):
                yield _structured(evidence, matrix, side, share)
                break


@rule("dead-rows", family="pruning")
def dead_rows(evidence: Evidence) -> Iterator[Advice]:
    for matrix in matrices(evidence):
        dead = matrix.figure("dead_rows") or 0
        rows = matrix.row.shape[0]
        # The row of a padding token is dead on purpose, and a matrix of zeros was never trained.
        if dead > matrix.is_table and rows // 100 < dead < rows:
            yield _dead(evidence, matrix, dead)


def _is_linear(matrix: Matrix) -> bool:
    rows, columns = matrix.row.shape[0], matrix.row.shape[-1]
    # The shapes sparse tensor cores take.
    return len(matrix.row.shape) == 2 and matrix.is_multiplied and rows % 16 == 0 and columns % 16 == 0


def _is_worthwhile(matrix: Matrix, side: str, share: float) -> bool:
    """Dead rows and columns have advice of their own, or are what a dead row before leaves."""
    size = {"rows": matrix.row.shape[0], "columns": prod(matrix.row.shape[1:])}.get(side)
    dead = (matrix.figure(f"dead_{side}") or 0) / size if size else 0.0
    is_large = size is None or size >= LEAST_ROWS
    return is_large and matrix.is_multiplied and share < 1 and share - dead >= REMOVABLE_ROWS


def _place(matrix: Matrix) -> tuple[str, str]:
    return matrix.module, matrix.attribute


def _sparse_bytes(matrix: Matrix, share: float) -> int:
    item = TensorSpec((), matrix.row.dtype).itemsize
    kept = round((1 - share) * matrix.row.elements)
    return int(kept * (item + INDEX_BYTES) + (matrix.row.shape[0] + 1) * ROW_BYTES)


def _unstructured(evidence: Evidence, matrix: Matrix, share: float, after: int) -> Advice:
    saved = matrix.nbytes - after
    return Advice(
        rule="unstructured-pruning",
        where=matrix.where,
        evidence={
            "removable_share": share,
            "zero_share": matrix.row.sparsity,
            "relative_error": float(ERROR),
            "bytes": matrix.nbytes,
            "bytes_sparse": after,
        },
        recommendation="set the smallest weights to zero and store them sparse; dense kernels are no faster for it",
        change=Patch(
            "prune.l1_unstructured(model.get_submodule(path), name, share)",
            ("path", "name", "share"),
            ((*_place(matrix), round(share, 3)),),
            _IMPORT,
        ),
        expected_gain=whole_gain(evidence, saved, saved, "values and indices in compressed rows (CSR)"),
        risk="memory only: sparse products of this density are slower than dense ones on CPUs and GPUs",
        confidence="medium",
    )


def _two_four(evidence: Evidence, matrix: Matrix, energy: float) -> Advice:
    # Half of the values, and two bits of index for each that stays.
    bits = 8 * TensorSpec((), matrix.row.dtype).itemsize
    saved = matrix.nbytes * (0.5 - 0.5 * 2 / bits)
    speed = "sparse tensor cores (NVIDIA, from Ampere on) run it up to twice as fast in 16 bits and less"
    slow = "it saves memory; this device gains no time"
    return Advice(
        rule="two-four-sparsity",
        where=matrix.where,
        evidence={"kept_energy_share": energy, "bytes": matrix.nbytes, "device": evidence.device},
        recommendation=f"keep two of each four weights (2:4): {speed if evidence.is_cuda else slow}",
        change=Patch(_TWO_FOUR, ("path", "name"), (_place(matrix),)),
        expected_gain=whole_gain(
            evidence, 0.0, saved, "half of the values and two bits of index; nothing if kept dense"
        ),
        risk="the error of the weights is measured, that of the outputs is not: evaluate, or train on with the mask",
        confidence="medium" if evidence.is_cuda else "low",
    )


def _structured(evidence: Evidence, matrix: Matrix, side: str, share: float) -> Advice:
    saved = share * matrix.nbytes
    return Advice(
        rule="structured-pruning",
        where=matrix.where,
        evidence={"side": side, "removable_share": share, "relative_error": float(ERROR), "bytes": matrix.nbytes},
        recommendation=f"remove the {_SIDES[side]} of smallest norm, and what makes or reads them beside",
        change=None
        if side == "heads"
        else Patch(
            "prune.ln_structured(model.get_submodule(path), name, share, 2, dim)",
            ("path", "name", "share", "dim"),
            ((*_place(matrix), round(share, 3), 0 if side == "rows" else 1),),
            _IMPORT,
        ),
        expected_gain=whole_gain(evidence, saved, 2 * saved, "this matrix, at most as much again in the layer beside"),
        risk="smaller dense matrices are faster everywhere; evaluate, and keep sizes multiples of 8 for tensor cores",
        confidence="medium",
    )


def _dead(evidence: Evidence, matrix: Matrix, dead: int) -> Advice:
    rows = matrix.row.shape[0]
    saved = matrix.nbytes * dead / rows
    examples = matrix.figure("matrix_examples", "dead_rows") or []
    return Advice(
        rule="dead-rows",
        where=matrix.where,
        evidence={"dead_rows": dead, "rows": rows, "examples": list(examples)[:10], "bytes": matrix.nbytes},
        recommendation="remove these rows, or train them: whatever looks them up gets zeros"
        if matrix.is_table
        else "remove these rows, of outputs that are always zero or of entries never trained: all their values are zero"
        if matrix.is_from_file
        else "remove the outputs whose weights are all zero: each is a constant, its bias",
        change=None,
        expected_gain=whole_gain(evidence, saved, 2 * saved, "these rows, at most as much again in the layer after"),
        risk="none for the outputs, if the biases of these rows are added to those of the next layer",
        confidence="high",
    )
