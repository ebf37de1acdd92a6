"""One pass over a model on fake tensors, with the first input that runs; for real if the model reads tensor values."""

from __future__ import annotations

import contextvars
import copy
import enum
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

import torch
from torch import nn

from torchgauge.capture.calls import watch_modules
from torchgauge.capture.copier import ATOMS, Copier, TensorCopies, is_plain, sharing_memory
from torchgauge.capture.failures import Misfit, call_model, clear_traceback, fitting_input, fixed_batch, shape_text
from torchgauge.capture.fake_run import FakeRun, is_wrapper, rewrapped, swap_tensors
from torchgauge.capture.fake_tensor import DataDependent, Endless, FakeTensor, Storage, make_fake
from torchgauge.capture.leftovers import Leftovers, Variables
from torchgauge.capture.patched_functions import elements_given, hub_functions_given, real_memory_for_numpy
from torchgauge.capture.paths import ModulePaths, type_name, unwrap
from torchgauge.capture.quantized import find_quantized, is_linear
from torchgauge.capture.real import Observe, RealRun
from torchgauge.capture.recorder import ModuleCalls, Recorder, spec_of, spec_of_real
from torchgauge.capture.restored_state import initialised_copy, is_lazy, prepared, undisturbed
from torchgauge.capture.second_call import HeldBytes, SecondCall, compare_calls, held_tensors
from torchgauge.capture.sharded import is_split
from torchgauge.capture.structure import map_tensors, materialise, tensors_within
from torchgauge.capture.supported import unsupported
from torchgauge.capture.training import MakeOptimizer, train_step
from torchgauge.capture.triton_kernels import launches_seen
from torchgauge.errors import ForwardError, InputError
from torchgauge.facts import (
    UNCOUNTED,
    HeldTensor,
    InputRecord,
    ModuleRecord,
    OpRecord,
    ParamRecord,
    RunRecord,
    StepMemory,
    TensorSpec,
    is_within,
)
from torchgauge.nested import items_of
from torchgauge.registry import collector_paused
from torchgauge.source import Candidate
from torchgauge.source.allowed_ops import holds_foreign, mark_foreign
from torchgauge.source.candidate import forward_signature
from torchgauge.units import format_names

# A registry model that reads tensor values is built again with real parameters up to this size.
_REBUILD_LIMIT_BYTES = 4 << 30
_NAMED_LAYERS = 3  # that one warning names

# Functions of torch are replaced while a pass runs: one pass at a time.
one_at_a_time = threading.RLock()


@dataclass(frozen=True, slots=True)
class Trace:
    """The result of a pass over a model; `candidate` is the input that ran."""

    run: RunRecord
    inputs: tuple[InputRecord, ...]
    modules: tuple[ModuleRecord, ...]
    params: tuple[ParamRecord, ...]
    ops: tuple[OpRecord, ...]
    input_bytes: int
    candidate: Candidate


@dataclass(frozen=True, slots=True)
class Request:
    """`build_real` makes a model that was built on the meta device once more, with real parameters; that of a file is
    given only where the user wants it run for real. `optimizer` is of a training step."""

    device: torch.device
    dtype: torch.dtype | None = None
    train: bool = False
    build_real: Callable[[], nn.Module] | None = None
    optimizer: MakeOptimizer = torch.optim.AdamW


def trace(model: nn.Module, candidates: Iterable[Candidate], request: Request) -> Trace:
    """Run the model on the first candidate that works. The model is left unchanged, even on errors."""
    with one_at_a_time, collector_paused(), undisturbed(model):
        # A context variable that the forward sets is set in a copy of the context.
        return contextvars.copy_context().run(_first_that_runs, unwrap(model), candidates, request)


