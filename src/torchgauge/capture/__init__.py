"""One pass over a model: ops, modules, shapes and live memory, without its arithmetic."""

from torchgauge.capture.paths import unwrap
from torchgauge.capture.run import Request, Seen, see

__all__ = ["Request", "Seen", "see", "unwrap"]
