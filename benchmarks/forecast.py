"""Predicted time and energy of models against a CUDA device's.

    python benchmarks/forecast.py compare [--set 10]         here, without a GPU: predicts a set of models, compares
                                                             it with data/h200-time.jsonl
    python benchmarks/forecast.py measure [--set 10] -o FILE on the device: measures it anew
    python benchmarks/forecast.py estimate [--set 10] -o FILE  there: what torch's RuntimeEstimator says
    python benchmarks/forecast.py compare --measured FILE    against such a file

No table was collected from these models. Measuring needs torch, timm, transformers and torchgauge.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from models import TIME, Configuration, read_header, read_set
from torch import nn

from torchgauge.predict.host_sample import HostProbe

sys.path.append(str(Path(__file__).parents[1] / "tools" / "kernels"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=("compare", "measure", "estimate"))
    parser.add_argument("--set", type=int, default=10, help="1 to 10; from 9 on they were drawn at random")
    parser.add_argument("--match", default="", help="only models whose name has this in it")
    parser.add_argument("--measured", type=Path, help="of `measure`, in place of the stored figures")
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("-o", "--output", type=Path, default=Path("build/forecast.json"))
    args = parser.parse_args()
    chosen = [one for one in read_set(TIME, args.set) if args.match in one.name]
    if args.phase == "measure":
        return measure(chosen, args.output, args.seconds)
    if args.phase == "estimate":
        return estimates(chosen, args.output, args.seconds)
    if args.measured is not None:
        found = json.loads(args.measured.read_text())
        compare([(one, found[one.name]) for one in chosen if one.name in found], {})
    else:
        # The middle of the calibrations of that run, for what the sample beside a model does not say.
        speeds = read_header(TIME)["hosts"].get(str(args.set), [])
        middle = {name: statistics.median(speed[name] for speed in speeds) for name in (speeds[0] if speeds else ())}
        compare([(one, one.measured) for one in chosen], middle)
    return 0


def predicted(configuration: Configuration, middle: dict[str, float] | None = None) -> dict[str, Any]:
    """Graph and eager time and energy, each with its interval, with the packaged host and, where it was timed beside
    the model, with the host as measured there. `work` and `full_s` are what energy is fitted to: operations by type and
    bytes, and seconds in which the device is full."""
    from collect import traced
    from kernel_tables import FULL_BYTES

    from torchgauge.predict.coordinates import cold_inputs, is_silent, locate
    from torchgauge.predict.host import Host
    from torchgauge.predict.time import predict_ops, profile_of

    profile = profile_of("h200")
    trace = traced(configuration)
    ops, calls = trace.step_ops, trace.module_calls
    places = [locate(op.signature, cold) for op, cold in zip(ops, cold_inputs(ops), strict=True) if not is_silent(op)]
    # Three quarters of the peak, 85 % of the bandwidth, 2.5 µs a kernel.
    rates = profile.rates
    roofline = sum(
        2.5e-6 + max(p.flops / rates.rate(p.rate) / 0.75, p.nbytes / rates.bytes_per_s / 0.85) for p in places
    )
    row: dict[str, Any] = {"roofline_s": roofline, "work": work_of(places)}
    # Training steps are not captured.
    captured = ops if configuration.is_training else traced(configuration, captured=True).step_ops
    for execution in ("graph", "eager"):
        run = predict_ops(captured if execution == "graph" else ops, profile, execution=execution, module_calls=calls)
        row[execution] = [run.time_s, run.low_s, run.high_s]
        row[f"{execution}_j"] = [run.energy_j, run.energy_low_j, run.energy_high_j]
        row["full_s"] = sum(op["device_s"] * min(op["nbytes"] / FULL_BYTES, 1) for op in run.ops)
    if configuration.measured.get("host"):
        run = predict_ops(
            ops, profile, module_calls=calls, host=Host.of((middle or {}) | configuration.measured["host"])
        )
        row["beside"] = [run.time_s, run.low_s, run.high_s]
    return row


def work_of(places: Sequence[Any]) -> dict[str, float]:
    found = {"float32": 0.0, "tf32": 0.0, "half": 0.0, "cold_bytes": 0.0, "warm_bytes": 0.0}
    for place in places:
        kind = "half" if place.rate in ("float16", "bfloat16") else place.rate
        found[kind] = found.get(kind, 0.0) + place.flops
        found["cold_bytes"] += place.cold_bytes
        found["warm_bytes"] += place.nbytes - place.cold_bytes
    return found


def compare(rows: list[tuple[Configuration, dict[str, Any]]], middle: dict[str, float]) -> None:
    """A row per model, then the error of each figure: mean, 90th percentile, how many are within their interval."""
    warnings.simplefilter("ignore")
    errors: dict[str, list[tuple[float, bool]]] = {}
    head = ("model", "graph, ms", "error", "eager, ms", "packaged host", "beside", "energy, J", "error", "roofline",
            "RuntimeEstimator")  # fmt: skip
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for configuration, real in rows:
        try:
            row = predicted(configuration, middle)
        except Exception as error:  # a model that the installed release of its package does not have
            print(f"| {configuration.name} | {type(error).__name__}: {str(error)[:80]} |", flush=True)
            continue
        kind = "training step" if configuration.is_training else "eager"
        graph, eager, joules = (real.get(key) for key in ("graph_s", "eager_s", "joules"))

        def judged(figure: str, span: Sequence[float] | None, value: float | None) -> str:
            if value is None or span is None:
                return ""
            error = span[0] / value - 1
            errors.setdefault(figure, []).append((error, span[1] <= value <= span[2]))
            return f"{error:+.1%}"

        cells = [configuration.name, f"{graph * 1e3:.3f}" if graph else "", judged("CUDA graph", row["graph"], graph)]
        cells += [f"{eager * 1e3:.3f}" if eager else real.get("error", "")[:40]]
        cells += [judged(f"{kind}, packaged host", row["eager"], eager)]
        cells += [judged(f"{kind}, host beside the model", row.get("beside"), eager), f"{joules:.3f}" if joules else ""]
        cells += [judged("energy", row["eager_j"] if kind != "eager" else row["graph_j"], joules)]
        truth = eager if kind != "eager" else graph
        for other, seconds in (("roofline", row["roofline_s"]), ("RuntimeEstimator", real.get("estimator_s"))):
            cells.append(judged(other, None if seconds is None else [seconds, math.inf, 0.0], truth))
        print("| " + " | ".join(cells) + " |", flush=True)
    print("\n| figure | models | mean error | median | 90th percentile | within the 90 % interval |")
    print("|---|---|---|---|---|---|")
    for figure, found in errors.items():
        sizes = sorted(abs(error) for error, _ in found)
        is_ours = figure not in ("roofline", "RuntimeEstimator")
        inside = f"{sum(held for _, held in found)} of {len(found)}" if is_ours else ""
        tail = sizes[min(int(0.9 * len(sizes)), len(sizes) - 1)]
        mean, median = statistics.mean(sizes), statistics.median(sizes)
        print(f"| {figure} | {len(sizes)} | {mean:.1%} | {median:.1%} | {tail:.1%} | {inside} |")


# --- on the device ----------------------------------------------------------------------------------------------------


class Subject:
    """A model on the device with its inputs; `step` is one inference or one step of training."""

    def __init__(self, configuration: Configuration, device: str) -> None:
        options = configuration.options
        self.is_training = configuration.is_training
        dtype = getattr(torch, options.get("dtype", "float32"))
        torch.manual_seed(0)
        with torch.device(device):
            model: nn.Module = configuration.construct()
        layout = torch.channels_last if options.get("channels_last") else torch.preserve_format
        self.model = model.train(self.is_training).to(device=device, dtype=dtype)
        self.model = self.model.to(memory_format=layout) if options.get("channels_last") else self.model
        given = configuration.inputs()

        def placed(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            value = value.to(device, dtype if value.is_floating_point() else value.dtype)
            return value.to(memory_format=layout) if value.dim() == 4 and options.get("channels_last") else value

        self.args = [placed(value) for value in given["args"]]
        self.kwargs = {name: placed(value) for name, value in given["kwargs"].items()}
        self.optimizer = torch.optim.AdamW(self.model.parameters()) if self.is_training else None

    def step(self) -> Any:
        if self.optimizer is None:
            with torch.no_grad():
                return self.model(*self.args, **self.kwargs)
        output = self.model(*self.args, **self.kwargs)
        loss = getattr(output, "loss", None)
        if loss is None:
            first = output if isinstance(output, torch.Tensor) else output[0]
            loss = first.float().pow(2).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return None


def timed_with_host(run: Callable[[], Any], probe: HostProbe, *, trains: bool) -> dict[str, Any]:
    """The median of runs that each start on an idle device, and of the host's sample before, between and after blocks
    of them: the speed that the host had at that time."""
    samples: dict[str, list[float]] = {"forward_s": [], "train_s": []}

    def sample() -> None:
        for _ in range(3):
            samples["forward_s"].append(probe.seconds(probe.forward))
            if trains:
                samples["train_s"].append(probe.seconds(probe.train))

    times: list[float] = []
    sample()
    ends = time.perf_counter() + 0.3
    while len(times) < 12 or (time.perf_counter() < ends and len(times) < 60):
        for _ in range(4):
            torch.cuda.synchronize()
            started = time.perf_counter()
            run()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - started)
        sample()
    host = {name: statistics.median(values) for name, values in samples.items() if values}
    ordered = sorted(samples["forward_s"])
    spread = math.log2(ordered[int(0.95 * len(ordered))] / ordered[int(0.05 * len(ordered))]) / 2
    spans = sorted(times)
    return {"eager_s": statistics.median(times), "eager_low_s": spans[0], "eager_high_s": spans[-1],
            "host": host | {"spread": spread}}  # fmt: skip


def graph_seconds(graph: Any, seconds: float = 0.25) -> float:
    """By events, without what the launch of a graph takes the host."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times: list[float] = []
    ends = time.perf_counter() + seconds
    graph.replay()
    while len(times) < 5 or (time.perf_counter() < ends and len(times) < 60):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3)
    return statistics.median(times)


