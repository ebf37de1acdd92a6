"""Adapters, that is weights that modify another model: LoRA and other PEFT methods, with their configuration."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from torchgauge.checkpoint.byte_source import opened
from torchgauge.checkpoint.file_text import parse_json, printable
from torchgauge.checkpoint.index import Entry, Index, Role
from torchgauge.checkpoint.limits import JSON_BYTES
from torchgauge.checkpoint.pickle.plain_values import number_of, plain_value
from torchgauge.errors import FormatError
from torchgauge.facts import AdapterRecord

CONFIG = "adapter_config.json"
# The two factors of an update, (rank × in) and (out × rank), in PEFT, diffusers and kohya's scripts.
_DOWN = re.compile(r"(.*?)[._](lora_A|lora_down|lora\.down|lora_embedding_A)(?:\.\w+)?(?:\.weight)?")
_UP = re.compile(r"(.*?)[._](lora_B|lora_up|lora\.up|lora_embedding_B)(?:\.\w+)?(?:\.weight)?")
_MARKS = {
    "LORA": re.compile(r"lora_(A|B|down|up|magnitude_vector|embedding_[AB])|\.lora\.(down|up)\."),
    "IA3": re.compile(r"ia3_l"),
    "PROMPT_TUNING": re.compile(r"^prompt_embeddings$|prompt_encoder"),
    "ADALORA": re.compile(r"lora_E"),
    "LOHA": re.compile(r"hada_w1"),
    "LOKR": re.compile(r"lokr_w1"),
    "OFT": re.compile(r"\boft_r\b"),
    "VERA": re.compile(r"vera_lambda"),
}
_MARKED = re.compile("|".join(mark.pattern for mark in _MARKS.values()))
_TITLES = {"LORA": "LoRA", "ADALORA": "AdaLoRA", "LOHA": "LoHa", "LOKR": "LoKr", "VERA": "VeRA", "IA3": "IA3"}
_OWN = (
    "peft_type", "base_model_name_or_path", "r", "lora_alpha", "target_modules", "auto_mapping", "revision",
    "inference_mode",
)  # fmt: skip


def with_adapter(index: Index, folder: str, open_base: Callable[[str], Index]) -> Index:
    """Add an adapter record to the index if there is an adapter configuration or its tensors have adapter names."""
    path = os.path.join(folder, CONFIG)
    config: dict[str, object] = {}
    warnings = index.warnings
    own = [entry for entry in index.entries if entry.role in (Role.PARAMETER, Role.OTHER)]
    if os.path.isfile(path):
        try:
            with opened(path) as source:
                if source.size > JSON_BYTES:
                    raise FormatError("too large")
                config = parse_json(source.read(0, source.size), CONFIG)
        except FormatError as error:
            warnings = (*warnings, f"{CONFIG} was not used: {error}")
    named = [entry.name for entry in own if _MARKED.search(entry.name)]
    marked = {kind: sum(bool(mark.search(name)) for name in named) for kind, mark in _MARKS.items()}
    likely = max(marked, key=lambda kind: marked[kind])
    # With a configuration every tensor belongs to the adapter; without one, nearly all must have adapter names.
    stated = config.get("peft_type")
    if not isinstance(stated, str) and (not own or 2 * marked[likely] < len(own)):
        return replace(index, warnings=warnings)
    kind = stated if isinstance(stated, str) else likely
    if config.get("use_dora") is True or any("lora_magnitude_vector" in entry.name for entry in own):
        method = "DoRA"
    else:
        method = _TITLES.get(kind.upper()) or printable(kind).replace("_", " ").lower()
    record = _described(method, config, own)
    base = config.get("base_model_name_or_path")
    # A base model on a local disk is counted; hub names are not looked up, network paths not followed.
    if isinstance(base, str) and not (base.startswith(("//", "\\\\")) or "\0" in base) and os.path.exists(base):
        with suppress(FormatError):
            record = replace(record, base_params=open_base(base).logical_params or None)
    return replace(index, adapter=record, warnings=warnings)


def _described(method: str, config: Mapping[str, object], entries: list[Entry]) -> AdapterRecord:
    downs = {match[1]: entry for entry in entries if (match := _DOWN.fullmatch(entry.name))}
    ups = {match[1]: entry for entry in entries if (match := _UP.fullmatch(entry.name))}
    adapted = 0
    for place in downs.keys() & ups.keys():
        # The elements of the product of the two factors: a matrix or a convolution kernel.
        inner, outer = downs[place].spec.shape, ups[place].spec.shape
        rank = min(inner[0], outer[1] if len(outer) > 1 else inner[0]) if inner else 0
        adapted += downs[place].elements * ups[place].elements // (rank * rank) if rank else 0
    ranks = {min(entry.spec.shape) for entry in downs.values() if len(entry.spec.shape) == 2}
    stated, alpha = number_of(config.get("r")), number_of(config.get("lora_alpha"))
    places = downs or dict.fromkeys(entry.name.rpartition(".")[0] for entry in entries)
    targets = config.get("target_modules")
    named = targets if isinstance(targets, list) else [targets] if isinstance(targets, str) else []
    base = config.get("base_model_name_or_path")
    plain = plain_value(dict(config))
    assert isinstance(plain, dict)
    settings = {key: value for key, value in plain.items() if key not in _OWN and value not in (None, {}, [], False)}
    return AdapterRecord(
        method=method,
        base_model=printable(base) if isinstance(base, str) else None,
        rank=int(stated) if stated is not None else ranks.pop() if len(ranks) == 1 else None,
        alpha=alpha,
        targets=tuple(sorted(printable(name) for name in named if isinstance(name, str))),
        modules=len(places),
        trainable_params=sum(entry.elements for entry in entries if entry.shared_with is None),
        adapted_params=adapted or None,
        settings=settings,
    )
