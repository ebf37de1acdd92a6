"""Whether a state dict may be of a listed architecture: by the shipped tables alone, without building a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from torchgauge.checkpoint.tensor_names import COPIES
from torchgauge.source.identify.features import Features
from torchgauge.source.identify.fingerprint import NAME_PATTERNS, Sketch, candidates, is_current, read_table
from torchgauge.source.identify.outline import modern, pattern_sum, patterns_of
from torchgauge.source.state_names import Shape

# No model of a registry has more tensors; comparing them would take long.
_MAX_TENSORS = 100_000
# A plain sequence of layers (`0.weight`) has no words; no model of a registry has such names.
_MIN_TENSORS, _MIN_WORDS = 8, 2
# Moving averages of the weights, and the number of their steps.
_COPIES = frozenset({*COPIES, "n_averaged"})
_DEEPEST_PREFIX = 6
# Similar names: of the hashes of the names that are compared, this share agrees.
MIN_LIKENESS = 0.5


def is_eligible(shapes: Mapping[str, Shape]) -> bool:
    """Whether there are enough tensors, with names of their own."""
    return _MIN_TENSORS <= len(shapes) <= _MAX_TENSORS and len(Features(shapes).words) >= _MIN_WORDS


def may_be_listed(shapes: Mapping[str, Shape]) -> bool:
    """False if `identify` finds nothing for these tensors, whatever it builds."""
    if not is_eligible(shapes):
        return False
    if not all(map(is_current, ("torchvision", "timm", "transformers"))):
        return True
    return any(candidates(core) or _resembles(modern(core)) for core in strip_prefixes(shapes))


def _resembles(shapes: Mapping[str, Shape]) -> bool:
    exact, sketches = _names()
    sketch = Sketch.of(patterns_of(shapes))
    return pattern_sum(shapes) in exact or any(sketch.likeness(other) >= MIN_LIKENESS for other in sketches)


@cache
def _names() -> tuple[frozenset[int], tuple[Sketch, ...]]:
    """The sums and the sketches of the names of listed classes."""
    rows = [line.split("\t") for line in read_table(NAME_PATTERNS)[1:]]
    sums = frozenset(int(value, 16) for row in rows for value in row[2].split())
    return sums, tuple(Sketch.from_text(sketch) for sketch in dict.fromkeys(row[4] for row in rows) if sketch)


def strip_prefixes(shapes: Mapping[str, Shape]) -> Iterator[dict[str, Shape]]:
    """The tensors by name, then without the common prefix, again and again; without averaged copies of the model."""
    current = _without_copies(shapes)
    for _ in range(_DEEPEST_PREFIX):
        yield current
        first = next(iter(current), "").partition(".")
        lead = first[0] + first[1]
        if not first[1] or not all(name.startswith(lead) for name in current):
            return
        current = _without_copies({name[len(lead) :]: shape for name, shape in current.items()})


def _without_copies(shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """Without averaged copies of the model, unless there is nothing else."""
    own = {name: shape for name, shape in shapes.items() if name.partition(".")[0] not in _COPIES}
    return own or dict(shapes)
