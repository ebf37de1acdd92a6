"""`python -m torchgauge.compat.torchstat -f net.py -m Net -s 3x224x224`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from torchgauge.compat.torchstat.statistics import stat
from torchgauge.errors import TorchgaugeError
from torchgauge.source.python_code import build_from_file


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        model = build_from_file(Path(arguments.file), arguments.model)
        stat(model, arguments.size)
    # A size that does not fit is the model's own error.
    except (TorchgaugeError, RuntimeError, TypeError) as error:
        print(f"torchstat: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m torchgauge.compat.torchstat", description=stat.__doc__)
    parser.add_argument("-f", "--file", required=True, help="Python file that has the model")
    parser.add_argument("-m", "--model", required=True, help="class of the model; it is called without arguments")
    parser.add_argument(
        "-s", "--size", type=_size, default="3x224x224", help="size of one sample, such as 3x224x224 (the default)"
    )
    return parser


def _size(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.lower().split("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is no size; write it like 3x224x224") from None


if __name__ == "__main__":
    sys.exit(main())
