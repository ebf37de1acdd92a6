"""The computation graph in the language of Graphviz: modules are clusters, data flow along the edges."""

from __future__ import annotations

from torchgauge.facts import View
from torchgauge.report.content.summary import model_kind
from torchgauge.report.graph.labels import LIGHT, Labels, color_of, wire_width
from torchgauge.report.graph.places import Runs, build_graph
from torchgauge.report.graph.scene import INPUT, MORE, OUTPUT, Item, build_scene, opening, walk
from torchgauge.report.options import Options
from torchgauge.report.registry import renderer
from torchgauge.units import visible

# A backslash or a quote would end or change the text; Graphviz also reads the entities of HTML in every label.
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "&": "&amp;", "<": "&lt;", ">": "&gt;"})
_DEFAULTS = """\
  graph [fontname="Helvetica", fontsize=11, labeljust=l, nodesep=0.3, ranksep=0.35, color="#c9ced5", style=rounded]
  node [fontname="Helvetica", fontsize=11, shape=box, style="rounded,filled", fillcolor=white, color="#9aa0a8", \
height=0.3, margin="0.12,0.05"]
  edge [fontname="Helvetica", fontsize=9, fontcolor="#626a75", color="#8b939d", arrowsize=0.7]"""


@renderer("dot", suffix=".dot", contents="the computation graph for Graphviz")
def render_dot(view: View, options: Options) -> str:
    graph = build_graph(view)
    runs = Runs(graph)
    scene = build_scene(graph, runs, opening(graph, runs, options.depth))
    labels = Labels(graph, runs)
    ids = {item: f"n{number}" for number, item in enumerate(walk(scene.root))}
    lines = [f"digraph {quoted(visible(model_kind(view)))} {{", _DEFAULTS]
    waiting: list[tuple[Item | None, str]] = [(item, "  ") for item in reversed(scene.root.inside or [scene.root])]
    while waiting:
        item, indent = waiting.pop()
        if item is None:
            lines.append(f"{indent}}}")
            continue
        label = labels.label(item)
        if item.inside:
            title = "  ".join(text for text in (label.title, label.detail) if text)
            lines.append(f"{indent}subgraph cluster_{ids[item]} {{")
            lines.append(f"{indent}  label={quoted(title)}; tooltip={quoted(label.path)}")
            # None: the line that ends the cluster, after its contents.
            waiting.append((None, indent))
            waiting += [(child, indent + "  ") for child in reversed(item.inside)]
            continue
        attributes = {"label": quoted(label.title, label.detail), "tooltip": quoted(label.path or label.title)}
        if shares := labels.shares(item):
            attributes["color"] = quoted(LIGHT[color_of(shares[0][0])])
        if item.kind in (INPUT, OUTPUT):
            attributes |= {"shape": "ellipse", "margin": '"0,0"'}
        if item.kind == MORE:
            attributes["style"] = "dashed"
        lines.append(f"{indent}{ids[item]} [{', '.join(f'{key}={value}' for key, value in attributes.items())}]")
    for edge in scene.edges:
        shape, tooltip = quoted(labels.shape(edge)), quoted(labels.flowing(edge))
        width = f"{wire_width(edge.nbytes):.1f}"
        lines.append(f"  {ids[edge.source]} -> {ids[edge.target]} [label={shape}, tooltip={tooltip}, penwidth={width}]")
    return "\n".join([*lines, "}"]) + "\n"


def quoted(*lines: str) -> str:
    """Lines of text as one string, in which every character shows as itself."""
    return '"' + "\\n".join(line.translate(_ESCAPES) for line in lines if line) + '"'
