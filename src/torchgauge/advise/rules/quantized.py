"""Weights that are quantized already: where that made the model slower, or larger."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from torchgauge.advise.evidence import Evidence
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.facts import OpRecord, ParamRecord
from torchgauge.facts.quantized import size_of

# A weight in half precision: what quantizing has to stay below.
HALF_BITS = 16


@rule("dequantized-each-call", family="quantization")
def dequantized_each_call(evidence: Evidence) -> Iterator[Advice]:
    """A weight that is restored in memory moves more than it would in half precision: the codes are read, the restored
    weight is written and read again."""
    if evidence.is_train:
        return
    by_module: defaultdict[str, list[OpRecord]] = defaultdict(list)
    for op in evidence.restoring:
        by_module[op.module].append(op)
    for module, ops in by_module.items():
        logical = sum(param.logical for param in _quantized(evidence) if param.module == module)
        moved = sum(op.cost.bytes_read + op.cost.bytes_written for op in ops)
        plain = logical * HALF_BITS // 8
        if moved > plain:
            yield Advice(
                rule="dequantized-each-call",
                where=Where(module, tuple(op.index for op in ops)),
                evidence={"dequantize_bytes": moved, "half_precision_bytes": plain, "ops": len(ops)},
                recommendation="use a kernel for quantized weights, or half precision: restoring them moves more bytes",
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
    whole = max(size_of(evidence.capture.params).nbytes, 1)
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
                    "param_bytes", excess / whole, excess / whole, "their bytes beyond 16 bits a weight"
                ),
                risk="none: half precision is more accurate",
                confidence="high",
            )


def _quantized(evidence: Evidence) -> Iterator[ParamRecord]:
    return (param for param in evidence.capture.params if param.is_quantized)
