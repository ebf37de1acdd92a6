"""The part of `collect.py` that makes tables from what a device measured, and from the published tables.

All measured kernels are in one file, kernel_times.jsonl.xz: `gather` makes it from the folders of a device's runs,
`build_tables` makes the table of the package from it.
"""

from __future__ import annotations

import gzip
import json
import lzma
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torchgauge.facts import Signature
    from torchgauge.predict.blocks import BlockModel
    from torchgauge.predict.coordinates import Place
    from torchgauge.predict.kernel_tables import Floats, KernelTable, Near, Rates
    from torchgauge.predict.tiles import TileModel
    from torchgauge.predict.trees import Forest

PUBLISHED_DEVICES = ("a100_sxm", "h100_sxm", "h200_sxm", "l40s", "b200_sxm")


def compact_published(folder: Path, output: Path) -> int:
    """aiconfigurator's parquet files as one archive of integers."""
    import pandas

    from torchgauge.predict.kernel_tables import packed
    from torchgauge.predict.published import MISSING, UNIT

    def logs(values: Any) -> Any:
        return np.round(np.log2(np.asarray(values, float)) * UNIT).astype(np.int16)

    arrays: dict[str, Any] = {}
    linear = {name: pandas.read_parquet(folder / f"{name}.gemm.parquet") for name in PUBLISHED_DEVICES}
    levels = {axis: sorted({int(v) for frame in linear.values() for v in frame[axis]}) for axis in "mnk"}
    arrays |= {f"levels.{axis}": np.array(values, np.int32) for axis, values in levels.items()}
    for name, frame in linear.items():
        own = {axis: sorted({int(v) for v in frame[axis]}) for axis in "mnk"}
        if own != levels:  # fewer levels: a separate grid
            arrays |= {f"{name}.levels.{axis}": np.array(values, np.int32) for axis, values in own.items()}
        grid = np.full([len(own[axis]) for axis in "mnk"], MISSING, np.int16)
        places = tuple(np.searchsorted(own[axis], frame[axis].to_numpy()) for axis in "mnk")
        grid[places] = logs(frame["latency_ms"].to_numpy() * 1e-3)
        arrays[f"{name}.linear"] = grid
        for which in ("prefill", "decode", "encoder"):
            path = folder / f"{name}.attention_{which}.parquet"
            if not path.exists():
                continue
            rows = pandas.read_parquet(path)
            if "window_size" in rows:
                rows = rows[rows["window_size"] == 0]
            length = rows["step"] + 1 if which == "decode" else rows["isl"]
            keys = rows.get("num_key_value_heads", rows["num_heads"])
            arrays[f"{name}.{which}"] = np.asfortranarray(np.stack([
                logs(rows["batch_size"] * rows["num_heads"]), logs(length), logs(rows["head_dim"]),
                logs(rows["num_heads"] / keys), logs(rows["latency_ms"] * 1e-3),
            ], 1))  # fmt: skip
    data = packed(arrays)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(data)
    print(f"{output}: {len(data):,} bytes")
    return 0


# Peak rates that times are put in relation to: NVIDIA's data sheet; 2 µs is what the shortest kernels take in a graph.
H200 = {"float64": 34e12, "float32": 67e12, "tf32": 494.7e12, "float16": 989.4e12, "bfloat16": 989.4e12}
# What takes less launched nothing.
SHORTEST_S = 6e-7
# Replays of one kernel that differ by more than this say nothing.
MOST_SPREAD = 0.5
# The models that a kernel occurs in are kept up to this number; with more of them it belongs to no model.
MOST_MODELS = 6
MOST_PARAMETER = 7.9  # of the plain models, as a table keeps them
UNNAMED = "a model of the list"  # where a list of calls does not say which, as in `kernel_draws`
# What coordinates look at.
ATTRIBUTES = frozenset((
    "dim", "training", "train", "normalized_shape", "groups", "transposed", "stride", "padding", "dilation",
    "output_mask", "is_causal", "compute_log_sumexp", "batch_first", "hidden_size", "num_layers", "bidirectional",
    "mode", "kernel_size", "interpolation_mode",
))  # fmt: skip


