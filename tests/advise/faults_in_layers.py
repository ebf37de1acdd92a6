"""Forms of faults inside single layers, with healthy twins."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.advise.fault_classes import Does, FaultClass, ids, x


class RelativeBias(nn.Module):
    """The table of relative positions is indexed in every forward, as in Swin before it kept the result."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(x(127, 4))
        at = torch.arange(64)
        self.where = nn.Buffer(at[:, None] - at[None, :] + 63)
        self.qkv = nn.Linear(32, 96)

    def forward(self, h: Tensor) -> Tensor:
        q, k, v = self.qkv(h).reshape(1, 64, 3, 4, 8).permute(2, 0, 3, 1, 4)
        bias = self.table[self.where.view(-1)].view(64, 64, 4).permute(2, 0, 1).contiguous()
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None])


class Rotary(nn.Module):
    """Angles of the positions, computed in every layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))

    def forward(self, h: Tensor) -> Tensor:
        for layer in self.layers:
            angles = torch.outer(torch.arange(64.0), 1e4 ** -(torch.arange(0, 32, 2) / 32))
            h = layer(h) * torch.cat([angles.cos(), angles.sin()], -1)
        return h


class Convs(nn.Module):
    """Branches over one input, in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Conv2d(8, 4, 1) for _ in range(6))

    def forward(self, h: Tensor) -> Tensor:
        outs = []
        for branch in self.branches:
            outs.append(branch(h))
        return torch.cat(outs, 1)


class HeadsOfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(x(8, 64, 24))

    def forward(self, h: Tensor) -> Tensor:
        out = []
        for head in range(8):
            q, k, v = (h @ self.w[head]).chunk(3, -1)
            out.append(torch.softmax(q @ k.mT, -1) @ v)
        return torch.cat(out, -1)


def gru_steps(self: Any, h: Tensor) -> Tensor:
    state = torch.zeros(h.shape[1], 16)
    for t in range(h.shape[0]):
        z = torch.sigmoid(self.zi(h[t]) + self.zh(state))
        n = torch.tanh(self.ni(h[t]) + self.nh(state * z))
        state = (1 - z) * n + z * state
    return state


