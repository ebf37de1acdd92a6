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
        "affine-after-layer": _FORWARD,
        "batch-statistics-in-evaluation": _FORWARD,
        "bias-before-norm": _FORWARD,
        "cancelling-permutes": _FORWARD,
        "cast-round-pointwise": _FORWARD,
        "cast-round-trip": _FORWARD,
        "causal-mask": _FORWARD,
        "dead-rows": "the layers that read these outputs must shrink too, and only the forward says which they are",
        "dense-experts": _FORWARD,
        "dequantized-each-call": "how a layer restores its weights is the library's own",
        "device-transfer": _FORWARD,
        "double-precision": _FORWARD,
        "double-softmax": _FORWARD,
        "dropout-in-evaluation": _FORWARD,
        "duplicate-tensors": _FILE,
        "embedding-dominated": "a narrower table has to be trained",
        "expanded-mask": _FORWARD,
        "expert-imbalance": _ROUTING,
        "frozen-in-graph": _LOOP,
        "gradient-memory": _LOOP,
        "grown-by-cat": _FORWARD,
        "held-activations": _FORWARD,
        "host-wait": _FORWARD,
        "idle-experts": "where the experts go depends on the machines available",
        "kv-cache": "the cache belongs to the generation loop around the model",
        "loop-over-samples": _FORWARD,
        "loop-over-steps": _FORWARD,
        "mixed-precision-plan": "torch itself has no layers for all of its formats",
        "never-trained": _LOOP,
        "narrow-groups": "another number of groups has to be trained",
        "needless-copy": _FORWARD,
        "one-hot-product": _FORWARD,
        "optimizer-state": _LOOP,
        "parallel-linears": _FORWARD,
        "quantized-but-larger": "the weights before they were quantized are not known",
        "recomputed-constant": _FORWARD,
        "repeated-keys": _FORWARD,
        "repeated-work": _FORWARD,
        "resample-before-pointwise": _FORWARD,
        "scan-in-python": _FORWARD,
        "starved-experts": _ROUTING,
        "state-written-in-evaluation": _FORWARD,
        "stored-optimizer-state": _FILE,
        "structured-pruning": "the layers beside must shrink with it, and only the forward says which they are",
        "type-promotion": _FORWARD,
    }
)
UNKNOWN = "its rule has no transformation"
