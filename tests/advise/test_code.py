"""What a rule gives to paste is Python, and does what it says where it needs nothing but the model."""

from __future__ import annotations

import ast
import copy
import importlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import torchgauge
from tests.advise import faulty_models, flow_models, zoo_memory, zoo_weights
from tests.advise.pasting import check_code
from tests.advise.planted import Planted, places, seen
from tests.advise.test_families import ZOO
from torchgauge.advise import Advice, Evidence, Gain, Patch, SourceEdit, Where, advise
from torchgauge.advise.code import FileEdit, Source, Span, merged_changes
from torchgauge.advise.code import parsed as parsed_file
from torchgauge.advise.registry import merged


def said(evidence: Evidence, rule: str) -> Advice:
    (found,) = (advice for advice in advise(evidence, all_advice=True) if advice.rule == rule)
    return found


def pasted(model: nn.Module, code: str | None, **names: Any) -> nn.Module:
    """A copy of the model that the code was run on."""
    scope = {"torch": torch, "model": copy.deepcopy(model), **names}
    exec(code or "", scope)
    changed: nn.Module = scope["model"]
    return changed


def shaken(model: nn.Module) -> nn.Module:
    """With statistics of batch norms and biases that are not those of a new one."""
    generator = torch.Generator().manual_seed(0)
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand(tensor.shape, generator=generator) + (0.5 if "var" in name else 0.0))
    return model.eval()


@pytest.mark.parametrize("case", ZOO, ids=lambda case: f"{case.rule}, {case.name}")
def test_the_code_of_every_fault_runs_on_its_model(case: Planted) -> None:
    evidence = case.evidence()
    specs = [entry.spec for entry in evidence.capture.inputs]
    inputs = tuple(made(spec.shape, getattr(torch, spec.dtype)) for spec in specs)
    for advice in case.in_fault():
        check_code(advice, getattr(evidence.model, "_model", None), inputs)


def made(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 2, shape, generator=generator).to(dtype)


def linear_bn() -> nn.Module:
    return flow_models.LinearNorm(nn.BatchNorm1d(64))


def two_convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4))


FOLDED: list[tuple[str, Callable[[], nn.Module], tuple[int, ...], int]] = [
    ("conv-bn-fusion", lambda: faulty_models.ConvNet(nn.BatchNorm2d), (2, 3, 32, 32), 1),
    ("conv-bn-fusion", flow_models.TwoConvolutions, (2, 3, 32, 32), 1),
    ("conv-bn-fusion", two_convolutions, (1, 3, 8, 8), 2),
    ("conv-bn-fusion", lambda: nn.Sequential(nn.ConvTranspose2d(3, 4, 3), nn.BatchNorm2d(4)), (1, 3, 8, 8), 1),
    ("linear-bn-fusion", linear_bn, (2, 64, 64), 1),
    ("linear-bn-fusion", lambda: nn.Sequential(nn.Linear(16, 8, bias=False), nn.BatchNorm1d(8)), (32, 16), 1),
    ("norm-linear-fusion", lambda: flow_models.NormLinear(nn.Sigmoid()), (256, 64), 0),
    ("norm-linear-fusion", lambda: nn.Sequential(nn.BatchNorm1d(64), nn.Linear(64, 8, bias=False)), (256, 64), 1),
    ("norm-linear-fusion", lambda: flow_models.NormConvolution(0), (2, 3, 32, 32), 1),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "build", "shape", "folded"), FOLDED)
def test_folded_norms_are_gone_and_the_outputs_are_the_same(
    rule: str, build: Callable[[], nn.Module], shape: tuple[int, ...], folded: int
) -> None:
    model = shaken(build())
    found = [advice for advice in advise(seen(model, *shape)) if advice.rule == rule]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))

    changed = pasted(model, "\n".join(advice.code or "" for advice in found))

    assert sum(isinstance(module, nn.Identity) for module in changed.modules()) == folded
    with torch.no_grad():
        torch.testing.assert_close(changed(x), model(x), rtol=1e-4, atol=1e-5)


def test_a_norm_with_an_activation_inside_keeps_that() -> None:
    class BatchNormAct2d(nn.BatchNorm2d):
        def __init__(self, channels: int) -> None:
            super().__init__(channels)
            self.act = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.act(super().forward(x))
            return made

    model = shaken(nn.Sequential(nn.Conv2d(3, 4, 3), BatchNormAct2d(4)))
    x = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))

    changed = pasted(model, said(seen(model, *x.shape), "conv-bn-fusion").code)

    assert isinstance(changed.get_submodule("1"), nn.ReLU)
    torch.testing.assert_close(changed(x), model(x), rtol=1e-4, atol=1e-5)


