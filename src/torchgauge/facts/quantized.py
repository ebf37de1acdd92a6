"""Quantized weights: their logical and stored elements, the types that are multiplied, and what restoring them costs.

A weight is restored (dequantized) by ops that read nothing but weights and constants, up to the op that brings an
activation in. Where a kernel restores it on the way to its product, there is no such op.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchgauge.facts.capture import Capture
from torchgauge.facts.module import ParamRecord
from torchgauge.facts.op import FREE, OpRecord
from torchgauge.facts.tensor import TensorSpec

if TYPE_CHECKING:
    from torchgauge.facts.document_types import QuantizedWeights

# Ops whose first input is added to the product of the next two.
_ADDS_FIRST = ("aten::addmm", "aten::baddbmm", "aten::addbmm", "aten::addmv", "aten::addr", "aten::_addmm_activation")
# Kernels that get their weight packed in an object, or that quantize their activations on the way: what they multiply.
# None: the type of the weight that they are given.
_PACKED_KERNELS: tuple[tuple[str, tuple[str, str | None]], ...] = (
    ("finegrained_fp8::matmul", ("float8_e4m3fn", None)),
    ("_dynamic_fp16", ("float16", "float16")),
    ("quantized::linear", ("quint8", "qint8")),
    ("quantized::conv", ("quint8", "qint8")),
    ("aten::quantized_lstm", ("quint8", "qint8")),
    ("aten::quantized_gru", ("quint8", "qint8")),
)


@dataclass(frozen=True, slots=True)
class WeightSize:
    """The size of the weights in a subtree, scales and zero points included."""

    logical: int = 0
    stored_elements: int = 0
    nbytes: int = 0

    @property
    def bits_per_weight(self) -> float | None:
        return 8 * self.nbytes / self.logical if self.logical else None

    def __add__(self, other: WeightSize) -> WeightSize:
        return WeightSize(
            self.logical + other.logical, self.stored_elements + other.stored_elements, self.nbytes + other.nbytes
        )


def size_of(params: Iterable[ParamRecord]) -> WeightSize:
    """The size of the parameters, and of buffers that hold packed weights or serve them."""
    logical = stored_elements = nbytes = 0
    for param in params:
        if param.is_weight:
            logical += param.logical
            stored_elements += sum([spec.distinct_numel for spec in param.held])
            nbytes += param.nbytes
    return WeightSize(logical, stored_elements, nbytes)


def weight_sizes(capture: Capture) -> Mapping[str, WeightSize]:
    """The size of the weights in each module's subtree, by path; a tensor with two names counts once."""
    found: defaultdict[str, WeightSize] = defaultdict(WeightSize)
    for param in capture.params:
        if param.is_weight:
            size = size_of((param,))
            for path in param.holders:
                found[path] += size
    return found


def restoring_ops(capture: Capture) -> Iterator[OpRecord]:
    """Ops of the forward pass that read quantized weights and no activation, views included."""
    quantized = _quantized(capture)
    packed = {name for param in quantized for name in (param.name, *param.aliases)}
    if not packed:
        return
    given = {place for entry in capture.inputs for place in entry.readers or ()}
    # Whether each op's result comes from quantized weights (True) or constants (False); activations are absent.
    made: dict[int, bool] = {}
    for op in capture.ops:
        if op.phase != "forward":
            continue
        sources = [
            None if (op.index, at) in given else made.get(producer) if producer is not None else False
            for at, producer in enumerate(op.producers)
        ]
        if None not in sources:
            made[op.index] = any(sources) or not packed.isdisjoint(op.weights)
            if made[op.index]:
                yield op


def _quantized(capture: Capture) -> list[ParamRecord]:
    """The quantized weights and their scales and zero points."""
    found = [param for param in capture.params if param.is_quantized or param.logical_elements == 0]
    return found if any(param.is_quantized for param in found) else []


def macs_by_operands(capture: Capture) -> dict[str, int]:
    """MACs by the types that are multiplied, "int8 × int8", most first."""
    found: Counter[str] = Counter()
    bits = {name: param.code_bits for param in capture.params for name in (param.name, *param.aliases)}
    for op in capture.ops:
        if op.cost.macs:
            packed = [bits[name] for name in op.weights if bits.get(name) is not None]
            found[" × ".join(_operands(op, packed[0] if packed else None))] += op.cost.macs
    return dict(found.most_common())


def _operands(op: OpRecord, bits: float | None) -> tuple[str, str]:
    """`bits` are those of a code of the packed weight that the op reads: fewer than its elements have."""
    known = next(
        (types for kernel, types in _PACKED_KERNELS if op.op.startswith(kernel) or op.op.endswith(kernel)), None
    )
    if known is not None and known[1] is not None:
        return known[0], known[1]
    inputs = op.signature.inputs[op.op in _ADDS_FIRST :]
    matrices = [spec for spec in inputs if len(spec.shape) > 1 or _is_code(spec)] or list(inputs)
    if not matrices:
        return "unknown", "unknown"
    first, second = matrices[0], matrices[min(1, len(matrices) - 1)]
    return known[0] if known else _type(first, bits), _type(second, bits)


def _is_code(spec: TensorSpec) -> bool:
    return not spec.is_arithmetic and spec.dtype != "int64"


def _type(spec: TensorSpec, bits: float | None) -> str:
    return f"{bits:g}-bit" if _is_code(spec) and bits is not None and bits < 8 else spec.dtype


def quantization_member(capture: Capture) -> QuantizedWeights | None:
    """Figures of the quantized weights alone; None for a model without any."""
    quantized = _quantized(capture)
    if not quantized:
        return None
    size, restoring = size_of(quantized), [op for op in restoring_ops(capture) if op.status != FREE]
    rows = capture.measured.ops if capture.measured else {}
    times = [seconds for op in restoring if (seconds := rows.get(op.index, {}).get("time_s")) is not None]
    return {
        "layers": len({param.module for param in quantized if param.is_quantized}),
        "logical_params": size.logical,
        "stored_elements": size.stored_elements,
        "stored_bytes": size.nbytes,
        "bits_per_weight": size.bits_per_weight,
        "macs_by_operands": macs_by_operands(capture),
        "dequantize": {
            "ops": len(restoring),
            "bytes_read": sum(op.cost.bytes_read for op in restoring),
            "bytes_written": sum(op.cost.bytes_written for op in restoring),
            "largest_bytes": max((spec.nbytes for op in restoring for spec in op.signature.outputs), default=0),
            "time_s": sum(times) if times else None,
        },
    }
