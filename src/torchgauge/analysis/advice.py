"""Evidence for advice in addition to the capture: the model in memory, and times predicted for a named device or for
this machine. And its verification: advice applied to copies of the model and measured."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import PurePath
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from torchgauge.analysis.measurement import nothing_to_run
from torchgauge.cache import kernel_file
from torchgauge.errors import TorchgaugeError, UsageError
from torchgauge.facts import Capture, enclosing_paths
from torchgauge.progress import steps

if TYPE_CHECKING:
    from torch import nn

    from torchgauge.advise import Advice, Evidence
    from torchgauge.advise.masks import Triangle
    from torchgauge.advise.registry import Check
    from torchgauge.analysis.result import Analysis
    from torchgauge.capture import Request, Trace
    from torchgauge.facts import Capture, OpRecord
    from torchgauge.facts.document_types import Advice as AdviceRow
    from torchgauge.facts.document_types import ExpectedTime, Plan
    from torchgauge.facts.predictions import PredictedRow
    from torchgauge.measure.settings import Settings
    from torchgauge.predict.host import Host
    from torchgauge.predict.time import Profile
    from torchgauge.source import Source

# The host's costs of `predict.host` are fitted to whole models, where kinds of ops come together: they are right in
# sum. A change leaves out one kind, so kinds are weighed by single calls here. On an EPYC a pointwise op takes 1.4 µs,
# the call of a module 1.2, nn.Linear 8.9, nn.LayerNorm 8.3, nn.BatchNorm2d 13.6, and timm's batch norm with an
# activation inside 20.1 without it. On an H200's host, leaving out a pointwise op saved 8.5 to 9 µs, a batch norm 16,
# timm's 28.
_POINTWISE, _VIEW, _BATCH_NORM, _BATCH_NORM_ACT = 0.65, 0.5, 1.35, 2.1
_LAYERS = ("matmul", "convolution", "normalization", "recurrent")
# One fused attention, in parts of the sample's forward: about cuDNN's, which was fitted where no other cost hides it.
_ATTENTION = 0.01
_OF_ATTENTION = {
    f"aten::{name}" for name in ("mul", "clone", "bmm", "baddbmm", "add", "add_", "_softmax", "_safe_softmax")
}
# A tensor made of Python's numbers is copied from memory that is not pinned, and the host waits for it.
_FROM_PYTHON_S = 25e-6
# Whole models took 0.95, 0.95 and 0.76 of the packaged host's time on three machines with an H200.
_PACKAGED_HOST = 0.9
# A run's time beyond its ops: the call of the model, the start of the first kernel, and the wait for the last.
_RUN_S = 15e-6
# Larger masks are not looked at: a comparison reads them whole.
_MOST_MASK = 1 << 24
# Layers that make a list of them a mistake.
_LEAST_LAYERS = 2
# Bytes of the buffers that are compared with each other.
_LEAST_BUFFER, _LARGEST_BUFFER = 1 << 10, 1 << 28
# Code that puts a part of the model in training mode; `super().train(mode)` is how an override begins.
_TRAINS = re.compile(r"(?<!super\(\))\.train\((True|mode=True)?\)|\.training\s*=\s*True")


def _items(value: object) -> Iterable[object]:
    if type(value) is dict:
        return list(value.values())
    return value if isinstance(value, list | tuple) and type(value) in (list, tuple) else ()


class ModelInMemory:
    """`advise.LiveModel` of a module."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    @cached_property
    def _modules(self) -> Mapping[str, nn.Module]:
        return dict(self._model.named_modules())

    def _around(self, path: str) -> list[nn.Module | None]:
        """The model, the modules that a module is in, and the module; None where the model has none of the name."""
        return [self._modules.get(each) for each in enclosing_paths(path)]

    def triangle(self, name: str) -> Triangle | None:
        """Of a causal mask, the triangle of its elements that are not zero: true or 1 up to the diagonal, or beyond it
        -inf, or true or 1 for what is hidden."""
        import torch

        from torchgauge.advise.masks import HIDDEN, SEEN

        try:
            mask = self._model.get_buffer(name).detach()
        except (AttributeError, RuntimeError):  # a script answers no such question
            return None
        if mask.is_meta or mask.dim() < 2 or not 1 < mask.shape[-1] ** 2 == mask.numel() <= _MOST_MASK:
            return None
        given = mask.reshape(mask.shape[-2:]) != 0
        lower = torch.ones_like(given).tril()
        return SEEN if torch.equal(given, lower) else HIDDEN if torch.equal(given, ~lower) else None

    def has(self, path: str, attribute: str, *, is_set: bool = False) -> bool:
        """Whether the module or one that it is in has it; `is_set`: and it is true there."""
        found = [getattr(module, attribute) for module in self._around(path) if hasattr(module, attribute)]
        return any(found) if is_set else bool(found)

    def are_equal(self, pairs: Sequence[tuple[str, str]]) -> bool:
        """Whether the two parameters of every pair hold the same values, and not only zeros or ones, as layers start
        with."""
        import torch

        try:
            values = [(self._model.get_parameter(a), self._model.get_parameter(b)) for a, b in pairs]
        except (AttributeError, RuntimeError):
            return False
        if any(tensor.is_meta for pair in values for tensor in pair):
            return False
        varies = any(a.numel() > 1 and bool((a != a.flatten()[0]).any()) for a, _ in values)
        return varies and all(torch.equal(a, b) for a, b in values)

    def has_equal_rows(self, name: str) -> bool:
        """Whether a parameter or buffer holds the same values along its first dimension."""
        path, _, own = name.rpartition(".")
        try:
            owner = self._model.get_submodule(path)
        except (AttributeError, RuntimeError):  # a script answers no such question
            return False
        found = owner._parameters.get(own, owner._buffers.get(own))
        if found is None or found.is_meta or found.dim() < 2:
            return False
        return bool((found == found[:1]).all())

    def equal_buffers(self) -> dict[str, str]:
        """Buffers that hold the same values as an earlier one, such as masks and tables; not those that start out
        with one number everywhere, as the statistics of a norm."""
        import torch

        first: dict[tuple[object, ...], list[tuple[str, torch.Tensor]]] = {}
        found: dict[str, str] = {}
        storages = set[int]()
        for name, buffer in self._model.named_buffers():
            is_plain = type(buffer) is torch.Tensor and buffer.layout == torch.strided and not buffer.is_meta
            is_plain = is_plain and not buffer.is_quantized
            if not is_plain or not _LEAST_BUFFER <= buffer.nbytes <= _LARGEST_BUFFER:
                continue
            # A view of another buffer takes no memory.
            if buffer.untyped_storage().data_ptr() in storages or bool((buffer == buffer.flatten()[0]).all()):
                continue
            storages.add(buffer.untyped_storage().data_ptr())
            known = first.setdefault((buffer.shape, buffer.dtype, buffer.device), [])
            same = next((other for other, values in known if torch.equal(values, buffer)), None)
            if same is None:
                known.append((name, buffer))
            else:
                found[name] = same
        return found

    def unregistered_layers(self) -> dict[str, str]:
        """By attribute, the container of torch's that plain lists and dictionaries of trainable layers should be. One
        module alone is hidden on purpose, as a frozen teacher in a list; so are those that other code makes."""
        from torch import nn

        from torchgauge.analysis.methods import is_filled_from_outside

        known = {id(param) for param in self._model.parameters()}
        found: dict[str, str] = {}
        for path, module in self._modules.items():
            for name, value in vars(module).items():
                if name == "_modules" or type(value) not in (list, tuple, dict) or len(value) < _LEAST_LAYERS:
                    continue
                layers = list(value.values() if isinstance(value, dict) else value)
                if not all(isinstance(each, nn.Module) for each in layers):
                    continue
                params = [[param for param in each.parameters() if param.requires_grad] for each in layers]
                are_hidden = all(own and known.isdisjoint(map(id, own)) for own in params)
                # Evaluation mode does not reach them: who has set it has hidden them on purpose.
                are_hidden = are_hidden and any(each.training for each in layers)
                if are_hidden and not is_filled_from_outside(type(module), name):
                    kind = "ModuleDict" if isinstance(value, dict) else "ModuleList"
                    if isinstance(value, dict) and not all(isinstance(key, str) and "." not in key for key in value):
                        kind += ", whose keys are names without dots"
                    found[f"{path}.{name}" if path else name] = kind
        return found

    def is_bound(self, path: str) -> bool:
        """Whether a module has hooks, or a plain list or dictionary holds it too: forward may take it from there, and
        whoever replaces it by its name leaves both behind."""
        if (module := self._modules.get(path)) is None:
            return False
        hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        is_hooked = any(not str(getattr(hook, "__module__", "")).startswith("torch.") for hook in hooks)
        return is_hooked or id(module) in self._in_plain_containers

    @cached_property
    def _in_plain_containers(self) -> frozenset[int]:
        """Also in a list of pairs of modules."""
        own = [value for module in self._modules.values() for name, value in vars(module).items() if name != "_modules"]
        items = [each for value in own for each in _items(value)]
        return frozenset(id(each) for each in (*items, *(inner for item in items for inner in _items(item))))

    def is_scripted(self, path: str) -> bool:
        """Whether the module or one that it is in is a script, which torch.compile leaves alone."""
        import torch

        return any(isinstance(module, torch.jit.ScriptModule) for module in self._around(path))

    def is_torch_layer(self, path: str) -> bool:
        """Whether it is a linear layer or a convolution of torch's, or a kind of one; a script has only its name."""
        from torch import jit, nn
        from torch.nn.modules.conv import _ConvNd

        return isinstance(self._modules.get(path), nn.Linear | _ConvNd | jit.ScriptModule)

    def norm_features(self, path: str) -> int | None:
        """The channels that an instance norm was made for."""
        from torch.nn.modules.instancenorm import _InstanceNorm

        found = self._modules.get(path)
        return found.num_features if isinstance(found, _InstanceNorm) else None

    def norm_hook(self, path: str) -> tuple[str, str] | None:
        """torch's weight norm or spectral norm in its older form: others name their parameters in the same way."""
        from torch.nn.utils.spectral_norm import SpectralNorm
        from torch.nn.utils.weight_norm import WeightNorm

        try:
            hooks = self._model.get_submodule(path)._forward_pre_hooks.values()
        except (AttributeError, RuntimeError):  # a script module has no hooks of Python, and raises
            return None
        for hook in hooks:
            if isinstance(hook, WeightNorm):
                return "remove_weight_norm", hook.name
            if isinstance(hook, SpectralNorm):
                return "remove_spectral_norm", hook.name
        return None

    def source_text(self, file: str) -> str | None:
        """The text of a file of the model's code, by the name that ops give it."""
        from torchgauge.capture import source_text

        return source_text(file)

    def leads_to(self, wanted: str, file: str, names: Iterable[str]) -> bool:
        """Whether a function that a file of the model's code calls by one of these names calls what is wanted, itself
        or through other functions of the same package."""
        from torchgauge.capture import imported_module

        if (module := imported_module(file)) is None:
            return False
        package, seen = module.__name__.partition(".")[0], set[object]()
        functions = [vars(module).get(name) for name in names]
        while functions:
            function = functions.pop()
            with suppress(ValueError):  # wrapped in itself, as torchvision's _roi_align
                function = inspect.unwrap(function) if callable(function) else None
            if not isinstance(function, FunctionType) or function in seen:
                continue
            if wanted in function.__code__.co_names:
                return True
            seen.add(function)
            if function.__module__.partition(".")[0] == package:
                functions += [function.__globals__.get(name) for name in function.__code__.co_names]
        return False

    def made_at(self, name: str) -> str | None:
        """The line of `__init__` that assigns or registers it, as "file.py:LINE"; of what torch's modules make for
        themselves, the line that makes the module."""
        from torchgauge.capture import source_line

        path, _, own = name.rpartition(".")
        try:
            kind = type(self._model.get_submodule(path))
            if path and kind.__module__.startswith("torch."):
                return self.made_at(path)
            make = inspect.unwrap(kind.__init__)
            lines, first = inspect.getsourcelines(make)
            file = inspect.getsourcefile(make)
        except (AttributeError, RuntimeError, OSError, TypeError, ValueError):
            return None
        itself = re.escape(next(iter(inspect.signature(make).parameters), "self"))
        sets = re.compile(rf"\b{itself}\.{re.escape(own)}\b[^=]*=|register_\w+\(\s*['\"]{re.escape(own)}['\"]")
        at = next((number for number, line in enumerate(lines, first) if sets.search(line)), None)
        if at is None or file is None:
            return None
        # The author can change the line that makes a model of a package, not the lines of the package.
        is_packaged = "/" in (source_line(file, at) or "")
        return (self.made_at(path) if path and is_packaged else None) or f"{PurePath(file).name}:{at}"

    def is_read_otherwise(self, name: str) -> bool:
        """Whether a class around it reads a module or parameter in a method beside `forward`, or for other
        arguments."""
        from torchgauge.analysis.methods import is_read_otherwise

        return any(
            is_read_otherwise(type(module), name.removeprefix(f"{path}." if path else ""))
            for path in enclosing_paths(name.rpartition(".")[0])
            if (module := self._modules.get(path)) is not None
        )

    def is_written(self, name: str) -> bool:
        """Whether a class around a buffer writes to it in other methods than `__init__`."""
        from torchgauge.analysis.methods import is_written

        return any(
            is_written(type(module), name.removeprefix(f"{path}." if path else ""))
            for path in enclosing_paths(name.rpartition(".")[0])
            if (module := self._modules.get(path)) is not None
        )

    def is_read_after_call(self, name: str) -> bool:
        """Whether a class around it reads what a call leaves in an attribute."""
        from torchgauge.analysis.methods import is_read_after_call

        return any(
            is_read_after_call(type(module), name.removeprefix(f"{path}." if path else ""))
            for path in enclosing_paths(name.rpartition(".")[0])
            if (module := self._modules.get(path)) is not None
        )

    def is_dropout_that_stays_on(self, path: str) -> bool:
        """Whether it is of a class of dropout that overrides `train` or `eval` for itself."""
        from torch import nn
        from torch.nn.modules.dropout import _DropoutNd

        kind = type(self._modules.get(path))
        return issubclass(kind, _DropoutNd) and (kind.train, kind.eval) != (nn.Module.train, nn.Module.eval)

    def mode_set_at(self, path: str) -> str | None:
        """The line that keeps a module in training mode after `model.eval()`: in a `train` or `eval` that a class
        around it overrides, else in a forward; the override itself where no line of it says so."""
        from torch import nn

        overrides = list[str]()
        around = [type(each) for each in self._around(path) if each is not None]
        kinds = [kind for kind in around if not kind.__module__.startswith("torch.")]
        for name in ("train", "eval", "forward"):
            for method in (getattr(kind, name) for kind in kinds):
                if method is getattr(nn.Module, name):
                    continue
                try:
                    # A `train` that takes other arguments than a mode is a training run.
                    is_run = name == "train" and len(inspect.signature(method).parameters) != 2
                    lines, first = inspect.getsourcelines(method)
                    file = PurePath(inspect.getsourcefile(method) or "").name
                except (OSError, TypeError, ValueError):  # written in C, or in a shell
                    continue
                if is_run:
                    continue
                at = next((number for number, line in enumerate(lines, first) if _TRAINS.search(line)), None)
                if at is not None:
                    return f"{file}:{at}"
                overrides += [f"{file}:{first}"] if name != "forward" else []
        return overrides[0] if overrides else None


