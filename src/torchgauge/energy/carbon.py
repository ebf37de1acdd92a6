"""Grams of CO2 equivalents: energy of the device, times the overhead of its data centre, times the grid's intensity."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from torchgauge.errors import UsageError
from torchgauge.facts.figures import Members

if TYPE_CHECKING:
    from torchgauge.facts.document_types import Carbon, Range

JOULES_PER_KWH = 3.6e6
SECONDS_PER_YEAR = 365 * 24 * 3600
# Samples per second, continuously, if no rate is given: stated with the figure, so that it can be scaled.
REFERENCE_RATE_PER_S = 1.0
BATCH_OF_INFERENCES = 1000
BOUNDARY = "energy that the device uses; excludes the host, manufacturing and the network"
_SOURCE = "Ember, Yearly Electricity Data (2025), processed by Our World in Data; life cycle, generation"
# Common alternatives to ISO's GB and GR.
_OTHER_SPELLINGS = {"UK": "GB", "EL": "GR"}
# No grid emits that much; lignite alone emits about 1,200.
_MAX_G_PER_KWH = 3000.0


@dataclass(frozen=True, slots=True)
class Grid:
    """The source of the electricity; `year` is None if the user gave the figure."""

    code: str | None
    country: str
    g_per_kwh: float
    year: int | None
    source: str


@dataclass(frozen=True, slots=True)
class Footprint:
    """The basis of carbon figures. `pue`: power of the whole data centre divided by that of its computers;
    `rate_per_s`: samples that a year has in every second."""

    grid: Grid
    pue: float = 1.0
    rate_per_s: float = REFERENCE_RATE_PER_S
    is_default: bool = False  # the source of the electricity was not given

    def grams(self, joules: float) -> float:
        return joules / JOULES_PER_KWH * self.pue * self.grid.g_per_kwh

    def figures(self, energy: Members, *, samples: int = 1) -> Carbon:
        """`energy.carbon`: per 1,000 samples and per year at the rate; estimated energy gives a range."""
        found: Carbon = {
            "country": self.grid.code,
            "place": self.grid.country,
            "g_per_kwh": self.grid.g_per_kwh,
            "year": self.grid.year,
            "source": self.grid.source,
            "assumed": "no country was given (--carbon CC)" if self.is_default else None,
            "pue": self.pue,
            "boundary": BOUNDARY,
            "rate_per_s": self.rate_per_s,
        }
        per_year = self.rate_per_s * SECONDS_PER_YEAR
        if energy.get("joules") is not None:
            grams = self.grams(energy["joules"] / samples)
            found["grams_per_1000"], found["grams_per_year"] = grams * BATCH_OF_INFERENCES, grams * per_year
        elif estimated := energy.get("estimated_joules"):
            value, low, high = (self.grams(estimated[bound] / samples) for bound in ("value", "low", "high"))

            def times(count: float) -> Range:
                return {"value": value * count, "low": low * count, "high": high * count}

            found["estimated_grams_per_1000"] = times(BATCH_OF_INFERENCES)
            found["estimated_grams_per_year"] = times(per_year)
        return found


def footprint(
    country: str | None,
    intensity: float | None,
    pue: float | None,
    rate_per_s: float | None = None,
    *,
    has_default: bool = False,
) -> Footprint | None:
    """The requested footprint; without a request that of the world's grid if `has_default`, else None."""
    if country is not None and intensity is not None:
        raise UsageError("give either a country (--carbon) or an intensity (--carbon-intensity), not both")
    is_default = has_default and country is None and intensity is None
    if is_default:
        country = "WORLD"
    if country is None and intensity is None:
        for name, given in (("--pue", pue), ("--carbon-rate", rate_per_s)):
            if given is not None:
                raise UsageError(f"{name} needs a grid: give --carbon CC or --carbon-intensity G too")
        return None
    overhead = 1.0 if pue is None else pue
    if not 1.0 <= overhead < 10.0:
        raise UsageError(f"the PUE must be 1 (no overhead) or more, rarely above 2, not {overhead:g}")
    rate = REFERENCE_RATE_PER_S if rate_per_s is None else rate_per_s
    if not 0.0 < rate < math.inf:
        raise UsageError(f"the rate must be above 0 samples per second, not {rate:g}")
    grid = grid_of(country) if country is not None else given_grid(intensity or 0.0)
    return Footprint(grid, overhead, rate, is_default)


def given_grid(g_per_kwh: float) -> Grid:
    if not 0.0 <= g_per_kwh <= _MAX_G_PER_KWH:
        raise UsageError(f"the intensity must be 0 to {_MAX_G_PER_KWH:g} grams of CO2e per kWh, not {g_per_kwh:g}")
    return Grid(None, "as given", g_per_kwh, None, "given")


def grid_of(code: str) -> Grid:
    """By ISO 3166-1 alpha-2 code, EU or WORLD; a country's name is taken too."""
    table = grids()
    asked = code.strip()
    found = table.get(_OTHER_SPELLINGS.get(asked.upper(), asked.upper()))
    found = found or next((grid for grid in table.values() if grid.country.lower() == asked.lower()), None)
    if found is not None:
        return found
    names = {grid.country.lower(): grid for grid in table.values()}
    close = [names[name] for name in get_close_matches(asked.lower(), names, n=3)]
    same = [grid for key, grid in table.items() if asked and key[0] == asked[0].upper() and len(asked) == 2]
    near = ", ".join(f"{grid.code} ({grid.country})" for grid in (close or same)[:12])
    codes = "Codes are ISO 3166-1 alpha-2, such as DE, FR or US, and EU and WORLD."
    hint = f"Did you mean {near}?" if near else codes
    raise UsageError(f"no electricity figures for '{code}'. {hint} Or give --carbon-intensity G")


@cache
def grids() -> dict[str, Grid]:
    text = (Path(__file__).parent / "grid.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    table: dict[str, Grid] = {}
    for row in rows:
        if row["code"] in table:
            raise ValueError(f"the grid of '{row['code']}' is listed twice")
        table[row["code"]] = Grid(row["code"], row["country"], float(row["g_per_kwh"]), int(row["year"]), _SOURCE)
    return table
