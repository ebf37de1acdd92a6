"""Exported programs of a few kilobytes: a small one is exported, then its JSON is changed."""

from __future__ import annotations

import copy
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.bombs.running import Bomb

BOMBS: dict[str, Bomb] = {}
Change = Callable[[dict[str, Any]], Any]


class Plain(nn.Module):
    numbers: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("numbers", torch.arange(64))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.numbers.clone().sum()


class Loops(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        count = torch.zeros((), dtype=torch.int64)
        return torch.while_loop(lambda n, x: n < 5, lambda n, x: (n + 1, x * 2), (count, x))[1]


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


class Splits(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        first, *_ = torch.zeros(8).split(2)
        return x + first.sum()


def exported(model: nn.Module, folder: Path, changes: dict[str, Change]) -> list[str]:
    """The archive with the JSON records that end so changed."""
    torch.export.save(torch.export.export(model, (torch.zeros(1, 4),)), folder / "plain.pt2")
    target = folder / "model.pt2"
    with zipfile.ZipFile(folder / "plain.pt2") as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            for suffix, change in changes.items():
                if name.endswith(suffix):
                    document = json.loads(content)
                    document = change(document) or document
                    content = json.dumps(document).encode()
            new.writestr(name, content)
    return [str(target), "--no-progress"]


def bomb(model: type[nn.Module], **changes: Change) -> Callable[[Change], Change]:
    def register(change: Change) -> Change:
        named = {suffix.replace("_json", ".json"): function for suffix, function in changes.items()}
        BOMBS[change.__name__] = lambda folder: exported(model(), folder, {"models/model.json": change} | named)
        return change

    return register


def nodes_of(document: dict[str, Any], target: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    waiting: list[Any] = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if value.get("target") == target:
                found.append(value)
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
    return found


@bomb(Loops)
def an_endless_loop(document: dict[str, Any]) -> None:
    for node in nodes_of(document, "torch.ops.aten.lt.Scalar"):
        node["inputs"][1]["arg"] = {"as_int": 1 << 60}


@bomb(Loops)
def an_endless_loop_without_ops(document: dict[str, Any]) -> None:
    """The body gives back what it was given."""
    for node in nodes_of(document, "torch.ops.higher_order.while_loop"):
        graphs = [entry["arg"]["as_graph"]["graph"] for entry in node["inputs"] if "as_graph" in entry["arg"]]
        graphs[1]["nodes"] = []
        graphs[1]["outputs"] = copy.deepcopy(graphs[1]["inputs"][:2])


@bomb(Branches)
def branches_in_branches(document: dict[str, Any]) -> None:
    """Which one is taken depends on data, so the one for true is priced, and run: inside it twice that, and so on."""
    (node,) = nodes_of(document, "torch.ops.higher_order.cond")
    (total,), (flag,) = (nodes_of(document, f"torch.ops.aten.{op}") for op in ("sum.default", "gt.Scalar"))
    inner = copy.deepcopy(node)
    for _ in range(30):
        outer = copy.deepcopy(node)
        graph = next(entry["arg"]["as_graph"]["graph"] for entry in outer["inputs"] if "as_graph" in entry["arg"])
        (given,) = graph["inputs"]
        first, second, step = copy.deepcopy(total), copy.deepcopy(flag), inner
        first["inputs"][0]["arg"] = copy.deepcopy(given)
        for entry in step["inputs"]:
            if "as_tensors" in entry["arg"]:
                entry["arg"] = {"as_tensors": [copy.deepcopy(given["as_tensor"])]}
        graph["nodes"] = [first, second, step]
        graph["outputs"] = copy.deepcopy(step["outputs"])
        inner = outer
    node.clear()
    node.update(inner)


def _stretched(document: dict[str, Any]) -> None:
    for entry in document["config"].values():
        meta = entry["tensor_meta"]
        meta["sizes"], meta["strides"] = [{"as_int": 1 << 31}], [{"as_int": 0}]


@bomb(Plain, **{"weights_config_json": _stretched, "constants_config_json": _stretched})
def a_buffer_with_stride_0(document: dict[str, Any]) -> None:
    pass


@bomb(Splits)
def a_million_pieces(document: dict[str, Any]) -> None:
    for node in nodes_of(document, "torch.ops.aten.zeros.default"):
        node["inputs"][0]["arg"] = {"as_ints": [1 << 40]}
    for node in nodes_of(document, "torch.ops.aten.split.Tensor"):
        node["inputs"][1]["arg"] = {"as_int": 1}


@bomb(Splits)
def pieces_made_at_once(document: dict[str, Any]) -> None:
    for node in nodes_of(document, "torch.ops.aten.split.Tensor"):
        node["target"] = "torch.ops.aten.tensor_split.sections"
        node["inputs"][1] = {"name": "sections", "arg": {"as_int": 1 << 34}, "kind": 1}


@bomb(Plain)
def counts_to_a_billion(document: dict[str, Any]) -> None:
    for node in nodes_of(document, "torch.ops.aten.clone.default"):
        node["target"] = "torch.ops.aten.bincount.default"
        node["inputs"].append({"name": "minlength", "arg": {"as_int": 1 << 33}, "kind": 2})
