"""The Python API: `analyze` ties the layers together, `Analysis` holds the result, `load` reads a saved one.

Nothing here imports torch until a model is analysed: a saved run can be read and rendered without it.
"""

from torchgauge.analysis.analyzing import analyze
from torchgauge.analysis.comparing import Comparison, compare
from torchgauge.analysis.result import Analysis, WeightScan, load
from torchgauge.analysis.weighing import scan_weights

__all__ = ["Analysis", "Comparison", "WeightScan", "analyze", "compare", "load", "scan_weights"]
