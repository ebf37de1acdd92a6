"""What the pickles of a file would import, in the order met."""

from __future__ import annotations

from torchgauge.checkpoint import limits
from torchgauge.checkpoint.index import Import, Verdict
from torchgauge.checkpoint.verdicts import judge
from torchgauge.errors import FormatError

_LONGEST_NAME = 300


class ImportLog:
    """As a context, it hands what it holds to a `FormatError` that leaves the block."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Import] = {}
        self._noted: set[tuple[str, str, str, bool]] = set()

    def __enter__(self) -> ImportLog:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, FormatError):
            error.imports = tuple(dict.fromkeys((*error.imports, *self.imports)))

    def note(self, module: str, name: str, file: str, *, called: bool = False) -> None:
        key = (module, name, file, called)
        if key in self._noted:
            return
        full = printable(f"{module}.{name}")
        known = self._found.get((full, file))
        if known is not None and (known.called or not called):
            return
        if len(self._found) >= limits.IMPORTS:
            raise FormatError(f"{file}: its pickle imports more than {limits.IMPORTS} names")
        self._noted.add(key)
        verdict = judge(module, name) if known is None else known.verdict
        self._found[full, file] = Import(full, verdict, called, file)

    def merge(self, imports: tuple[Import, ...]) -> None:
        for found in imports:
            self._found.setdefault((found.name, found.file), found)

    def note_computed(self, file: str) -> None:
        """An import whose name only running the pickle would tell."""
        self._found[_COMPUTED, file] = Import(_COMPUTED, Verdict.DANGEROUS, True, file)

    @property
    def imports(self) -> tuple[Import, ...]:
        return tuple(self._found.values())

    @property
    def dangerous(self) -> list[str]:
        return [found.name for found in self._found.values() if found.verdict is Verdict.DANGEROUS]


_COMPUTED = "(a name computed while unpickling)"


def printable(text: str) -> str:
    """Text that any encoder accepts, and no longer than a message can bear."""
    text = text if len(text) <= _LONGEST_NAME else text[:_LONGEST_NAME] + "…"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