@dataclass(frozen=True)
class Timed:
    """A kernel: its call, which inputs came from memory, models that have it, seconds, how far replays differed."""

    signature: Signature
    cold: tuple[bool, ...]
    models: tuple[str, ...]
    seconds: float
    spread: float


def gather(folders: Sequence[Path], output: Path) -> int:
    """One file from folders with `signatures.jsonl.gz` (the calls) and `kernels.jsonl` (their times), and from files
    that were made so before: the names of the models, then a line per kernel. A call that was measured again counts as
    the last of them says."""
    by_call: dict[str, list[list[Any]]] = {}
    for folder in folders:
        found: dict[str, list[list[Any]]] = defaultdict(list)
        if folder.is_file():
            for models, row in measured_rows(folder):
                found[json.dumps(row[:8], sort_keys=True)].append([*row[:8], models, *row[9:]])
            by_call |= found
            continue
        with gzip.open(folder / "signatures.jsonl.gz", "rt") as file:
            calls = [json.loads(line) for line in file]
        for line in (folder / "kernels.jsonl").read_text().splitlines():
            number, seconds, spread = json.loads(line)
            if not seconds or seconds < SHORTEST_S or spread >= MOST_SPREAD:
                continue
            stored, cold, models = calls[number]
            specs = [
                [
                    [spec["shape"], spec["dtype"], spec["stride"], spec["stored"], spec["index_bytes"]]
                    for spec in stored[side]
                ]
                for side in ("inputs", "outputs")
            ]
            kept = {name: value for name, value in stored["attributes"].items() if name in ATTRIBUTES}
            cost = [stored["cost"][name] for name in ("flops", "bytes_read", "bytes_written")]
            flags = "".join("01"[bool(flag)] for flag in cold)
            call = [stored["op"], stored["overload"], stored["category"], *specs, kept, cost, flags]
            found[json.dumps(call, sort_keys=True)].append([*call, models[:MOST_MODELS], seconds, spread])
        by_call |= found
    rows = [row for _, several in sorted(by_call.items()) for row in several]
    names = sorted({name for row in rows for name in row[8]})
    numbers = {name: number for number, name in enumerate(names)}
    lines = [json.dumps(names)]
    for row in rows:
        row[8] = [numbers[name] for name in row[8]]
        lines.append(json.dumps(row, separators=(",", ":")))
    output.write_bytes(lzma.compress("\n".join(lines).encode(), preset=6))
    print(f"{output}: {len(rows)} kernels, {output.stat().st_size:,} bytes")
    return 0


def measured_rows(path: Path) -> Iterator[tuple[list[str], list[Any]]]:
    """The models of each kernel of a file that `gather` made, and its row."""
    with lzma.open(path, "rt") as file:
        names = json.loads(next(file))
        for line in file:
            row = json.loads(line)
            yield [names[number] for number in row[8]], row


def signature_of_row(row: Sequence[Any]) -> Signature:
    """The call of a row of such a file."""
    from torchgauge.facts import Cost, Signature, TensorSpec

    def spec(shape: list[int], dtype: str, stride: list[int] | None, stored: int | None, index: int) -> TensorSpec:
        return TensorSpec(tuple(shape), dtype, None if stride is None else tuple(stride), stored, index)

    op, overload, category, inputs, outputs, attributes, cost, *_ = row
    given, made = (tuple(spec(*one) for one in side) for side in (inputs, outputs))
    return Signature(op, overload, category, "counted", (), given, made, attributes, Cost(0, *cost), 0)


def read_times(path: Path) -> list[Timed]:
    return [
        Timed(signature_of_row(row), tuple(flag == "1" for flag in row[7]), tuple(models), row[9], row[10])
        for models, row in measured_rows(path)
    ]


