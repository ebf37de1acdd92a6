"""Forms of faults: one part after the other, the host in the way, causal masks, state and modes; with healthy twins."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.advise.fault_classes import Does, FaultClass, ids, x

# --- one part after the other


def blurred_one_by_one(self: Any, images: Tensor, widths: Tensor) -> Tensor:
    """A kernel that is made for each sample."""
    out = []
    for n in range(images.shape[0]):
        kernel = torch.softmax(-self.at.square() / widths[n], 0)
        out.append(F.conv1d(images[n : n + 1], kernel.view(1, 1, -1).expand(8, 1, -1), groups=8))
    return torch.cat(out)


def gram_by_sample(self: Any, h: Tensor) -> Tensor:
    return torch.stack([each.flatten(1) @ each.flatten(1).T for each in self.conv(h).unbind(0)])


def nearest_by_cloud(self: Any, points: Tensor) -> Tensor:
    found = [torch.cdist(cloud, self.anchors).topk(4, largest=False).values for cloud in points]
    return self.fc(torch.stack(found))


def spectra_by_channel(self: Any, h: Tensor) -> Tensor:
    return torch.stack([torch.fft.rfft(h[:, channel]).abs().log1p() for channel in range(h.shape[1])], 1)


def attention_head_by_head(self: Any, h: Tensor) -> Tensor:
    q, k, v = self.qkv(h).chunk(3, -1)
    size, out = q.shape[-1] // 6, []
    for head in range(6):
        own = slice(head * size, (head + 1) * size)
        out.append(F.scaled_dot_product_attention(q[..., own], k[..., own], v[..., own]))
    return torch.cat(out, -1)


def heads_of_four_dimensions(self: Any, h: Tensor) -> Tensor:
    q, k, v = (layer(h).view(2, 32, 4, 16) for layer in (self.q, self.k, self.v))
    turned = [each.transpose(1, 2) for each in (q, k, v)]
    out = [F.scaled_dot_product_attention(*(each[:, n : n + 1] for each in turned)) for n in range(4)]
    return torch.cat(out, 1)


def all_heads_at_once(self: Any, h: Tensor) -> Tensor:
    q, k, v = self.qkv(h).unflatten(-1, (3, 6, -1)).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def running_mean(self: Any, h: Tensor) -> Tensor:
    """Each step needs the one before: no loop over parts."""
    state, out = torch.zeros(h.shape[0], h.shape[2]), []
    for step in range(h.shape[1]):
        state = 0.9 * state + 0.1 * h[:, step].tanh()
        out.append(state)
    return self.fc(torch.stack(out, 1))


def routed(self: Any, h: Tensor) -> Tensor:
    weight, chosen = self.router(h).softmax(-1).topk(2)
    out = torch.zeros_like(h)
    for n, expert in enumerate(self.experts):
        row, slot = torch.where(chosen == n)
        out.index_add_(0, row, expert(h[row]) * weight[row, slot, None])
    return out


def residual_parts(self: Any, h: Tensor) -> Tensor:
    """As in Res2Net: every part has its layer, and needs the part before."""
    parts = h.chunk(6, 1)
    out = [parts[0]]
    for part, conv in zip(parts[1:], self.convs, strict=True):
        out.append(conv(part + out[-1]))
    return torch.cat(out, 1)


# --- the host in the way


def printed(self: Any, h: Tensor) -> Tensor:
    made = self.fc(h)
    print("made", made)
    return F.relu(made)


def in_a_text(self: Any, h: Tensor) -> Tensor:
    made = self.fc(h)
    self.note = f"first row: {made[0]}"
    return F.relu(made)


def mean_as_text(self: Any, h: Tensor) -> Tensor:
    made = self.fc(h)
    self.note = "mean " + str(made.mean())
    return F.relu(made)


def shape_printed(self: Any, h: Tensor) -> Tensor:
    self.note = f"{h.shape} {h.dtype}"
    return F.relu(self.fc(h))


# --- causal masks that torch's layers are given


class CausalStack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(48, 4, 96, batch_first=True)
        self.stack = nn.TransformerEncoder(layer, 2)

    def forward(self, h: Tensor) -> Tensor:
        return self.stack(h, mask=nn.Transformer.generate_square_subsequent_mask(h.shape[1]))


class CausalAttention(nn.Module):
    def __init__(self, is_causal: bool = True) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(48, 4, batch_first=True)
        lower = torch.ones(128, 128, dtype=torch.bool).tril()
        self.hidden = nn.Buffer(~lower if is_causal else ~(lower & lower.flip(0)))

    def forward(self, h: Tensor) -> Tensor:
        return self.attend(h, h, h, attn_mask=self.hidden, need_weights=False)[0]


# --- state and modes


class KeepsFeatures(nn.Module):
    def __init__(self, kept: Any) -> None:
        super().__init__()
        self.fc = nn.Linear(32, 32)
        self.kept = kept

    def forward(self, h: Tensor) -> Tensor:
        made = self.fc(h)
        self.kept.append(made)
        return made


class NumberedFeatures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.by_call = nn.Linear(32, 32), dict[int, Tensor]()

    def forward(self, h: Tensor) -> Tensor:
        self.by_call[len(self.by_call)] = self.fc(h)
        return h


class Memory(nn.Module):
    """A bank of vectors that every call makes longer; `limit` keeps the last so many."""

    bank: Tensor

    def __init__(self, limit: int | None) -> None:
        super().__init__()
        self.fc, self.limit = nn.Linear(32, 32), limit
        self.register_buffer("bank", torch.zeros(4, 32))

    def forward(self, h: Tensor) -> Tensor:
        made = self.fc(h)
        self.bank = torch.cat([self.bank, made])
        return made @ self.bank.T


class BoundedMemory(Memory):
    def forward(self, h: Tensor) -> Tensor:
        made = self.fc(h)
        self.bank = torch.cat([self.bank, made])[-self.limit :] if self.limit else made
        return made @ self.bank.T


class ClearsFeatures(KeepsFeatures):
    def forward(self, h: Tensor) -> Tensor:
        self.kept.clear()
        return super().forward(h)


class StaysInTraining(nn.Module):
    """Its `train` puts the norms back into training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(4, 8, 3), nn.BatchNorm1d(8), nn.GELU())

    def train(self, mode: bool = True) -> StaysInTraining:
        super().train(mode)
        for part in self.body:
            if isinstance(part, nn.BatchNorm1d):
                part.train()
        return self

    def forward(self, h: Tensor) -> Tensor:
        return self.body(h)


