"""The five methods in their other forms: DataFrame, CSV, HTML and LaTeX."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchgauge.errors import MissingDependencyError

if TYPE_CHECKING:
    from pandas import DataFrame

RAW_TIMES = "inference_time_ms"
PathLike = str | os.PathLike[str]
Specs = dict[str, dict[str, Any]]


class OutputForms(ABC):
    """Arguments pass through to the plain method; `_csv` and `_html` take the file first."""

    @abstractmethod
    def count_params(self, *args: Any, **kwargs: Any) -> Specs: ...
    @abstractmethod
    def trace_io_sizes(self, *args: Any, **kwargs: Any) -> Specs: ...
    @abstractmethod
    def estimate_ops(self, *args: Any, **kwargs: Any) -> Specs: ...
    @abstractmethod
    def estimate_inference_time(self, *args: Any, **kwargs: Any) -> Specs: ...
    @abstractmethod
    def estimate_total_inference_time(self, *args: Any, **kwargs: Any) -> Specs: ...
    @abstractmethod
    def _log(self, text: str) -> None: ...

    def count_params_df(self, *args: Any, **kwargs: Any) -> DataFrame:
        return to_frame(self.count_params(*args, **kwargs))

    def count_params_csv(self, file: PathLike, *args: Any, **kwargs: Any) -> None:
        self._save_csv(file, self.count_params_df(*args, **kwargs))

    def count_params_html(self, file: PathLike, *args: Any, **kwargs: Any) -> None:
        self._save_html(file, self.count_params_df(*args, **kwargs))

    def count_params_latex(self, *args: Any, index: bool = False, **kwargs: Any) -> str:
        return _latex(self.count_params_df(*args, **kwargs), index)

    def trace_io_sizes_df(self, *args: Any, **kwargs: Any) -> DataFrame:
        return to_frame(self.trace_io_sizes(*args, **kwargs))

    def trace_io_sizes_csv(self, file: PathLike, *args: Any, **kwargs: Any) -> None:
        self._save_csv(file, self.trace_io_sizes_df(*args, **kwargs))

    def trace_io_sizes_html(self, file: PathLike, *args: Any, **kwargs: Any) -> None:
        self._save_html(file, self.trace_io_sizes_df(*args, **kwargs))

    def trace_io_sizes_latex(self, *args: Any, index: bool = False, **kwargs: Any) -> str:
        return _latex(self.trace_io_sizes_df(*args, **kwargs), index)

    def estimate_ops_df(self, *args: Any, **kwargs: Any) -> DataFrame:
        return to_frame(self.estimate_ops(*args, **kwargs))

    def estimate_ops_csv(self, file: PathLike, *args: Any, **kwargs: Any) -> None:
        self._save_csv(file, self.estimate_ops_df(*args, **kwargs))

    def estimate_ops_html(self, file: PathLike, *args: Any, **kwargs: Any) -> None:
        self._save_html(file, self.estimate_ops_df(*args, **kwargs))

    def estimate_ops_latex(self, *args: Any, index: bool = False, **kwargs: Any) -> str:
        return _latex(self.estimate_ops_df(*args, **kwargs), index)

    def estimate_inference_time_df(self, *args: Any, aggr: bool = True, **kwargs: Any) -> DataFrame:
        return to_frame(_times(self.estimate_inference_time(*args, **kwargs), aggr))

    def estimate_inference_time_csv(self, file: PathLike, *args: Any, **kwargs: Any) -> None:
        self._save_csv(file, self.estimate_inference_time_df(*args, **kwargs))

    def estimate_inference_time_html(self, file: PathLike, *args: Any, **kwargs: Any) -> None:
        self._save_html(file, self.estimate_inference_time_df(*args, **kwargs))

    def estimate_inference_time_latex(self, *args: Any, index: bool = False, **kwargs: Any) -> str:
        return _latex(self.estimate_inference_time_df(*args, **kwargs), index)

    def estimate_total_inference_time_df(self, *args: Any, aggr: bool = False, **kwargs: Any) -> DataFrame:
        return to_frame(_times(self.estimate_total_inference_time(*args, **kwargs), aggr))

    def estimate_total_inference_time_csv(self, file: PathLike, *args: Any, **kwargs: Any) -> None:
        self._save_csv(file, self.estimate_total_inference_time_df(*args, **kwargs))

    def estimate_total_inference_time_html(self, file: PathLike, *args: Any, **kwargs: Any) -> None:
        self._save_html(file, self.estimate_total_inference_time_df(*args, **kwargs))

    def estimate_total_inference_time_latex(self, *args: Any, index: bool = False, **kwargs: Any) -> str:
        return _latex(self.estimate_total_inference_time_df(*args, **kwargs), index)

    def _save_csv(self, file: PathLike, frame: DataFrame) -> None:
        path = with_suffix(file, ".csv")
        frame.to_csv(path, index=False)
        self._log(f"Results saved to <b>{path}</b>")

    def _save_html(self, file: PathLike, frame: DataFrame) -> None:
        path = with_suffix(file, ".html")
        frame.to_html(path)
        self._log(f"Results saved to <b>{path}</b>")


def to_frame(rows: Specs | list[dict[str, Any]]) -> DataFrame:
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise MissingDependencyError("pandas", "a table of a profile") from error
    listed = rows if isinstance(rows, list) else [{"module": name, **spec} for name, spec in rows.items()]
    columns: dict[str, list[Any]] = {key: [row[key] for row in listed] for key in (listed[0] if listed else {})}
    # Whole numbers stay whole and None stays None: pandas would make floats and NaN of them.
    return pandas.DataFrame(
        {
            key: pandas.Series(values, dtype=object if any(value is None for value in values) else None)
            for key, values in columns.items()
        }
    )


def _times(specs: Specs, aggr: bool) -> list[dict[str, Any]]:
    """A row per module with its statistics, or a row per run with its time."""
    if aggr:
        return [{"module": name, **_without(spec, {RAW_TIMES})} for name, spec in specs.items()]
    statistics = {key for spec in specs.values() for key in spec if key.startswith("inference_time_")} - {RAW_TIMES}
    return [
        {"module": name, **_without(spec, statistics)} | {RAW_TIMES: time_ms}
        for name, spec in specs.items()
        for time_ms in spec[RAW_TIMES]
    ]


def _without(spec: dict[str, Any], keys: set[str]) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key not in keys}


def with_suffix(file: PathLike, suffix: str) -> Path:
    path = Path(file)
    return path if path.suffix.lower() == suffix else path.with_name(path.name + suffix)


def _latex(frame: DataFrame, index: bool) -> str:
    return str(frame.to_latex(index=index))
