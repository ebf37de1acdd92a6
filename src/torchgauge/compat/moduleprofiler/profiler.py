"""moduleprofiler's class: five analyses of a model by module name; results as dicts, DataFrame, CSV, HTML and LaTeX."""

from __future__ import annotations

import inspect
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from torchgauge.compat.moduleprofiler.ops import IoSizeMap, OpsMap, get_default_io_size_map, get_default_ops_map
from torchgauge.compat.observed import ModuleCall, every_module_called, observe_calls, require_module, running
from torchgauge.errors import MissingDependencyError
from torchgauge.hardware import total_memory
from torchgauge.measure import Subject
from torchgauge.measure.module_times import time_modules
from torchgauge.source import Candidate

if TYPE_CHECKING:
    from pandas import DataFrame

RAW_TIMES = "inference_time_ms"
PathLike = str | os.PathLike[str]
Spec = dict[str, Any]  # of a module: its figures by name
Specs = dict[str, Spec]


Shown = Callable[..., Any]


def _forms(name: str, *, aggr: bool | None = None) -> tuple[Shown, Shown, Shown, Shown]:
    """`NAME_df`, `NAME_csv`, `NAME_html` and `NAME_latex` of an analysis. Arguments pass through to it; `_csv` and
    `_html` take the file first. `aggr` is the default of analyses that time runs: whether rows are statistics."""

    def frame(self: ModuleProfiler, *args: object, **kwargs: Any) -> DataFrame:
        aggregates = None if aggr is None else kwargs.pop("aggr", aggr)
        specs: Specs = getattr(self, name)(*args, **kwargs)
        return to_frame(specs if aggregates is None else _times(specs, aggregates))

    def csv(self: ModuleProfiler, file: PathLike, *args: object, **kwargs: Any) -> None:
        path = with_suffix(file, ".csv")
        frame(self, *args, **kwargs).to_csv(path, index=False)
        self._log(f"Results saved to <b>{path}</b>")

    def html(self: ModuleProfiler, file: PathLike, *args: object, **kwargs: Any) -> None:
        path = with_suffix(file, ".html")
        frame(self, *args, **kwargs).to_html(path)
        self._log(f"Results saved to <b>{path}</b>")

    def latex(self: ModuleProfiler, *args: object, index: bool = False, **kwargs: Any) -> str:
        return str(frame(self, *args, **kwargs).to_latex(index=index))

    return frame, csv, html, latex


def to_frame(rows: Specs | list[Spec]) -> DataFrame:
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise MissingDependencyError("pandas", "a table of a profile") from error
    listed = rows if isinstance(rows, list) else [{"module": name, **spec} for name, spec in rows.items()]
    columns: dict[str, list[object]] = {key: [row[key] for row in listed] for key in (listed[0] if listed else {})}
    # Whole numbers stay whole and None stays None: pandas would make floats and NaN of them.
    return pandas.DataFrame(
        {
            key: pandas.Series(values, dtype=object if any(value is None for value in values) else None)
            for key, values in columns.items()
        }
    )


def _times(specs: Specs, aggr: bool) -> list[Spec]:
    """A row per module with its statistics, or a row per run with its time."""
    if aggr:
        return [{"module": name, **_without(spec, {RAW_TIMES})} for name, spec in specs.items()]
    statistics = {key for spec in specs.values() for key in spec if key.startswith("inference_time_")} - {RAW_TIMES}
    return [
        {"module": name, **_without(spec, statistics)} | {RAW_TIMES: time_ms}
        for name, spec in specs.items()
        for time_ms in spec[RAW_TIMES]
    ]


def _without(spec: Spec, keys: set[str]) -> Spec:
    return {key: value for key, value in spec.items() if key not in keys}


def with_suffix(file: PathLike, suffix: str) -> Path:
    path = Path(file)
    return path if path.suffix.lower() == suffix else path.with_name(path.name + suffix)


