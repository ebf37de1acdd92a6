"""Pickles that would create a canary file if anything ran them, made by hand; none is ever loaded here.

Each is one way that was used against scanners: a name that runs code, a way to spell it, or a way to hide it.
"""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

Make = Callable[[str], bytes]
CORPUS: dict[str, Make] = {}


def kind(function: Make) -> Make:
    CORPUS[function.__name__] = function
    return function


def text(value: str) -> bytes:
    encoded = value.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def content(value: bytes) -> bytes:
    return b"B" + struct.pack("<I", len(value)) + value


def call(module: str, name: str, *arguments: bytes, protocol: int = 4) -> bytes:
    """`module.name(*arguments)`, by the opcodes that any pickler would use."""
    target = text(module) + text(name) + b"\x93" if protocol >= 4 else f"c{module}\n{name}\n".encode()
    return b"\x80" + bytes([protocol]) + target + b"(" + b"".join(arguments) + b"tR."


def _call_of(module: str, name: str, argument: Callable[[str], bytes], protocol: int = 4) -> Make:
    return lambda canary: call(module, name, argument(canary), protocol=protocol)


def shell(canary: str) -> bytes:
    return text(f"touch {canary}")


def python(canary: str) -> bytes:
    return text(f"open({canary!r}, 'w').close()")


def place(canary: str) -> bytes:
    return text(canary)


# name -> the argument that makes it harmful
_CALLS: dict[str, Callable[[str], bytes]] = {
    "os.system": shell,
    "posix.system": shell,
    "nt.system": shell,
    "os.popen": shell,
    "os.mkdir": place,
    "subprocess.getoutput": shell,
    "subprocess.Popen": shell,
    "commands.getoutput": shell,
    "pty.spawn": shell,
    "builtins.eval": python,
    "builtins.exec": python,
    "builtins.compile": python,
    "builtins.open": place,
    "builtins.__import__": place,
    "builtins.breakpoint": place,
    "io.open": place,
    "_io.FileIO": place,
    "runpy.run_path": place,
    "runpy._run_code": python,
    "importlib.import_module": place,
    "code.interact": python,
    "code.InteractiveInterpreter.runcode": python,
    "timeit.timeit": python,
    "cProfile.run": python,
    "profile.run": python,
    "pdb.run": python,
    "bdb.Bdb.run": python,
    "trace.Trace.run": python,
    "doctest.debug_script": python,
    "pydoc.pipepager": shell,
    "webbrowser.open": place,
    "shutil.copytree": place,
    "socket.create_connection": place,
    "ssl.get_server_certificate": place,
    "ctypes.CDLL": place,
    "multiprocessing.Process": place,
    "asyncio.unix_events._UnixSubprocessTransport._start": shell,
    "logging.FileHandler": place,
    "logging.config.dictConfig": place,
    "idlelib.run.Executive.runcode": python,
    "lib2to3.pgen2.grammar.Grammar.loads": place,
    "distutils.file_util.write_file": place,
    "ensurepip._run_pip": place,
    "venv.create": place,
    "pip.main": place,
    "imaplib.IMAP4_stream": shell,
    "uuid._get_command_stdout": shell,
    "_osx_support._read_output": shell,
    "test.support.script_helper.assert_python_ok": place,
    "urllib.request.urlopen": place,
    "requests.api.get": place,
    "aiohttp.ClientSession": place,
    "httplib.HTTPConnection": place,
    "operator.attrgetter": place,
    "operator.methodcaller": place,
    "functools.partial": place,
    "pkgutil.resolve_name": place,
    "types.CodeType": place,
    "marshal.loads": place,
    "pickle.loads": place,
    "torch.load": place,
    "torch.hub.load": place,
    "torch.serialization.load": place,
    "torch._inductor.codecache.compile_file": place,
    "torch.utils.collect_env.run": shell,
    "torch.utils._config_module.ConfigModule.load_config": place,
    "torch.utils.data.datapipes.utils.decoder.basichandlers": place,
    "torch.utils.bottleneck.__main__.run_cprofile": python,
    "torch.fx.experimental.symbolic_shapes.ShapeEnv.evaluate_guards_expression": python,
    "torch.jit.unsupported_tensor_ops.execWrapper": python,
    "numpy.testing._private.utils.runstring": python,
    "numpy.f2py.crackfortran.getlincoef": python,
    "cloudpickle.cloudpickle.subimport": place,
    "joblib.load": place,
    "dill.loads": place,
}
_CLASSES = ("InteractiveInterpreter", "Bdb", "Trace", "Executive", "Grammar", "ConfigModule", "ShapeEnv",
            "_UnixSubprocessTransport")  # fmt: skip


def _split(name: str) -> tuple[str, str]:
    """Where the module ends and the names in it begin."""
    parts = name.split(".")
    cut = next((number for number, part in enumerate(parts) if part in _CLASSES), len(parts) - 1)
    return ".".join(parts[:cut]), ".".join(parts[cut:])


