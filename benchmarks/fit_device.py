"""What a CUDA device says about the configurations of `fit.py`: one process each, forked after the imports.

A separate process has its own context, library handles and allocator, so the figures are those of a script
that does nothing else. Several run side by side; what the whole device has in use is read in a second, sequential pass.
"""

from __future__ import annotations

import fnmatch
import gc
import gzip
import itertools
import json
import math
import multiprocessing
import os
import random
import signal
import subprocess
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fit_configurations import CONFIGURATIONS, Configuration, build
from torch import Tensor, nn

GIB = 1 << 30
DEVICE = "cuda"
BY_NAME = {configuration.name: configuration for configuration in CONFIGURATIONS}
LONGEST_S = 110.0  # of one process; it is ended if it takes longer


# --- one configuration ------------------------------------------------------------------------------------------------


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
            model = build(configuration).to(dtype=dtype)
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
        if configuration.mode == "train":
            self.optimizer = make_optimizer(options["optimizer"], self.model, bool(options.get("fused")))
        self.scaler = torch.amp.GradScaler("cuda") if self.amp is torch.float16 else None

    def captured_step(self) -> Any:
        """A step as a CUDA graph holds it: its output and its gradients stay."""
        if self.optimizer is None:
            with torch.no_grad():
                return self.model(*self.args, **self.kwargs)
        output = self.model(*self.args, **self.kwargs)
        default_loss(output).backward()
        self.optimizer.step()
        return None

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


def measure(name: str, *, history: bool, tracker: bool) -> dict[str, Any]:
    configuration = BY_NAME[name]
    torch.cuda.init()
    free, total = torch.cuda.mem_get_info()
    result: dict[str, Any] = {"total": total, "used_at_start": total - free}
    if history:
        torch.cuda.memory._record_memory_history(enabled="all", context=None, stacks="python", max_entries=4_000_000)
    run = Run(configuration)
    result["placed"] = torch.cuda.memory_allocated()
    marks = []
    for index in range(3):
        torch.cuda.synchronize()
        if index == 2:
            gc.collect()
            torch.cuda.empty_cache()
            result["before"] = torch.cuda.memory_allocated()
            result["reserved_before"] = torch.cuda.memory_reserved()
        torch.cuda.reset_peak_memory_stats()
        marks.append(torch.cuda.memory_stats()["allocation.all.allocated"])
        started = time.perf_counter()
        run.step()
        torch.cuda.synchronize()
        result.setdefault("steps", []).append(
            [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), time.perf_counter() - started]
        )
    result["allocated"], result["reserved"] = result["steps"][-1][:2]
    result["after"] = torch.cuda.memory_allocated()
    free, _ = torch.cuda.mem_get_info()
    result["used"], result["reserved_after"] = total - free, torch.cuda.memory_reserved()
    stats = torch.cuda.memory_stats()
    result["retries"] = stats["num_alloc_retries"]
    if history:
        result["marks"] = marks
        result["history"] = compact(torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()])
        torch.cuda.memory._record_memory_history(enabled=None)
    if tracker:
        result["tracker"] = tracked(run)
    return result


