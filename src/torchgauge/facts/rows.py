"""The rows of the JSON document: totals, a module, an op, a parameter."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import TYPE_CHECKING, TypeVar

from torchgauge.facts.capture import Capture
from torchgauge.facts.experts import Mixture, active_params
from torchgauge.facts.figures import (
    CODE,
    ENERGY,
    FILES,
    INFERENCE,
    MEASURED,
    MODULES,
    OPS,
    PREDICTION,
    PROFILE,
    TOTALS,
    Members,
    figures_of,
    keys_known,
)
from torchgauge.facts.files import file_totals
from torchgauge.facts.module import InputRecord, ParamRecord, Structure
from torchgauge.facts.op import OpRecord
from torchgauge.facts.peak_memory import memory_at_peak
from torchgauge.facts.quantized import WeightSize, size_of
from torchgauge.facts.row_types import ModuleRow, OpRow, Row, TotalsRow
from torchgauge.facts.tensor import TensorSpec, tensor_specs
from torchgauge.facts.tree import Node, Sums

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Input, Parameter, Tensor


Kind = TypeVar("Kind", bound=Row)


def bytes_moved(row: Members) -> int | None:
    """Read and written; None where the model was not run."""
    return None if row["bytes_read"] is None else int(row["bytes_read"] + row["bytes_written"])


_KEYS = {level: tuple(figure.key for figure in figures_of(level)) for level in (TOTALS, MODULES, OPS)}
_GETTERS = {level: itemgetter(*keys) for level, keys in _KEYS.items()}
# Figures of measurements and predictions are null without them.
_UNMEASURED = {level: dict.fromkeys(keys_known(level, INFERENCE, PROFILE, ENERGY, PREDICTION)) for level in _KEYS}


def _row(kind: type[Kind], level: str, values: dict[str, object], *found: Members, has_code: bool = True) -> Kind:
    """The members in the order of the figure table; `found` is what runs add. A key that was not computed raises."""
    for members in found:
        values.update(members)
    if not has_code:
        values.update(dict.fromkeys(keys_known(level, CODE)))
    return kind(zip(_KEYS[level], _GETTERS[level](values), strict=True))


def totals_row(capture: Capture, total: Sums, mixtures: Iterable[Mixture]) -> TotalsRow:
    root = next(record for record in capture.modules if record.path == "")
    peak, step = memory_at_peak(capture), capture.run.step
    kept = {
        "saved_activation_bytes": step.saved if step else (),
        "gradient_bytes": step.gradients if step else (),
        "optimizer_bytes": step.optimizer_state if step else (),
    }
    # Memory that only a training step needs: 0 for inference, null where nothing was run.
    is_step_known = capture.has_code and (step is not None or not capture.run.train)
    size = size_of(capture.params)
    files: dict[str, int | None] = {"stored_elements": size.stored_elements, "logical_params": size.logical}
    if capture.stored is None:
        files |= dict.fromkeys(keys_known(TOTALS, FILES))
    else:
        files |= file_totals(capture.stored.tensors)
    static = {
        **_UNMEASURED[TOTALS],
        **total,
        **files,
        "params": root.params,
        # A file does not say which parameters are trained, nor how many of its experts a token uses.
        "trainable_params": root.trainable_params,
        "active_params": active_params(capture.params, mixtures) if capture.has_code else None,
        "param_bytes": root.param_bytes,
        "bits_per_weight": size.bits_per_weight,
        "buffer_bytes": sum(param.nbytes for param in capture.params if param.is_buffer),
        "peak_activation_bytes": max([capture.input_bytes, *[op.live_bytes for op in capture.ops]]),
        **{key: sum(size for _, size in sizes) if is_step_known else None for key, sizes in kept.items()},
        "total_bytes": peak.total if peak else None,
    }
    # Measured over whole runs, never summed from parts: the median undisturbed run, and the meter's energy.
    latency = capture.measured.figures.get("latency") if capture.measured else None
    joules = (
        capture.energy.figures["joules"] if capture.energy and capture.energy.figures["origin"] == MEASURED else None
    )
    found = {"time_s": latency["median_s"] if latency else None, "energy_j": joules}
    return _row(TotalsRow, TOTALS, static, found, has_code=capture.has_code)


def module_row(node: Node, capture: Capture, size: WeightSize) -> ModuleRow:
    record, path = node.record, node.record.path
    static = {
        **_UNMEASURED[MODULES],
        **node.total,
        "path": path,
        "aliases": list(record.aliases),
        "type": record.type,
        "depth": record.depth,
        "calls": record.calls,
        "params": record.params,
        "trainable_params": record.trainable_params,
        "param_bytes": record.param_bytes,
        "logical_params": size.logical,
        "bits_per_weight": size.bits_per_weight,
        "input_shapes": _shapes(tensor_specs(record.inputs)),
        "output_shapes": _shapes(tensor_specs(record.outputs)),
        "inputs": _plain(record.inputs),
        "outputs": _plain(record.outputs),
    }
    measured = capture.measured.modules.get(path, {}) if capture.measured else {}
    energy = capture.energy.modules.get(path, {}) if capture.energy else {}
    predicted = capture.predicted.modules.get(path, {}) if capture.predicted else {}
    return _row(ModuleRow, MODULES, static, measured, energy, predicted, has_code=capture.has_code)


_CALL_FIGURES = [(figure.key, figure.of_call) for figure in figures_of(OPS) if figure.of_call is not None]


def op_row(op: OpRecord, capture: Capture) -> OpRow:
    signature = op.signature
    moved = signature.cost.bytes_moved
    static = {
        **_UNMEASURED[OPS],
        "index": op.index,
        "op": signature.op,
        "overload": signature.overload,
        "module": op.module,
        "phase": op.phase,
        "category": signature.category,
        "status": signature.status,
        "input_shapes": _shapes(signature.inputs),
        "output_shapes": _shapes(signature.outputs),
        "dtype": signature.dtype,
        "arithmetic_intensity": signature.cost.flops / moved if moved else None,
        "live_bytes": op.live_bytes,
        "weights": list(op.weights),
        "source": op.source,
        "producers": list(op.producers),
        "inputs": [_tensor(spec) for spec in signature.inputs],
        "outputs": [_tensor(spec) for spec in signature.outputs],
        "attributes": dict(signature.attributes),
        "tags": list(signature.tags),
    }
    for key, of_call in _CALL_FIGURES:
        static[key] = of_call(signature)
    measured = capture.measured.ops.get(op.index, {}) if capture.measured else {}
    energy = capture.energy.ops.get(op.index, {}) if capture.energy else {}
    predicted = capture.predicted.ops.get(op.index, {}) if capture.predicted else {}
    return _row(OpRow, OPS, static, measured, energy, predicted)


def input_row(given: InputRecord) -> Input:
    readers = None if given.readers is None else [list(reader) for reader in given.readers]
    return {
        "name": given.name,
        "shape": list(given.spec.shape),
        "dtype": given.spec.dtype,
        "inferred": given.inferred,
        "readers": readers,
    }


def param_row(param: ParamRecord) -> Parameter:
    return {
        "name": param.name,
        **_tensor(param.spec),
        "trainable": param.trainable,
        "is_buffer": param.is_buffer,
        "aliases": list(param.aliases),
        "logical_elements": param.logical_elements,
        "stored_tensors": [_tensor(spec) for spec in param.stored],
    }


def _shapes(specs: Iterable[TensorSpec]) -> list[list[int]]:
    return [list(spec.shape) for spec in specs]


def _tensor(spec: TensorSpec) -> Tensor:
    """{shape, dtype}, with its stride where it is not contiguous and with what it stores where it is sparse."""
    row: Tensor = {"shape": list(spec.shape), "dtype": spec.dtype}
    if spec.stored is not None:
        row["stored"], row["index_bytes"] = spec.stored, spec.index_bytes
    elif spec.stride is not None:
        row["stride"] = list(spec.stride)
    return row


def _plain(value: Structure) -> object:
    """A nested structure as JSON."""
    if isinstance(value, TensorSpec):
        return _tensor(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
