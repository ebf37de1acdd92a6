"""Energy of real runs: meters, whole runs, attribution to modules and ops, temperature; estimates and carbon.

meters ──▶ window (idle, warm-up, trials: the whole) ──▶ attribution (ops replayed: the parts) ──▶ EnergyFacts
   └──────▶ thermal (during the trials)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.lazy import lazy_names

if TYPE_CHECKING:
    from torchgauge.energy.attribution import (
        BY_TIME,
        REPLAYED,
        OpGroup,
        Replayed,
        Whole,
        attribute,
        heavy_op_groups,
        key_of,
        op_groups_of,
    )
    from torchgauge.energy.carbon import BOUNDARY, Footprint, footprint, given_grid, grid_of, grids
    from torchgauge.energy.energy_window import (
        Effort,
        EnergyWindow,
        RunEnergy,
        Trial,
        mean_interval,
        measure_energy,
        measure_energy_window,
    )
    from torchgauge.energy.estimate import (
        NO_POWER,
        NO_TIME,
        PICO,
        Circumstances,
        Range,
        estimate_energy,
        module_shares,
        power_of,
        technology_of,
    )
    from torchgauge.energy.gpu import of_device
    from torchgauge.energy.measuring import EnergyPlan, blank, measure_run, tokens_per_run, unavailable
    from torchgauge.energy.meter import (
        FINDERS,
        JOULES,
        MACHINE,
        WATTS,
        FunctionMeter,
        Integrated,
        Meter,
        Reading,
        Unwrapped,
        choose,
        counting,
        describe_meter,
        list_meters,
        meters,
        meters_of,
    )
    from torchgauge.energy.op_replay import Collector, Play, collect, prepare
    from torchgauge.energy.replay import ReplayClock, ReplayMeter
    from torchgauge.energy.target import Analysed, completed, front, mark_efficient, noted
    from torchgauge.energy.thermal import drift, quantities, thermal_figures
    from torchgauge.facts.figures import MEASURED

__all__ = [
    "BOUNDARY", "BY_TIME", "FINDERS", "JOULES", "MACHINE", "MEASURED", "NO_POWER", "NO_TIME", "PICO", "REPLAYED",
    "WATTS", "Analysed", "Circumstances", "Collector", "Effort", "EnergyPlan", "EnergyWindow", "Footprint",
    "FunctionMeter", "Integrated", "Meter", "OpGroup", "Play", "Range", "Reading", "ReplayClock", "ReplayMeter",
    "Replayed", "RunEnergy", "Trial", "Unwrapped", "Whole", "attribute", "blank", "choose", "collect", "completed",
    "counting", "describe_meter", "drift", "estimate_energy", "footprint", "front", "given_grid", "grid_of", "grids",
    "heavy_op_groups", "key_of", "list_meters", "mark_efficient", "mean_interval", "measure_energy",
    "measure_energy_window", "measure_run", "meters", "meters_of", "module_shares", "noted", "of_device",
    "op_groups_of", "power_of", "prepare", "quantities", "technology_of", "thermal_figures", "tokens_per_run",
    "unavailable",
]  # fmt: skip

__getattr__ = lazy_names(__name__)
