"""A model with its inputs, and how it is run on a device that one need not have: what `fit` and `forecast` share."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from torchgauge.analysis.isolated import needs_isolation, read_data
from torchgauge.analysis.options import chosen_dtype, stored_path, unwrapped
from torchgauge.errors import ForwardError, InputError, TorchgaugeError, UsageError, errors_as_torchgauge
from torchgauge.isolation import is_isolated
from torchgauge.predict.weight_types import check_weights_dtype, is_quantized
from torchgauge.progress import stage
from torchgauge.source import attribute_of

if TYPE_CHECKING:
    import torch

    from torchgauge.facts import Compiled, OpRecord
    from torchgauge.predict.allocator import AllocatorSettings
    from torchgauge.predict.devices import Device
    from torchgauge.predict.fit import Prediction
    from torchgauge.predict.kernels import Library
    from torchgauge.predict.steps import Setting, Trace
    from torchgauge.source import Candidate, GivenInputs, InputSpec

T = TypeVar("T")
MODES = ("inference", "train")
_AMP = {"bf16": "bfloat16", "bfloat16": "bfloat16", "fp16": "float16", "float16": "float16"}


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The model and how it is run, in the words of the callers of `fit` and `forecast`. It is sent to the process that
    reads a file."""

    target: Any
    mode: str = "inference"
    inputs: Any = None
    kwargs: Mapping[str, Any] | None = None
    input_size: Any = None
    specs: Sequence[InputSpec] = ()
    dtype: torch.dtype | str | None = None
    optimizer: Any = "adamw"
    fused: bool | None = None
    foreach: bool | None = None
    loss: Callable[[Any], Any] | None = None
    amp: str | torch.dtype | None = None
    checkpoint: str | None = None
    accumulate: int = 1
    frozen: str | Sequence[str] = ()
    lora: str | tuple[int, str] | None = None
    weights_dtype: str | None = None
    channels_last: bool = False
    torch_version: str | None = None
    code: Any = None
    allow_pickle: bool = False
    progress: bool | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise UsageError(f"no mode '{self.mode}'; one of: {', '.join(MODES)}")
        if self.accumulate < 1:
            raise UsageError("accumulate must be at least 1")
        self.setting()  # refused before the model is read
        if self.weights_dtype is not None:
            if not is_quantized(self.weights_dtype):
                raise UsageError(f"weights in {self.weights_dtype} are parameters of that type: give dtype instead")
            if self.mode == "train" and self.lora is None and not self.frozen:
                raise UsageError(f"weights in {self.weights_dtype} cannot be trained: train adapters, with lora")

    def setting(self) -> Setting:
        from torchgauge.predict.devices import find_device
        from torchgauge.predict.optimizers import make_optimizer
        from torchgauge.predict.steps import Setting

        is_training = self.mode == "train"
        if isinstance(self.optimizer, str):  # a wrong name is refused in inference too
            make_optimizer(self.optimizer)
        return Setting(
            library_of(find_device("h200"), self.torch_version),  # `Run` takes that of each device
            train=is_training,
            dtype=chosen_dtype(self.dtype),
            amp=as_amp(self.amp),
            optimizer=make_optimizer(self.optimizer, fused=self.fused, foreach=self.foreach) if is_training else None,
            accumulate=self.accumulate,
            checkpoint=None if self.checkpoint == "none" else self.checkpoint,
            frozen=(self.frozen,) if isinstance(self.frozen, str) else tuple(self.frozen),
            lora=as_lora(self.lora),
            weights_dtype=check_weights_dtype(self.weights_dtype),
            channels_last=self.channels_last,
            loss=self.loss,
        )

    def run(
        self, model: torch.nn.Module, batch: int | None = None, seq: int | None = None, captured: bool = False
    ) -> Run:
        from torchgauge.source import GivenInputs

        name = os.fspath(self.target) if isinstance(self.target, str | os.PathLike) else type(model).__name__
        setting = replace(self.setting(), captured=captured)
        given = GivenInputs(self.input_size, self.inputs, self.kwargs, setting.dtype, specs=self.specs)
        # Inputs that are given are resized to a batch; those that are inferred are made with it.
        if given.has_shapes:
            return Run(model, given, setting, self.torch_version, name, resized=(batch, seq))
        return Run(model, replace(given, batch=batch, seq=seq), setting, self.torch_version, name)

    @contextmanager
    def opened(self, what: str) -> Iterator[torch.nn.Module]:
        """The model of the target; `what` (memory, time) is predicted of it."""
        from torchgauge.source import resolve

        with (
            errors_as_torchgauge(stored_path(self.target)),
            stage(f"predicting {what}", shown=self.progress) as report_progress,
        ):
            source = resolve(
                unwrapped(self.target), code=self.code, allow_pickle=self.allow_pickle, progress=report_progress
            )
            if source.model is None:
                raise InputError(f"weights alone do not determine the {what} of a run: add the code (--as file.py:Net)")
            yield source.model

    @property
    def needs_isolation(self) -> bool:
        return needs_isolation(self.target, self.allow_pickle)

    def read(
        self,
        job: Callable[[], Any],
        check: Callable[[Any], T],
        memory_limit: int | str | None,
        time_limit: float | None,
    ) -> T:
        """Run `job()` in a process without rights and return its result: plain data, as `check` makes it from JSON."""
        if self.loss is not None:
            try:
                pickle.dumps(self.loss)
            except Exception as error:
                raise UsageError(
                    f"loss= cannot be sent to the process that reads the file ({error}): define it in a module"
                ) from error
        return read_data(
            job,
            [str(stored_path(self.target))],
            check,
            memory_limit=memory_limit,
            time_limit=time_limit,
            needs_torch=True,
            mode=self.mode,
        )


