"""Pickles that would create a canary file if anything ran them: names that run code, and the evasions beside them."""

from __future__ import annotations

from collections.abc import Callable

from tests.checkpoint import evasions
from tests.checkpoint.pickle_writing import (
    CORPUS,
    Make,
    call,
    legacy_file,
    place,
    python,
    shell,
    text,
    torch_archive,
)

__all__ = ["CORPUS", "call", "evasions", "legacy_file", "shell", "text", "torch_archive"]


def _call_of(module: str, name: str, argument: Callable[[str], bytes], protocol: int = 4) -> Make:
    return lambda canary: call(module, name, argument(canary), protocol=protocol)


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
