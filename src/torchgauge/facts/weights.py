"""Statistics of weight values: columns for tensor rows, figures by op, JSON round trip. And siblings: tensors at the
same place of repeated blocks, such as `layers.0.fc.weight` and `layers.1.fc.weight`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypedDict, cast

from torchgauge.facts.figures import Members
from torchgauge.facts.files import StoredRecord, StoredTensor, weight_row
from torchgauge.facts.module import NUMBERED, ParamRecord, without_stars
from torchgauge.facts.op import FREE, OpRecord
from torchgauge.facts.tensor import TensorSpec

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Against, Aggregated, Common, Scanned, ScannedTensor


@dataclass(frozen=True, slots=True)
class WeightStatistics:
    """Statistics of weight values: by tensor name the figures of its row, and figures of the whole.

    `failures` are tensors that could not be read, with the reason; `scan` says how the values were read; `against` is
    the comparison with another checkpoint."""

    tensors: Mapping[str, ScannedTensor]
    summary: Aggregated = field(default_factory=lambda: cast("Aggregated", {}))
    failures: tuple[tuple[str, str], ...] = ()
    scan: Scanned = field(default_factory=lambda: cast("Scanned", {}))
    against: Against | None = None


def open_scheduler(dask: str | None) -> str:
    """A sentence on a Dask scheduler whose connection is not protected; "" for others."""
    scheme, _, rest = (dask or "").rpartition("://")
    if not rest or rest.startswith("local:") or scheme not in ("", "tcp", "ws"):
        return ""
    return f"the connection to the Dask scheduler {dask} is neither encrypted nor authenticated; tls:// would be both"


# Keys that do not need the values; `duplicate_of` does, since only the values show all copies.
_PLACE = weight_row(StoredTensor("", TensorSpec((), "float32"), 0, "", None)).keys() - {"duplicate_of"}


def weight_rows(
    stored: StoredRecord | None, params: tuple[ParamRecord, ...], statistics: WeightStatistics | None
) -> Iterator[dict[str, object]]:
    """One row per tensor of the files; for a live module one per parameter and buffer whose values were read."""
    figures = statistics.tensors if statistics else {}
    in_memory = (
        StoredTensor(
            param.name,
            param.spec,
            param.nbytes,
            file="",
            offset=None,
            role="buffer" if param.is_buffer else "parameter",
            logical_elements=param.logical_elements,
        )
        for param in (params if figures else ())
    )
    for tensor in stored.tensors if stored else in_memory:
        yield {**weight_row(tensor), **figures.get(tensor.name, {})}


def statistics_from_document(document: Common) -> WeightStatistics | None:
    """None where no values were read."""
    summary = document.get("weight_summary")
    if summary is None:
        return None
    tensors: dict[str, ScannedTensor] = {}
    for row in document["weights"]:
        figures = {key: value for key, value in row.items() if key not in _PLACE}
        if figures.keys() - {"duplicate_of"}:
            tensors[row["name"]] = cast("ScannedTensor", figures)
    whole = {key: value for key, value in summary.items() if key not in ("failures", "scan")}
    return WeightStatistics(
        tensors=tensors,
        summary=cast("Aggregated", whole),
        failures=tuple((row["name"], row["reason"]) for row in summary["failures"]),
        scan=summary["scan"],
        against=document.get("against"),
    )


# Types that always hold values, never the codes of a packing.
_VALUE_DTYPES = frozenset({"float64", "float32", "float16", "bfloat16"})


def holds_codes(dtype: str, logical_elements: int | None) -> bool:
    """Whether the stored elements are codes, which mean nothing without their scales."""
    return bool(logical_elements) and dtype not in _VALUE_DTYPES


def value_figures(row: Members) -> Members:
    dequantized = row.get("dequantized")
    return {**row, **dequantized} if dequantized else row


def quantization_of(row: Members) -> Members:
    """The effect of quantizing the values; empty if the tensor is already quantized."""
    is_packed = holds_codes(row.get("dtype", ""), row.get("logical_elements"))
    return {} if is_packed else row.get("quantization") or {}


def removable(row: Members, error: str = "0.01") -> float | None:
    """The share of values that magnitude pruning can remove at this relative error."""
    share: float | None = ((value_figures(row).get("pruning") or {}).get("magnitude") or {}).get(error)
    return share


RELATIVE_ERRORS, SQNR_LEVELS_DB = ("0.01", "0.05"), (30, 20)


class OpWeights(TypedDict):
    """The weights of an op call. `removable` is the share of their elements that pruning can remove by relative error;
    `smallest_…` the smallest format of the largest one by SQNR, `bytes_after` the bytes of all in such formats."""

    index: int
    op: str
    module: str
    category: str
    weights: list[str]
    elements: int
    bytes: int
    removable: dict[str, float | None]
    smallest_30db: str | None
    smallest_20db: str | None
    bytes_after: dict[str, int]


def weight_ops(ops: Iterable[OpRecord], rows: Iterable[Members], params: Iterable[ParamRecord] = ()) -> list[OpWeights]:
    """One row per op call that uses weights whose values were read, in execution order; views are left out.

    Only tensors of two or more dimensions are quantized: for a vector, scales would cost more than is saved. An op
    without a matrix, and a norm, have nothing to save.
    """
    # A file may prefix the names of the model, or store a tied parameter under another of its names.
    known: dict[str, Members] = {}
    for row in rows:
        if row.get("quantization") is not None:
            module, name = row.get("module"), str(row["name"])
            own = name.rpartition(".")[2]
            known[name if module is None else f"{module}.{own}" if module else own] = row
    for param in params:
        alias = next((name for name in param.aliases if name in known), None)
        if alias is not None:
            known.setdefault(param.name, known[alias])
    used_by = ((op, [known[name] for name in op.weights if name in known]) for op in ops if op.status != FREE)
    return [_op_row(op, used) for op, used in used_by if used]


def _op_row(op: OpRecord, used: Sequence[Members]) -> OpWeights:
    # The zeros in a norm's statistics and parameters, and in other vectors, skip no work.
    saves = op.category != "normalization" and any(len(row["shape"]) >= 2 for row in used)
    largest = max(used, key=lambda row: row["bytes"]) if saves else {}
    shares: dict[str, float | None] = {}
    for error in RELATIVE_ERRORS:
        known = [(row["elements"], share) for row in used if saves and (share := removable(row, error)) is not None]
        count = sum(elements for elements, _ in known)
        shares[error] = sum(elements * share for elements, share in known) / count if count else None
    sizes: dict[str, int] = {}
    for level in SQNR_LEVELS_DB:
        sizes[f"{level}db"] = 0
        for row in used:
            after = (quantization_of(row).get("bytes_after") or {}).get(f"smallest_{level}db")
            stored = int(row["bytes"])
            sizes[f"{level}db"] += (
                stored if after is None or not saves or len(row["shape"]) < 2 else min(stored, int(after))
            )
    return {
        "index": op.index,
        "op": op.op,
        "module": op.module,
        "category": op.category,
        "weights": [row["name"] for row in used],
        "elements": sum(row["elements"] for row in used),
        "bytes": sum(row["bytes"] for row in used),
        "removable": shares,
        "smallest_30db": quantization_of(largest).get("smallest_30db"),
        "smallest_20db": quantization_of(largest).get("smallest_20db"),
        "bytes_after": sizes,
    }


# A part of a pattern that ends in a star which is not escaped.
_INDEXED = re.compile(r"(?:[^\\]|\\.)*?\*", re.DOTALL)
_EXPERTS = re.compile(r"experts?", re.IGNORECASE)


class IndexedName(NamedTuple):
    """A name with a star for each index, and the indices; a star of the name itself is escaped."""

    pattern: str
    indices: tuple[int, ...]


def indexed_name(name: str) -> IndexedName:
    """A bare number is an index, and so is one at the end of a block's name (`denselayer3.conv.weight`).

    The module that holds the tensor keeps its number: `conv1` and `conv2` of a block are different layers.
    """
    parts = name.split(".")
    blocks = len(parts) - 2
    starred: list[str] = []
    indices: list[int] = []
    for position, part in enumerate(parts):
        match = NUMBERED.fullmatch(part)
        if match and (not match[1] or position < blocks):
            starred.append(f"{without_stars(match[1])}*")
            indices.append(int(match[2]))
        else:
            starred.append(without_stars(part))
    return IndexedName(".".join(starred), tuple(indices))


def by_pattern(names: Iterable[str]) -> dict[str, list[str]]:
    """Names that contain an index, by pattern, in the order given."""
    groups: dict[str, list[str]] = {}
    for name in names:
        place = indexed_name(name)
        if place.indices:
            groups.setdefault(place.pattern, []).append(name)
    return groups


def layer_of(name: str) -> tuple[int, ...]:
    """The indices of the layer; those of experts within a layer are ignored, unless there are no others."""
    place = indexed_name(name)
    return tuple(place.indices[number] for number, _ in _layer_stars(place.pattern))


class Stem(NamedTuple):
    """The path at which blocks repeat (`layers.*` or `layer*.*`), and its number of indices."""

    path: str
    depth: int


def stem_of(pattern: str, names: Iterable[str]) -> Stem:
    """Up to the last index that varies within a block: in `layers.*.downsample.0` only the first one does."""
    layers = sorted({layer_of(name) for name in names})
    stars = _layer_stars(pattern)
    depth = 1
    for upper, lower in pairwise(layers):
        first = next(position for position, pair in enumerate(zip(upper, lower, strict=True)) if pair[0] != pair[1])
        depth = max(depth, first + 1)
    parts = pattern.split(".")
    return Stem(".".join(parts[: stars[depth - 1][1] + 1]), depth)


def by_stem(sizes: Mapping[str, int]) -> dict[Stem, dict[str, list[str]]]:
    """Names by pattern, each pattern under the largest stem (by bytes) that it begins with, so that weights of a few
    layers are with those of all. The largest stem comes first; `sizes` are the bytes by name."""
    patterns = by_pattern(sizes)
    weight: Counter[Stem] = Counter()
    for pattern, names in patterns.items():
        weight[stem_of(pattern, names)] += sum(sizes[name] for name in names)
    groups: dict[Stem, dict[str, list[str]]] = {stem: {} for stem, _ in weight.most_common()}
    for pattern, names in patterns.items():
        fitting = next(stem for stem in groups if f"{pattern}.".startswith(f"{stem.path}."))
        groups[fitting][pattern] = names
    return {stem: found for stem, found in groups.items() if found}


def _layer_stars(pattern: str) -> list[tuple[int, int]]:
    """The numbers of the indices that count layers, and the position of each in the pattern."""
    parts = pattern.split(".")
    stars = list(enumerate(position for position, part in enumerate(parts) if _INDEXED.fullmatch(part)))

    def counts_experts(position: int) -> bool:
        return position > 0 and parts[position] == "*" and _EXPERTS.fullmatch(parts[position - 1]) is not None

    return [star for star in stars if not counts_experts(star[1])] or stars
