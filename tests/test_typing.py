"""The package's annotations as a user's type checker reads them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "typed_use.py"
# A package without annotations would let this pass.
WRONG_USE = "\n\ntg.analyze(12)\n"


@pytest.mark.slow
def test_a_users_program_passes_mypy_in_strict_mode_without_settings(tmp_path: Path) -> None:
    text = PROGRAM.read_text(encoding="utf-8")
    (tmp_path / "program.py").write_text(text, encoding="utf-8")
    (tmp_path / "wrong.py").write_text(text + WRONG_USE, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", "cache"]
    right, wrong = (
        subprocess.run([*command, name], cwd=tmp_path, capture_output=True, text=True, check=False)
        for name in ("program.py", "wrong.py")
    )
    assert right.returncode == 0, right.stdout
    assert wrong.stdout.count("error:") == 1
    assert 'Argument 1 to "analyze" has incompatible type "int"' in wrong.stdout