def distinct(times: Iterable[Timed]) -> list[Timed]:
    """One for each call: the median of those that were measured several times, so that none is held out while the
    table has it from another run."""
    by_call: dict[tuple[Any, ...], list[Timed]] = defaultdict(list)
    for one in times:
        call = one.signature
        by_call[call.op, call.overload, call.inputs, json.dumps(call.attributes, sort_keys=True), one.cold].append(one)
    return [
        replace(
            several[0],
            seconds=float(np.median([one.seconds for one in several])),
            models=tuple(dict.fromkeys(name for one in several for name in one.models)),
        )
        for several in by_call.values()
    ]


def build_tables(path: Path, families: Collection[str] = ()) -> int:
    """The table of the package, judged by kernels that another table, fitted without them, predicts: a tenth in groups
    of equal sizes, from which the intervals are, and a tenth of the others drawn at random. Each family is fitted and
    judged by itself; with `families` the others stay as they are. The same file gives the same table; energy stays as
    it is in the old one (see `fit_energy`)."""
    from torchgauge.predict.coordinates import locate
    from torchgauge.predict.kernel_tables import FOLDER, KernelTable, Rates, load_table, write_table
    from torchgauge.predict.tiles import TileModel

    times = distinct(read_times(path))
    placed = [(locate(one.signature, one.cold), one) for one in times]
    rates, old = Rates(H200, 4.8e12, 2e-6), load_table("h200")
    table = KernelTable("h200", rates, {}, tiles=TileModel({}))
    if old is not None:
        table = old if families else replace(table, facts={"energy": old.facts["energy"]})
    for family in families or sorted({place.family for place, _ in placed}):
        own = [(place, one) for place, one in placed if place.family == family]
        table = with_family(table, family, own)
    facts = dict(table.facts) | {
        "run_factor": 1.0,
        "run_launch_s": 0.85e-6,
        "torch": "2.11.0+cu130, cuDNN 9.19, driver 580, an H200 in November 2026",
        "bands": bands_of(rates, [(place, one.seconds) for place, one in placed]),
    }
    if not families:
        facts["held_out_models"] = held_out_models(replace(table, trees={}), times)
    if not families or "stream" in families:
        kept = {kind: thinned(*known) for kind, known in table.rows["stream"].items()}
        table = replace(table, rows={**table.rows, "stream": kept})
    data = write_table(replace(table, facts=facts))
    (FOLDER / "h200.npz").write_bytes(data)
    print(json.dumps({name: found for name, found in facts.items() if name.startswith("held_out")}, indent=1))
    print(f"{len(data):,} bytes")
    return 0


# A kernel is doubtful that takes so many times as long as the roofline, and as the slowest of its nearest kernels of
# the same kind. Of 740 that were measured again 22 had been more than twice as slow by mistake, the others are as slow.
FAR_FROM_ROOF, FAR_FROM_NEAREST, NEAREST = 100.0, 8.0, 5


def doubtful(rates: Rates, measured: Sequence[tuple[Place, float]]) -> list[int]:
    """The numbers of kernels to measure again, the furthest from the roofline first."""
    by_kind: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, (place, _) in enumerate(measured):
        by_kind[place.family, place.kind].append(number)
    times = np.array([seconds / rates.seconds(place) for place, seconds in measured])
    found: list[int] = []
    for numbers in by_kind.values():
        for number in numbers:
            if times[number] < FAR_FROM_ROOF:
                continue
            others = np.array([other for other in numbers if other != number], int)
            at = np.array([measured[other][0].at for other in others]).reshape(len(others), -1)
            far = np.linalg.norm(at - measured[number][0].at, axis=1) if len(others) else np.zeros(0)
            nearest = times[others[np.argsort(far)[:NEAREST]]]
            if times[number] > FAR_FROM_NEAREST * nearest.max(initial=1.0):
                found.append(number)
    return sorted(found, key=lambda number: -times[number])


# Shares of a family's kernels below and above a band: for places that no measured kernel is near, and for kinds that
# were not measured at all.
BANDS = {"far": (0.001, 0.999), "other kinds": (0.05, 0.95)}


