"""Bytes to tallies, in one pass at the speed of the memory. Needs numba; imported when a scan begins.

tallying    what each type needs: views of the bytes, a workspace of the thread, a tally
counting    8-bit and 16-bit symbols: counters, and gathering what they hold
single      float32: counts, sums and extremes in one loop
double      float64, and whole numbers as float64
finite      what is not finite is counted and left out
powers      sums of a block, and how blocks add up
lanes       short vectors for loops that also count
jit         how kernels are compiled
"""

from torchgauge.weights.kernels.tally import tally_bytes

__all__ = ["tally_bytes"]
