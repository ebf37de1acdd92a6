"""Times of kernels on a CUDA device, for the tables of `torchgauge forecast`.

    python tools/kernels/collect.py PHASE [PATH …] [-o OUTPUT]

On the device, which needs torch alone (timm and transformers for the whole models that are timed beside the kernels):

    measure LIST -o FOLDER       times of the calls of a list; --seconds ends it in time; resumes
    names TIMES -o FOLDER        which kernels the libraries choose

Lists of calls to measure, made without a device:

    calls                        the ops of many models
    next LIST FOLDER             what the device left of a list, sizes drawn at random, some calls again
    long                         long attention and the like, in drawn sizes
    missing CALLS TIMES          what no run has measured yet, and drawn sizes
    layers                       layers of models that no list has
    variants TIMES               measured layers in other types, layouts and batches
    streamed                     ops that only stream their tensors, convolutions of signals and volumes
    batches TIMES                convolutions with other batches, short ones again
    slices                       functions of parts of tensors and of transposed ones
    fill TIMES CALLS             what `gaps` lists, short kernels again
    again TIMES --family matmul  short kernels of families
    doubtful TIMES               kernels far from the roofline and from their neighbours, to be measured again
    short TIMES CALLS            some of all lists, for one run of ten minutes

And what is made of the times:

    gather FOLDER…               all times in one file (or such files)
    gaps TIMES                   ops of all modules of torch that have no measured neighbour
    table TIMES                  the table of the package
    energy                       its energy, from the whole models of benchmarks/data/h200-time.jsonl

TIMES is kernel_times.jsonl.xz and CALLS kernel_calls.jsonl.xz, both in this folder.
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
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# What was written this many bytes of traffic ago is no longer in the cache: four fifths of an H200's 50 MB.
CACHE_BYTES = 40_000_000
OPS_TOLD = ("matmul", "attention", "recurrent", "convolution")  # families whose rows keep all arguments
# Ops that launch nothing.
SILENT = ("empty", "new_empty", "detach", "alias", "lift_fresh", "_local_scalar_dense", "item")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "phase",
        choices=(
            "calls",
            "measure",
            "names",
            "next",
            "long",
            "missing",
            "layers",
            "variants",
            "streamed",
            "batches",
            "gaps",
            "fill",
            "slices",
            "short",
            "again",
            "doubtful",
            "gather",
            "table",
            "energy",
        ),
    )
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("build/kernels"))
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--most", type=int, default=40_000, help="calls that are kept")
    parser.add_argument("--match", default="", help="only configurations whose name has this in it")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the kernels")
    parser.add_argument("--draws", type=int, default=1, help="of `layers`: 2 draws other calls of them")
    parser.add_argument("--seed", type=int, default=12, help="of `gaps`: which calls it draws (`fill` has 11)")
    parser.add_argument("--family", action="append", help="repeatable: of the table or the list only these")
    parser.add_argument("--only", action="append", choices=("whole", "host", "energy", "kernels"), help="repeatable")
    args = parser.parse_args()
    sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tools" / "kernels")]
    if args.phase == "calls":
        return collect_calls(args.output, args.most, args.match)
    if args.phase == "next":
        first, folder = args.paths
        return next_list(first, folder, args.output)
    if args.phase == "long":
        return write_calls(import_module("kernel_draws").long_draw(), args.output)
    if args.phase == "missing":
        listed, times = args.paths
        return missing_list(listed, times, args.output)
    if args.phase == "layers":
        return write_calls(import_module("kernel_layers").layers_draw(args.workers, args.draws), args.output)
    if args.phase == "variants":
        times = import_module("kernel_tables").read_times(*args.paths)
        return write_calls(import_module("kernel_layers").variant_draw(times), args.output)
    if args.phase == "streamed":
        return write_calls(streamed_list(import_module("kernel_streamed").streamed_draw()), args.output)
    if args.phase == "batches":
        rows = import_module("kernel_tables").measured_rows(*args.paths)
        return write_calls(import_module("kernel_layers").batch_draw(rows), args.output)
    if args.phase == "slices":
        return write_calls(import_module("kernel_gaps").slice_draw(), args.output)
    if args.phase in ("gaps", "fill", "short"):
        gaps: Any = import_module("kernel_gaps")
        rows = list(import_module("kernel_tables").measured_rows(args.paths[0]))
        if args.phase == "gaps":
            return int(gaps.report(gaps.found_gaps(rows, args.seed)))
        with lzma.open(args.paths[1], "rt") as file:
            listed = map(json.loads, file)
            if args.phase == "fill":
                return write_calls(gaps.gap_draw(rows, listed), args.output)
            calls = gaps.short_list(gaps.all_calls(rows, listed), args.most)
        return write_calls(calls, args.output)
    if args.phase == "again":
        rows = import_module("kernel_tables").measured_rows(*args.paths)
        return write_calls(import_module("kernel_layers").measured_again(rows, args.family or ()), args.output)
    if args.phase == "doubtful":
        return write_calls(doubtful_list(*args.paths), args.output)
    if args.phase == "measure":
        device: Any = import_module("kernel_device")
        return int(device.measure(*args.paths, args.output, args.seconds, args.device, args.only or device.PARTS,
                                  args.workers))  # fmt: skip
    if args.phase == "names":
        return int(
            import_module("kernel_names").names(*args.paths, args.output, args.seconds, args.device, args.workers)
        )
    tables: Any = import_module("kernel_tables")
    if args.phase == "gather":
        return int(tables.gather(args.paths, args.output))
    if args.phase == "table":
        return int(tables.build_tables(*args.paths, args.family or ()))
    return int(tables.fit_energy())


def collect_calls(output: Path, most: int, match: str) -> int:
    """Every distinct call of an op in the models, with which of its inputs would no longer be in the cache."""
    found: dict[str, dict[str, Any]] = {}
    for number, configuration in enumerate(import_module("kernel_models").collected()):
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
    draws: Any = import_module("kernel_draws")
    return write_calls(draws.balanced([*found.values(), *draws.base_draw()])[:most], output)


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


def next_list(first: Path, folder: Path, output: Path) -> int:
    """What the device left of the first list, sizes drawn at random, and some calls again, to see how far two
    measurements of one kernel differ. In random order, ops that only stream their tensors rather at the end."""
    draws: Any = import_module("kernel_draws")
    done = {json.loads(line)[0] for line in (folder / "kernels.jsonl").read_text().splitlines()}
    choose = random.Random(4)
    calls: list[tuple[float, dict[str, Any]]] = []
    with lzma.open(first, "rt") as file, gzip.open(folder / "signatures.jsonl.gz", "rt") as signatures:
        for number, (line, described_line) in enumerate(zip(file, signatures, strict=True)):
            is_streamed = not any(name in line[:60] for name in ("convolution", "mm", "attention", "_cudnn_rnn"))
            if number in done and choose.random() > 0.025:
                continue
            signature, _, models = json.loads(described_line)
            late = 0.4 + choose.random() if is_streamed and number not in done else choose.random()
            calls.append((late, json.loads(line) | {"signature": signature, "models": models}))
    calls += [(choose.random(), call) for call in draws.next_draw()]
    calls.sort(key=lambda pair: pair[0])
    return write_calls([call for _, call in calls], output)


def missing_list(listed: Path, times: Path, output: Path) -> int:
    """Drawn sizes, and what the device left of the list that all models were collected into. In random order, ops that
    only stream their tensors rather at the end."""
    draws: Any = import_module("kernel_draws")
    measured = [one.signature for one in import_module("kernel_tables").read_times(times)]
    with lzma.open(listed, "rt") as file:
        left = draws.left_over(map(json.loads, file), measured, again=0.03)
    choose = random.Random(6)
    calls = [(choose.random(), call) for call in draws.missing_draw()]
    for call in left:
        is_streamed = not any(name in call["op"] for name in ("convolution", "mm", "attention", "_cudnn_rnn"))
        calls.append((0.5 + choose.random() if is_streamed else choose.random(), call))
    calls.sort(key=lambda pair: pair[0])
    print(f"{len(left)} of the list, {len(calls) - len(left)} drawn")
    return write_calls([call for _, call in calls], output)


def streamed_list(streamed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Streamed ops, and among them convolutions of signals and volumes."""
    draws: Any = import_module("kernel_draws")
    draw = draws.Draw(10)
    convolutions = import_module("kernel_layers").signal_convolutions(draw, 4000)
    order = [(place / len(streamed), call) for place, call in enumerate(streamed)]
    order += [(draw.random.random(), call) for call in convolutions]
    order.sort(key=lambda pair: pair[0])
    return [call for _, call in order]


