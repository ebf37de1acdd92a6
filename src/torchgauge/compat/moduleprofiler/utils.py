"""Rates of models that work through a signal frame by frame. The module's name is moduleprofiler's."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

P = ParamSpec("P")


def ops_to_flops(ops_per_frame: int, sample_rate: int, frame_size: int, hop_size: int | None = None) -> float:
    """Operations for one second of signal; frames begin every `hop_size` samples, `frame_size` where not given."""
    if sample_rate < frame_size:
        raise ValueError(f"a second of {sample_rate} samples holds no frame of {frame_size}: give a smaller frame_size")
    return ops_per_frame * _frames_per_second(sample_rate, frame_size, hop_size)


def _keyword_of_the_release(function: Callable[P, float]) -> Callable[P, float]:
    """moduleprofiler 0.0.4 calls the first argument `inference_time`."""

    @wraps(function)
    def accept_both(*args: P.args, **kwargs: P.kwargs) -> float:
        if "inference_time" in kwargs:
            kwargs["inference_time_ms"] = kwargs.pop("inference_time")
        return function(*args, **kwargs)

    return accept_both


@_keyword_of_the_release
def realtime_factor(
    inference_time_ms: float, sample_rate: int, frame_size: int, hop_size: int | None = None, inverse: bool = False
) -> float:
    """Seconds of signal per second of work, a frame taking `inference_time_ms`; `inverse` gives work per signal."""
    busy = inference_time_ms / 1000 * _frames_per_second(sample_rate, frame_size, hop_size)
    return busy if inverse else 1 / busy


def _frames_per_second(sample_rate: int, frame_size: int, hop_size: int | None) -> float:
    hop = frame_size if hop_size is None else hop_size
    return (sample_rate - frame_size) / hop + 1
