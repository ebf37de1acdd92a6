"""Statistics of modules, layer kinds and the whole model: counts are added up, means are never averaged.

A module is finished as soon as its last tensor has been added, so only open modules hold counts: in file order about as
many as the tree is deep. Modules are listed down to the depth at which there are at most `MAX_MODULES`; a module with a
single tensor is left out, because that tensor's row says the same.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from torchgauge.checkpoint import Entry, Role
from torchgauge.facts.figures import Members
from torchgauge.facts.module import index_of
from torchgauge.facts.weights import by_pattern, holds_codes, value_figures
from torchgauge.source.state_names import shallow
from torchgauge.weights.pruning import unstructured_pruning
from torchgauge.weights.quantization import tensor_quantization
from torchgauge.weights.statistics import NOT_STORED, value_statistics
from torchgauge.weights.symbols import FLOAT32, SYMBOLS
from torchgauge.weights.tally import Tally, empty_tally, merge_tallies, tally_of_counts, to_float32_codes

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Aggregated, KindGroup, ModuleGroup, Outlier, SizedGroup, Total

KINDS = (
    "attention", "mlp", "experts", "router", "convolution", "recurrent", "embedding", "norm", "head", "linear", "bias",
    "quantization", "other", "buffer", "optimizer", "not the model",
)  # fmt: skip

_NORM = re.compile(
    r"(.*_)?(norms?|ln|bn|gn|batch_?norm|layer_?norm|rms_?norm|group_?norm)(_.*|\d+[a-z]?)?", re.IGNORECASE
)
_ATTENTION = re.compile(
    r"(.*_)?(attn|attention|attend)(\d*|_.*)|self_?attn|.*attention|[qkvo]|qkv|[qkvo]_?proj|query|key|value|to_[qkv]|to_out|to_qkv|"
    r"w[qkvo]|wqkv|c_attn|query_key_value|qkv_proj|out_proj|in_proj|[qkvo]_lin|kv_[ab]_proj.*|q_[ab]_proj",
    re.IGNORECASE,
)
_MLP = re.compile(
    r"(.*_)?(mlp|ffn?|feed_?forward|densereludense|fc[12]|linear[12]|lin[12]|c_fc|w[io123](_\d)?|gate_proj|up_proj|down_proj|"
    r"gate_up_proj|intermediate|dense_h_to_4h|dense_4h_to_h)(_.*)?",
    re.IGNORECASE,
)
_EMBEDDING = re.compile(
    r".*(embed|embd|embedding).*|wte|wpe|shared|emb|.*_emb|cls_token|.*_token|.*pos_bias.*|relative_.*", re.IGNORECASE
)
_HEAD = re.compile(
    r"(lm_|.*_)?heads?(_.*)?|(pre_)?classifier\d*|embed_out|score|fc|last_linear|output|logits|predictions",
    re.IGNORECASE,
)
_EXPERTS = re.compile(r"(shared_)?experts?(_.*)?|moe", re.IGNORECASE)
_ROUTER = re.compile(r"gate|router|wg", re.IGNORECASE)
_RECURRENT = re.compile(r"(weight|bias)_(ih|hh|hr)(_l\d+)?(_reverse)?")
_BIAS = re.compile(r"(.*_)?bias|b")
# One letter says little: it is a projection of attention where the others are beside it.
_LETTERS = frozenset("qkvo")
# By the type of a module: it decides before any name.
_KIND_OF_TYPE = {
    "Embedding": "embedding", "EmbeddingBag": "embedding", "Conv1d": "convolution", "Conv2d": "convolution",
    "Conv3d": "convolution", "LSTM": "recurrent", "GRU": "recurrent", "RNN": "recurrent",
}  # fmt: skip
_KIND_OF_ROLE = {Role.BUFFER: "buffer", Role.OPTIMIZER: "optimizer", Role.OTHER: "not the model"}


def tensor_kinds(entries: Sequence[Entry], types: Mapping[str, str] | None = None) -> dict[str, str]:
    """Name -> kind; `types` are those of the modules, by path, where they are known. A norm is recognised by its name,
    or because its weight is a vector."""
    ranks = {entry.name: len(entry.spec.shape) for entry in entries}
    letters: dict[str, set[str]] = {}  # by the path of a module, its parts that are named by one of them
    for entry in entries:
        path = entry.name.split(".")
        for depth, part in enumerate(path):
            if part.lower() in _LETTERS:
                letters.setdefault(".".join(path[:depth]), set()).add(part.lower())
    return {entry.name: _kind(entry, ranks, types or {}, letters) for entry in entries}


def _kind(entry: Entry, ranks: Mapping[str, int], types: Mapping[str, str], letters: Mapping[str, set[str]]) -> str:
    if entry.logical_elements == 0:
        return "quantization"
    if entry.role is not Role.PARAMETER:
        return _KIND_OF_ROLE[entry.role]
    module, _, own = entry.name.rpartition(".")
    path = module.split(".") if module else []
    if _RECURRENT.fullmatch(own):
        return "recurrent"
    if len(entry.spec.shape) > 1 and (kind := _KIND_OF_TYPE.get(types.get(module, "").rpartition(".")[2])):
        return kind
    if len(entry.spec.shape) > 1:
        rank = len(entry.spec.shape)
        # The name of the layer, or of the tensor if it belongs directly to a block (`in_proj_weight`).
        names = [*path, own.removesuffix("_weight")]
        if any(_EXPERTS.fullmatch(part) for part in names):
            return "experts"
        if rank > 3 or (rank == 3 and own == "weight"):
            return "convolution"
        if path and _ROUTER.fullmatch(path[-1]):
            return "router"
        # A head is at the end of the model, not within its blocks, whose paths contain an index.
        if path and _HEAD.fullmatch(path[0] if path[0] != "model" else path[-1]):
            return "head"
        if any(_EMBEDDING.fullmatch(part) for part in names[-2:]):
            return "embedding"
        # The innermost known name decides: `attention.output.dense` is attention, `output.dense` is not.
        for depth, part in reversed(list(enumerate(names))):
            is_alone = part.lower() in _LETTERS and len(letters.get(".".join(names[:depth]), ())) < 2
            if _ATTENTION.fullmatch(part) and not is_alone:
                return "attention"
            if _MLP.fullmatch(part):
                return "mlp"
        return "mlp" if "output" in names and "dense" in names else "linear"
    is_norm = (path and _NORM.fullmatch(path[-1])) or ranks.get(f"{module}.weight" if module else "weight") == 1
    if is_norm or _NORM.fullmatch(own):
        return "norm"
    return "bias" if _BIAS.fullmatch(own) else "other"


MAX_MODULES = 500
# Up to this many bits every code has a counter (512 KiB): much faster than merging sparse counts.
_DENSE_MAX_CODE_BITS = 16


class _TallySum:
    """The sum of tallies with the same symbol."""

    def __init__(self, symbol: str) -> None:
        self._symbol = SYMBOLS[symbol]
        self._total = empty_tally(symbol)
        is_dense = self._symbol.code_bits <= _DENSE_MAX_CODE_BITS
        self._counts = np.zeros(1 << self._symbol.code_bits, np.int64) if is_dense else None

    def add(self, tally: Tally) -> None:
        if self._counts is None:
            self._total = merge_tallies(self._total, tally)
            return
        self._counts[tally.codes] += tally.counts
        if self._symbol.pattern is None:
            without_counts = replace(tally, codes=np.empty(0, np.uint32), counts=np.empty(0, np.int64))
            self._total = merge_tallies(self._total, without_counts)

    @property
    def tally(self) -> Tally:
        if self._counts is None:
            return self._total
        codes = np.flatnonzero(self._counts).astype(np.uint32)
        counts = self._counts[codes]
        if self._symbol.pattern is not None:
            return tally_of_counts(self._symbol, codes, counts)
        return replace(self._total, codes=codes, counts=counts)


@dataclass(slots=True)
class _Group:
    """Tensors added so far. Tallies are kept by symbol, because different ones cannot be merged."""

    tensors: int = 0
    elements: int = 0
    nbytes: int = 0
    dtypes: dict[str, None] = field(default_factory=dict)
    is_dequantized: bool = False
    sums: dict[str, _TallySum] = field(default_factory=dict)

    def add(self, entry: Entry, tally: Tally) -> None:
        if tally.symbol not in self.sums:
            self.sums[tally.symbol] = _TallySum(tally.symbol)
        self.sums[tally.symbol].add(tally)
        self.tensors += 1
        self.elements += entry.logical_elements or entry.elements
        self.nbytes += entry.nbytes
        self.dtypes[entry.spec.dtype] = None
        self.is_dequantized |= holds_codes(entry.spec.dtype, entry.logical_elements)

    def figures(self) -> SizedGroup:
        figures: SizedGroup = {
            "tensors": self.tensors,
            "elements": self.elements,
            "bytes": self.nbytes,
            "dtypes": list(self.dtypes),
        }
        tallies = [part.tally for part in self.sums.values()]
        if tallies:
            total = tallies[0] if len(tallies) == 1 else reduce(merge_tallies, map(to_float32_codes, tallies))
            figures = {
                **figures,
                **value_statistics(total),
                "quantization": tensor_quantization(total),
                "pruning": unstructured_pruning(total),
            }
        if len(tallies) > 1:
            # Over several types: the bits of all symbols as stored, each type with its own code.
            parts = [(value_statistics(part), part.count) for part in tallies if part.count]
            count = sum(size for _, size in parts)
            stored = sum((part["entropy_symbol_bits"] or 0.0) * size for part, size in parts)
            needed = sum((part["entropy_bits"] or 0.0) * size for part, size in parts)
            figures["entropy_bits"] = needed / count if count else None
            figures["entropy_symbol_bits"] = stored / count if count else None
            figures["compressibility"] = 1 - needed / stored if count else None
        # Dequantized values are not stored, so there are no symbols to compute an entropy of.
        return {**figures, **NOT_STORED} if self.is_dequantized else figures


class Aggregate:
    """Adds up the tensors of a checkpoint in file order.

    The model's parameters make up the total and the modules. Buffers, optimizer state and auxiliary tensors of a
    packing are separate kinds. Packed tensors of unknown layout are left out and counted in `not_unpacked`.
    """

    def __init__(self, entries: Iterable[Entry], types: Mapping[str, str] | None = None) -> None:
        """`types` are those of the modules, by path, where they are known."""
        unique = [entry for entry in entries if entry.shared_with is None]
        self._entries = {entry.name: entry for entry in unique}
        self._kinds = tensor_kinds(unique, types)
        # How many tensors each listed module waits for: whole levels of the tree, as many as may be listed.
        sizes = Counter(module for entry in unique if _is_parameter(entry) for module in _ancestors(entry.name))
        depths = Counter(module.count(".") for module, size in sizes.items() if size > 1)
        listed, deepest = 0, -1
        for depth in sorted(depths):
            listed += depths[depth]
            if listed > MAX_MODULES:
                break
            deepest = depth
        waiting = {module: size for module, size in sizes.items() if size > 1 and module.count(".") <= deepest}
        self._pending = Counter(waiting)
        self._open: dict[str, _Group] = {}
        self._modules: dict[str, SizedGroup] = {}
        self._by_kind: dict[str, _Group] = {}
        self._total = _Group()
        self._not_unpacked = 0

    def add(self, name: str, tally: Tally) -> None:
        """Add a tensor; `tally` is over its values, dequantized if packed."""
        entry = self._entries[name]
        if holds_codes(entry.spec.dtype, entry.logical_elements) and tally.symbol != FLOAT32.name:
            self._not_unpacked += 1
            self.leave_out(name)
            return
        self._by_kind.setdefault(self._kinds[name], _Group()).add(entry, tally)
        if _is_parameter(entry):
            self._total.add(entry, tally)
            for module in self._listed_ancestors(name):
                self._open.setdefault(module, _Group()).add(entry, tally)
                self._count_down(module)

    def leave_out(self, name: str) -> None:
        """The tensor could not be read: its modules do not wait for it."""
        if _is_parameter(self._entries[name]):
            for module in self._listed_ancestors(name):
                self._count_down(module)

    def summary(self) -> Aggregated:
        """`total`, `by_module` and `by_kind`, with the figures of a tensor's row."""

        def tree_order(path: str) -> list[tuple[int, int, str]]:
            """Parents before children, numbers by value."""
            parts = [(index_of(part), part) for part in path.split(".")]
            return [(1, 0, part) if index is None else (0, index, "") for index, part in parts]

        for module in list(self._open):
            self._finish(module)
        modules: list[ModuleGroup] = [
            {"path": path, **self._modules[path]} for path in sorted(self._modules, key=tree_order)
        ]
        kinds: list[KindGroup] = [
            {"kind": kind, **self._by_kind[kind].figures()} for kind in KINDS if kind in self._by_kind
        ]
        total: Total = {**self._total.figures(), "not_unpacked": self._not_unpacked}
        return {"total": total, "by_module": modules, "by_kind": kinds}

    def _listed_ancestors(self, name: str) -> list[str]:
        return [module for module in _ancestors(name) if module in self._pending]

    def _count_down(self, module: str) -> None:
        self._pending[module] -= 1
        if not self._pending[module]:
            self._finish(module)

    def _finish(self, module: str) -> None:
        group = self._open.pop(module, None)
        if group is not None and group.tensors > 1:
            self._modules[module] = group.figures()


