"""Attacks through the names, tables and records around the nodes of an exported program."""

from __future__ import annotations

import copy
import json
from typing import Any

from tests.attacks.archives import (
    CANARY,
    PAYLOAD,
    Attack,
    Document,
    Records,
    exported,
    graph_of,
    pickled,
    record_name,
    scripted,
    with_document,
)

# Closes a call, a bracket, a text and an attribute chain in generated code.
BREAKS_OUT = f"x'); {PAYLOAD} #"
# The same for `getattr(self, "…")`, which torch.fx writes for other names than identifiers; it splits names at dots.
DOTLESS = PAYLOAD.replace(".", "\\x2e")
ENDS_TEXT = f'w", None) or exec("{DOTLESS}") or getattr(self, "w'
NEW_LINE = f"weight\n    {PAYLOAD}\n    #"
WEIGHTS, CONSTANTS = "model_weights_config.json", "model_constants_config.json"


def renamed(old: str, new: str) -> Attack:
    """A name changed everywhere: in the graph, its signature and the table of weights."""

    def make() -> Records:
        quoted = json.dumps(old).encode()
        records = exported(straight=True)
        if quoted not in records[record_name(records, "models/model.json")]:
            records = exported()
        for suffix in ("models/model.json", WEIGHTS, CONSTANTS):
            name = record_name(records, suffix)
            records[name] = records[name].replace(quoted, json.dumps(new).encode())
        return records

    return make


def set_to(value: Any, *keys: Any, suffix: str = "models/model.json") -> Attack:
    def change(document: Document) -> None:
        part: Any = document
        for key in keys[:-1]:
            part = part[key]
        part[keys[-1]] = value

    return lambda: with_document(change, suffix)


def every_metadata(**values: str) -> Attack:
    def change(document: Document) -> None:
        for found in graph_of(document)["nodes"]:
            found["metadata"].update(values)

    return lambda: with_document(change)


def every_tensor(**values: Any) -> Attack:
    def change(document: Document) -> None:
        for described in graph_of(document)["tensor_values"].values():
            described.update(values)

    return lambda: with_document(change)


def every_size(value: Document) -> Attack:
    """Each size of each tensor is this."""

    def change(document: Document) -> None:
        graph = graph_of(document)
        for described in graph["tensor_values"].values():
            described["sizes"] = [copy.deepcopy(value) for _ in described["sizes"]]
        for name in graph["sym_int_values"]:
            graph["sym_int_values"][name] = copy.deepcopy(value)

    return lambda: with_document(change)


def expression(text: Any, hint: Any = None) -> Document:
    return {"as_expr": {"expr_str": text, "hint": hint if hint is not None else {"as_int": 3}}}


def spec(name: str, text: str) -> Attack:
    return set_to(text, "graph_module", "module_call_graph", 0, "signature", name)


def tree(kind: str, context: str) -> str:
    leaf: Document = {"type": None, "context": None, "children_spec": []}
    return json.dumps([1, {"type": kind, "context": context, "children_spec": [leaf, leaf]}])


def with_records(**records: bytes) -> Attack:
    return lambda: exported() | {f"archive/{name}": content for name, content in records.items()}


def replaced_records(suffix: str, content: bytes) -> Attack:
    def make() -> Records:
        return {name: content if suffix in name else old for name, old in exported().items()}

    return make


def as_pickles(suffix: str, folder: str) -> Attack:
    """A table says that its tensors are pickles, and they are."""

    def make() -> Records:
        records = exported()
        name = record_name(records, suffix)
        records[name] = records[name].replace(b'"use_pickle": false', b'"use_pickle": true')
        return {key: pickled() if f"{folder}/" in key and "json" not in key else old for key, old in records.items()}

    return make


def new_input(kind: str, value: Document) -> Attack:
    def change(document: Document) -> None:
        document["graph_module"]["signature"]["input_specs"].append({kind: value})
        graph_of(document)["inputs"].append({"as_tensor": {"name": "x"}})

    return lambda: with_document(change)


