"""Predicted memory of a run against what a CUDA device's allocator says.

    python benchmarks/fit.py compare [--set 5] [--match TEXT]     here, without a GPU: predicts a set of configurations
                                                                  and compares it with data/h200-memory.jsonl
    python benchmarks/fit.py measure [--set 5] -o FILE            on the device: measures it anew
    python benchmarks/fit.py limits [--set 5] -o FILE             there: runs with 3 % less and more than is required
    python benchmarks/fit.py compare --measured FILE              against such a file

Measuring needs torch, timm and transformers, and torchgauge for `limits` alone. Each configuration runs in a separate
process with its own context, library handles and allocator, so the figures are those of a script that does nothing
else. Several run side by side; what the whole device has in use is read in a second, sequential pass.
"""

from __future__ import annotations

import argparse
import fnmatch
import gc
import json
import multiprocessing
import os
import signal
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from models import MEMORY, Configuration, read_set
from torch import Tensor, nn

DEVICE = "cuda"
LONGEST_S = 110.0  # of one process; it is ended if it takes longer
FIGURES = ("allocated", "reserved", "used")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=("compare", "measure", "limits"))
    parser.add_argument("--set", type=int, default=5, help="0 to 5; 5 was held out last")
    parser.add_argument("--match", default="", help="only configurations whose name has this in it")
    parser.add_argument("--measured", type=Path, help="of `measure`, in place of the stored figures")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("-o", "--output", type=Path, default=Path("build/fit.json"))
    args = parser.parse_args()
    chosen = [one for one in read_set(MEMORY, args.set) if args.match in one.name]
    if args.phase != "compare":
        return on_device(chosen, args.output, args.seconds, tests_limits=args.phase == "limits")
    if args.measured is not None:
        found = json.loads(args.measured.read_text())
        compare([(one, found[one.name]) for one in chosen if one.name in found])
    else:
        compare([(one, one.measured) for one in chosen])
    return 0


def predicted(configuration: Configuration) -> Any:
    """`tg.fit` of the configuration, its model on the meta device."""
    import torchgauge as tg
    from torchgauge.source.packages import import_optional

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import_optional("timm", "the benchmark")
    given = configuration.inputs()
    try:
        with torch.device("meta"):
            model = configuration.build()
    except NotImplementedError:  # it computes sizes with tensors
        model = configuration.build().to("meta")
    return tg.fit(
        model, on="h200", inputs=tuple(given["args"]) or given["kwargs"],
        kwargs=given["kwargs"] if given["args"] else None, torch_version="2.11", **configuration.options,
    )  # fmt: skip


def compare(rows: list[tuple[Configuration, dict[str, Any]]]) -> None:
    errors: dict[str, list[float]] = {figure: [] for figure in (*FIGURES, "tracker")}
    inside: dict[str, list[bool]] = {figure: [] for figure in FIGURES}
    print(f"{'':48} {'MiB':>9} {'allocated':>9} {'reserved':>9} {'used':>9} {'MemTracker':>10}")
    for configuration, real in rows:
        try:
            ours = predicted(configuration)
        except Exception as error:  # a model that the installed release of its package does not have
            print(f"{configuration.name:48} {type(error).__name__}: {str(error)[:80]}", flush=True)
            continue
        row = {f: getattr(ours, f"{f}_bytes") / real[f] - 1 for f in FIGURES if real.get(f)}
        row |= {"tracker": real["tracker"] / real["allocated"] - 1} if real.get("tracker") else {}
        for figure, error in row.items():
            errors[figure].append(error)
            if figure in inside:
                span = ours.bounds[f"{figure}_bytes"]
                inside[figure].append(span.low <= real[figure] <= span.high)
        cells = "".join(f" {100 * row[f]:+8.2f}%" if f in row else f" {'':9}" for f in (*FIGURES, "tracker"))
        print(f"{configuration.name:48} {real['allocated'] / 2**20:9.0f}{cells}", flush=True)
    for figure, values in errors.items():
        if values:
            sizes = sorted(map(abs, values))
            p95 = sizes[min(round(0.95 * (len(sizes) - 1)), len(sizes) - 1)]
            held = f", in bounds {sum(inside[figure])} of {len(inside[figure])}" if figure in inside else ""
            print(f"{figure:10} median {100 * statistics.median(sizes):6.2f} %  p95 {100 * p95:6.2f} %  "
                  f"worst {100 * sizes[-1]:6.2f} %  of {len(sizes)}{held}")  # fmt: skip


# --- on the device ----------------------------------------------------------------------------------------------------


def default_loss(output: Any) -> Tensor:
    """The model's own loss, else the mean of the squares of the first floating output in float32."""
    loss = getattr(output, "loss", None)
    if isinstance(loss, Tensor):
        return loss
    for value in output.values() if isinstance(output, dict) else output if isinstance(output, tuple) else (output,):
        if isinstance(value, Tensor) and value.is_floating_point():
            return value.float().pow(2).mean()
    raise ValueError("no floating output")


