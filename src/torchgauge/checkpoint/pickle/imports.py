"""Judge the names that a pickle imports: expected, unknown or dangerous.

Expected: names that torch's own `weights_only` loader admits, plain containers, numpy's arrays, torch's modules and the
classes of its checkpoint formats. Dangerous: names that run code, open files or reach the network or other names; the
lists follow the public scanners. The rest is unknown: a class of another package, whose code would run.
"""

from __future__ import annotations

import re
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING

from torchgauge.checkpoint import limits
from torchgauge.checkpoint.byte_source import printable
from torchgauge.checkpoint.dtypes import STORAGE_CLASSES, TORCH_DTYPES, UNTYPED_STORAGE_CLASSES
from torchgauge.checkpoint.index import Import, Verdict
from torchgauge.errors import FormatError

_REBUILDERS = (
    "_rebuild_parameter", "_rebuild_parameter_with_state", "_rebuild_qtensor", "_rebuild_tensor", "_rebuild_tensor_v2",
    "_rebuild_tensor_v3", "_rebuild_sparse_tensor", "_rebuild_sparse_csr_tensor", "_rebuild_meta_tensor_no_storage",
    "_rebuild_nested_tensor", "_rebuild_wrapper_subclass", "_rebuild_device_tensor_from_numpy",
    "_rebuild_device_tensor_from_cpu_tensor", "_rebuild_xla_tensor",
)  # fmt: skip
_SCHEMES = ("per_tensor_affine", "per_tensor_symmetric", "per_channel_affine", "per_channel_symmetric",
            "per_channel_affine_float_qparams")  # fmt: skip
_ARRAYS = ("_reconstruct", "scalar")
EXPECTED = frozenset(
    {
        *(f"torch._utils.{name}" for name in _REBUILDERS),
        *(f"torch.{name}" for name in (*STORAGE_CLASSES, *TORCH_DTYPES, *_SCHEMES)),
        *(f"torch.storage.{name}" for name in (*UNTYPED_STORAGE_CLASSES, "TypedStorage", "_TypedStorage")),
        *(f"torch.cuda.{name}" for name in STORAGE_CLASSES),
        *(f"{base}.multiarray.{name}" for base in ("numpy.core", "numpy._core") for name in _ARRAYS),
        "numpy._core.numeric._frombuffer", "numpy.core.numeric._frombuffer",
        "numpy.ndarray", "numpy.dtype", "numpy.float32", "numpy.float64", "numpy.int64", "numpy.bool_",
        "collections.OrderedDict", "collections.Counter", "collections.defaultdict", "collections.deque",
        "builtins.dict", "builtins.list", "builtins.tuple", "builtins.set", "builtins.frozenset", "builtins.bytearray",
        "builtins.bytes", "builtins.complex", "builtins.int", "builtins.float", "builtins.bool", "builtins.str",
        "builtins.object", "builtins.slice", "builtins.range",
        "_codecs.encode", "copyreg._reconstructor", "argparse.Namespace", "types.SimpleNamespace",
        "pathlib.PosixPath", "pathlib.WindowsPath", "pathlib.PurePosixPath", "pathlib.PureWindowsPath",
        "pathlib._local.PosixPath", "pathlib._local.WindowsPath",
        "datetime.datetime", "datetime.date", "datetime.timedelta", "datetime.timezone", "decimal.Decimal",
        "fractions.Fraction",
        "torch.Size", "torch.Tensor", "torch.device", "torch.strided", "torch.Generator",
        "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer", "torch._tensor._rebuild_from_type_v2",
        "torch._tensor._rebuild_from_type", "torch.serialization._get_layout", "torch._C._nn.Parameter",
        "torch._C.DisableTorchFunctionSubclass", "torch.nested._internal.nested_tensor._rebuild_njt",
        "torch.nested._internal.nested_tensor.NestedTensor", "torch._dynamo.decorators._DimRange",
    }
)  # fmt: skip
# Only classes: a dotted name could reach anything that the module imports.
_EXPECTED_CLASSES = re.compile(
    r"(torch\.nn\.(modules|parameter|quantized|intrinsic|qat)(\.\w+)*|torch\.ao\.nn(\.\w+)*|torch\.optim(\.\w+)?"
    r"|torch\.distributed\.checkpoint\.(metadata|filesystem|planner)|torch\.distributed\._shard(\.\w+)*"
    r"|torch\.distributed\.(_tensor|tensor)(\.\w+)*|torch\.distributed\.(device_mesh|_mesh_layout)|torch\.jit\._pickle|torch\.torch_version):_?[A-Z]\w*"
)
_EXPECTED_SCRIPT = re.compile(r"__torch__(\.\w+)*:\w+|torch\.jit\._pickle:(build_\w+|restore_type_tag)")

