"""Fast Fourier transforms: 5 N log₂ N real operations for N complex points, half of it where one side is real.

N is the number of points over all transformed dimensions together; on the real side where there is one.
"""

from __future__ import annotations

from math import log2, prod

from torchgauge.cost.registry import Call, Work, formula
from torchgauge.facts import TensorSpec

_COMPLEX_FLOPS, _REAL_FLOPS = 5.0, 2.5


@formula("aten::_fft_c2c", category="fft")
def complex_fft(call: Call) -> Work:
    return Work(flops=_fft_flops(call["self"], call["dim"], _COMPLEX_FLOPS))


@formula("aten::_fft_r2c", category="fft")
def real_fft(call: Call) -> Work:
    return Work(flops=_fft_flops(call["self"], call["dim"], _REAL_FLOPS))


@formula("aten::_fft_c2r", category="fft")
def inverse_real_fft(call: Call) -> Work:
    return Work(flops=_fft_flops(call.out, call["dim"], _REAL_FLOPS))


def _fft_flops(points: TensorSpec, dims: list[int], rate: float) -> int:
    size = prod(points.shape[dim] for dim in dims)
    return round(rate * points.numel * log2(size)) if size > 1 else 0
