"""The command `torchstat -f net.py -m Net -s 3x224x224`, also as `python -m torchgauge.compat.torchstat`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from torchgauge.compat.torchstat.statistics import stat
from torchgauge.errors import TorchgaugeError
from torchgauge.source.python_code import build_from_file


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="torchstat", description=stat.__doc__)
    file = parser.add_mutually_exclusive_group(required=True)
    file.add_argument("file", nargs="?", help="Python file that has the model")
    file.add_argument("-f", "--file", dest="named_file", help="the same, as an option")
    parser.add_argument("-m", "--model", required=True, help="class of the model; it is called without arguments")
    parser.add_argument(
        "-s", "--size", type=_size, default="3x224x224", help="size of one sample, such as 3x224x224 (the default)"
    )
    arguments = parser.parse_args(argv)
    try:
        model = build_from_file(Path(arguments.file or arguments.named_file), arguments.model)
        stat(model, arguments.size)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone (`| head`): nothing is wrong. Python would complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except TorchgaugeError as error:
        return _complain(str(error))
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # whatever the model raises where the size does not fit
        return _complain(f"the model failed: {type(error).__name__}: {error}")
    return 0


def _complain(message: str) -> int:
    print(f"torchstat: {message}", file=sys.stderr)
    return 1


def _size(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.lower().split("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a size; write it like 3x224x224") from None


if __name__ == "__main__":
    sys.exit(main())
