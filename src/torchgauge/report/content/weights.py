"""The tensors of the files, and the values of the weights: totals, kinds, places, outliers, recommendations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchgauge.facts import StoredTensor, View
from torchgauge.facts.figures import Members
from torchgauge.facts.weights import quantization_of, removable
from torchgauge.report.layout import Heading
from torchgauge.report.model import (
    Block,
    Cell,
    Fact,
    Facts,
    Item,
    Listing,
    Section,
    Table,
    Text,
    Topic,
    figures,
    more,
    notes,
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
    narrowed,
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
    from torchgauge.facts.document_types import Against

# Rows shown of each table or list; the others are counted.
_MAX_PLACES, _MAX_LISTED, _MAX_HARDEST = 40, 10, 5
_MAX_FOLDERS, _MAX_TIED = 30, 10
_MAX_CHANGED, _MAX_NAMED = 25, 10
_MAX_MAPS, _MAX_MAP_ROWS, _MAX_MAP_LABEL = 2, 10, 28
# On a narrower page some columns are left out, so that names stay readable.
ALL_COLUMNS_MIN_WIDTH = 96
# A column: its title, the text of a row's cell, whether it can be left out.
Shown = tuple[str, Callable[[Any], str], bool]
SIBLINGS = "×: siblings, with their median std, largest |max| and worst int8; 30 dB: the smallest format that keeps it"
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
        yield _section("Parameters", Facts(parameters), *missing)
    summary = summary_of(view)
    if values := [*value_facts(view)]:
        yield _section("Values of the parameters", Facts(values))
    if kinds := kinds_section(view):
        yield kinds
    if options.detail:
        yield from _places(view)
        yield from _hardest(view)
        yield from _structures(view)
        yield from _packings(view)
    yield from _outliers(view)
    yield from (_heat_map(found, options.width) for found in heat_maps(view)[:_MAX_MAPS])
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


def _section(title: str, *blocks: Table | Facts | Text) -> Section:
    return Section(title, blocks, Topic.WEIGHTS, page_part="weights")


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
    return f"{format_bytes(nbytes)}{rate}, {depth}"


def _table(
    title: str, names: Sequence[str], rows: Sequence[Any], columns: Sequence[Shown], notes: tuple[str, ...] = ()
) -> Table:
    headings = [Heading(title, is_figure=False)]
    headings += [Heading(name, min_width=ALL_COLUMNS_MIN_WIDTH if is_spare else 0) for name, _, is_spare in columns]
    cells = zip(names, rows, strict=True)
    body = tuple((Cell(name=name), *(Cell(form(row)) for _, form, _ in columns)) for name, row in cells)
    return Table("", tuple(headings), body, notes)


def kinds_section(view: View) -> Section | None:
    summary = summary_of(view)
    kinds = summary.get("by_kind", []) if summary else []
    columns: list[Shown] = [
        ("Tensors", lambda kind: format_exact(kind["tensors"]), False),
        ("Bytes", lambda kind: format_bytes(kind["bytes"]), False),
        ("Mean", lambda kind: format_value(kind.get("mean")), True),
        ("Std", lambda kind: format_value(kind.get("std")), False),
        ("|Max|", lambda kind: format_value(kind.get("abs_max")), False),
        ("Zeros", lambda kind: format_percent(kind.get("sparsity")), False),
        ("Prunable", lambda kind: format_percent(removable(kind)), False),
        ("int8", lambda kind: format_decibels(sqnr_db(kind, "int8")), False),
    ]
    if not kinds:
        return None
    return _section("Values by kind of layer", _table("Kind", [kind["kind"] for kind in kinds], kinds, columns))


def _places(view: View) -> Iterator[Section]:
    found = places(view)
    columns: list[Shown] = [
        ("×", lambda place: format_exact(place.count), False),
        ("Bytes", lambda place: format_bytes(place.nbytes), False),
        ("Std", lambda place: format_value(place.std), False),
        ("|Max|", lambda place: format_value(place.abs_max), False),
        ("Zeros", lambda place: format_percent(place.sparsity), True),
        ("Prunable", lambda place: format_percent(place.removable), True),
        ("int8", lambda place: format_decibels(place.int8_db), False),
        ("30 dB", lambda place: place.smallest_30db, False),
    ]
    shown = found[:_MAX_PLACES]
    if shown:
        names = [place.pattern.removesuffix(".weight") for place in shown]
        table = _table("Tensor", names, shown, columns, (*more(len(found) - _MAX_PLACES, "places"), SIBLINGS))
        yield Section("Largest weights", (table,), Topic.WEIGHTS, page_part="weights", name="weights")


def _hardest(view: View) -> Iterator[Section]:
    rows = hardest(view, _MAX_HARDEST)
    columns: list[Shown] = [
        ("Shape", lambda row: format_shape(row["shape"]), True),
        ("int8", lambda row: format_decibels(sqnr_db(row, "int8")), False),
        ("by channel", lambda row: format_decibels(sqnr_db(row, "int8", "per_channel")), False),
        ("by 128", lambda row: format_decibels(sqnr_db(row, "int8", "group128")), False),
        ("Outliers", lambda row: format_percent(quantization_of(row).get("outlier_share")), True),
        ("Kurtosis", lambda row: format_value(row["kurtosis"]), True),
        ("30 dB", lambda row: formats_text([quantization_of(row).get("smallest_30db")]), False),
    ]
    if not any(sqnr_db(row, "int8", "per_channel") is not None for row in rows):  # no deep pass
        columns = [column for column in columns if not column[0].startswith("by ")]
    if rows:
        names = [row["name"].removesuffix(".weight") for row in rows]
        yield _section("Hardest to quantize, with one scale", _table("Tensor", names, rows, columns))


def _structures(view: View) -> Iterator[Section]:
    """The shares that structured pruning could remove, if there was a deep pass."""
    rows = easiest_to_prune(view, _MAX_HARDEST)
    columns: list[Shown] = [
        ("Shape", lambda row: format_shape(row["shape"]), True),
        *(
            (name.capitalize(), lambda row, name=name: format_percent(structured(row).get(name)), False)
            for name in STRUCTURES
        ),
        ("2:4 keeps", lambda row: format_percent((row["pruning"] or {}).get("two_four_energy")), False),
    ]
    if rows:
        names = [row["name"].removesuffix(".weight") for row in rows]
        title = "Structured pruning: what can be removed at 1 % relative error"
        yield _section(title, _table("Tensor", names, rows, columns))


def _packings(view: View) -> Iterator[Section]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in view.weights:
        if row.get("packing"):
            groups.setdefault(row["packing"]["layout"], []).append(row)
    rows = []
    for layout, members in groups.items():
        used = [row["code_entropy_bits"] for row in members if row["code_entropy_bits"] is not None]
        ends = dict.fromkeys(format_value(end) for end in (min(used), max(used))) if used else {"-": None}
        rows.append(
            (
                Cell(name=layout),
                Cell(format_exact(len(members))),
                Cell(format_count(sum(row["logical_elements"] or 0 for row in members))),
                Cell(format_bytes(sum(row["bytes"] for row in members))),
                Cell(f"{'–'.join(ends)} of {members[0]['packing']['bits']}"),
            )
        )
    if rows:
        headings = (*texts("Packed as"), *figures("Tensors", "Values", "Bytes", "Code bits used"))
        yield _section("Packed weights", Table("", headings, tuple(rows)))


def _outliers(view: View) -> Iterator[Section]:
    summary = summary_of(view)
    found = summary.get("outliers", []) if summary else []
    rows = tuple(
        (
            Cell(name=row["name"]),
            Cell(row["figure"].replace("_", " ")),
            Cell(format_value(row["value"])),
            Cell(format_value(row["median"])),
            Cell(format_value(row["score"])),
        )
        for row in found[:_MAX_LISTED]
    )
    if rows:
        headings = (*texts("Tensor", "Figure"), *figures("Value", "Siblings' median", "Score"))
        yield _section("Outliers among repeated layers", Table("", headings, rows, more(len(found) - _MAX_LISTED)))


def _heat_map(found: HeatMap, page_width: int) -> Section:
    rows = found.rows[:_MAX_MAP_ROWS]
    labels = min(max(len(row.label) for row in rows), _MAX_MAP_LABEL)
    longest = max(len(format_value(value)) for row in rows for value in (row.median, row.largest))
    room = max(page_width - labels - 2 * max(longest, len("Largest")) - 6, 8)
    width = min(len(found.columns), room)
    times = 2 if 2 * width <= room else 1
    cells = []
    for row in rows:
        shades = "".join(shade(cell, row.median) * times for cell in narrowed(row.cells, row.median, width))
        cells.append(
            (Cell(name=row.label), Cell(shades), Cell(format_value(row.median)), Cell(format_value(row.largest)))
        )
    # The numbers of the first and the last layer head the columns.
    first, last = (".".join(map(str, column)) for column in (found.columns[0], found.columns[-1]))
    gap = width * times - len(first) - len(last)
    axis = f"{first}{' ' * gap}{last}" if gap > 0 else first.ljust(width * times)
    headings = (*texts("Weight"), *figures(axis, "Median", "Largest"))
    together = -(-len(found.columns) // width)
    merged = f", up to {together} layers per column; the one that differs most is shown" if together > 1 else ""
    title = f"{found.figure.capitalize()} by layer, {found.stem}{merged}"
    return _section(title, Table("", headings, tuple(cells), (*more(len(found.rows) - len(rows), "weights"), LEGEND)))


def _operations(view: View) -> Iterator[Section]:
    found = by_operation(view)
    rows = tuple(
        (
            Cell(name=share.op),
            Cell(name=share.module or THE_MODEL),
            Cell(format_exact(share.calls)),
            Cell(format_bytes(share.nbytes)),
            Cell(format_percent(share.removable)),
            Cell(share.smallest_30db),
            Cell(format_bytes(share.bytes_after)),
        )
        for share in found[:_MAX_LISTED]
    )
    if rows:
        headings = (*texts("Op", "Module"), *figures("×", "Weights", "Prunable", "30 dB", "Bytes after"))
        table = Table("", headings, rows, more(len(found) - _MAX_LISTED))
        yield _section("Pruning and quantization by operation", table)


def _stored(view: View, options: Options) -> Iterator[Section]:
    """The tensors of the files by name, type and role, and what differs from another checkpoint."""
    against = view.capture.statistics.against if view.capture.statistics else None
    if against is not None:
        yield Section(f"Against {against['path']}", tuple(_against(against)), Topic.CHANGES, name="against")
    if not options.tensors:
        return
    groups = (
        (
            "Tensors by name",
            "Folder",
            by_folder(view)[:_MAX_FOLDERS],
            more(len(by_folder(view)) - _MAX_FOLDERS, "folders"),
        ),
        ("By type", "Type", by_dtype(view), ()),
        ("By role", "Role", by_role(view), ()),
    )
    for title, first, shown, left_out in groups:
        rows = tuple(
            (
                Cell(name=group.name or "(top level)"),
                Cell(format_exact(group.tensors)),
                Cell(format_count(group.elements)),
                Cell(format_bytes(group.nbytes)),
                Cell(format_percent(group.share)),
            )
            for group in shown
        )
        if rows:
            table = Table("", (*texts(first), *figures("Tensors", "Elements", "Bytes", "share")), rows, left_out)
            yield Section(title, (table,), Topic.LAYERS)
    pairs = tied(view)
    if pairs:
        shared = tuple((Cell(name=name), Cell(name=original)) for name, original in pairs[:_MAX_TIED])
        table = Table("", texts("Tensor", "shares storage with"), shared, more(len(pairs) - _MAX_TIED))
        yield Section("Shared tensors", (table,), Topic.LAYERS)


def _against(found: Against) -> Iterator[Block]:
    entries = {
        "added": [f"{row['name']}  {format_shape(row['shape'])}" for row in found["added"]],
        "removed": [f"{row['name']}  {format_shape(row['shape'])}" for row in found["removed"]],
        "reshaped": [f"{r['name']}  {format_shape(r['was'])} → {format_shape(r['shape'])}" for r in found["reshaped"]],
    }
    counts = [f"{format_exact(len(names))} {state}" for state, names in entries.items()]
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
            rows.append(
                (
                    Cell(name=row["name"]),
                    Cell(format_value(row["relative_l2"])),
                    Cell("-" if row["cosine"] is None else f"{row['cosine']:.6f}"),
                    Cell(format_percent(row["changed_share"])),
                    Cell(format_value(row["max_abs_difference"])),
                    Cell(f"{was}{row['dtype']}"),
                )
            )
        headings = (*texts("Tensor"), *figures("relative L2", "cosine", "changed", "largest"), *texts("Type"))
        yield Table("", headings, tuple(rows), more(len(changed) - _MAX_CHANGED))
    for state, names in entries.items():
        if names:
            yield Text(state.capitalize())
            yield from notes(names[:_MAX_NAMED])
            yield from (Text(text, is_remark=True) for text in more(len(names) - _MAX_NAMED))


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
    groups: dict[str, list[StoredTensor]] = {}
    for tensor in view.capture.stored.tensors if view.capture.stored else ():
        groups.setdefault(key(tensor), []).append(tensor)
    found, whole = [], view.totals.stored_bytes or 0
    for name, members in groups.items():
        unique = [tensor for tensor in members if tensor.shared_with is None]
        nbytes, elements = sum(tensor.nbytes for tensor in unique), sum(tensor.spec.numel for tensor in unique)
        found.append(Group(name, len(members), elements, nbytes, share_of(nbytes, whole)))
    return sorted(found, key=lambda group: -group.nbytes)
