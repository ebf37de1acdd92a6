"""A tree drawn as an SVG: leaves side by side, every node above the middle of its children."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from torchgauge.compat.torch_profiling_utils.model_tree import ModelNode

LETTER_PX, FONT_PX, PADDING_PX, ROW_PX, BOX_PX = 8, 13, 12, 80, 32


def tree_svg(root: ModelNode) -> str:
    centres: dict[str, tuple[float, float]] = {}
    width = _place(root, 0.0, 0, centres)
    height = max(y for _, y in centres.values()) + ROW_PX
    body = "\n".join(_shapes(root, centres))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'font-family="sans-serif" font-size="{FONT_PX}" text-anchor="middle">\n{body}\n</svg>\n'
    )


def _place(node: ModelNode, left: float, depth: int, centres: dict[str, tuple[float, float]]) -> float:
    """Put a node and all below it to the right of `left`; returns the width they take."""
    own = _box_width(node) + PADDING_PX
    below = 0.0
    for child in node.children:
        below += _place(child, left + below, depth + 1, centres)
    width = max(own, below)
    centres[node.path] = (left + (below or own) / 2, ROW_PX / 2 + depth * ROW_PX)
    return width


def _box_width(node: ModelNode) -> int:
    return max(len(node.name) * LETTER_PX + 2 * PADDING_PX, 2 * BOX_PX)


def _shapes(root: ModelNode, centres: dict[str, tuple[float, float]]) -> Iterator[str]:
    for node in root.walk():
        x, y = centres[node.path]
        for child in node.children:
            cx, cy = centres[child.path]
            yield f'<line x1="{x:.1f}" y1="{y + BOX_PX / 2}" x2="{cx:.1f}" y2="{cy - BOX_PX / 2}" stroke="black"/>'
        yield (
            f'<ellipse cx="{x:.1f}" cy="{y}" rx="{_box_width(node) / 2}" ry="{BOX_PX / 2}" fill="none" stroke="black"/>'
        )
        yield f'<text x="{x:.1f}" y="{y + FONT_PX / 3:.1f}">{escape(node.name)}</text>'
