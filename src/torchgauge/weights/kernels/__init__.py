"""Numba kernels: from bytes to tallies in one pass at memory speed, and fused passes of deep scans.

tally          the tally of a run of bytes: views by type, the thread's workspace
counting       counters of 8-bit and 16-bit symbols
float32        float32: counts, sums and extremes in one loop
float64        float64, and integers as float64
moments        sums over a block, and how blocks combine
vectors        short SIMD vectors for loops that also count
quantization   errors of all number formats
rows           sums of squares by row and column, 2:4 sparsity, hashes
jit            how kernels are compiled and cached
numba_settings numba without the settings of the working folder, and the folder of its cache
"""

from torchgauge.isolation import NeedsPackageError, is_isolated
from torchgauge.weights.kernels.numba_settings import import_numba

if is_isolated():
    # Kernels are kept on disk only by a process that may write there: the parent loads them and starts another reader.
    raise NeedsPackageError("numba")

import_numba()

from torchgauge.weights.kernels.tally import tally_bytes  # noqa: E402 it imports numba

__all__ = ["tally_bytes"]
