"""TARGET -> a runnable model, and the inputs to run it with.

The names below load on first use, so that reading stored weights does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchgauge.registry import lazy_names

if TYPE_CHECKING:
    from torchgauge.source.allowed_ops import *
    from torchgauge.source.building import *
    from torchgauge.source.candidate import *
    from torchgauge.source.exported import load_exported as load_exported
    from torchgauge.source.files import *
    from torchgauge.source.first_layer import *
    from torchgauge.source.huggingface_inputs import *
    from torchgauge.source.inputs import *
    from torchgauge.source.modules import *
    from torchgauge.source.packages import *
    from torchgauge.source.process_state import *
    from torchgauge.source.real_model import *
    from torchgauge.source.source import *
    from torchgauge.source.state_names import *
    from torchgauge.source.target import *
    from torchgauge.source.torchscript import load_torchscript as load_torchscript
    from torchgauge.source.torchscript_inputs import *
    from torchgauge.source.user_inputs import *
    from torchgauge.source.weight_tree import *

_HOMES = {
    "allowed_ops": ("require_allowed",),
    "building": ("Recipe", "build_without_weights", "find_timm", "find_torchvision"),
    "candidate": ("Candidate", "Defaults", "forward_signature"),
    "exported": ("load_exported",),
    "files": ("judge",),
    "huggingface_inputs": ("MAKERS", "ModelConfig"),
    "inputs": ("GivenInputs", "candidate_inputs"),
    "first_layer": ("entries", "layer_rule"),
    "attributes": ("attribute_of",),
    "modules": ("all_modules", "has_attribute"),
    "packages": (
        "ensure_torchvision_imports", "import_optional", "torchvision_importable", "torchvision_ops_are_stubs",
    ),
    "process_state": ("pretended_absent", "rng_untouched"),
    "real_model": ("AS_BUILT", "RANDOM", "load_real_model"),
    "source": ("Source",),
    "state_names": (
        "LISTED_NAMES", "MAX_NAME_DEPTH", "Differences", "Shape", "best_fit", "compare", "logical_shapes",
        "model_entries", "model_shapes", "state_shapes", "strip_all", "variants",
    ),
    "target": ("resolve",),
    "torchscript": ("load_torchscript",),
    "torchscript_inputs": ("first_uses",),
    "user_inputs": ("InputSpec", "parse_dtype", "parse_input"),
    "weight_tree": ("module_records", "param_records"),
}  # fmt: skip
__getattr__ = lazy_names(__name__, _HOMES)
