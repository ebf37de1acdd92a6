"""What advice says about values, checked by running the model: a part of verifying.

The rules follow tensors, not their values: a write that they do not see makes "the same" untrue. A claim that a run
refutes is not shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

import torch
from torch import nn

from torchgauge.advise import Advice
from torchgauge.capture import Request, Trace, observed
from torchgauge.capture.copier import Copier
from torchgauge.capture.restored_state import process_state_kept
from torchgauge.capture.structure import materialise
from torchgauge.facts import FREE
from torchgauge.source import Candidate
from torchgauge.verify.bench import SEED, attempted

# Rules that say that their ops give the same results in every call.
_CONSTANT = {"recomputed-constant", "recomputed-weight"}
# Of the sum of all magnitudes. Kernels may add in another order where memory is aligned differently (1e-6 in float32).
_TOLERANCE = 1e-5
_SPREAD = 0.1  # of what is added to inputs so that they differ

# For each result of an op its sum, the sum of its magnitudes, and a sum in which each place has another weight.
Digest = tuple[tuple[float, float, float], ...]


@dataclass
class Claims:
    """`first_runs`: by an op, the one that computed the same before it."""

    model: nn.Module
    traced: Trace
    request: Request
    first_runs: Mapping[int, int]

    def are_refuted_for(self, advice: Advice) -> bool:
        """Whether a run shows that the advice is not true. False where it says nothing about values, or the runs
        cannot be compared."""
        places = [advice.where.ops, *(place["ops"] for place in advice.evidence.get("places", ()))]
        ops = {index for place in places for index in place}
        if advice.rule == "repeated-work":
            pairs = [(index, self.first_runs[index]) for index in ops if index in self.first_runs]
            found = self._digests({index for pair in pairs for index in pair})
            return any(_differ(found.get(one), found.get(other)) for one, other in pairs)
        if advice.rule in _CONSTANT:
            return self._any_differs(ops, self._digests(ops, are_inputs_changed=True))
        if advice.rule == "unread-result":
            results = set(self.traced.run.results)
            return self._any_differs(results, self._digests(results, spoiled=ops - results))
        return False

    def _any_differs(self, ops: Set[int], found: Mapping[int, Digest]) -> bool:
        plain = self._digests(ops) if found else {}
        return any(_differ(plain.get(index), found.get(index)) for index in ops)

    def _digests(
        self, ops: Set[int], spoiled: Set[int] = frozenset(), *, are_inputs_changed: bool = False
    ) -> dict[int, Digest]:
        """Digests of the results of these ops in a run; none if it fails or runs other ops than the analysis.
        `spoiled`: ops whose results are overwritten."""
        found: dict[int, Digest] = {}
        free = {op.index for op in self.traced.ops if op.status == FREE}

        def observe(index: int, results: Sequence[torch.Tensor]) -> None:
            if index in spoiled and index not in free:  # a view has the memory of something else
                for tensor in results:
                    if tensor.is_floating_point():
                        tensor.fill_(torch.nan)
            if index in ops:
                found[index] = tuple(map(_digest, results))

        def run() -> Trace:
            with process_state_kept():
                torch.manual_seed(SEED)
                candidate = self._other_inputs() if are_inputs_changed else self.traced.candidate
                return observed(self.model, candidate, self.request, observe)

        last = max(ops, default=-1) + 1
        traced = attempted(run)
        if isinstance(traced, str):
            return {}
        names = [[(op.op, op.signature.outputs) for op in each.ops[:last]] for each in (traced, self.traced)]
        return found if names[0] == names[1] else {}

    def _other_inputs(self) -> Candidate:
        """Inputs of the same shapes with other values: of numbers that are not floating point the same ones in another
        order, because they may be indices."""
        generator = torch.Generator().manual_seed(SEED)

        def changed(tensor: torch.Tensor) -> torch.Tensor:
            own = materialise(tensor, torch.device("cpu"), self.request.dtype)
            if own.is_floating_point():
                return own + _SPREAD * torch.randn(own.shape, generator=generator).to(own.dtype)
            return own.flatten().flip(0).view(own.shape)

        candidate = self.traced.candidate
        args, kwargs = Copier(changed).copy((candidate.args, candidate.kwargs))
        return replace(candidate, args=args, kwargs=kwargs)


def _digest(tensor: torch.Tensor) -> tuple[float, float, float]:
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        return (0.0, 0.0, 0.0)
    values = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    values = torch.nan_to_num(values.flatten().double(), nan=1e3, posinf=2e3, neginf=-2e3)
    # Random, so that neighbours count differently: the sums of rows may all be 1.
    weights = torch.rand(len(values), generator=torch.Generator().manual_seed(SEED), dtype=values.dtype)
    return float(values.sum()), float(values.abs().sum()), float(values @ weights.to(values.device))


def _differ(one: Digest | None, other: Digest | None) -> bool:
    """Whether both are known and differ by more than rounding."""
    if one is None or other is None:
        return False
    return len(one) != len(other) or any(
        abs(before - after) > _TOLERANCE * max(first[1], second[1])
        for first, second in zip(one, other, strict=True)
        for before, after in zip(first, second, strict=True)
    )
