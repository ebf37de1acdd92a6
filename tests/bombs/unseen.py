"""The other half: written after the code was done, and first run then."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.bombs.checkpoints import write_safetensors
from tests.bombs.configs import LLAMA, config
from tests.bombs.exported import Loops, Plain, Splits, exported, nodes_of
from tests.bombs.running import Bomb
from tests.torchscript.archives import saved

BOMBS: dict[str, Bomb] = {}


def script(kind: type[nn.Module]) -> type[nn.Module]:
    BOMBS[kind.__name__] = lambda folder: [str(saved(kind(), folder)), "--input", "1x4", "--no-progress"]
    return kind


@script
class OneHot(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.one_hot(torch.tensor([1 << 34]), 1 << 35).sum() + x


@script
class Kronecker(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        one = torch.ones([4096], dtype=torch.int64)
        return torch.kron(torch.kron(one, one), torch.kron(one, one)).sum() + x


@script
class Cartesian(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        one = torch.arange(3000)
        return torch.cartesian_prod([one, one, one, one]).sum() + x  # type: ignore[arg-type]


@script
class TriangleOfIndices(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tril_indices(100000, 100000).sum() + x


@script
class ExpandedClones(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        kept = [x]
        for _ in range(3000):
            kept.append(torch.ones([1], dtype=torch.bool).expand(4000000).clone())
        return kept[0]


@script
class Trilinear(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        a, b, c = torch.ones(1000, 1, 1), torch.ones(1, 1000, 1), torch.ones(1, 1, 1000)
        return torch._trilinear(a, b, c, [], [], [], [0, 1, 2]).sum() + x


@script
class Products(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        one = torch.ones(1000, 1000)
        for _ in range(100000):
            one = one @ one
        return one.sum() + x


@script
class Sorts(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        numbers = torch.arange(4000000)
        for _ in range(100000):
            numbers = numbers.flip(0).sort()[0]
        return numbers[0] + x


@script
class Uniques(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        numbers = torch.arange(4000000)
        for _ in range(100000):
            numbers = torch.unique(numbers)
        return numbers[0] + x


@script
class RepeatsInALoop(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        kept = [torch.zeros([1], dtype=torch.int64)]
        for _ in range(100000):
            kept.append(torch.repeat_interleave(torch.arange(2000)))
        return kept[-1][0] + x


@script
class Combines(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.combinations(torch.arange(1000), 1 << 31).sum() + x


@script
class Words(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        text = "a"
        kept: list[str] = []
        for _ in range(200000):
            kept.append(text + text)
            text = kept[-1]
        return x, len(kept)


@script
class DictOfDicts(nn.Module):
    def forward(self, x: Tensor) -> dict[int, dict[int, dict[int, list[int]]]]:
        inner = {0: [1] * 3000}
        for number in range(3000):
            inner[number] = inner[0]
        middle = {0: inner}
        for number in range(3000):
            middle[number] = inner
        outer = {0: middle}
        for number in range(3000):
            outer[number] = middle
        return outer


@script
class TowerThatGrows(nn.Module):
    """The tower is small when it is built; then its one list grows."""

    def forward(self, x: Tensor) -> tuple[Tensor, list[list[list[int]]]]:
        one = [0]
        tower = [[one] * 1000] * 1000
        for _ in range(2000000):
            one.append(1)
        return x, tower


@script
class WhileNothing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        while x.shape[0] > 0:
            pass
        return x


@script
class Chunks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        kept = [x]
        for _ in range(100000):
            kept += torch.chunk(torch.zeros(60000), 60000)
        return kept[0]


@script
class Meshes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        lines = [torch.arange(200)] * 8
        return torch.meshgrid(lines)[0].sum() + x


@script
class EndlessWithAutocast(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu"):
            while True:
                x = x + 1
        return x


def _shared_attribute(folder: Path) -> list[str]:
    """An attribute that is a list of one list twice, forty levels deep."""
    depth = 40
    kind = "List[" * depth + "int" + "]" * depth

    class Holds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.held = [1]

        def forward(self, x: Tensor) -> Tensor:
            return x + len(self.held)

    path = saved(Holds(), folder)
    target = folder / "shared.pt"
    nested = b"](K\x01K\x02e" + b"".join(b"q%c0](h%ch%ce" % (n + 50, n + 50, n + 50) for n in range(depth - 1))
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith("data.pkl"):
                at = content.index(b"held") + 4
                begin = content.index(b"c", at)
                end = content.index(b"R", begin) + 1
                content = content[:begin] + nested + content[end:]
            elif name.endswith(".py"):
                content = content.replace(b"List[int]", kind.encode())
            new.writestr(name, content)
    return [str(target), "--input", "1x4"]


def _many_buffers(folder: Path) -> list[str]:
    """A thousand integer buffers in one element."""

    class Buffers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            one = torch.ones(1, dtype=torch.int64)
            for number in range(1000):
                self.register_buffer(f"b{number}", one.expand(4000000))

        def forward(self, x: Tensor) -> Tensor:
            return x + 1

    return [str(saved(Buffers(), folder)), "--input", "1x4"]


def _long_source(folder: Path) -> list[str]:
    path = saved(Doubles(), folder)
    target = folder / "long.pt"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith(".py"):
                lines = b"    x = torch.mul(x, 2)\n" * 2_500_000
                content = content.replace(b"    return", lines + b"    return", 1)
            new.writestr(name, content)
    return [str(target), "--input", "1x4"]


class Doubles(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.mul(x, 2)


BOMBS |= {"a_shared_attribute": _shared_attribute, "many_buffers": _many_buffers, "a_long_source": _long_source}


def _pt2(name: str, model: type[nn.Module], change: Any, **others: Any) -> None:
    named = {suffix.replace("_json", ".json"): function for suffix, function in others.items()}
    BOMBS[name] = lambda folder: exported(model(), folder, {"models/model.json": change} | named)


def _sized(target: str, sizes: list[int]) -> Any:
    def change(document: dict[str, Any]) -> None:
        for node in nodes_of(document, target):
            node["inputs"][0]["arg"] = {"as_ints": sizes}

    return change


_pt2("overflowing_zeros", Splits, _sized("torch.ops.aten.zeros.default", [1 << 62, 1 << 62]))


def _loop_that_grows(document: dict[str, Any]) -> None:
    """Each turn doubles the tensor."""
    for node in nodes_of(document, "torch.ops.aten.lt.Scalar"):
        node["inputs"][1]["arg"] = {"as_int": 1 << 60}
    for node in nodes_of(document, "torch.ops.aten.mul.Tensor"):
        node["target"] = "torch.ops.aten.repeat.default"
        node["inputs"][1] = {"name": "repeats", "arg": {"as_ints": [2, 2]}, "kind": 1}


_pt2("a_loop_that_grows", Loops, _loop_that_grows)


def _many_tensors_of_one_record(document: dict[str, Any]) -> None:
    for entry in document["config"].values():
        entry["tensor_meta"]["sizes"], entry["tensor_meta"]["strides"] = [{"as_int": 500000}], [{"as_int": 0}]


_pt2("stretched_within_bounds", Plain, lambda document: None, weights_config_json=_many_tensors_of_one_record,
     constants_config_json=_many_tensors_of_one_record)  # fmt: skip


def _long_json(folder: Path) -> list[str]:
    arguments = exported(Plain(), folder, {})
    with zipfile.ZipFile(arguments[0]) as old, zipfile.ZipFile(folder / "long.pt2", "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith("models/model.json"):
                content = content[:-1] + b', "more": [' + b"[]," * 100_000_000 + b"[]]}"
            new.writestr(name, content)
    return [str(folder / "long.pt2")]


def _deep_json(folder: Path) -> list[str]:
    arguments = exported(Plain(), folder, {})
    with zipfile.ZipFile(arguments[0]) as old, zipfile.ZipFile(folder / "deep.pt2", "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith("models/model.json"):
                content = content[:-1] + b', "more": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
            new.writestr(name, content)
    return [str(folder / "deep.pt2")]


def _deep_modules(folder: Path) -> list[str]:
    """The name of a buffer is a path of thirty thousand modules."""
    path = ".".join("m" * 30_000) + ".numbers"

    def rename(document: dict[str, Any]) -> Any:
        return json.loads(json.dumps(document).replace('"numbers"', json.dumps(path)))

    return exported(Plain(), folder, {"models/model.json": rename, "_config.json": rename})


BOMBS |= {"a_long_document": _long_json, "a_deep_document": _deep_json, "modules_in_modules": _deep_modules}

BOMBS |= {
    "positions": config(model_type="gpt2", architectures=["GPT2LMHeadModel"], n_positions=10**9, n_layer=1),
    "sinusoids": config(
        model_type="marian", architectures=["MarianMTModel"], max_position_embeddings=10**8, d_model=64,
        encoder_layers=1, decoder_layers=1,
    ),
    "heads": config(**{**LLAMA, "num_attention_heads": 10**9}, num_hidden_layers=1),
    "mixture_in_bounds": config(
        model_type="mixtral", architectures=["MixtralForCausalLM"], num_local_experts=4000, num_hidden_layers=4000,
        hidden_size=64, intermediate_size=64,
    ),
    "channels": config(model_type="resnet", architectures=["ResNetModel"], hidden_sizes=[10**8] * 4),
    "kernels": config(
        model_type="vit", architectures=["ViTModel"], image_size=10**7, patch_size=1, num_hidden_layers=1
    ),
    "labels_by_name": config(
        model_type="bert", architectures=["BertForSequenceClassification"], num_hidden_layers=1,
        id2label={str(n): "x" for n in range(200_000)},
    ),
    "negative": config(**LLAMA, num_hidden_layers=-(10**9)),
    "deep_config": config(**LLAMA, text_config=json.loads('{"a":' * 500 + "1" + "}" * 500)),
}  # fmt: skip


def weights(build: Any) -> Any:
    BOMBS[build.__name__] = lambda folder: ["weights", str(build(folder)), "--no-progress"]
    return build


@weights
def eighteen_megabytes_of_deep_names(folder: Path) -> Path:
    return write_safetensors(folder / "m.safetensors", [".".join(f"{n:05}{'x' * 4500}") for n in range(2000)])


@weights
def long_segments(folder: Path) -> Path:
    names = [".".join(f"{n}{c}" * 2000 for c in "abcdefgh" * 5) for n in range(20)]
    return write_safetensors(folder / "m.safetensors", names)


@weights
def names_of_dots(folder: Path) -> Path:
    return write_safetensors(folder / "m.safetensors", ["." * n for n in range(1, 3000)])


@weights
def twenty_thousand_equal_views(folder: Path) -> Path:
    base = torch.zeros(100, 100)
    torch.save({f"v{n}": base[n % 50 :, n % 70 :] for n in range(20_000)}, folder / "m.pt")
    return folder / "m.pt"


@weights
def staircase_of_views(folder: Path) -> Path:
    base = torch.zeros(200_000)
    torch.save({f"v{n}": base[n * 10 : n * 10 + 15] for n in range(10_000)}, folder / "m.pt")
    return folder / "m.pt"


@weights
def long_integers(folder: Path) -> Path:
    body = b"".join(b"\x8b" + struct.pack("<i", 1 << 20) + b"\xff" * (1 << 20) for _ in range(20))
    (folder / "m.pkl").write_bytes(b"\x80\x02]" + body + b".")
    return folder / "m.pkl"


@weights
def a_text_of_digits(folder: Path) -> Path:
    (folder / "m.pkl").write_bytes(b"I" + b"9" * 1_000_000 + b"\n.")
    return folder / "m.pkl"


@weights
def a_dict_of_dicts(folder: Path) -> Path:
    value: Any = {"w": torch.zeros(1)}
    for _ in range(300):
        value = {"a" * 1000: value, "b" * 1000: value}
    with (folder / "m.pt").open("wb") as stream:
        torch.save(value, stream)
    return folder / "m.pt"


@weights
def marks_without_end(folder: Path) -> Path:
    (folder / "m.pkl").write_bytes(b"\x80\x02" + b"(" * 20_000_000 + b".")
    return folder / "m.pkl"


@weights
def tensors_of_many_dimensions(folder: Path) -> Path:
    torch.save({f"t{n}": torch.zeros([1] * 64) for n in range(2000)}, folder / "m.pt")
    return folder / "m.pt"


@weights
def an_optimizer_of_itself(folder: Path) -> Path:
    state: dict[str, Any] = {"state": {}}
    state["state"]["state"] = state
    (folder / "m.pt").write_bytes(pickle.dumps(state))
    return folder / "m.pt"
