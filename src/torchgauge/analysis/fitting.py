"""`fit`: whether a model runs on a device that one need not have, and what to change where it does not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torchgauge.analysis.placing import chosen_dtype, stored_path, unwrapped
from torchgauge.analysis.reading import needs_isolation
from torchgauge.errors import ForwardError, InputError, UsageError, errors_as_torchgauge
from torchgauge.progress import stage

if TYPE_CHECKING:
    import torch

    from torchgauge.predict.devices import Device
    from torchgauge.predict.fit import Prediction, Range
    from torchgauge.predict.steps import Setting, Trace
    from torchgauge.source import Candidate, InputSpec

MODES = ("inference", "train")
_AMP = {"bf16": "bfloat16", "bfloat16": "bfloat16", "fp16": "float16", "float16": "float16"}


def fit(
    target: str | os.PathLike[str] | torch.nn.Module,
    *,
    on: str | Sequence[str] = "h200",
    mode: str = "inference",
    inputs: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    input_size: Any = None,
    batch: int | None = None,
    seq: int | None = None,
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
) -> Fit | list[Fit]:
    """The memory that a model needs on a device, without the device; one result, or a list for several devices.

    `on` names devices (`h200`, `rtx4090`, `24GiB`, `this`), several with commas or as a list. `mode` is "inference" or
    "train": forward, backward, a step of `optimizer` (a name, a class or an instance; gradients are set to None after
    it). `loss` is a function of the output; without it the output's own `loss`, else the mean of the squares of the
    first floating output. `amp` is autocast ("bf16", "fp16"), `dtype` the type of parameters and inputs.

    `checkpoint` runs blocks again in the backward pass ("blocks", or a path pattern or class). `frozen` are patterns of
    parameter names, `lora` is "RANK:PATTERN". The model may be on the meta device, and torch may lack CUDA; it is left
    as it was.
    """
    from torchgauge.predict.allocator import AllocatorSettings
    from torchgauge.predict.devices import find_devices

    devices = find_devices(on)
    if mode not in MODES:
        raise UsageError(f"no mode '{mode}'; one of: {', '.join(MODES)}")
    if batch is not None and inputs is not None:
        raise UsageError("batch changes inferred inputs: where inputs are given, give them with that batch")
    if execution != "eager":
        raise UsageError(f"execution='{execution}' is not predicted yet; only 'eager' is")
    if accumulate < 1:
        raise UsageError("accumulate is at least 1")
    from torchgauge.predict.optimizers import make_optimizer
    from torchgauge.predict.steps import Setting
    from torchgauge.source import resolve

    path = stored_path(target)
    if path is not None and needs_isolation(target, allow_pickle) and not _is_data(path):
        raise InputError(
            f"'{path}' holds code: use the command line (torchgauge fit), which reads it in a process without rights, "
            "or allow_pickle=True"
        )
    chosen = chosen_dtype(dtype)
    setting = Setting(
        library_of(devices[0], torch_version),
        train=mode == "train",
        dtype=chosen,
        amp=_amp(amp),
        optimizer=make_optimizer(optimizer, fused=fused, foreach=foreach) if mode == "train" else None,
        accumulate=accumulate,
        checkpoint=None if checkpoint in (None, "none") else checkpoint,
        frozen=(frozen,) if isinstance(frozen, str) else tuple(frozen),
        lora=_lora(lora),
        channels_last=channels_last,
        loss=loss,
    )
    given = {"inputs": inputs, "kwargs": kwargs, "input_size": input_size, "batch": batch, "seq": seq, "specs": specs}
    with errors_as_torchgauge(stored_path(target)), stage("predicting memory", shown=progress) as tell:
        source = resolve(unwrapped(target), code=code, allow_pickle=allow_pickle, progress=tell)
        if source.model is None:
            raise InputError("weights alone do not say what memory a run takes: add the code (--as file.py:Net)")
        run = Run(source.model, given, setting, optimizer, torch_version, target_name(target, source))
        allocator = AllocatorSettings(expandable_segments=expandable_segments)
        found = [Fit(run, device, allocator, run.predict(device, allocator)) for device in devices]
    return found[0] if len(found) == 1 else found


def _is_data(path: str) -> bool:
    """A folder with a config, or tensors in a format that cannot execute anything."""
    return os.path.isdir(path) or path.endswith(".safetensors")


def target_name(target: Any, source: Any) -> str:
    return os.fspath(target) if isinstance(target, str | os.PathLike) else type(source.model).__name__


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


def _amp(asked: Any) -> Any:
    import torch

    if asked is None or isinstance(asked, torch.dtype):
        return asked
    if asked not in _AMP:
        raise UsageError(f"no autocast type '{asked}'; one of: bf16, fp16")
    return getattr(torch, _AMP[asked])


def _lora(asked: Any) -> tuple[int, str] | None:
    if asked is None:
        return None
    rank, pattern = (
        asked.split(":", 1)
        if isinstance(asked, str) and ":" in asked
        else asked
        if isinstance(asked, tuple)
        else (asked, "")
    )
    try:
        number = int(rank)
    except (TypeError, ValueError):
        number = 0
    if number < 1 or not pattern:
        raise UsageError(f"lora is RANK:PATTERN, such as 8:*q_proj.weight, not '{asked}'")
    return number, str(pattern)


@dataclass
class Run:
    """A model with its inputs and how it is run; traces are kept, since several devices share them."""

    model: torch.nn.Module
    given: dict[str, Any]
    setting: Setting
    optimizer: Any
    torch_version: str | None
    name: str
    _traces: dict[Any, Trace] = field(default_factory=dict)
    _batch: int | None = None

    def predict(self, device: Device, allocator: Any, *, detail: bool = True) -> Prediction:
        from torchgauge.predict.fit import Prediction

        return Prediction.of(self._trace(device), device, allocator, detail=detail)

    def _trace(self, device: Device) -> Trace:
        setting = replace(self.setting, library=library_of(device, self.torch_version))
        if setting.library not in self._traces:
            self._traces[setting.library] = self._first_that_runs(setting)
        return self._traces[setting.library]

    def _first_that_runs(self, setting: Setting) -> Trace:
        from torchgauge.predict.steps import trace

        first: ForwardError | None = None
        for candidate in self.candidates():
            try:
                return trace(self.model, candidate, setting)
            except ForwardError as error:
                first = first or error
        raise first or InputError(
            "no inputs were given and none could be inferred; pass inputs=, input_size= or --input"
        )

    def candidates(self) -> Iterator[Candidate]:
        from torchgauge.capture import undisturbed
        from torchgauge.source import candidate_inputs

        with undisturbed(self.model):
            found = candidate_inputs(self.model, **self.given, dtype=self.setting.dtype)
            yield from (found if self._batch is None else (resized(one, self._batch) for one in found))

    @cached_property
    def batch(self) -> int | None:
        """The common first dimension of the inputs."""
        from torchgauge.capture.structure import tensors_within

        candidate = next(iter(self.candidates()), None)
        sizes = (
            {tensor.shape[0] for tensor in tensors_within((candidate.args, candidate.kwargs)) if tensor.dim()}
            if candidate
            else set()
        )
        return int(sizes.pop()) if len(sizes) == 1 else None

    def with_batch(self, batch: int) -> Run:
        return replace(self, _traces={}, _batch=batch)

    def with_setting(self, **changes: Any) -> Run:
        return replace(self, setting=replace(self.setting, **changes), _traces={})


def resized(candidate: Candidate, batch: int) -> Candidate:
    """The same inputs with another batch; integers keep values that the model may look at."""
    import torch

    from torchgauge.capture.structure import map_tensors

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == 0:
            return tensor
        shape = (batch, *tensor.shape[1:])
        if tensor.dtype.is_floating_point or tensor.is_meta:
            return torch.empty(shape, dtype=tensor.dtype, device="meta")
        return tensor[:1].expand(shape).contiguous()

    args, kwargs = map_tensors((candidate.args, candidate.kwargs), change)
    return replace(candidate, args=args, kwargs=kwargs)


@dataclass
class Fit:
    """The memory of a run on a device. All figures are predictions; bytes."""

    run: Run
    device: Device
    allocator: Any
    prediction: Prediction

    @property
    def verdict(self) -> str:
        """ "fits", "does not fit" or "too close"."""
        return self.prediction.verdict

    @property
    def allocated_bytes(self) -> int:
        """Peak of a steady step, as `torch.cuda.max_memory_allocated()` would report it."""
        return self.prediction.allocated_bytes

    @property
    def reserved_bytes(self) -> int:
        """The same of `torch.cuda.max_memory_reserved()`, after `empty_cache()` before the step."""
        return self.prediction.reserved_bytes

    @property
    def used_bytes(self) -> int:
        """What the process adds on the device, its context included."""
        return self.prediction.used_bytes

    @property
    def required_bytes(self) -> int:
        """The smallest limit on reserved memory under which the run succeeds."""
        return self.prediction.required_bytes

    @property
    def capacity_bytes(self) -> int:
        return self.device.capacity_bytes

    @property
    def free_bytes(self) -> int:
        return self.prediction.free_bytes

    @property
    def bounds(self) -> dict[str, Range]:
        return self.prediction.bounds

    @property
    def by_class(self) -> dict[str, int]:
        """Bytes when the most is allocated; sums to `reserved_bytes`, slack being what is reserved and not in use."""
        return dict(self.prediction.replay.by_class)

    @property
    def timeline(self) -> list[dict[str, Any]]:
        """The ops of a steady step with the memory in use at the most while each ran."""
        return list(self.prediction.replay.timeline)

    @property
    def peak(self) -> dict[str, Any]:
        """The op at which the most is allocated."""
        return dict(self.prediction.replay.peak)

    @property
    def holders(self) -> list[tuple[str, int]]:
        """The modules that hold the most at that moment."""
        return list(self.prediction.replay.holders)

    @property
    def loss(self) -> str:
        return self.prediction.trace.loss

    @property
    def warnings(self) -> list[str]:
        return list(self.prediction.trace.warnings)

    @cached_property
    def max_batch(self) -> int | None:
        """The largest batch that fits, found by trying; 0 where 1 does not, None where there is no common batch."""
        if self.run.batch is None:
            return None
        return largest(lambda size: self._fits(self.run.with_batch(size)), self._guess())

    def _guess(self) -> int:
        """From what is taken per sample, where everything that is not there before the step goes with the batch."""
        replay = self.prediction.replay
        each = max((replay.reserved_bytes - replay.before_bytes) / (self.run.batch or 1), 1)
        room = self.capacity_bytes - self.prediction.context_bytes - replay.before_bytes
        return max(int(room / each), 1)

    def _fits(self, run: Run) -> bool:
        return run.predict(self.device, self.allocator, detail=False).verdict == "fits"

    @cached_property
    def remedies(self) -> list[dict[str, Any]]:
        """Changes, each predicted anew: those that fit first, the cheapest of them first; before them the cheapest
        combination that fits, where no single one does."""
        tried = [self._remedy(change) for change in self._changes()]
        found = [one for one in tried if one is not None and one["used_bytes"] < self.used_bytes]
        found.sort(key=lambda one: (one["verdict"] != "fits", one["extra_flops"], one["used_bytes"]))
        if found and self.verdict != "fits" and all(one["verdict"] != "fits" for one in found):
            combined = self._combination(found)
            found = [combined, *found] if combined is not None else found
        return found

    def _changes(self) -> Iterator[tuple[str, str, float, Callable[[Run], tuple[Run, Any]]]]:
        """Name, what to write, extra FLOPs as a part of a step's, and what it does to a run."""
        import torch

        from torchgauge.predict.optimizers import make_optimizer

        setting, same, batch = self.run.setting, self.allocator, self.run.batch or 1
        half, twice = batch // 2, 2 * self.run.setting.accumulate
        if not same.expandable_segments:
            yield (
                "expandable segments", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", 0.0,
                lambda run: (run, replace(same, expandable_segments=True)),
            )  # fmt: skip
        if setting.amp is None and setting.dtype in (None, torch.float32):
            if setting.train:
                yield (
                    "autocast to bfloat16", 'with torch.autocast("cuda", torch.bfloat16): …', 0.0,
                    lambda run: (run.with_setting(amp=torch.bfloat16), same),
                )  # fmt: skip
            yield (
                "bfloat16 parameters", "model.to(torch.bfloat16)", 0.0,
                lambda run: (run.with_setting(dtype=torch.bfloat16), same),
            )  # fmt: skip
        if setting.train:
            yield (
                "fused AdamW", "torch.optim.AdamW(…, fused=True)", 0.0,
                lambda run: (run.with_setting(optimizer=make_optimizer("adamw", fused=True)), same),
            )  # fmt: skip
            yield (
                "Adafactor", "torch.optim.Adafactor(…)", 0.0,
                lambda run: (run.with_setting(optimizer=make_optimizer("adafactor")), same),
            )  # fmt: skip
            if setting.checkpoint is None:
                # Every block's forward once more, beside a forward and a backward pass of twice its work.
                yield (
                    "checkpointing by block", "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)", 1 / 3,
                    lambda run: (run.with_setting(checkpoint="blocks"), same),
                )  # fmt: skip
            if batch > 1:
                yield (
                    "half the batch, accumulated twice", f"batch {half}, accumulate {twice}", 0.0,
                    lambda run: (run.with_setting(accumulate=twice).with_batch(half), same),
                )  # fmt: skip
        elif batch > 1:
            yield "half the batch", f"batch {half}", 0.0, lambda run: (run.with_batch(half), same)

    def _remedy(self, change: tuple[str, str, float, Any]) -> dict[str, Any] | None:
        name, code, extra, apply = change
        try:
            run, allocator = apply(self.run)
            predicted = run.predict(self.device, allocator, detail=False)
        except (ForwardError, InputError):
            return None  # not possible with this model
        return {
            "name": name,
            "code": code,
            "extra_flops": extra,
            "used_bytes": predicted.used_bytes,
            "saved_bytes": self.used_bytes - predicted.used_bytes,
            "verdict": predicted.verdict,
            "changes": [apply],
        }

    def _combination(self, found: list[dict[str, Any]]) -> dict[str, Any] | None:
        """One after the other, those that save the most per cost first, until the run fits."""
        order = sorted(found, key=lambda one: (one["extra_flops"] > 0, -one["saved_bytes"]))
        run, allocator = self.run, self.allocator
        taken: list[dict[str, Any]] = []
        for one in order:
            if any(_same_kind(one["name"], other["name"]) for other in taken):
                continue
            run, chosen = one["changes"][0](run)
            allocator = chosen if one["name"] == "expandable segments" else allocator
            taken.append(one)
            try:
                predicted = run.predict(self.device, allocator, detail=False)
            except (ForwardError, InputError):
                return None
            if predicted.verdict == "fits":
                return {
                    "name": " + ".join(item["name"] for item in taken),
                    "code": "; ".join(item["code"] for item in taken),
                    "extra_flops": sum(item["extra_flops"] for item in taken),
                    "used_bytes": predicted.used_bytes,
                    "saved_bytes": self.used_bytes - predicted.used_bytes,
                    "verdict": predicted.verdict,
                    "changes": [],
                }
        return None

    def to_dict(self, *, remedies: bool = True) -> dict[str, Any]:
        bounds = self.bounds
        document = {
            "device": self.device.name,
            "title": self.device.title,
            "target": self.run.name,
            "mode": "train" if self.run.setting.train else "inference",
            "batch": self.run.batch,
            "verdict": self.verdict,
            "capacity_bytes": self.capacity_bytes,
            "capacity_source": self.device.capacity_source,
            "free_bytes": self.free_bytes,
            "allocated_bytes": self.allocated_bytes,
            "reserved_bytes": self.reserved_bytes,
            "used_bytes": self.used_bytes,
            "required_bytes": self.required_bytes,
            "context_bytes": self.prediction.context_bytes,
            "bounds": {name: {"low": span.low, "high": span.high} for name, span in bounds.items()},
            "by_class": self.by_class,
            "peak": self.peak,
            "holders": [{"module": module, "bytes": nbytes} for module, nbytes in self.holders],
            "loss": self.loss or None,
            "timeline": self.timeline,
            "warnings": self.warnings,
        }
        if remedies:
            document["max_batch"] = self.max_batch
            document["remedies"] = [{k: v for k, v in one.items() if k != "changes"} for one in self.remedies]
        return document

    def __str__(self) -> str:
        from torchgauge.report.fit import fit_lines

        return "\n".join(fit_lines(self.to_dict(remedies=False)))


_KINDS = ({"autocast to bfloat16", "bfloat16 parameters"}, {"fused AdamW", "Adafactor"})


def _same_kind(one: str, other: str) -> bool:
    return any(one in kind and other in kind for kind in _KINDS)


def largest(fits: Callable[[int], bool], guess: int) -> int:
    """The largest number that fits, from a guess: in growing steps away from it, then between; 0 where 1 does not."""
    low, high, step = 0, 0, 0.04
    size = max(guess, 1)
    while not (low and high) and size:
        if fits(size):
            low, size = size, int(size * (1 + step)) + 1
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
