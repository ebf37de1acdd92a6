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
from torchgauge.source.identify.fingerprint import Sketch
from torchgauge.source.identify.outline import pattern_sum, patterns_of, spellings
from torchgauge.source.identify.trials import configure
from torchgauge.source.packages import import_optional

TABLE = Path(identification.__file__).with_name("name_patterns.tsv")
# Deep enough for the first block of every kind, where kinds take turns.
LAYERS = 12
# Flags of a config that may add tensors or take them away.
FLAG = re.compile(r"bias|norm|gated|architecture|parallel_attn|multi_query|pool|glu")
# For numbers that some configs leave open and their models need.
OPEN = {"num_key_value_heads": 4, "head_dim": 64, "vocab_size": 1000}
RELATIVE = {
    "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False, "type_vocab_size": 0,
}  # fmt: skip
BUCKETS = RELATIVE | {"norm_rel_ebd": "layer_norm", "share_att_key": True, "position_buckets": 256}
# Properties that no flag gives, with the entry of the configs that have it.
OTHERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("feed_forward_proj", {"feed_forward_proj": "gated-gelu"}),
    ("feat_extract_norm", {"feat_extract_norm": "layer", "do_stable_layer_norm": True, "conv_bias": True}),
    ("feat_extract_norm", {"feat_extract_norm": "layer", "do_stable_layer_norm": True}),
    ("q_lora_rank", {"q_lora_rank": None}),
    ("first_k_dense_replace", {"first_k_dense_replace": 1}),
    ("first_k_dense_replace", {"first_k_dense_replace": 1, "q_lora_rank": None}),
    ("ffn_config", {"attn_config": {"kv_n_heads": 8, "rope_theta": 500000.0}}),
    ("pos_att_type", RELATIVE),
    ("pos_att_type", BUCKETS),
    ("pos_att_type", BUCKETS | {"conv_kernel_size": 3, "conv_act": "gelu"}),
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
        if model_class is not None:
            yield from lines_of(name, model_type, model_class)


def lines_of(name: str, model_type: str, model_class: Any) -> Iterator[str]:
    seen: set[frozenset[str]] = set()
    for options in variants(model_class):
        # A flag is found by flipping it: only options that flags do not cover need a separate sketch.
        has_sketch = not options or not all(isinstance(value, bool) for value in options.values())
        for tied, spelt in names_of(name, model_class, options).items():
            new = [names for names in spelt if names not in seen]
            seen.update(new)
            settings = options | ({} if tied is None else {"tie_word_embeddings": tied})
            if new:
                sums = dict.fromkeys(f"{pattern_sum(names):012x}" for names in new)
                sketch = Sketch.of(patterns_of(new[0])).to_text() if has_sketch else ""
                yield "\t".join((name, model_type, " ".join(sums), json.dumps(settings) if settings else "", sketch))
                has_sketch = False


def variants(model_class: Any) -> Iterator[dict[str, Any]]:
    yield {}
    config = configured(model_class, {})
    flags = vars(config) if config is not None else {}
    for key, value in flags.items():
        if isinstance(value, bool) and not key.startswith("_") and FLAG.search(key):
            yield {key: not value}
    yield from (options for key, options in OTHERS if key in flags)


def configured(model_class: Any, options: dict[str, Any]) -> Any:
    """With few layers, where the config takes them."""
    config = configure(model_class.config_class, options)
    depth = getattr(config, "num_hidden_layers", 0)
    if config is None or not isinstance(depth, int) or depth <= LAYERS:
        return config
    return configure(model_class.config_class, options | {"num_hidden_layers": LAYERS}) or config


def built(name: str, model_class: Any, options: dict[str, Any]) -> Any:
    """The model; None where there is none, neither with few layers nor with all, nor with numbers for what is open."""
    default = configure(model_class.config_class, options)
    if default is None:
        return None
    missing = {key: value for key, value in OPEN.items() if vars(default).get(key, value) is None}
    full = [configure(model_class.config_class, options | more) for more in ({}, missing)]
    for config in (configured(model_class, options), *full):
        try:
            return huggingface.recipe_of(name, model_class._from_config, config).build()
        except TargetError as error:
            reason = error
    sys.stderr.write(f"left out: {str(reason).splitlines()[0]}\n")
    return None


def tied_names(model: Any, names: frozenset[str]) -> frozenset[str]:
    """The names that files omit if the config ties them to another tensor."""
    keys = {key for part in model.modules() for key in (getattr(part, "_tied_weights_keys", None) or ())}
    tied = re.compile("|".join(keys) or "^$")
    return frozenset(name for name in names if tied.search(name))


def names_of(name: str, model_class: Any, options: dict[str, Any]) -> dict[bool | None, list[frozenset[str]]]:
    """By whether words and outputs are tied; None where the class has nothing to tie."""
    model = built(name, model_class, options)
    if model is None:
        return {}
    found: dict[bool | None, list[frozenset[str]]] = {}
    for spelling in spellings(model):
        names = frozenset(spelling.shapes)
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
