"""From a `.pt2` archive to a program: its graph is JSON, its weights raw bytes, so nothing is unpickled.

Torch's own reader would unpickle sample inputs and evaluate the text of symbolic sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

import torch

from torchgauge.checkpoint.byte_source import opened, parse_json
from torchgauge.checkpoint.dtypes import EXPORT_SCALARS
from torchgauge.checkpoint.zip_archive import ZipArchive
from torchgauge.errors import FormatError
from torchgauge.source.allowed_ops import mark_foreign
from torchgauge.source.archive_records import ArchiveRecords
from torchgauge.source.exported.live import module_call
from torchgauge.source.exported.model import ExportedModel
from torchgauge.source.exported.program import Call, Graph, Input, Program, Ref, function_named, last_line

_LAYOUTS = {1: torch.sparse_coo, 2: torch.sparse_csr, 3: torch.sparse_csc, 4: torch.sparse_bsr, 5: torch.sparse_bsc,
            7: torch.strided}  # fmt: skip
_FORMATS = {1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d, 4: torch.preserve_format}
_KEYWORD = 2
_NO_MODULE = "_empty_nn_module_stack"


class _Argument(TypedDict):
    name: str
    arg: Tagged
    kind: NotRequired[int]


class _Node(TypedDict):
    target: str
    inputs: list[_Argument]
    outputs: list[Tagged]
    metadata: dict[str, str]
    is_hop_single_tensor_return: NotRequired[bool]


class _GraphDocument(TypedDict):
    nodes: list[_Node]
    inputs: list[Tagged]
    outputs: list[Tagged]
    tensor_values: dict[str, TensorMeta]


class _Signature(TypedDict):
    input_specs: list[Tagged]
    output_specs: list[Tagged]


class _ModuleCall(TypedDict):
    fqn: str


class _GraphModule(TypedDict):
    graph: _GraphDocument
    signature: _Signature
    module_call_graph: list[_ModuleCall]


class ProgramDocument(TypedDict):
    """The members of torch's format that are read. They are not checked beforehand: a member that is missing or of
    another type raises when it is used."""

    graph_module: _GraphModule


def read_program(document: ProgramDocument, tensors: StoredTensors, where: str) -> Program:
    module = document["graph_module"]
    described, signature = module["graph"]["tensor_values"], module["signature"]
    graph = read_graph(module["graph"], where)
    kinds = [_tagged(spec) for spec in signature["output_specs"]]
    outputs = tuple(_argument(spec["arg"], where) for kind, spec in kinds if kind == "user_output")
    inputs = []
    for argument in (spec["user_input"]["arg"] for spec in signature["input_specs"] if "user_input" in spec):
        if "as_tensor" not in argument:
            raise FormatError(f"{where} takes an input that is not a tensor: {_tagged(argument)[0]}")
        name = argument["as_tensor"]["name"]
        inputs.append(Input(name, tuple(map(size_of, described[name]["sizes"])), dtype_of(described[name]["dtype"])))
    # The class of the outermost module, from the first node that has one.
    stacks = (node["metadata"].get("nn_module_stack", _NO_MODULE).split(";") for node in module["graph"]["nodes"])
    outermost = (stack[0].split(",") for stack in stacks)
    types = (entry[2].rpartition(".")[2] for entry in outermost if len(entry) == 3 and not entry[1])
    program = Program(
        graph=Graph(graph.inputs, graph.calls, outputs[0] if len(outputs) == 1 else outputs),
        inputs=tuple(inputs),
        modules=tuple(entry["fqn"] for entry in module["module_call_graph"]),
        type=next(types, "ExportedProgram"),
    )
    for spec in signature["input_specs"]:
        kind, entry = _tagged(spec)
        if kind in ("parameter", "buffer", "tensor_constant"):
            name, target = entry["arg"]["name"], entry[f"{kind}_name"]
            tensor = tensors.get(target, described[name], is_parameter=kind == "parameter")
            if kind == "tensor_constant":
                program.constants[name] = tensor
            else:
                (program.parameters if kind == "parameter" else program.buffers)[name] = (target, tensor)
    return program


def _tagged(union: Tagged) -> tuple[str, Any]:
    """The kind and the value of an object that has one member, named after its kind."""
    for kind, value in union.items():
        return kind, value
    raise ValueError("an empty object")


def read_graph(graph: _GraphDocument, where: str) -> Graph:
    calls = []
    for node in graph["nodes"]:
        function = function_named(node["target"], where)
        if function is None:
            continue
        arguments = [(entry, _argument(entry["arg"], where)) for entry in node["inputs"]]
        count = _positional(function, node["inputs"])
        args = tuple(value for _, value in arguments[:count])
        kwargs = {entry["name"]: value for entry, value in arguments[count:]}
        outputs = [_taken_apart(output) for output in node["outputs"]]
        # Whether the one output is the result itself, not the first of several: before PyTorch 2.7, a higher-order op
        # always returned a list.
        is_plain = ".higher_order." not in node["target"] or bool(node.get("is_hop_single_tensor_return"))
        is_whole = len(outputs) == 1 and (is_plain or isinstance(outputs[0], list))
        stack = [entry.split(",") for entry in node["metadata"].get("nn_module_stack", "").split(";")]
        places = [module_call(*entry) for entry in stack if len(entry) == 3 and not entry[0].startswith(_NO_MODULE)]
        within = tuple(place for place in places if place.path)
        source = last_line(node["metadata"].get("stack_trace"))
        calls.append(Call(function, args, kwargs, outputs[0] if is_whole else outputs, within, source))
    inputs: list[str] = []
    for argument in graph["inputs"]:
        names = _taken_apart(argument)
        inputs += names if isinstance(names, list) else [names]
    return Graph(tuple(inputs), tuple(calls), [_argument(argument, where) for argument in graph["outputs"]])


def _positional(function: object, entries: list[_Argument]) -> int:
    """The number of positional arguments; the rest are passed by name. Before PyTorch 2.7 only the schema of the op
    distinguishes them."""
    if all("kind" in entry for entry in entries):
        keywords = (at for at, entry in enumerate(entries) if entry["name"] and entry.get("kind") == _KEYWORD)
        return next(keywords, len(entries))
    schema = getattr(function, "_schema", None)
    if schema is None:
        return len(entries)
    places = [argument.name for argument in schema.arguments if not argument.kwarg_only]
    named = (at for at, entry in enumerate(entries) if at >= len(places) or entry["name"] != places[at])
    return next(named, len(entries))


def _taken_apart(output: Tagged) -> str | list[str]:
    """The names that an output is given: one, or one for each tensor of a list."""
    kind, value = _tagged(output)
    if kind in ("as_tensors", "as_optional_tensors"):
        return [_name(item) for item in value]
    return _name(value) if isinstance(value, dict) else ""


def _name(value: Tagged) -> str:
    inner = value.get("as_tensor", value)
    return str(inner.get("name") or inner.get("as_name") or "")


def _argument(argument: Tagged, where: str) -> Any:
    """A value as an op takes it, of the type that its kind declares, or a reference to another value."""
    kind, value = _tagged(argument)
    match kind:
        case "as_none":
            return None
        case "as_tensor" | "as_sym_int" | "as_sym_float" | "as_sym_bool" | "as_optional_tensor":
            return _scalar(value)
        case "as_tensors" | "as_optional_tensors" | "as_sym_ints" | "as_sym_floats" | "as_sym_bools":
            return [_scalar(item) for item in value]
        case "as_scalar_type":
            return dtype_of(value)
        case "as_memory_format":
            return _FORMATS[value]
        case "as_layout":
            return _LAYOUTS[value]
        case "as_device":
            index = value.get("index")
            return torch.device(value["type"]) if index is None else torch.device(value["type"], index)
        case "as_graph":
            return read_graph(value["graph"], where)
        case "as_complex":
            return complex(_plain("as_float", value["real"]), _plain("as_float", value["imag"]))
        case "as_int" | "as_float" | "as_bool" | "as_string":
            return _plain(kind, value)
        case "as_ints" | "as_floats" | "as_bools" | "as_strings":
            return [_plain(kind[:-1], item) for item in value]
        case "as_int_lists" | "as_float_lists":
            return [[_plain(kind.removesuffix("_lists"), item) for item in row] for row in value]
    raise FormatError(f"{where} has an argument of the kind '{kind}', which torchgauge does not know")


_PLAIN: dict[str, tuple[type, ...]] = {
    "as_int": (int,),
    "as_float": (float, int, str),
    "as_bool": (bool,),
    "as_string": (str,),
}
# JSON does not have these numbers, so the format writes them as strings.
_NOT_FINITE = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}


def _plain(kind: str, value: Any) -> Any:
    if type(value) not in _PLAIN[kind] or (type(value) is int and abs(value) >= 1 << 64):
        raise TypeError(f"a value of another type than '{kind}'")
    if kind == "as_float":
        return _NOT_FINITE[value] if isinstance(value, str) else float(value)
    return value


def _scalar(value: Tagged) -> int | float | bool | Ref | None:
    """A name, a plain value, or nothing."""
    if "as_none" in value:
        return None
    for kind in ("as_int", "as_float", "as_bool"):
        if kind in value:
            return _plain(kind, value[kind])
    return Ref(_name(value))


# The largest JSON record, or the size of the file if that is larger, because torch stores records uncompressed. A
# record of this size takes about a gigabyte as Python values.
DOCUMENT_BYTES = 32 << 20
_OLD_DOCUMENT = "serialized_exported_program.json"


def load_exported(path: str | Path, *, values: Values | None = None) -> ExportedModel:
    """The model of an archive. Raises `FormatError` if it cannot be read or calls an op that is not allowed.

    `values` returns the tensors of the model by name; without it, they have no values.
    """
    name = str(path)
    document, tensors = _parts(name, values)
    try:
        exported = ExportedModel(read_program(document, tensors, f"'{name}'"))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError, RecursionError) as error:
        raise FormatError(f"'{name}' is not a complete exported program: {type(error).__name__} at {error}") from error
    mark_foreign(exported)
    return exported


_KINDS = ("weights", "constants")


def _parts(name: str, values: Values | None) -> tuple[ProgramDocument, StoredTensors]:
    try:
        records = ArchiveRecords(name)
    except FormatError:
        # Before PyTorch 2.8 an archive had no folder, which torch's own reader asks for; weights were pickled.
        with opened(name) as source:
            archive = ZipArchive(source)
            old = archive.find(_OLD_DOCUMENT)
            if old is None:
                raise
            document = cast(ProgramDocument, parse_json(archive.read(old), f"'{name}': {_OLD_DOCUMENT}"))
        return document, StoredTensors(None, {}, {}, values=values)
    models = [record for record in records.names if record.startswith("models/") and record.endswith(".json")]
    if len(models) != 1:
        raise FormatError(f"'{name}' contains {len(models)} exported programs; expected one")
    record = models[0]
    model = record.removeprefix("models/").removesuffix(".json")
    configs: list[dict[str, StoredEntry]] = []
    for kind in _KINDS:
        config = f"data/{kind}/{model}_{kind}_config.json"
        found = _json(records, config, name).get("config") if config in records.names else None
        configs.append(found if isinstance(found, dict) else {})
    return cast(ProgramDocument, _json(records, record, name)), StoredTensors(records, *configs, values=values)


def _json(records: ArchiveRecords, record: str, name: str) -> dict[str, object]:
    limit = max(DOCUMENT_BYTES, Path(name).stat().st_size)
    return parse_json(records.read(record, limit), f"'{name}': {record}")


# The tensors of an archive: on the meta device, small integers with their content.

CONTENT_LIMIT = 4 << 20  # bytes
ALL_CONTENT_LIMIT = 256 << 20  # bytes of all tensors: many may be in one record

# The values of a tensor by its name in the model; None if they are unknown.
Values = Callable[[str], torch.Tensor | None]


# An object with one member, named after its kind.
Tagged = dict[str, Any]


class TensorMeta(TypedDict):
    """The description of a tensor in the format."""

    dtype: int
    sizes: list[Tagged]
    strides: list[Tagged]
    storage_offset: Tagged
    requires_grad: NotRequired[bool]


class StoredEntry(TypedDict):
    """The record of a tensor in the archive."""

    path_name: str
    use_pickle: NotRequired[bool]
    tensor_meta: NotRequired[TensorMeta]


def dtype_of(number: int) -> torch.dtype:
    return getattr(torch, EXPORT_SCALARS[number])


def size_of(entry: Tagged) -> int:
    """A size; for a symbolic size, its value when the program was exported."""
    value = entry["as_int"] if "as_int" in entry else (entry["as_expr"].get("hint") or {}).get("as_int")
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"the size {value}")
    return value


class StoredTensors:
    """Tensors by their name in the model; names that refer to the same part of a record share one tensor."""

    def __init__(
        self,
        records: ArchiveRecords | None,
        weights: dict[str, StoredEntry],
        constants: dict[str, StoredEntry],
        *,
        values: Values | None = None,
    ) -> None:
        self._records = records
        self._values = values
        self._entries = {name: ("data/weights/", entry) for name, entry in weights.items()}
        self._entries |= {name: ("data/constants/", entry) for name, entry in constants.items()}
        self._made: dict[str, torch.Tensor] = {}
        self._content_bytes = 0

    def get(self, name: str, described: TensorMeta, *, is_parameter: bool) -> torch.Tensor:
        """`described` is the graph's description of the tensor, for archives without another one."""
        folder, entry = self._entries.get(name, ("", None))
        meta = (entry.get("tensor_meta") if entry else None) or described
        record = folder + entry["path_name"] if entry and not entry.get("use_pickle") else ""
        key = f"{record or name} {meta['sizes']} {meta.get('strides')} {meta.get('storage_offset')}"
        if key not in self._made:
            tensor = self._values(name) if self._values else None
            tensor = self._make(record, meta) if tensor is None else tensor
            wants_grad = is_parameter and bool(meta.get("requires_grad")) and tensor.dtype.is_floating_point
            self._made[key] = torch.nn.Parameter(tensor, wants_grad) if is_parameter else tensor
        return self._made[key]

    def _make(self, record: str, meta: TensorMeta) -> torch.Tensor:
        shape = tuple(map(size_of, meta["sizes"]))
        stride = tuple(map(size_of, meta["strides"]))
        dtype = dtype_of(meta["dtype"])
        content = None
        if self._records is not None and record and not dtype.is_floating_point and not dtype.is_complex:
            is_small = self._records.size(record) <= CONTENT_LIMIT
            content = self._records.read(record, CONTENT_LIMIT) if is_small else None
        # With a stride of 0 a tensor may claim any size, whatever its record.
        nbytes = prod(shape) * dtype.itemsize
        if content and nbytes <= min(CONTENT_LIMIT, ALL_CONTENT_LIMIT - self._content_bytes):
            self._content_bytes += nbytes
            offset = size_of(meta["storage_offset"])
            flat = torch.frombuffer(bytearray(content), dtype=dtype)
            return flat.as_strided(shape, stride, offset).clone()
        return torch.empty_strided(shape, stride, dtype=dtype, device="meta")
