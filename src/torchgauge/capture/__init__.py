"""One pass over a model: ops, modules, shapes and live memory, without its arithmetic."""

from torchgauge.capture.paths import unwrap
from torchgauge.capture.run import Request, Seen, see
from torchgauge.capture.surroundings import deep_calls

__all__ = ["Request", "Seen", "deep_calls", "see", "unwrap"]
