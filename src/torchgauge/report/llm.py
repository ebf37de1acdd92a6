"""The report of `llm`: what the model is, its cache, the costs of prefill and decode, what fits and how fast it is."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torchgauge.report.escape import visible
from torchgauge.report.layout import Heading, Line, Span, lay_out, plain, wrap
from torchgauge.report.options import PLAIN_WIDTH
from torchgauge.report.registry import LLM, find_format
from torchgauge.report.saving import write_whole
from torchgauge.units import format_bytes, format_count, format_joules, format_percent, format_seconds

_VERDICTS = {"fits": "✓", "too close": "?", "does not fit": "✗"}


class Table(NamedTuple):
    """Cells are text already; `note` stands below."""

    title: str
    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str = ""


def facts_of(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the model is, as pairs of a name and a text."""
    one = document["llm"]
    model = one["model"]
    active = model["active_params"]
    params = format_count(model["params"])
    if active < model["params"]:
        params += f", {format_count(active)} active per token ({format_percent(active / model['params'])})"
    weights = f"{format_bytes(model['weights_bytes'])}, {model['bits_per_weight']:.4g} bits per weight"
    if one["weights_dtype"]:
        weights = f"{format_bytes(model['weights_bytes'])} with matrices of layers in {one['weights_dtype']}"
    head = "tied to the embedding" if model["tied"] else format_count(model["head_params"])
    counts = ", ".join(f"{count} × {visible(kind)}" for kind, count in model["layer_counts"].items())
    limit = f"{model['context_limit']:,} tokens" if model["context_limit"] else "no limit in the config"
    found = [
        ("parameters", params),
        ("weights", weights),
        ("layers", counts),
        ("embedding, head", f"{format_count(model['embedding_params'])}, {head}"),
        ("vocabulary", f"{model['vocabulary']:,}" if model["vocabulary"] else "not found"),
        ("context", f"{limit}; positions: {model['positions']}"),
    ]
    if model["not_run"]:
        parts = ", ".join(f"{visible(row['path'])} ({format_count(row['params'])})" for row in model["not_run"][:4])
        found.append(("not run on text", parts))
    return found


def tables_of(document: Mapping[str, Any]) -> Iterator[Table]:
    one = document["llm"]
    cache_type = f" in {one['cache_dtype']}" if one["cache_dtype"] else ""
    yield Table(
        f"Cache of one sequence{cache_type}",
        ("tokens", "bytes", "per token", f"in pages of {one['page_size']}"),
        [
            (f"{row['tokens']:,}", format_bytes(row["bytes"]), format_bytes(row["bytes_per_token"]),
             format_bytes(row["paged_bytes"]))
            for row in one["cache"]
        ],
        _layer_note(one["model"]["layers"]),
    )  # fmt: skip
    yield Table(
        "Prefill, one sequence",
        ("tokens", "FLOPs", "FLOPs per token", "bytes read", "bytes written", "FLOPs per byte"),
        [
            (f"{row['tokens']:,}", format_count(row["flops"]), format_count(row["flops"] / row["tokens"]),
             format_bytes(row["bytes_read"]), format_bytes(row["bytes_written"]), f"{row['arithmetic_intensity']:.3g}")
            for row in one["prefill"]
        ],
        "output for the last token alone, as generation makes it",
    )  # fmt: skip
    yield Table(
        "Decode, one token for each sequence",
        ("context", "sequences", "FLOPs per token", "bytes read", "of it weights", "of it cache", "FLOPs per byte"),
        [
            (f"{row['tokens']:,}", f"{row['batch']:,}", format_count(row["flops"] / row["batch"]),
             format_bytes(row["bytes_read"]), format_bytes(row["weight_bytes"]), format_bytes(row["cache_bytes"]),
             f"{row['arithmetic_intensity']:.3g}")
            for row in one["decode"]
        ],
    )  # fmt: skip
    if one["speed"]:
        yield Table(
            "Time",
            ("device", "pass", "sequences", "time", "90 % interval", "tokens/s", "bound", "J per token"),
            [
                (row["device"], f"{row['kind']} {row['tokens']:,}", f"{row['batch']:,}", format_seconds(row["time_s"]),
                 f"{format_seconds(row['low_s'])} to {format_seconds(row['high_s'])}",
                 format_count(row["tokens_per_s"]), row["bound"] or "",
                 format_joules(row["joules_per_token"]))
                for row in one["speed"]
            ],
        )  # fmt: skip
    for device in dict.fromkeys(row["device"] for row in one["fits"]):
        yield _matrix(device, [row for row in one["fits"] if row["device"] == device])


