"""The original model and its changed copies: how they are run and timed, their bytes and failures."""

from __future__ import annotations

import copy
import gc
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from torchgauge.capture.copier import in_mode, set_mode
from torchgauge.capture.structure import storage_key
from torchgauge.facts import Capture
from torchgauge.measure.latency import Clock, surroundings_noted
from torchgauge.measure.measuring import clear_traceback, failure_text
from torchgauge.measure.module_times import module_paths
from torchgauge.measure.parts import allocation_peak
from torchgauge.measure.profile import profile_runs
from torchgauge.measure.subject import Subject, TrainingStep
from torchgauge.source.process_state import rng_untouched
from torchgauge.verify.code import optimised
from torchgauge.verify.difference import output_tensors
from torchgauge.verify.pairs import LEAST_PAIRS, Paired, Switches, switches_kept, time_pairs
from torchgauge.verify.registry import Applied, Inputs, NotApplicableError, Trial

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Advice

SEED = 0
_LARGE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two models: how to run it, and the settings of torch for it."""

    subject: Subject
    run: Callable[[], object]
    switches: Switches
    samples: int = 1

    def outputs(self, seed: int = SEED) -> list[tuple[str, torch.Tensor]]:
        """The outputs of one call in evaluation mode, with the same random numbers on both sides."""
        model = self.subject.model
        with rng_untouched(), torch.no_grad(), switches_kept(), in_mode(model, train=False):
            torch.manual_seed(seed)
            self.switches.apply()
            return output_tensors(self.subject())


@dataclass(frozen=True, slots=True)
class Bench:
    """The model that advice is tried on. Neither transformations nor training modify it."""

    subject: Subject
    capture: Capture | None  # None in the second process, which gets the code to apply
    train: bool
    seconds: float
    clock: Clock = perf_counter
    floor: float = 0.0
    is_slow: bool = False

    def timed(self, first: Side, second: Side, share: float = 1.0) -> Paired:
        """Time both in alternation for a share of the budget; no pairs if runs are too long for the budget."""
        if self.is_slow:
            return Paired()
        with surroundings_noted() as around:
            paired = time_pairs(first, second, share * self.seconds, self.clock)
        # Other processes do not affect the fake clock of a test.
        others = around.others_share if self.clock is perf_counter else None
        return replace(paired, floor=self.floor, others_share=others)

    def with_floor(self) -> Bench:
        """Measure the difference between two copies of the same model, and whether the budget allows enough runs. A
        trial gets a part of this budget."""
        same = time_pairs(self.original(), self.changed([]), self.seconds, self.clock)
        return replace(self, floor=abs(median(same.logs)), is_slow=len(same.logs) < LEAST_PAIRS)

    def trial(self, row: Advice) -> Trial:
        subject = self.subject
        assert self.capture is not None
        given = (subject.args, subject.kwargs, subject.device, self.capture, self.train)
        return Trial(self.copied(), row, *given)

    def original(self) -> Side:
        return self._side(self.copied() if self.train else self.subject.model, Switches.now())

    def changed(self, applied: Sequence[Applied]) -> Side:
        inputs = next((each.inputs for each in reversed(applied) if each.inputs is not None), None)
        with switches_kept(), rng_untouched():
            args = self.subject.args if inputs is None else inputs[0]
            model = optimised(self.copied(), [each.code for each in applied], args, train=self.train)
            switches = Switches.now()
        # New modules are in training mode.
        set_mode(model, train=self.train)
        samples = max((each.samples for each in applied), default=1)
        return self._side(model, switches, inputs, samples)

    def copied(self) -> nn.Module:
        try:
            model = with_own_classes(copy.deepcopy(self.subject.model))
            # A copy splits the contiguous weights of a recurrent layer, which cuDNN would then join at each call.
            twins = dict(model.named_modules())
            for path, module in self.subject.model.named_modules():
                twin = twins.get(path)
                if isinstance(module, nn.RNNBase) and isinstance(twin, nn.RNNBase):
                    pieces = {parameter.untyped_storage().data_ptr() for parameter in module.parameters(recurse=False)}
                    if len(pieces) == 1:
                        twin.flatten_parameters()
            return model
        # Copying runs code of the model's classes, which may raise anything.
        except Exception as error:
            raise NotApplicableError(f"the model cannot be copied: {failure_text(error)}") from error

    def _side(self, model: nn.Module, switches: Switches, inputs: Inputs | None = None, samples: int = 1) -> Side:
        args, kwargs = (self.subject.args, self.subject.kwargs) if inputs is None else inputs
        subject = Subject(model, args, kwargs, self.subject.device)
        return Side(subject, TrainingStep(subject).run if self.train else subject.run, switches, samples)


def with_own_classes(model: nn.Module) -> nn.Module:
    """A copy of a parametrized module shares its generated class: removing the parametrization from one would remove it
    from both. After this it does not."""
    for module in model.modules():
        if is_parametrized(module):
            kind = type(module)
            module.__class__ = type(kind.__name__, kind.__bases__, dict(kind.__dict__))
    return model


@contextmanager
def cleaned_up(bench: Bench, codes: Sequence[str]) -> Iterator[None]:
    """Afterwards, release the caches of compilers and the memory of copies."""
    device, model = bench.subject.device, bench.subject.model
    try:
        yield
    finally:
        is_compiled = any("compile(" in code for code in codes)
        # This also clears the user's compiled code, so only if needed.
        if is_compiled and "torch._dynamo" in sys.modules:
            sys.modules["torch._dynamo"].reset()
        # A full collection, because the copies are too large to wait for the next one.
        if is_compiled or device.type == "cuda" or sum(p.nbytes for p in model.parameters()) >= _LARGE_BYTES:
            gc.collect()
        if device.type == "cuda":
            # cuBLAS keeps a separate workspace for a graph's stream.
            torch._C._cuda_clearCublasWorkspaces()
            torch.cuda.empty_cache()


_PARTS = ("packed", "meta", "packed_t", "meta_t")


def held_bytes(model: nn.Module) -> int:
    """The bytes of all parameters and buffers; shared storage counts once."""
    held: dict[int, int] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        # A semi-structured tensor has parts instead of a storage.
        names = () if type(tensor) in (torch.Tensor, nn.Parameter) else _PARTS
        parts = [part for name in names if isinstance(part := getattr(tensor, name, None), torch.Tensor)]
        held |= {storage_key(part): part.nbytes for part in parts or [tensor]}
    return sum(held.values())


def peak_bytes(side: Side) -> int:
    """The peak of torch's allocator during a run, minus the memory in use before."""
    subject = side.subject
    with switches_kept():
        side.switches.apply()
        side.run()
        # The first run under a profiler includes its setup.
        runs = profile_runs(side.run, module_paths(subject.model), 2, device=subject.device, memory=True)
    return allocation_peak(runs[-1], on_device=subject.device.type == "cuda")


T = TypeVar("T")

_LOGGERS = ("torch._dynamo", "torch._inductor", "torch._functorch")


def attempted(work: Callable[[], T]) -> T | str:
    """The result of `work`, or a message about its exception. `NotApplicableError` is not caught, because nothing was
    tried."""
    try:
        with silenced():
            return work()
    except NotApplicableError:
        raise
    # Compilers, graph capture and the model's code may raise anything.
    except Exception as error:
        text = f"the changed model fails: {failure_text(error)}"
        clear_traceback(error)
        return text


@contextmanager
def silenced() -> Iterator[None]:
    """Hide the warnings and logs of compilers."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
