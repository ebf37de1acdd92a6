"""Weights that can be removed: single ones, two of four, whole rows and columns; and whether hardware gains by it."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from torchgauge.advise.code import Patch
from torchgauge.advise.evidence import Evidence
from torchgauge.advise.matrices import matrices, whole_gain
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
        share = max(matrix.figure("pruning", "magnitude", ERROR) or 0.0, matrix.row.sparsity)
        kept, item = round((1 - share) * matrix.row.elements), TensorSpec((), matrix.row.dtype).itemsize
        after = int(kept * (item + INDEX_BYTES) + (matrix.row.shape[0] + 1) * ROW_BYTES)
        saved = matrix.nbytes - after
        if share >= 1 or not matrix.is_multiplied or saved < SPARSE_SAVING * matrix.nbytes:
            continue
        yield Advice(
            rule="unstructured-pruning",
            where=matrix.where,
            evidence={
                "removable_share": share,
                "zero_share": matrix.row.sparsity,
                "relative_error": float(ERROR),
                "bytes": matrix.nbytes,
                "bytes_sparse": after,
            },
            recommendation="set the smallest weights to zero and store them sparse; dense kernels do not get faster",
            change=Patch(
                "prune.l1_unstructured(model.get_submodule(path), name, share)",
                ("path", "name", "share"),
                ((matrix.module, matrix.attribute, round(share, 3)),),
                _IMPORT,
            ),
            expected_gain=whole_gain(evidence, saved, saved, "values and indices in compressed rows (CSR)"),
            risk="saves memory only: sparse products of this density are slower",
            confidence="medium",
        )


@rule("two-four-sparsity", family="pruning")
def two_four_sparsity(evidence: Evidence) -> Iterator[Advice]:
    speed = "NVIDIA's sparse tensor cores run it up to twice as fast in 16 bits"
    slow = "it saves memory; this device gains no time"
    for matrix in matrices(evidence):
        energy, shape = matrix.figure("pruning", "two_four_energy"), matrix.row.shape
        # The shapes that sparse tensor cores take.
        fits = len(shape) == 2 and matrix.is_multiplied and shape[0] % 16 == 0 and shape[-1] % 16 == 0
        if energy is None or energy < TWO_FOUR_ENERGY or not fits:
            continue
        # Half of the values, and two bits of index for each that stays.
        saved = matrix.nbytes * (0.5 - 0.5 * 2 / (8 * TensorSpec((), matrix.row.dtype).itemsize))
        yield Advice(
            rule="two-four-sparsity",
            where=matrix.where,
            evidence={"kept_energy_share": energy, "bytes": matrix.nbytes, "device": evidence.device},
            recommendation=f"keep two of each four weights (2:4): {speed if evidence.is_cuda else slow}",
            change=Patch(_TWO_FOUR, ("path", "name"), ((matrix.module, matrix.attribute),)),
            expected_gain=whole_gain(
                evidence, 0.0, saved, "half of the values and two bits of index; nothing if kept dense"
            ),
            risk="evaluate the outputs, or fine-tune: only the weights' error is measured",
            confidence="medium" if evidence.is_cuda else "low",
        )


@rule("structured-pruning", family="pruning")
def structured_pruning(evidence: Evidence) -> Iterator[Advice]:
    """The first side of a matrix on which enough can be removed."""
    for matrix in matrices(evidence):
        for side, words in _SIDES.items():
            share = matrix.figure("pruning", side, ERROR)
            size = {"rows": matrix.row.shape[0], "columns": prod(matrix.row.shape[1:])}.get(side)
            if share is None or share >= 1 or not matrix.is_multiplied or (size is not None and size < LEAST_ROWS):
                continue
            # Dead rows have separate advice, and dead columns are what a dead row of the layer before leaves.
            dead = (matrix.figure(f"dead_{side}") or 0) / size if size else 0.0
            if share - dead < REMOVABLE_ROWS:
                continue
            saved = share * matrix.nbytes
            place = (matrix.module, matrix.attribute, round(share, 3), 0 if side == "rows" else 1)
            code = "prune.ln_structured(model.get_submodule(path), name, share, 2, dim)"
            yield Advice(
                rule="structured-pruning",
                where=matrix.where,
                evidence={
                    "side": side,
                    "removable_share": share,
                    "relative_error": float(ERROR),
                    "bytes": matrix.nbytes,
                },
                recommendation=f"remove the {words} of smallest norm, and what computes or reads them in other layers",
                change=None if side == "heads" else Patch(code, ("path", "name", "share", "dim"), (place,), _IMPORT),
                expected_gain=whole_gain(
                    evidence, saved, 2 * saved, "this matrix, at most as much again in a neighbouring layer"
                ),
                risk="evaluate; keep sizes multiples of 8 for tensor cores",
                confidence="medium",
            )
            break


@rule("dead-rows", family="pruning")
def dead_rows(evidence: Evidence) -> Iterator[Advice]:
    for matrix in matrices(evidence):
        dead, rows = matrix.figure("dead_rows") or 0, matrix.row.shape[0]
        # The row of a padding token is dead on purpose, and a matrix of zeros was never trained.
        if dead <= matrix.is_table or not rows // 100 < dead < rows:
            continue
        saved = matrix.nbytes * dead / rows
        examples = matrix.figure("matrix_examples", "dead_rows") or []
        if matrix.is_table:
            words = "remove these rows, or train them: every lookup of them returns zeros"
        elif matrix.is_from_file:
            words = "remove these rows: all their values are zero, so an output is constant or an entry never trained"
        else:
            words = "remove the outputs whose weights are all zero: each is a constant, its bias"
        yield Advice(
            rule="dead-rows",
            where=matrix.where,
            evidence={"dead_rows": dead, "rows": rows, "examples": list(examples)[:10], "bytes": matrix.nbytes},
            recommendation=words,
            change=None,
            expected_gain=whole_gain(evidence, saved, 2 * saved, "these rows, at most as much again in the next layer"),
            risk="none, if the biases of these rows are added to those of the next layer",
            confidence="high",
        )
