"""Parameters of a model, of its modules and of each of its tensors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from torch import nn

from torchgauge.compat.fvcore.nn.pipe_table import members, pipe_table, scaled, with_owners


def parameter_count(model: nn.Module) -> defaultdict[str, int]:
    """Elements by the name of a parameter or of a module; those of the whole model under "". A shared one counts once,
    under its first name."""
    found: defaultdict[str, int] = defaultdict(int)
    for name, parameter in model.named_parameters():
        for owner in with_owners(name):
            found[owner] += parameter.numel()
    return found


def parameter_count_table(model: nn.Module, max_depth: int = 3) -> str:
    """A table of the elements of modules and the shapes of parameters, down to `max_depth`."""
    counts = parameter_count(model)
    texts = {name: _text(count) for name, count in counts.items()} | parameter_shapes(model)
    rows = [("model", _text(counts[""])), *_rows(texts, "", max_depth)]
    return pipe_table(("name", "#elements or shape"), rows)


def parameter_shapes(model: nn.Module) -> dict[str, str]:
    return {name: str(tuple(parameter.shape)) for name, parameter in model.named_parameters()}


def _rows(texts: Mapping[str, str], owner: str, max_depth: int, level: int = 0) -> Iterator[tuple[str, str]]:
    indent = " " * (level + 1)
    for name in members(owner, texts) if level < max_depth else ():
        yield indent + name, indent + texts[name]
        yield from _rows(texts, name, max_depth, level + 1)


def _text(count: int) -> str:
    number, unit = scaled(count, "GMK")
    return f"{number:.1f}{unit}" if unit else str(count)
