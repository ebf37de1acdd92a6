"""Cache directory and atomic file writes."""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, Protocol

from torchgauge import __version__

# A line of a journal takes up to 300 KB, so this is enough for more than 10,000 large tensors.
JOURNAL_BYTES = 4 << 30
JOURNALS_BYTES = 2 * JOURNAL_BYTES
EXPIRES_AFTER_S = 30 * 86400


def cache_folder() -> Path:
    """`TORCHGAUGE_CACHE`, else where the system keeps caches."""
    if chosen := os.environ.get("TORCHGAUGE_CACHE"):
        return Path(chosen)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "torchgauge"


def is_private(path: Path) -> bool:
    """Whether nobody but this user and root can write to a file or folder, or replace it: what is loaded from there may
    be code. Windows keeps the folders of users apart."""
    if sys.platform == "win32":
        return True
    import grp
    import pwd

    owners, groups = {0, os.geteuid()}, {0}
    with suppress(KeyError, OSError):
        user = pwd.getpwuid(os.geteuid())
        if grp.getgrgid(user.pw_gid).gr_name == user.pw_name:
            groups.add(user.pw_gid)  # many systems give each user a group, and folders that this group may write to
    path = path.resolve()
    for place in (path, *path.parents):
        try:
            found = place.stat()
        except OSError:
            return False
        is_sticky = place != path and found.st_mode & stat.S_ISVTX  # as /tmp: others cannot rename what is in it
        is_shared = found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and found.st_gid not in groups)
        if found.st_uid not in owners or (is_shared and not is_sticky):
            return False
    return True


def kernel_file(device: str) -> Path:
    """The file with the measured kernels of this machine's device ("cpu", "cuda")."""
    return cache_folder() / f"kernels-{device}.npz"


def journal_folder() -> Path:
    """The folder for journals of interrupted scans."""
    return cache_folder() / "scans"


def journal_file(target: str | os.PathLike[str], *options: object) -> Path:
    """The journal of a scan, from what the user asked for: a process without rights may write to no other."""
    identity = repr((os.path.realpath(target), options, __version__))
    return journal_folder() / f"{blake2b(identity.encode(errors='surrogatepass'), digest_size=16).hexdigest()}.jsonl"


def make_room_for_journal(own: Path) -> None:
    """Remove journals that are expired, and the oldest ones until another fits."""
    found = [(path.stat().st_mtime, path.stat().st_size, path) for path in own.parent.glob("*.jsonl") if path != own]
    taken = sum(size for _, size, _ in found)
    for written, size, path in sorted(found):
        if taken > JOURNALS_BYTES - JOURNAL_BYTES or time.time() - written > EXPIRES_AFTER_S:
            path.unlink(missing_ok=True)
            taken -= size


class Draft(Protocol):
    """A file being written: invisible before `commit`; `discard` leaves the previous file."""

    def write(self, data: bytes) -> None: ...

    def commit(self) -> None: ...

    def discard(self) -> None: ...


class Writer(Protocol):
    """Everything that torchgauge does to files. A process without rights asks its parent (`isolation`)."""

    def draft(self, final: Path) -> Draft: ...

    def append(self, path: Path, data: bytes) -> None:
        """Add to a journal; its folder is made where it is missing."""

    def remove(self, path: Path) -> None: ...


class LocalDraft:
    """Written next to the target and renamed. A pipe or a device gets the bytes directly."""

    def __init__(self, final: Path) -> None:
        # A link stays a link: the file it points to is replaced.
        self._final = final.resolve()
        self._is_direct = self._final.exists() and not (self._final.is_file() or self._final.is_dir())
        # The draft's name does not grow with that of the file, which may be as long as a name can be.
        draft = self._final.with_name(f".torchgauge-{os.urandom(8).hex()}")
        self._draft = self._final if self._is_direct else draft
        self._stream: BinaryIO = self._draft.open("wb")

    def write(self, data: bytes) -> None:
        self._stream.write(data)

    def commit(self) -> None:
        try:
            self._stream.close()
            if not self._is_direct:
                os.replace(self._draft, self._final)
        except OSError:
            self.discard()
            raise

    def discard(self) -> None:
        # Whoever writes reports a full disk; a folder that may not be searched has no draft either.
        with suppress(OSError):
            self._stream.close()
        if not self._is_direct:
            with suppress(OSError):
                self._draft.unlink(missing_ok=True)


class LocalWriter:
    def draft(self, final: Path) -> Draft:
        return LocalDraft(final)

    def append(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # another process makes room too
            if not path.exists():
                make_room_for_journal(path)
        with path.open("ab") as stream:
            if stream.tell() + len(data) > JOURNAL_BYTES:
                raise OSError(errno.EFBIG, "the journal of the scan is full")
            stream.write(data)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)


# An isolated reader puts its own in this place.
writer: Writer = LocalWriter()


def replace_file(final: Path, data: bytes | Iterable[bytes]) -> None:
    """A reader sees the old file or the new one, never half of it."""
    draft = writer.draft(final)
    try:
        for piece in (data,) if isinstance(data, bytes) else data:
            draft.write(piece)
    except BaseException:
        draft.discard()
        raise
    draft.commit()