class Scripted(nn.Module):
    """Left on in a script."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(32, 32)

    def forward(self, h: Tensor) -> Tensor:
        return F.dropout(self.fc(h), p=0.2)


def exported(model: nn.Module, *inputs: Tensor) -> Any:
    return torch.export.export(model.eval(), inputs)


UNSEEN = (
    FaultClass(
        "work repeated",
        ("recomputed-constant", "recomputed-weight", "repeated-work"),
        (
            ("a table of relative positions", RelativeBias(), (x(1, 64, 32),)),
            ("rotary angles per layer", Rotary(), (x(1, 64, 32),)),
            (
                "norms of prototypes",
                Does(lambda self, h: h @ F.normalize(self.prototypes, dim=-1).T, prototypes=nn.Parameter(x(256, 64))),
                (x(4, 64),),
            ),
        ),
        (("an attention", nn.MultiheadAttention(32, 4, batch_first=True), (x(1, 64, 32),) * 3),),
    ),
    FaultClass(
        "a loop where one op exists",
        ("loop-over-steps", "loop-over-samples", "parallel-linears", "dense-experts"),
        (
            ("branches of convolutions", Convs(), (x(1, 8, 16, 16),)),
            ("heads from one parameter", HeadsOfAttention(), (x(1, 16, 64),)),
            (
                "a gated unit by hand",
                Does(gru_steps, zi=nn.Linear(8, 16), zh=nn.Linear(16, 16), ni=nn.Linear(8, 16), nh=nn.Linear(16, 16)),
                (x(24, 4, 8),),
            ),
        ),
        (
            (
                "a residual network",
                nn.Sequential(*(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()) for _ in range(6))),
                (x(1, 8, 16, 16),),
            ),
        ),
    ),
    FaultClass(
        "the host in the way",
        ("host-wait",),
        (
            (
                "a length that is asked for",
                Does(lambda self, h, n: self.fc(h[:, : int(n.max())]), fc=nn.Linear(32, 32)),
                (x(2, 8, 32), ids(2)),
            ),
            (
                "a mask that selects",
                Does(lambda self, h, m: self.fc(h[m > 3]), fc=nn.Linear(32, 32)),
                (x(8, 32), ids(8)),
            ),
            (
                "a list of numbers",
                Does(lambda self, h, n: self.fc(h) * sum(n.tolist()), fc=nn.Linear(32, 32)),
                (x(8, 32), ids(8)),
            ),
        ),
        (("a static slice", Does(lambda self, h: self.fc(h[:, :4]), fc=nn.Linear(32, 32)), (x(2, 8, 32),)),),
    ),
    FaultClass(
        "memory that grows or is held",
        ("grown-by-cat", "double-precision", "one-hot-product", "causal-mask"),
        (
            (
                "a mask from positions",
                Does(
                    lambda self, h: F.scaled_dot_product_attention(
                        h, h, h, attn_mask=torch.arange(256)[:, None] >= torch.arange(256)[None, :]
                    )
                ),
                (x(1, 4, 256, 32),),
            ),
            (
                "scattered ones",
                Does(
                    lambda self, i: torch.zeros(64, 512).scatter_(1, i[:, None], 1.0) @ self.table,
                    table=nn.Parameter(x(512, 32)),
                ),
                (ids(64, high=512),),
            ),
            (
                "a constant of numpy",
                Does(lambda self, h: self.fc(h.to(torch.float64).div(3).sqrt().float()), fc=nn.Linear(32, 32)),
                (x(64, 32).abs(),),
            ),
        ),
        (("halves joined", Does(lambda self, h: torch.cat([h, self.fc(h)], -1), fc=nn.Linear(32, 32)), (x(8, 32),)),),
    ),
    FaultClass(
        "layers that fight each other",
        ("affine-after-layer", "resample-before-pointwise", "repeated-keys", "cancelling-permutes", "bias-before-norm"),
        (
            (
                "a scale behind a convolution",
                Does(
                    lambda self, h: self.conv(h).mul(self.s).add(self.t),
                    conv=nn.Conv2d(3, 16, 3),
                    s=x(16, 1, 1),
                    t=x(16, 1, 1),
                ),
                (x(1, 3, 32, 32),),
            ),
            (
                "a pyramid that is enlarged first",
                Does(
                    lambda self, h, g: self.lateral(h) + self.top(F.interpolate(g, scale_factor=2.0)),
                    lateral=nn.Conv2d(16, 32, 1),
                    top=nn.Conv2d(64, 32, 1),
                ),
                (x(1, 16, 32, 32), x(1, 64, 16, 16)),
            ),
            (
                "a linear with bias before a batch norm",
                nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64)),
                (x(32, 32),),
            ),
        ),
        (
            (
                "a norm behind an activation",
                nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.InstanceNorm2d(8)),
                (x(1, 3, 16, 16),),
            ),
        ),
    ),
    FaultClass(
        "likely bugs",
        ("double-softmax", "dropout-in-evaluation", "batch-statistics-in-evaluation", "state-written-in-evaluation"),
        (
            ("dropout in a script", torch.jit.script(Scripted().eval()), (x(8, 32),)),
            ("dropout in an export", exported(Scripted(), x(8, 32)), (x(8, 32),)),
            (
                "probabilities into a loss",
                Does(
                    lambda self, h, y: F.nll_loss(F.log_softmax(F.softmax(self.fc(h), 1), 1), y), fc=nn.Linear(32, 10)
                ),
                (x(8, 32), ids(8)),
            ),
        ),
        (
            (
                "a gate of two softmaxes",
                Does(
                    lambda self, h: torch.softmax(self.a(h), -1) * torch.softmax(self.b(h), -1),
                    a=nn.Linear(32, 8),
                    b=nn.Linear(32, 8),
                ),
                (x(8, 32),),
            ),
        ),
        kind="bug",
    ),
)
