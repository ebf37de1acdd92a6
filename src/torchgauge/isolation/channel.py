"""Messages between a sandboxed process and its parent: a JSON object and bytes. Data only, never objects."""

from __future__ import annotations

import json
import os
import struct
from contextlib import suppress
from threading import Lock
from typing import IO, Any, NamedTuple

from torchgauge.isolation.messages import MAX_HEADER_BYTES, PIECE_BYTES, Admission, BadMessageError

_FRAME = struct.Struct("=IQ")  # bytes of the header, bytes of the payload


class Message(NamedTuple):
    kind: str
    facts: dict[str, Any]
    payload: bytes = b""


class Channel:
    def __init__(self, reader: IO[bytes], writer: IO[bytes], admission: Admission | None = None) -> None:
        """`admission`: of messages by a reader; None where the other side is trusted."""
        self._reader, self._writer, self._admission = reader, writer, admission
        self._lock = Lock()

    @classmethod
    def pair(cls, admission: Admission) -> tuple[Channel, Channel]:
        """The parent's end, and the child's."""
        down, up = os.pipe(), os.pipe()
        parent = cls(os.fdopen(up[0], "rb"), os.fdopen(down[1], "wb"), admission)
        return parent, cls(os.fdopen(down[0], "rb"), os.fdopen(up[1], "wb"))

    @property
    def files(self) -> tuple[int, int]:
        return self._reader.fileno(), self._writer.fileno()

    def close(self) -> None:
        for stream in (self._reader, self._writer):
            with suppress(OSError):  # the other side has ended; unwritten data is lost
                stream.close()

    def send(self, kind: str, payload: bytes = b"", **facts: Any) -> None:
        header = json.dumps({"kind": kind, **facts}).encode()
        self._writer.write(_FRAME.pack(len(header), len(payload)) + header)
        self._writer.write(payload)
        self._writer.flush()

    def receive(self) -> Message | None:
        """None if the other side has ended."""
        frame = self._reader.read(_FRAME.size)
        if len(frame) < _FRAME.size:
            return None
        header_size, payload_size = _FRAME.unpack(frame)
        if header_size > MAX_HEADER_BYTES and self._admission is not None:
            raise BadMessageError(f"a header of {header_size:,} bytes")
        header = self._read(header_size)
        if header is None:
            return None
        try:
            facts = json.loads(header)
            kind = facts.pop("kind")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BadMessageError("no header") from error
        if self._admission is not None:
            self._admission.admit(str(kind), facts, payload_size)
        payload = self._read(payload_size)
        return None if payload is None else Message(str(kind), facts, payload)

    def ask(self, kind: str, payload: bytes = b"", **facts: Any) -> dict[str, Any]:
        """The parent's answer; an OSError of the parent is raised here. Thread-safe."""
        with self._lock:
            self.send(kind, payload, **facts)
            answer = self.receive()
        if answer is None:
            raise OSError("the parent process has ended")
        if "errno" in answer.facts:
            raise OSError(answer.facts["errno"], answer.facts["strerror"])
        return answer.facts

    def _read(self, size: int) -> bytes | None:
        """In pieces, so that memory is allocated for received bytes, not for announced ones."""
        parts = []
        while size > 0:
            part = self._reader.read(min(size, PIECE_BYTES))
            if not part:
                return None
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)
