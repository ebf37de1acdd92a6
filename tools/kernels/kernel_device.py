"""The part of `collect.py` that runs on the device: kernels, the host's cost of a launch, energy, whole models.

Everything runs in worker processes: a kernel that breaks the CUDA context takes its worker with it, and the next one
goes on after that kernel. Results are lines of JSON, so that a run that is stopped can be resumed.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import json
import lzma
import math
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# Rotating copies of what a model would read from memory must not fit into the last cache together.
ROTATED_BYTES = 120_000_000
MOST_COPIES = 24
LEAST_COLD_BYTES = 1 << 16  # less is read within a launch
# What workers may hold together between two kernels; the largest kernel takes 14 GB beside that.
MOST_MEMORY = 40e9
# Of one timed graph.
GRAPH_S = 3e-4
# What the device waits before each timed part, in cycles (about 200 µs of an H200): as long as the host takes to launch
# it. Otherwise the wait for the host is part of the time, and short kernels look up to a fifth longer than they are.
HEAD_START_CYCLES = 400_000
PARTS = ("whole", "host", "energy", "kernels")


def measure(
    path: Path, output: Path, seconds: float, device: str, parts: Sequence[str] = PARTS, workers: int = 1
) -> int:
    """All parts, one after the other; `whole`, `host` and `energy` take about two fifths of the time. Several `workers`
    share the kernels: a library takes up to half a second of the processor to choose a kernel, and a few microseconds
    of the device to run it. Only one of them times at a time."""
    output.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + seconds
    share = {"whole": 0.22, "host": 0.05, "energy": 0.08, "kernels": 1.0}
    for part in parts:
        until = min(ends, time.monotonic() + seconds * share[part])
        count = workers if part == "kernels" else 1

        def work(number: int, part: str = part, until: float = until, count: int = count) -> None:
            while (left := until - time.monotonic()) > 3:
                given = [part, str(path), str(output), str(left), device, str(number), str(count)]
                if subprocess.run([sys.executable, __file__, *given], check=False).returncode == 0:
                    break
                print(f"{part}: a worker ended early", flush=True)

        with ThreadPoolExecutor(count) as pool:
            list(pool.map(work, range(count)))
    return 0


def worker(part: str, path: Path, output: Path, seconds: float, device: str, number: int, count: int) -> int:
    ends = time.monotonic() + seconds
    warnings.simplefilter("ignore")
    gc.disable()
    if part == "kernels":
        return kernels(path, output, ends, device, number, count)
    return {"whole": whole, "host": host, "energy": energy}[part](path, output, ends, device)


def read_calls(path: Path) -> Iterator[dict[str, Any]]:
    with lzma.open(path, "rt") as file:
        for line in file:
            yield json.loads(line)


class Timer:
    """Times a function by events on a separate stream: many launches in one CUDA graph, replayed; on the CPU by the
    clock."""

    def __init__(self, device: str, lock: Path | None = None) -> None:
        self.is_cuda = device != "cpu"
        self.keeper: torch.cuda.CUDAGraph | None = None
        self.lock = lock.open("w") if lock is not None else None  # whoever holds it is the only one to time
        if self.is_cuda:
            self.stream = torch.cuda.Stream()
            torch.cuda.set_stream(self.stream)
            self.begin, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self.renew()

    def renew(self) -> None:
        """A new pool for graphs. A pool lives as long as a graph that was captured with it, and keeps all memory that
        its graphs ever had."""
        if not self.is_cuda:
            return
        self.keeper = None
        torch.cuda.empty_cache()
        self.pool = torch.cuda.graph_pool_handle()
        self.keeper = torch.cuda.CUDAGraph()
        held = torch.zeros(1, device="cuda")
        self.keeper.capture_begin(pool=self.pool)
        held.add_(1)
        self.keeper.capture_end()

    def elapsed(self, run: Callable[[], Any]) -> float:
        if not self.is_cuda:
            started = time.perf_counter()
            run()
            return time.perf_counter() - started
        torch.cuda._sleep(HEAD_START_CYCLES)
        self.begin.record()
        run()
        self.end.record()
        self.end.synchronize()
        return self.begin.elapsed_time(self.end) * 1e-3

    def seconds(self, launch: Callable[[int], Any], copies: int, *, is_long: bool = True) -> tuple[float, float]:
        """The time of a launch, and how far the fourth of the replays is from the fastest. Long kernels need no
        graph; a call that is many short ones (not `is_long`) waits for the host without one."""
        launch(0)
        if self.is_cuda:
            torch.cuda.synchronize()
        with self.alone():
            return self._seconds(launch, copies, is_long=is_long)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Without the other workers, until what was launched is done."""
        if self.lock is None:
            yield
            return
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        try:
            yield
            torch.cuda.synchronize()
        finally:
            fcntl.flock(self.lock, fcntl.LOCK_UN)

    def _seconds(self, launch: Callable[[int], Any], copies: int, *, is_long: bool) -> tuple[float, float]:
        once = self.elapsed(lambda: launch(copies - 1))
        if not self.is_cuda:
            times = sorted(self.elapsed(lambda: launch(0)) for _ in range(5 if once < 0.02 else 2))
            return times[0], times[-1] / times[0] - 1
        once = min(once, self.elapsed(lambda: launch(copies - 1)))
        count = max(copies, min(40, math.ceil(GRAPH_S / max(once, 2e-6))))
        if once > 2e-3 and is_long:
            times = sorted(self.elapsed(lambda: launch(0)) for _ in range(2))
            return times[0], times[-1] / times[0] - 1
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self.pool)
        try:
            for number in range(count):
                launch(number % copies)
        finally:
            graph.capture_end()
        graph.replay()
        # Beside other workers, which launch each kernel once to have it chosen, more replays: those two in which
        # nothing else ran are the fastest.
        times = sorted(self.elapsed(graph.replay) / count for _ in range(4 if self.lock is None else 8))
        graph.reset()
        return (times[0] + times[1]) / 2, times[3] / times[0] - 1