def expected_times(capture: Capture, on: str | Sequence[str]) -> dict[str, Any]:
    """Arguments of `Evidence` for the first device of `on` whose speed is known: seconds by op, its peaks and its name.
    Empty where only the roofline of this machine is known."""
    if not capture.has_code or (not on and not kernel_file("cpu").is_file()):
        return {}
    from torchgauge.advise import Machine, Queues
    from torchgauge.analysis.forecasting import find_subject
    from torchgauge.predict.devices import split_names
    from torchgauge.predict.time import peaks_of_device, predict_ops

    calls = sum(record.calls for record in capture.modules)
    for name in [*split_names(on), "cpu"]:
        try:
            subject = find_subject(name)
        except TorchgaugeError:  # only a memory size, or a machine without calibration
            continue
        profile = subject.profile
        if subject.device is None:
            if capture.run.device.startswith("cuda"):
                continue
            run = predict_ops(capture.ops, profile, module_calls=calls)
            return {"predicted": {op["index"]: op["time_s"] for op in run.ops}}
        first = capture.forecast[0] if capture.forecast else None
        is_known = first is not None and (first["device"], first["execution"]) == (name, "eager")
        rows = capture.predicted.ops if capture.predicted is not None and is_known else None
        if rows is not None:
            # As the device runs them, not as this machine would.
            device_s = {index: row["predicted_device_s"] for index, row in rows.items()}
        else:
            device_s = {op["index"]: op["device_s"] for op in predict_ops(capture.ops, profile, module_calls=calls).ops}
        host_s = _host_seconds(capture, profile.host, device_s) | _recurrent_seconds(capture, rows or {})
        both = {index: (seconds, device_s.get(index, 0.0)) for index, seconds in host_s.items()}
        queues = Queues(both, _RUN_S)
        whole = queues.run_seconds()
        idle = max(0.0, 1 - sum(device_s.values()) / whole) if whole else 0.0
        if first is not None and is_known and whole:
            # The report has one time of the run: that of the forecast, which is fitted to whole models.
            scale = first["predicted_time_s"] / whole
            queues = Queues(
                {index: (host * scale, device * scale) for index, (host, device) in both.items()}, _RUN_S * scale
            )
        machine = Machine(peaks_of_device(subject.device), matmul_tf32=False, convolution_tf32=True)

        def kernel_s(op: OpRecord, profile: Profile = profile) -> float:
            return predict_ops([op], profile).ops[0]["device_s"]

        return {"predicted": queues, "machine": machine, "on": name, "idle": idle, "kernel_s": kernel_s}
    return {}


