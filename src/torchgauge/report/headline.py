"""What was analysed and its totals: the part of the report that is read first."""

from __future__ import annotations

from collections import Counter

from torchgauge.report.escape import visible
from torchgauge.report.layout import Line, Span, cell_width, shorten, wrap
from torchgauge.report.options import Options
from torchgauge.report.origin import Fact, origin_facts, stored_facts
from torchgauge.report.peak import find_peak
from torchgauge.units import format_bytes, format_count, format_exact, format_shape
from torchgauge.view import View

_LONGEST = 32  # of an input's name, which all others are aligned with


def title(view: View, options: Options) -> list[Line]:
    capture, kind = view.capture, model_kind(view)
    named = f" · {visible(capture.target.name)}" if capture.target.name not in ("", kind) else ""
    lines: list[Line] = [(Span(visible(kind), "heading"), Span(named))]
    return lines + fact_lines([("Run", run_text(view), ""), *input_facts(view), *origin_facts(view)], options.width)


def model_kind(view: View) -> str:
    """The class of the model; of a file without code its format."""
    return view.tree.record.type or view.capture.target.format or "Weights"


def totals(view: View, options: Options) -> list[Line]:
    return fact_lines(total_facts(view), options.width)


def total_facts(view: View) -> list[Fact]:
    if not view.capture.has_code:
        return [*_parameters(view), *stored_facts(view)]
    figures, moved = view.totals, view.totals.bytes_read + view.totals.bytes_written
    intensity = f"{format_count(figures.flops / moved)} FLOPs per byte" if moved else ""
    peak = find_peak(view)
    return [
        *_parameters(view),
        *stored_facts(view),
        ("MACs", format_count(figures.macs), format_exact(figures.macs)),
        ("FLOPs", format_count(figures.flops), format_exact(figures.flops)),
        ("Bytes moved", format_bytes(moved), _moved_note(view, intensity)),
        ("Peak activations", format_bytes(peak.activation_bytes), f"at {visible(peak.place)}"),
    ]


def _parameters(view: View) -> list[Fact]:
    figures = view.totals
    return [
        ("Parameters", format_exact(figures.params), parameter_note(view)),
        ("Parameter memory", format_bytes(figures.param_bytes), _buffer_note(view)),
    ]


def run_text(view: View) -> str:
    """`inference on cpu, float32 parameters, without arithmetic`."""
    run = view.capture.run
    if run.mode is None:
        return visible(f"{run.reason}; {_dtypes(view)}")
    how = "run for real" if run.mode == "real" else "without arithmetic"
    return visible(f"{'training' if run.train else 'inference'} on {run.device}, {_dtypes(view)}, {how}")


def parameter_note(view: View) -> str:
    figures = view.totals
    notes = []
    if not view.capture.has_code:
        return ""
    if figures.trainable_params != figures.params:
        notes.append(f"{format_exact(figures.trainable_params)} trainable")
    if figures.active_params != figures.params:
        notes.append(f"{format_exact(figures.active_params)} active per token")
    return ", ".join(notes)


def _dtypes(view: View) -> str:
    """The types of the parameters, the one with the most elements first."""
    elements: Counter[str] = Counter()
    for param in view.capture.params:
        if not param.is_buffer:
            elements[param.spec.dtype] += param.spec.numel
    return f"{', '.join(dtype for dtype, _ in elements.most_common())} parameters" if elements else "no parameters"


def input_facts(view: View) -> list[Fact]:
    """The inputs, then what was assumed: one reason often covers several of them."""
    inputs = view.capture.inputs
    shapes = [visible(f"{format_shape(entry.spec.shape)} {entry.spec.dtype}") for entry in inputs]
    names = [f"Input {shorten(visible(entry.name), _LONGEST)}" for entry in inputs]
    reasons = dict.fromkeys(entry.inferred for entry in inputs if entry.inferred)
    given = [(name, shape, "") for name, shape in zip(names, shapes, strict=True)]
    return given + [("Assumed", "", visible(reason)) for reason in reasons]


def _buffer_note(view: View) -> str:
    held = view.totals.buffer_bytes
    return f"and {format_bytes(held)} of buffers" if held else ""


def _moved_note(view: View, intensity: str) -> str:
    read, written = format_bytes(view.totals.bytes_read), format_bytes(view.totals.bytes_written)
    return f"{read} read, {written} written" + (f", {intensity}" if intensity else "")


def fact_lines(facts: list[Fact], width: int) -> list[Line]:
    """Name, value and remark, the names and values aligned; a remark that does not fit goes below its value."""
    names = max(cell_width(name) for name, _, _ in facts) + 2
    values = max((cell_width(value) for _, value, note in facts if note), default=0)
    values += 2 if values else 0
    lines: list[Line] = []
    for name, value, note in facts:
        lead = Span(padded(name, names), "dim")
        if not value:
            lines += wrap(note, width, lead=(lead,))
        elif names + values + cell_width(note) <= width:
            lines.append((lead, Span(padded(value, values) if note else value, "figure"), Span(note, "dim")))
        else:
            lines.append((lead, Span(value, "figure")))
            lines += wrap(note, width, lead=(Span(padded("", names)),), style="dim") if note else []
    return lines


def padded(text: str, width: int) -> str:
    return text + " " * (width - cell_width(text))
