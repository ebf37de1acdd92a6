"""Honest archives that the attacks change, and the tools to change them."""

from __future__ import annotations

import copy
import io
import json
import pickle
import warnings
import zipfile
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

CANARY = "canary"
# Runs wherever text of a file is evaluated, and leaves a file in the working folder.
PAYLOAD = f"__import__('pathlib').Path('{CANARY}').touch()"
Records = dict[str, bytes]
Document = dict[str, Any]
Attack = Callable[[], Records]


class Unpickled:
    """A pickle that leaves a file when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (CANARY, "w")


def pickled() -> bytes:
    return pickle.dumps(Unpickled(), protocol=2)


class Victim(nn.Module):
    """A parameter, a buffer, a constant, sizes, a branch, a list, a dict: each kind of thing an archive describes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("shift", torch.ones(4))
        self.scale = torch.ones(4)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        hidden = self.layer(x).relu() + self.shift + self.scale + (x.shape[0] * 2 + 1)
        hidden = torch.cond(hidden.sum() > 0, lambda h: h + 1, lambda h: h - 1, (hidden,))
        return {"hidden": hidden, "part": torch.cat([y, y]).split(1)[0]}


class Straight(Victim):
    """Without a branch: such a program could be made code of, as a whole."""

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"hidden": self.layer(x).relu() + self.shift + self.scale, "part": torch.cat([y, y]).split(1)[0]}


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.name = "plain"

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * 2

    @torch.jit.export
    def __getstate__(self) -> tuple[Tensor, bool]:
        return self.layer.weight, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[Tensor, bool]) -> None:
        self.training = state[1]


class PlainScripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.name = "plain"

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * 2


def unpacked(content: bytes) -> Records:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(records: Records) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in records.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@cache
def _exported(kind: type[nn.Module]) -> bytes:
    batch = torch.export.Dim("batch", min=2, max=64)
    with torch.random.fork_rng(), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.export.export(kind(), (torch.ones(3, 4), torch.ones(2)), dynamic_shapes=({0: batch}, None))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    return buffer.getvalue()


@cache
def _scripted(with_state: bool) -> bytes:
    buffer = io.BytesIO()
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(Scripted() if with_state else PlainScripted()), buffer)
    return buffer.getvalue()


def exported(*, straight: bool = False) -> Records:
    return unpacked(_exported(Straight if straight else Victim))


def scripted(*, with_state: bool = False) -> Records:
    return unpacked(_scripted(with_state))


def record_name(records: Records, suffix: str) -> str:
    return next(name for name in records if name.endswith(suffix))


def document_of(records: Records, suffix: str = "models/model.json") -> Document:
    loaded: Document = json.loads(records[record_name(records, suffix)])
    return loaded


def with_document(
    change: Callable[[Document], None], suffix: str = "models/model.json", records: Records | None = None
) -> Records:
    records = exported() if records is None else records
    document = document_of(records, suffix)
    change(document)
    records[record_name(records, suffix)] = json.dumps(document).encode()
    return records


def with_text(old: str, new: str, suffix: str = "models/model.json") -> Records:
    """Each place that holds the text `old` now holds `new`, as in an editor."""
    records = exported()
    name = record_name(records, suffix)
    text = records[name].decode()
    assert old in text, f"{old!r} is not in {suffix}"
    records[name] = text.replace(old, json.dumps(new)[1:-1]).encode()
    return records


def argument(value: Any) -> Document:
    """A Python value as the schema of torch.export writes it; a dict is used unchanged."""
    match value:
        case dict():
            return value
        case bool():
            return {"as_bool": value}
        case int():
            return {"as_int": value}
        case float():
            return {"as_float": value}
        case str():
            return {"as_string": value}
        case None:
            return {"as_none": True}
    raise TypeError(type(value))


def tensor(name: str) -> Document:
    return {"as_tensor": {"name": name}}


def symbol(name: str) -> Document:
    return {"as_sym_int": {"as_name": name}}


def node(target: str, *arguments: Any, out: Document | None = None, name: str = "", **named: Any) -> Document:
    positional = [{"name": name, "arg": argument(value), "kind": 1} for value in arguments]
    keyword = [{"name": key, "arg": argument(value), "kind": 2} for key, value in named.items()]
    outputs = [out if out is not None else tensor("attack")]
    empty = {"stack_trace": "", "nn_module_stack": "L__self__,,tests.attacks.archives.Victim"}
    return {"target": target, "inputs": positional + keyword, "outputs": outputs, "metadata": empty, "name": "attack"}


def graph_of(document: Document) -> Document:
    graph: Document = document["graph_module"]["graph"]
    return graph


def with_nodes(*nodes: Document) -> Records:
    """These nodes run before all others; a value they name is described as a tensor and as a size."""

    def change(document: Document) -> None:
        graph = graph_of(document)
        for new in nodes:
            for output in new["outputs"]:
                _describe(graph, output)
        graph["nodes"][:0] = list(nodes)

    return with_document(change)


def _describe(graph: Document, output: Document) -> None:
    described = copy.deepcopy(graph["tensor_values"]["x"])
    match output:
        case {"as_tensor": {"name": str(name)}}:
            graph["tensor_values"].setdefault(name, described)
        case {"as_sym_int": {"as_name": str(name)}}:
            graph["sym_int_values"].setdefault(name, {"as_int": 3})
        case {"as_tensors": list(several)}:
            for one in several:
                graph["tensor_values"].setdefault(one["name"], described)


def replaced_call(target: str) -> Records:
    """The relu of the model calls something else, with the tensor as its argument."""
    return with_text("torch.ops.aten.relu.default", target)


def code_of(records: Records) -> str:
    names = [name for name in records if "/code/" in name and name.endswith(".py")]
    return next(name for name in names if b"def forward" in records[name] and b"self.layer" in records[name])


def with_code(change: Callable[[str], str], *, with_state: bool = False) -> Records:
    """The source of the scripted class, changed; without the pickles that say where it came from."""
    records = {name: content for name, content in scripted(with_state=with_state).items() if "debug_pkl" not in name}
    name = code_of(records)
    text = records[name].decode()
    after = change(text)
    assert after != text, "the attack changed nothing"
    records[name] = after.encode("utf-8", "surrogatepass")
    return records


def with_statement(*lines: str) -> Records:
    """Statements at the start of `forward`."""

    def change(text: str) -> str:
        before, rest = text.split("  def forward", 1)
        head, body = rest.split("\n    layer", 1)
        return before + "  def forward" + head + "\n" + "".join(f"    {line}\n" for line in lines) + "    layer" + body

    return with_code(change)


def with_state_statement(*lines: str) -> Records:
    """Statements in `__setstate__`, which torch runs while it loads."""

    def change(text: str) -> str:
        before, rest = text.split("  def __setstate__", 1)
        head, body = rest.split("-> NoneType:\n", 1)
        return (
            before + "  def __setstate__" + head + "-> NoneType:\n" + "".join(f"    {line}\n" for line in lines) + body
        )

    return with_code(change, with_state=True)
