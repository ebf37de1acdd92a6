"""`fit`: whether a model runs on a device that one need not have, and what to change where it does not."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property, partial
from itertools import product
from typing import TYPE_CHECKING, Any, TypedDict

from torchgauge.analysis.isolated import needs_isolation, read_data
from torchgauge.analysis.options import chosen_dtype, stored_path, unwrapped
from torchgauge.errors import ForwardError, InputError, UsageError, errors_as_torchgauge
from torchgauge.facts.document_types import FitRow
from torchgauge.progress import stage
from torchgauge.report.dataframe import frame
from torchgauge.schema import conform

if TYPE_CHECKING:
    import pandas
    import torch

    from torchgauge.predict.devices import Device
    from torchgauge.predict.fit import Prediction
    from torchgauge.predict.steps import Setting, Trace
    from torchgauge.source import Candidate, InputSpec

MODES = ("inference", "train")
EXECUTIONS = ("eager", "graph")
_AMP = {"bf16": "bfloat16", "bfloat16": "bfloat16", "fp16": "float16", "float16": "float16"}


def fit(
    target: str | os.PathLike[str] | torch.nn.Module,
    *,
    on: str | Sequence[str] = "h200",
    mode: str = "inference",
    inputs: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    input_size: Any = None,
    batch: int | Sequence[int] | None = None,
    seq: int | Sequence[int] | None = None,
    specs: Sequence[InputSpec] = (),
    dtype: torch.dtype | str | None = None,
    optimizer: Any = "adamw",
    loss: Callable[[Any], Any] | None = None,
    amp: str | torch.dtype | None = None,
    checkpoint: str | None = None,
    accumulate: int = 1,
    frozen: str | Sequence[str] = (),
    lora: str | tuple[int, str] | None = None,
    expandable_segments: bool = False,
    execution: str = "eager",
    fused: bool | None = None,
    foreach: bool | None = None,
    channels_last: bool = False,
    torch_version: str | None = None,
    code: Any = None,
    allow_pickle: bool = False,
    progress: bool | None = None,
    memory_limit: int | str | None = None,
    time_limit: float | None = None,
) -> Fit | Fits:
    """Predict the memory of a run on a device, without the device: one `Fit`, or a list for several devices, batches or
    lengths.

    `on` names devices (`h200`, `rtx4090`, `24GiB`, `this`), several with commas or as a list. `mode` is "inference" or
    "train": forward, backward, a step of `optimizer` (a name, a class or an instance; gradients are set to None after
    it). `loss` is a function of the output; the default is the output's `loss`, else the mean of the squares of the
    first floating output. `amp` is autocast ("bf16", "fp16"), `dtype` the type of parameters and inputs.

    `checkpoint` recomputes blocks in the backward pass ("blocks", a path pattern or a class). `frozen` are patterns of
    parameter names, `lora` is "RANK:PATTERN". The model may be on the meta device, torch may lack CUDA, and the model
    is not changed. A file is read in a process without rights; `memory_limit` and `time_limit` are its limits.
    """
    if mode not in MODES:
        raise UsageError(f"no mode '{mode}'; one of: {', '.join(MODES)}")
    if batch is not None and inputs is not None:
        raise UsageError("batch changes inferred inputs: where inputs are given, give them with that batch")
    if execution not in EXECUTIONS:
        raise UsageError(f"no execution '{execution}'; one of: {', '.join(EXECUTIONS)}")
    if accumulate < 1:
        raise UsageError("accumulate must be at least 1")
    given = {"inputs": inputs, "kwargs": kwargs, "input_size": input_size, "specs": specs}
    sizes = list(product(_sizes(batch, "batch"), _sizes(seq, "seq")))
    changes = {"checkpoint": None if checkpoint == "none" else checkpoint, "channels_last": channels_last, "loss": loss,
               "frozen": (frozen,) if isinstance(frozen, str) else tuple(frozen), "lora": _lora(lora),
               "accumulate": accumulate, "dtype": chosen_dtype(dtype), "amp": as_amp(amp)}  # fmt: skip
    step = (optimizer, fused, foreach) if mode == "train" else None
    job = partial(
        _predict,
        target,
        on,
        given,
        sizes,
        changes,
        step,
        torch_version,
        expandable_segments,
        execution == "graph",
        code,
        allow_pickle,
        progress,
    )
    if needs_isolation(target, allow_pickle):
        path = str(stored_path(target))
        if loss is not None:
            require_picklable(loss)
        read = partial(
            read_data, paths=[path], memory_limit=memory_limit, time_limit=time_limit, needs_torch=True, mode=mode
        )
        rows = conform(read(partial(_facts, job)), list[FitRow], f"the prediction for '{path}'")
        # The largest batch and the remedies take many predictions: they are made when asked for, for all devices.
        suggest = cache(lambda: conform(read(partial(_suggestions, job)), list[Suggestions], f"those for '{path}'"))

        def suggestions_of(place: int) -> Callable[[], Suggestions]:
            return lambda: suggest()[place]

        found = [Fit.of(row, suggestions_of(place)) for place, row in enumerate(rows)]
    else:
        found = [Fit.of(case.facts(), case.suggestions) for case in job()]
    return found[0] if len(found) == 1 else Fits(found)


def _sizes(asked: int | Sequence[int] | None, name: str) -> list[int | None]:
    sizes: list[int | None] = [asked] if asked is None or isinstance(asked, int) else [*asked]
    if not sizes or any(size is not None and size < 1 for size in sizes):
        raise UsageError(f"{name} must be at least 1, not {asked}")
    return sizes


def _predict(
    target: Any,
    on: str | Sequence[str],
    given: dict[str, Any],
    sizes: list[tuple[int | None, int | None]],
    changes: dict[str, Any],
    step: tuple[Any, bool | None, bool | None] | None,
    torch_version: str | None,
    expandable_segments: bool,
    is_graph: bool,
    code: Any,
    allow_pickle: bool,
    progress: bool | None,
) -> list[Case]:
    from torchgauge.predict.allocator import AllocatorSettings
    from torchgauge.predict.devices import find_devices
    from torchgauge.predict.optimizers import make_optimizer
    from torchgauge.predict.steps import Setting
    from torchgauge.source import resolve

    devices = find_devices(on)
    make = None if step is None else make_optimizer(step[0], fused=step[1], foreach=step[2])
    setting = Setting(library_of(devices[0], torch_version), train=step is not None, optimizer=make, **changes)
    with errors_as_torchgauge(stored_path(target)), stage("predicting memory", shown=progress) as tell:
        source = resolve(unwrapped(target), code=code, allow_pickle=allow_pickle, progress=tell)
        if source.model is None:
            raise InputError("weights alone do not say what memory a run takes: add the code (--as file.py:Net)")
        name = os.fspath(target) if isinstance(target, str | os.PathLike) else type(source.model).__name__
        allocator = AllocatorSettings(expandable_segments=expandable_segments)
        runs = [
            Run(source.model, {**given, "batch": batch, "seq": seq}, setting, torch_version, name, is_graph)
            for batch, seq in sizes
        ]
        return [Case(run, device, allocator, run.predict(device, allocator)) for device in devices for run in runs]


def _facts(job: Callable[[], list[Case]]) -> list[FitRow]:
    return [case.facts() for case in job()]


def _suggestions(job: Callable[[], list[Case]]) -> list[Suggestions]:
    return [case.suggestions() for case in job()]


def require_picklable(loss: Any) -> None:
    try:
        pickle.dumps(loss)
    except Exception as error:
        raise UsageError(
            f"a file is read in another process, which loss= must be sent to: define it in a module ({error})"
        ) from error


def library_of(device: Device, torch_version: str | None) -> Any:
    """Kernels by release: from 2.11 on torch comes with a cuDNN whose attention it prefers on recent chips."""
    import torch

    from torchgauge.predict.kernels import Library

    text = torch_version or torch.__version__
    try:
        release = tuple(int(part) for part in text.split("+")[0].split(".")[:2])
    except ValueError:
        raise UsageError(f"'{text}' is not a version of torch; such as 2.11") from None
    if release < (2, 6):
        raise UsageError(f"torch {text} is not known: predictions are for 2.6 and later")
    return Library(device.chip, cudnn=91900 if release >= (2, 11) else 91002)


def as_amp(asked: Any) -> Any:
    import torch

    if asked is None or isinstance(asked, torch.dtype):
        return asked
    if asked not in _AMP:
        raise UsageError(f"no autocast type '{asked}'; one of: bf16, fp16")
    return getattr(torch, _AMP[asked])


def _lora(asked: Any) -> tuple[int, str] | None:
    if asked is None:
        return None
    try:
        rank, pattern = asked.split(":", 1) if isinstance(asked, str) else asked
        if int(rank) > 0 and pattern:
            return int(rank), str(pattern)
    except (TypeError, ValueError):
        pass
    raise UsageError(f"lora is RANK:PATTERN, such as 8:*q_proj.weight, not '{asked}'")


@dataclass
class Run:
    """A model with its inputs and how it is run; traces are kept, since several devices share them."""

    model: torch.nn.Module
    given: dict[str, Any]
    setting: Setting
    torch_version: str | None
    name: str
    is_graph: bool = False
    attention: str | None = None  # of a transformers model, in place of its own choice
    resized: tuple[int | None, int | None] = (None, None)  # batch and length, where other inputs than the given
    _traces: dict[Any, Trace] = field(default_factory=dict)

    def predict(self, device: Device, allocator: Any, *, detail: bool = True) -> Prediction:
        from torchgauge.predict.fit import Prediction

        return Prediction.of(self._trace(device), device, allocator, is_graph=self.is_graph, detail=detail)

    def _trace(self, device: Device) -> Trace:
        from torchgauge.predict.steps import trace

        setting = replace(self.setting, library=library_of(device, self.torch_version))
        first: ForwardError | None = None
        if setting.library in self._traces:
            return self._traces[setting.library]
        for candidate in self.candidates():
            try:
                with self._chosen_attention():
                    self._traces[setting.library] = trace(self.model, candidate, setting)
                return self._traces[setting.library]
            except ForwardError as error:
                first = first or error
        raise first or InputError(
            "no inputs were given and none could be inferred; pass inputs=, input_size= or --input"
        )

    def processor_ops(self) -> tuple[Sequence[Any], int]:
        """The ops of a run on this machine's processor, and how often modules are called."""
        import torch

        from torchgauge.capture import Request, trace

        request: dict[str, Any] = {"dtype": self.setting.dtype, "train": self.setting.train}
        if self.setting.optimizer is not None:
            request["optimizer"] = self.setting.optimizer
        seen = trace(self.model, self.candidates(), Request(torch.device("cpu"), **request))
        return seen.ops, sum(module.calls for module in seen.modules)

    @contextmanager
    def _chosen_attention(self) -> Iterator[None]:
        config = getattr(self.model, "config", None)
        if self.attention is None or config is None:
            yield
            return
        before = config._attn_implementation
        config._attn_implementation = self.attention
        try:
            yield
        finally:
            config._attn_implementation = before

    def candidates(self) -> Iterator[Candidate]:
        from torchgauge.capture import undisturbed
        from torchgauge.source import candidate_inputs

        with undisturbed(self.model):
            for candidate in candidate_inputs(self.model, **self.given, dtype=self.setting.dtype):
                yield resized(candidate, *self.resized)

    @cached_property
    def sizes(self) -> tuple[int | None, int | None]:
        """The common first dimension of the inputs, and the length of the first that holds token ids."""
        from torchgauge.capture.structure import tensors_within

        candidate = next(iter(self.candidates()), None)
        tensors = [] if candidate is None else list(tensors_within((candidate.args, candidate.kwargs)))
        batches = {tensor.shape[0] for tensor in tensors if tensor.dim()}
        lengths = [tensor.shape[1] for tensor in tensors if tensor.dim() == 2 and _holds_ids(tensor)]
        return int(batches.pop()) if len(batches) == 1 else None, int(lengths[0]) if lengths else None

    @property
    def batch(self) -> int | None:
        return self.sizes[0]

    @property
    def samples(self) -> int:
        """Of a step; 1 where the inputs have no common batch."""
        return (self.batch or 1) * self.setting.accumulate

    def with_batch(self, batch: int) -> Run:
        return replace(self, _traces={}, resized=(batch, self.resized[1]))

    def with_seq(self, seq: int) -> Run:
        return replace(self, _traces={}, resized=(self.resized[0], seq))

    def with_setting(self, **changes: Any) -> Run:
        return replace(self, setting=replace(self.setting, **changes), _traces={})