def _first_that_runs(model: nn.Module, candidates: Iterable[Candidate], request: Request) -> Trace:
    first: ForwardError | None = None
    fits = None
    tried = 0
    for candidate in candidates:
        tried += 1
        try:
            return _trace(model, candidate, request)
        except ForwardError as error:
            if first is None:
                first, given = error, candidate
            if error.is_in_code:
                raise
            if isinstance(error.__cause__, Endless | RecursionError):
                break
    if first is None:
        raise InputError("no inputs were given and none could be inferred; pass input_size=, inputs= or --input")
    if first.misfit is not None:

        def attempt(changed: Candidate) -> Misfit | bool | None:
            try:
                trace_fake(model, changed, request)
            except DataDependent:
                return False
            except ForwardError as error:
                return error.misfit or False
            return None

        fits = fitting_input(given, first.misfit, attempt)
        if fits is not None and given.reason is not None:
            wanted = f"{first.misfit.layer} takes {first.misfit.needed} {first.misfit.unit}"
            reason = f"{shape_text(fits)}, found by trying: {wanted}"
            found = _trace(model, replace(fits, reason=reason), request)
            fixed = fixed_batch(fits, first.misfit, attempt, found.ops)
            if fixed is None:
                return found
            raise ForwardError(
                f"{fixed}: {wanted}, so no input size can be inferred. Keep the batch (x.flatten(1)), or give the "
                "input with input_size=, inputs= or --input",
                module=first.module, misfit=first.misfit,
            ) from first  # fmt: skip
    hint = "" if fits is None else f". An input of {shape_text(fits)} fits"
    if tried == 1 and hint:
        raise ForwardError(f"{first}{hint}", module=first.module, misfit=first.misfit) from first
    if tried == 1:
        raise first  # `from` itself it would lose its cause
    advice = f"{tried} inputs were tried, this is the first; give yours with input_size=, inputs= or --input"
    raise ForwardError(f"{first} ({advice})", module=first.module) from first


def _trace(model: nn.Module, candidate: Candidate, request: Request) -> Trace:
    if is_lazy(model):
        model = initialised_copy(model, candidate.args, candidate.kwargs)
    try:
        return trace_fake(model, candidate, request)
    except DataDependent as signal:
        # The model reads tensor values: run it for real, or use upper bounds if that is not possible.
        where = f" in '{signal.module}'" if signal.module else ""
        reason = f"the model {signal.why} ({signal.op}{where})"
        failure: ForwardError | None = None
        real: nn.Module | None = None
        is_file = holds_foreign(model)
        if not is_split(model) and (is_file or any(parameter.is_meta for parameter in model.parameters())):
            nbytes = sum(parameter.nbytes for parameter in model.parameters())
            if request.build_real is not None and (is_file or nbytes <= _REBUILD_LIMIT_BYTES):
                try:
                    real = unwrap(request.build_real())
                except InputError as error:  # not enough memory for them
                    failure = ForwardError(f"{reason}, and {error}", module=signal.module)
        elif not is_split(model):
            real = model
        missing = None if real is None else unsupported(real, request.device, request.dtype)
        if missing is not None:
            failure = ForwardError(f"{reason}, and {missing}", module=signal.module)
        elif real is not None:
            try:
                return trace_real(real, candidate, request, reason)
            except ForwardError as error:
                failure = error
        try:
            return trace_fake(model, candidate, request, assume=True)
        except (DataDependent, ForwardError):
            raise failure or ForwardError(
                f"{reason}, and {_why_not_real(model, candidate)}", module=signal.module
            ) from signal


def _why_not_real(model: nn.Module, candidate: Candidate) -> str:
    if holds_foreign(model):
        return "a model from a file is not run for real by an analysis: add --inference (inference=True) to run it"
    if is_split(model):
        return "its parameters are split over several processes: analyze it before fully_shard"
    given: list[torch.Tensor] = []
    map_tensors((candidate.args, candidate.kwargs), given.append)
    if any(tensor.is_meta and not tensor.dtype.is_floating_point for tensor in given):
        return "its integer inputs are on the meta device: pass them with values, on the CPU"
    return (
        "its parameters are on the meta device, so it cannot be run for real: "
        "give it real parameters (for example model.to_empty(device='cpu'))"
    )


def trace_fake(model: nn.Module, candidate: Candidate, request: Request, *, assume: bool = False) -> Trace:
    leftovers = Leftovers()
    try:
        traced = _on_fakes(model, candidate, request, leftovers, assume=assume)
    except BaseException as error:
        clear_traceback(error)
        leftovers.release()
        raise
    remarks = leftovers.release()
    return replace(traced, run=replace(traced.run, warnings=(*traced.run.warnings, *remarks))) if remarks else traced


