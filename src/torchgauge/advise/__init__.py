"""Rules: evidence -> recommendation with an expected gain. Nothing is said without evidence in this model."""

from torchgauge.advise.code import Patch, SourceEdit
from torchgauge.advise.evidence import Evidence, LiveModel, Machine
from torchgauge.advise.op_time import UNSURE, Queues
from torchgauge.advise.record import Advice, Gain, Where
from torchgauge.advise.registry import (
    RULES,
    TENSOR_RULES,
    TensorRow,
    advise,
    check_names,
    list_options,
    load_rules,
    recommend,
    rule,
    tensor_rule,
)

__all__ = [
    "RULES",
    "TENSOR_RULES",
    "UNSURE",
    "Advice",
    "Evidence",
    "Gain",
    "LiveModel",
    "Machine",
    "Patch",
    "Queues",
    "SourceEdit",
    "TensorRow",
    "Where",
    "advise",
    "check_names",
    "list_options",
    "load_rules",
    "recommend",
    "rule",
    "tensor_rule",
]
