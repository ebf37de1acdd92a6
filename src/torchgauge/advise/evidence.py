"""What rules look at: the facts of a capture in forms that are quick to ask."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from pathlib import PurePath
from typing import Any, Protocol, TypeVar

from torchgauge.advise.activations import Written, written_activations
from torchgauge.advise.code import Source, SourceEdit, parsed
from torchgauge.advise.dataflow import VALUE_READS, Dataflow
from torchgauge.advise.flow import Chain, Flow, pointwise_chains
from torchgauge.advise.masks import Triangle
from torchgauge.advise.op_time import (
    LeastTime,
    OpTimes,
    Queues,
    combined,
    fresh_memory,
    predicted_times,
)
from torchgauge.advise.processor import call_pace, function_seconds
from torchgauge.advise.record import Gain
from torchgauge.facts import (
    FREE,
    Capture,
    ModuleRecord,
    OpRecord,
    ParamRecord,
    Row,
    TensorSpec,
    View,
    enclosing_paths,
)
from torchgauge.facts.experts import Mixture
from torchgauge.facts.quantized import restoring_ops
from torchgauge.hardware import Peaks, peaks_of
from torchgauge.units import format_whole_percent

Derived = TypeVar("Derived")

# Of the undisturbed time that the device must be idle for the host to be what a model waits for.
WAITING = 0.3
# What tensor cores run, and autocast casts for.
TENSOR_CORES = ("matmul", "convolution", "attention", "recurrent")
# Launches that the queue of a CUDA device holds: with more, the host waits for the device.
QUEUED = 1000


# Passes over memory that one kernel spares: tensors in cache make them cost less than their bytes.
_LEAST_SPARED = 0.7
# The call that remains takes more arguments than most of those it replaces.
_LEAST_CALLS = 0.8


@dataclass(frozen=True, slots=True)
class Share:
    """The part of the run's time that some ops are; `calls` of it is what the host takes to call them, the rest is
    their work. `fresh` is what memory that the process has not kept may add, as a part of the ops' time with it."""

    value: float
    ops: frozenset[int]
    calls: float = 0.0
    fresh: float = 0.0

    def one_pass(self, spared: float, passes: int) -> Gain:
        """One kernel in place of several; `spared` of the bytes they move need not be."""
        how = f"one pass over memory in place of {passes} spares {format_whole_percent(spared)} of their bytes"
        return self.gain(_LEAST_SPARED * spared, spared, how, fewer_calls=1 - 1 / passes)

    def gain(self, low: float, high: float, how: str, *, fewer_calls: float | None = None) -> Gain:
        """What is saved where `low` to `high` of the time of these ops is. `fewer_calls`: of the work only, and of the
        calls and of their results this share, as a device that waits for the host gains by it alone."""
        if fewer_calls is not None:
            low = self.calls * _LEAST_CALLS * fewer_calls + (1 - self.calls) * low
            high = self.calls * fewer_calls + (1 - self.calls) * high
            high = self.fresh * max(fewer_calls, high) + (1 - self.fresh) * high
        return Gain("time_s", self.value * low, self.value * high, how, self.ops)


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the model was: the peaks of its device, and whether CUDA may use TF32 there; None: not known."""

    peaks: Peaks | None = None
    matmul_tf32: bool | None = None
    convolution_tf32: bool | None = None

    @classmethod
    def of(cls, capture: Capture) -> Machine:
        """As the capture has it, so that a saved run gets the same advice as the live one."""
        environment, kind = capture.environment, capture.run.device.partition(":")[0]
        name = environment.device if kind == "cuda" else environment.cpu
        known = environment.settings
        peaks = None if name is None else peaks_of(name, kind)
        return cls(peaks, known.get("matmul_tf32"), known.get("convolution_tf32"))


class LiveModel(Protocol):
    """What can be asked of a model in memory; `analysis.advice.ModelInMemory` says what the answers mean."""

    def triangle(self, name: str) -> Triangle | None: ...
    def has(self, path: str, attribute: str, *, is_set: bool = False) -> bool: ...
    def are_equal(self, pairs: Sequence[tuple[str, str]]) -> bool: ...
    def has_equal_rows(self, name: str) -> bool: ...
    def equal_buffers(self) -> Mapping[str, str]: ...
    def unregistered_layers(self) -> Mapping[str, str]: ...
    def is_bound(self, path: str) -> bool: ...
    def is_scripted(self, path: str) -> bool: ...
    def is_torch_layer(self, path: str) -> bool: ...
    def norm_features(self, path: str) -> int | None: ...
    def norm_hook(self, path: str) -> tuple[str, str] | None: ...
    def source_text(self, file: str) -> str | None: ...
    def leads_to(self, wanted: str, file: str, names: Iterable[str]) -> bool: ...
    def made_at(self, name: str) -> str | None: ...
    def is_read_otherwise(self, name: str) -> bool: ...
    def is_read_after_call(self, name: str) -> bool: ...
    def is_written(self, name: str) -> bool: ...
    def is_dropout_that_stays_on(self, path: str) -> bool: ...
    def mode_set_at(self, path: str) -> str | None: ...


class Evidence:
    """Everything is computed when it is first asked for. `view` is a view of the capture that is there already;
    `predicted` are seconds by the index of the op on this machine, or the queues of the device that the advice is for;
    `on` is its name then: a GPU, which waits for the host for `idle` of a run. `model` is there for a live one.
    `kernel_s` predicts the seconds of an op on the device that is named, also of one that the model does not have."""

    def __init__(
        self,
        capture: Capture,
        view: View | None = None,
        machine: Machine | None = None,
        predicted: Mapping[int, float] | Queues | None = None,
        on: str | None = None,
        idle: float = 0.0,
        model: LiveModel | None = None,
        kernel_s: Callable[[OpRecord], float] | None = None,
    ) -> None:
        self.capture = capture
        self.kernel_s = kernel_s
        self.on, self._idle = on, idle
        self.model = model
        self._sources: dict[str, Source | None] = {}
        self._state_lines: dict[tuple[Source, int], bool] = {}
        self._derived: dict[Callable[[Evidence], Any], Any] = {}
        self.failures: list[str] = []  # of rules that raised, in sentences
        self._predicted = predicted
        self.view = View(capture) if view is None else view
        self.machine = Machine.of(capture) if machine is None else machine

    def once(self, derive: Callable[[Evidence], Derived]) -> Derived:
        """What a function makes of the evidence, kept for whoever asks for it again."""
        if derive not in self._derived:
            self._derived[derive] = derive(self)
        found: Derived = self._derived[derive]
        return found

    @property
    def is_train(self) -> bool:
        return self.capture.run.train

    @property
    def device(self) -> str:
        """Torch's type of the device: cpu, cuda, …"""
        return "cuda" if self.on is not None else self.capture.run.device.partition(":")[0]

    @property
    def is_cuda(self) -> bool:
        return self.device == "cuda"

    @cached_property
    def forward(self) -> tuple[OpRecord, ...]:
        """The ops of the forward pass, in order."""
        return tuple(op for op in self.capture.ops if op.phase == "forward")

    @cached_property
    def restoring(self) -> tuple[OpRecord, ...]:
        """Ops that only restore quantized weights; views are left out."""
        return tuple(op for op in restoring_ops(self.capture) if op.status != FREE)

    @cached_property
    def flow(self) -> Flow:
        # What Python reads is needed as it is, also where it reads a part of it.
        asked = [index for op in self.forward if op.op in VALUE_READS for index in op.producers if index is not None]
        run = self.capture.run
        return Flow(self.forward, run.results, (*run.kept_ops, *self.read_on_host, *asked))

    @cached_property
    def is_by_accident(self) -> bool:
        """Whether values chose nothing at all, as no match or no box: what the run left out then, another one needs."""
        chosen = (op for op in self.forward if self.dataflow.is_sized_by_value(op))
        return any(spec.numel == 0 for op in chosen for spec in op.signature.outputs)

    @cached_property
    def read_on_host(self) -> frozenset[int]:
        """The ops whose results the model's code brings to the host as a whole, as by `.cpu()` or `.tolist()`."""
        made_by = (read.made_by or () for read in self.capture.run.host_reads)
        return frozenset(index for made in made_by for index in made if index is not None)

    @cached_property
    def dataflow(self) -> Dataflow:
        return Dataflow(self.capture, self.forward, self.flow, self._reads_state)

    @cached_property
    def kept(self) -> frozenset[int]:
        """Ops whose results the model keeps: the first call alone runs them, and they do not depend on its inputs."""
        once = self.capture.run.first_call_ops
        return self.dataflow.constants.intersection(once) if once else frozenset()

    @property
    def mixtures(self) -> Sequence[Mixture]:
        return self.view.mixtures

    @cached_property
    def chains(self) -> Sequence[Chain]:
        """Pointwise ops that feed each other."""
        return pointwise_chains(self.flow)

    @cached_property
    def activations(self) -> Sequence[Written]:
        """Activation functions that are written out in pointwise ops."""
        return written_activations(self.flow, self.dataflow)

    @cached_property
    def modules(self) -> Mapping[str, ModuleRecord]:
        return {record.path: record for record in self.capture.modules}

    @cached_property
    def params(self) -> Mapping[str, ParamRecord]:
        return {param.name: param for param in self.capture.params}

    @cached_property
    def weight_rows(self) -> Mapping[str, Row]:
        """By name, with the figures of the values where these were read."""
        return {row.name: row for row in self.view.weights}

    @cached_property
    def weight_users(self) -> Mapping[str, Sequence[OpRecord]]:
        """By the name of a parameter or buffer, the ops of the forward pass that work on it."""
        users: dict[str, list[OpRecord]] = {}
        for op in self.forward:
            if op.weights and op.status != FREE:
                for name in op.weights:
                    users.setdefault(name, []).append(op)
        return users

    @property
    def has_predicted_ops(self) -> bool:
        """Whether the times of the ops come from kernels that were measured, not from a roofline."""
        return bool(self._predicted)

    @property
    def totals(self) -> Row:
        return self.view.totals

    @cached_property
    def figures(self) -> Mapping[str, Any]:
        """The document's `measurements`; empty where nothing was measured."""
        return self.capture.measured.figures if self.capture.measured else {}

    @property
    def time_s(self) -> float | None:
        """Of the whole model, measured."""
        if self.on is not None or self.capture.measured is None:
            return None
        time: float | None = self.totals.time_s
        return time

    @cached_property
    def op_times(self) -> Mapping[int, float]:
        """Measured seconds by the index of the op; empty without a profile, and for another device."""
        rows = self.capture.measured.ops if self.capture.measured and self.on is None else {}
        return {index: row["time_s"] for index, row in rows.items() if row.get("time_s") is not None}

    @cached_property
    def idle_share(self) -> float:
        """Of the undisturbed time, what a CUDA device spends waiting for the host: measured, or predicted for a device
        that is named; else 0."""
        if self.on is not None:
            return self._idle
        if not self.is_cuda or not self.time_s or not self.op_times:
            return 0.0
        return max(0.0, 1 - sum(self.op_times.values()) / self.time_s)

    @cached_property
    def host_s(self) -> float | None:
        """Until a call returns that a CUDA device still works on; None where it was not measured, or where the queue
        of launches may have been full, so that the host waited too."""
        is_full = sum(op.status != FREE for op in self.forward) >= QUEUED
        host: float | None = (self.figures.get("latency") or {}).get("host_s")
        return host if self.is_cuda and not is_full else None

    @property
    def waits_for_host(self) -> bool:
        return self.idle_share >= WAITING

    def most_gain(self, launches: float = 1.0) -> float:
        """Of the time, what kernels of no length at all would save: a run takes as long as the host does for `launches`
        times those it makes. All where that was not measured."""
        if self.host_s is None or not self.time_s:
            return 1.0
        return max(0.0, 1 - launches * self.host_s / self.time_s)

    def kernel_gain(self, low: float, high: float, how: str, ops: Iterable[OpRecord]) -> Gain:
        """The time that shorter kernels of these ops save: perhaps none where the device waits for the host."""
        touched = frozenset(op.index for op in ops)
        if not self.waits_for_host:
            most = self.most_gain()
            if high > most:
                how = f"{how}; no more than {format_whole_percent(most)}: the rest is the host's, for its launches"
            return Gain("time_s", min(low, most), min(high, most), how, touched)
        idle = format_whole_percent(self.idle_share)
        waiting = f"the device waits for the host for {idle} of a run: no gain until the host bottleneck is fixed"
        return Gain("time_s", 0.0, high * (1 - self.idle_share), f"{how}; {waiting}", touched)

    @property
    def peaks(self) -> Peaks | None:
        """What the device can do at most; None where it is not known."""
        return self.machine.peaks

    @cached_property
    def bytes_moved(self) -> int:
        """Of all ops, backward and optimizer included."""
        return sum(map(moved, self.capture.ops))

    def without_times(self) -> Evidence:
        """The same without a profile."""
        static = replace(self.capture, measured=None)
        return Evidence(static, None, self.machine, self._predicted, self.on, self._idle, self.model, self.kernel_s)

    @cached_property
    def fresh_s(self) -> tuple[Mapping[int, float], Mapping[int, float]]:
        """By op on a processor, the seconds for fresh memory that every run needs, and that a run may need."""
        return fresh_memory(self.capture.ops) if self.device == "cpu" else ({}, {})

    @cached_property
    def times(self) -> OpTimes:
        """Of the ops: as a profile measured them, else as predicted for the device, or by its roofline. Ops
        of the first call alone take none."""
        if isinstance(self._predicted, Queues):
            both = {
                index: (0.0, 0.0) if index in self.kept else pair for index, pair in self._predicted.seconds.items()
            }
            queues = Queues(both, self._predicted.fixed_s)
            return OpTimes(queues.critical, "predicted", queues=queues)
        if self.op_times:
            return OpTimes(self.op_times, "measured", self.time_s)
        always, perhaps = self.fresh_s
        seconds = self._predicted
        if not seconds:
            ran = self.capture.environment
            calls = sum(record.calls for record in self.capture.modules)
            seconds = predicted_times(
                self.capture.ops, self.peaks, self.device, ran.threads, self.least_time, ran.cpu_cores, calls
            )
        seconds = {
            index: 0.0 if index in self.kept else time + always.get(index, 0.0) for index, time in seconds.items()
        }
        return OpTimes(
            seconds,
            "predicted",
            self.time_s,
            fresh_s=perhaps,
            call_pace=call_pace(self.peaks.pace if self.peaks else None),
        )

    def seconds_of(self, op: OpRecord) -> float | None:
        """Predicted seconds of an op that need not be one of the run's; None where the run's were measured, or are
        known for its own ops alone."""
        if self.kernel_s is not None:
            return self.kernel_s(op)
        if self.op_times or self._predicted:
            return None
        ran = self.capture.environment
        found = predicted_times([op], self.peaks, self.device, ran.threads, self.least_time, ran.cpu_cores)
        return found[op.index]

    def function_s(self, name: str, elements: int) -> float:
        """Seconds of torch's kernel for an activation function on a processor; 0 where op times were measured, and on
        other devices."""
        if self.device != "cpu" or self.op_times or self._predicted:
            return 0.0
        pace = self.peaks.pace if self.peaks else None
        return function_seconds(name, elements, pace, self.capture.environment.threads)

    def share(self, ops: Iterable[OpRecord]) -> Share:
        chosen, times = {op.index: op for op in ops}, self.times
        calls = times.calls_share(chosen.values())
        return Share(times.share(chosen), frozenset(chosen), calls, times.fresh_share(chosen))

    def source_of(self, index: int) -> str | None:
        """The line of code that calls an op, as "folder/file.py:LINE"; None where it is not known."""
        return self._ops_by_index[index].source if index in self._ops_by_index else None

    def line_of(self, index: int) -> str | None:
        """The same without folders."""
        source = self.source_of(index)
        return None if source is None else PurePath(source.replace("\\", "/")).name

    def loop_line(self, ops: Sequence[OpRecord], apart_from: Iterable[OpRecord] = ()) -> str | None:
        """The line of the loop that runs these ops, one of each round: that which calls the outermost module around
        them that is called in every round and has none of the others, `apart_from`, in it. None where no module is, and
        for modules of a script."""
        shared = {path for op in apart_from for path in enclosing_paths(op.module)}
        paths, found = {op.module for op in ops}, None
        # A module around a loop over samples may be called as often, once for each step of another loop.
        runs = sum(self._runs[key] for key in {(op.source, op.op, op.module) for op in ops})
        while paths and "" not in paths:
            records = [self.modules[path] for path in sorted(paths) if path in self.modules]
            calls = sum(record.calls for record in records)
            if 0 < calls < runs or not shared.isdisjoint(paths):
                break
            # Lists of modules are not called.
            found = next((line for record in records for line in record.called_from), None) if calls else found
            paths = {path.rpartition(".")[0] for path in paths}
        return None if found is None else PurePath(found.replace("\\", "/")).name

    def call_line(self, path: str) -> str | None:
        """The line of code that calls a module."""
        lines = self.modules[path].called_from if path in self.modules else ()
        return PurePath(lines[0].replace("\\", "/")).name if lines else None

    def code_at(self, op: OpRecord | str | None) -> tuple[Source, int] | None:
        """The file of the model's code that calls an op, and the line; None for code of an installed package, and where
        the file is not there."""
        source = op.source if isinstance(op, OpRecord) else op
        is_own = "/" not in (source or "").replace("\\", "/")
        return self.any_code_at(source) if is_own else None

    def any_code_at(self, op: OpRecord | str | None) -> tuple[Source, int] | None:
        """The same for code of installed packages too, which can be read but not edited."""
        source = op.source if isinstance(op, OpRecord) else op
        file, _, line = (source or "").replace("\\", "/").rpartition(":")
        if not file or not line.isdigit() or self.model is None:
            return None
        if file not in self._sources:
            text = self.model.source_text(file)
            self._sources[file] = None if text is None else parsed(file, text)
        known = self._sources[file]
        return None if known is None else (known, int(line))

    def text_at(self, source: str | None) -> str | None:
        """What a line of the model's code says; None where its file cannot be read."""
        place = self.any_code_at(source)
        return None if place is None else place[0].line_text(place[1])

    def is_kept(self, op: OpRecord | str) -> bool:
        """Whether the model keeps what an op makes for the calls to come: a second call ran without it, or, of a model
        that was called once, its code says so."""
        if isinstance(op, OpRecord) and op.index in self.kept:
            return True
        place = self.code_at(op)
        return place is not None and place[0].is_kept(place[1])

    def _reads_state(self, op: OpRecord) -> bool:
        place = self.any_code_at(op)
        if place is None:
            return False
        if place not in self._state_lines:
            self._state_lines[place] = place[0].reads_state(place[1])
        return self._state_lines[place]

    def call_of(self, op: OpRecord, names: Sequence[str]) -> tuple[Source, ast.Call] | None:
        """The call in the model's code that an op comes from, by its name; of several on a line, that in its place."""
        place = self.code_at(op)
        calls = [] if place is None else place[0].calls(place[1], *names)
        same = self._by_call[op.source, op.op, op.module]
        if place is None or not calls or (len(calls) > 1 and len(same) % len(calls)):
            return None
        return place[0], calls[same.index(op.index) % len(calls)]

    @cached_property
    def _by_call(self) -> Mapping[tuple[str | None, str, str], list[int]]:
        """The ops of the forward pass that one call in the code of a module makes."""
        found: dict[tuple[str | None, str, str], list[int]] = {}
        for op in self.forward:
            found.setdefault((op.source, op.op, op.module), []).append(op.index)
        return found

    def same_calls(self, op: OpRecord) -> Sequence[int]:
        """The indices of the ops of its kind that its line of code makes, in any module."""
        return self._by_line[op.source, op.op]

    @cached_property
    def _by_line(self) -> Mapping[tuple[str | None, str], list[int]]:
        found: dict[tuple[str | None, str], list[int]] = {}
        for op in self.forward:
            found.setdefault((op.source, op.op), []).append(op.index)
        return found

    def without_calls(self, ops: Iterable[OpRecord], names: Sequence[str]) -> SourceEdit | None:
        """The model's code without the calls that these ops come from; None unless each is found, in one file."""
        found = [self.call_of(op, names) for op in ops]
        known = [each for each in found if each is not None]
        if not known or len(known) < len(found) or any(source is not known[0][0] for source, _ in known):
            return None
        return known[0][0].edit([span for source, call in known for span in source.without(call)])

    def is_whole(self, path: str, ops: Iterable[OpRecord], calls: int = 1) -> bool:
        """Whether a module does nothing in its `calls` calls but these ops and casts, with the modules in it, so that
        another of one tensor can take its place."""
        record, own = self.modules.get(path), {op.index: op for op in ops}
        if not path or record is None or record.calls != calls:
            return False
        # Layers that are not in it, but are called there, show in the shapes; a script does not say what it is given.
        shapes = [
            each.shape if isinstance(each, TensorSpec) else None for each in (*(record.inputs or ()), record.outputs)
        ]
        made = {spec.shape for op in own.values() for spec in op.signature.outputs}
        if record.inputs is not None and (len(shapes) != 2 or shapes[0] != shapes[1] or shapes[0] not in made):
            return False
        inside = {each.path for each in self.capture.modules if each.path.startswith(f"{path}.")}
        paths = {path, *inside}
        rest = [op for op in self.forward if op.module in paths and op.status != FREE and op.index not in own]
        # A module inside that has none of the ops may do something in training, as dropout does.
        is_known = all(any(f"{op.module}.".startswith(f"{each}.") for op in own.values()) for each in inside)
        return is_known and all(op.op == "aten::_to_copy" for op in rest)

    def ops_at(self, op: OpRecord) -> int:
        """How many ops the line of an op makes in its module."""
        return sum(
            (each.source, each.module) == (op.source, op.module) and each.status != FREE for each in self.forward
        )

    def package_call(self, op: OpRecord) -> tuple[str, str] | None:
        """Of an op that an installed package calls: the innermost module around it that the model's own code calls, and
        the line that does."""
        for path in reversed(enclosing_paths(op.module)) if self.library_of(op) is not None else ():
            lines = self.modules[path].called_from if path in self.modules else ()
            own = next((line for line in lines if self.code_at(line) is not None), None)
            if own is not None:
                return path, own
        return None

    def library_of(self, op: OpRecord) -> str | None:
        """The installed package whose code calls an op ("timm", "transformers"); None for the user's own."""
        package, found, _ = (op.source or "").partition("/")
        return package if found and package.isidentifier() else None

    @cached_property
    def _runs(self) -> Counter[tuple[str | None, str, str]]:
        """How often each line of code ran an op in a module."""
        return Counter((op.source, op.op, op.module) for op in self.forward)

    @cached_property
    def _ops_by_index(self) -> Mapping[int, OpRecord]:
        return {op.index: op for op in self.capture.ops}

    def settled(self, gain: Gain) -> Gain:
        """A gain as it is reported: no change saves more than the time of the ops that it touches. Bytes are counted;
        a range of bytes from nothing on is a bound."""
        if not gain.is_time:
            whole = self.totals.get(gain.quantity)
            basis = "bound" if gain.low == 0 else gain.basis
            amount = gain.amount if gain.amount is not None else None if whole is None else gain.middle * whole
            return replace(gain, amount=amount, basis=basis)
        if gain.device is not None:
            return replace(gain, amount=gain.middle * (gain.whole_s or 0.0))
        times = self.times
        low, high = gain.low, gain.high
        if gain.touched is not None:
            share, saved = times.share(gain.touched), times.saved_range(gain.touched, gain.keeps_results)
            parts = (min(low / share, 1.0), min(high / share, 1.0)) if share else (0.0, 0.0)
            low, high = combined(parts, saved)
            high = min(high, parts[1] * saved[1])
        is_measured = times.basis == "measured" or gain.basis == "measured"
        basis = "bound" if low == 0 else "measured" if is_measured else "predicted"
        amount = (low + high) / 2 * times.whole
        return replace(gain, low=low, high=high, amount=amount, basis=basis, device=self.on)

    @cached_property
    def least_time(self) -> LeastTime | None:
        """None where the device's peaks are not known; of switches that are not known torch's defaults are taken."""
        machine = self.machine
        if machine.peaks is None:
            return None
        return LeastTime(machine.peaks, bool(machine.matmul_tf32), machine.convolution_tf32 is not False)


def moved(op: OpRecord) -> int:
    """Bytes that an op reads and writes."""
    cost = op.signature.cost
    return cost.bytes_read + cost.bytes_written


def common_path(modules: Iterable[str]) -> str:
    """The path of the innermost module around all of them."""
    levels = zip(*(module.split(".") for module in modules), strict=False)
    return ".".join(names[0] for names in takewhile(lambda names: len(set(names)) == 1, levels))
