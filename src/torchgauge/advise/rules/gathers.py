"""Layers over rows that were gathered from fewer rows: messages along the edges of a graph, groups of neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchgauge.advise.evidence import Evidence
from torchgauge.advise.record import Advice, Where
from torchgauge.advise.registry import rule
from torchgauge.advise.rules.folding import LINEAR_OPS
from torchgauge.facts import OpRecord

_SELECTIONS = {"aten::index", "aten::index_select", "aten::gather"}
# How many times each row must be gathered, and the share of these ops' time that must go away, to reorder them.
_LEAST_TIMES, _LEAST_SAVED = 2, 0.2


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a layer's input: so many channels, of rows that `gather` takes `times` from a table; None: as they are
    computed."""

    channels: int
    gather: OpRecord | None = None
    times: float = 1.0


@rule("linear-after-gather", family="order")
def linear_after_gather(evidence: Evidence) -> Iterator[Advice]:
    """A linear layer treats rows one by one, so that it may run before rows are gathered from a smaller table; over a
    concatenation, each part of its weight may."""
    for layer in evidence.flow.named(*LINEAR_OPS):
        record = evidence.modules.get(layer.module)
        place = 1 if layer.op == "aten::addmm" else 0
        source = evidence.flow.source(layer, place)
        if record is None or record.type != "Linear" or source is None or not evidence.flow.is_kept_for(source, layer):
            continue
        channels = layer.signature.inputs[place].shape[-1]
        joined: OpRecord | None = None
        parts = [_part(evidence, layer, place)]
        if source.op == "aten::cat" and all(spec.numel for spec in source.signature.inputs):
            shape = source.signature.outputs[0].shape
            along = int(source.signature.attributes.get("dim") or 0) % len(shape)
            if along == len(shape) - 1 and shape[-1] == channels:
                joined, parts = source, [_part(evidence, source, at) for at in range(len(source.producers))]
        gathers = {part.gather.index: part.gather for part in parts if part.gather is not None}
        touched = [layer, *gathers.values(), *([joined] if joined is not None else [])]
        saved = _saved(evidence, layer, joined, parts)
        if not gathers or saved < _LEAST_SAVED:
            continue
        yield Advice(
            rule="linear-after-gather",
            where=Where(layer.module, tuple(sorted(op.index for op in touched))),
            evidence={
                "channels": channels,
                "gathered_channels": sum(part.channels for part in parts if part.gather is not None),
                "times": min(part.times for part in parts if part.gather is not None),
            },
            recommendation="split this layer's weight and apply the parts before the gathers: there are fewer rows"
            if joined
            else "apply this layer before its rows are gathered: there are fewer rows",
            change=None,
            expected_gain=evidence.share(touched).gain(
                0.5 * saved, min(1.2 * saved, 1.0), "the product with repeated rows"
            ),
            risk="rounding differs in the last digits",
            confidence="high",
        )


def _part(evidence: Evidence, reader: OpRecord, at: int) -> _Part:
    read, gather = reader.signature.inputs[at], evidence.flow.source(reader, at)
    channels = read.shape[-1]
    if gather is None or gather.op not in _SELECTIONS or not evidence.flow.is_kept_for(gather, reader):
        return _Part(channels)
    made, table, *indices = (*gather.signature.outputs, *gather.signature.inputs)
    is_whole = made.numel == read.numel and made.shape[-1] == table.shape[-1] == channels and len(table.shape) > 1
    times = made.numel / max(table.distinct_numel, 1)
    if not is_whole or times < _LEAST_TIMES:
        return _Part(channels)
    # Whole rows, not elements of them: by the dimension, or by how many elements each of the indices gives.
    along = int(gather.signature.attributes.get("dim") or 0) % len(table.shape)
    takes_rows = along < len(table.shape) - 1
    if gather.op == "aten::gather":
        stride = gather.signature.inputs[1].stride
        takes_rows = takes_rows and stride is not None and stride[-1] == 0
    elif gather.op == "aten::index":
        each, rest = divmod(made.numel, max(spec.numel for spec in indices))
        takes_rows = not rest and each % channels == 0
    return _Part(channels, gather, times) if takes_rows else _Part(channels)


def _saved(evidence: Evidence, layer: OpRecord, joined: OpRecord | None, parts: Sequence[_Part]) -> float:
    """Of the time of the layer, the gathers and the concatenation, the part that goes away. Gathers then move rows as
    wide as the layer's results, and one sum for each further part takes the place of the concatenation."""
    seconds, width = evidence.times.seconds, layer.signature.outputs[0].shape[-1]
    channels = sum(part.channels for part in parts)
    product = seconds[layer.index]
    whole, gone = product, product * sum(part.channels / channels * (1 - 1 / part.times) for part in parts)
    for part in parts:
        if part.gather is not None:
            whole += seconds[part.gather.index]
            gone -= seconds[part.gather.index] * (width / part.channels - 1)
    if joined is not None:
        # A copy reads and writes each element; a sum of two tensors moves three.
        whole += seconds[joined.index]
        gone += seconds[joined.index] * (1 - (len(parts) - 1) * 1.5 * width / channels)
    return gone / whole if whole else 0.0
