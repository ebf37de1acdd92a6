from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import torchgauge as tg
from tests.report.energy_sample import estimated_energy, measured_energy
from tests.report.measured_sample import latency, measured_view
from tests.report.sample import sample_capture
from tests.report.saved_runs import load_run
from torchgauge.facts import View
from torchgauge.hardware import collect_environment
from torchgauge.report import SCAN, Options, find_format, render
from torchgauge.report.content import summary_facts
from torchgauge.report.formats import CHAPTERS
from torchgauge.units import format_joules

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


def nodes_of(view: View) -> dict[int, str]:
    """The text of every node, without line breaks."""
    part = part_of(render(view, "comprehensive"), "NODES, ONE BY ONE")
    found = re.findall(r"^Node (\d+): (.*?)(?=^Node |\Z)", part, re.MULTILINE | re.DOTALL)
    return {int(index): " ".join(text.split()) for index, text in found}


def test_advice_is_at_every_node_that_it_concerns() -> None:
    nodes = nodes_of(load_run("cnn"))
    fold = "recommended about 15 % fewer bytes moved (10 to 20 %): fold the batch norm into the convolution before it"
    assert {index for index, text in nodes.items() if fold in text} == {2, 4, 6, 8}
    assert all("(advice 1)" in nodes[index] for index in (2, 4, 6, 8))
    freeze = "compile the model with its weights frozen: batch norm and activation run with the convolution (advice 2)"
    assert {index for index, text in nodes.items() if freeze in text} == {0, 1, 2, 4, 5}
    assert "recommended" not in nodes[14]


def test_withdrawn_advice_is_at_no_node() -> None:
    run = load_run("cnn")
    refuted = {"verdict": "refuted", "kept": False, "gain": 0.0, "reason": "no gain", "ci95": None}
    refuted |= {"quantity": "time_s", "output_error": {"relative": 0.0, "top1": None}}
    first, *others = run.capture.advice
    rows: Any = ({**first, "verified": refuted}, *others)
    nodes = nodes_of(View(replace(run.capture, advice=rows)))
    assert "fold the batch norm" not in " ".join(nodes.values())
    assert "frozen: batch norm and activation run with the convolution (advice 1)" in nodes[0]


def advice_on_energy(view: View, **gain: object) -> str | None:
    """The energy line of advice that saves a tenth to a fifth of the time of a run."""
    saved = {"quantity": "time_s", "low": 0.1, "high": 0.2, "seconds": 0.015, **gain}
    rows: Any = ({**load_run("cnn").capture.advice[0], "expected_gain": saved},)
    part = part_of(render(View(replace(view.capture, advice=rows)), "comprehensive"), "RECOMMENDATIONS")
    line = re.search(r"^ +energy: (.*(?:\n {6}.*)*)$", part, re.MULTILINE)
    return None if line is None else " ".join(line[1].split())


def test_advice_that_saves_time_shows_the_energy_of_that_time() -> None:
    view = measured_energy()
    assert view.capture.energy is not None
    joules = view.capture.energy.figures["joules"]
    assert joules is not None
    expected = f"{format_joules(0.1 * joules)} to {format_joules(0.2 * joules)} less for a run, at the same power"
    assert advice_on_energy(view) == expected
    assert advice_on_energy(view, quantity="param_bytes") is None
    assert advice_on_energy(view, device="cuda") is None
    assert advice_on_energy(load_run("cnn")) is None


def test_the_energy_that_advice_saves_is_an_estimate_where_no_meter_measured_it() -> None:
    text = advice_on_energy(estimated_energy())
    assert text is not None
    assert re.fullmatch(r"≈ .* less for a run, at the same power, ESTIMATED: between .* and .*", text)


def test_the_locality_of_a_parameter_that_is_stored_across_its_rows_is_shown(tmp_path: Path) -> None:
    torch.save({"along": torch.zeros(64, 256), "across": torch.zeros(256, 64).t()}, tmp_path / "w.pt")
    view = View(tg.analyze(tmp_path / "w.pt", weights=True).capture)
    part = part_of(render(view, "comprehensive"), "PARAMETERS, ONE BY ONE")
    lines = re.findall(r"^  locality +(.*)$", part, re.MULTILINE)
    assert lines == [
        "a run along the last dimension touches 16 cache lines",
        "a run along the last dimension touches 256 cache lines, 16 if it were contiguous",
    ]


def test_the_vector_instructions_are_named_beside_the_threads() -> None:
    found = collect_environment()
    assert found.settings["cpu_capability"] == torch.backends.cpu.get_cpu_capability()
    run = load_run("cnn")
    part = part_of(render(View(replace(run.capture, environment=found)), "comprehensive"), "ENVIRONMENT AND METHOD")
    assert f"threads, CPU capability {torch.backends.cpu.get_cpu_capability()}" in part.replace("1 thread,", "threads,")
