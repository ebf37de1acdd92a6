"""Tables of measured kernels: the time of a call from the nearest measured calls.

A table holds, for every kind of call, coordinates and how far the time was from a plain model of the device: an
overhead per launch, and the longer of arithmetic at the peak rate and traffic at the peak bandwidth; of products,
convolutions, attention and recurrent layers on a GPU, tiles, waves and steps. That distance varies slowly with the
coordinates, so it is interpolated instead of the time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from io import BytesIO
from math import log2
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from zipfile import ZIP_LZMA, ZipFile, ZipInfo
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from torchgauge.errors import FormatError
from torchgauge.facts import Signature
from torchgauge.predict.blocks import FAMILIES, BlockModel, Blocks
from torchgauge.predict.coordinates import Place
from torchgauge.predict.tiles import DEFAULTS, Tiled, TileModel
from torchgauge.predict.trees import Forest
from torchgauge.registry import grouped

FOLDER = Path(__file__).parent / "tables"
Floats = NDArray[np.float32]
_NEIGHBOURS = 12  # neighbours that are looked at
# The distance (in octaves) at which a neighbour weighs half, and how strongly slopes are shrunk towards zero: with few
# or distant neighbours a plain average is safer. Found on held-out kernels; times of products vary most.
_SMOOTHING = (0.1, 0.03)
_SMOOTHING_OF = {"matmul": (0.25, 0.1)}
# Upper ends of the classes of distance to the nearest measured place; the last one is for another kind of call.
DISTANCES = (0.02, 0.3, 0.7, 1.5, 3.0, 1e9)
_NEAR_REACH = 3  # up to this class of distance a measured kernel is near: half an octave in several sizes
_OTHER_KIND = 1e10  # the distance to a neighbour of another kind
_MAX_OCTAVES = 20.0  # to trees a distance beyond is this one
_MAX_DISTANCES = 1 << 20  # that are computed at a time
_MAX_CACHED_ESTIMATES = 1 << 14  # places whose estimates are remembered


class Estimate(NamedTuple):
    """Base-2 logarithms of seconds; `reach` is the class of distance, the last for a kind that was not measured."""

    log_s: float
    reach: int


# The id of a signature, and which of its inputs come from memory.
CallKey = tuple[int, tuple[bool, ...]]


class Located(NamedTuple):
    """A call that was looked up; its signature is kept, so that no other gets its id."""

    signature: Signature
    place: Place
    estimate: Estimate | None


class Near(NamedTuple):
    """The estimate from the measured neighbours of a place: an interpolated value, the distance to the nearest of them,
    its value, and how far the values of all differ (in octaves)."""

    value: float
    distance: float
    nearest: float
    spread: float

    @property
    def reach(self) -> int:
        """The class of distance, the last where the neighbours are of another kind."""
        return next((number for number, limit in enumerate(DISTANCES) if self.distance <= limit), len(DISTANCES))


@dataclass(frozen=True)
class Rates:
    """Parameters of a plain model of a device: operations per second by type, bytes per second, seconds per launch."""

    flops_per_s: Mapping[str, float]
    bytes_per_s: float
    launch_s: float

    def rate(self, name: str) -> float:
        """Of types of one byte at least that of float16, where their own is not listed."""
        known = self.flops_per_s
        other = "float16" if name.startswith("float8") else "float32"
        return known.get(name) or known.get(other) or known.get("float32") or max(known.values())

    def work_seconds(self, place: Place) -> float:
        return max(place.flops / self.rate(place.rate), place.nbytes / self.bytes_per_s)

    def seconds(self, place: Place) -> float:
        return self.launch_s * place.launches + self.work_seconds(place)


@dataclass
class KernelTable:
    """`rows` by family and kind: coordinates, and log2 of measured over modelled time. `spread` is the 90 % interval of
    log2(measured / predicted) by family and class of distance, from kernels that were held out."""

    device: str
    rates: Rates
    rows: dict[str, dict[str, tuple[Floats, Floats]]]
    spread: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    tiles: TileModel | None = None
    blocks: Mapping[str, BlockModel] = field(default_factory=dict)  # by family
    trees: Mapping[str, Forest] = field(default_factory=dict)  # by family
    # Equal calls of all runs of the process share a signature, as plans do: each is looked up once.
    located: dict[CallKey, Located] = field(default_factory=dict, init=False, repr=False)
    _estimated: dict[Place, Estimate] = field(default_factory=dict, init=False, repr=False)
    # By family, kind and number of coordinates: the rows of similar kinds, which take long to find.
    _near: dict[tuple[str, str, int], tuple[Floats, Floats] | None] = field(
        default_factory=dict, init=False, repr=False
    )

    @classmethod
    def of(
        cls,
        device: str,
        rates: Rates,
        measured: Iterable[tuple[Place, float]],
        *,
        spread: Spread | None = None,
        facts: Mapping[str, Any] | None = None,
        tiles: TileModel | None = None,
        blocks: Mapping[str, BlockModel] | None = None,
    ) -> KernelTable:
        gathered: dict[str, dict[str, list[tuple[tuple[float, ...], float]]]] = {}
        table = cls(device, rates, {}, spread or {}, facts or {}, tiles, blocks or {})
        pairs = list(measured)
        for (place, seconds), modelled in zip(pairs, table.modelled([place for place, _ in pairs]), strict=True):
            offset = log2(seconds) - modelled
            gathered.setdefault(place.family, {}).setdefault(place.kind, []).append((place.at, offset))
        rows = {
            family: {
                kind: (np.array([at for at, _ in found], np.float32), np.array([o for _, o in found], np.float32))
                for kind, found in kinds.items()
            }
            for family, kinds in gathered.items()
        }
        return replace(table, rows=rows)

    def modelled(self, places: Sequence[Place]) -> list[float]:
        """The predictions of the plain models: base-2 logarithms of seconds."""
        return self._modelled(places)[0]

    def features(self, places: Sequence[Place], near: Sequence[Near]) -> tuple[list[float], list[NDArray[np.float32]]]:
        """The predictions of the plain models, and the features of each place for the trees."""
        octaves, views = self._modelled(places)
        rows = []
        for number, (place, modelled, around) in enumerate(zip(places, octaves, near, strict=True)):
            work = (log2(max(amount, 1.0)) for amount in (place.flops, place.nbytes, place.cold_bytes))
            said = (around.value, min(around.distance, _MAX_OCTAVES), around.nearest, around.spread)
            beyond = (log2(1 + seconds / 2**modelled) for seconds in place.around_s)
            own = np.array([*place.at, modelled, *work, *place.traits, *said, *beyond], np.float32)
            rows.append(np.concatenate([own, views[number]]) if number in views else own)
        return octaves, rows

    def _modelled(self, places: Sequence[Place]) -> tuple[list[float], dict[int, NDArray[np.float32]]]:
        """For all calls of a model at once: one by one, numpy's overhead would take most of the time of a forecast. The
        second result has the features of the tiles, by number."""
        rates = self.rates
        found = [0.0] * len(places)
        views: dict[int, NDArray[np.float32]] = {}
        tiled: dict[int, Tiled] = {}
        blocks: dict[str, dict[int, Blocks]] = {family: {} for family in self.blocks}
        for number, place in enumerate(places):
            rate = rates.rate(place.rate)
            if self.tiles is not None and place.tiling is not None:
                tiled[number] = Tiled(place.tiling, rate, place.cold_bytes, place.nbytes)
            elif place.work is not None and place.family in blocks:
                blocks[place.family][number] = Blocks(place.work, rate, place.nbytes)
            else:
                # Tables with a model of tiles are a GPU's.
                block_s = place.block_s if self.tiles is not None else 0.0
                found[number] = log2(rates.seconds(place) + block_s) + place.waste
        if self.tiles is not None and tiled:
            each, seen = self.tiles.octaves([*tiled.values()], rates.bytes_per_s)
            for number, octaves, view in zip(tiled, each, seen, strict=True):
                place = places[number]
                found[number] = log2(2 ** float(octaves) + sum(place.around_s))
                views[number] = view
        for family, own in blocks.items():
            if own:
                blocked = self.blocks[family].octaves([*own.values()], rates.bytes_per_s)
                for number, octaves in zip(own, blocked, strict=True):
                    found[number] = float(octaves)
        return found, views

    def estimates(self, places: Sequence[Place]) -> list[Estimate]:
        """Equal places are estimated once."""
        if len(self._estimated) > _MAX_CACHED_ESTIMATES:
            self._estimated.clear()
        fresh = [*dict.fromkeys(place for place in places if place not in self._estimated)]
        self._estimated |= zip(fresh, self._fresh_estimates(fresh), strict=True)
        return [self._estimated[place] for place in places]

    def _fresh_estimates(self, places: Sequence[Place]) -> list[Estimate]:
        """The measured time if there is one; otherwise the prediction of the trees from neighbours and sizes, or, in
        families without trees, the interpolation between neighbours."""
        near = self.near(places)
        offsets = [around.value for around in near]
        octaves, features = self.features(places, near) if self.trees else (self.modelled(places), [])
        for family, forest in self.trees.items():
            chosen = [
                number for number, place in enumerate(places) if place.family == family and near[number].reach > 0
            ]
            if chosen:
                said = forest.octaves(np.stack([features[number] for number in chosen]))
                for number, value in zip(chosen, said, strict=True):
                    offsets[number] = float(value)
        return [
            Estimate(self.within_band(place, modelled + offset, around.reach), around.reach)
            for place, modelled, offset, around in zip(places, octaves, offsets, near, strict=True)
        ]

    def within_band(self, place: Place, log_s: float, reach: int) -> float:
        """`log_s`, or the nearest value that measured kernels of the family have beyond the roofline: a place that no
        measured one is near to, or of a kind that was not measured, must not be further from it than those are."""
        bands = self.facts.get("bands", {}).get(place.family)
        if bands is None or reach <= _NEAR_REACH:
            return log_s
        low, high = bands["other kinds" if reach >= len(DISTANCES) else "far"]
        roof = log2(self.rates.seconds(place))
        return min(max(log_s, roof + low), roof + high)

    def estimate(self, place: Place) -> Estimate:
        return self.estimates([place])[0]

    def near(self, places: Sequence[Place]) -> list[Near]:
        """How far from the plain model the neighbours of each place are, in octaves."""
        by_kind = grouped(((place.family, place.kind), number) for number, place in enumerate(places))
        found: dict[int, Near] = {}
        for (family, kind), numbers in by_kind.items():
            at = np.array([places[number].at for number in numbers], np.float32)
            found |= dict(zip(numbers, self.near_rows(family, kind, at), strict=True))
        return [found[number] for number in range(len(places))]

    def near_rows(self, family: str, kind: str, at: Floats) -> list[Near]:
        """The estimates from the neighbours of each row of coordinates; those of similar kinds where the kind itself
        was hardly measured."""
        kinds, smoothing = self.rows.get(family, {}), _SMOOTHING_OF.get(family, _SMOOTHING)
        own = kinds.get(kind)
        found = interpolated(*own, at, *smoothing) if own is not None else []
        far = [place for place, one in enumerate(found) if one.reach >= len(DISTANCES) - 1]
        if own is not None and (not far or len(own[1]) > 3):
            return found
        key = family, kind, at.shape[1]
        if key not in self._near:
            self._near[key] = self._similar(kinds, kind, at.shape[1])
        near, chosen = self._near[key], far if own is not None else list(range(len(at)))
        # A plain model is nearly always too fast.
        others = [Near(0.5, _OTHER_KIND, 0.5, 0.0)] * len(chosen) if near is None else [
            one._replace(distance=_OTHER_KIND) for one in interpolated(*near, at[chosen], *smoothing)
        ]  # fmt: skip
        said = dict(enumerate(found)) | dict(zip(chosen, others, strict=True))
        return [said[place] for place in range(len(at))]

    def _similar(
        self, kinds: Mapping[str, tuple[Floats, Floats]], kind: str, dimensions: int
    ) -> tuple[Floats, Floats] | None:
        """The rows of those kinds that have the most words in common with this one's."""
        words = kind.split(" ")
        scores = {
            other: sum(a == b for a, b in zip(words, other.split(" "), strict=False))
            for other, (at, _) in kinds.items()
            if at.shape[1] == dimensions
        }
        if not scores:
            return None
        best = max(scores.values())
        chosen = [kinds[other] for other, score in scores.items() if score == best][:200]
        return np.concatenate([at for at, _ in chosen]), np.concatenate([offsets for _, offsets in chosen])


