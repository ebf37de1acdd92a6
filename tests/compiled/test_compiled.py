"""`execution="compiled"`: the graphs, breaks and kernels of torch.compile, and what an analysis leaves behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchgauge as tg
from tests.compiled.models import (
    WIDTH,
    Asserts,
    Block,
    Branches,
    Explicit,
    Generates,
    Guarded,
    Lists,
    Logs,
    Loops,
    Masks,
    Nested,
    Numpy,
    Opaque,
    Opens,
    Prints,
    Reads,
    Shapes,
    Whole,
    marked_lines,
)
from torchgauge.cli import main
from torchgauge.errors import InputError, UsageError
from torchgauge.source import import_optional, torchvision_importable

BATCH = 4


def compiled(model: nn.Module, **options: Any) -> tg.Analysis:
    return tg.analyze(model, input_size=(BATCH, WIDTH), execution="compiled", advice=False, **options)


def rows(found: tg.Analysis) -> Any:
    assert found.capture.compiled is not None
    return found.capture.compiled


def test_a_model_without_breaks_is_one_graph_and_fused_kernels() -> None:
    found = rows(compiled(Whole()))
    assert (len(found.graphs), found.breaks) == (1, ())
    # Per block a product, then everything else in one kernel.
    assert [kernel.kind for kernel in found.kernels] == ["extern", "generated"] * 2
    assert found.kernels[1].ops == ("aten::relu", "aten::add", "aten::native_layer_norm")
    assert found.kernels[0].modules == {"blocks.0.linear": 1.0}
    assert not found.is_run
    assert found.device == "cpu"
    assert any("fusion decisions of Inductor's scheduler for the CPU" in note for note in found.notes)


def test_bytes_of_a_kernel_are_those_of_the_buffers_that_exist_outside_it() -> None:
    product, fused = rows(compiled(Block())).kernels
    activation, weight, vector = 4 * BATCH * WIDTH, 4 * WIDTH * WIDTH, 4 * WIDTH
    assert (product.bytes_read, product.bytes_written) == (activation + weight + vector, activation)
    # The output of the product, the input of the block, the norm's two vectors.
    assert fused.bytes_read == 2 * activation + 2 * vector
    # Besides the result a mean and a variance (and on the CPU a count of it) for each row at most.
    assert activation <= fused.bytes_written <= activation + 3 * 4 * BATCH


def test_a_shared_kernel_is_divided_by_the_bytes_of_its_ops() -> None:
    fused = rows(compiled(Block())).kernels[1]
    activation, vector, row = 4 * BATCH * WIDTH, 4 * WIDTH, 4 * BATCH
    own = 2 * activation + 3 * activation  # relu, add
    norm = 2 * activation + 2 * vector
    share = own / (own + norm)
    assert fused.modules[""] == pytest.approx(share, abs=3 * row / (own + norm))
    assert sum(fused.modules.values()) == pytest.approx(1)


def test_eager_bytes_are_next_to_those_of_the_kernels() -> None:
    found = compiled(Whole())
    totals = found.to_dict()["compiled"]["totals"]
    assert totals["eager_bytes_read"] == found.totals.bytes_read
    assert totals["bytes_read"] + totals["bytes_written"] < found.totals.bytes_read + found.totals.bytes_written


@pytest.mark.parametrize(
    "kind", [Prints, Branches, Reads, Lists, Logs, Shapes, Opaque, Explicit], ids=lambda kind: kind.__name__
)
def test_a_break_has_its_line(kind: type[nn.Module]) -> None:
    found = rows(compiled(kind()))
    assert {one.source for one in found.breaks} == marked_lines(kind)
    assert all(one.reason for one in found.breaks)
    assert len(found.graphs) >= 2


def test_a_break_in_a_called_module_is_one_break_with_that_line() -> None:
    found = rows(compiled(Nested()))
    assert [one.source for one in found.breaks] == sorted(marked_lines(Reads))
    served = {path for kernel in found.kernels for path in kernel.modules}
    # Code behind the break still belongs to the module whose method it is.
    assert {"inner", "inner.linear", "before.norm", "after.linear"} <= served
    assert "" not in served


def test_a_training_step_has_backward_graphs_and_kernels_of_the_same_modules() -> None:
    found = rows(compiled(Prints(), mode="train"))
    assert [graph.phase for graph in found.graphs].count("backward") == 2
    backward = {at for at, graph in enumerate(found.graphs) if graph.phase == "backward"}
    served = {path for kernel in found.kernels if kernel.graph in backward for path in kernel.modules}
    assert {"first.linear", "first.norm", "second.linear", "second.norm"} <= served


def test_a_copy_of_an_input_in_another_layout_serves_the_module_that_reads_it() -> None:
    model = nn.Sequential(nn.Dropout(0.1), nn.Conv2d(3, 8, 3))
    found = tg.analyze(model, input_size=(2, 3, 8, 8), execution="compiled", mode="train", advice=False)
    copies = [kernel for kernel in rows(found).kernels if not kernel.ops]
    assert [(kernel.modules, kernel.bytes_written) for kernel in copies] == [({"1": 1.0}, 4 * 8 * 3 * 3 * 3)]
    assert all(sum(kernel.modules.values()) == pytest.approx(1) for kernel in rows(found).kernels)


def test_a_model_on_the_meta_device_needs_no_weights() -> None:
    with torch.device("meta"):
        model = Whole()
    assert len(rows(compiled(model)).kernels) == 4


def test_a_compiled_model_is_taken_as_it_is() -> None:
    model: Any = torch.compile(Whole(), dynamic=True, options={"epilogue_fusion": False})
    found = rows(tg.analyze(model, input_size=(BATCH, WIDTH), advice=False))
    assert found.options == {"epilogue_fusion": False}
    assert found.kernels[1].modules.keys() == {"blocks.0", "blocks.0.norm"}
    assert tg.analyze(model, input_size=(BATCH, WIDTH), execution="eager", advice=False).capture.compiled is None


def test_another_backend_has_graphs_and_no_kernels() -> None:
    model: Any = torch.compile(Prints(), backend="eager")
    found = rows(tg.analyze(model, input_size=(BATCH, WIDTH), advice=False))
    assert (found.backend, len(found.graphs), found.kernels) == ("eager", 2, ())
    assert any("backend eager" in note for note in found.notes)


def test_equal_parts_share_a_graph_and_each_call_serves_its_own_module() -> None:
    model = nn.Sequential(Block(), nn.Tanh(), Block(), Block())
    for block in (model[0], model[2], model[3]):
        block.compile()
    found = rows(tg.analyze(model, input_size=(BATCH, WIDTH), advice=False))
    assert [(graph.calls, graph.source is not None) for graph in found.graphs] == [(3, True)]
    assert [next(iter(kernel.modules)) for kernel in found.kernels[::2]] == ["0.linear", "2.linear", "3.linear"]


def compiled_child() -> nn.Module:
    part: Any = torch.compile(Block(), options={"epilogue_fusion": False})
    return nn.Sequential(Block(), nn.Tanh(), part)


def compiled_forward() -> nn.Module:
    part: Any = Block()
    part.forward = torch.compile(part.forward, options={"epilogue_fusion": False})
    return nn.Sequential(Block(), nn.Tanh(), part)


@pytest.mark.parametrize("build", [compiled_child, compiled_forward])
def test_a_compiled_part_is_compiled_with_its_options_and_the_rest_is_eager(build: Any) -> None:
    model = build()
    part, forward = model[2], vars(model[2]).get("forward")
    found = tg.analyze(model, input_size=(BATCH, WIDTH), advice=False)
    made = rows(found)
    assert found.to_dict()["capture"]["execution"] == "compiled"
    assert made.options == {"epilogue_fusion": False}
    assert len(made.graphs) == 1
    assert {path for kernel in made.kernels for path in kernel.modules} == {"2", "2.linear", "2.norm"}
    assert (model[2], vars(model[2]).get("forward")) == (part, forward)


def test_the_model_of_a_folder_is_compiled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    transformers = import_optional("transformers", "a test")
    config = transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=32, n_positions=16)
    with torchvision_importable():  # transformers imports it with the class
        transformers.GPT2Model(config).save_pretrained(tmp_path)
    capsys.readouterr()
    assert main([str(tmp_path), "--execution", "compiled", "--seq", "8", "--no-weights", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["target"]["kind"], document["capture"]["execution"]) == ("folder", "compiled")
    assert document["compiled"]["breaks"] == []
    assert {"h.0.attn.c_attn", "h.0.mlp.c_fc"} <= {
        path for row in document["compiled"]["kernels"] for path in row["modules"]
    }


def test_the_users_compiled_code_is_neither_run_nor_replaced_nor_counted() -> None:
    model, x = Whole().eval(), torch.randn(BATCH, WIDTH)
    seen: list[int] = []

    def backend(module: Any, inputs: Any) -> Any:
        seen.append(len(inputs))
        return module.forward

    user: Any = torch.compile(model, backend=backend)
    with torch.no_grad():
        before = user(x)
        assert len(rows(tg.analyze(user, inputs=x, execution="compiled", advice=False)).graphs) == 1
        count = len(seen)  # the analysis calls the backend once more
        assert torch.equal(user(x), before)
    assert (count, len(seen)) == (2, 2)


def test_the_document_has_the_execution_and_is_read_back() -> None:
    found = compiled(Prints())
    document = json.loads(json.dumps(found.to_dict()))
    assert document["capture"]["execution"] == "compiled"
    assert document["compiled"]["breaks"][0].keys() >= {"reason", "source"}
    assert document["compiled"]["kernels"][0].keys() >= {"name", "ops", "modules", "bytes_read", "bytes_written"}
    assert tg.analyze(Whole(), input_size=(BATCH, WIDTH), advice=False).to_dict()["capture"]["execution"] == "eager"


def test_the_report_says_what_breaks_and_which_kernels_move_most(tmp_path: Path) -> None:
    found = compiled(Prints())
    text = str(found)
    assert "Graph breaks  1" in text
    assert next(iter(marked_lines(Prints))) in text
    assert "print" in text
    assert "relu, add, native_layer_norm" in text
    (line,) = marked_lines(Prints)
    for suffix in ("txt", "md", "xml", "html", "tex", "jsonl"):
        found.save(tmp_path / f"report.{suffix}")
        assert line in (tmp_path / f"report.{suffix}").read_text(encoding="utf-8"), suffix
    found.save(tmp_path / "run.json")
    again = tg.load(tmp_path / "run.json")
    assert again.to_dict() == found.to_dict()
    assert str(again) == text


def test_programs_without_python_code_are_refused(tmp_path: Path) -> None:
    script = torch.jit.script(nn.Linear(WIDTH, WIDTH))
    with pytest.raises(InputError, match=r"TorchScript, and torch\.compile takes Python code"):
        compiled(script)
    with pytest.raises(UsageError, match="no execution 'fast'"):
        tg.analyze(Whole(), input_size=(BATCH, WIDTH), execution="fast")


def test_without_a_cpp_compiler_the_error_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from torch._inductor import config

    target = f"{Path(__file__).parent / 'models.py'}:Whole"
    with config.patch({"cpp.cxx": (None, str(tmp_path / "nowhere"))}):
        status = main([target, "--execution", "compiled", "--input", f"{BATCH}x{WIDTH}"])
    said = capsys.readouterr().err
    assert status == 1
    assert "torch.compile on the CPU needs a C++ compiler" in said
    assert "nowhere" in said
    assert "CXX" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("kind", [Numpy, Guarded, Generates, Loops, Asserts, Opens], ids=lambda kind: kind.__name__)
def test_a_break_that_dynamo_cannot_resume_from_or_meets_in_a_library_has_its_line(kind: type[nn.Module]) -> None:
    assert {one.source for one in rows(compiled(kind())).breaks} == marked_lines(kind)


def test_a_graph_that_the_backend_refuses_is_a_break_with_the_line_of_its_op() -> None:
    found = rows(compiled(Masks(), mode="train"))
    assert {one.source for one in found.breaks} == marked_lines(Masks)
    assert found.breaks[-1].reason.startswith("Backend compiler")
    assert [graph.phase for graph in found.graphs] == ["forward", "backward"]


def test_recompilations_over_a_sweep_have_their_guard_and_their_point() -> None:
    other: Any = torch.compile(Whole(), backend="eager")
    other(torch.randn(3, WIDTH))  # the same code, compiled for another model
    model: Any = torch.compile(Whole(), backend="eager")
    brief: dict[str, Any] = {"budget_s": 0.02, "threads": 1, "profile_level": "latency", "advice": False}
    found = rows(tg.analyze(model, input_size=(2, WIDTH), sweep={"batch": [1, 2, 4, 8]}, **brief))
    # 1 is a constant for torch; at the second size that differs the batch becomes a variable.
    assert [one.point for one in found.recompilations] == ["batch=1", "batch=4"]
    assert all("size mismatch at index 0" in one.reason and one.source for one in found.recompilations)
    assert found.is_run
    assert len(found.graphs) == 1
