"""A folder of unrelated files: a description of each, and the command that opens it."""

from __future__ import annotations

import ast
import os
import shlex
from collections import Counter

from torchgauge.checkpoint.byte_source import opened, printable
from torchgauge.checkpoint.registry import FOLDERS, find_format, silent
from torchgauge.checkpoint.signatures import SAVED_RUN, describe, not_a_model
from torchgauge.checkpoint.single_file import open_file, sniff_file
from torchgauge.errors import FormatError
from torchgauge.units import format_count

# Files that are opened, those of which only the beginning is looked at, and lines that are shown.
_MAX_OPENED_FILES, _MAX_FILES, _MAX_LINES = 60, 2000, 30
_MAX_OTHERS = 8
_SOURCE_BYTES = 2**18


def unrelated_files(folder: str) -> FormatError | None:
    """The error that lists the files with a command to open each; None if none of them can be opened."""
    lines: list[tuple[str, str]] = []
    others: Counter[str] = Counter()
    unread: dict[str, list[str]] = {}
    models, names = 0, sorted(os.listdir(folder))
    for name in names[:_MAX_FILES]:
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
        try:
            what = _description(path, is_opened=models < _MAX_OPENED_FILES)
            models += 1
            lines.append((path, what))
            continue
        except FormatError as error:
            kind = error.looks_like or "unreadable"
        # What to do follows a semicolon: `a gzip stream; unpack it first`.
        if ";" in kind:
            unread.setdefault(kind, []).append(printable(name))
        else:
            others["a saved run of torchgauge" if kind == SAVED_RUN else kind] += 1
    if not models and not unread:
        return None
    shown = [(f"torchgauge {shlex.quote(printable(path))}", what) for path, what in lines[:_MAX_LINES]]
    width = max((len(command) for command, _ in shown), default=0)
    what = "several models that do not belong together" if models > 1 else "a model next to other files"
    text = [f"{folder} holds {what}; choose one:" if models else f"{folder} holds no PyTorch model:"]
    text += [f"  {command:<{width}}  {what}" for command, what in shown]
    text += [f"  and {len(lines) - _MAX_LINES} more"] if len(lines) > _MAX_LINES else []
    for kind, found in unread.items():
        text.append(f"  not read: {found[0]}{f' and {len(found) - 1} more' if len(found) > 1 else ''}: {kind}")
    if others:
        counted = [f"{count} × {what}" if count > 1 else what for what, count in others.most_common(_MAX_OTHERS)]
        text.append(f"  not models: {', '.join(counted)}")
    if len(names) > _MAX_FILES:
        text.append(f"  {len(names) - _MAX_FILES:,} more files were not looked at")
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


def _description(path: str, *, is_opened: bool) -> str:
    """Such as `torch, 1.2 M parameters, epoch 5`; the format alone where the file is not opened. Raises `FormatError`
    if it is not a model."""
    format = sniff_file(path)
    if format is None:
        with opened(path) as source:
            raise not_a_model(path, describe(source))
    if not is_opened:
        return format
    try:
        index = open_file(path, silent)
    except FormatError as error:
        if error.looks_like is not None:  # a pickle may hold anything
            raise
        return "a model file that cannot be read"
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