def bands_of(rates: Rates, measured: Iterable[tuple[Place, float]]) -> dict[str, dict[str, list[float]]]:
    """By family, how far from the roofline its kernels lie, in octaves."""
    octaves: dict[str, list[float]] = defaultdict(list)
    for place, seconds in measured:
        octaves[place.family].append(float(np.log2(seconds / rates.seconds(place))))
    return {
        family: {
            name: [round(float(np.quantile(found, share)), 2) for share in shares] for name, shares in BANDS.items()
        }
        for family, found in octaves.items()
    }


def with_family(table: KernelTable, family: str, own: Sequence[tuple[Place, Timed]]) -> KernelTable:
    """The table with the rows, models and trees of a family, its intervals and how it was judged."""
    from torchgauge.predict.kernel_tables import intervals
    from torchgauge.predict.tiles import TileModel

    measured = [(place, one.seconds) for place, one in own]
    # Kernels of drawn sizes have no model, or one that is a recurrent layer alone.
    in_models = [any(not name.startswith("rnn ") for name in one.models) for _, one in own]
    grouped = {number for number, part in enumerate(groups_of(measured)) if part == 0}
    drawn = {int(number) for number in np.flatnonzero(np.random.default_rng(0).random(len(own)) < 0.1)}
    errors = errors_without(table.rates, measured, grouped | drawn)
    in_groups = {number: error for number, error in errors.items() if number in grouped}
    at_random = {number: error for number, error in errors.items() if number not in grouped}
    spread, report = intervals({family: [*in_groups.values()]})
    within = [abs(error) <= spread[family][reach][0] for error, reach in at_random.values()]
    report[family]["coverage_at_random"] = round(float(np.mean(within)), 3)
    facts = dict(table.facts)
    for name, found in (
        ("held_out", report[family]),
        ("held_out_in_groups", summary(in_groups, measured, in_models)),
        ("held_out_at_random", summary(at_random, measured, in_models)),
    ):
        facts[name] = dict(facts.get(name, {})) | {family: found}
    made = fitted_table(table.rates, measured)
    tiles = {**(table.tiles.parameters if table.tiles else {}), **(made.tiles.parameters if made.tiles else {})}
    return replace(
        table,
        rows={**table.rows, **made.rows},
        spread={**table.spread, **spread},
        facts=facts,
        tiles=TileModel(tiles),
        blocks={**table.blocks, **made.blocks},
        trees={**table.trees, **made.trees},
    )


# Of streamed ops, the distance (in octaves) of a row to one that is kept, and the difference of their offsets, up to
# which it is left out: the package's tables are limited to 2 MB.
SAME_PLACE, SAME_OFFSET = 0.75, 0.055


def thinned(at: Floats, offsets: Floats) -> tuple[Floats, Floats]:
    """The rows of a kind without those that a neighbour predicts well."""
    kept: list[int] = []
    for number in range(len(offsets)):
        near = np.abs(offsets[kept] - offsets[number]) < SAME_OFFSET
        if not (near & (np.linalg.norm(at[kept] - at[number], axis=1) < SAME_PLACE)).any():
            kept.append(number)
    return at[kept], offsets[kept]


Judged = dict[int, tuple[float, int]]  # by number of a kernel: its error in octaves, how far its neighbour was


def errors_without(rates: Rates, measured: Sequence[tuple[Place, float]], out: Collection[int]) -> Judged:
    """Errors of the kernels that are out, by a table that was made without them: its rows, plain models and trees."""
    table = fitted_table(rates, [one for number, one in enumerate(measured) if number not in out])
    order = sorted(out)
    found = table.estimates([measured[number][0] for number in order])
    return {
        number: (one.log_s - float(np.log2(measured[number][1])), one.reach)
        for number, one in zip(order, found, strict=True)
    }


def fitted_table(rates: Rates, measured: Sequence[tuple[Place, float]]) -> KernelTable:
    from torchgauge.predict.kernel_tables import KernelTable

    plain = KernelTable.of("h200", rates, measured, **fit_models(rates, measured))
    return replace(plain, trees=fit_trees(plain, measured))