Errors = dict[str, list[tuple[float, int]]]
Spread = dict[str, Sequence[Sequence[float]]]
Report = dict[str, dict[str, float]]


def held_out(table: KernelTable) -> tuple[Spread, Report]:
    """In ten parts, each predicted from the other nine: half of the 90 % interval by family and distance, in octaves,
    and by family how many kernels, their errors and how many lie within their interval."""
    return intervals(held_out_errors(table, range(10)))


def part_of(at: Floats) -> int:
    """The part of ten that a kernel is held out with. Kernels that agree in their first four coordinates, which are
    sizes, are in one part, such as a layer in training and in inference."""
    return crc32(np.round(at[:4], 1).tobytes()) % 10


def held_out_errors(table: KernelTable, parts: Iterable[int]) -> Errors:
    """By family, the error of each kernel of these parts in octaves, by its neighbours in the other parts, and how far
    the nearest was."""
    rows = [(family, kind) for family, kinds in table.rows.items() for kind in kinds]
    numbers = {(family, kind): np.array([part_of(at) for at in table.rows[family][kind][0]]) for family, kind in rows}
    errors: Errors = {}
    for part in parts:
        kept: dict[str, dict[str, tuple[Floats, Floats]]] = {}
        for family, kind in rows:
            at, offsets = table.rows[family][kind]
            stays = numbers[family, kind] != part
            if stays.any():
                kept.setdefault(family, {})[kind] = (at[stays], offsets[stays])
        others = KernelTable(table.device, table.rates, kept)
        for family, kind in rows:
            at, offsets = table.rows[family][kind]
            own = np.flatnonzero(numbers[family, kind] == part)
            for number, near in zip(own, others.near_rows(family, kind, at[own]), strict=True):
                errors.setdefault(family, []).append((near.value - float(offsets[number]), near.reach))
    return errors


