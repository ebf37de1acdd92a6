from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchgauge.source import Candidate, candidate_inputs

FirstThatRuns = Callable[..., Candidate]


def shapes(candidate: Candidate) -> list[tuple[int, ...]]:
    return [tuple(value.shape) for value in (*candidate.args, *candidate.kwargs.values())]


class Small(nn.Module):
    """Fits 32 x 32 images only, and registers its last layer first."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4 * 30 * 30, 2)
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.conv(x).flatten(1))


class FewPositions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(9, 4), nn.Embedding(20, 4)

    def forward(self, idx: Tensor) -> Any:
        return self.tokens(idx) + self.positions(torch.arange(idx.shape[1]))


class Siamese(Small):
    def forward(self, left: Tensor, right: Tensor) -> Any:  # type: ignore[override]
        return super().forward(left) - super().forward(right)


class ImageAndVector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.dense = nn.Conv2d(3, 4, 3), nn.Linear(10, 4)

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.conv(x).mean((2, 3)) + self.dense(y)


class Question(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.conv = nn.Embedding(9, 4), nn.Conv2d(3, 4, 3)

    def forward(self, image: Tensor, question_ids: Tensor) -> Any:
        return self.conv(image).mean((2, 3)) + self.words(question_ids).mean(1)


class UserItem(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.user_table, self.item_table = nn.Embedding(9, 4), nn.Embedding(1, 4)

    def forward(self, user: Tensor, item: Tensor) -> Any:
        return self.user_table(user) * self.item_table(item)


class Concatenated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(20, 2)

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.dense(torch.cat([x, y], dim=1))


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.attention = nn.Embedding(9, 4), nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, tokens: Tensor, padding_mask: Tensor) -> Any:
        x = self.table(tokens)
        return self.attention(x, x, x, key_padding_mask=~padding_mask)[0]


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(5, 4, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        return self.rnn(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True))


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.rnn = nn.Embedding(9, 5), nn.LSTM(5, 4, num_layers=2, batch_first=True)

    def forward(self, x: Tensor, hidden: tuple[Tensor, Tensor]) -> Any:
        return self.rnn(self.table(x), hidden)


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.steps = nn.Conv2d(3, 4, 3), nn.Embedding(1000, 4)

    def forward(self, x: Tensor, timestep: Tensor) -> Any:
        return self.conv(x) + self.steps(timestep)[:, :, None, None]


class Derivative(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(2, 2)

    def forward(self, t: Tensor, y: Tensor) -> Any:
        return self.dense(y) * t


class Repeated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(3, 3)

    def forward(self, x: Tensor, steps: int, noisy: bool) -> Any:
        for _ in range(steps):
            x = self.dense(x)
        return x + float(noisy)


class ListOfImages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, images: list[Tensor]) -> Any:
        assert isinstance(images, list)
        return [self.conv(image) for image in images]


class BareWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(5, 7))

    def forward(self, x: Tensor) -> Any:
        return x @ self.weight


class Variadic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(4, 2)

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Any:
        return self.dense(*args, **kwargs)


class KeywordOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(4, 2)

    def forward(self, *, x: Tensor) -> Any:
        return self.dense(x)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Small(), [(1, 3, 32, 32)]),
        (FewPositions(), [(1, 16)]),
        (Siamese(), [(1, 3, 32, 32), (1, 3, 32, 32)]),
        (ImageAndVector(), [(1, 3, 224, 224), (1, 10)]),
        (Question(), [(1, 3, 224, 224), (1, 128)]),
        (UserItem(), [(1, 128), (1, 128)]),
        (Concatenated(), [(1, 10), (1, 10)]),
        (Masked(), [(1, 128), (1, 128)]),
        (Packed(), [(1, 128, 5), (1,)]),
        (Denoiser(), [(1, 3, 224, 224), (1,)]),
        (Derivative(), [(1,), (1, 2)]),
        (BareWeight(), [(1, 5)]),
        (Variadic(), [(1, 4)]),
        (KeywordOnly(), [(1, 4)]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_one_of_the_candidates_runs(
    model: nn.Module, expected: list[tuple[int, ...]], first_that_runs: FirstThatRuns
) -> None:
    assert shapes(first_that_runs(model)) == expected


def test_a_state_has_the_shape_that_the_recurrent_layer_keeps(first_that_runs: FirstThatRuns) -> None:
    _, (hidden, cell) = first_that_runs(Stateful()).args
    assert hidden.shape == cell.shape == (2, 1, 4)


def test_annotated_numbers_are_given_as_numbers(first_that_runs: FirstThatRuns) -> None:
    candidate = first_that_runs(Repeated())
    assert candidate.args[1:] == (1, False)
    assert "steps 1: annotated as int" in str(candidate.reason)


def test_a_list_of_tensors_holds_one_per_sample(first_that_runs: FirstThatRuns) -> None:
    images = first_that_runs(ListOfImages(), batch=2).args[0]
    assert [tuple(image.shape) for image in images] == [(3, 224, 224)] * 2


def test_keywords_of_the_user_are_kept_and_the_rest_is_inferred(first_that_runs: FirstThatRuns) -> None:
    vector = torch.zeros(1, 10)
    candidate = first_that_runs(ImageAndVector(), kwargs={"y": vector})
    assert candidate.kwargs["y"] is vector
    assert shapes(candidate)[0] == (1, 3, 224, 224)


def test_a_forward_that_requires_nothing_still_gets_its_first_parameter(first_that_runs: FirstThatRuns) -> None:
    class Optional(nn.Linear):
        def forward(self, x: Tensor | None = None, twice: bool = False) -> Any:
            assert x is not None
            return super().forward(x) * (1 + twice)

    candidate = first_that_runs(Optional(4, 2), kwargs={"twice": True})
    assert tuple(candidate.args[0].shape) == (1, 4)
    assert candidate.kwargs == {"twice": True}


def test_candidates_are_few_and_differ() -> None:
    candidates = [str(candidate.reason) for candidate in candidate_inputs(Siamese())]
    assert 1 < len(candidates) <= 12
    assert len(set(candidates)) == len(candidates)
