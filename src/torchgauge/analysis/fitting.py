"""`fit`: whether a model runs on a device that one need not have, and what to change where it does not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any

from torchgauge.analysis.isolated import isolation_remarks, require_isolated
from torchgauge.analysis.runs import Run, RunOptions
from torchgauge.errors import ForwardError, InputError, UsageError
from torchgauge.facts import FitFacts, Remedy, Suggestions, fit_row
from torchgauge.facts.schema import Rule, conform, read_records
from torchgauge.report.fit import FitReport
from torchgauge.report.predictions import render_fragment
from torchgauge.report.table_rows import frame
from torchgauge.source import attribute_of
from torchgauge.units import parse_sizes

if TYPE_CHECKING:
    import pandas
    import torch

    from torchgauge.predict.allocator import AllocatorSettings
    from torchgauge.predict.devices import Device
    from torchgauge.predict.fit import Prediction
    from torchgauge.source import InputSpec

    Apply = Callable[[Run, AllocatorSettings], tuple[Run, AllocatorSettings]]

EXECUTIONS = ("eager", "graph")
OTHER_KERNELS = "this device runs other kernels: their memory is assumed to be that of an A100's, with wide bounds"


def fit(
    target: str | os.PathLike[str] | torch.nn.Module,
    input_size: Any = None,
    *,
    on: str | Sequence[str] = "h200",
    mode: str = "inference",
    inputs: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    batch: int | str | Sequence[int] | None = None,
    seq: int | str | Sequence[int] | None = None,
    specs: Sequence[InputSpec] = (),
    dtype: torch.dtype | str | None = None,
    optimizer: Any = "adamw",
    loss: Callable[[Any], Any] | None = None,
    amp: str | torch.dtype | None = None,
    checkpoint: str | None = None,
    accumulate: int = 1,
    frozen: str | Sequence[str] = (),
    lora: str | tuple[int, str] | None = None,
    weights_dtype: str | None = None,
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
    require_isolation: bool = False,
) -> Fit | Fits:
    """Predict the memory of a run on a device that need not exist here: one `Fit`, or a list for several devices,
    batches or lengths. The model may be on the meta device and is not changed; torch may be a CPU build.

    - `on`: devices (`h200`, `rtx4090`, `24GiB`, `this`), several with commas or as a list.
    - `mode`: "inference", or "train" for forward, backward and a step of `optimizer` (a name, a class or an
      instance), with gradients set to None after it. `accumulate`: backward passes per step.
    - `loss`: a function of the output. The default is the output's `loss`, else the mean of the squares of the
      first floating-point output.
    - `amp`: autocast, "bf16" or "fp16". `dtype`: the type of parameters and inputs.
    - `checkpoint`: recompute these in the backward pass: "blocks", a path pattern or a class.
    - `frozen`: patterns of parameter names that are not trained. `lora`: "RANK:PATTERN".
    - `weights_dtype`: store the matrices of layers in blocks as "nf4", "int8", "fp8", …, and restore each for its
      product. They are not trained: with `lora` this is QLoRA.
    - `execution`: "eager", or "graph" for a CUDA graph.

    A file is read in a process without rights, limited by `memory_limit` and `time_limit`. `require_isolation`:
    refuse it where a part of the isolation is missing.
    """
    if require_isolation:
        require_isolated(target, allow_pickle=allow_pickle)
    options = RunOptions(
        target=target, mode=mode, inputs=inputs, kwargs=kwargs, input_size=input_size, specs=specs, dtype=dtype,
        optimizer=optimizer, fused=fused, foreach=foreach, loss=loss, amp=amp, checkpoint=checkpoint,
        accumulate=accumulate, frozen=frozen, lora=lora, weights_dtype=weights_dtype, channels_last=channels_last,
        torch_version=torch_version,
        code=code, allow_pickle=allow_pickle, progress=progress,
    )  # fmt: skip
    if batch is not None and inputs is not None:
        raise UsageError("batch only applies to inferred inputs: pass inputs of that batch size instead")
    if execution not in EXECUTIONS:
        raise UsageError(f"no execution '{execution}'; one of: {', '.join(EXECUTIONS)}")
    sizes = list(product(parse_sizes(batch, "batch"), parse_sizes(seq, "seq")))
    job = partial(_predict, options, on, sizes, expandable_segments, execution == "graph")
    if options.needs_isolation:
        read = partial(options.read, memory_limit=memory_limit, time_limit=time_limit)
        rows = read(partial(_facts, job), lambda found: read_records(found, FitFacts, "the prediction"))

        @cache  # the largest batch and the remedies take many predictions: made when asked for, for all devices
        def suggest() -> tuple[Suggestions, ...]:
            as_many = Annotated[
                list[Suggestions], Rule(lambda found: len(found) == len(rows), "as many as predictions")
            ]
            check = partial(conform, kind=as_many, what="the suggestions")
            return tuple(read(partial(_suggestions, job), check))

        def suggestions_of(place: int) -> Callable[[], Suggestions]:
            return lambda: suggest()[place]

        found = [Fit.of(row, suggestions_of(place)) for place, row in enumerate(rows)]
    else:
        found = [Fit.of(case.facts(), case.suggestions) for case in job()]
    return found[0] if len(found) == 1 else Fits(found)


def _predict(
    options: RunOptions,
    on: str | Sequence[str],
    sizes: list[tuple[int | None, int | None]],
    expandable_segments: bool,
    is_graph: bool,
) -> list[Case]:
    from torchgauge.predict.allocator import AllocatorSettings
    from torchgauge.predict.devices import find_devices

    devices = find_devices(on)
    with options.opened("memory") as model:
        allocator = AllocatorSettings(expandable_segments=expandable_segments)
        runs = [replace(options.run(model, batch, seq), is_graph=is_graph) for batch, seq in sizes]
        return [Case(run, device, allocator, run.predict(device, allocator)) for device in devices for run in runs]


def _facts(job: Callable[[], list[Case]]) -> list[dict[str, object]]:
    return [asdict(case.facts()) for case in job()]


def _suggestions(job: Callable[[], list[Case]]) -> list[Suggestions]:
    return [case.suggestions() for case in job()]


@dataclass(frozen=True)
class Fit(FitFacts):
    """The memory of a run on a device, predicted; in bytes.

    `allocated_bytes` and `reserved_bytes` are the peaks of a steady step, as `torch.cuda.max_memory_allocated()` and
    `max_memory_reserved()` would report them after `empty_cache()`; `used_bytes` is the memory of the process on the
    device, its context included; `required_bytes` the smallest limit on reserved memory under which the run succeeds;
    `before_bytes` the memory allocated when the step begins. `by_class` has the classes at the peak of allocation and
    sums to `reserved_bytes`; slack is reserved memory that is not in use; `course` has the classes over the step,
    sampled. The tensors of a CUDA graph stay reserved; only its results and gradients count as allocated.
    """

    _suggest: Callable[[], Suggestions] = field(
        default=lambda: Suggestions(max_batch=None, max_seq=None, remedies=[]), repr=False, compare=False
    )

    @classmethod
    def of(cls, facts: FitFacts, suggest: Callable[[], Suggestions]) -> Fit:
        return cls(**vars(facts), _suggest=suggest)

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
        """Changes, each predicted again: those that fit come first, the cheapest of them first. Where no single one is
        enough, combinations that were found to fit come before them: one that trains all parameters, else one for each
        way to train fewer."""
        return self._suggested["remedies"]

    def to_dict(self, *, remedies: bool = True) -> dict[str, Any]:
        return fit_row(self, self._suggested if remedies else None)

    def to_dataframe(self) -> pandas.DataFrame:
        """The ops of a step with the memory at each, as in `timeline`."""
        return frame(self.timeline)

    def __str__(self) -> str:
        return str(Fits([self]))

    def _repr_html_(self) -> str:
        return Fits([self])._repr_html_()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a report; the suffix names the format."""
        Fits([self]).save(path)


