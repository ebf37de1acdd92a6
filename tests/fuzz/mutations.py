"""Damage that knows the formats: what a reader meets behind the first check, besides what breaks the first one."""

from __future__ import annotations

import io
import json
import pickletools
import random
import re
import struct
import zipfile
from collections.abc import Callable
from typing import Any

from tests.fuzz.samples import Files

Mutation = Callable[[bytes, random.Random], bytes]

HUGE = (2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64, 10**30, 10**400, -1, -(2**63), 0)
# Calls that a pickle or a graph must never reach; the canary is looked for after every case.
CANARY = "fuzz-canary"
_CALLS = (
    b"cposix\nsystem\n(X%b%btR" % (struct.pack("<I", 6 + len(CANARY)), b"touch " + CANARY.encode()),
    b"cbuiltins\nexec\n(X%b%btR" % (struct.pack("<I", 12 + len(CANARY)), b"open('%b','w')" % CANARY.encode()),
    b"cbuiltins\nopen\n(X%b%bX\x01\x00\x00\x00wtR" % (struct.pack("<I", len(CANARY)), CANARY.encode()),
)
_TEXTS = ("", "\0", "\ud800", "\u202e\x1b[31m", "a" * 5000, "../../etc/passwd", "/etc/passwd", ".", "float32", "NaN",
          "torch.ops.aten.add.Tensor.__globals__", "{0.__class__}", "%s%n", "a." * 700, "1e999")  # fmt: skip
# Names that act where they are shown, or that stand for something else in a pattern of names.
NAMES = ("layers.0.*.w", "a.0.*", "*", r"x\*.1.w", "layers.²", f"layers.{'9' * 5000}.w", "::error::forged",
         "::set-output name=a::b.0.weight", "##[error]forged", "x ##vso[task.complete]", " ::warning::w",
         "a\ntorchgauge: everything is fine", "a\n::error::forged", "a\r::error::forged", "[red]x[/red]", "=1+1",
         "<img src=x onerror=alert(1)>", "`x` | y", "a..b", ".a.", "0.0.0")  # fmt: skip
_WORDS = (b"torch.save", b"ops.aten.from_file", b"__torch__.torch.classes.a.B", b"getattr", b"self" + b".a" * 1200,
          b"(" * 300, b"-" * 400, b"99999999999999999999", b"-1", b"1e400", b"None", b"while True:\n  pass\n",
          b"torch.zeros([1 << 40])", b"__setstate__", b"\xff\xfe", b"CONSTANTS.c99")  # fmt: skip

_OPCODES = (b"R", b"b", b"o", b"\x81", b"s", b"u", b"a", b"e", b"2", b"0", b"(", b"t", b"Q", b"h\x00", b"N", b"]", b"}",
            b"\x8c\x03abc", b"J\xff\xff\xff\xff", b"\x8a\x09" + b"\xff" * 9)  # fmt: skip


def mutate(files: Files, chance: random.Random) -> Files:
    """The same files with a few changes, most of them in one file and made with its format in mind."""
    changed = dict(files)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        if len(changed) > 1 and chance.random() < 0.1:
            _rearrange(changed, chance)
        name = chance.choice(sorted(changed)) if changed else None
        if name is not None:
            changed[name] = mutate_content(changed[name], chance)
    return changed


def mutate_content(content: bytes, chance: random.Random, depth: int = 0) -> bytes:
    blind: tuple[Mutation, ...] = (flip, cut, splice, integer)
    known: tuple[Mutation, ...]
    if content[:4] == b"PK\x03\x04" and depth < 2:
        known = (zip_header, *(lambda data, chance: zip_records(data, chance, depth + 1),) * 8)
    elif content[:4] == b"GGUF":
        known = (gguf_header,)
    elif content[8:9] == b"{":
        known = (safetensors_header,)
    elif content[:1] in (b"{", b"["):
        known = (json_document,)
    elif content[:2] in (b"\x80\x02", b"\x80\x04"):
        known = (pickle_stream,)
    elif re.match(rb"(class|op_version|from|import)", content):
        known = (source,)
    else:
        known = (lines,)
    chosen: Mutation = chance.choice(known if chance.random() < 0.8 else blind)
    try:
        return chosen(content, chance)
    # A second change may hit what the first has broken, which these libraries report in many ways.
    except Exception:
        return flip(content, chance)


def _rearrange(files: Files, chance: random.Random) -> None:
    name, other = chance.sample(sorted(files), 2)
    match chance.randrange(4):
        case 0:
            del files[name]
        case 1:
            files[name] = files[other]
        case 2:
            files[name], files[other] = files[other], files[name]
        case _:
            files[f"{name}.copy"] = files.pop(name)