SEEN: dict[str, Attack] = {
    "a parameter's name breaks out": renamed("layer.weight", f"layer.weight'); {PAYLOAD} #"),
    "a parameter's name ends the text": renamed("layer.weight", ENDS_TEXT),
    "a buffer's name ends the text": renamed("shift", ENDS_TEXT),
    "a constant's name ends the text": renamed("c_scale", ENDS_TEXT),
    "a parameter's name with a line break": renamed("layer.weight", NEW_LINE),
    "a parameter by the name of a method": renamed("layer.weight", "forward"),
    "a parameter by a dunder name": renamed("layer.weight", "__class__"),
    "a parameter below a dunder name": renamed("layer.weight", "layer.__class__.forward"),
    "a buffer's name breaks out": renamed("shift", BREAKS_OUT),
    "a constant's name breaks out": renamed("scale", BREAKS_OUT),
    "an input's name is code": renamed("x", f"x={PAYLOAD}, y"),
    "a value's name is code": renamed("relu", f"relu; {PAYLOAD}; y"),
    "a placeholder's name is code": renamed("p_layer_weight", f"a={PAYLOAD}, b"),
    "a module's path is code": set_to(f"layer; {PAYLOAD}", "graph_module", "module_call_graph", 1, "fqn"),
    "metadata names a class": every_metadata(nn_module_stack="L__self__,,os.system;L__self__layer,layer,builtins.exec"),
    "metadata names a path of attributes": every_metadata(
        nn_module_stack=f"L__self__,,a.B;x,__class__.{BREAKS_OUT},a.B"
    ),
    "metadata names functions": every_metadata(
        torch_fn="x;os.system", source_fn_stack="x,os.system", from_node=PAYLOAD
    ),
    "a stack trace of a device": every_metadata(stack_trace='File "/dev/stdin", line 1, in forward\n    x'),
    "a tree of a foreign class": spec("in_spec", tree("os.system", json.dumps(PAYLOAD))),
    "a tree with a factory": spec(
        "out_spec",
        tree(
            "collections.defaultdict",
            '{"default_factory_module": "builtins", "default_factory_name": "exec", "dict_context": []}',
        ),
    ),
    "guards": set_to([PAYLOAD, f"exec({PAYLOAD!r})"], "guards_code"),
    "a symbolic size is code": every_size(expression(PAYLOAD)),
    "a symbolic size calls sympy": every_size(expression(f"S({PAYLOAD!r})")),
    "a range of a symbol is code": set_to({PAYLOAD: {"min_val": PAYLOAD, "max_val": PAYLOAD}}, "range_constraints"),
    "a path out of the archive": set_to(
        "../../../../etc/passwd", "config", "layer.weight", "path_name", suffix=WEIGHTS
    ),
    "an absolute path": set_to("/dev/zero", "config", "layer.weight", "path_name", suffix=WEIGHTS),
    "weights that are pickles": as_pickles(WEIGHTS, "weights"),
    "constants that are pickles": as_pickles(CONSTANTS, "constants"),
    "sample inputs that are pickles": replaced_records("sample_inputs", pickled()),
    "a custom object in the signature": new_input(
        "custom_obj", {"arg": {"name": "x", "class_fqn": "__torch__.torch.classes.a.B"}, "custom_obj_name": BREAKS_OUT}
    ),
    "a library next to the program": with_records(
        **{"data/aotinductor/model/a.so": b"\x7fELF", "data/aotinductor/model/a.cpp": b""}
    ),
}

