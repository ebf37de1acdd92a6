"""Attacks through the code and the records of TorchScript archives."""

from __future__ import annotations

import pickletools
from collections.abc import Callable

from tests.attacks.archives import (
    CANARY,
    PAYLOAD,
    Attack,
    Records,
    code_of,
    pickled,
    scripted,
    with_code,
    with_state_statement,
    with_statement,
)

SAVE = f'torch.save(x, "{CANARY}")'
IN_STATE = f'torch.save(1, "{CANARY}")'


def statement(*lines: str) -> Attack:
    return lambda: with_statement(*lines)


def state(*lines: str) -> Attack:
    return lambda: with_state_statement(*lines)


def replaced(old: str, new: str) -> Attack:
    return lambda: with_code(lambda text: text.replace(old, new))


def before(text: str) -> Attack:
    return lambda: with_code(lambda code: text + code)


def after(text: str) -> Attack:
    return lambda: with_code(lambda code: code + text)


def record(suffix: str, content: bytes) -> Attack:
    def make() -> Records:
        return {name: content if name.endswith(suffix) else old for name, old in scripted().items()}

    return make


def edited_pickle(change: Callable[[bytes], bytes], suffix: str = "/data.pkl") -> Attack:
    def make() -> Records:
        records = scripted()
        name = next(name for name in records if name.endswith(suffix))
        records[name] = change(records[name])
        list(pickletools.genops(records[name]))
        return records

    return make


def text(value: str) -> bytes:
    content = value.encode()
    return b"X" + len(content).to_bytes(4, "little") + content


def renamed_attribute(new: str) -> Attack:
    """The attribute `name` of the scripted class has another name, in its code and in its pickle."""

    def make() -> Records:
        records = with_code(lambda code: code.replace("  name : str", f"  {new} : str"))
        name = next(name for name in records if name.endswith("/data.pkl"))
        records[name] = records[name].replace(text("name"), text(new))
        return records

    return make


def object_of(module: str, name: str) -> bytes:
    """A pickle of an object without arguments, of this class."""
    return b"\x80\x02c" + module.encode() + b"\n" + name.encode() + b"\n)\x81}b."


def call_of(module: str, name: str, argument: str) -> bytes:
    return b"\x80\x02c" + module.encode() + b"\n" + name.encode() + b"\n" + text(argument) + b"\x85R."


def with_record(name: str, content: bytes) -> Attack:
    return lambda: scripted() | {f"archive/{name}": content}


HOOKS = f"""
  __forward_hooks__ = ["hook"]
  __forward_pre_hooks__ = ["hook"]
  def hook(self: __torch__.tests.attacks.archives.PlainScripted,
    x: Tuple[Tensor],
    y: Tensor) -> Tensor:
    {SAVE}
    return y
"""