def _on_fakes(
    model: nn.Module, candidate: Candidate, request: Request, leftovers: Leftovers, *, assume: bool = False
) -> Trace:
    copier = Copier()
    with prepared(model, train=request.train, copier=copier) as replica:
        paths = ModulePaths(replica)
        is_file = holds_foreign(model)
        recorder = Recorder(paths, train=request.train, is_foreign=is_file, original_of=copier.original_of)
        for remark in copier.remarks:
            recorder.warn(remark)
        run = FakeRun(recorder, request.device, assume=assume, strict=candidate.has_values)
        leftovers.watch(run, Variables(copier.code, copier.shared))
        swap_tensors(paths, run, request.dtype)
        params = param_records(paths, lambda tensor: spec_of(run.adopt(tensor)))
        admit = Copier(lambda tensor: run.admit(tensor, dtype=request.dtype))
        args, kwargs = admit.copy((candidate.args, candidate.kwargs))
        inputs = mark_inputs(run, model, args, kwargs, candidate.reason)
        lent = real_memory_for_numpy(run.lend, run.note_host_read)
        listed = elements_given(copier.code, run.note_host_read)
        with lent, listed, hub_functions_given(), launches_seen(run.launch, runs=False):
            with watch_modules(paths, recorder, run.adopt), run:
                held = HeldBytes(paths, recorder.ledger.live)
                output = call_model(replica, args, kwargs, recorder)
                outcome = _outcome(output, run, request)
                call_again = partial(call_model, replica, args, kwargs, recorder)
                if not request.train:
                    outcome.second = compare_calls(paths, run, held, output, call_again)
            if request.train:
                fakes = [run.adopt(owned.tensor) for owned in paths.owned if not owned.is_buffer]
                parameters = cast("list[nn.Parameter]", fakes)  # which they say they are
                like = partial(_fake_like, run)
                outcome.step = train_step(run, recorder, output, parameters, like, request.optimizer)
                with watch_modules(paths, recorder, run.adopt), run, torch.no_grad():
                    outcome.second = compare_calls(paths, run, held, output, call_again)
    return _finished(model, recorder, paths, params, inputs, candidate, request, outcome)


def observed(model: nn.Module, candidate: Candidate, request: Request, observe: Observe) -> Trace:
    """Run the model for real and hand the results of each op to `observe`. The model is left unchanged."""
    run = partial(trace_real, unwrap(model), candidate, request, "its values are observed", observe)
    with one_at_a_time, collector_paused(), undisturbed(model):
        return contextvars.copy_context().run(run)


def trace_real(
    model: nn.Module, candidate: Candidate, request: Request, reason: str, observe: Observe | None = None
) -> Trace:
    is_file = holds_foreign(model)
    if request.dtype is not None or any(p.device != request.device for p in model.parameters()):
        model = copy.deepcopy(model).to(device=request.device, dtype=request.dtype)
        if is_file:
            mark_foreign(model)
    # A training step writes to every parameter and its gradient, so there the replica has its own tensors.
    # Otherwise a tensor of the replica shares memory only: `weight.data = …` in a forward must not reach the user's.
    copier = Copier(TensorCopies().copy if request.train else sharing_memory)
    with prepared(model, train=request.train, copier=copier) as replica:
        paths = ModulePaths(replica)
        params = param_records(paths, spec_of_real)
        recorder = Recorder(paths, train=request.train, is_foreign=is_file, original_of=copier.original_of)
        for remark in copier.remarks:
            recorder.warn(remark)
        run, variables = RealRun(recorder, paths, observe), Variables(copier.code, copier.shared)
        admit = Copier(lambda tensor: run.admit(materialise(tensor, request.device, request.dtype)))
        args, kwargs = admit.copy((candidate.args, candidate.kwargs))
        inputs = mark_inputs(run, model, args, kwargs, candidate.reason)
        try:
            lent, listed = real_memory_for_numpy(run.lend, run.note_host_read), elements_given(note=run.note_host_read)
            with lent, listed, launches_seen(run.launch, runs=True):
                with watch_modules(paths, recorder, lambda tensor: tensor), run:
                    held = HeldBytes(paths, recorder.ledger.live)
                    output = call_model(replica, args, kwargs, recorder, is_real=True)
                    outcome = _outcome(output, run, request, reason)
                    if not request.train and observe is None:
                        call_again = partial(call_model, replica, args, kwargs, recorder, is_real=True)
                        outcome.second = compare_calls(paths, run, held, output, call_again)
                if request.train:
                    parameters = list(replica.parameters())
                    ones_like = lambda root: run.admit(torch.ones_like(root))  # noqa: E731
                    outcome.step = train_step(run, recorder, output, parameters, ones_like, request.optimizer)
        finally:
            run.undo()
            variables.put_back()
    return _finished(model, recorder, paths, params, inputs, candidate, request, outcome)


