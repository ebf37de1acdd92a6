"""Costs of ops: name, shapes and tags in, `Cost` out. No torch here."""

from torchgauge.cost import (
    attention,
    convolution,
    elementwise,
    hub_kernels,
    indexing,
    linalg,
    linear,
    loss,
    matmul,
    movement,
    normalization,
    optimizer,
    pooling,
    quantization,
    recurrent,
    reduction,
    vision,
)
from torchgauge.cost.promotion import conversion_bytes
from torchgauge.cost.registry import (
    KERNELS,
    REGISTRY,
    Assessment,
    Call,
    Work,
    assess,
    find,
    find_kernel,
    formula,
    kernel,
    load_formulas,
)

__all__ = [
    "KERNELS", "REGISTRY", "Assessment", "Call", "Work", "assess", "conversion_bytes", "find", "find_kernel", "formula",
    "kernel", "load_formulas",
]  # fmt: skip
