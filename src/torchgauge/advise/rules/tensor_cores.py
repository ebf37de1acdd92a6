"""What keeps CUDA's tensor cores from their rate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

from torchgauge.advise.code import Patch
from torchgauge.advise.evidence import Evidence
from torchgauge.advise.op_time import LeastTime
from torchgauge.advise.record import Advice, Where
from torchgauge.advise.registry import rule
from torchgauge.facts import Cost, OpRecord, Signature, TensorSpec
from torchgauge.units import format_factor, format_whole_percent

_HALF = ("float16", "bfloat16")
# NVIDIA's guide "Matrix multiplication background": 16 bytes, 8 half-precision elements; 128 bytes on the A100 is best.
_ALIGNED_ELEMENTS, _BEST_ELEMENTS = 8, 64
# Fewer channels are those of images, or too few for tensor cores to matter.
_LEAST_CHANNELS = 16
_LEAST_SHARE = 0.02
# Rows that do not start at 16 bytes are read element by element: of the time above the roof, at least this goes away.
_LEAST_PADDED = 0.3
# Of the time that TF32 could save by the roofline, what it saves at least.
LEAST_REACHED = 0.3


# The padding stays inside the layer: what is around it sees the same sizes.
PADDED_LINEAR = """\
class PaddedLinear(torch.nn.Module):
    def __init__(self, linear, multiple=64):
        super().__init__()
        rows, columns = -linear.out_features % multiple, -linear.in_features % multiple
        self.outputs, self.columns = linear.out_features, columns
        self.weight = torch.nn.Parameter(torch.nn.functional.pad(linear.weight.detach(), (0, columns, 0, rows)))
        self.bias = None
        if linear.bias is not None:
            self.bias = torch.nn.Parameter(torch.nn.functional.pad(linear.bias.detach(), (0, rows)))

    def forward(self, x):
        x = torch.nn.functional.pad(x, (0, self.columns)) if self.columns else x
        return torch.nn.functional.linear(x, self.weight, self.bias)[..., : self.outputs]
