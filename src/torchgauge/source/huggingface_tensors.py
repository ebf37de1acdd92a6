"""One maker per input name that transformers models share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from torchgauge.source.candidate import Defaults, Guess
from torchgauge.source.huggingface_config import ModelConfig
from torchgauge.source.layers import SEQUENCE

Maker = Callable[[ModelConfig, Defaults], Iterator[Guess]]

MAKERS: dict[str, Maker] = {}

_SECOND = 16000  # samples of a waveform at the rate of speech models
_DETECTION_SIZE = 800  # the shorter side that DETR and its kin resize to
_IMAGE_SIZES = (224, 512, 1536)


def makes(*names: str) -> Callable[[Maker], Maker]:
    def register(maker: Maker) -> Maker:
        for name in names:
            if name in MAKERS:
                raise ValueError(f"there is a maker of '{name}' already")
            MAKERS[name] = maker
        return maker

    return register


def _length(config: ModelConfig, defaults: Defaults) -> int:
    return defaults.seq or config.text_length(SEQUENCE)


def _length_source(config: ModelConfig, defaults: Defaults) -> str:
    if defaults.seq:
        return "the given length"
    return "the positions of the model's config" if config.text_length(SEQUENCE) < SEQUENCE else "an ordinary prompt"


@makes("input_ids", "decoder_input_ids")
def _ids(config: ModelConfig, defaults: Defaults) -> Iterator[Guess]:
    tokens = defaults.ids(defaults.batch, _length(config, defaults), value=config.ordinary_token())
    end = config.text("eos_token_id")
    # Classifiers on top of encoder-decoders read the state of the end token.
    if config.is_encoder_decoder and end is not None:
        tokens[:, -1] = end
    yield Guess(tokens, _length_source(config, defaults))


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
    """The patches of each image of a batch in one row, and the grid (frames, rows, columns) of each."""
    side = config.vision("patch_size")
    if not side:
        return None
    depth = config.vision("temporal_patch_size") or 1
    # An even number of patches, as neighbours are merged two by two.
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
    source, samples = "a second of sound at 16 kHz", defaults.seq or _SECOND
    mono = Guess(defaults.floats(defaults.batch, samples), source)
    with_channels = Guess(defaults.floats(defaults.batch, config.audio("audio_channels") or 1, samples), source)
    # Codecs have codebooks, and a dimension for the channels.
    is_codec = config.audio("audio_channels", "codebook_size") is not None
    yield from (with_channels, mono) if is_codec else (mono, with_channels)


@makes("input_features")
def _spectrogram(config: ModelConfig, defaults: Defaults) -> Iterator[Guess]:
    bins, positions = config.audio("num_mel_bins"), config.audio("max_source_positions")
    if bins and positions:
        # Whisper takes nothing but its full window: a given length is that of the text.
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
