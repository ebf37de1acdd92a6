"""One pass over a model: ops, modules, shapes and live memory, without its arithmetic."""

from torchgauge.capture.paths import unwrap
from torchgauge.capture.recorder import source_text
from torchgauge.capture.run import Request, Trace, trace
from torchgauge.capture.surroundings import undisturbed

__all__ = ["Request", "Trace", "source_text", "trace", "undisturbed", "unwrap"]