def _is_parameter(entry: Entry) -> bool:
    return entry.role is Role.PARAMETER and entry.logical_elements != 0


def _ancestors(name: str) -> Iterator[str]:
    """The modules above a tensor, innermost first, without the root."""
    module = shallow(name).rpartition(".")[0]
    while module:
        yield module
        module = module.rpartition(".")[0]


FIGURES = ("std", "abs_max", "mean", "kurtosis", "sparsity", "spectral_norm", "stable_rank", "entropy_bits")
MIN_SIBLINGS = 5
MIN_SCORE = 6.0
# 1 / Φ⁻¹(3/4): for normal data, the standard deviation divided by the median absolute deviation.
_STD_PER_MAD = 1.4826
# The smallest difference that matters: absolute for figures on a fixed scale, otherwise relative to the median.
_MIN_RELATIVE_DIFFERENCE = 0.5
_MIN_DIFFERENCE = {"kurtosis": 1.0, "sparsity": 0.05, "entropy_bits": 0.5}


def find_outliers(rows: Mapping[str, Members]) -> list[Outlier]:
    """The outliers among rows by name, the most extreme first."""
    outliers: list[Outlier] = []
    for pattern, names in by_pattern(rows).items():
        groups: dict[tuple[tuple[int, ...], str], dict[str, Members]] = {}
        for name in names:
            row = rows[name]
            if row.get("duplicate_of") is None:
                groups.setdefault((tuple(row.get("shape") or ()), row.get("dtype") or ""), {})[name] = row
        for group in groups.values():
            if len(group) >= MIN_SIBLINGS:
                outliers += [outlier for figure in FIGURES for outlier in _outliers_of(pattern, group, figure)]
    outliers.sort(
        key=lambda one: (-abs(math.inf if one["score"] is None else one["score"]), one["name"], one["figure"])
    )
    return outliers


def _outliers_of(pattern: str, rows: Mapping[str, Members], figure: str) -> Iterator[Outlier]:
    figures = {name: value_figures(row) for name, row in rows.items()}
    values: dict[str, float] = {
        name: value
        for name, row in figures.items()
        if isinstance(value := row.get(figure), int | float) and math.isfinite(value)
    }
    if len(values) < MIN_SIBLINGS:
        return
    middle = median(values.values())
    deviation = _STD_PER_MAD * median(abs(value - middle) for value in values.values())
    for name, value in values.items():
        distance = abs(value - middle)
        score = distance / deviation if deviation else math.inf
        # A mean is judged by the spread of the values: near zero, means differ by any factor.
        scale = (figures[name].get("std") or 0.0) if figure == "mean" else abs(middle)
        if score > MIN_SCORE and distance > _MIN_DIFFERENCE.get(figure, _MIN_RELATIVE_DIFFERENCE * scale):
            signed = math.copysign(score, value - middle) if math.isfinite(score) else None
            yield {
                "name": name, "figure": figure, "value": value, "median": middle, "score": signed, "siblings": pattern,
                "of": len(values),
            }  # fmt: skip
