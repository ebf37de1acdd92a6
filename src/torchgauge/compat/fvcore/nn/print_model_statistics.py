"""Parameters, FLOPs and activations of every module: as a table, or written into the text of the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from textwrap import indent
from typing import Any

from torch import nn

from torchgauge.compat.fvcore.nn.activation_count import ActivationCountAnalysis
from torchgauge.compat.fvcore.nn.flop_count import FlopCountAnalysis
from torchgauge.compat.fvcore.nn.jit_analysis import JitModelAnalysis
from torchgauge.compat.fvcore.nn.parameter_count import members, parameter_count, parameter_shapes, pipe_table, scaled
from torchgauge.facts import enclosing_paths

Numbers = dict[str, dict[str, Any]]
Texts = dict[str, dict[str, str]]

_NOT_CALLED = (
    "N/A indicates a possibly missing statistic due to how the module was called. "
    "Missing values are still included in the parent's total.\n"
)


def flop_count_table(
    flops: FlopCountAnalysis,
    max_depth: int = 3,
    activations: ActivationCountAnalysis | None = None,
    show_param_shapes: bool = True,
) -> str:
    """A table of the modules down to `max_depth`; one that only wraps another shares its row."""
    parameters = "#parameters" + (" or shape" if show_param_shapes else "")
    analyses = _quiet({"#flops": flops, "#activations": activations})
    counted: Numbers = {parameters: dict(parameter_count(flops._model))}
    counted |= {title: analysis.by_module() for title, analysis in analyses.items()}
    numbers = _remove_zero_statistics(_group_by_module(counted), require_trivial_children=True)
    texts = _pretty_statistics(numbers)
    for title, analysis in analyses.items():
        texts = _indicate_uncalled_modules(texts, title, analysis.uncalled_modules() & texts.keys(), "")
    for name, shape in parameter_shapes(flops._model).items():
        if name in texts and show_param_shapes:
            texts[name][parameters] = shape
        else:
            texts.pop(name, None)
    return _model_stats_table(texts, max_depth, list(counted))


def flop_count_str(flops: FlopCountAnalysis, activations: ActivationCountAnalysis | None = None) -> str:
    """`str(model)` with the figures of every module that has any."""
    model = flops._model
    analyses = _quiet({"#flops": flops, "#acts": activations})
    counted: Numbers = {"#params": dict(parameter_count(model))}
    counted |= {title: analysis.by_module() for title, analysis in analyses.items()}
    uncalled = {title: analysis.uncalled_modules() for title, analysis in analyses.items()}
    missing = set().union(*uncalled.values())
    numbers = _group_by_module(_fill_missing_statistics(model, counted))
    texts = _pretty_statistics(_remove_zero_statistics(numbers, force_keep=missing), sig_figs=2)
    for title, names in uncalled.items():
        texts = _indicate_uncalled_modules(texts, title, names)
    return (_NOT_CALLED if missing else "") + _model_stats_str(model, texts)


def _quiet(analyses: Mapping[str, JitModelAnalysis | None]) -> dict[str, JitModelAnalysis]:
    """The analyses that are given, with warnings disabled: the printed text shows the same."""
    given = {title: analysis for title, analysis in analyses.items() if analysis is not None}
    for analysis in given.values():
        analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False).tracer_warnings("none")
    return given


def _pretty_statistics(statistics: Numbers, sig_figs: int = 3, hide_zero: bool = False) -> Texts:
    def text(count: float) -> str:
        if hide_zero and count == 0:
            return ""
        number, unit = scaled(count)
        return f"{number:.{sig_figs}f}".rstrip("0").rstrip(".") + unit if unit else str(count)

    return {name: {title: text(number) for title, number in figures.items()} for name, figures in statistics.items()}


def _group_by_module(statistics: Numbers) -> Numbers:
    """From figures by title and module to figures by module and title."""
    found: Numbers = {}
    for title, figures in statistics.items():
        for name, figure in figures.items():
            found.setdefault(name, {})[title] = figure
    return found


def _fill_missing_statistics(model: nn.Module, statistics: Numbers) -> Numbers:
    """Figures by title and module, with zero for a module that has none of a title."""
    zeros = dict.fromkeys((name for name, _ in model.named_modules()), 0)
    return {title: zeros | figures for title, figures in statistics.items()}


def _indicate_uncalled_modules(
    statistics: Texts, stat_name: str, uncalled_modules: AbstractSet[str], uncalled_indicator: str = "N/A"
) -> Texts:
    names = [*statistics, *(uncalled_modules - statistics.keys())]
    marks = {name: {stat_name: uncalled_indicator} for name in uncalled_modules}
    return {name: statistics.get(name, {}) | marks.get(name, {}) for name in names}


def _remove_zero_statistics(
    statistics: Numbers, force_keep: AbstractSet[str] | None = None, require_trivial_children: bool = False
) -> Numbers:
    """Drop modules whose figures are all zero; with `require_trivial_children`, only if nothing below them is kept."""
    kept = {name: figures.copy() for name, figures in statistics.items() if any(figures.values())}
    kept |= {name: statistics[name].copy() for name in force_keep or {""} if name in statistics}
    if require_trivial_children:
        for name in sorted(statistics, key=lambda name: len(enclosing_paths(name)), reverse=True):
            if name not in kept and members(name, kept):
                kept[name] = statistics[name].copy()
    return {name: kept[name] for name in statistics if name in kept}


def _model_stats_str(model: nn.Module, statistics: Texts, name: str = "") -> str:
    """The module as torch prints it; its figures are on a separate line after its `extra_repr`."""
    figures = ", ".join(f"{title}: {text}" for title, text in statistics.get(name, {}).items())
    own = [line for text in (model.extra_repr(), figures) if text for line in text.split("\n")]
    inner = []
    for key, child in model._modules.items():
        path = f"{name}.{key}" if name else key
        inner.append(f"({key}): {None if child is None else _model_stats_str(child, statistics, path)}")
    if len(own) == 1 and not inner:
        return f"{model._get_name()}({own[0]})"
    lines = indent("\n".join(own + inner), "  ", lambda line: True)
    return f"{model._get_name()}(\n{lines}\n)" if own or inner else f"{model._get_name()}()"


def _model_stats_table(statistics: Texts, max_depth: int = 3, stat_columns: Sequence[str] | None = None) -> str:
    """A table of the texts by module and title, down to `max_depth`; its columns are all titles, or `stat_columns`."""
    columns = stat_columns or list(dict.fromkeys(title for figures in statistics.values() for title in figures))
    root, figures = _fastforward("", statistics)
    rows = [_row(root or "model", figures, columns, 0)]
    # A prefix that all names share says nothing.
    known = f"{root}." if root else ""
    for depth, name, found in _below(root, statistics, max_depth):
        rows.append(_row(name.removeprefix(known), found, columns, depth))
    return pipe_table(("module", *columns), rows)


def _below(name: str, statistics: Texts, max_depth: int, depth: int = 1) -> Iterator[tuple[int, str, dict[str, str]]]:
    for member in members(name, statistics) if depth <= max_depth else ():
        inmost, figures = _fastforward(member, statistics)
        yield depth, inmost, figures
        yield from _below(inmost, statistics, max_depth, depth + 1)


def _row(name: str, figures: Mapping[str, str], columns: Sequence[str], depth: int) -> list[str]:
    indentation = " " * depth
    return [indentation + name, *(indentation + figures[title] if title in figures else "" for title in columns)]


def _fastforward(name: str, statistics: Texts) -> tuple[str, dict[str, str]]:
    """Down to the last of the modules that only wrap the next, with the figures they share."""
    figures = statistics[name]
    while len(inside := members(name, statistics)) == 1:
        inner = statistics[inside[0]]
        # They agree: the same titles, and no title has two texts; an empty one is none.
        if figures.keys() != inner.keys() or any(
            text and inner[key] not in ("", text) for key, text in figures.items()
        ):
            break
        name, figures = inside[0], {title: text or inner[title] for title, text in figures.items()}
    return name, figures