for _name, _argument in _CALLS.items():
    CORPUS[_name] = _call_of(*_split(_name), _argument)


@kind
def python_2_names(canary: str) -> bytes:
    return b"c__builtin__\neval\n(V" + f"open({canary!r}, 'w')".encode() + b"\ntR."


@kind
def protocol_0_with_inst(canary: str) -> bytes:
    return b"(S'touch " + canary.encode() + b"'\nios\nsystem\n."


@kind
def object_opcode(canary: str) -> bytes:
    return b"\x80\x02(cos\nsystem\n" + shell(canary) + b"o."


@kind
def newobj_opcode(canary: str) -> bytes:
    return b"\x80\x04cos\nsystem\n(" + shell(canary) + b"t\x81."


@kind
def newobj_ex_opcode(canary: str) -> bytes:
    return b"\x80\x04cos\nsystem\n(" + shell(canary) + b"t}\x92."


@kind
def names_from_the_memo(canary: str) -> bytes:
    return b"\x80\x04" + text("os") + b"\x940" + text("system") + b"\x940h\x00h\x01\x93(" + shell(canary) + b"tR."


@kind
def names_swapped_by_dup_and_pop(canary: str) -> bytes:
    return b"\x80\x04" + text("os") + text("decoy") + b"0" + text("system") + b"20\x93(" + shell(canary) + b"tR."


@kind
def a_name_built_by_a_call(canary: str) -> bytes:
    module = text("builtins") + text("str") + b"\x93(" + text("os") + b"tR"
    return b"\x80\x04" + module + text("system") + b"\x93(" + shell(canary) + b"tR."


@kind
def a_way_through_another_module(canary: str) -> bytes:
    return call("torch.serialization", "os.system", shell(canary))


@kind
def a_way_through_dunders(canary: str) -> bytes:
    return call("collections", "OrderedDict.__init__.__globals__.get", text("sys"))


@kind
def attribute_of_a_module(canary: str) -> bytes:
    getter = text("builtins") + text("getattr") + b"\x93(cos\n__name__\n" + text("system") + b"tR"
    return b"\x80\x04" + getter + b"(" + shell(canary) + b"tR."


@kind
def payload_before_a_broken_end(canary: str) -> bytes:
    return call("os", "system", shell(canary))[:-1] + b"\xff\xff garbage"


@kind
def payload_before_a_cut_off_end(canary: str) -> bytes:
    return call("os", "system", shell(canary))[:-1]


@kind
def payload_popped_off_the_stack(canary: str) -> bytes:
    return call("os", "system", shell(canary))[:-1] + b"0}."


@kind
def payload_in_a_second_pickle(canary: str) -> bytes:
    return pickle.dumps({"harmless": 1}) + call("os", "system", shell(canary))


@kind
def payload_in_a_dict_key(canary: str) -> bytes:
    return b"\x80\x04}" + call("os", "system", shell(canary))[2:-1] + b"K\x01s."


@kind
def payload_in_the_state(canary: str) -> bytes:
    return b"\x80\x04ccollections\nOrderedDict\n)R" + call("os", "system", shell(canary))[2:-1] + b"b."


@kind
def a_pickle_in_a_pickle(canary: str) -> bytes:
    return call("_pickle", "loads", content(call("os", "system", shell(canary))))


@kind
def a_pickle_in_a_harmless_call(canary: str) -> bytes:
    return call("somebody", "restore", content(call("os", "system", shell(canary))))


@kind
def a_pickle_in_bytes_of_protocol_2(canary: str) -> bytes:
    inner = call("os", "system", shell(canary), protocol=2)
    encoded = b"c_codecs\nencode\n(" + text(inner.decode("latin-1")) + text("latin1") + b"tR"
    return b"\x80\x02cpickle\nloads\n(" + encoded + b"tR."


@kind
def a_lie_about_the_protocol(canary: str) -> bytes:
    return b"\x80\x00" + call("os", "system", shell(canary))[2:]


@kind
def frames_that_lie(canary: str) -> bytes:
    return b"\x80\x04\x95" + struct.pack("<Q", 2**60) + call("os", "system", shell(canary))[2:]


def reduce_of(function: Any, *arguments: Any) -> bytes:
    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return function, arguments

    return pickle.dumps(Payload(), 4)


def torch_archive(body: bytes, **records: bytes) -> bytes:
    """A torch file around a hand-made pickle."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", body)
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")
        for name, value in records.items():
            archive.writestr(f"archive/{name.replace('__', '/')}", value)
    return buffer.getvalue()


def legacy_file(body: bytes) -> bytes:
    head = [pickle.dumps(value, 2) for value in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})]
    return b"".join(head) + body + pickle.dumps([], 2)


def write_corpus(folder: Path, canary: str) -> dict[str, Path]:
    paths = {}
    for name, make in CORPUS.items():
        paths[name] = folder / f"{name}.pkl"
        paths[name].write_bytes(make(canary))
    return paths
