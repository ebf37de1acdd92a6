"""Whatever a captured reader sends, its parent gives one sentence: no traceback, and no more memory than its limits."""

from __future__ import annotations

import gc
import io
import json
import random
import struct
import tracemalloc
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import torchgauge as tg
from torchgauge.analysis import isolated
from torchgauge.errors import LimitError, TorchgaugeError
from torchgauge.isolation import Limits, Message, limits_for, messages, run_isolated
from torchgauge.isolation.channel import Channel
from torchgauge.isolation.messages import FORMS, Admission
from torchgauge.isolation.process import _Files, _serve, _warn

LIMITS = Limits(memory_bytes=64 << 20, time_s=60)
TYPES = ["int64", ["float32", "array(uint8, 1d, C)"]]
# A message of every kind that a reader sends.
VALID: dict[str, tuple[bytes, dict[str, Any]]] = {
    "ready": (b"", {}),
    "result": (b"{}", {}),
    "error": (b"", {"type": "FormatError", "message": "bad", "attributes": {"module": "a.b"}}),
    "crash": (b"", {"type": "KeyError", "message": "bad", "traceback": "Traceback"}),
    "package": (b"", {"name": "numba"}),
    "threads": (b"", {}),
    "exceeded": (b"", {}),
    "interrupted": (b"", {}),
    "text": (b"text\n", {"stream": "stderr"}),
    "warning": (b"", {"category": "UserWarning", "message": "beware"}),
    "draft.open": (b"", {"path": "/tmp/x"}),
    "draft.write": (b"data", {"path": "/tmp/x"}),
    "draft.commit": (b"", {"path": "/tmp/x"}),
    "draft.discard": (b"", {"path": "/tmp/x"}),
    "append": (b"line\n", {"path": "/tmp/x"}),
    "remove": (b"", {"path": "/tmp/x"}),
    "row": (b"{}", {}),
    "compile": (b"", {"kernel": "torchgauge.none", "types": TYPES}),
    "accelerator": (b"", {"device": "cuda:0"}),
    "loaded": (b"", {"packages": ["timm"], "kernels": [["torchgauge.none", TYPES]]}),
}
WRONG_VALUES: list[Any] = [None, True, 0, -1, 1.5, 10**30, "", "x" * 100_000, "\0", "\ud800", "../..", [], [None],
                           [[]], ["x"] * 1000, {}, {"a": 1}, {"__class__": "x"}, [[["x"]]]]  # fmt: skip


class Captured:
    """A reader that sends these bytes."""

    def __init__(self, data: bytes, limits: Limits) -> None:
        self.channel = Channel(io.BytesIO(data), io.BytesIO(), Admission(limits.result_bytes))
        self.exceeded: str | None = None
        self.paused_clock = nullcontext

    def start_clock(self) -> None:
        pass

    stop_clock = start_clock

    def end(self, *, politely: bool = False) -> int:
        return 0


def frame(header: bytes, payload: bytes = b"", *, header_size: int | None = None, size: int | None = None) -> bytes:
    announced = len(payload) if size is None else size
    return struct.pack("=IQ", len(header) if header_size is None else header_size, announced) + header + payload


def message(kind: str, payload: bytes = b"", **facts: Any) -> bytes:
    return frame(json.dumps({"kind": kind, **facts}).encode(), payload)


def serve(data: bytes, limits: Limits = LIMITS) -> bytes:
    files = _Files([], None)
    services = {**files.services(), "warning": _warn, **isolated._SERVICES, "row": lambda sent: None}
    reader: Any = Captured(data, limits)
    return _serve(reader, limits, "x", services)


def test_every_kind_of_message_has_a_form() -> None:
    assert VALID.keys() == FORMS.keys()
    for kind, (payload, facts) in VALID.items():
        Admission(1 << 20).admit(kind, facts, len(payload))


def malformed() -> Iterator[tuple[str, bytes]]:
    yield "no JSON", frame(b"\xff\xfe")
    yield "nothing", frame(b"")
    yield "deep JSON", frame(b"[" * 100_000)
    yield "a list", frame(b"[1]")
    yield "no kind", frame(b'{"a": 1}')
    yield "a number for a kind", frame(b'{"kind": 1}')
    yield "a list for a kind", frame(b'{"kind": []}')
    yield "a huge number", frame(b'{"kind": ' + b"9" * 10_000 + b"}")
    yield "a long header", frame(b" " * (messages.MAX_HEADER_BYTES + 1))
    yield "a header of 4 GiB", frame(b"{}", header_size=(1 << 32) - 1)
    yield "a payload of 16 EiB", frame(b'{"kind": "text", "stream": "stdout"}', size=(1 << 64) - 1)
    yield "an unknown kind", message("eval", code="1")
    yield "ready twice", message("ready") * 2
    for kind, (payload, facts) in VALID.items():
        form = FORMS[kind]
        yield f"{kind} with more", message(kind, payload, **facts, more=1)
        if form.payload_bytes is not None:
            yield f"{kind} too long", message(kind, bytes(form.payload_bytes + 1), **facts)
        for name in facts:
            yield f"{kind} without {name}", message(kind, payload, **{key: facts[key] for key in facts if key != name})
            yield f"{kind} with null for {name}", message(kind, payload, **{**facts, name: None})