class NeverEvaluated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.drop = nn.Linear(16, 16), nn.Dropout(0.3)

    def eval(self) -> NeverEvaluated:
        return self

    def forward(self, h: Tensor) -> Tensor:
        return self.drop(self.fc(h))


class FreezesNorms(StaysInTraining):
    """Healthy: as detectors keep the statistics of a pretrained backbone."""

    def train(self, mode: bool = True) -> FreezesNorms:
        nn.Module.train(self, mode)
        self.body[1].eval()
        return self


LATER = (
    FaultClass(
        "one part after the other",
        ("loop-over-samples",),
        (
            ("kernels by sample", Does(blurred_one_by_one, at=torch.arange(-3.0, 4.0)), (x(5, 8, 256), x(5).abs() + 1)),
            ("products by sample", Does(gram_by_sample, conv=nn.Conv2d(3, 8, 3)), (x(6, 3, 16, 16),)),
            ("search by sample", Does(nearest_by_cloud, anchors=x(32, 3), fc=nn.Linear(4, 8)), (x(5, 64, 3),)),
            ("transforms by channel", Does(spectra_by_channel), (x(2, 8, 256),)),
            ("heads of chunks", Does(attention_head_by_head, qkv=nn.Linear(48, 144)), (x(2, 32, 48),)),
            (
                "heads of four dimensions",
                Does(heads_of_four_dimensions, q=nn.Linear(64, 64), k=nn.Linear(64, 64), v=nn.Linear(64, 64)),
                (x(2, 32, 64),),
            ),
        ),
        (
            ("heads at once", Does(all_heads_at_once, qkv=nn.Linear(48, 144)), (x(2, 32, 48),)),
            ("a running mean", Does(running_mean, fc=nn.Linear(16, 16)), (x(2, 12, 16),)),
            (
                "parts in a row",
                Does(residual_parts, convs=nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(5))),
                (x(1, 24, 16, 16),),
            ),
        ),
    ),
    FaultClass(
        "routed experts have no batched form",
        ("parallel-linears", "loop-over-samples"),
        (),
        (
            (
                "rows by expert",
                Does(routed, router=nn.Linear(32, 6), experts=nn.ModuleList(nn.Linear(32, 32) for _ in range(6))),
                (x(96, 32),),
            ),
        ),
    ),
    FaultClass(
        "tensors made into text",
        ("host-wait",),
        (
            ("print", Does(printed, fc=nn.Linear(32, 32)), (x(8, 32),)),
            ("a formatted row", Does(in_a_text, fc=nn.Linear(32, 32)), (x(8, 32),)),
            ("the text of a mean", Does(mean_as_text, fc=nn.Linear(32, 32)), (x(8, 32),)),
        ),
        (("a shape", Does(shape_printed, fc=nn.Linear(32, 32)), (x(8, 32),)),),
    ),
    FaultClass(
        "softmax of scaled probabilities",
        ("double-softmax",),
        (
            (
                "a temperature between",
                Does(lambda self, h: F.softmax(F.softmax(self.fc(h), -1) / 0.07, -1), fc=nn.Linear(32, 8)),
                (x(8, 32),),
            ),
            (
                "a learned scale, into a loss",
                Does(
                    lambda self, h, y: F.cross_entropy(self.fc(h).softmax(1) * self.scale, y),
                    fc=nn.Linear(32, 8),
                    scale=nn.Parameter(torch.ones(8)),
                ),
                (x(8, 32), ids(8)),
            ),
            (
                "probabilities that are normalised again",
                Does(
                    lambda self, h: F.log_softmax((p := self.fc(h).softmax(-1) + 1e-6) / p.sum(-1, keepdim=True), -1),
                    fc=nn.Linear(32, 8),
                ),
                (x(8, 32),),
            ),
        ),
        (
            (
                "logarithms of probabilities",
                Does(
                    lambda self, h, y: F.cross_entropy(torch.log(self.fc(h).softmax(1) + 1e-6), y), fc=nn.Linear(32, 8)
                ),
                (x(8, 32), ids(8)),
            ),
            (
                "features weighted by a gate",
                Does(
                    lambda self, h: F.softmax(self.gate(h).softmax(-1) * self.fc(h), -1),
                    gate=nn.Linear(32, 8),
                    fc=nn.Linear(32, 8),
                ),
                (x(8, 32),),
            ),
            ("over rows, then columns", Does(lambda self, h: F.softmax(F.softmax(h, -1) * 2, -2)), (x(8, 32),)),
        ),
        kind="bug",
    ),
    FaultClass(
        "causal masks given to layers",
        ("causal-mask",),
        (
            ("an encoder", CausalStack(), (x(1, 128, 48),)),
            ("an attention", CausalAttention(), (x(1, 128, 48),)),
        ),
        (("another mask", CausalAttention(is_causal=False), (x(1, 128, 48),)),),
    ),
    FaultClass(
        "attributes that grow",
        ("grows-with-calls",),
        (
            ("a list", KeepsFeatures([]), (x(4, 32),)),
            ("a queue without an end", KeepsFeatures(deque()), (x(4, 32),)),
            ("a dict by number", NumberedFeatures(), (x(4, 32),)),
            ("a bank", Memory(None), (x(4, 32),)),
        ),
        (
            ("the last three", KeepsFeatures(deque(maxlen=3)), (x(4, 32),)),
            ("cleared first", ClearsFeatures([]), (x(4, 32),)),
            ("a bank with a limit", BoundedMemory(64), (x(4, 32),)),
        ),
        kind="bug",
    ),
    FaultClass(
        "modes that a model sets itself",
        ("batch-statistics-in-evaluation", "dropout-in-evaluation"),
        (
            ("norms in training mode", StaysInTraining(), (x(4, 4, 32),)),
            ("an eval that does nothing", NeverEvaluated(), (x(4, 16),)),
        ),
        (("frozen norms", FreezesNorms(), (x(4, 4, 32),)),),
        kind="bug",
    ),
    FaultClass(
        "a bias that a norm subtracts",
        ("bias-before-norm",),
        (
            ("instance norm", nn.Sequential(nn.Conv1d(4, 8, 3), nn.InstanceNorm1d(8)), (x(2, 4, 32),)),
            ("a group for each channel", nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(8, 8)), (x(2, 3, 16, 16),)),
        ),
        (("groups of channels", nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8)), (x(2, 3, 16, 16),)),),
    ),
)
