"""Weights in fewer bits: per matrix what its measured error allows, and a plan that spends one budget over all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from torchgauge.advise.code import Patch
from torchgauge.advise.evidence import Evidence
from torchgauge.advise.matrices import Matrix, matrices, whole_gain
from torchgauge.advise.record import Advice, Where
from torchgauge.advise.registry import rule

# 30 dB is a relative error of 3 %, which networks mostly do not notice; at 20 dB (10 %) most do.
KEPT_DB, LEAST_DB = 30.0, 20.0
# Weights that are less of what a forward moves are not what it waits for.
TRAFFIC_SHARE = 0.5
# What a plan must save beyond one choice per matrix.
PLAN_SAVING = 0.15
_BITS = {"int8": 8, "fp8_e4m3": 8, "int4": 4, "nf4": 4}
# The granularity that kernels for a format have, else what was computed without a second pass.
_GRAINS = {
    "int8": ("per_channel", "per_tensor"), "fp8_e4m3": ("per_channel", "per_tensor"),
    "int4": ("group128", "per_tensor"), "nf4": ("group128", "per_tensor"),
}  # fmt: skip
_WORDS = {
    "per_tensor": "one scale per tensor",
    "per_channel": "one scale per output channel",
    "group128": "one scale per 128",
}
_CONFIGS = {"int8": "Int8WeightOnlyConfig", "int4": "Int4WeightOnlyConfig", "fp8_e4m3": "Float8WeightOnlyConfig"}
_RISK = (
    "the error of the weights is measured, that of the outputs is not: evaluate; weights are unpacked before they are "
    "multiplied, so where arithmetic is the limit (large batches) time and energy may rise"
)


@dataclass(frozen=True, slots=True)
class Choice:
    """A format for a matrix. `noise` is the relative squared error, 0 where nothing is lost."""

    matrix: Matrix
    format: str
    granularity: str
    noise: float
    nbytes: int

    @property
    def saved(self) -> int:
        return self.matrix.nbytes - self.nbytes


@rule("quantize-weights", family="quantization", option="quantize")
def quantize_weights(evidence: Evidence) -> Iterator[Advice]:
    traffic = weight_traffic(evidence)
    for matrix in quantizable(evidence):
        choice = smallest(matrix, KEPT_DB)
        if choice is not None and 2 * choice.nbytes <= matrix.nbytes:
            yield _advice(evidence, choice, traffic)


@rule("mixed-precision-plan", family="quantization", option="quantize")
def mixed_precision_plan(evidence: Evidence) -> Iterator[Advice]:
    found = [(smallest(matrix, KEPT_DB), smallest(matrix, LEAST_DB)) for matrix in quantizable(evidence)]
    pairs = [(fine, coarse) for fine, coarse in found if fine is not None and coarse is not None]
    plain = sum(fine.nbytes for fine, _ in pairs)
    chosen = plan(pairs)
    after = sum(choice.nbytes for choice in chosen)
    if after <= (1 - PLAN_SAVING) * plain and len({choice.format for choice in chosen}) > 1:
        yield _plan_advice(evidence, chosen, plain)


def quantizable(evidence: Evidence) -> Iterator[Matrix]:
    """The matrices of a file; of a model, those it multiplies with, where reading them is most of the work."""
    if evidence.is_train or (evidence.capture.has_code and (weight_traffic(evidence) or 0.0) < TRAFFIC_SHARE):
        return
    for matrix in matrices(evidence):
        if matrix.is_multiplied and (matrix.is_from_file or _products(matrix)):
            yield matrix


def weight_traffic(evidence: Evidence) -> float | None:
    """The share of the bytes a forward moves that are matrices to multiply with; None without code."""
    if not evidence.capture.has_code:
        return None
    read = sum(matrix.nbytes * _products(matrix) for matrix in matrices(evidence))
    return read / max(evidence.bytes_moved, 1)


def _products(matrix: Matrix) -> int:
    return sum(op.category == "matmul" for op in matrix.ops)


def smallest(matrix: Matrix, least_db: float) -> Choice | None:
    """Of the formats that keep so much the one with the fewest bits."""
    kept = [choice for choice in _choices(matrix) if choice.noise <= 10 ** (-least_db / 10)]
    return min(kept, key=lambda choice: (_BITS[choice.format], choice.nbytes, choice.noise), default=None)


def _choices(matrix: Matrix) -> Iterator[Choice]:
    for name, grains in _GRAINS.items():
        known = [(grain, figure) for grain in grains if (figure := matrix.figure("quantization", name, grain))]
        for grain, figure in known[:1]:
            if (noise := _noise(figure)) < inf:
                yield Choice(matrix, name, grain, noise, int(figure["bytes"]))


def _noise(figure: dict[str, Any]) -> float:
    if figure["sqnr_db"] is not None:
        return float(10 ** (-figure["sqnr_db"] / 10))
    return 0.0 if figure["max_error"] == 0 else inf


def plan(pairs: Sequence[tuple[Choice, Choice]]) -> list[Choice]:
    """The coarser choice for those that save most per error, while the mean error over all elements keeps `KEPT_DB`."""
    elements = sum(fine.matrix.row.elements for fine, _ in pairs)
    left = elements * 10 ** (-KEPT_DB / 10) - sum(fine.noise * fine.matrix.row.elements for fine, _ in pairs)
    chosen = []
    for fine, coarse in sorted(pairs, key=_error_per_byte):
        cost = (coarse.noise - fine.noise) * fine.matrix.row.elements
        takes = coarse.nbytes < fine.nbytes and cost <= left
        left -= cost if takes else 0.0
        chosen.append(coarse if takes else fine)
    return chosen


def _error_per_byte(pair: tuple[Choice, Choice]) -> float:
    fine, coarse = pair
    saved = fine.nbytes - coarse.nbytes
    return (coarse.noise - fine.noise) * fine.matrix.row.elements / saved if saved > 0 else inf


def _advice(evidence: Evidence, choice: Choice, traffic: float | None) -> Advice:
    matrix, config = choice.matrix, _config(evidence, choice)
    known = {"weight_share_of_bytes_moved": traffic} if traffic is not None else {}
    return Advice(
        rule="quantize-weights",
        where=matrix.where,
        evidence={**_figures(choice), **known},
        recommendation=f"store these weights as {choice.format}, {_WORDS[choice.granularity]}",
        change=Patch(
            f"quantize_(model, {config}(), filter_fn=lambda module, name: name == path)",
            ("path",),
            ((matrix.module,),),
            f"from torchao.quantization import {config}, quantize_\n",
        )
        if config
        else None,
        expected_gain=whole_gain(evidence, choice.saved, choice.saved, "bytes of the codes and their scales"),
        risk=_RISK,
        confidence="high" if choice.noise == 0 else "medium",
    )


def _config(evidence: Evidence, choice: Choice) -> str | None:
    """torchao quantizes linear layers."""
    record = evidence.modules.get(choice.matrix.module)
    return _CONFIGS.get(choice.format) if record is not None and record.type == "Linear" else None


def _figures(choice: Choice) -> dict[str, Any]:
    decibels = choice.matrix.figure("quantization", choice.format, choice.granularity, "sqnr_db")
    return {
        "format": choice.format,
        "sqnr_db": decibels,
        "bytes": choice.matrix.nbytes,
        "bytes_after": choice.nbytes,
        "dtype": choice.matrix.row.dtype,
    }


def _plan_advice(evidence: Evidence, chosen: Sequence[Choice], plain: int) -> Advice:
    elements = sum(choice.matrix.row.elements for choice in chosen)
    noise = sum(choice.noise * choice.matrix.row.elements for choice in chosen) / elements
    saved = sum(choice.saved for choice in chosen)
    formats = {str(choice.matrix.row.name): f"{choice.format} {choice.granularity}" for choice in chosen}
    return Advice(
        rule="mixed-precision-plan",
        where=Where(module=""),
        evidence={
            "formats": formats,
            "relative_squared_error": noise,
            "budget": 10 ** (-KEPT_DB / 10),
            "bytes": sum(choice.matrix.nbytes for choice in chosen),
            "bytes_after": sum(choice.nbytes for choice in chosen),
            "bytes_after_without_plan": plain,
        },
        recommendation="spend one error budget over all matrices: fewer bits where they cost least (`formats`)",
        change=None,
        expected_gain=whole_gain(evidence, saved, saved, "bytes of the codes and their scales"),
        risk=_RISK,
        confidence="medium",
    )
