"""From a run and the model's names to the records of a capture."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import torch

from torchgauge.capture.paths import ModulePaths, type_name
from torchgauge.capture.recorder import ModuleCalls, Recorder
from torchgauge.facts import ModuleRecord, ParamRecord, TensorSpec


def param_records(paths: ModulePaths, describe: Callable[[torch.Tensor], TensorSpec]) -> tuple[ParamRecord, ...]:
    """`describe` gives the tensors as the run has them: their type may have been asked for."""
    return tuple(
        ParamRecord(
            name=owned.name,
            spec=describe(owned.tensor),
            trainable=owned.tensor.requires_grad and not owned.is_buffer,
            is_buffer=owned.is_buffer,
            aliases=tuple(owned.aliases),
        )
        for owned in paths.owned
    )


def module_records(paths: ModulePaths, owned: tuple[ParamRecord, ...], recorder: Recorder) -> tuple[ModuleRecord, ...]:
    params, trainable, nbytes = _parameter_sums(paths, owned)
    never = ModuleCalls()
    records = []
    for member in paths.members:
        calls = recorder.calls.get(member.path, never)
        records.append(
            ModuleRecord(
                path=member.path,
                type=type_name(member.module),
                aliases=tuple(member.aliases),
                calls=calls.count,
                params=params[member.path],
                trainable_params=trainable[member.path],
                param_bytes=nbytes[member.path],
                inputs=calls.inputs,
                outputs=calls.outputs,
            )
        )
    return tuple(records)


def _parameter_sums(
    paths: ModulePaths, records: tuple[ParamRecord, ...]
) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Unique parameters in each module's subtree: elements, trainable elements, bytes."""
    params: dict[str, int] = defaultdict(int)
    trainable: dict[str, int] = defaultdict(int)
    nbytes: dict[str, int] = defaultdict(int)
    for owned, record in zip(paths.owned, records, strict=True):
        if record.is_buffer:
            continue
        numel, size = record.spec.numel, record.spec.nbytes
        for path in paths.owners(owned):
            params[path] += numel
            nbytes[path] += size
            trainable[path] += numel if record.trainable else 0
    return params, trainable, nbytes