def _holds_ids(tensor: torch.Tensor) -> bool:
    return not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)


def resized(candidate: Candidate, batch: int | None, seq: int | None) -> Candidate:
    """The same inputs with another batch or length; integers keep values that the model may look at."""
    import torch

    from torchgauge.capture.structure import map_tensors, tensors_within

    if batch is None and seq is None:
        return candidate
    tensors = tensors_within((candidate.args, candidate.kwargs))
    length = next((tensor.shape[1] for tensor in tensors if tensor.dim() == 2 and _holds_ids(tensor)), None)

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == 0:
            return tensor
        shape = [batch or tensor.shape[0], *tensor.shape[1:]]
        if seq is not None and tensor.dim() > 1 and tensor.shape[1] == length:
            shape[1] = seq
        if tensor.is_meta or not _holds_ids(tensor):
            return torch.empty(shape, dtype=tensor.dtype, device="meta")
        kept = tensor[:1] if shape[1:] == list(tensor.shape[1:]) else tensor[:1, :1]
        return kept.expand(shape).contiguous()

    args, kwargs = map_tensors((candidate.args, candidate.kwargs), change)
    return replace(candidate, args=args, kwargs=kwargs)


class Remedy(TypedDict):
    """A change and its prediction; `effect` is what it changes besides memory, `extra_flops` a share of the FLOPs of a
    sample."""

    name: str
    code: str
    effect: str | None
    extra_flops: float
    used_bytes: int
    saved_bytes: int
    verdict: str


