"""Records of an archive, read by torch's own reader, so that the bytes that are checked are those that torch reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from torchgauge.errors import FormatError, first_line


class ArchiveRecords:
    """The records of an archive by their names below its root folder. Raises `FormatError` if torch cannot read them: a
    record outside the root folder, a name that is not UTF-8, a truncated or corrupt directory."""

    def __init__(self, path: str) -> None:
        self._path = path
        with self._readable():
            self._reader = torch._C.PyTorchFileReader(path)
            self.names: list[str] = self._reader.get_all_records()

    def size(self, record: str) -> int:
        """The size of a record in bytes. Older versions of torch only have it after reading the record."""
        with self._readable():
            if hasattr(self._reader, "get_record_size"):
                return int(self._reader.get_record_size(record))
            return len(self._reader.get_record(record))

    def read(self, record: str, limit: int) -> bytes:
        """The content of a record of at most `limit` bytes."""
        if self.size(record) > limit:
            raise FormatError(f"'{self._path}': {record} is larger than {limit >> 20} MiB")
        with self._readable():
            return bytes(self._reader.get_record(record))

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise FormatError(f"cannot read '{self._path}': {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise FormatError(f"'{self._path}' has a record whose name is not UTF-8") from error
        # C++ exceptions; std::out_of_range, raised for a version with too many digits, becomes an IndexError.
        except (RuntimeError, IndexError, ValueError) as error:
            raise FormatError(f"'{self._path}' is not an archive that torch reads: {first_line(error)}") from error
