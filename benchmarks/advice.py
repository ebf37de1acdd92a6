"""Every piece of advice with a gain that is shown on a set of models, against what its change brings.

    python benchmarks/advice.py compare             here, without a GPU: the ranges for an H200, against the gains that
                                                    were measured there (data/advice-gains.jsonl)
    python benchmarks/advice.py measure [--cuda] [--only NAMES] -o FILE
                                                    predicts and measures, on this CPU or on an H200

A patch is run on a copy of the model, an edit is applied to a copy of its file, and where advice has neither, the
change of the model's author is measured. One thread; processor time on a CPU, wall clock around a synchronized run on
CUDA; old and new in turns, four rounds. A range holds a gain that lies in it to within half a point.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import re
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import advice_models
import torch
from advice_models import Inputs, Subject
from torch import Tensor, nn

DATA = Path(__file__).parent / "data" / "advice-gains.jsonl"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=("compare", "measure"))
    parser.add_argument("--cuda", action="store_true", help="measure on the GPU of this machine, an H200")
    parser.add_argument("--only", default="", help="names of models, with commas")
    parser.add_argument("-o", "--output", type=Path, default=Path("build/advice.json"))
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    names = args.only.split(",") if args.only else [subject.name for subject in advice_models.SUBJECTS]
    chosen = [subject for subject in advice_models.SUBJECTS if subject.name in names]
    on = "h200" if args.cuda or args.phase == "compare" else None
    if on is None:
        measure_roof()
    rows: list[dict[str, Any]] = []
    known = stored()
    for subject in chosen:
        for row in expected(subject, on):
            key = (subject.name, row["rule"])
            real = known.get(key) if args.phase == "compare" else measured(subject, row, cuda=args.cuda)
            if real is None:
                print(f"| {subject.name} | `{row['rule']}` | {row['low']:.1%} to {row['high']:.1%} | not measured | |")
                continue
            rows.append({"model": subject.name, **row, "measured": real})
            print(table_row(rows[-1]), flush=True)
            if args.phase == "measure":
                args.output.parent.mkdir(parents=True, exist_ok=True)
                args.output.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    print(summary(rows))
    return 0


def stored() -> dict[tuple[str, str], dict[str, Any]]:
    rows = map(json.loads, DATA.read_text(encoding="utf-8").splitlines()[1:])
    return {(row["model"], row["rule"]): row["measured"] for row in rows}


def is_held(row: dict[str, Any]) -> bool:
    return bool(row["low"] - 0.005 <= row["measured"]["gain"] <= row["high"] + 0.005)


def table_row(row: dict[str, Any]) -> str:
    real, how = row["measured"], row["code_kind"] or "by hand"
    what = f"| {row['model']} | `{row['rule']}` ({how}) | {row['low']:.1%} to {row['high']:.1%} |"
    if "error" in real:
        return f"{what} not run: {real['error'][:80]} | |"
    span = f"{real['gain']:.1%} ({real['low']:.1%} to {real['high']:.1%})"
    return f"{what} {span} | {'yes' if is_held(row) else 'no'} |"


def summary(rows: Iterable[dict[str, Any]]) -> str:
    run = [row for row in rows if "error" not in row["measured"]]
    if not run:
        return "nothing was measured"
    held = sum(map(is_held, run))
    width = statistics.median(row["high"] / row["low"] if row["low"] else math.inf for row in run)
    return f"\nheld {held} of {len(run)} ({held / len(run):.0%}); median width {width:.2f}"


def built(subject: Subject, fix: str = "", source: ModuleType | None = None) -> nn.Module:
    """With the same weights each time; `source`: from an edited copy of the models' file."""
    torch.manual_seed(0)
    made = subject.made if source is None else next(s for s in source.SUBJECTS if s.name == subject.name).made
    return made(fix).eval()


def expected(subject: Subject, on: str | None) -> list[dict[str, Any]]:
    """The advice with a gain on the device that is measured; bugs have none."""
    import torchgauge as tg

    settings = {"on": on} if on else {}
    inputs = subject.inputs(subject.cuda_scale if on else 1)
    try:
        advice = tg.analyze(built(subject), inputs=inputs, device="cpu", progress=False, **settings).to_dict()["advice"]
    except Exception as error:  # such as a model that the installed library does not have
        print(subject.name, f"{type(error).__name__}: {error}"[:300], flush=True)
        return []
    kept = []
    for row in advice:
        gain = row["expected_gain"]
        if gain is not None and gain.get("device", on) == on:
            known = {"rule": row["rule"], "module": row["where"]["module"], "source": row["where"]["source"]}
            kept.append(known | {"quantity": gain["quantity"], "low": gain["low"], "high": gain["high"],
                                 "code_kind": row["code_kind"], "code": row["code"]})  # fmt: skip
    return kept


