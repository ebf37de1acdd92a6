"""The result of `summary`: the layers, the totals, and the table as its text."""

from __future__ import annotations

from torchgauge.compat.torchinfo.enums import Units
from torchgauge.compat.torchinfo.formatting import CONVERSION_FACTORS, FormattingOptions
from torchgauge.compat.torchinfo.layer_info import LayerInfo


class ModelStatistics:
    """Totals are those of the whole model: a tensor used by two layers counts once, and work outside leaf layers is in.
    `total_output_bytes` is torchinfo's estimate: outputs of leaf layers with parameters, twice."""

    def __init__(
        self, summary_list: list[LayerInfo], input_size: object, total_input_size: int, formatting: FormattingOptions
    ) -> None:
        root = next(layer for layer in summary_list if layer.depth == 0)
        self.summary_list = summary_list
        self.input_size = input_size
        self.formatting = formatting
        self.total_input = total_input_size
        self.total_params, self.trainable_params = root.num_params, root.trainable_params
        self.total_param_bytes = root.param_bytes
        self.total_mult_adds = sum(layer.own_macs for layer in summary_list)
        self.total_output_bytes = sum(
            2 * layer.output_bytes for layer in summary_list if layer.is_leaf_layer and layer.num_params
        )
        formatting.set_layer_name_width(summary_list)

    def __repr__(self) -> str:
        rule = "=" * self.formatting.get_total_width() + "\n"
        layers = self.formatting.layers_to_str(self.summary_list, self.total_params)
        parts = [self.formatting.header_row(), layers, self._params()]
        if self.input_size:
            macs = self.format_output_num(self.total_mult_adds, self.formatting.macs_units)
            parts[-1] += f"Total mult-adds{macs}\n"
            parts.append(self._sizes())
        return (rule + rule.join(parts) + rule).removesuffix("\n")

    def _params(self) -> str:
        total, trainable = self.total_params, self.trainable_params
        rows = {"Total params": total, "Trainable params": trainable, "Non-trainable params": total - trainable}
        units = self.formatting.params_units
        return "".join(f"{title}{self.format_output_num(number, units)}\n" for title, number in rows.items())

    def _sizes(self) -> str:
        rows = {
            "Input size": self.total_input,
            "Forward/backward pass size": self.total_output_bytes,
            "Params size": self.total_param_bytes,
            "Estimated Total Size": self.total_input + self.total_output_bytes + self.total_param_bytes,
        }
        if self.formatting.params_size_units == Units.MEGABYTES:
            return "".join(f"{title} (MB): {self.to_megabytes(number):0.2f}\n" for title, number in rows.items())
        units = self.formatting.params_size_units
        return "".join(f"{title}{self.format_output_num(number, units, True)}\n" for title, number in rows.items())

    @staticmethod
    def float_to_megabytes(num: int) -> float:
        """Numbers of four bytes."""
        return ModelStatistics.to_megabytes(num * 4)

    @staticmethod
    def to_megabytes(num: int) -> float:
        return num / 1e6

    @staticmethod
    def to_readable(num: float, units: Units = Units.AUTO) -> tuple[Units, float]:
        if units == Units.AUTO:
            large = (unit for unit in (Units.TERABYTES, Units.GIGABYTES) if num >= CONVERSION_FACTORS[unit])
            units = next(large, Units.MEGABYTES)
        return units, num / CONVERSION_FACTORS[units]

    @staticmethod
    def format_output_num(num: int, units: Units, is_bytes: bool = False) -> str:
        used, number = ModelStatistics.to_readable(num, units)
        text = f"{int(number):,}" if number.is_integer() else f"{number:,.2f}"
        return f": {text}" if used == Units.NONE else f" ({used.value}{'B' if is_bytes else ''}): {text}"
