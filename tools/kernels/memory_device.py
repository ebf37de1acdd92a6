"""What single kernels take of a CUDA device's memory: the source of `predict/convolutions.json` and of the rules in
`predict/workspaces.py`, and the histories of its allocator that `predict/allocator.py` is tested with.

    python tools/kernels/memory_device.py convolutions|recurrent|probes|histories [--seconds 300] -o FILE

Needs torch alone. The shapes of convolutions are those of `predict/convolutions.json`; `--shapes` takes others.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

KNOWN_SHAPES = Path(__file__).parents[2] / "src" / "torchgauge" / "predict" / "convolutions.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("convolutions", "recurrent", "probes", "histories"))
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--shapes", type=Path, help="a JSON list of convolutions; otherwise those of the package")
    parser.add_argument("--history", choices=("plain", "limit", "expandable", "split"), default="plain")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    if args.part == "convolutions":
        known = [row[0] for row in json.loads(KNOWN_SHAPES.read_text())["rows"]]
        found = measure_convolutions(json.loads(args.shapes.read_text()) if args.shapes else known, args.seconds)
    elif args.part == "recurrent":
        found = measure_recurrent(args.seconds)
    else:
        found = measure_probes() if args.part == "probes" else record_history(args.history)
    args.output.write_text(json.dumps(found, separators=(",", ":")))
    return 0


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
            x = weight = out = grad = None  # type: ignore[assignment]
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
    shapes: list[tuple[int, ...]] = [BASE]
    for place, values in enumerate(VARIED):
        shapes += [(*base[:place], value, *base[place + 1 :]) for value in values for base in (BASE, (*BASE[:4], 2, 2))]
    chosen = random.Random(0)
    shapes += [
        tuple(chosen.choice((usual, *values)) for usual, values in zip(BASE, VARIED, strict=True)) for _ in range(160)
    ]
    return [shape for shape in dict.fromkeys(shapes) if math.prod(shape) / shape[2] <= LARGEST_RECURRENT]


def measure_recurrent(seconds: float) -> dict[str, Any]:
    """Allocations of recurrent layers: of inference, and of the forward and backward pass of training."""
    torch.cuda.init()
    started = time.perf_counter()
    watch = Watch()
    for steps, batch, features, units, layers, directions in recurrent_shapes():
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
                x, made = x.to(memory_format=torch.channels_last), made.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
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


def record_history(kind: str) -> dict[str, Any]:
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


if __name__ == "__main__":
    sys.exit(main())
