"""One case: a damaged file, the commands that open it, and what must not happen during this."""

from __future__ import annotations

import io
import os
import random
import re
import shutil
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torchgauge as tg
from tests.fuzz.mutations import CANARY, mutate, mutate_content
from tests.fuzz.samples import SINGLE, Files
from torchgauge import cli, errors
from torchgauge.cache import journal_file
from torchgauge.cli import main as cli_main
from torchgauge.weights import ScanRequest, scan

FORMATS = ("html", "json", "jsonl", "txt", "md", "tex", "xml", "csv", "ops.csv", "weights.csv", "dot", "svg", "parquet")
STATUSES = (0, 1, 2, 3)
EXECUTION, UNFORESEEN = "fuzz-execution:", "fuzz-unforeseen:"
# Code that these generate is their own: fields of a class, never text from a file.
_GENERATORS = re.compile(
    r"/(dataclasses|collections/__init__|typing|enum|functools|inspect|ast|traceback|linecache)\.py$"
)
_PROCESSES = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.Popen", "pty.spawn")
_NETWORK = ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto", "urllib.Request")
_CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod",
            "os.chown", "shutil.move", "shutil.rmtree", "shutil.copyfile")  # fmt: skip

# A line that a CI runner takes for a command, and one that a name has forged.
_FORGED = re.compile(r"^\s*::.*|.*##\w*\[.*|^torchgauge: everything is fine.*", re.MULTILINE)

# The isolated reader is forked; `platform` asks `uname` for the name of the processor.
_OWN_PROCESSES = re.compile(r"torchgauge/isolation/process\.py|/platform\.py")


def _calling_files() -> str:
    frame, names = sys._getframe(2), list[str]()
    while frame is not None and len(names) < 12:
        names.append(frame.f_code.co_filename)
        frame = frame.f_back  # type: ignore[assignment]
    return "\n".join(names)


@dataclass
class Watch:
    """An audit hook for the time of a command: foreign code, processes, network, files outside `folder`.

    Hooks cannot be removed, so there is one for the process; it watches while `folder` is set."""

    folder: str | None = None
    process: int = field(default_factory=os.getpid)
    seen: list[str] = field(default_factory=list)

    def install(self) -> None:
        sys.addaudithook(self._hook)

    @contextmanager
    def armed(self, folder: Path) -> Iterator[list[str]]:
        self.seen, self.folder = [], f"{os.path.realpath(folder)}{os.sep}"
        try:
            yield self.seen
        finally:
            self.folder = None

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        if event == "exec":
            self._note_exec(args[0])
        elif event == "open":
            path, mode, flags = args
            writes = any(letter in (mode or "") for letter in "wax+") or bool((flags or 0) & (os.O_WRONLY | os.O_RDWR))
            if writes and isinstance(path, str | bytes):
                self._note_change("open for writing", path)
        elif event in _CHANGES:
            self._note_change(event, args[0])
        elif (event in _PROCESSES or event in _NETWORK) and not _OWN_PROCESSES.search(_calling_files()):
            self._note(f"{event}: {args!r}")

    def _note_exec(self, code: Any) -> None:
        """A module that is imported has a file; the rest is compiled from text."""
        caller = sys._getframe(2).f_code.co_filename
        if not os.path.isfile(code.co_filename) and not _GENERATORS.search(caller) and "importlib" not in caller:
            self._note(f"exec of {code.co_filename} by {caller}: {code.co_names!r}")

    def _note_change(self, event: str, path: Any) -> None:
        assert self.folder is not None
        place = os.path.realpath(os.fsdecode(path)) if not isinstance(path, int) else ""
        is_cache = "/__pycache__" in place  # of modules and kernels that are compiled at first use
        if not is_cache and not place.startswith((self.folder, "/dev/", "/proc/self/")):
            self._note(f"{event}: {place}")

    def _note(self, text: str) -> None:
        self.seen.append(text[:300])
        if os.getpid() != self.process:
            # An isolated reader hands on what it prints, and nothing else.
            print(f"{EXECUTION} {text[:300]}", file=sys.stderr)


@dataclass(frozen=True)
class Limits:
    seconds: float = 60.0
    memory_bytes: int = 2 << 30


@dataclass
class Case:
    """`problems` are pairs of a kind (traceback, execution, memory, time, status, forged, unforeseen) and details."""

    number: int
    sample: str
    command: list[str]
    problems: list[tuple[str, str]] = field(default_factory=list)
    status: int | None = None
    message: str = ""
    seconds: float = 0.0
    memory_bytes: int = 0


