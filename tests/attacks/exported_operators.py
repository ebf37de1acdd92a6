"""Attacks through the nodes of an exported program: what they call and what they are given."""

from __future__ import annotations

from typing import Any

from tests.attacks.archives import (
    CANARY,
    PAYLOAD,
    Attack,
    Document,
    Records,
    document_of,
    exported,
    graph_of,
    node,
    replaced_call,
    symbol,
    tensor,
    with_document,
    with_nodes,
)

SHELL = f"touch {CANARY}"
PACKET = "torch.ops.aten.erfinv"


def packet_to_exec() -> Records:
    """Attributes of an operator's packet lead to the globals of torch._ops and from there to exec."""
    return with_nodes(
        node(f"{PACKET}.__getattribute__", "__init__", out=tensor("a")),
        node(f"{PACKET}.__setattr__", "_op", tensor("a"), out=tensor("b")),
        node(f"{PACKET}.__getattr__", "__globals__", out=tensor("c")),
        node("_operator.getitem", tensor("c"), "__builtins__", out=tensor("d")),
        node("_operator.getitem", tensor("d"), "exec", out=tensor("e")),
        node(f"{PACKET}.__setattr__", "_op", tensor("e"), out=tensor("f")),
        node(f"{PACKET}.__call__", PAYLOAD, out=tensor("g")),
    )


def packet_marked() -> Records:
    """The smallest harm: an attribute is left on an operator that every later user of the process calls."""
    return with_nodes(node(f"{PACKET}.__setattr__", CANARY, 1))


def overload_to_exec() -> Records:
    """The same through the overload itself, one dot further."""
    default = f"{PACKET}.default"
    return with_nodes(
        node(f"{default}.__getattribute__", "__init__", out=tensor("a")),
        node(f"{default}.__setattr__", "_op", tensor("a"), out=tensor("b")),
        node(f"{default}.__getattribute__.__self__.__init__.__globals__.__getitem__", "__builtins__", out=tensor("c")),
        node("_operator.getitem", tensor("c"), "exec", out=tensor("d")),
        node(f"{default}.__setattr__", "_op", tensor("d"), out=tensor("e")),
        node(f"{default}.__call__", PAYLOAD, out=tensor("f")),
    )


def each_call(*targets: str) -> Attack:
    """One node after the other with a harmful text, and with no argument at all."""
    return lambda: with_nodes(*(node(target, PAYLOAD) for target in targets), *(node(target) for target in targets))


def each_replacing(target: str) -> Attack:
    return lambda: replaced_call(target)


def calls(target: str, *arguments: Any, **named: Any) -> Attack:
    return lambda: with_nodes(node(target, *arguments, **named))


def in_branch(target: str, *arguments: Any) -> Attack:
    """The call is in one branch of a conditional, and in both."""

    def make() -> Records:
        def change(document: Document) -> None:
            for found in graph_of(document)["nodes"]:
                for given in found["inputs"]:
                    if "as_graph" in given["arg"]:
                        body = given["arg"]["as_graph"]["graph"]
                        body["nodes"].insert(0, node(target, *arguments))
                        body["tensor_values"]["attack"] = next(iter(body["tensor_values"].values()))

        return with_document(change)

    return make


def higher_order(target: str, *arguments: Any, **named: Any) -> Attack:
    """A higher-order op; an argument that is the text GRAPH is replaced by a body of the harmless conditional."""

    def make() -> Records:
        nodes = graph_of(document_of(exported()))["nodes"]
        conditional = next(found for found in nodes if found["target"].endswith(".cond"))
        body = next(given["arg"] for given in conditional["inputs"] if "as_graph" in given["arg"])
        filled = [body if value == "GRAPH" else value for value in arguments]
        return with_nodes(node(target, *filled, **named))

    return make


OVERLOADS = ["__call__", "__class__", "__delattr__", "__dir__", "__format__", "__getattr__", "__getattribute__"]
METHODS = ["decompose", "redispatch", "py_impl", "py_kernels", "has_kernel_for_dispatch_key", "_op", "_dispatch_cache"]

STARS: Document = {"**": {"as_string_to_argument": {}}}