@contextmanager
def masks_where_needed() -> Iterator[None]:
    """Under capture, transformers makes masks where it cannot look at the padding. Before 5.20 or so it did so where no
    padding is given too; this is the rule of later versions, which the predictions are made with."""
    masking: Any = sys.modules.get("transformers.masking_utils")
    original = getattr(masking, "is_tracing", None)
    if original is None:
        yield
        return
    try:
        masking.is_tracing = lambda tensor=None: tensor is not None
        yield
    finally:
        masking.is_tracing = original


def estimated_by_torch(configuration: Configuration, device: str = "cuda") -> float:
    """Seconds by `RuntimeEstimator`, torch's own cost model, on fake tensors.

    The model is built on the meta device, and its tensors are replaced one by one: built or moved as fake tensors it
    fails (its code looks at values that they lack, and `Module.to` cannot swap them)."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.runtime_estimator import RuntimeEstimator

    options = configuration.options
    dtype = getattr(torch, options.get("dtype", "float32"))
    is_training = configuration.is_training
    with torch.device("meta"):
        model = configuration.build()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:

        def faked(tensor: torch.Tensor) -> torch.Tensor:
            kind = dtype if tensor.is_floating_point() else tensor.dtype
            return torch.zeros(tensor.shape, dtype=kind, device=device)

        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                module._parameters[name] = nn.Parameter(faked(parameter), parameter.requires_grad)
            for name, buffer in module.named_buffers(recurse=False):
                module._buffers[name] = faked(buffer)
        given = configuration.inputs()
        args = [faked(value) if isinstance(value, torch.Tensor) else value for value in given["args"]]
        kwargs = {key: faked(v) if isinstance(v, torch.Tensor) else v for key, v in given["kwargs"].items()}
        subject = Subject.__new__(Subject)
        subject.model, subject.args, subject.kwargs, subject.is_training = model, args, kwargs, is_training
        subject.optimizer = torch.optim.AdamW(model.parameters()) if is_training else None
        estimator = RuntimeEstimator()
        estimator.fake_mode = mode
        with estimator(estimate_mode_type="operator-level-cost-model"):
            subject.step()
    return float(estimator.total_runtime) * 1e-3


def measure(chosen: list[Configuration], output: Path, seconds: float) -> int:
    """The models with the host's speed beside each; what was measured until `seconds` are over is in the file."""
    output.parent.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + seconds
    probe = HostProbe("cuda")
    found: dict[str, Any] = {}
    for configuration in chosen:
        if time.monotonic() > ends - 3:
            break
        found[configuration.name] = measure_model(configuration, "cuda", 0.35, probe)
        output.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def estimates(chosen: list[Configuration], output: Path, seconds: float) -> int:
    """What torch's `RuntimeEstimator` says, in several processes at a time, for so many seconds at most."""
    output.parent.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}
    pool = ProcessPoolExecutor(12, mp_context=get_context("spawn"))
    asked = {pool.submit(_estimate, one.name): one.name for one in chosen}
    try:
        for done in as_completed(asked, timeout=seconds):
            found[asked[done]] = done.result()
            output.write_text(json.dumps(found, indent=1) + "\n")
    except TimeoutError:
        print("the time for estimates is over", flush=True)
    for process in list(pool._processes.values()):
        process.kill()
    pool.shutdown(wait=False, cancel_futures=True)
    return 0