SEEN: dict[str, Attack] = {
    "forward saves": statement(SAVE),
    "forward saves in a branch": statement("if torch.gt(torch.dim(x), 99):", f"  {SAVE}", "else:", "  pass"),
    "forward maps a file": statement(f'y = torch.from_file("{CANARY}", True, 16)'),
    "reading saves": state(IN_STATE),
    "reading prints": state('print("from the file")'),
    "ops of the profiler": statement('y = ops.profiler._record_function_enter_new("a", None)'),
    "ops of image files": statement(f'y = ops.image.write_file("{CANARY}", x)'),
    "ops by a dunder": statement(f'y = ops.aten.__getattribute__("{PAYLOAD}")', "z = ops.aten.relu.__setattr__(1, 2)"),
    "a python op": statement("y = ^PythonFunction()(x)"),
    "builtins of Python": statement(f'y = eval("{PAYLOAD}")', f'z = exec("{PAYLOAD}")', f'w = open("{CANARY}", "w")'),
    "getattr with a text": statement('y = getattr(torch, "save")', f'y(x, "{CANARY}")'),
    "attributes of self": statement("y = self.__class__", "z = (self.layer).__dict__"),
    "a class of torch": statement("y = __torch__.torch.classes._nnapi.Compilation()"),
    "a class of RPC": statement(f'y = __torch__.torch.classes.dist_rpc.WorkerInfo("{CANARY}", 0)'),
    "an import": before("import __torch__.os\nimport os\n"),
    "another encoding": before(f'# coding: utf-7\nx = "+ACIAIgAi-"\n{PAYLOAD}\n'),
    "fullwidth letters": statement(f'torch.\uff53ave(x, "{CANARY}")'),
    "a text that ends the line": statement(f'y = "\\\n{SAVE}"'),
    "hooks": lambda: with_code(lambda code: code + HOOKS.lstrip("\n")),
    "an attribute by the name of a method": renamed_attribute("forward"),
    "an attribute by a dunder name": renamed_attribute("__class__"),
    "an attribute that is code": renamed_attribute(f"a = {PAYLOAD}; b"),
    "a hostile pickle of the objects": record("/data.pkl", pickled()),
    "a hostile pickle of the constants": record("/constants.pkl", pickled()),
    "a hostile pickle of source ranges": record(".debug_pkl", pickled()),
    "an object of a class of Python": record("/data.pkl", object_of("os", "_wrap_close")),
    "an object of a custom class": record("/data.pkl", object_of("__torch__.torch.classes", "evil.Thing")),
    "a type tag that is code": record("/data.pkl", call_of("torch.jit._pickle", "restore_type_tag", PAYLOAD)),
}

