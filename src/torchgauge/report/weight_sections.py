"""The weights' values in the text reports: totals, kinds, places, what stands apart, what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torchgauge.facts import View
from torchgauge.facts.weight_values import quantization_of, removable
from torchgauge.report.headline import fact_lines
from torchgauge.report.layout import Heading, Line, Span, lay_out, wrap
from torchgauge.report.options import Options
from torchgauge.report.origin import Fact
from torchgauge.report.sections import figure, heading, text_cell
from torchgauge.report.weight_statistics import (
    STRUCTURES,
    easiest_to_prune,
    formats_text,
    hardest,
    places,
    sqnr_db,
    structured,
    structured_in_all,
    summary_part,
)
from torchgauge.units import (
    format_bytes,
    format_decibels,
    format_exact,
    format_percent,
    format_seconds,
    format_shape,
    format_value,
)

PLACES, HARDEST = 14, 5
WIDE = 96
# A column: its title, the text of a row's cell, whether it can be spared.
Shown = tuple[str, Callable[[Any], str], bool]
SIBLINGS = "×: siblings, with their median std, largest |max| and worst int8; 30 dB: the smallest format that keeps it"
FORMATS = ("int8", "fp8_e4m3", "fp8_e5m2", "int4", "nf4")


def weight_totals(view: View, options: Options) -> list[Line]:
    total = summary_part(view, "total")
    if not total or total.get("mean") is None:
        return []
    return [
        heading("Values of the parameters"),
        *fact_lines([*_value_facts(total), *_saving_facts(total), *_structured(view), *_scan(view)], options.width),
    ]


def _value_facts(total: dict[str, Any]) -> list[Fact]:
    median, low, high = (format_value(total["quantiles"][key]) for key in ("0.5", "0.001", "0.999"))
    facts = [
        ("Mean", format_value(total["mean"]), f"std {format_value(total['std'])}, median {median}"),
        ("Range", f"{format_value(total['min'])} … {format_value(total['max'])}", f"99.8 % within {low} … {high}"),
        (
            "Shape",
            f"kurtosis {format_value(total['kurtosis'])}",
            f"skewness {format_value(total['skewness'])} (normal distribution: 0, 0)",
        ),
        ("Zeros", format_percent(total["sparsity"]), f"{format_percent(total['near_zero'])} below 1 % of the std"),
        ("Norms", f"L2 {format_value(total['l2'])}", f"L1 {format_value(total['l1'])}"),
    ]
    broken = [(total["nan"], "NaN"), (total["inf"], "infinite")]
    if any(count for count, _ in broken):
        facts.append(
            (
                "Not finite",
                " and ".join(f"{format_exact(n)} {what}" for n, what in broken if n),
                "left out of all figures",
            )
        )
    if total.get("not_unpacked"):
        facts.append(("Left out", format_exact(total["not_unpacked"]), "tensors, packed in a way that is not known"))
    return facts


def _saving_facts(total: dict[str, Any]) -> list[Fact]:
    bits = f"{format_value(total['entropy_bits'])} of {format_value(total['entropy_symbol_bits'])} bits"
    kept = ", ".join(
        f"{name} {format_decibels(sqnr_db(total, name))}" for name in FORMATS if sqnr_db(total, name) is not None
    )
    at_five = f"{format_percent(removable(total, '0.05'))} at 5 %"
    entropy = [("Entropy", bits, f"{format_percent(total['compressibility'])} compressible without loss")]
    return [
        *(entropy if total["entropy_bits"] is not None else []),
        ("Prunable", format_percent(removable(total)), f"by magnitude at 1 % relative error, {at_five}"),
        ("Quantized", "", f"SQNR with one scale per tensor: {kept or 'nothing to quantize'}"),
    ]


def _structured(view: View) -> list[Fact]:
    found = structured_in_all(view)
    kept = found.pop("two_four", None)
    if not found:
        return []
    (first, share), *others = found.items()
    text = ", ".join(f"{name} {format_percent(share)}" for name, share in others) + " at 1 % relative error"
    two_four = f"; 2:4 keeps {format_percent(kept)} of the energy" if kept is not None else ""
    return [("Structured", f"{first} {format_percent(share)}", text + two_four)]


def weight_structures(view: View, options: Options) -> list[Line]:
    """What pruning by structure could take, where a deep pass has looked."""
    rows = easiest_to_prune(view, HARDEST)
    columns: list[Shown] = [
        ("Shape", lambda row: format_shape(row["shape"]), True),
        *(
            (name.capitalize(), lambda row, name=name: format_percent(structured(row).get(name)), False)
            for name in STRUCTURES
        ),
        ("2:4 keeps", lambda row: format_percent((row["pruning"] or {}).get("two_four_energy")), False),
    ]
    table = _table("Tensor", [row["name"].removesuffix(".weight") for row in rows], rows, columns, options)
    return [heading("Structured pruning: what can go at 1 % relative error"), *table] if rows else []


def _scan(view: View) -> list[Fact]:
    scan = summary_part(view, "scan") or {}
    seconds, nbytes = scan.get("seconds"), scan.get("bytes")
    if not seconds or nbytes is None:
        return []
    depth = "with matrices and groups (deep)" if scan.get("deep") else "without the deep passes"
    return [
        ("Read", format_bytes(nbytes), f"in {format_seconds(seconds)}, {format_bytes(nbytes / seconds)}/s, {depth}")
    ]


def weight_kinds(view: View, options: Options) -> list[Line]:
    kinds = summary_part(view, "by_kind") or []
    columns: list[Shown] = [
        ("Tensors", lambda kind: format_exact(kind["tensors"]), False),
        ("Bytes", lambda kind: format_bytes(kind["bytes"]), False),
        ("Mean", lambda kind: format_value(kind.get("mean")), True),
        ("Std", lambda kind: format_value(kind.get("std")), False),
        ("|Max|", lambda kind: format_value(kind.get("abs_max")), False),
        ("Zeros", lambda kind: format_percent(kind.get("sparsity")), False),
        ("Prunable", lambda kind: format_percent(removable(kind)), False),
        ("int8", lambda kind: format_decibels(sqnr_db(kind, "int8")), False),
    ]
    table = _table("Kind", [kind["kind"] for kind in kinds], kinds, columns, options)
    return [heading("Values by kind of layer"), *table] if kinds else []


def weight_places(view: View, options: Options) -> list[Line]:
    found = places(view)
    columns: list[Shown] = [
        ("×", lambda place: format_exact(place.count), False),
        ("Bytes", lambda place: format_bytes(place.nbytes), False),
        ("Std", lambda place: format_value(place.std), False),
        ("|Max|", lambda place: format_value(place.abs_max), False),
        ("Zeros", lambda place: format_percent(place.sparsity), True),
        ("Prunable", lambda place: format_percent(place.removable), True),
        ("int8", lambda place: format_decibels(place.int8_db), False),
        ("30 dB", lambda place: place.smallest_30db, False),
    ]
    shown = found[:PLACES]
    table = _table("Tensor", [place.pattern.removesuffix(".weight") for place in shown], shown, columns, options)
    notes = [*more_lines(len(found) - PLACES, "places"), *wrap(SIBLINGS, options.width, style="dim")]
    return [heading("Largest weights"), *table, *notes] if shown else []


def weight_hardest(view: View, options: Options) -> list[Line]:
    rows = hardest(view, HARDEST)
    is_deep = any(sqnr_db(row, "int8", "per_channel") is not None for row in rows)
    columns: list[Shown] = [
        ("Shape", lambda row: format_shape(row["shape"]), True),
        ("int8", lambda row: format_decibels(sqnr_db(row, "int8")), False),
        ("by channel", lambda row: format_decibels(sqnr_db(row, "int8", "per_channel")), False),
        ("by 128", lambda row: format_decibels(sqnr_db(row, "int8", "group128")), False),
        ("Outliers", lambda row: format_percent(quantization_of(row).get("outlier_share")), True),
        ("Kurtosis", lambda row: format_value(row["kurtosis"]), True),
        ("30 dB", lambda row: formats_text([quantization_of(row).get("smallest_30db")]), False),
    ]
    kept = columns if is_deep else [column for column in columns if not column[0].startswith("by ")]
    table = _table("Tensor", [row["name"].removesuffix(".weight") for row in rows], rows, kept, options)
    return [heading("Hardest to quantize, with one scale"), *table] if rows else []


def _table(
    title: str, names: Sequence[str], rows: Sequence[Any], columns: Sequence[Shown], options: Options
) -> list[Line]:
    """On a narrow page without the columns that can be spared: names that are cut to nothing tell nothing."""
    kept = [column for column in columns if options.width >= WIDE or not column[2]]
    headings = [Heading(title, is_figure=False), *(Heading(column[0]) for column in kept)]
    cells = [
        [text_cell(name), *(figure(form(row)) for _, form, _ in kept)] for name, row in zip(names, rows, strict=True)
    ]
    return lay_out(headings, cells, options.width)


def more_lines(count: int, what: str = "") -> list[Line]:
    return [(Span(f"and {count:,} more {what}".rstrip(), "dim"),)] if count > 0 else []
