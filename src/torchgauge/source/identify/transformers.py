"""State dicts of transformers models, whose names determine the class. For versions of transformers that are not in the
shipped table, classes are ranked by the words in their code.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from torchgauge.errors import MissingDependencyError, TargetError
from torchgauge.source import huggingface
from torchgauge.source.identify.features import Features, rank_vocabularies, vocabulary
from torchgauge.source.identify.fingerprint import NAME_PATTERNS, Sketch, read_table
from torchgauge.source.identify.fitting import NamedClass, fit_classes, quiet
from torchgauge.source.identify.match import Match
from torchgauge.source.identify.outline import modern, pattern_sum, patterns_of
from torchgauge.source.identify.search import read_text
from torchgauge.source.packages import import_optional
from torchgauge.source.state_names import Shape

if TYPE_CHECKING:
    from types import ModuleType

# In time of this thread; for exact and for similar names.
_MAX_SECONDS, _MAX_SECONDS_SIMILAR = 8.0, 6.0
_MIN_LIKENESS, _LIKENESS_STEPS = 0.5, 8
_MAX_SIMILAR, _MAX_OF_ONE_KIND = 8, 2
_TASKS = (
    "ForMaskedLM", "ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "Model", "ForSequenceClassification",
    "ForImageClassification", "ForTokenClassification", "ForCTC",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Names:
    """The classes by the hash of their names, and with sketches; classes that others derive from come first."""

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
    """A class with exactly these names. `file` is the name of the file, which decides between classes with the same
    tensors."""
    shapes = modern(shapes)
    classes = known_names().exact.get(pattern_sum(shapes), [])
    types = list(dict.fromkeys(named.model_type for named in classes))
    classes = sorted(classes, key=lambda named: (-_named_in(named, file), types.index(named.model_type), _task(named)))
    if not classes:
        return None
    return _with_transformers(lambda _: fit_classes(classes, shapes, _MAX_SECONDS, is_ranked=True))


def match_similar(shapes: Mapping[str, Shape], file: str = "") -> Match | None:
    """A class with similar names: its config may change names, or it may not use some tensors."""
    shapes = modern(shapes)
    tried = {named.name for named in known_names().exact.get(pattern_sum(shapes), [])}
    # Classes with similar names, the most similar first, and only a few with identical names.
    sketch = Sketch.of(patterns_of(shapes))
    scores = [(sketch.likeness(other), other, named) for other, named in known_names().sketched]
    likely = [one for one in scores if one[0] >= _MIN_LIKENESS]
    # Rounded, so that a single name, such as that of a tied head, does not decide.
    likely.sort(key=lambda one: (-int(one[0] * _LIKENESS_STEPS), -_named_in(one[2], file), _task(one[2])))
    kinds: Counter[Sketch] = Counter()
    found: list[NamedClass] = []
    for _, other, named in likely:
        kinds[other] += 1
        found += [named] if kinds[other] <= _MAX_OF_ONE_KIND else []
    classes = [named for named in found[:_MAX_SIMILAR] if named.name not in tried]
    if not classes:
        return None
    return _with_transformers(
        lambda _: _fit_without_unused(classes, shapes) or fit_classes(classes, shapes, _MAX_SECONDS_SIMILAR)
    )


def _with_transformers(fit: Callable[[ModuleType], Match | None]) -> Match | None:
    """None if transformers is not installed."""
    try:
        transformers = import_optional("transformers", "identifying a checkpoint")
    except (MissingDependencyError, TargetError):
        return None
    with quiet(transformers):
        return fit(transformers)


def _fit_without_unused(classes: list[NamedClass], shapes: Mapping[str, Shape]) -> Match | None:
    """A class that ignores some tensors of the file and has exactly the names of the others."""
    for named in classes:
        patterns = getattr(huggingface.model_class(named.name), "_keys_to_ignore_on_load_unexpected", None)
        if isinstance(patterns, list | tuple | set) and patterns:
            unused = re.compile("|".join(patterns))
            used = {name: shape for name, shape in shapes.items() if not unused.search(name)}
            if 0 < len(used) < len(shapes):
                same = [other for other in known_names().exact.get(pattern_sum(used), []) if other.name == named.name]
                match = fit_classes(same, used, _MAX_SECONDS)
                if match is not None:
                    return replace(match, unused=tuple(name for name in shapes if name not in used))
    return None


def _named_in(named: NamedClass, file: str) -> int:
    """The length of the model type's name, if it is part of the file's name."""
    spelt, wanted = (text.lower().replace("-", "").replace("_", "") for text in (file, named.model_type))
    return len(wanted) if wanted in spelt else 0


def _task(named: NamedClass) -> int:
    """The rank of the class by its task, the most common first."""
    return next((rank for rank, task in enumerate(_TASKS) if named.name.endswith(task)), len(_TASKS))


_TAKEN = re.compile(r"^from \.\.(\w+)\.modeling_", re.MULTILINE)
_MAX_TYPES = 20
_MAX_CLASSES_PER_TYPE = 4
_MIN_WORD_SCORE = 0.75
_MAX_SECONDS_SEARCHED = 1.5


def search_transformers(shapes: Mapping[str, Shape]) -> Match | None:
    """The model class that fits, or None."""
    return _with_transformers(
        lambda transformers: fit_classes(_likely_classes(shapes, transformers), shapes, _MAX_SECONDS_SEARCHED)
    )


def _likely_classes(shapes: Mapping[str, Shape], transformers: ModuleType) -> Iterator[NamedClass]:
    is_tied = not any("lm_head" in name for name in shapes)
    # Types with the same words: first those that most others derive from, then those with few other words.
    ranked = rank_vocabularies(Features(shapes).words, _vocabularies())
    likely = [(score, key) for score, key in ranked if score >= _MIN_WORD_SCORE and key in transformers.CONFIG_MAPPING]
    copies = _copies()
    copied = sorted(likely, key=lambda pair: (-round(min(pair[0], 1.0), 2), -copies.get(pair[1], 0)))
    likely_types = list(dict.fromkeys(key for _, key in (*copied[:_MAX_TYPES], *likely[:_MAX_TYPES])))
    for model_type in likely_types:
        # The model classes of a type whose head matches the names; otherwise the plain ones first.
        auto = import_module("transformers.models.auto.modeling_auto")
        tables = [value for name, value in vars(auto).items() if name.endswith("_MAPPING_NAMES")]
        found: dict[str, None] = {}
        for table in tables:
            names = table.get(model_type, ())
            found |= dict.fromkeys((names,) if isinstance(names, str) else names)
        ordered = sorted((name for name in found if name), key=lambda name: _unlikeness(name, shapes))
        hinted = [name for name in ordered if _unlikeness(name, shapes) == 0]
        for name in (hinted or ordered)[:_MAX_CLASSES_PER_TYPE]:
            yield NamedClass(name, model_type, {"tie_word_embeddings": is_tied})


@cache
def _vocabularies() -> dict[str, frozenset[str]]:
    """The names in the file of each model type that has one."""
    models = import_module("transformers.models")
    folder = Path(str(models.__file__)).parent
    files = {
        path.parent.name: path
        for path in sorted(folder.glob("*/modeling_*.py"))
        if path.stem == f"modeling_{path.parent.name}"
    }
    # Types have hyphens where folders have underscores.
    known = {name.replace("-", "_"): name for name in import_module("transformers").CONFIG_MAPPING}
    return {known[name]: vocabulary(read_text(str(path))) for name, path in files.items() if name in known}


@cache
def _copies() -> Counter[str]:
    """The number of other models that import code from each."""
    folder = Path(str(import_module("transformers.models").__file__)).parent
    texts = [read_text(str(path)) for path in folder.glob("*/modular_*.py")]
    return Counter(name for text in texts for name in set(_TAKEN.findall(text)))


def _unlikeness(name: str, shapes: Mapping[str, Shape]) -> int:
    has = {part for tensor in shapes for part in tensor.split(".")}
    hints = {
        "CausalLM": ("lm_head", "embed_out"),
        "LMHeadModel": ("lm_head",),
        "ConditionalGeneration": ("lm_head", "proj_out", "final_logits_bias"),
        "Classification": ("classifier", "score"),
        "QuestionAnswering": ("qa_outputs",),
        "MaskedLM": ("cls", "lm_head", "vocab_projector"),
        "PreTraining": ("seq_relationship",),
    }
    for suffix, words in hints.items():
        if name.endswith(suffix):
            return 0 if has.intersection(words) else 3
    return 1 if name.endswith("Model") else 2
