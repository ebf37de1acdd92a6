"""TorchScript archives: scanned before torch reads them, because reading one may run its code."""

from torchgauge.source.torchscript.archive import load_torchscript
from torchgauge.source.torchscript.nodes import GraphNode, graph_nodes

__all__ = ["GraphNode", "graph_nodes", "load_torchscript"]
