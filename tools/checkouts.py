"""Two checkouts against each other: import, static analysis, advice, forecast and a scan of weights.

    python tools/checkouts.py OLD [NEW] [--turns 5] [--repeats 5] [--only static] [--limit 1.03]

OLD and NEW hold `src/torchgauge`; NEW is by default the checkout that this file is in. In every turn each checkout runs
in a fresh process of one thread, in the opposite order from turn to turn. Each figure is the least of `--repeats` in a
process, and of all turns in the table. "calls" are Python's calls under cProfile, which a busy machine does not change.
The exit status is 1 where NEW takes more than `--limit` times OLD for the import, a static analysis or the weights.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import os
import pstats
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# Advice and forecasts gained rules and kernels since; they are shown, and not held to the limit.
LIMITED = ("import", "static", "weights")
PARTS = (*LIMITED, "advice", "forecast")

Figures = dict[str, dict[str, float]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path, nargs="?", default=HERE.parent)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", action="append", choices=PARTS)
    parser.add_argument("--limit", type=float, default=1.03)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)  # in a process of one checkout
    options = parser.parse_args()
    parts = options.only or list(PARTS)
    if options.measure:
        print(json.dumps(dict(measured(parts, options.repeats))))
        return 0
    least: dict[str, Figures] = {"old": {}, "new": {}}
    for turn in range(options.turns):
        for name in ("old", "new")[:: 1 if turn % 2 == 0 else -1]:
            found = measure_apart(getattr(options, name), parts, options.repeats)
            for figure, values in found.items():
                known = least[name].setdefault(figure, dict(values))
                known |= {key: min(value, known[key]) for key, value in values.items()}
    return report(least["old"], least["new"], options.limit)


def measure_apart(checkout: Path, parts: list[str], repeats: int) -> Figures:
    wanted = [word for part in parts for word in ("--only", part)]
    command = [sys.executable, "-W", "ignore", __file__, ".", "--measure", "--repeats", str(repeats), *wanted]
    environment = os.environ | {"PYTHONPATH": str(checkout.resolve() / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{checkout}: {done.stderr[-500:]}")
    found: Figures = json.loads(done.stdout.splitlines()[-1])
    return found


def measured(parts: list[str], repeats: int) -> Iterator[tuple[str, dict[str, float]]]:
    """By figure: milliseconds of wall time and of the processor and, but for the import, Python's calls."""
    import torch

    began = time.perf_counter(), time.process_time()
    import torchgauge as tg

    ended = time.perf_counter(), time.process_time()
    if "import" in parts:
        yield "import", {"wall": 1e3 * (ended[0] - began[0]), "processor": 1e3 * (ended[1] - began[1])}
    torch.set_num_threads(1)
    sys.path.append(str(HERE.parent / "benchmarks"))
    subjects: Any = import_module("subjects")
    for subject in (*subjects.HEADLINE, subjects.of_timm("mobilenetv3_small_100")):
        model, inputs = subject.ready()
        shown: dict[str, Any] = {"inputs": inputs, "progress": False}
        runs: dict[str, Callable[[], object]] = {
            "static": partial(tg.analyze, model, advice=False, **shown),
            "advice": partial(tg.analyze, model, **shown),
            "forecast": partial(tg.forecast, model, on="h200", **shown),
        }
        for part in (part for part in runs if part in parts):
            yield f"{part} {subject.name}", timed(runs[part], repeats)
    if "weights" in parts:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "resnet50.pt")
            torch.save(subjects.HEADLINE[0].ready()[0].state_dict(), path)
            yield "weights resnet50", timed(lambda: tg.scan_weights(path), repeats)


def timed(run: Callable[[], object], repeats: int) -> dict[str, float]:
    run()  # what is loaded at the first use does not count
    wall, processor = [], []
    for _ in range(repeats):
        gc.collect()
        began = time.perf_counter(), time.process_time()
        run()
        wall.append(time.perf_counter() - began[0])
        processor.append(time.process_time() - began[1])
    profile = cProfile.Profile()
    profile.runcall(run)
    calls: int = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]
    return {"wall": 1e3 * min(wall), "processor": 1e3 * min(processor), "calls": calls}


def report(old: Figures, new: Figures, limit: float) -> int:
    print("| figure | wall, ms | | | processor, ms | | | calls | | |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    over = []
    for figure, values in new.items():
        cells = [figure]
        for key in ("wall", "processor", "calls"):
            before, after = old.get(figure, {}).get(key), values.get(key)
            cells += [_text(before), _text(after), f"{after / before:.2f}" if before and after else ""]
        print("| " + " | ".join(cells) + " |")
        if figure.partition(" ")[0] in LIMITED and figure in old and values["wall"] > limit * old[figure]["wall"]:
            over.append(figure)
    print(f"\nover {limit}: {', '.join(over) or 'none'}")
    return 1 if over else 0


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


if __name__ == "__main__":
    raise SystemExit(main())
