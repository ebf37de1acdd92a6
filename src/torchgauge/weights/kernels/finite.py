"""Values that are not finite are counted and left out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchgauge.weights.kernels.jit import compiled

# Where the counts of special values are kept.
NAN, INF, ZEROS = range(3)


@compiled
def keep_finite(block: NDArray[Any], special: NDArray[np.int64], scratch: NDArray[Any]) -> NDArray[Any]:
    """The finite values, moved together; the others are counted."""
    found = 0
    for index in range(block.size):
        value = block[index]
        if np.isfinite(value):
            scratch[found] = value
            found += 1
        elif np.isnan(value):
            special[NAN] += 1
        else:
            special[INF] += 1
    return scratch[:found]