def groups_of(measured: Sequence[tuple[Place, float]]) -> list[int]:
    """The part of ten of each kernel; kernels of one kind of op with equal sizes are in one part."""
    from torchgauge.predict.kernel_tables import part_of

    return [part_of(np.array(place.at, np.float32)) for place, _ in measured]


def neighbours(table: KernelTable, measured: Sequence[tuple[Place, float]], parts: Sequence[int]) -> list[Near]:
    """What the neighbours of each kernel in the other parts say. The table has the measured kernels in their order."""
    rows: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, (place, _) in enumerate(measured):
        rows[place.family, place.kind].append(number)
    found: dict[int, Near] = {}
    for part in sorted(set(parts)):
        own = [number for number in range(len(measured)) if parts[number] == part]
        found |= dict(zip(own, without(table, rows, own).near([measured[number][0] for number in own]), strict=True))
    return [found[number] for number in range(len(measured))]


def summary(
    errors: Judged, measured: Sequence[tuple[Place, float]], in_models: Sequence[bool]
) -> dict[str, list[float]]:
    """By set of kernels: how many, median, mean and 90th percentile of their errors."""
    sets: dict[str, Callable[[int], bool]] = {
        "all": lambda number: True,
        "of models": lambda number: in_models[number],
        "10 us and more": lambda number: measured[number][1] >= 10e-6,
        "of models, 10 us and more": lambda number: in_models[number] and measured[number][1] >= 10e-6,
    }
    found: dict[str, list[float]] = {}
    for name, is_in in sets.items():
        shares = [abs(2**error - 1) for number, (error, _) in errors.items() if is_in(number)]
        if shares:
            figures = (len(shares), np.median(shares), np.mean(shares), np.quantile(shares, 0.9))
            found[name] = [round(float(figure), 4) for figure in figures]
    return found


# Of the trees of a family: how many, and leaves of each.
TREES = {"matmul": (400, 64), "convolution": (800, 96), "attention": (300, 48), "recurrent": (300, 24),
         "stream": (400, 64)}  # fmt: skip


def fit_trees(table: KernelTable, measured: Sequence[tuple[Place, float]]) -> dict[str, Forest]:
    """Boosted trees by family, with the least absolute distance in octaves to what the plain models of the table leave
    over. Each kernel is seen twice: with neighbours of other sizes, as in a model that is new, and with any neighbours,
    as in a model like those that were measured. LightGBM fits them; it is needed here only."""
    from torchgauge.predict.trees import TreeNode, build_forest

    if not any(place.family in TREES for place, _ in measured):
        return {}
    lightgbm: Any = import_module("lightgbm")

    def grown(node: dict[str, Any]) -> TreeNode:
        if "leaf_value" in node:
            return TreeNode(float(node["leaf_value"]))
        children = grown(node["left_child"]), grown(node["right_child"])
        return TreeNode(0.0, int(node["split_feature"]), float(node["threshold"]), children)

    drawn = [int(part) for part in np.random.default_rng(1).integers(0, 10, len(measured))]
    near = [neighbours(table, measured, parts) for parts in (groups_of(measured), drawn)]
    found = {}
    for family, (count, leaves) in TREES.items():
        own = [number for number, (place, _) in enumerate(measured) if place.family == family]
        if len(own) < 100:
            continue
        places = [measured[number][0] for number in own]
        seen = [table.features(places, [several[number] for number in own]) for several in near]
        features = np.concatenate([np.stack(rows) for _, rows in seen]).astype(np.float64)
        truth = np.tile(np.log2([measured[number][1] for number in own]) - np.array(seen[0][0]), len(seen))
        settings = {
            "objective": "mae", "learning_rate": 0.05, "num_leaves": leaves, "max_depth": 10, "min_data_in_leaf": 10,
            "feature_fraction": 0.4, "bagging_fraction": 0.8, "bagging_freq": 1, "lambda_l2": 1.0, "seed": 1,
            "num_threads": 1, "deterministic": True, "force_col_wise": True, "verbose": -1,
        }  # fmt: skip
        trees = lightgbm.train(settings, lightgbm.Dataset(features, truth), count).dump_model()["tree_info"]
        found[family] = build_forest([grown(tree["tree_structure"]) for tree in trees])
    return found


