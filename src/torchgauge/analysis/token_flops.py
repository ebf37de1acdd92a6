"""FLOPs per token of a language model, and the share of a device's peak that a rate of tokens reaches (MFU)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from torchgauge.analysis.pipeline import analyze
from torchgauge.errors import InputError, UsageError
from torchgauge.facts import View
from torchgauge.facts.tensor import TensorSpec, tensor_specs

if TYPE_CHECKING:
    import torch

    from torchgauge.analysis.result import Analysis
    from torchgauge.facts import OpRecord

CONVENTIONS = ("exact", "palm", "megatron")
MODES = ("inference", "train")
ATTENTION = ("full", "computed")
# A product costs as much again for the gradient of each of its two factors.
_PASSES = {"inference": 1, "train": 3}


def flops_per_token(
    target: str | os.PathLike[str] | torch.nn.Module,
    seq: int,
    *,
    mode: str = "train",
    convention: str = "exact",
    attention: str = "full",
    recomputation: bool = False,
    **options: Any,
) -> float:
    """FLOPs for each token of a sequence of `seq` tokens: 2 for each multiply-accumulate of the matrix products.

    - `mode`: "train" for forward and backward, "inference" for the forward of a prompt.
    - `convention`: "exact" counts the products that run, so frozen weights, adapters and experts that a token does
      not use cost what they cost. "palm" is 6 N + 12 L H Q T (2 N + 4 L H Q T for inference), where N are the
      parameters that a token uses without the tables of embeddings; "megatron" is the formula of Megatron-LM from the
      sizes of the layers. Both assume that everything is trained.
    - `attention`: "full" counts every pair of tokens, as is usual; "computed" counts the pairs that a causal mask or a
      sliding window leaves.
    - `recomputation`: with "exact", also count what activation checkpointing computes again.
    - `options` are those of `analyze`: `inputs`, `dtype`, `code` and others. Without inputs the model must take token
      ids.
    """
    for name, value, known in (
        ("mode", mode, MODES),
        ("convention", convention, CONVENTIONS),
        ("attention", attention, ATTENTION),
    ):
        if value not in known:
            raise UsageError(f"{name} is one of {', '.join(known)}, not {value!r}")
    if seq < 1:
        raise UsageError(f"seq must be a positive number of tokens, not {seq}")
    sized = {} if "inputs" in options or "input_size" in options else {"batch": 1, "seq": seq}
    given = {"advice": False, "weights": False, "progress": False, **sized, **options}
    is_traced_in_training = mode == "train" and convention == "exact"
    found = analyze(target, mode="train" if is_traced_in_training else "inference", **given)
    needed = _Needed(target, options, seq, is_full=attention == "full")
    if convention == "exact":
        again = frozenset() if recomputation else frozenset(found.capture.run.recomputed_ops)
        ops = [op for op in found.capture.ops if op.cost.macs and op.index not in again]
        macs = sum(op.cost.macs * needed.share(op) for op in ops)
        if attention == "computed" and not _attention(found):
            # With dropout, or without a fused kernel, attention is several ops: those of inference say what is masked.
            fused = _fused_attention(analyze(target, mode="inference", **given))
            macs -= _PASSES[mode] * sum(op.cost.macs * (1 - needed.share(op)) for op in fused)
        return 2 * macs / _tokens(found)
    sizes = _sizes(found)
    # Of every query, the keys that its layer reads on average, summed over the layers.
    fused = _attention(found) if attention == "full" else _fused_attention(found)
    keys = sum(needed.share(op) * _rows_and_columns(op)[1] for op in fused) or sizes.layers * seq
    if convention == "palm":
        per_forward = 2 * _used_parameters(found) + 4 * sizes.heads * sizes.head_size * keys
    else:
        per_forward = sizes.megatron(keys)
    return _PASSES[mode] * per_forward


def mfu(flops_per_token: float, tokens_per_s: float, *, on: str, dtype: str = "bfloat16", devices: int = 1) -> float:
    """The share (0 to 1) of the peak of `devices` devices `on` that `tokens_per_s` tokens a second reach in all.

    The peak is the dense rate of the data sheet for `dtype`. What the share means depends on how `flops_per_token` was
    counted: with recomputation it is the utilization of the hardware (HFU).
    """
    from torchgauge.predict.devices import find_device
    from torchgauge.predict.time import peaks_of_device

    if not (flops_per_token > 0 and tokens_per_s >= 0 and devices >= 1):
        raise UsageError("flops_per_token and devices must be positive, and tokens_per_s must not be negative")
    peaks = peaks_of_device(find_device(on))
    rate = peaks.rate(dtype)
    if rate is None:
        raise UsageError(f"no peak is known for {dtype} on {peaks.name}")
    return flops_per_token * tokens_per_s / (rate * devices)


def _tokens(found: Analysis) -> int:
    """Tokens of the analysed call: the elements of the first input of whole numbers, the ids."""
    specs = [spec for given in found.capture.inputs for spec in tensor_specs(given.spec)]
    ids = next((spec for spec in specs if spec.dtype in ("int64", "int32")), None)
    if ids is None:
        raise InputError("no input holds token ids, so FLOPs per token are undefined: give ids as inputs")
    return ids.numel


def _attention(found: Analysis) -> list[OpRecord]:
    return [op for op in found.capture.ops if op.category == "attention" and op.cost.macs and op.phase == "forward"]


def _fused_attention(found: Analysis) -> list[OpRecord]:
    fused = _attention(found)
    if not fused and any(op.category == "softmax" for op in found.capture.ops):
        raise InputError("attention is not one op in this model, so its masks are not known: use attention='full'")
    return fused


class _Needed:
    """The part of the pairs of tokens that attention needs."""

    def __init__(self, target: Any, options: Mapping[str, Any], seq: int, *, is_full: bool) -> None:
        self._target, self._options, self._seq, self._is_full = target, options, seq, is_full
        self._windows: dict[str, int] | None = None

    def share(self, op: OpRecord) -> float:
        if self._is_full or op.category != "attention":
            return 1.0
        queries, keys = _rows_and_columns(op)
        seen = keys if op.signature.attributes.get("is_causal") else self._window(op.module)
        if seen is None or not queries:
            return 1.0
        first = keys - queries + 1  # keys that the first query may see
        return sum(min(first + at, seen) for at in range(queries)) / (queries * keys)

    def _window(self, module: str) -> int | None:
        """Tokens that a layer looks back on, itself included; None if it is not known to be causal. A mask is a tensor
        like others here, so the kind of the layer is taken from what its cache holds."""
        if self._windows is None:
            self._windows = self._read_windows()
        owner = next((path for path in self._windows if f"{module}.".startswith(f"{path}.")), None)
        return None if owner is None else self._windows[owner]

    def _read_windows(self) -> dict[str, int]:
        from torchgauge.analysis.language import llm

        passed = {name: self._options[name] for name in ("code", "allow_pickle") if name in self._options}
        try:
            layers = llm(self._target, progress=False, **passed).facts["layers"]
        except (InputError, UsageError):
            return {}  # not a model that generates: nothing is known to be causal
        cached = [layer for layer in layers if "heads" in layer]
        return {layer["path"]: layer.get("window", self._seq) for layer in cached}


def _rows_and_columns(op: OpRecord) -> tuple[int, int]:
    """The queries and keys of each head. The backward kernels take the gradient first; those of flash-attn, and torch's
    own that are not for `scaled_dot_product_attention`, take tokens before heads."""
    query, key = (op.signature.inputs[at] for at in ((1, 2) if "backward" in op.op else (0, 1)))
    tokens = -2 if "scaled_dot_product" in op.op or "flex" in op.op else -3
    return query.shape[tokens], key.shape[tokens]


class _Sizes(NamedTuple):
    layers: int
    width: int
    heads: int
    head_size: int
    kv_heads: int
    hidden: int
    experts: int  # that a token uses
    matrices: int  # of width × hidden elements in a feed-forward block: 2, or 3 with a gate
    vocabulary: int

    def megatron(self, keys: float) -> float:
        """FLOPs of a forward for a token whose layers read `keys` keys in all: appendix of Narayanan et al. (2021),
        "Efficient large-scale language model training on GPU clusters", with grouped queries, gates and experts as in
        Megatron-LM's `num_floating_point_operations`."""
        projected = self.heads * self.head_size
        projections = 4 * self.width * projected * (1 + self.kv_heads / self.heads)
        feed_forward = 2 * self.width * self.hidden * self.matrices * self.experts
        return self.layers * (projections + feed_forward) + 4 * projected * keys + 2 * self.width * self.vocabulary