class Suggestions(TypedDict):
    max_batch: int | None
    max_seq: int | None
    remedies: list[Remedy]


@dataclass(frozen=True)
class Bounds:
    low: int
    high: int


@dataclass(frozen=True)
class Fit:
    """The memory of a run on a device, predicted; in bytes.

    `allocated_bytes` and `reserved_bytes` are the peaks of a steady step, as `torch.cuda.max_memory_allocated()` and
    `max_memory_reserved()` would report them after `empty_cache()`; `used_bytes` is what the process adds on the
    device, its context included; `required_bytes` the smallest limit on reserved memory under which the run succeeds;
    `before_bytes` what is allocated when the step begins. `by_class` is taken when the most is allocated and sums to
    `reserved_bytes`; slack is what is reserved and not in use; `course` has them over the step, sampled. A CUDA graph
    is replayed: its tensors are reserved, and of them only what stays counts as allocated.
    """

    device: str
    title: str
    target: str
    mode: str
    execution: str
    batch: int | None
    seq: int | None
    verdict: str
    capacity_bytes: int
    capacity_source: str
    free_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    used_bytes: int
    required_bytes: int
    context_bytes: int
    before_bytes: int
    bounds: dict[str, Bounds]
    by_class: dict[str, int]
    peak: dict[str, Any]
    holders: list[dict[str, Any]]
    loss: str | None
    timeline: list[dict[str, Any]]
    course: dict[str, list[int]]
    warnings: list[str]
    _suggest: Callable[[], Suggestions] = field(repr=False, compare=False)

    @classmethod
    def of(cls, facts: FitRow, suggest: Callable[[], Suggestions]) -> Fit:
        known: dict[str, Any] = {item.name: facts.get(item.name) for item in fields(cls) if item.name != "_suggest"}
        bounds = {name: Bounds(span["low"], span["high"]) for name, span in facts["bounds"].items()}
        return cls(**(known | {"bounds": bounds}), _suggest=suggest)

    @cached_property
    def _suggested(self) -> Suggestions:
        return self._suggest()

    @property
    def max_batch(self) -> int | None:
        """The largest batch that fits, found by trying; 0 where 1 does not, None where inputs have no common batch."""
        return self._suggested["max_batch"]

    @property
    def max_seq(self) -> int | None:
        """The longest sequence that fits, up to the model's own limit; None where the inputs hold no token ids."""
        return self._suggested["max_seq"]

    @property
    def remedies(self) -> list[Remedy]:
        """Changes, each predicted anew: those that fit first, the cheapest of them first. Where no single one is
        enough, the cheapest combination that was found to fit comes before them."""
        return self._suggested["remedies"]

    def to_dict(self, *, remedies: bool = True) -> dict[str, Any]:
        facts = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "_suggest"}
        facts["bounds"] = {name: {"low": span.low, "high": span.high} for name, span in self.bounds.items()}
        return facts | (dict(self._suggested) if remedies else {})

    def to_dataframe(self) -> pandas.DataFrame:
        """The ops of a step with the memory at each, as in `timeline`."""
        return frame(self.timeline)

    def __str__(self) -> str:
        return str(Fits([self]))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a report; the suffix says which: .html, .json, .svg, .md, .tex, .txt."""
        Fits([self]).save(path)


class Fits(list[Fit]):
    """Of several devices, batches or lengths."""

    def to_dataframe(self) -> pandas.DataFrame:
        """A row for each: the figures, their bounds and the classes."""
        rows = []
        for one in self:
            facts = one.to_dict(remedies=False)
            row = {key: value for key, value in facts.items() if not isinstance(value, dict | list)}
            row |= {f"{key}_{end}": span[end] for key, span in facts["bounds"].items() for end in ("low", "high")}
            rows.append(row | {f"{name}_bytes": nbytes for name, nbytes in one.by_class.items()})
        return frame(rows)

    def __str__(self) -> str:
        from torchgauge.report.documents import document_text

        return document_text(fits_document(self, remedies=False))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a report; the suffix says which: .html, .json, .svg, .md, .tex, .txt."""
        from torchgauge.report.documents import save_document

        save_document(fits_document(self, remedies=True), os.fspath(path))


