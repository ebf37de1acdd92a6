"""What a transformers config says, wherever in its nested configs it says it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_TEXT = ("text_config", "text_encoder", "language_config", "llm_config", "decoder", "generator")
_VISION = ("vision_config", "backbone_config", "image_encoder", "encoder", "image_config")
_AUDIO = ("audio_config", "audio_encoder", "encoder", "encoder_config", "speech_config")
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "max_target_positions")


class ModelConfig:
    """A config seen by modality: each look goes to the config itself, then to the nested ones of that modality.

    Its values come from a file: a look finds whole numbers, and passes over what is of another type."""

    def __init__(self, config: Any) -> None:
        self._config = config

    def text(self, *names: str) -> int | None:
        return next(filter(_is_count, self._look(_TEXT, names)), None)

    def vision(self, *names: str) -> int | None:
        return next(filter(_is_count, self._look(_VISION, names)), None)

    def audio(self, *names: str) -> int | None:
        return next(filter(_is_count, self._look(_AUDIO, names)), None)

    def image_size(self, *names: str) -> tuple[int, int] | None:
        """Height and width; one number stands for both, more than two have others before them."""
        for value in self._look(_VISION, names):
            sizes = value if isinstance(value, list | tuple) else [value, value]
            if len(sizes) >= 2 and all(map(_is_count, sizes)):
                return sizes[-2], sizes[-1]
        return None

    @property
    def is_encoder_decoder(self) -> bool:
        return bool(_get(self._config, "is_encoder_decoder"))

    @property
    def has_placeholder_tokens(self) -> bool:
        """Whether images or sounds take the place of tokens in the text: text without them is complete."""
        return any(name.startswith(("image_token", "audio_token", "video_token")) for name in _names(self._config))

    def text_length(self, default: int) -> int:
        """`default`, or less where the model has fewer positions."""
        return min(default, self.text(*_POSITIONS) or default)

    def ordinary_token(self) -> int:
        """The first id that is no padding, end of text, image place or the like."""
        special = {token for token in self._special_tokens() if isinstance(token, int)}
        vocabulary = self.text("vocab_size") or 2
        return next((token for token in range(1, vocabulary) if token not in special), 0)

    def _special_tokens(self) -> Iterator[Any]:
        for config in self._nested(_TEXT):
            for name in _names(config):
                if name.endswith(("_token_id", "_token_index")):
                    value = _get(config, name)
                    yield from value if isinstance(value, list) else [value]

    def _look(self, nested: tuple[str, ...], names: tuple[str, ...]) -> Iterator[Any]:
        for config in self._nested(nested):
            for name in names:
                yield _get(config, name)

    def _nested(self, names: tuple[str, ...]) -> Iterator[Any]:
        yield self._config
        for name in names:
            config = _get(self._config, name)
            if isinstance(config, dict) or hasattr(config, "__dict__"):
                yield from ModelConfig(config)._nested(names)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _get(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, dict) else getattr(config, name, None)


def _names(config: Any) -> list[str]:
    return list(config if isinstance(config, dict) else vars(config))
