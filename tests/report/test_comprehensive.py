from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.report.energy_sample import estimated_energy
from tests.report.measured_sample import latency, measured_view
from tests.report.sample import sample_capture
from tests.report.saved_runs import load_run
from torchgauge.facts import View
from torchgauge.report import SCAN, Options, find_format, render
from torchgauge.report.content import summary_facts
from torchgauge.report.formats import CHAPTERS

TITLES = [title for title, _, _ in CHAPTERS]


@pytest.mark.parametrize("name", ["comprehensive_model_analysis.txt", "a/resnet50_Comprehensive_Model_Analysis.TXT"])
def test_the_name_of_the_file_asks_for_it(name: str) -> None:
    assert find_format(name).name == "comprehensive"
    assert find_format(name, SCAN).name == "comprehensive"
    assert find_format("model_analysis.txt").name == "text"


@pytest.mark.parametrize("run", ["cnn", "measured", "weights"])
def test_every_part_is_there_in_order(run: str) -> None:
    lines = render(load_run(run), "comprehensive").splitlines()
    rule = "=" * 80
    titles = [lines[at + 1] for at, line in enumerate(lines[:-2]) if line == rule and lines[at + 2] == rule]
    assert titles == TITLES


def part_of(text: str, title: str) -> str:
    rule = "=" * 80
    return text.split(f"{rule}\n{title}\n{rule}\n")[1].split(f"\n{rule}\n")[0]


def test_a_part_without_figures_says_how_to_get_them() -> None:
    text = render(load_run("cnn"), "comprehensive")
    assert part_of(text, "ENERGY ANALYSIS").startswith("Not requested: --inference --profile")
    assert part_of(text, "PERFORMANCE PROFILE").startswith("Nothing was measured: --inference")
    assert "The values were not read: --weights" in part_of(text, "PARAMETER ANALYSIS")
    assert part_of(render(load_run("weights"), "comprehensive"), "NODES, ONE BY ONE").startswith(
        "Only weights, no code"
    )


def test_every_parameter_and_every_node_is_listed() -> None:
    run = load_run("measured")
    text = render(run, "comprehensive")
    reported = re.findall(r"^Parameter: (.*)$", text, re.MULTILINE)
    assert reported == [param.name for param in run.capture.params]
    assert len(re.findall(r"^Node \d+: ", text, re.MULTILINE)) == run.totals.ops


def test_a_parameter_whose_values_were_read_has_its_statistics() -> None:
    part = part_of(render(load_run("weights"), "comprehensive"), "PARAMETERS, ONE BY ONE")
    for label in ("mean, std", "sparsity", "norms", "entropy", "prunable", "quantized", "alignment"):
        assert part.count(f"\n  {label} ") >= 3
    assert re.search(r"^  not finite +1 NaN, 0 infinite$", part, re.MULTILINE)


def test_an_estimate_never_looks_measured() -> None:
    text = render(estimated_energy(), "comprehensive")
    nodes = part_of(text, "NODES, ONE BY ONE")
    energies = re.findall(r"^  energy +(.*)$", nodes, re.MULTILINE)
    assert energies
    assert all(energy.startswith("≈ ") and "ESTIMATED" in energy for energy in energies)
    assert "Energy, ESTIMATED" in part_of(text, "EXECUTIVE SUMMARY")


def test_the_work_of_an_op_without_a_formula_is_unknown() -> None:
    nodes = part_of(render(View(sample_capture()), "comprehensive"), "NODES, ONE BY ONE")
    mystery = nodes.split("Node 4: my::mix.default")[1].split("Node 5")[0]
    assert re.search(r"^  work +unknown: the op has no formula$", mystery, re.MULTILINE)
    assert "FLOPs per byte" not in mystery


def test_all_advice_is_shown() -> None:
    advice = load_run("cnn").capture.advice
    view = View(replace(sample_capture(), advice=advice * 10))
    part = part_of(render(view, "comprehensive"), "RECOMMENDATIONS")
    assert len(re.findall(r"^\d+\. ", part, re.MULTILINE)) == 10 * len(advice)


def test_it_keeps_to_the_width() -> None:
    text = render(load_run("measured"), "comprehensive", Options(width=80))
    assert max(map(len, text.splitlines())) <= 80


def test_a_node_has_all_its_shapes_and_a_parameter_its_histogram() -> None:
    run = load_run("cnn")
    nodes = part_of(render(run, "comprehensive", Options(width=300)), "NODES, ONE BY ONE")
    norm = next(op for op in run.ops if len(op.input_shapes) > 3)
    reported = nodes.split(f"Node {norm.index}: ")[1].split("  shapes ")[1].splitlines()[0].strip()
    shapes = [
        ", ".join("×".join(map(str, shape)) for shape in side) for side in (norm.input_shapes, norm.output_shapes)
    ]
    assert reported == " → ".join(shapes)
    weights = load_run("weights")
    drawn = sum(bool((row.get("histogram") or {}).get("counts")) for row in weights.weights)
    assert part_of(render(weights, "comprehensive"), "PARAMETERS, ONE BY ONE").count("\n  histogram ") == drawn > 0


def test_an_op_without_inputs_takes_none() -> None:
    capture = sample_capture()
    signature = replace(capture.ops[0].signature, inputs=())
    view = View(replace(capture, ops=(replace(capture.ops[0], signature=signature),)))
    assert re.search(r"^  shapes +none → ", part_of(render(view, "comprehensive"), "NODES, ONE BY ONE"), re.MULTILINE)


def test_the_module_tree_is_whole_unless_a_depth_is_asked_for() -> None:
    """Forty modules at each of three levels are more than a page has."""
    capture = sample_capture()
    paths = [f"m{i}" for i in range(40)]
    paths = [path for top in paths for path in (top, f"{top}.a{top}", f"{top}.a{top}.deep{top}")]
    modules = (capture.modules[0], *(replace(capture.modules[1], path=path, type=path) for path in paths))
    view = View(replace(capture, modules=modules, ops=(), params=()))
    assert "deepm39" in render(view, "comprehensive")
    assert "deepm39" not in render(view, "text")
    assert "deepm39" not in part_of(render(view, "comprehensive", Options(depth=1)), "ARCHITECTURE")


def test_one_run_is_not_called_a_median() -> None:
    (fact,) = [
        fact for fact in summary_facts(measured_view(latency=latency(0.08) | {"runs": 1})) if fact[0] == "Latency"
    ]
    assert fact[2] == "measured: one undisturbed run"