def intervals(errors: Errors) -> tuple[Spread, Report]:
    """Half of the 90 % interval by family and distance, and a report by family."""
    spread: Spread = {}
    report: Report = {}
    for family, found in errors.items():
        widths: list[float] = []
        for reach in range(len(DISTANCES) + 1):
            # Classes with few kernels use those of the neighbouring classes; a larger distance never narrows the
            # interval.
            own = [abs(error) for error, far in found if far == reach]
            own = own if len(own) >= 20 else [abs(error) for error, far in found if abs(far - reach) <= 1]
            width = float(np.quantile(own or [abs(error) for error, _ in found], 0.9))
            widths.append(max([width, *widths[-1:]]))
        # Classes that borrow from each other hold more than 90 % together.
        excess = float(np.quantile([abs(error) / widths[reach] for error, reach in found], 0.9))
        widths = [width * min(excess, 1.0) for width in widths]
        spread[family] = [[width] for width in widths]
        parts = np.array([abs(2**error - 1) for error, _ in found])
        report[family] = {
            "kernels": len(found),
            "median": round(float(np.median(parts)), 4),
            "mean": round(float(parts.mean()), 4),
            "p90": round(float(np.quantile(parts, 0.9)), 4),
            "coverage": round(float(np.mean([abs(error) <= widths[reach] for error, reach in found])), 3),
        }
    return spread, report


