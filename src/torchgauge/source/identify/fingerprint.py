"""Numbers that stand for the names and shapes of a state dict, so that a thousand architectures compare in no time."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any

from torchgauge.source.matching import is_optional
from torchgauge.source.state_names import Shape

_BYTES = 8
_MODULUS = 1 << (8 * _BYTES)


class Sums:
    """The hashes of a state dict's tensors, summed over each part of its tree: a part can be taken out again."""

    def __init__(self, shapes: Mapping[str, Shape]) -> None:
        self._sums: defaultdict[str, int] = defaultdict(int)
        for name, shape in shapes.items():
            if not is_optional(name):
                value = hash_text(f"{name} {'x'.join(map(str, shape))}")
                parts = name.split(".")
                for path in [".".join(parts[:end]) for end in range(len(parts) + 1)]:
                    self._sums[path] += value

    @property
    def total(self) -> int:
        return self._sums.get("", 0) % _MODULUS

    def without(self, parts: Iterable[str]) -> int:
        """`parts` are modules or tensors; those that do not exist change nothing."""
        return (self._sums.get("", 0) - sum(self._sums.get(part, 0) for part in parts)) % _MODULUS


def hash_text(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(errors="replace"), digest_size=_BYTES).digest(), "big")


@dataclass(frozen=True)
class Known:
    """An architecture of a registry, built with `options`.

    `heads` are the modules that make the classes, `loose` the tensors that follow the channels and size of images:
    `body` is the sum without the heads, `trunk` that without both.
    """

    target: str
    exact: int
    body: int
    trunk: int
    heads: tuple[str, ...] = ()
    loose: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, target: str, shapes: Mapping[str, Shape], heads: tuple[str, ...], loose: tuple[str, ...],
        options: Mapping[str, Any],
    ) -> Known:  # fmt: skip
        sums = Sums(shapes)
        return cls(target, sums.total, sums.without(heads), sums.without((*heads, *loose)), heads, loose, options)

    @cached_property
    def name(self) -> str:
        return self.target.partition(":")[2]

    def to_line(self) -> str:
        sums = (f"{value:0{2 * _BYTES}x}" for value in (self.exact, self.body, self.trunk))
        options = json.dumps(self.options) if self.options else ""
        return "\t".join((self.target, *sums, " ".join(self.heads), " ".join(self.loose), options))

    @classmethod
    def from_line(cls, line: str) -> Known:
        target, exact, body, trunk, heads, loose, options = line.split("\t")
        exact_sum, body_sum, trunk_sum = (int(value, 16) for value in (exact, body, trunk))
        settings = json.loads(options) if options else {}
        return cls(target, exact_sum, body_sum, trunk_sum, tuple(heads.split()), tuple(loose.split()), settings)
