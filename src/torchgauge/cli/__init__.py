"""The command line: one file per command."""

from __future__ import annotations

from torchgauge.cli.main import COMMANDS, build_parser, command_parsers, main, with_command

__all__ = ["COMMANDS", "build_parser", "command_parsers", "main", "with_command"]
