"""The rows as torchstat prints them: a table, a row of totals, and the totals again in round figures."""

from __future__ import annotations

from collections.abc import Sequence

from torchgauge.compat.torchstat.stat_tree import StatNode

COLUMNS = (
    "module name", "input shape", "output shape", "params", "memory(MB)", "MAdd", "Flops", "MemRead(B)", "MemWrite(B)",
    "duration[%]", "MemR+W(B)",
)  # fmt: skip
PREFIXES = ("T", "G", "M", "K")


def report_format(collected_nodes: Sequence[StatNode]) -> str:
    if not collected_nodes:
        raise ValueError("no rows to report")
    total = StatNode()
    for name in ("parameter_quantity", "inference_memory", "MAdd", "Flops", "duration"):
        setattr(total, name, sum(getattr(node, name) for node in collected_nodes))
    total.Memory = (sum(node.Memory[0] for node in collected_nodes), sum(node.Memory[1] for node in collected_nodes))
    rows = [_cells(str(index), node, total) for index, node in enumerate(collected_nodes)]
    table = [["", *COLUMNS], *rows, _cells("total", total, total)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for first, *cells in table:
        aligned = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *aligned]))
    width = len(lines[0])
    footer = [
        "=" * width,
        f"Total params: {total.parameter_quantity:,}",
        "-" * width,
        f"Total memory: {total.inference_memory:.2f}MB",
        f"Total MAdd: {round_value(total.MAdd)}MAdd",
        f"Total Flops: {round_value(total.Flops)}Flops",
        f"Total MemR+W: {round_value(sum(total.Memory), binary=True)}B",
    ]
    return "\n".join([*lines, *footer, ""])


def round_value(value: int, binary: bool = False) -> str:
    """`190.58M`, `96.0M`; below one thousand the number itself."""
    base = 1024 if binary else 1000
    for power, prefix in zip((4, 3, 2, 1), PREFIXES, strict=True):
        if value >= base**power:
            return f"{round(value / base**power, 2)}{prefix}"
    return str(value)


def _cells(label: str, node: StatNode, total: StatNode) -> list[str]:
    read, written = node.Memory
    share = node.duration / total.duration if total.duration else 0.0
    return [
        label,
        node.name,
        _shape(node.input_shape),
        _shape(node.output_shape),
        str(node.parameter_quantity),
        f"{node.inference_memory:.2f}",
        f"{node.MAdd:,}",
        f"{node.Flops:,}",
        str(read),
        str(written),
        f"{share:.2%}",
        str(read + written),
    ]


def _shape(shape: tuple[int, ...]) -> str:
    return " ".join(f"{size:>3d}" for size in shape)