def interpolate(rows: Floats, offsets: Floats, at: Floats) -> tuple[float, float]:
    """The value at a place, and the distance to the nearest row."""
    return interpolated(rows, offsets, at[None])[0][:2]


def interpolated(
    rows: Floats, offsets: Floats, at: Floats, half_weight: float = _SMOOTHING[0], ridge: float = _SMOOTHING[1]
) -> list[Near]:
    """At each row of `at`, a line through its neighbours, weighted by distance, its slopes shrunk towards zero."""
    most = max(_MAX_DISTANCES // len(rows), 1)
    if len(at) > most:
        parts = (at[start : start + most] for start in range(0, len(at), most))
        return [one for part in parts for one in interpolated(rows, offsets, part, half_weight, ridge)]
    known, wanted = rows.astype(np.float64), at.astype(np.float64)
    count = min(_NEIGHBOURS, len(offsets))
    chosen = np.broadcast_to(np.arange(count), (len(at), count))
    if count < len(offsets):
        squares = np.einsum("ij,ij->i", known, known) - 2 * wanted @ known.T  # less what all rows have in common
        chosen = np.argpartition(squares, count - 1, axis=1)[:, :count]
    steps, values = known[chosen] - wanted[:, None], offsets[chosen].astype(np.float64)
    near = np.sqrt(np.einsum("qij,qij->qi", steps, steps))
    first, every = near.argmin(1), np.arange(len(at))
    closest, nearest = near[every, first], values[every, first]
    weights = 1 / (near**2 + half_weight**2)
    weights /= weights.sum(1, keepdims=True)
    mean = (weights * values).sum(1)
    value, apart = mean, np.sqrt((weights * (values - mean[:, None]) ** 2).sum(1))
    if count >= 4:
        centre = np.einsum("qi,qij->qj", weights, steps)
        spread = steps - centre[:, None]
        weighted = spread * weights[:, :, None]
        left = np.einsum("qij,qik->qjk", weighted, spread)
        diagonal = np.arange(left.shape[1])
        left[:, diagonal, diagonal] += ridge * (weights * near**2).sum(1)[:, None] + 1e-9
        right = np.einsum("qij,qi->qj", weighted, values - mean[:, None])
        slopes = np.linalg.solve(left, right[:, :, None])[:, :, 0]
        # Extrapolation beyond the range of the neighbours is limited.
        low, high = values.min(1), values.max(1)
        room = 0.25 * (high - low) + 0.05
        value = np.clip(mean - (slopes * centre).sum(1), low - room, high + room)
    for place in np.flatnonzero(closest <= DISTANCES[0]):
        # Not numpy's median, whose first call imports masked arrays: 50 ms.
        value[place], apart[place] = median(values[place][near[place] <= DISTANCES[0]].tolist()), 0.0
    return [Near(*one) for one in np.column_stack([value, closest, nearest, apart]).tolist()]


@cache
def load_table(name: str) -> KernelTable | None:
    """A table of the package by its device; None where there is none."""
    path = FOLDER / f"{name}.npz"
    return read_table(path.read_bytes(), path.name) if path.exists() else None


def read_table(data: bytes, name: str) -> KernelTable:
    """From the bytes of a file: numbers and names only, nothing in it is executed."""
    try:
        with np.load(BytesIO(data), allow_pickle=False) as found:
            facts = json.loads(bytes(found["facts"]).decode())
            rates = Rates(facts["flops_per_s"], float(facts["bytes_per_s"]), float(facts["launch_s"]))
            rows: dict[str, dict[str, tuple[Floats, Floats]]] = {}
            for family, kinds in facts["kinds"].items():
                at = found[f"{family}.at"].astype(np.float32) / _AT_UNIT
                offsets = found[f"{family}.offset"].astype(np.float32) / _OFFSET_UNIT
                which = found[f"{family}.kind"]
                ends = np.searchsorted(which, np.arange(len(kinds) + 1))
                rows[family] = {
                    kind: (at[ends[number] : ends[number + 1]], offsets[ends[number] : ends[number + 1]])
                    for number, kind in enumerate(kinds)
                }
            fitted = {
                name: dict(zip(facts[name], found[name].astype(np.float64) / _MODEL_UNIT, strict=True))
                for name in ("tiles", *FAMILIES)
                if name in found.files
            }
            sizes = {"tiles": len(DEFAULTS)} | {name: len(defaults) for name, (_, defaults) in FAMILIES.items()}
            parts: dict[str, dict[str, Any]] = {}
            for name in found.files:
                start, _, rest = name.partition(".")
                if start == "trees":
                    family, _, part = rest.partition(".")
                    parts.setdefault(family, {})[part] = found[name]
            trees = {family: Forest.of_arrays(arrays) for family, arrays in parts.items()}
            if any(len(row) != sizes[name] for name, rows_of in fitted.items() for row in rows_of.values()):
                raise ValueError("parameters of another model")
    # zipfile's RuntimeError: this Python was built without the lzma module.
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise FormatError(f"'{name}' is not a table of kernels: {error}") from error
    return KernelTable(
        str(facts["device"]),
        rates,
        rows,
        facts.get("spread", {}),
        facts,
        TileModel(fitted["tiles"]) if "tiles" in fitted else None,
        {name: BlockModel(fitted[name], function) for name, (function, _) in FAMILIES.items() if name in fitted},
        trees,
    )


# Coordinates in 1/256 of an octave, offsets in 1/2048, parameters of the models in 1/4096.
_AT_UNIT, _OFFSET_UNIT, _MODEL_UNIT = 256.0, 2048.0, 4096.0
# Coordinates of streamed ops and all offsets are multiples of this many units, which take less room: 0.14 % of a time.
_STREAM_STEP, _OFFSET_STEP = 4, 4


def write_table(table: KernelTable) -> bytes:
    arrays: dict[str, Any] = {}
    kinds: dict[str, list[str]] = {}
    for family, by_kind in table.rows.items():
        kinds[family] = sorted(by_kind)
        step = _STREAM_STEP if family == "stream" else 1
        rows = []
        for number, kind in enumerate(kinds[family]):
            at = np.round(by_kind[kind][0] * (_AT_UNIT / step)).astype(np.int16) * step
            offsets = np.round(by_kind[kind][1] * (_OFFSET_UNIT / _OFFSET_STEP)).astype(np.int16) * _OFFSET_STEP
            # In order of their coordinates rows take a tenth less.
            order = np.lexsort((offsets, *at.T[::-1]))
            rows.append((at[order], offsets[order], np.full(len(offsets), number, np.uint16)))
        at, offsets, which = (np.concatenate(column) for column in zip(*rows, strict=True))
        arrays[f"{family}.at"] = np.asfortranarray(at.astype(np.int16))
        arrays[f"{family}.offset"] = offsets.astype(np.int16)
        arrays[f"{family}.kind"] = which
    facts = dict(table.facts) | {
        "device": table.device, "flops_per_s": dict(table.rates.flops_per_s), "bytes_per_s": table.rates.bytes_per_s,
        "launch_s": table.rates.launch_s, "kinds": kinds, "spread": dict(table.spread),
    }  # fmt: skip
    for name, model in {"tiles": table.tiles, **table.blocks}.items():
        if model is not None:
            facts[name] = sorted(model.parameters)
            parameters = np.array([model.parameters[group] for group in facts[name]])
            arrays[name] = np.round(parameters * _MODEL_UNIT).astype(np.int16)
    for family, forest in table.trees.items():
        arrays |= {f"trees.{family}.{part}": values for part, values in forest.arrays().items()}
    arrays["facts"] = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    return packed(arrays)


def packed(arrays: Mapping[str, Any]) -> bytes:
    """An archive that `np.load` reads, as `np.savez_compressed` makes it, but with LZMA: an eighth smaller."""
    buffer = BytesIO()
    with ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            file = BytesIO()
            np.lib.format.write_array(file, np.asanyarray(array), allow_pickle=False)
            archive.writestr(ZipInfo(f"{name}.npy"), file.getvalue(), ZIP_LZMA)
    return buffer.getvalue()
