"""What a model's forward takes."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from torch import nn

from torchgauge.errors import InputError


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    is_required: bool
    annotation: str = ""
    is_keyword_only: bool = False

    @property
    def is_tensor_list(self) -> bool:
        return self.annotation.replace("torch.", "").replace("typing.", "").lower() == "list[tensor]"


@dataclass(frozen=True, slots=True)
class ForwardSignature:
    """The parameters of forward; `*args` and `**kwargs` are flags beside them."""

    parameters: tuple[Parameter, ...]
    takes_any_positional: bool = False
    takes_any_keyword: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.parameters)

    @property
    def positional(self) -> tuple[Parameter, ...]:
        return tuple(parameter for parameter in self.parameters if not parameter.is_keyword_only)

    def required(self, given: Collection[str] = ()) -> tuple[Parameter, ...]:
        """The parameters without a default that are not given yet."""
        return tuple(p for p in self.parameters if p.is_required and p.name not in given)

    def place(self, values: dict[str, object]) -> tuple[tuple[object, ...], dict[str, object]]:
        """Values by name as arguments and keywords: by position as long as none is left out, so that `*args` works."""
        places = [parameter.name for parameter in self.positional] or list(values)[: self.takes_any_positional]
        leading = list(takewhile(values.__contains__, places))
        return tuple(values[name] for name in leading), {n: v for n, v in values.items() if n not in leading}

    def check(self, positional: int, keywords: Collection[str]) -> None:
        """Raise `InputError` unless forward can be called with so many positional arguments and these keywords."""
        places = [parameter.name for parameter in self.positional]
        if positional > len(places) and not self.takes_any_positional:
            inputs = "input is" if positional == 1 else "inputs are"
            raise InputError(f"{positional} positional {inputs} given, but forward takes {self._listing()}")
        filled = places[:positional]
        for name in keywords:
            if name in filled:
                raise InputError(f"the input '{name}' is given twice: by position and by name")
        self.check_names(keywords)
        missing = [parameter.name for parameter in self.required({*filled, *keywords})]
        if missing:
            raise InputError(f"forward also needs {', '.join(missing)}: give them as inputs or keywords")

    def check_names(self, keywords: Collection[str]) -> None:
        """Raise `InputError` for a keyword that forward does not take."""
        unknown = [] if self.takes_any_keyword else [name for name in keywords if name not in self.names]
        if unknown:
            raise InputError(f"forward has no parameter '{unknown[0]}': it takes {self._listing()}")

    def _listing(self) -> str:
        return ", ".join(self.names) or "no arguments"


def forward_signature(model: nn.Module) -> ForwardSignature:
    """The signature of forward, seen through `functools.wraps` and from the schema of a scripted model."""
    # A scripted module with overloads, like a bare LSTM, has no single forward to read.
    if isinstance(model, torch.jit.ScriptModule) and hasattr(model, "forward"):
        forward: Any = model.forward
        _, *arguments = forward.schema.arguments  # the first is the module, whatever its name
        return ForwardSignature(
            tuple(
                Parameter(a.name, not a.has_default_value(), str(a.type), getattr(a, "kwarg_only", False))
                for a in arguments
            )
        )
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (AttributeError, ValueError):  # compiled extensions have no signature
        return ForwardSignature((), takes_any_positional=True, takes_any_keyword=True)
    kinds = {parameter.kind for parameter in parameters}
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return ForwardSignature(
        tuple(
            Parameter(p.name, p.default is p.empty, _annotation(p.annotation), p.kind is p.KEYWORD_ONLY) for p in named
        ),
        takes_any_positional=inspect.Parameter.VAR_POSITIONAL in kinds,
        takes_any_keyword=inspect.Parameter.VAR_KEYWORD in kinds,
    )


def _annotation(annotation: object) -> str:
    if annotation is inspect.Parameter.empty:
        return ""
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)