@dataclass(slots=True)
class _Outcome:
    """The result of a run. `reason` is why the model ran for real, None for a run on fake tensors; `results` are the
    ops that wrote what the model returns, each once, in order."""

    reason: str | None
    results: tuple[int, ...]
    held: tuple[HeldTensor, ...] = ()
    kept: tuple[int, ...] = ()
    step: StepMemory | None = None
    second: SecondCall = field(default_factory=SecondCall)


def _outcome(output: object, run: FakeRun | RealRun, request: Request, reason: str | None = None) -> _Outcome:
    """The outcome of a run that is still in progress."""
    writers = {run.writer_of(tensor) for tensor in tensors_within(output)}
    results = tuple(sorted(writer for writer in writers if writer is not None and writer >= 0))  # without inputs
    recorder = run.recorder
    held = () if request.train else held_tensors(recorder.ops, results, recorder.ledger.released)
    alive = (op for op, nbytes in recorder.ledger.live_of.items() if nbytes and op >= 0)
    kept = () if request.train else tuple(sorted(set(alive).difference(results)))
    return _Outcome(reason, results, held, kept)


def _finished(
    model: nn.Module,
    recorder: Recorder,
    paths: ModulePaths,
    params: tuple[ParamRecord, ...],
    marked: MarkedInputs,
    candidate: Candidate,
    request: Request,
    outcome: _Outcome,
) -> Trace:
    inputs, ops = marked.resolve_readers(recorder.ops)
    arguments = _named_arguments(model, candidate.args, candidate.kwargs)
    record = RunRecord(
        mode="fake" if outcome.reason is None else "real",
        reason=outcome.reason,
        device=str(request.device),
        train=request.train,
        warnings=_warnings(recorder, paths, outcome.step),
        results=outcome.results,
        step=outcome.step,
        host_reads=recorder.host_reads,
        growing=outcome.second.growing,
        first_call_ops=outcome.second.first_call_ops,
        later_peak_bytes=outcome.second.peak_bytes,
        kept_ops=outcome.kept,
        held=outcome.held,
        recomputed_ops=tuple(recorder.recomputed),
        number_arguments=tuple(name for name, value in arguments.items() if _holds_numbers(value)),
    )
    modules = module_records(paths, params, recorder)
    return Trace(record, inputs, modules, params, ops, marked.nbytes, candidate)


def _warnings(recorder: Recorder, paths: ModulePaths, step: StepMemory | None) -> tuple[str, ...]:
    # A linear layer that hands its memory to numpy and runs no product as an op: numba (AQLM's 8-bit codes on the CPU)
    # or a C library multiplies, and its work is not in the counts.
    layers = [path for path in recorder.paths_with_numpy if is_linear(paths.module_at(path))]
    if layers:
        counted = {op.module for op in recorder.ops if op.cost.macs or op.status == UNCOUNTED}
        layers = [path for path in layers if not any(is_within(at, path) for at in counted)]
    if layers:
        names = format_names([f"'{path}' ({paths.type_at(path)})" for path in layers], _NAMED_LAYERS)
        recorder.warn(f"computed outside torch (numpy), so their MACs are not counted: {names}")
    if step is not None:
        recorder.warn(f"the optimizer step is {step.optimizer} with torch's defaults")
    return tuple(recorder.warnings)


def _fake_like(run: FakeRun, root: torch.Tensor) -> torch.Tensor:
    if is_wrapper(root):
        return rewrapped(root, partial(_fake_like, run))
    assert isinstance(root, FakeTensor)
    return make_fake(root.spec, Storage(root.spec.nbytes, run.recorder.ledger, born=len(run.recorder.ops)))


def param_records(paths: ModulePaths, describe: Callable[[torch.Tensor], TensorSpec]) -> tuple[ParamRecord, ...]:
    """`describe` gives the tensors as the run has them: their type may have been asked for."""
    records, quantized = [], find_quantized(paths)
    for owned in paths.owned:
        found = quantized.get(owned.name)
        records.append(
            ParamRecord(
                name=owned.name,
                spec=describe(owned.tensor),
                trainable=owned.tensor.requires_grad and not owned.is_buffer,
                is_buffer=owned.is_buffer,
                aliases=tuple(owned.aliases),
                logical_elements=found.logical if found else None,
                stored=found.stored if found else (),
            )
        )
    return tuple(records)


