"""A folder with a decoy for every module and every configuration file that a command might pick up in it.

Each decoy that is executed leaves a file in the folder of marks and ends its process: also a process that may not
write shows that it met one.
"""

from __future__ import annotations

import importlib.metadata
import pickle
import sys
from pathlib import Path
from typing import Any

# Modules that installed packages look for and that may be missing.
_OPTIONAL = (
    "sitecustomize", "usercustomize", "torchgauge_plugin", "conftest", "setup", "flash_attn", "cupy", "tensorflow",
    "jax", "flax", "apex", "deepspeed", "bitsandbytes", "tritonclient", "torch_xla", "intel_extension_for_pytorch",
    "habana_frameworks", "torch_npu", "torchao", "kernels", "yaml", "cuda", "pycuda", "cloudpickle", "lz4", "snappy",
    "blosc", "crick", "bokeh", "jupyter_server_proxy", "dotenv", "IPython", "ipykernel", "gi", "colorama", "matplotlib",
    "src", "_ops", "_classes", "adapter_config",
)  # fmt: skip
# Groups of entry points that packages load without being asked.
_GROUPS = (
    "torch.backends", "torch_dynamo_backends", "numba_extensions", "triton.backends", "distributed.comm.backends",
    "dask.array.backends", "dask.sizeof", "fsspec.specs", "pandas_plotting_backends", "pytest11", "transformers",
)  # fmt: skip


def module_names() -> list[str]:
    """Of the standard library, of every installed package, and of some that may be missing."""
    installed = {name for name in importlib.metadata.packages_distributions() if name.isidentifier()}
    return sorted({*sys.stdlib_module_names, *installed, *_OPTIONAL} - {"torchgauge"})


def marking(name: str, marks: Path) -> str:
    """Source text that leaves a mark and ends the process; it only imports modules that are built into Python."""
    return (
        f"import posix\n"
        f"try:\n"
        f"    posix.close(posix.open({str(marks / name)!r}, posix.O_CREAT | posix.O_WRONLY))\n"
        f"except OSError:\n"
        f"    pass\n"
        f"posix.write(2, b'the decoy {name} ran\\n')\n"
        f"posix._exit(99)\n"
    )


def plant_modules(folder: Path, marks: Path) -> None:
    for name in module_names():
        (folder / f"{name}.py").write_text(marking(name, marks))


def plant_entry_points(folder: Path, marks: Path) -> None:
    """An installed package, to those who find the folder on Python's path."""
    info = folder / "decoy_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: decoy_package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("".join(f"[{group}]\ndecoy = decoy_entry:run\n" for group in _GROUPS))
    (folder / "decoy_entry.py").write_text(marking("decoy_entry", marks))
    (folder / "decoy.pth").write_text("import decoy_entry\n")


class _Marks:
    """As a pickle: the marking code."""

    def __init__(self, source: str) -> None:
        self._source = source

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (self._source,)


def plant_numba_cache(folder: Path, marks: Path) -> None:
    """Settings of numba that name a cache, and the indexes of all kernels in it."""
    from torchgauge.weights.kernels import jit

    for kernel in jit._ENTRIES.values():
        file = kernel.py_func.__code__.co_filename
        place = folder / "cache" / kernel._cache._impl.locator.get_suitable_cache_subpath(file)
        place.mkdir(parents=True, exist_ok=True)
        index = pickle.dumps(_Marks(marking("numba_cache", marks)))
        (place / f"{kernel._cache._impl.filename_base}.nbi").write_bytes(index)
    (folder / ".numba_config.yaml").write_text("cache_dir: cache\n")


def plant_settings(folder: Path, marks: Path) -> None:
    """Configuration files of other packages."""
    (folder / "decoy_setting.py").write_text(marking("decoy_setting", marks))
    (folder / "matplotlibrc").write_text("backend: module://decoy_setting\n")
    dask = "distributed:\n  worker:\n    preload: [decoy_setting]\n  scheduler:\n    preload: [decoy_setting]\n"
    for place in (".dask", "dask", ".config/dask"):
        (folder / place).mkdir(parents=True)
        (folder / place / "distributed.yaml").write_text(dask)
    (folder / "distributed.yaml").write_text(dask)
    (folder / ".env").write_text(f"PYTHONSTARTUP={folder}/decoy_setting.py\nNUMBA_CACHE_DIR={folder}/cache\n")
    (folder / "setup.cfg").write_text("[tool:pytest]\naddopts = -p decoy_setting\n")
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -p decoy_setting\n")
    (folder / ".fsspec").mkdir()
    (folder / ".fsspec" / "conf.json").write_text('{"file": {"protocol": "decoy_setting"}}')
    budgets = "[tool.torchgauge.budgets]\nparams = 1000000000\n"
    for target in ("decoy_setting.py:Net", "decoy_setting:Net"):
        budgets += f'[tool.torchgauge.budgets."{target}"]\ninput = "1x4"\n'
    (folder / "pyproject.toml").write_text(budgets)


def plant(folder: Path, marks: Path) -> None:
    plant_modules(folder, marks)
    plant_entry_points(folder, marks)
    plant_numba_cache(folder, marks)
    plant_settings(folder, marks)