HELD_BACK: dict[str, Attack] = {
    "forward saves in a loop": statement("for i in range(3):", f"  {SAVE}"),
    "forward saves in a function": lambda: with_code(
        lambda code: (
            "def helper(x: Tensor) -> NoneType:\n  "
            + SAVE
            + "\n  return None\n"
            + code.replace(
                "    layer = self.layer\n",
                "    _0 = __torch__.tests.attacks.archives.helper\n    y = _0(x, )\n    layer = self.layer\n",
                1,
            )
        )
    ),
    "another method saves": after(
        "  def other(self: __torch__.tests.attacks.archives.PlainScripted,\n"
        f"    x: Tensor) -> Tensor:\n    {SAVE}\n    return x\n"
    ),
    "save by its schema": statement(f'ops.aten.save(x, "{CANARY}")', f'torch.ops.aten.save(x, "{CANARY}")'),
    "save by an alias": statement("y = torch", f'y.save(x, "{CANARY}")'),
    "save on another line": statement(f'torch.\\\n    save(x, "{CANARY}")'),
    "save in a comment's shadow": statement(f'y = "#" ; {SAVE}'),
    "save behind a carriage return": statement(f"y = 1 # comment\r    {SAVE}"),
    "save behind a form feed": statement(f"y = 1 # comment\x0c    {SAVE}"),
    "save in a triple quote": statement('y = """', SAVE, '"""'),
    "save behind a null character": statement(f"y = 1 # \x00\n    {SAVE}"),
    "save in a default": replaced("x: Tensor) -> Tensor", f"x: Tensor={SAVE}) -> Tensor"),
    "save in an annotation": replaced("x: Tensor) -> Tensor", f"x: {SAVE}) -> Tensor"),
    "save in a forked task": statement(f"y = fork({SAVE})", "z = wait(y)"),
    "a byte order mark": lambda: with_code(
        lambda code: "\ufeff" + code.replace("    layer = self.layer\n", f"    {SAVE}\n    layer = self.layer\n")
    ),
    "reading saves in a part": lambda: with_state_statement("if True:", f"  {IN_STATE}", "else:", "  pass"),
    "reading maps a file": state(f'y = torch.from_file("{CANARY}", True, 16)'),
    "reading calls forward": state("y = (self).forward((state)[0], )", IN_STATE),
    "remote calls": statement('y = rpc_async("w", f, (x,))', 'z = ops.rpc.remote("w", x)'),
    "other namespaces of ops": statement(
        "y = ops.c10d.barrier()",
        "z = ops.inductor.x(x)",
        "w = ops.prims.x(x)",
        "v = ops.quantized.linear_prepack(x, None)",
    ),
    "ops of prim": statement("y = ops.prim.PythonOp(x)", "z = prim.CallFunction(x)", "w = ops.prim.IgnoredPythonOp(x)"),
    "torch functions": statement(
        f'torch.load("{CANARY}")',
        f'torch.hub.load("{CANARY}", "x")',
        f'torch.ops.load_library("{CANARY}")',
        f'torch.classes.load_library("{CANARY}")',
    ),
    "random state and threads": statement(
        "torch.manual_seed(1)", "torch.set_num_threads(1)", "y = torch.set_grad_enabled(False)"
    ),
    "a text is filled in": statement(
        'y = torch.format("{0.__class__.__init__.__globals__} {} {x!r}", x)', 'z = "%s" % x'
    ),
    "an error that is code": statement(f'ops.prim.RaiseException("{PAYLOAD}", "os.system")'),
    "the class derives from another": replaced("(Module)", "(os.system)"),
    "the class is code": replaced("class PlainScripted(Module)", f"class PlainScripted({PAYLOAD})"),
    "a decorator": before(f"@{PAYLOAD}\n"),
    "a lambda": statement(f"y = (lambda: {PAYLOAD})()"),
    "a comprehension": statement(f"y = [{SAVE} for i in range(3)]"),
    "a deep expression": statement("y = " + "(" * 3000 + "1" + ")" * 3000),
    "a deep chain of attributes": statement("y = self" + ".layer" * 5000),
    "a named tuple with hostile fields": before(
        f"class Pair(NamedTuple):\n  __class__ : Tensor\n  forward : {PAYLOAD}\n"
    ),
    "an enum with hostile members": before(f"class Kind(Enum):\n  __class__ : int = {PAYLOAD}\n"),
    "an interface": before(f"class Face(Interface):\n  def forward(self: Face, x: Tensor={PAYLOAD}) -> Tensor: pass\n"),
    "constants by a dunder": statement("y = CONSTANTS.__class__", "z = CONSTANTS.c999"),
    "an attribute by the name of the table of modules": renamed_attribute("_modules"),
    "an attribute by the name of a hook": renamed_attribute("_forward_hooks"),
    "an attribute named __getattr__": renamed_attribute("__getattr__"),
    "an object called in the pickle": record("/data.pkl", call_of("builtins", "exec", PAYLOAD)),
    "a tensor rebuilt by another function": edited_pickle(
        lambda content: content.replace(b"ctorch._utils\n_rebuild_tensor_v2\n", b"cos\nsystem\n")
    ),
    "a storage of another kind": edited_pickle(
        lambda content: content.replace(b"ctorch\nFloatStorage\n", b"cbuiltins\nexec\n")
    ),
    "a list builder of another kind": record(
        "/constants.pkl", call_of("torch.jit._pickle", "build_tensor_from_id", PAYLOAD)
    ),
    "a class outside of the archive": record("/data.pkl", object_of("__torch__.os", "system")),
    "a pickle next to the code": with_record("extra/evil.pkl", pickled()),
    "bytecode for phones": with_record("bytecode.pkl", pickled()),
    "code by a path": with_record(f"code/__torch__/../../{CANARY}.py", b"import os\n"),
    "code in a foreign package": lambda: (
        scripted() | {"archive/code/os.py": PAYLOAD.encode(), "archive/code/__torch__.py": PAYLOAD.encode()}
    ),
    "a version that is code": record("/version", PAYLOAD.encode()),
    "constants in the code": lambda: {
        name: content.replace(b"2)", f"CONSTANTS.c0.{PAYLOAD})".encode()) if name == code_of(scripted()) else content
        for name, content in scripted().items()
    },
}