HELD_BACK: dict[str, Attack] = {
    "a parameter's name is a format": renamed("layer.weight", "{0.__class__.__init__.__globals__} %s"),
    "a parameter below its own table": renamed("layer.weight", "_parameters.weight"),
    "a parameter below __dict__": renamed("layer.weight", "__dict__.weight"),
    "a parameter named for a hook": renamed("layer.weight", "_forward_hooks"),
    "a parameter without a name": renamed("layer.weight", ""),
    "a parameter of dots": renamed("layer.weight", "..."),
    "a parameter named __call__": renamed("layer.weight", "__call__"),
    "a buffer with quotes and backslashes": renamed("shift", f"\\'); {PAYLOAD} #\\"),
    "a buffer named for a method": renamed("shift", "train"),
    "a buffer named for the table of modules": renamed("shift", "_modules"),
    "a constant named __getattr__": renamed("scale", "__getattr__"),
    "a constant named for the class": renamed("scale", "__class__.forward"),
    "a value's name with a line break": renamed("relu", f"relu\n{PAYLOAD}\n"),
    "a value's name is self": renamed("relu", "self"),
    "a value's name is torch": renamed("relu", "torch"),
    "a value's name is a keyword": renamed("relu", "import os; os"),
    "an output's name is code": renamed("getitem", f"getitem]; {PAYLOAD} #"),
    "a body's name is code": renamed("true_graph_0", f"true_graph_0); {PAYLOAD} #"),
    "a body's name is an attribute": renamed("true_graph_0", "__class__"),
    "an input of a body is code": renamed("add_3", f"x={PAYLOAD}, y"),
    "names of forward's arguments are code": set_to(
        [f"x={PAYLOAD}", "*"], "graph_module", "module_call_graph", 0, "signature", "forward_arg_names"
    ),
    "a module's path is a dunder": set_to("__class__.__init__", "graph_module", "module_call_graph", 1, "fqn"),
    "a tree of a named tuple": spec(
        "in_spec", tree("collections.namedtuple", json.dumps({"class_name": "X", "fields": [PAYLOAD]}))
    ),
    "a tree that is code": spec("in_spec", PAYLOAD),
    "a tree without end": spec(
        "out_spec", '[1, {"type": "builtins.list", "context": "null", "children_spec": [' * 2000
    ),
    "keys of a tree are code": spec("out_spec", tree("builtins.dict", json.dumps([BREAKS_OUT, "__class__"]))),
    "fields of named tuples": set_to(
        {"os.system": {"field_names": [PAYLOAD]}}, "graph_module", "treespec_namedtuple_fields"
    ),
    "verifiers and versions": lambda: with_document(
        lambda document: document.update(
            verifiers=[PAYLOAD, "os.system"],
            torch_version=PAYLOAD,
            opset_version={PAYLOAD: PAYLOAD},
            schema_version={"major": PAYLOAD},
        )
    ),
    "metadata of the program": set_to({PAYLOAD: PAYLOAD, "__class__": PAYLOAD}, "graph_module", "metadata"),
    "custom metadata": every_metadata(
        custom=json.dumps({"__class__": PAYLOAD}), quantization_tag=PAYLOAD, eval=PAYLOAD
    ),
    "a stack trace of a path above": every_metadata(
        stack_trace=f'File "../../{CANARY}", line 1, in {PAYLOAD}\n    {PAYLOAD}'
    ),
    "a stack trace without end": every_metadata(stack_trace='File "' * 5000 + "a" * 50000),
    "a symbolic size by attributes": every_size(expression("Symbol('s0').__class__.__init__.__globals__")),
    "a symbolic size imports": every_size(expression("__import__('os').system('touch canary')")),
    "a symbolic size with a text for its hint": every_size(expression("Symbol('s0')", {"as_int": PAYLOAD})),
    "a symbolic size of a great power": every_size(expression("Pow(Integer(10), Pow(Integer(10), Integer(10)))")),
    "a size that is code": every_size({"as_int": PAYLOAD}),
    "types and devices of tensors are code": every_tensor(
        dtype=PAYLOAD, device={"type": PAYLOAD, "index": PAYLOAD}, layout=PAYLOAD
    ),
    "a device of a made-up type": every_tensor(device={"type": "privateuseone", "index": 99}),
    "a text instead of a result": set_to(PAYLOAD, "graph_module", "graph", "nodes", 2, "outputs"),
    "a text instead of an argument": set_to(PAYLOAD, "graph_module", "graph", "nodes", 2, "inputs"),
    "the switch of a single result": set_to(
        PAYLOAD, "graph_module", "graph", "nodes", 10, "is_hop_single_tensor_return"
    ),
    "an input that is a constant text": new_input(
        "constant_input", {"name": BREAKS_OUT, "value": {"as_string": BREAKS_OUT}}
    ),
    "an input that is a token": new_input("token", {"arg": {"name": PAYLOAD}}),
    "an input of a made-up kind": new_input("__class__", {"arg": {"name": PAYLOAD}}),
    "weights by code": set_to({PAYLOAD: {"path_name": PAYLOAD}}, "config", suffix=WEIGHTS),
    "weights by a link": set_to("file:///etc/passwd", "config", "layer.weight", "path_name", suffix=WEIGHTS),
    "a constant that is a custom object": set_to(
        {"path_name": "custom_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None},
        "config",
        "scale",
        suffix=CONSTANTS,
    ),
    "records with paths": with_records(**{f"../../{CANARY}": b"", f"/tmp/{CANARY}": b"", "data/weights/../../a": b""}),
    "a second program by a hostile name": lambda: exported() | {f"archive/models/{PAYLOAD}.json": b"{}"},
    "a pickle next to the program": with_records(
        **{"data.pkl": pickled(), "constants.pkl": pickled(), "extra/a.pkl": pickled()}
    ),
    "TorchScript next to the program": lambda: exported() | scripted(),
}