def expected_here(evidence: Evidence) -> list[ExpectedTime]:
    """The predicted time of the run on this machine's processor; nothing where it was measured, or where the advice is
    for a named device."""
    from torchgauge.advise import UNSURE

    times = evidence.times
    if evidence.on is not None or evidence.time_s or evidence.device != "cpu" or not times.total:
        return []
    source = "roofline of a typical processor" if evidence.peaks is None else "roofline of this processor"
    source = "kernels measured on this machine" if evidence.has_predicted_ops else source
    high = (times.total + sum(times.fresh_s.values())) * UNSURE
    return [_expected("this", "this machine", times.total, times.total / UNSURE, high, source)]


# A device that readers know, for comparison; and the distinct calls that are looked up in about a tenth of a second.
_KNOWN_DEVICE, _MOST_CALLS = "h200", 400


def with_known_device(found: Analysis) -> Analysis:
    """The analysis with the predicted time on an H200, from the ops as they were seen; unchanged where devices were
    named, and for models with too many different calls. Its tables take a third of a second to load."""
    capture = found.capture
    if not capture.has_code or capture.forecast or capture.fit:
        return found
    if len({id(op.signature) for op in capture.ops}) > _MOST_CALLS:
        return found
    from torchgauge.analysis.forecasting import find_subject
    from torchgauge.predict.time import predict_ops

    profile = find_subject(_KNOWN_DEVICE).profile
    run = predict_ops(capture.ops, profile, module_calls=sum(record.calls for record in capture.modules))
    row = _expected(_KNOWN_DEVICE, profile.title, run.time_s, run.low_s, run.high_s, "kernels measured there")
    return found.with_remarks(expected=[*capture.expected, row]) if run.time_s else found