def doubtful_list(times: Path) -> list[dict[str, Any]]:
    """Products, convolutions, attention and recurrent layers to measure again."""
    tables: Any = import_module("kernel_tables")
    from torchgauge.predict.coordinates import locate
    from torchgauge.predict.kernel_tables import Rates

    rows = list(tables.measured_rows(times))
    signatures = [tables.signature_of_row(row) for _, row in rows]
    placed = [(locate(one, tuple(flag == "1" for flag in row[7])), row[9])
              for one, (_, row) in zip(signatures, rows, strict=True)]  # fmt: skip
    chosen = [rows[number] for number in tables.doubtful(Rates(tables.H200, 4.8e12, 2e-6), placed)]
    for _, row in chosen:
        print(f"{row[9] * 1e3:.3f} ms {row[0]} {[spec[0] for spec in row[3]]}")
    return list(import_module("kernel_layers").measured_again(chosen, OPS_TOLD, float("inf")))


def calls_of(configuration: Any) -> Iterator[dict[str, Any]]:
    from torchgauge.predict import steps

    noted = Noting.planner(steps)
    try:
        trace = traced(configuration)
    finally:
        steps.CudaPlanner = Noting.original  # type: ignore[misc]
    yield from described(trace.step_ops, noted)


def traced(configuration: Any, *, captured: bool = False) -> Any:
    """Two steps of a model of the list, without data; `captured` into a CUDA graph."""
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
            model = configuration.build()
    options, given = dict(configuration.options), configuration.inputs()
    is_training = options.get("mode") == "train"
    setting = steps.Setting(
        Library(find_device("h200").chip),
        train=is_training,
        dtype=getattr(torch, options["dtype"]) if "dtype" in options else None,
        optimizer=make_optimizer(options.get("optimizer", "adamw")) if is_training else None,
        channels_last=bool(options.get("channels_last")),
        captured=captured,
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
            "cold": flags, "phase": op.phase, "signature": asdict(signature),
        }  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
