"""The default pass over weights against `torch.sum` on the same memory and against plain torch; a file against `cat`.

    python benchmarks/weights.py [-o results.json] [--mib N] [--turns N]
    python benchmarks/weights.py --file GB [--folder DIR]       also a file of that size; for more than the memory holds

Prints Markdown tables and a verdict on every limit; the exit status is 1 where one is broken. All rates of a type are
taken in turns, and the fastest of each counts: a busy machine slows them alike.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial, reduce
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from judging import Verdict
from tables import table, verdicts
from weights_file import file_table, judge_file, measure_file

from torchgauge.weights import PIECE_BYTES, merge_tallies, tally_bytes, value_statistics

THREADS = 2
OF_SUM = 0.30
OVER_PLAIN = 15.0
# Plain torch is slow: it is timed on tensors of the size of one layer's, some of the whole.
TENSOR_BYTES = 64 << 20
PLAIN_BYTES = 128 << 20
PLAIN_TURNS = 3
PART_BYTES = 256 << 20
SMALL = (1, 768, 16384)


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes per second."""

    dtype: str
    total: float
    tally: float
    plain: float

    @property
    def of_sum(self) -> float:
        return self.tally / self.total

    @property
    def over_plain(self) -> float:
        return self.tally / self.plain


def main() -> int:
    options = _parse()
    torch.set_num_threads(THREADS)
    rates = [measure(dtype, options.mib << 20, options.turns) for dtype in ("float32", "bfloat16")]
    small = measure_small()
    print(f"\n## {THREADS} threads, {options.mib} MiB in memory\n\n{rates_table(rates)}")
    print(f"\n## a small tensor: tally and figures\n\n{small_table(small)}")
    judged = judge(rates)
    document: dict[str, Any] = {"rates": [asdict(row) for row in rates], "small": small}
    if options.file:
        document["file"] = found = measure_file(options.file, options.folder)
        print(f"\n## a file of {options.file} GB\n\n{file_table(found)}")
        judged += judge_file(found)
    print(f"\n## verdict\n\n{verdicts(judged)}")
    document["verdicts"] = [asdict(verdict) for verdict in judged]
    if options.output:
        options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0 if all(verdict.passed for verdict in judged) else 1


def measure(dtype: str, nbytes: int, turns: int) -> Rates:
    """Sum and pass go over different parts by turns, so that neither finds its own in the cache."""
    _say(dtype)
    values = random_weights(dtype, nbytes)
    parts = values.split(PART_BYTES // values.element_size())
    few = parts[0][: PLAIN_BYTES // values.element_size()].split(TENSOR_BYTES // values.element_size())
    total = tally = plain = 0.0
    with ThreadPoolExecutor(THREADS) as pool:
        default_pass(parts[0], dtype, pool)
        for turn in range(turns):
            for place, part in enumerate(parts):
                other = parts[(place + len(parts) // 2) % len(parts)]
                total = max(total, part.nbytes / _seconds(part.sum))
                tally = max(tally, other.nbytes / _seconds(partial(default_pass, other, dtype, pool)))
            if turn < PLAIN_TURNS:
                plain = max(plain, PLAIN_BYTES / _seconds(lambda: [plain_statistics(tensor) for tensor in few]))
    return Rates(dtype, total, tally, plain)


def random_weights(dtype: str, nbytes: int) -> torch.Tensor:
    """Normal, as those of most layers are."""
    values = torch.empty(nbytes // getattr(torch, dtype).itemsize, dtype=getattr(torch, dtype))
    generator = torch.Generator().manual_seed(0)
    for part in values.split(8 << 20):
        part.copy_(torch.randn(len(part), generator=generator) * 0.02)
    return values


def default_pass(values: torch.Tensor, dtype: str, pool: ThreadPoolExecutor) -> dict[str, Any]:
    content = values.view(torch.uint8).numpy()
    pieces = (content[start : start + PIECE_BYTES] for start in range(0, len(content), PIECE_BYTES))
    return value_statistics(reduce(merge_tallies, pool.map(lambda piece: tally_bytes(piece, dtype), pieces)))


def plain_statistics(tensor: torch.Tensor) -> dict[str, Any]:
    """What one would write: a line for each figure."""
    values = tensor.float()
    mean, std = values.mean(), values.std(correction=0)
    low, high = values.min(), values.max()
    standard = (values - mean) / std
    return {
        "nan": int(values.isnan().sum()),
        "inf": int(values.isinf().sum()),
        "mean": float(mean),
        "std": float(std),
        "min": float(low),
        "max": float(high),
        "abs_max": float(values.abs().max()),
        "sparsity": float((values == 0).float().mean()),
        "near_zero": float((values.abs() < 0.01 * std).float().mean()),
        "l1": float(values.norm(1)),
        "l2": float(values.norm(2)),
        "skewness": float((standard**3).mean()),
        "kurtosis": float((standard**4).mean()) - 3,
        "histogram": torch.histc(values, 64, float(low), float(high)).tolist(),
    }


def measure_small() -> list[dict[str, Any]]:
    rows = []
    for dtype in ("float32", "bfloat16", "float64", "int64", "int8"):
        for elements in SMALL:
            values = (torch.randn(elements, generator=torch.Generator().manual_seed(0)) * 30).to(getattr(torch, dtype))
            content = values.view(torch.uint8).numpy()
            best = min(_seconds(lambda: value_statistics(tally_bytes(content, dtype))) for _ in range(50))  # noqa: B023
            rows.append({"dtype": dtype, "elements": elements, "seconds": best})
    return rows


def rates_table(rates: list[Rates]) -> str:
    header = ["type", "torch.sum GB/s", "default pass GB/s", "of the sum", "plain torch GB/s", "over plain torch"]
    cells = [
        [row.dtype, f"{row.total / 1e9:.1f}", f"{row.tally / 1e9:.1f}", f"{row.of_sum:.0%}", f"{row.plain / 1e9:.2f}",
         f"{row.over_plain:.0f}×"]
        for row in rates
    ]  # fmt: skip
    return table(header, cells)


def small_table(rows: list[dict[str, Any]]) -> str:
    by_dtype: dict[str, list[str]] = {}
    for row in rows:
        by_dtype.setdefault(row["dtype"], []).append(f"{row['seconds'] * 1e6:.0f}")
    return table(["type, µs", *(f"{count:,}" for count in SMALL)], [[name, *cells] for name, cells in by_dtype.items()])


def judge(rates: list[Rates]) -> list[Verdict]:
    found = []
    for row in rates:
        found += [
            Verdict(f"{row.dtype}: at least {OF_SUM:.0%} of torch.sum", f"{row.of_sum:.0%}", row.of_sum >= OF_SUM),
            Verdict(
                f"{row.dtype}: at least {OVER_PLAIN:g}× plain torch",
                f"{row.over_plain:.0f}×",
                row.over_plain >= OVER_PLAIN,
            ),
        ]
    return found


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time the default pass over weights against their limits.")
    parser.add_argument("-o", "--output", type=Path, help="write the results as JSON")
    parser.add_argument("--mib", type=int, default=1024, help="of values in memory")
    parser.add_argument("--turns", type=int, default=7, help="turns over all parts; the fastest counts")
    parser.add_argument("--file", type=float, metavar="GB", help="also scan a file of this size")
    parser.add_argument("--folder", type=Path, default=Path(), help="where to write the file")
    return parser.parse_args()


def _seconds(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


def _say(text: str) -> None:
    print(f"… {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
