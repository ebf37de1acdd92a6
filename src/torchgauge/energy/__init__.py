"""Energy of real runs: meters, whole runs, attribution to modules and ops, temperature; estimates and carbon.

meters ──▶ window (idle, warm-up, trials: the whole) ──▶ attribution (ops replayed: the parts) ──▶ EnergyFacts
   └──────▶ thermal (during the trials)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.registry import lazy_names

if TYPE_CHECKING:
    from torchgauge.energy.attribution import *
    from torchgauge.energy.carbon import *
    from torchgauge.energy.energy_window import *
    from torchgauge.energy.estimate import *
    from torchgauge.energy.gpu import *
    from torchgauge.energy.measuring import *
    from torchgauge.energy.meter import *
    from torchgauge.energy.op_replay import *
    from torchgauge.energy.replay import *
    from torchgauge.energy.target import *
    from torchgauge.energy.thermal import *
    from torchgauge.facts.figures import MEASURED as MEASURED

_HOMES = {
    "apple": ("apple_meters",),
    "attribution": (
        "BY_TIME", "OpGroup", "REPLAYED", "Replayed", "Whole", "attribute", "heavy_op_groups", "key_of",
        "op_groups_of",
    ),
    "battery": ("battery_meters",),
    "carbon": ("BOUNDARY", "Footprint", "footprint", "given_grid", "grid_of", "grids"),
    "energy_window": (
        "Effort", "RunEnergy", "EnergyWindow", "Trial", "mean_interval", "measure_energy", "measure_energy_window",
    ),
    "estimate": (
        "Circumstances", "NO_POWER", "NO_TIME", "PICO", "Range", "estimate_energy", "module_shares", "power_of",
        "technology_of",
    ),
    "gpu": ("amd_meters", "nvml_device_meters"),
    "measuring": ("EnergyPlan", "MEASURED", "blank", "measure_run", "tokens_per_run", "unavailable"),
    "meter": (
        "FINDERS", "FunctionMeter", "Integrated", "JOULES", "MACHINE", "Meter", "Reading", "Unwrapped", "WATTS",
        "choose", "counting", "meters", "meters_of", "describe_meter", "list_meters",
    ),
    "op_replay": ("Collector", "Play", "collect", "prepare"),
    "processor": ("perf_meters", "rapl_meters"),
    "replay": ("ReplayClock", "ReplayMeter"),
    "target": ("Analysed", "completed", "front", "mark_efficient", "noted"),
    "thermal": ("drift", "quantities", "thermal_figures"),
}  # fmt: skip
__getattr__ = lazy_names(__name__, _HOMES)