def test_a_parametrization_is_computed_once() -> None:
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(64, 64))).eval()
    x = torch.randn(1, 64, generator=torch.Generator().manual_seed(0))
    before = model(x)

    # Not on a copy: torch takes the parametrization from the class, which copies share.
    exec(said(seen(model, 1, 64), "recomputed-weight").code or "", {"torch": torch, "model": model})

    assert dict(model.named_parameters()).keys() == {"0.weight", "0.bias"}
    torch.testing.assert_close(model(x), before)


def test_a_cast_weight_is_kept_in_the_type_it_is_used_in() -> None:
    model = faulty_models.CastWeight(torch.float16)

    changed = pasted(model, said(seen(model, inputs=torch.zeros(2, 64, 64)), "weight-cast").code)

    assert changed.get_parameter("weight").dtype == torch.float32


def test_an_idle_module_is_taken_out() -> None:
    model = faulty_models.Head("module").eval()

    changed = pasted(model, said(seen(model, 4, 8), "unused-parameters").code)

    assert isinstance(changed.get_submodule("aux"), nn.Identity)
    assert changed(torch.ones(4, 8)).equal(model(torch.ones(4, 8)))


def test_equal_weights_become_one() -> None:
    changed = pasted(zoo_weights.Words("copied"), said(zoo_weights.words("copied"), "tied-weights").code)

    assert changed.get_parameter("head.weight") is changed.get_parameter("table.weight")


def test_a_layer_of_low_rank_becomes_two() -> None:
    model = zoo_weights.layers(zoo_weights.thin)
    advice = said(zoo_weights.spectra(zoo_weights.thin), "low-rank")
    x = torch.randn(4, zoo_weights.SIDE, generator=torch.Generator().manual_seed(0))

    changed = pasted(model, advice.code)

    assert len(list(changed.parameters())) == len(list(model.parameters())) + len(advice.evidence["places"])
    assert (changed(x) - model(x)).norm() < 0.02 * model(x).norm()


def test_the_smallest_weights_are_set_to_zero_in_every_place() -> None:
    advice = said(zoo_weights.few(zoo_weights.sparse), "unstructured-pruning")
    changed = pasted(zoo_weights.layers(zoo_weights.sparse), advice.code)

    pruned = [name for name, _ in changed.named_buffers() if name.endswith("weight_mask")]
    assert {name.removesuffix("_mask") for name in pruned} == places(advice) & {"1.weight", "2.weight"} != set()


def test_optimizers_step_while_gradients_arrive() -> None:
    model = zoo_memory.Blocks(width=8)
    code = said(zoo_memory.large(), "gradient-memory").code
    changed = pasted(model, code)

    changed(torch.ones(2, 8)).sum().backward()

    assert all(parameter.grad is None for parameter in changed.parameters())
    assert not torch.equal(next(changed.parameters()), next(model.parameters()))


def test_the_narrower_type_is_taken_where_nothing_is_lost() -> None:
    code = said(zoo_weights.saved(zoo_weights.rounded), "narrower-type").code
    model = nn.Module()
    model.a, model.b = (nn.Parameter(torch.tensor([value])) for value in (0.5, 0.1))
    scope: dict[str, Any] = {"torch": torch, "model": model}

    exec(code or "", scope)

    assert {name: tensor.dtype for name, tensor in scope["state"].items()} == {"a": torch.bfloat16, "b": torch.float32}


def test_a_name_with_quotes_does_not_break_the_code() -> None:
    model = shaken(nn.Sequential())
    model.add_module("it's", nn.Conv2d(3, 4, 3))
    model.add_module('"b"', nn.BatchNorm2d(4))

    changed = pasted(model.eval(), said(seen(model, 1, 3, 8, 8), "conv-bn-fusion").code)

    assert isinstance(changed.get_submodule('"b"'), nn.Identity)


def test_the_code_of_places_counts_each_edit_once() -> None:
    def edit(start: int) -> SourceEdit:
        return SourceEdit((FileEdit("a.py", b"one two three", (Span(start, start + 3, b"new"),)),))

    whole, one, other = Patch("model.to(x)"), edit(0), edit(4)
    named = Patch("f(path)", ("path",), (("a",),))

    assert "places" not in shown(merged_changes([whole, whole, None, None]))  # it changes the whole model
    assert "places" not in shown(merged_changes([one, one, one]))
    assert "# covers 1 of 2 places" in shown(merged_changes([one, one, None]))
    assert "# covers 2 of 3 places" in shown(merged_changes([one, other, one, None]))
    assert "# covers 1 of 3 places" in shown(merged_changes([named, named, None, None]))
    left = merged_changes([one, one, None], ["blocks.3"])
    assert "# covers 1 of 2 places; the others, such as blocks.3, are changed in their source" in shown(left)


def shown(change: Patch | SourceEdit | None) -> str:
    assert change is not None
    return change.text()


