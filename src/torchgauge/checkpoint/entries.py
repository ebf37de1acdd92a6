"""From the tensors of a pickle to the entries of an index: places checked, roles given, sharing found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from torchgauge.checkpoint.dtypes import VALUES_PER_BYTE, item_bytes
from torchgauge.checkpoint.import_log import printable
from torchgauge.checkpoint.index import Deflated, Entry, Role
from torchgauge.checkpoint.packing import unpack, with_logical
from torchgauge.checkpoint.pickle_values import Inline, Storage, Tensor
from torchgauge.checkpoint.roles import classify, find_model_prefix
from torchgauge.checkpoint.sharing import View, find_owners
from torchgauge.checkpoint.walking import Found, Path
from torchgauge.errors import FormatError
from torchgauge.facts import TensorSpec
from torchgauge.facts.strides import is_contiguous


@dataclass(frozen=True, slots=True)
class Place:
    """The bytes of a storage: `offset` is None where they do not lie plainly in the file."""

    file: str
    offset: int | None
    size: int
    deflated: Deflated | None = None


Locate = Callable[[Storage], Place]


@dataclass(frozen=True, slots=True)
class Listing:
    entries: tuple[Entry, ...]
    model_prefix: str


def list_entries(found: Sequence[Found], locate: Locate, file: str, *, big_endian: bool = False,
                 is_module: bool = False) -> Listing:  # fmt: skip
    """The entries of all tensors; `locate` says where a storage's bytes are; `is_module`: the file is one module."""
    paths = [item.path for item in found]
    prefix = () if is_module else find_model_prefix(paths)
    is_optimizer = _is_optimizer_file(paths)
    entries, views = [], []
    for name, item in zip(_unique_names(found), found, strict=True):
        tensor = item.tensor
        place = _place(tensor, locate, file)
        view = None if place is None else _view(tensor, place)
        spec = _spec(tensor.shape, tensor.dtype, tensor.stride)
        role = _role(item, spec, prefix, is_optimizer_file=is_optimizer)
        entry = _entry(name, spec, tensor, place, view, role, big_endian)
        entries.append(entry if item.logical is None else with_logical(entry, item.logical))
        views.append(view)
    return Listing(tuple(_share(entries, views)), ".".join((*prefix, "")) if prefix else "")


def _role(item: Found, spec: TensorSpec, prefix: Path, *, is_optimizer_file: bool) -> Role:
    """A pickled module knows its parameters; beside the model it is a copy all the same."""
    if item.role is not None and item.path[: len(prefix)] == prefix:
        return item.role
    return classify(item.path, spec, prefix, is_optimizer_file=is_optimizer_file)


def _is_optimizer_file(paths: Sequence[Path]) -> bool:
    """`{"state": {0: {"exp_avg": …}}, "param_groups": […]}`, as `optimizer.state_dict()` saves it."""
    return bool(paths) and all(len(path) == 3 and path[0] == "state" and path[1].isdigit() for path in paths)


def _unique_names(found: Sequence[Found]) -> list[str]:
    """Different paths may spell the same name when keys have dots in them."""
    seen: dict[str, int] = {}
    names = []
    for item in found:
        name = ".".join(item.path) or "tensor"
        if name in seen:
            seen[name] += 1
            name = f"{name} ({seen[name]})"
        else:
            seen[name] = 1
        names.append(name)
    return names


def _place(tensor: Tensor, locate: Locate, file: str) -> Place | None:
    if tensor.storage is None:
        return None
    if isinstance(tensor.storage, Inline):
        return Place(file, tensor.storage.position, tensor.storage.size)
    return locate(tensor.storage)


@lru_cache(maxsize=4096)
def _spec(shape: tuple[int, ...], dtype: str, stride: tuple[int, ...]) -> TensorSpec:
    """One for all tensors alike."""
    return TensorSpec(shape, dtype, None if is_contiguous(shape, stride) else stride)


def _entry(name: str, spec: TensorSpec, tensor: Tensor, place: Place | None, view: View | None, role: Role,
           big_endian: bool) -> Entry:  # fmt: skip
    if place is None or view is None:
        return Entry(name, spec, "", None, 0, role)
    per_byte = VALUES_PER_BYTE.get(tensor.dtype, 1)
    end = 0 if view.is_empty else -(-view.span[1] // per_byte)
    if end > place.size:
        raise FormatError(
            f"the tensor {printable(name)} reaches to byte {end} of a storage of {place.size}; "
            "the file is damaged or was made to deceive"
        )
    start = view.offset * view.item
    offset = None if place.offset is None else place.offset + start
    deflated = None if place.deflated is None else replace(place.deflated, start=start)
    nbytes = -(-spec.distinct_numel // per_byte) * view.item
    is_big = big_endian or tensor.is_big_endian
    return Entry(name, spec, place.file, offset, nbytes, role, big_endian=is_big, deflated=deflated)


def _share(entries: list[Entry], views: list[View | None]) -> list[Entry]:
    for number, owner in find_owners(views).items():
        entries[number] = replace(entries[number], shared_with=entries[owner].name)
    return entries


def _view(tensor: Tensor, place: Place) -> View:
    storage = tensor.storage
    if not isinstance(storage, Storage):
        return View(id(storage), tensor.offset, tensor.shape, tensor.stride, item_bytes(tensor.dtype))
    key, first = (place.file, storage.key), tensor.offset + storage.first
    return View(key, first, tensor.shape, tensor.stride, item_bytes(tensor.dtype))


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
