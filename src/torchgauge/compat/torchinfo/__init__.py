"""The interface of torchinfo: `from torchgauge.compat.torchinfo import summary`.

Mult-adds count a bias too there; see docs/migrating/torchinfo.md for what changes in the numbers.
"""

from torchgauge.compat.torchinfo.enums import ColumnSettings, Mode, RowSettings, Units, Verbosity
from torchgauge.compat.torchinfo.model_statistics import ModelStatistics
from torchgauge.compat.torchinfo.torchinfo import summary

__all__ = ["ColumnSettings", "Mode", "ModelStatistics", "RowSettings", "Units", "Verbosity", "summary"]
