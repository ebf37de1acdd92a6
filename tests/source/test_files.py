"""Files and folders as targets: found by content, nothing executed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

import torchgauge as tg
from torchgauge.errors import TargetError, UnpicklingWarning, UsageError
from torchgauge.source import resolve

CODE = """
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(3, 8), nn.LayerNorm(8), nn.Linear(8, 2)

    def forward(self, x):
        return self.outer(self.norm(self.inner(x)))

class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(3, 9), nn.LayerNorm(9), nn.Linear(9, 2)
"""
PARAMS = 3 * 8 + 8 + 8 + 8 + 8 * 2 + 2


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(3, 8), nn.LayerNorm(8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> Any:
        return self.outer(self.norm(self.inner(x)))


@pytest.fixture
def code(tmp_path: Path) -> str:
    (tmp_path / "nets.py").write_text(CODE)
    return f"{tmp_path / 'nets.py'}:Net"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "state.pt"
    torch.save(Net().state_dict(), path)
    return path


def tiny_llama() -> Any:
    config = transformers.LlamaConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, vocab_size=333)  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def test_a_state_dict_without_code_gives_a_tree_of_names(state: Path) -> None:
    a = tg.analyze(str(state))
    assert (a.capture.target.kind, a.capture.target.format) == ("checkpoint", "torch")
    assert a.totals.params == PARAMS
    assert a.totals.stored_elements == a.totals.logical_params == PARAMS
    assert a.totals.stored_bytes == 4 * PARAMS
    assert a.totals.macs is None
    assert [(row.path, row.type, row.params) for row in a.modules] == [
        ("", "", PARAMS),
        ("inner", "", 32),
        ("norm", "", 16),
        ("outer", "", 18),
    ]


def test_the_report_of_bare_weights_says_what_is_missing(state: Path) -> None:
    text = str(tg.analyze(str(state)))
    assert "weights only; add --as file.py:Net for FLOPs" in text
    assert "MACs" not in text


def test_a_capture_without_code_survives_a_file(state: Path, tmp_path: Path) -> None:
    a = tg.analyze(str(state))
    a.save(tmp_path / "run.json")
    assert tg.load(tmp_path / "run.json").capture == a.capture


def test_code_joined_with_weights_is_analysed_in_full(state: Path, code: str) -> None:
    a = tg.analyze(state, code=code)
    assert a.totals.macs == 3 * 8 + 8 * 2
    assert a.totals.stored_bytes == 4 * PARAMS
    assert a.capture.target.name == str(state)
    assert a.capture.target.format == f"torch, code: {code}"
    assert a.capture.run.warnings == ()


def test_code_of_another_shape_is_refused(state: Path, code: str) -> None:
    with pytest.raises(
        TargetError, match=r"5 with a different shape:\n  inner\.weight: 8×3 in the file, 9×3 in the code"
    ):
        tg.analyze(str(state), code=code.replace("Net", "Wide"))


def test_code_is_refused_where_the_target_is_code(code: str) -> None:
    with pytest.raises(UsageError, match="this target is code already"):
        resolve(code, code=code)
    with pytest.raises(UsageError, match="this target is code already"):
        resolve(Net(), code=code)


@pytest.mark.parametrize("prefix", ["", "module."])
def test_a_training_checkpoint_keeps_its_optimizer_apart(tmp_path: Path, code: str, prefix: str) -> None:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = {prefix + name: tensor for name, tensor in model.state_dict().items()}
    torch.save({"state_dict": state, "optimizer_states": [optimizer.state_dict()], "epoch": 3}, tmp_path / "last.ckpt")
    a = tg.analyze(str(tmp_path / "last.ckpt"), code=code)
    assert a.totals.macs == 40
    # Two moments for each parameter and a step count for each tensor.
    assert a.totals.optimizer_elements == 2 * PARAMS + 6
    assert {row.role for row in a.weights} == {"parameter", "optimizer"}


def test_safetensors_are_known_by_content(tmp_path: Path) -> None:
    save_file(Net().state_dict(), tmp_path / "weights.bin")
    a = tg.analyze(str(tmp_path / "weights.bin"))
    assert a.capture.target.format == "safetensors"
    assert a.capture.stored is not None
    assert a.capture.stored.imports == ()
    assert a.to_dict()["weights"][0]["file"] == str(tmp_path / "weights.bin")


def test_a_distributed_checkpoint_is_a_folder(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="torch.distributed"):
        save_distributed({"model": Net().state_dict()}, checkpoint_id=tmp_path / "dcp")
    a = tg.analyze(str(tmp_path / "dcp"))
    assert a.capture.target.kind == "folder"
    assert a.totals.params == PARAMS


def test_a_tied_tensor_counts_once_and_is_named(tmp_path: Path) -> None:
    weight = torch.ones(4, 4)
    torch.save({"a.weight": weight, "b.weight": weight}, tmp_path / "tied.pt")
    a = tg.analyze(str(tmp_path / "tied.pt"))
    assert a.totals.params == a.totals.stored_elements == 16
    assert [row.duplicate_of for row in a.weights] == [None, "a.weight"]
    assert [(row.path, row.params) for row in a.modules] == [("", 16), ("a", 16), ("b", 16)]


def test_a_pickled_module_is_described_and_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"model": Net(), "epoch": 1}, tmp_path / "best.pt")
    monkeypatch.setattr(Net, "__setstate__", lambda *_: pytest.fail("the module was unpickled"))
    a = tg.analyze(str(tmp_path / "best.pt"))
    assert [(row.path, row.type) for row in a.modules] == [
        ("", "Net"),
        ("inner", "Linear"),
        ("norm", "LayerNorm"),
        ("outer", "Linear"),
    ]
    assert "unknown" in {row["verdict"] for row in a.to_dict()["pickle"]["imports"]}


def test_a_pickled_module_runs_when_that_is_allowed(tmp_path: Path) -> None:
    torch.save({"model": Net(), "epoch": 1}, tmp_path / "best.pt")
    with pytest.warns(UnpicklingWarning, match=r"which imports and calls:\n(.*\n)*.*unknown: .*Net\(\)"):
        a = tg.analyze(str(tmp_path / "best.pt"), allow_pickle=True, input_size=(1, 3))
    assert a.totals.macs == 40
    assert a.capture.target.format == "torch, unpickled"


def test_a_state_dict_is_not_unpickled_even_when_that_is_allowed(state: Path) -> None:
    assert tg.analyze(str(state), allow_pickle=True).totals.macs is None


def test_scripted_and_exported_files_run(tmp_path: Path) -> None:
    torch.jit.script(Net()).save(str(tmp_path / "net.dat"))
    scripted = tg.analyze(str(tmp_path / "net.dat"))
    assert (scripted.capture.target.kind, scripted.totals.macs) == ("torchscript", 40)
    assert scripted.totals.stored_elements == PARAMS
    torch.export.save(torch.export.export(Net(), (torch.ones(5, 3),)), tmp_path / "net.pt2")
    exported = tg.analyze(str(tmp_path / "net.pt2"))
    assert (exported.capture.target.kind, exported.totals.macs) == ("exported", 5 * 40)
    assert exported.totals.stored_elements == PARAMS


def test_a_hugging_face_folder_joins_config_and_shards(tmp_path: Path) -> None:
    model = tiny_llama().to(torch.bfloat16)
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    a = tg.analyze(str(tmp_path), seq=8)
    assert a.capture.target.kind == "folder"
    assert len(a.capture.target.files) > 3
    assert a.totals.params == a.totals.logical_params == sum(p.numel() for p in model.parameters())
    assert a.totals.param_bytes == a.totals.stored_bytes == 2 * a.totals.params
    assert a.totals.macs > 0
    assert a.architecture.family == "decoder"


def test_a_config_that_needs_code_of_others_leaves_the_weights(tmp_path: Path) -> None:
    save_file(Net().state_dict(), tmp_path / "model.safetensors")
    config = {"model_type": "mine", "auto_map": {"AutoModel": "evil.Net"}, "architectures": ["Net"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')")
    a = tg.analyze(str(tmp_path))
    assert a.totals.macs is None
    assert a.totals.params == PARAMS
    assert "needs custom code, which is never run" in a.capture.run.warnings[0]


def test_weights_of_another_size_than_the_config_are_reported(tmp_path: Path) -> None:
    tiny_llama().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"num_hidden_layers": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (warning,) = tg.analyze(str(tmp_path), seq=8).capture.run.warnings
    assert "parameters, the model of the config has" in warning


def test_weights_of_a_known_architecture_are_analysed_as_inferred(tmp_path: Path) -> None:
    model = tiny_llama()
    torch.save(model.state_dict(), tmp_path / "llama.pt")
    a, live = tg.analyze(str(tmp_path / "llama.pt"), seq=8), tg.analyze(model, seq=8)
    assert a.totals.macs == live.totals.macs
    assert a.capture.target.format == "torch, inferred: hf:LlamaForCausalLM"
    assert "the code is inferred" in a.capture.run.warnings[0]
    assert a.architecture.hyperparameters["assumed"] == ["heads", "head_size", "kv_heads"]


def test_no_code_is_run_to_look_at_hostile_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    canary = tmp_path / "canary"

    class Hostile:
        def __reduce__(self) -> Any:
            return (Path.touch, (canary,))

    torch.save({"a.weight": torch.ones(2, 2), "payload": Hostile()}, tmp_path / "hostile.pt")
    a = tg.analyze(str(tmp_path / "hostile.pt"))
    text = str(a)
    assert not canary.exists()
    assert a.totals.params == 4
    assert "What its pickle would import" in text
    assert "pathlib" in text