def make_tensor(spec: list[Any], device: str, below: int = 2) -> Tensor:
    """Random values: normal ones, integers up to `below`."""
    shape, stride, name = spec
    dtype = getattr(torch, name)
    size = 1 + sum((length - 1) * step for length, step in zip(shape, stride, strict=True)) if math.prod(shape) else 0
    if dtype.is_floating_point:
        flat = torch.randn(size, device=device, dtype=dtype if dtype.itemsize > 1 else torch.float32).to(dtype)
    elif dtype == torch.bool:
        flat = torch.rand(size, device=device) < 0.5
    elif dtype == torch.uint64:
        flat = torch.zeros(size, device=device, dtype=torch.int64).view(torch.uint64)
    elif dtype.is_complex:
        flat = torch.randn(size, device=device, dtype=dtype)
    else:
        flat = torch.randint(0, max(below, 1), (size,), device=device).to(dtype)
    return flat.as_strided(shape, stride)


# Where indices may point: (op, argument with the indices) -> how many rows there are.
def limits(call: dict[str, Any]) -> dict[int, int]:
    op, args, tensors = call["op"].removeprefix("aten::").rstrip("_"), call["args"], call["tensors"]

    def shape(name: str) -> list[int]:
        value = args.get(name)
        return tensors[value["tensor"]][0] if isinstance(value, dict) and "tensor" in value else []

    def number(name: str) -> int | None:
        value = args.get(name)
        return value["tensor"] if isinstance(value, dict) and "tensor" in value else None

    found: dict[int | None, int] = {}
    if op in ("embedding_dense_backward", "_embedding_bag_backward"):
        found[number("indices")] = int(args["num_weights"])
    elif op.startswith(("embedding", "_embedding_bag")):
        found[number("indices")] = shape("weight")[0]
    elif op == "take":
        found[number("index")] = math.prod(shape("self"))
    elif op.startswith("max_unpool"):
        found[number("indices")] = math.prod(args["output_size"])
    elif op.startswith(("gather", "scatter", "index_select", "index_add", "index_copy", "index_fill",
                        "index_reduce")):  # fmt: skip
        sizes = shape("self") or [1]
        found[number("index")] = sizes[int(args.get("dim") or 0) % len(sizes)] if sizes else 1
        if op == "gather" or op.startswith("scatter"):
            inner = shape("index")
            found[number("index")] = min(found[number("index")], max(inner[int(args["dim"])] if inner else 1, 1)) or 1
    elif op.startswith(("nll_loss", "multi_margin_loss", "multilabel_margin_loss")):
        sizes = shape("self")
        found[number("target")] = sizes[1 if len(sizes) > 1 else 0]
    elif op.startswith(("index", "_unsafe_index")):
        sizes = shape("self")
        for place, one in enumerate(args.get("indices") or ()):
            if isinstance(one, dict):
                found[one["tensor"]] = sizes[place] if place < len(sizes) else 1
    elif op == "max_pool2d_with_indices_backward":
        found[number("indices")] = math.prod(shape("self")[-2:])
    return {key: value for key, value in found.items() if key is not None}


