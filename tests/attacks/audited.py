"""Run as a program: opens the files of a folder in every way that is asked for, under a tracer of the interpreter.

    python -m tests.attacks.audited FOLDER

The folder has `plan.json`: the ways for each file. `report.json` is written into it: for each file what came of it, and
what the tracer saw that it did not see for the honest files, those whose names begin with `honest`. A tracer cannot be
taken off, so it has this process.
"""

from __future__ import annotations

import builtins
import gc
import importlib
import json
import math
import operator
import os
import sys
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch import nn

from tests.attacks.archives import CANARY
from tests.attacks.opening import opened

# Events that change something, start something, or turn data into code.
_PREFIXES = ("subprocess.", "socket.", "shutil.", "os.exec", "os.posix_spawn", "os.fork", "urllib.", "webbrowser.",
             "ctypes.", "ftplib.", "http.", "smtplib.", "pty.", "signal.", "winreg.", "tempfile.")  # fmt: skip
_EVENTS = frozenset(
    (
        "os.system", "os.startfile", "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink",
        "os.truncate", "os.chmod", "os.chown", "os.utime", "os.putenv", "os.kill", "os.setxattr", "pickle.find_class",
        "builtins.input", "code.__new__", "function.__new__", "os.spawn", "mmap.__new__",
    )
)  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_HOMES = (os.path.dirname(os.__file__), sys.prefix, sys.base_prefix, os.path.dirname(os.path.dirname(torch.__file__)),
          str(Path(__file__).resolve().parents[2]), "<frozen")  # fmt: skip

# They write functions for classes of ours and of libraries: the text is theirs.
_WRITERS = ("dataclasses.py", os.path.join("collections", "__init__.py"))

Seen = set[tuple[str, str]]


class Tracer:
    """Notes what happens while it is `on`; of code that was made from text, the text."""

    def __init__(self) -> None:
        self.on = False
        self.seen: Seen = set()

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open":
            self._note_open(*args)
        elif event == "compile" or (event == "exec" and isinstance(args[0], CodeType)):
            self._note_code(event, *args)
        elif event == "import":
            self._note_import(str(args[0]).partition(".")[0])
        elif event in _EVENTS or event.startswith(_PREFIXES):
            self._note_change(event, repr(args))

    def _note_import(self, package: str) -> None:
        """Texts with rare characters need codecs, which Python imports when it meets them."""
        if package != "encodings":
            self.seen.add(("import", package))

    def _note_open(self, path: Any, mode: Any, flags: Any) -> None:
        writes = bool(set(mode) & set("wax+")) if isinstance(mode, str) else bool(flags & _WRITING)
        if writes and str(path) != os.devnull:
            self._note_change("open for writing", str(path))

    def _note_change(self, event: str, what: str) -> None:
        """The journals of scans are torchgauge's own, under names that differ from file to file."""
        if os.environ["TORCHGAUGE_CACHE"] not in what:
            self.seen.add((event, what[:200]))

    def _note_code(self, event: str, source: Any, name: Any = None) -> None:
        """Code from text. Python reads TorchScript as a tree, under the name `<unknown>`, which nothing executes."""
        name = source.co_filename if isinstance(source, CodeType) else str(name)
        caller = sys._getframe(2).f_code.co_filename
        if source is None or (event == "compile" and name == "<unknown>"):
            return
        if not name.startswith(_HOMES) and not caller.endswith(_WRITERS):
            text = "" if isinstance(source, CodeType) else str(source)[:400]
            self.seen.add((event, f"{name} in {caller}: {text}"))


def marked() -> list[str]:
    """Objects of the process that a file has left an attribute on."""
    places = {
        "builtins": builtins, "math": math, "operator": operator, "torch": torch, "torch.ops": torch.ops,
        "torch.ops.aten": torch.ops.aten, "erfinv": torch.ops.aten.erfinv, "relu": torch.ops.aten.relu,
        "erfinv.default": torch.ops.aten.erfinv.default, "nn.Module": nn.Module,
    }  # fmt: skip
    return [name for name, place in places.items() if CANARY in vars(place)]


def main(folder: Path) -> None:
    plan: dict[str, list[str]] = json.loads((folder / "plan.json").read_text())
    tracer = Tracer()
    os.chdir(folder)
    names = sorted(plan, key=lambda name: not name.startswith("honest"))
    # What is imported at first use is not what a file does.
    for module in ("sympy", "torch.fx.experimental.symbolic_shapes", "torch._subclasses.fake_tensor", "torch._refs"):
        importlib.import_module(module)
    for name in [name for name in names if name.startswith("honest")]:
        for way in plan[name]:
            opened(folder / name, way)
    gc.freeze()  # collections pass over the libraries: a measurement begins with one, and hundreds follow
    sys.addaudithook(tracer)
    usual: Seen = set()
    report: dict[str, Any] = {}
    for name in names:
        before, tracer.seen, outcomes = set(folder.iterdir()), set(), {}
        for way in plan[name]:
            tracer.on = True
            outcomes[way] = opened(folder / name, way)
            tracer.on = False
        if name.startswith("honest"):
            usual |= tracer.seen
        made = set(folder.iterdir()) - before
        for path in made:
            path.unlink()
        events = sorted(map(list, tracer.seen - usual))
        files = sorted(path.name for path in made)
        report[name] = {"outcomes": outcomes, "events": events, "files": files, "marked": marked()}
    (folder / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