class NamedArguments(nn.Module):
    """Calls of torch with `input=`, and by a longer name of the module."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.clone(input=self.layer(x))
        y = torch.nn.functional.dropout(input=y, p=0.3)
        y = nn.functional.softmax(input=y, dim=-1)
        return nn.functional.softmax(y, -1)


def test_calls_with_named_arguments_are_edited_as_others() -> None:
    model = NamedArguments().eval()
    found = {advice.rule: advice for advice in advise(seen(model, 4, 32), all_advice=True)}

    for rule in ("double-softmax", "dropout-in-evaluation", "needless-copy"):
        check_code(found[rule], model, (torch.randn(4, 32),))
    assert "-        y = nn.functional.softmax(input=y, dim=-1)" in (found["double-softmax"].code or "")
    assert "+        y = self.layer(x)" in (found["needless-copy"].code or "")


class SharedLine(nn.Module):
    """One line that two modules run."""

    def __init__(self, *inside: nn.Module) -> None:
        super().__init__()
        self.layer, self.inside = nn.Linear(16, 16), nn.Sequential(*inside)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.dropout(self.layer(x), 0.2)
        x = x.clone()
        return self.inside(x) * 2


def test_a_line_that_several_modules_run_is_edited_once() -> None:
    model = SharedLine(SharedLine(), SharedLine()).eval()
    found = {advice.rule: advice for advice in advise(seen(model, 4, 16), all_advice=True)}

    check_code(found["dropout-in-evaluation"], model, (torch.randn(4, 16),))
    assert (found["dropout-in-evaluation"].code or "").count("training=self.training") == 1
    # Without the copy nothing is left of its line.
    assert (found["needless-copy"].code or "").splitlines()[-1] == "-        x = x.clone()"


SCRIPTED = """
import torch
class Net(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(x, -1)
        return torch.softmax(y, -1) * 2
"""


def test_a_file_that_only_a_script_names_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "named_by_script.py").write_text(SCRIPTED)
    model = torch.jit.script(importlib.import_module("named_by_script").Net())
    torch.jit.save(model, tmp_path / "model.pt")

    def code() -> str | None:
        found = torchgauge.analyze(tmp_path / "model.pt", input_size=(4, 32))
        row = next(row for row in found.advice if row["rule"] == "double-softmax")
        assert row["where"]["source"] == "named_by_script.py:6"
        return row["code"]

    assert "-        y = torch.softmax(x, -1)" in (code() or "")  # this process has imported it
    monkeypatch.delitem(sys.modules, "named_by_script")
    assert code() is None


LAYER = """
class Layer(nn.Module):
    def forward(self, x):
        scale = torch.arange(32.0).cos()
        x = x.clone()
        return F.dropout(x, 0.1) * scale
"""


def test_a_file_is_parsed_as_often_for_many_layers_as_for_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "many_layers.py").write_text(
        "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n" + LAYER
    )
    layer = importlib.import_module("many_layers").Layer
    parse = ast.parse
    parsed: list[bool] = []

    def counted(text: Any, *args: Any, **kwargs: Any) -> ast.AST:
        parsed.append("class Layer" in str(text))  # imports parse too
        return parse(text, *args, **kwargs)

    monkeypatch.setattr(ast, "parse", counted)
    counts = []
    for depth in (4, 24):
        parsed.clear()
        parsed_file.cache_clear()  # the files of earlier analyses
        found = torchgauge.analyze(nn.Sequential(*(layer() for _ in range(depth))).eval(), input_size=(4, 32))
        assert "dropout-in-evaluation" in {row["rule"] for row in found.advice}
        counts.append(sum(parsed))
    assert counts[0] == counts[1] > 0


@pytest.mark.skipif(shutil.which("patch") is None, reason="the patch program")
def test_patch_applies_the_diff_of_a_file_with_carriage_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    text = (
        "import torch\nfrom torch import nn\n\n\nclass Block(nn.Module):\n    def forward(self, q, k, v):\n"
        "        scores = q @ k.transpose(-2, -1) / 4\n        return scores.softmax(-1) @ v\n"
    )
    file = tmp_path / "carriage_returns.py"
    file.write_bytes(text.replace("\n", "\r\n").encode())
    block = importlib.import_module("carriage_returns").Block().eval()

    found = torchgauge.analyze(block, inputs=tuple(torch.randn(8, 8, 128, 16) for _ in range(3))).advice[0]
    assert found["code_kind"] == "edit"
    subprocess.run(["patch", file.name], input=str(found["code"]).encode(), cwd=tmp_path, check=True)

    after = file.read_bytes()
    assert b"scaled_dot_product_attention" in after
    assert after.count(b"\n") == after.count(b"\r\n")


@pytest.mark.skipif(shutil.which("patch") is None, reason="the patch program")
@pytest.mark.parametrize("end", ["\n", ""])
def test_patch_applies_the_diff_of_a_last_line(end: str, tmp_path: Path) -> None:
    file = tmp_path / "last_line.py"
    file.write_text(f"def f(x):\n    return x.clone(){end}")
    edit = Source(file.name, file.read_text()).edit([Span(22, 30, b"")])
    assert edit is not None

    subprocess.run(["patch", file.name], input=edit.text().encode(), cwd=tmp_path, check=True)

    assert file.read_text() == f"def f(x):\n    return x{end}"


def test_the_report_of_a_diff_has_no_empty_line() -> None:
    model = NamedArguments().eval()
    found = torchgauge.analyze(model, inputs=torch.randn(4, 32), all_advice=True, progress=False)
    edits = [row["code"] for row in found.advice if row["code_kind"] == "edit"]
    advice = str(found).partition("\nAdvice\n")[2]

    assert edits
    assert all(code.endswith("\n") and not code.endswith("\n\n") for code in edits)
    assert "\n\n\n" not in advice
    for number in range(2, len(edits) + 1):  # the lines of one follow those of the one before
        assert f"\n\n{number}. " not in advice


class TwoNames(nn.Module):
    """Layers that are attributes and members of the container that forward calls, whichever is registered first."""

    def __init__(self) -> None:
        super().__init__()
        self.bn1, self.bn2, self.second = nn.BatchNorm2d(32), nn.BatchNorm2d(32), nn.Conv2d(32, 32, 1)
        self.trunk = nn.Sequential(nn.Conv2d(32, 32, 1), self.bn1, nn.ReLU(), self.second, self.bn2)
        for norm in (self.bn1, self.bn2):
            nn.init.uniform_(norm.weight, 0.5, 2)
            nn.init.normal_(norm.get_buffer("running_mean"))

    def forward(self, a: Tensor) -> Tensor:
        return self.trunk(a)


def test_code_replaces_a_module_under_all_its_names() -> None:
    model, given = TwoNames().eval(), torch.randn(4, 32, 16, 16)
    rows = torchgauge.analyze(model, inputs=(given,), all_advice=True).advice
    (code,) = [row["code"] for row in rows if row["rule"] == "conv-bn-fusion"]
    before = model(given)
    exec(code, {"model": model, "torch": torch})

    torch.testing.assert_close(model(given), before, rtol=1e-4, atol=1e-4)
    assert not [part for part in model.modules() if isinstance(part, nn.BatchNorm2d)]


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_a_weight_norm_whose_parts_forward_writes_stays() -> None:
    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.masked, self.plain = (nn.utils.weight_norm(nn.Conv2d(32, 32, 3, padding=1)) for _ in range(2))

        def forward(self, a: Tensor) -> Tensor:
            self.masked.get_parameter("weight_v").data[..., -1, 2:].zero_()
            return self.plain(self.masked(a))

    rows = torchgauge.analyze(Causal().eval(), inputs=(torch.randn(1, 32, 16, 16),), all_advice=True).advice
    (code,) = [row["code"] for row in rows if row["rule"] == "recomputed-weight"]
    assert "'plain'" in code
    assert "'masked'" not in code


def test_places_without_code_are_counted_by_their_line() -> None:
    """An edit of a line is for each place that runs it; places of another line, which has no code, are one more."""
    edit = SourceEdit((FileEdit("a.py", b"one\ntwo\nthree\n", (Span(4, 7, b"new"),)),))
    lines = {1: "a.py:2", 2: "a.py:2", 3: "a.py:3", 4: "a.py:3"}

    def place(op: int, change: SourceEdit | None) -> Advice:
        gain = Gain("time_s", 0.1, 0.2, "fewer ops", frozenset({op}))
        return Advice("r", Where("", (op,)), {}, "do it", change, gain, "", "high")

    (both,) = merged([place(1, edit), place(2, None)], lines.get)
    (some,) = merged([place(1, edit), place(2, None), place(3, None), place(4, None)], lines.get)

    assert "covers" not in shown(both.change)
    assert "# covers 1 of 2 places" in shown(some.change)


@pytest.mark.parametrize(
    ("decorator", "is_kept"),
    [("@lru_cache(maxsize=None)", True), ("@functools.cache", True), ("@torch.no_grad()", False), ("", False)],
)
def test_what_a_function_caches_is_kept(decorator: str, is_kept: bool) -> None:
    text = f"{decorator}\ndef grid(size):\n    rows = torch.arange(size)\n    return rows[:, None] + rows\n"
    assert Source("grid.py", text).is_kept(3) is is_kept


def test_a_form_feed_does_not_end_a_line() -> None:
    source = Source("model.py", "a = 1\n\f\nb = 2  # two\n")
    assert [source.line_text(line) for line in range(5)] == [None, "a = 1", None, "b = 2", None]