_DANGEROUS_MODULES = frozenset(
    {
        "os", "posix", "nt", "sys", "subprocess", "pty", "commands", "_posixsubprocess", "multiprocessing", "code",
        "codeop", "runpy", "marshal", "doctest", "importlib", "imp", "_frozen_importlib",
        "_frozen_importlib_external", "_imp", "pkgutil", "zipimport", "gc", "site", "sitecustomize", "unittest",
        "inspect", "test", "operator", "_operator", "functools", "_functools", "cProfile", "profile", "pdb", "bdb",
        "timeit", "trace", "socket", "_socket", "ssl", "_ssl", "httplib", "http", "urllib", "urllib2", "urllib3",
        "requests", "aiohttp", "httpx", "asyncio", "webbrowser", "smtplib", "imaplib", "ftplib", "poplib",
        "telnetlib", "nntplib", "ctypes", "_ctypes", "cffi", "pickle", "_pickle", "cPickle", "dill", "cloudpickle",
        "joblib", "shutil", "tempfile", "filecmp", "distutils", "setuptools", "pydoc", "pexpect", "venv", "ensurepip",
        "pip", "idlelib", "lib2to3", "socketserver", "xmlrpc", "signal", "_signal", "threading", "_thread", "thread",
        "atexit", "sqlite3", "_sqlite3", "fileinput", "glob", "platform", "linecache", "difflib", "compileall",
        "py_compile", "mmap", "select", "selectors", "syslog", "tarfile", "zipfile", "shelve", "uuid", "_osx_support",
        "_aix_support", "_pyrepl", "builtins", "__builtin__", "__builtins__", "types", "io", "_io", "codecs",
        "concurrent", "cgitb", "popen2", "getpass", "readline", "rlcompleter", "symtable", "tracemalloc",
        "faulthandler", "winreg", "_winapi", "msvcrt", "tokenize", "curses", "turtle", "tkinter", "wsgiref",
        "mailbox", "mailcap", "netrc", "lzma", "bz2", "gzip", "dbm", "ntpath", "posixpath", "genericpath", "pathlib",
        "fcntl", "resource", "termios", "tty", "nturl2path", "antigravity", "pydoc_data", "jinja2", "yaml",
        "paramiko", "fabric", "sh", "plumbum",
    }
)  # fmt: skip
_DANGEROUS_PREFIXES = (
    "torch.hub", "torch._dynamo", "torch._inductor", "torch.jit", "torch.compile", "torch.load", "torch.save",
    "torch.serialization.load", "torch.serialization.save", "torch.storage._load_from_bytes", "torch.package",
    "torch.utils._config_module", "torch.utils.bottleneck", "torch.utils.collect_env", "torch.utils.cpp_extension",
    "torch.utils.data.datapipes.utils.decoder", "torch.utils.model_zoo", "torch.utils.show_pickle", "torch.ops",
    "torch.classes", "torch._ops", "torch._classes", "torch.fx", "torch.distributed.elastic", "torch.distributed.run",
    "torch.distributed.launch", "torch.distributed.rpc", "torch.multiprocessing", "torch.testing", "torch.export",
    "torch._export", "torch.onnx", "torch.library", "torch.utils.checkpoint", "torch.utils.mobile_optimizer",
    "torch.utils.tensorboard", "torch.distributed.nn.jit", "torch.from_file", "torch._C._from_file",
    "torch.UntypedStorage.from_file", "torch.cuda._memory_viz", "torch._utils_internal", "torch.utils.file_baton",
    "torch.utils.hipify", "torch.autograd.profiler",
    "numpy.f2py", "numpy.distutils", "numpy.testing", "numpy.ctypeslib", "numpy.load", "numpy.save", "numpy.savez",
    "numpy.fromfile", "numpy.memmap", "numpy.genfromtxt", "numpy.loadtxt", "numpy.savetxt", "numpy.lib.npyio",
    "numpy.vectorize", "numpy.frompyfunc", "numpy.apply_along_axis", "numpy.compat",
    "logging.config", "logging.FileHandler", "logging.handlers", "logging.basicConfig",
    "pandas.read_pickle", "pandas.io", "pandas.eval", "pandas.core.computation",
    "transformers.pipeline", "transformers.dynamic_module_utils", "tensorflow", "keras", "onnxruntime",
    "sklearn.externals",
    "copyreg.add_extension", "copyreg.pickle", "random._os", "collections.sys", "collections._sys", "string._re",
)  # fmt: skip
# Attributes that lead from a harmless object to any other one.
_ESCAPES = frozenset(
    {
        "os", "sys", "subprocess", "builtins", "posix", "nt", "ctypes", "importlib", "runpy", "socket", "shutil",
        "pickle", "marshal", "eval", "exec", "system", "popen", "import_module", "load_module", "exec_module",
        "run_module",
    }
)  # fmt: skip
_DUNDER = re.compile(r"__\w+__")
_HARMLESS_DUNDERS = frozenset({"__main__", "__torch__", "__mp_main__", "__newobj__", "__newobj_ex__", "__init__"})
# Known to be harmless, but not part of a checkpoint.
_UNKNOWN = frozenset({"pathlib.Path", "pathlib.PurePath", "io.BytesIO", "_io.BytesIO", "io.StringIO", "_io.StringIO",
                      "builtins.Ellipsis", "builtins.NotImplemented", "builtins.enumerate", "builtins.zip",
                      "builtins.reversed", "joblib.numpy_pickle.NumpyArrayWrapper"})  # fmt: skip


