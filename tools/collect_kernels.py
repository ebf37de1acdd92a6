"""Times of kernels on a CUDA device, for the tables of `torchgauge forecast`.

    python tools/collect_kernels.py calls -o calls.jsonl.xz          here: the ops of many models, without data
    python tools/collect_kernels.py measure calls.jsonl.xz -o FOLDER on the device; --seconds ends it in time; resumes
    python tools/collect_kernels.py table FOLDER                     here: the table that the package ships
    python tools/collect_kernels.py extend FOLDER                    here: the same with more kernels

The device needs torch alone for the kernels; timm and transformers for the whole models that are timed beside them.
Nothing of torchgauge is imported there.
"""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import random
import sys
import time
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
# What was written this many bytes of traffic ago is no longer in the cache: four fifths of an H200's 50 MB.
CACHE_BYTES = 40_000_000
# Ops that launch nothing.
SILENT = ("empty", "new_empty", "detach", "alias", "lift_fresh", "_local_scalar_dense", "item")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=("calls", "measure", "table", "extend"))
    parser.add_argument("path", nargs="?", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("build/kernels"))
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--most", type=int, default=40_000, help="calls that are kept")
    parser.add_argument("--match", default="", help="only configurations whose name has this in it")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", action="append", choices=("whole", "host", "energy", "kernels"), help="repeatable")
    parser.add_argument(
        "--replace", action="append", default=[], metavar="FAMILY", help="of extend: instead of the old"
    )
    parser.add_argument("--skip", type=int, default=0, help="calls at the front that were measured before")
    args = parser.parse_args()
    sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tools")]
    if args.phase == "calls":
        return collect_calls(args.output, args.most, args.match)
    if args.phase == "measure":
        device: Any = import_module("kernel_device")
        parts = args.only or device.PARTS
        return int(device.measure(args.path, args.output, args.seconds, args.device, parts, args.skip))
    if args.phase == "extend":
        return int(import_module("kernel_tables").extend_tables(args.path, tuple(args.replace)))
    return int(import_module("kernel_tables").build_tables(args.path))


def collect_calls(output: Path, most: int, match: str) -> int:
    """Every distinct call of an op in the models, with which of its inputs would no longer be in the cache."""
    found: dict[str, dict[str, Any]] = {}
    for number, configuration in enumerate(import_module("forecast_models").collected()):
        if match not in configuration.name:
            continue
        started = time.perf_counter()
        try:
            for call in calls_of(configuration):
                text = json.dumps([call["op"], call["overload"], call["tensors"], call["args"], call["cold"]])
                kept = found.setdefault(text, call | {"models": []})
                kept["count"] = kept.get("count", 0) + 1
                if configuration.name not in kept["models"]:
                    kept["models"].append(configuration.name)
        except Exception as error:  # a model of the list may need another release of its package
            print(f"{configuration.name}: {type(error).__name__}: {str(error)[:100]}", flush=True)
        if number % 10 == 0:
            print(
                f"{number} {configuration.name}: {len(found)} calls, {time.perf_counter() - started:.1f} s", flush=True
            )
    return write_calls(chosen([*found.values(), *drawn_calls()], most), output)


