"""The function that applies transformations to a model: its text is what is run, and what the user can copy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pprint import pformat
from textwrap import indent
from typing import Any

from torch import nn

from torchgauge.advise import listing

_INPUTS = re.compile(r"\binputs\b")


def literal(value: object) -> str:
    """Names of a model's modules as Python writes them, in lines of a readable length."""
    return listing.literal(value) if isinstance(value, list) else pformat(value, width=100, sort_dicts=False)


def function_text(codes: Sequence[str], *, train: bool = False) -> str:
    """`optimise(model)`, with `inputs` where one of the codes uses them: tensors of one call, in order. A model that is
    not to be trained is put in evaluation first: so it was measured, and some codes need it."""
    statements = [code.strip("\n") for code in codes if code.strip()]
    body = "\n".join(statements if train else ["model.eval()", *statements])
    takes = "model, *inputs" if _INPUTS.search(body) else "model"
    return f"import torch\n\n\ndef optimise({takes}):\n{indent(body, '    ')}\n    return model\n"


def optimised(model: nn.Module, codes: Sequence[str], inputs: tuple[Any, ...], *, train: bool = False) -> nn.Module:
    """What the function makes of a model, which it may change."""
    scope: dict[str, Any] = {}
    text = function_text(codes, train=train)
    # Our own text: what came from a model or a file is in it as quoted literals only.
    exec(compile(text, "<optimise>", "exec"), scope)
    return scope["optimise"](model, *(inputs if "*inputs" in text else ()))