def flip(content: bytes, chance: random.Random) -> bytes:
    damaged = bytearray(content or b"\0")
    for _ in range(chance.choice((1, 2, 4, 16))):
        damaged[chance.randrange(len(damaged))] = chance.choice((0, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    return bytes(damaged)


def cut(content: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(content) + 1)
    return content[:at] if chance.random() < 0.8 else content[at:]


def splice(content: bytes, chance: random.Random) -> bytes:
    """A part repeated, left out or moved elsewhere."""
    start, end = sorted(chance.randrange(len(content) + 1) for _ in range(2))
    part = content[start : min(end, start + 4096)]
    rest = content[:start] + content[start + len(part) :]
    at = chance.randrange(len(rest) + 1)
    return rest if chance.random() < 0.3 else (rest[:at] + part * chance.choice((1, 2, 50)) + rest[at:])


def integer(content: bytes, chance: random.Random) -> bytes:
    """A number in binary, where one may be."""
    size = chance.choice((1, 2, 4, 8))
    value = chance.choice(HUGE) % (1 << 8 * size)
    at = chance.randrange(max(len(content) - size, 1))
    return content[:at] + value.to_bytes(size, "little") + content[at + size :]


def lines(content: bytes, chance: random.Random) -> bytes:
    parts = content.split(b"\n")
    at = chance.randrange(len(parts))
    parts[at] = chance.choice((b"", b"\xff\xfe", b"../..", b"9" * 500, parts[at] * 2, b"\0", b"a/b"))
    return b"\n".join(parts)


def source(content: bytes, chance: random.Random) -> bytes:
    """Words of the code in an archive replaced by others, of the code or from elsewhere."""
    found = list(re.finditer(rb"[\w.]+", content))
    spot = chance.choice(found)
    new = chance.choice((chance.choice(found).group(), chance.choice(_WORDS)))
    return content[: spot.start()] + new + content[spot.end() :]


def zip_header(content: bytes, chance: random.Random) -> bytes:
    """A field of a local header, a directory entry or the end record."""
    marks = [found.start() for found in re.finditer(rb"PK(\x01\x02|\x03\x04|\x05\x06|\x06\x06|\x06\x07)", content)]
    at = chance.choice(marks) + 4 + 2 * chance.randrange(20)
    return integer_at(content, at, chance)


def integer_at(content: bytes, at: int, chance: random.Random) -> bytes:
    size = chance.choice((2, 4))
    value = chance.choice((0, 1, 8, 12, 14, 99, 2 ** (8 * size) - 1, chance.randrange(2 ** (8 * size))))
    return content[:at] + value.to_bytes(size, "little") + content[at + size :]


def zip_records(content: bytes, chance: random.Random, depth: int) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        records = [(entry.filename, archive.read(entry)) for entry in archive.infolist()]
    at = chance.randrange(len(records))
    name, data = records[at]
    match chance.randrange(8):
        case 0:
            del records[at]
        case 1:
            records[at] = _record_name(name, chance), data
        case 2:
            records.append((name, mutate_content(data, chance, depth)))
        case 3:
            records[at] = name, chance.choice(records)[1]
        case _:
            # Small records hold the structure, large ones are tensors.
            at = min(chance.sample(range(len(records)), min(3, len(records))), key=lambda i: len(records[i][1]))
            records[at] = records[at][0], mutate_content(records[at][1], chance, depth)
    return write_zip(records, zipfile.ZIP_DEFLATED if chance.random() < 0.1 else zipfile.ZIP_STORED)


def _record_name(name: str, chance: random.Random) -> str:
    root, _, rest = name.partition("/")
    return chance.choice(
        (rest, f"elsewhere/{rest}", f"../{name}", f"/{name}", f"{name}/", name.upper(), "", "\udcff", "a" * 60_000,
         f"{root}/code/x.py", f"{root}/data.pkl", f"{root}/constants.pkl", f"{root}/models/other.json", f"{name}\0.py",
         name.replace("/", "\\"), f"{root}//{rest}")
    )  # fmt: skip


def write_zip(records: list[tuple[str, bytes]], compression: int) -> bytes:
    """Also names that are not UTF-8, which `zipfile` does not write: they are put in afterwards."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in records:
            info = zipfile.ZipInfo("x")
            info.filename = name.replace("\udcff", "\x07")
            info.compress_type = compression
            archive.writestr(info, data)
    return (
        buffer.getvalue().replace(b"\x07", b"\xff")
        if any("\udcff" in name for name, _ in records)
        else buffer.getvalue()
    )


def gguf_header(content: bytes, chance: random.Random) -> bytes:
    """A number or a byte of the metadata or of the list of tensors: counts, lengths, types, sizes, offsets."""
    end = min(len(content), 4096)
    at = chance.randrange(4, end)
    if chance.random() < 0.5:
        width = chance.choice((4, 8))
        number = chance.choice((0, 1, 2, 7, 31, 255, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1))
        data = (number % (1 << 8 * width)).to_bytes(width, "little")
    else:
        data = bytes([chance.randrange(256)])
    return content[:at] + data + content[at + len(data) :]


def safetensors_header(content: bytes, chance: random.Random) -> bytes:
    size = int.from_bytes(content[:8], "little")
    header = json_document(content[8 : 8 + size], chance)
    stated = len(header) if chance.random() < 0.9 else chance.choice(HUGE) % 2**64
    return stated.to_bytes(8, "little") + header + content[8 + size :]


def json_document(content: bytes, chance: random.Random) -> bytes:
    """One value, key or list of a document replaced."""
    document = json.loads(content)
    places = list(_places(document))
    holder, key = chance.choice(places)
    match chance.randrange(10):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[chance.choice(("", "name", "path", f"{key}x", str(chance.choice(HUGE)), *NAMES))] = holder.pop(key)
        case 2:
            other, there = chance.choice(places)
            holder[key], other[there] = other[there], holder[key]
        case 3 if isinstance(holder[key], list):
            holder[key] = holder[key] * 2 or [None]
        case _:
            holder[key] = _other_value(holder[key], chance)
    text = json.dumps(document)
    if chance.random() < 0.04:
        # Deeper than Python's own writer goes.
        text = text.replace("null", "[" * 3000 + "]" * 3000, 1)
    return text.encode("utf-8", "surrogatepass")


def _places(value: Any) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items):
        yield value, key
        yield from _places(item)


def _other_value(value: Any, chance: random.Random) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and chance.random() < 0.5:
        return chance.choice((*HUGE, value + 1, value - 1, -value, value * 1000, float(value), str(value), True))
    if isinstance(value, str) and chance.random() < 0.5:
        return chance.choice((*_TEXTS, *NAMES, value.upper(), value[:-1], value * 2, f"{value}.{value}"))
    deep: Any = []
    for _ in range(chance.choice((10, 100, 400))):
        deep = [deep] if chance.random() < 0.5 else {"a": deep}
    return chance.choice(
        (None, True, False, 0, -1, 1.5, float("nan"), float("inf"), 1e300, *HUGE, "", "text", [], {}, [[]], [None],
         {"": None}, {"shape": [-1], "dtype": 7}, [value], {"a": value}, deep)
    )  # fmt: skip


def deep_values(chance: random.Random) -> bytes:
    """Lists, tuples or dicts in each other, as deep as a stack is not."""
    depth = chance.choice((150, 1100, 20_000, 300_000))
    return chance.choice(
        (b"]" * depth + b"a" * (depth - 1), b")" + b"\x85" * depth, b"}K\0" * depth + b"N" + b"s" * depth)
    )


def colliding_keys(chance: random.Random) -> bytes:
    """A dict whose keys have one hash in Python, or one slot in torch's table."""
    inverse = pow(11400714819323198485, -1, 1 << 64)
    count, factor = chance.choice((60, 5000)), chance.choice(((1 << 61) - 1, inverse, 1 << 40))
    keys = (number * factor % (1 << 64) for number in range(count))
    items = (b"\x8a\x09" + key.to_bytes(9, "little") + chance.choice((b"", b"\x85")) + b"N" for key in keys)
    return b"}(" + b"".join(items) + b"u"


def claimed_size(chance: random.Random) -> bytes:
    """A text, bytes, integer or memo number that claims to be long."""
    size = chance.choice((2**31 - 1, 2**31, 2**32 - 1))
    short, long_ = size.to_bytes(4, "little"), chance.choice(HUGE) % 2**64
    return chance.choice((b"X" + short, b"B" + short, b"T" + short, b"\x8b" + short, b"r" + short, b"j" + short,
                          b"\x8d" + long_.to_bytes(8, "little"), b"\x8e" + long_.to_bytes(8, "little"),
                          b"\x95" + long_.to_bytes(8, "little")))  # fmt: skip


def _text(chance: random.Random) -> bytes:
    encoded = chance.choice(NAMES).encode()
    return b"X" + len(encoded).to_bytes(4, "little") + encoded


def pickle_stream(content: bytes, chance: random.Random) -> bytes:
    """An opcode left out, repeated, exchanged or given another argument; what follows is kept."""
    places = [at for _, _, at in pickletools.genops(content) if at is not None]
    starts = [*places, len(content)]
    number = chance.randrange(len(places))
    start, end = starts[number], starts[number + 1]
    opcode = content[start:end]
    match chance.randrange(12):
        case 0:
            new = b""
        case 1:
            new = opcode * chance.choice((2, 3, 200))
        case 2:
            new = bytes([chance.choice([ord(op.code) for op in pickletools.opcodes])]) + opcode[1:]
        case 3:
            other = chance.randrange(len(places))
            new = content[starts[other] : starts[other + 1]]
        case 4:
            new = chance.choice(_CALLS) + opcode
        case 5:
            new = chance.choice(_OPCODES)
            new = new + opcode if chance.random() < 0.5 else opcode + new
        case 6 if len(opcode) > 2:
            new = opcode[:1] + flip(opcode[1:], chance)
        case 7:
            new = deep_values(chance) + chance.choice((b"", b"0" + opcode, opcode))
        case 8:
            new = colliding_keys(chance) + chance.choice((b"", b"0" + opcode, opcode))
        case 9:
            new = claimed_size(chance) + opcode
        case 10 if texts := [place for place in places if content[place : place + 1] == b"X"]:
            start = chance.choice(texts)
            end = starts[places.index(start) + 1]
            new = _text(chance)
        case _:
            value = chance.choice(HUGE)
            new = b"\x8a\x09" + (value % 2**72).to_bytes(9, "little")
    return content[:start] + new + content[end:]
