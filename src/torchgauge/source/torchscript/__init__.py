"""TorchScript archives: scanned before torch reads them, because reading one may run its code."""

from typing import TYPE_CHECKING

from torchgauge.lazy import lazy_names

if TYPE_CHECKING:
    from torchgauge.source.torchscript.archive import load_torchscript
    from torchgauge.source.torchscript.nodes import GraphNode, graph_nodes

__all__ = ["GraphNode", "graph_nodes", "load_torchscript"]

__getattr__ = lazy_names(__name__, {"archive": ("load_torchscript",), "nodes": ("GraphNode", "graph_nodes")})
