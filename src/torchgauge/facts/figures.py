"""The table of figures: one row for each key that totals, modules, ops and weights have in the JSON document.

Everything that lists figures derives from it: columns of tables, budget keys, comparisons, figures of the page, types
of Parquet columns, attributes of the XML schema, sums of folded blocks, loggers, the reference of JSON keys. A new
figure of a module or an op is a row here and the code that computes it: `of_call` for what adds up over ops, else
`facts/rows.py`; a measured one is a member of `MeasuredModule` or `MeasuredOp` under its key, a predicted one of
`PredictedRow`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Final

from torchgauge.facts.op import CATEGORIES, UNCOUNTED, Signature

TOTALS, MODULES, OPS, WEIGHTS = "totals", "modules", "ops", "weights"
STATIC: Final = "static"
MEASURED: Final = "measured"
ESTIMATED: Final = "estimated"


class Unit(StrEnum):
    """The unit of a value decides how it is shown and stored. Numbers have the name of their format in the page."""

    COUNT = "count"  # shown with a prefix: 25.6 M
    WHOLE = "exact"  # shown in full
    BYTES = "bytes"
    SECONDS = "seconds"
    JOULES = "joules"
    SHARE = "percent"
    NUMBER = "value"
    RATE = "rate"  # per second
    TEXT = "text"
    NAMES = "names"
    SIZES = "sizes"  # a list of whole numbers
    NUMBERS = "numbers"
    SHAPES = "shapes"
    STRUCTURE = "structure"

    @property
    def is_number(self) -> bool:
        return self in _NUMBERS

    @property
    def is_whole(self) -> bool:
        return self in (Unit.COUNT, Unit.WHOLE, Unit.BYTES)

    @property
    def is_scalar(self) -> bool:
        return self.is_number or self is Unit.TEXT


COUNT, WHOLE, BYTES, SECONDS, JOULES = Unit.COUNT, Unit.WHOLE, Unit.BYTES, Unit.SECONDS, Unit.JOULES
SHARE, NUMBER, RATE, TEXT, NAMES = Unit.SHARE, Unit.NUMBER, Unit.RATE, Unit.TEXT, Unit.NAMES
_NUMBERS = frozenset((COUNT, WHOLE, BYTES, SECONDS, JOULES, SHARE, NUMBER, RATE))
SIZES, SHAPES, STRUCTURE = Unit.SIZES, Unit.SHAPES, Unit.STRUCTURE


class Known(StrEnum):
    """When a figure is known; it is null otherwise."""

    ALWAYS = "always"
    CODE = "code"  # the model was run, also on fake tensors
    TRAINING = "training"  # so was a training step
    FILES = "files"  # the target is a file or folder
    INFERENCE = "inference"  # runs were timed
    PROFILE = "profile"  # ops were timed
    ENERGY = "energy"  # energy was asked for
    PREDICTION = "prediction"  # a device was named (`--on`)
    VALUES = "values"  # the values of weights were read


ALWAYS, CODE, TRAINING, FILES = Known.ALWAYS, Known.CODE, Known.TRAINING, Known.FILES
INFERENCE, PROFILE, ENERGY, VALUES = Known.INFERENCE, Known.PROFILE, Known.ENERGY, Known.VALUES
PREDICTION = Known.PREDICTION


class Use(StrEnum):
    """Places outside the rows of the document where numbers and texts are shown."""

    TOTALS_COMPARED = "totals compared"
    MODULES_COMPARED = "modules compared"
    PICTURES = "pictures"  # of the page, sized and coloured by it
    MODULE_PAGE = "modules on the page"
    OP_PAGE = "ops on the page"
    LOGS = "logs"


_COMPARED = (Use.TOTALS_COMPARED, Use.MODULES_COMPARED)
_ONLY_IN_TABLES = tuple(Use)


@dataclass(frozen=True, slots=True)
class Figure:
    """`title` names it in full, `heading` over a column. `additive`: those of neighbouring modules add up. `of_call`
    gives that of one op call. `range_of` is the estimate that it is an end of. `in_document` is False for what follows
    from others and is only shown. `left_out` are the uses that do not show it; a new figure is in all of them.
    """

    key: str
    title: str
    unit: Unit
    levels: tuple[str, ...]
    meaning: str = ""
    heading: str = ""
    additive: bool = False
    origin: str = STATIC
    known: Known = ALWAYS
    of_call: Callable[[Signature], int] | None = None
    range_of: str | None = None
    in_document: bool = True
    left_out: tuple[Use, ...] = ()

    @property
    def short(self) -> str:
        return self.heading or self.title


_ALL = (TOTALS, MODULES, OPS)
# The order of the rows is that of the keys in every document.
FIGURES = (
    Figure("path", "Path", TEXT, (MODULES,), 'dotted path of the module; "" for the model itself',
           left_out=(Use.MODULE_PAGE,)),
    Figure("aliases", "Aliases", NAMES, (MODULES,), "other paths of the same module"),
    Figure("type", "Type", TEXT, (MODULES,), "class of the module"),
    Figure("depth", "Depth", WHOLE, (MODULES,), "levels below the model; 0 for the model itself",
           left_out=_ONLY_IN_TABLES),
    Figure("calls", "Calls", WHOLE, (MODULES,), "how often forward() was called", additive=True,
           left_out=(*_COMPARED, Use.PICTURES)),
    Figure("index", "#", WHOLE, (OPS,), "position in the run; other rows refer to it"),
    Figure("op", "Op", TEXT, (OPS,), "name of the op, such as `aten::convolution`"),
    Figure("overload", "Overload", TEXT, (OPS,), "overload of the op, such as `default`", left_out=(Use.OP_PAGE,)),
    Figure("module", "Module", TEXT, (OPS,), "the path of the module it ran in", left_out=(Use.OP_PAGE,)),
    Figure("phase", "Phase", TEXT, (OPS,), "`forward`, `backward` or `optimizer`"),
    Figure("category", "Kind", TEXT, (OPS,), ", ".join(f"`{name}`" for name in CATEGORIES)),
    Figure("status", "Status", TEXT, (OPS,), "`counted`, `free` or `uncounted`"),
    Figure("params", "Parameters", COUNT, (TOTALS, MODULES), "unique parameter elements of the model or module",
           heading="Params"),
    Figure("trainable_params", "Trainable", COUNT, (TOTALS, MODULES), "parameter elements with `requires_grad`",
           known=CODE,
           left_out=(Use.MODULES_COMPARED, Use.PICTURES, Use.LOGS)),
    Figure("active_params", "Active per token", COUNT, (TOTALS,),
           "parameter elements that one token uses (mixture of experts)",
           known=CODE),
    Figure("param_bytes", "Parameter memory", BYTES, (TOTALS, MODULES), "bytes of the parameters",
           heading="Param bytes"),
    Figure("buffer_bytes", "Buffers", BYTES, (TOTALS,), "bytes of the buffers"),
    Figure("stored_elements", "Stored elements", COUNT, (TOTALS,),
           "distinct elements in the files; of a live model, elements of the weights with scales", left_out=_COMPARED),
    Figure("logical_params", "Logical parameters", COUNT, (TOTALS, MODULES),
           "parameter elements after unpacking, without scales and zero points", heading="Logical",
           left_out=(Use.MODULES_COMPARED, Use.PICTURES, Use.LOGS, Use.MODULE_PAGE)),
    Figure("bits_per_weight", "Bits per weight", NUMBER, (TOTALS, MODULES),
           "bits of the weights, scales and zero points included, per logical parameter", heading="Bits",
           left_out=(Use.MODULES_COMPARED, Use.PICTURES, Use.LOGS, Use.MODULE_PAGE)),
    Figure("optimizer_elements", "Optimizer state", COUNT, (TOTALS,), "elements of optimizer state in the files",
           known=FILES),
    Figure("stored_bytes", "Stored", BYTES, (TOTALS,), "bytes of the tensors in the files", known=FILES),
    Figure("input_shapes", "Input", SHAPES, (MODULES, OPS), "shapes of the input tensors"),
    Figure("output_shapes", "Output", SHAPES, (MODULES, OPS), "shapes of the output tensors"),
    Figure("dtype", "Type", TEXT, (OPS,), "type of the arithmetic"),
    Figure("macs", "MACs", COUNT, _ALL, "multiply-accumulates", additive=True, known=CODE,
           of_call=lambda call: call.cost.macs),
    Figure("flops", "FLOPs", COUNT, _ALL, "floating-point operations", additive=True, known=CODE,
           of_call=lambda call: call.cost.flops),
    Figure("bytes_moved", "Bytes moved", BYTES, _ALL, heading="Moved", additive=True, known=CODE, in_document=False,
           left_out=(Use.MODULES_COMPARED, Use.LOGS)),
    Figure("bytes_read", "Bytes read", BYTES, _ALL, "bytes read: each distinct input element once per op",
           additive=True,
           known=CODE, of_call=lambda call: call.cost.bytes_read, left_out=(Use.TOTALS_COMPARED, Use.PICTURES)),
    Figure("bytes_written", "Bytes written", BYTES, _ALL, "bytes written: each output element once per op",
           additive=True, known=CODE,
           of_call=lambda call: call.cost.bytes_written, left_out=(Use.TOTALS_COMPARED, Use.PICTURES)),
    Figure("activation_bytes", "Activations", BYTES, _ALL, "bytes of new storages", additive=True, known=CODE,
           of_call=lambda call: call.activation_bytes, left_out=(Use.OP_PAGE,)),
    Figure("peak_activation_bytes", "Peak activations", BYTES, (TOTALS,),
           "largest sum of live storages that are neither parameters nor buffers", known=CODE),
    Figure("saved_activation_bytes", "Saved for backward", BYTES, (TOTALS,),
           "activations kept for the backward pass; 0 for inference", known=TRAINING),
    Figure("gradient_bytes", "Gradients", BYTES, (TOTALS,), "gradients of the parameters; 0 for inference",
           known=TRAINING),
    Figure("optimizer_bytes", "Optimizer memory", BYTES, (TOTALS,), "state of the optimizer; 0 for inference",
           known=TRAINING),
    Figure("total_bytes", "Memory in total", BYTES, (TOTALS,),
           "memory at the peak: parameters, buffers and activations; in training also gradients and optimizer state",
           known=CODE),
    Figure("arithmetic_intensity", "FLOPs per byte", NUMBER, (OPS,), "FLOPs per byte moved", known=CODE),
    Figure("live_bytes", "Live", BYTES, (OPS,), "live storages while the op runs, without parameters and buffers",
           known=CODE),
    Figure("ops", "Ops", WHOLE, (TOTALS, MODULES), "number of op calls", additive=True, known=CODE,
           of_call=lambda call: 1,
           left_out=(Use.PICTURES,)),
    Figure("uncounted_ops", "Ops not counted", WHOLE, (TOTALS,), "number of op calls without a formula", additive=True,
           known=CODE, of_call=lambda call: int(call.status == UNCOUNTED)),
    Figure("allocated_peak_bytes", "Allocated peak", BYTES, (TOTALS,), origin=MEASURED, known=INFERENCE,
           in_document=False),
    Figure("time_s", "Latency", SECONDS, (TOTALS,), "measured: median of the undisturbed runs", origin=MEASURED,
           known=INFERENCE),
    Figure("throughput_per_s", "Throughput", RATE, (TOTALS,), origin=MEASURED, known=INFERENCE, in_document=False),
    Figure("time_s", "Time", SECONDS, (MODULES, OPS), "measured: of a module with its children, of an op on the device",
           additive=True, origin=MEASURED, known=PROFILE),
    Figure("self_time_s", "Self time", SECONDS, (MODULES,), "measured, without the children", heading="Self",
           additive=True,
           origin=MEASURED, known=PROFILE, left_out=(Use.PICTURES,)),
    Figure("time_share", "Share of time", SHARE, (MODULES,), "time as a share of the median run", heading="share",
           additive=True,
           origin=MEASURED, known=PROFILE, left_out=_ONLY_IN_TABLES),
    Figure("cpu_time_s", "CPU time", SECONDS, (OPS,), "time on the processor", additive=True, origin=MEASURED,
           known=PROFILE),
    Figure("kernels", "Kernels", STRUCTURE, (OPS,), "kernels that ran on the device", origin=MEASURED, known=PROFILE),
    Figure("flops_per_s", "FLOPs per second", RATE, (OPS,), "FLOPs divided by the time", origin=MEASURED, known=PROFILE,
           left_out=(Use.OP_PAGE,)),
    Figure("bytes_per_s", "Bytes per second", RATE, (OPS,), "bytes moved divided by the time", origin=MEASURED,
           known=PROFILE,
           left_out=(Use.OP_PAGE,)),
    Figure("roof_share", "Of the roof", SHARE, (OPS,), "share of the device's peak (roofline) that was reached",
           origin=MEASURED,
           known=PROFILE),
    Figure("bound", "Bound", TEXT, (OPS,), "what limits the op: `compute`, `memory` or `launch`", origin=MEASURED,
           known=PROFILE),
    Figure("energy_j", "Energy", JOULES, _ALL, "measured, for one run", additive=True, origin=MEASURED, known=ENERGY),
    Figure("estimated_energy_j", "Energy", JOULES, (MODULES, OPS), "estimated, for one run", heading="Estimated",
           additive=True,
           origin=ESTIMATED, known=ENERGY),
    Figure("estimated_energy_low_j", "Energy, at least", JOULES, (MODULES, OPS), "low end of the estimate",
           heading="at least", additive=True, origin=ESTIMATED, known=ENERGY, range_of="estimated_energy_j"),
    Figure("estimated_energy_high_j", "Energy, at most", JOULES, (MODULES, OPS), "high end of the estimate",
           heading="at most", additive=True, origin=ESTIMATED, known=ENERGY, range_of="estimated_energy_j"),
    Figure("predicted_time_s", "Predicted time", SECONDS, (MODULES, OPS),
           "predicted contribution to a run on the first device of `--on`", heading="Predicted", additive=True,
           origin=ESTIMATED, known=PREDICTION),
    Figure("predicted_low_s", "Predicted time, at least", SECONDS, (MODULES, OPS), "low end of the 90 % interval",
           heading="at least", additive=True, origin=ESTIMATED, known=PREDICTION, range_of="predicted_time_s"),
    Figure("predicted_high_s", "Predicted time, at most", SECONDS, (MODULES, OPS), "high end of the 90 % interval",
           heading="at most", additive=True, origin=ESTIMATED, known=PREDICTION, range_of="predicted_time_s"),
    Figure("predicted_device_s", "Predicted device time", SECONDS, (MODULES, OPS),
           "predicted time of the kernels on that device",
           heading="On device", additive=True, origin=ESTIMATED, known=PREDICTION),
    Figure("predicted_energy_j", "Predicted energy", JOULES, (MODULES, OPS),
           "predicted energy on that device, for one run",
           heading="Pred. energy", additive=True, origin=ESTIMATED, known=PREDICTION),
    Figure("predicted_roof_share", "Predicted share of the roof", SHARE, (MODULES, OPS),
           "predicted share of that device's peak (roofline)", heading="Pred. roof", origin=ESTIMATED,
           known=PREDICTION, left_out=(*_COMPARED, Use.PICTURES)),
    Figure("predicted_bound", "Predicted bound", TEXT, (OPS,),
           "what limits the op: `host`, `compute`, `memory` or `launch`",
           origin=ESTIMATED, known=PREDICTION),
    Figure("predicted_source", "Source of the prediction", TEXT, (MODULES, OPS),
           "source of most of its device time: `measured`, `published`, `carried over`, `data sheet`",
           heading="Pred. source", origin=ESTIMATED, known=PREDICTION, left_out=_COMPARED),
    Figure("weights", "Weights", NAMES, (OPS,), "names of the parameters it reads"),
    Figure("source", "Source", TEXT, (OPS,), "line of the model's code that called it"),
    Figure("producers", "Producers", SIZES, (OPS,),
           "for each input, the op that produced it; null for parameters, constants and the model's inputs"),
    Figure("inputs", "Inputs", STRUCTURE, (MODULES, OPS), "input tensors with structure, types and strides"),
    Figure("outputs", "Outputs", STRUCTURE, (MODULES, OPS), "output tensors with structure, types and strides"),
    Figure("attributes", "Attributes", STRUCTURE, (OPS,), "other arguments: stride, padding, …"),
    Figure("tags", "Tags", NAMES, (OPS,), "torch's tags of the op"),
    # A stored tensor: what one number or text says. Nested statistics have their own types (`document_types`).
    Figure("name", "Tensor", TEXT, (WEIGHTS,)),
    Figure("shape", "Shape", SIZES, (WEIGHTS,)),
    Figure("dtype", "Type", TEXT, (WEIGHTS,)),
    Figure("elements", "Elements", COUNT, (WEIGHTS,)),
    Figure("bytes", "Bytes", BYTES, (WEIGHTS,)),
    Figure("file", "File", TEXT, (WEIGHTS,)),
    Figure("offset", "Offset", BYTES, (WEIGHTS,)),
    Figure("stride", "Stride", SIZES, (WEIGHTS,)),
    Figure("role", "Role", TEXT, (WEIGHTS,)),
    Figure("module", "Module", TEXT, (WEIGHTS,)),
    Figure("module_type", "Module type", TEXT, (WEIGHTS,)),
    Figure("shared_with", "Shares bytes with", TEXT, (WEIGHTS,)),
    Figure("duplicate_of", "Duplicate of", TEXT, (WEIGHTS,)),
    Figure("logical_elements", "Logical elements", COUNT, (WEIGHTS,)),
    *(Figure(key, key, unit, (WEIGHTS,), known=VALUES) for unit, keys in (
        (COUNT, "nan inf subnormal finite zeros"),
        (SHARE, "sparsity near_zero"),
        (NUMBER, "mean std min max abs_max skewness kurtosis l1 l2 quantile_resolution entropy_bits "
                 "entropy_symbol_bits compressibility spectral_norm stable_rank"),
    ) for key in keys.split()),
)  # fmt: skip


@cache
def figures_of(level: str) -> tuple[Figure, ...]:
    """The figures of a level's rows in the document, in the order of their keys."""
    return tuple(figure for figure in FIGURES if level in figure.levels and figure.in_document)