SEEN: dict[str, Attack] = {
    "packet attributes to exec": packet_to_exec,
    "an attribute set on a packet": packet_marked,
    "dunder attributes as overloads": each_call(*(f"torch.ops.aten.relu.{name}" for name in OVERLOADS)),
    "a dunder attribute replaces an op": each_replacing("torch.ops.aten.relu.__call__"),
    "a bare packet": each_replacing("torch.ops.aten.relu"),
    "methods of an overload": each_call(*(f"torch.ops.aten.relu.default.{name}" for name in METHODS)),
    "a namespace's own attributes": each_call("torch.ops.aten.__getattr__", "torch.ops.aten.__class__.default"),
    "torch.ops loads a library": each_call("torch.ops.load_library", "torch.ops.import_module"),
    "operator.call": calls("_operator.call", tensor("x"), PAYLOAD),
    "operator.attrgetter": each_call("_operator.attrgetter", "_operator.methodcaller"),
    "operator by its public name": each_call("operator.methodcaller", "operator.attrgetter"),
    "builtins": each_call(*(f"builtins.{name}" for name in ("exec", "eval", "open", "__import__", "getattr", "print"))),
    "the shell": lambda: with_nodes(
        node("os.system", SHELL), node("posix.system", SHELL), node("subprocess.run", SHELL)
    ),
    "a one-dot leader for a dot": each_replacing("torch.ops.aten.relu\u2024default"),
    "fullwidth underscores": each_call("torch.ops.aten.erfinv.\uff3f\uff3fgetattribute\uff3f\uff3f"),
    "a zero-width joiner in a name": each_replacing("torch.ops.aten.re\u200dlu.default"),
    "profiler ops": each_call("torch.ops.profiler._record_function_enter_new.default"),
    "prims that read a file": each_call(
        "torch.ops.debugprims.load_tensor.default", "torch.ops.prims.device_put.default"
    ),
    "image files": calls("torch.ops.image.write_file.default", CANARY, tensor("x")),
    "from_file": lambda: with_nodes(node("torch.ops.aten.from_file.default", CANARY, True, 16)),
    "save": lambda: with_nodes(node("torch.ops.aten.save.default", tensor("x"), CANARY)),
    "a saved file through the jit's own ops": calls("torch.ops.prim.PythonOp.default", PAYLOAD),
    "a sequence instead of a number for arithmetic": lambda: with_nodes(
        node("_operator.mul", {"as_strings": ["a" * 100]}, 10**9), node("_operator.mul", "a" * 100, 10**9)
    ),
    "a text is filled in": calls("_operator.mod", "%(a)1000000000d", {"as_string_to_argument": {"a": {"as_int": 1}}}),
    "a power without end": calls("_operator.pow", 10**6, 10**9, out=symbol("attack")),
    "getitem by a text": calls("_operator.getitem", tensor("x"), "__class__"),
    "getitem of a text": calls("_operator.getitem", "text", 0),
    "a comparison that sets items": calls("_operator.setitem", {"as_string_to_argument": {}}, CANARY, 1),
    "sympy parses": each_call("sympy.sympify", "sympy.parsing.sympy_parser.parse_expr", "sympy.S"),
    "math with attributes": each_call("math.sqrt.__self__.__loader__.load_module", "math.__loader__.load_module"),
    "torch functions": each_call("torch.load", "torch.hub.load", "torch.save", "torch.classes.load_library"),
    "a branch calls attributes": in_branch(f"{PACKET}.__setattr__", CANARY, 1),
    "a conditional of texts": higher_order("torch.ops.higher_order.cond", True, PAYLOAD, PAYLOAD, {"as_tensors": []}),
    "a conditional of operators": higher_order(
        "torch.ops.higher_order.cond", True, {"as_operator": "builtins.exec"}, {"as_operator": "builtins.exec"}, PAYLOAD
    ),
    "a functionalized operator": higher_order(
        "torch.ops.higher_order.auto_functionalized_v2", {"as_operator": f"{PACKET}.__setattr__"}, CANARY, 1
    ),
    "the op that prints": higher_order(
        "torch.ops.higher_order.print", "{x.__class__.__init__.__globals__}", x=tensor("x")
    ),
    "an operator as an argument": calls("torch.ops.aten.relu.default", {"as_operator": f"{PACKET}.__getattribute__"}),
    "a keyword that is code": calls("torch.ops.aten.relu.default", **{f"self={PAYLOAD}, x": tensor("x")}),
    "a device that is code": calls(
        "torch.ops.aten.to.device", tensor("x"), {"as_device": {"type": PAYLOAD, "index": 0}}
    ),
    "a type that is code": calls("torch.ops.aten.to.dtype", tensor("x"), {"as_scalar_type": PAYLOAD}),
    "a value by the name of a builtin": calls("torch.ops.aten.relu.default", tensor("__builtins__")),
    "a custom object": calls(
        "torch.ops.aten.relu.default", {"as_custom_obj": {"name": PAYLOAD, "class_fqn": "__torch__.torch.classes.x.Y"}}
    ),
}

