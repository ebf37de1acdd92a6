"""Every family of the promise has a rule, and every rule a planted fault with its twin."""

from __future__ import annotations

import pytest

from tests.advise import zoo_experts, zoo_flow, zoo_memory, zoo_order, zoo_runs, zoo_structure, zoo_weights
from tests.advise.fault_classes import CLASSES
from tests.advise.faults_in_models import REPORTED
from tests.advise.faults_of_state import LATER
from torchgauge.advise import RULES, load_rules

ZOO = [
    case
    for zoo in (zoo_structure, zoo_flow, zoo_order, zoo_runs, zoo_experts, zoo_memory, zoo_weights)
    for case in zoo.CASES
]  # fmt: skip

FAMILIES = {
    "conv-bn": ("conv-bn-fusion",),
    "linear-bn": ("linear-bn-fusion",),
    "conv-bn-act": ("conv-bn-activation",),
    "linear-act": ("linear-activation",),
    "norm-linear": ("norm-linear-fusion",),
    "pointwise chains": ("pointwise-chain", "gelu-by-hand", "silu-by-hand", "activation-by-hand", "norm-by-hand"),
    "norms without vector code": ("instance-norm",),
    "large pools": ("large-max-pool",),
    "attention by hand": ("attention-by-hand", "attention-fast-path"),
    "channels_last": ("channels-last", "image-layout"),
    "autocast, bf16": ("autocast-bf16", "bfloat16-weights"),
    "TF32": ("tf32-off",),
    "torch.compile": ("dispatch-bound", "pointwise-chain", "linear-activation", "conv-bn-activation"),
    "CUDA graphs": ("launch-bound", "launch-limit"),
    "dimensions for tensor cores": ("odd-dimensions",),
    "batch at the knee": ("batch-at-knee",),
    "promotions and casts": ("type-promotion", "cast-round-trip", "cast-round-pointwise", "weight-cast"),
    "copies": ("needless-copy", "broadcast-matmul", "joined-parts"),
    "padding": ("padding-before-convolution",),
    "results that nothing reads": ("unread-result",),
    "products of repeated tensors": ("repeated-input", "repeated-part", "product-then-sum"),
    "device transfers": ("device-transfer", "host-wait"),
    "recomputed constants": ("recomputed-constant", "recomputed-weight"),
    "unused parameters": ("unused-parameters", "zero-parameters"),
    "dead rows": ("dead-rows",),
    "tied weights": ("tied-weights", "repeated-buffers"),
    "embeddings": ("embedding-dominated",),
    "activation checkpointing": ("activation-checkpointing",),
    "gradient memory": ("gradient-memory", "frozen-in-graph", "never-trained"),
    "optimizer state": ("optimizer-state",),
    "weight quantization": ("quantize-weights",),
    "weights that are quantized": ("dequantized-each-call", "quantized-but-larger"),
    "mixed precision plan": ("mixed-precision-plan",),
    "pruning": ("unstructured-pruning", "two-four-sparsity", "structured-pruning"),
    "low rank": ("low-rank",),
    "thread count": ("thread-count",),
    "intra-op settings": ("thread-oversubscription", "idle-cores"),
    "memory-bound layers": ("memory-bound-layers",),
    "KV cache": ("kv-cache",),
    "memory of the C library": ("freed-memory",),
    "experts": ("dense-experts", "idle-experts"),
    "work repeated": ("repeated-work",),
    "loops": ("loop-over-steps", "loop-over-samples", "parallel-linears", "scan-in-python", "narrow-heads"),
    "memory that grows": (
        "grown-by-cat",
        "grows-with-calls",
        "held-activations",
        "double-precision",
        "one-hot-product",
    ),
    "layers in a row": ("consecutive-layers",),
    "order of ops": ("linear-after-gather", "pointwise-before-pooling"),
    "attention": ("causal-mask", "expanded-mask", "repeated-keys"),
    "layers beside each other": (
        "affine-after-layer",
        "resample-before-pointwise",
        "cancelling-permutes",
        "bias-before-norm",
    ),
    "likely bugs": (
        "double-softmax",
        "dropout-in-evaluation",
        "batch-statistics-in-evaluation",
        "state-written-in-evaluation",
        "large-eps",
        "layer-in-forward",
        "unregistered-layers",
    ),
    "files": ("duplicate-tensors", "narrower-type", "stored-optimizer-state"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_has_rules_with_planted_faults(family: str) -> None:
    load_rules()
    planted = {case.rule for case in ZOO} | {rule for group in (*CLASSES, *REPORTED, *LATER) for rule in group.rules}
    planted.add("never-trained")  # test_parameters_behind_a_detach_are_never_trained
    planted |= {case.rule for case in zoo_order.BUGS}
    planted |= {"zero-parameters", "repeated-buffers"}  # test_faults_of_values.py

    assert set(FAMILIES[family]) <= set(RULES)
    assert set(FAMILIES[family]) <= planted


def test_every_rule_belongs_to_a_family() -> None:
    load_rules()

    assert {name for names in FAMILIES.values() for name in names} == set(RULES)