FIGURES: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": fmean,
    "max": max,
    "min": min,
    "std": stdev,
    "median": median,
}


def summarise(times_ms: Sequence[float], order: Sequence[str]) -> dict[str, float | None]:
    """None where nothing was timed; the standard deviation of a single run is NaN."""
    found: dict[str, float | None] = {}
    for name in order:
        key = f"inference_time_{name}_ms"
        if not times_ms:
            found[key] = None
        else:
            is_undefined = name == "std" and len(times_ms) == 1
            found[key] = float("nan") if is_undefined else float(FIGURES[name](times_ms))
    return found


def machine() -> dict[str, object]:
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "intraop_threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "host_name": platform.node(),
        "os": platform.system(),
        "os_release": platform.release(),
        "cpu_count": os.cpu_count(),
        "total_memory": f"{total_memory() // 2**20} MB",
        "gpu": gpus if torch.cuda.is_available() else "unavailable",
    }


def param_spec(module: nn.Module, *, size: bool, dtype: bool) -> Spec:
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    frozen = [parameter for parameter in module.parameters() if not parameter.requires_grad]
    return _figures("trainable", trained, size, dtype) | _figures("nontrainable", frozen, size, dtype)


def shares(spec: Spec, total: int) -> dict[str, float]:
    """Shares of the model's parameters; 0 where the model has none."""
    keys = ("trainable_params", "nontrainable_params")
    return {f"{key}_percent": spec[key] / total if total else 0.0 for key in keys}


def _figures(prefix: str, parameters: Iterable[nn.Parameter], size: bool, dtype: bool) -> Spec:
    found = list(parameters)
    bits = sum(parameter.numel() * parameter.element_size() * 8 for parameter in found)
    return {
        f"{prefix}_params": sum(parameter.numel() for parameter in found),
        f"{prefix}_params_dtype": found[-1].dtype if found and dtype else None,
        f"{prefix}_params_size_bits": bits if size else 0,
    }


ROOT = "__root__"
T = TypeVar("T")


