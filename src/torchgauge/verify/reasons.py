"""Why some rules have no transformation."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_FORWARD = "it needs a change in the source of a forward"
_FILE = "it changes the file and not the model; the expected gain is its exact number of bytes"
_ROUTING = "which experts tokens choose is learned"
_LOOP = "it is about the training loop, which is not part of the model"

REASONS: Mapping[str, str] = MappingProxyType(
    {
        "cast-round-trip": _FORWARD,
        "dead-rows": "the layers that read these outputs must shrink too, and only the forward says which they are",
        "dense-experts": _FORWARD,
        "device-transfer": _FORWARD,
        "duplicate-tensors": _FILE,
        "embedding-dominated": "a narrower table has to be trained",
        "expert-imbalance": _ROUTING,
        "gradient-memory": _LOOP,
        "host-wait": _FORWARD,
        "idle-experts": "where the experts go depends on the machines available",
        "kv-cache": "the cache belongs to the generation loop around the model",
        "mixed-precision-plan": "torch itself has no layers for all of its formats",
        "needless-copy": _FORWARD,
        "optimizer-state": _LOOP,
        "recomputed-constant": _FORWARD,
        "starved-experts": _ROUTING,
        "stored-optimizer-state": _FILE,
        "structured-pruning": "the layers beside must shrink with it, and only the forward says which they are",
        "type-promotion": _FORWARD,
    }
)
UNKNOWN = "its rule has no transformation"