def fit_models(rates: Rates, measured: Sequence[tuple[Place, float]]) -> dict[str, Any]:
    """The models of products, attention, recurrent layers and streamed ops, by their names in `KernelTable`; of those
    that were measured."""
    from torchgauge.predict.blocks import FAMILIES
    from torchgauge.predict.tiles import TileModel

    is_tiled = any(place.tiling is not None for place, _ in measured)
    families = {place.family for place, _ in measured}
    return {
        "tiles": fit_tiles(rates, measured) if is_tiled else TileModel({}),
        "blocks": {
            family: fit_blocks(rates, measured, family, microseconds, defaults)
            for family, (microseconds, defaults) in FAMILIES.items()
            if family in families
        },
    }


def fit_blocks(
    rates: Rates,
    measured: Sequence[tuple[Place, float]],
    family: str,
    microseconds: Callable[..., Any],
    defaults: NDArray[np.float64],
    steps: int = 600,
) -> BlockModel:
    """Parameters of attention or recurrent layers by group, as `fit_tiles` finds them. Groups of one library or
    algorithm begin with common values, and those of few kernels stay near them."""
    import torch

    from torchgauge.predict.blocks import BlockModel

    rows = [(place, seconds) for place, seconds in measured if place.family == family and place.work is not None]
    works = [place.work for place, _ in rows if place.work is not None]
    names = sorted({work.group for work in works})
    # The library of attention, with its backward pass apart; the algorithm of recurrent layers; the class of a streamed
    # op.
    kinds = [name.split(" ")[2 if family == "recurrent" else 0] for name in names]
    parents = sorted(set(kinds))
    given = torch.tensor(
        [work.sizes(rates.rate(place.rate), place.nbytes) for work, (place, _) in zip(works, rows, strict=True)],
        dtype=torch.float64,
    )
    truth = torch.tensor([seconds for _, seconds in rows], dtype=torch.float64).mul(1e6).log()
    group_of = torch.tensor([names.index(work.group) for work in works])
    parent_of = torch.tensor([parents.index(kind) for kind in kinds])
    start = torch.tensor(np.tile(defaults, (len(parents), 1)))
    common = start.clone().requires_grad_()
    apart = torch.zeros(len(names), len(defaults), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([common, apart], 0.06)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 0.06 * (1 - step / steps) + 0.002
        took = microseconds((common[parent_of] + apart)[group_of], given, rates.bytes_per_s, torch)
        miss = torch.nn.functional.smooth_l1_loss(took.log(), truth, beta=0.1)
        loss = miss + 0.004 * (common - start).square().mean() + 0.15 / len(rows) * apart.square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = (common[parent_of] + apart).detach().clamp(-MOST_PARAMETER, MOST_PARAMETER)
    return BlockModel(dict(zip(names, found.numpy(), strict=True)), microseconds)


def fit_tiles(
    rates: Rates, measured: Sequence[tuple[Place, float]], known: TileModel | None = None, steps: int = 450
) -> TileModel:
    """Parameters of tiles by group, with the least absolute logarithms of modelled over measured time; groups of few
    kernels are held near the values that all begin with, or near those that are `known` from a fit before."""
    import torch

    from torchgauge.predict.tiles import DEFAULTS, TileModel, choice_microseconds, microseconds, sizes_of

    ops = [(place, place.tiling, seconds) for place, seconds in measured if place.tiling is not None]
    names = sorted({product.group for _, tiling, _ in ops for product in tiling.products})
    numbers = {name: number for number, name in enumerate(names)}
    owners, groups, sizes = [], [], []
    for owner, (place, tiling, _) in enumerate(ops):
        for product in tiling.products:
            owners.append(owner)
            groups.append(numbers[product.group])
            sizes.append(sizes_of(product, tiling, rates.rate(place.rate), place.cold_bytes, place.nbytes))
    truth = torch.tensor([seconds for *_, seconds in ops], dtype=torch.float64).mul(1e6).log()
    around = torch.tensor([sum(place.around_s) for place, *_ in ops], dtype=torch.float64).mul(1e6)
    owner_of, group_of = torch.tensor(owners), torch.tensor(groups)
    given = torch.tensor(sizes, dtype=torch.float64)
    before = known.parameters if known is not None else {}
    start = torch.tensor(np.array([before.get(name, DEFAULTS) for name in names]))
    parameters = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([parameters], 0.06)
    draw = torch.Generator().manual_seed(0)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 0.06 * (1 - step / steps) + 0.002
        chosen = torch.zeros(len(ops), dtype=torch.bool)
        chosen[torch.randperm(len(ops), generator=draw)[:3000]] = True
        rows = chosen[owner_of]
        chosen_parameters = parameters[group_of[rows]]
        each = choice_microseconds(chosen_parameters, given[rows], torch)
        took = microseconds(chosen_parameters, given[rows], rates.bytes_per_s, each, torch)
        whole = around.index_add(0, owner_of[rows], took)[chosen]
        miss = torch.nn.functional.smooth_l1_loss(whole.log(), truth[chosen], beta=0.1)
        loss = miss + 0.004 * (parameters - start).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return TileModel({**before, **dict(zip(names, parameters.detach().numpy(), strict=True))})


def held_out_models(table: KernelTable, times: Sequence[Timed]) -> dict[str, Any]:
    """Each model of the collection from the kernels of the others: how often the sum of its kernels lies within the
    90 % interval, by the share of a kernel's error that it has in common with the others of its model. What other
    models have too stays in the table, as it would for a model that is new. Kernels of models that are not known and
    the trees, which saw all models, are left out."""
    from torchgauge.predict.coordinates import locate
    from torchgauge.predict.time import combined_error, half_width

    places = [locate(one.signature, one.cold) for one in times]
    rows: dict[tuple[str, str], list[int]] = defaultdict(list)
    runs: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    alone: dict[str, set[int]] = defaultdict(set)
    unnamed: set[int] = set()
    for number, (place, one) in enumerate(zip(places, times, strict=True)):
        rows[place.family, place.kind].append(number)
        names = {name: name.split()[0].split("-")[0] for name in one.models if not name.startswith(("rnn ", UNNAMED))}
        for name, model in names.items():
            runs[model][name].append(number)
        if UNNAMED in one.models:
            unnamed.add(number)
        elif len(set(names.values())) == 1:
            alone[next(iter(names.values()))].add(number)
    errors: list[tuple[float, list[tuple[float, float]]]] = []
    for model, by_run in runs.items():
        left = without(table, rows, alone[model] | unnamed)
        for numbers in by_run.values():
            if len(numbers) < 15:
                continue
            found = left.estimates([places[number] for number in numbers])
            parts = [(2**one.log_s, half_width(table, places[number].family, one.reach))
                     for one, number in zip(found, numbers, strict=True)]  # fmt: skip
            error = np.log2(sum(seconds for seconds, _ in parts) / sum(times[number].seconds for number in numbers))
            errors.append((float(error), parts))
    shares = np.abs(np.exp2([error for error, _ in errors]) - 1)
    within = {
        str(shared): round(float(np.mean([abs(error) <= combined_error(parts, shared) for error, parts in errors])), 3)
        for shared in (0.1, 0.2, 0.3, 0.4, 0.5)
    }
    mean, tail = round(float(shares.mean()), 4), round(float(np.quantile(shares, 0.9)), 4)
    return {"runs": len(errors), "models": len(runs), "mean": mean, "p90": tail, "within": within}


def without(table: KernelTable, rows: Mapping[tuple[str, str], Sequence[int]], gone: Iterable[int]) -> KernelTable:
    """The table without these kernels; `rows` has the numbers of those in it."""
    absent = set(gone)
    kept = {family: dict(kinds) for family, kinds in table.rows.items()}
    for (family, kind), numbers in rows.items():
        stays = np.array([number not in absent for number in numbers])
        if not stays.any():
            del kept[family][kind]
        elif not stays.all():
            at, offsets = kept[family][kind]
            kept[family][kind] = (at[stays], offsets[stays])
    return replace(table, rows=kept)


def fit_energy() -> int:
    """The energy of the package's table, fitted to the whole models that `benchmarks/forecast.py` measured."""
    from torchgauge.predict.kernel_tables import FOLDER, load_table, write_table

    models, forecast = import_module("models"), import_module("forecast")
    table = load_table("h200")
    assert table is not None
    runs = []
    for configuration in models.read_set(models.TIME):
        truth = configuration.measured
        if "joules" in truth:
            row = forecast.predicted(configuration)
            seconds = row["eager" if configuration.is_training else "graph"][0]
            runs.append(EnergyRun(row["work"], row["full_s"], truth["energy_seconds"], seconds, truth["joules"]))
    energy = energy_of(runs)
    print(json.dumps(energy, indent=1))
    (FOLDER / "h200.npz").write_bytes(write_table(replace(table, facts=dict(table.facts) | {"energy": energy})))
    return 0


# Bytes that a kernel moves when it keeps all of an H200 busy: about 16 for each thread that runs at a time. Smaller
# ones draw less; of 1, 4 and 16 MB this fits the measured models best.
FULL_BYTES = 4e6


class EnergyRun(NamedTuple):
    """A model: operations by type and bytes, seconds of its kernels (of those that move less than `FULL_BYTES`, as
    large a part), seconds of a run as measured and as predicted, and what the counter said."""

    work: Mapping[str, float]
    full_s: float
    seconds: float
    predicted_s: float
    joules: float

    def columns(self, seconds: float) -> list[float]:
        """What energy is a sum of: operations, bytes from memory, all bytes, busy and whole seconds."""
        flops = [self.work.get(name, 0.0) for name in ("float32", "tf32", "half")]
        cold = self.work["cold_bytes"]
        return [*flops, cold, cold + self.work["warm_bytes"], min(self.full_s, seconds), seconds]


def energy_of(runs: Sequence[EnergyRun], limit_w: float = 700.0) -> dict[str, Any]:
    """Watts of the idle device and of a busy one, joules by operation and type and by byte: non-negative least squares
    of relative errors. Bytes from memory take what all bytes take and more. The range holds 90 % of the models, each
    tenth from the other nine, with measured times: what predicted times add is in the interval of a run."""
    from scipy.optimize import nnls

    # Units that make the columns about as large as each other.
    units = np.array([1e12] * 5 + [1e-2, 1e-2])
    joules = np.array([run.joules for run in runs])[:, None]
    left = np.array([run.columns(run.seconds) for run in runs]) / units / joules
    foreseen = np.array([run.columns(run.predicted_s) for run in runs]) / units / joules

    def solve(rows: Any) -> Any:
        return nnls(left[rows], np.ones(len(rows)))[0]

    order = np.random.default_rng(0).permutation(len(runs))
    parts, with_measured = np.ones(len(runs)), np.ones(len(runs))
    for part in range(10):
        out = order[part::10]
        best = solve(np.setdiff1d(order, out))
        parts[out], with_measured[out] = foreseen[out] @ best, left[out] @ best
    float32, tf32, half, from_memory, each, busy, idle = (float(value) for value in solve(order) / units)
    low, high = (float(value) for value in np.quantile(1 / with_measured, (0.05, 0.95)))
    return {
        "idle_w": idle, "busy_w": busy, "full_bytes": FULL_BYTES, "limit_w": limit_w,
        "per_byte_j": each, "per_cold_byte_j": each + from_memory,
        "per_flop_j": {"float32": float32, "tf32": tf32, "float16": half, "bfloat16": half}, "low": low, "high": high,
        "models": len(runs), "mean_error": float(np.abs(parts - 1).mean()),
        "mean_error_with_measured_times": float(np.abs(with_measured - 1).mean()),
    }  # fmt: skip
