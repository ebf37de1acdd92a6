"""Kernels of the Hugging Face hub that a layer loads in its forward: on fake tensors they are ops with the schema of
their entry points, so that nothing is downloaded and no GPU is needed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch

# Function of a module that loads the kernel (transformers 5.22), namespace of the ops, and for each attribute of what
# the function returns the schema of its op. Cost and shapes are in `cost/hub_kernels.py`.
_LOADERS: tuple[tuple[str, str, str, Mapping[str, str]], ...] = (
    (
        "transformers.integrations.finegrained_fp8",
        "load_finegrained_fp8_kernel",
        "finegrained_fp8",
        {
            "matmul": "matmul_2d(Tensor A, Tensor B, Tensor Bs, int[]? block_size, ScalarType? output_dtype=None, "
            "Tensor? activation_scale=None) -> Tensor",
            "batched_matmul": "matmul_batched(Tensor A, Tensor B, Tensor Bs, Tensor expert_ids, int[]? block_size, "
            "ScalarType? output_dtype=None) -> Tensor",
            "grouped_matmul": "matmul_grouped(Tensor A, Tensor B, Tensor Bs, Tensor offsets, "
            "Tensor tokens_per_expert, int[]? block_size, ScalarType? output_dtype=None) -> Tensor",
        },
    ),
)
_libraries: list[torch.library.Library] = []  # their ops go when they go


@contextmanager
def hub_functions_given() -> Iterator[None]:
    """Only modules that are loaded can ask for a kernel."""
    with ExitStack() as stack:
        for module_name, loader, namespace, schemas in _LOADERS:
            module: Any = sys.modules.get(module_name)
            if hasattr(module, loader):
                stack.callback(setattr, module, loader, getattr(module, loader))
                ops = _define(namespace, tuple(schemas.items()))
                setattr(module, loader, lambda ops=ops: ops)
        yield


@cache
def _define(namespace: str, schemas: tuple[tuple[str, str], ...]) -> SimpleNamespace:
    library = torch.library.Library(namespace, "FRAGMENT")
    _libraries.append(library)
    ops = {}
    for attribute, schema in schemas:
        library.define(schema)
        ops[attribute] = getattr(getattr(torch.ops, namespace), schema.partition("(")[0])
    return SimpleNamespace(**ops)
