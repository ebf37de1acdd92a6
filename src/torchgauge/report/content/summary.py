"""The summary: the target and its totals; and the notes that a reader needs to trust them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING

from torchgauge.facts import AdapterRecord, TrainingRecord, View
from torchgauge.facts.figures import ESTIMATED
from torchgauge.facts.peak_memory import memory_at_peak
from torchgauge.report.content.ops import coverage, unused_modules
from torchgauge.report.layout import shorten
from torchgauge.report.model import Block, Cell, Fact, Facts, Section, Text, Topic, more, notes, table, texts
from torchgauge.report.options import ABOUT, Options
from torchgauge.units import (
    format_bytes,
    format_count,
    format_exact,
    format_grams,
    format_joules,
    format_names,
    format_percent,
    format_seconds,
    format_shape,
    format_things,
    format_value,
)

if TYPE_CHECKING:
    from torchgauge.facts.document_types import ForecastRow
    from torchgauge.facts.files import Optimizer, Scheduler

_LONGEST_INPUT_NAME = 32
_LONGEST_METADATA = 80
_LONGEST_ARGUMENT = 60
_SHOWN_ARGUMENTS = 16  # JSON has all
_NAMED_UNCOUNTED_OPS = 3
_NAMED_UNUSED = 6
_LISTED_IMPORTS = 20
# The arguments that a reader looks for first, among a hundred.
_FIRST_ARGUMENTS = (
    "model", "arch", "model_name", "dataset", "data", "lr", "learning_rate", "batch_size",
    "per_device_train_batch_size", "gradient_accumulation_steps", "epochs", "num_train_epochs", "max_steps", "opt",
    "optim", "optimizer", "weight_decay", "momentum", "sched", "lr_scheduler_type", "warmup_steps", "warmup_ratio",
    "imgsz", "img_size", "seed", "bf16", "fp16", "amp",
)  # fmt: skip
# Settings of torch's optimizers that choose an implementation, not a method.
_IMPLEMENTATION = ("maximize", "foreach", "differentiable", "fused", "capturable", "decoupled_weight_decay")


# Memory of later calls is named where it is less than this share of the first call's.
_NOTED_SHARE = 0.95


def sections(view: View, options: Options) -> Iterator[Section]:
    yield Section("Summary", (Facts(summary_facts(view)),), Topic.SUMMARY, page_part="overview", name="summary")
    if found := note_texts(view):
        yield Section("Notes", notes(found, is_warning=True), Topic.NOTES, page_part="overview")
    # The names that a pickle would import.
    stored = view.capture.stored
    if stored is None or not stored.imports:
        return
    unusual = [entry for entry in stored.imports if entry.verdict != "expected"]
    what, fate = ("imported", "it was unpickled") if stored.executed else ("would import", "nothing was executed")
    usual = f"{format_exact(len(stored.imports) - len(unusual))} expected names"
    blocks: list[Block] = [Text(f"{usual}, {format_things(len(unusual), 'other')}; {fate}")]
    if unusual:
        rows = []
        for entry in unusual[:_LISTED_IMPORTS]:
            warns, called = entry.verdict == "dangerous", "yes" if entry.called else "no"
            rows.append((Cell(entry.verdict, is_warning=warns), Cell(name=entry.name, is_warning=warns), called))
        blocks.append(table(texts("Verdict", "Name", "Called"), rows, more(len(unusual) - _LISTED_IMPORTS)))
    yield Section(f"What its pickle {what}", tuple(blocks), Topic.NOTES, page_part="method")


def summary_facts(view: View) -> list[Fact]:
    facts = [*origin_facts(view), *input_facts(view), ("Run", "", run_text(view)), *total_facts(view)]
    latency = view.measurements.get("latency") if view.measurements else None
    if latency:
        runs = latency["runs"]
        of = "one undisturbed run" if runs == 1 else f"the median of {format_exact(runs)} undisturbed runs"
        facts.append(("Latency", format_seconds(latency["median_s"]), f"measured: {of}"))
    if view.totals.energy_j is not None:
        facts.append(("Energy", format_joules(view.totals.energy_j), "measured, of one run"))
    elif view.energy is not None and view.energy["origin"] == ESTIMATED:
        joules = view.energy["estimated_joules"]
        within = f"between {format_joules(joules['low'])} and {format_joules(joules['high'])}"
        grams = (view.energy.get("carbon") or {}).get("estimated_grams_per_1000")
        carbon = f", {ABOUT}{format_grams(grams['value'])} of CO2e per 1,000 samples" if grams else ""
        note = f"{within}{carbon}: no meter measured it"
        facts.append(("Energy, ESTIMATED", ABOUT + format_joules(joules["value"]), note))
    return facts


def model_kind(view: View) -> str:
    """The class of the model; of a file without code its format."""
    return view.tree.record.type or view.capture.target.format or "Weights"


def model_names(view: View) -> list[str]:
    """The class of the model and the target, where they differ."""
    return list(dict.fromkeys(filter(None, (model_kind(view), view.capture.target.name))))


def param_types(view: View) -> str:
    """The types of the parameters, that of the most elements first."""
    elements: Counter[str] = Counter()
    for param in view.capture.params:
        if not param.is_buffer:
            elements[param.spec.dtype] += param.spec.numel
    return ", ".join(dtype for dtype, _ in elements.most_common())


def run_text(view: View) -> str:
    """`inference on cpu, float32, static (nothing computed)`."""
    dtypes = param_types(view) or "no parameters"
    run = view.capture.run
    if run.mode is None:
        return f"{run.reason}; {dtypes}"
    static = "static (nothing computed)" if view.measurements is None else "static figures, then measured"
    how = "run for real" if run.mode == "real" else static
    return f"{'training' if run.train else 'inference'} on {run.device}, {dtypes}, {how}"


def input_facts(view: View) -> list[Fact]:
    """The inputs, then the assumptions about them: one reason often covers several."""
    inputs = view.capture.inputs
    described = [
        f"{shorten(entry.name, _LONGEST_INPUT_NAME)} {format_shape(entry.spec.shape)} {entry.spec.dtype}"
        for entry in inputs
    ]
    reasons = dict.fromkeys(entry.inferred for entry in inputs if entry.inferred)
    if len(inputs) == 1 and reasons:
        # It begins with the name and the shape, which are already shown.
        why = next(iter(reasons)).removeprefix(f"{inputs[0].name} {format_shape(inputs[0].spec.shape)}: ")
        return [("Input", "", f"{described[0]}, assumed: {why}")]
    return [("Input", "", text) for text in described] + [("Assumed", "", reason) for reason in reasons]


def total_facts(view: View) -> list[Fact]:
    figures = view.totals
    facts = [("Parameters", format_exact(figures.params), parameter_note(view)), *stored_facts(view)]
    facts += quantization_facts(view)
    if view.capture.has_code:
        missing, not_counted = coverage(view), ""
        if missing.uncounted:
            # Ops without a formula are named, never counted as zero.
            shown, more = missing.uncounted_ops[:_NAMED_UNCOUNTED_OPS], len(missing.uncounted_ops)
            names = ", ".join(f"{entry.op} ×{format_exact(entry.calls)}" for entry in shown)
            names += f" and {more - len(shown)} more" if more > len(shown) else ""
            not_counted = f"; not counted: {names} (no formula, {format_percent(missing.bytes_share)} of the bytes)"
        moved = figures.bytes_read + figures.bytes_written
        read_written = f"{format_bytes(figures.bytes_read)} read, {format_bytes(figures.bytes_written)} written"
        intensity = f", {format_count(figures.flops / moved)} FLOPs per byte" if moved else ""
        facts += [
            ("MACs", format_count(figures.macs), format_exact(figures.macs)),
            ("FLOPs", format_count(figures.flops), format_exact(figures.flops) + not_counted),
            ("Bytes moved", format_bytes(moved), read_written + intensity),
        ]
    return [*facts, *memory_facts(view), *time_facts(view), *prediction_facts(view)]


def time_facts(view: View) -> Iterator[Fact]:
    """The predicted time on this machine and on another that readers know."""
    for row in view.capture.expected:
        span = f"{format_seconds(row['predicted_low_s'])} to {format_seconds(row['predicted_high_s'])}"
        where = "Time here" if row["device"] == "this" else f"Time on {row['title'].removeprefix('NVIDIA ')}"
        yield where, ABOUT + format_seconds(row["predicted_time_s"]), f"predicted, {span}: {row['source']}"


def prediction_facts(view: View) -> Iterator[Fact]:
    """The predicted memory and time of the run on each device that was asked about."""
    timed = {row["device"]: row for row in view.capture.forecast}
    for fit in view.capture.fit:
        span, free = fit.bounds["used_bytes"], fit.free_bytes
        left = f"{format_bytes(free)} free" if free >= 0 else f"{format_bytes(-free)} too much"
        note = f"{fit.verdict}: predicted {format_bytes(span.low)} to {format_bytes(span.high)}, {left}"
        yield f"On {fit.title}", format_bytes(fit.used_bytes), note
        if fit.device in timed:
            yield "Time there", *_predicted_time(timed.pop(fit.device))
    for row in timed.values():
        yield f"Time on {row['title']}", *_predicted_time(row)


def _predicted_time(row: ForecastRow) -> tuple[str, str]:
    span = f"{format_seconds(row['predicted_low_s'])} to {format_seconds(row['predicted_high_s'])}"
    bound = {"host": "waits for the host", "launch": "kernels shorter than their overhead"}.get(row["bound"])
    note = f"predicted {span}, {row['execution']}; {bound or 'bound by ' + row['bound']}"
    return format_seconds(row["predicted_time_s"]), note


def parameter_note(view: View) -> str:
    figures = view.totals
    if not view.capture.has_code:
        return "floating-point tensors, known buffers excluded"
    notes = []
    if figures.trainable_params != figures.params:
        notes.append(f"{format_exact(figures.trainable_params)} trainable")
    if figures.active_params != figures.params:
        notes.append(f"{format_exact(figures.active_params)} active per token")
    return ", ".join(notes)


def memory_facts(view: View) -> list[Fact]:
    """Memory at the peak by purpose; for a file without code, the tensors of its model."""
    figures, use = view.totals, memory_at_peak(view.capture)
    if use is None:
        kept = {"parameters": figures.param_bytes, "buffers": figures.buffer_bytes}
        facts = [("Memory", format_bytes(figures.param_bytes + figures.buffer_bytes), _sum_text(kept))]
        if figures.peak_activation_bytes is not None:  # a training step saved by an early version
            note = "at the peak, gradients and optimizer state included"
            facts.append(("In addition", format_bytes(figures.peak_activation_bytes), note))
        return facts
    parts = {"parameters": use.parameters, "buffers": use.buffers, "activations": use.activations}
    step = view.capture.run.step
    place = (use.op.module or "the model itself") if use.op else ""
    if step is None:
        where = f" (peak in {place})" if place else ""
        facts = [("Memory", format_bytes(use.total), _sum_text(parts) + where)]
        later = view.capture.run.later_peak_bytes
        if later is not None and later < _NOTED_SHARE * use.activations:
            note = "of activations: the first call also initializes what the model keeps"
            facts.append(("In later calls", format_bytes(later), note))
        return facts
    parts |= {"gradients": use.gradients, f"optimizer state ({step.optimizer})": use.optimizer_state}
    saved = f"the forward pass saves {format_bytes(figures.saved_activation_bytes)} for the backward pass"
    phase = f"{use.op.phase} {'step' if use.op.phase == 'optimizer' else 'pass'}" if use.op else ""
    remarks = [f"{phase} in {place}" if place else "before the first op", saved]
    if use.gradients < figures.gradient_bytes:
        remarks.append(f"gradients grow to {format_bytes(figures.gradient_bytes)}")
    return [("Memory", format_bytes(use.total), _sum_text(parts)), ("At the peak", "", "; ".join(remarks))]


def _sum_text(sizes: Mapping[str, int]) -> str:
    """`97.5 MiB parameters + 208 KiB buffers`."""
    return " + ".join(f"{format_bytes(size)} {name}" for name, size in sizes.items() if size)


def origin_facts(view: View) -> list[Fact]:
    """The family of the model, and the files that hold it."""
    facts: list[Fact] = []
    family, complexity = view.architecture.family, view.architecture.complexity
    if family:
        kind = f"{family}, {complexity} complexity" if complexity else family
        # `depth 12, width 768, heads 12?`: a question mark for assumptions.
        values = view.architecture.hyperparameters
        assumed, known = values.get("assumed", []), []
        for name, value in values.items():
            if name != "assumed":
                text = "+".join(map(str, value)) if isinstance(value, list) else str(value)
                text = ("yes" if value else "no") if isinstance(value, bool) else text
                known.append(f"{name.replace('_', ' ')} {text}{'?' if name in assumed else ''}")
        facts.append(("Family", "", f"{kind}: {', '.join(known)}" if known else kind))
    target = view.capture.target
    if view.capture.stored is not None and target.format:
        files = PurePath(target.files[0]).name if target.files else ""
        files += f" and {len(target.files) - 1:,} more files" if len(target.files) > 1 else ""
        facts.append(("Format", "", f"{target.format}: {files}" if files else target.format))
    if target.metadata:
        # `file version 3, byteorder little, extra files notes.txt`, without the ID.
        shown = {name: value for name, value in target.metadata.items() if name != "serialization_id"}
        cut = {n: v if len(v) <= _LONGEST_METADATA else f"{v[:_LONGEST_METADATA]}…" for n, v in shown.items()}
        facts.append(("Archive", "", ", ".join(f"{n.replace('_', ' ')} {value}" for n, value in cut.items())))
    return [*facts, *adapter_facts(view.capture.adapter), *training_facts(view.capture.training)]


def stored_facts(view: View) -> list[Fact]:
    """The contents of the files; nothing for a live module."""
    figures = view.totals
    if figures.stored_bytes is None:
        return []
    tensors = view.capture.stored.tensors if view.capture.stored else ()
    tied = sum(tensor.shared_with is not None for tensor in tensors)
    note = f"{format_exact(figures.stored_elements)} elements in {format_things(len(tensors), 'tensor')}"
    note += f", {format_exact(tied)} of them under a second name" if tied else ""
    facts: list[Fact] = [("Stored", format_bytes(figures.stored_bytes), note)]
    if figures.logical_params != figures.params:
        facts.append(("Logical parameters", format_exact(figures.logical_params), "packed values unpacked"))
    if figures.optimizer_elements:
        facts.append(("Optimizer state", format_exact(figures.optimizer_elements), "elements"))
    return facts


def quantization_facts(view: View) -> Iterator[Fact]:
    """The quantized weights of a model that was run: their true size, what is multiplied, and what restoring them
    before each use costs."""
    found = view.quantization
    if found is None or not view.capture.has_code:
        return
    figures = view.totals
    if figures.stored_bytes is None and figures.logical_params != figures.params:
        yield "Logical parameters", format_exact(figures.logical_params), "packed values unpacked"
    note = f"{format_exact(found.logical_params)} weights of {format_things(found.layers, 'layer')} in "
    note += f"{format_bytes(found.stored_bytes)}, scales and zero points included"
    yield "Quantized", f"{format_value(found.bits_per_weight)} bits per weight", note
    shares = [f"{kinds} {format_percent(macs / figures.macs)}" for kinds, macs in found.macs_by_operands.items()]
    if shares:
        yield "Multiplied", "", ", ".join(shares)
    restoring = found.dequantize
    if restoring["ops"]:
        moved = restoring["bytes_read"] + restoring["bytes_written"]
        whole = figures.bytes_read + figures.bytes_written
        note = (
            f"by {format_things(restoring['ops'], 'op')} per run, {format_percent(moved / whole)} of the bytes moved; "
        )
        note += f"the largest tensor they create has {format_bytes(restoring['largest_bytes'])}"
        if restoring["time_s"] is not None:
            note += f"; {format_seconds(restoring['time_s'])}"
        yield "Dequantizing", format_bytes(moved), note


def training_facts(found: TrainingRecord | None) -> list[Fact]:
    """The training that wrote a checkpoint."""
    if found is None:
        return []
    facts: list[Fact] = []
    progress = [
        f"{name} {format_exact(int(value)) if float(value).is_integer() else format_value(value)}"
        for name, value in (("epoch", found.epoch), ("step", found.step))
        if value is not None
    ]
    by = ", ".join(filter(None, (found.model, found.made_by and f"saved by {found.made_by}")))
    facts.append(("Training", ", ".join(progress) or "state of a run", by))
    if found.best_metric is not None:
        facts.append(("Best metric", _value_text(found.best_metric["value"]), str(found.best_metric["name"])))
    if found.metrics:
        facts.append(("Metrics", "", _settings(found.metrics)))
    for one in found.optimizers:
        groups = f"{one['groups']} parameter groups" if one["groups"] != 1 else ""
        state = f"state {format_bytes(one['state_bytes'])} in {format_things(one['state_tensors'], 'tensor')}"
        shown = {key: value for key, value in one["settings"].items() if key not in _IMPLEMENTATION}
        facts.append(("Optimizer", _type(one), "; ".join(filter(None, (state, groups, _settings(shown))))))
    facts += [("LR scheduler", _type(one), _settings(one["settings"])) for one in found.schedulers]
    if found.ema is not None:
        size = f"{format_count(found.ema['elements'])} elements, {format_bytes(found.ema['bytes'])}"
        more = {key: found.ema[key] for key in ("decay", "updates") if found.ema[key] is not None}
        facts.append(("EMA copy", str(found.ema["name"]), ", ".join(filter(None, (size, _settings(more))))))
    if found.rng is not None:
        facts.append(("Random state", ", ".join(found.rng["generators"]), format_bytes(found.rng["bytes"])))
    if found.scaler is not None:
        facts.append(("Grad scaler", "", _settings(found.scaler)))
    if found.arguments:
        first = [key for key in _FIRST_ARGUMENTS if key in found.arguments]
        known = {key: found.arguments[key] for key in (*first, *found.arguments) if found.arguments[key] is not None}
        shown = dict(list(known.items())[:_SHOWN_ARGUMENTS])
        others = f", and {len(known) - len(shown):,} more" if len(known) > len(shown) else ""
        facts.append(("Arguments", "", _settings(shown) + others))
    return facts


def adapter_facts(found: AdapterRecord | None) -> list[Fact]:
    """The adapter, and the model that it changes."""
    if found is None:
        return []
    of = f"of {found.base_model}" if found.base_model else "of a base model that its files do not name"
    facts: list[Fact] = [("Adapter", found.method, of)]
    scale = {"rank": found.rank, "alpha": found.alpha}
    known = ", ".join(f"{name} {_value_text(value)}" for name, value in scale.items() if value is not None)
    targets = f"targets {', '.join(found.targets)}; " if found.targets else ""
    facts.append(("Adapts", known, f"{targets}adapter tensors in {format_things(found.modules, 'module')}"))
    shares = []
    if found.trainable_share is not None:
        whole = format_exact((found.base_params or 0) + found.trainable_params)
        shares.append(f"{format_percent(found.trainable_share)} of {whole} with the base")
    if found.share_of_adapted is not None:
        shares.append(f"{format_percent(found.share_of_adapted)} of the matrices that it adapts")
    facts.append(("Trainable", format_exact(found.trainable_params), ", ".join(shares)))
    if found.settings:
        facts.append(("Adapter config", "", _settings(found.settings)))
    return facts


def _type(one: Optimizer | Scheduler) -> str:
    return one["type"] or f"{one['name'] or 'of'} unknown type"


def _settings(values: Mapping[str, object]) -> str:
    """`lr 0.001, betas 0.9 0.999`: the settings that have a value; nested ones by their keys."""
    known = {name.replace("_", " ").strip(): value for name, value in values.items() if value is not None}
    return ", ".join(f"{name} {_value_text(value)}" for name, value in known.items())


def _value_text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        value = "{" + ", ".join(f"{key} {_value_text(item)}" for key, item in value.items()) + "}"
    elif isinstance(value, list | tuple):
        value = " ".join(map(_value_text, value)) or "none"
    text = str(value)
    return text if len(text) <= _LONGEST_ARGUMENT else f"{text[:_LONGEST_ARGUMENT]}…"


def real_run_text(view: View) -> str:
    return f"The model was run for real: {view.capture.run.reason or 'it cannot be run on fake tensors'}"


def note_texts(view: View) -> list[str]:
    run = view.capture.run
    found = []
    if run.mode == "real":
        found.append(real_run_text(view))
    found += run.warnings
    unused = unused_modules(view)
    if unused:
        names = [f"{node.path} ({format_count(node.record.params)} params)" for node in unused]
        found.append(f"Never used in this run: {format_names(names, _NAMED_UNUSED)}")
    return found
