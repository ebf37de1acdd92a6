"""The first capture of a process, in which torch imports what it needs for an op when the op is first called."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import torch, torchgauge
from torch import nn

class Cell(nn.Module):
    def forward(self, x, state):
        parts = torch.split(torch.cat([x, state] * 4, 1), 8, 1)
        gates = [torch.sigmoid(part) for part in parts]
        return gates[0] * torch.tanh(gates[1])

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = Cell()
    def forward(self, x):
        state = torch.zeros(x[:, 0].shape)
        for t in range(4):
            state = self.cell(x[:, t], state)
        return state

def live():
    found = torchgauge.analyze(Net().eval(), input_size=(2, 4, 8, 64, 64), advice=False)
    return [op.live_bytes for op in found.ops]

assert live() == live()
"""


def test_imports_on_the_way_keep_no_tensors() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
