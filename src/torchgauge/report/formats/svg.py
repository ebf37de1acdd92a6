"""The computation graph as one SVG file: laid out here, without scripts, in the colours of the reader's theme."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from torchgauge.facts import View
from torchgauge.report.content.summary import model_kind
from torchgauge.report.escape import html_text
from torchgauge.report.graph.labels import DARK, LIGHT, Labels, color_of, wire_width
from torchgauge.report.graph.placement import HEADER, Box, Wire, place_scene
from torchgauge.report.graph.places import Runs, build_graph
from torchgauge.report.graph.scene import INPUT, MORE, OUTPUT, PLACE, STEP, Item, build_scene, opening
from torchgauge.report.layout import cell_width
from torchgauge.report.options import Options
from torchgauge.report.registry import renderer

_TITLE_CHAR, _DETAIL_CHAR = 7.3, 6.1
_STRIP, _ARROW = 4.0, 7.0
# A wire that turns by less leaves room for a text next to it.
_MAX_TEXT_TURN = 12.0
_LIGHT, _DARK = ("".join(f"--{name}:{color};" for name, color in theme.items()) for theme in (LIGHT, DARK))
_STYLE = (
    f"svg{{{_LIGHT}}}@media screen and (prefers-color-scheme:dark){{svg{{{_DARK}}}}}"
    ".paper{fill:var(--paper)}.frame{fill:var(--panel);stroke:var(--line)}"
    ".node{fill:var(--paper);stroke:var(--line)}.end{fill:none;stroke:var(--faint)}"
    ".more{fill:none;stroke:var(--faint);stroke-dasharray:3 3}"
    ".wire{fill:none;stroke:var(--wire)}.back{stroke-dasharray:5 4}.head{fill:var(--wire)}"
    "text{fill:var(--ink);font-size:12px}.detail,.shape{fill:var(--faint);font-size:10.5px}"
    ".shape,.heading{paint-order:stroke;stroke:var(--paper);stroke-width:4px;stroke-linejoin:round}"
    ".inside .shape,.heading{stroke:var(--panel)}"
    + "".join(f".c{number}{{fill:var(--c{number})}}" for number in range(10))
)
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', sans-serif"


@renderer("svg", suffix=".svg", contents="the computation graph as a picture")
def render_svg(view: View, options: Options) -> str:
    graph = build_graph(view)
    runs = Runs(graph)
    scene = build_scene(graph, runs, opening(graph, runs, options.depth))
    labels = Labels(graph, runs)

    def extent(item: Item) -> tuple[float, float]:
        label = labels.label(item)
        title, detail = cell_width(label.title) * _TITLE_CHAR, cell_width(label.detail) * _DETAIL_CHAR
        if item.inside:
            return title + detail + 10, HEADER
        return max(max(title, detail) + 24 + _STRIP, 72), 40 if label.detail else 26

    area = place_scene(scene, extent)
    size = f'width="{area.width:.0f}" height="{area.height:.0f}" viewBox="0 0 {area.width:.0f} {area.height:.0f}"'
    flow = "" if graph.flow.is_known else ": modules and ops; data flow was not recorded"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title" font-family="{_FONT}">',
        f'<title id="title">{html_text(model_kind(view))}, computation graph{flow}</title>',
        f"<style>{_STYLE}</style>",
        '<rect class="paper" width="100%" height="100%"/>',
    ]
    frames = [box for box in area.boxes if box.item.inside and box.item.around is not None]
    for box in frames:
        path = escape(labels.label(box.item).path)
        lines.append(f'<rect class="frame" {_place(box)} rx="6"><title>{path}</title></rect>')
    lines += [line for wire in area.wires for line in _wire(wire, labels)]
    lines += _shapes(area.wires, labels)
    lines += [line for box in area.boxes if not box.item.inside for line in _node(box, labels)]
    for box in frames:
        # The name on the left, the cost on the right: data enter between the two.
        label, y = labels.label(box.item), f"{box.y + 17:.1f}"
        kind = f'<tspan class="detail" dx="7">{escape(label.kind)}</tspan>' if label.kind else ""
        lines.append(f'<text class="heading" x="{box.x + 10:.1f}" y="{y}">{escape(label.title)}{kind}</text>')
        if label.cost:
            at = f'x="{box.x + box.width - 10:.1f}" y="{y}" text-anchor="end"'
            lines.append(f'<text class="heading detail" {at}>{escape(label.cost)}</text>')
    return "\n".join([*lines, "</svg>\n"])


def _node(box: Box, labels: Labels) -> Iterator[str]:
    label, item = labels.label(box.item), box.item
    radius = box.height / 2 if item.kind in (INPUT, OUTPUT) else 4
    kind = {MORE: "more", INPUT: "end", OUTPUT: "end"}.get(item.kind, "node")
    yield f'<g><rect class="{kind}" {_place(box)} rx="{radius:g}"/>'
    if label.path:
        yield f"<title>{escape(label.path)}</title>"
    if item.kind in (PLACE, STEP):
        # A strip with the kinds of work inside, by their share.
        y = box.y + 3
        for category, share in labels.shares(box.item):
            height = share * (box.height - 6)
            size = f'x="{box.x + 4:.1f}" y="{y:.1f}" width="{_STRIP:g}" height="{height:.1f}"'
            yield f'<rect class="{color_of(category)}" {size}><title>{category}</title></rect>'
            y += height
    middle = box.x + box.width / 2 + (_STRIP / 2 if item.kind in (PLACE, STEP) else 0)
    top = box.y + (17 if label.detail else box.height / 2 + 4)
    yield f'<text x="{middle:.1f}" y="{top:.1f}" text-anchor="middle">{escape(label.title)}</text>'
    if label.detail:
        detail = f'x="{middle:.1f}" y="{box.y + 32:.1f}" text-anchor="middle"'
        yield f'<text class="detail" {detail}>{escape(label.detail)}</text>'
    yield "</g>"


def _wire(wire: Wire, labels: Labels) -> Iterator[str]:
    """Straight down, and bent where it changes the column."""
    points, (end_x, end_y) = list(wire.points), wire.points[-1]
    if wire.arrives:
        # A wide line would show on both sides of the tip of its arrow.
        points[-1] = (end_x, end_y + _ARROW - 1 if wire.goes_back else end_y - _ARROW + 1)
    (x, y), *rest = points
    parts = [f"M{x:.1f},{y:.1f}"]
    for to_x, to_y in rest:
        middle = (y + to_y) / 2
        straight = abs(to_x - x) < 0.5
        curve = f"C{x:.1f},{middle:.1f} {to_x:.1f},{middle:.1f} {to_x:.1f},{to_y:.1f}"
        parts.append(f"V{to_y:.1f}" if straight else curve)
        x, y = (x if straight else to_x), to_y
    kind = "wire back" if wire.goes_back else "wire"
    path = f'<path class="{kind}" d="{"".join(parts)}" stroke-width="{wire_width(wire.nbytes):.1f}">'
    yield f"{path}<title>{escape(labels.flowing(wire.edges[0]))}</title></path>"
    if wire.arrives:
        base = end_y + _ARROW if wire.goes_back else end_y - _ARROW
        yield f'<path class="head" d="M{end_x - 4.5:.1f},{base:.1f}H{end_x + 4.5:.1f}L{end_x:.1f},{end_y:.1f}Z"/>'


def _shapes(wires: list[Wire], labels: Labels) -> Iterator[str]:
    """The shape of an item's result, written once, where it first leaves."""
    leaving: dict[Item, list[Wire]] = {}
    arriving: dict[tuple[float, float], list[float]] = {}
    for wire in wires:
        arriving.setdefault(wire.points[-1], []).append(wire.points[0][0])
        if wire.leaves and not wire.goes_back:
            leaving.setdefault(wire.edges[0].source, []).append(wire)
    written: dict[float, float] = {}  # by height, up to where
    places = [(*own[0].points[0], labels.made(source), own) for source, own in leaving.items()]
    for x, y, shape, own in sorted(places, key=lambda place: place[:2]):
        width = cell_width(shape) * _DETAIL_CHAR
        # The text goes on the left if these wires, and others with the same end, pass on the right only.
        ends = {wire.points[-1] for wire in own}
        aside = [other - x for end in ends for other in (end[0], *arriving[end])]
        is_left = max(aside) > 0.5 and min(aside) > -_MAX_TEXT_TURN and x - 7 - width > written.get(y, 0.0)
        written[y] = x if is_left else x + 7 + width
        at = f'x="{x - 7:.1f}" y="{y + 14:.1f}" text-anchor="end"' if is_left else f'x="{x + 7:.1f}" y="{y + 14:.1f}"'
        if shape:
            yield f'<text class="shape" {at}>{escape(shape)}</text>'


def _place(box: Box) -> str:
    return f'x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"'
