"""The table of the summary."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torchgauge.compat.torchinfo.enums import ColumnSettings, RowSettings, Units, Verbosity
from torchgauge.compat.torchinfo.layer_info import NO_VALUE, LayerInfo

HEADER_TITLES = {
    ColumnSettings.KERNEL_SIZE: "Kernel Shape",
    ColumnSettings.GROUPS: "Groups",
    ColumnSettings.INPUT_SIZE: "Input Shape",
    ColumnSettings.OUTPUT_SIZE: "Output Shape",
    ColumnSettings.NUM_PARAMS: "Param #",
    ColumnSettings.PARAMS_PERCENT: "Param %",
    ColumnSettings.MULT_ADDS: "Mult-Adds",
    ColumnSettings.TRAINABLE: "Trainable",
}
CONVERSION_FACTORS = {
    Units.TERABYTES: 1e12,
    Units.GIGABYTES: 1e9,
    Units.MEGABYTES: 1e6,
    Units.KILOBYTES: 1e3,
    Units.NONE: 1.0,
}
NAME_WIDTH, INDENT = 40, 5


class FormattingOptions:
    """How the table is written; the units may be changed before it is printed."""

    def __init__(
        self,
        max_depth: int,
        verbose: int,
        col_names: tuple[ColumnSettings, ...],
        col_width: int,
        row_settings: set[RowSettings],
    ) -> None:
        self.max_depth = max_depth
        self.verbose = verbose
        self.col_names = col_names
        self.col_width = col_width
        self.row_settings = row_settings
        self.params_units = Units.NONE
        self.params_size_units = Units.MEGABYTES
        self.macs_units = Units.AUTO
        self.layer_name_width = NAME_WIDTH
        self.ascii_only = RowSettings.ASCII_ONLY in row_settings
        self.show_var_name = RowSettings.VAR_NAMES in row_settings
        self.show_depth = RowSettings.DEPTH in row_settings
        self.hide_recursive_layers = RowSettings.HIDE_RECURSIVE_LAYERS in row_settings

    @property
    def params_count_units(self) -> Units:
        """The name that torchinfo after 1.8 has for `params_units`."""
        return self.params_units

    @params_count_units.setter
    def params_count_units(self, units: Units) -> None:
        self.params_units = units

    @staticmethod
    def str_(val: object) -> str:
        return str(val) if val else NO_VALUE

    def get_start_str(self, depth: int) -> str:
        bar, first, other = ("|    ", "+ ", "+ ") if self.ascii_only else ("│    ", "├─", "└─")
        return ("", first)[depth] if depth < 2 else bar * (depth - 1) + other

    def set_layer_name_width(self, summary_list: list[LayerInfo], align_val: int = INDENT) -> None:
        """Widen the column of names to the longest one."""
        lengths = [
            layer.depth * align_val + 1 + len(layer.get_layer_name(self.show_var_name, self.show_depth))
            for layer in summary_list
        ]
        longest = max(lengths, default=0)
        if longest >= self.layer_name_width:
            self.layer_name_width = math.ceil(longest / align_val) * align_val

    def get_total_width(self) -> int:
        return len(self.col_names) * self.col_width + self.layer_name_width

    def format_row(self, layer_name: str, row_values: Mapping[ColumnSettings, str]) -> str:
        cells = [f"{row_values.get(name, ''):<{self.col_width}}" for name in self.col_names]
        return " ".join((f"{layer_name:<{self.layer_name_width}}", *cells)).rstrip() + "\n"

    def header_row(self) -> str:
        name = " (var_name)" if self.show_var_name else ""
        return self.format_row(f"Layer (type{name}{':depth-idx' if self.show_depth else ''})", HEADER_TITLES)

    def layer_info_to_row(self, layer: LayerInfo, reached_max_depth: bool, total_params: int) -> str:
        values = {
            ColumnSettings.KERNEL_SIZE: self.str_(layer.kernel_size),
            ColumnSettings.GROUPS: self.str_(layer.groups),
            ColumnSettings.INPUT_SIZE: self.str_(layer.input_size),
            ColumnSettings.OUTPUT_SIZE: self.str_(layer.output_size),
            ColumnSettings.NUM_PARAMS: layer.num_params_to_str(reached_max_depth),
            ColumnSettings.PARAMS_PERCENT: layer.params_percent(total_params, reached_max_depth),
            ColumnSettings.MULT_ADDS: layer.macs_to_str(reached_max_depth),
            ColumnSettings.TRAINABLE: self.str_(layer.trainable),
        }
        name = layer.get_layer_name(self.show_var_name, self.show_depth)
        row = self.format_row(self.get_start_str(layer.depth) + name, values)
        if self.verbose == Verbosity.VERBOSE:
            start = self.get_start_str(layer.depth + 1)
            row += "".join(self.format_row(start + inner, cells) for inner, cells in layer.inner_layers.items())
        return row

    def layers_to_str(self, summary_list: list[LayerInfo], total_params: int) -> str:
        return "".join(
            self.layer_info_to_row(layer, layer.depth == self.max_depth, total_params)
            for layer in summary_list
            if layer.depth <= self.max_depth and not (self.hide_recursive_layers and layer.is_recursive)
        )
