"""Read a capture back from its JSON document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from torchgauge.errors import FormatError
from torchgauge.facts.capture import SCHEMA_VERSION, Capture, RunRecord
from torchgauge.facts.document_types import ANALYSIS, Document, ModuleFacts, OpFacts, Parameter, Scan, Tensor
from torchgauge.facts.files import stored_from_document
from torchgauge.facts.measurements import energy_from_document, measured_from_document
from torchgauge.facts.module import InputRecord, ModuleRecord, ParamRecord, Structure
from torchgauge.facts.op import Cost, OpRecord, Signature
from torchgauge.facts.predictions import predicted_from_document
from torchgauge.facts.schema import conform, read
from torchgauge.facts.tensor import TensorSpec
from torchgauge.facts.weights import statistics_from_document


def capture_from_document(document: object, name: str) -> Capture:
    """The capture in a document; `name` is what the error calls it."""
    if not isinstance(document, Mapping) or "schema_version" not in document:
        raise FormatError(f"'{name}' is not a saved run of torchgauge")
    version = document["schema_version"]
    if version != SCHEMA_VERSION:
        raise FormatError(f"'{name}' has schema version {version}; this torchgauge reads version {SCHEMA_VERSION}")
    what = f"'{name}' is not a complete run of torchgauge"
    if "modules" in document:
        return _capture(read(document, ANALYSIS, what), what)
    # The document of a weight scan with what follows from its rows: the tensors, and one module that holds them.
    scan = read(document, Scan, what)
    root: ModuleFacts = {
        "path": "",
        "type": "",
        "aliases": [],
        "calls": 0,
        "inputs": None,
        "outputs": None,
        "params": scan["totals"]["params"],
        "trainable_params": scan["totals"]["trainable_params"],
        "param_bytes": scan["totals"]["param_bytes"],
    }
    params: list[Parameter] = [
        {
            "name": row["name"],
            "shape": row["shape"],
            "dtype": row["dtype"],
            "stride": row.get("stride"),
            "trainable": False,
            "is_buffer": row["role"] == "buffer",
            "aliases": [],
            "logical_elements": row["logical_elements"],
        }
        for row in scan["weights"]
        if row["role"] in ("parameter", "buffer") and row["shared_with"] is None
    ]
    # What only an analysis has was not checked.
    known = {key: value for key, value in scan.items() if key in Scan.__annotations__}
    whole = {**known, "inputs": [], "modules": [root], "ops": [], "parameters": params}
    return _capture(cast("Document", whole), what)


def _capture(document: Document, what: str) -> Capture:
    inputs = []
    for given in document["inputs"]:
        readers = given.get("readers")
        places = None if readers is None else tuple((op, place) for op, place in readers)
        inputs.append(InputRecord(given["name"], _spec(given), given["inferred"], places))
    return Capture(
        target=document["target"],
        environment=document["environment"],
        created=document["created"],
        version=document["tool"]["version"],
        run=read(document["capture"], RunRecord, f"{what}: capture"),
        inputs=tuple(inputs),
        modules=tuple(_module(row) for row in document["modules"]),
        params=tuple(_param(row) for row in document["parameters"]),
        ops=tuple(map(_op, document["ops"])),
        input_bytes=document["capture"]["input_bytes"],
        stored=stored_from_document(document),
        architecture=document["architecture"],  # its complexity follows from the ops
        statistics=statistics_from_document(document),
        measured=measured_from_document(document),
        energy=energy_from_document(document),
        advice=tuple(document.get("advice", ())),
        options=tuple(document.get("options", ())),
        plan=document.get("plan"),
        training=document.get("training"),
        adapter=document.get("adapter"),
        fit=tuple(document.get("fit", ())),
        forecast=tuple(document.get("forecast", ())),
        expected=tuple(document.get("expected_times", ())),
        predicted=predicted_from_document(document),
        compiled=document.get("compiled"),
    )


def _module(row: ModuleFacts) -> ModuleRecord:
    return ModuleRecord(
        path=row["path"],
        type=row["type"],
        aliases=tuple(row["aliases"]),
        calls=row["calls"],
        params=row["params"],
        trainable_params=row["trainable_params"] or 0,
        param_bytes=row["param_bytes"],
        inputs=_structure(row["inputs"]),
        outputs=_structure(row["outputs"]),
    )


def _param(row: Parameter) -> ParamRecord:
    return ParamRecord(
        row["name"],
        _spec(row),
        row["trainable"],
        row["is_buffer"],
        tuple(row["aliases"]),
        row.get("logical_elements"),
        tuple(_spec(inner) for inner in row.get("stored_tensors", ())),
    )


def _op(row: OpFacts) -> OpRecord:
    signature = Signature(
        op=row["op"],
        overload=row["overload"],
        category=row["category"],
        status=row["status"],
        tags=tuple(row["tags"]),
        inputs=tuple(map(_spec, row["inputs"])),
        outputs=tuple(map(_spec, row["outputs"])),
        attributes=row["attributes"],
        cost=Cost(row["macs"], row["flops"], row["bytes_read"], row["bytes_written"]),
        activation_bytes=row["activation_bytes"],
    )
    return OpRecord(
        index=row["index"],
        signature=signature,
        module=row["module"],
        live_bytes=row["live_bytes"],
        weights=tuple(row["weights"]),
        phase=row["phase"],
        source=row.get("source"),
        producers=tuple(row.get("producers", ())),
    )


def _spec(row: Tensor) -> TensorSpec:
    stride = row.get("stride")
    return TensorSpec(
        tuple(row["shape"]),
        row["dtype"],
        None if stride is None else tuple(stride),
        row.get("stored"),
        row.get("index_bytes", 0),
    )


def _structure(value: Any) -> Structure:
    """The inverse of the view's plain form: an object with just a shape and a type is a tensor."""
    if isinstance(value, dict):
        if {"shape", "dtype"} <= value.keys() <= {"shape", "dtype", "stride", "stored", "index_bytes"}:
            return _spec(conform(value, Tensor, "the tensors that a module was given"))
        return {key: _structure(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_structure(item) for item in value]
    return value
