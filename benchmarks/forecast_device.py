"""What a CUDA device says about the models of `forecast.py`: time eager and in a CUDA graph, energy, training steps.

Needs torch, timm, transformers and torchgauge.
"""

from __future__ import annotations

import gc
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from itertools import zip_longest
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from fit_configurations import Configuration
from torch import nn

sys.path += [str(Path(__file__).parent.parent / name) for name in ("tools", "src")]

from torchgauge.predict.host_sample import HostProbe, host_speed


class Subject:
    """A model on the device with its inputs; `step` is one inference or one step of training."""

    def __init__(self, configuration: Configuration, device: str) -> None:
        options = configuration.options
        self.is_training = configuration.mode == "train"
        dtype = getattr(torch, options.get("dtype", "float32"))
        torch.manual_seed(0)
        with torch.device(device):
            model: nn.Module = configuration.build()
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


def timed(run: Callable[[], Any], device: str, seconds: float = 0.25, least: int = 5, most: int = 60) -> float:
    """The median of runs that each start on an idle device."""
    wait = torch.cuda.synchronize if device != "cpu" else lambda: None
    times: list[float] = []
    wait()
    ends = time.perf_counter() + seconds
    while len(times) < least or (time.perf_counter() < ends and len(times) < most):
        started = time.perf_counter()
        run()
        wait()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


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
    from fit_configurations import build
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.runtime_estimator import RuntimeEstimator

    options = configuration.options
    dtype = getattr(torch, options.get("dtype", "float32"))
    is_training = configuration.mode == "train"
    with torch.device("meta"):
        model = build(configuration).train(is_training)
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


def device_phase(output: Path, seconds: float, proof: str = "first") -> int:
    """The proof's models with the host's speed beside each, and calibrations of the host before, halfway and after."""
    from forecast_models import PROOFS

    output.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + seconds
    order = [one for pair in zip_longest(*PROOFS[proof]) for one in pair if one is not None]
    probe = HostProbe("cuda")
    hosts = [host_speed("cuda")]
    with (output / "proof.jsonl").open("a") as file:
        for number, configuration in enumerate(order):
            if time.monotonic() > ends - 3:
                break
            if number == len(order) // 2:
                hosts.append(host_speed("cuda"))
            found = measure_model(configuration, "cuda", energy_s=0.35, probe=probe)
            file.write(json.dumps({"name": configuration.name} | found) + "\n")
            file.flush()
    hosts.append(host_speed("cuda"))
    (output / "host.json").write_text(json.dumps(hosts) + "\n")
    print(f"models measured, {ends - time.monotonic():.0f} s left", flush=True)
    return 0


def estimates(output: Path, seconds: float, proof: str = "first") -> int:
    """What torch's `RuntimeEstimator` says, in several processes at a time, for so many seconds at most."""
    from forecast_models import PROOFS

    output.mkdir(parents=True, exist_ok=True)
    order = [one for pair in zip_longest(*PROOFS[proof]) for one in pair if one is not None]
    pool = ProcessPoolExecutor(12, mp_context=get_context("spawn"))
    asked = {pool.submit(_estimate, (proof, place)): one.name for place, one in enumerate(order)}
    with (output / "estimator.jsonl").open("a") as file:
        try:
            for done in as_completed(asked, timeout=seconds):
                file.write(json.dumps({"name": asked[done]} | done.result()) + "\n")
                file.flush()
        except TimeoutError:
            print("the time for estimates is over", flush=True)
    for process in list(pool._processes.values()):
        process.kill()
    pool.shutdown(wait=False, cancel_futures=True)
    return 0


def _estimate(which: tuple[str, int]) -> dict[str, Any]:
    from forecast_models import PROOFS

    proof, place = which
    order = [one for pair in zip_longest(*PROOFS[proof]) for one in pair if one is not None]
    try:
        return {"seconds": estimated_by_torch(order[place])}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error)[:160]}"}


def measure_model(
    configuration: Configuration, device: str, energy_s: float, probe: HostProbe | None = None
) -> dict[str, Any]:
    """Eager and graph time, energy of a run; a failure is recorded in `error`, the other figures stay."""
    from kernel_device import Energy, graph_of

    found: dict[str, Any] = {}
    try:
        subject = Subject(configuration, device)
        for _ in range(3):
            subject.step()
        if probe is not None:
            found |= timed_with_host(subject.step, probe, trains=subject.is_training)
        else:
            found["eager_s"] = timed(subject.step, device)
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
