"""Cache directory and atomic file writes."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Protocol


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


class Draft(Protocol):
    """A file being written: invisible before `commit`; `discard` leaves the previous file."""

    def write(self, data: bytes) -> None: ...

    def commit(self) -> None: ...

    def discard(self) -> None: ...


class Writer(Protocol):
    """Everything that torchgauge does to files. A process without rights asks its parent (`isolation`)."""

    def draft(self, final: Path) -> Draft: ...

    def append(self, path: Path, data: bytes) -> None:
        """The folder is made where it is missing."""

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
        with path.open("ab") as stream:
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