@dataclass(frozen=True)
class Change:
    """What to write, and what it makes of a run and of the allocator's settings. Of two changes of one `kind` only one
    can be made; `effect` is what it changes besides memory and time."""

    name: str
    code: str
    apply: Callable[[Run, Any], tuple[Run, Any]]
    kind: str = ""
    effect: str = ""

    @property
    def is_last_resort(self) -> bool:
        return self.kind == "trained"


@dataclass
class Case:
    """A run on a device, and the search for runs that fit there."""

    run: Run
    device: Device
    allocator: Any
    prediction: Prediction

    def facts(self) -> FitRow:
        found, replay = self.prediction, self.prediction.replay
        return {
            "device": self.device.name,
            "title": self.device.title,
            "target": self.run.name,
            "mode": "train" if self.run.setting.train else "inference",
            "execution": "graph" if self.run.is_graph else "eager",
            "batch": self.run.batch,
            "seq": self.run.sizes[1],
            "verdict": found.verdict,
            "capacity_bytes": self.device.capacity_bytes,
            "capacity_source": self.device.capacity_source,
            "free_bytes": found.free_bytes,
            "allocated_bytes": found.allocated_bytes,
            "reserved_bytes": found.reserved_bytes,
            "used_bytes": found.used_bytes,
            "required_bytes": found.required_bytes,
            "context_bytes": found.context_bytes,
            "before_bytes": replay.before_bytes,
            "bounds": {name: {"low": span.low, "high": span.high} for name, span in found.bounds.items()},
            "by_class": dict(replay.by_class),
            "peak": dict(replay.peak),
            "holders": [{"module": module, "bytes": nbytes} for module, nbytes in replay.holders],
            "loss": found.trace.loss or None,
            "timeline": list(replay.timeline),
            "course": dict(replay.course),
            "warnings": list(found.trace.warnings),
        }

    def suggestions(self) -> Suggestions:
        batch, seq = self.run.sizes
        replay = self.prediction.replay
        # As if everything that is not there before the step went with the size.
        room = self.device.capacity_bytes - self.prediction.context_bytes - replay.before_bytes
        times = max(room / max(replay.reserved_bytes - replay.before_bytes, 1), 0)
        most, longest = None, None
        if batch is not None:
            most = largest(lambda size: self.fits(self.run.with_batch(size)), int(batch * times))
        if seq is not None:
            limit = position_limit(self.run.model)
            longest = largest(lambda size: self.fits(self.run.with_seq(size)), int(seq * times), limit)
        return {"max_batch": most, "max_seq": longest, "remedies": self._remedies()}

    def fits(self, run: Run) -> bool:
        try:
            return run.predict(self.device, self.allocator, detail=False).verdict == "fits"
        except ForwardError:  # longer than the model can take
            return False

    def _remedies(self) -> list[Remedy]:
        """Each change alone; where none is enough, together: those without extra work first, then those that save the
        most, until the run fits, less those that turn out not to be needed."""
        tried = [(change, self._remedy([change])) for change in self._changes()]
        found = [(change, one) for change, one in tried if one is not None and one["saved_bytes"] > 0]
        found.sort(
            key=lambda pair: (
                pair[1]["verdict"] != "fits",
                pair[0].is_last_resort,
                round(pair[1]["extra_flops"], 2),
                pair[1]["used_bytes"],
            )
        )
        alone = [one for _, one in found]
        if self.prediction.verdict == "fits" or any(one["verdict"] == "fits" for one in alone):
            return alone
        order = sorted(
            found,
            key=lambda pair: (pair[0].is_last_resort, pair[1]["extra_flops"] > 0.01, -pair[1]["saved_bytes"]),
        )
        taken: list[Change] = []
        for change, _ in order:
            if change.kind and any(other.kind == change.kind for other in taken):
                continue
            taken.append(change)
            together = self._remedy(taken)
            if together is not None and together["verdict"] == "fits":
                for spare in taken[-2::-1]:
                    fewer = self._remedy([other for other in taken if other is not spare])
                    if fewer is not None and fewer["verdict"] == "fits":
                        taken, together = [other for other in taken if other is not spare], fewer
                return [together, *alone]
        return alone

    def _remedy(self, changes: Sequence[Change]) -> Remedy | None:
        """The run with these changes; None where the model does not run so."""
        run, allocator = self.run, self.allocator
        try:
            for change in changes:
                run, allocator = change.apply(run, allocator)
            found = run.predict(self.device, allocator, detail=False)
        except (ForwardError, InputError):
            return None
        flops = found.trace.step_flops / run.samples
        before = self.prediction.trace.step_flops / self.run.samples
        return {
            "name": " + ".join(change.name for change in changes),
            "code": "; ".join(change.code for change in changes),
            "effect": "; ".join(change.effect for change in changes if change.effect) or None,
            "extra_flops": max(flops / before - 1, 0.0) if before else 0.0,
            "used_bytes": found.used_bytes,
            "saved_bytes": self.prediction.used_bytes - found.used_bytes,
            "verdict": found.verdict,
        }

    def _changes(self) -> Iterator[Change]:
        import torch

        from torchgauge.predict.optimizers import make_optimizer

        run, setting, batch = self.run, self.run.setting, self.run.batch or 1
        half, twice = batch // 2, 2 * setting.accumulate

        def changed(**changes: Any) -> Callable[[Run, Any], tuple[Run, Any]]:
            return lambda run, allocator: (run.with_setting(**changes), allocator)

        if not self.allocator.expandable_segments:
            yield Change(
                "expandable segments",
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
                lambda run, allocator: (run, replace(allocator, expandable_segments=True)),
            )
        if getattr(getattr(run.model, "config", None), "_attn_implementation", None) == "eager":
            code = 'model.set_attn_implementation("sdpa")'
            apply = partial(_with_attention, "sdpa")
            yield Change("fused attention", code, apply)
        if setting.amp is None and setting.dtype in (None, torch.float32):
            if setting.train:
                code, effect = 'with torch.autocast("cuda", torch.bfloat16): …', "matmuls in bfloat16"
                yield Change("autocast to bfloat16", code, changed(amp=torch.bfloat16), "type", effect)
            effect = "everything in bfloat16"
            yield Change(
                "bfloat16 parameters", "model.to(torch.bfloat16)", changed(dtype=torch.bfloat16), "type", effect
            )
        if not setting.train:
            if batch > 1:
                yield Change(
                    "half the batch", f"batch {half}", lambda run, allocator: (run.with_batch(half), allocator)
                )
            return
        tune = "another optimizer: tune its learning rate"
        for name, code, optimizer, effect in (
            ("fused AdamW", "torch.optim.AdamW(…, fused=True)", make_optimizer("adamw", fused=True), ""),
            ("Adafactor", "torch.optim.Adafactor(…)", make_optimizer("adafactor"), tune),
            ("SGD without momentum", "torch.optim.SGD(…)", make_optimizer(torch.optim.SGD), tune),
        ):
            yield Change(name, code, changed(optimizer=optimizer), "optimizer", effect)
        if setting.checkpoint is None:
            code = "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)"
            yield Change("checkpointing by block", code, changed(checkpoint="blocks"))
        if batch > 1:
            yield Change(
                "half the batch, accumulated twice",
                f"batch {half}, accumulate {twice}",
                lambda run, allocator: (run.with_setting(accumulate=twice).with_batch(half), allocator),
            )
        if setting.lora is None and not setting.frozen:
            code = 'peft.LoraConfig(r=8, target_modules="all-linear")'
            effect = "trains adapters only"
            yield Change("LoRA of rank 8", code, changed(lora=(8, "*")), "trained", effect)
            *others, last = [name for name, _ in run.model.named_parameters()] or [""]
            head = last.rpartition(".")[0]
            frozen = tuple(name for name in others if name.rpartition(".")[0] != head)
            if head and frozen:
                code = f"model.requires_grad_(False); model.{head}.requires_grad_(True)"
                yield Change(f"train {head} alone", code, changed(frozen=frozen), "trained", f"trains {head} only")