def _sizes(found: Analysis) -> _Sizes:
    known: Mapping[str, Any] = {} if found.architecture is None else found.architecture["hyperparameters"]
    names = ("depth", "width", "heads", "head_size", "intermediate_size", "vocabulary")
    missing = [name for name in names if not isinstance(known.get(name), int)]
    if missing:
        raise InputError(f"could not determine the {', '.join(missing)} of the model: use convention='exact'")
    depth, width, heads, head_size, hidden, vocabulary = (int(known[name]) for name in names)
    experts, all_experts = int(known.get("experts_per_token") or 1), int(known.get("experts") or 1)
    # A gate may be stored with the input projection as one matrix: the elements tell how many there are.
    blocks = [param.spec for param in found.capture.params if _is_between(param.spec, width, hidden)]
    matrices, rest = divmod(sum(spec.numel for spec in blocks), width * hidden * all_experts * depth)
    if matrices not in (2, 3) or rest:
        raise InputError("the feed-forward blocks are not two or three equal matrices: use convention='exact'")
    kv_heads = int(known.get("kv_heads") or heads)
    return _Sizes(depth, width, heads, head_size, kv_heads, hidden, experts, matrices, vocabulary)


def _is_between(spec: TensorSpec, width: int, hidden: int) -> bool:
    return sorted(spec.shape[-2:]) in (sorted((width, hidden)), sorted((width, 2 * hidden)))


def _used_parameters(found: Analysis) -> int:
    """Parameters that a token uses, without tables from which rows are only looked up."""
    multiplied, looked_up = set[str](), set[str]()
    for op in found.capture.ops:
        (multiplied if op.cost.macs else looked_up if op.category == "embedding" else set()).update(op.weights)
    tables = looked_up - multiplied
    idle = sum(prod(param.spec.shape) for param in found.capture.params if param.name in tables)
    return int(View(found.capture).totals["active_params"]) - idle