"""
PAD = "model.set_submodule(path, PaddedLinear(model.get_submodule(path)))"


@rule("odd-dimensions", family="tensor cores")
def odd_dimensions(evidence: Evidence) -> Iterator[Advice]:
    if not evidence.is_cuda:
        return
    for op in evidence.forward:
        odd = _odd_sizes(evidence, op)
        if not odd:
            continue
        weight, sizes = odd
        is_convolution = op.category == "convolution"
        multiple = _ALIGNED_ELEMENTS if is_convolution else _BEST_ELEMENTS
        padded = {size: -(-size // multiple) * multiple for size in sizes}
        saved = _saved_by_padding(evidence, op, padded)
        if saved is None:
            row = evidence.capture.measured.ops.get(op.index, {}) if evidence.capture.measured else {}
            reached = row.get("roof_share")
            most = 0.5 if reached is None else max(1 - min(reached, 1.0), 0.0)
            least, how = _LEAST_PADDED * most, "the op's time beyond the roof; half of its time if the roof is unknown"
        else:
            least, most, how = 0.7 * saved, min(1.2 * saved, 0.95), "the op as predicted with padded sizes"
        module = evidence.params[weight].module
        record = evidence.modules.get(module)
        is_linear = record is not None and record.type == "Linear" and bool(module)
        yield Advice(
            rule="odd-dimensions",
            where=Where(op.module, (op.index,), weight),
            evidence={"sizes": sizes, "padded": list(padded.values()), "dtype": op.signature.dtype},
            recommendation="make these channels a multiple of 8: tensor cores take 8 half-precision elements at a time"
            if is_convolution
            else "pad this to a multiple of 64: tensor cores read rows in multiples of 8 elements",
            change=Patch(PAD, ("path",), ((module,),), PADDED_LINEAR) if is_linear else None,
            expected_gain=evidence.share([op]).gain(least, most, how, fewer_calls=0.0),
            risk="mask or slice off the padding; checkpoints must be padded too",
            confidence="medium",
        )


def _odd_sizes(evidence: Evidence, op: OpRecord) -> tuple[str, list[int]] | None:
    """The weight of a product and those of its sizes that are off the multiples. Convolutions only where their time
    with other channels can be predicted: libraries pad some of them on their own."""
    is_convolution = op.category == "convolution" and int(op.signature.attributes.get("groups") or 1) == 1
    if op.signature.dtype not in _HALF or not (op.category == "matmul" or (is_convolution and evidence.kernel_s)):
        return None
    for weight in op.weights:
        param = evidence.params.get(weight)
        if param is not None and (len(param.spec.shape) > 2 if is_convolution else len(param.spec.shape) == 2):
            least = _LEAST_CHANNELS if is_convolution else _BEST_ELEMENTS
            sizes = [size for size in dict.fromkeys(param.spec.shape[:2]) if size % _ALIGNED_ELEMENTS and size > least]
            return (weight, sizes) if sizes else None
    return None


def _saved_by_padding(evidence: Evidence, op: OpRecord, padded: Mapping[int, int]) -> float | None:
    """The part of its time that an op saves with padded sizes, as predicted; None where nothing is."""
    signature = op.signature

    def pad(spec: TensorSpec) -> TensorSpec:
        stride = None if spec.stride is None else tuple(padded.get(step, step) for step in spec.stride)
        return TensorSpec(tuple(padded.get(size, size) for size in spec.shape), spec.dtype, stride)

    inputs, outputs = tuple(map(pad, signature.inputs)), tuple(map(pad, signature.outputs))
    more = prod(wide / size for size, wide in padded.items())
    read, written = (sum(spec.nbytes for spec in specs) for specs in (inputs, outputs))
    cost = Cost(int(more * signature.cost.macs), int(more * signature.cost.flops), read, written)
    return _saved_as(evidence, op, replace(signature, inputs=inputs, outputs=outputs, cost=cost))


def _saved_as(evidence: Evidence, op: OpRecord, changed: Signature) -> float | None:
    """Of the time of an op, what it saves if it is called otherwise, as predicted for the device that is named."""
    if evidence.kernel_s is None:
        return None
    before = evidence.kernel_s(op)
    return max(1 - evidence.kernel_s(replace(op, signature=changed)) / before, 0.0) if before else 0.0


@rule("tf32-off", family="tensor cores", option="precision")
def tf32_off(evidence: Evidence) -> Iterator[Advice]:
    peaks, machine = evidence.peaks, evidence.machine
    if not evidence.is_cuda or peaks is None or machine.matmul_tf32 is not False:
        return
    plain, fast = peaks.rate("float32"), peaks.rate("float32", tf32=True)
    products = [op for op in evidence.capture.ops if op.category == "matmul" and op.signature.dtype == "float32"]
    # By the roofline: what waits for memory gains nothing.
    off, on = LeastTime(peaks, matmul_tf32=False), LeastTime(peaks, matmul_tf32=True)
    before = off.whole(products)
    saved = evidence.share(products).value * (1 - on.whole(products) / before) if before else 0.0
    if plain is None or fast is None or fast <= plain or saved < _LEAST_SHARE:
        return
    yield Advice(
        rule="tf32-off",
        where=Where("", tuple(op.index for op in products)),
        evidence={
            "float32_flops_per_s": plain,
            "tf32_flops_per_s": fast,
            "matmuls": len(products),
            "device": peaks.name,
        },
        recommendation="let float32 matmuls use TF32: the tensor cores for it are switched off",
        change=Patch("torch.set_float32_matmul_precision('high')"),
        expected_gain=evidence.kernel_gain(
            LEAST_REACHED * saved,
            saved,
            f"the matmuls at {format_factor(fast / plain)} the rate, as far as memory allows; "
            f"{format_whole_percent(LEAST_REACHED)} to all of that is assumed",
            products,
        ),
        risk="products keep 10 bits of mantissa: about 3 decimal digits",
        confidence="low" if evidence.waits_for_host else "high" if evidence.op_times else "medium",
    )