def blocks(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks: the members of module lists and sequences that hold at least two of one class."""
    found = []
    for module in model.modules():
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) > 1:
            kinds = [type(child) for child in module]
            if len(set(kinds)) == 1 and any(True for _ in module[0].children()):
                found.append(module)
    most = max(found, key=lambda holder: sum(p.numel() for p in holder.parameters()))
    return list(most)


def make_optimizer(name: str, model: nn.Module, fused: bool) -> torch.optim.Optimizer:
    kinds: dict[str, Any] = {
        "adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": partial(torch.optim.SGD, lr=1e-3, momentum=0.9),
        "rmsprop": torch.optim.RMSprop, "adafactor": torch.optim.Adafactor,
    }  # fmt: skip
    options = {"fused": True} if fused else {}
    optimizer: torch.optim.Optimizer = kinds[name]([p for p in model.parameters() if p.requires_grad], **options)
    return optimizer


class Run:
    """A model on the device with all it needs; `step` is one step of training or one inference."""

    def __init__(self, configuration: Configuration) -> None:
        options = dict(configuration.options)
        torch.manual_seed(0)
        dtype = getattr(torch, options.get("dtype", "float32"))
        torch.set_default_dtype(dtype)
        try:
            model = configuration.build().to(dtype=dtype)
        finally:
            torch.set_default_dtype(torch.float32)
        if options.get("channels_last"):
            model = model.to(memory_format=torch.channels_last)
        given = configuration.inputs()
        for pattern in [options["frozen"]] if "frozen" in options else []:
            for name, parameter in model.named_parameters():
                if fnmatch.fnmatchcase(name, pattern):
                    parameter.requires_grad_(False)
        if options.get("checkpoint"):
            from torch.utils.checkpoint import checkpoint

            for block in blocks(model):
                block.forward = partial(checkpoint, block.forward, use_reentrant=False)  # type: ignore[method-assign]
        self.model = model.to(DEVICE)
        draw(self.model)
        place = partial(placed, dtype=dtype, channels_last=bool(options.get("channels_last")))
        self.args = [place(value) for value in given["args"]]
        self.kwargs = {name: place(value) for name, value in given["kwargs"].items()}
        self.amp = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(options.get("amp", ""))
        self.accumulate = int(options.get("accumulate", 1))
        self.optimizer = None
        if configuration.is_training:
            self.optimizer = make_optimizer(options["optimizer"], self.model, bool(options.get("fused")))
        self.scaler = torch.amp.GradScaler("cuda") if self.amp is torch.float16 else None

    def step(self) -> None:
        if self.optimizer is None:
            with torch.no_grad(), torch.autocast("cuda", self.amp or torch.bfloat16, enabled=self.amp is not None):
                self.model(*self.args, **self.kwargs)
            return
        for _ in range(self.accumulate):
            with torch.autocast("cuda", self.amp or torch.bfloat16, enabled=self.amp is not None):
                output = self.model(*self.args, **self.kwargs)
                loss = default_loss(output)
            (self.scaler.scale(loss) if self.scaler else loss).backward()
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        del output, loss


def placed(value: Any, dtype: torch.dtype, channels_last: bool) -> Any:
    if not isinstance(value, Tensor):
        return value
    # In its type before it is moved: a cast on the device leaves a cached segment behind.
    value = value.to(dtype if value.is_floating_point() else value.dtype).to(DEVICE)
    return value.to(memory_format=torch.channels_last) if channels_last and value.dim() == 4 else value


@torch.no_grad()
def draw(model: nn.Module) -> None:
    """Weights of the usual size: experts are chosen by what the model computes."""
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.normal_(0, 0.02)
        else:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)


def measure(configuration: Configuration, *, tracker: bool) -> dict[str, Any]:
    """Peaks of the third step: the first two allocate what stays."""
    torch.cuda.init()
    run = Run(configuration)
    result: dict[str, Any] = {}
    for index in range(3):
        torch.cuda.synchronize()
        if index == 2:
            gc.collect()
            torch.cuda.empty_cache()
            result["before"] = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run.step()
        torch.cuda.synchronize()
    result |= {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
    free, total = torch.cuda.mem_get_info()
    result["used"] = total - free
    if tracker:
        result["tracker"] = tracked(run)
    return result


def tracked(run: Run) -> int | None:
    """The peak that torch's own tracker of tensors sees of one more step."""
    from torch.distributed._tools.mem_tracker import MemTracker

    tracker = MemTracker()
    try:
        tracker.track_external(run.model, *([run.optimizer] if run.optimizer else []))
        with tracker:
            run.step()
        peak = tracker.get_tracker_snapshot("peak")
        return max(int(snapshot["Total"]) for device, snapshot in peak.items() if device.type == "cuda")
    except Exception:
        return None


def try_limit(configuration: Configuration, factor: float) -> dict[str, Any]:
    """Three steps under a limit on what the allocator may reserve, as a share of the required bytes."""
    limit = int(predicted(configuration).required_bytes * factor)
    torch.cuda.init()
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(limit / total)
    try:
        run = Run(configuration)
        for _ in range(3):
            run.step()
        torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        return {"limit": limit, "fits": False}
    return {"limit": limit, "fits": True}


_asked = (torch.cuda.is_available, torch.cuda.device_count)


def leave_cuda_alone() -> None:
    """Packages ask for devices when they are imported, and a process that was asked once cannot be forked."""
    torch.cuda.is_available, torch.cuda.device_count = lambda: True, lambda: 1


def in_child(pipe: Any, job: Callable[[], dict[str, Any]]) -> None:
    torch.cuda.is_available, torch.cuda.device_count = _asked
    try:
        started = time.perf_counter()
        result = job()
        result["process_s"] = time.perf_counter() - started
    except BaseException as error:
        result = {"error": repr(error)[:300], "where": traceback.format_exc()[-600:]}
    pipe.send(result)
    pipe.close()
    os._exit(0)


class Pool:
    """Forked processes side by side, as many as their sizes leave room for on the device."""

    def __init__(self, most: int, room_gib: float, deadline: float, start: str = "fork") -> None:
        self._most, self._room, self._deadline, self._start = most, room_gib, deadline, start
        self._running: list[tuple[str, Any, Any, float, float]] = []
        self.results: dict[str, dict[str, Any]] = {}

    def run(
        self, jobs: list[tuple[str, float, Callable[[], dict[str, Any]]]], save_result: Callable[[str, Any], None]
    ) -> None:
        waiting = list(jobs)
        context: Any = multiprocessing.get_context(self._start)
        while waiting or self._running:
            used = sum(size for _, _, _, size, _ in self._running)
            if waiting and time.monotonic() > self._deadline:
                for name, _, _ in waiting:
                    self.results[name] = {"error": "no time left"}
                waiting = []
            fitting = next((job for job in waiting if used + job[1] <= self._room or not self._running), None)
            if fitting is not None and len(self._running) < self._most:
                waiting.remove(fitting)
                name, size, job = fitting
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=in_child, args=(theirs, job), daemon=True)
                process.start()
                theirs.close()
                self._running.append((name, process, ours, size, time.monotonic()))
                continue
            self._collect(save_result)

    def _collect(self, save_result: Callable[[str, Any], None]) -> None:
        for entry in list(self._running):
            name, process, pipe, _, started = entry
            result = None
            if pipe.poll(0.005):
                try:
                    result = pipe.recv()
                except EOFError:
                    result = {"error": f"the process ended ({process.exitcode})"}
            elif not process.is_alive():
                result = {"error": f"the process ended ({process.exitcode})"}
            elif time.monotonic() - started > LONGEST_S:
                os.kill(process.pid, signal.SIGKILL)
                result = {"error": "took too long"}
            if result is not None:
                process.join(5)
                self._running.remove(entry)
                self.results[name] = result
                save_result(name, result)


