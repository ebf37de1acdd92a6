"""The code of advice, run on a copy of the model before it is shown: a part of verifying.

The copy goes through the same static pass as the model. Code that raises is left out. Advice whose code changes the
results, saves nothing, or says what a run of the model refutes, is withdrawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import nn

from torchgauge.advise import RULES, Advice, Evidence, Patch, SourceEdit
from torchgauge.advise.op_time import OpTimes, predicted_times
from torchgauge.capture import Request, Trace, trace
from torchgauge.capture.copier import Copier, TensorCopies, set_mode
from torchgauge.capture.restored_state import process_state_kept
from torchgauge.capture.structure import materialise
from torchgauge.facts import Capture, TensorSpec
from torchgauge.measure.subject import Subject
from torchgauge.nested import leaves
from torchgauge.verify.bench import Side, attempted, with_own_classes
from torchgauge.verify.claims import Claims
from torchgauge.verify.code import optimised
from torchgauge.verify.difference import compare_outputs
from torchgauge.verify.edits import apply_edit
from torchgauge.verify.pairs import Switches
from torchgauge.verify.registry import BFLOAT16, ROUNDING, TRANSFORMATIONS, NotApplicableError
from torchgauge.verify.verdict import RANDOM, compared

# Families of rules whose code the static pass cannot judge: it needs a compiler, a device, trained weights or another
# package, or it is for the training loop.
_NOT_RUN = {
    "batch", "embedding", "experts", "factorisation", "file", "launch", "precision", "pruning", "quantization",
    "threads", "training",
}  # fmt: skip
# The ops stay the same, only their kernels are faster.
_SAME_OPS = {"layout", "tensor cores"}
# Models up to these limits are also run for real, changed and unchanged: shapes do not show wrong values. The first is
# for each piece of code, the second for claims about values.
_MAX_CHECK_S, _MAX_CLAIM_S, _MAX_MODEL_BYTES = 0.05, 0.5, 256 << 20


@dataclass(frozen=True, slots=True)
class Changed:
    """A changed copy of the model, as the static pass sees it. `is_same`: its results have the same structure, shapes,
    types and, where they were computed, values."""

    capture: Capture
    is_same: bool


@dataclass
class CodeCheck:
    """`evidence_of` makes evidence of a capture with the op times that gains are computed from."""

    model: nn.Module
    traced: Trace
    request: Request
    evidence: Evidence
    evidence_of: Callable[[Capture], Evidence]
    _found: dict[str, Changed | str] = field(default_factory=dict)  # by code; a message if it failed

    def __call__(self, advice: Advice) -> Advice | None:
        """The advice with its code if that passes, with the gain of the changed copy where the rule promised another;
        None if it is wrong."""
        entry = RULES.get(advice.rule)
        family = None if entry is None else entry.family
        change = advice.change
        has_values = not self.request.train and not self._is_rebuilt
        if has_values and self._is_run_within(_MAX_CLAIM_S) and self._claims.are_refuted_for(advice):
            return None
        if change is None or family in _NOT_RUN or "compile(" in change.text():
            return advice
        key = change.text()
        if key not in self._found:
            tried = TRANSFORMATIONS.get(advice.rule)
            allowed = ROUNDING if tried is None else tried.tolerance
            self._found[key] = self._changed(change, BFLOAT16 if family == "types" else allowed)
        found = self._found[key]
        if isinstance(found, str):
            return replace(advice, change=None)
        if advice.kind == "bug":
            return advice
        if not found.is_same:
            return None
        return advice if family in _SAME_OPS or self._is_rebuilt else self._weighed(advice, found.capture)

    def _changed(self, change: Patch | SourceEdit, tolerance: float) -> Changed | str:
        def run() -> Changed:
            with process_state_kept():
                model, train = self._copied(), self.request.train
                args = self.traced.candidate.args
                if isinstance(change, SourceEdit):
                    apply_edit(model, change)
                else:
                    model = optimised(model, [change.text()], args, train=train)
                # New modules are in training mode.
                set_mode(model, train=train)
                traced = trace(model, [self.traced.candidate], self.request)
                capture = self._capture_of(traced)
                # In a model that reads tensor values, other random weights may give other shapes.
                is_same = self._is_rebuilt or _results(traced) == _results(self.traced)
                if is_same and self._is_run_within(_MAX_CHECK_S):
                    is_same = _are_equal(self._side(self._copied()), self._side(model), tolerance)
                return Changed(capture, is_same)

        try:
            return attempted(run)
        except NotApplicableError as error:
            return str(error)

    def _weighed(self, advice: Advice, changed: Capture) -> Advice | None:
        """The advice with the gain of the changed copy if the rule promised more or another range; None if the copy
        saves nothing."""
        gain = advice.expected_gain
        if gain is None or gain.quantity == "stored_bytes":
            return advice
        if not gain.is_time:
            before, after = (self.evidence_of(each).totals.get(gain.quantity) for each in (self._capture, changed))
            if not before or after is None:
                return advice
            saved = 1 - after / before
            if saved <= 0:
                return None
            exact = replace(gain, low=saved, high=saved, amount=saved * before)
            # Bytes are exact up to rounding.
            return replace(advice, expected_gain=exact) if saved < 0.99 * gain.low else advice
        # The rules know better than the op times what fused attention is worth, what its arguments are, and what the
        # same ops with other settings are worth.
        attention, other = (
            Counter((op.op, op.signature.inputs) for op in each.ops if op.category == "attention")
            for each in (self._capture, changed)
        )
        settings, others = ([(op.op, op.signature.attributes) for op in each.ops] for each in (self._capture, changed))
        has_other_settings = settings != others and [op for op, _ in settings] == [op for op, _ in others]
        if attention != other or has_other_settings:
            return advice
        low, high = self._times.saved_by(self.evidence_of(changed).times)
        if high <= 0:
            return None
        is_measured = self.evidence.times.basis == "measured"
        if is_measured or (low <= gain.high and gain.low <= high):
            return advice
        how = f"{gain.how}; as predicted for a copy of the model with this change"
        again = replace(gain, low=low, high=high, how=how, amount=(low + high) / 2 * self.evidence.times.whole)
        return replace(advice, expected_gain=again)

    @cached_property
    def _capture(self) -> Capture:
        """The unchanged model, without what only it has: measured times, and the forecast of its whole run."""
        return replace(self.evidence.capture, measured=None, forecast=(), predicted=None)

    def _capture_of(self, traced: Trace) -> Capture:
        same = ("run", "inputs", "modules", "params", "ops", "input_bytes")
        return replace(self._capture, **{name: getattr(traced, name) for name in same})

    @cached_property
    def _times(self) -> OpTimes:
        return self.evidence_of(self._capture).times

    @cached_property
    def _is_rebuilt(self) -> bool:
        """Whether the model has no values but reads them: it was built again for its pass, with random weights,
        and is built again for the check."""
        tensors = (*self.model.parameters(), *self.model.buffers())
        return self.traced.run.mode == "real" and any(tensor.is_meta for tensor in tensors)

    @cached_property
    def _original(self) -> nn.Module:
        if self._is_rebuilt and self.request.build_real is None:
            raise NotApplicableError("the model has no values and cannot be built with random ones")
        return self.model if not self._is_rebuilt or self.request.build_real is None else self.request.build_real()

    @cached_property
    def _tensors(self) -> list[torch.Tensor]:
        return [*self._original.parameters(), *self._original.buffers()]

    @cached_property
    def _is_small(self) -> bool:
        return sum(tensor.nbytes for tensor in self._tensors) <= _MAX_MODEL_BYTES

    @cached_property
    def _run_s(self) -> float:
        """What a run takes on one core of a typical processor: whether a model is run must not depend on the machine,
        nor on the device that times are predicted for."""
        return sum(predicted_times(self.traced.ops, None, "cpu", 1, None).values())

    def _is_run_within(self, seconds: float) -> bool:
        if not self._is_small or self.request.device.type != "cpu" or self._run_s > seconds:
            return False
        return all(tensor.device.type == "cpu" for tensor in self._tensors)

    @cached_property
    def _claims(self) -> Claims:
        return Claims(self._original, self.traced, self.request, self.evidence.dataflow.first_runs)

    def _copied(self) -> nn.Module:
        """With its own tensors. Those of a large model have no values; where a small one has none, they are zeros:
        arithmetic on the meta device takes a hundred times as long."""
        own = TensorCopies()

        def duplicate(tensor: torch.Tensor) -> torch.Tensor:
            # Models look at the values of their masks and positions.
            has_values = not tensor.is_meta and (self._is_small or not tensor.is_floating_point())
            if has_values:
                return own.copy(tensor)
            made = torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu" if self._is_small else "meta")
            return nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made

        return with_own_classes(Copier(duplicate).copy(self._original))

    def _side(self, model: nn.Module) -> Side:
        request, own = self.request, TensorCopies()
        given = Copier(lambda tensor: materialise(own.copy(tensor), request.device, request.dtype))
        args, kwargs = given.copy((self.traced.candidate.args, self.traced.candidate.kwargs))
        subject = Subject(model, args, kwargs, request.device, has_objects=given.objects > 0)
        return Side(subject, subject.run, Switches.now())


def _results(traced: Trace) -> list[tuple[tuple[int, ...], str]]:
    """The shapes and types of the tensors that a model returns."""
    found = leaves(traced.modules[0].outputs)
    return [(leaf.shape, leaf.dtype) for leaf in found if isinstance(leaf, TensorSpec)]


def _are_equal(original: Side, changed: Side, tolerance: float) -> bool:
    """Whether two runs give the same values, or values that cannot be compared: random, not finite, none."""
    error, allowed = compared(original, changed, tolerance)
    if error.reason is None:
        return (error.relative or 0.0) <= allowed
    outputs = original.outputs()
    return error.reason == RANDOM or compare_outputs(outputs, outputs).reason is not None
