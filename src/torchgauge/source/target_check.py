"""Check the text of a target without torch, and suggest alternatives if it names nothing."""

from __future__ import annotations

import io
import os
import re
import tokenize
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from importlib.resources import files
from itertools import chain
from pathlib import Path

from torchgauge.errors import TargetError, UsageError
from torchgauge.registry import grouped

FORMS = (
    "a model file or folder, path/to/file.py:Name, package.module:Name (a class, a function that builds the model, "
    "or the model), timm:NAME, torchvision:NAME, hf:FOLDER_OR_CLASS"
)
_HEAD_BYTES = 4096
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def check_target(text: str) -> None:
    """Raise if `text` cannot be a target: nothing has this name, or the file is empty or not a model."""
    text = text.strip()
    path = text.removeprefix("hf:")
    # `os.path` accepts any text, even one that is too long or invalid as a file name.
    if os.path.exists(path):
        if os.path.isfile(path) and not path.endswith(".json") and python_target(text) is None:
            from torchgauge.checkpoint.signatures import refuse_foreign_file

            refuse_foreign_file(path)
    elif ":" not in text:
        raise unknown_target(text)


def python_target(text: str) -> tuple[str, str] | None:
    """The file and the name in it of a target in a Python file: `net.py:Net`, or `net.py` with an empty name; None for
    other targets. What exists under the whole text is a model, whatever its name ends in, unless it is source text."""
    if os.path.exists(text):
        return (text, "") if text.endswith(".py") and _is_source_text(text) else None
    place, _, name = text.rpartition(":")
    return (place, name) if place.endswith(".py") and is_dotted_name(name) else None


def is_model_path(target: str) -> bool:
    """Whether a target is a file or folder that holds a model, not code."""
    text = target.strip()
    return os.path.exists(text.removeprefix("hf:")) and python_target(text) is None


def runs_code(target: str) -> bool:
    """Whether opening a target imports and runs code: a Python file's or a module's."""
    text = target.strip()
    registry, colon, _ = text.partition(":")
    is_dotted = bool(colon) and registry not in ("timm", "torchvision", "hf") and not is_model_path(text)
    return is_dotted or python_target(text) is not None


def _is_source_text(path: str) -> bool:
    if not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD_BYTES)
        encoding, _ = tokenize.detect_encoding(io.BytesIO(head).readline)
        (head[: head.rfind(b"\n") + 1] or head).decode(encoding)  # the last line may be cut within a character
    except (OSError, SyntaxError, UnicodeDecodeError, LookupError):
        return False
    return b"\0" not in head


def is_dotted_name(text: str) -> bool:
    return _DOTTED.fullmatch(text) is not None


def unknown_target(text: str) -> TargetError | UsageError:
    """The error for a text that is not a file, folder, model or module, with suggestions."""
    likely = list(dict.fromkeys(chain(_files(text), _registered(text))))[:3]
    hint = f" Did you mean {' or '.join(likely)}?" if likely else ""
    path = Path(text)
    if ":" not in text and (path.suffix or len(path.parts) > 1) and not any(":" in name for name in likely):
        if not hint and re.fullmatch(r"[\w.-]+/[\w.-]+", text) and not os.path.exists(path.parent):
            hint = " Nothing is downloaded: for a model of the Hugging Face hub, download its config.json first."
        return TargetError(f"there is no file '{text}'.{hint}" if hint else f"there is no file '{text}'")
    return UsageError(f"'{text}' is not a target.{hint or f' The forms are: {FORMS}'}")


def _files(text: str) -> Iterator[str]:
    """Files with similar names, and a Python module without the name of its model."""
    if not text or "\0" in text:
        return
    module = Path(text.replace(".", "/") + ".py")
    if is_dotted_name(text) and os.path.isfile(module):
        yield str(module)
    path = Path(text)
    if os.path.isdir(path.parent):
        names = [entry.name for entry in path.parent.iterdir() if not entry.name.startswith(".")]
        yield from (str(path.parent / name) for name in close_names(path.name, names, cutoff=0.75))


def _registered(text: str) -> Iterator[str]:
    """Models with this name or a similar one in timm, torchvision and transformers, from the shipped tables."""
    folder = files("torchgauge") / "source" / "identify"
    fingerprints = (folder / "fingerprints.tsv").read_text(encoding="utf-8").splitlines()[1:]
    patterns = (folder / "name_patterns.tsv").read_text(encoding="utf-8").splitlines()[1:]
    targets = [line.partition("\t")[0] for line in fingerprints]
    targets += [f"hf:{name}" for name in dict.fromkeys(name for line in patterns for name in line.split("\t", 2)[:2])]
    names = grouped((target.partition(":")[2].lower(), target) for target in targets)
    lowered = text.lower()
    architecture, dot, tag = lowered.partition(".")
    if lowered in names:
        yield from sorted(names[lowered])
    elif dot and architecture in names:
        # With the tag of its weights, as timm writes it.
        yield from (f"{target}.{tag}" for target in names[architecture] if target.startswith("timm:"))
    else:
        yield from (target for name in close_names(lowered, names, cutoff=0.8) for target in sorted(names[name]))


def close_names(name: str, known: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """Up to three similar names, the most similar first, ignoring case."""
    folded = {candidate.lower(): candidate for candidate in known}
    return [folded[match] for match in get_close_matches(name.lower(), folded, n=3, cutoff=cutoff)]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence with the most similar names, with a leading space; empty if there are none."""
    matches = close_names(name, known)
    if not matches:
        return ""
    return f" Did you mean {' or '.join(repr(match) for match in matches)}?"