def _with_attention(attention: str, run: Run, allocator: Any) -> tuple[Run, Any]:
    return replace(run, attention=attention, _traces={}), allocator


def position_limit(model: torch.nn.Module) -> int | None:
    """The longest sequence that the config of a transformers model allows."""
    config = getattr(model, "config", None)
    limits = (getattr(config, name, None) for name in ("max_position_embeddings", "n_positions"))
    return next((limit for limit in limits if isinstance(limit, int) and limit > 0), None)


def largest(fits: Callable[[int], bool], guess: int, limit: int | None = None) -> int:
    """The largest number that fits, up to `limit`, from a guess: in growing steps away from it, then between; 0 where 1
    does not."""
    low, high, step = 0, 0 if limit is None else limit + 1, 0.04
    size = max(guess, 1) if limit is None else min(max(guess, 1), limit)
    while size > low and not (high and size >= high):
        if fits(size):
            low, size = size, int(size * (1 + step)) + 1
            size = size if limit is None else min(size, limit)
        else:
            high, size = size, min(int(size * (1 - step)), size - 1)
        step = min(2 * step, 0.9)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def fits_document(found: Iterable[Fit], *, remedies: bool) -> dict[str, Any]:
    from torchgauge import __version__

    return {
        "schema_version": 1,
        "tool": {"name": "torchgauge", "version": __version__},
        "fit": [one.to_dict(remedies=remedies) for one in found],
    }
