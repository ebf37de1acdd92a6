"""Features that a state dict shares with the code it came from: words of its names, numbers of its shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isqrt, log
from typing import Any

from torchgauge.source.architecture import Evidence, hyperparameters
from torchgauge.source.state_names import Shape

_OF_EVERY_LAYER = frozenset({"weight", "bias", "running_mean", "running_var", "num_batches_tracked", "module", "model"})
_INTEGER = re.compile(r"(?<![\w.])\d+(?![\w.])")
_ATTRIBUTE = re.compile(r"self\.(\w+)\b")
_TEXT = re.compile(r"""["'](\w+)["']""")
_STEM = re.compile(r"""["'](\w*[^\W\d])(?:\{|%d|["'] *\+)""")
# Weight of the share of a vocabulary that is used, which decides between those with the same words.
_USED_SHARE_WEIGHT = 0.2
_SHARED_WORDS_WEIGHT = 0.5
_INTEGERS = re.compile(r"[\[(]\s*(\d+(?:\s*,\s*\d+)+)\s*,?\s*[\])]")


@dataclass(frozen=True)
class Features:
    shapes: Mapping[str, Shape]

    @cached_property
    def evidence(self) -> Evidence:
        return Evidence(self.shapes)

    @cached_property
    def hyperparameters(self) -> dict[str, Any]:
        return hyperparameters(self.evidence)

    @cached_property
    def words(self) -> frozenset[str]:
        """The parts of the names that the code of the model must contain."""
        parts = {part for name in self.shapes for part in name.split(".")}
        return frozenset(part for part in parts if not part.isdigit()) - _OF_EVERY_LAYER

    @cached_property
    def stages(self) -> tuple[int, ...]:
        return tuple(block.count for block in self.evidence.blocks)

    @cached_property
    def numbers(self) -> frozenset[int]:
        """Sizes, depths, and the image sizes implied by position tables."""
        sizes = {size for shape in self.shapes.values() for size in shape} | {*self.stages, sum(self.stages)}
        heads, patch = self.hyperparameters.get("heads"), self.hyperparameters.get("patch_size")
        if isinstance(heads, int):
            sizes.add(heads)
        if isinstance(patch, int):
            tables = [shape for name, shape in self.shapes.items() if name.endswith("pos_embed") and len(shape) == 3]
            # With a class token there is one position more than patches.
            sizes |= {isqrt(shape[1] - extra) * patch for shape in tables for extra in (0, 1) if shape[1] > extra}
        return frozenset(sizes)


def rank_vocabularies(
    words: frozenset[str], vocabularies: Mapping[str, frozenset[str]], shared: frozenset[str] = frozenset()
) -> list[tuple[float, str]]:
    """The share of the words that each vocabulary contains, the best first. Rare words count more; of two vocabularies
    with all words, the smaller one wins. Words of the `shared` vocabulary, which all may use, count half."""
    holders = {word: [k for k, names in vocabularies.items() if spells(names, word)] for word in words}
    weights = {word: log(1 + len(vocabularies) / max(len(keys), 1)) for word, keys in holders.items()}
    total = sum(weights.values()) or 1.0
    common = sum(weights[word] for word in words if spells(shared, word)) * _SHARED_WORDS_WEIGHT / total
    scores = {
        key: common + _USED_SHARE_WEIGHT * (len(names & words) / len(names) if names else 0.0)
        for key, names in vocabularies.items()
    }
    for word, keys in holders.items():
        share = weights[word] / total * (1 - _SHARED_WORDS_WEIGHT if spells(shared, word) else 1)
        for key in keys:
            scores[key] += share
    return sorted(((score, key) for key, score in scores.items()), key=lambda pair: -pair[0])


def spells(names: frozenset[str], word: str) -> bool:
    """Whether the vocabulary has the word; numbered names (`layer1`) are often composed from their stem."""
    return word in names or (word[-1].isdigit() and f"{word.rstrip('0123456789')}#" in names)


def vocabulary(text: str) -> frozenset[str]:
    """The names of parts of a model in code: attributes, and strings that may name a child.

    A string with a number in it ends with `#`: `f"layer{index}"` is `layer#`.
    """
    attributes = set(_ATTRIBUTE.findall(text))
    stems = {f"{stem}#" for stem in _STEM.findall(text)}
    return frozenset(attributes | set(_TEXT.findall(text)) | stems)


def score_definition(features: Features, name: str, text: str) -> float:
    """How well the numbers in a model's definition agree with the shapes; a list of the stages counts most."""
    lists = {tuple(int(size) for size in found.split(",")) for found in _INTEGERS.findall(text)}
    spelt = {int(number) for number in _INTEGER.findall(text)} - {0, 1}
    known = spelt & features.numbers
    named = {int(number) for number in re.findall(r"\d+", name)} & features.numbers
    has_stages = len(features.stages) > 1 and features.stages in lists
    # Small numbers agree by chance more often. Of equal candidates, the shorter name is the plainer model.
    agreement = sum(min(number / 32, 1.0) for number in known) + 0.5 * len(named)
    return 4.0 * has_stages + agreement - len(spelt - known) - 0.05 * len(name)
