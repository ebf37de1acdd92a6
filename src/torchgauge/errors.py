"""Every error torchgauge raises on purpose.

    TorchgaugeError                the request could not be met: exit status 1
    ├── UsageError                 the request itself is malformed: exit status 2
    ├── TargetError                the target was not found or could not be built
    ├── InputError                 the inputs do not fit, or none could be inferred
    ├── ForwardError               the model's own code failed; names the module and the shapes it saw
    ├── FormatError                a saved run or a model file could not be read
    ├── LimitError                 reading a file needs more memory or time than it may take
    └── MissingDependencyError     an optional package is needed

A message says what happened, where, and what to do next. The command line catches `TorchgaugeError` in one place.
`errors_as_torchgauge` wraps the opening of a file: any other error raised there becomes one of these.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import Any


def one_line(text: str) -> str:
    """The text with line breaks and control characters as escapes: in a message, a name forges no line of its own."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


class TorchgaugeError(Exception):
    """The request could not be met. `more` are further lines of the message."""

    exit_status = 1

    def __init__(self, message: str = "", *more: str) -> None:
        super().__init__(*map(one_line, (message, *more)))

    def __str__(self) -> str:
        return "\n".join(self.args)

    def _render_traceback_(self) -> list[str]:
        """IPython and Jupyter show this instead of a traceback, which stays in `sys.last_value`."""
        return f"{type(self).__name__}: {self}".split("\n")


class UsageError(TorchgaugeError):
    """The request is malformed: an unknown option, column, format or form of target."""

    exit_status = 2


class TargetError(TorchgaugeError):
    """The target was not found, or its model could not be built."""


class InputError(TorchgaugeError):
    """The inputs do not fit the model, or none could be inferred."""


class ForwardError(TorchgaugeError):
    """The model failed while it ran; `module` is the path of the innermost module that was running. If a
    layer got an input of the wrong size, `misfit` has the expected and the actual size. `is_in_code`: the code is
    wrong, whatever the input."""

    def __init__(
        self, message: str, *more: str, module: str = "", misfit: Any = None, is_in_code: bool = False
    ) -> None:
        super().__init__(message, *more)
        self.module = module
        self.misfit = misfit
        self.is_in_code = is_in_code


class FormatError(TorchgaugeError):
    """A saved run or a model file could not be read; `imports`: what its pickles would have imported until then;
    `looks_like`: if the file is not a PyTorch model, what it is and, after a semicolon, what to do with it."""

    def __init__(self, message: str, *more: str, imports: tuple[Any, ...] = (), looks_like: str | None = None) -> None:
        super().__init__(message, *more)
        self.imports, self.looks_like = imports, looks_like


# The extra of torchgauge that brings a package, as pyproject.toml has it (a test compares them).
EXTRAS = {
    "dask": "dask",
    "distributed": "dask",
    "gguf": "gguf",
    "lightning": "lightning",
    "pandas": "dataframe",
    "pyarrow": "parquet",
    "pydot": "compat",
    "tensorboard": "tensorboard",
    "timm": "models",
    "torchvision": "models",
    "tqdm": "compat",
    "transformers": "models",
    "wandb": "wandb",
    "zstandard": "zstd",
}


class LimitError(TorchgaugeError):
    """Reading a file needs more memory or time than `memory_limit` or `time_limit` allows."""


class MissingDependencyError(TorchgaugeError):
    """An optional package is needed for this request."""

    def __init__(self, package: str, purpose: str) -> None:
        wanted = f"torchgauge[{EXTRAS[package]}]" if package in EXTRAS else package
        super().__init__(f"{purpose} needs the package '{package}': install it with `pip install {wanted}`")
        self.package = package


class UnpicklingWarning(UserWarning):
    """A pickle is about to be run, because the user allowed it; the command line never silences this."""


def first_line(error: BaseException) -> str:
    """The first line of a message, without the stack traces that torch appends; the type if there is no message."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@contextmanager
def errors_as_torchgauge(path: str | os.PathLike[str] | None, *, passing: Container[Exception] = ()) -> Iterator[None]:
    """Turn errors raised while the file or folder `path` is read into a `TorchgaugeError` that names it.

    A file can be wrong in ways that no reader foresees, and a reader can have bugs: either way the user needs one
    sentence, and the original error, with its traceback, is its cause. Errors in `passing`, which the caller's own code
    raised, Ctrl-C, and all errors if `path` is None (nothing comes from a file) pass unchanged.
    """
    try:
        yield
    except TorchgaugeError:
        raise
    except Exception as error:
        if path is None or error in passing:
            raise
        kind: type[TorchgaugeError] = FormatError
        if isinstance(error, MemoryError):
            kind, reason = TorchgaugeError, "not enough memory"
        elif isinstance(error, RecursionError):
            reason = "it is nested too deeply"
        else:
            reason = str(error.strerror or error) if isinstance(error, OSError) else unexpected(error)
        raise kind(f"could not read '{os.fspath(path)}': {reason}") from error


def unexpected(error: Exception) -> str:
    """An error that torchgauge did not foresee, in one line."""
    first, *_ = str(error).strip().splitlines() or ["no message"]
    return f"{type(error).__name__}: {first}. This may be a bug in torchgauge; run again with --debug for the traceback"
