"""The part of `collect.py` that asks a device which kernels its libraries choose, without timing them.

A library picks one of a few dozen kernels for a call by rules that are not published. The profiler sees the name of
each kernel, its grid and its blocks; several processes may share the device, since nothing is timed.
"""

from __future__ import annotations

import gc
import json
import lzma
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import torch

FIRST = ("convolution", "_cudnn_rnn", "attention")
THEN = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
# Calls of one session of the profiler: starting and ending one takes about as long as ten calls.
BATCH = 100
MOST_MEMORY = 40e9  # what all workers may hold between two calls
CALL_END = re.compile(r',"[01]*",\[')
MARKER = "spin_kernel"  # what `torch.cuda._sleep` launches: it separates the kernels of calls


def names(path: Path, output: Path, seconds: float, device: str, workers: int) -> int:
    """The kernels of each measured call, convolutions, recurrent layers and attention first; what an earlier run left
    in the folder is kept."""
    output.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + seconds

    def work(number: int) -> None:
        while (left := ends - time.monotonic()) > 5:
            given = [str(path), str(output), str(left), device, str(number), str(workers)]
            command = [sys.executable, __file__, *given]
            try:
                if subprocess.run(command, check=False, timeout=left + 15).returncode == 0:
                    break
            except subprocess.TimeoutExpired:
                print(f"names: worker {number} did not end", flush=True)
                break
            print(f"names: worker {number} ended early", flush=True)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, range(workers)))
    return write_names(output)


def write_names(folder: Path) -> int:
    """One file: the names, then a line per call with the numbers of its kernels."""
    found: dict[int, Any] = {}
    for part in sorted(folder.glob("part*.jsonl")):
        for line in part.read_text().splitlines():
            number, kernels = json.loads(line)
            found[number] = kernels
    numbers: dict[str, int] = {}
    lines = []
    for number in sorted(found):
        kernels = found[number]
        if isinstance(kernels, list):
            kernels = [[numbers.setdefault(name, len(numbers)), *rest] for name, *rest in kernels]
        lines.append(json.dumps([number, kernels], separators=(",", ":")))
    text = "\n".join([json.dumps(list(numbers)), *lines])
    (folder / "names.jsonl.xz").write_bytes(lzma.compress(text.encode(), preset=6))
    failed = [kernels for kernels in found.values() if not isinstance(kernels, list)]
    empty = sum(not kernels for kernels in found.values())
    print(f"names: {len(found)} calls, {len(failed)} failed, {empty} without a kernel, {len(numbers)} names")
    for text in failed[:5]:
        print(f"  {text}")
    return 0


def measured_lines(path: Path) -> list[tuple[int, str]]:
    """Each call of the measured kernels once, with the number of its first row, in random order."""
    chosen: list[tuple[bool, float, int, str]] = []
    seen, choose = set(), random.Random(7)
    with lzma.open(path, "rt") as file:
        next(file)
        for number, line in enumerate(file):
            is_first = any(name in line[:60] for name in FIRST)
            if not is_first and not line.startswith(tuple(f'["{name}"' for name in THEN)):
                continue
            call = CALL_END.split(line, maxsplit=1)[0]  # which inputs are in the cache does not change the choice
            if call not in seen:
                seen.add(call)
                chosen.append((not is_first, choose.random(), number, line))
    return [(number, line) for *_, number, line in sorted(chosen)]


def called(row: list[Any]) -> dict[str, Any] | None:
    """A measured row as a call for `kernel_device.Call`; None for calls with arguments that rows do not keep."""
    op, overload, _, inputs, outputs, attributes, *_ = row
    tensors = []
    for shape, dtype, stride, *_ in inputs:
        if stride is None:
            stride = [prod(shape[dim + 1 :]) for dim in range(len(shape))]
        tensors.append([shape, stride, dtype])
    name = op.removeprefix("aten::")
    if name.startswith("convolution"):
        args = convolution_arguments(name, inputs, outputs, attributes)
    elif name.startswith("_cudnn_rnn"):
        args = recurrent_arguments(name, inputs, attributes)
    elif "attention" in name:
        args = attention_arguments(name, inputs, attributes)
    else:
        order = {"mm": ["self", "mat2"], "bmm": ["self", "mat2"]}.get(name)
        args = numbered(order or ["self", *(("mat1", "mat2") if name == "addmm" else ("batch1", "batch2"))])
        if len(inputs) < len(args):  # one tensor given twice
            args |= {list(args)[-1]: {"tensor": len(inputs) - 1}}
    if args is None:
        return None
    return {"op": op, "overload": overload, "tensors": tensors, "args": args, "cold": [False] * len(tensors)}