@cache
def shown_in(use: Use, level: str) -> tuple[Figure, ...]:
    """The numbers and texts of a level that a use shows, also such as only follow from others."""
    return tuple(
        figure
        for figure in FIGURES
        if level in figure.levels and figure.unit.is_scalar and use not in figure.left_out and figure.range_of is None
    )


@cache
def numbers_in(use: Use, level: str) -> tuple[Figure, ...]:
    return tuple(figure for figure in shown_in(use, level) if figure.unit.is_number)


@cache
def range_keys(level: str) -> tuple[str, ...]:
    """The ends of estimates."""
    return tuple(figure.key for figure in figures_of(level) if figure.range_of)


@cache
def keys_known(level: str, *known: Known) -> tuple[str, ...]:
    """The keys of a level that are known under one of these conditions."""
    return tuple(figure.key for figure in figures_of(level) if figure.known in known)


# Figures of a row by key: numbers mostly, texts and lists for some.
Members = Mapping[str, Any]


def members_known(rows: Iterable[Members], name: str, level: str, *known: Known) -> dict[Any, Any]:
    """The members of rows that are known under these conditions, by what the rows are named by; without the rows that
    have none of them. The caller knows their type."""
    keys = keys_known(level, *known)
    found = {row[name]: {key: row.get(key) for key in keys} for row in rows}
    return {key: members for key, members in found.items() if any(value is not None for value in members.values())}
