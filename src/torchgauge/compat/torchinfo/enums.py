"""The words that `summary` takes."""

from __future__ import annotations

from enum import Enum, IntEnum


# Not StrEnum: the original's members print with their class, and scripts may rely on it.
class Mode(str, Enum):  # noqa: UP042
    TRAIN = "train"
    EVAL = "eval"
    SAME = "same"


class RowSettings(str, Enum):  # noqa: UP042
    DEPTH = "depth"
    VAR_NAMES = "var_names"
    ASCII_ONLY = "ascii_only"
    HIDE_RECURSIVE_LAYERS = "hide_recursive_layers"


class ColumnSettings(str, Enum):  # noqa: UP042
    KERNEL_SIZE = "kernel_size"
    GROUPS = "groups"
    INPUT_SIZE = "input_size"
    OUTPUT_SIZE = "output_size"
    NUM_PARAMS = "num_params"
    PARAMS_PERCENT = "params_percent"
    MULT_ADDS = "mult_adds"
    TRAINABLE = "trainable"


class Units(str, Enum):  # noqa: UP042
    AUTO = "auto"
    KILOBYTES = "k"
    MEGABYTES = "M"
    GIGABYTES = "G"
    TERABYTES = "T"
    NONE = ""


class Verbosity(IntEnum):
    QUIET, DEFAULT, VERBOSE = 0, 1, 2
