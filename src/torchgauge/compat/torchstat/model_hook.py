"""One run of a model, leaf by leaf: shapes, costs and times."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from torch import nn

from torchgauge.capture import Request, trace
from torchgauge.compat.observed import ModuleCall, device_of, every_module_called, observe_calls, running
from torchgauge.compat.torchstat.formulas import (
    compute_flops,
    compute_madd,
    compute_memory,
    find_formulas,
    first_tensor,
    item_bytes,
    own_flops,
    own_madd,
    own_memory,
    tensors_in,
)
from torchgauge.errors import InputError
from torchgauge.measure.module_times import time_modules
from torchgauge.source import candidate_inputs

# Enough to leave out the first run, which warms up, and the fastest.
TIMED_RUNS = 4
# torchstat counts activations as four bytes an element, whatever their type.
MEMORY_BYTES = 4
# Layers that do the work themselves; their children only hold weights.
ATOMIC = (nn.MultiheadAttention,)


@dataclass(frozen=True, slots=True)
class LeafStat:
    """A leaf's figures, of its last call; shapes are without the batch and empty for a leaf that was never called."""

    parameter_quantity: int
    input_shape: tuple[int, ...] = ()
    output_shape: tuple[int, ...] = ()
    inference_memory: float = 0.0
    madd: int = 0
    flops: int = 0
    memory_bytes: tuple[int, int] = (0, 0)
    duration: float = 0.0


class ModelHook:
    """`stats` has the figures of every leaf by name; nothing is attached to the model."""

    def __init__(self, model: nn.Module, input_size: Sequence[int]) -> None:
        check_request(model, input_size)
        # Private in torchstat too, but subclasses use them.
        self._model = model
        self._input_size = input_size
        # One sample of that size, of the type the model takes.
        try:
            candidates = list(candidate_inputs(model, input_size=(1, *input_size)))
        except InputError as error:
            raise TypeError(str(error)) from error
        candidate = (
            candidates[0] if len(candidates) == 1 else trace(model, candidates, Request(device_of(model))).candidate
        )
        calls: dict[int, ModuleCall] = {}

        def keep(call: ModuleCall) -> None:
            calls[id(call.module)] = call.without_values()

        with running(model, candidate) as subject:
            leaves = dict(self._retrieve_leaf_modules(subject.model))  # of a lazy model, those of the copy that is run
            with observe_calls(leaves.values(), keep):
                subject.run()
            with every_module_called():
                times = time_modules(subject.run, {id(leaf): name for name, leaf in leaves.items()}, TIMED_RUNS)
        self.stats = {
            name: _leaf_stat(leaf, calls.get(id(leaf)), times[name].inclusive_s) for name, leaf in leaves.items()
        }

    def retrieve_leaf_modules(self) -> OrderedDict[str, nn.Module]:
        """The modules without children by name, in the order of registration."""
        return OrderedDict(self._retrieve_leaf_modules(self._model))

    @staticmethod
    def _retrieve_leaf_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
        """The modules that get a row; a subclass may choose others."""
        found: list[tuple[str, nn.Module]] = []
        inside: tuple[str, ...] = ()
        for name, module in model.named_modules():
            if name.startswith(inside):
                continue
            if isinstance(module, ATOMIC):
                inside = (*inside, f"{name}." if name else "")
            if isinstance(module, ATOMIC) or not any(True for _ in module.children()):
                found.append((name, module))
        return found


def check_request(model: nn.Module, input_size: Sequence[int]) -> None:
    if not isinstance(model, nn.Module):
        raise AssertionError(f"expected a torch.nn.Module instance, got {type(model).__name__}")
    if not isinstance(input_size, list | tuple) or not all(isinstance(size, int) for size in input_size):
        raise AssertionError(f"input_size must be a tuple like (3, 224, 224), without the batch, not {input_size!r}")


def _leaf_stat(leaf: nn.Module, call: ModuleCall | None, seconds: float) -> LeafStat:
    params = sum(parameter.numel() for parameter in leaf.parameters())
    if call is None:
        return LeafStat(params)
    given = (*call.args, *call.kwargs.values())
    module, out = call.module, call.output
    if find_formulas(module) is not None:
        (read, written), width = compute_memory(module, given, out), item_bytes(given)
        madd, flops = compute_madd(module, given, out), compute_flops(module, given, out)
        memory_bytes = (read * width, written * width)
    else:  # torchgauge's figures, all from one analysis
        analysis = call.analyze()
        madd, flops, memory_bytes = own_madd(analysis), own_flops(analysis), own_memory(analysis, 1)
    return LeafStat(
        parameter_quantity=params,
        input_shape=_sample_shape(given),
        output_shape=_sample_shape(call.output),
        inference_memory=sum(prod(t.shape[1:]) for t in tensors_in(call.output)) * MEMORY_BYTES / 1024**2,
        madd=madd,
        flops=flops,
        memory_bytes=memory_bytes,
        duration=seconds,
    )


def _sample_shape(value: object) -> tuple[int, ...]:
    tensor = first_tensor(value)
    return () if tensor is None else tuple(tensor.shape[1:])
