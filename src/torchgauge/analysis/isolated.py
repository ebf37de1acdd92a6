"""Files are read by a process without rights (`isolation`), which hands back the JSON document of what it found."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torchgauge.analysis.options import stored_path
from torchgauge.analysis.result import Analysis
from torchgauge.errors import LimitError, TorchgaugeError
from torchgauge.facts.schema import conform
from torchgauge.isolation import is_isolated
from torchgauge.registry import collector_paused

if TYPE_CHECKING:
    from torchgauge.isolation.channel import Message
    from torchgauge.isolation.limits import Limits
    from torchgauge.isolation.process import Service

Found = TypeVar("Found", bound=Analysis)
T = TypeVar("T")

# Memory of Python objects by what stands for them in JSON: an object, a list, a member and its value, an item, a text.
_OBJECT_BYTES, _LIST_BYTES, _MEMBER_BYTES, _ITEM_BYTES, _TEXT_BYTES = 200, 72, 64, 40, 64
# Modules that every reader uses in addition to the package `checkpoint`; none of them loads torch.
_MODULES = (
    "facts.document", "report.escape", "report.registry", "report.formats.json", "source.architecture",
    "source.source", "source.state_names", "source.weight_tree",
)  # fmt: skip
# Packages that take seconds to import.
_PACKAGES = ("gguf", "timm", "torchvision", "transformers")
# Most files of this size have no tensor that needs the compiled kernels, which take half a second to load.
_SMALL_FILE_BYTES = 1 << 20
_imported_by_readers: set[str] = set()
_kernels_of_readers: list[tuple[str, list[Any]]] = []


def needs_isolation(target: Any, allow_pickle: bool, *, takes_code: bool = True) -> bool:
    """Code that the user allows to run is outside; so is what a reader without rights does itself."""
    return not (is_isolated() or allow_pickle) and stored_path(target, takes_code=takes_code) is not None


@collector_paused()
def prepare_reader(paths: Sequence[str], *, torch: bool, weights: bool) -> bool:
    """Import what reading needs: each reader would import it again, and a process without rights cannot keep what an
    import compiles. Whether torch is new here, so that a fork may use its threads."""
    is_new = sys.modules.get("torch") is None
    for name in _MODULES:
        importlib.import_module(f"torchgauge.{name}")
    _import_package("checkpoint")
    if torch:
        from torchgauge.source.packages import import_optional

        _import_package("source", "capture", "advise")
        for name in sorted(_imported_by_readers - sys.modules.keys()):
            import_optional(name, "reading files")
    if weights:
        importlib.import_module("torchgauge.weights.scanner")
        _import_package("advise")
        # Whether a tensor in a file may be too large for numpy alone; a reader says so if it is, and starts again.
        is_large = any(os.path.isdir(path) or os.path.getsize(path) > _SMALL_FILE_BYTES for path in paths)
        if "numba" in sys.modules or _kernels_of_readers or is_large:
            _load_kernels()
    return is_new


def _load_kernels() -> None:
    from torchgauge.weights.kernels.jit import compile_entry

    _import_package("weights")
    while _kernels_of_readers:
        compile_entry(*_kernels_of_readers.pop())


@cache
def _import_package(*names: str) -> None:
    """All modules: what a reader imports, the next one would import again, and kernels are kept on disk only by modules
    that were imported with the right to write there."""
    for name in names:
        package = importlib.import_module(f"torchgauge.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"torchgauge.{name}."):
            importlib.import_module(module.name)


def read_analysis(
    kind: type[Found],
    job: Callable[..., Analysis],
    paths: list[str],
    options: Mapping[str, Any],
    *,
    memory_limit: int | str | None,
    time_limit: float | None,
    needs_torch: bool,
    on_row: Callable[[Mapping[str, Any]], None] | None = None,
    journal: Path | None = None,
) -> Found:
    """Run `job(**options)` in a process without rights and return what it found."""
    from torchgauge.facts.document import capture_from_document
    from torchgauge.isolation import limits_for

    limits = limits_for(paths, memory_limit, time_limit)
    document = run_reader(
        partial(_document, job, dict(options), sends_rows=on_row is not None),
        paths,
        limits,
        torch=needs_torch,
        weights=options.get("weights") is not False,
        mode=options.get("mode"),
        device=options.get("device"),
        journal=journal,
        services={} if on_row is None else {"row": lambda message: on_row(_row(message, paths[0]))},
    )
    with collector_paused():  # what the document becomes stays
        capture = _received(document, paths[0], limits, lambda found: capture_from_document(found, paths[0]))
    if (used := sys.modules.get("torch")) is not None:
        # The reader may have used one thread; what runs here will use as many as torch has.
        capture = replace(capture, environment=replace(capture.environment, threads=used.get_num_threads()))
    return kind(capture)


def _received(text: bytes, subject: str, limits: Limits, check: Callable[[Any], T]) -> T:
    """The result of a reader, as `check` makes it from JSON. Like all that a reader sends it is untrusted."""
    if object_bytes(text) > limits.result_bytes:
        raise LimitError(f"'{subject}' {limits.describe('memory')}")
    try:
        return check(json.loads(text))
    except (TorchgaugeError, ValueError, RecursionError) as error:
        from torchgauge.isolation import unexpected_message

        raise unexpected_message(subject, error) from error


def object_bytes(text: bytes) -> int:
    """About the most memory that a JSON document takes as Python objects, without making them."""
    members = text.count(b":")
    items = max(text.count(b",") - members, 0)
    texts = max(text.count(b'"') // 2 - members, 0)
    characters = len(text) if text.isascii() else 4 * len(text)
    return (
        characters + _OBJECT_BYTES * text.count(b"{") + _LIST_BYTES * text.count(b"[")
        + _MEMBER_BYTES * members + _ITEM_BYTES * items + _TEXT_BYTES * texts
    )  # fmt: skip


def _row(message: Message, subject: str) -> Mapping[str, Any]:
    from torchgauge.facts.document_types import WeightRow
    from torchgauge.isolation import unexpected_message

    try:
        return conform(json.loads(message.payload), WeightRow, "a row")
    except (TorchgaugeError, ValueError, RecursionError) as error:
        raise unexpected_message(subject, error) from error


def isolation_remarks() -> tuple[str, ...]:
    """In a reader: which barriers it lacks, for its report."""
    from torchgauge.isolation import missing_barriers

    missing = missing_barriers() if is_isolated() else None
    return () if missing is None else (f"read without {missing}",)


def require_isolated(target: Any, *, takes_code: bool = True, **outside: object) -> None:
    """For `require_isolation`: refuse a file where a barrier is missing, and where one of the options `outside` gives
    its code the rights of this process."""
    from torchgauge.isolation import require_barriers

    path = stored_path(target, takes_code=takes_code)
    if path is None or is_isolated():
        return
    require_barriers()
    for option, value in outside.items():
        if value:
            raise TorchgaugeError(f"isolation is required, and {option} opens '{path}' outside of it")


def _document(job: Callable[..., Analysis], options: dict[str, Any], *, sends_rows: bool) -> bytes:
    from torchgauge.isolation import ask_parent
    from torchgauge.report import render_bytes
    from torchgauge.report.escape import json_line

    if sends_rows:
        options["on_row"] = lambda row: ask_parent("row", json_line(row).encode())
    found = job(**options)
    report_loaded()
    # A scan's own document lacks the modules that the code names.
    return render_bytes(Analysis(found.capture), "json")


def read_data(
    job: Callable[[], Any],
    paths: list[str],
    check: Callable[[Any], T],
    *,
    memory_limit: int | str | None,
    time_limit: float | None,
    needs_torch: bool = False,
    mode: str | None = None,
) -> T:
    """Run `job()` in a process without rights and return its result: plain data, as `check` makes it from JSON."""
    from torchgauge.isolation import limits_for

    limits = limits_for(paths, memory_limit, time_limit)
    text = run_reader(partial(_plain, job), paths, limits, torch=needs_torch, weights=not needs_torch, mode=mode)
    return _received(text, paths[0], limits, check)


def _plain(job: Callable[[], Any]) -> bytes:
    from torchgauge.report.escape import json_line

    return json_line(job()).encode()


def run_reader(
    job: Callable[[], bytes],
    paths: list[str],
    limits: Limits,
    *,
    torch: bool,
    weights: bool,
    mode: str | None = None,
    device: object = None,
    writable: Sequence[str] = (),
    journal: Path | None = None,
    services: Mapping[str, Service] | None = None,
) -> bytes:
    """Run `job()` in a process without rights that reads these files, and return its result; `writable` are the files
    that this process writes for it, and so is the `journal` of its scan."""
    from torchgauge.isolation import run_isolated

    is_new = prepare_reader(paths, torch=torch, weights=weights)
    # The autograd engine has threads and CUDA a context: neither survives a fork.
    survives_fork = mode != "train" and not str(device).startswith("cuda")
    return run_isolated(
        job,
        limits=limits,
        subject=paths[0],
        writable=writable,
        journal=journal,
        services={**_SERVICES, **(services or {})},
        # Packages that a reader may need and cannot import itself.
        importers={
            "torch": partial(prepare_reader, paths, torch=True, weights=weights),
            "numba": _load_kernels,
            **{name: partial(_import_quietly, name) for name in _PACKAGES},
        },
        needs_fresh_process=not is_new and not survives_fork,
        is_torch_unused=is_new,
    )


def _import_quietly(package: str) -> None:
    """The reader has already passed on the warnings of the import."""
    from torchgauge.source.packages import import_optional

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import_optional(package, "reading files")


def report_loaded() -> None:
    """A reader's imports and kernels end with it: its parent loads them before it starts the next."""
    from torchgauge.isolation import ask_parent

    jit = sys.modules.get("torchgauge.weights.kernels.jit")
    packages = [name for name in _PACKAGES if name in sys.modules]
    ask_parent("loaded", packages=packages, kernels=jit.LOADED if jit is not None else [])


def _note_loaded(message: Message) -> None:
    _imported_by_readers.update(name for name in _PACKAGES if name in message.facts["packages"])
    _kernels_of_readers.extend((name, types) for name, types in message.facts["kernels"])


def _name_accelerator(message: Message) -> dict[str, Any]:
    from torchgauge.hardware import accelerator_name

    try:
        return {"name": accelerator_name(message.facts["device"])}
    except (ValueError, RuntimeError, AssertionError):
        return {"name": None}  # not a device that torch knows here


def _compile_kernel(message: Message) -> None:
    """Kernels are compiled and kept by the parent: code that a reader left in a cache could not be trusted."""
    from torchgauge.weights.kernels.jit import compile_entry

    compile_entry(message.facts["kernel"], message.facts["types"])


# What every reader may request, in addition to what `run_isolated` writes for it.
_SERVICES: dict[str, Service] = {
    "compile": _compile_kernel, "accelerator": _name_accelerator, "loaded": _note_loaded,
}  # fmt: skip
