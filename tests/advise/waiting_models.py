"""Values that models read on the host, as people write it, each with a twin that keeps them on the device."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.advise.fault_classes import Does, x


class Waiting(NamedTuple):
    """`remedy`: words of the recommendation."""

    name: str
    fault: nn.Module
    twin: nn.Module
    inputs: tuple[Tensor, ...]
    remedy: str


def ids(*shape: int) -> Tensor:
    return torch.randint(1, 40, shape, generator=torch.Generator().manual_seed(0))


def mask_of_lengths(self: Any, tokens: Tensor, lengths: Tensor) -> Tensor:
    longest = lengths.max().item()
    mask = torch.arange(longest, device=tokens.device)[None] < lengths[:, None]
    return self.fc(self.emb(tokens[:, :longest]) * mask[..., None])


def mask_of_shapes(self: Any, tokens: Tensor, lengths: Tensor) -> Tensor:
    mask = torch.arange(tokens.shape[1], device=tokens.device)[None] < lengths[:, None]
    return self.fc(self.emb(tokens) * mask[..., None])


def guarded(self: Any, h: Tensor, mask: Tensor) -> Tensor:
    h = self.a(h)
    if mask.any():
        h = h.masked_fill(mask[..., None], 0.0)
    return self.b(torch.relu(h))


def unguarded(self: Any, h: Tensor, mask: Tensor) -> Tensor:
    return self.b(torch.relu(self.a(h).masked_fill(mask[..., None], 0.0)))


def early_exit(self: Any, h: Tensor) -> Tensor:
    for block, head in zip(self.blocks, self.heads, strict=True):
        h = torch.relu(block(h))
        logits: Tensor = head(h)
        confidence = F.softmax(logits, -1).max(-1).values.min()
        if confidence > 0.99:
            return logits
    return logits


def last_exit(self: Any, h: Tensor) -> Tensor:
    for block in self.blocks:
        h = torch.relu(block(h))
    return self.heads[-1](h)


def decoded(self: Any, state: Tensor, *, stops: bool = True) -> Tensor:
    token, made = state.new_zeros(state.shape[0], dtype=torch.long), []
    for _ in range(12):
        state = self.cell(self.emb(token), state)
        token = self.out(state).argmax(-1)
        made.append(token)
        if stops and (token == 1).all():
            break
    return torch.stack(made, 1)


def decoded_to_the_end(self: Any, state: Tensor) -> Tensor:
    return decoded(self, state, stops=False)


def routed(self: Any, h: Tensor) -> Tensor:
    weight, choice = self.gate(h).softmax(-1).topk(1)
    out = torch.zeros_like(h)
    for i, expert in enumerate(self.experts):
        rows, _ = torch.where(choice == i)
        if len(rows) == 0:
            continue
        out[rows] = weight[rows] * expert(h[rows])
    return out


def mixed(self: Any, h: Tensor) -> Tensor:
    weight, choice = self.gate(h).softmax(-1).topk(1)
    every = torch.stack([expert(h) for expert in self.experts], 1)
    return weight * every.gather(1, choice[..., None].expand(-1, -1, 32)).squeeze(1)


def asserted(self: Any, h: Tensor) -> Tensor:
    h = self.a(h)
    assert not torch.isnan(h).any(), "NaN in the encoder"
    return self.b(torch.tanh(h))


def warned(self: Any, h: Tensor) -> Tensor:
    h = self.a(h)
    if torch.isnan(h).any():
        print("NaN in the encoder")
    return self.b(torch.tanh(h))


def unchecked(self: Any, h: Tensor) -> Tensor:
    return self.b(torch.tanh(self.a(h)))


def validated(self: Any, h: Tensor) -> Tensor:
    mean, log_std = self.a(h).chunk(2, -1)
    return torch.distributions.Normal(mean, log_std.exp()).rsample()


def not_validated(self: Any, h: Tensor) -> Tensor:
    mean, log_std = self.a(h).chunk(2, -1)
    return torch.distributions.Normal(mean, log_std.exp(), validate_args=False).rsample()


def logged(self: Any, h: Tensor) -> Tensor:
    h = torch.relu(self.a(h))
    self.mean = h.mean().item()
    self.sparsity = (h == 0).float().mean().item()
    return self.b(h)


def logged_as_tensors(self: Any, h: Tensor) -> Tensor:
    h = torch.relu(self.a(h))
    self.mean, self.sparsity = h.mean(), (h == 0).float().mean()
    return self.b(h)


def returned(self: Any, h: Tensor) -> dict[str, Any]:
    h = torch.relu(self.a(h))
    return {"logits": self.b(h), "sparsity": (h == 0).float().mean().item()}


def returned_as_tensors(self: Any, h: Tensor) -> dict[str, Any]:
    h = torch.relu(self.a(h))
    return {"logits": self.b(h), "sparsity": (h == 0).float().mean()}


def trimmed(self: Any, tokens: Tensor) -> Tensor:
    n = int((tokens != 0).sum(1).max())
    return self.fc(self.emb(tokens[:, :n])).mean(1)


def untrimmed(self: Any, tokens: Tensor) -> Tensor:
    return self.fc(self.emb(tokens)).mean(1)


def adaptive(self: Any, h: Tensor, *, stops: bool = True) -> Tensor:
    halted, out, step, state = h.new_zeros(h.shape[0]), torch.zeros_like(h), 0, h
    while step < 8 and (not stops or bool((halted < 1).any())):
        state = self.cell(h, state)
        p = torch.sigmoid(self.halt(state)).squeeze(-1)
        out = out + p[:, None] * state
        halted = halted + p
        step += 1
    return out


def all_steps(self: Any, h: Tensor) -> Tensor:
    return adaptive(self, h, stops=False)


def beams(self: Any, state: Tensor) -> tuple[Tensor, list[list[int]]]:
    state, token = state.repeat(3, 1), state.new_zeros(3, dtype=torch.long)
    scores, paths = state.new_zeros(3), [list[int]() for _ in range(3)]
    for _ in range(10):
        state = self.cell(self.emb(token), state)
        scores, flat = (scores[:, None] + F.log_softmax(self.out(state), -1)).view(-1).topk(3)
        parent, token = flat // 50, flat % 50
        state = state[parent]
        paths = [[*paths[p], t] for p, t in zip(parent.tolist(), token.tolist(), strict=True)]
    return scores, paths


def back_pointers(self: Any, state: Tensor) -> tuple[Tensor, list[Tensor]]:
    state, token = state.repeat(3, 1), state.new_zeros(3, dtype=torch.long)
    scores, paths = state.new_zeros(3), list[Tensor]()
    for _ in range(10):
        state = self.cell(self.emb(token), state)
        scores, flat = (scores[:, None] + F.log_softmax(self.out(state), -1)).view(-1).topk(3)
        parent, token = flat // 50, flat % 50
        state = state[parent]
        paths += [parent, token]
    return scores, paths


def scaled_by_a_number(self: Any, h: Tensor) -> Tensor:
    return self.scale.exp().item() * F.normalize(self.a(h), dim=-1)


def scaled(self: Any, h: Tensor) -> Tensor:
    return self.scale.exp() * F.normalize(self.a(h), dim=-1)


def picked(self: Any, h: Tensor) -> Tensor:
    best = int(self.gate(h.mean(0)).argmax())
    return self.experts[best](h)


def weighted(self: Any, h: Tensor) -> Tensor:
    every = torch.stack([expert(h) for expert in self.experts])
    return (self.gate(h.mean(0)).softmax(-1)[:, None, None] * every).sum(0)


def unique(self: Any, tokens: Tensor) -> Tensor:
    kinds, where = torch.unique(tokens, return_inverse=True)
    return self.fc(self.emb(kinds))[where]


def valid_rows(self: Any, h: Tensor, valid: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(self.a(h[valid]), target[valid])


def weighed_rows(self: Any, h: Tensor, valid: Tensor, target: Tensor) -> Tensor:
    loss = F.cross_entropy(self.a(h).flatten(0, 1), target.flatten(), reduction="none")
    return (loss * valid.flatten()).sum() / valid.sum()


def clamped_if_infinite(self: Any, h: Tensor) -> Tensor:
    for layer in self.blocks:
        h = h + torch.relu(layer(h))
        if torch.isinf(h).any() or torch.isnan(h).any():
            h = torch.clamp(h, -1e4, 1e4)
    return h


def clamped(self: Any, h: Tensor) -> Tensor:
    for layer in self.blocks:
        h = (h + torch.relu(layer(h))).clamp(-1e4, 1e4)
    return h


def share_of_valid(self: Any, h: Tensor, mask: Tensor) -> Tensor:
    k = int(0.5 * mask.sum(1).min())
    best = self.score(h).squeeze(-1).masked_fill(~mask, -1e9).topk(k, dim=1).indices
    return h.gather(1, best[..., None].expand(-1, -1, 32))


def share_of_all(self: Any, h: Tensor, mask: Tensor) -> Tensor:
    best = self.score(h).squeeze(-1).masked_fill(~mask, -1e9).topk(h.shape[1] // 2, dim=1).indices
    return h.gather(1, best[..., None].expand(-1, -1, 32))


def levels(self: Any, h: Tensor, shapes: Tensor) -> Tensor:
    value, start, maps = self.a(h), 0, []
    for rows, columns in [(int(r), int(c)) for r, c in shapes]:
        maps.append(value[:, start : start + rows * columns].transpose(1, 2).reshape(-1, 32, rows, columns))
        start += rows * columns
    return maps[0] + F.interpolate(maps[1], size=maps[0].shape[-2:])


def fixed_levels(self: Any, h: Tensor, shapes: Tensor) -> Tensor:
    value = self.a(h)
    fine, coarse = (part.transpose(1, 2) for part in (value[:, :64], value[:, 64:]))
    return fine.reshape(-1, 32, 8, 8) + F.interpolate(coarse.reshape(-1, 32, 4, 4), size=(8, 8))


def packed_from_the_device(self: Any, h: Tensor, lengths: Tensor) -> Tensor:
    packed = pack_padded_sequence(h, lengths.cpu(), batch_first=True)
    return pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0]


def packed_from_the_host(self: Any, h: Tensor, lengths: Tensor) -> Tensor:
    packed = pack_padded_sequence(h, lengths, batch_first=True)
    return pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0]


def _layers(count: int, size: int, out: int | None = None) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(size, out or size) for _ in range(count))


def _models(fault: Any, twin: Any, **modules: nn.Module) -> tuple[nn.Module, nn.Module]:
    return Does(fault, **modules).eval(), Does(twin, **modules).eval()


class Scales(nn.Module):
    def __init__(self, forward: Any) -> None:
        super().__init__()
        self.a, self.scale, self.does = nn.Linear(32, 32), nn.Parameter(torch.tensor(2.6)), forward

    def forward(self, h: Tensor) -> Tensor:
        made: Tensor = self.does(self, h)
        return made


_TWO = {"a": nn.Linear(32, 32), "b": nn.Linear(32, 32)}
_TEXT = {"emb": nn.Embedding(50, 32), "fc": nn.Linear(32, 32)}
_DECODER = {"emb": nn.Embedding(50, 32), "cell": nn.GRUCell(32, 32), "out": nn.Linear(32, 50)}
_EXPERTS = {"gate": nn.Linear(32, 4), "experts": _layers(4, 32)}
_RNN = {"rnn": nn.LSTM(32, 32, batch_first=True)}

WAITING = (
    Waiting("lengths", *_models(mask_of_lengths, mask_of_shapes, **_TEXT), (ids(4, 9), ids(4) % 9 + 1), "avoid "),
    Waiting("a guard", *_models(guarded, unguarded, **_TWO), (x(8, 10, 32), ids(8, 10) > 30), "avoid "),
    Waiting(
        "an early exit",
        *_models(early_exit, last_exit, blocks=_layers(6, 64), heads=_layers(6, 64, 10)),
        (x(8, 64),),
        "avoid ",
    ),
    Waiting("the end of a text", *_models(decoded, decoded_to_the_end, **_DECODER), (x(4, 32),), "avoid "),
    Waiting("experts", *_models(routed, mixed, **_EXPERTS), (x(64, 32),), "sort tokens by expert"),
    Waiting("an assertion", *_models(asserted, unchecked, **_TWO), (x(8, 32),), "avoid "),
    Waiting("a warning", *_models(warned, unchecked, **_TWO), (x(8, 32),), "avoid "),
    Waiting(
        "a distribution", *_models(validated, not_validated, **_TWO), (x(8, 32),), "set_default_validate_args(False)"
    ),
    Waiting("numbers to log", *_models(logged, logged_as_tensors, **_TWO), (x(8, 32),), "avoid "),
    Waiting("a number returned", *_models(returned, returned_as_tensors, **_TWO), (x(8, 32),), "avoid "),
    Waiting("padding cut off", *_models(trimmed, untrimmed, **_TEXT), (ids(4, 16),), "avoid "),
    Waiting(
        "adaptive computation",
        *_models(adaptive, all_steps, cell=nn.GRUCell(32, 32), halt=nn.Linear(32, 1)),
        (x(8, 32),),
        "avoid ",
    ),
    Waiting("beam search", *_models(beams, back_pointers, **_DECODER), (x(1, 32),), "avoid "),
    Waiting(
        "a parameter",
        Scales(scaled_by_a_number).eval(),
        Scales(scaled).eval(),
        (x(8, 32),),
        "after loading the weights",
    ),
    Waiting("a layer by number", *_models(picked, weighted, **_EXPERTS), (x(8, 32),), "avoid "),
    Waiting("unique ids", *_models(unique, untrimmed, **_TEXT), (ids(8, 16),), "avoid "),
    Waiting(
        "rows of a loss",
        *_models(valid_rows, weighed_rows, **_TWO),
        (x(4, 16, 32), ids(4, 16) > 5, ids(4, 16) % 10),
        "avoid ",
    ),
    Waiting(
        "infinities",
        *_models(clamped_if_infinite, clamped, blocks=_layers(6, 64)),
        (x(8, 64),),
        "avoid ",
    ),
    Waiting(
        "a share of the positions",
        *_models(share_of_valid, share_of_all, score=nn.Linear(32, 1)),
        (x(4, 16, 32), ids(4, 16) > 5),
        "avoid ",
    ),
    Waiting(
        "sizes of levels",
        *_models(levels, fixed_levels, **_TWO),
        (x(2, 80, 32), torch.tensor([[8, 8], [4, 4]])),
        "one .tolist()",
    ),
    Waiting(
        "lengths to pack",
        *_models(packed_from_the_device, packed_from_the_host, **_RNN),
        (x(4, 10, 32), torch.tensor([10, 8, 5, 2])),
        "avoid ",
    ),
)
