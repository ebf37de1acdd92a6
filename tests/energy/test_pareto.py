"""The efficient points."""

from __future__ import annotations

import random
from typing import Any

import pytest

from torchgauge.energy import front, mark_efficient


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([], []),
        ([(1.0, 1.0)], [0]),
        ([(1.0, 2.0), (2.0, 1.0), (2.0, 2.0)], [0, 1]),
        ([(3.0, 1.0), (2.0, 2.0), (1.0, 3.0)], [2, 1, 0]),
        ([(1.0, 1.0), (1.0, 1.0)], [0]),
        ([(1.0, 2.0), (1.0, 1.0)], [1]),
    ],
)
def test_the_front_has_what_nothing_beats(points: list[tuple[float, float]], expected: list[int]) -> None:
    assert front(points) == expected


def test_the_front_agrees_with_the_definition() -> None:
    chance = random.Random(0)
    points = [(float(chance.randint(1, 9)), float(chance.randint(1, 9))) for _ in range(60)]

    def is_beaten(place: int) -> bool:
        time, energy = points[place]
        return any((t <= time and e <= energy) and (t < time or e < energy) for t, e in points)

    found = {points[place] for place in front(points)}
    assert found == {points[place] for place in range(len(points)) if not is_beaten(place)}


def test_rows_without_measured_energy_are_on_neither_side() -> None:
    rows: Any = [
        {"time_per_sample_s": 1.0, "energy_per_sample_j": 2.0},
        {"time_per_sample_s": 2.0, "energy_per_sample_j": 3.0},
        {"time_per_sample_s": 0.5, "energy_per_sample_j": None, "estimated_energy_per_sample_j": {"value": 0.1}},
    ]
    assert [row["efficient"] for row in mark_efficient(rows)] == [True, False, None]
    assert "efficient" not in rows[0]
