"""Sentences of the terminal and the page are written once: in Python, which passes them to the page."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

REPORT = Path(__file__).parents[2] / "src" / "torchgauge" / "report"
# Fewer words are a label; more are a sentence that two places would have to keep equal.
SENTENCE_WORDS = 5
# A text in quotes, or a piece of a template, which ends where a value begins.
_LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"|[`}]([^`$}\n{()=]*)(?=\$\{|`)')


def words(text: str) -> str:
    return " ".join(re.findall(r"[\w%/'-]+", text.lower()))


def page_sentences(script: str) -> Iterator[str]:
    """The texts of a script, also those between the values of a template."""
    for match in _LITERAL.finditer(script):
        text = words(next(group for group in match.groups() if group is not None))
        if len(text.split()) >= SENTENCE_WORDS:
            yield text


def report_sentences(source: str) -> Iterator[str]:
    tree = ast.parse(source)
    documentation = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        text = words(node.value) if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
        if len(text.split()) >= SENTENCE_WORDS and id(node) not in documentation:
            yield text


def repeated(script: str, known: set[str]) -> set[str]:
    return {text for text in page_sentences(script) if any(text in other or other in text for other in known)}


def test_no_sentence_is_written_in_python_and_in_javascript() -> None:
    sources = [path.read_text(encoding="utf-8") for path in REPORT.rglob("*.py")]
    known = {text for source in sources for text in report_sentences(source)}
    scripts = sorted((REPORT / "page" / "assets").rglob("*.js"))
    assert len(scripts) > 30
    found = {path.name: repeated(path.read_text(encoding="utf-8"), known) for path in scripts}
    assert {name: texts for name, texts in found.items() if texts} == {}


def test_a_repeated_sentence_would_be_found() -> None:
    source = 'def f(n):\n    "Nothing that is said here counts"\n    return f"{n} of the ops were never timed at all"\n'
    known = set(report_sentences(source))
    assert repeated("tg.note(`${n} of the ops were never timed at all`)", known)
    assert repeated('tg.note("of the ops were never timed at all")', known)
    assert not repeated('tg.note("Nothing that is said here counts")', known)
