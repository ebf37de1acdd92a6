"""Weights in fewer bits: per matrix what its measured error allows, and a plan that spends one budget over all. Weights
that are quantized already: where that made the model slower, or larger."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from torchgauge.advise.code import Patch
from torchgauge.advise.evidence import Evidence
from torchgauge.advise.matrices import Matrix, matrices, whole_gain
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.facts import OpRecord, ParamRecord
from torchgauge.facts.quantized import size_of

# 30 dB is a relative error of 3 %, which networks mostly do not notice; at 20 dB (10 %) most do.
KEPT_DB, LEAST_DB = 30.0, 20.0
# Weights that are less of what a forward moves are not what it waits for.
TRAFFIC_SHARE = 0.5
# What a plan must save beyond one choice per matrix.
PLAN_SAVING = 0.15
# A weight in half precision: quantized weights should take less.
HALF_BITS = 16
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
_RISK = "evaluate the outputs; where arithmetic is the limit it may be slower"


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
        if choice is None or 2 * choice.nbytes > matrix.nbytes:
            continue
        # torchao quantizes linear layers.
        record = evidence.modules.get(matrix.module)
        config = _CONFIGS.get(choice.format) if record is not None and record.type == "Linear" else None
        code = f"quantize_(model, {config}(), filter_fn=lambda module, name: name == path)"
        imports = f"from torchao.quantization import {config}, quantize_\n"
        yield Advice(
            rule="quantize-weights",
            where=matrix.where,
            evidence={
                "format": choice.format,
                "sqnr_db": matrix.figure("quantization", choice.format, choice.granularity, "sqnr_db"),
                "bytes": matrix.nbytes,
                "bytes_after": choice.nbytes,
                "dtype": matrix.row.dtype,
                **({"weight_share_of_bytes_moved": traffic} if traffic is not None else {}),
            },
            recommendation=f"store these weights as {choice.format}, {_WORDS[choice.granularity]}",
            change=Patch(code, ("path",), ((matrix.module,),), imports) if config else None,
            expected_gain=whole_gain(evidence, choice.saved, choice.saved, "bytes of the codes and their scales"),
            risk=_RISK,
            confidence="high" if choice.noise == 0 else "medium",
        )


@rule("mixed-precision-plan", family="quantization", option="quantize")
def mixed_precision_plan(evidence: Evidence) -> Iterator[Advice]:
    found = [(smallest(matrix, KEPT_DB), smallest(matrix, LEAST_DB)) for matrix in quantizable(evidence)]
    pairs = [(fine, coarse) for fine, coarse in found if fine is not None and coarse is not None]
    plain = sum(fine.nbytes for fine, _ in pairs)
    chosen = plan(pairs)
    after, saved = sum(choice.nbytes for choice in chosen), sum(choice.saved for choice in chosen)
    if after > (1 - PLAN_SAVING) * plain or len({choice.format for choice in chosen}) < 2:
        return
    elements = sum(choice.matrix.row.elements for choice in chosen)
    yield Advice(
        rule="mixed-precision-plan",
        where=Where(module=""),
        evidence={
            "formats": {str(choice.matrix.row.name): f"{choice.format} {choice.granularity}" for choice in chosen},
            "relative_squared_error": sum(choice.noise * choice.matrix.row.elements for choice in chosen) / elements,
            "budget": 10 ** (-KEPT_DB / 10),
            "bytes": sum(choice.matrix.nbytes for choice in chosen),
            "bytes_after": after,
            "bytes_after_without_plan": plain,
        },
        recommendation="choose the bits for each matrix: the fewest where the error is smallest (`formats`)",
        change=None,
        expected_gain=whole_gain(evidence, saved, saved, "bytes of the codes and their scales"),
        risk=_RISK,
        confidence="medium",
    )


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
    kept = []
    for name, grains in _GRAINS.items():
        grain = next((grain for grain in grains if matrix.figure("quantization", name, grain)), None)
        if grain is None:
            continue
        figure = matrix.figure("quantization", name, grain)
        if figure["sqnr_db"] is not None:
            noise = float(10 ** (-figure["sqnr_db"] / 10))
        else:
            noise = 0.0 if figure["max_error"] == 0 else inf
        if noise <= 10 ** (-least_db / 10):
            kept.append(Choice(matrix, name, grain, noise, int(figure["bytes"])))
    return min(kept, key=lambda choice: (_BITS[choice.format], choice.nbytes, choice.noise), default=None)


def plan(pairs: Sequence[tuple[Choice, Choice]]) -> list[Choice]:
    """The coarser choice for those that save most per error, while the mean error over all elements keeps `KEPT_DB`."""

    def error_per_byte(pair: tuple[Choice, Choice]) -> float:
        fine, coarse = pair
        saved = fine.nbytes - coarse.nbytes
        return (coarse.noise - fine.noise) * fine.matrix.row.elements / saved if saved > 0 else inf

    elements = sum(fine.matrix.row.elements for fine, _ in pairs)
    left = elements * 10 ** (-KEPT_DB / 10) - sum(fine.noise * fine.matrix.row.elements for fine, _ in pairs)
    chosen = []
    for fine, coarse in sorted(pairs, key=error_per_byte):
        cost = (coarse.noise - fine.noise) * fine.matrix.row.elements
        takes = coarse.nbytes < fine.nbytes and cost <= left
        left -= cost if takes else 0.0
        chosen.append(coarse if takes else fine)
    return chosen


@rule("dequantized-each-call", family="quantization")
def dequantized_each_call(evidence: Evidence) -> Iterator[Advice]:
    """A weight that is restored in memory moves more than it would in half precision: the codes are read, the restored
    weight is written and read again."""
    if evidence.is_train:
        return
    by_module: defaultdict[str, list[OpRecord]] = defaultdict(list)
    for op in evidence.restoring:
        by_module[op.module].append(op)
    params = [param for param in evidence.capture.params if param.is_quantized]
    for module, ops in by_module.items():
        logical = sum(param.logical for param in params if param.module == module)
        moved = sum(op.cost.bytes_read + op.cost.bytes_written for op in ops)
        plain = logical * HALF_BITS // 8
        if moved > plain:
            yield Advice(
                rule="dequantized-each-call",
                where=Where(module, tuple(op.index for op in ops)),
                evidence={"dequantize_bytes": moved, "half_precision_bytes": plain, "ops": len(ops)},
                recommendation="use a kernel for quantized weights, or half precision: dequantizing moves more bytes",
                change=None,
                expected_gain=evidence.share(ops).gain(0.5, 1.0, "the ops that restore the weights go away"),
                risk="weights in half precision take their full memory again",
                confidence="medium",
            )


@rule("quantized-but-larger", family="quantization")
def quantized_but_larger(evidence: Evidence) -> Iterator[Advice]:
    """Scales and zero points of small groups, or of small layers, outweigh what the codes save."""
    by_module: defaultdict[str, list[ParamRecord]] = defaultdict(list)
    for param in evidence.capture.params:
        if param.is_quantized or param.logical_elements == 0:
            by_module[param.module].append(param)
    whole = max(size_of(evidence.capture.params).nbytes, 1) if by_module else 1
    for module, params in by_module.items():
        size = size_of(params)
        excess = size.nbytes - size.logical * HALF_BITS // 8
        if size.logical and excess > 0:
            yield Advice(
                rule="quantized-but-larger",
                where=Where(module, weight=params[0].name),
                evidence={"bits_per_weight": size.bits_per_weight, "stored_bytes": size.nbytes},
                recommendation="use larger groups or half precision here: scales and zero points outweigh the codes",
                change=None,
                expected_gain=Gain(
                    "param_bytes", excess / whole, excess / whole, "their bytes beyond 16 bits per weight"
                ),
                risk="none: half precision is more accurate",
                confidence="high",
            )