def on_device(chosen: list[Configuration], output: Path, seconds: float, *, tests_limits: bool) -> int:
    deadline = time.monotonic() + seconds
    leave_cuda_alone()
    import timm  # noqa: F401 before the fork, once for all
    import torch._dynamo
    import torch.utils.checkpoint  # noqa: F401
    import transformers  # noqa: F401
    from torch.distributed._tools import mem_tracker  # noqa: F401

    output.parent.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}

    def save(name: str, result: dict[str, Any]) -> None:
        # What the whole device has in use counts only where the process was alone.
        known = found.get(name, {})
        if "error" not in result or not known:
            found[name] = result | {key: value for key, value in known.items() if key not in ("used", "process_s")}
        print(f"{name:48} {result}", flush=True)
        output.write_text(json.dumps(found, indent=1))

    ordered = sorted(chosen, key=lambda one: -one.size)
    pool = Pool(14, 120, deadline)
    if tests_limits:
        pool.run([(f"{one.name} x{factor}", one.size * 1.1, partial(try_limit, one, factor))
                  for one in ordered for factor in (0.97, 1.03)], save)  # fmt: skip
        return 0
    pool.run([(one.name, one.size, partial(measure, one, tracker=True)) for one in ordered], save)
    alone = Pool(1, 140, deadline)
    alone.run([(one.name, one.size, partial(measure, one, tracker=False)) for one in reversed(ordered)], save)
    return 0


if __name__ == "__main__":
    sys.exit(main())