def _layer_note(layers: Sequence[Mapping[str, Any]]) -> str:
    fixed = sum(row["cache_fixed_bytes"] for row in layers)
    windows = sorted({row["window"] for row in layers if row.get("window")})
    parts = [f"{format_bytes(fixed)} of it whatever the length"] if fixed else []
    parts += [f"windows of {', '.join(map(str, windows))} tokens stop growing when they are full"] if windows else []
    return "; ".join(parts)


def _matrix(device: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    counts = list(dict.fromkeys(row["concurrent"] for row in rows))
    contexts = list(dict.fromkeys(row["context"] for row in rows))
    cells = {(row["context"], row["concurrent"]): row for row in rows}
    lines = []
    for context in contexts:
        texts = []
        for count in counts:
            row = cells[context, count]
            many = row["fewest_devices"]
            more = f" ({many} devices)" if row["verdict"] == "does not fit" and many else ""
            texts.append(f"{_VERDICTS[row['verdict']]} {format_bytes(row['used_bytes'])}{more}")
        lines.append((f"{context:,}", *texts))
    capacity = format_bytes(rows[0]["capacity_bytes"])
    return Table(
        f"What fits on {device} ({capacity})",
        ("context", *(f"{count:,} sequence{'s' if count > 1 else ''}" for count in counts)),
        lines,
        "✓ fits  ? too close to call  ✗ does not; in brackets: devices with tensor parallelism, a lower bound",
    )


def llm_report(document: Mapping[str, Any], width: int) -> list[Line]:
    lines: list[Line] = [
        (Span(visible(f"{document['llm']['target']}: {document['llm']['model']['type']}"), "heading"),)
    ]
    for name, text in facts_of(document):
        lines += wrap(text, width, lead=(Span(f"  {name:16} "),))
    for table in tables_of(document):
        headings = [Heading(title) for title in table.headings]
        rows = [[(Span(cell),) for cell in row] for row in table.rows]
        lines += [(Span(""),), (Span(table.title, "heading"),)]
        lines += [(Span("  "), *line) for line in lay_out(headings, rows, width - 2)]
        if table.note:
            lines += wrap(table.note, width, lead=(Span("  "),))
    for warning in document["llm"]["warnings"]:
        lines += wrap(visible(warning), width, lead=(Span("  note: "),))
    return lines


def save_llm(document: Mapping[str, Any], path: str) -> None:
    write_whole(Path(path), render_llm(document, path))


def render_llm(document: Mapping[str, Any], path: str) -> str:
    """In the format that the name of the file asks for."""
    return _RENDERERS[find_format(path, LLM).name](document)


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _text(document: Mapping[str, Any]) -> str:
    return plain(llm_report(document, PLAIN_WIDTH))


_COLUMNS = ("kind", "tokens", "batch", "macs", "flops", "bytes_read", "bytes_written", "weight_bytes", "cache_bytes",
            "peak_bytes", "arithmetic_intensity", "device", "time_s", "low_s", "high_s", "tokens_per_s", "energy_j",
            "bound")  # fmt: skip


def _csv(document: Mapping[str, Any]) -> str:
    """A row for each pass."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    one = document["llm"]
    for row in (*one["prefill"], *one["decode"], *one["speed"]):
        writer.writerow(["" if row[name] is None else row[name] for name in _COLUMNS])
    return out.getvalue()


def _markdown(document: Mapping[str, Any]) -> str:
    lines = [f"## {_cell(document['llm']['target'])}", ""]
    lines += [f"- **{name}**: {_cell(text)}" for name, text in facts_of(document)]
    for table in tables_of(document):
        lines += ["", f"### {table.title}", "", "| " + " | ".join(table.headings) + " |"]
        lines.append("|" + "---:|" * len(table.headings))
        lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in table.rows]
        lines += ["", table.note] if table.note else []
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return visible(text).replace("|", "\\|")


def _latex(document: Mapping[str, Any]) -> str:
    from torchgauge.report.formats.latex import prose as tex

    lines = ["% needs \\usepackage{booktabs}"]
    for table in tables_of(document):
        lines += ["\\begin{table}", "\\centering", f"\\caption{{{tex(table.title)}}}"]
        lines += [f"\\begin{{tabular}}{{{'r' * len(table.headings)}}}", "\\toprule"]
        lines.append(" & ".join(map(tex, table.headings)) + " \\\\")
        lines.append("\\midrule")
        lines += [" & ".join(tex(_spelled(cell)) for cell in row) + " \\\\" for row in table.rows]
        lines += ["\\bottomrule", "\\end{tabular}", "\\end{table}", ""]
    return "\n".join(lines)


def _spelled(cell: str) -> str:
    for verdict, mark in _VERDICTS.items():
        cell = cell.replace(mark, f"{verdict}:")
    return cell


_RENDERERS = {"json": _json, "text": _text, "csv": _csv, "md": _markdown, "tex": _latex}
