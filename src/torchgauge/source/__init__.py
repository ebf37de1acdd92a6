"""TARGET -> a runnable model, and the inputs to run it with.

The names below load on first use, so that reading stored weights does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.lazy import lazy_names

if TYPE_CHECKING:
    from torchgauge.source.allowed_ops import require_allowed
    from torchgauge.source.building import Recipe, build_without_weights, find_timm, find_torchvision
    from torchgauge.source.candidate import Candidate, Defaults, forward_signature
    from torchgauge.source.exported import load_exported
    from torchgauge.source.files import judge, logical_shapes
    from torchgauge.source.first_layer import entries, layer_rule
    from torchgauge.source.huggingface_inputs import MAKERS, ModelConfig
    from torchgauge.source.inputs import GivenInputs, candidate_inputs
    from torchgauge.source.modules import all_modules, has_attribute
    from torchgauge.source.packages import (
        ensure_torchvision_imports,
        import_optional,
        torchvision_importable,
        torchvision_ops_are_stubs,
    )
    from torchgauge.source.process_state import pretended_absent, rng_untouched
    from torchgauge.source.real_model import AS_BUILT, RANDOM, load_real_model
    from torchgauge.source.source import Source
    from torchgauge.source.state_names import (
        LISTED_NAMES,
        MAX_NAME_DEPTH,
        Differences,
        Shape,
        best_fit,
        compare,
        model_entries,
        model_shapes,
        state_shapes,
        strip_all,
        variants,
    )
    from torchgauge.source.target import resolve
    from torchgauge.source.torchscript import load_torchscript
    from torchgauge.source.torchscript_inputs import first_uses
    from torchgauge.source.user_inputs import InputSpec, parse_dtype, parse_input
    from torchgauge.source.weight_tree import module_records, param_records

__all__ = [
    "AS_BUILT", "LISTED_NAMES", "MAKERS", "MAX_NAME_DEPTH", "RANDOM", "Candidate", "Defaults", "Differences",
    "GivenInputs", "InputSpec", "ModelConfig", "Recipe", "Shape", "Source", "all_modules", "best_fit",
    "build_without_weights",
    "candidate_inputs", "compare", "ensure_torchvision_imports", "entries", "find_timm", "find_torchvision",
    "first_uses", "forward_signature", "has_attribute", "import_optional", "judge", "layer_rule", "load_exported",
    "load_real_model", "load_torchscript", "logical_shapes", "model_entries", "model_shapes", "module_records",
    "param_records", "parse_dtype", "parse_input", "pretended_absent", "require_allowed", "resolve", "rng_untouched",
    "state_shapes", "strip_all", "torchvision_importable", "torchvision_ops_are_stubs", "variants",
]  # fmt: skip

__getattr__ = lazy_names(__name__)
