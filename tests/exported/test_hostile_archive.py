"""`.pt2` archives made by someone with an editor: refused with one sentence, and nothing of them runs."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import torchgauge as tg
from tests.exported.models import Tied
from torchgauge.source import load_exported


class Canary:
    def __reduce__(self) -> tuple[Any, ...]:
        return open, ("canary", "w")


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    torch.export.save(torch.export.export(Tied(), (torch.zeros(3, 4),)), tmp_path / "model.pt2")
    return tmp_path / "model.pt2"


def changed(archive: Path, suffix: str, change: Callable[[bytes], bytes]) -> Path:
    target = archive.with_name("changed.pt2")
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, change(content) if name.endswith(suffix) else content)
    return target


def with_target(name: str) -> Callable[[bytes], bytes]:
    return lambda content: content.replace(b"torch.ops.aten.relu.default", name.encode())


def no_canary(archive: Path) -> bool:
    return {path.name for path in archive.parent.iterdir()} <= {"model.pt2", "changed.pt2"}


@pytest.mark.parametrize(
    "target",
    [
        "torch.ops.aten.from_file.default",
        "torch.ops.evil.run.default",
        "torch.ops.aten.no_such_op.default",
        "torch.ops.aten.relu.no_such_overload",
        "os.system",
        "builtins.eval",
        "torch.save",
        "torch.ops.higher_order.auto_functionalized",
    ],
)
def test_a_node_that_calls_something_else_is_refused(target: str, archive: Path) -> None:
    with pytest.raises(tg.FormatError, match=r"calls .*not (run|know)|does not run"):
        load_exported(changed(archive, "models/model.json", with_target(target)))
    assert no_canary(archive)


@pytest.mark.parametrize("suffix", ["sample_inputs/model.pt", "weights/weight_0", "constants/tensor_0"])
def test_pickles_in_an_archive_are_not_opened(suffix: str, archive: Path) -> None:
    hostile = changed(archive, suffix, lambda _: pickle.dumps(Canary()))
    assert tg.analyze(load_exported(hostile)).totals.macs == 3 * 3 * 32
    assert no_canary(archive)


def test_weights_marked_as_pickles_are_known_by_their_shape(archive: Path) -> None:
    hostile = changed(
        archive, "weights_config.json", lambda text: text.replace(b'"use_pickle": false', b'"use_pickle": true')
    )
    hostile = changed(hostile.rename(archive), "weight_0", lambda _: pickle.dumps(Canary()))
    assert tg.analyze(load_exported(hostile)).totals.macs == 3 * 3 * 32
    assert no_canary(archive)


def test_the_text_of_a_symbolic_size_is_not_evaluated(archive: Path) -> None:
    batch = torch.export.Dim("batch", min=2, max=16)
    program = torch.export.export(Tied(), (torch.zeros(3, 4),), dynamic_shapes={"x": {0: batch}})
    torch.export.save(program, archive)
    hostile = changed(
        archive, "models/model.json", lambda text: text.replace(b"Symbol('s", b"open('canary', 'w') or ('s")
    )
    assert b"open(" in zipfile.ZipFile(hostile).read(
        next(n for n in zipfile.ZipFile(hostile).namelist() if "model.json" in n)
    )
    load_exported(hostile)
    assert no_canary(archive)


def without(*keys: str) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        document = json.loads(content)
        part = document
        for key in keys[:-1]:
            part = part[key]
        del part[keys[-1]]
        return json.dumps(document).encode()

    return change


def with_empty(*keys: str | int) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        document = json.loads(content)
        part = document
        for key in keys[:-1]:
            part = part[key]
        part[keys[-1]] = {}
        return json.dumps(document).encode()

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda _: b"",
        lambda _: b"[]",
        lambda _: b"{}",
        lambda _: b"[" * 100_000,
        without("graph_module", "graph"),
        without("graph_module", "signature"),
        without("graph_module", "graph", "tensor_values"),
        lambda text: text.replace(b'"as_int": 4', b'"as_int": -4'),
        lambda text: text.replace(b'"dtype": 7', b'"dtype": 99'),
        lambda text: text.replace(b'"as_tensor"', b'"as_custom_obj"'),
        with_empty("graph_module", "signature", "output_specs", 0),
        with_empty("graph_module", "signature", "input_specs", 0),
        with_empty("graph_module", "graph", "outputs", 0),
        with_empty("graph_module", "graph", "nodes", 0, "outputs", 0),
        with_empty("graph_module", "graph", "nodes", 0, "inputs", 0, "arg"),
    ],
)
def test_a_broken_document_is_one_clear_error(change: Callable[[bytes], bytes], archive: Path) -> None:
    with pytest.raises(tg.TorchgaugeError, match=r"changed\.pt2"):
        load_exported(changed(archive, "models/model.json", change))


def test_an_archive_cut_anywhere_is_refused(archive: Path) -> None:
    content = archive.read_bytes()
    for part in range(1, 20):
        archive.write_bytes(content[: len(content) * part // 20])
        with pytest.raises(tg.FormatError):
            load_exported(archive)


def test_an_archive_of_something_else_is_said_to_hold_no_program(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(2)}, tmp_path / "model.pt2")
    with pytest.raises(tg.FormatError, match="contains 0 exported programs"):
        load_exported(tmp_path / "model.pt2")
