"""Torch's global settings that a transformation may change: they hold while its model runs, and only then."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Switches:
    threads: int
    matmul_precision: str
    cudnn_benchmark: bool

    @classmethod
    def now(cls) -> Switches:
        return cls(torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark)

    def apply(self) -> bool:
        """Whether anything had to change; what does not is not written: some settings cost time to write."""
        before = Switches.now()
        if self.threads != before.threads:
            torch.set_num_threads(self.threads)
        if self.matmul_precision != before.matmul_precision:
            torch.set_float32_matmul_precision(self.matmul_precision)
        if self.cudnn_benchmark != before.cudnn_benchmark:
            torch.backends.cudnn.benchmark = self.cudnn_benchmark
        return self != before


@contextmanager
def switches_kept() -> Iterator[None]:
    before, limit = Switches.now(), sys.getrecursionlimit()
    try:
        yield
    finally:
        before.apply()
        sys.setrecursionlimit(limit)  # the compiler raises it
