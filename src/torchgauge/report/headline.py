"""What was analysed and its totals: the part of the report that is read first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from torchgauge.facts import View
from torchgauge.facts.peak_memory import memory_at_peak
from torchgauge.report.coverage import coverage
from torchgauge.report.escape import visible
from torchgauge.report.layout import Line, Span, cell_width, shorten, wrap
from torchgauge.report.options import Options
from torchgauge.report.origin import Fact, origin_facts, stored_facts
from torchgauge.units import format_bytes, format_count, format_exact, format_percent, format_shape

_LONGEST = 32  # of an input's name
MIN_NOTE_WIDTH = 48  # of a remark beside its value
_NAMED = 3  # ops without a formula


def title(view: View, options: Options) -> list[Line]:
    capture, kind = view.capture, model_kind(view)
    named = f" · {visible(capture.target.name)}" if capture.target.name not in ("", kind) else ""
    lines: list[Line] = [(Span(visible(kind), "heading"), Span(named))]
    return lines + fact_lines([*origin_facts(view), *input_facts(view), ("Run", "", run_text(view))], options.width)


def model_kind(view: View) -> str:
    """The class of the model; of a file without code its format."""
    return view.tree.record.type or view.capture.target.format or "Weights"


def totals(view: View, options: Options) -> list[Line]:
    return fact_lines(total_facts(view), options.width)


def total_facts(view: View) -> list[Fact]:
    figures = view.totals
    facts = [("Parameters", format_exact(figures.params), parameter_note(view)), *stored_facts(view)]
    if view.capture.has_code:
        moved = figures.bytes_read + figures.bytes_written
        facts += [
            ("MACs", format_count(figures.macs), format_exact(figures.macs)),
            ("FLOPs", format_count(figures.flops), format_exact(figures.flops) + _uncounted_note(view)),
            ("Bytes moved", format_bytes(moved), _moved_note(view)),
        ]
    return [*facts, *memory_facts(view)]


def memory_facts(view: View) -> list[Fact]:
    """What is in memory at the peak and what it is made of; of a file without code the tensors of its model."""
    figures, use = view.totals, memory_at_peak(view.capture)
    if use is None:
        kept = {"parameters": figures.param_bytes, "buffers": figures.buffer_bytes}
        facts = [("Memory", format_bytes(figures.param_bytes + figures.buffer_bytes), _parts(kept))]
        if figures.peak_activation_bytes is not None:  # of a training step saved by a version that did not say more
            note = "at the peak, gradients and optimizer state included"
            facts.append(("Besides", format_bytes(figures.peak_activation_bytes), note))
        return facts
    parts = {"parameters": use.parameters, "buffers": use.buffers, "activations": use.activations}
    step = view.capture.run.step
    if step is None:
        where = f" (peak in {visible(use.op.module or 'the model itself')})" if use.op else ""
        return [("Memory", format_bytes(use.total), _parts(parts) + where)]
    parts |= {"gradients": use.gradients, f"optimizer state ({visible(step.optimizer)})": use.optimizer_state}
    saved = f"the forward pass saves {format_bytes(figures.saved_activation_bytes)} for the backward pass"
    phase = f"{use.op.phase} {'step' if use.op.phase == 'optimizer' else 'pass'}" if use.op else ""
    remarks = [
        f"{phase} in {visible(use.op.module or 'the model itself')}" if use.op else "before the first op",
        saved,
        f"gradients grow to {format_bytes(figures.gradient_bytes)}" if use.gradients < figures.gradient_bytes else "",
    ]
    return [
        ("Memory", format_bytes(use.total), _parts(parts)),
        ("At the peak", "", "; ".join(part for part in remarks if part)),
    ]


def _parts(sizes: Mapping[str, int]) -> str:
    """`97.5 MiB parameters + 208 KiB buffers`."""
    return " + ".join(f"{format_bytes(size)} {name}" for name, size in sizes.items() if size)


def run_text(view: View) -> str:
    """`inference on cpu, float32, static (nothing computed)`."""
    run = view.capture.run
    if run.mode is None:
        return visible(f"{run.reason}; {_dtypes(view)}")
    static = "static (nothing computed)" if view.measurements is None else "static figures, then measured"
    how = "run for real" if run.mode == "real" else static
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
    return ", ".join(dtype for dtype, _ in elements.most_common()) or "no parameters"


def input_facts(view: View) -> list[Fact]:
    """The inputs, then what was assumed: one reason often covers several of them."""
    inputs = view.capture.inputs
    texts = [
        visible(f"{shorten(entry.name, _LONGEST)} {format_shape(entry.spec.shape)} {entry.spec.dtype}")
        for entry in inputs
    ]
    facts: list[Fact] = [("Input", "", text) for text in texts]
    reasons = dict.fromkeys(entry.inferred for entry in inputs if entry.inferred)
    if len(inputs) == 1 and reasons:
        # It begins with the name and the shape, which stand here already.
        why = next(iter(reasons)).removeprefix(f"{inputs[0].name} {format_shape(inputs[0].spec.shape)}: ")
        return [("Input", "", f"{texts[0]}, assumed: {visible(why)}")]
    return facts + [("Assumed", "", visible(reason)) for reason in reasons]


def _uncounted_note(view: View) -> str:
    """Ops without a formula are named, never counted as zero."""
    missing = coverage(view)
    if not missing.uncounted:
        return ""
    names = ", ".join(f"{visible(entry.op)} ×{format_exact(entry.calls)}" for entry in missing.uncounted_ops[:_NAMED])
    more = f" and {len(missing.uncounted_ops) - _NAMED} more" if len(missing.uncounted_ops) > _NAMED else ""
    return f"; not counted: {names}{more} (no formula, {format_percent(missing.bytes_share)} of the bytes)"


def _moved_note(view: View) -> str:
    figures = view.totals
    read, written = format_bytes(figures.bytes_read), format_bytes(figures.bytes_written)
    moved = figures.bytes_read + figures.bytes_written
    intensity = f", {format_count(figures.flops / moved)} FLOPs per byte" if moved else ""
    return f"{read} read, {written} written{intensity}"


def fact_lines(facts: list[Fact], width: int) -> list[Line]:
    """Name, value and remark, the names and values aligned; a remark that does not fit is wrapped: beside its value
    where there is room for it, else below."""
    names = max(cell_width(name) for name, _, _ in facts) + 2
    values = max((cell_width(value) for _, value, note in facts if note), default=0)
    values += 2 if values else 0
    lines: list[Line] = []
    for name, value, note in facts:
        lead = Span(padded(name, names), "dim")
        if not value:
            lines += wrap(note, width, lead=(lead,))
        elif not note:
            lines.append((lead, Span(value, "figure")))
        elif names + values + cell_width(note) <= width or width - names - values >= MIN_NOTE_WIDTH:
            lines += wrap(note, width, lead=(lead, Span(padded(value, values), "figure")), style="dim")
        else:
            lines.append((lead, Span(value, "figure")))
            lines += wrap(note, width, lead=(Span(padded("", names)),), style="dim")
    return lines


def padded(text: str, width: int) -> str:
    return text + " " * (width - cell_width(text))