class Call:
    """A call of the list with its tensors on the device."""

    def __init__(self, row: dict[str, Any], device: str) -> None:
        name = row["op"].removeprefix("aten::")
        self.op = getattr(getattr(torch.ops.aten, name), row["overload"] or "default")
        self.known = {argument.name for argument in self.op._schema.arguments}
        self.args, self.device = row["args"], device
        below = limits(row)
        nbytes = [math.prod(shape) * getattr(torch, dtype).itemsize for shape, _, dtype in row["tensors"]]
        cold = [place for place, flag in enumerate(row["cold"]) if flag and nbytes[place] > LEAST_COLD_BYTES]
        cold_bytes = sum(nbytes[place] for place in cold)
        self.copies = 1
        if cold and device != "cpu":
            self.copies = max(
                1, min(MOST_COPIES, math.ceil(ROTATED_BYTES / max(cold_bytes, 1)), int(8e9 / max(cold_bytes, 1)))
            )
        base = [make_tensor(spec, device, below.get(place, 2)) for place, spec in enumerate(row["tensors"])]
        self.tensors = [base]
        for _ in range(self.copies - 1):
            fresh = list(base)
            for place in cold:
                fresh[place] = make_tensor(row["tensors"][place], device, below.get(place, 2))
            self.tensors.append(fresh)
        self.bound = [self._bind(tensors) for tensors in self.tensors]

    def _bind(self, tensors: list[Tensor]) -> dict[str, Any]:
        def made(value: Any) -> Any:
            if isinstance(value, dict):
                return tensors[value["tensor"]] if "tensor" in value else getattr(torch, value["torch"])
            if isinstance(value, list):
                return [made(item) for item in value]
            return value

        found = {name: made(value) for name, value in self.args.items() if name in self.known}
        if "device" in self.known:
            found["device"] = torch.device(self.device)
        return found

    def __call__(self, copy: int = 0) -> Any:
        return self.op(**self.bound[copy])