def _estimate(name: str) -> dict[str, Any]:
    try:
        return {"estimator_s": estimated_by_torch(next(one for one in read_set(TIME) if one.name == name))}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error)[:160]}"}


def measure_model(configuration: Configuration, device: str, energy_s: float, probe: HostProbe) -> dict[str, Any]:
    """Eager and graph time, energy of a run; a failure is recorded in `error`, the other figures stay."""
    from kernel_device import Energy, graph_of

    found: dict[str, Any] = {}
    try:
        subject = Subject(configuration, device)
        for _ in range(3):
            subject.step()
        found |= timed_with_host(subject.step, probe, trains=subject.is_training)
        if device == "cpu":
            return found
        if subject.is_training:
            if energy_s:
                joules, seconds, count = Energy().window(subject.step, energy_s)
                found |= {"joules": joules / count, "energy_seconds": seconds / count}
            return found
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(2):
                subject.step()
            with masks_where_needed():
                graph = graph_of(subject.step)
            found["graph_s"] = graph_seconds(graph)
            if energy_s:
                joules, seconds, count = Energy().window(graph.replay, energy_s)
                found |= {"joules": joules / count, "energy_seconds": seconds / count}
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {str(error)[:200]}"
    finally:
        subject = graph = None  # type: ignore[assignment]
        gc.collect()
        if device != "cpu":
            torch.cuda.empty_cache()
    return found


if __name__ == "__main__":
    sys.exit(main())
