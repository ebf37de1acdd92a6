"""Stand-ins for the results of known, harmless functions in the pickle of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from torchgauge.checkpoint import limits
from torchgauge.checkpoint.byte_source import ByteSource
from torchgauge.checkpoint.dtypes import DTYPE_ALIASES, NUMPY, TORCH_DTYPES
from torchgauge.checkpoint.pickle.values import Blob, Data, Global, Inline, Instance, Storage, Tensor, as_key
from torchgauge.checkpoint.signatures import OLD_SCRIPT
from torchgauge.errors import FormatError
from torchgauge.registry import Registry

Rebuilder = Callable[[Global, tuple[object, ...]], object]
REBUILDERS: Registry[str, Rebuilder] = Registry("rebuilder of")
rebuilds = REBUILDERS.register


def whole(value: object) -> int:
    if type(value) is not int or not 0 <= value <= limits.INTEGER:
        raise FormatError("a size, stride or offset of a tensor is not a 63-bit integer")
    return value


def sizes(value: object) -> tuple[int, ...]:
    if not isinstance(value, (tuple, list)) or len(value) > limits.DIMENSIONS:
        raise FormatError("the shape or stride of a tensor is not a list of numbers")
    for size in value:
        whole(size)
    return tuple(value)


def dtype_name(value: object) -> str:
    if isinstance(value, Global) and value.module == "torch" and value.name in TORCH_DTYPES:
        return DTYPE_ALIASES.get(value.name, value.name)
    raise FormatError("the dtype of a tensor is unknown")


def _strided(storage: object, dtype: str, offset: object, size: object, stride: object) -> Tensor:
    shape, steps = sizes(size), sizes(stride)
    if not isinstance(storage, Storage) or len(shape) != len(steps):
        raise FormatError("a tensor in the pickle has no storage, or its shape and stride differ in length")
    return Tensor(storage, dtype, shape, steps, whole(offset))


def _arguments(args: tuple[object, ...], count: int) -> tuple[object, ...]:
    if len(args) < count:
        raise FormatError(f"a tensor in the pickle is described by {len(args)} values instead of {count}")
    return args


@rebuilds("torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_qtensor")
def tensor(function: Global, args: tuple[object, ...]) -> object:
    storage, offset, size, stride = _arguments(args, 4)[:4]
    dtype = storage.dtype if isinstance(storage, Storage) else None
    return _strided(storage, dtype or "uint8", offset, size, stride)


@rebuilds("torch._utils._rebuild_tensor_v3")
def tensor_v3(function: Global, args: tuple[object, ...]) -> object:
    storage, offset, size, stride, _, _, dtype = _arguments(args, 7)[:7]
    return _strided(storage, dtype_name(dtype), offset, size, stride)


@rebuilds("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state")
def parameter(function: Global, args: tuple[object, ...]) -> object:
    data = _arguments(args, 1)[0]
    if not isinstance(data, Tensor):
        return Instance(function, args)
    # A copy: the same data may also be stored as a plain tensor.
    return replace(data, is_parameter=True)


@rebuilds("torch._utils._rebuild_meta_tensor_no_storage")
def meta_tensor(function: Global, args: tuple[object, ...]) -> object:
    dtype, size, stride = _arguments(args, 3)[:3]
    shape, steps = sizes(size), sizes(stride)
    if len(shape) != len(steps):
        raise FormatError("a tensor's shape and stride differ in length")
    return Tensor(None, dtype_name(dtype), shape, steps)


@rebuilds("torch._utils._rebuild_wrapper_subclass")
def wrapper(function: Global, args: tuple[object, ...]) -> object:
    _, dtype, size, stride = _arguments(args, 4)[:4]
    return meta_tensor(function, (dtype, size, stride))


@rebuilds("torch._tensor._rebuild_from_type_v2", "torch._tensor._rebuild_from_type")
def from_type(function: Global, args: tuple[object, ...]) -> object:
    inner, _, inner_args, state = _arguments(args, 4)[:4]
    if not isinstance(inner, Global) or not isinstance(inner_args, tuple):
        return Instance(function, args)
    rebuild = REBUILDERS.get(inner.path)
    if rebuild is None or rebuild is from_type:
        return Instance(function, args)
    made = rebuild(inner, inner_args)
    if isinstance(made, Tensor) and made.storage is None:
        made.parts = state
    return made


@rebuilds("torch._utils._rebuild_sparse_tensor", "torch._utils._rebuild_sparse_csr_tensor")
def sparse(function: Global, args: tuple[object, ...]) -> object:
    """A composite tensor, whose parts are listed instead."""
    values = args[1] if len(args) > 1 else ()
    parts = [value for value in values if isinstance(value, Tensor)] if isinstance(values, tuple | list) else []
    return _composite(function, ("indices", "values") if len(parts) == 2 else _COMPRESSED, parts)


@rebuilds("torch._utils._rebuild_nested_tensor")
def nested(function: Global, args: tuple[object, ...]) -> object:
    return _composite(function, ("values", "sizes", "strides", "offsets"), args)


@rebuilds("torch.nested._internal.nested_tensor._rebuild_njt")
def jagged(function: Global, args: tuple[object, ...]) -> object:
    parts = args[0] if args and isinstance(args[0], dict) else {}
    names = ("values", "offsets", "lengths")
    return _composite(function, names, [parts.get(name) for name in names])


_COMPRESSED = ("crow_indices", "col_indices", "values")


def _composite(function: Global, names: tuple[str, ...], parts: Iterable[object]) -> Instance:
    state = {name: part for name, part in zip(names, parts, strict=False) if isinstance(part, Tensor)}
    return Instance(function, (), state)


@rebuilds("torch._utils._rebuild_device_tensor_from_cpu_tensor", "torch._utils._rebuild_device_tensor_from_numpy")
def device_tensor(function: Global, args: tuple[object, ...]) -> object:
    return _arguments(args, 1)[0]


@rebuilds(
    "collections.OrderedDict", "builtins.dict", "__builtin__.dict", "collections.Counter", "collections.defaultdict"
)
def mapping(function: Global, args: tuple[object, ...]) -> object:
    """Old pickles pass the items as a list of pairs."""
    given = args[-1] if args else None
    if isinstance(given, dict):
        return given
    pairs = given if isinstance(given, list) else []
    return {as_key(pair[0]): pair[1] for pair in pairs if isinstance(pair, tuple | list) and len(pair) == 2}


@rebuilds("torch.Size", "builtins.tuple", "builtins.list", "builtins.set", "builtins.frozenset", "__builtin__.set",
          "torch.jit._pickle.build_intlist", "torch.jit._pickle.build_doublelist", "torch.jit._pickle.build_boollist",
          "torch.jit._pickle.build_tensorlist", "torch.jit._pickle.restore_type_tag")  # fmt: skip
def passed_on(function: Global, args: tuple[object, ...]) -> object:
    given = args[0] if args else ()
    return tuple(given) if function.name == "Size" and isinstance(given, list) else given


@rebuilds("torch.jit._pickle.build_tensor_from_id")
def tensor_by_number(function: Global, args: tuple[object, ...]) -> object:
    raise FormatError(OLD_SCRIPT)


@rebuilds("_codecs.encode")
def encode(function: Global, args: tuple[object, ...]) -> object:
    """Protocol 2 writes bytes as encoded text."""
    text = args[0] if args else ""
    if not isinstance(text, str):
        return Instance(function, args)
    try:
        return Data(text.encode("latin-1"), -1)
    except UnicodeEncodeError:
        return Data(text.encode("utf-8", "surrogatepass"), -1)


@rebuilds("copyreg._reconstructor", "copy_reg._reconstructor")
def reconstructor(function: Global, args: tuple[object, ...]) -> object:
    return Instance(args[0], args[2:] if len(args) > 2 and args[2] is not None else ()) if args else Instance(function)


@rebuilds("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct")
def array(function: Global, args: tuple[object, ...]) -> object:
    return Tensor(Inline(None, 0), "uint8", (0,), (1,))


def rebuild_array(made: Tensor, state: object, source: ByteSource) -> None:
    """The state of a numpy array: version, shape, dtype, is_fortran, data."""
    if not isinstance(made.storage, Inline) or not isinstance(state, tuple) or len(state) != 5:
        return
    _, shape, kind, is_fortran, data = state
    if not isinstance(kind, Instance) or not kind.args or not isinstance(kind.args[0], str):
        return
    order = kind.state[1] if isinstance(kind.state, tuple) and len(kind.state) > 1 else "<"
    name = NUMPY.get(kind.args[0].lstrip("<>|="))
    if name is None or not isinstance(data, Data | Blob):
        return
    made.dtype, made.is_big_endian = name, order == ">"
    made.shape = sizes(shape)
    steps, step = [], 1
    for length in made.shape if is_fortran is True else reversed(made.shape):
        steps.append(step)
        step *= max(length, 1)
    made.stride = tuple(steps if is_fortran is True else reversed(steps))
    size = len(data.content) if isinstance(data, Data) else data.size
    made.storage = Inline(source.position(data.at) if data.at >= 0 else None, size)
