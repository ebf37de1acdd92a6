"""The type of a column, by its name: the same in every file, also where all its values are null."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

TEXT, INTEGER, NUMBER, FLAG, JSON = "text", "integer", "number", "flag", "json"
NAMES, SIZES, NUMBERS, SHAPES = "names", "sizes", "numbers", "shapes"

_COLUMNS = {
    TEXT: """target created torchgauge_version path type op overload module phase category status dtype bound source
        name file role module_type shared_with duplicate_of smallest_30db smallest_20db recommendations""",
    INTEGER: """depth calls params trainable_params param_bytes macs flops bytes_read bytes_written activation_bytes ops
        index live_bytes elements bytes offset logical_elements nan inf subnormal finite zeros""",
    NUMBER: """time_s self_time_s time_share cpu_time_s flops_per_s bytes_per_s roof_share arithmetic_intensity energy_j
        estimated_energy_j estimated_energy_low_j estimated_energy_high_j sparsity near_zero mean std min max abs_max
        skewness kurtosis l1 l2 entropy_bits entropy_symbol_bits compressibility spectral_norm stable_rank""",
    NAMES: "aliases weights tags",
    SIZES: "shape stride producers",
    NUMBERS: "histogram_edges histogram_counts",
    SHAPES: "input_shapes output_shapes",
    JSON: "inputs outputs attributes kernels",
}
_KINDS = {name: kind for kind, names in _COLUMNS.items() for name in names.split()}


def kind_of(name: str, values: Iterable[Any]) -> str | None:
    """None for a column that is not in the list and holds nothing: it has no type to agree on."""
    if name in _KINDS:
        return _KINDS[name]
    types = {type(value) for value in values if value is not None}
    if not types:
        return None
    if types <= {int, float}:
        return NUMBER
    if types == {bool}:
        return FLAG
    return TEXT if types == {str} else JSON