def _expected(device: str, title: str, time_s: float, low_s: float, high_s: float, source: str) -> ExpectedTime:
    return {
        "device": device,
        "title": title,
        "predicted_time_s": time_s,
        "predicted_low_s": low_s,
        "predicted_high_s": high_s,
        "source": source,
    }


def _recurrent_seconds(capture: Capture, rows: Mapping[int, PredictedRow]) -> dict[int, float]:
    """Host time of the ops of recurrent layers. This machine may run a layer step by step; the device runs it in one
    call, whose time is that of one of these ops. Its kernels run while the host launches more: the host's time is what
    they do not cover."""
    layers, found = capture.recurrent_layers, dict[int, float]()
    for op in capture.ops if rows else ():
        if op.module in layers:
            row = rows.get(op.index)
            found[op.index] = 0.0 if row is None else max(row["predicted_time_s"] - row["predicted_device_s"], 0.0)
    return found


def _host_seconds(capture: Capture, host: Host, device_s: Mapping[int, float]) -> dict[int, float]:
    """Host time of each op: of the host that launches the device's kernels, in the proportions of single calls. An even
    share of the modules' calls is included."""
    from torchgauge.predict.coordinates import is_silent

    trains = capture.run.train
    types = {record.path: record.type for record in capture.modules}
    calls = sum(record.calls for record in capture.modules)
    each = calls * host.module_seconds(trains=trains) / max(len(capture.ops), 1)
    speed = 1.0 if host.is_measured else _PACKAGED_HOST
    attention_s, found = _ATTENTION * host.forward_s, dict[int, float]()
    for op in capture.ops:
        seconds, kernel_s = host.seconds(op, trains=trains), device_s.get(op.index, 0.0)
        if trains:
            pass
        elif op.op == "aten::lift_fresh" and op.signature.outputs[0].numel > 1:
            seconds = _FROM_PYTHON_S
        elif is_silent(op):
            # Attention that this machine computes in several ops is one call there; one of them has its kernel's time.
            seconds = attention_s if kernel_s else _VIEW * seconds
        elif "_attention" in op.op:
            seconds = min(seconds, attention_s)
        elif not kernel_s and op.op in _OF_ATTENTION:
            seconds = 0.0
        elif "batch_norm" in op.op:
            seconds *= _BATCH_NORM_ACT if types.get(op.module) == "BatchNormAct2d" else _BATCH_NORM
        elif op.category not in _LAYERS:
            seconds *= _POINTWISE
        found[op.index] = speed * (seconds + each)
    return found


