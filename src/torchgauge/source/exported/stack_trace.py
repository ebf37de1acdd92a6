"""The line of code that a node of an exported graph was made from."""

from __future__ import annotations

import re

_FRAME = re.compile(r'File "([^"\n]{1,1000})", line (\d{1,9})')
_TORCH = re.compile(r"[/\\](?:site|dist)-packages[/\\]torch[/\\]")


def last_line(trace: object) -> str | None:
    """`file:line` of the innermost frame that is not torch's own; torch's where there is no other."""
    frames = _FRAME.findall(trace) if isinstance(trace, str) else []
    frames = [frame for frame in frames if not frame[0].startswith("<")]  # code that torch made
    own = [frame for frame in frames if not _TORCH.search(frame[0])]
    return next((f"{file}:{line}" for file, line in (own or frames)[-1:]), None)