class Fits(list[Fit]):
    """Predictions for several devices, batches or lengths."""

    def to_dataframe(self) -> pandas.DataFrame:
        """A row for each: the figures, their bounds and the classes."""
        rows = []
        for one in self:
            row = {key: value for key, value in fit_row(one).items() if not isinstance(value, dict | list)}
            for key, span in one.bounds.items():
                row |= {f"{key}_low": span.low, f"{key}_high": span.high}
            rows.append(row | {f"{name}_bytes": nbytes for name, nbytes in one.by_class.items()})
        return frame(rows)

    def report(self, *, remedies: bool) -> FitReport:
        """`remedies` adds changes and the largest sizes that fit, which take many predictions."""
        return FitReport(self, [one._suggested for one in self] if remedies else ())

    def __str__(self) -> str:
        return str(self.report(remedies=False))

    def _repr_html_(self) -> str:
        return render_fragment(self.report(remedies=False))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a report; the suffix names the format."""
        self.report(remedies=True).save(os.fspath(path))


@dataclass(frozen=True)
class Change:
    """A change: the code to write, and its effect on a run and on the allocator. Of two changes of one `kind` only one
    can be made; `effect` is its effect on something other than memory and time."""

    name: str
    code: str
    apply: Apply
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
    allocator: AllocatorSettings
    prediction: Prediction

    def facts(self) -> FitFacts:
        found, replay = self.prediction, self.prediction.replay
        return FitFacts(
            device=self.device.name,
            title=self.device.title,
            target=self.run.name,
            mode="train" if self.run.setting.train else "inference",
            execution="graph" if self.run.is_graph else "eager",
            batch=self.run.batch,
            seq=self.run.sizes[1],
            verdict=found.verdict,
            capacity_bytes=self.device.capacity_bytes,
            capacity_source=self.device.capacity_source,
            free_bytes=found.free_bytes,
            allocated_bytes=found.allocated_bytes,
            reserved_bytes=found.reserved_bytes,
            used_bytes=found.used_bytes,
            required_bytes=found.required_bytes,
            context_bytes=found.context_bytes,
            before_bytes=replay.before_bytes,
            bounds=found.bounds,
            by_class=dict(replay.by_class),
            peak=replay.peak,
            holders=[{"module": module, "bytes": nbytes} for module, nbytes in replay.holders],
            loss=found.trace.loss or None,
            timeline=list(replay.timeline),
            course=dict(replay.course),
            warnings=[*isolation_remarks(), *found.trace.warnings, *([] if self.device.has_cuda else [OTHER_KERNELS])],
        )

    def suggestions(self) -> Suggestions:
        batch, seq = self.run.sizes
        replay = self.prediction.replay
        # Assumes that all memory except that present before the step scales with the size.
        room = self.device.capacity_bytes - self.prediction.context_bytes - replay.before_bytes
        times = max(room / max(replay.reserved_bytes - replay.before_bytes, 1), 0)
        most, longest = None, None
        if batch is not None:
            most = largest(lambda size: self.fits(self.run.with_batch(size)), int(batch * times))
        if seq is not None:
            # The longest sequence that the config of a transformers model allows.
            config = attribute_of(self.run.model, "config")
            limits = (getattr(config, name, None) for name in ("max_position_embeddings", "n_positions"))
            limit = next((limit for limit in limits if isinstance(limit, int) and limit > 0), None)
            longest = largest(lambda size: self.fits(self.run.with_seq(size)), int(seq * times), limit)
        return {"max_batch": most, "max_seq": longest, "remedies": self._remedies()}

    def fits(self, run: Run) -> bool:
        try:
            return run.predict(self.device, self.allocator, detail=False).verdict == "fits"
        except ForwardError:  # longer than the model can take
            return False

    def _remedies(self) -> list[Remedy]:
        """Try each change alone. If none is enough, combine them, those without extra work first, then those that save
        the most, until the run fits; then drop the ones that are not needed. Where that takes training fewer
        parameters, combine each way to do so."""
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
        # One that saves nothing alone may save with others: checkpointing, where the optimizer's step is the peak.
        order = sorted(
            ((change, one) for change, one in tried if one is not None),
            key=lambda pair: (pair[1]["extra_flops"] > 0.01, -pair[1]["saved_bytes"]),
        )
        plain = [change for change, _ in order if not change.is_last_resort]
        together = self._combined([], plain)
        if together is not None:
            return [together, *alone]
        starts = [[change] for change, one in tried if one is not None and change.is_last_resort]
        combined = (self._combined(start, plain) for start in starts)
        return [*(one for one in combined if one is not None), *alone]

    def _combined(self, first: list[Change], others: Sequence[Change]) -> Remedy | None:
        """`first` with as many of the others, in order, as it takes to fit, less those that turn out not to be needed;
        None if all together are not enough."""
        taken, least = list(first), self.prediction.used_bytes
        for change in others:
            if change.kind and any(other.kind == change.kind for other in taken):
                continue
            together = self._remedy([*taken, change])
            if together is None or together["used_bytes"] >= least:
                continue
            taken.append(change)
            least = together["used_bytes"]
            if together["verdict"] == "fits":
                for spare in taken[-2::-1]:
                    fewer = [other for other in taken if other is not spare]
                    without = self._remedy(fewer)
                    if without is not None and without["verdict"] == "fits":
                        taken, together = fewer, without
                return together
        return None

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

        def changed(**changes: Any) -> Apply:
            return lambda run, allocator: (run.with_setting(**changes), allocator)

        if not self.allocator.expandable_segments:
            yield Change(
                "expandable segments",
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
                lambda run, allocator: (run, replace(allocator, expandable_segments=True)),
            )
        if attribute_of(attribute_of(run.model, "config"), "_attn_implementation") == "eager":
            code = 'model.set_attn_implementation("sdpa")'
            yield Change(
                "fused attention", code, lambda run, allocator: (replace(run, attention="sdpa", _traces={}), allocator)
            )
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
