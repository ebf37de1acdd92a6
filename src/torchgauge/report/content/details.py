"""For the comprehensive report: every parameter and every op with everything known about it, and the machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from torchgauge.facts import UNCOUNTED, Row, View
from torchgauge.facts.figures import Members
from torchgauge.facts.weights import quantization_of, removable, value_figures, weight_ops
from torchgauge.registry import grouped
from torchgauge.report.bars import spark
from torchgauge.report.content.advice import effect_text, standing_advice
from torchgauge.report.content.weights import FORMATS
from torchgauge.report.model import Fact, Facts, Item, Listing, Section, Topic
from torchgauge.report.options import ABOUT, Detail, Options
from torchgauge.report.weight_statistics import sqnr_db, structured
from torchgauge.units import (
    format_bytes,
    format_count,
    format_decibels,
    format_exact,
    format_joules,
    format_percent,
    format_seconds,
    format_shape,
    format_things,
    format_value,
)

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Advice

_HISTOGRAM_WIDTH = 32
Labelled = tuple[str, str]


def sections(view: View, options: Options) -> Iterator[Section]:
    if options.detail is not Detail.FULL:
        return
    # The stored tensors, or those whose values were read; else the parameters of the model by shape alone.
    tensors = [Item(f"Parameter: {row.name}", list(_weight_facts(row))) for row in view.weights]
    for param in () if tensors else view.capture.params:
        kind = "buffer" if param.is_buffer else "trainable" if param.trainable else "frozen"
        described = [
            ("shape", f"{format_shape(param.spec.shape)} {param.spec.dtype}, {kind}"),
            ("elements", f"{format_exact(param.spec.numel)} in {format_bytes(param.nbytes)}"),
        ]
        described += [("also", ", ".join(param.aliases))] if param.aliases else []
        tensors.append(Item(f"Parameter: {param.name}", described))
    if tensors:
        yield Section("", (Listing(tensors, mark=""),), Topic.PARAMETERS)
    weights = {row["index"]: row for row in weight_ops(view.capture.ops, view.weights, view.capture.params)}
    advice = grouped(
        (index, f"{effect_text(row)}: {row['recommendation']} (advice {number})")
        for number, row in enumerate(standing_advice(view), start=1)
        for index in _ops_concerned(row)
    )
    nodes = []
    for op in view.ops:
        name = f"{op.op}.{op.overload}" if op.overload else op.op
        title = f"Node {op.index}: {name} in {op.module or 'the model itself'}"
        recommended = [("recommended", text) for text in advice.get(op.index, ())]
        nodes.append(Item(title, [*_op_facts(op, weights.get(op.index)), *recommended]))
    if nodes:
        yield Section("", (Listing(nodes, mark=""),), Topic.NODES)
    found = view.capture.environment
    memory = f", {format_bytes(found.memory_bytes)} of memory" if found.memory_bytes else ""
    threads = format_things(found.threads, "thread")
    threads += f", CPU capability {vectors}" if (vectors := found.settings.get("cpu_capability")) else ""
    facts: list[Fact] = [
        ("Made", view.capture.created, f"by torchgauge {view.capture.version}"),
        ("Machine", "", f"{found.platform}, {found.cpu}, {format_things(found.cpu_cores, 'core')}{memory}"),
        ("Software", "", f"Python {found.python}, torch {found.torch}, {threads}"),
    ]
    if found.packages:
        facts.append(("Packages", "", ", ".join(f"{name} {version}" for name, version in found.packages.items())))
    yield Section("", (Facts(facts),), Topic.ENVIRONMENT)


def _ops_concerned(row: Advice) -> set[int]:
    """The ops at every place of the advice."""
    places = row["evidence"].get("places")
    return {index for place in places for index in place["ops"]} if places else set(row["where"]["ops"])


def _weight_facts(row: Row) -> Iterator[Labelled]:
    yield "shape", f"{format_shape(row['shape'])} {row['dtype']}, {row['role']}"
    yield "elements", f"{format_exact(row['elements'])} in {format_bytes(row['bytes'])}"
    if row["shared_with"]:
        yield "shares bytes with", row["shared_with"]
    values = value_figures(row)
    if values.get("std") is not None:
        yield "mean, std", f"{format_value(values.get('mean'))}, {format_value(values.get('std'))}"
        yield "range", f"{format_value(values.get('min'))} … {format_value(values.get('max'))}"
        quantiles = values.get("quantiles") or {}
        yield "quantiles", ", ".join(f"{share}: {format_value(value)}" for share, value in quantiles.items())
        histogram = values.get("histogram") or {}
        if counts := histogram.get("counts"):
            low, high = format_value(histogram["edges"][0]), format_value(histogram["edges"][-1])
            drawn = spark(counts, max(counts), _HISTOGRAM_WIDTH)
            yield "histogram", f"{low} |{drawn}| {high}, at most {format_exact(max(counts))} in a bin"
        skewness, kurtosis = format_value(values.get("skewness")), format_value(values.get("kurtosis"))
        yield "form", f"skewness {skewness}, excess kurtosis {kurtosis}"
        zeros, near_zero = format_percent(values.get("sparsity")), format_percent(values.get("near_zero"))
        yield "sparsity", f"{zeros} zeros, {near_zero} near zero"
        if values.get("nan") or values.get("inf"):
            yield "not finite", f"{format_exact(values.get('nan'))} NaN, {format_exact(values.get('inf'))} infinite"
        norms = f"L1 {format_value(values.get('l1'))}, L2 (Frobenius) {format_value(values.get('l2'))}"
        if values.get("spectral_norm") is not None:
            norms += f", spectral {format_value(values['spectral_norm'])}"
            rank = values.get("stable_rank")
            norms += f", stable rank {format_value(rank)}" if rank is not None else ""
        yield "norms", norms
        yield from _saving_facts(values)
    for text in row.get("recommendations") or ():
        yield "recommended", text


def _saving_facts(row: Members) -> Iterator[Labelled]:
    if row.get("entropy_bits") is not None:
        bits = f"{format_value(row['entropy_bits'])} of {format_value(row.get('entropy_symbol_bits'))} bits"
        yield "entropy", f"{bits}, {format_percent(row.get('compressibility'))} compressible without loss"
    if row.get("pruning"):
        yield "prunable", f"{format_percent(removable(row))} by magnitude at 1 % relative error"
    parts = [f"{name} {format_percent(share)}" for name, share in structured(row).items()]
    if parts:
        kept_share = row["pruning"].get("two_four_energy")
        two_four = f"; 2:4 keeps {format_percent(kept_share)} of the energy" if kept_share is not None else ""
        yield "by structure", f"{', '.join(parts)} at 1 % relative error{two_four}"
    known = {name: decibels for name in FORMATS if (decibels := sqnr_db(row, name)) is not None}
    if known:
        kept = ", ".join(f"{name} {format_decibels(decibels)}" for name, decibels in known.items())
        yield "quantized", f"{kept}; at 30 dB: {quantization_of(row).get('smallest_30db') or 'none'}"
    alignment = row.get("alignment") or {}
    if alignment.get("offset_alignment") is not None:
        yield "alignment", f"starts at a multiple of {format_exact(alignment['offset_alignment'])} bytes in its file"
    if lines := alignment.get("cache_lines"):
        touched, least = lines["touched"], lines["contiguous"]
        text = f"a run along the last dimension touches {format_things(touched, 'cache line')}"
        yield "locality", text + (f", {format_exact(least)} if it were contiguous" if touched > least else "")


def _op_facts(op: Row, weights: Members | None) -> Iterator[Labelled]:
    counted = op.status != UNCOUNTED
    phase = "" if op.phase == "forward" else f", {op.phase}"
    yield "kind", f"{op.category}, {op.status}, {op.dtype or 'no tensors'}{phase}"
    yield "shapes", f"{_every_shape(op.input_shapes)} → {_every_shape(op.output_shapes)}"
    work = f"{format_exact(op.macs)} MACs, {format_exact(op.flops)} FLOPs"
    yield "work", work if counted else "unknown: the op has no formula"
    moved = f"{format_bytes(op.bytes_read)} read, {format_bytes(op.bytes_written)} written"
    if op.arithmetic_intensity is not None and counted:
        moved += f", {format_value(op.arithmetic_intensity)} FLOPs per byte"
    yield "memory", f"{moved}; {format_bytes(op.live_bytes)} of activations alive"
    if op.time_s is not None:
        bound = f"; bound by {op.bound}" if op.bound else ""
        roof = f", {format_percent(op.roof_share)} of the roof" if op.roof_share is not None else ""
        yield "time", f"{format_seconds(op.time_s)}, measured in profiled runs{bound}{roof}"
    rates = [] if op.flops_per_s is None else [f"{format_count(op.flops_per_s)} FLOPs per second"]
    rates += [] if op.bytes_per_s is None else [f"{format_bytes(op.bytes_per_s)} moved per second"]
    if rates:
        yield "rate", ", ".join(rates)
    if op.kernels:
        yield "kernels", ", ".join(op.kernels)
    if op.energy_j is not None:
        yield "energy", f"{format_joules(op.energy_j)}, measured"
    elif op.estimated_energy_j is not None:
        low, high = format_joules(op.estimated_energy_low_j), format_joules(op.estimated_energy_high_j)
        yield "energy", f"{ABOUT}{format_joules(op.estimated_energy_j)}, ESTIMATED: between {low} and {high}"
    if op.weights:
        yield "weights", ", ".join(op.weights)
    if weights and weights["removable"]["0.01"] is not None:
        pruned, smallest = format_percent(weights["removable"]["0.01"]), weights["smallest_30db"] or "none"
        sizes = f"{format_bytes(weights['bytes'])} to {format_bytes(weights['bytes_after']['30db'])}"
        yield "to save", f"{pruned} of the weights prunable at 1 % error; smallest type at 30 dB: {smallest} ({sizes})"


def _every_shape(shapes: Sequence[Sequence[int]]) -> str:
    return ", ".join(format_shape(list(shape)) for shape in shapes) or "none"
