"""A layer imports only layers above it; only the edge prints; what must work without torch does not import it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "torchgauge"
LAYERS = (
    "errors",
    "registry",
    "nested",
    "units",
    "progress",
    "cache",
    "interpreter",
    "isolation",
    "facts",
    "cost",
    "hardware",
    "checkpoint",
    "source",
    "capture",
    "measure",
    "energy",
    "weights",
    "predict",
    "advise",
    "verify",
    "report",
    "analysis",
    "compat",
    "integrations",
    "cli",
    "__main__",
)
WITHOUT_TORCH = {
    "errors", "registry", "nested", "units", "progress", "cache", "interpreter", "isolation", "facts",
    "cost", "hardware", "checkpoint", "advise", "report",
}  # fmt: skip
# They ask torch about the machine, inside functions that only a run calls.
TORCH_ON_USE = {"hardware/machine.py"}
# A report shows what was found: it finds nothing out.
REPORTED = {"errors", "registry", "units", "cache", "facts", "hardware", "checkpoint", "advise", "report"}
PRINTING = {"cli", "compat"}
FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def layer_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported_modules(tree: ast.AST, package: str) -> Iterator[str]:
    """Full names of all imported modules, at any level of the code; of `from a import b` both a and a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parent, base] if base else parent)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def imported_layers(tree: ast.AST, package: str) -> set[str]:
    names = [name.split(".") for name in imported_modules(tree, package)]
    return {parts[1] for parts in names if parts[0] == "torchgauge" and len(parts) > 1} - {"__version__"}


def breaches(tree: ast.AST, layer: str, package: str) -> set[str]:
    """The layers that a file imports though they are not above `layer`."""
    allowed = set(LAYERS[: LAYERS.index(layer) + 1])
    return imported_layers(tree, package) - allowed


def package_of(path: Path) -> str:
    return ".".join(("torchgauge", *path.relative_to(SOURCE).parent.parts))


def test_a_file_imports_only_layers_above_its_own() -> None:
    assert {layer_of(path) for path in FILES} <= set(LAYERS)
    found = {path: breaches(tree_of(path), layer_of(path), package_of(path)) for path in FILES}
    assert {str(path.relative_to(SOURCE)): layers for path, layers in found.items() if layers} == {}


def test_reports_read_facts_and_run_no_analysis() -> None:
    files = [path for path in FILES if layer_of(path) == "report"]
    imported = {layer for path in files for layer in imported_layers(tree_of(path), package_of(path))}
    assert imported <= REPORTED


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import torchgauge.report", {"report"}),
        ("from torchgauge import report", {"report"}),
        ("from torchgauge.report.formats.text import render_text", {"report"}),
        ("def f():\n    from torchgauge.cli import main", {"cli"}),
        ("from ..report import text", {"report"}),
        ("from .registry import formula", set()),
        ("from torchgauge import __version__", set()),
        ("from torchgauge.facts import Cost", set()),
    ],
)
def test_an_import_against_the_direction_is_found_in_every_form(text: str, found: set[str]) -> None:
    assert breaches(ast.parse(text), "cost", "torchgauge.cost") == found


def test_layers_that_read_saved_facts_do_not_import_torch() -> None:
    importing = []
    for path in FILES:
        body = tree_of(path).body
        if path.relative_to(SOURCE).as_posix() in TORCH_ON_USE:
            body = [node for node in body if not isinstance(node, ast.FunctionDef)]
        modules = imported_modules(ast.Module(body, []), package_of(path))
        if layer_of(path) in WITHOUT_TORCH and "torch" in {name.split(".")[0] for name in modules}:
            importing.append(str(path.relative_to(SOURCE)))
    assert importing == []


def test_the_picture_for_contributors_is_that_of_the_layers() -> None:
    text = (SOURCE.parent.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^    (\w+)( ○)? {2,}\S", text.split("## The layers")[1].split("## Habits")[0], re.MULTILINE)
    assert tuple(name for name, _ in rows) == tuple(layer for layer in LAYERS if layer != "__main__")
    assert {name for name, mark in rows if mark} == WITHOUT_TORCH
    assert {layer_of(path) for path in FILES} == set(LAYERS)


def test_only_the_edge_prints() -> None:
    printing = {
        layer_of(path)
        for path in FILES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    }
    assert printing <= PRINTING


def test_a_progress_callback_has_one_type() -> None:
    spelled = [path for path in FILES if "Callable[[int, int, str], None]" in path.read_text(encoding="utf-8")]
    assert spelled == [SOURCE / "progress.py"]