def without_patch(advice: Advice) -> Advice:
    """For a model whose lazy layers have no weights yet: a patch would read them."""
    from torchgauge.advise import Patch

    if not isinstance(advice.change, Patch):
        return advice
    return replace(advice, change=None, risk="its lazy layers have no weights yet: call the model once to get code")


def code_check(
    evidence: Evidence, source: Source, traced: Trace | None, request: Request, on: str | Sequence[str]
) -> Check | None:
    """The check of the code that advice shows; None where there is no module to run it on. The program of a file is not
    one: its advice says how to change the source."""
    import torch

    from torchgauge.source.allowed_ops import holds_foreign

    model = source.model
    if model is None or traced is None or isinstance(model, torch.jit.ScriptModule) or holds_foreign(model):
        return None
    # Names of a file's model must not become source text.
    is_code = all(file.endswith(".py") for file in source.record.files)
    if source.record.kind not in ("module", "registry") or not is_code:
        return None
    from torchgauge.advise import Evidence
    from torchgauge.verify import CodeCheck

    def evidence_of(capture: Capture) -> Evidence:
        return Evidence(capture, **expected_times(capture, on))

    return CodeCheck(model, traced, request, evidence, evidence_of)


class Opened(NamedTuple):
    """The target as the user gave it: a second process opens it again."""

    target: str | nn.Module
    code: str | nn.Module | None
    allow_pickle: bool