def numbered(order: list[str], start: int = 0) -> dict[str, Any]:
    return {name: {"tensor": start + place} for place, name in enumerate(order)}


def convolution_arguments(name: str, inputs: Any, outputs: Any, attributes: dict[str, Any]) -> dict[str, Any] | None:
    is_backward = name == "convolution_backward"
    if len(inputs) < (3 if is_backward else 2):
        return None
    kept = {key: attributes[key] for key in ("stride", "padding", "dilation", "transposed", "groups")}
    order = ["grad_output", "input", "weight"] if is_backward else ["input", "weight", "bias"][: len(inputs)]
    args = numbered(order) | kept
    data, weight = (inputs[args[which]["tensor"]][0] for which in ("input", "weight"))
    made = inputs[0][0] if is_backward else outputs[0][0]
    if attributes["transposed"]:
        parts = zip(data[2:], made[2:], weight[2:], *(kept[key] for key in ("stride", "padding", "dilation")),
                    strict=True)  # fmt: skip
        args["output_padding"] = [
            long - ((length - 1) * stride - 2 * pad + apart * (wide - 1) + 1)
            for length, long, wide, stride, pad, apart in parts
        ]
    else:
        args["output_padding"] = [0] * len(data[2:])
    if is_backward:
        mask = attributes["output_mask"]
        return args | {"bias_sizes": [made[1]] if mask[2] else None, "output_mask": mask}
    return args if "bias" in args else args | {"bias": None}


def recurrent_arguments(name: str, inputs: Any, attributes: dict[str, Any]) -> dict[str, Any] | None:
    count = attributes["num_layers"] * (2 if attributes["bidirectional"] else 1)
    if len(inputs[0][0]) != 3:
        return None  # packed sequences, whose lengths are not kept
    state = next(place for place, spec in enumerate(inputs) if place and len(spec[0]) == 3)
    weights, is_held = state - 1, (state - 1) % 2 == 1  # the last before the state may be all weights in one buffer
    weights -= is_held
    if weights not in (2 * count, 4 * count):
        return None
    args: dict[str, Any] = {"input": {"tensor": 0}, "weight": [{"tensor": 1 + place} for place in range(weights)]}
    args |= {"weight_stride0": weights // count, "weight_buf": None, "proj_size": 0, "dropout": 0.0,
             "batch_sizes": [], "dropout_state": None, "cx": None}  # fmt: skip
    args |= {key: attributes[key] for key in ("mode", "hidden_size", "num_layers", "batch_first", "train",
                                              "bidirectional")}  # fmt: skip
    args["hx"] = {"tensor": state}
    if attributes["mode"] == 2:
        args["cx"] = {"tensor": state + 1}
    if name == "_cudnn_rnn":
        return args
    after = state + (2 if attributes["mode"] == 2 else 1)
    more = numbered(["output", "grad_output"], after) | {"grad_hy": None, "grad_cy": None}
    more |= {"reserve": {"tensor": len(inputs) - 1}, "output_mask": attributes["output_mask"]}
    return args | more


def attention_arguments(name: str, inputs: Any, attributes: dict[str, Any]) -> dict[str, Any] | None:
    library = next(one for one in ("cudnn", "flash", "efficient") if one in name)
    args: dict[str, Any] = {"dropout_p": 0.0, "is_causal": attributes["is_causal"], "scale": None}
    if not name.endswith("_backward"):
        if len(inputs) < 3:
            return None
        order = ["query", "key", "value", *(["attn_bias"] if len(inputs) > 3 and library != "flash" else [])]
        args |= numbered(order) | ({"return_debug_mask": False} if library != "efficient" else {})
        if library != "flash":
            args = {"attn_bias": None, "compute_log_sumexp": attributes["compute_log_sumexp"]} | args
        return args
    if len(inputs) < 8:
        return None
    is_masked = len(inputs) > 8 and library != "flash"
    # Drawn calls have the mask after the values, those of models where torch's signature has it.
    mask = 8 if library == "cudnn" and inputs[5][1] == "float32" != inputs[4][1] else 4
    args |= numbered(["grad_out_" if library == "efficient" else "grad_out", "query", "key", "value"])
    # The forward pass makes these again, see `kernel_device.kept_by_forward`.
    args |= dict.fromkeys(("out", "logsumexp", "philox_seed", "philox_offset"), None)
    if library != "flash":
        args["attn_bias"] = {"tensor": mask} if is_masked else None
    if library == "efficient":
        return args | {"grad_input_mask": [True, True, True, is_masked]}
    length, read = inputs[1][0][2], inputs[2][0][2]
    return args | {"cum_seq_q": None, "cum_seq_k": None, "max_q": length, "max_k": read}