def through_torch(call: Call, name: str) -> Callable[[int], Any]:
    """As a model calls it: of batch normalisation torch chooses cuDNN's kernel or its own, and the weights of recurrent
    layers lie in one buffer (`flatten_parameters`); apart from each other they would be copied in every call."""
    if name.startswith("_cudnn_rnn"):
        for bound in call.bound:
            keys = ("mode", "hidden_size", "proj_size", "num_layers", "batch_first", "bidirectional")
            given = [bound["weight"], bound["weight_stride0"], bound["input"].shape[-1], *(bound[key] for key in keys)]
            bound["weight_buf"] = torch._cudnn_rnn_flatten_weight(*given)
    if name == "native_batch_norm":
        order = ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")
        norm: Any = torch.batch_norm

        def forward(copy: int = 0) -> Any:
            return norm(*(call.bound[copy][key] for key in order), True)

        return forward
    if name == "native_batch_norm_backward" and call.bound[0]["train"]:
        kept: list[Any] = []
        prepare: Any = torch._batch_norm_impl_index
        for bound in call.bound:
            given = [bound[key] for key in ("input", "weight", "running_mean", "running_var")]
            bias = torch.zeros_like(given[1]) if given[1] is not None else None
            made = prepare(given[0], given[1], bias, *given[2:], True, 0.1, bound["eps"], True)
            kept.append((made[4], bound["input"], bound["grad_out"], *given[1:], made[1], made[2], True, bound["eps"],
                         bound["output_mask"], made[3]))  # fmt: skip
        gradient: Any = torch.ops.aten._batch_norm_impl_index_backward.default

        def backward(copy: int = 0) -> Any:
            return gradient(*kept[copy])

        return backward
    for bound in call.bound:
        if name.endswith("_attention_backward") or name == "_cudnn_rnn_backward":
            bound.update(kept_by_forward(name.removesuffix("_backward"), bound))
        elif "max_pool" in name and name.endswith("_backward"):
            bound["indices"] = places_of_maxima(name, bound)
        elif name.startswith("grid_sampler"):
            bound["grid"] = near_identity(bound["grid"])
        elif name.startswith("_embedding_bag"):
            bags, count = len(bound["offsets"]), len(bound["indices"])
            bound["offsets"] = torch.arange(bags, device=call.device) * max(count // bags, 1)
            if name.endswith("_backward"):
                bound.update(kept_by_bags(bound))
        elif name in ("bernoulli", "multinomial") or name.startswith("binary_cross_entropy"):
            bound |= {key: value.abs().clamp_(max=1) for key, value in bound.items() if key in ("self", "target")}
    return call


def places_of_maxima(name: str, bound: dict[str, Any]) -> Tensor:
    """As the forward op gives them: random ones would all write to the same few places."""
    op = getattr(torch.ops.aten, name.removesuffix("_backward")).default
    given = {argument.name: bound[argument.name] for argument in op._schema.arguments if argument.name in bound}
    if name.startswith("adaptive"):
        dims = int(name.partition("pool")[2][0])
        given["output_size"] = list(bound["grad_output"].shape[-dims:])
    return op(**given)[1]


def near_identity(grid: Tensor) -> Tensor:
    """Places close to those of the pixels, as models sample them: random ones would miss every cache."""
    sides = grid.shape[1:-1]
    along = torch.meshgrid(*(torch.linspace(-1, 1, side, device=grid.device) for side in sides), indexing="ij")
    return (torch.stack(along[::-1], -1) + 0.03 * torch.randn(grid.shape, device=grid.device)).to(grid.dtype)


def kept_by_bags(bound: dict[str, Any]) -> dict[str, Any]:
    """Which bag each index belongs to, how many a bag has, and of maxima where they were, as the forward op says."""
    grad, rows = bound["grad"], bound.get("num_weights") or len(bound["weight"])
    table = torch.randn(int(rows), grad.shape[1], device=grad.device, dtype=grad.dtype)
    given = [table, bound["indices"], bound["offsets"], False, bound["mode"]]
    _, offset2bag, bag_size, maxima = torch.ops.aten._embedding_bag.default(*given)
    made = {"offset2bag": offset2bag, "bag_size": bag_size, "maximum_indices": maxima}
    return {name: value for name, value in made.items() if name in bound}


def kept_by_forward(name: str, bound: dict[str, Any]) -> dict[str, Any]:
    """What the forward op leaves to its gradient: random values there would break the kernel."""
    op = getattr(torch.ops.aten, name).default
    given = {argument.name: bound[argument.name] for argument in op._schema.arguments if argument.name in bound}
    if name == "_cudnn_rnn":
        made = op(**given | {"train": True})
        return {"output": made[0], "reserve": made[3], "weight_buf": made[4]}
    wants = {argument.name for argument in op._schema.arguments}
    made = op(**given | ({"compute_log_sumexp": True} if "compute_log_sumexp" in wants else {}))
    seed, offset = (made[2], made[3]) if "efficient" in name else (made[6], made[7])
    return {"out": made[0], "logsumexp": made[1], "philox_seed": seed, "philox_offset": offset}


def kernels(path: Path, output: Path, ends: float, device: str, share: int = 0, workers: int = 1) -> int:
    """The calls whose numbers leave `share` when divided by `workers`."""
    results, marker = output / "kernels.jsonl", output / f"started{share}"
    if marker.exists():  # the worker before this one ended there
        with results.open("a") as file:
            file.write(json.dumps([int(marker.read_text() or -1), None, "crashed"]) + "\n")
        marker.unlink()
    told_lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    done = {line[0] for line in told_lines}
    crashed = {line[0] for line in told_lines if line[2] == "crashed"}
    bad: list[tuple[str, str]] = []  # two crashes are enough of a kind
    timer = Timer(device, output / "lock" if workers > 1 and device != "cpu" else None)
    failures = 0
    with results.open("a") as file, torch.no_grad():
        for number, row in enumerate(read_calls(path)):
            kind = (row["op"], row["tensors"][0][2] if row["tensors"] else "")
            if number in crashed:
                bad.append(kind)
            if number % workers != share:
                continue
            if number in done or bad.count(kind) > 1:
                continue
            if time.monotonic() > ends:
                break
            marker.write_text(str(number))
            try:
                with timer.alone():  # filling tensors would disturb what another worker times
                    call = Call(row, device)
                run = through_torch(call, row["op"].removeprefix("aten::"))
                took, spread = timer.seconds(run, call.copies, is_long="_cudnn_rnn" not in row["op"])
                file.write(f"[{number},{took:.4g},{spread:.2f}]\n")
                del call, run
            except Exception as error:
                text = f"{row['op']}: {type(error).__name__}: {error}"[:160].replace("\n", " ")
                broken = is_broken(device)
                file.write(json.dumps([number, None, "crashed" if broken else text]) + "\n")
                failures += 1
                if broken:
                    file.flush()
                    marker.unlink()
                    os._exit(3)
            file.flush()
            if number // workers % 500 == 0:
                print(f"kernels: {number} done, {failures} failed, {ends - time.monotonic():.0f} s left", flush=True)
            is_full = device != "cpu" and torch.cuda.memory_reserved() > MOST_MEMORY / workers
            if is_full or number // workers % (1000 // workers) == 999 // workers:
                gc.collect()
                timer.renew()
    marker.unlink(missing_ok=True)
    return 0


def is_broken(device: str) -> bool:
    """Whether the CUDA context can no longer be used."""
    if device == "cpu":
        return False
    try:
        torch.cuda.synchronize()
        torch.randn(1, device=device).add_(1).item()  # a capture that failed may leave the generator in it
    except RuntimeError:
        return True
    return False


class Energy:
    """The card's own counter; a window begins and ends where the counter moves."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libnvidia-ml.so.1")
        self.library.nvmlInit_v2()
        self.handle = ctypes.c_void_p()
        self.library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.handle))

    def read(self) -> float:
        value = ctypes.c_ulonglong()
        code = self.library.nvmlDeviceGetTotalEnergyConsumption(self.handle, ctypes.byref(value))
        if code:
            raise RuntimeError(f"no energy counter: NVML error {code}")
        return value.value / 1000

    def edge(self) -> tuple[float, float]:
        first = self.read()
        while (now := self.read()) == first:
            pass
        return now, time.perf_counter()

    def window(self, run: Callable[[], Any], seconds: float) -> tuple[float, float, int]:
        """Joules, seconds and runs of a window; `run` is asynchronous, so the queue is kept short."""
        for _ in range(3):
            run()
        torch.cuda.synchronize()
        once = time.perf_counter()
        run()
        torch.cuda.synchronize()
        batch = max(1, int(5e-3 / max(time.perf_counter() - once, 1e-6)))
        warm = time.perf_counter() + 0.15
        while time.perf_counter() < warm:
            for _ in range(batch):
                run()
            torch.cuda.synchronize()
        count = 0
        # While the edge is looked for the card must stay busy.
        value = self.read()
        while (before := self.read()) == value:
            for _ in range(batch):
                run()
            torch.cuda.synchronize()
        started = time.perf_counter()
        while time.perf_counter() < started + seconds:
            for _ in range(batch):
                run()
            count += batch
            torch.cuda.synchronize()
        value = self.read()
        while (after := self.read()) == value:
            for _ in range(batch):
                run()
            count += batch
            torch.cuda.synchronize()
        return after - before, time.perf_counter() - started, count


def graph_of(run: Callable[[], Any], times: int = 1) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        for _ in range(times):
            run()
    finally:
        graph.capture_end()
    return graph


def run_all(call: Call, order: list[int]) -> None:
    for number in order:
        call(number)


def energy(path: Path, output: Path, ends: float, device: str) -> int:
    """A few calls of each kind, each in a graph that repeats it; and the idle card."""
    if device == "cpu":
        return 0
    meter = Energy()
    stream = torch.cuda.Stream()
    torch.cuda.set_stream(stream)
    first = meter.edge()
    time.sleep(1.0)
    last = meter.edge()
    found: list[dict[str, Any]] = [{"idle_w": (last[0] - first[0]) / (last[1] - first[1])}]
    wanted = {"mm": 6, "addmm": 6, "bmm": 3, "convolution": 10, "convolution_backward": 5, "add": 4, "gelu": 2,
              "relu": 2,
              "native_layer_norm": 3, "native_batch_norm": 3, "copy": 2, "clone": 2, "_softmax": 2, "mul": 3,
              "_scaled_dot_product_cudnn_attention": 3, "_scaled_dot_product_efficient_attention": 2,
              "_cudnn_rnn": 2, "_foreach_add": 1, "cat": 2, "mean": 2}  # fmt: skip
    timer = Timer(device)
    with torch.no_grad():
        for number, row in enumerate(read_calls(path)):
            name = row["op"].removeprefix("aten::").rstrip("_")
            if time.monotonic() > ends - 1 or not any(wanted.values()):
                break
            if wanted.get(name, 0) <= 0:
                continue
            try:
                call = Call(row, device)
                took, _ = timer.seconds(call, call.copies)
                if not 1e-5 < took < 5e-3:
                    continue
                rounds = max(1, int(1e-3 / took / call.copies))
                order = [number for _ in range(rounds) for number in range(call.copies)]
                graph = graph_of(partial(run_all, call, order))
                joules, seconds, count = meter.window(graph.replay, 0.35)
                each = count * rounds * call.copies
                found.append({"call": number, "joules": joules / each, "seconds": seconds / each})
                wanted[name] -= 1
                del call, graph
            except Exception as error:
                print(f"energy: {row['op']}: {str(error)[:100]}", flush=True)
                if is_broken(device):
                    break
    (output / "energy.json").write_text(json.dumps(found))
    return 0


def host(path: Path, output: Path, ends: float, device: str) -> int:
    """Seconds that a call of each op keeps the processor busy, on tensors so small that the device waits for it."""
    found: dict[str, list[float]] = {}
    with torch.no_grad():
        for row in read_calls(path):
            if time.monotonic() > ends:
                break
            elements = sum(math.prod(shape) for shape, _, _ in row["tensors"])
            if elements > 200_000 or len(found.get(row["op"], ())) >= 3:
                continue
            try:
                call = Call(row | {"cold": [False] * len(row["cold"])}, device)
                for _ in range(10):
                    call()
                torch.cuda.synchronize() if device != "cpu" else None
                started = time.perf_counter()
                for _ in range(60):
                    call()
                took = (time.perf_counter() - started) / 60
                torch.cuda.synchronize() if device != "cpu" else None
                found.setdefault(row["op"], []).append(took)
            except Exception:
                if is_broken(device):
                    break
    facts = {"per_op_s": {op: statistics.median(times) for op, times in found.items()}} | python_costs(device)
    (output / "host.json").write_text(json.dumps(facts))
    return 0


def python_costs(device: str) -> dict[str, float]:
    """A launch as a model's code makes it (through torch's Python functions), a view, and the call of a module."""
    from torch import nn

    x = torch.randn(64, device=device)
    empty = nn.Sequential(*[nn.Identity() for _ in range(50)])

    def launches() -> None:
        y = x
        for _ in range(50):
            y = y + x

    def views() -> None:
        for _ in range(50):
            x.view(8, 8)

    found = {}
    parts = (
        ("launch_s", launches, 50),
        ("view_s", views, 50),
        ("module_s", lambda: empty(x), 50),
    )
    with torch.no_grad():
        for name, run, count in parts:
            run()
            times = []
            for _ in range(20):
                torch.cuda.synchronize() if device != "cpu" else None
                started = time.perf_counter()
                run()
                times.append((time.perf_counter() - started) / count)
            found[name] = statistics.median(times)
    torch.cuda.synchronize() if device != "cpu" else None
    return found


def whole(path: Path, output: Path, ends: float, device: str) -> int:
    """Models of the collection as a whole: eager, in a CUDA graph, and their energy."""
    models, forecast = import_module("kernel_models"), import_module("forecast")
    probe = forecast.HostProbe(device)
    results = output / "whole.jsonl"
    done = {json.loads(line)["name"] for line in results.read_text().splitlines()} if results.exists() else set()
    by_name = {one.name: one for one in models.collected()}
    with results.open("a") as file:
        for name in models.WHOLE:
            if name in done or time.monotonic() > ends - 3:
                continue
            file.write(json.dumps({"name": name} | forecast.measure_model(by_name[name], device, 0.4, probe)) + "\n")
            file.flush()
    return 0


if __name__ == "__main__":
    kind, calls, folder, left, where, which, of = sys.argv[1:8]
    raise SystemExit(worker(kind, Path(calls), Path(folder), float(left), where, int(which), int(of)))
