"""The function that applies transformations to a model: its source text is run, and can be copied by the user."""

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
    """A Python literal, broken into lines of a readable length."""
    return listing.literal(value) if isinstance(value, list) else pformat(value, width=100, sort_dicts=False)


def function_text(codes: Sequence[str], *, train: bool = False) -> str:
    """The source of `optimise(model)`, or `optimise(model, *inputs)` if the code uses the tensors of a call. A model
    for inference is first put in evaluation mode, in which it was measured and which some transformations require."""
    statements = [code.strip("\n") for code in codes if code.strip()]
    body = "\n".join(statements if train else ["model.eval()", *statements])
    takes = "model, *inputs" if _INPUTS.search(body) else "model"
    return f"import torch\n\n\ndef optimise({takes}):\n{indent(body, '    ')}\n    return model\n"


def optimised(model: nn.Module, codes: Sequence[str], inputs: tuple[Any, ...], *, train: bool = False) -> nn.Module:
    """The result of the function, which may modify the model."""
    scope: dict[str, Any] = {}
    text = function_text(codes, train=train)
    # The text is ours: names from a model or a file occur in it only as quoted literals.
    exec(compile(text, "<optimise>", "exec"), scope)
    return scope["optimise"](model, *(inputs if "*inputs" in text else ()))