def worker(path: Path, output: Path, seconds: float, device: str, share: int, workers: int) -> int:
    """The calls whose places in the order leave `share` when divided by `workers`, a batch at a time."""
    ends = time.monotonic() + seconds
    warnings.simplefilter("ignore")
    results, marker = output / f"part{share}.jsonl", output / f"started{share}"
    if marker.exists():  # the worker before this one ended there
        with results.open("a") as file:
            file.write(json.dumps([int(marker.read_text() or -1), "crashed"]) + "\n")
        marker.unlink()
    known = results.read_text().splitlines() if results.exists() else []
    done = {json.loads(line)[0] for line in known}
    own = measured_lines(path)[share::workers]
    left = [(number, json.loads(line)) for number, line in own if number not in done]
    started = len(own) - len(left)
    size = 10 if any("crashed" in line for line in known) else BATCH  # after a crash less is lost with the next one
    with results.open("a") as file, torch.no_grad():
        for first in range(0, len(left), size):
            if time.monotonic() > ends:
                break
            for number, kernels in profiled(left[first : first + size], device, marker, ends):
                file.write(json.dumps([number, kernels], separators=(",", ":")) + "\n")
            file.flush()
            if share == 0 and first // size % 5 == 0:
                print(f"names: {started + first} of {len(own)}, {ends - time.monotonic():.0f} s left", flush=True)
            if device == "cuda" and torch.cuda.memory_reserved() > MOST_MEMORY / workers:
                gc.collect()
                torch.cuda.empty_cache()
    marker.unlink(missing_ok=True)
    return 0


def profiled(
    rows: list[tuple[int, list[Any]]], device: str, marker: Path, ends: float
) -> list[tuple[int, list[list[Any]] | str]]:
    """Of each call its kernels, or why it failed."""
    from torch.profiler import ProfilerActivity, profile

    is_cuda = device == "cuda"
    kernel_device: Any = import_module("kernel_device")
    failed: dict[int, str] = {}
    ran: list[int] = []
    with profile(activities=[ProfilerActivity.CUDA if is_cuda else ProfilerActivity.CPU]) as profiler:
        for number, row in rows:
            if time.monotonic() > ends:
                break
            call = called(row)
            if call is None:
                failed[number] = "arguments that rows do not keep"
                continue
            marker.write_text(str(number))
            built = run = None
            try:
                built = kernel_device.Call(call, device)
                run = kernel_device.through_torch(built, call["op"].removeprefix("aten::"))
                separate(is_cuda)
                run(0)
                separate(is_cuda)
                ran.append(number)
            except Exception as error:
                failed[number] = f"{call['op']}: {type(error).__name__}: {error}"[:160].replace("\n", " ")
                if kernel_device.is_broken(device if is_cuda else "cpu"):
                    os._exit(3)
                if run is not None:  # the call itself failed, after the first mark
                    separate(is_cuda)
                    ran.append(number)
            if is_cuda and torch.cuda.memory_reserved() > 4e9:
                built = run = None
                torch.cuda.empty_cache()
    marker.unlink(missing_ok=True)
    segments = between_marks(profiler) if is_cuda else [[] for _ in ran]
    found: list[tuple[int, list[list[Any]] | str]] = list(failed.items())
    if len(segments) != len(ran):
        print(f"names: {len(segments)} parts for {len(ran)} calls", flush=True)
        return found
    return found + [(number, part) for number, part in zip(ran, segments, strict=True) if number not in failed]


def separate(is_cuda: bool) -> None:
    if is_cuda:
        torch.cuda.synchronize()
        torch.cuda._sleep(1)
        torch.cuda.synchronize()


def between_marks(profiler: Any) -> list[list[list[Any]]]:
    """The kernels between every two marks: name, grid, block, bytes of shared memory, how many, their microseconds
    (next to other processes). Equal ones are counted, in the order of their first launch."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    wanted = ("kernel", "gpu_memset", "gpu_memcpy")
    ordered = sorted((event for event in events if event.get("cat") in wanted), key=lambda event: float(event["ts"]))
    parts: list[dict[str, list[Any]]] = []
    is_inside = False
    for event in ordered:
        if MARKER in event["name"]:
            is_inside = not is_inside
            if is_inside:
                parts.append({})
        elif is_inside:
            facts = event.get("args", {})
            where = [facts.get("grid"), facts.get("block"), facts.get("shared memory")]
            one = parts[-1].setdefault(json.dumps([event["name"], where]), [event["name"], *where, 0, 0.0])
            one[4] += 1
            one[5] = round(one[5] + float(event["dur"]), 3)
    return [list(part.values()) for part in parts]


if __name__ == "__main__":
    calls, folder, left, where, which, of = sys.argv[1:7]
    raise SystemExit(worker(Path(calls), Path(folder), float(left), where, int(which), int(of)))
