"""Costs of ops: name, shapes and tags in, `Cost` out. No torch here."""

from torchgauge.cost import (  # noqa: F401 -- importing a formula file fills the registry
    activation,
    allocation,
    attention,
    communication,
    convolution,
    copy,
    elementwise,
    embedding,
    fft,
    foreach,
    hub_kernels,
    indexing,
    linalg,
    linear,
    loss,
    matmul,
    normalization,
    optimizer,
    pooling,
    quantization,
    recurrent,
    reduction,
    resize,
    softmax,
    sort,
    view,
    vision,
)
from torchgauge.cost.registry import REGISTRY, Assessment, Call, Work, assess, find, find_kernel, formula, kernel

__all__ = ["REGISTRY", "Assessment", "Call", "Work", "assess", "find", "find_kernel", "formula", "kernel"]
