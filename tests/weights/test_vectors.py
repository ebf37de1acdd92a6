"""The compiled loop of the float32 pass: vectors as wide as the processor's, and all sums in registers."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
from llvmlite.binding import get_host_cpu_features, get_host_cpu_name
from numba import config, njit, types

from torchgauge.weights.kernels.float32 import _pass_lines
from torchgauge.weights.kernels.vectors import FLOATS

# NUMBA_CPU_NAME makes numba compile for another processor.
HAS_AVX2 = (
    platform.machine().lower() in ("x86_64", "amd64")
    and get_host_cpu_features().get("avx2", False)
    and config.CPU_NAME in (None, "host", get_host_cpu_name())
)


def pass_assembly() -> str:
    arrays = [types.Array(kind, 1, "C") for kind in (types.float32, types.int32, types.uint64)]
    kernel = njit(_pass_lines.py_func, nogil=True, error_model="numpy")  # type: ignore[attr-defined]
    kernel.compile((*arrays, types.Array(types.uint32, 2, "C"), types.float64))
    return str(kernel.inspect_asm(kernel.signatures[0]))


@pytest.mark.skipif(not HAS_AVX2, reason="reads the assembly of processors with AVX2 or AVX-512")
def test_the_loop_computes_with_whole_registers_and_spills_none() -> None:
    loop = hot_loop(pass_assembly())
    register = {4: "ymm", 8: "zmm"}[FLOATS]
    assert len(re.findall(rf"vfmadd\w+pd\s.*%{register}", loop)) >= 2  # the third and fourth powers
    assert "(%rsp)" not in loop


FOR_AVX512 = """
import llvmlite.binding
features = {**llvmlite.binding.get_host_cpu_features(), "avx512f": True}
llvmlite.binding.get_host_cpu_features = lambda: features
from tests.weights.test_vectors import pass_assembly
print(pass_assembly())
"""


@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="LLVM writes code for x86")
def test_for_processors_with_avx512_the_loop_has_its_registers(tmp_path: Path) -> None:
    """The code for AMD's Zen 4, which LLVM writes on any processor of the kind; it is read, not run."""
    environment = {**os.environ, "NUMBA_CPU_NAME": "znver4", "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FOR_AVX512],
        cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    loop = hot_loop(done.stdout)
    assert len(re.findall(r"vfmadd\w+pd\s.*%zmm", loop)) >= 2
    assert not re.search(r"v(add|mul|fmadd\w*)sd\s|\(%rsp\)", loop)


def hot_loop(assembly: str) -> str:
    """From the label before the prefetch to the jump back to it."""
    lines = assembly.splitlines()
    inside = next(number for number, line in enumerate(lines) if "prefetch" in line)
    start = max(number for number in range(inside) if re.match(r"^\.\w+:", lines[number]))
    label = lines[start].rstrip(":")
    back = re.compile(rf"\sj\w+\s+{re.escape(label)}$")
    stop = next(number for number in range(inside, len(lines)) if back.search(lines[number]))
    return "\n".join(lines[start : stop + 1])
