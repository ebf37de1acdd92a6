"""Predictions of the proof's models on this machine, and their comparison with what a device measured."""

from __future__ import annotations

from pathlib import Path


def predict(output: Path) -> int:
    raise NotImplementedError


def compare(*paths: Path) -> int:
    raise NotImplementedError
