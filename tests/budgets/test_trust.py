"""Code that a pyproject.toml names."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from torchgauge.cli import main

CODE = """
from pathlib import Path
import torch
Path("ran").touch()
class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(4, 2)
"""
TABLE = '[tool.torchgauge.budgets]\nparams = 30\n[tool.torchgauge.budgets."net.py:Net"]\ninput = "1x4"\n'


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with code and a configuration that names it."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(CODE)
    Path("pyproject.toml").write_text(TABLE)
    return tmp_path


def ran(*options: str) -> tuple[int, bool]:
    """The exit status, and whether the code ran."""
    Path("ran").unlink(missing_ok=True)
    status = main(["check", "--no-progress", *options])
    return status, Path("ran").exists()


def test_a_configuration_that_is_only_found_runs_no_code(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ran() == (2, False)
    message = capsys.readouterr().err
    assert "net.py:Net" in message
    assert "--config" in message


@pytest.mark.parametrize("name", ["net.py:Net", "net:Net", "os:getcwd", " net.py:Net"])
def test_code_for_a_plain_file_is_not_run_either(name: str, project: Path) -> None:
    save_file({"weight": torch.ones(2, 4), "bias": torch.ones(2)}, "plain.safetensors")
    Path("pyproject.toml").write_text(f'[tool.torchgauge.budgets."plain.safetensors"]\nparams = 30\nas = "{name}"\n')
    assert ran("plain.safetensors") == (2, False)
    assert ran() == (2, False)
    Path("net.py").write_text(
        CODE.replace('Path("ran").touch()', "")
    )  # code for a file runs in the reader, which may not write
    assert ran("plain.safetensors", "--as", "net.py:Net")[0] == 0, "the command line names code itself"


def test_a_configuration_in_a_parent_folder_is_not_trusted_either(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / ".git").mkdir()
    inner = project / "inner"
    inner.mkdir()
    (project / "net.py").rename(inner / "net.py")
    monkeypatch.chdir(inner)
    assert ran() == (2, False)


@pytest.mark.parametrize("options", [["--config", "pyproject.toml"], ["net.py:Net"], ["--trust-config"]])
def test_code_that_the_user_allows_runs(options: list[str], project: Path) -> None:
    assert ran(*options)[0] == 0


def test_what_runs_is_announced(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", "--config", "pyproject.toml", "--quiet"])
    assert "running net.py:Net, named by pyproject.toml" in capsys.readouterr().err


def test_trust_is_remembered_for_the_code_that_was_named(project: Path) -> None:
    assert ran("--trust-config")[0] == 0
    assert ran()[0] == 0
    Path("other.py").write_text(CODE)
    Path("pyproject.toml").write_text(TABLE + '[tool.torchgauge.budgets."other.py:Net"]\ninput = "1x4"\n')
    assert ran() == (2, False)


@pytest.mark.parametrize("content", ["{", "[]", '{"a": 3}', '"text"'])
def test_a_damaged_record_trusts_nothing(content: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHGAUGE_CACHE", str(project / "cache"))
    (project / "cache").mkdir()
    (project / "cache" / "trusted.json").write_text(content)
    assert ran() == (2, False)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such permissions")
@pytest.mark.parametrize("shared", [".", "pyproject.toml", "net.py"])
def test_code_that_others_may_change_runs_only_if_it_is_named_itself(shared: str, project: Path) -> None:
    (project / shared).chmod(0o777)
    assert ran("--config", "pyproject.toml") == (2, False)
    assert ran("--trust-config") == (2, False)
    assert ran("net.py:Net")[0] == 0


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such permissions")
def test_a_record_that_others_may_change_trusts_nothing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = project / "cache"
    cache.mkdir()
    monkeypatch.setenv("TORCHGAUGE_CACHE", str(cache))
    (cache / "trusted.json").write_text(json.dumps({str(project.resolve() / "pyproject.toml"): ["net.py:Net"]}))
    assert ran()[0] == 0
    cache.chmod(0o777)
    assert ran() == (2, False)


def test_data_of_a_configuration_needs_no_trust(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file({"weight": torch.ones(2, 4)}, "plain.safetensors")
    Path("pyproject.toml").write_text('[tool.torchgauge.budgets."plain.safetensors"]\nparams = 7\n')
    assert ran()[0] == 3
    assert "running" not in capsys.readouterr().err
