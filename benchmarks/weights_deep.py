"""The deep quantization pass against `torch.sum` over the same memory, on two threads.

    python benchmarks/weights_deep.py [-o results.json] [--turns N] [--threads N]

All formats per row and per group, and the counts of a tensor per tensor. Prints Markdown tables and a verdict on every
limit; the exit status is 1 where one is broken.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import tables
import torch
from judging import Verdict

from torchgauge.weights import ArrayRows, row_quantization, structured_pruning, tally_bytes, tensor_quantization

# Rates as shares of that of `torch.sum`.
LEAST_SHARE = 0.03
MOST_TENSOR_S = 1e-3
# Several sums in a row: on a busy machine a short call is too often lucky.
SUMS = 3
# Half a gigabyte each, beyond what caches hold: the limit is a share of the memory's rate.
SHAPES = ((16384, 8192), (131_072, 1024), (174_080, 768), (56, 2_400_000))


def main() -> int:
    options = _parse()
    torch.set_num_threads(options.threads)
    rows = [measure(shape, options.threads, options.turns) for shape in SHAPES]
    counted = _tally(1 << 22)
    tensor_s = min(_seconds(lambda: tensor_quantization(counted)) for _ in range(50))
    print(tables.table(["matrix", "sum GB/s", "quantization GB/s", "share", "pruning GB/s"], map(_cells, rows)))
    judged = [_judge(row) for row in rows]
    judged.append(
        Verdict(
            f"per tensor, from {len(counted.codes)} codes: at most {MOST_TENSOR_S * 1e3:g} ms",
            f"{tensor_s * 1e3:.2f} ms",
            tensor_s <= MOST_TENSOR_S,
        )
    )
    print(f"\n{tables.verdicts(judged)}")
    if options.output:
        document = {"rows": rows, "per_tensor_s": tensor_s, "verdicts": [asdict(verdict) for verdict in judged]}
        options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0 if all(verdict.passed for verdict in judged) else 1


def measure(shape: tuple[int, int], threads: int, turns: int) -> dict[str, Any]:
    """All in turns, so that a busy machine slows all; the fastest of each counts."""
    matrix = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    tensor, found = torch.from_numpy(matrix), tensor_quantization(_tally(1 << 16))
    parts = [ArrayRows("weight", part) for part in np.array_split(matrix, threads)]
    with ThreadPoolExecutor(threads) as pool:
        calls: dict[str, Callable[[], Any]] = {
            "sum": lambda: [tensor.sum() for _ in range(SUMS)],
            "quantization": lambda: _each(pool, parts, lambda part: row_quantization(part, found)),
            "pruning": lambda: _each(pool, parts, structured_pruning),
        }
        # The first turn compiles, or loads what was compiled.
        timed = [{name: _seconds(call) for name, call in calls.items()} for _ in range(turns + 1)][1:]
    seconds = {name: min(turn[name] for turn in timed) / (SUMS if name == "sum" else 1) for name in calls}
    rates = {f"{name}_bytes_per_s": matrix.nbytes / each for name, each in seconds.items()}
    return {"matrix": " × ".join(map(str, shape)), **rates, "share": seconds["sum"] / seconds["quantization"]}


def _judge(row: dict[str, Any]) -> Verdict:
    limit = f"{row['matrix']}: at least {LEAST_SHARE:.0%} of the rate of the sum"
    return Verdict(limit, f"{row['share']:.1%}", row["share"] >= LEAST_SHARE)


def _each(pool: ThreadPoolExecutor, parts: list[ArrayRows], work: Callable[[ArrayRows], Any]) -> None:
    list(pool.map(work, parts))


def _tally(elements: int) -> Any:
    values = np.random.default_rng(1).standard_normal(elements, dtype=np.float32)
    return tally_bytes(values.view(np.uint8), "float32")


def _cells(row: dict[str, Any]) -> list[str]:
    rates = [f"{row[f'{name}_bytes_per_s'] / 1e9:.2f}" for name in ("sum", "quantization", "pruning")]
    return [row["matrix"], rates[0], rates[1], f"{row['share']:.1%}", rates[2]]


def _seconds(call: Callable[[], Any]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time the deep quantization pass against a sum over the same memory.")
    parser.add_argument("-o", "--output", type=Path, help="write the results as JSON")
    parser.add_argument("--turns", type=int, default=3, help="turns of each; the fastest counts")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