def judge(module: str, name: str) -> Verdict:
    """By the name in Python 3; Python maps names of Python 2 to it for protocols below 3."""
    module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
    full = f"{module}.{name}"
    if full in EXPECTED and "." not in name:
        return Verdict.EXPECTED
    if _EXPECTED_CLASSES.fullmatch(f"{module}:{name}") or _EXPECTED_SCRIPT.fullmatch(f"{module}:{name}"):
        return Verdict.EXPECTED
    if full in _UNKNOWN:
        return Verdict.UNKNOWN
    segments = full.split(".")
    if segments[0] in _DANGEROUS_MODULES or any(f"{full}.".startswith(f"{prefix}.") for prefix in _DANGEROUS_PREFIXES):
        return Verdict.DANGEROUS
    if any(_DUNDER.fullmatch(segment) and segment not in _HARMLESS_DUNDERS for segment in segments):
        return Verdict.DANGEROUS
    # Such as the name `os.system` in `torch.serialization`: an attribute of a module reaches another module.
    escapes = not _ESCAPES.isdisjoint(name.split(".")) or not _ESCAPES.isdisjoint(segments[1:-1])
    return Verdict.DANGEROUS if escapes else Verdict.UNKNOWN


class ImportLog:
    """The names that pickles would import, in order. As a context manager it attaches them to a `FormatError`."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Import] = {}
        self._noted: set[tuple[str, str, str, bool]] = set()

    def __enter__(self) -> ImportLog:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, FormatError):
            error.imports = tuple(dict.fromkeys((*error.imports, *self.imports)))

    def note(self, module: str, name: str, file: str, *, called: bool = False) -> None:
        key = (module, name, file, called)
        if key in self._noted:
            return
        full = printable(f"{module}.{name}")
        known = self._found.get((full, file))
        if known is not None and (known.called or not called):
            return
        if len(self._found) >= limits.IMPORTS:
            raise FormatError(f"{file}: its pickle imports more than {limits.IMPORTS} names")
        self._noted.add(key)
        verdict = judge(module, name) if known is None else known.verdict
        self._found[full, file] = Import(full, verdict, called, file)

    def merge(self, imports: tuple[Import, ...]) -> None:
        for found in imports:
            self._found.setdefault((found.name, found.file), found)

    def note_computed(self, file: str) -> None:
        """An import whose name is computed when the pickle runs."""
        self._found[_COMPUTED, file] = Import(_COMPUTED, Verdict.DANGEROUS, True, file)

    @property
    def imports(self) -> tuple[Import, ...]:
        return tuple(self._found.values())

    @property
    def dangerous(self) -> list[str]:
        return [found.name for found in self._found.values() if found.verdict is Verdict.DANGEROUS]


_COMPUTED = "(a name computed while unpickling)"
