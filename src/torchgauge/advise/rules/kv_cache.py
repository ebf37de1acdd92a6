"""The keys and values that a decoder keeps for every token it has seen."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from torchgauge.advise.code import Patch
from torchgauge.advise.evidence import Evidence
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import rule
from torchgauge.facts import TensorSpec

# Below this part of the parameters the cache is not what fills the memory.
LEAST_SHARE = 0.25
_NEEDED = ("depth", "heads", "head_size")
_GENERATING = ("prepare_inputs_for_generation", "generation_config")
# Names of arguments, results, buffers and classes; not the cached sines and cosines of rotary positions.
_CACHE = re.compile(
    r"past_?key|layer_past|present_key|past_kv|^(use_)?cache$|(kv|keys?|values?|\b[kv])_?caches?|cache_([kv]|key|value)",
    re.IGNORECASE,
)


@rule("kv-cache", family="memory", option="quantize")
def kv_cache(evidence: Evidence) -> Iterator[Advice]:
    """Of a decoder that generates, whose every head has its own keys and values, at the longest context it states."""
    if evidence.is_train or not evidence.capture.has_code or not evidence.capture.inputs or not _has_cache(evidence):
        return
    architecture = evidence.view.architecture
    known = architecture.hyperparameters
    # An assumed head size still has the right product with the heads. Latent attention caches the latents alone.
    if architecture.family != "decoder" or "kv_rank" in known or not all(name in known for name in _NEEDED):
        return
    cache = _cache_bytes(evidence, known)
    shares_keys = known.get("kv_heads", known["heads"]) < known["heads"]
    if not shares_keys and cache >= LEAST_SHARE * evidence.totals.param_bytes:
        yield _advice(evidence, known, cache)


def _has_cache(evidence: Evidence) -> bool:
    """Whether anything in the model keeps keys and values: what transformers' models have to generate with, what a
    module is given or gives back, or buffers. Many a decoder only ever sees whole sequences, in planning, forecasting
    and scoring, or computes all keys anew for every token."""
    if evidence.model is not None and any(evidence.model.has("", name) for name in _GENERATING):
        return True
    names = [name for name, param in evidence.params.items() if param.is_buffer]
    for record in evidence.capture.modules:
        names.append(record.type)
        for given in (record.inputs, record.outputs):
            names += _keys(given)
    return any(_CACHE.search(name) for name in names)


def _keys(structure: object) -> Iterator[str]:
    """The names in what a module is called with or returns, at any depth."""
    for key, value in structure.items() if isinstance(structure, Mapping) else ():
        yield str(key)
        yield from _keys(value)
    for value in structure if isinstance(structure, list | tuple) else ():
        yield from _keys(value)


def _tokens(evidence: Evidence, known: Mapping[str, Any]) -> tuple[int, int]:
    """Sequences and tokens of each."""
    shape = evidence.capture.inputs[0].spec.shape
    given = shape[1] if len(shape) > 1 else 1
    return (shape[0] if shape else 1), max(int(known.get("positions") or 0), given)


def _cache_bytes(evidence: Evidence, known: Mapping[str, Any]) -> int:
    batch, tokens = _tokens(evidence, known)
    per_token = 2 * known["depth"] * known["heads"] * known["head_size"]
    return int(batch * tokens * per_token * TensorSpec((), _dtype(evidence)).itemsize)


def _dtype(evidence: Evidence) -> str:
    """The type of the attention's arithmetic."""
    kinds = [op.signature.dtype for op in evidence.forward if op.category in ("attention", "matmul")]
    return next((kind for kind in kinds if kind), "float32")


def _advice(evidence: Evidence, known: Mapping[str, Any], cache: int) -> Advice:
    batch, tokens = _tokens(evidence, known)
    share = cache / (cache + evidence.totals.peak_activation_bytes)
    return Advice(
        rule="kv-cache",
        where=Where(module=""),
        evidence={
            "cache_bytes": cache,
            "bytes_per_token": cache // (batch * tokens),
            "param_bytes": evidence.totals.param_bytes,
            "batch": batch,
            "tokens": tokens,
            **{name: known[name] for name in _NEEDED},
        },
        recommendation="keep keys and values in fewer bits; in a model yet to be trained, let heads share them",
        change=Patch('model.generation_config.cache_implementation = "quantized"')
        if evidence.model is not None and evidence.model.has("", "generation_config")
        else None,
        expected_gain=Gain(
            "peak_activation_bytes",
            0.5 * share,
            0.75 * share,
            "half to three quarters of the cache (a half or a quarter of its bits), beside this run's peak",
        ),
        risk="long contexts lose precision first; a quantized cache is unpacked at every step, which takes time",
        confidence="medium",
    )