def write_calls(calls: list[dict[str, Any]], output: Path) -> int:
    """Two files: what the device needs, and beside it the signatures that the tables are made from."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(output, "wt") as file:
        for call in calls:
            short = {name: call[name] for name in ("op", "overload", "tensors", "args", "cold")}
            file.write(json.dumps(short, separators=(",", ":")) + "\n")
    with gzip.open(f"{output}.signatures", "wt") as file:
        for call in calls:
            file.write(json.dumps([call["signature"], call["cold"], call["models"]], separators=(",", ":")) + "\n")
    return 0


def drawn_calls() -> list[dict[str, Any]]:
    """Sizes that the models of the list leave out: products of any shape, attention, sorting."""
    random.seed(1)

    def size(low: float, high: float, step: int) -> int:
        return max(step, round(2 ** random.uniform(low, high) / step) * step)

    found: list[Any] = []
    for number in range(2400):
        dtype = random.choice(("float32", "bfloat16", "bfloat16", "float16"))
        step = random.choice((1, 8, 16, 64))
        m, n, k = size(0, 14, random.choice((1, 1, 16))), size(4, 13.5, step), size(4, 13.5, step)
        if m * n * k > 3e12 or (dtype == "float32" and m * n * k > 2e11):
            continue
        weight = random.choice(([[n, k], [k, 1]], [[n, k], [k, 1]], [[k, n], [n, 1]]))
        turned = weight[0] == [n, k]
        right = [[k, n], [1, k] if turned else [n, 1], dtype]
        left = [[m, k], [k, 1], dtype] if number % 7 else [[m, k], [1, m], dtype]
        if number % 3 == 0:
            found.append(("addmm", [[[n], [1], dtype], left, right], ["self", "mat1", "mat2"], {}, [[m, n], dtype]))
        elif number % 3 == 1:
            found.append(("mm", [left, right], ["self", "mat2"], {}, [[m, n], dtype]))
        else:
            b, m, n, k = size(1, 9, 1), size(0, 11, 1), size(4, 11, 8), size(4, 9, 8)
            if b * (m * k + n * k + m * n) * 4 > 2e9:
                continue
            right = [[b, k, n], [k * n, 1, k] if turned else [k * n, n, 1], dtype]
            found.append(("bmm", [[[b, m, k], [m * k, k, 1], dtype], right], ["self", "mat2"], {}, [[b, m, n], dtype]))
    for _ in range(700):
        dtype = random.choice(("bfloat16", "bfloat16", "float16", "float32"))
        batch, heads = size(0, 6, 1), random.choice((4, 6, 8, 12, 16, 20, 24, 32))
        width = random.choice((32, 64, 64, 80, 96, 128))
        length = random.choice((1, size(4, 12, 1)))
        read = length if length > 1 and random.random() < 0.7 else size(5, 13, 16)
        is_causal = length == read and random.random() < 0.5
        if batch * heads * length * read > 3e10 or batch * heads * read * width > 5e8:
            continue
        query, key = (
            [[batch, heads, rows, width], [rows * heads * width, width, heads * width, 1], dtype]
            for rows in (length, read)
        )
        # cuDNN also takes the one query of a decoding step; flash is what chips without it use.
        is_flash = length == 1 and random.random() < 0.3
        kind = "efficient" if dtype == "float32" else "flash" if is_flash else "cudnn"
        more = {"dropout_p": 0.0, "is_causal": is_causal, "scale": None}
        more |= {"return_debug_mask": False} if kind != "efficient" else {}
        more |= {"compute_log_sumexp": random.random() < 0.3} if kind != "flash" else {}
        more |= {"attn_bias": None} if kind != "flash" else {}
        found.append((f"_scaled_dot_product_{kind}_attention", [query, key, key], ["query", "key", "value"], more,
                      [[batch, heads, length, width], dtype]))  # fmt: skip
    for _ in range(300):
        rows, columns, dtype = size(0, 14, 1), size(4, 17, 1), random.choice(("float32", "bfloat16"))
        if rows * columns > 3e8:
            continue
        tensor = [[rows, columns], [columns, 1], dtype]
        name = random.choice(("topk", "sort", "argmax", "cumsum", "_softmax"))
        settings: dict[str, dict[str, Any]] = {
                "topk": {"k": min(columns, 8), "dim": -1, "largest": True, "sorted": True},
                "sort": {"dim": -1, "descending": False}, "argmax": {"dim": -1, "keepdim": False},
                "cumsum": {"dim": -1, "dtype": None}, "_softmax": {"dim": -1, "half_to_float": False}}  # fmt: skip
        more = settings[name]
        made = {"topk": [rows, min(columns, 8)], "argmax": [rows]}.get(name, [rows, columns])
        found.append((name, [tensor], ["self"], more, [made, "int64" if name == "argmax" else dtype]))
    return [drawn_call(*one) for one in found]


def drawn_call(name: str, tensors: list[Any], names: list[str], more: dict[str, Any], out: list[Any]) -> dict[str, Any]:
    from torchgauge.cost import Call, assess
    from torchgauge.facts import Signature, TensorSpec
    from torchgauge.facts.strides import is_contiguous

    def spec(shape: list[int], stride: list[int], dtype: str) -> TensorSpec:
        laid = None if is_contiguous(tuple(shape), tuple(stride)) else tuple(stride)
        return TensorSpec(tuple(shape), dtype, laid)

    inputs = tuple(spec(*one) for one in tensors)
    outputs = (TensorSpec(tuple(out[0]), out[1]),)
    found = assess(Call(f"aten::{name}", dict(zip(names, inputs, strict=True)) | more, outputs, inputs))
    plain = {key: value for key, value in more.items() if value is not None}
    signature = Signature(f"aten::{name}", "", found.category, found.status, (), inputs, outputs, plain, found.cost, 0)
    cold = [random.random() < 0.6 if name in ("mm", "addmm") and place == len(tensors) - 1 else random.random() < 0.2
            for place in range(len(tensors))]  # fmt: skip
    args = {key: {"tensor": place} for place, key in enumerate(names)} | more
    return {"op": f"aten::{name}", "overload": "", "dtype": inputs[0].dtype, "tensors": tensors, "args": args,
            "cold": cold, "models": [], "signature": signature_row(signature)}  # fmt: skip


def chosen(calls: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """In random order, so that a run that ends early has seen some of everything; of each kind a share that grows with
    the square root of how often it occurs."""
    random.seed(0)
    random.shuffle(calls)
    kinds: dict[Any, list[dict[str, Any]]] = {}
    for call in calls:
        kinds.setdefault((call["op"], call["dtype"]), []).append(call)
    order = [(place / len(kind) ** 0.5, call) for kind in kinds.values() for place, call in enumerate(kind)]
    order.sort(key=lambda pair: pair[0])
    return [call for _, call in order[:most]]


def calls_of(configuration: Any) -> Iterator[dict[str, Any]]:
    from torchgauge.predict import steps

    noted = Noting.planner(steps)
    try:
        trace = traced(configuration)
    finally:
        steps.CudaPlanner = Noting.original  # type: ignore[misc]
    yield from described(trace.step_ops, noted)


def traced(configuration: Any) -> Any:
    """Two steps of a model of the list, without data."""
    import torch

    from torchgauge.predict import steps
    from torchgauge.predict.devices import find_device
    from torchgauge.predict.kernels import Library
    from torchgauge.predict.optimizers import make_optimizer
    from torchgauge.source import candidate_inputs
    from torchgauge.source.packages import import_optional

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import_optional("timm", "collecting kernels")
        with torch.device("meta"):
            model = import_module("fit_configurations").build(configuration)
    options, given = dict(configuration.options), configuration.inputs()
    is_training = options.get("mode") == "train"
    setting = steps.Setting(
        Library(find_device("h200").chip),
        train=is_training,
        dtype=getattr(torch, options["dtype"]) if "dtype" in options else None,
        optimizer=make_optimizer(options.get("optimizer", "adamw")) if is_training else None,
        channels_last=bool(options.get("channels_last")),
    )
    inputs = tuple(given["args"]) or given["kwargs"]
    kwargs = given["kwargs"] if given["args"] else None
    candidate = next(iter(candidate_inputs(model, inputs=inputs, kwargs=kwargs, dtype=setting.dtype)))
    return steps.trace(model, candidate, setting)


class Noting:
    """A planner that keeps the arguments of every call beside its signature."""

    original: Any = None

    @classmethod
    def planner(cls, steps: Any) -> dict[int, tuple[Any, list[Any]]]:
        cls.original = cls.original or steps.CudaPlanner
        noted: dict[int, tuple[Any, list[Any]]] = {}

        class Planner(cls.original):  # type: ignore[misc, name-defined]
            def plan(self, call: Any, inferred: Any = None) -> Any:
                plan = super().plan(call, inferred)
                places = {id(ghost): place for place, ghost in enumerate(call.distinct)}
                try:
                    args = {name: plain(value, places) for name, value in call.bind().items()}
                except TypeError:
                    return plan
                tensors = [[list(g.spec.shape), list(g.spec.stride), g.spec.record.dtype] for g in call.distinct]
                noted[id(plan.signature)] = (args, tensors, plan.signature)  # type: ignore[assignment]
                return plan

        steps.CudaPlanner = Planner
        return noted


def plain(value: Any, places: dict[int, int]) -> Any:
    """An argument as JSON: tensors by number, types and formats as texts."""
    import torch

    if isinstance(value, torch.Tensor):
        return {"tensor": places[id(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [plain(item, places) for item in value]
    if isinstance(value, torch.dtype | torch.memory_format):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device | torch.layout):
        return None
    raise TypeError(f"no argument of a kernel: {value!r}")


def described(ops: list[Any], noted: dict[int, Any]) -> Iterator[dict[str, Any]]:
    from torchgauge.predict.coordinates import cold_inputs

    for op, cold in zip(ops, cold_inputs(ops), strict=True):
        name = op.op.removeprefix("aten::")
        if op.category == "view" or name.startswith(SILENT) or id(op.signature) not in noted:
            continue
        args, tensors, signature = noted[id(op.signature)]
        if not op.op.startswith("aten::") or signature is not op.signature:
            continue
        if sum(spec.nbytes for spec in (*signature.inputs, *signature.outputs)) > 6e9:
            continue
        flags = [bool(flag) for flag in cold] + [False] * (len(tensors) - len(cold))
        yield {
            "op": op.op, "overload": signature.overload, "dtype": signature.dtype, "tensors": tensors, "args": args,
            "cold": flags, "phase": op.phase, "signature": signature_row(signature),
        }  # fmt: skip


def signature_row(signature: Any) -> dict[str, Any]:
    """What the coordinates of a call are made from."""
    from dataclasses import asdict

    return asdict(signature)


if __name__ == "__main__":
    raise SystemExit(main())
