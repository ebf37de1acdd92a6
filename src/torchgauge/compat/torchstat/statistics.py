"""A model's rows at a granularity, and the report of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from torchgauge.compat.torchstat.model_hook import LeafStat, ModelHook, check_request
from torchgauge.compat.torchstat.reporter import report_format
from torchgauge.compat.torchstat.stat_tree import StatNode, StatTree


class ModelStat:
    def __init__(self, model: nn.Module, input_size: Sequence[int], query_granularity: int = 1) -> None:
        check_request(model, input_size)
        self._model = model
        self._input_size = input_size
        self._query_granularity = query_granularity

    # Private in torchstat too, but the way scripts get at the rows.
    def _analyze_model(self) -> list[StatNode]:
        tree = build_stat_tree(ModelHook(self._model, self._input_size).stats)
        nodes = tree.get_collected_stat_nodes(self._query_granularity)
        if not nodes:
            highest = tree.root_node.depth
            raise ValueError(f"no module is {self._query_granularity} levels high: query_granularity is 1 to {highest}")
        return nodes

    def show_report(self) -> None:
        print(report_format(self._analyze_model()))


def stat(model: nn.Module, input_size: Sequence[int], query_granularity: int = 1) -> None:
    """Print the table of a model's layers; `input_size` is one sample, such as (3, 224, 224)."""
    ModelStat(model, input_size, query_granularity).show_report()


def build_stat_tree(stats: Mapping[str, LeafStat]) -> StatTree:
    root = StatNode("root")
    nodes: dict[str, StatNode] = {}
    for name, leaf in stats.items():
        node = root
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            path = ".".join(parts[:length])
            if path not in nodes:
                nodes[path] = StatNode(path, parent=node)
                node.children.append(nodes[path])
            node = nodes[path]
        node.input_shape = leaf.input_shape
        node.output_shape = leaf.output_shape
        node.parameter_quantity = leaf.parameter_quantity
        node.inference_memory = leaf.inference_memory
        node.MAdd = leaf.madd
        node.Flops = leaf.flops
        node.Memory = leaf.memory_bytes
        node.duration = leaf.duration
    return StatTree(root)
