"""Inputs of transformers models, from their config and the names of their forward parameters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import nn

from torchgauge.registry import Registry
from torchgauge.source.attributes import attribute_of
from torchgauge.source.candidate import Assignment, Defaults, ForwardSignature, Guess
from torchgauge.source.first_layer import SEQUENCE_LENGTH

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# A second modality that the model takes as a separate input, unless its text has placeholder tokens for it.
_SECOND_MODALITY = ("pixel_values", "input_features", "input_values")
_WITH_TEXT = ("bbox",)


def huggingface_assignments(
    model: nn.Module, signature: ForwardSignature, defaults: Defaults, given: Collection[str]
) -> Iterator[Assignment]:
    """The main input with all inputs that accompany it, then alone, then with text. Only for models of transformers."""
    declared = attribute_of(model, "main_input_name")
    stated = attribute_of(model, "config")
    if not isinstance(declared, str) or stated is None:
        return
    config = ModelConfig(stated)
    # Sets of inputs to try, each with its main input first.
    required = [parameter.name for parameter in signature.required()]
    is_known = declared in signature.names or (signature.takes_any_keyword and not signature.names)
    main = [declared] if is_known else [name for name in signature.names if name in MAKERS][:1]
    alone = list(dict.fromkeys([*(main if not required or declared in required else []), *required]))
    added: list[str] = []
    if "input_ids" in alone:
        added = [*_SECOND_MODALITY, *_WITH_TEXT] if not config.has_placeholder_tokens else [*_WITH_TEXT]
    if config.is_encoder_decoder:
        added.append("decoder_input_ids")
    complete = alone + [name for name in added if name in signature.names and name not in alone]
    plans = [complete, alone]
    if "input_ids" in signature.names and "input_ids" not in alone:
        plans.append([*alone, "input_ids"])
    for plan in [plan for index, plan in enumerate(plans) if plan not in plans[:index]]:
        names = [name for name in plan if name not in given]
        if "grid_thw" in names:
            # Vision towers that take the patches of all images as one sequence, and the grid of each image.
            others = [name for name in names if name != "grid_thw"]
            guesses = image_patches(config, defaults)
            if len(others) == 1 and guesses is not None:
                yield {others[0]: guesses[0], "grid_thw": guesses[1]}
        elif all(name in MAKERS for name in names):
            # The alternatives of all inputs in parallel; an input with fewer alternatives repeats its last.
            columns = {name: list(MAKERS[name](config, defaults)) for name in names}
            for index in range(max(map(len, columns.values()), default=0) if all(columns.values()) else 0):
                yield {name: column[min(index, len(column) - 1)] for name, column in columns.items()}


_TEXT = ("text_config", "text_encoder", "language_config", "llm_config", "decoder", "generator")
_VISION = ("vision_config", "backbone_config", "image_encoder", "encoder", "image_config")
_AUDIO = ("audio_config", "audio_encoder", "encoder", "encoder_config", "speech_config")
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "max_target_positions")


class ModelConfig:
    """Looks a setting up in the config itself, then in the nested configs of a modality.

    The values come from a file, so values of another type than expected are skipped."""

    def __init__(self, config: PretrainedConfig) -> None:
        self._config = config

    def text(self, *names: str) -> int | None:
        return next(filter(_is_count, self._look(_TEXT, names)), None)

    def vision(self, *names: str) -> int | None:
        return next(filter(_is_count, self._look(_VISION, names)), None)

    def audio(self, *names: str) -> int | None:
        return next(filter(_is_count, self._look(_AUDIO, names)), None)

    def image_size(self, *names: str) -> tuple[int, int] | None:
        """Height and width: one number for both, or the last two of several."""
        for value in self._look(_VISION, names):
            sizes = value if isinstance(value, list | tuple) else [value, value]
            counts = list(filter(_is_count, sizes))
            if len(counts) == len(sizes) >= 2:
                return counts[-2], counts[-1]
        return None

    @property
    def is_encoder_decoder(self) -> bool:
        return bool(_get(self._config, "is_encoder_decoder"))

    @property
    def has_placeholder_tokens(self) -> bool:
        """Whether images or sounds replace tokens of the text, so that text alone is a complete input."""
        return any(name.startswith(("image_token", "audio_token", "video_token")) for name in _names(self._config))

    def text_length(self, default: int) -> int:
        """`default`, or the number of positions of the model if that is smaller."""
        return min(default, self.text(*_POSITIONS) or default)

    def ordinary_token(self) -> int:
        """The first id that is not a special token (padding, end of text, image placeholder)."""
        special: set[object] = set()
        for config in self._nested(_TEXT):
            for name in _names(config):
                if name.endswith(("_token_id", "_token_index")):
                    value = _get(config, name)
                    tokens = value if isinstance(value, list) else [value]
                    special.update(token for token in tokens if isinstance(token, int))
        vocabulary = self.text("vocab_size") or 2
        return next((token for token in range(1, vocabulary) if token not in special), 0)

    def _look(self, nested: tuple[str, ...], names: tuple[str, ...]) -> Iterator[object]:
        for config in self._nested(nested):
            for name in names:
                yield _get(config, name)

    def _nested(self, names: tuple[str, ...]) -> Iterator[object]:
        yield self._config
        for name in names:
            config = _get(self._config, name)
            if isinstance(config, dict) or hasattr(config, "__dict__"):
                yield from ModelConfig(config)._nested(names)


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _get(config: PretrainedConfig, name: str) -> object:
    return config.get(name) if isinstance(config, dict) else getattr(config, name, None)


def _names(config: PretrainedConfig) -> list[str]:
    return list(config if isinstance(config, dict) else vars(config))


Maker = Callable[[ModelConfig, Defaults], Iterator[Guess]]

MAKERS: Registry[str, Maker] = Registry("maker of the input")
makes = MAKERS.register

_SAMPLES_PER_SECOND = 16000  # samples per second at the rate of speech models
_DETECTION_SIZE = 800  # the shorter side that DETR and similar models resize to
_IMAGE_SIZES = (224, 512, 1536)


def _length(config: ModelConfig, defaults: Defaults) -> int:
    return defaults.seq or config.text_length(SEQUENCE_LENGTH)


@makes("input_ids", "decoder_input_ids")
def _ids(config: ModelConfig, defaults: Defaults) -> Iterator[Guess]:
    tokens = defaults.ids(defaults.batch, _length(config, defaults), value=config.ordinary_token())
    end = config.text("eos_token_id")
    # Classifiers of encoder-decoders read the state at the end token.
    if config.is_encoder_decoder and end is not None:
        tokens[:, -1] = end
    is_short = config.text_length(SEQUENCE_LENGTH) < SEQUENCE_LENGTH
    source = "the positions of the model's config" if is_short else "an ordinary prompt"
    yield Guess(tokens, "the given length" if defaults.seq else source)


@makes("attention_mask", "decoder_attention_mask")
def _mask(config: ModelConfig, defaults: Defaults) -> Iterator[Guess]:
    yield Guess(defaults.ids(defaults.batch, _length(config, defaults)), "nothing masked")


@makes("token_type_ids")
def _types(config: ModelConfig, defaults: Defaults) -> Iterator[Guess]:
    yield Guess(defaults.ids(defaults.batch, _length(config, defaults), value=0), "one segment")


@makes("bbox")
def _boxes(config: ModelConfig, defaults: Defaults) -> Iterator[Guess]:
    yield Guess(defaults.ids(defaults.batch, _length(config, defaults), 4, value=0), "a box for each token")


@makes("pixel_values")
def _pixels(config: ModelConfig, defaults: Defaults) -> Iterator[Guess]:
    frames = config.vision("num_frames")
    leading = (defaults.batch, frames, _channels(config)) if frames else (defaults.batch, _channels(config))
    for size, source in _image_sizes(config):
        yield Guess(defaults.floats(*leading, *size), source)


@makes("pixel_values_videos")
def _clip(config: ModelConfig, defaults: Defaults) -> Iterator[Guess]:
    frames = config.vision("num_frames", "frames_per_clip") or 16
    for size, source in _image_sizes(config):
        yield Guess(defaults.floats(defaults.batch, frames, _channels(config), *size), f"{frames} frames, {source}")


def _channels(config: ModelConfig) -> int:
    return config.vision("num_channels", "in_channels", "in_chans") or 3


def _image_sizes(config: ModelConfig) -> Iterator[tuple[tuple[int, int], str]]:
    size = config.image_size("image_size", "img_size", "crop_size", "input_size")
    if size is not None:
        yield size, "image_size of the model's config"
    elif config.vision("num_queries") is not None:
        yield (_DETECTION_SIZE, _DETECTION_SIZE), "the usual size of detection models"
    else:
        for usual in _IMAGE_SIZES:
            yield (usual, usual), "a common size; the config has none"


def image_patches(config: ModelConfig, defaults: Defaults) -> tuple[Guess, Guess] | None:
    """The patches of all images of a batch as one sequence, and the grid (frames, rows, columns) of each image."""
    side = config.vision("patch_size")
    if not side:
        return None
    depth = config.vision("temporal_patch_size") or 1
    # An even number of patches per side, because neighbours are merged two by two.
    rows = _IMAGE_SIZES[0] // side // 2 * 2
    features = _channels(config) * depth * side * side
    patches = defaults.floats(defaults.batch * rows * rows, features)
    grid = torch.tensor([[1, rows, rows]] * defaults.batch)
    source = f"patch_size of the model's config, images of {rows} x {rows} patches"
    return Guess(patches, source), Guess(grid, source)


@makes("input_values")
def _waveform(config: ModelConfig, defaults: Defaults) -> Iterator[Guess]:
    bins, frames = config.audio("num_mel_bins"), config.audio("max_length")
    if bins and frames:
        yield Guess(defaults.floats(defaults.batch, frames, bins), "max_length and num_mel_bins of the model's config")
    source, samples = "one second of audio at 16 kHz", defaults.seq or _SAMPLES_PER_SECOND
    mono = Guess(defaults.floats(defaults.batch, samples), source)
    with_channels = Guess(defaults.floats(defaults.batch, config.audio("audio_channels") or 1, samples), source)
    # Codecs have codebooks, and a dimension for the channels.
    is_codec = config.audio("audio_channels", "codebook_size") is not None
    yield from (with_channels, mono) if is_codec else (mono, with_channels)


@makes("input_features")
def _spectrogram(config: ModelConfig, defaults: Defaults) -> Iterator[Guess]:
    bins, positions = config.audio("num_mel_bins"), config.audio("max_source_positions")
    if bins and positions:
        # Whisper only takes its full window; a given length is that of the text.
        source = "num_mel_bins and twice max_source_positions of the model's config"
        yield Guess(defaults.floats(defaults.batch, bins, 2 * positions), source)
    bins = bins or config.audio("input_feat_per_channel", "feature_projection_input_dim", "feature_size", "input_dim")
    if not bins:
        return
    source, frames = "ten seconds of features at 100 Hz", defaults.seq or 1000
    if config.audio("spec_size"):
        yield Guess(defaults.floats(defaults.batch, 1, frames, bins), source)
    yield Guess(defaults.floats(defaults.batch, frames, bins), source)


@makes("past_values")
def _series(config: ModelConfig, defaults: Defaults) -> Iterator[Guess]:
    context, channels = config.text("context_length"), config.text("num_input_channels")
    if context and channels:
        source = "context_length and num_input_channels of the model's config"
        yield Guess(defaults.floats(defaults.batch, context, channels), source)
