"""The tensors of the files, and the values of the weights: totals, kinds, places, outliers, recommendations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from torchgauge.facts import StoredTensor, View
from torchgauge.facts.figures import Members
from torchgauge.facts.weights import open_scheduler, quantization_of, removable
from torchgauge.registry import grouped
from torchgauge.report.bars import narrow
from torchgauge.report.layout import Heading
from torchgauge.report.model import (
    Block,
    Cells,
    Fact,
    Facts,
    Item,
    Listing,
    Section,
    Text,
    Topic,
    figures,
    more,
    names,
    notes,
    table,
    table_section,
    texts,
)
from torchgauge.report.options import Detail, Options
from torchgauge.report.ranking import THE_MODEL, path_pattern, share_of
from torchgauge.report.weight_statistics import (
    LEGEND,
    STRUCTURES,
    HeatMap,
    advice,
    by_operation,
    easiest_to_prune,
    formats_text,
    hardest,
    heat_maps,
    most_deviating,
    places,
    shade,
    sqnr_db,
    structured,
    structured_in_all,
    summary_of,
)
from torchgauge.units import (
    format_bytes,
    format_count,
    format_decibels,
    format_exact,
    format_percent,
    format_seconds,
    format_shape,
    format_value,
)

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Against, Drift

# Rows shown of each table or list; the others are counted.
_MAX_PLACES, _MAX_LISTED, _MAX_HARDEST = 40, 10, 5
_MAX_FOLDERS, _MAX_TIED = 30, 10
_MAX_CHANGED, _MAX_NAMED = 25, 10
_MAX_MAPS, _MAX_MAP_ROWS, _MAX_MAP_LABEL = 2, 10, 28
# On a narrower page some columns are left out, so that names stay readable.
ALL_COLUMNS_MIN_WIDTH = 96
SIBLINGS = (
    "×: repeated layers in the row: median std, largest |max|, worst int8; 30 dB: smallest format that reaches it"
)
FORMATS = ("int8", "fp8_e4m3", "fp8_e5m2", "int4", "nf4")


def sections(view: View, options: Options) -> Iterator[Section]:
    yield from _stored(view, options)
    if options.detail is Detail.FULL:
        nbytes = view.totals.param_bytes
        parameters: list[Fact] = [
            ("Total parameters", format_exact(view.totals.params), ""),
            ("Parameter memory", format_bytes(nbytes), f"{format_exact(nbytes)} bytes"),
        ]
        unread = "The values were not read: --weights (weights=True) gives their statistics."
        missing = [Text(unread, is_remark=True)] if view.weight_summary is None else []
        yield Section("Parameters", (Facts(parameters), *missing), Topic.WEIGHTS, page_part="weights")
    summary = summary_of(view)
    if values := [*value_facts(view)]:
        yield Section("Values of the parameters", (Facts(values),), Topic.WEIGHTS, page_part="weights")
    if kinds := kinds_section(view):
        yield kinds
    if options.detail:
        yield from _places(view)
        yield from _hardest(view)
        yield from _structures(view)
        yield from _packings(view)
    yield from _outliers(view)
    for heat_map in heat_maps(view)[:_MAX_MAPS]:
        yield from _heat_map(heat_map, options.width)
    yield from _operations(view)
    found = advice(view)
    if found:
        same = [f" (and {format_exact(entry.siblings)} like it)" if entry.siblings else "" for entry in found]
        advised = [Item(f": {entry.text}{again}", name=entry.name) for entry, again in zip(found, same, strict=True)]
        yield _listed("Recommendations for weights", Listing(advised[:_MAX_LISTED]), len(found), Topic.ADVICE)
    failures = summary["failures"] if summary else []
    if failures:
        items = tuple(Item(f": {failure['reason']}", name=failure["name"]) for failure in failures[:_MAX_LISTED])
        shown = Listing(items, is_warning=True)
        yield _listed("Weights that could not be read", shown, len(failures), Topic.WEIGHTS)


def _listed(title: str, shown: Listing, count: int, topic: Topic) -> Section:
    left_out = [Text(text, is_remark=True) for text in more(count - _MAX_LISTED)]
    return Section(title, (shown, *left_out), topic, page_part="weights")


def _section(
    title: str, headings: tuple[Heading, ...], rows: Sequence[Cells], notes: tuple[str, ...] = (), name: str = ""
) -> Iterator[Section]:
    return table_section(title, headings, rows, notes, topic=Topic.WEIGHTS, page_part="weights", name=name)


def value_facts(view: View) -> Iterator[Fact]:
    """All values together: their distribution, what could be saved, and how they were read; none without values."""
    summary = summary_of(view)
    total: Members | None = summary.get("total") if summary else None
    if summary is None or not total or total.get("mean") is None:
        return
    median, low, high = (format_value(total["quantiles"][key]) for key in ("0.5", "0.001", "0.999"))
    yield "Mean", format_value(total["mean"]), f"std {format_value(total['std'])}, median {median}"
    yield "Range", f"{format_value(total['min'])} … {format_value(total['max'])}", f"99.8 % within {low} … {high}"
    skewness = f"skewness {format_value(total['skewness'])} (normal distribution: 0, 0)"
    yield "Shape", f"kurtosis {format_value(total['kurtosis'])}", skewness
    yield "Zeros", format_percent(total["sparsity"]), f"{format_percent(total['near_zero'])} below 1 % of the std"
    yield "Norms", f"L2 {format_value(total['l2'])}", f"L1 {format_value(total['l1'])}"
    broken = [f"{format_exact(total[key])} {what}" for key, what in (("nan", "NaN"), ("inf", "infinite")) if total[key]]
    if broken:
        yield "Not finite", " and ".join(broken), "left out of all figures"
    if total.get("not_unpacked"):
        yield "Left out", format_exact(total["not_unpacked"]), "tensors in an unknown packing"
    if total["entropy_bits"] is not None:
        bits = f"{format_value(total['entropy_bits'])} of {format_value(total['entropy_symbol_bits'])} bits"
        yield "Entropy", bits, f"{format_percent(total['compressibility'])} compressible without loss"
    at_five = f"{format_percent(removable(total, '0.05'))} at 5 %"
    yield "Prunable", format_percent(removable(total)), f"by magnitude at 1 % relative error, {at_five}"
    known = {name: sqnr_db(total, name) for name in FORMATS}
    kept = ", ".join(f"{name} {format_decibels(decibels)}" for name, decibels in known.items() if decibels is not None)
    yield "Quantized", "", f"SQNR with one scale per tensor: {kept or 'nothing to quantize'}"
    structures = structured_in_all(view)
    energy = structures.pop("two_four", None)
    if structures:
        (first, share), *others = structures.items()
        text = ", ".join(f"{name} {format_percent(share)}" for name, share in others) + " at 1 % relative error"
        two_four = f"; 2:4 keeps {format_percent(energy)} of the energy" if energy is not None else ""
        yield "Structured", f"{first} {format_percent(share)}", text + two_four
    if (scan := summary["scan"]).get("seconds") and scan.get("bytes") is not None:
        yield "Read", "", scan_text(scan)


def scan_text(scan: Members) -> str:
    """`1.2 GiB in 3.1 s, 396 MiB/s, with matrices and groups (deep)`."""
    seconds, nbytes = scan.get("seconds"), scan.get("bytes")
    if not nbytes:
        return "nothing was read: no tensor has stored values"
    depth = "with matrices and groups (deep)" if scan.get("deep") else "without the deep passes"
    rate = f" in {format_seconds(seconds)}, {format_bytes(nbytes / seconds)}/s" if seconds else ""
    remark = open_scheduler(scan.get("dask"))
    return f"{format_bytes(nbytes)}{rate}, {depth}{f'; {remark}' if remark else ''}"


def kinds_section(view: View) -> Section | None:
    summary = summary_of(view)
    headings = (
        *names("Kind"), *figures("Tensors", "Bytes"), *figures("Mean", min_width=ALL_COLUMNS_MIN_WIDTH),
        *figures("Std", "|Max|", "Zeros", "Prunable", "int8"),
    )  # fmt: skip
    rows = []
    for kind in summary.get("by_kind", []) if summary else []:
        values = map(format_value, (kind.get("mean"), kind.get("std"), kind.get("abs_max")))
        shares = format_percent(kind.get("sparsity")), format_percent(removable(kind))
        size = format_exact(kind["tensors"]), format_bytes(kind["bytes"])
        rows.append((kind["kind"], *size, *values, *shares, format_decibels(sqnr_db(kind, "int8"))))
    return next(_section("Values by kind of layer", headings, rows), None)


def _places(view: View) -> Iterator[Section]:
    found = places(view)
    headings = (
        *names("Tensor"), *figures("×", "Bytes", "Std", "|Max|"),
        *figures("Zeros", "Prunable", min_width=ALL_COLUMNS_MIN_WIDTH), *figures("int8", "30 dB"),
    )  # fmt: skip
    rows = []
    for place in found[:_MAX_PLACES]:
        size = format_exact(place.count), format_bytes(place.nbytes)
        values = format_value(place.std), format_value(place.abs_max)
        shares = format_percent(place.sparsity), format_percent(place.removable)
        name, formats = place.pattern.removesuffix(".weight"), (format_decibels(place.int8_db), place.smallest_30db)
        rows.append((name, *size, *values, *shares, *formats))
    left_out = (*more(len(found) - _MAX_PLACES, "places"), SIBLINGS)
    yield from _section("Largest weights", headings, rows, left_out, name="weights")


def _hardest(view: View) -> Iterator[Section]:
    found = hardest(view, _MAX_HARDEST)
    is_deep = any(sqnr_db(row, "int8", "per_channel") is not None for row in found)
    grains = {"int8": "per_tensor", **({"by channel": "per_channel", "by 128": "group128"} if is_deep else {})}
    headings = (
        *names("Tensor"), *figures("Shape", min_width=ALL_COLUMNS_MIN_WIDTH), *figures(*grains),
        *figures("Outliers", "Kurtosis", min_width=ALL_COLUMNS_MIN_WIDTH), *figures("30 dB"),
    )  # fmt: skip
    rows = []
    for row in found:
        known = quantization_of(row)
        decibels = [format_decibels(sqnr_db(row, "int8", grain)) for grain in grains.values()]
        spread = format_percent(known.get("outlier_share")), format_value(row["kurtosis"])
        name, smallest = row["name"].removesuffix(".weight"), formats_text([known.get("smallest_30db")])
        rows.append((name, format_shape(row["shape"]), *decibels, *spread, smallest))
    name = "hardest-to-quantize-with-one-scale"
    yield from _section("Hardest to quantize with one scale per tensor", headings, rows, name=name)


def _structures(view: View) -> Iterator[Section]:
    """The shares that structured pruning could remove, if there was a deep pass."""
    headings = (
        *names("Tensor"), *figures("Shape", min_width=ALL_COLUMNS_MIN_WIDTH),
        *figures(*map(str.capitalize, STRUCTURES), "2:4 keeps"),
    )  # fmt: skip
    rows = []
    for row in easiest_to_prune(view, _MAX_HARDEST):
        shares = [format_percent(structured(row).get(name)) for name in STRUCTURES]
        kept = format_percent((row["pruning"] or {}).get("two_four_energy"))
        rows.append((row["name"].removesuffix(".weight"), format_shape(row["shape"]), *shares, kept))
    yield from _section("Structured pruning: what can be removed at 1 % relative error", headings, rows)


def _packings(view: View) -> Iterator[Section]:
    rows = []
    packed = grouped((row["packing"]["layout"], row) for row in view.weights if row.get("packing"))
    for layout, members in packed.items():
        used = [row["code_entropy_bits"] for row in members if row["code_entropy_bits"] is not None]
        ends = dict.fromkeys(format_value(end) for end in (min(used), max(used))) if used else {"-": None}
        values = format_count(sum(row["logical_elements"] or 0 for row in members))
        nbytes = format_bytes(sum(row["bytes"] for row in members))
        codes = f"{'–'.join(ends)} of {members[0]['packing']['bits']}"
        rows.append((layout, format_exact(len(members)), values, nbytes, codes))
    headings = (*names("Packed as"), *figures("Tensors", "Values", "Bytes", "Code bits used"))
    yield from _section("Packed weights", headings, rows)


def _outliers(view: View) -> Iterator[Section]:
    summary = summary_of(view)
    found = summary.get("outliers", []) if summary else []
    rows = []
    for row in found[:_MAX_LISTED]:
        values = format_value(row["value"]), format_value(row["median"]), format_value(row["score"])
        rows.append((row["name"], row["figure"].replace("_", " "), *values))
    headings = (*names("Tensor"), *texts("Figure"), *figures("Value", "Siblings' median", "Score"))
    yield from _section("Outliers among repeated layers", headings, rows, more(len(found) - _MAX_LISTED))


def _heat_map(found: HeatMap, page_width: int) -> Iterator[Section]:
    rows = found.rows[:_MAX_MAP_ROWS]
    labels = min(max(len(row.label) for row in rows), _MAX_MAP_LABEL)
    longest = max(len(format_value(value)) for row in rows for value in (row.median, row.largest))
    room = max(page_width - labels - 2 * max(longest, len("Largest")) - 6, 8)
    width = min(len(found.columns), room)
    times = 2 if 2 * width <= room else 1
    cells = []
    for row in rows:
        shown = narrow(row.cells, width, partial(most_deviating, middle=row.median))
        shades = "".join(shade(cell, row.median) * times for cell in shown)
        cells.append((row.label, shades, format_value(row.median), format_value(row.largest)))
    # The numbers of the first and the last layer head the columns.
    first, last = (".".join(map(str, column)) for column in (found.columns[0], found.columns[-1]))
    gap = width * times - len(first) - len(last)
    axis = f"{first}{' ' * gap}{last}" if gap > 0 else first.ljust(width * times)
    headings = (*names("Weight"), *figures(axis, "Median", "Largest"))
    together = -(-len(found.columns) // width)
    merged = f", up to {together} layers per column; the one that differs most is shown" if together > 1 else ""
    title = f"{found.figure.capitalize()} by layer, {found.stem}{merged}"
    yield from _section(title, headings, cells, (*more(len(found.rows) - len(rows), "weights"), LEGEND))


def _operations(view: View) -> Iterator[Section]:
    found = by_operation(view)
    rows = []
    for share in found[:_MAX_LISTED]:
        now = format_exact(share.calls), format_bytes(share.nbytes)
        after = format_percent(share.removable), share.smallest_30db, format_bytes(share.bytes_after)
        rows.append((share.op, share.module or THE_MODEL, *now, *after))
    headings = (*names("Op", "Module"), *figures("×", "Weights", "Prunable", "30 dB", "Bytes after"))
    yield from _section("Pruning and quantization by operation", headings, rows, more(len(found) - _MAX_LISTED))


def _stored(view: View, options: Options) -> Iterator[Section]:
    """The tensors of the files by name, type and role, and what differs from another checkpoint."""
    against = view.capture.statistics.against if view.capture.statistics else None
    if against is not None:
        yield Section(f"Against {against['path']}", tuple(_against(against)), Topic.CHANGES, name="against")
    if not options.tensors:
        return
    folders = by_folder(view)
    groups = (
        ("Tensors by name", "Folder", folders[:_MAX_FOLDERS], more(len(folders) - _MAX_FOLDERS, "folders")),
        ("By type", "Type", by_dtype(view), ()),
        ("By role", "Role", by_role(view), ()),
    )
    for title, first, shown, left_out in groups:
        rows = []
        for group in shown:
            size = format_exact(group.tensors), format_count(group.elements), format_bytes(group.nbytes)
            rows.append((group.name or "(top level)", *size, format_percent(group.share)))
        headings = (*names(first), *figures("Tensors", "Elements", "Bytes", "share"))
        yield from table_section(title, headings, rows, left_out, topic=Topic.LAYERS)
    pairs = tied(view)
    left_out = more(len(pairs) - _MAX_TIED)
    headings = names("Tensor", "shares storage with")
    yield from table_section("Shared tensors", headings, pairs[:_MAX_TIED], left_out, topic=Topic.LAYERS)


def _against(found: Against) -> Iterator[Block]:
    entries = {
        "added": [f"{row['name']}  {format_shape(row['shape'])}" for row in found["added"]],
        "removed": [f"{row['name']}  {format_shape(row['shape'])}" for row in found["removed"]],
        "reshaped": [f"{r['name']}  {format_shape(r['was'])} → {format_shape(r['shape'])}" for r in found["reshaped"]],
    }
    counts = [f"{format_exact(len(listed))} {state}" for state, listed in entries.items()]
    counts.append(f"{format_exact(len(found['retyped']))} retyped")
    yield Facts(
        (
            ("Identical", format_exact(found["identical"]), f"tensors, {format_bytes(found['identical_bytes'])}"),
            ("Changed", format_exact(len(found["changed"])), ", ".join(counts)),
        )
    )
    changed = found["changed"]
    if changed:
        rows = []
        for row in changed[:_MAX_CHANGED]:
            was = "" if row["dtype"] == row["was_dtype"] else f"{row['was_dtype']} → "
            rows.append((*drift_cells(row), format_value(row["max_abs_difference"]), f"{was}{row['dtype']}"))
        headings = (*names("Tensor"), *figures("relative L2", "cosine", "changed", "largest"), *texts("Type"))
        yield table(headings, rows, more(len(changed) - _MAX_CHANGED))
    for state, listed in entries.items():
        if listed:
            yield Text(state.capitalize())
            yield from notes(listed[:_MAX_NAMED])
            yield from (Text(text, is_remark=True) for text in more(len(listed) - _MAX_NAMED))


def drift_cells(row: Drift) -> tuple[str, ...]:
    """Name, relative L2, cosine and changed share of a tensor that differs."""
    cosine = "-" if row["cosine"] is None else f"{row['cosine']:.6f}"
    return row["name"], format_value(row["relative_l2"]), cosine, format_percent(row["changed_share"])


@dataclass(frozen=True, slots=True)
class Group:
    """Tensors that belong together; bytes that several names share count once."""

    name: str
    tensors: int
    elements: int
    nbytes: int
    share: float


def by_folder(view: View) -> list[Group]:
    """Repeated blocks count together: `layers.*.fc`. The largest first."""
    return _grouped(view, lambda tensor: path_pattern(tensor.name.rpartition(".")[0]))


def by_dtype(view: View) -> list[Group]:
    return _grouped(view, lambda tensor: tensor.spec.dtype)


def by_role(view: View) -> list[Group]:
    return _grouped(view, lambda tensor: tensor.role)


def tied(view: View) -> list[tuple[str, str]]:
    """The tensors that share the bytes of another, and whose."""
    tensors = view.capture.stored.tensors if view.capture.stored else ()
    return [(tensor.name, tensor.shared_with) for tensor in tensors if tensor.shared_with is not None]


def _grouped(view: View, key: Callable[[StoredTensor], str]) -> list[Group]:
    tensors = view.capture.stored.tensors if view.capture.stored else ()
    found, whole = [], view.totals.stored_bytes or 0
    for name, members in grouped((key(tensor), tensor) for tensor in tensors).items():
        unique = [tensor for tensor in members if tensor.shared_with is None]
        nbytes, elements = sum(tensor.nbytes for tensor in unique), sum(tensor.spec.numel for tensor in unique)
        found.append(Group(name, len(members), elements, nbytes, share_of(nbytes, whole)))
    return sorted(found, key=lambda group: -group.nbytes)