@pytest.mark.parametrize(("name", "data"), [pytest.param(*case, id=case[0]) for case in malformed()])
def test_a_malformed_message_is_one_sentence(name: str, data: bytes) -> None:
    with pytest.raises(TorchgaugeError, match=r"^the process that read 'x' failed: unexpected message \("):
        serve(data + message("result", b"{}"))


def test_a_captured_reader_cannot_make_its_parent_raise_anything_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Messages of every kind whose fields, sizes and bytes are changed."""
    monkeypatch.setattr(isolated, "_kernels_of_readers", [])
    monkeypatch.setattr(isolated, "_imported_by_readers", set())
    chance = random.Random(7)
    for _ in range(20_000):
        sent = b""
        for _ in range(chance.randrange(1, 4)):
            kind = chance.choice(list(VALID))
            payload, facts = VALID[kind]
            changed = dict(facts)
            for name in facts:
                if chance.random() < 0.3:
                    changed[name] = chance.choice(WRONG_VALUES)
            payload = chance.choice([payload, b"", bytes([chance.randrange(256)]), b"\xed\xa0\x80"])
            sent += message(kind, payload, **changed)
        if chance.random() < 0.3:
            place = chance.randrange(len(sent))
            sent = sent[:place] + bytes([chance.randrange(256)]) + sent[place + 1 :]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                serve(sent)
            except (TorchgaugeError, KeyboardInterrupt):
                continue
            except BaseException as error:
                # Requests to start again: the loop around this handles them.
                assert type(error).__name__ in ("NeedsPackageError", "HasThreadsError"), sent  # noqa: PT017
    capsys.readouterr()


def test_announced_bytes_take_no_memory() -> None:
    data = frame(b'{"kind": "result"}', b"x" * 100, size=60 << 20)
    tracemalloc.start()
    with pytest.raises(TorchgaugeError, match="ended unexpectedly"):
        serve(data)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


def test_output_has_a_limit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(messages, "MAX_OUTPUT_BYTES", 1 << 20)
    with pytest.raises(LimitError, match=r"'x' was not finished: it wrote more than 1.00 MiB"):
        serve(message("text", bytes(1000), stream="stdout") * 2000 + message("result", b"{}"))
    capsys.readouterr()


def test_text_cannot_control_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Sequences that a terminal answers, as if the user had typed, or by which it keeps a text or changes its title."""
    kept = "\x1b[1;31mred\x1b[0m \x1b[2K\r\x1b[1A\x1b[?25l\x1b[?25h\tend\n"
    hostile = ["\x1b]52;c;cm0gLXJm\x07", "\x1b[21t", "\x1bP$qm\x1b\\", "\x1b]0;title\x07", "\x1b[5n", "\x1b[c",
               "\x9b21t", "\x1bc", "\x1b[?1049h", "\x1b[6n", "\x07", "\x1b_G\x1b\\"]  # fmt: skip
    for text in (kept, *hostile):
        assert serve(message("text", text.encode(), stream="stdout") + message("result", b"{}")) == b"{}"
    shown = capsys.readouterr().out
    assert shown.startswith(kept)
    rest = shown.removeprefix(kept)
    assert not set(rest) & {"\x1b", "\x07", "\x9b"}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, bytes]]:
    """Files, and what a reader returned for them."""
    folder, found = tmp_path_factory.mktemp("files"), {}
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4)).eval()
    save_file(model.state_dict(), folder / "net.safetensors")
    torch.export.save(torch.export.export(model, (torch.zeros(1, 3, 8, 8),)), folder / "net.pt2")
    run_reader = isolated.run_reader
    for path, function in ((folder / "net.safetensors", tg.scan_weights), (folder / "net.pt2", tg.analyze)):

        def keep(*args: Any, path: Path = path, **options: Any) -> bytes:
            found[path.suffix] = path, run_reader(*args, **options)
            return found[path.suffix][1]

        with mock.patch.object(isolated, "run_reader", keep):
            function(path)
    return found


def read_result(path: Path, document: bytes) -> tg.Analysis:
    with mock.patch.object(isolated, "run_reader", return_value=document):
        return tg.scan_weights(path) if path.suffix == ".safetensors" else tg.analyze(path)


