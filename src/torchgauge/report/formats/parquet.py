"""Rows as Parquet, for a fleet of models: `.parquet` holds the modules, `.ops.parquet` the ops, `.weights.parquet` the
tensors.

Each row begins with the run it belongs to (`target`, `created`, `torchgauge_version`), and a column has the same type
in every file, so that many files are one table. Shapes and names are lists; values without a fixed form (nested inputs,
the attributes of an op) are JSON text. Units are base units, null is unknown. The metadata of the file hold, under
`torchgauge`, the facts about the whole run as JSON: totals, target, inputs, environment, architecture."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

from torchgauge.errors import MissingDependencyError, TorchgaugeError
from torchgauge.facts import Row, View
from torchgauge.facts.figures import MODULES, OPS, WEIGHTS, Unit, figures_of
from torchgauge.report.escape import json_line
from torchgauge.report.options import Options
from torchgauge.report.registry import renderer
from torchgauge.report.table_rows import FLAT, flat_rows, op_columns, weight_columns

METADATA_KEY = "torchgauge"
RUN = ("target", "created", "torchgauge_version")
FLAG = "flag"  # true or false; no figure has this unit
METADATA = ("schema_version", "tool", "created", "environment", "target", "inputs", "capture", "architecture", "totals")


@renderer("parquet", suffix=".parquet", contents="one row per module; needs `torchgauge[parquet]`", note="modules")
def render_modules_parquet(view: View, options: Options) -> bytes:
    return _parquet(view, view.modules, list(view.modules[0]), MODULES)


@renderer("ops.parquet", suffix=".ops.parquet", contents="one row per op")
def render_ops_parquet(view: View, options: Options) -> bytes:
    return _parquet(view, view.ops, op_columns(view), OPS)


@renderer(
    "weights.parquet", suffix=".weights.parquet", contents="one row per tensor", scans=(".parquet", ".weights.parquet")
)
def render_weights_parquet(view: View, options: Options) -> bytes:
    rows = flat_rows(view.weights)
    for flat, row in zip(rows, view.weights, strict=True):
        histogram = row.get("histogram") or {}
        flat |= {f"histogram_{key}": histogram.get(key) for key in ("edges", "counts")}
    return _parquet(view, rows, weight_columns(rows), WEIGHTS)


def _parquet(view: View, rows: Sequence[Row], names: Sequence[str], level: str) -> bytes:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependencyError("pyarrow", "a Parquet file") from error
    run = dict(zip(RUN, (view.capture.target.name, view.capture.created, view.capture.version), strict=True))
    columns: dict[str, list[Any]] = {name: [value] * len(rows) for name, value in run.items()}
    columns |= {name: [row[name] for row in rows] for name in names if name not in run}
    units = dict.fromkeys(RUN, Unit.TEXT) | {figure.key: figure.unit for figure in figures_of(level)}
    units |= FLAT if level == WEIGHTS else {}
    text, integer, number = pyarrow.string(), pyarrow.int64(), pyarrow.float64()
    sizes = pyarrow.list_(integer)
    # The type of a column follows from its unit: the same in every file, also where all its values are null.
    types = {unit: integer if unit.is_whole else number for unit in Unit if unit.is_number} | {
        Unit.TEXT: text, Unit.STRUCTURE: text, Unit.SIZES: sizes, Unit.NAMES: pyarrow.list_(text),
        Unit.NUMBERS: pyarrow.list_(number), Unit.SHAPES: pyarrow.list_(sizes), FLAG: pyarrow.bool_(),
    }  # fmt: skip
    arrays = {}
    for name, values in columns.items():
        unit = units.get(name) or _unit_of(values)
        if unit is None:
            continue
        if unit in (Unit.TEXT, Unit.STRUCTURE):
            form = json_line if unit == Unit.STRUCTURE else _text
            values = [None if value is None else form(value) for value in values]
        elif unit == Unit.NAMES:
            values = [None if value is None else [_text(item) for item in value] for value in values]
        try:
            arrays[_text(name)] = pyarrow.array(values, types[unit])
        except (pyarrow.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise TorchgaugeError(f"the column '{name}' has a value that Parquet cannot hold: {error}") from error
    document = view.to_dict()
    metadata = json_line({key: document[key] for key in METADATA if key in document})
    table = pyarrow.table(arrays).replace_schema_metadata({METADATA_KEY: metadata})
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def _unit_of(values: Iterable[Any]) -> str | None:
    """The unit of a column that no table lists; None for one without values, which has no type to agree on."""
    types = {type(value) for value in values if value is not None}
    if not types:
        return None
    if types <= {int, float}:
        return Unit.NUMBER
    if types == {bool}:
        return FLAG
    return Unit.TEXT if types == {str} else Unit.STRUCTURE


def _text(value: Any) -> str:
    """A lone surrogate cannot be encoded: it becomes an escape."""
    return str(value).encode("utf-8", "backslashreplace").decode()