def module_records(paths: ModulePaths, owned: tuple[ParamRecord, ...], recorder: Recorder) -> tuple[ModuleRecord, ...]:
    # Unique parameters in each module's subtree: elements, trainable elements, bytes.
    params: dict[str, int] = defaultdict(int)
    trainable: dict[str, int] = defaultdict(int)
    nbytes: dict[str, int] = defaultdict(int)
    for tensor, record in zip(paths.owned, owned, strict=True):
        if record.is_buffer:
            continue
        numel, size = record.spec.numel, record.nbytes
        for path in paths.owners(tensor):
            params[path] += numel
            nbytes[path] += size
            trainable[path] += numel if record.trainable else 0
    never = ModuleCalls()
    records = []
    for member in paths.members:
        calls = recorder.calls.get(member.path, never)
        records.append(
            ModuleRecord(
                path=member.path,
                type=type_name(member.module),
                aliases=tuple(member.aliases),
                calls=calls.count,
                params=params[member.path],
                trainable_params=trainable[member.path],
                param_bytes=nbytes[member.path],
                inputs=calls.inputs,
                outputs=calls.outputs,
                called_from=tuple(calls.lines),
            )
        )
    return tuple(records)


# The inputs of the model, by the names that its forward declares, and the ops that read them.


@dataclass(frozen=True, slots=True)
class MarkedInputs:
    """The inputs before the run, and their bytes. `origins` are their numbers among the producers of an op: -1 for the
    first, and equal where one tensor was given twice."""

    records: tuple[InputRecord, ...]
    origins: tuple[int, ...]
    nbytes: int

    def resolve_readers(self, ops: Sequence[OpRecord]) -> tuple[tuple[InputRecord, ...], tuple[OpRecord, ...]]:
        """The inputs with their readers, and the ops with no other producers than ops."""
        readers: dict[int, list[tuple[int, int]]] = {origin: [] for origin in self.origins}
        marked, resolved = readers.keys(), []
        for op in ops:
            if marked.isdisjoint(op.producers):
                resolved.append(op)
                continue
            for place, producer in enumerate(op.producers):
                if producer in readers:
                    readers[producer].append((op.index, place))
            producers = tuple(None if producer in readers else producer for producer in op.producers)
            resolved.append(replace(op, producers=producers))
        pairs = zip(self.records, self.origins, strict=True)
        return tuple(replace(record, readers=tuple(readers[origin])) for record, origin in pairs), tuple(resolved)


def mark_inputs(
    run: FakeRun | RealRun, model: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], inferred: str | None
) -> MarkedInputs:
    """Mark the tensors among the arguments, which the run has admitted; those in containers are named `images[0]`,
    `batch.mask`."""
    arguments = _named_arguments(model, args, kwargs)
    named = [pair for argument, value in arguments.items() for pair in _named_tensors(argument, value)]
    records = tuple(InputRecord(name, spec_of(tensor), inferred) for name, tensor in named)
    origins = tuple(run.mark(tensor, -1 - place) for place, (_, tensor) in enumerate(named))
    return MarkedInputs(records, origins, run.recorder.ledger.live)


def _holds_numbers(value: object, depth: int = 3) -> bool:
    """Whether an argument holds numbers or text outside of tensors, or is an object that cannot be looked into: what
    the model makes of them is data. A word alone is a switch, as a mode; words of a list, and several in one string,
    are text."""
    if isinstance(value, dict) and depth:
        return any(_holds_numbers(item, depth - 1) for item in value.values())
    if isinstance(value, list | tuple | set) and depth:
        return any(isinstance(item, str) or _holds_numbers(item, depth - 1) for item in value)
    kind = type(value)
    if not isinstance(value, torch.Tensor) and kind not in ATOMS and items_of(value) is None and not is_plain(kind):
        return not callable(value) and not isinstance(value, enum.Enum)
    is_array = kind.__module__.partition(".")[0] == "numpy"
    is_text = isinstance(value, str) and len(value.split()) > 1
    return is_array or is_text or (isinstance(value, int | float) and not isinstance(value, bool))


def _named_arguments(model: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, object]:
    names = [parameter.name for parameter in forward_signature(model).positional]
    return {names[i] if i < len(names) else f"input{i}": value for i, value in enumerate(args)} | kwargs


def _named_tensors(name: str, value: object) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
        return
    items = items_of(value)
    if items is None and is_plain(type(value)):  # a cache of keys and values
        items = items_of(getattr(value, "__dict__", {}))
    for position, (key, item) in enumerate(items or ()):
        yield from _named_tensors(f"{name}[{position}]" if key is None else f"{name}.{key}", item)
