"""The table of fingerprints that is shipped: which architectures of timm and torchvision a state dict may be of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files

from torchgauge.source.identify.fingerprint import Known, Sums
from torchgauge.source.state_names import Shape

FINGERPRINTS, NAME_PATTERNS = "fingerprints.tsv", "name_patterns.tsv"


@cache
def read_table(name: str) -> tuple[str, ...]:
    """The lines of a shipped table; the first says which versions it was made with."""
    return tuple((files(__package__) / name).read_text(encoding="utf-8").splitlines())


@cache
def is_current(registry: str) -> bool:
    """Whether the tables were made with the installed version: what they do not know, it does not have."""
    headers = ",".join(read_table(name)[0].removeprefix("#") for name in (FINGERPRINTS, NAME_PATTERNS))
    listed = dict(part.split() for part in headers.split(","))
    try:
        return version(registry).partition("+")[0] == listed[registry]
    except PackageNotFoundError:
        return False


def candidates(shapes: Mapping[str, Shape]) -> list[Known]:
    """Those that agree in all, else those that agree but for the classes, else those for other images."""
    sums = Sums(shapes)
    for level in _levels(sums):
        if level:
            return level
    return []


def _levels(sums: Sums) -> Iterator[list[Known]]:
    index = _index()
    yield index.exact.get(sums.total, [])
    yield [known for heads in index.heads for known in index.body.get((heads, sums.without(heads)), [])]
    yield [known for parts in index.loose for known in index.trunk.get((parts, sums.without(parts)), [])]


@dataclass(frozen=True, slots=True)
class _Index:
    exact: Mapping[int, list[Known]]
    body: Mapping[tuple[tuple[str, ...], int], list[Known]]
    trunk: Mapping[tuple[tuple[str, ...], int], list[Known]]
    heads: tuple[tuple[str, ...], ...]
    loose: tuple[tuple[str, ...], ...]


@cache
def _index() -> _Index:
    exact, body, trunk = defaultdict(list), defaultdict(list), defaultdict(list)
    for known in map(Known.from_line, read_table(FINGERPRINTS)[1:]):
        exact[known.exact].append(known)
        body[known.heads, known.body].append(known)
        trunk[known.heads + known.loose, known.trunk].append(known)
    heads, loose = (tuple(dict.fromkeys(parts for parts, _ in level)) for level in (body, trunk))
    return _Index(exact, body, trunk, heads, loose)
