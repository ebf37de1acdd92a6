"""Writes the table by which state dicts of transformers models are recognised: the names of each class's tensors.

Run it after an update of transformers:  python tools/name_patterns.py   (some minutes on one core)
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

import torchgauge.source.identify as identification
from torchgauge.errors import TargetError
from torchgauge.source import huggingface
from torchgauge.source.identify.spellings import pattern_sum, spellings, tied_names
from torchgauge.source.packages import import_optional

TABLE = Path(identification.__file__).with_name("name_patterns.tsv")
# Deep enough for the first block of every kind, where kinds take turns.
LAYERS = 6
# Flags of a config that may add tensors or take them away.
FLAG = re.compile(r"bias|norm|gated|architecture|parallel_attn|multi_query|pool|glu")
OTHERS: tuple[dict[str, Any], ...] = (
    {"feed_forward_proj": "gated-gelu"},
    {"feat_extract_norm": "layer", "do_stable_layer_norm": True, "conv_bias": True},
    {"feat_extract_norm": "layer", "do_stable_layer_norm": True},
    {"q_lora_rank": None},
)


def class_names() -> dict[str, str]:
    """The classes of all tasks with their model type; those that others took most from come first."""
    auto = import_module("transformers.models.auto.modeling_auto")
    found: dict[str, str] = {}
    for table in (value for name, value in vars(auto).items() if name.endswith("_MAPPING_NAMES")):
        for model_type, names in table.items():
            found |= {name: model_type for name in ((names,) if isinstance(names, str) else names) if name not in found}
    copies = taken_from()
    order = sorted((name for name in found if name), key=lambda name: -copies[found[name].replace("-", "_")])
    return {name: found[name] for name in order}


def taken_from() -> Counter[str]:
    folder = Path(str(import_module("transformers.models").__file__)).parent
    texts = [path.read_text(encoding="utf-8") for path in folder.glob("*/modular_*.py")]
    return Counter(
        name for text in texts for name in set(re.findall(r"^from \.\.(\w+)\.modeling_", text, re.MULTILINE))
    )


def lines() -> Iterator[str]:
    for name, model_type in class_names().items():
        model_class = huggingface.model_class(name)
        if model_class is None:
            continue
        seen: set[frozenset[str]] = set()
        for options in variants(model_class):
            for tied, spelt in names_of(name, model_class, options).items():
                new = [names for names in spelt if names not in seen]
                seen.update(new)
                settings = options | ({} if tied is None else {"tie_word_embeddings": tied})
                if new:
                    sums = dict.fromkeys(f"{pattern_sum(names):016x}" for names in new)
                    yield "\t".join((name, model_type, " ".join(sums), json.dumps(settings) if settings else ""))


def variants(model_class: Any) -> Iterator[dict[str, Any]]:
    yield {}
    config = configured(model_class, {})
    flags = vars(config) if config is not None else {}
    for key, value in flags.items():
        if isinstance(value, bool) and not key.startswith("_") and FLAG.search(key):
            yield {key: not value}
    for options in OTHERS:
        if options.keys() <= flags.keys():
            yield options


def configured(model_class: Any, options: dict[str, Any]) -> Any:
    try:
        default = model_class.config_class(**options)
        depth = getattr(default, "num_hidden_layers", 0)
        shallow = {"num_hidden_layers": LAYERS} if isinstance(depth, int) and depth > LAYERS else {}
        return model_class.config_class(**options, **shallow)
    # Each config checks its own values, with errors of any kind.
    except Exception:
        return None


def names_of(name: str, model_class: Any, options: dict[str, Any]) -> dict[bool | None, list[frozenset[str]]]:
    """By whether words and outputs are tied; None where the class has nothing to tie."""
    config = configured(model_class, options)
    if config is None:
        return {}
    try:
        model = huggingface.recipe_of(name, model_class._from_config, config).build()
    except TargetError as error:
        sys.stderr.write(f"left out: {str(error).splitlines()[0]}\n")
        return {}
    found: dict[bool | None, list[frozenset[str]]] = {}
    for shapes in spellings(model):
        names = frozenset(shapes)
        tied = tied_names(model, names)
        found.setdefault(False if tied else None, []).append(names)
        if tied:
            found.setdefault(True, []).append(names - tied)
    return found


def main() -> None:
    torch.set_num_threads(1)
    transformers = import_optional("transformers", "the table")
    transformers.logging.set_verbosity_error()
    TABLE.write_text("\n".join((f"# transformers {transformers.__version__}", *lines())) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