def measure_graph(name: str) -> dict[str, Any]:
    """One step in a CUDA graph, as torch's documentation writes it: three on a side stream, capture, replay."""
    configuration = BY_NAME[name]
    torch.cuda.init()
    run = Run(configuration)
    for group in run.optimizer.param_groups if run.optimizer is not None else ():
        group["capturable"] = True
    result: dict[str, Any] = {"placed": torch.cuda.memory_allocated()}
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run.step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    result["warmed"] = [torch.cuda.memory_allocated(), torch.cuda.memory_reserved()]
    torch.cuda.reset_peak_memory_stats()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = run.captured_step()
    result["captured"] = [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        graph.replay()
    torch.cuda.synchronize()
    result["graph"] = [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]
    free, total = torch.cuda.mem_get_info()
    result["used"] = total - free
    del output
    return result


def compact(trace: list[dict[str, Any]]) -> list[list[int]]:
    """[kind, number of the block, bytes, stream]: 0 alloc, 1 free, 2 segment alloc, 3 segment free, 4 map, 5 unmap,
    6 out of memory. A free is counted where it is completed."""
    kinds = {"alloc": 0, "free_completed": 1, "segment_alloc": 2, "segment_free": 3, "segment_map": 4}
    kinds |= {"segment_unmap": 5, "oom": 6}
    numbers: dict[tuple[bool, int], int] = {}
    rows, count = [], 0
    for entry in trace:
        kind = kinds.get(entry["action"])
        if kind is None:
            continue
        if kind == 6:
            rows.append([kind, -1, entry["size"], 0])
            continue
        key = (kind > 1, entry["addr"])
        if kind in (0, 2):
            numbers[key] = count
            count += 1
        rows.append([kind, numbers.get(key, -1), entry["size"], 0 if entry["stream"] == 0 else 1])
    return rows


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


def try_limit(name: str, limit: int) -> dict[str, Any]:
    """Three steps under a limit on what the allocator may reserve."""
    configuration = BY_NAME[name]
    torch.cuda.init()
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(limit / total)
    try:
        run = Run(configuration)
        for _ in range(3):
            run.step()
        torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        return {"limit": limit, "fits": False, "retries": torch.cuda.memory_stats()["num_alloc_retries"]}
    return {"limit": limit, "fits": True, "retries": torch.cuda.memory_stats()["num_alloc_retries"]}


# --- single kernels ---------------------------------------------------------------------------------------------------


class Watch:
    """The allocations and frees of each of many calls, separated by counting the allocations."""

    def __init__(self) -> None:
        torch.cuda.memory._record_memory_history(enabled="all", context=None, stacks="python", max_entries=4_000_000)
        self._bounds: list[tuple[str, int, int]] = []

    def call(self, name: str, function: Callable[[], Any]) -> Any:
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        result = function()
        self._bounds.append((name, before, torch.cuda.memory_stats()["allocation.all.allocated"]))
        return result

    def events(self) -> dict[str, list[int]]:
        """By call: sizes in the order of the allocations, negative where freed before the call ended."""
        trace = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
        torch.cuda.memory._record_memory_history(enabled=None)
        found: dict[str, list[int]] = {name: [] for name, _, _ in self._bounds}
        bounds = iter(self._bounds)
        name, start, end = next(bounds)
        count = 0
        own: set[int] = set()
        for entry in trace:
            if entry["action"] == "alloc":
                count += 1
                while count > end:
                    following = next(bounds, None)
                    if following is None:
                        return found
                    (name, start, end), own = following, set()
                if count > start:
                    found[name].append(entry["size"])
                    own.add(entry["addr"])
            elif entry["action"] == "free_completed" and entry["addr"] in own and count < end + 1:
                own.discard(entry["addr"])
                found[name].append(-entry["size"])
        return found


FORMATS = (
    ("fp32-nchw", torch.float32, torch.contiguous_format), ("bf16-nhwc", torch.bfloat16, torch.channels_last),
    ("bf16-nchw", torch.bfloat16, torch.contiguous_format), ("fp32-nhwc", torch.float32, torch.channels_last),
)  # fmt: skip


def measure_convolutions(shapes: list[list[int]], seconds: float) -> dict[str, Any]:
    """What each shape takes in each format and pass; shapes that `seconds` leave no time for are missing. A shape is
    [batch, in, height, width, out, kernel, kernel, stride, padding, dilation, groups, transposed]."""
    torch.cuda.init()
    started = time.perf_counter()
    watch = Watch()
    done = 0
    for shape in shapes:
        n, c, h, w, k, r, s, stride, padding, dilation, groups, transposed = shape
        if h == r == 1:  # of one dimension
            strides, paddings, dilations = [1, stride], [0, padding], [1, dilation]
        else:
            strides, paddings, dilations = [stride] * 2, [padding] * 2, [dilation] * 2
        given = (strides, paddings, dilations, bool(transposed), [0, 0], groups)
        if time.perf_counter() - started > seconds:
            break
        for name, dtype, layout in FORMATS:
            try:
                x = torch.empty(n, c, h, w, device="cuda", dtype=dtype).to(memory_format=layout)
                sizes = (c, k // groups, r, s) if transposed else (k, c // groups, r, s)
                weight = torch.empty(*sizes, device="cuda", dtype=dtype).to(memory_format=layout)
                key = f"{name} {'x'.join(map(str, shape))}"
                forward = partial(torch.ops.aten.convolution.default, x, weight, None, *given)
                out = watch.call(f"{key} forward", forward)
                grad = torch.empty_like(out)
                for which, mask in (("data", [True, False, False]), ("weight", [False, True, False])):
                    backward = partial(torch.ops.aten.convolution_backward.default, grad, x, weight, [0], *given, mask)
                    watch.call(f"{key} {which}", backward)
                done += 1
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
            x = weight = out = grad = None
    return {"convolutions": watch.events(), "seconds": time.perf_counter() - started, "done": done}


RECURRENT = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN_TANH": nn.RNN}
# Steps, batch, features, units, layers, directions: each is varied alone, then all at random.
BASE = (64, 32, 256, 512, 1, 1)
VARIED = (
    (1, 2, 4, 8, 12, 16, 24, 32, 48, 80, 100, 128, 160, 200, 256, 384, 512),
    (1, 2, 4, 8, 16, 24, 40, 48, 64, 96, 128, 256),
    (32, 64, 100, 128, 200, 300, 384, 512, 768, 1024),
    (32, 64, 100, 128, 200, 256, 300, 384, 640, 768, 896, 1024, 1536),
    (2, 3, 4, 6),
    (2,),
)  # fmt: skip
LARGEST_RECURRENT = 60_000_000  # values of all layers over all steps


def recurrent_shapes() -> list[tuple[int, ...]]:
    shapes = [BASE]
    for place, values in enumerate(VARIED):
        shapes += [(*base[:place], value, *base[place + 1 :]) for value in values for base in (BASE, (*BASE[:4], 2, 2))]
    chosen = random.Random(0)
    shapes += [
        tuple(chosen.choice((usual, *values)) for usual, values in zip(BASE, VARIED, strict=True)) for _ in range(160)
    ]
    return [shape for shape in dict.fromkeys(shapes) if math.prod(shape) / shape[2] <= LARGEST_RECURRENT]


def measure_recurrent(part: int, parts: int, seconds: float) -> dict[str, Any]:
    """Allocations of recurrent layers: of inference, and of the forward and backward pass of training."""
    torch.cuda.init()
    started = time.perf_counter()
    watch = Watch()
    for steps, batch, features, units, layers, directions in recurrent_shapes()[part::parts]:
        if time.perf_counter() - started > seconds:
            break
        for (kind, make), dtype, dropout in itertools.product(
            RECURRENT.items(), (torch.float32, torch.bfloat16, torch.float16), (0.0, 0.2)
        ):
            if dropout and layers == 1:
                continue
            layer = make(
                features, units, layers, bidirectional=directions == 2, dropout=dropout, device="cuda", dtype=dtype
            )
            x = torch.zeros(steps, batch, features, device="cuda", dtype=dtype)
            key = f"{kind} {dtype} {steps}x{batch}x{features}x{units}x{layers}x{directions} {dropout}"
            with torch.no_grad():
                watch.call(f"{key} inference", partial(layer.eval(), x))
            out, _ = watch.call(f"{key} train", partial(layer.train(), x.requires_grad_()))
            watch.call(f"{key} backward", partial(out.backward, torch.zeros_like(out)))
            del layer, x, out
    return {"recurrent": watch.events(), "seconds": time.perf_counter() - started}


def probes() -> Iterable[tuple[str, Callable[[], Any]]]:
    """Calls whose temporaries are to be known: name, and a function that prepares and returns the call."""
    cuda = partial(torch.randn, device="cuda")
    functional = nn.functional

    def attention(b: int, h: int, s: int, d: int, dtype: torch.dtype, kv: int = 0, **more: Any) -> Callable[[], Any]:
        def prepare() -> Any:
            q = cuda(b, s, h, d, dtype=dtype).transpose(1, 2).requires_grad_()
            k, v = (cuda(b, s, kv or h, d, dtype=dtype).transpose(1, 2).requires_grad_() for _ in range(2))
            options = dict(more)
            if options.pop("mask", False):
                options["attn_mask"] = cuda(b, 1, s, s, dtype=dtype)
            if options.pop("bool_mask", False):
                options["attn_mask"] = torch.ones(b, 1, s, s, device="cuda", dtype=torch.bool)
            return partial(functional.scaled_dot_product_attention, q, k, v, **options)

        return prepare

    for dtype, short in ((torch.bfloat16, "bf16"), (torch.float32, "fp32")):
        yield f"attention {short} 4x16x512x64", attention(4, 16, 512, 64, dtype)
        yield f"attention {short} 4x16x512x64 causal", attention(4, 16, 512, 64, dtype, is_causal=True)
        yield f"attention {short} 4x16x512x64 dropout", attention(4, 16, 512, 64, dtype, dropout_p=0.1)
        yield f"attention {short} 4x16x512x64 mask", attention(4, 16, 512, 64, dtype, mask=True)
        yield f"attention {short} 4x16x512x64 bool", attention(4, 16, 512, 64, dtype, bool_mask=True)
        yield f"attention {short} 4x16x197x64", attention(4, 16, 197, 64, dtype)
        yield f"attention {short} 4x16x197x64 mask", attention(4, 16, 197, 64, dtype, mask=True)
        yield (
            f"attention {short} 2x32x1024x64 kv4 gqa",
            attention(2, 32, 1024, 64, dtype, 4, enable_gqa=True, is_causal=True),
        )
        yield f"attention {short} 1x8x2048x128 causal", attention(1, 8, 2048, 128, dtype, is_causal=True)
        yield f"attention {short} 64x6x49x32", attention(64, 6, 49, 32, dtype)
        yield f"attention {short} 2x8x300x80", attention(2, 8, 300, 80, dtype)
        yield f"attention {short} 1x4x128x256", attention(1, 4, 128, 256, dtype)

    def module(
        make: Callable[[], nn.Module], *sizes: int, dtype: torch.dtype = torch.float32, nhwc: bool = False
    ) -> Any:
        def prepare() -> Any:
            x = cuda(*sizes, dtype=dtype)
            made = make().to("cuda", dtype)
            if nhwc:
                x, made = x.to(memory_format=torch.channels_last), made.to(memory_format=torch.channels_last)
            return partial(made, x.requires_grad_())

        return prepare

    for dtype, short in ((torch.bfloat16, "bf16"), (torch.float32, "fp32")):
        yield f"batch_norm {short} 32x256x56x56", module(lambda: nn.BatchNorm2d(256), 32, 256, 56, 56, dtype=dtype)
        yield (
            f"batch_norm {short} 32x256x56x56 nhwc",
            module(lambda: nn.BatchNorm2d(256), 32, 256, 56, 56, dtype=dtype, nhwc=True),
        )
        yield f"batch_norm {short} 32x2048x7x7", module(lambda: nn.BatchNorm2d(2048), 32, 2048, 7, 7, dtype=dtype)
        yield f"layer_norm {short} 16x512x1024", module(lambda: nn.LayerNorm(1024), 16, 512, 1024, dtype=dtype)
        yield f"layer_norm {short} 100000x96", module(lambda: nn.LayerNorm(96), 100000, 96, dtype=dtype)
        yield f"group_norm {short} 8x256x64x64", module(lambda: nn.GroupNorm(32, 256), 8, 256, 64, 64, dtype=dtype)
        yield f"linear {short} 8192x1024x4096", module(lambda: nn.Linear(1024, 4096), 16, 512, 1024, dtype=dtype)
        yield f"dropout {short}", module(lambda: nn.Dropout(0.1), 16, 512, 1024, dtype=dtype)
        yield f"rms_norm {short} 16x512x1024", module(lambda: nn.RMSNorm(1024), 16, 512, 1024, dtype=dtype)
        for kind in (nn.LSTM, nn.GRU):
            for batch, length, inner, width, layers, both in (
                (64, 256, 1024, 1024, 2, False), (32, 200, 768, 768, 3, False), (16, 100, 256, 512, 1, True),
                (8, 50, 300, 300, 2, True), (64, 128, 512, 1024, 1, False), (128, 64, 256, 256, 4, False),
            ):  # fmt: skip
                name = f"{kind.__name__} {short} b{batch} s{length} i{inner} h{width} l{layers} {2 if both else 1}"
                made = partial(kind, inner, width, layers, batch_first=True, bidirectional=both)

                def first(make: Any = made, sizes: Any = (batch, length, inner), dtype: Any = dtype) -> Any:
                    layer = make().to("cuda", dtype)
                    x = cuda(*sizes, dtype=dtype).requires_grad_()
                    return lambda: layer(x)[0]

                yield name, first
                if layers > 1:
                    yield f"{name} dropout", partial(first, partial(made, dropout=0.2))
    yield "embedding bf16 8192 of 30522x1024", lambda: partial(
        functional.embedding, torch.randint(0, 30522, (8192,), device="cuda"),
        cuda(30522, 1024, dtype=torch.bfloat16).requires_grad_(),
    )  # fmt: skip
    yield (
        "embedding fp32 2048 of 30522x768",
        lambda: partial(
            functional.embedding, torch.randint(0, 30522, (2048,), device="cuda"), cuda(30522, 768).requires_grad_()
        ),
    )
    yield (
        "embedding fp32 4096 of 30522x768",
        lambda: partial(
            functional.embedding, torch.randint(0, 30522, (4096,), device="cuda"), cuda(30522, 768).requires_grad_()
        ),
    )
    yield "cross_entropy bf16 2048x32000", lambda: partial(
        functional.cross_entropy, cuda(2048, 32000, dtype=torch.bfloat16).requires_grad_(),
        torch.randint(0, 32000, (2048,), device="cuda"),
    )  # fmt: skip
    yield "max_pool fp32 32x64x112x112", module(lambda: nn.MaxPool2d(3, 2, 1), 32, 64, 112, 112)
    yield "avg_pool fp32 32x2048x7x7", module(lambda: nn.AdaptiveAvgPool2d(1), 32, 2048, 7, 7)
    yield "upsample fp32", module(lambda: nn.Upsample(scale_factor=2, mode="bilinear"), 8, 64, 64, 64)
    yield (
        "index fp32",
        lambda: partial(
            lambda x, i: x[i], cuda(10000, 512).requires_grad_(), torch.randint(0, 10000, (20000,), device="cuda")
        ),
    )
    yield "roll fp32", lambda: partial(torch.roll, cuda(32, 56, 56, 96).requires_grad_(), (3, 3), (1, 2))
    yield "topk fp32", lambda: partial(lambda x: torch.topk(x, 300, dim=1)[0], cuda(8, 8400).requires_grad_())
    yield "sum bf16 rows", lambda: partial(lambda x: x.sum(0), cuda(8192, 4096, dtype=torch.bfloat16).requires_grad_())
    yield "mean of squares", lambda: partial(lambda x: x.float().pow(2).mean(), cuda(8192, 1024).requires_grad_())
    yield (
        "bmm transposed bf16",
        lambda: partial(
            lambda a, b: a.transpose(1, 2) @ b.transpose(1, 2),
            *(cuda(16, 512, 512, dtype=torch.bfloat16).requires_grad_() for _ in range(2)),
        ),
    )


def optimizer_probes() -> Iterable[tuple[str, Callable[[], Any]]]:
    def prepared(kind: Any, dtype: torch.dtype, **options: Any) -> Callable[[], Any]:
        def prepare() -> Any:
            parameters = [torch.randn(1024, 1024, device="cuda", dtype=dtype).requires_grad_() for _ in range(4)]
            parameters += [torch.randn(1000, device="cuda", dtype=dtype).requires_grad_() for _ in range(4)]
            optimizer = kind(parameters, **options)
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
            return optimizer.step

        return prepare

    for short, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        for kind in ("AdamW", "Adam", "SGD", "Adafactor", "RMSprop", "NAdam", "Adagrad", "Adamax"):
            made = getattr(torch.optim, kind)
            yield f"{kind} {short}", prepared(made, dtype)
        yield f"AdamW fused {short}", prepared(torch.optim.AdamW, dtype, fused=True)
        yield f"AdamW loop {short}", prepared(torch.optim.AdamW, dtype, foreach=False)
        yield f"SGD momentum {short}", prepared(torch.optim.SGD, dtype, lr=0.1, momentum=0.9)


def measure_probes() -> dict[str, Any]:
    """Forward and backward of each probe, twice: workspaces that stay are there the second time."""
    torch.cuda.init()
    watch = Watch()
    failed, choices, held = {}, {}, {}
    for name, prepare in probes():
        try:
            for turn in ("first", "again"):
                call = prepare()
                if name.startswith("attention"):
                    choices[name] = int(torch._fused_sdp_choice(*call.args, **call.keywords))
                torch.cuda.synchronize()
                before = torch.cuda.memory_allocated()
                out = watch.call(f"{name} forward {turn}", call)
                held[name] = [torch.cuda.memory_allocated() - before, out.nbytes]
                gradient = torch.empty_like(out)
                watch.call(f"{name} backward {turn}", partial(out.backward, gradient))
                with torch.no_grad():
                    watch.call(f"{name} inference {turn}", call)
                del call, out, gradient
        except Exception as error:
            failed[name] = repr(error)[:200]
    for name, prepare in optimizer_probes():
        try:
            call = prepare()
            watch.call(f"optimizer {name}", call)
            del call
        except Exception as error:
            failed[name] = repr(error)[:200]
    return {"probes": watch.events(), "failed": failed, "choices": choices, "held": held}


def record_fixture(kind: str) -> dict[str, Any]:
    """The whole history of the allocator over three steps of a small run, for the tests of its simulation."""
    limit = None
    settings = {"expandable": "expandable_segments:True", "split": "max_split_size_mb:32"}.get(kind)
    if settings is not None:
        change = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
        (change or torch.cuda.memory._set_allocator_settings)(settings)
    torch.cuda.init()
    _, total = torch.cuda.mem_get_info()
    torch.cuda.memory._record_memory_history(enabled="all", context=None, stacks="python", max_entries=4_000_000)
    if kind == "limit":
        limit = 620 << 20
        torch.cuda.set_per_process_memory_fraction(limit / total)
    sizes = [(n * 7919) % 97 for n in range(1, 400)]
    marks = []
    for step in range(3):
        held: list[Tensor] = []
        for index, size in enumerate(sizes):
            try:
                held.append(torch.empty((size * size * 509 + 100) * (3 if index % 17 == 0 else 1), device="cuda"))
            except torch.OutOfMemoryError:
                held.clear()
            if index % 3 == 2 and held:
                del held[(index * 31) % len(held)]
            if sum(tensor.nbytes for tensor in held) > 500 << 20:
                del held[::2]
        del held
        stats = torch.cuda.memory_stats()
        marks.append(
            {
                "step": step,
                "allocations": stats["allocation.all.allocated"],
                "allocated_peak": stats["allocated_bytes.all.peak"],
                "reserved_peak": stats["reserved_bytes.all.peak"],
                "reserved": stats["reserved_bytes.all.current"],
                "retries": stats["num_alloc_retries"],
                "ooms": stats["num_ooms"],
            }
        )
    trace = compact(torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()])
    return {"kind": kind, "limit": limit, "total": total, "marks": marks, "history": trace}


# --- processes --------------------------------------------------------------------------------------------------------


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


def is_graphed(configuration: Configuration) -> bool:
    """Those of the open set that need no autocast, accumulation or recomputation."""
    plain = not {"amp", "accumulate", "checkpoint"} & set(configuration.options)
    return configuration.held_out == 0 and plain


def card() -> dict[str, Any]:
    asked = "name,memory.total,memory.used,memory.reserved,driver_version"
    try:
        reported = subprocess.run(
            ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"], capture_output=True, text=True, timeout=20
        )
        return {"nvidia-smi": reported.stdout.strip() or reported.stderr.strip()}
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"nvidia-smi": repr(error)}


