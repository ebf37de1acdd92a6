"""A capture seen as rows and totals: the shape of the JSON document, computed once and shared by every report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from torchgauge.facts.capture import SCHEMA_VERSION, Capture
from torchgauge.facts.compiled import compiled_member
from torchgauge.facts.experts import Mixture, find_mixtures
from torchgauge.facts.files import adapter_member, pickle_member, training_member
from torchgauge.facts.module import ArchitectureRecord
from torchgauge.facts.plausibility import plausible
from torchgauge.facts.predictions import fit_row
from torchgauge.facts.quantized import WeightSize, quantization_member, weight_sizes
from torchgauge.facts.row_types import AdviceRow, ModuleRow, OpRow, Row, TotalsRow
from torchgauge.facts.rows import input_row, module_row, op_row, param_row, totals_row
from torchgauge.facts.schema import as_json
from torchgauge.facts.tree import Node, Sums, build_tree
from torchgauge.facts.weights import weight_ops, weight_rows

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Advice, ExpectedTime, Plan

__all__ = ["View"]

# Each grade and the MACs per sample that it stays below: 1 G, 10 G, 100 G.
COMPLEXITY = {"low": 10**9, "medium": 10**10, "high": 10**11}


class View:
    """The data of the reports. Everything here derives from the capture."""

    def __init__(self, capture: Capture) -> None:
        self._capture = plausible(capture)

    @property
    def capture(self) -> Capture:
        """Everything that was recorded, without figures that cannot be; it never changes."""
        return self._capture

    def with_remarks(
        self,
        *,
        warnings: Sequence[str] = (),
        advice: Sequence[Advice] | None = None,
        options: Sequence[Advice] | None = None,
        plan: Plan | None = None,
        expected: Sequence[ExpectedTime] | None = None,
    ) -> Self:
        """This view with more warnings, other advice, a plan, expected times. No figure derives from these, so
        all of them are kept."""
        old = self.capture
        run = replace(old.run, warnings=(*old.run.warnings, *warnings))
        changed = replace(
            old,
            run=run,
            advice=old.advice if advice is None else tuple(advice),
            options=old.options if options is None else tuple(options),
            plan=old.plan if plan is None else plan,
            expected=old.expected if expected is None else tuple(expected),
        )
        view = copy(self)
        view._capture = changed = plausible(changed)
        view.advice, view.options = list(map(AdviceRow.of, changed.advice)), list(map(AdviceRow.of, changed.options))
        view.plan = Row(changed.plan) if changed.plan else None
        return view

    @cached_property
    def tree(self) -> Node:
        return build_tree(self.capture)

    @cached_property
    def totals(self) -> TotalsRow:
        return totals_row(self.capture, Sums.over(self.capture.ops), self.mixtures)

    @cached_property
    def mixtures(self) -> Sequence[Mixture]:
        """The mixtures of experts, in the order of their choices."""
        return find_mixtures(self.capture) if self.capture.has_code else ()

    @cached_property
    def modules(self) -> list[ModuleRow]:
        """One row per module, preorder."""
        sizes = weight_sizes(self.capture)
        return [module_row(node, self.capture, sizes.get(node.path, WeightSize())) for node in self.tree.walk()]

    @cached_property
    def quantization(self) -> Row | None:
        """The quantized weights and what restoring them costs; None where there are none."""
        found = quantization_member(self.capture)
        return None if found is None else Row(found)

    @cached_property
    def ops(self) -> list[OpRow]:
        """One row per op call, in order."""
        return [op_row(op, self.capture) for op in self.capture.ops]

    @cached_property
    def weights(self) -> list[Row]:
        """One row per stored tensor; for a live module one per parameter and buffer whose values were read."""
        return [Row(row) for row in weight_rows(self.capture.stored, self.capture.params, self.capture.statistics)]

    @cached_property
    def weight_summary(self) -> Row | None:
        """The figures of all weights together; None where no values were read."""
        found = self.capture.statistics
        if found is None:
            return None
        failures = [{"name": name, "reason": reason} for name, reason in found.failures]
        return Row({**found.summary, "failures": failures, "scan": dict(found.scan)})

    @cached_property
    def measurements(self) -> Row | None:
        """Time and memory of real runs; None where nothing was measured."""
        return Row(self.capture.measured.figures) if self.capture.measured else None

    @cached_property
    def compiled(self) -> Row | None:
        """How torch.compile runs the model; None for an eager analysis."""
        eager = (self.totals["bytes_read"], self.totals["bytes_written"]) if self.capture.compiled else (0, 0)
        member = compiled_member(self.capture.compiled, *eager)
        return None if member is None else Row(member)

    @cached_property
    def energy(self) -> Row | None:
        """The energy of a run; None if not requested."""
        return Row(self.capture.energy.figures) if self.capture.energy else None

    @cached_property
    def advice(self) -> list[AdviceRow]:
        """Recommended changes: likely bugs, then the largest expected gain."""
        return list(map(AdviceRow.of, self.capture.advice))

    @cached_property
    def options(self) -> list[AdviceRow]:
        """Choices that every model has (precision, batch, compiling, quantizing), each with its expected effect."""
        return list(map(AdviceRow.of, self.capture.options))

    @cached_property
    def plan(self) -> Row | None:
        """The verified advice that works best together; None where none was verified, or none held."""
        return Row(self.capture.plan) if self.capture.plan else None

    @cached_property
    def architecture(self) -> Row:
        known = self.capture.architecture
        if known is None:
            parents = {record.parent for record in self.capture.modules}
            kinds = Counter(record.type for record in self.capture.modules if record.path not in parents)
            known = ArchitectureRecord(None, dict(kinds.most_common()))
        # The grade of the forward pass by the MACs of one sample; None where nothing was run.
        grade = None
        if self.capture.has_code:
            macs = sum(op.cost.macs for op in self.capture.ops if op.phase == "forward") / self.capture.samples
            grade = next((grade for grade, limit in COMPLEXITY.items() if macs < limit), "very high")
        return Row(
            family=known.family,
            complexity=grade,
            layer_counts=dict(known.layer_counts),
            hyperparameters=dict(known.hyperparameters),
        )

    def members(self) -> dict[str, Callable[[], object]]:
        """The members of the JSON document in their order, each computed when it is called. Rows of weights come
        one by one, since a file may hold a million tensors."""
        capture, statistics = self.capture, self.capture.statistics
        trace = capture.measured.trace if capture.measured else None
        members: dict[str, Callable[[], Any]] = {
            "schema_version": lambda: SCHEMA_VERSION,
            "tool": lambda: {"name": "torchgauge", "version": capture.version},
            "created": lambda: capture.created,
            "environment": lambda: as_json(capture.environment),
            "target": lambda: as_json(capture.target),
            "inputs": lambda: [input_row(given) for given in capture.inputs],
            "capture": lambda: _run_member(capture),
            "architecture": lambda: dict(self.architecture),
            "totals": lambda: dict(self.totals),
            "modules": lambda: map(dict, self.modules),
            "ops": lambda: map(dict, self.ops),
            "parameters": lambda: map(param_row, capture.params),
            "weights": lambda: (
                map(dict, self.weights)
                if "weights" in self.__dict__
                else weight_rows(capture.stored, capture.params, statistics)
            ),
            "quantization": lambda: self.quantization and dict(self.quantization),
            "weight_summary": lambda: self.weight_summary and dict(self.weight_summary),
            "against": lambda: statistics.against.copy() if statistics and statistics.against else None,
            "pickle": lambda: pickle_member(capture.stored),
            "training": lambda: training_member(capture.training),
            "adapter": lambda: adapter_member(capture.adapter),
            "measurements": lambda: self.measurements and dict(self.measurements),
            "trace": lambda: {name: getattr(trace, name) for name in trace.__slots__} if trace else None,
            "energy": lambda: self.energy and dict(self.energy),
            "advice": lambda: [dict(row) for row in self.advice],
            "options": lambda: [dict(row) for row in self.options],
            "plan": lambda: self.plan and dict(self.plan),
            "compiled": lambda: self.compiled and dict(self.compiled),
            "weight_ops": lambda: weight_ops(capture.ops, self.weights, capture.params) if capture.ops else [],
        }
        if capture.fit:
            # The course of a step is left out.
            members["fit"] = lambda: [
                {key: value for key, value in fit_row(facts).items() if key not in ("timeline", "course")}
                for facts in capture.fit
            ]
        if capture.forecast:
            members["forecast"] = lambda: [dict(row) for row in capture.forecast]
        if capture.expected:
            members["expected_times"] = lambda: [dict(row) for row in capture.expected]
        return members

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of the contract, with plain numbers only."""
        found = {key: compute() for key, compute in self.members().items()}
        return {key: list(value) if isinstance(value, Iterator) else value for key, value in found.items()}


# Members that few models have; empty ones are left out.
_RARE = (
    "lost_tensors", "growing", "first_call_ops", "later_peak_bytes", "kept_ops", "number_arguments", "held",
    "recomputed_ops",
)  # fmt: skip


def _run_member(capture: Capture) -> dict[str, object]:
    """How the ops were recorded, with its keys in the order of the contract."""
    run = as_json(capture.run)
    order = dict.fromkeys(("mode", "execution", "reason", "device", "train", "warnings", "input_bytes"))
    known = {key: value for key, value in run.items() if value or key not in _RARE}
    return order | known | {"execution": capture.execution, "input_bytes": capture.input_bytes}
