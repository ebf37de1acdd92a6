"""The command line: one file per command."""

from __future__ import annotations

from torchgauge.cli.main import main

__all__ = ["main"]