def versions() -> dict[str, Any]:
    torch.cuda.init()
    properties = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    order = None
    with suppress(AttributeError, RuntimeError):  # not in every version
        order = [int(backend) for backend in torch._C._get_sdp_priority_order()]
    return {
        "torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
        "name": properties.name,
        "capability": [properties.major, properties.minor], "sms": properties.multi_processor_count,
        "total_memory": properties.total_memory, "mem_get_info_total": total, "used_with_context": total - free,
        "sdp_order": order,
    }  # fmt: skip


def device_phase(
    out: Path,
    seconds: float,
    predictions: dict[str, Any] | None,
    parts: list[str],
    sets: list[int],
    match: str,
    shapes: Path,
) -> int:
    """Everything, in the order of its worth, until `seconds` are over; what was found is on disk after each part."""
    started = time.monotonic()
    deadline = started + seconds
    leave_cuda_alone()
    import timm  # noqa: F401 before the fork, once for all
    import torch._dynamo
    import torch.utils.checkpoint  # noqa: F401
    import transformers
    from torch.distributed._tools import mem_tracker  # noqa: F401

    for name in ("BertModel", "LlamaForCausalLM", "Qwen2ForCausalLM", "T5ForConditionalGeneration", "GPT2LMHeadModel",
                 "MistralForCausalLM", "BertForMaskedLM"):  # fmt: skip
        getattr(transformers, name)
    print(f"imports {time.monotonic() - started:.1f} s", flush=True)
    found: dict[str, Any] = {"card": card(), "configurations": {}, "limits": {}, "sequential": {}}
    out.mkdir(parents=True, exist_ok=True)

    def save(name: str, value: Any) -> None:
        temporary = out / f"{name}.tmp"
        temporary.write_bytes(gzip.compress(json.dumps(value, separators=(",", ":")).encode()))
        temporary.rename(out / f"{name}.json.gz")

    histories: dict[str, Any] = {}
    held_out = {configuration.name for configuration in CONFIGURATIONS if configuration.held_out}

    def save_result(name: str, result: dict[str, Any]) -> None:
        if "error" in result:
            print(f"{name:48} {result['error']} {result.get('where', '')[-160:]!r}", flush=True)
        elif "allocated" in result:
            history = result.pop("history", None)
            if history is not None:
                histories[name] = {"history": history, "marks": result.pop("marks")}
            if name in held_out:
                print(f"{name:48} held out {result['process_s']:5.1f} s", flush=True)
                return
            mib = [result[key] / 2**20 for key in ("before", "allocated", "reserved")]
            print(
                f"{name:48} before {mib[0]:8.0f} allocated {mib[1]:8.0f} reserved {mib[2]:8.0f} MiB "
                f"tracker {(result.get('tracker') or 0) / 2**20:8.0f} {result['process_s']:5.1f} s",
                flush=True,
            )
        elif "fits" in result:
            print(
                f"{name:48} limit {result['limit'] / 2**20:8.0f} MiB fits {result['fits']} retries {result['retries']}"
            )
        else:
            print(f"{name:48} {result['process_s']:5.1f} s", flush=True)

    first = Pool(1, 120, deadline)
    first.run([("versions", 0.6, versions)], save_result)
    start = "spawn" if "error" in first.results["versions"] else "fork"
    found["versions"] = first.results["versions"]
    pool = Pool(14, 120, deadline, start)
    jobs: list[tuple[str, float, Callable[[], dict[str, Any]]]] = []
    if "probes" in parts:
        jobs.append(("probes", 4, measure_probes))
    if "fixtures" in parts:
        jobs += [
            (f"fixture {kind}", 2, partial(record_fixture, kind)) for kind in ("plain", "limit", "expandable", "split")
        ]
    if "configurations" in parts:
        chosen_sets = [c for c in CONFIGURATIONS if c.held_out in sets and match in c.name]
        ordered = sorted(chosen_sets, key=lambda configuration: -configuration.size)
        jobs += [(c.name, c.size, partial(measure, c.name, history=True, tracker=True)) for c in ordered]
    if "convolutions" in parts:
        listed = json.loads(shapes.read_text())
        jobs += [(f"convolutions {i}", 8, partial(measure_convolutions, listed[i::14], 80.0)) for i in range(14)]
    if "recurrent" in parts:
        jobs += [(f"recurrent {part}", 4, partial(measure_recurrent, part, 7, 30.0)) for part in range(7)]
    if "graphs" in parts:
        jobs += [
            (f"graph {c.name}", 2 * c.size, partial(measure_graph, c.name)) for c in CONFIGURATIONS if is_graphed(c)
        ]
    if predictions is not None and "limits" in parts:
        for name, limit in predictions.items():
            chosen = BY_NAME[name]
            for factor in (0.97, 1.03):
                jobs.append((f"{name} x{factor}", chosen.size * 1.1, partial(try_limit, name, int(limit * factor))))
    pool.run(jobs, save_result)
    results = pool.results
    save("probes", results.pop("probes", {}))
    save("fixtures", {name: results.pop(name) for name in list(results) if name.startswith("fixture ")})
    convolutions: dict[str, Any] = {}
    for name in [name for name in results if name.startswith("convolutions ")]:
        convolutions |= results.pop(name).get("convolutions", {})
    save("convolutions", convolutions)
    recurrent: dict[str, Any] = {}
    for name in [name for name in results if name.startswith("recurrent ")]:
        recurrent |= results.pop(name).get("recurrent", {})
    save("recurrent", recurrent)
    save("histories", histories)
    found["graphs"] = {name: results.pop(name) for name in list(results) if name.startswith("graph ")}
    found["limits"] = {name: results.pop(name) for name in list(results) if "fits" in results[name]}
    # Not to be looked at until the predictions are done.
    kept_apart = {"configurations": {name: results.pop(name) for name in list(results) if name in held_out}}
    save("held_out", kept_apart)
    found["configurations"] = results
    save("measured", found)
    if "sequential" in parts:
        # What the device has in use: one at a time, small ones first.
        alone = Pool(1, 140, deadline, start)
        by_size = sorted(
            (c for c in CONFIGURATIONS if c.held_out in sets), key=lambda configuration: configuration.size
        )
        alone.run(
            [(c.name, c.size, partial(measure, c.name, history=False, tracker=False)) for c in by_size], save_result
        )
        used = {name: result for name, result in alone.results.items() if "used" in result}
        found["sequential"] = {name: result for name, result in used.items() if name not in held_out}
        save("measured", found)
        save(
            "held_out",
            {**kept_apart, "sequential": {name: result for name, result in used.items() if name in held_out}},
        )
    print(f"{time.monotonic() - started:.1f} s in all", flush=True)
    return 0
