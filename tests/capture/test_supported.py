"""Types that a processor may lack instructions for."""

from __future__ import annotations

import signal

import pytest
import torch
from torch import Tensor, nn

import torchgauge as tg
from torchgauge.capture import death_text, missing_arithmetic

CPU = torch.device("cpu")


def test_types_that_every_processor_has_are_not_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchgauge.capture.supported._probe", pytest.fail)
    assert missing_arithmetic(torch.float32, CPU) is None
    assert missing_arithmetic(None, CPU) is None
    assert missing_arithmetic(torch.bfloat16, torch.device("cuda", 0)) is None


def test_a_type_without_a_kernel_is_probed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchgauge.capture.supported._PROBED_TYPES", {torch.float8_e5m2})
    found = missing_arithmetic(torch.float8_e5m2, CPU)
    assert found is not None
    assert "float8_e5m2 cannot run on this processor" in found
    assert missing_arithmetic(torch.float8_e5m2, CPU) is found


def test_a_type_that_runs_is_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchgauge.capture.supported._PROBED_TYPES", {torch.float32})
    assert missing_arithmetic(torch.float32, CPU) is None


@pytest.mark.parametrize(
    ("code", "said"), [(-signal.SIGILL, "lacks an instruction"), (-signal.SIGSEGV, "SIGSEGV"), (3, "status 3")]
)
def test_an_exit_status_is_put_into_words(code: int, said: str) -> None:
    assert said in death_text(code)


class Branching(nn.Module):
    """Branches on its data; the linear layer is only safe to run where its type is supported."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4, dtype=torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y if bool(y.sum() > 0) else y + 1


def test_a_model_that_looks_at_its_data_is_not_run_in_a_type_the_processor_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torchgauge.capture.supported._probe", lambda name: f"{name} cannot run on this processor")
    x = torch.ones(1, 4, dtype=torch.bfloat16)

    with pytest.raises(tg.ForwardError, match=r"reads tensor values.*bfloat16 cannot run"):
        tg.analyze(Branching(), inputs=x)
    assert tg.analyze(Branching(), inputs=x.float(), dtype="float32").capture.run.mode == "real"
