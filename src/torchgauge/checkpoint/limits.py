"""Limits on the work that a file can cause, each far above what real checkpoints need."""

from __future__ import annotations

PICKLE_MEMORY_BYTES = 2**30  # estimated memory of all values of a pickle; more for a large pickle
PICKLE_MEMORY_PER_BYTE = 24  # of an uncompressed pickle: a tensor takes 90 bytes in it and 1,700 as values
PICKLE_OPCODES = 60_000_000  # about 30 opcodes per tensor; a large pickle may have one per byte
PICKLE_LINE_BYTES = 2**20
BLOB_BYTES = 2**20  # longer byte strings are left in the file
NESTED_PICKLES = 100
NESTED_DEPTH = 8

WALK_STEPS = 20_000_000  # values
PATH_STEPS = 3_000_000  # visits by path, or twice the number of values
WALK_DEPTH = 200
NAME_CHARACTERS = 200_000_000  # over all names
DIMENSIONS = 128
INTEGER = 2**63 - 1

INFLATED_BYTES = 2**25  # of a compressed record that is not a tensor, or INFLATED_FILES times the size of its file
INFLATED_FILES = 4
INFLATION_RATIO = 1100  # deflate reaches 1032

SAFETENSORS_HEADER_BYTES = 100_000_000  # the limit of the safetensors library
GGUF_HEADER_BYTES = 2**29  # a tokenizer of 250,000 tokens takes a few MB
GGUF_ARRAY_ITEMS = 4096  # longest array in the metadata that is kept: one number per layer
GGUF_TEXT_BYTES = 2**16
JSON_BYTES = 2**29
IMPORTS = 10_000
