"""A capture seen as rows and totals: the shape of the JSON document, computed once and shared by every report."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import Any

from torchgauge.consumption import energy_of_module, energy_of_op, total_energy
from torchgauge.experts import active_params
from torchgauge.measured import module_members, op_members, total_time, trace_member
from torchgauge.records import (
    SCHEMA_VERSION,
    Capture,
    OpRecord,
    ParamRecord,
    TensorSpec,
    tensor_specs,
)
from torchgauge.statistics import against_member, summary_member, weight_rows
from torchgauge.stored import pickle_member, stored_totals
from torchgauge.tree import Figures, Node, build_tree

ADDITIVE = ("macs", "flops", "bytes_read", "bytes_written", "activation_bytes", "ops")


class Row(dict[str, Any]):
    """A JSON object whose keys are attributes too: `row["macs"]`, `row.macs`."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no '{name}'; there are: {', '.join(self)}") from None


class View:
    """What the reports read. Everything here derives from the capture."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture

    @cached_property
    def tree(self) -> Node:
        return build_tree(self.capture)

    @cached_property
    def totals(self) -> Row:
        # Without code no op adds anything up: the tree of a file's hundred thousand modules is not needed.
        return _totals(self.capture, self.tree.total if self.capture.has_code else Figures())

    @cached_property
    def modules(self) -> list[Row]:
        """One row per module, preorder."""
        return [_module_row(node, self.capture) for node in self.tree.walk()]

    @cached_property
    def ops(self) -> list[Row]:
        """One row per op call, in order."""
        return [_op_row(op, self.capture) for op in self.capture.ops]

    @cached_property
    def weights(self) -> list[Row]:
        """One row per stored tensor; for a live module one per parameter and buffer whose values were read."""
        return [Row(row) for row in weight_rows(self.capture)]

    @cached_property
    def weight_summary(self) -> Row | None:
        """The figures of all weights together; None where no values were read."""
        summary = summary_member(self.capture.statistics)
        return None if summary is None else Row(summary)

    @cached_property
    def measurements(self) -> Row | None:
        """What real runs took; None where nothing was measured."""
        return Row(self.capture.measured.figures) if self.capture.measured else None

    @cached_property
    def energy(self) -> Row | None:
        """What a run consumes; None where nobody asked."""
        return Row(self.capture.energy.figures) if self.capture.energy else None

    @cached_property
    def advice(self) -> list[Row]:
        """What to do about the model, the largest expected gain first."""
        return [Row(row) for row in self.capture.advice]

    @cached_property
    def plan(self) -> Row | None:
        """The verified advice that works best together; None where none was verified, or none held."""
        return Row(self.capture.plan) if self.capture.plan else None

    @cached_property
    def architecture(self) -> Row:
        known = self.capture.architecture
        if known is not None:
            counts, hyperparameters = dict(known.layer_counts), dict(known.hyperparameters)
            return Row(family=known.family, layer_counts=counts, hyperparameters=hyperparameters)
        parents = {record.parent for record in self.capture.modules}
        kinds = Counter(record.type for record in self.capture.modules if record.path not in parents)
        return Row(family=None, layer_counts=dict(kinds.most_common()), hyperparameters={})

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of the contract, with plain numbers only."""
        capture = self.capture
        return {
            "schema_version": SCHEMA_VERSION,
            "tool": {"name": "torchgauge", "version": capture.version},
            "created": capture.created,
            "environment": _environment(capture),
            "target": {
                "name": capture.target.name,
                "kind": capture.target.kind,
                "format": capture.target.format,
                "files": list(capture.target.files),
                "metadata": dict(capture.target.metadata),
            },
            "inputs": [
                {"name": i.name, "shape": list(i.spec.shape), "dtype": i.spec.dtype, "inferred": i.inferred}
                for i in capture.inputs
            ],
            "capture": {
                "mode": capture.run.mode,
                "reason": capture.run.reason,
                "device": capture.run.device,
                "train": capture.run.train,
                "warnings": list(capture.run.warnings),
                "input_bytes": capture.input_bytes,
                "results": list(capture.run.results),
            },
            "architecture": dict(self.architecture),
            "totals": dict(self.totals),
            "modules": [dict(row) for row in self.modules],
            "ops": [dict(row) for row in self.ops],
            "parameters": [_param_row(param) for param in capture.params],
            "weights": [dict(row) for row in self.weights],
            "weight_summary": self.weight_summary and dict(self.weight_summary),
            "against": against_member(capture.statistics),
            "pickle": pickle_member(capture.stored),
            "measurements": self.measurements and dict(self.measurements),
            "trace": trace_member(capture.measured),
            "energy": self.energy and dict(self.energy),
            "advice": [dict(row) for row in self.advice],
            "plan": self.plan and dict(self.plan),
        }


def _environment(capture: Capture) -> dict[str, Any]:
    env = capture.environment
    facts = {name: getattr(env, name) for name in env.__slots__}
    return facts | {"packages": dict(env.packages), "settings": dict(env.settings)}


def _totals(capture: Capture, total: Figures) -> Row:
    root = next(record for record in capture.modules if record.path == "")
    has_code = capture.has_code
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
        ops=total.ops if has_code else None,
        uncounted_ops=total.uncounted_ops if has_code else None,
        time_s=total_time(capture.measured),
        energy_j=total_energy(capture.energy),
    )


def _peak_bytes(capture: Capture) -> int:
    return max(capture.input_bytes, *(op.live_bytes for op in capture.ops), 0)


def _module_row(node: Node, capture: Capture) -> Row:
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


def _op_row(op: OpRecord, capture: Capture) -> Row:
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


def _param_row(param: ParamRecord) -> dict[str, Any]:
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
    """A nested structure as JSON: a tensor becomes {shape, dtype}, with its stride where it is not contiguous."""
    if isinstance(value, TensorSpec):
        plain: dict[str, Any] = {"shape": list(value.shape), "dtype": value.dtype}
        return plain if value.stride is None else plain | {"stride": list(value.stride)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
