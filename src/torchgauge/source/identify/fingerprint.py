"""Fingerprints of the names and shapes of a state dict, and the shipped table of those of timm and torchvision."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from hashlib import blake2b
from heapq import nsmallest
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files

from torchgauge.checkpoint.tensor_names import is_optional
from torchgauge.facts import enclosing_paths
from torchgauge.source.state_names import Shape

_DIGEST_BYTES = 8
_MODULUS = 1 << (8 * _DIGEST_BYTES)


class Sums:
    """The hashes of a state dict's tensors, summed over each part of its tree, so that a part can be subtracted."""

    def __init__(self, shapes: Mapping[str, Shape]) -> None:
        self._sums: defaultdict[str, int] = defaultdict(int)
        for name, shape in shapes.items():
            if not is_optional(name):
                value = hash_text(f"{name} {'x'.join(map(str, shape))}")
                for path in enclosing_paths(name):
                    self._sums[path] += value

    @property
    def total(self) -> int:
        return self._sums.get("", 0) % _MODULUS

    def without(self, parts: Iterable[str]) -> int:
        """The sum without these modules or tensors; those that do not exist are ignored."""
        return (self._sums.get("", 0) - sum(self._sums.get(part, 0) for part in parts)) % _MODULUS


def hash_text(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(errors="replace"), digest_size=_DIGEST_BYTES).digest(), "big")


@dataclass(frozen=True)
class Known:
    """An architecture of a registry, built with `options`.

    `heads` are the modules that output the classes, `loose` the tensors that depend on the channels and the size of
    images. `body` is the sum without the heads, `trunk` the sum without both.
    """

    target: str
    exact: int
    body: int
    trunk: int
    heads: tuple[str, ...] = ()
    loose: tuple[str, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def of(
        cls, target: str, shapes: Mapping[str, Shape], heads: tuple[str, ...], loose: tuple[str, ...],
        options: Mapping[str, object],
    ) -> Known:  # fmt: skip
        sums = Sums(shapes)
        return cls(target, sums.total, sums.without(heads), sums.without((*heads, *loose)), heads, loose, options)

    @cached_property
    def name(self) -> str:
        return self.target.partition(":")[2]

    def to_line(self) -> str:
        sums = (f"{value:0{2 * _DIGEST_BYTES}x}" for value in (self.exact, self.body, self.trunk))
        options = json.dumps(self.options) if self.options else ""
        return "\t".join((self.target, *sums, " ".join(self.heads), " ".join(self.loose), options))

    @classmethod
    def from_line(cls, line: str) -> Known:
        target, exact, body, trunk, heads, loose, options = line.split("\t")
        exact_sum, body_sum, trunk_sum = (int(value, 16) for value in (exact, body, trunk))
        settings = json.loads(options) if options else {}
        return cls(target, exact_sum, body_sum, trunk_sum, tuple(heads.split()), tuple(loose.split()), settings)


FINGERPRINTS, NAME_PATTERNS = "fingerprints.tsv", "name_patterns.tsv"


@cache
def read_table(name: str) -> tuple[str, ...]:
    """The lines of a shipped table; the first names the versions it was made with."""
    return tuple((files(__package__) / name).read_text(encoding="utf-8").splitlines())


@cache
def is_current(registry: str) -> bool:
    """Whether the tables were made with the installed version, and so list all of its models."""
    headers = ",".join(read_table(name)[0].removeprefix("#") for name in (FINGERPRINTS, NAME_PATTERNS))
    listed = dict(part.split() for part in headers.split(","))
    try:
        return version(registry).partition("+")[0] == listed[registry]
    except PackageNotFoundError:
        return False


def candidates(shapes: Mapping[str, Shape]) -> list[Known]:
    """Exact matches; otherwise matches except for the classes; otherwise matches except for classes and images."""
    sums, index = Sums(shapes), _index()
    return (
        index.exact.get(sums.total, [])
        or [known for heads in index.heads for known in index.body.get((heads, sums.without(heads)), [])]
        or [known for parts in index.loose for known in index.trunk.get((parts, sums.without(parts)), [])]
    )


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


_SKETCH_HASHES = 16
_SKETCH_BYTES = 3
_SKETCH_SHIFT = 64 - 8 * _SKETCH_BYTES


@dataclass(frozen=True, slots=True)
class Sketch:
    """The smallest hashes of the names (MinHash): for two sets, those of the union estimate the share in common."""

    hashes: frozenset[int]

    @classmethod
    def of(cls, names: Iterable[str]) -> Sketch:
        return cls(frozenset(nsmallest(_SKETCH_HASHES, {hash_text(name) >> _SKETCH_SHIFT for name in names})))

    def likeness(self, other: Sketch) -> float:
        """From 0 to 1, which means that all names agree."""
        smallest = nsmallest(_SKETCH_HASHES, self.hashes | other.hashes)
        both = self.hashes & other.hashes
        return sum(value in both for value in smallest) / len(smallest) if smallest else 0.0

    def to_text(self) -> str:
        return b64encode(b"".join(value.to_bytes(_SKETCH_BYTES, "big") for value in sorted(self.hashes))).decode()

    @classmethod
    def from_text(cls, text: str) -> Sketch:
        data = b64decode(text)
        return cls(
            frozenset(int.from_bytes(data[at : at + _SKETCH_BYTES], "big") for at in range(0, len(data), _SKETCH_BYTES))
        )
