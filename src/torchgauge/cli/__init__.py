"""The command line: one file per command."""

from __future__ import annotations

from torchgauge.cli.interrupts import end_at_interrupt

end_at_interrupt()  # before the imports below, which take most of the time of a short command

from torchgauge.cli.main import COMMANDS, build_parser, command_parsers, main, with_command  # noqa: E402

__all__ = ["COMMANDS", "build_parser", "command_parsers", "main", "with_command"]
