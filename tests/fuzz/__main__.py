"""`python -m tests.fuzz --count 20000 --seed 1`: damaged files of every format, through every command.

Each case: exit status 0, 1, 2 or 3, no traceback, nothing of the file executed, memory and time below their limits.
What fails is kept in a folder, with the command, and can be run again: `python -m tests.fuzz --case 1/4711`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import selectors
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
# A worker that says nothing for so long beyond a case's limit is in native code that cannot be interrupted.
GRACE_S = 30.0
# Imports and compilation before the first case.
START_S = 600.0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=20_000, help="files (default: 20,000)")
    parser.add_argument("--seed", default="1", help="the same seed makes the same files (default: 1)")
    parser.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--only", default="", help="samples whose name contains this")
    parser.add_argument("--failures", default="build/fuzz", help="where failures are kept (default: build/fuzz)")
    parser.add_argument("--time-limit", type=float, default=120.0, help="seconds for a file (default: 120)")
    parser.add_argument("--memory-limit", type=float, default=2.0, help="GiB for a file (default: 2)")
    parser.add_argument("--isolated", action="store_true", help="read files as users do, by a process without rights")
    parser.add_argument("--lenient", action="store_true", help="count errors that no reader foresaw, but do not fail")
    parser.add_argument("--case", metavar="SEED/NUMBER", help="one case again, with its output")
    parser.add_argument("--worker", type=int, nargs=2, metavar=("FIRST", "STEP"), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    args = parse()
    if args.worker or args.case:
        return work(args)
    began, found = time.monotonic(), Found(Path(args.failures), args.count)
    with selectors.DefaultSelector() as waiting:
        workers = [Worker(args, first) for first in range(args.workers)]
        for worker in workers:
            worker.start(waiting, worker.next)
        while any(worker.is_running for worker in workers):
            for key, _ in waiting.select(timeout=1.0):
                key.data.read(waiting, found)
            for worker in workers:
                worker.watch(waiting, found)
    print(found.summary(time.monotonic() - began))
    return 1 if found.is_failed(lenient=args.lenient) else 0


class Found:
    """Results of the cases; failures are written as they occur."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder, self._count, self._began = folder, count, time.monotonic()
        self.done, self.kinds, self.texts = 0, Counter[str](), Counter[str]()
        self.longest_s, self.most_bytes, self.statuses = 0.0, 0, Counter[str]()

    def take(self, case: dict[str, Any], problems: list[list[str]]) -> None:
        self.done += 1
        self.longest_s = max(self.longest_s, case.get("seconds", 0.0))
        self.most_bytes = max(self.most_bytes, case.get("memory_bytes", 0))
        self.statuses[str(case.get("status"))] += 1
        for kind, text in problems:
            self.kinds[kind] += 1
            self.texts[f"{kind}: {text.strip().splitlines()[-1] if text.strip() else ''}"[:240]] += 1
        if problems:
            self._folder.mkdir(parents=True, exist_ok=True)
            place = self._folder / f"{case['number']}.json"
            place.write_text(json.dumps({**case, "problems": problems}, indent=1), encoding="utf-8")
        if self.done % 500 == 0 or problems:
            reported = f"; {problems[0][0]} in case {case['number']} ({case.get('sample')})" if problems else ""
            print(f"{self.done} of {self._count}, {time.monotonic() - self._began:.0f} s{reported}", flush=True)

    def is_failed(self, *, lenient: bool) -> bool:
        hard = {kind: count for kind, count in self.kinds.items() if not (lenient and kind == "unforeseen")}
        return bool(hard) or self.done < self._count

    def summary(self, seconds: float) -> str:
        kinds = self.kinds
        lines = [
            *(f"{count:6} {text}" for text, count in self.texts.most_common(40)),
            f"{self.done} files in {seconds:.0f} s: {kinds['traceback']} tracebacks, {kinds['execution']} executions, "
            f"{kinds['memory']} above the memory limit, {kinds['time']} above the time limit, "
            f"{kinds['crash']} crashes, {kinds['status']} wrong results, {kinds['forged']} forged lines, "
            f"{kinds['unforeseen']} errors that no reader foresaw",
            f"longest {self.longest_s:.1f} s, most memory {self.most_bytes / 2**20:.0f} MiB, exit statuses "
            + ", ".join(f"{status}: {count}" for status, count in sorted(self.statuses.items())),
        ]
        return "\n".join(lines)