class Bench:
    """Runs cases in `folder`, each in a separate empty folder next to the valid samples."""

    def __init__(
        self, folder: Path, samples: dict[str, Files], seed: str, limits: Limits, *, is_isolated: bool = False
    ) -> None:
        self._folder, self._samples, self._seed, self._limits = folder, samples, seed, limits
        self._watch = Watch()
        for name, files in samples.items():
            write_files(folder / "sound" / name, files)
        (folder / "cwd").mkdir()
        os.chdir(folder / "cwd")
        os.environ["TORCHGAUGE_CACHE"] = str(folder / "case" / "cache")
        mock.patch("torchgauge.weights.journal.WRITE_AFTER_S", 0.0).start()
        for module in (errors, sys.modules[cli_main.__module__]):
            vars(module)["unexpected"] = marked_unexpected
        if not is_isolated:
            read_in_this_process()

    def warm_up(self) -> None:
        """Import, compile and cache everything that is needed at first use before anything is watched."""
        for name, files in self._samples.items():
            found = list(commands(name, self._place(name, files), self._sound(name), self._folder / "case"))
            # One format of each kind, and all of them once.
            for command in found if name in ("model.pt", "weights.json") else (found[0], found[-1]):
                self._run(command)
        self._watch.install()

    def plan(self, number: int) -> tuple[Case, Files, list[list[str]]]:
        """A case depends only on the seed and its number."""
        chance = random.Random(f"{self._seed}/{number}")
        name = chance.choice(sorted(self._samples))
        files = self._samples[name] if name.startswith("journal") else mutate(self._samples[name], chance)
        found = list(commands(name, self._target(name), self._sound(name), self._folder / "case"))
        return Case(number, name, []), files, chance.sample(found, min(2, len(found)))

    def run(self, number: int) -> Case:
        case, files, chosen = self.plan(number)
        self._place(case.sample, files)
        if case.sample.startswith("journal"):
            self._damage_journal(case)
        for command in chosen:
            case.command = command
            self._check(case)
            if case.problems:
                break
        return case

    def _check(self, case: Case) -> None:
        limits = self._limits
        began, resident = time.monotonic(), start_memory_peak()
        with self._watch.armed(self._folder / "case") as seen:
            status, output = self._run(case.command)
        case.seconds, case.status, case.message = time.monotonic() - began, status, output[-300:]
        case.memory_bytes = max(memory_peak() - resident, 0)
        case.problems += [("execution", text) for text in seen]
        case.problems += [("execution", f"wrote {path}") for path in self._strangers()]
        marked = re.findall(rf"({EXECUTION}|{UNFORESEEN})(.*)", output)
        case.problems += [("execution" if mark == EXECUTION else "unforeseen", text) for mark, text in marked]
        if "Traceback (most recent call last)" in output:
            case.problems.append(("traceback", output[-4000:]))
        if (forged := _FORGED.search(output)) is not None:
            case.problems.append(("forged", forged[0][:300]))
        if status not in STATUSES:
            case.problems.append(("status", f"exit status {status}: {output[-500:]}"))
        if case.seconds > limits.seconds:
            case.problems.append(("time", f"{case.seconds:.0f} s"))
        if case.memory_bytes > limits.memory_bytes:
            case.problems.append(("memory", f"{case.memory_bytes / 2**20:.0f} MiB"))

    def _run(self, command: Sequence[str]) -> tuple[int | None, str]:
        output = io.StringIO()
        with redirect_stdout(output), redirect_stderr(output):
            try:
                if command[0] == "render":
                    return render(*command[1:]), output.getvalue()
                return cli.main(list(command)), output.getvalue()
            except SystemExit as leaving:
                return leaving.code if isinstance(leaving.code, int) else 1, output.getvalue()
            except BaseException:
                traceback.print_exc(file=output)
                return None, output.getvalue()

    def _damage_journal(self, case: Case) -> None:
        """The journal of a broken scan, edited: a scan that goes on must find what a new one finds."""
        path = self._target(case.sample)
        os.utime(path, ns=(10**18, 10**18))
        index = tg.checkpoint.open_checkpoint(path)
        chance, rows = random.Random(f"{self._seed}/{case.number}/journal"), list[str]()
        journal = journal_file(path)

        def stop(name: str, row: object) -> None:
            rows.append(name)
            if len(rows) == 4:
                raise InterruptedError

        with suppress(InterruptedError):
            scan(index, ScanRequest(journal=journal), on_row=stop)
        (kept,) = (self._folder / "case" / "cache" / "scans").glob("*.jsonl")
        kept.write_bytes(mutate_content(kept.read_bytes(), chance))
        try:
            resumed = scan(index, ScanRequest(journal=journal, resume=True))
        except Exception:
            case.problems.append(("traceback", traceback.format_exc()))
            return
        if str(resumed.rows) != str(scan(index, ScanRequest()).rows):
            case.problems.append(("status", "an edited journal changed the result"))

    def _target(self, name: str) -> Path:
        return self._folder / "case" / name / name if name in SINGLE else self._folder / "case" / name

    def _sound(self, name: str) -> Path:
        return self._folder / "sound" / name / name if name in SINGLE else self._folder / "sound" / name

    def _place(self, name: str, files: Files) -> Path:
        shutil.rmtree(self._folder / "case", ignore_errors=True)
        write_files(self._folder / "case" / name, files)
        (self._folder / "case" / "out").mkdir()
        return self._target(name)

    def _strangers(self) -> list[str]:
        """Files that native code wrote: audit hooks see Python alone."""
        found = [str(path) for path in Path.cwd().iterdir()]
        for path in found:
            os.remove(path)
        return found + [str(path) for path in (self._folder / "case").rglob(f"*{CANARY}*") if path.is_file()]


