"""What the name of a forward parameter says about its values."""

from __future__ import annotations

import re

_IDS = {"ids", "tokens"}
_TEXT = {*_IDS, "id", "idx", "token", "text", "texts", "words", "sentence", "sentences", "src", "tgt", "codes"}
_IMAGE = {"image", "images", "img", "imgs", "pixel", "pixels", "picture", "frame", "frames", "video", "videos"}
_MASK = {"mask", "masks"}
_LENGTH = {"length", "lengths", "len", "lens"}
_TIME = {"timestep", "timesteps", "t", "ts", "time", "times"}
_LABEL = {"label", "labels", "class", "classes"}
_STATE = {"hidden", "state", "states", "hx", "h", "hc"}


def words(name: str) -> frozenset[str]:
    """The words of a name, lower case and without digits: `src_ids2` has `src` and `ids`."""
    return frozenset(re.sub(r"[0-9]", "", word) for word in name.lower().split("_"))


def is_ids(name: str) -> bool:
    """Certainly integer, whatever the model."""
    return bool(words(name) & _IDS)


def is_text(name: str) -> bool:
    """Integer where the model has an embedding to look it up in."""
    return bool(words(name) & _TEXT)


def is_image(name: str) -> bool:
    return bool(words(name) & _IMAGE)


def is_mask(name: str) -> bool:
    return bool(words(name) & _MASK)


def is_length(name: str) -> bool:
    return bool(words(name) & _LENGTH)


def is_time(name: str) -> bool:
    return bool(words(name) & _TIME)


def is_label(name: str) -> bool:
    return bool(words(name) & _LABEL)


def is_state(name: str) -> bool:
    return bool(words(name) & _STATE)
