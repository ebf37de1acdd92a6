"""Files and folders as targets, recognised by their content: runnable archives, Hugging Face folders, bare weights,
pickled modules (`--allow-pickle`). Code for weights must agree with their names and shapes.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from torchgauge.checkpoint import Index, Role, open_checkpoint, sniff
from torchgauge.errors import FormatError, TargetError, TorchgaugeError, UnpicklingWarning, errors_as_torchgauge
from torchgauge.facts import TargetRecord
from torchgauge.source import huggingface
from torchgauge.source.packages import torchvision_importable
from torchgauge.source.process_state import importable, rng_untouched
from torchgauge.source.source import PROGRAMS, OpenOptions, Source, stored_target
from torchgauge.source.state_names import Differences, find_fit, logical_shapes, model_entries, model_shapes

_COMPUTING = ("float32", "float16", "bfloat16", "float64")
_WITHOUT_ADAPTER = "the figures are for the base model without the adapter"
_UNPACKED = "the weights are stored packed; the figures are for the unpacked model"
# Tied weights and rounding cause small differences; another model causes large ones.
_MAX_SIZE_DIFFERENCE = 0.02


def open_weights(path: str, options: OpenOptions) -> Source:
    """The weights, with code only if the user gives it or allows unpickling."""
    if not os.path.exists(path):
        raise TargetError(f"there is no file '{path}'")
    index = open_checkpoint(path, progress=options.progress)
    found = _open_given_code(index, options) or Source(None, stored_target(index, options.name), index=index)
    return replace(found, warnings=(*index.warnings, *found.warnings))


def open_path(path: Path, options: OpenOptions) -> Source:
    if options.code is None and huggingface.is_config(path):
        return _open_huggingface(path, options)
    index = open_checkpoint(path, progress=options.progress)
    if options.code is None and index.format in PROGRAMS:
        found = _open_program(index, options)
    elif options.code is None and index.format == "gguf":
        from torchgauge.source.gguf_model import build_model

        decoder, reason = build_model(index, logical_shapes(index))
        if decoder is None:
            found = Source(None, stored_target(index, options.name), index=index, warnings=(reason,))
        else:
            # In half precision, to which matrices are unpacked for computing.
            remark = f"code: a decoder built from its metadata ({index.gguf['general.architecture']})"
            found = Source(decoder.half(), stored_target(index, options.name, remark), index=index)
    else:
        found = _open_given_code(index, options) or _identify(index, options)
    return replace(found, warnings=(*index.warnings, *found.warnings))


def _open_program(index: Index, options: OpenOptions) -> Source:
    """The model of an archive with code. If the code may not be run, the weights are still analysed."""
    record = stored_target(index, options.name)
    try:
        with errors_as_torchgauge(index.path):
            if index.missing_weights:
                raise FormatError("weights are missing")
            model: nn.Module
            # Each reader is imported when its format is found.
            if index.format == "torchscript":
                from torchgauge.source.torchscript import load_torchscript

                model = load_torchscript(index.path)
            else:
                from torchgauge.source.exported import load_exported

                model = load_exported(index.path)
    except TorchgaugeError as error:
        return Source(None, record, index=index, warnings=(f"its code was not run: {error}",))
    return Source(model, record, index=index)


def _open_given_code(index: Index, options: OpenOptions) -> Source | None:
    code = options.code
    if code is not None and index.adapter is not None:
        # The given code is that of the base model, without the adapter's tensors.
        model = code.runnable
        known = replace(index.adapter, base_params=sum(parameter.numel() for parameter in model.parameters()))
        record = stored_target(index, options.name, f"base: {code.record.name}")
        return Source(model, record, code.build_real, replace(index, adapter=known), (_WITHOUT_ADAPTER,))
    if code is not None:
        joined, warnings = join(index, code.runnable, code.record.name, options.name)
        record = stored_target(index, options.name, f"code: {code.record.name}")
        return Source(code.runnable, record, code.build_real, joined, warnings)
    holds_module = index.format.startswith("torch") and len(index.files) == 1 and bool(index.modules)
    if not (options.allow_pickle and holds_module):
        return None
    model = unpickle(index)
    record = stored_target(index, options.name, "unpickled")
    return Source(model, record, index=with_roles_of(model, index), is_unpickled=True)


def _identify(index: Index, options: OpenOptions) -> Source:
    if index.adapter is not None:
        return Source(None, stored_target(index, options.name), index=index)
    shapes = logical_shapes(index)
    # Tensors that share storage are tied: try the names without the duplicates first.
    shared = {name for name, entry in model_entries(index).items() if entry.shared_with is not None}
    own = {name: shape for name, shape in shapes.items() if name not in shared}
    # Imported late: the tables and the solver are large, and most targets do not need them.
    from torchgauge.source.identify import identify

    match = identify(own, options.name) or (identify(shapes, options.name) if shared else None)
    if match is None:
        return Source(None, stored_target(index, options.name), index=index)
    record = stored_target(index, options.name, f"inferred: {match.target}")
    model = in_stored_dtype(match.model, index)
    packed = () if shapes.keys() == model_shapes(index).keys() else (_UNPACKED,)
    warnings = (match.describe(), *packed)
    return Source(model, record, match.recipe.build_real, index, warnings, is_inferred=True, assumed=match.assumed)


def _open_huggingface(path: Path, options: OpenOptions) -> Source:
    """The architecture from the config, and the weights in its folder if there are any. Remote code is never run."""
    config = path if path.is_file() else path / "config.json"
    folder = path if path.is_dir() else path.parent
    index = open_checkpoint(folder, progress=options.progress) if path.is_dir() and sniff(folder) else None
    record = TargetRecord(options.name, "folder", "transformers", (str(config), *(index.files if index else ())))
    try:
        recipe = huggingface.read(config)
        model = recipe.build()
    except TargetError as error:
        if index is None:
            raise
        found = _identify(index, options)
        return replace(found, warnings=(f"the config was not used: {error}", *found.warnings))
    if index is None:
        return Source(model, record, recipe.build_real)
    # Names may differ, because transformers converts them, but the number of parameters may not.
    warnings, stored, built = index.warnings, index.logical_params, sum(p.numel() for p in model.parameters())
    if abs(stored - built) > _MAX_SIZE_DIFFERENCE * max(stored, built):
        warnings += (f"the files have {stored:,} parameters, the model of the config has {built:,}",)
    return Source(in_stored_dtype(model, index), record, recipe.build_real, index, warnings)


def in_stored_dtype(model: nn.Module, index: Index) -> nn.Module:
    """The model in the type of most stored parameters, if it was built without values."""
    elements: Counter[str] = Counter()
    for entry in index.unique:
        if entry.role is Role.PARAMETER and entry.spec.dtype in _COMPUTING:
            elements[entry.spec.dtype] += entry.elements
    if not elements or not all(parameter.is_meta for parameter in model.parameters()):
        return model
    return model.to(getattr(torch, elements.most_common(1)[0][0]))


def judge(differences: Differences, stored: int, code: str, file: str) -> tuple[str, ...]:
    """The warnings about tensors that only one side has.

    Raises `TargetError` if a shape differs or fewer than half of the names agree: then the code does not belong to the
    file.
    """
    if not differences:
        return ()
    known = stored - len(differences.unexpected)
    if differences.mismatched or known * 2 < stored or not known:
        raise TargetError(f"'{file}' does not fit '{code}':\n{differences.describe()}")
    return (f"'{file}' and '{code}' differ. {differences.describe()}",)


def join(index: Index, model: nn.Module, code: str, file: str) -> tuple[Index, tuple[str, ...]]:
    """The index with the names and roles of the code, and warnings about the differences."""
    shapes = model_shapes(index)
    fit = find_fit(model, shapes)
    warnings = judge(fit.differences, len(shapes), code, file)
    # The prefix of the model's names: the container, the wrappers, and modules that the code does not have.
    name, entry = next(iter(model_entries(index).items()), ("", None))
    own = name.removeprefix(fit.lead)
    if entry is not None and fit.lead and entry.name.endswith(own):
        index = replace(index, model_prefix=entry.name.removesuffix(own))
    return with_roles_of(model, index), warnings


def with_roles_of(model: nn.Module, index: Index) -> Index:
    """The index with the roles from the code, which knows buffers that names do not show (a frozen batch norm)."""
    roles = {name: Role.BUFFER for name, _ in model.named_buffers(remove_duplicate=False)}
    roles |= {name: Role.PARAMETER for name, _ in model.named_parameters(remove_duplicate=False)}
    known = {entry.name: roles[name] for name, entry in model_entries(index).items() if name in roles}
    entries = []
    for entry in index.entries:
        role = known.get(entry.name, entry.role)
        # Packed weights and their scales keep their role: in the code they may be buffers.
        is_packed = entry.logical_elements is not None
        entries.append(entry if entry.role is role or is_packed else replace(entry, role=role))
    return replace(index, entries=tuple(entries))


# Keys under which trainers store the module.
_HOLDERS = ("model", "ema", "module", "net", "network")


def unpickle(index: Index) -> nn.Module:
    """The module in a file. This executes the code in the file; a warning lists its imports first."""
    lines = [f"  {found.verdict.value}: {found.name}{'()' if found.called else ''}" for found in index.imports]
    announcement = "\n".join([f"unpickling '{index.path}', which imports and calls:", *dict.fromkeys(lines)])
    warnings.warn(announcement, UnpicklingWarning, stacklevel=2)
    try:
        with importable(Path.cwd()), torchvision_importable(), rng_untouched():
            content = torch.load(index.path, map_location="cpu", weights_only=False)
    # The file's own code runs here: it may raise anything.
    except Exception as error:
        raise TargetError(f"'{index.path}' could not be unpickled: {type(error).__name__}: {error}") from error
    held: Iterable[object] = [content]
    if isinstance(content, Mapping) and not isinstance(content, nn.Module):
        held = (*(content[key] for key in _HOLDERS if key in content), *content.values())
    model = next((value for value in held if isinstance(value, nn.Module)), None)
    if model is None:
        raise TargetError(f"'{index.path}' was unpickled but contains no model")
    return model
