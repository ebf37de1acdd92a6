"""Writes the table by which bare state dicts are recognised: every architecture of timm and torchvision, built on meta.

Run it after an update of either:  python tools/fingerprints.py   (some minutes on one core)
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torchgauge.source.identify as identification
from torchgauge.errors import TargetError
from torchgauge.source.building import Recipe, find_timm, find_torchvision
from torchgauge.source.identify.fingerprint import Known
from torchgauge.source.packages import import_optional
from torchgauge.source.state_names import state_shapes

TABLE = Path(identification.__file__).with_name("fingerprints.tsv")
OTHER_CLASSES = 7
COLOURS = 3
# Training checkpoints have the auxiliary classifiers that the builders leave out, and the other way round.
VARIANTS: dict[str, tuple[dict[str, Any], ...]] = {
    "torchvision.models.segmentation": ({}, {"aux_loss": True}),
    "torchvision.models.googlenet": ({}, {"aux_logits": False}),
    "torchvision.models.inception": ({}, {"aux_logits": False}),
}


def on_meta(recipe: Recipe, **options: Any) -> nn.Module:
    return Recipe(recipe.name, partial(recipe.factory, **options)).build()


def timm_models_known() -> Iterator[Known]:
    timm = import_optional("timm", "the table")
    for name in timm.list_models():
        try:
            model = on_meta(find_timm(name))
        except TargetError as error:
            report(error)
            continue
        shapes, config = state_shapes(model), timm.models.get_pretrained_cfg(name)
        # Also of a model that has no head unless classes are asked for.
        heads = listed(config.classifier)
        stem = tuple(f"{path}.weight" for path in listed(config.first_conv))
        yield Known.of(f"timm:{name}", shapes, heads, loose(shapes, stem), {})


def torchvision_models_known() -> Iterator[Known]:
    models = import_optional("torchvision.models", "the table")
    for name in models.list_models():
        module = models.get_model_builder(name).__module__
        # Quantized twins have the names and shapes of the plain ones.
        if ".quantization." not in module:
            area = next((area for area in VARIANTS if module.startswith(area)), "")
            for options in VARIANTS.get(area, ({},)):
                yield from torchvision_known(name, options)


def torchvision_known(name: str, options: dict[str, Any]) -> Iterator[Known]:
    recipe = find_torchvision(name)
    recipe = Recipe(recipe.name, recipe.factory)  # on meta, also what looks at values when it runs
    try:
        model = on_meta(recipe, **options)
    except TargetError as error:
        report(error)
        return
    shapes = state_shapes(model)
    convolutions = [
        path
        for path, module in model.named_modules()
        if isinstance(module, nn.Conv2d | nn.Conv3d) and module.in_channels == COLOURS
    ]
    stem = tuple(f"{path}.weight" for path in convolutions[:1])
    yield Known.of(f"torchvision:{name}", shapes, changed(recipe, shapes, options), loose(shapes, stem), options)


def changed(recipe: Recipe, shapes: dict[str, Any], options: dict[str, Any]) -> tuple[str, ...]:
    """The modules whose tensors follow the number of classes."""
    try:
        other = state_shapes(on_meta(recipe, num_classes=OTHER_CLASSES, **options))
    except TargetError:  # no classes to choose
        return ()
    return tuple(dict.fromkeys(name.rpartition(".")[0] for name, shape in shapes.items() if other[name] != shape))


def loose(shapes: dict[str, Any], stem: tuple[str, ...]) -> tuple[str, ...]:
    positions = (name for name in shapes if "pos_embed" in name.rpartition(".")[2])
    return tuple(name for name in dict.fromkeys((*stem, *positions)) if name in shapes)


def listed(names: Any) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names or ())


def report(error: TargetError) -> None:
    sys.stderr.write(f"left out: {str(error).splitlines()[0]}\n")


def main() -> None:
    torch.set_num_threads(1)
    versions = {name: import_optional(name, "the table").__version__ for name in ("timm", "torchvision")}
    lines = ["# " + ", ".join(f"{name} {version.partition('+')[0]}" for name, version in versions.items())]
    lines += [known.to_line() for known in (*torchvision_models_known(), *timm_models_known())]
    TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