HELD_BACK: dict[str, Attack] = {
    "overload attributes to exec": overload_to_exec,
    "setattr on an overload": calls(f"{PACKET}.default.__setattr__", CANARY, 1),
    "setattr on a namespace": calls("torch.ops.aten.__setattr__", CANARY, 1),
    "setattr on torch.ops": calls("torch.ops.__setattr__", CANARY, 1),
    "setattr on torch": calls("torch.__setattr__", CANARY, 1),
    "setattr on a module of helpers": lambda: with_nodes(
        node("_operator.__setattr__", CANARY, 1), node("math.__setattr__", CANARY, 1)
    ),
    "a helper that is a class": each_call("_operator.itemgetter.__class__", "builtins.type", "builtins.object"),
    "reduce and subclasses": each_call(
        *(f"{PACKET}.{n}" for n in ("__reduce_ex__", "__subclasshook__", "__init_subclass__"))
    ),
    "attributes of methods": each_call(f"{PACKET}.overloads.__self__", f"{PACKET}.__init__.__globals__.__getitem__"),
    "spaces and line breaks around a name": lambda: with_nodes(
        node(" torch.ops.aten.relu.default", tensor("x")),
        node("torch.ops.aten.relu.default\n", tensor("x")),
        node(f"torch.ops.aten.relu.default\n{PAYLOAD}", tensor("x")),
    ),
    "a name with a call in it": lambda: with_nodes(
        node(f"torch.ops.aten.relu.default({PAYLOAD})"), node(f"torch.ops.aten.relu[{PAYLOAD}]")
    ),
    "the jit's spelling": each_call(
        "aten::save", "aten::relu", "aten::erfinv.__setattr__", "profiler::_record_function_enter"
    ),
    "cyrillic letters": each_replacing("torch.ops.\u0430ten.relu.default"),
    "empty parts of a name": each_call(
        "torch.ops.aten..default", "torch.ops...", "torch.ops.", ".", "torch.ops.aten.relu."
    ),
    "the empty name": lambda: replaced_call(""),
    "other namespaces": each_call(
        "torch.ops.inductor.accumulate_grad_.default",
        "torch.ops.quantized.linear_prepack.default",
        "torch.ops.c10d.barrier.default",
        "torch.ops._c10d_functional.all_reduce.default",
        "torch.ops.rpc.rpc_async.default",
        "torch.ops.mkldnn._linear_pointwise.default",
        "torch.ops.export._grad_enabled.default",
        "torch.ops.streams.synchronize_event.default",
    ),
    "ops that reach memory": lambda: with_nodes(
        node(
            "torch.ops.aten.set_.source_Tensor_storage_offset",
            tensor("x"),
            tensor("y"),
            10**9,
            {"as_ints": [9]},
            {"as_ints": [1]},
        )
    ),
    "ops that warn and print": each_call(
        "torch.ops.aten.warn.default", "torch.ops.aten._print.default", "torch.ops.prim.Print.default"
    ),
    "random state": each_call("torch.ops.aten.manual_seed.default", "torch.ops.aten.seed.default"),
    "a shift without end": calls("_operator.lshift", 1, 10**12, out=symbol("attack")),
    "binomials without end": lambda: with_nodes(node("math.comb", 10**9, 5 * 10**8), node("math.factorial", 10**7)),
    "numbers as texts": lambda: with_nodes(
        node("_operator.add", PAYLOAD, PAYLOAD, out=symbol("attack")),
        node("math.sqrt", PAYLOAD),
        node("torch.sym_int", PAYLOAD),
    ),
    "arithmetic on modules": lambda: with_nodes(node("_operator.add", tensor("self"), tensor("torch"))),
    "sums of texts": calls("torch.sym_sum", {"as_strings": [PAYLOAD, PAYLOAD]}),
    "maximum with a key": lambda: with_nodes(
        node("builtins.max", 1, 2, key={"as_operator": "builtins.exec"}), node("torch.sym_max", PAYLOAD, 1)
    ),
    "the sympy functions of torch": each_call(
        "torch.utils._sympy.functions.FloorDiv", "torch.utils._sympy.functions.__getattr__"
    ),
    "torch's compilers": each_call(
        "torch.utils.cpp_extension.load_inline", "torch._inductor.codecache.PyCodeCache.load"
    ),
    "torch's jit": each_call(
        "torch.jit.load", "torch._C._jit_pass_inline", "torch._C.import_ir_module", "torch._C.PyTorchFileWriter"
    ),
    "a nested branch reads a file": in_branch("torch.ops.aten.from_file.default", CANARY, True, 16),
    "a while loop of texts": higher_order(
        "torch.ops.higher_order.while_loop", PAYLOAD, PAYLOAD, {"as_tensors": []}, {"as_tensors": []}
    ),
    "wrapped bodies of texts": higher_order(
        "torch.ops.higher_order.wrap_with_set_grad_enabled", PAYLOAD, "exec", PAYLOAD
    ),
    "a wrapped body with a text for its switch": higher_order(
        "torch.ops.higher_order.wrap_with_set_grad_enabled", PAYLOAD, "GRAPH", tensor("x")
    ),
    "autocast with a device of code": higher_order(
        "torch.ops.higher_order.wrap_with_autocast", PAYLOAD, {"as_scalar_type": 6}, True, None, "GRAPH", tensor("x")
    ),
    "effects of an operator": higher_order(
        "torch.ops.higher_order.with_effects", tensor("x"), {"as_operator": "builtins.exec"}, PAYLOAD
    ),
    "a type change of an operator": higher_order(
        "torch.ops.higher_order.out_dtype", {"as_operator": "builtins.exec"}, {"as_scalar_type": 7}, PAYLOAD
    ),
    "compiled libraries": higher_order("torch.ops.higher_order.aoti_call_delegate", PAYLOAD, {"as_tensors": []}),
    "a delegate": higher_order("torch.ops.higher_order.executorch_call_delegate", PAYLOAD, tensor("x")),
    "a torchbind call": higher_order("torch.ops.higher_order.call_torchbind", tensor("x"), "__class__", PAYLOAD),
    "attributes of higher-order ops": each_call(
        "torch.ops.higher_order.cond.__call__",
        "torch.ops.higher_order.cond.__setattr__",
        "torch.ops.higher_order.__getattr__",
    ),
    "a triton kernel": higher_order("torch.ops.higher_order.triton_kernel_wrapper_mutation", 0, PAYLOAD, PAYLOAD),
    "keywords that reach python": lambda: with_nodes(
        node("torch.ops.aten.relu.default", tensor("x"), __class__=PAYLOAD, out=tensor("a")),
        node("torch.ops.aten.relu.default", tensor("x"), **STARS),
    ),
    "dicts and lists of everything": calls(
        "torch.ops.aten.relu.default",
        {"as_string_to_argument": {PAYLOAD: {"as_operator": "builtins.exec"}, "__class__": {"as_string": PAYLOAD}}},
    ),
    "two kinds of argument at once": calls(
        "torch.ops.aten.relu.default", {"as_tensor": {"name": "x"}, "as_operator": "builtins.exec"}
    ),
    "an argument of a made-up kind": lambda: with_nodes(
        node("torch.ops.aten.relu.default", {"__class__": PAYLOAD}),
        node("torch.ops.aten.relu.default", {"as_python": PAYLOAD}),
    ),
    "layouts and memory formats that are code": lambda: with_nodes(
        node("torch.ops.aten.clone.default", tensor("x"), memory_format={"as_memory_format": PAYLOAD}, out=tensor("a")),
        node(
            "torch.ops.aten.empty.memory_format", {"as_ints": [2]}, layout={"as_layout": "__class__"}, out=tensor("b")
        ),
        node("torch.ops.aten.empty.memory_format", {"as_ints": [2]}, layout={"as_layout": 10**30}, out=tensor("c")),
    ),
    "complex numbers that are code": calls(
        "torch.ops.aten.mul.Scalar", tensor("x"), {"as_complex": {"real": PAYLOAD, "imag": PAYLOAD}}
    ),
    "numbers that are code": lambda: with_nodes(
        node("torch.ops.aten.mul.Scalar", tensor("x"), {"as_float": PAYLOAD}, out=tensor("a")),
        node("torch.ops.aten.mul.Scalar", tensor("x"), {"as_int": PAYLOAD}, out=tensor("b")),
        node("torch.ops.aten.mul.Scalar", tensor("x"), {"as_bool": PAYLOAD}, out=tensor("c")),
    ),
    "an equation that is code": calls("torch.ops.aten.einsum.default", PAYLOAD, {"as_tensors": [{"name": "x"}]}),
    "a message with places to fill in": calls(
        "torch.ops.aten._assert_scalar.default", 0, "{0.__class__} %s %n {x!r:>{y}}"
    ),
}
