"""The rows of the JSON document: totals, a module, an op, a parameter."""

from __future__ import annotations

from typing import Any

from torchgauge.facts.capture import Capture, StepMemory
from torchgauge.facts.energy import energy_of_module, energy_of_op, total_energy
from torchgauge.facts.experts import active_params
from torchgauge.facts.files import stored_totals
from torchgauge.facts.measurements import module_members, op_members, total_time
from torchgauge.facts.module import InputRecord, ParamRecord
from torchgauge.facts.op import OpRecord
from torchgauge.facts.peak_memory import memory_at_peak
from torchgauge.facts.tensor import TensorSpec, tensor_specs
from torchgauge.facts.tree import Figures, Node

ADDITIVE = ("macs", "flops", "bytes_read", "bytes_written", "activation_bytes", "ops")


class Row(dict[str, Any]):
    """A JSON object whose keys are attributes too: `row["macs"]`, `row.macs`."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no '{name}'; there are: {', '.join(self)}") from None


def totals_row(capture: Capture, total: Figures) -> Row:
    root = next(record for record in capture.modules if record.path == "")
    has_code, peak = capture.has_code, memory_at_peak(capture)
    return Row(
        params=root.params,
        # A file does not say which parameters are trained, nor how many of its experts a token uses.
        trainable_params=root.trainable_params if has_code else None,
        active_params=active_params(capture) if has_code else None,
        param_bytes=root.param_bytes,
        buffer_bytes=sum(param.spec.nbytes for param in capture.params if param.is_buffer),
        **stored_totals(capture.stored),
        macs=total.macs if has_code else None,
        flops=total.flops if has_code else None,
        bytes_read=total.bytes_read if has_code else None,
        bytes_written=total.bytes_written if has_code else None,
        activation_bytes=total.activation_bytes if has_code else None,
        peak_activation_bytes=_peak_bytes(capture) if has_code else None,
        **_step_totals(capture),
        total_bytes=peak.total if peak else None,
        ops=total.ops if has_code else None,
        uncounted_ops=total.uncounted_ops if has_code else None,
        time_s=total_time(capture.measured),
        energy_j=total_energy(capture.energy),
    )


def _peak_bytes(capture: Capture) -> int:
    return max(capture.input_bytes, *(op.live_bytes for op in capture.ops), 0)


def _step_totals(capture: Capture) -> dict[str, int | None]:
    """Memory that only a training step needs: 0 for inference, null where nothing was run."""
    step = capture.run.step
    kept = {
        "saved_activation_bytes": step.saved if step else (),
        "gradient_bytes": step.gradients if step else (),
        "optimizer_bytes": step.optimizer_state if step else (),
    }
    is_known = capture.has_code and (step is not None or not capture.run.train)
    return {name: sum(nbytes for _, nbytes in found) if is_known else None for name, found in kept.items()}


def module_row(node: Node, capture: Capture) -> Row:
    record, total, has_code = node.record, node.total, capture.has_code
    return Row(
        path=record.path,
        aliases=list(record.aliases),
        type=record.type,
        depth=record.depth,
        calls=record.calls,
        params=record.params,
        trainable_params=record.trainable_params if has_code else None,
        param_bytes=record.param_bytes,
        input_shapes=_shapes(tensor_specs(record.inputs)),
        output_shapes=_shapes(tensor_specs(record.outputs)),
        **{name: getattr(total, name) if has_code else None for name in ADDITIVE},
        **module_members(capture.measured, record.path),
        **energy_of_module(capture.energy, record.path),
        inputs=_plain(record.inputs),
        outputs=_plain(record.outputs),
    )


def op_row(op: OpRecord, capture: Capture) -> Row:
    signature, cost = op.signature, op.signature.cost
    moved = cost.bytes_read + cost.bytes_written
    return Row(
        index=op.index,
        op=signature.op,
        overload=signature.overload,
        module=op.module,
        phase=op.phase,
        category=signature.category,
        status=signature.status,
        input_shapes=_shapes(signature.inputs),
        output_shapes=_shapes(signature.outputs),
        dtype=signature.dtype,
        macs=cost.macs,
        flops=cost.flops,
        bytes_read=cost.bytes_read,
        bytes_written=cost.bytes_written,
        activation_bytes=signature.activation_bytes,
        arithmetic_intensity=cost.flops / moved if moved else None,
        live_bytes=op.live_bytes,
        **op_members(capture.measured, op.index),
        **energy_of_op(capture.energy, op.index),
        weights=list(op.weights),
        source=op.source,
        producers=list(op.producers),
        inputs=[_plain(spec) for spec in signature.inputs],
        outputs=[_plain(spec) for spec in signature.outputs],
        attributes=dict(signature.attributes),
        tags=list(signature.tags),
    )


def input_row(given: InputRecord) -> dict[str, Any]:
    readers = None if given.readers is None else [list(reader) for reader in given.readers]
    return {
        "name": given.name,
        "shape": list(given.spec.shape),
        "dtype": given.spec.dtype,
        "inferred": given.inferred,
        "readers": readers,
    }


def step_member(step: StepMemory | None) -> dict[str, Any] | None:
    """What a training step keeps in memory; null for inference."""
    if step is None:
        return None
    kept = {name: getattr(step, name) for name in ("saved", "gradients", "optimizer_state")}
    return {"optimizer": step.optimizer} | {name: [list(pair) for pair in pairs] for name, pairs in kept.items()}


def param_row(param: ParamRecord) -> dict[str, Any]:
    return {
        "name": param.name,
        **_plain(param.spec),
        "trainable": param.trainable,
        "is_buffer": param.is_buffer,
        "aliases": list(param.aliases),
    }


def _shapes(specs: Any) -> list[list[int]]:
    return [list(spec.shape) for spec in specs]


def _plain(value: Any) -> Any:
    """A nested structure as JSON: a tensor becomes {shape, dtype}, with its stride where it is not contiguous
    and with what it stores where it is sparse."""
    if isinstance(value, TensorSpec):
        plain: dict[str, Any] = {"shape": list(value.shape), "dtype": value.dtype}
        if value.stored is not None:
            return plain | {"stored": value.stored, "index_bytes": value.index_bytes}
        return plain if value.stride is None else plain | {"stride": list(value.stride)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
