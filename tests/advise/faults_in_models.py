"""Forms of faults inside models of usual kinds, with healthy twins."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.advise.fault_classes import Does, FaultClass, ids, x


def attended(self: Does, h: Tensor, mask: Tensor | None) -> Tensor:
    return F.scaled_dot_product_attention(h, h, h, attn_mask=mask)


class OneHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(64, 8, bias=False) for _ in range(3))

    def forward(self, h: Tensor) -> Tensor:
        scores = self.q(h) @ self.k(h).transpose(1, 2) / 8**0.5
        return scores.masked_fill(torch.ones(32, 32, dtype=torch.bool).triu(1), -1e9).softmax(-1) @ self.v(h)


class ByHandGru(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gates, self.new = nn.Linear(64, 64), nn.Linear(64, 32)

    def forward(self, h: Tensor) -> Tensor:
        state = h.new_zeros(h.shape[0], 32)
        for part in h.unbind(1):
            reset, update = torch.sigmoid(self.gates(torch.cat([part, state], 1))).chunk(2, 1)
            state = update * state + (1 - update) * torch.tanh(self.new(torch.cat([part, reset * state], 1)))
        return state


def gated(self: Any, h: Tensor) -> Tensor:
    weights, chosen = self.gate(h).softmax(-1).topk(2, -1)
    return torch.zeros(h.shape[0], 16).scatter(1, chosen, weights) @ self.table


REPORTED = (
    FaultClass(
        "casts around pointwise ops",
        ("cast-round-pointwise",),
        (
            (
                "an activation",
                Does(
                    lambda self, h: self.b(F.silu(self.a(h).float()).to(h.dtype)),
                    a=nn.Linear(32, 32),
                    b=nn.Linear(32, 8),
                ).bfloat16(),
                (x(64, 32).bfloat16(),),
            ),
            (
                "a residual sum",
                Does(
                    lambda self, h: self.b((self.a(h).float() + h.float()).to(h.dtype)),
                    a=nn.Linear(32, 32),
                    b=nn.Linear(32, 8),
                ).bfloat16(),
                (x(64, 32).bfloat16(),),
            ),
        ),
        (
            (
                "a softmax in float32",
                Does(
                    lambda self, h: self.b(self.a(h).float().softmax(-1).to(h.dtype)),
                    a=nn.Linear(32, 32),
                    b=nn.Linear(32, 8),
                ).bfloat16(),
                (x(64, 32).bfloat16(),),
            ),
            (
                "an angle in float32",
                Does(
                    lambda self, h: (self.a(h).float() * self.angle).to(h.dtype),
                    a=nn.Linear(32, 32).bfloat16(),
                    angle=x(64, 32),
                ),
                (x(64, 32).bfloat16(),),
            ),
        ),
    ),
    FaultClass(
        "masks",
        ("expanded-mask", "causal-mask"),
        (
            (
                "written out for heads and queries",
                Does(
                    lambda self, h, keep: attended(
                        self, h, torch.where(keep[:, None, None].expand(-1, 4, 64, -1), 0.0, -1e9)
                    )
                ),
                (x(2, 4, 64, 16), ids(2, 64) > 1),
            ),
            (
                "a triangle in a buffer",
                Does(
                    lambda self, h: attended(self, h, self.mask[:64, :64]),
                    mask=torch.ones(128, 128, dtype=torch.bool).tril(),
                ),
                (x(2, 4, 64, 16),),
            ),
        ),
        (
            (
                "broadcast",
                Does(lambda self, h, keep: attended(self, h, keep[:, None, None])),
                (x(2, 4, 64, 16), ids(2, 64) > 1),
            ),
            (
                "a band in a buffer",
                Does(
                    lambda self, h: attended(self, h, self.mask[:64, :64]),
                    mask=torch.ones(128, 128, dtype=torch.bool).tril().triu(-8),
                ),
                (x(2, 4, 64, 16),),
            ),
        ),
    ),
    FaultClass(
        "loops",
        ("loop-over-samples", "parallel-linears", "loop-over-steps", "scan-in-python"),
        (
            (
                "one network on four views",
                Does(
                    lambda self, h: self.m(h) + self.m(h.flip(0)) + self.m(h.flip(1)) + self.m(h.flip(0, 1)),
                    m=nn.Linear(16, 16),
                ),
                (x(16, 16),),
            ),
            (
                "experts on slices",
                Does(
                    lambda self, h: torch.stack([expert(h[:, at]) for at, expert in enumerate(self.experts)], 1),
                    experts=nn.ModuleList(nn.Linear(16, 16) for _ in range(8)),
                ),
                (x(4, 8, 16),),
            ),
            (
                "a module for each head",
                Does(
                    lambda self, h: torch.cat([head(h) for head in self.heads], -1),
                    heads=nn.ModuleList(OneHead() for _ in range(6)),
                ),
                (x(2, 32, 64),),
            ),
        ),
        (
            (
                "a GRU of torch",
                Does(lambda self, h: self.gru(h)[0], gru=nn.GRU(32, 32, batch_first=True)),
                (x(2, 24, 32),),
            ),
            (
                "an RNN of torch",
                Does(lambda self, h: self.rnn(h)[0], rnn=nn.RNN(32, 32, batch_first=True)),
                (x(2, 24, 32),),
            ),
            (
                "a layer applied to its own result",
                Does(lambda self, h: self.a(self.a(self.a(self.a(h).tanh()).tanh()).tanh()), a=nn.Linear(16, 16)),
                (x(16, 16),),
            ),
        ),
    ),
    FaultClass(
        "memory",
        ("double-precision", "one-hot-product", "recomputed-constant"),
        (
            (
                "a network in float64 between float32",
                Does(lambda self, h: self.net(h.double()).float(), net=nn.Linear(64, 64).double()),
                (x(32, 64),),
            ),
        ),
        (
            (
                "gates scattered by weight",
                Does(gated, gate=nn.Linear(32, 16), table=nn.Parameter(x(16, 32))),
                (x(64, 32),),
            ),
            ("a bag of embeddings", nn.EmbeddingBag(100, 32), (ids(16, 4, high=100),)),
            (
                "one_hot as a feature",
                Does(lambda self, i: self.a(F.one_hot(i, 8).float().mean(1)), a=nn.Linear(8, 8)),
                (ids(4, 16),),
            ),
        ),
    ),
)