def measure_roof() -> None:
    """The rates of one thread, kept in `TORCHGAUGE_CACHE`, as `--inference` measures them once. Without them those of a
    typical server are assumed. Kernels are not measured: with those of `system --calibrate`, gains from fewer calls are
    understated."""
    from torchgauge.hardware import cpu_name
    from torchgauge.measure.calibrate import calibrate_device

    found = calibrate_device("cpu", cpu_name(), f"with torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(
        f"{found.name}: {found.flops_per_s.get('float32', 0) / 1e9:.0f} GFLOP/s, {found.bytes_per_s or 0:.3g} B/s",
        flush=True,
    )


def measured(subject: Subject, row: dict[str, Any], *, cuda: bool) -> dict[str, Any]:
    device = "cuda" if cuda else "cpu"
    inputs = tuple(value.to(device) for value in subject.inputs(subject.cuda_scale if cuda else 1))
    try:
        new, given = changed(subject, row, inputs, device)
        if row["quantity"] != "time_s":
            return bytes_saved(built(subject), new, inputs, row["quantity"])
        sides = [built(subject).to(device), new.to(device)]
        with torch.inference_mode():
            return gain_in_turns(sides, given, cuda=cuda) | {"agrees": agrees(sides, inputs, given)}
    except Exception as error:  # one that cannot run must not cost the others
        return {"error": f"{type(error).__name__}: {error}"[:300]}


def changed(subject: Subject, row: dict[str, Any], inputs: Inputs, device: str) -> tuple[nn.Module, Inputs]:
    """The model after the change that the advice shows, or that is written here for its rule."""
    if row["code_kind"] == "patch":
        names = {"model": built(subject).to(device), "torch": torch, "inputs": inputs}
        exec(row["code"], names)
        return names["model"].eval(), names["inputs"]
    file = Path((row["source"] or "").partition(":")[0]).name
    if row["code_kind"] == "edit" and Path(__file__).with_name(file).exists():  # not the file of a library
        return built(subject, source=edited(row["code"], file)), inputs
    return built(subject, row["rule"]), inputs


def edited(diff: str, file: str) -> ModuleType:
    """A file of models with the changes of a diff without context."""
    lines = Path(__file__).with_name(file).read_text(encoding="utf-8").splitlines()
    hunks = re.split(r"^@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@\n", diff, flags=re.MULTILINE)[1:]
    for start, count, body in reversed(list(zip(hunks[::3], hunks[1::3], hunks[2::3], strict=True))):
        old = int(count or 1) if count is not None else 1
        new = [line[1:] for line in body.splitlines() if line.startswith("+")]
        at = int(start) - (1 if old else 0)
        lines[at : at + old] = new
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "advice_models_edited.py"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        spec = importlib.util.spec_from_file_location(f"edited_{abs(hash(diff))}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    return module


def gain_in_turns(sides: list[nn.Module], given: tuple[Any, ...], *, cuda: bool) -> dict[str, float]:
    """The gain of the second side from the least time of each in turns, and its range over four rounds."""
    clock = time.perf_counter if cuda else time.thread_time
    for side in sides:
        for _ in range(3):
            side(*given)
    gains, best_of_all = [], [math.inf, math.inf]
    for _ in range(4):
        best = [math.inf, math.inf]
        end = time.perf_counter() + (0.12 if cuda else 0.5)
        turns = 0
        while time.perf_counter() < end or turns < (5 if cuda else 25):
            for at, side in enumerate(sides):
                if cuda:
                    torch.cuda.synchronize()
                begin = clock()
                side(*given)
                if cuda:
                    torch.cuda.synchronize()
                best[at] = min(best[at], clock() - begin)
            turns += 1
        gains.append(1 - best[1] / best[0])
        best_of_all = [min(pair) for pair in zip(best_of_all, best, strict=True)]
    return {
        "gain": statistics.median(gains),
        "low": min(gains),
        "high": max(gains),
        "before_s": best_of_all[0],
        "after_s": best_of_all[1],
    }


def agrees(sides: list[nn.Module], inputs: Inputs, given: Inputs) -> bool:
    one, other = (side(*own) for side, own in zip(sides, (inputs, given), strict=True))
    one, other = (value if isinstance(value, Tensor) else value[0] for value in (one, other))
    return bool((one - other).abs().max() <= 2e-2 * one.abs().max().clamp_min(1e-3))


def bytes_saved(old: nn.Module, new: nn.Module, inputs: Inputs, quantity: str) -> dict[str, float]:
    import torchgauge as tg

    with torch.inference_mode(False):
        sizes = [tg.analyze(side, inputs=inputs, progress=False).to_dict()["totals"][quantity] for side in (old, new)]
    gain = 1 - sizes[1] / sizes[0]
    return {"gain": gain, "low": gain, "high": gain}


if __name__ == "__main__":
    sys.exit(main())
