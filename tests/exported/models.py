"""Small models to export."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Tied(nn.Module):
    """A shared module, a module list, a buffer of integers, a constant, a dict out."""

    order: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.chain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
        self.norms = nn.ModuleList([nn.LayerNorm(4) for _ in range(2)])
        self.register_buffer("order", torch.tensor([3, 2, 1, 0]))
        self.again = self.chain[0]

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        for norm in self.norms:
            x = norm(x)
        y = self.chain(x[:, self.order])
        return {"y": y * torch.tensor([1.0, 2.0, 3.0, 4.0]), "z": self.again(y)}


class Conditional(nn.Module):
    """Symbolic sizes, a higher-order op, a part without gradients, lists and several results."""

    def __init__(self) -> None:
        super().__init__()
        self.yes = nn.Linear(4, 4)
        self.no = nn.Linear(4, 4)

    def forward(self, x: Tensor, choice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad():
            hidden = self.yes(x)
        hidden = hidden.view(x.shape[0] * 2, 2).view(-1, 4).to(torch.float64).to(torch.float32)
        hidden = torch.cond(choice.sum() > 3, self.yes, lambda h: self.no(self.no(h)), (hidden,))
        values, places = torch.topk(hidden, 2)
        return values, places, hidden.split(1, -1)[0]