def check_verify(advice: bool) -> None:
    """Before the analysis, which may take long."""
    from torchgauge.verify import read_budget

    if not advice:
        raise UsageError("there is no advice to verify: leave out advice=False (--no-advice) or verify=True (--verify)")
    read_budget()


def verify_advice(
    capture: Capture,
    source: Source,
    traced: Trace | None,
    request: Request,
    settings: Settings,
    progress: bool | None,
    opened: Opened,
) -> tuple[list[AdviceRow], Plan | None]:
    """The rows of the advice and of the options with what was measured, and the plan. If verification fails as
    a whole, every row and the plan give the reason, and the analysis is still returned."""
    from torchgauge.measure.measuring import INTERRUPTED, clear_traceback, failure_text
    from torchgauge.measure.settings import applied
    from torchgauge.measure.subject import ready, require_device
    from torchgauge.source import load_real_model
    from torchgauge.verify import Bench, Setup, no_plan, read_budget, unverified, verify

    rows = cast("list[AdviceRow]", [dict(row) for row in (*capture.advice, *capture.options)])
    measured = capture.measured
    if traced is None:
        reason = nothing_to_run(source)
    elif measured is not None and measured.figures["failure"] == INTERRUPTED:
        reason = INTERRUPTED
    else:
        how: dict[str, Any] = {"device": request.device, "dtype": request.dtype, "train": request.train}
        seconds = read_budget()
        with steps("verifying", shown=progress) as report_progress:
            try:
                require_device(request.device)
                if not rows:
                    return [], None
                real = load_real_model(source)
                setup = Setup(*opened, traced.candidate, **how, settings=settings, seconds=seconds)
                with (
                    applied(settings, request.device),
                    ready(real.model, traced.candidate, **how, is_owned=real.is_owned) as subject,
                ):
                    return verify(Bench(subject, capture, request.train, seconds), rows, report_progress, setup)
            # Building the model is the code of others, which may raise anything.
            except (Exception, SystemExit, KeyboardInterrupt) as error:
                reason = failure_text(error)
                clear_traceback(error)
    return [unverified(row, reason) for row in rows], no_plan(reason)
