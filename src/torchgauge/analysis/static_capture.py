"""From a source to a capture: by a pass over its model, or by the names and shapes of its weights."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from torchgauge.errors import ForwardError, InputError
from torchgauge.facts import ArchitectureRecord, Capture, RunRecord
from torchgauge.units import format_exact

if TYPE_CHECKING:
    from torch import nn

    from torchgauge.capture import Request, Trace
    from torchgauge.source import GivenInputs, Source

NO_CODE = "weights only; add --as file.py:Net for FLOPs"
NOT_RUN = "the weights alone: the code was not run"


def static_run(source: Source, given: GivenInputs, request: Request) -> tuple[Capture, Trace | None]:
    """Trace the model; without code, the capture follows from the names and shapes of the weights."""
    from torchgauge.capture import trace, undisturbed
    from torchgauge.capture.fake_tensor import DataDependent, Endless
    from torchgauge.source.weight_tree import lost_tensors

    model = source.model
    if model is None:
        return stored_capture(source), None
    try:
        with undisturbed(model):
            candidates = given.candidates(model)
        traced = trace(model, candidates, request)
    except (ForwardError, InputError) as error:
        has_weights = source.index is not None and bool(source.index.entries)
        # A run that was given up for its length or depth says nothing about inferred inputs; a run on fake tensors may
        # end because the model reads tensor values.
        is_unfit = not given.has_shapes and has_weights and not _has_cause(error, Endless, RecursionError)
        if not is_unfit and (source.index is None or not _has_cause(error, DataDependent)):
            raise
        # The weights and the structure of a file need no run, and it is not to blame for inputs or code that were
        # inferred.
        what = "the inferred code failed" if source.is_inferred else "its code was not traced"
        return stored_capture(replace(source, warnings=(*source.warnings, f"{what}: {error}"))), None
    warnings = (*source.warnings, *_own_parameters(model), *traced.run.warnings)
    capture = Capture(
        **_circumstances(source, traced.run.device),
        run=replace(
            traced.run,
            warnings=warnings,
            lost_tensors=0 if source.index is None else lost_tensors(source.index),
        ),
        inputs=traced.inputs,
        modules=traced.modules,
        params=traced.params,
        ops=traced.ops,
        input_bytes=traced.input_bytes,
        architecture=_architecture(source, traced),
    )
    return capture, traced


def _own_parameters(model: nn.Module) -> Iterator[str]:
    """A remark where the class has a `parameters` of its own: training scripts may leave out a discriminator, which is
    in memory and in the state dict all the same."""
    from torch import nn

    if type(model).parameters is nn.Module.parameters:
        return
    held = sum(parameter.numel() for _, parameter in model.named_parameters())
    try:
        given = sum({id(parameter): parameter.numel() for parameter in model.parameters()}.values())
    except Exception:  # the model's own code
        return
    if given != held:
        yield (
            f"{type(model).__name__}.parameters() yields {format_exact(given)} of the {format_exact(held)} parameter "
            "elements that the model holds; all of them are counted"
        )


def _has_cause(error: BaseException | None, *kinds: type[BaseException]) -> bool:
    while error is not None and not isinstance(error, kinds):
        error = error.__cause__
    return error is not None


def _architecture(source: Source, traced: Trace) -> ArchitectureRecord:
    from torchgauge.source.architecture import describe_run, stated_hyperparameters

    found = describe_run(traced.modules, traced.params, traced.ops, stated_hyperparameters(source.runnable))
    if not source.assumed:
        return found
    # The model states them as if it knew.
    names = list(dict.fromkeys((*source.assumed, *found.hyperparameters.get("assumed", ()))))
    return replace(found, hyperparameters={**found.hyperparameters, **source.assumed, "assumed": names})


def stored_capture(source: Source) -> Capture:
    """The capture of a model without code: from names and shapes."""
    from torchgauge.source.architecture import describe_shapes
    from torchgauge.source.state_names import logical_shapes
    from torchgauge.source.weight_tree import lost_tensors, module_records, module_types, param_records

    index = source.stored
    # First: what it takes for a while is free again for the records, which stay.
    if index.adapter is None:
        architecture = describe_shapes(logical_shapes(index), _stated(index.gguf))
    else:
        # The factors of an adapter are matrices, but not a model.
        adapter = index.adapter
        known = {"rank": adapter.rank, "alpha": adapter.alpha, "targets": list(adapter.targets) or None}
        stated = {name: value for name, value in known.items() if value is not None}
        architecture = ArchitectureRecord(f"{adapter.method} adapter", {}, stated)
    params = param_records(index)
    return Capture(
        **_circumstances(source),
        run=RunRecord(
            None,
            NO_CODE if source.model is None else NOT_RUN,
            "cpu",
            False,
            source.warnings,
            lost_tensors=lost_tensors(index),
        ),
        inputs=(),
        modules=module_records(params, module_types(source)),
        params=params,
        ops=(),
        architecture=architecture,
    )


def _stated(metadata: Mapping[str, object]) -> dict[str, int]:
    """Hyperparameters in the metadata of a GGUF file that the shapes do not show."""
    heads = metadata.get(f"{metadata.get('general.architecture')}.attention.head_count")
    return {"heads": heads} if isinstance(heads, int) and heads > 0 else {}


def _circumstances(source: Source, device: str = "cpu") -> dict[str, Any]:
    from torchgauge import __version__
    from torchgauge.hardware import collect_environment
    from torchgauge.source.weight_tree import stored_record

    return {
        "target": source.record,
        "environment": collect_environment(import_torch=sys.modules.get("torch") is not None, device=device),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "stored": None if source.index is None else stored_record(source),
        "training": None if source.index is None else source.index.training,
        "adapter": None if source.index is None else source.index.adapter,
    }
