from __future__ import annotations

import pickle
import pickletools
import struct
from collections import OrderedDict
from typing import Any

import pytest

from tests.checkpoint.malicious import text
from torchgauge.checkpoint import Verdict, in_memory
from torchgauge.checkpoint.pickle import (
    OPCODES,
    Blob,
    Data,
    Global,
    ImportLog,
    Instance,
    Key,
    PickleMachine,
    judge,
    walk,
)
from torchgauge.errors import FormatError

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 255, 256, 65536, -(2**31), 2**31, 2**63, -(2**100), 2**2000, 0.5, -1e300, "", "text",
    "ümläut € 😀", 'quo"te\'s', "line\nbreak", "x" * 300, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [], [1, [2, [3]]],
    {}, {"a": 1, 2: "b", None: 3, True: 4}, OrderedDict(a=1, b=[2]), list(range(2000)),
    {str(n): n for n in range(1500)},
]  # fmt: skip


def run(body: bytes, log: ImportLog | None = None, **options: Any) -> Any:
    return PickleMachine(in_memory(body, "file", "file"), log or ImportLog(), **options).run()


@pytest.mark.parametrize("protocol", range(6))
def test_plain_values_come_out_as_pickle_makes_them(protocol: int) -> None:
    for value in VALUES:
        assert run(pickle.dumps(value, protocol)) == value
    assert run(pickle.dumps(VALUES, protocol)) == VALUES


@pytest.mark.parametrize("protocol", range(6))
def test_bytes_keep_their_content(protocol: int) -> None:
    for value in (b"", b"plain", bytes(range(256)), b"\x80" * 3000):
        made = run(pickle.dumps(value, protocol))
        assert (made.content if isinstance(made, Data) else made.args) in (value, ())


def test_long_bytes_are_left_in_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchgauge.checkpoint.limits.BLOB_BYTES", 1000)
    assert isinstance(run(pickle.dumps(b"x" * 1000, 4)), Data)
    body = pickle.dumps(b"x" * 1001, 4)
    made = run(body)
    assert isinstance(made, Blob)
    assert body[made.at : made.at + made.size] == b"x" * 1001


def test_every_opcode_of_every_protocol_is_known() -> None:
    known = {chr(code) for code in OPCODES} | {"."}
    assert known == {entry.code for entry in pickletools.opcodes}


def test_python_2_strings_are_unescaped() -> None:
    assert run(b"S'a\\n\\x41\\\\\\'\\101'\n.") == "a\nA\\'A"
    assert run(b"U\x03\xff\xfe\xfd.").content == b"\xff\xfe\xfd"


def test_classes_are_named_and_never_imported() -> None:
    log = ImportLog()
    made = run(b"\x80\x04" + text("no.such.module") + text("Class") + b"\x93)\x81}" + text("x") + b"K\x05sb.", log)
    assert isinstance(made, Instance)
    assert (made.type_path, made.state) == ("no.such.module.Class", {"x": 5})
    (found,) = log.imports
    assert (found.name, found.verdict, found.called) == ("no.such.module.Class", Verdict.UNKNOWN, True)


def test_an_extension_code_is_unknown() -> None:
    log = ImportLog()
    assert isinstance(run(b"\x80\x02\x82\x07.", log), Global)
    assert [found.name for found in log.imports] == ["copyreg.extension.7"]


def test_a_list_that_contains_itself_is_walked_once() -> None:
    assert walk(run(b"]q\x00h\x00ah\x00a.")).tensors == []
    assert walk(run(b"}q\x00X\x01\x00\x00\x00ah\x00s.")).tensors == []


def test_deep_keys_are_not_hashed() -> None:
    """Hashing a tuple nested that often would overflow the C stack and end the process."""
    made = run(b"}(" + b")" + b"\x85" * 200_000 + b"K\x01u.")
    (key,) = made
    assert isinstance(key, Key)


def test_deep_values_are_refused_not_recursed_into() -> None:
    tensor = b"ctorch._utils\n_rebuild_meta_tensor_no_storage\n(ctorch\nfloat32\n)" + b")" + b"\x89tR"
    nested = run(b"(" * 5000 + tensor + b"l" * 5000 + b".")
    with pytest.raises(FormatError, match="nested too deeply"):
        walk(nested)