@pytest.mark.parametrize("document", [
    b"", b"{", b"[]", b"null", b"1" * 5000, b"[" * 100_000, b"\xff", b'{"schema_version": 1}', b'{"schema_version": 2}',
    b'{"schema_version": 1, "modules": []}', b'{"schema_version": NaN}', b'"\\ud800"',
])  # fmt: skip
def test_a_result_that_is_no_report_is_one_sentence(document: bytes, results: dict[str, tuple[Path, bytes]]) -> None:
    for path, _ in results.values():
        with pytest.raises(TorchgaugeError, match="failed: unexpected message"):
            read_result(path, document)


def changes(value: Any, chance: random.Random, depth: int = 0) -> Any:
    """The value with one of its parts removed, repeated or exchanged for another."""
    if isinstance(value, dict) and value and (depth == 0 or chance.random() < 0.9):
        key = chance.choice(list(value))
        if chance.random() < 0.1:
            return {name: item for name, item in value.items() if name != key}
        return {**value, key: changes(value[key], chance, depth + 1)}
    if isinstance(value, list) and value and chance.random() < 0.9:
        place = chance.randrange(len(value))
        if chance.random() < 0.1:
            return [*value[:place], *value[place + 1 :]]
        if chance.random() < 0.1:
            return [*value, value[place]]
        return [*value[:place], changes(value[place], chance, depth + 1), *value[place + 1 :]]
    return chance.choice([*WRONG_VALUES, 0, 1, -(10**18), 1e308, "float32", [1], [0, -1]])


@pytest.mark.parametrize("kind", [".safetensors", ".pt2"])
def test_a_changed_result_is_refused_or_reported(kind: str, results: dict[str, tuple[Path, bytes]]) -> None:
    path, document = results[kind]
    whole, chance = json.loads(document), random.Random(kind)
    for _ in range(400):
        changed = json.dumps(changes(whole, chance)).encode()
        try:
            found = read_result(path, changed)
            assert str(found)
            assert json.dumps(found.to_dict())
        except TorchgaugeError:
            continue


def test_what_only_an_analysis_has_is_not_taken_from_a_scan(results: dict[str, tuple[Path, bytes]]) -> None:
    """The form of a scan does not say what these members are."""
    path, document = results[".safetensors"]
    scan = {key: value for key, value in json.loads(document).items() if key not in ("modules", "advice", "options")}
    for name in ("options", "advice", "plan", "fit", "forecast", "energy", "measurements", "compiled", "trace"):
        found = read_result(path, json.dumps({**scan, name: [1]}).encode())
        assert str(found) == str(read_result(path, json.dumps(scan).encode()))


def test_the_memory_of_a_result_is_known_before_it_is_made(results: dict[str, tuple[Path, bytes]]) -> None:
    texts = [document for _, document in results.values()]
    texts += [b"[" + part * 20_000 + b"0]" for part in (
        b"[],", b"{},", b'{"a":{}},', b'{"":0},', b'"",', b'"ab",', b"1.5,", b"12345678901234567890,", b"null,",
        '"a€",'.encode(), '"\U0001f600aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",'.encode(), b'":::::",', b"[[[[1]]]],",
        b'{"a":1.5,"b":2.5,"c":3.5,"d":4.5,"e":5.5,"f":6.5},',
    )]  # fmt: skip
    for text in texts:
        gc.collect()
        tracemalloc.start()
        held = json.loads(text)
        taken = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert 0.9 * taken < isolated.object_bytes(text) + 100_000, (text[:40], taken)
        del held
    for text in texts[:2]:  # a real report is not refused for what a hostile one could be
        assert isolated.object_bytes(text) < 12 * len(text)


def test_a_large_result_for_a_small_file_is_refused_before_it_is_parsed(
    results: dict[str, tuple[Path, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, document = results[".safetensors"]
    padded = document[:-2].rstrip(b"}\n ") + b', "more": [' + b"{}," * (4 << 20) + b"0]}"
    with pytest.raises(LimitError, match="--memory-limit"):
        read_result(path, padded)
    monkeypatch.setattr("torchgauge.isolation.limits.RESULT_BYTES", len(document))
    monkeypatch.setattr("torchgauge.isolation.limits.RESULT_BYTES_PER_BYTE", 0)
    with pytest.raises(LimitError, match="--memory-limit"):
        run_isolated(partial(bytes, len(document) + 1), limits=limits_for([path], None, None), subject="x")


def test_a_row_that_is_none_is_not_passed_on(results: dict[str, tuple[Path, bytes]]) -> None:
    path, rows = results[".safetensors"][0], list[Any]()
    tg.scan_weights(path, on_row=rows.append)
    assert rows
    for payload in (b"", b"[]", b'{"name": 1}', b"[" * 100_000, b'{"name": "a"}'):
        with pytest.raises(TorchgaugeError, match="unexpected message"):
            isolated._row(Message("row", {}, payload), "x")
