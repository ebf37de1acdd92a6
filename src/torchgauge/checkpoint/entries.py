"""From the tensors of a pickle to the entries of an index: places checked, roles given, sharing found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torchgauge.checkpoint.dtypes import VALUES_PER_BYTE, item_bytes
from torchgauge.checkpoint.import_log import printable
from torchgauge.checkpoint.index import Entry, Role
from torchgauge.checkpoint.packing import unpack
from torchgauge.checkpoint.pickle_values import Inline, Storage, Tensor
from torchgauge.checkpoint.roles import classify, find_model_prefix
from torchgauge.checkpoint.sharing import View, find_owners
from torchgauge.checkpoint.walking import Found, Path
from torchgauge.errors import FormatError
from torchgauge.records import TensorSpec


@dataclass(frozen=True, slots=True)
class Place:
    """The bytes of a storage: `offset` is None where they do not lie plainly in the file."""

    file: str
    offset: int | None
    size: int


Locate = Callable[[Storage], Place]


@dataclass(frozen=True, slots=True)
class Listing:
    entries: tuple[Entry, ...]
    model_prefix: str


def list_entries(found: Sequence[Found], locate: Locate, file: str, *, big_endian: bool = False,
                 is_module: bool = False) -> Listing:  # fmt: skip
    """The entries of all tensors; `locate` says where a storage's bytes are; `is_module`: the file is one module."""
    names = _unique_names(found)
    placed = [
        _entry(name, item, _place(item.tensor, locate, file), big_endian)
        for name, item in zip(names, found, strict=True)
    ]
    prefix = () if is_module else find_model_prefix([item.path for item in found])
    is_optimizer = _is_optimizer_file([item.path for item in found])
    entries = [
        entry if item.role is not None and _keeps_role(item, prefix)
        else replace(entry, role=classify(item.path, entry.spec, prefix, is_optimizer_file=is_optimizer))
        for entry, item in zip(placed, found, strict=True)
    ]  # fmt: skip
    return Listing(tuple(_share(entries, found)), ".".join((*prefix, "")) if prefix else "")


def _keeps_role(item: Found, prefix: Path) -> bool:
    """A pickled module knows its parameters; beside the model it is a copy all the same."""
    return item.path[: len(prefix)] == prefix


def _is_optimizer_file(paths: Sequence[Path]) -> bool:
    """`{"state": {0: {"exp_avg": …}}, "param_groups": […]}`, as `optimizer.state_dict()` saves it."""
    return bool(paths) and all(len(path) == 3 and path[0] == "state" and path[1].isdigit() for path in paths)


def _unique_names(found: Sequence[Found]) -> list[str]:
    """Different paths may spell the same name when keys have dots in them."""
    seen: dict[str, int] = {}
    names = []
    for item in found:
        name = ".".join(item.path) or "tensor"
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return names


def _place(tensor: Tensor, locate: Locate, file: str) -> Place | None:
    if tensor.storage is None:
        return None
    if isinstance(tensor.storage, Inline):
        return Place(file, tensor.storage.position, tensor.storage.size)
    return locate(tensor.storage)


def _entry(name: str, item: Found, place: Place | None, big_endian: bool) -> Entry:
    tensor = item.tensor
    spec = TensorSpec(tensor.shape, tensor.dtype, None if is_contiguous(tensor.shape, tensor.stride) else tensor.stride)
    role = item.role or Role.PARAMETER
    if place is None:
        return Entry(name, spec, "", None, 0, role)
    _check_extent(name, tensor, place)
    offset = None if place.offset is None else place.offset + _first(tensor) * item_bytes(tensor.dtype)
    per_byte = VALUES_PER_BYTE.get(tensor.dtype)
    nbytes = -(-spec.distinct_numel // per_byte) if per_byte else spec.distinct_numel * item_bytes(tensor.dtype)
    return Entry(name, spec, place.file, offset, nbytes, role, big_endian=big_endian or tensor.is_big_endian)


def _first(tensor: Tensor) -> int:
    return tensor.offset + (tensor.storage.first if isinstance(tensor.storage, Storage) else 0)


def _check_extent(name: str, tensor: Tensor, place: Place) -> None:
    view = View(None, _first(tensor), tensor.shape, tensor.stride, item_bytes(tensor.dtype))
    per_byte = VALUES_PER_BYTE.get(tensor.dtype, 1)
    if not view.is_empty and -(-view.span[1] // per_byte) > place.size:
        raise FormatError(
            f"the tensor {printable(name)} reaches to byte {view.span[1]} of a storage of {place.size}; "
            "the file is damaged or was made to deceive"
        )


def is_contiguous(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    if 0 in shape:
        return True
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1:
            if step != expected:
                return False
            expected *= size
    return True


def _share(entries: list[Entry], found: Sequence[Found]) -> list[Entry]:
    views = [_view(entry, item.tensor) for entry, item in zip(entries, found, strict=True)]
    owners = find_owners(views)
    return [
        entry if owner is None else replace(entry, shared_with=entries[owner].name)
        for entry, owner in zip(entries, owners, strict=True)
    ]


def _view(entry: Entry, tensor: Tensor) -> View | None:
    if tensor.storage is None:
        return None
    storage = tensor.storage
    key = (entry.file, storage.key) if isinstance(storage, Storage) else id(storage)
    return View(key, _first(tensor), tensor.shape, tensor.stride, item_bytes(tensor.dtype))


SMALL_BYTES = 4096


def unpack_packed(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    return tuple(unpack(entries, read_small))


def read_small(entry: Entry) -> bytes | None:
    """A tensor that says how others are packed: shapes and the like, never weights."""
    if entry.offset is None or entry.nbytes > SMALL_BYTES:
        return None
    with open(entry.file, "rb") as stream:
        stream.seek(entry.offset)
        return stream.read(entry.nbytes)
