"""The kind of each layer, from its cache entries and its ops, not from the name of a family."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from torchgauge.facts import OpRecord, ParamRecord
from torchgauge.facts.language import AttentionFacts, LayerFacts
from torchgauge.predict.language.passes import Held, Pass


def layer_rows(
    layers: list[tuple[str, int, int]],
    short: list[Held],
    long: list[Held],
    lengths: tuple[int, int],
    run: Pass,
    params: Iterable[ParamRecord],
    idle: Mapping[str, int],
) -> list[LayerFacts]:
    """A row for each layer that ran. `short` and `long` are the cache after two lengths of prompt, for one sequence."""
    ops: dict[str, list[OpRecord]] = {}
    for segment in run.segments:
        for path in segment.paths:
            ops[path] = segment.ops
    sizes: dict[str, int] = defaultdict(int)
    matrices: dict[str, int] = defaultdict(int)
    listed = [path for path, _, _ in layers]
    prefixes = {f"{path}.": path for path in listed}
    for param in params:
        if not param.is_buffer:
            for name in (param.name, *param.aliases):
                owner = next((path for prefix, path in prefixes.items() if name.startswith(prefix)), None)
                if owner is not None:
                    sizes[owner] += param.spec.numel
                    matrices[owner] += param.spec.numel if len(param.spec.shape) > 1 else 0
                    break
    early, late = _by_layer(short), _by_layer(long)
    rows: list[LayerFacts] = []
    for path, position, _ in layers:
        if path not in ops:
            continue
        before, after = early.get(path, []), late.get(path, [])
        held_before, held_after = (sum(held.nbytes for held in part) for part in (before, after))
        span = lengths[1] - lengths[0]
        grows = held_after > held_before
        state = sum(held.nbytes for held in before if _length_dimension(held, after) is None)
        mixer, detail = _mixer(ops[path], before, after, lengths)
        rows.append(
            {
                "path": path,
                "index": position,
                "kind": mixer,
                "feed_forward": "mixture of experts" if idle.get(path) else "dense",
                **detail,
                "params": sizes[path],
                "matrix_params": matrices[path],
                "active_params": sizes[path] - idle.get(path, 0),
                "cache_bytes_per_token": (held_after - held_before) / span if grows else 0.0,
                "cache_fixed_bytes": state,
            }
        )
    return rows


def _by_layer(cache: list[Held]) -> dict[str, list[Held]]:
    found: dict[str, list[Held]] = defaultdict(list)
    for held in cache:
        found[held.layer].append(held)
    return found


def _length_dimension(held: Held, others: list[Held]) -> int | None:
    """The dimension in which the tensor of that name grew; None for one of fixed size."""
    for other in others:
        if other.name == held.name and other.group == held.group and len(other.spec.shape) == len(held.spec.shape):
            for place, (small, large) in enumerate(zip(held.spec.shape, other.spec.shape, strict=True)):
                if small != large:
                    return place
    return None


def _mixer(
    ops: list[OpRecord], before: list[Held], after: list[Held], lengths: tuple[int, int]
) -> tuple[str, AttentionFacts]:
    """How the layer mixes tokens: a kind of attention, a recurrent state, or both."""
    kinds: list[str] = []
    detail: AttentionFacts = {}
    growing = [held for held in before if _length_dimension(held, after) is not None and held.group == 0]
    fixed = [held for held in before if held.spec.shape and held not in growing and held.group == 0]
    names = {held.name for held in fixed}
    weights = {name.rpartition(".")[2] for op in ops for name in op.weights}
    if any("recurrent" in name or "ssm" in name for name in names):
        # A selective state space has a transition (A) and a way past it (D); linear attention has neither or A alone.
        kinds.append("state-space" if {"A_log", "D"} <= weights else "linear")
    elif any("conv" in name for name in names):
        kinds.append("convolutional")
    elif fixed:
        kinds.append("linear")
    attention = [op for op in ops if op.category == "attention"]
    if growing:
        # Without a fused kernel the scores go through a softmax: batch, heads, queries, keys.
        scores = [*attention, *(op for op in ops if op.category == "softmax")]
        heads = next((op.signature.inputs[0].shape[1] for op in scores if len(op.signature.inputs[0].shape) == 4), 0)
        keys = [held for held in growing if len(held.spec.shape) == 4]
        kv_heads = keys[0].spec.shape[1] if keys else 0
        widths = {held.spec.shape[-1] for held in growing}
        products = attention or [op for op in ops if op.op in ("aten::bmm", "aten::baddbmm")]
        used = {spec.shape[-1] for op in products for spec in op.signature.inputs[:3] if spec.shape}
        lasting = [next(o for o in after if (o.name, o.group) == (held.name, held.group)) for held in growing]
        places = [_length_dimension(held, [late]) for held, late in zip(growing, lasting, strict=True)]
        sizes = zip(places, lasting, strict=True)
        longest = max(0 if place is None else late.spec.shape[place] for place, late in sizes)
        if kv_heads:
            detail |= {"heads": heads or None, "kv_heads": kv_heads}
        if longest < lengths[1] - 1:
            kinds.append("sliding-window")
            detail["window"] = longest + 1
        elif used and kv_heads == 1 and heads > 1 and not widths <= used:
            kinds.append("latent")
        elif kv_heads == 1 and heads > 1:
            kinds.append("multi-query")
        elif heads > kv_heads > 0:
            kinds.append("grouped-query")
        else:
            kinds.append("full")
    elif attention and not kinds:
        kinds.append("attention without its own cache")
    return " and ".join(kinds) or "no mixing of tokens", detail