class ModuleProfiler:
    """Nothing is set on the modules. Attribute names are accepted so that existing scripts run; like the original, the
    methods raise ValueError where a module already has an attribute of that name."""

    def __init__(
        self,
        input_size_attr: str = "__input_size__",
        output_size_attr: str = "__output_size__",
        ops_attr: str = "__ops__",
        inference_start_attr: str = "__inference_start__",
        inference_end_attr: str = "__inference_end__",
        io_size_fn_map: IoSizeMap | None = None,
        ops_fn_map: OpsMap | None = None,
        exclude_from_ops: list[type[nn.Module]] | None = None,
        ts_fmt: str = "%Y-%m-%d %H:%M:%S",
        verbose: bool = False,
    ) -> None:
        self.input_size_attr = input_size_attr
        self.output_size_attr = output_size_attr
        self.ops_attr = ops_attr
        self.inference_start_attr = inference_start_attr
        self.inference_end_attr = inference_end_attr
        self.io_size_fn_map = get_default_io_size_map() if io_size_fn_map is None else io_size_fn_map
        self.ops_fn_map = get_default_ops_map() if ops_fn_map is None else ops_fn_map
        self.exclude_from_ops = exclude_from_ops
        self.ts_fmt = ts_fmt
        self.verbose = verbose

    def count_params(
        self, module: nn.Module, param_size: bool = True, param_dtype: bool = True, percent: bool = True
    ) -> Specs:
        """Parameters by name of module, those of its children included."""
        require_module(module)
        self._log(f"Counting parameters of <b>{type(module).__name__}</b>")
        members = list(_named(module))
        specs = {
            name: {"type": type(member).__name__, **param_spec(member, size=param_size, dtype=param_dtype)}
            for name, member in self._track(members, "Counting parameters", "params")
        }
        total = specs[ROOT]["trainable_params"] + specs[ROOT]["nontrainable_params"]
        return {name: spec | shares(spec, total) for name, spec in specs.items()} if percent else specs

    def trace_io_sizes(
        self, module: nn.Module, input: object, pred_fn: Callable[..., object] | None = None, eval: bool = False
    ) -> Specs:
        """Sizes of each module's last call; None where it was not called."""
        self._begin("Tracing I/O shapes of", module, (self.input_size_attr, self.output_size_attr))
        sizes: dict[int, tuple[object, object]] = {}

        def look(call: ModuleCall) -> None:
            measure = self.io_size_fn_map.get(type(call.module)) or self.io_size_fn_map["default"]
            sizes[id(call.module)] = measure(call.module, call.args, call.output)

        with self._running(module, input, pred_fn, evaluate=eval) as subject:
            _run_observed(subject, pred_fn, look)
            found = {name: sizes.get(id(member), (None, None)) for name, member in _named(subject.model)}
        return _specs(module, lambda name: dict(zip(("input_size", "output_size"), found[name], strict=True)))

    def estimate_ops(
        self, module: nn.Module, input: object, pred_fn: Callable[..., object] | None = None, eval: bool = True
    ) -> Specs:
        """Operations of each module's last call by the map; None if it was not called or has no formula."""
        self._begin("Estimating ops of", module, (self.ops_attr,))
        ops: dict[int, int | None] = {}

        def look(call: ModuleCall) -> None:
            kind = type(call.module) if type(call.module) in self.ops_fn_map else "default"
            # Like the original: types that are not in the map use "default", excluded or not.
            is_excluded = kind != "default" and kind in (self.exclude_from_ops or ())
            count = self.ops_fn_map["excluded" if is_excluded else kind]
            ops[id(call.module)] = count(call.module, call.args, call.output)

        with self._running(module, input, pred_fn, evaluate=eval) as subject:
            _run_observed(subject, pred_fn, look)
            counted = {name: ops.get(id(member)) for name, member in _named(subject.model)}
        return _specs(module, lambda name: {"ops": counted[name]})

    def estimate_inference_time(
        self, module: nn.Module, input: object, eval: bool = True, num_iters: int = 1000, drop_first: int = 100
    ) -> Specs:
        """Milliseconds of each module with its children, run by run; the statistics leave out the first runs."""
        _check_iterations(num_iters, drop_first)
        self._begin("Estimating inference time of", module, (self.inference_start_attr, self.inference_end_attr))
        times: dict[str, list[float]] = {name: [] for name, _ in _named(module)}
        with self._running(module, input, evaluate=eval) as subject, every_module_called():
            names = {id(member): name for name, member in _named(subject.model)}
            for _ in self._track(range(num_iters), "Measuring inference time", "inferences"):
                for name, taken in time_modules(subject.run, names, 1).items():
                    if taken.calls:
                        times[name].append(taken.inclusive_s * 1e3)
        order, about = ("mean", "max", "min", "std", "median"), machine()
        return _specs(
            module, lambda name: {"inference_time_ms": times[name]} | summarise(times[name][drop_first:], order) | about
        )

    def estimate_total_inference_time(
        self, module: nn.Module, input: object, eval: bool = True, num_iters: int = 1000, drop_first: int = 100
    ) -> Specs:
        """Milliseconds of the whole model with nothing attached; the first runs are left out."""
        _check_iterations(num_iters, drop_first)
        self._begin("Estimating total inference time of", module, ())
        times: list[float] = []
        with self._running(module, input, evaluate=eval) as subject:
            for _ in self._track(range(num_iters), "Measuring inference time", "inferences"):
                start = time.perf_counter()
                subject.run()
                times.append((time.perf_counter() - start) * 1e3)
        kept = times[drop_first:]
        figures = summarise(kept, ("mean", "min", "max", "std", "median"))
        about = machine()
        return {ROOT: {"type": type(module).__name__, **about, "inference_time_ms": kept, **figures}}

    count_params_df, count_params_csv, count_params_html, count_params_latex = _forms("count_params")
    trace_io_sizes_df, trace_io_sizes_csv, trace_io_sizes_html, trace_io_sizes_latex = _forms("trace_io_sizes")
    estimate_ops_df, estimate_ops_csv, estimate_ops_html, estimate_ops_latex = _forms("estimate_ops")
    (
        estimate_inference_time_df,
        estimate_inference_time_csv,
        estimate_inference_time_html,
        estimate_inference_time_latex,
    ) = _forms("estimate_inference_time", aggr=True)
    (
        estimate_total_inference_time_df,
        estimate_total_inference_time_csv,
        estimate_total_inference_time_html,
        estimate_total_inference_time_latex,
    ) = _forms("estimate_total_inference_time", aggr=False)

    def _begin(self, what: str, module: nn.Module, attributes: Iterable[str]) -> None:
        require_module(module)
        for member in module.modules():
            for name in attributes:
                if hasattr(member, name):
                    raise ValueError(
                        f"'{type(member).__name__}' already has an attribute '{name}': choose another name"
                    )
        self._log(f"{what} <b>{type(module).__name__}</b>")

    @contextmanager
    def _running(
        self, module: nn.Module, input: object, pred_fn: Callable[..., object] | None = None, *, evaluate: bool
    ) -> Iterator[Subject]:
        # A dict is the keyword arguments, a tuple the positional ones, anything else (a packed sequence) one argument.
        # A function with a single parameter gets a tuple of several whole: code for the original must take it so.
        args, kwargs = ((), input) if isinstance(input, dict) else ((input,), {})
        if type(input) is tuple:
            try:
                signature = inspect.signature(pred_fn or module.forward)
                args = input if _binds(signature, input) or not _binds(signature, (input,)) else (input,)
            except ValueError:  # written in C
                args = input
        with running(module, Candidate(args, kwargs, None), evaluate=evaluate) as subject:
            if evaluate:
                self._log(f"Setting module <b>{type(module).__name__}</b> to <b>eval</b> mode")
            yield subject
        if evaluate and module.training:
            self._log(f"Setting module <b>{type(module).__name__}</b> to <b>train</b> mode")

    def _track(self, items: Sequence[T], description: str, unit: str) -> Iterable[T]:
        """The original's progress bar, on stderr and gone at the end."""
        if not self.verbose:
            return items
        try:
            from tqdm import tqdm
        except ModuleNotFoundError as error:
            raise MissingDependencyError("tqdm", "moduleprofiler's progress (verbose=True)") from error
        return tqdm(items, desc=description, unit=unit, leave=False)

    def _log(self, text: str) -> None:
        """`<b>` marks what is bold on a terminal; a file gets the words alone."""
        if self.verbose:
            bold, plain = ("\x1b[1m", "\x1b[0m") if sys.stdout.isatty() else ("", "")
            line = f"<b>[{time.strftime(self.ts_fmt)}]</b> {text}"
            print(line.replace("<b>", bold).replace("</b>", plain))


def _named(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    return ((name or ROOT, member) for name, member in module.named_modules())


def _specs(module: nn.Module, figures: Callable[[str], dict[str, object]]) -> Specs:
    return {name: {"type": type(member).__name__, **figures(name)} for name, member in _named(module)}


def _binds(signature: inspect.Signature, args: tuple[object, ...]) -> bool:
    try:
        signature.bind(*args)
    except TypeError:
        return False
    return True


def _run_observed(subject: Subject, pred_fn: Callable[..., object] | None, look: Callable[[ModuleCall], None]) -> None:
    with observe_calls(list(subject.model.modules()), look):
        (pred_fn or subject.model)(*subject.args, **subject.kwargs)


def _check_iterations(num_iters: int, drop_first: int) -> None:
    if num_iters <= drop_first:
        raise ValueError(f"num_iters={num_iters} must be greater than drop_first={drop_first}: no run would be left")
