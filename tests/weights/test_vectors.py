"""The compiled loop of the float32 pass: vectors as wide as the processor's, and all sums in registers."""

from __future__ import annotations

import platform
import re

import pytest
from llvmlite.binding import get_host_cpu_features, get_host_cpu_name
from numba import config, njit, types

from torchgauge.weights.kernels.float32 import _pass_lines
from torchgauge.weights.kernels.vectors import FLOATS

# Numba compiles for another processor where it is told to (NUMBA_CPU_NAME).
HAS_AVX2 = (
    platform.machine().lower() in ("x86_64", "amd64")
    and get_host_cpu_features().get("avx2", False)
    and config.CPU_NAME in (None, "host", get_host_cpu_name())
)


@pytest.mark.skipif(not HAS_AVX2, reason="reads the assembly of processors with AVX2 or AVX-512")
def test_the_loop_computes_with_whole_registers_and_spills_none() -> None:
    arrays = [types.Array(kind, 1, "C") for kind in (types.float32, types.int32, types.uint64)]
    kernel = njit(_pass_lines.py_func, nogil=True, error_model="numpy")  # type: ignore[attr-defined]
    kernel.compile((*arrays, types.Array(types.uint32, 2, "C"), types.float64))
    loop = hot_loop(kernel.inspect_asm(kernel.signatures[0]))
    register = {4: "ymm", 8: "zmm"}[FLOATS]
    assert len(re.findall(rf"vfmadd\w+pd\s.*%{register}", loop)) >= 2  # the third and fourth powers
    assert "(%rsp)" not in loop


def hot_loop(assembly: str) -> str:
    """From the label before the prefetch to the jump back to it."""
    lines = assembly.splitlines()
    inside = next(number for number, line in enumerate(lines) if "prefetch" in line)
    start = max(number for number in range(inside) if re.match(r"^\.\w+:", lines[number]))
    label = lines[start].rstrip(":")
    back = re.compile(rf"\sj\w+\s+{re.escape(label)}$")
    stop = next(number for number in range(inside, len(lines)) if back.search(lines[number]))
    return "\n".join(lines[start : stop + 1])
