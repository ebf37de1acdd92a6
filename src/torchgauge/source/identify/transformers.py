"""State dicts of transformers models: the names say which class."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

from torchgauge.errors import MissingDependencyError, TargetError
from torchgauge.source import huggingface
from torchgauge.source.identify.fitting import NamedClass, fit_classes, quiet
from torchgauge.source.identify.match import Match
from torchgauge.source.identify.sketch import Sketch
from torchgauge.source.identify.spellings import modern, pattern_sum, patterns_of
from torchgauge.source.identify.table import NAME_PATTERNS, read_table
from torchgauge.source.packages import import_optional
from torchgauge.source.state_names import Shape

# Of this thread, and only where the names are those of a class, or nearly.
_MOST_SECONDS, _MOST_SECONDS_NEARLY = 8.0, 6.0
_ALIKE, _STEPS = 0.5, 8
_MOST_ALIKE, _MOST_OF_ONE_KIND = 8, 2
_TASKS = (
    "ForMaskedLM", "ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "Model", "ForSequenceClassification",
    "ForImageClassification", "ForTokenClassification", "ForCTC",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Names:
    """The classes by the sum of their names, and with sketches of them; those that others took most from come first."""

    exact: Mapping[int, list[NamedClass]]
    sketched: list[tuple[Sketch, NamedClass]]


@cache
def known_names() -> Names:
    exact: defaultdict[int, list[NamedClass]] = defaultdict(list)
    sketched: list[tuple[Sketch, NamedClass]] = []
    for line in read_table(NAME_PATTERNS)[1:]:
        name, model_type, sums, options, sketch = line.split("\t")
        named = NamedClass(name, model_type, json.loads(options) if options else {})
        for value in sums.split():
            exact[int(value, 16)].append(named)
        if sketch:
            sketched.append((Sketch.from_text(sketch), named))
    return Names(exact, sketched)


def match_named(shapes: Mapping[str, Shape], file: str = "") -> Match | None:
    """Of a class with these names. `file` is the name of the file: it chooses between classes of the same tensors."""
    shapes = modern(shapes)
    classes = _ranked(known_names().exact.get(pattern_sum(shapes), []), file)
    return _with_transformers(lambda: fit_classes(classes, shapes, _MOST_SECONDS, is_ranked=True)) if classes else None


def match_similar(shapes: Mapping[str, Shape], file: str = "") -> Match | None:
    """Of a class with nearly these names, which its config may change or which it leaves unused."""
    shapes = modern(shapes)
    tried = {named.name for named in known_names().exact.get(pattern_sum(shapes), [])}
    classes = [named for named in _alike(shapes, file) if named.name not in tried]
    if not classes:
        return None
    return _with_transformers(
        lambda: _fit_without_unused(classes, shapes) or fit_classes(classes, shapes, _MOST_SECONDS_NEARLY)
    )


def _with_transformers(fit: Callable[[], Match | None]) -> Match | None:
    try:
        transformers = import_optional("transformers", "identifying a checkpoint")
    except (MissingDependencyError, TargetError):
        return None
    with quiet(transformers):
        return fit()


def _ranked(classes: list[NamedClass], file: str) -> list[NamedClass]:
    types = list(dict.fromkeys(named.model_type for named in classes))
    return sorted(classes, key=lambda named: (-_named_in(named, file), types.index(named.model_type), _task(named)))


def _alike(shapes: Mapping[str, Shape], file: str) -> list[NamedClass]:
    """The classes with nearly the same names, the most alike first, and few of those that do not differ in them."""
    sketch = Sketch.of(patterns_of(shapes))
    scores = [(sketch.likeness(other), other, named) for other, named in known_names().sketched]
    likely = [one for one in scores if one[0] >= _ALIKE]
    # A name more or less, as that of a tied head, decides nothing.
    likely.sort(key=lambda one: (-int(one[0] * _STEPS), -_named_in(one[2], file), _task(one[2])))
    kinds: Counter[Sketch] = Counter()
    found: list[NamedClass] = []
    for _, other, named in likely:
        kinds[other] += 1
        found += [named] if kinds[other] <= _MOST_OF_ONE_KIND else []
    return found[:_MOST_ALIKE]


def _fit_without_unused(classes: list[NamedClass], shapes: Mapping[str, Shape]) -> Match | None:
    """Where a class leaves some tensors of a file unused, and has the names of the others."""
    for named in classes:
        for used in _without_unused(named, shapes):
            same = [other for other in known_names().exact.get(pattern_sum(used), []) if other.name == named.name]
            match = fit_classes(same, used, _MOST_SECONDS)
            if match is not None:
                return replace(match, unused=tuple(name for name in shapes if name not in used))
    return None


def _without_unused(named: NamedClass, shapes: Mapping[str, Shape]) -> Iterator[dict[str, Shape]]:
    patterns = getattr(huggingface.model_class(named.name), "_keys_to_ignore_on_load_unexpected", None)
    if isinstance(patterns, list | tuple | set) and patterns:
        unused = re.compile("|".join(patterns))
        used = {name: shape for name, shape in shapes.items() if not unused.search(name)}
        if 0 < len(used) < len(shapes):
            yield used


def _named_in(named: NamedClass, file: str) -> int:
    """How much of the file's name is that of the model type."""
    spelt, wanted = (text.lower().replace("-", "").replace("_", "") for text in (file, named.model_type))
    return len(wanted) if wanted in spelt else 0


def _task(named: NamedClass) -> int:
    """The commoner use of the same tensors first."""
    return next((rank for rank, task in enumerate(_TASKS) if named.name.endswith(task)), len(_TASKS))