def library_of(device: Device, torch_version: str | None) -> Library:
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


def as_amp(asked: str | torch.dtype | None) -> torch.dtype | None:
    import torch

    if asked is None or isinstance(asked, torch.dtype):
        return asked
    if asked not in _AMP:
        raise UsageError(f"no autocast type '{asked}'; one of: bf16, fp16")
    amp: torch.dtype = getattr(torch, _AMP[asked])
    return amp


def as_lora(asked: str | tuple[int, str] | None) -> tuple[int, str] | None:
    if asked is None:
        return None
    try:
        rank, pattern = asked.split(":", 1) if isinstance(asked, str) else asked
        if int(rank) > 0 and pattern:
            return int(rank), str(pattern)
    except (TypeError, ValueError):
        pass
    raise UsageError(f"lora must be RANK:PATTERN, such as 8:*q_proj.weight, not '{asked}'")


@dataclass
class Run:
    """A model with its inputs and how it is run; traces are kept, since several devices share them."""

    model: torch.nn.Module
    given: GivenInputs
    setting: Setting
    torch_version: str | None
    name: str
    is_graph: bool = False
    attention: str | None = None  # of a transformers model, in place of its own choice
    resized: tuple[int | None, int | None] = (None, None)  # batch and length, where other inputs than the given
    kernels: Compiled | None = None  # where an analysis has compiled the model already
    _traces: dict[Library, Trace] = field(default_factory=dict)

    def predict(self, device: Device, allocator: AllocatorSettings, *, detail: bool = True) -> Prediction:
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

    @cached_property
    def compiled(self) -> tuple[Compiled | None, str]:
        """The kernels that Inductor fuses for this run, None where it cannot be asked, and which fusions those of a
        compiled forecast are therefore."""
        import torch

        from torchgauge.capture import Request
        from torchgauge.measure.compiled import compile_model

        if self.kernels is not None and self.kernels.kernels:
            return self.kernels, f"fusions are those of Inductor's {self.kernels.device.upper()} backend"
        setting, rule = self.setting, "fusions follow a rule of thumb (chains of pointwise ops)"
        plain = replace(setting, amp=None, accumulate=1, checkpoint=None, frozen=(), lora=None, channels_last=False)
        if setting != replace(plain, loss=None):
            return None, f"{rule}: Inductor's are known for runs without autocast, adapters and the like"
        if is_isolated():
            return None, f"{rule}: the process that reads files compiles nothing"
        request = Request(torch.device("cpu"), setting.dtype, setting.train)
        try:
            candidate = next(iter(self.candidates()))
            return compile_model(self.model, candidate, request), "fusions are those of Inductor's CPU backend"
        except (TorchgaugeError, StopIteration) as error:
            return None, f"{rule}: {error}"

    def processor_ops(self) -> tuple[Sequence[OpRecord], int]:
        """The ops of a run on this machine's processor, and how often modules are called."""
        import torch

        from torchgauge.capture import Request, trace

        request = Request(torch.device("cpu"), self.setting.dtype, self.setting.train)
        if self.setting.optimizer is not None:
            request = replace(request, optimizer=self.setting.optimizer)
        seen = trace(self.model, self.candidates(), request)
        return seen.ops, sum(module.calls for module in seen.modules)

    @contextmanager
    def _chosen_attention(self) -> Iterator[None]:
        config = attribute_of(self.model, "config")
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

        found = replace(self.given, dtype=self.setting.dtype).candidates(self.model)
        while True:
            # Not across the yield: a caller takes the first and leaves the generator suspended, so that its end would
            # undo, some time later, what was set when it began.
            with undisturbed(self.model):
                candidate = next(found, None)
            if candidate is None:
                return
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
        """Samples of a step; 1 if the inputs have no common batch."""
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
