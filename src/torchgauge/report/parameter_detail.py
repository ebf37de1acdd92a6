"""Every parameter tensor with all that is known of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torchgauge.facts import ParamRecord, Row, View
from torchgauge.facts.weight_values import quantization_of, removable, value_figures
from torchgauge.report.bars import spark
from torchgauge.report.escape import visible
from torchgauge.report.layout import Line, Span, wrap
from torchgauge.report.options import Options
from torchgauge.report.weight_sections import FORMATS
from torchgauge.report.weight_statistics import sqnr_db, structured
from torchgauge.units import format_bytes, format_decibels, format_exact, format_percent, format_shape, format_value

INDENT, LABEL = 2, 16
# Of a drawn histogram.
COLUMNS = 32
Fact = tuple[str, str]


def parameter_details(view: View, options: Options) -> list[Line]:
    """The stored tensors, or those whose values were read; else the parameters of the model by shape alone."""
    found = [(row.name, _weight_facts(row)) for row in view.weights]
    found = found or [(param.name, _param_facts(param)) for param in view.capture.params]
    lines: list[Line] = []
    for name, facts in found:
        lines += [()] if lines else []
        lines += wrap(visible(f"Parameter: {name}"), options.width, style="name")
        for label, text in facts:
            lead = Span(" " * INDENT + label.ljust(LABEL), "dim")
            lines += wrap(visible(text), options.width, lead=(lead,))
    return lines


def _param_facts(param: ParamRecord) -> Iterator[Fact]:
    kind = "buffer" if param.is_buffer else "trainable" if param.trainable else "frozen"
    yield "shape", f"{format_shape(param.spec.shape)} {param.spec.dtype}, {kind}"
    yield "elements", f"{format_exact(param.spec.numel)} in {format_bytes(param.spec.nbytes)}"
    if param.aliases:
        yield "also", ", ".join(param.aliases)


def _weight_facts(row: Row) -> Iterator[Fact]:
    yield "shape", f"{format_shape(row['shape'])} {row['dtype']}, {row['role']}"
    yield "elements", f"{format_exact(row['elements'])} in {format_bytes(row['bytes'])}"
    if row["shared_with"]:
        yield "shares bytes with", row["shared_with"]
    figures = value_figures(row)
    if figures.get("std") is not None:
        yield from _value_facts(figures)
        yield from _saving_facts(figures)
    for text in row.get("recommendations") or ():
        yield "recommended", text


def _value_facts(row: Mapping[str, Any]) -> Iterator[Fact]:
    yield "mean, std", f"{format_value(row.get('mean'))}, {format_value(row.get('std'))}"
    yield "range", f"{format_value(row.get('min'))} … {format_value(row.get('max'))}"
    quantiles = row.get("quantiles") or {}
    yield "quantiles", ", ".join(f"{share}: {format_value(value)}" for share, value in quantiles.items())
    histogram = row.get("histogram") or {}
    if histogram.get("counts"):
        yield "histogram", _histogram_text(histogram)
    yield "form", f"skewness {format_value(row.get('skewness'))}, excess kurtosis {format_value(row.get('kurtosis'))}"
    yield "sparsity", f"{format_percent(row.get('sparsity'))} zeros, {format_percent(row.get('near_zero'))} near zero"
    if row.get("nan") or row.get("inf"):
        yield "not finite", f"{format_exact(row.get('nan'))} NaN, {format_exact(row.get('inf'))} infinite"
    yield "norms", _norm_text(row)


def _histogram_text(histogram: Mapping[str, Any]) -> str:
    edges, counts = histogram["edges"], histogram["counts"]
    drawn = spark(counts, max(counts), COLUMNS)
    return f"{format_value(edges[0])} |{drawn}| {format_value(edges[-1])}, at most {format_exact(max(counts))} in a bin"


def _norm_text(row: Mapping[str, Any]) -> str:
    text = f"L1 {format_value(row.get('l1'))}, L2 (Frobenius) {format_value(row.get('l2'))}"
    if row.get("spectral_norm") is None:
        return text
    rank = row.get("stable_rank")
    stable = f", stable rank {format_value(rank)}" if rank is not None else ""
    return f"{text}, spectral {format_value(row['spectral_norm'])}{stable}"


def _saving_facts(row: Mapping[str, Any]) -> Iterator[Fact]:
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
    kept = [(name, sqnr_db(row, name)) for name in FORMATS]
    told = ", ".join(f"{name} {format_decibels(value)}" for name, value in kept if value is not None)
    if told:
        yield "quantized", f"{told}; at 30 dB: {quantization_of(row).get('smallest_30db') or 'none'}"
    alignment = row.get("alignment") or {}
    if alignment.get("offset_alignment") is not None:
        yield "alignment", f"starts at a multiple of {format_exact(alignment['offset_alignment'])} bytes in its file"
