"""The keys and values that a decoder keeps for every token it has seen."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

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
    if evidence.is_train or not evidence.capture.has_code or not evidence.capture.inputs:
        return
    architecture = evidence.view.architecture
    known = architecture.hyperparameters
    # An assumed head size still has the right product with the heads. Latent attention caches the latents alone.
    if architecture.family != "decoder" or "kv_rank" in known or not all(name in known for name in _NEEDED):
        return
    if not _has_cache(evidence):
        return
    shape = evidence.capture.inputs[0].spec.shape
    batch = shape[0] if shape else 1
    tokens = max(int(known.get("positions") or 0), shape[1] if len(shape) > 1 else 1)
    # The type of the attention's arithmetic.
    dtypes = [op.signature.dtype for op in evidence.forward if op.category in ("attention", "matmul")]
    itemsize = TensorSpec((), next((dtype for dtype in dtypes if dtype), "float32")).itemsize
    per_token = int(2 * known["depth"] * known["heads"] * known["head_size"] * itemsize)
    cache, totals = batch * tokens * per_token, evidence.totals
    shares_keys = known.get("kv_heads", known["heads"]) < known["heads"]
    if shares_keys or cache < LEAST_SHARE * totals.param_bytes:
        return
    share = cache / (cache + totals.peak_activation_bytes)
    has_generation = evidence.model is not None and evidence.model.has("", "generation_config")
    yield Advice(
        rule="kv-cache",
        where=Where(module=""),
        evidence={
            "cache_bytes": cache,
            "bytes_per_token": per_token,
            "param_bytes": totals.param_bytes,
            "batch": batch,
            "tokens": tokens,
            **{name: known[name] for name in _NEEDED},
        },
        recommendation="keep keys and values in fewer bits; in a model yet to be trained, let heads share them",
        change=Patch('model.generation_config.cache_implementation = "quantized"') if has_generation else None,
        expected_gain=Gain(
            "peak_activation_bytes",
            0.5 * share,
            0.75 * share,
            "half to three quarters of the cache (a half or a quarter of its bits), in addition to this run's peak",
        ),
        risk="long contexts lose precision first; unpacking the cache takes time",
        confidence="medium",
    )


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
