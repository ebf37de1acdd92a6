"""A folder of unrelated files: a description of each, and the command that opens it."""

from __future__ import annotations

import ast
import os
import shlex
from collections import Counter

from torchgauge.checkpoint.byte_source import opened, printable
from torchgauge.checkpoint.registry import FOLDERS, find_format, silent
from torchgauge.checkpoint.signatures import SAVED_RUN, describe
from torchgauge.checkpoint.single_file import open_file, sniff_file
from torchgauge.errors import FormatError
from torchgauge.units import format_count

# Files that are opened, and lines that are shown.
_MAX_OPENED_FILES, _MAX_LINES = 60, 30
_MAX_OTHERS = 8
_SOURCE_BYTES = 2**18


def unrelated_files(folder: str) -> FormatError | None:
    """The error that lists the files with a command to open each; None if none of them can be opened."""
    lines: list[tuple[str, str]] = []
    others: Counter[str] = Counter()
    models = 0
    for name in sorted(os.listdir(folder))[: 10 * _MAX_OPENED_FILES]:
        path = os.path.join(folder, name)
        if name.startswith("."):
            continue
        if os.path.isdir(path):
            if find_format(FOLDERS, path) is not None:
                models += 1
                lines.append((path, "a folder with a model"))
            continue
        if name.endswith(".py"):
            classes = _module_classes(path)
            lines += [(f"{path}:{found}", "a model class") for found in classes]
            others.update([] if classes else ["Python code"])
            continue
        what = _description(path) if models < _MAX_OPENED_FILES else None
        if what is not None:
            models += 1
            lines.append((path, what))
            continue
        try:
            with opened(path) as source:
                kind = describe(source)
        except FormatError:
            kind = "unreadable"
        # Without the advice that follows a semicolon: `a gzip stream; unpack it first`.
        others["a saved run of torchgauge" if kind == SAVED_RUN else kind.partition(";")[0]] += 1
    if not models:
        return None
    shown = [(f"torchgauge {shlex.quote(printable(path))}", what) for path, what in lines[:_MAX_LINES]]
    width = max(len(command) for command, _ in shown)
    what = "several models that do not belong together" if models > 1 else "a model next to other files"
    text = [f"{folder} holds {what}; choose one:"]
    text += [f"  {command:<{width}}  {what}" for command, what in shown]
    text += [f"  and {len(lines) - _MAX_LINES} more"] if len(lines) > _MAX_LINES else []
    if others:
        counted = [f"{count} × {what}" if count > 1 else what for what, count in others.most_common(_MAX_OTHERS)]
        text.append(f"  not models: {', '.join(counted)}")
    return FormatError(*text)


def _module_classes(path: str) -> list[str]:
    """The classes of a Python file that are derived from a torch module; the file is parsed, not executed."""
    try:
        with opened(path) as source:
            tree = ast.parse(source.head(_SOURCE_BYTES))
    except (FormatError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    known = {"Module", "Sequential", "LightningModule", "PreTrainedModel"}
    found = []
    for node in classes:
        bases = {base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in node.bases}
        if bases & known:
            known.add(node.name)
            found.append(node.name)
    return found


def _description(path: str) -> str | None:
    """Such as `torch, 1.2 M parameters, epoch 5`; None if it is not a model."""
    try:
        if not os.path.isfile(path) or sniff_file(path) is None:
            return None
        index = open_file(path, silent)
    except FormatError as error:
        # Looks like a model, but a pickle may hold anything.
        return None if "is not a model file" in str(error) else "a model file that cannot be read"
    params, training = index.logical_params, index.training
    facts = [index.format]
    if params:
        facts.append(f"{format_count(params)} parameters")
    if index.optimizer_elements and not params:
        facts.append("optimizer state")
    elif not params:
        facts.append("no parameters")
    if training is not None:
        facts.append("training checkpoint" if training.epoch is None else f"epoch {training.epoch:g}")
    return ", ".join(facts)