def test_references_that_double_at_every_level_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty lists, each holding the one before twice: 2^60 paths to one tensor."""
    monkeypatch.setattr("torchgauge.checkpoint.limits.PATH_STEPS", 10_000)
    tensor = b"ctorch._utils\n_rebuild_meta_tensor_no_storage\n(ctorch\nfloat32\n)" + b")" + b"\x89tR"
    body = tensor + b"q\x00" + b"".join(b"(h\x00h\x00lq\x00" for _ in range(60)) + b"."
    with pytest.raises(FormatError):
        walk(run(body))
    barren = b"]q\x00" + b"".join(b"(h\x00h\x00lq\x00" for _ in range(60)) + b"."
    assert walk(run(barren)).tensors == []


BROKEN = {
    "an empty stack": b".",
    "no end": b"\x80\x04]",
    "an unknown opcode": b"\x80\x04\xff.",
    "protocol 9": b"\x80\x09N.",
    "a mark that is missing": b"t.",
    "a value below the mark": b"N(0" + b"a.",
    "nothing under that memo index": b"h\x05.",
    "a negative memo index": b"Np-1\n.",
    "a memo index too large": b"Np99999999999999999999\n.",
    "text longer than the file": b"X\xff\xff\xff\xff.",
    "text of 2^63 bytes": b"\x8d" + struct.pack("<Q", 2**63) + b".",
    "bytes of 2^62 bytes": b"\x8e" + struct.pack("<Q", 2**62) + b".",
    "a negative length": b"T\xff\xff\xff\xff.",
    "a negative long": b"\x8b\xff\xff\xff\xff.",
    "digits that are none": b"Iabc\n.",
    "more digits than Python reads": b"I" + b"9" * 10_000 + b"\n.",
    "no UTF-8": b"X\x02\x00\x00\x00\xff\xff.",
    "a string without quotes": b"Sabc\n.",
    "a key without a value": b"}(Nu.",
    "an item of a number": b"K\x01K\x02K\x03s.",
    "an append to a number": b"K\x01K\x02a.",
    "an object without a class": b"(o.",
    "buffers from outside": b"\x97.",
    "storages from nowhere": b"NQ.",
    "a line without end": b"I" + b"1" * 3_000_000,
}


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_pickle_is_one_clear_error(body: bytes) -> None:
    with pytest.raises(FormatError):
        run(body)


def test_a_pickle_that_would_fill_the_memory_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchgauge.checkpoint.limits.PICKLE_MEMORY_BYTES", 10**6)
    with pytest.raises(FormatError, match="more values than are safe to hold"):
        run(b"}" * 100_000 + b".")
    with pytest.raises(FormatError, match="more values than are safe to hold"):
        run(b"]" + b"N" * 1000 + b"".join(b"Nq\x000" for _ in range(100_000)) + b".")


def test_too_many_opcodes_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchgauge.checkpoint.limits.PICKLE_OPCODES", 1000)
    with pytest.raises(FormatError, match="more values than are safe to hold"):
        run(b"N0" * 1000 + b"N.")


def test_pickles_nested_in_pickles_are_followed_to_a_depth() -> None:
    body = b"\x80\x04cos\nsystem\n(tR."
    for _ in range(5):
        body = b"\x80\x04csomebody\nload\n(B" + struct.pack("<I", len(body)) + body + b"tR."
    log = ImportLog()
    run(body, log)
    assert "os.system" in log.dangerous


@pytest.mark.parametrize(
    ("module", "name", "verdict"),
    [
        ("collections", "OrderedDict", Verdict.EXPECTED),
        ("torch._utils", "_rebuild_tensor_v2", Verdict.EXPECTED),
        ("torch.nn.modules.linear", "Linear", Verdict.EXPECTED),
        ("__torch__.torch.nn.modules.conv.___torch_mangle_3", "Conv2d", Verdict.EXPECTED),
        ("__builtin__", "set", Verdict.EXPECTED),
        ("copy_reg", "_reconstructor", Verdict.EXPECTED),
        ("ultralytics.nn.tasks", "DetectionModel", Verdict.UNKNOWN),
        ("__main__", "Net", Verdict.UNKNOWN),
        ("torch.nn.modules.linear", "torch.os.system", Verdict.DANGEROUS),
        ("torch.nn.modules.linear", "F.boolean_dispatch", Verdict.UNKNOWN),
        ("collections", "OrderedDict.__class__", Verdict.DANGEROUS),
        ("__builtin__", "eval", Verdict.DANGEROUS),
        ("builtins", "getattr", Verdict.DANGEROUS),
        ("commands", "getoutput", Verdict.DANGEROUS),
        ("numpy", "load", Verdict.DANGEROUS),
        ("numpy", "ndarray", Verdict.EXPECTED),
        ("somebody.os", "system", Verdict.DANGEROUS),
    ],
)
def test_names_are_judged(module: str, name: str, verdict: Verdict) -> None:
    assert judge(module, name) is verdict