def marked_unexpected(error: Exception) -> str:
    """In place of `errors.unexpected`: what no reader foresaw, and where."""
    places = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
    own = next((place for place in reversed(places) if "torchgauge/" in place), "")
    return f"{UNFORESEEN} {type(error).__name__} {str(error)[:80]!r} at {own} in {places[-1] if places else ''}"


def read_in_this_process() -> None:
    """Without the isolated reader: faster, and the audit hook sees everything."""
    for command in vars(sys.modules[cli_main.__module__])["COMMANDS"].values():
        vars(command).pop("isolated_reader", None)

    def never(*_: object, **__: object) -> bool:  # a mock would keep the arguments of every case
        return False

    for module in ("pipeline", "weight_scan", "language"):
        mock.patch(f"torchgauge.analysis.{module}.needs_isolation", never).start()
    mock.patch("torchgauge.analysis.comparison.is_isolated", return_value=True).start()


def commands(name: str, target: Path, sound: Path, folder: Path) -> Iterator[list[str]]:
    path, other = str(target), str(sound)
    outputs = [f"{folder}/out/report.{suffix}" for suffix in FORMATS]
    if name.endswith(".json"):
        yield from (["render", path, output] for output in outputs)
        yield from (["compare", path, other], ["compare", other, path, "--json"])
        yield ["compare", other, path, "-o", f"{folder}/out/both.html", "-o", f"{folder}/out/both.md"]
        yield from (
            ["check", path, "--max", "params=1k", "--max", "time_s=1s"],
            ["check", path, "--max", "macs=1k", "--json"],
        )
        return
    if name.startswith("journal"):
        yield ["weights", path, "--resume", "--json"]
        return
    yield from ([path], [path, "--json"], ["analyze", path, "--no-weights"], ["weights", path])
    yield from ([path, "-o", output, "--quiet"] for output in outputs)
    yield from (["weights", path, "--json"], ["weights", path, "--no-weights"], ["weights", path, "--against", other])
    yield from (["compare", path, other], ["compare", other, path, "-o", f"{folder}/out/both.html"])
    yield ["check", path, "--max", "params=1k", "--max", "macs=1G"]
    if name.endswith(".gguf"):
        yield ["llm", path, "--context", "64"]


def render(path: str, output: str) -> int:
    """A saved run in another format, by the Python interface: the command line has no such command."""
    try:
        found = tg.load(path)
        found.to_dict()
        str(found)
        found.save(output)
    except tg.TorchgaugeError as error:
        return error.exit_status
    return 0


def write_files(folder: Path, files: Files) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def start_memory_peak() -> int:
    """Resident bytes now; from here on the peak is counted anew, where Linux lets us."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _status_bytes("VmRSS")
    except OSError:
        return 0


def memory_peak() -> int:
    try:
        return _status_bytes("VmHWM")
    except OSError:
        return 0


def _status_bytes(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024