class Worker:
    """A process that runs every n-th case; one that dies or hangs is replaced, and its case is a failure."""

    def __init__(self, args: argparse.Namespace, first: int) -> None:
        self._args, self.next = args, first
        self._process: subprocess.Popen[bytes] | None = None
        self._began: tuple[dict[str, Any], float] | None = None
        self._rest = b""

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self, waiting: selectors.BaseSelector, first: int) -> None:
        if first >= self._args.count:
            return
        options = [f"--{name.replace('_', '-')}={getattr(self._args, name)}" for name in
                   ("count", "seed", "only", "time_limit", "memory_limit")]  # fmt: skip
        options += ["--isolated"] if self._args.isolated else []
        command = [sys.executable, "-m", "tests.fuzz", *options, "--worker", str(first), str(self._args.workers)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
        self._began = None
        self._started = time.monotonic()
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        waiting.register(self._process.stdout, selectors.EVENT_READ, self)

    def read(self, waiting: selectors.BaseSelector, found: Found) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        data = self._process.stdout.read()
        if data == b"":
            self._ended(waiting, found, f"the process ended with status {self._process.wait()}", "crash")
            return
        *whole, self._rest = (self._rest + (data or b"")).split(b"\n")
        for line in whole:
            message = json.loads(line)
            if "problems" in message:
                problems, self._began = message.pop("problems"), None
                self.next = message["number"] + self._args.workers
                found.take(message, problems)
            else:
                self._began = message, time.monotonic()

    def watch(self, waiting: selectors.BaseSelector, found: Found) -> None:
        """End a worker that is over its time in code that no exception reaches."""
        if self._process is None:
            return
        patience = START_S if self._began is None else self._args.time_limit * 2 + GRACE_S
        since = self._started if self._began is None else self._began[1]
        if time.monotonic() - since > patience and (self._began is not None or self.next == 0):
            self._process.kill()
            self._process.wait()
            self._ended(waiting, found, f"no answer after {patience:.0f} s", "time")

    def _ended(self, waiting: selectors.BaseSelector, found: Found, text: str, kind: str) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        waiting.unregister(self._process.stdout)
        self._process.stdout.close()
        self._process = None
        if self._began is not None:
            case, _ = self._began
            found.take(case, [[kind, text]])
            self.next = case["number"] + self._args.workers
            self.start(waiting, self.next)
        elif self.next < self._args.count:
            print(f"a worker {text} before case {self.next}", flush=True)


def work(args: argparse.Namespace) -> int:
    """The cases of one worker, one JSON line before and after each; stdout is kept for them alone."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    # A net under the measured limit, so that no case takes the machine with it.
    resource.setrlimit(resource.RLIMIT_DATA, (int(args.memory_limit * 2**30) + (6 << 30),) * 2)
    from tests.fuzz.running import Bench, Limits
    from tests.fuzz.samples import make_samples

    seed, number = args.case.split("/") if args.case else (args.seed, "0")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made"
        made.mkdir()
        samples = {name: files for name, files in make_samples(made).items() if args.only in name}
        (Path(folder) / "run").mkdir()
        limits = Limits(args.time_limit, int(args.memory_limit * 2**30))
        bench = Bench(Path(folder) / "run", samples, seed, limits, is_isolated=args.isolated)
        if args.case:
            return again(bench, int(number), Path(args.failures))
        bench.warm_up()
        first, step = args.worker
        for number in range(first, args.count, step):
            case, _, _ = bench.plan(number)
            lines.write(json.dumps({"number": number, "sample": case.sample}) + "\n")
            lines.write(json.dumps(asdict(bench.run(number))) + "\n")
        os.chdir(ROOT)
    return 0


def again(bench: Any, number: int, folder: Path) -> int:
    """One case with its output and tracebacks on stderr; its files stay in the folder of failures."""
    from tests.fuzz.running import write_files

    case, files, chosen = bench.plan(number)
    place = (ROOT / folder / f"case-{number}").resolve()
    write_files(place / case.sample, files)
    print(f"{case.sample}: {place}", *(" ".join(command) for command in chosen), sep="\n", file=sys.stderr)
    found = bench.run(number)
    print(json.dumps(asdict(found), indent=1), file=sys.stderr)
    os.chdir(ROOT)
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main())
